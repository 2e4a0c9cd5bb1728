//! Tools of the `chat` agent: programs that the model calls.

use std::path::Path;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::launch::Launch;
use super::{Access, AgentError, argument_check};
use crate::config::Problem;
use crate::protocol::openai::ToolCall;
use crate::roll::process::{self, ProgramError};
use crate::roll::tasks::Task;

/// A program that the model may call.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
pub struct Tool {
    /// What the model calls it.
    pub(super) name: String,
    /// What it does, for the model.
    #[serde(default)]
    description: String,
    /// Its parameters as a JSON Schema. Default: it has none.
    #[serde(default = "no_parameters")]
    parameters: Value,
    /// The program; its `argv` and `env` are templates over the task and `arguments`, which it also reads from standard
    /// input as JSON.
    #[serde(flatten)]
    launch: Launch,
    /// Maximum seconds of a call, after which its processes are killed.
    #[serde(default = "default_timeout")]
    #[schemars(range(min = 0.001, max = 31_536_000.0))]
    timeout: f64,
    /// Maximum characters of its result; the rest is cut off.
    #[serde(default = "default_result")]
    #[schemars(range(min = 1, max = 10_000_000))]
    max_result: usize,
    /// What a call that fails leads to.
    #[serde(default)]
    on_error: OnError,
}

/// What a tool call that fails leads to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnError {
    /// The error is the result, so that the model sees it.
    #[default]
    Tell,
    /// The episode is aborted.
    Abort,
}

fn no_parameters() -> Value {
    json!({ "type": "object", "properties": {} })
}

fn default_timeout() -> f64 {
    60.0
}

fn default_result() -> usize {
    16_384
}

/// Outcome of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ToolResult {
    /// What the model reads.
    pub text: String,
    pub is_error: bool,
}

/// What a tool's templates see.
#[derive(Serialize)]
struct Context<'a> {
    #[serde(flatten)]
    task: &'a Task,
    arguments: &'a Value,
    episode_uuid: &'a str,
}

impl Tool {
    /// The function as a chat request offers it.
    pub fn offer(&self) -> Value {
        json!({
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": self.parameters},
        })
    }

    /// Problems that the schema of jobs cannot express. `key` is the dotted path of this tool.
    pub fn problems(&self, key: &str) -> Vec<Problem> {
        let mut problems = vec![];
        let is_name_char = |letter: char| letter.is_ascii_alphanumeric() || "_-".contains(letter);
        if !(1..=64).contains(&self.name.len()) || !self.name.chars().all(is_name_char) {
            let message = format!("{:?} is not a name of 1 to 64 letters, digits, `_` and `-`", self.name);
            problems.push(Problem::new(format!("{key}.name"), message));
        }
        if self.parameters["type"] != "object" {
            let message = format!("its `type` must be \"object\", not {}", self.parameters["type"]);
            problems.push(Problem::new(format!("{key}.parameters"), message));
        }
        problems
    }

    /// Whether its program can be found, unless that depends on the arguments.
    ///
    /// # Errors
    /// Fails with a message.
    pub fn check(&self, key: &str, task: &Task) -> Result<(), String> {
        let arguments = json!({});
        let context = Context {
            task,
            arguments: &arguments,
            episode_uuid: "",
        };
        match self.launch.program(&context, Path::new("."), Duration::MAX) {
            Ok(_) => self.launch.check(key, &context).map(drop),
            Err(_) => Ok(()),
        }
    }

    /// Runs a call of this tool in `directory`.
    ///
    /// # Errors
    /// Fails if the job is wrong, or the call failed and `on_error` is `abort`.
    async fn call(
        &self,
        call: &ToolCall,
        task: &Task,
        access: &Access,
        directory: &Path,
    ) -> Result<ToolResult, AgentError> {
        let arguments = match arguments(&call.function.arguments) {
            Ok(arguments) => arguments,
            Err(reason) => return Ok(error(reason)),
        };
        if let Some(mismatch) = argument_check::mismatch(&self.parameters, &arguments, "arguments") {
            return Ok(error(mismatch));
        }
        let context = Context {
            task,
            arguments: &arguments,
            episode_uuid: &access.episode_uuid,
        };
        let mut program = self
            .launch
            .program(&context, directory, Duration::from_secs_f64(self.timeout))?;
        let own = [
            ("AJET_EPISODE_UUID", &access.episode_uuid),
            ("AJET_TASK_ID", &task.task_id),
        ];
        let own = own.map(|(name, value)| (name.to_string(), value.clone()));
        program.env = own.into_iter().chain(program.env).collect();
        program.stdin = arguments.to_string().into_bytes();
        self.result(process::run(program).await)
    }

    fn result(&self, finished: Result<process::Finished, ProgramError>) -> Result<ToolResult, AgentError> {
        match finished {
            Ok(finished) => Ok(ToolResult {
                text: cut(finished.stdout.trim_end(), self.max_result),
                is_error: false,
            }),
            // It would fail every time.
            Err(failure @ ProgramError::Start { .. }) => Err(failure.into()),
            Err(failure) if self.on_error == OnError::Abort => Err(AgentError::Tool {
                name: self.name.clone(),
                reason: failure,
            }),
            Err(ProgramError::Exit {
                status, stdout, stderr, ..
            }) => {
                let parts = [format!("error: {status}"), stdout, stderr];
                let parts: Vec<_> = parts
                    .iter()
                    .map(|part| part.trim())
                    .filter(|part| !part.is_empty())
                    .collect();
                Ok(ToolResult {
                    text: cut(&parts.join("\n"), self.max_result),
                    is_error: true,
                })
            }
            Err(failure) => Ok(error(cut(&failure.to_string(), self.max_result))),
        }
    }
}

/// Runs a call of one of `tools` in `directory`.
///
/// # Errors
/// As of [`Tool::call`].
pub(super) async fn run_call(
    tools: &[Tool],
    call: &ToolCall,
    task: &Task,
    access: &Access,
    directory: &Path,
) -> Result<ToolResult, AgentError> {
    match tools.iter().find(|tool| tool.name == call.function.name) {
        Some(tool) => tool.call(call, task, access, directory).await,
        None => {
            let known: Vec<_> = tools.iter().map(|tool| tool.name.as_str()).collect();
            Ok(error(format!(
                "there is no tool {:?}; the tools are {}",
                call.function.name,
                known.join(", ")
            )))
        }
    }
}

/// The arguments of a call, which the model wrote.
fn arguments(text: &str) -> Result<Value, String> {
    match text.trim() {
        "" | "null" => Ok(json!({})),
        text => serde_json::from_str(text).map_err(|reason| format!("the arguments are not JSON: {reason}")),
    }
}

fn error(reason: String) -> ToolResult {
    ToolResult {
        text: format!("error: {reason}"),
        is_error: true,
    }
}

/// A text without what is beyond `most` characters.
fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => text.to_string(),
        Some((end, _)) => format!("{}\n[{} more characters]", &text[..end], text[end..].chars().count()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::ModelApi;
    use crate::protocol::openai::FunctionCall;
    use crate::roll::job::test_section;

    fn tools() -> Vec<Tool> {
        let tool = |yaml: &str| test_section("roll.agent.tools", yaml);
        vec![
            tool(
                "{name: add, argv: [sh, -c, 'cat; echo; echo $0 $AJET_TASK_ID', '{{ arguments.a + 1 }}'], \
                parameters: {type: object, required: [a], properties: {a: {type: integer}}}}",
            ),
            tool("{name: fail, argv: [sh, -c, 'echo two tests failed; echo why >&2; exit 3']}"),
            tool("{name: long, max_result: 5, argv: [sh, -c, 'echo 12345678']}"),
            tool("{name: hang, timeout: 0.2, argv: [sleep, '600']}"),
            tool("{name: strict, on_error: abort, argv: ['false']}"),
            tool("{name: keep, argv: [sh, -c, 'test -f note && cat note; echo hi > note']}"),
            tool("{name: none, argv: [no-such-program-here]}"),
        ]
    }

    async fn run(name: &str, arguments: &str, directory: &Path) -> Result<ToolResult, AgentError> {
        let call = ToolCall {
            function: FunctionCall {
                name: name.into(),
                arguments: arguments.into(),
            },
            ..ToolCall::default()
        };
        let access = Access {
            model: ModelApi::new("http://localhost:1/v1", "").unwrap(),
            model_name: "m".into(),
            episode_uuid: "e".into(),
            is_recorded: false,
            max_completion_tokens: None,
            models: indexmap::IndexMap::new(),
        };
        let task = Task {
            task_id: "t".into(),
            ..Task::default()
        };
        run_call(&tools(), &call, &task, &access, directory).await
    }

    #[tokio::test]
    async fn the_model_sees_a_tools_output_and_its_errors() {
        let directory = tempfile::tempdir().unwrap();
        for (name, arguments, text, is_error) in [
            ("add", r#"{"a": 41}"#, "{\"a\":41}\n42 t", false),
            ("add", "", "error: arguments.a is missing", true),
            ("add", "null", "error: arguments.a is missing", true),
            (
                "add",
                r#"{"a": "1"}"#,
                "error: arguments.a must be of type integer, not \"1\"",
                true,
            ),
            (
                "add",
                "{",
                "error: the arguments are not JSON: EOF while parsing an object at line 1 column 1",
                true,
            ),
            ("fail", "{}", "error: exit status: 3\ntwo tests failed\nwhy", true),
            ("long", "", "12345\n[3 more characters]", false),
            ("keep", "", "", false),
            ("keep", "", "hi", false),
            (
                "ad",
                "",
                "error: there is no tool \"ad\"; the tools are add, fail, long, hang, strict, keep, none",
                true,
            ),
        ] {
            let result = run(name, arguments, directory.path()).await.unwrap();
            assert_eq!(
                (result.text.as_str(), result.is_error),
                (text, is_error),
                "{name} {arguments}"
            );
        }
        let hung = run("hang", "", directory.path()).await.unwrap();
        assert!(hung.is_error && hung.text.contains("ran longer than 0.2 s"), "{hung:?}");
    }

    #[tokio::test]
    async fn a_tool_that_may_not_fail_aborts_and_a_missing_one_ends_the_run() {
        let directory = tempfile::tempdir().unwrap();
        let strict = run("strict", "", directory.path()).await.unwrap_err();
        assert_eq!((strict.reason(), strict.is_permanent()), ("tool_failed", false));
        assert!(
            strict
                .to_string()
                .contains("the tool strict failed: \"false\" ended with exit status: 1"),
            "{strict}"
        );
        let missing = run("none", "", directory.path()).await.unwrap_err();
        assert!(missing.is_permanent(), "{missing}");
    }

    #[test]
    fn a_wrong_tool_is_named_before_the_run() {
        let tool: Tool = test_section(
            "roll.agent.tools[0]",
            "{name: 'a b', argv: [sh], parameters: {type: list}}",
        );
        let problems: Vec<_> = tool
            .problems("roll.agent.tools[0]")
            .iter()
            .map(ToString::to_string)
            .collect();
        assert!(
            problems[0].starts_with("roll.agent.tools[0].name: \"a b\" is not a name"),
            "{problems:?}"
        );
        assert!(
            problems[1].starts_with("roll.agent.tools[0].parameters: its `type` must be"),
            "{problems:?}"
        );
        assert!(tools()[0].problems("t").is_empty() && tools()[1].problems("t").is_empty());
        assert!(tools()[0].check("t", &Task::default()).is_ok());
        assert!(tools()[6].check("t", &Task::default()).is_err());
    }

    #[test]
    fn results_are_cut_between_characters() {
        assert_eq!(cut("äöü", 3), "äöü");
        assert_eq!(cut("äöü", 2), "äö\n[1 more characters]");
        assert_eq!(cut("", 1), "");
    }
}
