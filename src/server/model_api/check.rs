//! Parsing of requests, and the refusal of fields that this server does not support, by the table in
//! [`crate::protocol::fields`].

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::wrong;
use crate::protocol::fields::{APIS, Api, Use};
use crate::protocol::type_error::in_json_words;
use crate::server::http::body;
use crate::server::http::error::Error;

/// Maximum number of characters quoted of a value.
const QUOTED: usize = 60;
/// Maximum number of unknown field names remembered, and maximum length of each.
const UNKNOWN_NAMES: (usize, usize) = (100, 60);

/// Parses a request, or returns its text as a `RawValue`, after refusing what the table refuses. Null counts as absent.
///
/// `T` is read from the text: serde_json's conversion from a value turns 1e400 into infinity, and has no 128-bit
/// integers where serde buffers fields.
///
/// # Errors
/// Fails if the body is not a JSON object; names the first invalid field.
pub fn read<T: DeserializeOwned>(api: Api, body: &[u8]) -> Result<T, Error> {
    let Value::Object(mut fields) = body::parse(body)? else {
        return Err(Error::Body("not a JSON object".into()));
    };
    fields.retain(|_, value| !value.is_null());
    let fields = Value::Object(fields);
    refuse_unsupported(api, &fields)?;
    refuse_foreign(api, &fields)?;
    warn_of_unknown(api, &fields);
    serde_json::from_slice(body).map_err(|error| invalid_field::<T>(&fields, &error))
}

fn refuse_unsupported(api: Api, body: &Value) -> Result<(), Error> {
    for (path, treatment) in api.fields().iter().chain(api.extensions()) {
        let Use::Only(allowed, why) = treatment else { continue };
        for (at, value) in found(body, path) {
            if value.is_null() || allowed.iter().any(|allowed| same(allowed, value)) {
                continue;
            }
            return Err(refusal(&at, path, value, allowed, why));
        }
    }
    Ok(())
}

/// Refuses a field of another of these APIs, which would silently be lost.
fn refuse_foreign(api: Api, body: &Value) -> Result<(), Error> {
    let fields = body.as_object().into_iter().flatten();
    for (name, value) in fields.filter(|(name, value)| entry(api, name).is_none() && !is_no_op(value)) {
        let others = APIS.into_iter().filter(|other| *other != api);
        let treatments: Vec<Use> = others.filter_map(|other| entry(other, name)).collect();
        let ignorable = |treatment: &Use| match treatment {
            Use::Honoured => false,
            Use::NoEffect(_) => true,
            Use::Only(allowed, _) => allowed.iter().any(|allowed| same(allowed, value)),
        };
        match treatments.first() {
            Some(_) if treatments.iter().any(ignorable) => {}
            Some(Use::Only(allowed, why)) => return Err(refusal(name, name, value, allowed, why)),
            Some(_) => {
                let sentence = "belongs to another API; hint: omit it, or use this API's name for it";
                return Err(wrong(name, sentence));
            }
            None => {}
        }
    }
    Ok(())
}

fn is_no_op(value: &Value) -> bool {
    match value {
        Value::Bool(asked) => !asked,
        Value::Array(list) => list.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

/// Returns the table's entry of a field.
fn entry(api: Api, name: &str) -> Option<Use> {
    let mut table = api.fields().iter().chain(api.extensions());
    table.find(|(path, _)| *path == name).map(|(_, treatment)| *treatment)
}

fn refusal(at: &str, path: &str, value: &Value, allowed: &[&str], why: &str) -> Error {
    let given = match (&value["type"], path.ends_with(']')) {
        (Value::String(kind), true) => format!("of type `{}`", quoted(kind)),
        _ => quoted(&value.to_string()),
    };
    let hint = match allowed {
        [] => "omit it".to_owned(),
        allowed => format!("omit it, or use {}", allowed.join(" or ")),
    };
    wrong(at, format!("is {given}, which is not supported: {why}; hint: {hint}"))
}

/// Returns the values at a path of the table, each with its own path in the request.
fn found<'a>(body: &'a Value, path: &str) -> Vec<(String, &'a Value)> {
    let mut places = vec![(String::new(), body)];
    for step in path.split('.') {
        let (name, elements) = step.split_once('[').map_or((step, None), |(n, e)| (n, Some(e)));
        let kind = elements.and_then(|elements| elements.strip_prefix("type=")?.strip_suffix(']'));
        let fields = places.into_iter().filter_map(|(at, value)| {
            let dot = if at.is_empty() { "" } else { "." };
            Some((format!("{at}{dot}{name}"), value.get(name)?))
        });
        places = match elements {
            None => fields.collect(),
            Some(_) => fields.flat_map(|(at, list)| elements_of(at, list, kind)).collect(),
        };
    }
    places
}

fn elements_of<'a>(at: String, list: &'a Value, kind: Option<&str>) -> Vec<(String, &'a Value)> {
    let elements = list.as_array().into_iter().flatten().enumerate();
    elements
        .filter(|(_, element)| kind.is_none_or(|kind| element["type"] == kind))
        .map(|(number, element)| (format!("{at}[{number}]"), element))
        .collect()
}

/// Returns whether a value equals the written one; numbers are compared as numbers.
fn same(written: &str, value: &Value) -> bool {
    match (serde_json::from_str::<Value>(written).ok(), value) {
        (Some(Value::Number(a)), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (Some(written), value) => written == *value,
        (None, _) => false,
    }
}

fn quoted(text: &str) -> String {
    match text.char_indices().nth(QUOTED) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Ignores fields that neither an SDK nor another server defines, as other servers do, and logs each once.
fn warn_of_unknown(api: Api, body: &Value) {
    static WARNED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let names = body.as_object().into_iter().flat_map(Map::keys);
    for name in names.filter(|name| entry(api, name).is_none()) {
        let (most, longest) = UNKNOWN_NAMES;
        let name: String = name.chars().take(longest).collect();
        // After a panic elsewhere, at most one name is not logged.
        let mut told = WARNED.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() < most && told.insert(format!("{api:?} {name}")) {
            tracing::warn!(
                "ignored the unknown field `{}` of {api:?} requests",
                name.escape_debug()
            );
        }
    }
}

/// Returns the error of a request that is not a `T`, with the name of the field if one alone is invalid.
fn invalid_field<T: DeserializeOwned>(body: &Value, error: &serde_json::Error) -> Error {
    let alone = |(name, value): (&String, &Value)| {
        let error = serde_json::from_str::<T>(&json!({name: value}).to_string()).err()?;
        Some(wrong(name, format!("is invalid: {}", in_json_words(&error))))
    };
    let named = body.as_object().and_then(|fields| fields.iter().find_map(alone));
    named.unwrap_or_else(|| Error::Body(error.to_string()))
}

#[cfg(test)]
mod tests {
    use serde::Serialize;
    use serde_json::value::RawValue;

    use super::*;
    use crate::protocol::{anthropic::MessagesRequest, openai::ChatRequest, responses::ResponsesRequest};

    fn checked(api: Api, body: Value) -> Result<Box<RawValue>, (String, String)> {
        read(api, body.to_string().as_bytes()).map_err(|error| match error {
            Error::Field { field, message } => (field, message),
            other => panic!("{other:?}"),
        })
    }

    /// Seen with a big integer in `reasoning`, refused, and a temperature of 1e400, taken for none.
    #[test]
    fn numbers_are_as_written_or_refused() {
        for number in [
            "0",
            "-0",
            "-7",
            "1.10",
            "-2.50e-7",
            "18446744073709551616",
            "-98765432109876543210",
            "1e+400",
        ] {
            let body = format!(
                r#"{{"model":"m","input":[],"reasoning":{{"effort":"low","n":{number}}},"tools":[{{"n":{number}}}],"metadata":{{"n":{number}}}}}"#
            );
            let request: ResponsesRequest = read(Api::Responses, body.as_bytes()).unwrap();
            let (reasoning, tools, metadata) = (
                request.reasoning.unwrap(),
                request.tools.unwrap(),
                request.metadata.unwrap(),
            );
            for read in [&reasoning.others["n"], &tools[0]["n"], &metadata["n"]] {
                assert_eq!(read.to_string(), number);
            }
        }
        for field in ["temperature", "top_p"] {
            for number in ["1e400", "-1E999", &"9".repeat(400)] {
                let body = |own: &str| format!(r#"{{"model":"m",{own},"{field}":{number}}}"#).into_bytes();
                let refused = [
                    read::<ChatRequest>(Api::Chat, &body(r#""messages":[]"#)).map(drop),
                    read::<MessagesRequest>(Api::Messages, &body(r#""messages":[],"max_tokens":1"#)).map(drop),
                    read::<ResponsesRequest>(Api::Responses, &body(r#""input":[]"#)).map(drop),
                ];
                for refused in refused {
                    match refused.unwrap_err() {
                        Error::Field { field: named, message } => {
                            assert_eq!(named, field);
                            assert!(message.contains("number out of range"), "{message}");
                        }
                        other => panic!("{other:?}"),
                    }
                }
            }
        }
    }

    #[test]
    fn a_request_of_nulls_is_the_default() {
        fn nulls<T: DeserializeOwned + Serialize + Default>(api: Api) {
            let names = api.fields().iter().chain(api.extensions()).map(|(path, _)| *path);
            let top = names.filter(|path| !path.contains(['.', '[']));
            let body: Map<String, Value> = top.map(|name| (name.to_owned(), Value::Null)).collect();
            assert!(body.len() > 10);
            let read: T = read(api, Value::Object(body).to_string().as_bytes()).unwrap();
            assert_eq!(json!(read), json!(T::default()));
        }
        nulls::<ChatRequest>(Api::Chat);
        nulls::<MessagesRequest>(Api::Messages);
        nulls::<ResponsesRequest>(Api::Responses);
    }

    /// The check reads the last of two fields of one name, which is not to be another than the one that is used.
    #[test]
    fn a_request_is_an_object_without_duplicate_fields() {
        let told = |body: &str| match read::<ChatRequest>(Api::Chat, body.as_bytes()) {
            Err(Error::Body(message)) => message,
            other => panic!("{body}: {other:?}"),
        };
        assert_eq!(told("[]"), "not a JSON object");
        assert!(told(r#"{"n": 2, "n": 1}"#).starts_with("duplicate field `n`"));
    }

    /// What the table says of a path of an SDK's type definitions.
    fn treatment(api: Api, path: &str) -> Option<Use> {
        let entry = |path: &str| entry(api, path);
        let any_kind = |path: &str| match (path.find("[type="), path.rfind(']')) {
            (Some(start), Some(end)) => entry(&format!("{}[]{}", &path[..start], &path[end + 1..])),
            _ => None,
        };
        entry(path).or_else(|| any_kind(path)).or_else(|| {
            let (above, _) = path.rsplit_once('.')?;
            treatment(api, above).filter(|treatment| *treatment != Use::Honoured)
        })
    }

    fn api(name: &str) -> Api {
        match name {
            "chat" => Api::Chat,
            "responses" => Api::Responses,
            "messages" => Api::Messages,
            other => panic!("{other}"),
        }
    }

    /// The list is written by tests/integration/fields.py from the SDKs' own type definitions.
    const SDK_FIELDS: &str = include_str!("../../../tests/fixtures/sdk_fields.txt");

    fn sdk_fields() -> Vec<(Api, &'static str)> {
        let lines = SDK_FIELDS.lines().filter(|line| !line.starts_with('#'));
        lines
            .map(|line| line.split_once(' ').unwrap())
            .map(|(name, path)| (api(name), path))
            .collect()
    }

    #[test]
    fn the_table_has_every_field_of_the_sdks() {
        let fields = sdk_fields();
        assert!(fields.len() > 800, "{}", fields.len());
        let missing: Vec<_> = fields
            .iter()
            .filter(|(api, path)| treatment(*api, path).is_none())
            .collect();
        assert!(missing.is_empty(), "{missing:#?}");
    }

    #[test]
    fn the_table_has_no_field_that_the_sdks_lack() {
        let fields = sdk_fields();
        for api in APIS {
            for (path, _) in api.fields() {
                let known = fields.iter().any(|(of, field)| {
                    *of == api && {
                        field == path || path.contains("[].") && treatment(api, field) == treatment(api, path)
                    } || path.contains("function.strict")
                });
                assert!(known, "{api:?} {path}");
            }
        }
    }

    #[test]
    fn what_is_not_done_is_refused_by_name() {
        use Api::{Chat, Messages, Responses};
        let message = |field: &str, value: Value| json!({"messages": [{"role": "user"}, {field: value}]});
        let tool = |kind: &str| json!({"tools": [{"type": "function"}, {"type": kind, "name": "t"}]});
        for (api, body, named) in [
            (Chat, json!({"guided_json": {"type": "object"}}), "guided_json"),
            (
                Chat,
                json!({"structured_outputs": {"regex": "a"}}),
                "structured_outputs",
            ),
            (Chat, json!({"functions": [{"name": "f"}]}), "functions"),
            (Chat, json!({"min_tokens": 5}), "min_tokens"),
            (Chat, json!({"bad_words": ["a"]}), "bad_words"),
            (Chat, json!({"repetition_penalty": 1.1}), "repetition_penalty"),
            (Chat, json!({"modalities": ["text", "audio"]}), "modalities"),
            (
                Chat,
                json!({"response_format": {"type": "grammar"}}),
                "response_format.type",
            ),
            (
                Chat,
                message("function_call", json!({"name": "f"})),
                "messages[1].function_call",
            ),
            (Chat, message("prefix", json!(true)), "messages[1].prefix"),
            (Chat, tool("custom"), "tools[1]"),
            (Responses, tool("code_interpreter"), "tools[1]"),
            (Responses, tool("computer"), "tools[1]"),
            (Responses, json!({"truncation": "auto"}), "truncation"),
            (
                Responses,
                json!({"include": ["message.output_text.logprobs"]}),
                "include[0]",
            ),
            (
                Responses,
                json!({"text": {"format": {"type": "grammar"}}}),
                "text.format.type",
            ),
            (Responses, json!({"background": true}), "background"),
            (Responses, json!({"conversation": "c"}), "conversation"),
            (
                Responses,
                json!({"tools": [{"type": "shell", "environment": {"type": "container_auto"}}]}),
                "tools[0].environment.type",
            ),
            (Messages, tool("web_search_20250305"), "tools[1]"),
            (Messages, tool("computer_20250124"), "tools[1]"),
            (Messages, json!({"mcp_servers": [{"url": "x"}]}), "mcp_servers"),
            (
                Messages,
                json!({"context_management": {"edits": [{"type": "compact_20260112"}]}}),
                "context_management.edits[0]",
            ),
        ] {
            let (field, message) = checked(api, body.clone()).unwrap_err();
            assert_eq!(field, named, "{body}");
            assert!(
                message.contains(named) && message.contains("hint: omit it"),
                "{message}"
            );
        }
    }

    #[test]
    fn a_field_of_another_api_is_refused_where_it_would_be_lost() {
        use Api::{Chat, Messages, Responses};
        for (api, field, value) in [
            (Responses, "stop", json!(["a"])),
            (Responses, "max_tokens", json!(3)),
            (Responses, "messages", json!([{"role": "user"}])),
            (Responses, "response_format", json!({"type": "json_schema"})),
            (Responses, "guided_json", json!({"type": "object"})),
            (Responses, "frequency_penalty", json!(0.5)),
            (Messages, "stop", json!("a")),
            (Messages, "seed", json!(1)),
            (Messages, "guided_regex", json!("a+")),
            (Messages, "reasoning_effort", json!("low")),
            (Chat, "system", json!("be good")),
            (Chat, "stop_sequences", json!(["a"])),
            (Chat, "max_output_tokens", json!(3)),
            (Chat, "mcp_servers", json!([{"url": "x"}])),
            (Chat, "previous_response_id", json!("resp_1")),
        ] {
            let (named, message) = checked(api, json!({field: value})).unwrap_err();
            assert_eq!(named, field);
            assert!(message.contains("hint: omit it"), "{message}");
        }
        for (api, body) in [
            (
                Chat,
                json!({"service_tier": "auto", "background": false, "include": [], "betas": ["x"], "foo": 1}),
            ),
            (
                Responses,
                json!({"logit_bias": {}, "logprobs": false, "mcp_servers": [], "seed": null}),
            ),
            (
                Messages,
                json!({"presence_penalty": null, "prompt_cache_key": "k", "guided_choice": [], "echo": false}),
            ),
        ] {
            assert!(checked(api, body.clone()).is_ok(), "{body}");
        }
    }

    /// Seen with Codex CLI, Claude Code, Qwen Code, LangChain and the Vercel AI SDK.
    #[test]
    fn what_agents_send_is_taken_and_null_is_as_good_as_nothing() {
        for (api, body) in [
            (
                Api::Chat,
                json!({"logit_bias": null, "functions": null, "n": null, "audio": null, "seed": null}),
            ),
            (
                Api::Chat,
                json!({"presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "metadata": {"a": "b"}}),
            ),
            (
                Api::Chat,
                json!({"messages": [{"function_call": null, "audio": null}], "never_heard_of": 1}),
            ),
            (
                Api::Responses,
                json!({"include": ["reasoning.encrypted_content"], "store": false, "prompt_cache_key": "k",
                       "reasoning": {"summary": "auto"}, "text": {"verbosity": "low"}, "client_metadata": {},
                       "tools": [{"type": "web_search", "external_web_access": true}]}),
            ),
            (
                Api::Messages,
                json!({"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
                       "output_config": {"effort": "high"}, "thinking": {"type": "adaptive"}, "metadata": {}}),
            ),
        ] {
            assert_eq!(checked(api, body.clone()).unwrap().get(), body.to_string());
        }
    }
}
