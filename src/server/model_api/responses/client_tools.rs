//! Tools defined by OpenAI and run by the client: `local_shell`, `shell` and `apply_patch`.
//!
//! For the model each is a function; for the agent, a call of it is an item of its own kind. The model's arguments are
//! kept unchanged, so that an item that comes back is exactly the call that the model made.

use serde_json::{Map, Value, json};

/// A tool run by the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientTool {
    /// Runs one program.
    LocalShell,
    /// Runs commands of a shell.
    Shell,
    /// Changes one file.
    ApplyPatch,
}
use ClientTool::{ApplyPatch, LocalShell, Shell};

impl ClientTool {
    /// Returns the tool with this `type`.
    pub fn of_tool(kind: &str) -> Option<Self> {
        [LocalShell, Shell, ApplyPatch]
            .into_iter()
            .find(|tool| tool.name() == kind)
    }

    /// Returns the tool of a call with this `type`.
    pub fn of_call(kind: &str) -> Option<Self> {
        Self::of_tool(kind.strip_suffix("_call")?)
    }

    /// Returns the tool of a call output with this `type`.
    pub fn of_output(kind: &str) -> Option<Self> {
        Self::of_call(kind.strip_suffix("_output")?)
    }

    /// Returns the function's name, which is the tool's `type`.
    pub fn name(self) -> &'static str {
        match self {
            LocalShell => "local_shell",
            Shell => "shell",
            ApplyPatch => "apply_patch",
        }
    }

    /// Returns the function's definition for the model.
    pub fn function(self) -> Value {
        let text = |description: &str| json!({"type": "string", "description": description});
        let number = |description: &str| json!({"type": "integer", "description": description});
        let texts =
            |description: &str| json!({"type": "array", "items": {"type": "string"}, "description": description});
        let (description, properties, required) = match self {
            LocalShell => (
                "Run a program on the user's machine.",
                json!({
                    "command": texts("The program and its arguments."),
                    "working_directory": text("Where to run it."),
                    "timeout_ms": number("Milliseconds after which it is stopped."),
                    "env": {"type": "object", "additionalProperties": {"type": "string"},
                            "description": "Environment variables to set."},
                }),
                "command",
            ),
            Shell => (
                "Run shell commands on the user's machine.",
                json!({
                    "commands": texts("The commands, each a line of shell."),
                    "timeout_ms": number("Milliseconds after which they are stopped."),
                    "max_output_length": number("Maximum number of output characters to return."),
                }),
                "commands",
            ),
            ApplyPatch => (
                "Create, change or delete a file.",
                json!({"operation": {"type": "object", "properties": {
                    "type": {"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
                    "path": text("The file."),
                    "diff": text("For create_file and update_file: a diff in V4A format, without file headers; \
                                  context lines begin with a space, removed ones with -, added ones with +."),
                }, "required": ["type", "path"]}}),
                "operation",
            ),
        };
        json!({"type": "function", "function": {"name": self.name(), "description": description,
            "parameters": {"type": "object", "properties": properties, "required": [required]}}})
    }

    /// Returns the action of a call with these arguments; `None` if the SDKs could not parse them.
    pub fn action(self, arguments: &str) -> Option<Value> {
        let mut given: Map<String, Value> = serde_json::from_str(arguments).ok()?;
        let texts = |value: &Value| value.as_array().is_some_and(|list| list.iter().all(Value::is_string));
        match self {
            LocalShell => {
                texts(given.get("command")?).then_some(())?;
                given.insert("type".into(), "exec".into());
                given.entry("env").or_insert_with(|| json!({}));
                Some(given.into())
            }
            Shell => texts(given.get("commands")?).then_some(given.into()),
            ApplyPatch => {
                let operation = given.remove("operation")?;
                let has = |field: &str| operation[field].is_string();
                let whole = match operation["type"].as_str()? {
                    "create_file" | "update_file" => has("path") && has("diff"),
                    "delete_file" => has("path"),
                    _ => false,
                };
                whole.then_some(operation)
            }
        }
    }

    /// Returns the arguments of the call that an item stands for, without the fields that SDKs add.
    pub fn arguments(self, item: &Value) -> String {
        let mut action = match self {
            ApplyPatch => return json!({"operation": item["operation"]}).to_string(),
            LocalShell | Shell => item["action"].as_object().cloned().unwrap_or_default(),
        };
        let of_the_sdk = |name: &str, value: &Value| value.is_null() || self == LocalShell && name == "type";
        action.retain(|name, value| !of_the_sdk(name, value));
        if action.get("env").is_some_and(|env| *env == json!({})) {
            action.remove("env");
        }
        Value::Object(action).to_string()
    }

    /// Returns the text of a call's output.
    pub fn output(self, item: &Value) -> Value {
        match (self, &item["output"]) {
            (Shell, Value::Array(runs)) => runs.iter().map(run_text).collect::<Vec<_>>().join("\n").into(),
            (ApplyPatch, Value::Null) => item["status"].clone(),
            (_, output) => output.clone(),
        }
    }
}

/// Formats the output of one `shell` command, with its exit status if it failed.
fn run_text(run: &Value) -> String {
    let text = |field: &str| run[field].as_str().unwrap_or_default();
    let outcome = &run["outcome"];
    let end = match (outcome["type"].as_str(), &outcome["exit_code"]) {
        (Some("timeout"), _) => "timed out".to_owned(),
        (Some("exit"), code) if *code != json!(0) => format!("exit code {code}"),
        _ => String::new(),
    };
    let parts = [text("stdout").trim_end(), text("stderr").trim_end(), &end];
    parts
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join("\n")
}
