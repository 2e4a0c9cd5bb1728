//! Logging: to stderr, quiet unless asked, never coloured where `NO_COLOR` is set or stderr is not a terminal.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Sets up logging for the process. `RUST_LOG` wins over `verbose` (0: warnings, 1: information, 2: everything of ours).
pub fn init(verbose: u8) {
    let default = match verbose {
        0 => "warn,ajet_swarm=info",
        1 => "info,ajet_swarm=debug",
        _ => "debug,ajet_swarm=trace",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let colour = std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty()) && std::io::stderr().is_terminal();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(colour)
        .with_target(false)
        .init();
}
