//! Which checkpoint to fetch, and the list to choose from.

use anyhow::Context;

use crate::protocol::checkpoint::{CheckpointInfo, CheckpointKind, CheckpointsAnswer};
use crate::protocol::status::Runs;
use crate::terminal;

/// Options that choose a checkpoint.
#[derive(Debug, clap::Args)]
#[group(multiple = false)]
pub(super) struct Choice {
    /// Fetch the checkpoint of this step.
    #[arg(long, value_name = "N")]
    step: Option<u64>,
    /// Fetch the checkpoint with the best evaluation.
    #[arg(long)]
    best: bool,
    /// Fetch the newest checkpoint. This is the default.
    #[arg(long)]
    latest: bool,
}

/// Selects the checkpoint to fetch.
pub(super) fn choose<'a>(listing: &'a CheckpointsAnswer, choice: &Choice) -> anyhow::Result<&'a CheckpointInfo> {
    let all = &listing.checkpoints;
    let newest = all.last().with_context(|| {
        format!(
            "the experiment {} has no checkpoint yet\nhint: ajet.trainer_common.save_freq sets how often one is written; \
             `ajet-swarm stop` writes one",
            listing.experiment
        )
    })?;
    if let Some(step) = choice.step {
        return all
            .iter()
            .find(|info| info.manifest.global_step == step)
            .with_context(|| format!("no checkpoint of step {step}\nhint: choose one of {}", steps(all)));
    }
    if choice.best {
        return all.iter().find(|info| info.is_best).with_context(|| {
            format!(
                "no checkpoint is marked as the best\nhint: `roll` marks it after an evaluation; choose a step of {}",
                steps(all)
            )
        });
    }
    Ok(all.iter().find(|info| info.is_latest).unwrap_or(newest))
}

fn steps(checkpoints: &[CheckpointInfo]) -> String {
    let steps = checkpoints.iter().map(|info| info.manifest.global_step.to_string());
    steps.collect::<Vec<_>>().join(", ")
}

/// Returns the checkpoints as lines.
pub(super) fn table(listing: &CheckpointsAnswer) -> String {
    let lines = listing.checkpoints.iter().map(|info| {
        let marks = [(info.is_latest, "latest"), (info.is_best, "best")];
        let marks = marks.iter().filter(|(is, _)| *is).map(|(_, mark)| *mark);
        let line = format!(
            "step {:<8}{:<14}{:<12}{}",
            info.manifest.global_step,
            kind(info.kind),
            size(info.manifest.bytes()),
            marks.collect::<Vec<_>>().join(", ")
        );
        format!("{}\n", line.trim_end())
    });
    let head = format!("experiment {}\n", terminal::one_line(&listing.experiment));
    std::iter::once(head).chain(lines).collect()
}

/// Returns what a checkpoint is.
pub(super) fn kind(kind: CheckpointKind) -> &'static str {
    match kind {
        CheckpointKind::Model => "model",
        CheckpointKind::Adapter => "LoRA adapter",
    }
}

/// Returns a size with a decimal unit.
pub(super) fn size(bytes: u64) -> String {
    let units = [(1e9, "GB"), (1e6, "MB"), (1e3, "kB")];
    let bytes = bytes as f64;
    let unit = units.into_iter().find(|(unit, _)| bytes >= *unit);
    unit.map_or(format!("{bytes} B"), |(unit, name)| {
        format!("{:.1} {name}", bytes / unit)
    })
}

/// Returns the experiments as lines.
pub(super) fn runs(runs: &Runs) -> String {
    let lines = runs.runs.iter().map(|run| {
        let name = terminal::one_line(&run.name);
        let model = run.model.as_deref().unwrap_or_default();
        let line = format!("{name:<30}  step {:<8}{}", run.last_step, terminal::one_line(model));
        format!("{}\n", line.trim_end())
    });
    let head = "no experiment has been started since the server started; `--run NAME` chooses one of:\n".to_owned();
    match runs.runs.is_empty() {
        true => "no experiments\n".to_owned(),
        false => std::iter::once(head).chain(lines).collect(),
    }
}

/// Message where the server has no current experiment.
pub(super) fn no_current_run(runs: &Runs) -> String {
    format!(
        "no experiment has been started since the server started\nhint: choose one by `--run NAME`: {}",
        names(runs)
    )
}

/// Message where the server has other experiments.
pub(super) fn unknown_run(name: &str, runs: &Runs) -> String {
    format!(
        "the server has no experiment {name:?}\nhint: choose one of {}",
        names(runs)
    )
}

/// Maximum number of experiments that a message names.
const NAMED: usize = 10;

/// Names the experiments that changed last.
fn names(runs: &Runs) -> String {
    let names: Vec<_> = runs.runs.iter().take(NAMED).map(|run| run.name.as_str()).collect();
    match runs.runs.len().checked_sub(NAMED) {
        Some(more @ 1..) => format!("{} and {more} more", names.join(", ")),
        _ => names.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::checkpoint::Manifest;
    use crate::protocol::status::Run;

    fn listing() -> CheckpointsAnswer {
        let of_step = |global_step, is_latest, is_best| CheckpointInfo {
            kind: CheckpointKind::Adapter,
            is_latest,
            is_best,
            manifest: Manifest {
                global_step,
                files: [("a".to_owned(), 1500)].into_iter().collect(),
                ..Manifest::default()
            },
        };
        CheckpointsAnswer {
            experiment: "gsm8k".into(),
            checkpoints: vec![
                of_step(10, false, true),
                of_step(20, true, false),
                of_step(30, false, false),
            ],
        }
    }

    fn choice(step: Option<u64>, best: bool, latest: bool) -> Choice {
        Choice { step, best, latest }
    }

    #[test]
    fn the_latest_the_best_or_a_step_is_chosen() {
        for (choice, step) in [
            (choice(None, false, false), 20),
            (choice(None, false, true), 20),
            (choice(None, true, false), 10),
            (choice(Some(30), false, false), 30),
        ] {
            assert_eq!(choose(&listing(), &choice).unwrap().manifest.global_step, step);
        }
        let mut unmarked = listing();
        unmarked
            .checkpoints
            .iter_mut()
            .for_each(|info| (info.is_latest, info.is_best) = (false, false));
        let newest = choose(&unmarked, &choice(None, false, false)).unwrap();
        assert_eq!(newest.manifest.global_step, 30);
        for (listing, choice, reason) in [
            (listing(), choice(Some(5), false, false), "choose one of 10, 20, 30"),
            (
                unmarked,
                choice(None, true, false),
                "no checkpoint is marked as the best",
            ),
            (
                CheckpointsAnswer::default(),
                choice(None, false, false),
                "has no checkpoint yet",
            ),
        ] {
            let error = choose(&listing, &choice).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn checkpoints_are_listed_with_size_and_marks() {
        let text = table(&listing());
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "experiment gsm8k");
        assert_eq!(lines[1], "step 10      LoRA adapter  1.5 kB      best");
        assert_eq!(lines[3], "step 30      LoRA adapter  1.5 kB");
        for (bytes, shown) in [
            (0, "0 B"),
            (999, "999 B"),
            (1_234_567, "1.2 MB"),
            (270_000_000_000, "270.0 GB"),
        ] {
            assert_eq!(size(bytes), shown);
        }
    }

    #[test]
    fn experiments_are_named_where_none_is_chosen() {
        let named = |count: usize| Runs {
            runs: (0..count)
                .map(|number| Run {
                    name: format!("run_{number}"),
                    last_step: 7,
                    ..Run::default()
                })
                .collect(),
        };
        assert_eq!(runs(&named(0)), "no experiments\n");
        assert_eq!(
            runs(&named(2)).lines().nth(2),
            Some("run_1                           step 7")
        );
        assert!(no_current_run(&named(2)).ends_with("--run NAME`: run_0, run_1"));
        assert!(unknown_run("run_x", &named(12)).ends_with("run_8, run_9 and 2 more"));
    }
}
