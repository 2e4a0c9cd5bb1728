//! Tools of the Responses API as the functions that a chat has.

use std::collections::HashMap;

use serde_json::{Value, json};

/// What a function of the chat is to the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolKind {
    /// A tool that takes one text.
    Custom,
    /// A function of a namespace.
    InNamespace {
        /// The namespace.
        namespace: String,
        /// The function in it.
        name: String,
    },
}

/// The functions of the chat, and those of them that are something else to the agent. Tools that OpenAI's servers run
/// are left out: the model is not told of them.
pub fn functions(tools: &[Value]) -> (Vec<Value>, HashMap<String, ToolKind>) {
    let (mut functions, mut kinds) = (Vec::new(), HashMap::new());
    for tool in tools {
        let name = tool["name"].as_str().unwrap_or_default();
        match tool["type"].as_str() {
            Some("function") => functions.push(function(tool, name.to_owned(), tool["parameters"].clone())),
            Some("custom") => {
                let text = json!({
                    "type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"],
                });
                functions.push(function(tool, name.to_owned(), text));
                kinds.insert(name.to_owned(), ToolKind::Custom);
            }
            Some("namespace") => {
                for inner in tool["tools"].as_array().into_iter().flatten() {
                    let inner_name = inner["name"].as_str().unwrap_or_default();
                    let flat = flat_name(Some(name), inner_name);
                    functions.push(function(inner, flat.clone(), inner["parameters"].clone()));
                    let kind = ToolKind::InNamespace {
                        namespace: name.to_owned(),
                        name: inner_name.to_owned(),
                    };
                    kinds.insert(flat, kind);
                }
            }
            _ => {}
        }
    }
    (functions, kinds)
}

/// How the chat calls a function, which may be in a namespace.
pub fn flat_name(namespace: Option<&str>, name: &str) -> String {
    match namespace {
        Some(namespace) => format!("{namespace}__{name}"),
        None => name.to_owned(),
    }
}

fn function(tool: &Value, name: String, parameters: Value) -> Value {
    let mut function = json!({"name": name});
    for (field, value) in [("description", tool["description"].clone()), ("parameters", parameters)] {
        if !value.is_null() {
            function[field] = value;
        }
    }
    json!({"type": "function", "function": function})
}
