//! `ajet-swarm fetch`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::server_url::ServerArgs;
use crate::client::fetch::{fetch, selected};
use crate::protocol::checkpoint::{CheckpointInfo, CheckpointKind, CheckpointsAnswer};
use crate::{note, say, terminal};

/// Options of the fetch command.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Prints the path of the directory, which `chat`, `serve` and `export` take. An interrupted fetch continues when it is run \
again. With --trainer-state, an experiment can be resumed from it.

Examples:
  ajet-swarm fetch my-model
  ajet-swarm fetch --best my-model --swarm-url http://gpu-box:10086 --token \"$TOKEN\"
  ajet-swarm fetch --list")]
pub struct Args {
    /// Directory to write, which must be missing or empty.
    #[arg(value_name = "DIR", required_unless_present = "list")]
    dir: Option<PathBuf>,
    #[command(flatten)]
    choice: Choice,
    /// Fetch the state of the optimizer too, which is about twice as large as the trained weights.
    #[arg(long)]
    trainer_state: bool,
    /// List the checkpoints of the experiment instead.
    #[arg(long, conflicts_with_all = ["dir", "step", "best", "latest", "trainer_state"])]
    list: bool,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, clap::Args)]
#[group(multiple = false)]
struct Choice {
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

/// Fetches a checkpoint from the server and prints its directory.
///
/// # Errors
/// Fails if there is no such checkpoint, the server cannot be reached, or the directory cannot be written.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let swarm = args.server.client()?;
    let listing = swarm.checkpoints().await?;
    let Some(dir) = args.dir else {
        terminal::print(&list(&listing));
        return Ok(ExitCode::SUCCESS);
    };
    let chosen = choose(&listing, &args.choice)?;
    let manifest = selected(&chosen.manifest, args.trainer_state);
    note!(
        "fetching step {} of {}: {} in {} files, {}",
        manifest.global_step,
        listing.experiment,
        kind(chosen.kind),
        manifest.files.len(),
        size(manifest.bytes())
    );
    let bar = bar(manifest.bytes());
    let fetched = fetch(&swarm, &manifest, &dir, &mut |present| bar.set_position(present)).await;
    bar.finish_and_clear();
    fetched.with_context(|| format!("cannot fetch the checkpoint of step {}", manifest.global_step))?;
    say!("{}", dir.display());
    Ok(ExitCode::SUCCESS)
}

/// Selects the checkpoint to fetch.
fn choose<'a>(listing: &'a CheckpointsAnswer, choice: &Choice) -> anyhow::Result<&'a CheckpointInfo> {
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

fn list(listing: &CheckpointsAnswer) -> String {
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

fn kind(kind: CheckpointKind) -> &'static str {
    match kind {
        CheckpointKind::Model => "model",
        CheckpointKind::Adapter => "LoRA adapter",
    }
}

/// Returns a size with a decimal unit.
fn size(bytes: u64) -> String {
    let units = [(1e9, "GB"), (1e6, "MB"), (1e3, "kB")];
    let bytes = bytes as f64;
    let unit = units.into_iter().find(|(unit, _)| bytes >= *unit);
    unit.map_or(format!("{bytes} B"), |(unit, name)| {
        format!("{:.1} {name}", bytes / unit)
    })
}

/// Returns a bar on a terminal's stderr, or a hidden one.
fn bar(bytes: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(bytes), ProgressDrawTarget::stderr());
    // The template is a constant; with one that is not valid, the default bar remains.
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta}") {
        bar.set_style(style.progress_chars("━╸ "));
    }
    bar
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::checkpoint::Manifest;

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
        let text = list(&listing());
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
}
