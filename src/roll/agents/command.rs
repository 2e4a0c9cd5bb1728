//! The agent that is any program, in any language, started for each episode.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::launch::Launch;
use super::{Access, AgentError, Endpoint, Rollout, answer};
use crate::config::small_file::{DOCUMENT_BYTES, read_text};
use crate::roll::process;
use crate::roll::tasks::Task;

/// `roll.agent` of type `command`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
pub struct Command {
    /// The program; its templates see the task, `base_url`, `anthropic_base_url`, `api_key`, `model` and
    /// `episode_uuid`, and with `roll.swarms` the same of each model, such as `models.planner.base_url`.
    #[serde(flatten)]
    launch: Launch,
    /// Maximum seconds of an episode, after which its processes are killed.
    #[serde(default = "default_timeout")]
    #[schemars(range(min = 0.001, max = 31_536_000.0))]
    timeout: f64,
}

fn default_timeout() -> f64 {
    600.0
}

/// What the templates see.
#[derive(Serialize)]
struct Context<'a> {
    #[serde(flatten)]
    task: &'a Task,
    #[serde(flatten)]
    endpoint: Endpoint<'a>,
    models: &'a IndexMap<&'a str, Endpoint<'a>>,
    episode_uuid: &'a str,
}

impl Command {
    /// Finds the program that a task would run. `models` are the names of several models.
    ///
    /// # Errors
    /// Fails with a message if a template does not fit the task, or there is no such program or directory.
    pub(super) fn check(&self, task: &Task, models: &[&str]) -> Result<PathBuf, String> {
        let models = models.iter().map(|name| (*name, Endpoint::default())).collect();
        let context = Context {
            task,
            endpoint: Endpoint::default(),
            models: &models,
            episode_uuid: "",
        };
        self.launch.check("roll.agent", &context)
    }

    pub(super) async fn run(&self, task: &Task, access: &Access) -> Result<Rollout, AgentError> {
        let files = tempfile::Builder::new().prefix("ajet-episode-").tempdir()?;
        let (task_file, output_file) = (files.path().join("task.json"), files.path().join("output.json"));
        let directory = files.path().join("work");
        let text = serde_json::to_vec(task).map_err(std::io::Error::from)?;
        std::fs::write(&task_file, &text)?;
        std::fs::create_dir(&directory)?;
        let models = access.endpoints();
        let context = Context {
            task,
            endpoint: Endpoint::of(access),
            models: &models,
            episode_uuid: &access.episode_uuid,
        };
        let mut program = self
            .launch
            .program(&context, &directory, Duration::from_secs_f64(self.timeout))?;
        // What the job says of its environment wins.
        program.env = [environment(task, access, &task_file, &output_file), program.env].concat();
        program.stdin = text;
        let finished = process::run(program).await?;
        let rollout = match read_text(&output_file, DOCUMENT_BYTES) {
            Ok(text) => {
                let wrong = |reason| AgentError::Answer(format!("no JSON object in AJET_OUTPUT_FILE ({reason})"));
                answer::in_object(serde_json::from_str(&text).map_err(wrong)?)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => answer::in_text(&finished.stdout),
            Err(error) => Err(AgentError::Answer(format!(
                "an AJET_OUTPUT_FILE that cannot be read ({error})"
            ))),
        };
        Ok(Rollout {
            stderr: finished.stderr,
            ..rollout?
        })
    }
}

fn environment(task: &Task, access: &Access, task_file: &Path, output_file: &Path) -> Vec<(String, String)> {
    let endpoint = Endpoint::of(access);
    let mut variables = [
        ("OPENAI_BASE_URL", endpoint.base_url.to_string()),
        ("OPENAI_API_KEY", endpoint.api_key.to_string()),
        ("ANTHROPIC_BASE_URL", endpoint.anthropic_base_url.to_string()),
        ("ANTHROPIC_API_KEY", endpoint.api_key.to_string()),
        ("AJET_EPISODE_UUID", access.episode_uuid.clone()),
        ("AJET_TASK_ID", task.task_id.clone()),
        ("AJET_TASK_SEED", task.seed().to_string()),
        ("AJET_TASK_FILE", task_file.display().to_string()),
        ("AJET_OUTPUT_FILE", output_file.display().to_string()),
    ]
    .map(|(name, value)| (name.to_string(), value))
    .to_vec();
    for (name, endpoint) in access.endpoints() {
        let of_model = [
            ("BASE_URL", endpoint.base_url),
            ("ANTHROPIC_BASE_URL", endpoint.anthropic_base_url),
            ("API_KEY", endpoint.api_key),
            ("MODEL", endpoint.model),
        ];
        let prefix = name.to_uppercase();
        variables.extend(of_model.map(|(name, value)| (format!("{prefix}_{name}"), value.to_string())));
    }
    variables
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::ModelApi;
    use crate::roll::job::test_section;

    fn command(yaml: &str) -> Command {
        test_section("roll.agent", yaml)
    }

    /// A command of a shell's script.
    fn shell(script: &str, more: &str) -> Command {
        command(&format!(
            "{{argv: [sh, -c, {script:?}, '{{{{ main_query }}}}'] {more}}}"
        ))
    }

    async fn run(agent: &Command) -> Result<Rollout, AgentError> {
        let task = Task {
            task_id: "t".into(),
            main_query: "hi".into(),
            ..Task::default()
        };
        let access = Access {
            model: ModelApi::new("http://localhost:1/v1", "sk-ajet-1").unwrap(),
            model_name: "m".into(),
            episode_uuid: "e".into(),
            is_recorded: false,
            max_completion_tokens: None,
            models: indexmap::IndexMap::new(),
        };
        agent.run(&task, &access).await
    }

    #[tokio::test]
    async fn a_program_sees_task_and_model_and_its_answer_comes_back() {
        let script = "read -r line; test \"$line\" = \"$(cat $AJET_TASK_FILE)\" || exit 1; \
            echo \"{\\\"reward\\\": 1, \\\"output\\\": \\\"$0 $OPENAI_BASE_URL $ANTHROPIC_BASE_URL $OPENAI_API_KEY $AJET_TASK_ID\\\"}\"; \
            echo note >&2";
        let rollout = run(&shell(script, "")).await.unwrap();
        assert_eq!(
            rollout.output,
            "hi http://localhost:1/v1 http://localhost:1 sk-ajet-1 t"
        );
        assert_eq!((rollout.reward, rollout.stderr.as_str()), (Some(1.0), "note\n"));
    }

    #[tokio::test]
    async fn an_episode_has_a_directory_and_an_environment_of_its_own() {
        let script = "pwd; ls; echo $GREETING $OPENAI_API_KEY $CARGO_MANIFEST_DIR $HOME";
        let own = ", env: {GREETING: '{{ episode_uuid }}', OPENAI_API_KEY: mine, HOME: .}";
        let output = run(&shell(script, own)).await.unwrap().output;
        let (directory, variables) = output.split_once('\n').unwrap();
        assert_eq!(variables, "e mine .");
        assert!(
            directory.contains("ajet-episode-") && !Path::new(directory).exists(),
            "{directory}"
        );
        let passed = run(&shell(script, ", cwd: /, env_pass: [CARGO_MANIFEST_*], env: {HOME: .}"))
            .await
            .unwrap()
            .output;
        let root = env!("CARGO_MANIFEST_DIR");
        assert!(
            passed.starts_with("/\n") && passed.ends_with(&format!("sk-ajet-1 {root} .")),
            "{passed}"
        );
    }

    #[tokio::test]
    async fn the_output_file_wins_over_stdout() {
        let answer = |text: &str| format!("echo '{text}' > $AJET_OUTPUT_FILE; echo '{{\"reward\": 1}}'");
        let rollout = run(&shell(&answer("{\"reward\": 2}"), "")).await.unwrap();
        assert_eq!(rollout.reward, Some(2.0));
        let broken = run(&shell(&answer("2"), "")).await.unwrap_err();
        assert!(
            broken.to_string().contains("no JSON object in AJET_OUTPUT_FILE"),
            "{broken}"
        );
    }

    #[tokio::test]
    async fn every_failure_has_a_reason_of_its_own() {
        for (script, more, reason) in [
            ("exit 3", "", "agent_failed"),
            ("kill -9 $$", "", "agent_killed"),
            ("sleep 600", ", timeout: 0.2", "agent_timeout"),
            ("yes", ", max_output_mb: 1", "agent_output"),
            (
                "head -c 200m /dev/zero | tail -c 150m | sleep 600",
                ", memory_mb: 50",
                "agent_memory",
            ),
            ("echo '{\"reward\": \"good\"}'", "", "bad_reward"),
            ("echo '{\"reward\": NaN}'", "", "bad_answer"),
        ] {
            let error = run(&shell(script, more)).await.unwrap_err();
            assert_eq!(
                (error.reason(), error.is_permanent()),
                (reason, false),
                "{script}: {error}"
            );
        }
    }
}
