//! Errors of serde about a value of the wrong type, in the words of JSON.

/// Returns the message of an error without its position and without names of Rust types.
pub fn in_json_words(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let what = text.rsplit_once(" at line ").map_or(text.as_str(), |(what, _)| what);
    let Some((given, expected)) = what.rsplit_once(", expected ") else {
        return what.to_owned();
    };
    let given = match given {
        "invalid type: sequence" => "invalid type: list",
        "invalid type: map" => "invalid type: object",
        given => given,
    };
    let expected = match expected {
        "a sequence" => "a list",
        "a map" => "an object",
        "a boolean" => "true or false",
        "f32" | "f64" => "a number",
        "u8" | "u16" | "u32" | "u64" | "u128" | "usize" => "a whole number, at least 0",
        "i8" | "i16" | "i32" | "i64" | "i128" | "isize" => "a whole number",
        expected if expected.starts_with("struct ") => "an object",
        expected => expected,
    };
    format!("{given}, expected {expected}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::anthropic::MessagesRequest;
    use crate::protocol::openai::ChatRequest;

    #[test]
    fn no_type_of_rust_is_named() {
        let chat = |json: &str| in_json_words(&serde_json::from_str::<ChatRequest>(json).unwrap_err());
        let messages = |json: &str| in_json_words(&serde_json::from_str::<MessagesRequest>(json).unwrap_err());
        for (told, expected) in [
            (
                chat(r#"{"max_tokens": "a"}"#),
                "invalid type: string \"a\", expected a whole number, at least 0",
            ),
            (chat(r#"{"temperature": []}"#), "invalid type: list, expected a number"),
            (chat(r#"{"stream": 1}"#), "expected true or false"),
            (chat(r#"{"messages": {}}"#), "expected a list"),
            (chat(r#"{"seed": {}}"#), "expected a whole number"),
            (
                messages(r#"{"tool_choice": "auto"}"#),
                "invalid type: string \"auto\", expected an object",
            ),
        ] {
            assert!(told.ends_with(expected), "{told}");
            for name in ["u64", "i64", "f64", "struct", "line"] {
                assert!(!told.contains(name), "{told}");
            }
        }
    }
}
