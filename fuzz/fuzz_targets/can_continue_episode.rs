#![no_main]

ajet_swarm_fuzz::request_target!("/can_continue_episode");
