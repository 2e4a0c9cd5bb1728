#![no_main]

use ajet_swarm::config::{Strictness, load, load_over};

libfuzzer_sys::fuzz_target!(|yaml: &str| {
    for strictness in [Strictness::Job, Strictness::Synced] {
        let _ = load(yaml, strictness);
    }
    let _ = load_over(yaml, "ajet: {model: {path: 'builtin:tiny'}}", Strictness::Synced);
});
