//! Tools and the required call.

use serde_json::Value;

use crate::config::schema::Rollout;
use crate::engine::session::error::ChatError;
use crate::protocol::openai::ChatRequest;

/// A tool call required by the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForcedCall {
    /// Any function.
    Any,
    /// This function.
    Named(String),
}

/// Returns the tools for the template (none if they are switched off), and the required call.
pub(super) fn tools(
    request: &mut ChatRequest,
    rollout: &Rollout,
) -> Result<(Vec<Value>, Option<ForcedCall>), ChatError> {
    let tools = request.tools.take().unwrap_or_default();
    for (at, tool) in tools.iter().enumerate() {
        if tool["type"] != "function" || !tool["function"]["name"].is_string() {
            let param = format!("tools[{at}]");
            let message = format!("`{param}` must be of type `function` and have a `function.name`");
            return Err(ChatError::invalid(param, message));
        }
    }
    // The choice may have been written in another API's terms.
    let refuse = |why: String| Err(ChatError::invalid("tool_choice", format!("`tool_choice` {why}")));
    let forced = match &request.tool_choice {
        None | Some(Value::Null) => None,
        Some(Value::String(choice)) if choice == "auto" => None,
        Some(Value::String(choice)) if choice == "none" => return Ok((Vec::new(), None)),
        Some(Value::String(required)) if required == "required" => {
            if tools.is_empty() {
                return refuse("requires a tool call, but `tools` is empty".to_owned());
            }
            Some(ForcedCall::Any)
        }
        Some(choice) => {
            let name = &choice["function"]["name"];
            let Some(named) = name.as_str().filter(|_| choice["type"] == "function") else {
                return refuse(format!(
                    "must be `auto`, `none`, `required` or a function by name, got {choice}"
                ));
            };
            if tools.iter().all(|tool| tool["function"]["name"] != *name) {
                return refuse(format!("names {name}, which is not in `tools`"));
            }
            Some(ForcedCall::Named(named.to_owned()))
        }
    };
    match rollout.force_disable_toolcalls {
        true => Ok((Vec::new(), None)),
        false => Ok((tools, forced)),
    }
}
