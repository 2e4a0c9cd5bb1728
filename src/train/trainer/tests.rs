use std::collections::{BTreeMap, HashMap};

use super::*;
use crate::config::ALL_LINEAR;
use crate::config::schema::{self, AdvEstimator, Ajet, LossAggMode, Recompute};
use crate::model::PackedBatch;
use crate::model::config::{Family, ModelConfig};
use crate::model::lora::LoraConfig;
use crate::model::weights::{Trainable, random_tensors};
use crate::timeline::Row;

fn weights(trainable: &Trainable) -> Weights {
    let config = ModelConfig::small(Family::Qwen2);
    Weights::new(config.clone(), random_tensors(&config, 0.2, 3).unwrap(), trainable).unwrap()
}

fn lora() -> Trainable {
    let targets = vec![ALL_LINEAR.to_string()];
    Trainable::Lora(LoraConfig {
        rank: 2,
        alpha: 4.0,
        targets,
        seed: 1,
    })
}

/// Nothing but the policy loss moves the weights.
fn config() -> Ajet {
    let mut config = Ajet::default();
    config.trainer_common.use_kl_loss = false;
    config.trainer_common.optim.lr = 1e-3;
    config.trainer_common.optim.weight_decay = 0.0;
    config.data.max_response_length = 10;
    config
}

fn row(prompt: &[u32], response: &[u32]) -> Row {
    Row {
        token_ids: [prompt, response].concat(),
        loss_mask: [vec![false; prompt.len()], vec![true; response.len()]].concat(),
        logprobs: vec![-3.0; prompt.len() + response.len()],
        truncated: false,
        ..Row::default()
    }
}

fn episode(task: &str, uuid: &str, reward: f64, rows: Vec<Row>) -> TrainEpisode {
    TrainEpisode {
        task_id: task.into(),
        episode_uuid: uuid.into(),
        reward,
        rows,
    }
}

/// Two tasks; answers that share their start; an episode of two rows.
fn batch() -> Vec<TrainEpisode> {
    vec![
        episode("a", "1", 1.0, vec![row(&[1, 2, 3], &[4, 5, 6])]),
        episode("a", "2", 0.0, vec![row(&[1, 2, 3], &[4, 7])]),
        episode(
            "a",
            "3",
            0.5,
            vec![row(&[1, 2, 3], &[8]), row(&[1, 2, 9, 9], &[10, 11])],
        ),
        episode("b", "1", 0.0, vec![row(&[1, 12], &[13, 14, 15, 16])]),
        episode("b", "2", 2.0, vec![row(&[1, 12], &[17])]),
    ]
}

fn values(weights: &Weights) -> HashMap<String, Vec<f32>> {
    let flat = |var: &candle_core::Var| var.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    weights
        .trainable()
        .iter()
        .map(|(name, var)| (name.clone(), flat(var)))
        .collect()
}

fn train(trainable: &Trainable, config: &Ajet, batches: &[Vec<TrainEpisode>]) -> (Weights, Trainer, UpdateReport) {
    let mut weights = weights(trainable);
    let mut trainer = Trainer::new(&weights, config).unwrap();
    let mut report = UpdateReport::default();
    for batch in batches {
        report = trainer.update(&mut weights, batch, &mut |_| ()).unwrap();
    }
    (weights, trainer, report)
}

/// The first step's first moments are the gradients times a constant.
fn first_moments(config: &Ajet) -> Vec<f32> {
    let (_, trainer, _) = train(&Trainable::All, config, &[batch()]);
    let flat = |slot: &crate::train::optim::parameter_state::ParameterState| {
        slot.first.flatten_all().unwrap().to_vec1::<f32>().unwrap()
    };
    trainer.optimizer.slots().unwrap().values().flat_map(flat).collect()
}

fn relative_l2(a: &[f32], b: &[f32]) -> f64 {
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|v| v * v).sum::<f64>().sqrt();
    norm(&mut a.iter().zip(b).map(|(a, b)| (a - b) as f64)) / norm(&mut a.iter().map(|a| *a as f64))
}

fn log_prob(weights: &Weights, prompt: &[u32], token: u32) -> f32 {
    let model = Transformer::new(weights);
    let hidden = model.hidden(&PackedBatch::from_rows(&[prompt])).unwrap();
    let last = hidden.narrow(0, prompt.len() - 1, 1).unwrap();
    model
        .log_probs(&last, &[token], &[], 1.0)
        .unwrap()
        .0
        .to_vec1::<f32>()
        .unwrap()[0]
}

#[test]
fn the_gradient_does_not_depend_on_packing() {
    for mode in [
        LossAggMode::SeqMeanTokenMean,
        LossAggMode::TokenMean,
        LossAggMode::SeqMeanTokenSumNorm,
    ] {
        let packed = |budget, share_prefixes| {
            let mut config = config();
            config.trainer_common.loss_agg_mode = mode;
            config.trainer_common.entropy_coeff = 0.01;
            config.trainer_common.ppo_max_token_len_per_gpu = budget;
            config.trainer_common.share_prefixes = share_prefixes;
            first_moments(&config)
        };
        let row_by_row = packed(1, false);
        assert!(row_by_row.iter().any(|x| x.abs() > 1e-4));
        for (budget, share) in [(10_000, true), (10_000, false), (9, true), (1, true), (12, false)] {
            let distance = relative_l2(&row_by_row, &packed(budget, share));
            assert!(distance < 1e-5, "{mode:?}, budget {budget}, share {share}: {distance}");
        }
    }
}

#[test]
fn recomputing_gives_the_same_bits() {
    let with = |recompute| {
        let mut config = config();
        config.trainer_common.recompute = recompute;
        first_moments(&config)
    };
    assert_eq!(with(Recompute::On), with(Recompute::Off));
}

#[test]
fn the_order_of_episodes_does_not_matter() {
    let mut reversed = batch();
    reversed.reverse();
    let (a, ..) = train(&Trainable::All, &config(), &[batch(), batch()]);
    let (b, ..) = train(&Trainable::All, &config(), &[batch(), reversed]);
    assert_eq!(values(&a), values(&b));
}

#[test]
fn better_answers_become_likelier_with_every_estimator_and_loss() {
    use schema::PolicyLoss::{Cispo, Gspo, PpoClip};
    let estimators = [
        AdvEstimator::Grpo,
        AdvEstimator::Rloo,
        AdvEstimator::ReinforcePlusPlus,
        AdvEstimator::ReinforcePlusPlusBaseline,
    ];
    for trainable in [Trainable::All, lora()] {
        let before = weights(&trainable);
        for (estimator, loss) in estimators
            .map(|e| (e, PpoClip))
            .into_iter()
            .chain([Gspo, Cispo].map(|l| (estimators[0], l)))
        {
            let mut config = config();
            config.trainer_common.algorithm.adv_estimator = estimator;
            config.trainer_common.policy_loss = loss;
            config.trainer_common.optim.lr = 1e-2;
            let (after, ..) = train(&trainable, &config, &vec![batch(); 3]);
            let gain = |prompt: &[u32], token| log_prob(&after, prompt, token) - log_prob(&before, prompt, token);
            let lead = gain(&[1, 12], 17) - gain(&[1, 12], 13);
            assert!(lead > 1e-3, "{estimator:?} {loss:?}: {lead}");
        }
    }
}

#[test]
fn equal_rewards_move_nothing_but_by_weight_decay() {
    let mut equal = batch();
    equal.iter_mut().for_each(|e| e.reward = 0.7);
    let before = values(&weights(&Trainable::All));
    let (after, _, report) = train(&Trainable::All, &config(), &[equal.clone()]);
    assert_eq!(before, values(&after));
    assert_eq!(report.metrics["grad_norm"], 0.0);
    assert_eq!(report.metrics["tokens_computed"], 0.0);
    assert!(
        !report.metrics.contains_key("entropy"),
        "nothing was computed that has one"
    );

    let mut decaying = config();
    decaying.trainer_common.optim.weight_decay = 0.5;
    let (after, ..) = train(&Trainable::All, &decaying, &[equal]);
    for (name, var) in after.trainable() {
        let decay = if var.rank() > 1 { (1.0 - 1e-3 * 0.5) as f32 } else { 1.0 };
        let expected: Vec<f32> = before[&name].iter().map(|w| w * decay).collect();
        assert_eq!(values(&after)[&name], expected, "{name}");
    }
}

/// `batch` and a group of two with equal rewards.
fn batch_with_a_group_without_signal() -> Vec<TrainEpisode> {
    let mut episodes = batch();
    episodes.push(episode("c", "1", 1.0, vec![row(&[1, 20, 21], &[22, 23])]));
    episodes.push(episode("c", "2", 1.0, vec![row(&[1, 20, 21], &[24])]));
    episodes
}

#[test]
fn rows_without_a_signal_are_not_computed_and_the_update_is_the_same() {
    let batches = [batch_with_a_group_without_signal(), batch_with_a_group_without_signal()];
    let mut decaying = config();
    decaying.trainer_common.optim.weight_decay = 0.1;
    for (epochs, parts) in [(1, 1), (2, 1), (1, 3)] {
        decaying.trainer_common.ppo_epochs = epochs;
        decaying.trainer_common.mini_batch_num = parts;
        // An entropy bonus that is too small to change anything keeps all rows in.
        let mut computing = decaying.clone();
        computing.trainer_common.entropy_coeff = 1e-30;
        let (skipped, _, report) = train(&Trainable::All, &decaying, &batches);
        let (computed, _, whole) = train(&Trainable::All, &computing, &batches);
        let (skipped, computed) = (values(&skipped), values(&computed));
        for (name, expected) in &computed {
            let distance = relative_l2(expected, &skipped[name]);
            assert!(distance < 1e-6, "{epochs} epochs, {parts} parts, {name}: {distance}");
        }
        // Besides the two of group c, those of a/3, whose reward is the mean of its group.
        assert_eq!(report.metrics["skipped_rows"], 4.0);
        assert_eq!(whole.metrics["skipped_rows"], 0.0);
        let saved = whole.metrics["tokens_computed"] - report.metrics["tokens_computed"];
        match parts {
            // 20, 21, 22 of c and 9, 9, 10 of a/3; all other tokens are prefixes of rows that are computed.
            1 => assert_eq!(saved, 6.0 * epochs as f64),
            _ => assert!(saved >= 6.0),
        }
        assert_eq!(report.metrics["optimizer_steps"], whole.metrics["optimizer_steps"]);
        assert_eq!(report.metrics["entropy_sampled"], 3.0, "of all rows, as sampled");
    }
}

#[test]
fn a_divergence_in_the_loss_keeps_rows_without_a_reward_signal() {
    let mut config = config();
    config.trainer_common.use_kl_loss = true;
    config.trainer_common.kl_loss_coef = 0.1;
    let (.., report) = train(&Trainable::All, &config, &[batch_with_a_group_without_signal()]);
    assert_eq!(report.metrics["skipped_rows"], 0.0);
}

#[test]
fn routers_are_trained_only_on_request_and_the_load_of_experts_is_reported() {
    let model = ModelConfig::small(Family::Mixtral);
    for (trainable, trained) in [(Trainable::All, false), (Trainable::AllAndRouters, true)] {
        let mut weights = Weights::new(model.clone(), random_tensors(&model, 0.2, 3).unwrap(), &trainable).unwrap();
        let router = |weights: &Weights| {
            let name = "model.layers.0.block_sparse_moe.gate.weight";
            weights.tensor(name).unwrap().to_vec2::<f32>().unwrap()
        };
        let before = router(&weights);
        let mut trainer = Trainer::new(&weights, &config()).unwrap();
        let report = trainer.update(&mut weights, &batch(), &mut |_| ()).unwrap();
        assert_eq!(router(&weights) != before, trained);
        // Each token has two of three experts.
        let busiest = report.metrics["experts/busiest_share"];
        assert!((1.0 / 3.0..=0.5).contains(&busiest), "{busiest}");
    }
}

#[test]
fn shared_tokens_are_those_that_prefixes_save() {
    let (.., report) = train(&Trainable::All, &config(), &[batch()]);
    let mut apart = config();
    apart.trainer_common.share_prefixes = false;
    let (.., unshared) = train(&Trainable::All, &apart, &[batch()]);
    let saved = unshared.metrics["tokens_computed"] - report.metrics["tokens_computed"];
    assert!(saved > 0.0);
    assert_eq!(
        (report.metrics["shared_tokens"], unshared.metrics["shared_tokens"]),
        (saved, 0.0)
    );
}

#[test]
fn divergence_from_the_reference_is_zero_at_first_and_pulls_back_later() {
    for trainable in [Trainable::All, lora()] {
        let mut config = config();
        config.trainer_common.use_kl_loss = true;
        config.trainer_common.kl_loss_coef = 0.1;
        config.trainer_common.optim.lr = 1e-2;
        let (_, _, first) = train(&trainable, &config, &[batch()]);
        assert!(first.metrics["kl"].abs() < 1e-9, "{}", first.metrics["kl"]);
        let mut equal = batch();
        equal.iter_mut().for_each(|e| e.reward = 0.0);
        let (_, _, later) = train(&trainable, &config, &[batch(), batch(), equal.clone()]);
        assert!(later.metrics["kl"] > 1e-6);
        assert!(later.metrics["grad_norm"] > 0.0);
        let rounds: Vec<_> = [batch(), batch()].into_iter().chain(vec![equal; 20]).collect();
        let (_, _, last) = train(&trainable, &config, &rounds);
        assert!(last.metrics["kl"] < later.metrics["kl"]);
    }
}

#[test]
fn divergence_in_the_reward_lowers_it() {
    let mut config = config();
    config.trainer_common.use_kl_in_reward = true;
    config.trainer_common.kl_penalty_type = "mse".into();
    config.trainer_common.kl_loss_coef = 10.0;
    config.trainer_common.optim.lr = 1e-2;
    let mut equal = batch();
    equal.iter_mut().for_each(|e| e.reward = 0.0);
    let (_, _, report) = train(&Trainable::All, &config, &[batch(), equal]);
    assert!(report.metrics["advantage_std"] > 0.0);
}

#[test]
fn several_steps_measure_their_ratio_against_the_weights_before_the_first() {
    let mut config = config();
    config.trainer_common.mini_batch_num = 2;
    config.trainer_common.ppo_epochs = 2;
    config.trainer_common.optim.lr = 1e-2;
    let (weights, trainer, report) = train(&Trainable::All, &config, &[batch()]);
    assert_eq!(report.metrics["optimizer_steps"], 4.0);
    assert_eq!((weights.version, trainer.updates), (4, 1));
    assert!(report.metrics["ratio_max"] > 1.0001);
    let (_, _, single) = train(&Trainable::All, &self::config(), &[batch()]);
    assert_eq!(single.metrics["ratio_max"], 1.0);
}

#[test]
fn a_step_that_is_not_finite_is_skipped_with_its_rows_named() {
    let mut weights = weights(&Trainable::All);
    let mut trainer = Trainer::new(&weights, &config()).unwrap();
    let name = "model.embed_tokens.weight";
    let (_, embedding) = weights.trainable().into_iter().find(|(n, _)| n == name).unwrap();
    let mut rows = embedding.to_vec2::<f32>().unwrap();
    rows[9].fill(f32::INFINITY);
    embedding
        .set(&candle_core::Tensor::new(rows, embedding.device()).unwrap())
        .unwrap();
    let before: HashMap<_, Vec<u32>> = values(&weights)
        .into_iter()
        .map(|(n, v)| (n, v.into_iter().map(f32::to_bits).collect()))
        .collect();
    let mut batch = batch();
    // Not the mean of its group: a row without an advantage would not be computed.
    batch[2].reward = 0.25;
    let report = trainer.update(&mut weights, &batch, &mut |_| ()).unwrap();
    assert_eq!(report.metrics["skipped_steps"], 1.0);
    assert!(report.skipped_steps[0].contains("a/3 row 1"), "{report:?}");
    assert!(!report.skipped_steps[0].contains("b/1"), "{report:?}");
    let after: HashMap<_, Vec<u32>> = values(&weights)
        .into_iter()
        .map(|(n, v)| (n, v.into_iter().map(f32::to_bits).collect()))
        .collect();
    assert_eq!(before, after);
    assert_eq!((weights.version, trainer.optimizer.steps), (0, 0));
}

/// Trains on a batch that is not finite somewhere; nothing may change but the counts.
fn assert_skips(config: &Ajet, batch: &[TrainEpisode], named: &[&str], not_named: &[&str]) {
    for trainable in [Trainable::All, lora()] {
        let mut weights = weights(&trainable);
        let mut trainer = Trainer::new(&weights, config).unwrap();
        let before = values(&weights);
        let report = trainer.update(&mut weights, batch, &mut |_| ()).unwrap();
        assert_eq!(
            (report.metrics["skipped_steps"], report.metrics["optimizer_steps"]),
            (1.0, 0.0)
        );
        let dropped: BTreeMap<_, _> = report.dropped.iter().map(|(id, why)| (id.as_str(), *why)).collect();
        let all = batch.iter().map(|e| (e.episode_uuid.as_str(), Untrained::NonFinite));
        assert_eq!(dropped, all.collect());
        let told = &report.skipped_steps[0];
        assert!(named.iter().all(|name| told.contains(name)), "{told}");
        assert!(!not_named.iter().any(|name| told.contains(name)), "{told}");
        assert_eq!(before, values(&weights));
        assert_eq!((weights.version, trainer.optimizer.steps, trainer.updates), (0, 0, 1));
        let slots = trainer.optimizer.slots().unwrap();
        let moments = slots.values();
        assert!(
            moments.flat_map(|s| [&s.first, &s.second]).all(|m| m
                .sqr()
                .unwrap()
                .sum_all()
                .unwrap()
                .to_scalar::<f32>()
                .unwrap()
                == 0.0)
        );
    }
}

#[test]
fn a_reward_that_is_not_finite_skips_with_its_group_named() {
    let mut broken = batch();
    broken[3].reward = f64::NAN;
    assert_skips(&config(), &broken, &["b/1", "b/2"], &["a/1", "a/2", "a/3"]);
}

#[test]
fn a_sampled_log_probability_that_is_not_finite_skips_where_it_counts() {
    let mut broken = batch();
    broken[1].rows[0].logprobs[4] = f32::NAN;
    let mut correcting = config();
    correcting.trainer_common.importance_sampling.mode = schema::ImportanceMode::Token;
    assert_skips(&correcting, &broken, &["a/2 row 0"], &["a/1", "b/"]);
    let (_, _, report) = train(&Trainable::All, &config(), &[broken]);
    assert_eq!(
        report.metrics["skipped_steps"], 0.0,
        "without correction it is diagnosis only"
    );
}

#[test]
fn a_gradient_that_overflows_skips_though_the_loss_is_finite() {
    let mut huge = config();
    huge.trainer_common.loss_extra_scale_ratio = 1e39;
    assert_skips(&huge, &batch(), &["b/2"], &[]);
}

#[test]
fn a_resumed_trainer_goes_on_with_the_same_bits() {
    for trainable in [Trainable::All, lora()] {
        let mut config = config();
        config.trainer_common.use_kl_loss = true;
        config.trainer_common.optim.lr_warmup_steps = Some(5);
        let (whole, ..) = train(&trainable, &config, &[batch(), batch(), batch()]);

        let dir = tempfile::tempdir().unwrap();
        let (mut half, trainer, _) = train(&trainable, &config, &[batch(), batch()]);
        trainer.save_state(dir.path()).unwrap();
        let reference = weights(&trainable).frozen_copy().unwrap();
        let mut resumed = Trainer::among(Arc::new(Alone), &half, &config, Some(reference)).unwrap();
        resumed.load_state(dir.path()).unwrap();
        resumed.update(&mut half, &batch(), &mut |_| ()).unwrap();
        assert_eq!(values(&whole), values(&half));
        assert_eq!(resumed.updates, 3);
    }
}

#[test]
fn a_state_of_another_model_or_a_damaged_one_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (_, full, _) = train(&Trainable::All, &config(), &[batch()]);
    full.save_state(dir.path()).unwrap();
    let mut adapters = Trainer::new(&weights(&lora()), &config()).unwrap();
    let message = adapters.load_state(dir.path()).unwrap_err().to_string();
    assert!(message.contains("hint: resume with the model"), "{message}");

    let moments = dir.path().join(super::super::state::MOMENTS_FILE);
    let bytes = std::fs::read(&moments).unwrap();
    std::fs::write(&moments, &bytes[..bytes.len() / 2]).unwrap();
    let mut other = Trainer::new(&weights(&Trainable::All), &config()).unwrap();
    assert!(
        other
            .load_state(dir.path())
            .unwrap_err()
            .to_string()
            .contains("trainer.safetensors")
    );
    assert_eq!(other.updates, 0);
}

#[test]
fn an_empty_batch_is_an_update_without_a_step() {
    let (weights, trainer, report) = train(&Trainable::All, &config(), &[vec![]]);
    assert_eq!((weights.version, trainer.updates), (0, 1));
    assert_eq!(report.metrics["optimizer_steps"], 0.0);
    assert!(report.metrics.values().all(|v| v.is_finite()), "{report:?}");
}

#[test]
fn a_model_without_anything_to_train_and_an_unknown_estimator_are_refused() {
    let message = Trainer::new(&weights(&Trainable::Nothing), &config())
        .err()
        .unwrap()
        .to_string();
    assert!(message.contains("no trainable parameters"));
    let mut config = config();
    config.trainer_common.kl_loss_type = "full".into();
    let message = Trainer::new(&weights(&Trainable::All), &config)
        .err()
        .unwrap()
        .to_string();
    assert!(
        message.contains("kl_loss_type must be kl, mse or low_var_kl, optionally with a trailing +, got `full`"),
        "{message}"
    );
}

/// The weights after three updates on `size` ranks, what each rank reported, and a checkpoint's state.
fn on_ranks(size: usize, trainable: &Trainable, config: &Ajet) -> Vec<(Vec<f32>, UpdateReport)> {
    crate::collective::threads::run(size, |collective| {
        let mut weights = weights(trainable);
        let mut trainer = Trainer::among(collective, &weights, config, None).unwrap();
        let mut report = UpdateReport::default();
        for _ in 0..3 {
            report = trainer.update(&mut weights, &batch(), &mut |_| ()).unwrap();
        }
        let mut flat: Vec<_> = values(&weights).into_iter().collect();
        flat.sort_by(|a, b| a.0.cmp(&b.0));
        (flat.into_iter().flat_map(|(_, values)| values).collect(), report)
    })
}

#[test]
fn several_ranks_make_the_update_of_one() {
    for trainable in [Trainable::All, lora()] {
        for mini_batches in [1, 2] {
            let mut config = config();
            config.trainer_common.mini_batch_num = mini_batches;
            config.trainer_common.optim.weight_decay = 0.1;
            let (alone, expected) = on_ranks(1, &trainable, &config).remove(0);
            for size in [2, 3, 7] {
                for (rank, (found, report)) in on_ranks(size, &trainable, &config).into_iter().enumerate() {
                    let distance = relative_l2(&alone, &found);
                    assert!(distance < 1e-5, "rank {rank} of {size}: {distance}");
                    assert_eq!(report.advantages, expected.advantages);
                    for name in ["loss", "entropy", "grad_norm", "optimizer_steps", "ratio_max"] {
                        let (a, b) = (expected.metrics[name], report.metrics[name]);
                        assert!(
                            (a - b).abs() <= 1e-5 * a.abs().max(0.1),
                            "{name}: {a}, on rank {rank} of {size} {b}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn runs_of_several_ranks_repeat() {
    let once = on_ranks(3, &Trainable::All, &config());
    let again = on_ranks(3, &Trainable::All, &config());
    for (a, b) in once.iter().zip(&again) {
        assert!(a.0 == b.0 && a.0 == once[0].0, "bit for bit, on every rank");
    }
}

#[test]
fn each_rank_keeps_its_part_of_the_optimizers_state_and_a_checkpoint_has_all() {
    let dir = tempfile::tempdir().unwrap();
    let train = |size: usize, resume: bool, save: bool| {
        crate::collective::threads::run(size, |collective| {
            let rank = collective.rank();
            let mut weights = weights(&Trainable::All);
            let mut trainer = Trainer::among(collective, &weights, &config(), None).unwrap();
            if resume {
                trainer.load_state(dir.path()).unwrap();
            }
            trainer.update(&mut weights, &batch(), &mut |_| ()).unwrap();
            if save {
                trainer.save_state(dir.path()).unwrap();
            }
            let slots = trainer.optimizer.slots().unwrap();
            let numbers: usize = slots.values().map(|slot| slot.first.elem_count()).sum();
            (rank, numbers, trainer.updates, values(&weights))
        })
    };
    let alone = train(1, false, true);
    let by_one = std::fs::read(dir.path().join(crate::train::state::MOMENTS_FILE)).unwrap();
    let parts = train(4, false, true);
    let numbers: Vec<usize> = parts.iter().map(|part| part.1).collect();
    assert_eq!(numbers.iter().sum::<usize>(), alone[0].1, "{numbers:?}");
    assert!(numbers.iter().all(|own| *own < alone[0].1), "{numbers:?}");
    assert_eq!(
        std::fs::read(dir.path().join(crate::train::state::MOMENTS_FILE))
            .unwrap()
            .len(),
        by_one.len()
    );
    // Four ranks, then two, then one, as one rank goes on.
    train(2, true, true);
    let last = train(1, true, false).remove(0);
    assert_eq!(last.2, 3);
    train(1, false, true);
    train(1, true, true);
    let expected = train(1, true, false).remove(0);
    for (name, values) in &expected.3 {
        assert!(relative_l2(values, &last.3[name]) < 1e-5, "{name}");
    }
}

#[test]
fn a_row_that_is_not_finite_stops_the_step_on_every_rank() {
    let mut broken = batch();
    broken[4].rows[0].logprobs[2] = f32::NAN;
    let mut config = config();
    config.trainer_common.importance_sampling.mode = schema::ImportanceMode::Token;
    let found = crate::collective::threads::run(2, |collective| {
        let mut weights = weights(&Trainable::All);
        let before = values(&weights);
        let mut trainer = Trainer::among(collective, &weights, &config, None).unwrap();
        let report = trainer.update(&mut weights, &broken, &mut |_| ()).unwrap();
        (report.skipped_steps, before == values(&weights))
    });
    assert_eq!(found[0], found[1]);
    assert!(found[0].1 && found[0].0.len() == 1, "{found:?}");
}
