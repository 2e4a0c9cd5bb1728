//! The agent that is any program, in any language.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Access, AgentError, Rollout, answer};
use crate::client::ModelApi;
use crate::config::small_file::{DOCUMENT_BYTES, read_text};
use crate::roll::process::{self, Program};
use crate::roll::tasks::Task;
use crate::roll::template::Template;

/// `roll.agent` of type `command`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Command {
    /// The program and its arguments, templates over the task, `base_url`, `api_key`, `model` and `episode_uuid`.
    #[schemars(length(min = 1))]
    argv: Vec<Template>,
    /// Working directory. Default: that of `roll`.
    #[serde(default)]
    cwd: Option<PathBuf>,
    /// Maximum seconds of an episode, after which its processes are killed.
    #[serde(default = "default_timeout")]
    #[schemars(range(min = 0.001, max = 31_536_000.0))]
    timeout: f64,
}

fn default_timeout() -> f64 {
    600.0
}

/// What the templates of `argv` see.
#[derive(Serialize)]
struct Context<'a> {
    #[serde(flatten)]
    task: &'a Task,
    base_url: &'a str,
    api_key: &'a str,
    model: &'a str,
    episode_uuid: &'a str,
}

impl Command {
    fn argv(&self, task: &Task, access: &Access) -> Result<Vec<String>, AgentError> {
        let context = Context {
            task,
            base_url: access.model.base_url(),
            api_key: access.model.api_key(),
            model: &access.model_name,
            episode_uuid: &access.episode_uuid,
        };
        Ok(self
            .argv
            .iter()
            .map(|argument| argument.render(&context))
            .collect::<Result<_, _>>()?)
    }

    /// Finds the program that a task would run.
    ///
    /// # Errors
    /// A sentence: nowhere on the path, or not a file that may be run.
    pub fn check(&self, task: &Task) -> Result<PathBuf, String> {
        let nowhere = Access {
            model: ModelApi::new("http://localhost", "").map_err(|error| error.to_string())?,
            model_name: String::new(),
            episode_uuid: String::new(),
        };
        let argv = self.argv(task, &nowhere).map_err(|error| error.to_string())?;
        let name = argv.first().map(String::as_str).unwrap_or_default();
        if let Some(cwd) = &self.cwd
            && !cwd.is_dir()
        {
            return Err(format!("roll.agent.cwd: {} is not a directory", cwd.display()));
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        let candidates: Vec<PathBuf> = match name.contains('/') {
            true => vec![self.cwd.as_deref().unwrap_or(Path::new("")).join(name)],
            false => std::env::split_paths(&path)
                .map(|directory| directory.join(name))
                .collect(),
        };
        candidates
            .into_iter()
            .find(|candidate| is_program(candidate))
            .ok_or_else(|| format!("roll.agent.argv: the program {name:?} is not there, or may not be run"))
    }

    pub(super) async fn run(&self, task: &Task, access: &Access) -> Result<Rollout, AgentError> {
        let files = tempfile::Builder::new().prefix("ajet-episode-").tempdir()?;
        let (task_file, output_file) = (files.path().join("task.json"), files.path().join("output.json"));
        let text = serde_json::to_vec(task).map_err(std::io::Error::from)?;
        std::fs::write(&task_file, &text)?;
        let program = Program {
            argv: self.argv(task, access)?,
            cwd: self.cwd.clone(),
            env: environment(task, access, &task_file, &output_file),
            stdin: text,
            timeout: Duration::from_secs_f64(self.timeout),
            ..Program::default()
        };
        let finished = process::run(program).await?;
        if !finished.stderr.is_empty() {
            tracing::debug!(
                "stderr of the agent, task {}: {}",
                task.task_id,
                finished.stderr.trim_end()
            );
        }
        match read_text(&output_file, DOCUMENT_BYTES) {
            Ok(text) => match serde_json::from_str(&text) {
                Ok(fields) => answer::in_object(fields),
                Err(reason) => Err(AgentError::Answer(format!(
                    "no JSON object in AJET_OUTPUT_FILE ({reason})"
                ))),
            },
            Err(_) => answer::in_text(&finished.stdout),
        }
    }
}

fn is_program(path: &Path) -> bool {
    let metadata = std::fs::metadata(path);
    metadata.is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

fn environment(task: &Task, access: &Access, task_file: &Path, output_file: &Path) -> Vec<(String, String)> {
    let (base_url, api_key) = (access.model.base_url(), access.model.api_key());
    // Anthropic's SDKs append `/v1/messages` themselves.
    let anthropic_base_url = base_url.trim_end_matches("/v1");
    [
        ("OPENAI_BASE_URL", base_url.to_string()),
        ("OPENAI_API_KEY", api_key.to_string()),
        ("ANTHROPIC_BASE_URL", anthropic_base_url.to_string()),
        ("ANTHROPIC_API_KEY", api_key.to_string()),
        ("AJET_EPISODE_UUID", access.episode_uuid.clone()),
        ("AJET_TASK_ID", task.task_id.clone()),
        ("AJET_TASK_SEED", task.seed().to_string()),
        ("AJET_TASK_FILE", task_file.display().to_string()),
        ("AJET_OUTPUT_FILE", output_file.display().to_string()),
    ]
    .map(|(name, value)| (name.to_string(), value))
    .to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roll::job::test_section;

    fn command(yaml: &str) -> Command {
        test_section("roll.agent", yaml)
    }

    fn access() -> Access {
        Access {
            model: ModelApi::new("http://localhost:1/v1", "sk-ajet-1").unwrap(),
            model_name: "m".into(),
            episode_uuid: "e".into(),
        }
    }

    #[tokio::test]
    async fn a_program_sees_task_and_model_and_its_answer_comes_back() {
        let script = "read -r line; test \"$line\" = \"$(cat $AJET_TASK_FILE)\" || exit 1; \
            echo \"{\\\"reward\\\": 1, \\\"output\\\": \\\"$0 $OPENAI_BASE_URL $ANTHROPIC_BASE_URL $OPENAI_API_KEY $AJET_TASK_ID\\\"}\"";
        let agent = command(&format!("argv: [sh, -c, {script:?}, '{{{{ main_query }}}}']"));
        let task = Task {
            task_id: "t".into(),
            main_query: "hi".into(),
            ..Task::default()
        };
        let rollout = agent.run(&task, &access()).await.unwrap();
        assert_eq!(
            rollout.output,
            "hi http://localhost:1/v1 http://localhost:1 sk-ajet-1 t"
        );
        assert_eq!(rollout.reward, Some(1.0));
    }

    #[tokio::test]
    async fn the_output_file_wins_over_stdout() {
        let agent =
            command("argv: [sh, -c, 'echo \"{\\\"reward\\\": 2}\" > $AJET_OUTPUT_FILE; echo \"{\\\"reward\\\": 1}\"']");
        let rollout = agent.run(&Task::default(), &access()).await.unwrap();
        assert_eq!(rollout.reward, Some(2.0));
    }

    #[test]
    fn a_program_that_is_not_there_is_told_before_the_run() {
        assert!(command("argv: [sh]").check(&Task::default()).is_ok());
        let missing = command("argv: [no-such-program-here]").check(&Task::default());
        assert!(missing.unwrap_err().contains("\"no-such-program-here\" is not there"));
        let nowhere = command("{argv: [sh], cwd: /no/such/dir}").check(&Task::default());
        assert!(nowhere.unwrap_err().contains("/no/such/dir is not a directory"));
    }
}
