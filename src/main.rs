//! Parses the command line, sets up logging, dispatches, turns the outcome into an exit code; nothing else.

use std::process::ExitCode;

use ajet_swarm::cli::{self, Cli};
use clap::Parser;

fn main() -> ExitCode {
    let cli = Cli::parse();
    cli::log::init(cli.verbose);
    match cli::run(cli.command) {
        Ok(code) => code,
        Err(error) => {
            cli::print_error(&error);
            ExitCode::FAILURE
        }
    }
}
