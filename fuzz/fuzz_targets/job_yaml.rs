#![no_main]

use ajet_swarm::roll::job::Job;

libfuzzer_sys::fuzz_target!(|yaml: &str| {
    let _ = Job::parse("job.yaml".as_ref(), yaml);
});
