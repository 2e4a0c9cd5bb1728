#![no_main]

ajet_swarm_fuzz::request_target!("/claim_episode");
