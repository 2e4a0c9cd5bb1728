//! The program of an agent or a tool, and what it may use.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::roll::process::Program;
use crate::roll::template::{Template, TemplateError};

/// A program and what it may use.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
pub struct Launch {
    /// The program and its arguments, templates. A relative path of a file, such as `agent.py`, is found from `roll`'s
    /// directory, wherever the program runs.
    #[schemars(length(min = 1))]
    argv: Vec<Template>,
    /// Working directory. Default: a fresh one, removed at the end.
    #[serde(default)]
    cwd: Option<PathBuf>,
    /// Variables of its environment, templates like `argv`.
    #[serde(default)]
    env: IndexMap<String, Template>,
    /// Names of variables of `roll`'s environment that it sees, beside `PATH`, `HOME` and the like; `AWS_*` stands for
    /// all that begin so.
    #[serde(default)]
    env_pass: Vec<String>,
    /// Maximum MiB of memory that its processes hold together; beyond it they are killed. Linux only.
    #[serde(default)]
    #[schemars(range(min = 1, max = 1_000_000_000))]
    memory_mb: Option<u64>,
    /// Maximum MiB of standard output; beyond it its processes are killed.
    #[serde(default = "default_output")]
    #[schemars(range(min = 1, max = 1024))]
    pub(super) max_output_mb: u64,
    /// Program and arguments that run when it has ended, however that came about; such as
    /// `[docker, rm, --force, "{{ episode_uuid }}"]`.
    #[serde(default)]
    stop_argv: Vec<Template>,
}

fn default_output() -> u64 {
    8
}

impl Launch {
    /// The program as it runs in `directory`, unless the job names another one. Standard input is empty.
    ///
    /// # Errors
    /// Fails if a template names what `context` does not have.
    pub fn program(
        &self,
        context: &impl Serialize,
        directory: &Path,
        timeout: Duration,
    ) -> Result<Program, TemplateError> {
        let render = |templates: &[Template]| -> Result<Vec<String>, TemplateError> {
            let rendered = templates.iter().enumerate().map(|(place, template)| {
                let argument = template.render(context)?;
                Ok(match self.cwd.is_none() && template.render(&Nothing {}).is_ok() {
                    true => from_here(argument, place == 0),
                    false => argument,
                })
            });
            rendered.collect()
        };
        let variables = self.env.iter();
        Ok(Program {
            argv: render(&self.argv)?,
            cwd: Some(self.cwd.clone().unwrap_or_else(|| directory.to_path_buf())),
            env_pass: self.env_pass.clone(),
            env: variables
                .map(|(name, value)| Ok((name.clone(), value.render(context)?)))
                .collect::<Result<_, TemplateError>>()?,
            timeout,
            memory_mb: self.memory_mb,
            max_output_mb: self.max_output_mb,
            stop: render(&self.stop_argv)?,
            ..Program::default()
        })
    }

    /// Finds the program that would run. `key` is the dotted path of this section.
    ///
    /// # Errors
    /// Fails with a message if a template does not fit, or there is no such program or directory.
    pub fn check(&self, key: &str, context: &impl Serialize) -> Result<PathBuf, String> {
        let here = Path::new(".");
        let program = self
            .program(context, here, Duration::MAX)
            .map_err(|error| error.to_string())?;
        if let Some(cwd) = self.cwd.as_ref().filter(|cwd| !cwd.is_dir()) {
            return Err(format!("{key}.cwd: {} is not a directory", cwd.display()));
        }
        let name = program.argv.first().map(String::as_str).unwrap_or_default();
        let own_path = program.env.iter().find(|(name, _)| name == "PATH");
        let path = own_path.map_or_else(|| std::env::var_os("PATH").unwrap_or_default(), |(_, path)| path.into());
        let candidates: Vec<PathBuf> = match name.contains('/') {
            true => vec![self.cwd.as_deref().unwrap_or(here).join(name)],
            false => std::env::split_paths(&path)
                .map(|directory| directory.join(name))
                .collect(),
        };
        candidates.into_iter().find(|candidate| is_program(candidate)).ok_or_else(|| {
            format!("{key}.argv: there is no program {name:?} that may be run\nhint: give its whole path, or add it to PATH")
        })
    }
}

/// A context without names: what renders over it is the same for every task.
#[derive(Serialize)]
struct Nothing {}

/// The absolute path of an argument that is the relative path of a file. A program's name without `/` is looked for in
/// `PATH` instead, and another argument has to look like a file's name.
fn from_here(argument: String, is_program: bool) -> String {
    let path = Path::new(&argument);
    let looks_like_a_file = argument.contains('/') || !is_program && path.extension().is_some();
    match path.is_relative() && looks_like_a_file && path.is_file() {
        true => std::path::absolute(path).map_or(argument.clone(), |path| path.display().to_string()),
        false => argument,
    }
}

fn is_program(path: &Path) -> bool {
    let metadata = std::fs::metadata(path);
    metadata.is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::roll::job::test_section;

    fn launch(yaml: &str) -> Launch {
        test_section("roll.agent", yaml)
    }

    #[test]
    fn a_programs_files_are_found_from_here_though_it_runs_elsewhere() {
        let context = json!({ "main_query": "Cargo.toml" });
        let argv = |yaml: &str| {
            let program = launch(yaml)
                .program(&context, Path::new("/tmp/x"), Duration::MAX)
                .unwrap();
            (program.argv, program.cwd.unwrap())
        };
        let root = env!("CARGO_MANIFEST_DIR");
        let (fresh, cwd) =
            argv("argv: [src/main.rs, Cargo.toml, src/main.rs, src, LICENSE, ./no.py, '{{ main_query }}']");
        assert_eq!(cwd, Path::new("/tmp/x"));
        assert_eq!(fresh[0], format!("{root}/src/main.rs"));
        assert_eq!(fresh[1], format!("{root}/Cargo.toml"));
        assert_eq!(
            fresh[2..],
            [
                &format!("{root}/src/main.rs"),
                "src",
                "LICENSE",
                "./no.py",
                "Cargo.toml"
            ]
        );
        let (fixed, cwd) = argv("{argv: [sh, Cargo.toml], cwd: src}");
        assert_eq!(
            (fixed, cwd),
            (vec!["sh".to_string(), "Cargo.toml".to_string()], PathBuf::from("src"))
        );
    }

    #[test]
    fn a_program_that_is_not_there_is_named_before_the_run() {
        let check = |yaml: &str| launch(yaml).check("roll.agent", &json!({}));
        assert!(check("argv: [sh]").is_ok());
        for (yaml, message) in [
            (
                "argv: [no-such-program-here]",
                "roll.agent.argv: there is no program \"no-such-program-here\"",
            ),
            ("argv: [./Cargo.toml]", "roll.agent.argv: there is no program"),
            (
                "{argv: [sh], cwd: /no/such/dir}",
                "roll.agent.cwd: /no/such/dir is not a directory",
            ),
            (
                "{argv: [sh], env: {PATH: /nowhere}}",
                "roll.agent.argv: there is no program \"sh\"",
            ),
            ("argv: ['{{ nothing }}']", "roll.agent.argv"),
        ] {
            let error = check(yaml).unwrap_err();
            assert!(error.contains(message), "{error}");
        }
    }
}
