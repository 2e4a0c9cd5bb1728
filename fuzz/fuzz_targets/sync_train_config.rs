#![no_main]

ajet_swarm_fuzz::request_target!(offline "/sync_train_config");
