//! What the targets share: a server in this process, whose state and answers are checked on every body, and a mutator
//! that knows JSON.

#[allow(dead_code, reason = "the targets use a part of what the tests do")]
#[path = "../../tests/support/fake_engine.rs"]
mod fake_engine;
#[allow(dead_code, reason = "the targets use a part of what the tests do")]
#[path = "../../tests/support/fuzz_world.rs"]
mod fuzz_world;
#[allow(dead_code, reason = "the targets use a part of what the tests do")]
#[path = "../../tests/support/mutate.rs"]
mod mutate;

use std::cell::RefCell;

use fuzz_world::World;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use tokio::runtime::Runtime;

/// What stands in seeds for things that only a running server has.
const PLACEHOLDERS: [&str; 2] = ["$CLIENT", "$EPISODE"];

thread_local! {
    static RUNNING: RefCell<Option<(Runtime, World)>> = const { RefCell::new(None) };
}

/// Offers a body to a path of a server that rolls, with an episode to talk about.
///
/// # Panics
///
/// The answer is one that it must not be.
pub fn call(path: &str, body: &[u8]) {
    RUNNING.with_borrow_mut(|running| {
        let (runtime, world) = running.get_or_insert_with(start);
        runtime.block_on(async {
            world.roll().await;
            let (client, episode, key) = world.episode().await;
            let mut body = body.to_vec();
            for (placeholder, real) in PLACEHOLDERS.into_iter().zip([client, episode]) {
                body = replaced(&body, placeholder.as_bytes(), real.as_bytes());
            }
            world.offer(path, &key, body).await;
        });
    });
}

/// Offers a body to a path of a server that is offline.
///
/// # Panics
///
/// The answer is one that it must not be.
pub fn call_offline(path: &str, body: &[u8]) {
    RUNNING.with_borrow_mut(|running| {
        let (runtime, world) = running.get_or_insert_with(start);
        runtime.block_on(async { world.offer(path, "", body.to_vec()).await });
    });
}

fn start() -> (Runtime, World) {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(1).enable_all().build();
    let runtime = runtime.expect("threads can be made");
    let world = {
        let _inside = runtime.enter();
        World::new(ChaCha8Rng::seed_from_u64(0))
    };
    (runtime, world)
}

fn replaced(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((&first, tail)) = rest.split_first() {
        match rest.strip_prefix(from) {
            Some(after) => {
                out.extend_from_slice(to);
                rest = after;
            }
            None => {
                out.push(first);
                rest = tail;
            }
        }
    }
    out
}

/// Changes JSON by its structure, and what is no JSON by its bytes. As libFuzzer's `LLVMFuzzerCustomMutator`.
pub fn mutate_json(data: &mut [u8], size: usize, max_size: usize, seed: u32) -> usize {
    let Ok(value) = serde_json::from_slice(&data[..size]) else {
        return libfuzzer_sys::fuzzer_mutate(data, size, max_size);
    };
    let body = mutate::body(&value, &mut ChaCha8Rng::seed_from_u64(seed.into()));
    let kept = body.len().min(max_size);
    data[..kept].copy_from_slice(&body[..kept]);
    kept
}

/// A target that sends bodies to a path. Its file begins with `#![no_main]`.
#[macro_export]
macro_rules! request_target {
    (offline $path:literal) => {
        libfuzzer_sys::fuzz_target!(|body: &[u8]| $crate::call_offline($path, body));
    };
    ($path:literal) => {
        libfuzzer_sys::fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
            $crate::mutate_json(data, size, max_size, seed)
        });
        libfuzzer_sys::fuzz_target!(|body: &[u8]| $crate::call($path, body));
    };
}
