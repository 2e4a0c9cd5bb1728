//! Numbers for the kernels' tests.

use rand::{Rng, SeedableRng};

/// Values from −1 to 1.
pub fn random(len: usize, seed: u64) -> Vec<f32> {
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    (0..len).map(|_| rng.random_range(-1.0..1.0)).collect()
}

#[track_caller]
pub fn assert_close(given: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(given.len(), expected.len());
    for (i, (&g, &e)) in given.iter().zip(expected).enumerate() {
        assert!(
            (g - e).abs() <= tolerance * e.abs().max(1.0),
            "element {i}: {g}, expected {e}"
        );
    }
}
