//! The command line: one file per command, each with its `Args` and a `run`.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::{note, terminal};

pub mod bench;
pub mod engine;
pub mod export;
pub mod job;
pub mod log;
pub mod overwatch;
pub mod roll;
pub mod server_url;
pub mod start;
pub mod status;
pub mod stop;
pub mod supervise;
pub mod sync_code;

/// Reinforcement learning of language-model agents: one binary that serves, samples and trains.
#[derive(Debug, Parser)]
#[command(version, about, max_term_width = 100, after_help = EXAMPLES)]
pub struct Cli {
    /// Say more on stderr; twice for everything.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "\
Examples:
  ajet-swarm roll config/jobs/quickstart.yaml    train the built-in model on this machine
  ajet-swarm start                               serve a swarm on port 10086
  ajet-swarm overwatch                           watch it";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve a swarm.
    Start(start::Args),
    /// Watch a swarm server: its state, the batch and its stop rule, episodes, rewards, clients and log.
    ///
    /// A server that goes away is waited for. Where standard output is no terminal, one snapshot is printed as plain
    /// lines, as with --once.
    #[command(visible_alias = "top")]
    Overwatch(overwatch::Args),
    /// Tell where a server's engine is and how far its batch.
    Status(status::Args),
    /// Stop a server's engine, which saves what it has; the server stays up.
    Stop(stop::Args),
    /// Send a snapshot of training code to a server, which stores it and says what can be done with it.
    SyncCode(sync_code::Args),
    /// Run a job: its tasks go through its agent as episodes, their rewards train the model.
    Roll(roll::Args),
    /// Write, check or show a job.
    Job(job::Args),
    /// Write a checkpoint as a model that Python's transformers and peft load.
    Export(export::Args),
    /// Measure this machine.
    Bench(bench::Args),
    /// The child process of `start`.
    #[command(hide = true)]
    Engine(engine::Args),
    /// The parent of a job's program.
    #[command(hide = true)]
    Supervise(supervise::Args),
}

/// Runs a command to its end.
///
/// # Errors
///
/// Whatever the command could not do, as a sentence for the user.
pub fn run(command: Command) -> anyhow::Result<ExitCode> {
    if let Command::Supervise(args) = &command {
        return supervise::run(args);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let outcome = runtime.block_on(dispatch(command));
    // A blocked read of standard input must not keep the process alive.
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    match outcome {
        Ok(code) if code == ExitCode::SUCCESS && terminal::output_is_incomplete() => Ok(ExitCode::FAILURE),
        outcome => outcome,
    }
}

async fn dispatch(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Start(args) => start::run(args).await,
        Command::Overwatch(args) => overwatch::run(args).await,
        Command::Status(args) => status::run(args).await,
        Command::Stop(args) => stop::run(args).await,
        Command::SyncCode(args) => sync_code::run(args).await,
        Command::Roll(args) => roll::run(args).await,
        Command::Job(args) => job::run(args).await,
        Command::Export(args) => export::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Engine(args) => engine::run(args).await,
        Command::Supervise(args) => supervise::run(&args),
    }
}

/// Prints an error and its causes on stderr, one sentence.
pub fn print_error(error: &anyhow::Error) {
    let mut sentence = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        // Causes that an outer message already contains would be said twice.
        if !sentence.contains(&cause) {
            if !sentence.is_empty() {
                sentence.push_str(": ");
            }
            sentence.push_str(&cause);
        }
    }
    note!("error: {sentence}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
