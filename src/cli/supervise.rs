//! `ajet-swarm supervise`: the parent of a job's program. Hidden, since `roll` runs it.

use std::ffi::OsString;
use std::process::ExitCode;

use crate::roll::supervise;

/// Run a program that ends when its parent `roll` ends.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Number of bytes of standard input to pass to the program.
    #[arg(long, default_value_t = 0)]
    input: u64,
    /// Word of the command to run after the program has ended.
    #[arg(long, allow_hyphen_values = true)]
    stop: Vec<OsString>,
    /// Program and arguments.
    #[arg(last = true, required = true)]
    argv: Vec<OsString>,
}

/// Runs the program until it ends.
///
/// # Errors
/// Fails if the program cannot be supervised.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    Ok(ExitCode::from(supervise(&args.argv, args.input, &args.stop)?))
}
