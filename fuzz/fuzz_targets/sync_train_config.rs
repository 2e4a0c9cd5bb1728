#![no_main]

ajet_swarm_fuzz::request_target!("/sync_train_config");
