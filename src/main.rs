//! Entry point: parses the command line, sets up logging, runs the command, and returns its exit code.

use std::process::ExitCode;

use ajet_swarm::cli::{self, Cli};
use clap::Parser;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let format = cli.command.log_format();
    cli::log::init(cli.verbose, cli.command.is_quiet(), format);
    match cli::run(cli.command) {
        Ok(code) => code,
        Err(error) => {
            cli::print_error(&error, format);
            ExitCode::FAILURE
        }
    }
}
