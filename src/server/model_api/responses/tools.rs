//! Tools of the Responses API as the functions that a chat has.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::client_tools::ClientTool;
use crate::server::http::error::Error;
use crate::server::model_api::wrong;

/// What a function of the chat is to the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolKind {
    /// A tool that takes one text.
    Custom,
    /// A tool that OpenAI defines and the client runs.
    Client(ClientTool),
    /// A function of a namespace.
    InNamespace {
        /// The namespace.
        namespace: String,
        /// The function in it.
        name: String,
    },
}

/// The functions of the chat, and those of them that are something else to the agent. The model is not told of web
/// search, which coding agents offer by default.
///
/// # Errors
/// A kind of tool that is not known, or a tool without a name.
pub fn functions(tools: &[Value]) -> Result<(Vec<Value>, HashMap<String, ToolKind>), Error> {
    let (mut functions, mut kinds) = (Vec::new(), HashMap::new());
    for (number, tool) in tools.iter().enumerate() {
        let at = format!("tools[{number}]");
        match tool["type"].as_str().unwrap_or_default() {
            "function" => functions.push(function(
                tool,
                name_of(tool, &at)?.to_owned(),
                tool["parameters"].clone(),
            )),
            "custom" => {
                let name = name_of(tool, &at)?;
                functions.push(custom(tool, name));
                kinds.insert(name.to_owned(), ToolKind::Custom);
            }
            "namespace" => {
                let namespace = name_of(tool, &at)?;
                for (number, inner) in tool["tools"].as_array().into_iter().flatten().enumerate() {
                    let name = name_of(inner, &format!("{at}.tools[{number}]"))?;
                    let flat = flat_name(Some(namespace), name);
                    functions.push(function(inner, flat.clone(), inner["parameters"].clone()));
                    let (namespace, name) = (namespace.to_owned(), name.to_owned());
                    kinds.insert(flat, ToolKind::InNamespace { namespace, name });
                }
            }
            kind if kind.starts_with("web_search") => {}
            kind => match ClientTool::of_tool(kind) {
                Some(client) => {
                    functions.push(client.function());
                    kinds.insert(client.name().to_owned(), ToolKind::Client(client));
                }
                None => return Err(wrong(&at, format!("is of type `{kind}`, which is not known here"))),
            },
        }
    }
    Ok((functions, kinds))
}

fn name_of<'a>(tool: &'a Value, at: &str) -> Result<&'a str, Error> {
    let name = tool["name"].as_str().filter(|name| !name.is_empty());
    name.ok_or_else(|| wrong(&format!("{at}.name"), "is missing"))
}

/// A tool that takes one text; the grammar that it follows is told, since nothing enforces it.
fn custom(tool: &Value, name: &str) -> Value {
    let mut input = json!({"type": "string"});
    if let (Some(syntax), Some(grammar)) = (tool["format"]["syntax"].as_str(), tool["format"]["definition"].as_str()) {
        input["description"] = format!("A text by this {syntax} grammar:\n{grammar}").into();
    }
    let parameters = json!({"type": "object", "properties": {"input": input}, "required": ["input"]});
    function(tool, name.to_owned(), parameters)
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
