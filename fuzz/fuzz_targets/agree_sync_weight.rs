#![no_main]

ajet_swarm_fuzz::request_target!("/agree_sync_weight");
