//! `ajet-swarm job`: writes, checks and shows job files.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};

use crate::roll::job::Job;
use crate::roll::tasks;
use crate::{note, say, terminal};

/// What `job init` writes.
const TEMPLATE: &str = include_str!("../../config/jobs/template.yaml");

const EXAMPLES: &str = "\
Examples:
  ajet-swarm job init math.yaml     write a commented job
  ajet-swarm job check math.yaml    say what is wrong with it
  ajet-swarm job show math.yaml     the configuration that the server would get";

/// Write, check or show a job file.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    action: Action,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum Action {
    /// Write a commented job to start from.
    Init {
        /// Where to.
        #[arg(default_value = "job.yaml")]
        path: PathBuf,
    },
    /// Check a job and read its tasks.
    Check {
        /// The job.
        path: PathBuf,
    },
    /// Print the complete training configuration that the server would get.
    Show {
        /// The job.
        path: PathBuf,
    },
}

/// Does what was asked.
///
/// # Errors
/// A sentence: the file is there already, or is wrong.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.action {
        Action::Init { path } => {
            let file = std::fs::File::create_new(&path);
            let mut file = match file {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                    bail!(
                        "{} is there already\nhint: name another file, or remove it first",
                        path.display()
                    )
                }
                file => file.with_context(|| format!("{} cannot be written", path.display()))?,
            };
            std::io::Write::write_all(&mut file, TEMPLATE.as_bytes())
                .with_context(|| format!("{} cannot be written", path.display()))?;
            note!("wrote {}; `ajet-swarm roll {}` runs it", path.display(), path.display());
        }
        Action::Check { path } => {
            let job = Job::load(&path)?;
            let sets = tasks::read(&job.ajet.task_reader).await?;
            for warning in job.warnings.iter().chain(&sets.warnings) {
                note!("warning: {warning}");
            }
            let (training, validation) = (sets.training.len(), sets.validation.len());
            say!(
                "{} is right: {training} tasks to train on, {validation} to evaluate on",
                path.display()
            );
        }
        Action::Show { path } => print_yaml(&Job::load(&path)?.document()),
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints YAML: as it is for a file or another program, so that it means the same, and harmless on a terminal.
fn print_yaml(yaml: &str) {
    match std::io::stdout().is_terminal() {
        true => terminal::print(&terminal::printable(yaml)),
        false => terminal::print(yaml),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_template_is_a_job() {
        Job::parse(Path::new("template.yaml"), TEMPLATE).unwrap();
    }
}
