//! `ajet-swarm completions` and `ajet-swarm man`: files for shells and `man`, generated from the command line.

use std::process::ExitCode;

use anyhow::anyhow;
use clap::CommandFactory;
use clap_complete::Shell;

use super::Cli;
use crate::terminal;

/// Print completions for a shell.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ajet-swarm completions bash > ~/.local/share/bash-completion/completions/ajet-swarm
  ajet-swarm completions zsh > ~/.zfunc/_ajet-swarm
  ajet-swarm completions fish > ~/.config/fish/completions/ajet-swarm.fish")]
pub struct CompletionsArgs {
    /// Shell.
    #[arg(value_enum)]
    shell: Shell,
}

/// Print a manual page: of the program, or of one of its commands.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ajet-swarm man | man -l -
  ajet-swarm man roll > ajet-swarm-roll.1")]
pub struct ManArgs {
    /// Command, with its subcommand where it has one. Default: the program.
    #[arg(value_name = "COMMAND")]
    command: Vec<String>,
}

/// Prints completions.
pub fn completions(args: &CompletionsArgs) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "ajet-swarm", &mut script);
    terminal::print(&String::from_utf8_lossy(&script));
    ExitCode::SUCCESS
}

/// Prints a manual page in roff.
///
/// # Errors
/// Fails if there is no such command.
pub fn man(args: &ManArgs) -> anyhow::Result<ExitCode> {
    terminal::print(&String::from_utf8_lossy(&page(&args.command)?));
    Ok(ExitCode::SUCCESS)
}

fn page(names: &[String]) -> anyhow::Result<Vec<u8>> {
    let mut command = Cli::command();
    command.build();
    for name in names {
        let found = command.find_subcommand(name).cloned();
        command = found.ok_or_else(|| {
            let parent = command.get_bin_name().unwrap_or_default();
            anyhow!("no such command: {parent} {name}\nhint: `{parent} --help` lists the commands")
        })?;
    }
    let mut roff = Vec::new();
    clap_mangen::Man::new(command).render(&mut roff)?;
    Ok(roff)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    fn pages_of(names: &[&str]) -> anyhow::Result<String> {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        Ok(String::from_utf8(page(&names)?)?)
    }

    #[test]
    fn every_command_has_a_page() {
        assert!(pages_of(&[]).unwrap().contains(".TH ajet-swarm 1"));
        for (names, title) in [
            (vec!["roll"], "ajet-swarm-roll"),
            (vec!["top"], "ajet-swarm-overwatch"),
            (vec!["job", "check"], "ajet-swarm-job-check"),
        ] {
            let page = pages_of(&names).unwrap();
            assert!(page.contains(&format!(".TH {title} 1")), "{page}");
        }
        let unknown = pages_of(&["job", "chekc"]).unwrap_err().to_string();
        assert!(unknown.contains("no such command: ajet-swarm job chekc"), "{unknown}");
    }

    #[test]
    fn every_shell_completes_the_commands() {
        for shell in Shell::value_variants() {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "ajet-swarm", &mut script);
            let script = String::from_utf8(script).unwrap();
            assert!(script.contains("overwatch"), "{shell}");
        }
    }
}
