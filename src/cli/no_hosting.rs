//! The commands that hold a model on a machine, in a build of the clients alone: they say that they are not in it.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::bail;
use clap::Subcommand;

use super::log;
use crate::protocol::openai::ChatMessage;

/// What `--version` prints.
pub const VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (clients alone: no start, serve, chat, export, plan, bench)"
);

/// What the program is.
pub const ABOUT: &str =
    "Reinforcement learning of language-model agents: clients of a swarm server, which samples and trains";

/// First commands to run.
pub const EXAMPLES: &str = "\
Examples:
  ajet-swarm roll job.yaml --swarm-url http://gpu-box:10086    train with a server
  ajet-swarm overwatch --swarm-url http://gpu-box:10086        watch it";

/// The first example of `roll`.
pub const ROLL_EXAMPLE: &str = "ajet-swarm roll job.yaml --swarm-url http://gpu-box:10086";

/// What can be done with a fetched checkpoint.
pub const FETCHED: &str = "Prints the path of what was fetched.";

/// Commands that need a model.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Not in this build.
    #[command(hide = true)]
    Start(Args),
    /// Not in this build.
    #[command(hide = true)]
    Serve(Args),
    /// Not in this build.
    #[command(hide = true)]
    Chat(Args),
    /// Not in this build.
    #[command(hide = true)]
    Export(Args),
    /// Not in this build.
    #[command(hide = true)]
    Plan(Args),
    /// Not in this build.
    #[command(hide = true)]
    Bench(Args),
    /// Not in this build.
    #[command(hide = true)]
    Engine(Args),
}

/// Whatever the command has in a complete build.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    arguments: Vec<OsString>,
}

impl Command {
    /// Returns whether the command logs only warnings by default.
    pub fn is_quiet(&self) -> bool {
        false
    }

    /// Format of the command's log.
    pub fn log_format(&self) -> log::Format {
        log::Format::Text
    }

    /// Says that the command is not in this build.
    ///
    /// # Errors
    /// Always.
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        let name = match self {
            Self::Start(_) => "start",
            Self::Serve(_) => "serve",
            Self::Chat(_) => "chat",
            Self::Export(_) => "export",
            Self::Plan(_) => "plan",
            Self::Bench(_) => "bench",
            Self::Engine(_) => "engine",
        };
        bail!(
            "this ajet-swarm was built for clients alone and has no `{name}`\nhint: build it without \
             `--no-default-features`, or use a server on another machine by --swarm-url"
        )
    }
}

/// Counts the tokens of prompts in a complete build.
pub enum PromptCounter {}

impl PromptCounter {
    /// Says why prompts are not counted.
    ///
    /// # Errors
    /// None.
    pub fn load(_model: &str) -> anyhow::Result<Result<Self, String>> {
        Ok(Err(
            "this ajet-swarm was built for clients alone and has no tokenizers; an engine that runs counts them".into(),
        ))
    }

    /// Not called.
    ///
    /// # Errors
    /// None.
    pub fn count(&self, _messages: &[ChatMessage]) -> Result<u64, String> {
        match *self {}
    }
}
