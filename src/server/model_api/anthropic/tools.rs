//! Converting the tools of a messages request to chat functions.
//!
//! Tools that Anthropic defines and the client runs have neither description nor schema in the request; a model that
//! was not trained on them needs both.

use serde_json::{Value, json};

use crate::protocol::anthropic::Tool;
use crate::server::http::error::Error;
use crate::server::model_api::wrong;

/// Returns the chat function of tool number `at`.
///
/// # Errors
/// Fails for an unknown kind of tool, or a missing name.
pub fn function(tool: &Tool, at: usize) -> Result<Value, Error> {
    let kind = tool.kind.as_deref().unwrap_or("custom");
    let known = match kind.rsplit_once('_').map_or(kind, |(family, _)| family) {
        "custom" => None,
        "bash" => Some(bash()),
        "text_editor" => Some(text_editor(kind < "text_editor_20250429")),
        "memory" => Some(memory()),
        _ => {
            return Err(wrong(
                &format!("tools[{at}]"),
                format!("has the unsupported type `{kind}`"),
            ));
        }
    };
    let (description, schema) = match known {
        Some((description, schema)) => (Some(description.to_owned()), Some(schema)),
        None => (tool.description.clone(), tool.input_schema.clone()),
    };
    let name = tool.name.as_deref().filter(|name| !name.is_empty());
    let mut function = json!({"name": name.ok_or_else(|| wrong(&format!("tools[{at}].name"), "is missing"))?});
    if let Some(description) = with_examples(description, tool.input_examples.as_deref().unwrap_or_default()) {
        function["description"] = description.into();
    }
    if let Some(schema) = schema {
        function["parameters"] = schema;
    }
    if tool.strict == Some(true) {
        function["strict"] = true.into();
    }
    Ok(json!({"type": "function", "function": function}))
}

fn with_examples(description: Option<String>, examples: &[Value]) -> Option<String> {
    if examples.is_empty() {
        return description;
    }
    let examples = examples.iter().map(|example| format!("\n{example}"));
    Some(format!(
        "{}\nExamples of its input:{}",
        description.unwrap_or_default(),
        examples.collect::<String>()
    ))
}

fn bash() -> (&'static str, Value) {
    let schema = json!({"type": "object", "properties": {
        "command": {"type": "string", "description": "The command to run."},
        "restart": {"type": "boolean", "description": "Restart the shell in place of running a command."},
    }});
    (
        "Run a command in a bash shell whose state persists between calls.",
        schema,
    )
}

fn text_editor(undoes: bool) -> (&'static str, Value) {
    let mut commands = vec!["view", "create", "str_replace", "insert"];
    commands.extend(undoes.then_some("undo_edit"));
    let text = |description: &str| json!({"type": "string", "description": description});
    let number = |description: &str| json!({"type": "integer", "description": description});
    let schema = json!({"type": "object", "properties": {
        "command": {"type": "string", "enum": commands},
        "path": text("Absolute path of a file, or of a directory to view."),
        "view_range": {"type": "array", "items": {"type": "integer"},
            "description": "For view: first and last line, from 1; -1 is the end of the file."},
        "file_text": text("For create: the content of the new file."),
        "old_str": text("For str_replace: the text to replace, which must occur exactly once."),
        "new_str": text("For str_replace: the new text. For insert with older clients: the text to insert."),
        "insert_line": number("For insert: the line after which to insert; 0 is the start of the file."),
        "insert_text": text("For insert: the text to insert."),
    }, "required": ["command", "path"]});
    ("View, create and edit text files.", schema)
}

fn memory() -> (&'static str, Value) {
    let text = |description: &str| json!({"type": "string", "description": description});
    let schema = json!({"type": "object", "properties": {
        "command": {"type": "string", "enum": ["view", "create", "str_replace", "insert", "delete", "rename"]},
        "path": text("A path in /memories, for all commands but rename."),
        "view_range": {"type": "array", "items": {"type": "integer"}, "description": "For view: first and last line."},
        "file_text": text("For create: the content of the file."),
        "old_str": text("For str_replace: the text to replace."),
        "new_str": text("For str_replace: the new text."),
        "insert_line": {"type": "integer", "description": "For insert: the line after which to insert."},
        "insert_text": text("For insert: the text to insert."),
        "old_path": text("For rename: the path so far."),
        "new_path": text("For rename: the new path."),
    }, "required": ["command"]});
    (
        "Read and write files in /memories, which persist between conversations.",
        schema,
    )
}
