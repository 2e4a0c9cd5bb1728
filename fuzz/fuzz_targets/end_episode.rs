#![no_main]

ajet_swarm_fuzz::request_target!("/end_episode");
