//! From a YAML document to a checked `ajet:` configuration.

use super::error::Error;
use super::fit::{Fitter, Strictness, typed};
use super::keys::keys;
use super::nearest::nearest;
use super::node::Node;
use super::schema::Ajet;
use super::validate;
use super::yaml;

/// A configuration and what was noticed on the way.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The configuration, checked.
    pub ajet: Ajet,
    /// Sentences for the log, such as unknown keys.
    pub warnings: Vec<String>,
    /// Known keys that have no effect here and were set to something other than their default, as `key = value`.
    pub ignored: Vec<String>,
}

/// Parses, reads and checks a document.
///
/// # Errors
/// Fails if the text is not YAML, has no `ajet:` section, or has invalid keys; all of them are reported.
pub fn load(yaml: &str, strictness: Strictness) -> Result<Loaded, Error> {
    read(&parse(yaml)?, strictness)
}

/// As [`load`], where `defaults`, another document, gives what `yaml` leaves out.
///
/// # Errors
/// As of [`load`], for either document.
pub fn load_over(defaults: &str, yaml: &str, strictness: Strictness) -> Result<Loaded, Error> {
    let mut document = parse(defaults)?;
    document.overlay(parse(yaml)?);
    read(&document, strictness)
}

/// Parses a document.
///
/// # Errors
/// Fails if the text is not YAML, or exceeds a limit.
pub fn parse(yaml: &str) -> Result<Node, Error> {
    yaml::parse(yaml).map_err(Error::Syntax)
}

/// Reads and checks the `ajet:` section of a document.
///
/// # Errors
/// Fails if it is missing or has invalid keys; all of them are reported.
pub fn read(document: &Node, strictness: Strictness) -> Result<Loaded, Error> {
    let sections = match document {
        Node::Section(sections) => sections,
        other if other.is_null() => return Err(Error::NoAjetSection),
        other => return Err(Error::NotAMapping(other.show_quoted())),
    };
    let Some(ajet) = sections.get("ajet") else {
        return Err(Error::NoAjetSection);
    };
    let mut fitter = Fitter::new(&keys().schema, strictness, &[]);
    let ajet = fitter.section_or_default("ajet", ajet);
    // `roll` is the client's own part.
    for (name, node) in sections
        .iter()
        .filter(|(name, _)| !["ajet", "roll"].contains(&name.as_str()))
    {
        match nearest(name, ["ajet", "roll"].into_iter()) {
            Some(meant) if strictness == Strictness::Job => fitter.misspelt_section(name, meant),
            _ => fitter.without_effect(name, node),
        }
    }
    let findings = fitter.finish();
    if !findings.problems.is_empty() {
        return Err(Error::Problems(findings.problems));
    }
    let ajet: Ajet = typed("ajet", ajet).map_err(Error::Problems)?;
    let problems = validate::problems(&ajet);
    if !problems.is_empty() {
        return Err(Error::Problems(problems));
    }
    let mut warnings = findings.warnings;
    warnings.extend(validate::warnings(&ajet));
    let ignored = findings.ignored;
    Ok(Loaded {
        ajet,
        warnings,
        ignored,
    })
}

#[cfg(test)]
mod tests {
    use super::super::fit::NAMED;
    use super::super::schema::{
        CollectionMethod, CompareLevel, ImportanceMode, LossAggMode, MadnessCheck, Recompute, TargetModules,
    };
    use super::*;

    const MODEL: &str = "model: {path: builtin:tiny}";

    /// A job whose `ajet` section is these lines and a model.
    fn job(lines: &str) -> String {
        let lines = lines.replace('\n', "\n  ");
        format!("ajet:\n  {MODEL}\n  {lines}\n")
    }

    fn ajet(lines: &str) -> Ajet {
        load(&job(lines), Strictness::Job).unwrap().ajet
    }

    fn error(yaml: &str) -> String {
        load(yaml, Strictness::Job).unwrap_err().to_string()
    }

    #[test]
    fn what_is_left_out_has_its_default() {
        let mut want = Ajet::default();
        want.model.path = "builtin:tiny".into();
        assert_eq!(ajet(""), want);
        let nulls = "data: null\nrollout: {num_repeat: null, max_model_len: ~}\nlora:\n  target_modules:";
        assert_eq!(ajet(nulls), want);
    }

    #[test]
    fn values_are_taken_as_their_key_wants_them() {
        let got = ajet(
            "experiment_name: 1e5\n\
             project_name: 007\n\
             data: {train_batch_size: 8.0, max_prompt_length: '512'}\n\
             rollout:\n  temperature: 1\n  compute_madness_checklist: non_ascii\n  force_disable_toolcalls: yes\n\
             trainer_common:\n  optim: {lr: '1.0e-06', betas: [0, 0.95]}\n  save_freq: -1\n  logger: [console]\n  \
             importance_sampling: {mode: false}\n  recompute: true\n  loss_agg_mode: token-mean\n\
             lora: {lora_alpha: 32, target_modules: [q_proj, v_proj]}\n\
             context_tracker: {timeline_merging_policy: {timeline_compare_level: text_and_image}}\n\
             swarm_mode_sample_collection_method: rollout_until_finish_enough_episodes",
        );
        assert_eq!(
            (got.experiment_name.as_str(), got.project_name.as_str()),
            ("1e5", "007")
        );
        assert_eq!((got.data.train_batch_size, got.data.max_prompt_length), (8, 512));
        assert_eq!(got.rollout.temperature, 1.0);
        assert_eq!(got.rollout.compute_madness_checklist, [MadnessCheck::NonAscii]);
        assert!(got.rollout.force_disable_toolcalls);
        assert_eq!(
            (got.trainer_common.optim.lr, got.trainer_common.optim.betas),
            (1e-6, [0.0, 0.95])
        );
        assert_eq!(
            (got.trainer_common.save_freq, got.trainer_common.save_every()),
            (-1, 50)
        );
        assert_eq!(got.trainer_common.importance_sampling.mode, ImportanceMode::Off);
        assert_eq!(got.trainer_common.recompute, Recompute::On);
        assert_eq!(got.trainer_common.loss_agg_mode, LossAggMode::TokenMean);
        assert_eq!(
            got.lora.target_modules,
            TargetModules::List(vec!["q_proj".into(), "v_proj".into()])
        );
        assert_eq!(
            got.context_tracker.timeline_merging_policy.timeline_compare_level,
            CompareLevel::Text
        );
        assert_eq!(
            got.swarm_mode_sample_collection_method,
            CollectionMethod::RolloutUntilFinishEnoughEpisodes
        );
    }

    #[test]
    fn a_wrong_value_is_named_with_what_is_allowed() {
        let cases = [
            (
                "trainer_common: {loss_agg_mode: mean}",
                "ajet.trainer_common.loss_agg_mode: \"mean\" is not one of seq-mean-token-mean, token-mean, \
                 seq-mean-token-sum-norm",
            ),
            (
                "data: {train_batch_size: many}",
                "ajet.data.train_batch_size: \"many\" is not a whole number from 1 to 1000000",
            ),
            (
                "data: {train_batch_size: -3}",
                "ajet.data.train_batch_size: -3 is not a whole number from 1 to 1000000",
            ),
            (
                "data: {train_batch_size: 2.5}",
                "ajet.data.train_batch_size: 2.5 is not a whole number from 1 to 1000000",
            ),
            (
                "data: {train_batch_size: [8]}",
                "ajet.data.train_batch_size: [8] is not a whole number from 1 to 1000000",
            ),
            (
                "trainer_common: {optim: {lr: .nan}}",
                "ajet.trainer_common.optim.lr: .nan is not a number from 0.0 to 1000.0",
            ),
            (
                "trainer_common: {use_kl_loss: 1}",
                "ajet.trainer_common.use_kl_loss: 1 is not true or false",
            ),
            (
                "trainer_common: {optim: {betas: [0.9]}}",
                "ajet.trainer_common.optim.betas: [0.9] is not a list of 2, each a number",
            ),
            (
                "data: 5",
                "ajet.data: 5 is not a section with the keys max_prompt_length, max_response_length, train_batch_size",
            ),
            (
                "rollout: {num_repeat: '${oc.select:a,1}'}",
                "ajet.rollout.num_repeat: \"${oc.select:a,1}\" is not a whole number from 1 to 100000",
            ),
            ("experiment_name: {a: 1}", "ajet.experiment_name: a section is not text"),
        ];
        for (lines, want) in cases {
            for strictness in [Strictness::Job, Strictness::Synced] {
                assert_eq!(load(&job(lines), strictness).unwrap_err().to_string(), want);
            }
        }
    }

    #[test]
    fn every_problem_of_a_document_is_told() {
        let text = error(&job(
            "data: {train_batch_size: x, max_prompt_lenght: 5}\nrollout: {top_p: high}",
        ));
        assert_eq!(text.lines().count(), 3, "{text}");
    }

    #[test]
    fn documents_that_are_no_configuration() {
        assert!(error("a: [").starts_with("the configuration is not valid YAML: "));
        assert!(error("a: 1\na: 2").contains("the key \"a\" occurs twice"));
        assert!(error("- 1").starts_with("the configuration is [1], not a mapping"));
        assert!(error("").starts_with("the configuration has no `ajet:` section"));
        assert!(error("model: {path: x}").starts_with("the configuration has no `ajet:` section"));
        assert!(error("ajet:").starts_with("ajet.model.path: is not set"));
        assert_eq!(
            error("ajett: {}\najet: {model: {path: x}}"),
            "ajett: unknown section; did you mean `ajet`?"
        );
    }

    #[test]
    fn unknown_keys_are_errors_in_a_job_and_warnings_when_synced() {
        let yaml = job("rollout: {num_repeats: 8}\nzzz: {a: 1}");
        let unknown = "ajet.rollout.num_repeats: unknown key; did you mean `ajet.rollout.num_repeat`?\n\
                       ajet.zzz: unknown key";
        assert_eq!(error(&yaml), unknown);
        let synced = load(&yaml, Strictness::Synced).unwrap();
        assert_eq!(synced.ajet.rollout.num_repeat, 4);
        assert_eq!(
            synced.warnings,
            [
                "ajet.rollout.num_repeats: unknown key, without effect; did you mean `ajet.rollout.num_repeat`?",
                "ajet.zzz: unknown key, without effect",
            ]
        );
    }

    #[test]
    fn keys_without_effect_are_listed_where_they_differ_from_the_default() {
        let yaml = job(
            "backbone: trinity\nrollout: {name: sglang, gamma: 1, n_vllm_engine: '${oc.select:x,1}'}\n\
             trainer_common: {fsdp_config: {param_offload: false}, val_before_train: null}\ntask_judge: {judge_type: mine}",
        ) + "trainer: {save_freq: 5, new_in_verl: {a: 2}}\ntrinity: {sync: nccl}\nhydra: {x: 1}\nroll: {epochs: 1}\n";
        let loaded = load(&yaml, Strictness::Job).unwrap();
        assert_eq!(
            loaded.ignored,
            [
                "ajet.backbone = trinity",
                "ajet.rollout.n_vllm_engine = ${oc.select:x,1}",
                "ajet.trainer_common.fsdp_config.param_offload = false",
                "ajet.task_judge.judge_type = mine",
                "trainer.save_freq = 5",
                "trainer.new_in_verl.a = 2",
                "trinity.sync = nccl",
            ]
        );
    }

    // Seen with 4,000 unknown keys, each compared with every known one.
    #[test]
    fn many_unknown_keys_are_counted_and_the_first_ones_named() {
        let keys = |name: &str| (0..4000).map(|i| format!("{name}{i}: {i}\n")).collect::<String>();
        let synced = load(&job(&keys("num_repeat")), Strictness::Synced).unwrap();
        assert_eq!(synced.warnings.len(), NAMED + 1);
        assert_eq!(synced.warnings[NAMED], "3980 more unknown keys");
        let told = error(&job(&keys("train_batch_size")));
        assert_eq!(told.lines().count(), NAMED + 1);
        assert!(told.ends_with("\najet: 3980 more unknown keys"), "{told}");
        let loaded = load(
            &(job("") + "verl:\n  " + &keys("x").replace('\n', "\n  ")),
            Strictness::Job,
        )
        .unwrap();
        assert_eq!(
            (loaded.ignored.len(), &*loaded.ignored[NAMED]),
            (NAMED + 1, "3980 more")
        );
        let sections = (0..4000).map(|i| format!("ajet{i}: 1\n")).collect::<String>();
        assert_eq!(error(&(job("") + &sections)).lines().count(), NAMED);
        let wrong = (0..4000).map(|i| format!("'k{i}': {{}}\n")).collect::<String>();
        assert_eq!(
            load(
                &job(&format!("rollout:\n  {}", wrong.replace('\n', "\n  "))),
                Strictness::Synced
            )
            .unwrap()
            .warnings
            .len(),
            NAMED + 1
        );
    }

    #[test]
    fn a_whole_python_dump_loads() {
        let dump = include_str!("../../tests/fixtures/config/python_dump.yaml");
        let loaded = load(dump, Strictness::Synced).unwrap();
        let ajet = loaded.ajet;
        assert_eq!(ajet.experiment_name, "1e5");
        assert_eq!(ajet.model.path, "Qwen/Qwen2.5-0.5B-Instruct");
        assert_eq!(
            (ajet.max_model_len(), ajet.max_response_length_in_one_turn()),
            (2048, 512)
        );
        assert_eq!((ajet.lora.lora_rank, ajet.lora.lora_alpha), (32, 32.0));
        assert_eq!(ajet.trainer_common.optim.lr, 1e-5);
        assert_eq!(ajet.trainer_common.optim.grad_clip, 20.0);
        assert_eq!(ajet.trainer_common.kl_penalty_type, "kl");
        assert_eq!(loaded.warnings.len(), 2, "{:?}", loaded.warnings);
        assert_eq!(
            loaded.ignored,
            [
                "ajet.trainer_common.val_before_train = true",
                "actor_rollout_ref.actor.clip_ratio_c = 5.0",
                "trainer.logger = [console, swanlab]",
            ]
        );
    }

    #[test]
    fn defaults_give_what_a_document_leaves_out() {
        let defaults = "ajet: {project_name: 1e5, rollout: {num_repeat: 2, max_num_seqs: 3}}";
        let yaml = job("rollout: {num_repeat: 8, max_num_seqs: null}");
        let got = load_over(defaults, &yaml, Strictness::Synced).unwrap().ajet;
        assert_eq!(got.project_name, "1e5");
        assert_eq!((got.rollout.num_repeat, got.rollout.max_num_seqs), (8, 3));
    }
}
