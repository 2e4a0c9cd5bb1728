//! Every operation of the training path has the right gradient for every operand that can be trained: against finite
//! differences, and where the backward pass is written here also against candle's own of a plainer formula.

use std::sync::Arc;

use candle_core::{D, DType, Device, Tensor, Var};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{BatchContext, attention, log_probs, plain, soft_cap, visible};
use crate::model::PackedBatch;
use crate::model::config::{Family, ModelConfig};
use crate::model::kernels::{Activation, AttentionScores, LogitScaling};
use crate::model::routing::Routing;
use crate::model::token_set::Allowed;

fn scaling(softcap: Option<f64>) -> LogitScaling {
    LogitScaling {
        scale: 1.0 / 0.7,
        softcap,
    }
}

type Op = Box<dyn Fn(&[Var]) -> Tensor>;

/// An operation by the name it is called by, its operands' shapes, and itself.
struct Case {
    name: &'static str,
    shapes: Vec<Vec<usize>>,
    op: Op,
}

fn case(name: &'static str, shapes: &[&[usize]], op: impl Fn(&[Var]) -> Tensor + 'static) -> Case {
    let (shapes, op) = (shapes.iter().map(|shape| shape.to_vec()).collect(), Box::new(op));
    Case { name, shapes, op }
}

/// A prompt with two answers, one of which goes on, and a row of its own.
fn forest() -> PackedBatch {
    let mut batch = PackedBatch::default();
    let root = batch.push(&[1, 2, 3], None);
    let left = batch.push(&[4, 5], root);
    batch.push(&[6], left);
    batch.push(&[7, 8, 9], root);
    batch.push(&[10, 11], None);
    batch
}

/// Five tokens, each with two of four experts.
fn routing(normalized: bool) -> Routing {
    let mut experts = ModelConfig::small(Family::Mixtral).experts.unwrap();
    (experts.count, experts.normalized) = (4, normalized);
    let logits: Vec<f32> = (0..20).map(|i| (i * 7 % 11) as f32).collect();
    Routing::new(&experts, &logits)
}

/// All operations that the transformer's forward pass is made of; the test below holds this list to it.
fn training_path() -> Vec<Case> {
    let config = ModelConfig::small(Family::Llama);
    let batch = forest();
    let context = BatchContext::new(&batch, &config, &Device::Cpu).unwrap();
    let (tokens, heads, kv) = (batch.len(), config.num_heads, config.num_kv_heads);
    let (q, k) = (heads * config.head_dim, kv * config.head_dim);
    let targets: Vec<u32> = (0..tokens as u32).map(|t| t * 3 % 17).collect();
    let rope_context = context.clone();
    let scores = AttentionScores {
        softcap: Some(0.8),
        window: Some(3),
        ..config.attention_scores(0)
    };
    vec![
        case("linear", &[&[5, 8], &[6, 8], &[6]], |x| {
            plain::linear(&x[0], &x[1], Some(&x[2])).unwrap()
        }),
        case("adapted_linear", &[&[5, 8], &[2, 8], &[6, 2]], |x| {
            let frozen = Tensor::arange(0f32, 48.0, &Device::Cpu).unwrap();
            let frozen = (frozen.reshape((6, 8)).unwrap() * 0.01).unwrap();
            plain::adapted_linear(&x[0], &frozen, None, (&x[1], &x[2]), 0.5).unwrap()
        }),
        case("rms_norm", &[&[5, 8], &[8]], |x| {
            plain::rms_norm(&x[0], &x[1], 0.0, 1e-5).unwrap()
        }),
        case("rms_norm", &[&[5, 8], &[8]], |x| {
            plain::rms_norm(&x[0], &x[1], 1.0, 1e-5).unwrap()
        }),
        case("rope", &[&[tokens, q]], move |x| {
            plain::rope(&x[0], heads, &rope_context.ropes[0]).unwrap()
        }),
        case("glu", &[&[5, 8], &[5, 8]], |x| {
            plain::glu(Activation::Silu, &x[0], &x[1]).unwrap()
        }),
        case("glu", &[&[5, 8], &[5, 8]], |x| {
            plain::glu(Activation::GeluTanh, &x[0], &x[1]).unwrap()
        }),
        case("routing_weights", &[&[5, 4]], |x| {
            plain::routing_weights(&x[0], &routing(true)).unwrap()
        }),
        case("routing_weights", &[&[5, 4]], |x| {
            plain::routing_weights(&x[0], &routing(false)).unwrap()
        }),
        case("mix", &[&[10, 8], &[10]], |x| {
            plain::mix(&x[0], &x[1], &routing(true), 5).unwrap()
        }),
        case("attention", &[&[tokens, q], &[tokens, k], &[tokens, k]], move |x| {
            plain::attention([&x[0], &x[1], &x[2]], &config, scores, &context).unwrap()
        }),
        case("log_probs", &[&[tokens, 8], &[17, 8]], move |x| {
            let (log_probs, entropy) = plain::log_probs(&x[0], &x[1], &targets, &[], scaling(Some(2.0))).unwrap();
            Tensor::cat(&[log_probs, entropy], 0).unwrap()
        }),
    ]
}

fn random(shape: &[usize], rng: &mut ChaCha8Rng) -> Tensor {
    let values: Vec<f32> = (0..shape.iter().product())
        .map(|_| rng.random_range(-1.0..1.0))
        .collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

fn scalar(x: &Tensor) -> f64 {
    f64::from(x.sum_all().unwrap().to_scalar::<f32>().unwrap())
}

#[test]
fn gradients_are_those_of_finite_differences() {
    const STEP: f64 = 1e-2;
    for Case { name, shapes, op } in training_path() {
        let mut rng = ChaCha8Rng::seed_from_u64(name.len() as u64);
        let operands: Vec<Var> = shapes
            .iter()
            .map(|shape| Var::from_tensor(&random(shape, &mut rng)).unwrap())
            .collect();
        let output = op(&operands);
        let by = random(output.dims(), &mut rng);
        let loss = |operands: &[Var]| (op(operands) * &by).unwrap();
        let gradients = loss(&operands).sum_all().unwrap().backward().unwrap();
        for (number, operand) in operands.iter().enumerate() {
            let direction = random(operand.dims(), &mut rng);
            let at = |step: f64| {
                let mut moved = operands.clone();
                moved[number] =
                    Var::from_tensor(&(operand.as_tensor() + (&direction * step).unwrap()).unwrap()).unwrap();
                scalar(&loss(&moved))
            };
            let expected = (at(STEP) - at(-STEP)) / (2.0 * STEP);
            let gradient = gradients
                .get(operand)
                .unwrap_or_else(|| panic!("{name}: operand {number} has no gradient"));
            let given = scalar(&(gradient * &direction).unwrap());
            let distance = (given - expected).abs() / expected.abs().max(0.1);
            assert!(distance < 1e-2, "{name}: by operand {number} {given}, not {expected}");
        }
    }
}

#[test]
fn the_forward_pass_is_made_of_these_operations_alone() {
    let source = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/src/model/transformer.rs")).unwrap();
    let code = source.split("#[cfg(test)]").next().unwrap();
    let compact: String = code.split_whitespace().collect();
    let checked: Vec<&str> = training_path().iter().map(|case| case.name).collect();
    let mut called: Vec<String> = vec![];
    for prefix in ["self.ops.", "plain::"] {
        for (at, _) in compact.match_indices(prefix) {
            let name: String = compact[at + prefix.len()..]
                .chars()
                .take_while(|c| c.is_alphanumeric() || *c == '_')
                .collect();
            called.push(name);
        }
    }
    assert!(called.len() >= checked.len(), "{called:?}");
    for name in &called {
        assert!(
            checked.contains(&name.as_str()),
            "{name} is called and not checked here"
        );
    }
    for name in checked {
        assert!(
            called.iter().any(|c| c == name),
            "{name} is checked here and not called"
        );
    }
    // What candle computes without a gradient, or with one for what is frozen, is not called on the tape directly.
    let plain = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/src/model/ops/plain.rs")).unwrap();
    for source in [code, &plain] {
        for lossy in ["softmax_last_dim(", "rotary_emb::", "ops::rms_norm(", ".matmul("] {
            assert!(!source.contains(lossy), "{lossy} on the tape");
        }
    }
}

/// The gradients of a weighted sum of an output.
fn gradients(output: &Tensor, operands: &[&Var]) -> Vec<Tensor> {
    let by = random(output.dims(), &mut ChaCha8Rng::seed_from_u64(5));
    let store = (output * by).unwrap().sum_all().unwrap().backward().unwrap();
    operands
        .iter()
        .map(|operand| store.get(operand).unwrap().clone())
        .collect()
}

#[track_caller]
fn assert_same(given: (&Tensor, Vec<Tensor>), expected: (&Tensor, Vec<Tensor>)) {
    let pairs = [(given.0, expected.0)]
        .into_iter()
        .chain(given.1.iter().zip(&expected.1));
    for (given, expected) in pairs {
        assert_eq!(given.dims(), expected.dims());
        let difference = (given - expected).unwrap().abs().unwrap().flatten_all().unwrap();
        let difference = difference.max(0).unwrap().to_scalar::<f32>().unwrap();
        assert!(difference < 1e-5, "largest difference {difference}");
    }
}

#[test]
fn log_probabilities_in_steps_are_those_of_candle_at_once() {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let [hidden, head] = [[7, 8], [19, 8]].map(|shape| Var::from_tensor(&random(&shape, &mut rng)).unwrap());
    let targets = [0, 18, 3, 3, 7, 11, 2];
    let mut allowed: Vec<Allowed> = vec![None; 7];
    allowed[1] = Some(Arc::new([2, 18].into_iter().collect()));
    allowed[4] = Some(Arc::new((3..12).collect()));
    let floor: Vec<f32> = allowed
        .iter()
        .flat_map(|set| (0..19).map(move |id| set.as_ref().is_none_or(|set| set.contains(id))))
        .map(|free| if free { 0.0 } else { -1e30 })
        .collect();
    let floor = Tensor::from_vec(floor, (7, 19), &Device::Cpu).unwrap();
    for cap in [None, Some(1.5)] {
        let logits = (hidden.matmul(&head.t().unwrap()).unwrap() / 0.7).unwrap();
        let logits = (soft_cap(&logits, cap).unwrap() + &floor).unwrap();
        let all = candle_nn::ops::log_softmax(&logits, D::Minus1).unwrap();
        let at = Tensor::new(&targets, &Device::Cpu).unwrap().unsqueeze(1).unwrap();
        let chosen = all.gather(&at, 1).unwrap().squeeze(1).unwrap();
        let entropy = (all.exp().unwrap() * &all)
            .unwrap()
            .sum(D::Minus1)
            .unwrap()
            .neg()
            .unwrap();
        let expected = Tensor::stack(&[chosen, entropy], 0).unwrap();
        for most in [1, 40, 1000] {
            let given =
                log_probs::in_steps(most, &hidden, &head, &targets, &allowed, scaling(cap.map(f64::from))).unwrap();
            let both = [&hidden, &head];
            assert_same(
                (&given, gradients(&given, &both)),
                (&expected, gradients(&expected, &both)),
            );
        }
    }
    assert!(
        log_probs::log_probs(&hidden, &head, &[19; 7], &[], scaling(None)).is_err(),
        "outside the vocabulary"
    );
}

/// Attention of each token separately, on candle's tape.
fn one_by_one([q, k, v]: [&Tensor; 3], config: &ModelConfig, scores: AttentionScores, batch: &PackedBatch) -> Tensor {
    let (kv, d) = (config.num_kv_heads, config.head_dim);
    let group = config.num_heads / kv;
    let mut outputs = vec![];
    for (number, segment) in batch.segments.iter().enumerate() {
        for token in segment.start..segment.start + segment.len {
            let mut seen: Vec<u32> = batch
                .ancestors(number)
                .into_iter()
                .flatten()
                .map(|t| t as u32)
                .collect();
            seen.extend(segment.start as u32..=token as u32);
            let seen = seen.split_off(scores.first_visible(seen.len() - 1));
            let keys = seen.len();
            let seen = Tensor::new(seen, &Device::Cpu).unwrap();
            let chosen = |x: &Tensor| x.index_select(&seen, 0).unwrap().reshape((keys, kv, d)).unwrap();
            let (k, v) = (chosen(k), chosen(v));
            for head in 0..kv * group {
                let of_head = |x: &Tensor| x.narrow(1, head / group, 1).unwrap().squeeze(1).unwrap();
                let q = q.narrow(0, token, 1).unwrap().narrow(1, head * d, d).unwrap();
                let of_keys = q.matmul(&of_head(&k).t().unwrap()).unwrap();
                let of_keys = (of_keys * f64::from(scores.scale)).unwrap();
                let of_keys = soft_cap(&of_keys, scores.softcap).unwrap();
                let shares = candle_nn::ops::softmax(&of_keys, D::Minus1).unwrap();
                outputs.push(shares.matmul(&of_head(&v)).unwrap());
            }
        }
    }
    let width = kv * group * d;
    Tensor::cat(&outputs, 0).unwrap().reshape((batch.len(), width)).unwrap()
}

#[test]
fn attention_in_steps_is_that_of_each_token_by_itself() {
    let config = ModelConfig::small(Family::Llama);
    let batch = Arc::new(forest());
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    let mut operand =
        |heads: usize| Var::from_tensor(&random(&[batch.len(), heads * config.head_dim], &mut rng)).unwrap();
    let (q, k, v) = (
        operand(config.num_heads),
        operand(config.num_kv_heads),
        operand(config.num_kv_heads),
    );
    for (window, softcap) in [(None, None), (Some(1), None), (Some(4), Some(0.5))] {
        let scores = AttentionScores {
            softcap,
            window,
            ..config.attention_scores(0)
        };
        let expected = one_by_one([&q, &k, &v], &config, scores, &batch);
        for most in [1, 2 * 5 * config.num_heads, 1 << 20] {
            let given = attention::in_steps(most, [&q, &k, &v], (&config, scores), &batch).unwrap();
            let all = [&q, &k, &v];
            assert_same(
                (&given, gradients(&given, &all)),
                (&expected, gradients(&expected, &all)),
            );
        }
    }
}

#[test]
fn what_is_frozen_takes_no_gradient() {
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let x = Var::from_tensor(&random(&[3, 4], &mut rng)).unwrap();
    let frozen = random(&[5, 4], &mut rng);
    for output in [
        plain::linear(&x, &frozen, None).unwrap(),
        log_probs::log_probs(&x, &frozen, &[1, 2, 3], &[], scaling(None)).unwrap(),
    ] {
        let store = output.sum_all().unwrap().backward().unwrap();
        assert!(store.get(&x).is_some() && store.get(&frozen).is_none());
    }
}

#[test]
fn in_bf16_operations_and_gradients_stay_near() {
    for Case { name, shapes, op } in training_path() {
        if name == "adapted_linear" {
            continue; // its adapters are f32 whatever the model's type
        }
        let mut rng = ChaCha8Rng::seed_from_u64(7);
        let wide: Vec<Var> = shapes
            .iter()
            .map(|shape| Var::from_tensor(&random(shape, &mut rng).to_dtype(DType::BF16).unwrap()).unwrap())
            .collect();
        let narrow = wide.clone();
        let wide: Vec<Var> = wide
            .iter()
            .map(|v| Var::from_tensor(&v.to_dtype(DType::F32).unwrap()).unwrap())
            .collect();
        let [given, expected] = [&narrow, &wide].map(|operands| {
            let output = op(operands).to_dtype(DType::F32).unwrap();
            let found = gradients(&output, &operands.iter().collect::<Vec<_>>());
            (output, found)
        });
        let pairs = [(&given.0, &expected.0)]
            .into_iter()
            .chain(given.1.iter().zip(&expected.1));
        for (given, expected) in pairs {
            let norm = |x: &Tensor| scalar(&x.sqr().unwrap()).sqrt();
            let distance = norm(&(given.to_dtype(DType::F32).unwrap() - expected).unwrap()) / norm(expected);
            assert!(distance < 2e-2, "{name}: {distance}");
        }
    }
}

#[test]
fn a_key_is_visible_up_to_the_querys_place() {
    let places = Tensor::new(&[[0f32], [2.0]], &Device::Cpu).unwrap();
    let hidden = f32::NEG_INFINITY;
    let mask = |window| visible(&places, 4, window).unwrap().to_vec2::<f32>().unwrap();
    assert_eq!(mask(None), [[0.0, hidden, hidden, hidden], [0.0, 0.0, 0.0, hidden]]);
    assert_eq!(
        mask(Some(2)),
        [[0.0, hidden, hidden, hidden], [hidden, 0.0, 0.0, hidden]]
    );
}
