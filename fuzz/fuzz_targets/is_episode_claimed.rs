#![no_main]

ajet_swarm_fuzz::request_target!("/is_episode_claimed");
