//! Converting the tools of the Responses API to chat functions.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::client_tools::ClientTool;
use crate::server::http::error::Error;
use crate::server::model_api::wrong;

/// Kind of tool that a chat function stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolKind {
    /// A tool with one free-text argument.
    Custom,
    /// A tool defined by OpenAI and run by the client.
    Client(ClientTool),
    /// A function in a namespace.
    InNamespace {
        /// Namespace.
        namespace: String,
        /// Name within the namespace.
        name: String,
    },
}

/// Returns the chat functions, and the kinds of those that stand for other tools. Web search, which coding agents offer
/// by default, is omitted.
///
/// # Errors
/// Fails for an unknown kind of tool, or a missing name.
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
                None => return Err(wrong(&at, format!("has the unsupported type `{kind}`"))),
            },
        }
    }
    Ok((functions, kinds))
}

fn name_of<'a>(tool: &'a Value, at: &str) -> Result<&'a str, Error> {
    let name = tool["name"].as_str().filter(|name| !name.is_empty());
    name.ok_or_else(|| wrong(&format!("{at}.name"), "is missing"))
}

/// Converts a tool with one free-text argument; its grammar goes into the description, since it is not enforced.
fn custom(tool: &Value, name: &str) -> Value {
    let mut input = json!({"type": "string"});
    if let (Some(syntax), Some(grammar)) = (tool["format"]["syntax"].as_str(), tool["format"]["definition"].as_str()) {
        input["description"] = format!("A text by this {syntax} grammar:\n{grammar}").into();
    }
    let parameters = json!({"type": "object", "properties": {"input": input}, "required": ["input"]});
    function(tool, name.to_owned(), parameters)
}

/// Returns the chat name of a function, which may be in a namespace.
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
    if tool["strict"] == true {
        function["strict"] = true.into();
    }
    json!({"type": "function", "function": function})
}
