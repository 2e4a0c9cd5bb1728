#![no_main]

ajet_swarm_fuzz::request_target!("/abort_episode");
