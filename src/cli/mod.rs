//! The command line: one file per command, with its `Args` and a `run` function.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::{note, terminal};

#[cfg(feature = "server")]
pub mod access;
#[cfg(feature = "server")]
pub mod bench;
#[cfg(feature = "server")]
pub mod chat;
pub mod compare;
#[cfg(feature = "server")]
pub mod engine;
#[cfg(feature = "server")]
pub mod export;
pub mod fetch;
pub mod help_files;
#[cfg(feature = "server")]
pub mod hosting;
#[cfg(not(feature = "server"))]
#[path = "no_hosting.rs"]
pub mod hosting;
pub mod job;
pub mod job_init;
pub mod log;
#[cfg(feature = "server")]
pub mod model_server;
pub mod overwatch;
#[cfg(feature = "server")]
pub mod plan;
#[cfg(feature = "server")]
mod prompt_tokens;
pub mod research;
mod roll;
#[cfg(feature = "server")]
pub mod serve;
pub mod server_url;
#[cfg(feature = "server")]
pub mod start;
pub mod status;
pub mod stop;
pub mod supervise;
pub mod sync_code;
pub mod wait_goal;

/// The command line.
#[derive(Debug, Parser)]
#[command(version = hosting::VERSION, about = hosting::ABOUT, max_term_width = 100, after_help = hosting::EXAMPLES)]
pub struct Cli {
    /// Log more to stderr: once for information, twice for everything.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Command.
    #[command(subcommand)]
    pub command: Command,
}

/// Commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Watch a swarm server: state, batch, stop rule, episodes, rewards, clients and log.
    ///
    /// Reconnects when the server goes away. If standard output is not a terminal, one snapshot is printed as plain
    /// text, as with --once.
    #[command(visible_alias = "top", display_order = 1)]
    Overwatch(overwatch::Args),
    /// Show the engine's state and the progress of the current batch.
    Status(status::Args),
    /// Stop a server's engine, which saves its state first; the server keeps running.
    Stop(stop::Args),
    /// Send changed training code to a server, which builds it and runs it as its engine.
    SyncCode(sync_code::Args),
    /// Run a job: its tasks run through its agent as episodes, whose rewards train the model.
    Roll(roll::Args),
    /// Run the variants of a plan with several seeds, and say which is better by more than noise.
    Research(research::Args),
    /// Create, check or show a job file.
    Job(job::Args),
    /// Show the metrics of runs beside each other.
    Compare(compare::Args),
    /// Fetch a checkpoint, metrics or transcripts from a server to this machine.
    Fetch(fetch::Args),
    /// Commands that need a model on this machine.
    #[command(flatten)]
    Hosting(hosting::Command),
    /// Print completions for a shell.
    Completions(help_files::CompletionsArgs),
    /// Print a manual page.
    Man(help_files::ManArgs),
    /// Run a program under supervision, as `roll` does.
    #[command(hide = true)]
    Supervise(supervise::Args),
}

impl Command {
    /// Returns whether the command logs only warnings by default.
    pub fn is_quiet(&self) -> bool {
        matches!(self, Self::Hosting(command) if command.is_quiet())
    }

    /// Format of the command's log.
    pub fn log_format(&self) -> log::Format {
        match self {
            Self::Hosting(command) => command.log_format(),
            _ => log::Format::Sentences,
        }
    }
}

/// Runs a command.
///
/// # Errors
///
/// Fails with a message for the user.
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
        Command::Hosting(command) => command.run().await,
        Command::Overwatch(args) => overwatch::run(args).await,
        Command::Status(args) => status::run(args).await,
        Command::Stop(args) => stop::run(args).await,
        Command::SyncCode(args) => sync_code::run(args).await,
        Command::Roll(args) => roll::run(args).await,
        Command::Research(args) => research::run(args).await,
        Command::Job(args) => job::run(args).await,
        Command::Compare(args) => compare::run(args).await,
        Command::Fetch(args) => fetch::run(args).await,
        Command::Completions(args) => Ok(help_files::completions(&args)),
        Command::Man(args) => help_files::man(&args),
        Command::Supervise(args) => supervise::run(&args),
    }
}

/// Prints an error and its causes to stderr as one sentence, or as a line of the log if that is JSON.
pub fn print_error(error: &anyhow::Error, format: log::Format) {
    let mut sentence = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        // Skip causes that an outer message already contains.
        if !sentence.contains(&cause) {
            if !sentence.is_empty() {
                sentence.push_str(": ");
            }
            sentence.push_str(&cause);
        }
    }
    match format {
        log::Format::Json if tracing::enabled!(tracing::Level::ERROR) => tracing::error!("{sentence}"),
        _ => note!("error: {sentence}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    fn built() -> clap::Command {
        let mut cli = Cli::command().term_width(100);
        cli.build();
        cli
    }

    #[cfg(feature = "server")]
    #[test]
    fn help() {
        insta::assert_snapshot!(help_of(&mut built()));
    }

    #[cfg(not(feature = "server"))]
    #[test]
    fn help_of_clients() {
        insta::assert_snapshot!(built().render_long_help());
    }

    /// Seen in a build of the clients alone, whose examples began with `start`.
    #[test]
    fn help_names_commands_of_this_build() {
        let mut cli = built();
        let help = help_of(&mut cli);
        let shown = cli.get_subcommands().filter(|command| !command.is_hide_set());
        let commands: Vec<&str> = shown.map(clap::Command::get_name).collect();
        let mut named = 0;
        for rest in ["\n  ajet-swarm ", "`ajet-swarm "]
            .iter()
            .flat_map(|start| help.split(start).skip(1))
        {
            let name = rest.split(['`', ' ', '\n']).next().unwrap();
            assert!(commands.contains(&name), "{name} in {rest:.80}");
            named += 1;
        }
        assert!(named > 20, "{named} examples");
    }

    /// Returns the long help of a command and of all its subcommands, hidden ones included.
    fn help_of(command: &mut clap::Command) -> String {
        let help = command.render_long_help();
        let mut text = format!("$ {command} --help\n{help}\n");
        for subcommand in command
            .get_subcommands_mut()
            .filter(|command| command.get_name() != "help")
        {
            text += &help_of(subcommand);
        }
        text
    }
}
