//! `ajet-swarm supervise`: the parent of a job's program. Hidden: `roll` runs it.

use std::ffi::OsString;
use std::process::ExitCode;

use crate::roll::supervise;

/// What `roll` runs a program with, so that the program ends with `roll`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// How many bytes of standard input are the program's.
    #[arg(long, default_value_t = 0)]
    input: u64,
    /// A word of the command that is run when the program has ended.
    #[arg(long, allow_hyphen_values = true)]
    stop: Vec<OsString>,
    /// The program and its arguments.
    #[arg(last = true, required = true)]
    argv: Vec<OsString>,
}

/// Runs the program to its end.
///
/// # Errors
/// It cannot be watched.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    Ok(ExitCode::from(supervise(&args.argv, args.input, &args.stop)?))
}
