//! The commands that hold a model on this machine. A build of the clients alone has `no_hosting.rs` in its place.

use std::process::ExitCode;

use clap::Subcommand;

pub use super::prompt_tokens::PromptCounter;
use super::{bench, chat, engine, export, log, plan, serve, start};

/// What `--version` prints.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What the program is.
pub const ABOUT: &str = "Reinforcement learning of language-model agents: one binary that serves, samples and trains";

/// First commands to run.
pub const EXAMPLES: &str = "\
Examples:
  ajet-swarm roll config/jobs/quickstart.yaml    train the built-in model on this machine
  ajet-swarm start                               serve a swarm on port 10086
  ajet-swarm overwatch                           watch it";

/// The first example of `roll`.
pub const ROLL_EXAMPLE: &str =
    "ajet-swarm roll config/jobs/quickstart.yaml        train the built-in model on this machine";

/// What can be done with a fetched checkpoint.
pub const FETCHED: &str =
    "Prints the path of what was fetched; `chat`, `serve` and `export` take the directory of a checkpoint.";

/// Commands that need a model.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start a swarm server.
    #[command(display_order = 0)] // the first that most users need
    Start(start::Args),
    /// Serve a trained model by OpenAI's and Anthropic's APIs, without training.
    Serve(serve::Args),
    /// Talk to a trained model.
    Chat(chat::Args),
    /// Export a checkpoint as a model for Python's transformers and peft.
    Export(export::Args),
    /// Estimate memory and time of a training configuration on given GPUs.
    Plan(plan::Args),
    /// Measure sampling or training on this machine.
    Bench(bench::Args),
    /// Run an engine, as `start` does.
    #[command(hide = true)]
    Engine(engine::Args),
}

impl Command {
    /// Returns whether the command logs only warnings by default: `chat`, in whose conversation a server's log would stand.
    pub fn is_quiet(&self) -> bool {
        matches!(self, Self::Chat(_))
    }

    /// Format of the command's log.
    pub fn log_format(&self) -> log::Format {
        match self {
            Self::Start(args) => args.log.log_format,
            Self::Engine(args) => args.log.log_format,
            Self::Serve(_) => log::Format::Text,
            Self::Chat(_) | Self::Export(_) | Self::Plan(_) | Self::Bench(_) => log::Format::Sentences,
        }
    }

    /// Runs the command.
    ///
    /// # Errors
    /// Fails with a message for the user.
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Start(args) => start::run(args).await,
            Self::Serve(args) => serve::run(args).await,
            Self::Chat(args) => chat::run(args).await,
            Self::Export(args) => export::run(args),
            Self::Plan(args) => plan::run(&args),
            Self::Bench(args) => bench::run(args).await,
            Self::Engine(args) => engine::run(args).await,
        }
    }
}
