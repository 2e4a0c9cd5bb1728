//! Every format on whole answers, and that the pieces do not depend on how the text is split.

use proptest::prelude::*;

use super::*;

fn parse(reasoning: ReasoningFormat, tools: ToolFormat, prompt: &str, parts: &[&str]) -> Vec<Piece> {
    let mut parser = AnswerParser::new(reasoning, tools, prompt, &["offered".to_owned()]);
    let mut out = Pieces::default();
    let mut pieces: Vec<Piece> = parts.iter().flat_map(|part| parser.push(part)).collect();
    pieces.extend(parser.finish().pieces);
    for piece in pieces {
        match piece {
            Piece::Content(text) => out.content(&text),
            Piece::Reasoning(text) => out.reasoning(&text),
            Piece::ToolCall(call) => out.call(call),
        }
    }
    out.0
}

fn content(text: &str) -> Piece {
    Piece::Content(text.into())
}

fn reasoning(text: &str) -> Piece {
    Piece::Reasoning(text.into())
}

fn call(name: &str, arguments: &str) -> Piece {
    Piece::ToolCall(ParsedCall {
        name: name.into(),
        arguments: arguments.into(),
    })
}

fn check(tools: ToolFormat, answer: &str, expected: &[Piece]) {
    assert_eq!(parse(ReasoningFormat::None, tools, "", &[answer]), expected, "{answer}");
    let letters: Vec<String> = answer.chars().map(String::from).collect();
    let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
    assert_eq!(
        parse(ReasoningFormat::None, tools, "", &letters),
        expected,
        "by letter: {answer}"
    );
}

#[test]
fn hermes_calls() {
    let format = ToolFormat::Hermes;
    let f = r#"<tool_call>
{"name": "f", "arguments": {"x": 1.0}}
</tool_call>"#;
    let x = r#"{"x": 1.0}"#;
    check(format, "plain\n", &[content("plain\n")]);
    check(format, f, &[call("f", x)]);
    // White space around calls is layout at the ends of the text, and text within it.
    check(
        format,
        &format!("I look.\n\n{f}\n"),
        &[content("I look."), call("f", x)],
    );
    check(
        format,
        &format!("{f}\n{f}\n done "),
        &[call("f", x), call("f", x), content("done ")],
    );
    for (answer, text) in [
        (format!("pre {f} post"), "pre  post"),
        (format!("a\n{f}\n{f}\nb"), "a\n\n\nb"),
        (format!("a{f}b"), "ab"),
        (format!("a {f}b\n{f}\n"), "a b"),
    ] {
        let calls = answer.matches("</tool_call>").count();
        let whole = parse(ReasoningFormat::None, format, "", &[&answer]);
        let texts = whole.iter().filter_map(|piece| match piece {
            Piece::Content(text) => Some(text.as_str()),
            _ => None,
        });
        assert_eq!(texts.collect::<String>(), text, "{answer}");
        assert_eq!(whole.iter().filter(|piece| **piece == call("f", x)).count(), calls);
    }
    // The closing tag inside of an argument.
    let quoted = r#"<tool_call>{"name":"f","arguments":{"a":"</tool_call>"}}</tool_call>"#;
    check(format, quoted, &[call("f", r#"{"a":"</tool_call>"}"#)]);
}

/// Seen with a big integer, `1.10` and `1E5` in arguments, which came out as floats print them.
#[test]
fn arguments_are_what_the_model_wrote() {
    for arguments in [
        r#"{"n": 12345678901234567890123, "m": -98765432109876543210}"#,
        r#"{"x": 1.10, "y": 1E5, "z": -0, "w": 1.0, "v": 1e400, "u": 2.50e-03}"#,
        r#"{ "b" : 1,"a":[ 0.1000 , -0.0 ],  "b": 2 }"#,
        "{\n  \"text\": \"\\u00e9 \\/ é\",\n  \"empty\": {}\n}",
    ] {
        let written = [
            (
                ToolFormat::Hermes,
                format!("<tool_call>\n{{\"name\": \"f\", \"arguments\": {arguments}}}\n</tool_call>"),
            ),
            (
                ToolFormat::Hermes,
                format!("<tool_call>{{\"parameters\":{arguments},\"name\":\"f\"}}</tool_call>"),
            ),
            (
                ToolFormat::Llama3Json,
                format!("{{\"name\": \"f\", \"parameters\": {arguments}}}"),
            ),
            (
                ToolFormat::Llama3Json,
                format!("<|python_tag|>{{\"name\": \"f\", \"arguments\": {arguments} }}"),
            ),
            (
                ToolFormat::Json,
                format!("[ {{\"name\": \"f\", \"arguments\": {arguments}}} ]"),
            ),
        ];
        for (format, answer) in written {
            check(format, &answer, &[call("f", arguments)]);
        }
        let text = serde_json::Value::from(arguments).to_string();
        let quoted = format!("<tool_call>{{\"name\": \"f\", \"arguments\": {text}}}</tool_call>");
        check(ToolFormat::Hermes, &quoted, &[call("f", arguments)]);
    }
}

/// Seen with `{"name": "f"}`, and with `""` and `null` for arguments, which were text.
#[test]
fn a_call_may_have_no_arguments() {
    for given in ["null", r#""""#, r#"" ""#, r#""null""#, "{}", r#""{}""#] {
        let hermes = format!("<tool_call>\n{{\"name\": \"f\", \"arguments\": {given}}}\n</tool_call>");
        check(ToolFormat::Hermes, &hermes, &[call("f", "{}")]);
        let whole = format!("{{\"name\": \"f\", \"parameters\": {given}}}");
        check(ToolFormat::Llama3Json, &whole, &[call("f", "{}")]);
        check(
            ToolFormat::Json,
            &format!("[{whole},{whole}]"),
            &[call("f", "{}"), call("f", "{}")],
        );
    }
    check(
        ToolFormat::Hermes,
        r#"<tool_call>{"name":"f"}</tool_call>"#,
        &[call("f", "{}")],
    );
    check(
        ToolFormat::Hermes,
        r#"<tool_call>{"type":"function","name":"f"}"#,
        &[call("f", "{}")],
    );
    // A whole answer of JSON without a tag is a call where the function is known.
    for format in [ToolFormat::Llama3Json, ToolFormat::Json] {
        check(format, r#"{"name": "offered"}"#, &[call("offered", "{}")]);
        check(format, r#"<|python_tag|>{"name": "f"}"#, &[call("f", "{}")]);
        for text in [r#"{"name": "Ann"}"#, r#"{"name": "offered", "age": 3}"#] {
            check(format, text, &[content(text)]);
        }
    }
}

/// Seen where the turn ended behind whole JSON, before its closing tag.
#[test]
fn a_closing_tag_may_be_missing() {
    let f = r#"{"name": "f", "arguments": {"x": 1}}"#;
    let called = || call("f", r#"{"x": 1}"#);
    for end in ["", "\n", "<", "</tool_c", "\n</tool_call"] {
        check(ToolFormat::Hermes, &format!("<tool_call>\n{f}{end}"), &[called()]);
        let second = format!("<tool_call>{f}</tool_call>\n<tool_call>{f}{end}");
        check(ToolFormat::Hermes, &second, &[called(), called()]);
    }
    // Or before the next call.
    check(
        ToolFormat::Hermes,
        &format!("a <tool_call>{f}\n<tool_call>{f}</tool_call>\n"),
        &[content("a"), called(), called()],
    );
    let list = format!("<tool_call>[{f}, {f}]</tool_call>");
    check(ToolFormat::Hermes, &list, &[called(), called()]);
}

#[test]
fn what_is_no_hermes_call_stays_text() {
    for answer in [
        r#"<tool_call>{"name": "f", "arguments": {"x": 1}"#,
        r#"<tool_call>{"name": "f", "arguments": {"x": 1}} and"#,
        r#"<tool_call>{"name": "f", "arguments": {"x": "</tool_call>"#,
        "<tool_call>{'name': 'f', 'arguments': {}}</tool_call>",
        "<tool_call>\n```json\n{\"name\": \"f\", \"arguments\": {}}\n```\n</tool_call>",
        r#"<tool_call>{"name": "f", "city": "Oslo"}</tool_call>"#,
        r#"<tool_call>{"name": "f", "arguments": "x = 1"}</tool_call>"#,
        r#"<tool_call>{"name": "f", "arguments": []}</tool_call>"#,
        r#"<tool_call>[{"name": "f"}, 3]</tool_call>"#,
        "<tool_call>[]</tool_call>",
        r#"x <tool_call>{"name": "f", "argu"#,
        "<tool_call>\nnonsense\n</tool_call>\n",
        r#"<tool_call>{"name": "f", "arguments": 3}</tool_call>"#,
        r#"<tool_call>{"name": "f", "arguments": {x: 1}}</tool_call>"#,
        r#"<tool_call>{"name": "", "arguments": {}}</tool_call>"#,
        r#"<tool_call>{"arguments": {}}</tool_call>"#,
        r#"<tool_call>{"name": "f", "arguments": {}} and more</tool_call>"#,
        "</tool_call> <tool",
    ] {
        check(ToolFormat::Hermes, answer, &[content(answer)]);
    }
    // A good one behind a bad one.
    check(
        ToolFormat::Hermes,
        r#"<tool_call><tool_call>{"name":"f","arguments":{}}</tool_call>"#,
        &[content("<tool_call>"), call("f", "{}")],
    );
}

#[test]
fn llama3_calls() {
    let format = ToolFormat::Llama3Json;
    check(
        format,
        r#"{"name": "f", "parameters": {"x": 1}}"#,
        &[call("f", r#"{"x": 1}"#)],
    );
    check(
        format,
        r#"<|python_tag|>{"name":"f","parameters":{}}"#,
        &[call("f", "{}")],
    );
    check(
        format,
        r#"{"type": "function", "name": "f", "parameters": {}}; {"name": "g", "parameters": {}}"#,
        &[call("f", "{}"), call("g", "{}")],
    );
    for text in [
        "hello {",
        r#"{"answer": 3}"#,
        r#"{"name": "f", "parameters": {"#,
        r#"{"name": "f", "parameters": {}} and"#,
        "<|python_tag|>print(1)",
        " ",
    ] {
        check(format, text, &[content(text)]);
    }
}

#[test]
fn plain_json_calls() {
    let format = ToolFormat::Json;
    check(
        format,
        r#"{"name": "f", "arguments": {"x": "é"}}"#,
        &[call("f", r#"{"x": "é"}"#)],
    );
    check(
        format,
        r#" [{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}]"#,
        &[call("f", "{}"), call("g", "{}")],
    );
    for text in [r#"{"answer": 3}"#, "[1, 2]", "[]", r#"{"name": "f"}"#, "x"] {
        check(format, text, &[content(text)]);
    }
}

#[test]
fn thinking() {
    let cases = [
        (
            "",
            "<think>\nhm\n</think>\n\nyes\n",
            vec![reasoning("hm"), content("yes\n")],
        ),
        ("", "  <think></think>yes", vec![content("yes")]),
        ("", "yes", vec![content("yes")]),
        // Unpaired, or not at the start.
        ("", "<think>hm", vec![content("<think>hm")]),
        ("", "hm</think>yes", vec![content("hm</think>yes")]),
        ("", "yes <think>hm</think>", vec![content("yes <think>hm</think>")]),
        ("", "<thi", vec![content("<thi")]),
        // Opened, or opened and closed, by the template.
        (
            "assistant\n<think>\n",
            "\nhm\n\nhm\n</think>\n\nyes",
            vec![reasoning("hm\n\nhm"), content("yes")],
        ),
        ("assistant\n<think>\n", "hm </thi", vec![reasoning("hm")]),
        ("<think>\n\n</think>\n\n", "yes", vec![content("yes")]),
        // A tag of a call in the thinking is thinking.
        (
            "",
            "<think><tool_call></think><tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>",
            vec![reasoning("<tool_call>"), call("f", "{}")],
        ),
    ];
    for (prompt, answer, expected) in cases {
        assert_eq!(
            parse(ReasoningFormat::Think, ToolFormat::Hermes, prompt, &[answer]),
            expected,
            "{answer}"
        );
    }
}

#[test]
fn text_streams_as_it_comes() {
    let mut parser = AnswerParser::new(ReasoningFormat::Think, ToolFormat::Hermes, "", &[]);
    assert_eq!(parser.push("It"), [content("It")]);
    assert_eq!(parser.push(" is <"), [content(" is")]);
    assert_eq!(parser.push("b"), [content(" <b")]);
    let mut parser = AnswerParser::new(ReasoningFormat::Think, ToolFormat::None, "<think>\n", &[]);
    assert_eq!(parser.push("so"), [reasoning("so")]);
}

#[test]
fn formats_are_chosen_by_template_and_configuration() {
    let choose = ToolFormat::choose;
    assert_eq!(choose(None, "… <tool_call></tool_call> …"), Ok(ToolFormat::Hermes));
    assert_eq!(choose(None, "… <|python_tag|> … tools"), Ok(ToolFormat::Llama3Json));
    assert_eq!(choose(None, "{% if tools %}"), Ok(ToolFormat::Json));
    assert_eq!(choose(None, "{{ messages }}"), Ok(ToolFormat::None));
    assert_eq!(choose(Some("json"), "<tool_call>"), Ok(ToolFormat::Json));
    assert!(choose(Some("xml"), "").unwrap_err().contains("`xml`"));
    assert_eq!(ReasoningFormat::choose(None, "</think>"), Ok(ReasoningFormat::Think));
    assert_eq!(
        ReasoningFormat::choose(Some("none"), "</think>"),
        Ok(ReasoningFormat::None)
    );
    assert!(ReasoningFormat::choose(Some("hm"), "").unwrap_err().contains("`hm`"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn pieces_do_not_depend_on_the_split(
        parts in prop::collection::vec(prop::sample::select(vec![
            "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool", "_call>", "<|python_tag|>", "{", "}", "[",
            "]", ";", "\"", "\n", " ", "{\"name\": \"f\", \"arguments\": {\"a\": 1}}", "{\"name\":\"f\",",
            "\"parameters\": {}}", "{\"name\": \"f\"}", "é", "x",
        ]), 0..12),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        opened: bool,
    ) {
        let answer = parts.concat();
        let letters: Vec<char> = answer.chars().collect();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(letters.len() + 1)).collect();
        cuts.extend([0, letters.len()]);
        cuts.sort_unstable();
        let split: Vec<String> = cuts.windows(2).map(|cut| letters[cut[0]..cut[1]].iter().collect()).collect();
        let split: Vec<&str> = split.iter().map(String::as_str).collect();
        let prompt = if opened { "<think>\n" } else { "" };
        for tools in [ToolFormat::Hermes, ToolFormat::Llama3Json, ToolFormat::Json, ToolFormat::None] {
            for thinking in [ReasoningFormat::Think, ReasoningFormat::None] {
                let whole = parse(thinking, tools, prompt, &[&answer]);
                prop_assert_eq!(&parse(thinking, tools, prompt, &split), &whole);
                if thinking == ReasoningFormat::None && !whole.iter().any(|piece| matches!(piece, Piece::ToolCall(_))) {
                    let content = if answer.is_empty() { vec![] } else { vec![content(&answer)] };
                    prop_assert_eq!(whole, content, "an answer without calls is text as it is");
                }
            }
        }
    }
}

#[test]
fn an_answer_that_ends_in_the_middle_of_a_call_says_so() {
    use ToolFormat::{Hermes, Json, Llama3Json, None};
    let whole = "{\"name\": \"f\", \"arguments\": {}}";
    let cases = [
        (
            Hermes,
            "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1".to_owned(),
            true,
        ),
        (Hermes, "I look.\n<tool_call>\n{\"name\": \"f".to_owned(), true),
        (Hermes, "<tool_call>\n".to_owned(), true),
        (
            Hermes,
            format!("<tool_call>{whole}</tool_call><tool_call>{{\"name\""),
            true,
        ),
        (Hermes, format!("<tool_call>[{whole},"), true),
        (Hermes, format!("<tool_call>{whole}"), false),
        (Hermes, format!("<tool_call>{whole}</tool_call> done"), false),
        (Hermes, "<tool_call>{name: f}</tool_call>".to_owned(), false),
        (Hermes, "<tool_call>never</tool_call>".to_owned(), false),
        (Hermes, "{\"name\": \"f".to_owned(), false),
        (Hermes, "a <tool".to_owned(), false),
        (Hermes, String::new(), false),
        (Llama3Json, "{\"name\": \"f\", \"parameters\": {\"a\"".to_owned(), true),
        (Llama3Json, "<|python_tag|>{\"name\": \"f".to_owned(), true),
        (Llama3Json, format!("{whole}; {{\"name\": \"g\", \"par"), true),
        (Llama3Json, format!("{whole}; {whole};"), false),
        (Llama3Json, "no call {".to_owned(), false),
        (Llama3Json, String::new(), false),
        (Json, format!("[{whole}"), true),
        (Json, format!("[{whole}]"), false),
        (Json, "{\"answer\": 1".to_owned(), false),
        (None, "<tool_call>{\"name\"".to_owned(), false),
    ];
    for (format, text, cut) in cases {
        let mut parser = AnswerParser::new(ReasoningFormat::None, format, "", &[]);
        let mut pieces = parser.push(&text);
        let ending = parser.finish();
        assert_eq!(ending.cut_call, cut, "{format:?} {text}");
        pieces.extend(ending.pieces);
        let shown = |piece: &Piece| matches!(piece, Piece::Content(text) if text.contains("\"f") || text.contains('<') || text.contains("name") || text.contains('['));
        assert!(!cut || pieces.iter().any(shown), "what is cut is text: {text}");
    }
}
