//! Decides whether a request continues an earlier call, allowing for the changes that clients make to earlier messages.

use serde_json::Value;

use super::call::Call;

/// Returns whether `messages` start with the call's messages and its answer, and go on after it.
pub fn continues(call: &Call, messages: &[Value]) -> bool {
    let asked = &call.conversation.messages;
    messages.len() > asked.len() + 1
        && asked
            .iter()
            .zip(messages)
            .all(|(ours, theirs)| same_message(ours, theirs))
        && same_message(&call.answer, &messages[asked.len()])
}

/// Returns whether `theirs` is `ours` as a client may send it back: without reasoning, with `""` for null contents,
/// stripped, with tool-call arguments serialised again and calls renamed.
pub fn same_message(ours: &Value, theirs: &Value) -> bool {
    if ours["role"] != theirs["role"] {
        return false;
    }
    if ours["role"] == "assistant" {
        return text(&ours["content"]).trim() == text(&theirs["content"]).trim()
            && same_reasoning(&ours["reasoning_content"], &theirs["reasoning_content"])
            && same_calls(&ours["tool_calls"], &theirs["tool_calls"]);
    }
    text(&ours["content"]) == text(&theirs["content"])
        && text(&ours["name"]) == text(&theirs["name"])
        && text(&ours["tool_call_id"]) == text(&theirs["tool_call_id"])
}

fn same_reasoning(ours: &Value, theirs: &Value) -> bool {
    let theirs = text(theirs).trim();
    theirs.is_empty() || theirs == text(ours).trim()
}

fn same_calls(ours: &Value, theirs: &Value) -> bool {
    let (ours, theirs) = (calls(ours), calls(theirs));
    ours.len() == theirs.len()
        && ours.iter().zip(theirs).all(|(a, b)| {
            let (a, b) = (&a["function"], &b["function"]);
            a["name"] == b["name"] && same_json(&arguments(&a["arguments"]), &arguments(&b["arguments"]))
        })
}

fn calls(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Returns arguments as JSON, given as JSON text or as JSON.
fn arguments(value: &Value) -> Value {
    match value {
        Value::String(text) => serde_json::from_str(text).unwrap_or_else(|_| value.clone()),
        other => other.clone(),
    }
}

/// Returns whether `theirs` may be `ours`, parsed and serialised by a client. Numbers are compared as floats, since
/// clients write `1.10` as `1.1`, and JavaScript has only floats.
fn same_json(ours: &Value, theirs: &Value) -> bool {
    match (ours, theirs) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64().is_some_and(|a| b.as_f64() == Some(a)),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same_json(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            let same = |(key, a): (&String, &Value)| b.get(key).is_some_and(|b| same_json(a, b));
            a.len() == b.len() && a.iter().all(same)
        }
        (a, b) => a == b,
    }
}

/// Returns a string, or "" for null and missing values.
pub fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn replayed_messages_are_recognised() {
        let called = |arguments: Value| {
            json!({"role": "assistant", "content": null, "reasoning_content": "hm",
                   "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}]})
        };
        let ours = called(json!(r#"{"x":1,"y":[2]}"#));
        let mut without_reasoning = ours.clone();
        without_reasoning.as_object_mut().unwrap().remove("reasoning_content");
        let mut renamed = called(json!(r#"{"y": [2], "x": 1}"#));
        renamed["tool_calls"][0]["id"] = json!("b");
        renamed["content"] = json!("");
        for theirs in [without_reasoning, renamed, called(json!({"x": 1, "y": [2]}))] {
            assert!(same_message(&ours, &theirs), "{theirs}");
        }
        assert!(!same_message(&ours, &called(json!(r#"{"x":2,"y":[2]}"#))));
        for (ours, theirs, same) in [
            ("[1.10, 1E5, -0.0]", "[1.1,100000.0,0.0]", true),
            ("12345678901234567890123", "12345678901234567890123", true),
            ("12345678901234567", "12345678901234568", true), // what JavaScript makes of it
            ("12345678901234567890123", "12345678901234567890", false),
            ("-0", "0", true),
            ("1e400", "1E400", true),
            ("1e400", "1e401", false),
            ("1e400", "null", false),
            ("12345678901234567890123", "1.2345678901234568e22", true),
            ("1.0", "1", true),
            ("1", "2", false),
        ] {
            let called = |number: &str| called(json!(format!("{{\"x\": {number}}}")));
            assert_eq!(same_message(&called(ours), &called(theirs)), same, "{ours} {theirs}");
        }

        let cases = [
            (
                json!({"role": "assistant", "content": "a b\n"}),
                json!({"role": "assistant", "content": "a b"}),
                true,
            ),
            (
                json!({"role": "assistant", "content": "a b"}),
                json!({"role": "assistant", "content": "a  b"}),
                false,
            ),
            (
                json!({"role": "user", "content": "a"}),
                json!({"role": "user", "content": "a "}),
                false,
            ),
            (
                json!({"role": "user", "content": "a"}),
                json!({"role": "system", "content": "a"}),
                false,
            ),
            (
                json!({"role": "user", "content": ""}),
                json!({"role": "user", "content": null}),
                true,
            ),
            (
                json!({"role": "assistant", "content": "a", "reasoning_content": "x"}),
                json!({"role": "assistant", "content": "a", "reasoning_content": "y"}),
                false,
            ),
        ];
        for (ours, theirs, same) in cases {
            assert_eq!(same_message(&ours, &theirs), same, "{ours} {theirs}");
        }
    }
}
