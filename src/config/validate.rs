//! Checks of a configuration's values, alone and in combination.

use super::effective::{ALL_LINEAR, LINEAR_PROJECTIONS};
use super::error::Problem;
use super::experiment;
use super::schema::{
    AdvEstimator, Ajet, CollectionMethod, Kernels, LEAST_TEMPERATURE, LrScheduler, Optim, Quantization, Ranks, Rollout,
    SingletonGroup, TrainerCommon,
};

const TOOL_PARSERS: [&str; 4] = ["hermes", "llama3_json", "json", "none"];
const REASONING_PARSERS: [&str; 2] = ["think", "none"];
/// APIs of `ajet.rollout.endpoints`.
const ENDPOINT_APIS: [&str; 1] = ["vllm"];
const KL_ESTIMATORS: [&str; 6] = ["kl", "mse", "low_var_kl", "k1", "k2", "k3"];
const LOGGERS: [&str; 2] = ["console", "tensorboard"];

/// Learning rate below which LoRA hardly learns.
const LOW_LORA_LR: f64 = 1e-5;

/// Returns all errors of a configuration.
pub fn problems(ajet: &Ajet) -> Vec<Problem> {
    let mut checks = Checks::default();
    checks.model_and_name(ajet);
    checks.lengths(ajet);
    checks.batch(ajet);
    checks.sampling(&ajet.rollout);
    checks.endpoints(ajet);
    checks.loss(ajet);
    checks.optimizer(&ajet.trainer_common);
    checks.lora(ajet);
    checks.quantized_model(ajet);
    checks.engine(ajet);
    checks.0
}

/// Returns warnings about values that are allowed but probably not intended.
pub fn warnings(ajet: &Ajet) -> Vec<String> {
    let trainer = &ajet.trainer_common;
    let mut warnings = vec![];
    if ajet.lora.is_on() && trainer.optim.lr <= LOW_LORA_LR {
        warnings.push(format!(
            "ajet.trainer_common.optim.lr: {:?} is low for LoRA, which usually needs about 1e-4",
            trainer.optim.lr
        ));
    }
    let compares_within_group = trainer.algorithm.adv_estimator != AdvEstimator::ReinforcePlusPlus;
    if ajet.rollout.num_repeat == 1 && compares_within_group && trainer.singleton_group == SingletonGroup::Zero {
        warnings.push(
            "ajet.rollout.num_repeat: 1 makes every group a single episode, whose advantage is 0, so nothing is learned"
                .into(),
        );
    }
    for logger in trainer.logger.iter().filter(|name| !LOGGERS.contains(&name.as_str())) {
        warnings.push(format!(
            "ajet.trainer_common.logger: \"{logger}\" is not built in; metrics.jsonl and TensorBoard event files are \
             written instead"
        ));
    }
    let parallel = ajet.rollout.tensor_model_parallel_size;
    if parallel > 1 {
        warnings.push(format!(
            "ajet.rollout.tensor_model_parallel_size: tensor parallelism is not supported here; using 1 instead of \
             {parallel}"
        ));
    }
    warnings
}

/// Compares the configured number of ranks with those that were `started`. Returns a warning where there are fewer: a
/// configuration for more GPUs than there are runs on what there is, as every AgentJet configuration has some.
///
/// # Errors
/// Returns a message with both numbers if they differ and `ajet.engine.ranks` is `exact`.
pub fn ranks(ajet: &Ajet, on_gpus: bool, started: usize) -> Result<Option<String>, String> {
    let configured = ajet.configured_ranks();
    let trainer = &ajet.trainer_common;
    let keys = format!(
        "ajet.trainer_common: n_gpus_per_node {} × nnodes {}",
        trainer.n_gpus_per_node, trainer.nnodes
    );
    let hint = "start the server with `--launcher \"mpirun -np {ranks}\"` where it has as many devices";
    match ajet.engine.ranks {
        Ranks::Exact if configured != started => Err(format!(
            "{keys} needs {configured} ranks, and {started} were started, but ajet.engine.ranks is exact; hint: {hint}, or \
             set ajet.engine.ranks to available"
        )),
        _ if configured <= started => Ok(None),
        _ if on_gpus => Ok(Some(format!(
            "{keys} is {configured} GPUs, and {started} train; hint: {hint}"
        ))),
        _ => Ok(Some(format!("{keys} is {configured} GPUs, but this run uses the CPU"))),
    }
}

/// Problems found so far.
#[derive(Default)]
struct Checks(Vec<Problem>);

impl Checks {
    fn problem(&mut self, key: &str, message: String) {
        self.0.push(Problem::new(key, message));
    }

    /// Requires that `holds`; `given` is shown with what is `allowed`.
    fn require(&mut self, holds: bool, key: &str, given: impl std::fmt::Display, allowed: &str) {
        if !holds {
            self.problem(key, format!("{given} is not {allowed}"));
        }
    }

    fn require_name(&mut self, key: &str, given: &str, allowed: &[&str]) {
        if !allowed.contains(&given) {
            self.problem(key, format!("{given:?} is not one of {}", allowed.join(", ")));
        }
    }

    fn model_and_name(&mut self, ajet: &Ajet) {
        if ajet.model.path.trim().is_empty() {
            let message = "is not set; use a Hugging Face directory, a .gguf file, a hub id, or builtin:tiny";
            self.problem("ajet.model.path", message.into());
        }
        if let Err(message) = experiment::check_name(&ajet.experiment_name) {
            self.problem("ajet.experiment_name", message);
        }
    }

    fn lengths(&mut self, ajet: &Ajet) {
        let data = &ajet.data;
        let (row, model) = (ajet.max_row_len(), ajet.max_model_len());
        if row > model {
            let message = format!(
                "{model} is less than max_prompt_length {} + max_response_length {} = {row} of ajet.data",
                data.max_prompt_length, data.max_response_length
            );
            self.problem("ajet.rollout.max_model_len", message);
        }
        let turn = ajet.max_response_length_in_one_turn();
        if turn > data.max_response_length {
            let message = format!(
                "{turn} is more than ajet.data.max_response_length {}",
                data.max_response_length
            );
            self.problem("ajet.rollout.max_response_length_in_one_turn", message);
        }
    }

    fn batch(&mut self, ajet: &Ajet) {
        let cached = ajet.swarm_mode_sample_collection_max_cached_episodes;
        let batch = ajet.episodes_per_batch();
        if cached < batch as u64 {
            let message = format!("{cached} is less than a batch, train_batch_size × num_repeat = {batch}");
            self.problem("ajet.swarm_mode_sample_collection_max_cached_episodes", message);
        }
        let timeout = ajet.swarm_mode_rolling_post_timeout;
        self.require(
            timeout > 0.0,
            "ajet.swarm_mode_rolling_post_timeout",
            timeout,
            "more than 0 seconds",
        );
        let needs_different_rewards =
            ajet.swarm_mode_sample_collection_method == CollectionMethod::RolloutUntilFinishEnoughNonDummyTasks;
        if needs_different_rewards && ajet.rollout.num_repeat == 1 {
            let message = "1 never fills a batch of rollout_until_finish_enough_non_dummy_tasks, which counts tasks \
                           with different rewards";
            self.problem("ajet.rollout.num_repeat", message.into());
        }
    }

    fn sampling(&mut self, rollout: &Rollout) {
        let val = &rollout.val_kwargs;
        let temperature = rollout.temperature;
        let key = "ajet.rollout.temperature";
        let allowed = format!("{LEAST_TEMPERATURE} or more");
        self.require(temperature >= LEAST_TEMPERATURE, key, temperature, &allowed);
        let (key, temperature) = ("ajet.rollout.val_kwargs.temperature", val.temperature);
        let allowed = format!("0 (greedy), or {allowed}");
        self.require(
            temperature == 0.0 || temperature >= LEAST_TEMPERATURE,
            key,
            temperature,
            &allowed,
        );
        let (key, p) = ("ajet.rollout.top_p", rollout.top_p);
        self.require(p > 0.0 && p <= 1.0, key, p, "more than 0 and at most 1");
        let (key, p) = ("ajet.rollout.val_kwargs.top_p", val.top_p);
        self.require((0.0..=1.0).contains(&p), key, p, "from 0 (greedy) to 1");
        for (key, k) in [
            ("ajet.rollout.top_k", rollout.top_k),
            ("ajet.rollout.val_kwargs.top_k", val.top_k),
        ] {
            self.require(k == -1 || k > 0, key, k, "-1 (all) or 1 or more");
        }
        let share = rollout.gpu_memory_utilization;
        let key = "ajet.rollout.gpu_memory_utilization";
        self.require(share > 0.0 && share <= 1.0, key, share, "more than 0 and at most 1");
        if let Some(parser) = &rollout.tool_parser {
            self.require_name("ajet.rollout.tool_parser", parser, &TOOL_PARSERS);
        }
        if let Some(parser) = &rollout.reasoning_parser {
            self.require_name("ajet.rollout.reasoning_parser", parser, &REASONING_PARSERS);
        }
    }

    fn endpoints(&mut self, ajet: &Ajet) {
        let rollout = &ajet.rollout;
        if rollout.endpoints.is_empty() {
            return;
        }
        let key = "ajet.rollout.endpoints";
        for (index, endpoint) in rollout.endpoints.iter().enumerate() {
            let is_url = ["http://", "https://"]
                .iter()
                .any(|scheme| endpoint.starts_with(scheme));
            self.require(is_url, key, format!("{endpoint:?}"), "a URL such as http://box2:8000");
            if rollout.endpoints[..index].contains(endpoint) {
                self.problem(key, format!("{endpoint:?} is listed twice"));
            }
        }
        self.require_name("ajet.rollout.name", &rollout.name, &ENDPOINT_APIS);
        if !ajet.lora.is_on() {
            let message =
                "endpoints get the weights as a LoRA adapter, but ajet.lora.lora_rank is 0; hint: set it to 16";
            self.problem(key, message.into());
        }
    }

    fn loss(&mut self, ajet: &Ajet) {
        let trainer = &ajet.trainer_common;
        let low = trainer.clip_ratio_low();
        let key = "ajet.trainer_common.clip_ratio_low";
        self.require(low > 0.0 && low < 1.0, key, low, "more than 0 and less than 1");
        let high = trainer.clip_ratio_high();
        self.require(high > 0.0, "ajet.trainer_common.clip_ratio_high", high, "more than 0");
        let coef = trainer.kl_loss_coef;
        self.require(coef >= 0.0, "ajet.trainer_common.kl_loss_coef", coef, "0 or more");
        for (key, given) in [
            ("ajet.trainer_common.kl_loss_type", &trainer.kl_loss_type),
            ("ajet.trainer_common.kl_penalty_type", &trainer.kl_penalty_type),
        ] {
            if !KL_ESTIMATORS.contains(&given.strip_suffix('+').unwrap_or(given)) {
                let known = KL_ESTIMATORS.join(", ");
                self.problem(
                    key,
                    format!("{given:?} is not one of {known}, each also with a trailing +"),
                );
            }
        }
        let cap = trainer.importance_sampling.cap;
        self.require(
            cap > 0.0,
            "ajet.trainer_common.importance_sampling.cap",
            cap,
            "more than 0",
        );
        let buffer = trainer.overlong.buffer_len;
        if buffer > ajet.data.max_response_length {
            let most = ajet.data.max_response_length;
            let message = format!("{buffer} is more than ajet.data.max_response_length {most}");
            self.problem("ajet.trainer_common.overlong.buffer_len", message);
        }
        let factor = trainer.overlong.penalty_factor;
        self.require(
            factor >= 0.0,
            "ajet.trainer_common.overlong.penalty_factor",
            factor,
            "0 or more",
        );
    }

    fn optimizer(&mut self, trainer: &TrainerCommon) {
        let optim = &trainer.optim;
        self.require(optim.lr >= 0.0, "ajet.trainer_common.optim.lr", optim.lr, "0 or more");
        for beta in optim.betas {
            self.require(
                (0.0..1.0).contains(&beta),
                "ajet.trainer_common.optim.betas",
                beta,
                "0 or more and below 1",
            );
        }
        self.require(
            optim.eps as f32 > 0.0,
            "ajet.trainer_common.optim.eps",
            optim.eps,
            "more than 0 in f32",
        );
        let decay = optim.weight_decay;
        self.require(
            decay >= 0.0,
            "ajet.trainer_common.optim.weight_decay",
            decay,
            "0 or more",
        );
        let clip = optim.grad_clip;
        self.require(clip > 0.0, "ajet.trainer_common.optim.grad_clip", clip, "more than 0");
        self.schedule(optim, trainer.total_training_steps);
    }

    fn schedule(&mut self, optim: &Optim, total_steps: Option<u64>) {
        let shares = [
            (
                "ajet.trainer_common.optim.lr_warmup_steps_ratio",
                optim.lr_warmup_steps_ratio,
            ),
            ("ajet.trainer_common.optim.min_lr_ratio", optim.min_lr_ratio),
        ];
        for (key, share) in shares {
            self.require((0.0..=1.0).contains(&share), key, share, "between 0 and 1");
        }
        let key = "ajet.trainer_common.total_training_steps";
        let falls = optim.lr_scheduler_type != LrScheduler::Constant;
        let by_ratio = optim.lr_warmup_steps.is_none_or(|steps| steps < 0) && optim.lr_warmup_steps_ratio > 0.0;
        if total_steps.is_none() && (falls || by_ratio) {
            let message = "is not set; a decaying learning rate or warm-up by ratio requires the number of updates";
            self.problem(key, message.into());
        }
    }

    fn lora(&mut self, ajet: &Ajet) {
        let alpha = ajet.lora.lora_alpha;
        self.require(alpha > 0.0, "ajet.lora.lora_alpha", alpha, "more than 0");
        if ajet.trainer_common.train_router && ajet.lora.lora_rank > 0 {
            let message = "is true with `ajet.lora.lora_rank` above 0; adapters do not train routers";
            self.problem("ajet.trainer_common.train_router", message.into());
        }
        let projections = ajet.lora.projections();
        if projections.is_empty() {
            self.problem(
                "ajet.lora.target_modules",
                "an empty list trains nothing; use `all-linear` for all projections".into(),
            );
        }
        let known = |name: &&&str| LINEAR_PROJECTIONS.contains(*name) || **name == ALL_LINEAR;
        for name in projections.iter().filter(|name| !known(name)) {
            let allowed = LINEAR_PROJECTIONS.join(", ");
            let message = format!("{name:?} is not all-linear or some of {allowed}");
            self.problem("ajet.lora.target_modules", message);
        }
    }

    fn quantized_model(&mut self, ajet: &Ajet) {
        if !ajet.model.keep_quantized {
            return;
        }
        if ajet.rollout.quantization != Quantization::None {
            let message = "int8 rounds the weights again, which ajet.model.keep_quantized keeps as they are; use none";
            self.problem("ajet.rollout.quantization", message.into());
        }
        if ajet.engine.kernels == Kernels::Plain {
            let message = "plain cannot compute with what ajet.model.keep_quantized keeps; use auto";
            self.problem("ajet.engine.kernels", message.into());
        }
    }

    fn engine(&mut self, ajet: &Ajet) {
        let device = ajet.engine.device.as_str();
        let number = device.strip_prefix("cuda:").map(str::parse::<usize>);
        let known = ["auto", "cpu", "metal"].contains(&device) || matches!(number, Some(Ok(_)));
        self.require(
            known,
            "ajet.engine.device",
            format!("{device:?}"),
            "auto, cpu, cuda:N or metal",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::fit::Strictness;
    use super::super::keys::keys;
    use super::super::load::{load, load_over};
    use super::super::shape::Shape;
    use super::*;

    fn with(lines: &str) -> String {
        format!("ajet:\n  model: {{path: m}}\n  {}\n", lines.replace('\n', "\n  "))
    }

    #[test]
    fn a_quantised_model_is_neither_rounded_again_nor_computed_without_its_kernels() {
        let mut ajet = Ajet::default();
        ajet.model.path = "m.gguf".into();
        ajet.model.keep_quantized = true;
        assert_eq!(problems(&ajet), []);
        ajet.rollout.quantization = Quantization::Int8;
        ajet.engine.kernels = Kernels::Plain;
        let keys: Vec<String> = problems(&ajet).into_iter().map(|problem| problem.key).collect();
        assert_eq!(keys, ["ajet.rollout.quantization", "ajet.engine.kernels"]);
        ajet.model.keep_quantized = false;
        assert_eq!(problems(&ajet), []);
    }

    #[test]
    fn values_outside_their_range() {
        let cases = [
            (
                "data: {train_batch_size: 0}",
                "ajet.data.train_batch_size: 0 is not a whole number from 1 to 1000000",
            ),
            (
                "engine: {threads: 0}",
                "ajet.engine.threads: 0 is not a whole number from 1 to 1024",
            ),
            (
                "data: {max_prompt_length: 600, max_response_length: 500}\n\
                 rollout: {max_model_len: 1024, max_response_length_in_one_turn: 100}",
                "ajet.rollout.max_model_len: 1024 is less than max_prompt_length 600 + max_response_length 500 = 1100 of \
                 ajet.data",
            ),
            (
                "data: {max_response_length: 500}\nrollout: {max_response_length_in_one_turn: 501}",
                "ajet.rollout.max_response_length_in_one_turn: 501 is more than ajet.data.max_response_length 500",
            ),
            (
                "data: {train_batch_size: 5000}",
                "ajet.swarm_mode_sample_collection_max_cached_episodes: 9999 is less than a batch, \
                 train_batch_size × num_repeat = 20000",
            ),
            (
                "rollout: {temperature: 0}",
                "ajet.rollout.temperature: 0 is not 0.001 or more",
            ),
            (
                "rollout: {val_kwargs: {top_p: -0.1}}",
                "ajet.rollout.val_kwargs.top_p: -0.1 is not from 0 (greedy) to 1",
            ),
            (
                "rollout: {top_p: 1.5}",
                "ajet.rollout.top_p: 1.5 is not more than 0 and at most 1",
            ),
            (
                "rollout: {val_kwargs: {top_k: 0}}",
                "ajet.rollout.val_kwargs.top_k: 0 is not -1 (all) or 1 or more",
            ),
            (
                "rollout: {compute_madness_checklist: [nonsense, rude]}",
                "ajet.rollout.compute_madness_checklist[1]: \"rude\" is not one of nonsense, non_ascii, un-paired-think, \
                 format_type_1, wrong_toolcall",
            ),
            (
                "trainer_common: {kl_loss_type: k9}",
                "ajet.trainer_common.kl_loss_type: \"k9\" is not one of kl, mse, low_var_kl, k1, k2, k3, each also with a trailing +",
            ),
            (
                "trainer_common: {optim: {lr_scheduler_type: cosine}}",
                "ajet.trainer_common.total_training_steps: is not set; a decaying learning rate or warm-up by ratio \
                 requires the number of updates",
            ),
            (
                "rollout: {endpoints: ['http://box2:8000']}",
                "ajet.rollout.endpoints: endpoints get the weights as a LoRA adapter, but ajet.lora.lora_rank is 0; hint: set \
                 it to 16",
            ),
            (
                "rollout: {endpoints: [box2]}\nlora: {lora_rank: 8}",
                "ajet.rollout.endpoints: \"box2\" is not a URL such as http://box2:8000",
            ),
            (
                "rollout: {endpoints: ['http://a', 'http://a']}\nlora: {lora_rank: 8}",
                "ajet.rollout.endpoints: \"http://a\" is listed twice",
            ),
            (
                "rollout: {endpoints: ['http://a'], name: sglang}\nlora: {lora_rank: 8}",
                "ajet.rollout.name: \"sglang\" is not one of vllm",
            ),
            (
                "lora: {lora_rank: 4}\ntrainer_common: {train_router: true}",
                "ajet.trainer_common.train_router: is true with `ajet.lora.lora_rank` above 0; adapters do not train routers",
            ),
            (
                "lora: {target_modules: [q_proj, nope]}",
                "ajet.lora.target_modules: \"nope\" is not all-linear or some of q_proj, k_proj, v_proj, qkv_proj, o_proj, \
                 gate_proj, up_proj, gate_up_proj, down_proj, w1, w3, w2",
            ),
            (
                "engine: {device: 'cuda:x'}",
                "ajet.engine.device: \"cuda:x\" is not auto, cpu, cuda:N or metal",
            ),
            (
                "experiment_name: a/../b",
                "ajet.experiment_name: \"a/../b\" is not a name without `/` and `..`",
            ),
            (
                "swarm_mode_sample_collection_method: rollout_until_finish_enough_non_dummy_tasks\n\
                 rollout: {num_repeat: 1}",
                "ajet.rollout.num_repeat: 1 never fills a batch of rollout_until_finish_enough_non_dummy_tasks, which \
                 counts tasks with different rewards",
            ),
        ];
        for (lines, want) in cases {
            let error = load(&with(lines), Strictness::Synced).unwrap_err();
            assert_eq!(error.to_string(), want);
        }
    }

    /// Seen with `engine.threads: 1000000` and `swarm_mode_rolling_post_timeout: 1e308`.
    #[test]
    fn absurd_numbers_are_refused_with_the_range_or_do_no_harm() {
        let absurd = [
            "1000000",
            "1000000000000",
            "18446744073709551615",
            "9223372036854775807",
            "-1",
            "-9223372036854775808",
            "1e308",
            "-1e308",
            "1e-320",
            ".nan",
            ".inf",
            "-.inf",
            "1e400",
            "0x7fffffffffffffff",
            "'1e30'",
        ];
        let mut unbounded = vec![];
        for (path, key) in &keys().used {
            let bounded = match &key.shape {
                Shape::Whole { max, .. } => max.is_some(),
                Shape::Number { max, .. } => max.is_some(),
                _ => continue,
            };
            if !bounded {
                unbounded.push(path.as_str());
            }
            for value in absurd {
                let below: String = path.split('.').map(|name| format!("{{{name}: ")).collect();
                let yaml = format!("{below}{value}{}", "}".repeat(path.split('.').count()));
                match load_over("ajet: {model: {path: m}}", &yaml, Strictness::Job) {
                    Err(error) => assert!(error.to_string().contains("ajet."), "{path}: {value}: {error}"),
                    Ok(loaded) => {
                        let ajet = loaded.ajet; // nothing that follows from it overflows
                        let sizes = [
                            ajet.max_model_len(),
                            ajet.episodes_per_batch(),
                            ajet.max_claimed_episodes(),
                        ];
                        assert!(
                            sizes.iter().all(|size| *size <= 100_000_000),
                            "{path}: {value}: {sizes:?}"
                        );
                        ajet.trainer_common.save_every();
                    }
                }
            }
        }
        let by_rule = [
            "ajet.rollout.top_p",
            "ajet.rollout.val_kwargs.top_p",
            "ajet.rollout.gpu_memory_utilization",
            "ajet.trainer_common.clip_ratio_low",
            "ajet.trainer_common.save_freq",
            "ajet.trainer_common.optim.lr_warmup_steps_ratio",
            "ajet.trainer_common.optim.min_lr_ratio",
        ]; // others than these have a bound in the schema
        unbounded.retain(|path| !by_rule.contains(path));
        assert!(unbounded.is_empty(), "{unbounded:?}");
    }

    #[test]
    fn edges_of_the_ranges_are_allowed() {
        let lines = "data: {max_prompt_length: 500, max_response_length: 524}\n\
                     rollout: {max_model_len: 1024, max_response_length_in_one_turn: 524, top_p: 1, top_k: 1}\n\
                     trainer_common: {optim: {lr_scheduler_type: linear, min_lr_ratio: 1}, total_training_steps: 1}\n\
                     engine: {device: 'cuda:1'}";
        assert!(load(&with(lines), Strictness::Job).is_ok());
    }

    #[test]
    fn what_is_probably_not_meant_is_a_warning() {
        let cases = [
            ("lora: {lora_rank: 8}", "optim.lr: 1e-6 is low for LoRA"),
            (
                "rollout: {num_repeat: 1}",
                "num_repeat: 1 makes every group a single episode",
            ),
            (
                "trainer_common: {logger: swanlab}",
                "logger: \"swanlab\" is not built in",
            ),
            (
                "rollout: {tensor_model_parallel_size: 4}",
                "tensor_model_parallel_size: tensor parallelism is not supported here; using 1 instead of 4",
            ),
        ];
        for (lines, want) in cases {
            let warnings = load(&with(lines), Strictness::Job).unwrap().warnings;
            assert!(
                matches!(warnings.as_slice(), [warning] if warning.contains(want)),
                "{warnings:?}"
            );
        }
        assert!(
            load(
                &with("lora: {lora_rank: 8}\ntrainer_common: {optim: {lr: 1.0e-4}}"),
                Strictness::Job
            )
            .unwrap()
            .warnings
            .is_empty()
        );
    }

    fn of_ranks(per_node: usize, nnodes: usize, ranks: Ranks) -> Ajet {
        let mut ajet = Ajet::default();
        ajet.trainer_common.n_gpus_per_node = per_node;
        ajet.trainer_common.nnodes = nnodes;
        ajet.engine.ranks = ranks;
        ajet
    }

    #[test]
    fn fewer_ranks_than_configured_are_a_warning() {
        for (per_node, nnodes, on_gpus, started) in
            [(1, 1, true, 1), (0, 1, false, 1), (4, 2, true, 8), (2, 1, false, 4)]
        {
            assert_eq!(
                ranks(&of_ranks(per_node, nnodes, Ranks::Available), on_gpus, started),
                Ok(None)
            );
        }
        let warning = |on_gpus| ranks(&of_ranks(4, 2, Ranks::Available), on_gpus, 2).unwrap().unwrap();
        assert!(warning(true).contains("n_gpus_per_node 4 × nnodes 2 is 8 GPUs, and 2 train; hint: "));
        assert!(warning(false).contains("is 8 GPUs, but this run uses the CPU"));
    }

    #[test]
    fn another_number_of_ranks_than_the_exact_one_is_an_error() {
        for (started, expected) in [
            (8, None),
            (2, Some("needs 8 ranks, and 2 were started")),
            (9, Some("needs 8 ranks, and 9 were started")),
        ] {
            let found = ranks(&of_ranks(4, 2, Ranks::Exact), false, started);
            match expected {
                None => assert_eq!(found, Ok(None)),
                Some(words) => assert!(found.unwrap_err().contains(words)),
            }
        }
    }
}
