#![no_main]

ajet_swarm_fuzz::request_target!("/push_verbose_log");
