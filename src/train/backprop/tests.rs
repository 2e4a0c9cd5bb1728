use super::*;
use crate::config::ALL_LINEAR;
use crate::model::ModelConfig;
use crate::model::config::Family;
use crate::model::experts::Experts;
use crate::model::kernels::Isa;
use crate::model::lora::LoraConfig;
use crate::model::testing::quantized_and_dequantized;
use crate::model::weights::{Trainable, random_tensors};
use crate::train::packing::{RowView, pack};

/// Random weights; biases, norms and adapters' B moved off the values that they begin with, which hide mistakes.
fn weights(config: ModelConfig, trainable: &Trainable) -> Weights {
    let tensors = random_tensors(&config, 0.3, 7).unwrap();
    let weights = Weights::new(config, tensors, trainable).unwrap();
    for (i, (name, var)) in weights.trainable().iter().enumerate() {
        if var.rank() == 1 || name.ends_with("lora_B.weight") {
            let offset = candle_core::Tensor::arange(0f32, var.elem_count() as f32, var.device()).unwrap();
            let offset = offset.affine(0.01, 0.02 * (i % 10) as f64).unwrap();
            let moved = (var.as_tensor() + offset.reshape(var.shape()).unwrap()).unwrap();
            var.set(&moved).unwrap();
        }
    }
    weights
}

fn lora(targets: &[&str]) -> Trainable {
    Trainable::Lora(LoraConfig {
        rank: 2,
        alpha: 4.0,
        targets: targets.iter().map(|target| (*target).to_owned()).collect(),
        seed: 0,
    })
}

/// All families, trained whole and by adapters, of experts too.
fn models() -> Vec<(String, Weights)> {
    let mut models = Vec::new();
    for family in Family::ALL {
        let config = ModelConfig::small(family);
        let mut ways = vec![Trainable::AllAndRouters, lora(&[ALL_LINEAR])];
        if let Some(experts) = &config.experts {
            ways.extend([Trainable::All, lora(&experts.names.projections)]);
        }
        for trainable in ways {
            let weights = weights(config.clone(), &trainable);
            models.push((format!("{family:?}, {trainable:?}"), weights));
        }
    }
    models
}

/// Three rows with shared beginnings, and one without.
fn rows() -> Vec<(Vec<u32>, Vec<usize>)> {
    vec![
        (vec![1, 2, 3, 4, 5, 6, 7, 8], vec![5, 6, 7]),
        (vec![1, 2, 3, 4, 5, 9, 10], vec![5, 6]),
        (vec![1, 2, 3, 10, 11], vec![3, 4]),
        (vec![12, 13, 14], vec![1, 2]),
    ]
}

fn micro(rows: &[(Vec<u32>, Vec<usize>)], share: bool) -> MicroBatch {
    let views: Vec<RowView> = rows
        .iter()
        .map(|(tokens, targets)| RowView {
            tokens,
            targets,
            constrained: &[],
        })
        .collect();
    pack(&views, usize::MAX, share).remove(0)
}

/// A way to compute passes.
#[derive(Clone, Copy, Debug)]
enum Way {
    Autograd,
    Kernels(Isa, Precision),
}

/// The kernels of this machine that are as exact as f32.
fn exact_ways() -> Vec<Way> {
    Isa::available()
        .into_iter()
        .map(|isa| Way::Kernels(isa, Precision::F32))
        .collect()
}

fn backprop(way: Way) -> Backprop {
    match way {
        Way::Autograd => Backprop::new(Method::Autograd(None), Arc::new(Pool::new(1))),
        Way::Kernels(isa, precision) => Backprop::new(Method::Kernels(precision), Arc::new(Pool::with_isa(2, isa))),
    }
}

struct Found {
    log_probs: Vec<f32>,
    entropies: Vec<f32>,
    gradients: Gradients,
}

fn run(way: Way, weights: &Weights, micro: &MicroBatch, recompute: bool) -> Found {
    let mut backprop = self::backprop(way);
    let forward = backprop
        .forward(Transformer::new(weights), micro, 0.7, recompute)
        .unwrap();
    let (log_probs, entropies) = forward.outputs().unwrap();
    let gradient = |i: usize| ((i * 7) % 5) as f32 * 0.4 - 0.7;
    let by_log_prob: Vec<f32> = (0..log_probs.len()).map(gradient).collect();
    let by_entropy: Vec<f32> = by_log_prob.iter().map(|by| 0.1 - 0.2 * by).collect();
    let mut gradients = Gradients::default();
    let bad = forward.backward(&by_log_prob, &by_entropy, &mut gradients).unwrap();
    assert!(bad.is_empty(), "{way:?}: {bad:?}");
    Found {
        log_probs,
        entropies,
        gradients,
    }
}

fn values(gradients: &Gradients, name: &str) -> Vec<f32> {
    let gradient = gradients.by_name.get(name);
    let gradient = gradient.unwrap_or_else(|| panic!("{name} has no gradient"));
    gradient.flatten_all().unwrap().to_vec1().unwrap()
}

fn norm(values: impl Iterator<Item = f32>) -> f64 {
    values.map(|v| v as f64 * v as f64).sum::<f64>().sqrt()
}

fn relative_l2(a: &[f32], b: &[f32]) -> f64 {
    norm(a.iter().zip(b).map(|(a, b)| a - b)) / norm(b.iter().copied())
}

/// Same outputs, and for every trained parameter (and no other) a gradient that is not zero and the same; of an expert
/// that no token has chosen none.
fn assert_alike(weights: &Weights, found: &Found, expected: &Found, tolerance: f64, what: &str) {
    let pairs = found.log_probs.iter().zip(&expected.log_probs);
    for (a, b) in pairs.chain(found.entropies.iter().zip(&expected.entropies)) {
        assert!(((a - b) as f64).abs() < tolerance * 3.0, "{what}: {a}, not {b}");
    }
    let (mut trained, gradients) = (weights.trainable(), &expected.gradients.by_name);
    trained.retain(|(name, _)| gradients.contains_key(name) || !Experts::is_of_expert(name));
    assert_eq!(found.gradients.by_name.len(), trained.len(), "{what}: gradients");
    for (name, _) in trained {
        let (a, b) = (values(&found.gradients, &name), values(&expected.gradients, &name));
        assert!(norm(b.iter().copied()) > 1e-6, "{what}: the gradient of {name} is zero");
        let distance = relative_l2(&a, &b);
        assert!(
            distance < tolerance,
            "{what}: the gradient of {name} is off by {distance}"
        );
    }
}

#[test]
fn every_kernel_gives_every_trained_tensor_the_gradient_of_autograd() {
    for (what, weights) in models() {
        let micro = micro(&rows(), true);
        let expected = run(Way::Autograd, &weights, &micro, false);
        for way in exact_ways() {
            for recompute in [false, true] {
                let found = run(way, &weights, &micro, recompute);
                assert_alike(
                    &weights,
                    &found,
                    &expected,
                    1e-4,
                    &format!("{what}, {way:?}, recompute {recompute}"),
                );
            }
        }
    }
}

// Both compute with the same values in the same order.
#[test]
fn kept_blocks_give_the_gradients_of_the_dequantised_model() {
    for family in [Family::Qwen2, Family::Phi3, Family::Mixtral] {
        let [kept, dequantised] = quantized_and_dequantized(family, &lora(&[ALL_LINEAR]));
        assert!(kept.describe_quantized().is_some());
        let micro = micro(&rows(), true);
        for way in exact_ways() {
            for recompute in [false, true] {
                let found = run(way, &kept, &micro, recompute);
                let expected = run(way, &dequantised, &micro, recompute);
                assert_alike(&kept, &found, &expected, 1e-6, &format!("{family:?}, {way:?}"));
            }
        }
    }
}

#[test]
fn autograd_refuses_kept_blocks() {
    let [kept, _] = quantized_and_dequantized(Family::Llama, &lora(&[ALL_LINEAR]));
    let (mut autograd, micro) = (backprop(Way::Autograd), micro(&rows(), true));
    let error = autograd
        .forward(Transformer::new(&kept), &micro, 1.0, false)
        .err()
        .unwrap();
    assert!(error.to_string().contains("set ajet.engine.device to cpu"), "{error}");
}

#[test]
fn both_ways_count_what_experts_compute() {
    let weights = weights(ModelConfig::small(Family::Qwen3Moe), &Trainable::All);
    let micro = micro(&rows(), true);
    let loads = |way: Way, recompute: bool| {
        let mut backprop = self::backprop(way);
        let model = Transformer::new(&weights);
        backprop.forward(model, &micro, 0.7, recompute).unwrap().expert_loads()
    };
    let [expected, found] = [Way::Autograd, exact_ways()[0]].map(|way| loads(way, false));
    assert_eq!(expected[0], Vec::<u64>::new(), "a layer without experts");
    assert_eq!(expected[1].iter().sum::<u64>() as usize, 2 * micro.batch.len());
    // In the last layer the kernels compute only the tokens that predict.
    let mut predicting: Vec<usize> = micro.predictions.iter().map(|(token, _)| *token).collect();
    predicting.sort_unstable();
    predicting.dedup();
    assert_eq!(found[1].iter().sum::<u64>() as usize, 2 * predicting.len());
    assert_eq!(loads(exact_ways()[0], true), found, "recomputing counts once");
}

#[test]
fn a_tree_gives_the_gradients_of_its_rows_one_by_one() {
    let (tree, single) = (micro(&rows(), true), micro(&rows(), false));
    assert!(tree.batch.len() < single.batch.len());
    let weights = weights(ModelConfig::small(Family::Qwen2), &Trainable::All);
    for way in exact_ways().into_iter().chain([Way::Autograd]) {
        // Gradients belong to predictions, of which a tree has fewer: both are given 1.
        let gradients = |micro: &MicroBatch| {
            let mut backprop = self::backprop(way);
            let forward = backprop.forward(Transformer::new(&weights), micro, 1.0, false).unwrap();
            let mut by = vec![0.0; micro.predictions.len()];
            for row in &micro.rows {
                row.predictions.iter().for_each(|p| by[*p] += 1.0);
            }
            let mut gradients = Gradients::default();
            forward.backward(&by, &vec![0.0; by.len()], &mut gradients).unwrap();
            gradients
        };
        let (shared, apart) = (gradients(&tree), gradients(&single));
        for (name, _) in weights.trainable() {
            let distance = relative_l2(&values(&shared, &name), &values(&apart, &name));
            assert!(distance < 1e-5, "{way:?}: {name} is off by {distance}");
        }
    }
}

/// Rows longer than any block, a tree, and a vocabulary that is not a multiple of anything.
fn long(family: Family) -> (Weights, MicroBatch) {
    let mut config = ModelConfig::small(family);
    config.vocab_size = 301;
    let weights = weights(config, &Trainable::All);
    let tokens: Vec<u32> = (0..400).map(|i| (i * 37 + i / 7) % 301).collect();
    let row = |tokens: Vec<u32>| {
        let targets = (tokens.len() / 2..tokens.len()).collect();
        (tokens, targets)
    };
    let rows = [
        row(tokens[..290].to_vec()),
        row([&tokens[..150], &tokens[200..300]].concat()),
        row(tokens[5..75].to_vec()),
    ];
    (weights, micro(&rows, true))
}

#[test]
fn what_a_grammar_forbids_has_no_probability_and_no_gradient() {
    // with and without a cap of the logits
    for family in [Family::Llama, Family::Gemma2] {
        let (weights, mut micro) = long(family);
        let predictions = micro.predictions.iter().enumerate();
        micro.allowed = predictions
            .map(|(number, (_, target))| {
                let around = *target..(*target + number as u32 % 90);
                (number % 3 > 0).then(|| Arc::new(around.chain([*target, 299]).filter(|id| *id < 301).collect()))
            })
            .collect();
        let expected = run(Way::Autograd, &weights, &micro, false);
        let determined = micro
            .allowed
            .iter()
            .position(|set| set.as_ref().is_some_and(|set| set.len() == 2));
        let surprises = expected
            .entropies
            .iter()
            .zip(&micro.allowed)
            .filter_map(|(entropy, set)| Some((entropy, set.as_ref()?)));
        for (entropy, set) in surprises {
            assert!(*entropy <= (set.len() as f32).ln() + 1e-4, "{entropy} of {set:?}");
        }
        assert!(determined.is_some());
        for way in exact_ways() {
            let found = run(way, &weights, &micro, false);
            assert_alike(&weights, &found, &expected, 1e-4, &format!("{family:?}, {way:?}"));
        }
    }
}

#[test]
fn long_rows_and_wide_vocabularies_cross_the_kernels_blocks() {
    // with and without windows, caps, norms after attention and MLP, and experts
    for family in [Family::Llama, Family::Gemma2, Family::Qwen3Moe] {
        let (weights, micro) = long(family);
        let expected = run(Way::Autograd, &weights, &micro, false);
        for way in exact_ways() {
            let found = run(way, &weights, &micro, false);
            assert_alike(&weights, &found, &expected, 1e-4, &format!("{family:?}, {way:?}"));
        }
    }
}

/// bf16 has 8 bits: a product's operands are off by up to 1/512, which this model's large weights make more of.
#[test]
fn products_of_bf16_stay_within_fifteen_percent() {
    let (weights, micro) = long(Family::Llama);
    let expected = run(Way::Autograd, &weights, &micro, false);
    for isa in Isa::available() {
        let found = run(Way::Kernels(isa, Precision::Bf16), &weights, &micro, false);
        assert_alike(&weights, &found, &expected, 0.15, isa.name());
    }
}

#[test]
fn computing_again_and_used_memory_give_the_same_bits() {
    let (weights, micro) = long(Family::Llama);
    for way in exact_ways() {
        let mut backprop = self::backprop(way);
        let mut gradients = |recompute: bool| {
            let forward = backprop
                .forward(Transformer::new(&weights), &micro, 1.0, recompute)
                .unwrap();
            let by = vec![1.0; micro.predictions.len()];
            let mut gradients = Gradients::default();
            forward.backward(&by, &by, &mut gradients).unwrap();
            gradients
        };
        let first = gradients(false);
        for recompute in [false, true] {
            let again = gradients(recompute);
            for (name, _) in weights.trainable() {
                assert_eq!(values(&first, &name), values(&again, &name), "{way:?}: {name}");
            }
        }
    }
}

#[test]
fn a_gradient_that_is_not_finite_names_its_tokens() {
    let weights = weights(ModelConfig::small(Family::Llama), &Trainable::All);
    let micro = micro(&rows(), true);
    for way in exact_ways().into_iter().chain([Way::Autograd]) {
        let mut backprop = self::backprop(way);
        let forward = backprop
            .forward(Transformer::new(&weights), &micro, 1.0, false)
            .unwrap();
        let mut by = vec![0.1; micro.predictions.len()];
        let last = micro.rows[3].predictions[1];
        by[last] = f32::NAN;
        let bad = forward
            .backward(&by, &vec![0.0; by.len()], &mut Gradients::default())
            .unwrap();
        assert_eq!(micro.rows_through(&bad), [3], "{way:?}");
    }
}

#[test]
fn tokens_outside_the_vocabulary_are_refused() {
    let weights = weights(ModelConfig::small(Family::Llama), &Trainable::All);
    for way in [Way::Autograd, Way::Kernels(Isa::detect(), Precision::F32)] {
        for row in [vec![1, 1_000_000, 2], vec![1, 2, 1_000_000]] {
            let micro = micro(&[(row, vec![1, 2])], true);
            let mut backprop = self::backprop(way);
            let result = backprop.forward(Transformer::new(&weights), &micro, 1.0, false);
            assert!(result.is_err(), "{way:?}");
        }
    }
}
