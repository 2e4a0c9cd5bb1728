//! Drawing on the device against drawing on the CPU.

use candle_core::{Device, Tensor};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::device_sampler;
use super::request::{SampledToken, SamplingParams};
use super::sampler::{self, Draw};
use crate::model::TokenSet;
use crate::model::kernels::Isa;

fn params() -> SamplingParams {
    SamplingParams::unmodified()
}

/// What both samplers draw from `rows` of random logits, each row with the parameters whose turn it is.
fn both(vocabulary: usize, rows: usize, kinds: &[SamplingParams]) -> Vec<[Option<SampledToken>; 2]> {
    both_of(vocabulary, rows, kinds, &[None])
}

/// The same with the tokens that each row allows.
fn both_of(
    vocabulary: usize,
    rows: usize,
    kinds: &[SamplingParams],
    sets: &[Option<TokenSet>],
) -> Vec<[Option<SampledToken>; 2]> {
    let mut rng = ChaCha8Rng::seed_from_u64(vocabulary as u64);
    let logits: Vec<f32> = (0..rows * vocabulary).map(|_| rng.random_range(-6.0..6.0f32)).collect();
    let draws: Vec<Draw> = (0..rows)
        .map(|row| Draw {
            params: &kinds[row % kinds.len()],
            uniform: rng.random(),
            forced_token: None,
            added: &[],
            allowed: sets[row % sets.len()].as_ref(),
        })
        .collect();
    let tensor = Tensor::from_slice(&logits, (rows, vocabulary), &Device::Cpu).unwrap();
    let on_device = device_sampler::draw(&tensor, &draws).unwrap();
    let lines = logits.chunks(vocabulary);
    let on_cpu = lines
        .zip(&draws)
        .map(|(line, draw)| sampler::draw(Isa::detect(), line, *draw));
    on_cpu.zip(on_device).map(|(cpu, device)| [cpu, device]).collect()
}

#[track_caller]
fn assert_same(both: &[[Option<SampledToken>; 2]]) {
    for (row, [cpu, device]) in both.iter().enumerate() {
        let (cpu, device) = (cpu.as_ref().unwrap(), device.as_ref().unwrap());
        assert_eq!(cpu.id, device.id, "row {row}");
        assert!(
            (cpu.logprob - device.logprob).abs() < 1e-4,
            "row {row}: {cpu:?}, {device:?}"
        );
        assert_eq!(cpu.top.len(), device.top.len());
        for (a, b) in cpu.top.iter().zip(&device.top) {
            assert!(a.0 == b.0 && (a.1 - b.1).abs() < 1e-4, "row {row}: {cpu:?}, {device:?}");
        }
    }
}

#[test]
fn the_device_draws_the_tokens_that_the_cpu_draws() {
    let kinds = [
        params(),
        SamplingParams {
            temperature: 0.0,
            ..params()
        },
        SamplingParams {
            temperature: 0.6,
            top_p: 0.8,
            ..params()
        },
        SamplingParams {
            top_k: Some(7),
            top_logprobs: 3,
            ..params()
        },
        SamplingParams { min_p: 0.1, ..params() },
        SamplingParams {
            temperature: 1.3,
            top_k: Some(40),
            top_p: 0.9,
            min_p: 0.02,
            ..params()
        },
        SamplingParams {
            top_k: Some(1),
            ..params()
        },
        SamplingParams {
            top_p: 1e-6,
            ..params()
        },
        SamplingParams {
            top_k: Some(1_000_000),
            ..params()
        },
    ];
    // Less than a piece, exactly one, several and a part.
    for vocabulary in [11, 512, 3000] {
        assert_same(&both(vocabulary, 180, &kinds));
        for kind in &kinds {
            assert_same(&both(vocabulary, 20, std::slice::from_ref(kind)));
        }
    }
}

#[test]
fn what_was_cut_is_never_drawn_whatever_the_uniform_number() {
    let logits: Vec<f32> = (0..700).map(|i| ((i * 37 % 101) as f32 / 101.0 - 0.5) * 6.0).collect();
    let tensor = Tensor::from_slice(&logits, (1, 700), &Device::Cpu).unwrap();
    let kind = SamplingParams {
        top_k: Some(5),
        ..params()
    };
    for uniform in [0.0, 1e-12, 0.5, 1.0 - 1e-7, 1.0 - f64::EPSILON] {
        let draw = Draw {
            params: &kind,
            uniform,
            forced_token: None,
            added: &[],
            allowed: None,
        };
        let token = device_sampler::draw(&tensor, &[draw]).unwrap().remove(0).unwrap();
        let larger = logits.iter().filter(|l| **l > logits[token.id as usize]).count();
        assert!(larger < 5, "{larger} tokens are likelier than the one at {uniform}");
    }
}

#[test]
fn what_is_added_to_logits_changes_what_is_drawn_and_not_what_is_told() {
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let logits: Vec<f32> = (0..4 * 600).map(|_| rng.random_range(-6.0..6.0f32)).collect();
    let tensor = Tensor::from_slice(&logits, (4, 600), &Device::Cpu).unwrap();
    let greedy = SamplingParams {
        temperature: 0.0,
        top_logprobs: 2,
        ..params()
    };
    for kind in [params(), greedy] {
        let added: [&[(u32, f32)]; 4] = [&[(7, 100.0)], &[], &[(0, -3.0), (599, 4.0), (600, 9.0)], &[(8, -100.0)]];
        let draws: Vec<Draw> = added
            .iter()
            .map(|added| Draw {
                params: &kind,
                uniform: rng.random(),
                forced_token: None,
                added,
                allowed: None,
            })
            .collect();
        let on_device = device_sampler::draw(&tensor, &draws).unwrap();
        assert_eq!(on_device[0].as_ref().unwrap().id, 7);
        let on_cpu = logits.chunks(600).zip(&draws);
        let on_cpu = on_cpu.map(|(line, draw)| sampler::draw(Isa::detect(), line, *draw));
        let both: Vec<_> = on_cpu.zip(on_device).map(|(cpu, device)| [cpu, device]).collect();
        assert_same(&both);
    }
}

#[test]
fn a_row_that_is_not_finite_is_told_and_disturbs_no_other() {
    for broken in [f32::NAN, f32::INFINITY] {
        let logits = [0.0, broken, 1.0, 0.0, 2.0, 1.0];
        let tensor = Tensor::from_slice(&logits, (2, 3), &Device::Cpu).unwrap();
        for kind in [
            params(),
            SamplingParams {
                temperature: 0.0,
                ..params()
            },
        ] {
            let draw = Draw {
                params: &kind,
                uniform: 0.5,
                forced_token: None,
                added: &[],
                allowed: None,
            };
            let tokens = device_sampler::draw(&tensor, &[draw, draw]).unwrap();
            assert_eq!(tokens[0], None);
            assert!(tokens[1].is_some());
        }
    }
}

#[test]
fn given_tokens_have_the_log_probabilities_that_drawn_ones_have() {
    let logits = [0.5, -1.0, 2.0, 0.0, 1.0, 3.0];
    let tensor = Tensor::from_slice(&logits, (2, 3), &Device::Cpu).unwrap();
    let kind = params();
    let draw = |forced_token| Draw {
        params: &kind,
        uniform: 0.9,
        forced_token,
        added: &[],
        allowed: None,
    };
    let on_device = device_sampler::draw(&tensor, &[draw(Some(1)), draw(None)]).unwrap();
    for (row, (given, line)) in [(Some(1), &logits[..3]), (None, &logits[3..])].into_iter().enumerate() {
        let device = on_device[row].clone().unwrap();
        let cpu = sampler::draw(Isa::detect(), line, draw(given)).unwrap();
        assert_eq!(device.id, cpu.id);
        assert_eq!(device.id, given.unwrap_or(cpu.id));
        assert!((device.logprob - cpu.logprob).abs() < 1e-5);
    }
}

#[test]
fn the_device_draws_only_what_is_allowed() {
    let kinds = [
        params(),
        SamplingParams {
            top_logprobs: 5,
            top_p: 0.9,
            ..params()
        },
        SamplingParams {
            temperature: 0.0,
            ..params()
        },
    ];
    let sets = [
        None,
        Some([7, 300].into_iter().collect()),
        Some([11].into_iter().collect()),
    ];
    let sets: Vec<Option<TokenSet>> = sets.into_iter().chain([Some((40..900).collect())]).collect();
    let drawn = both_of(1000, 24, &kinds, &sets);
    assert_same(&drawn);
    for (row, [_, device]) in drawn.iter().enumerate() {
        let (token, set) = (device.as_ref().unwrap(), &sets[row % 4]);
        assert!(set.as_ref().is_none_or(|set| set.contains(token.id)), "row {row}");
        assert_eq!(token.determined, row % 4 == 2);
    }
}
