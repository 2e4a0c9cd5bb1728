#![no_main]

ajet_swarm_fuzz::request_target!("/v1/chat/completions");
