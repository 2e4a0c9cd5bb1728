//! Grammars on the tokenizer of the built-in model, with random choices in place of a model.

use proptest::prelude::*;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use std::sync::LazyLock;

use super::*;
use crate::config::schema::Dtype;
use crate::model::{self, LoadedModel, device};

const END: u32 = 271;
const VOCABULARY: usize = 272;
const HERMES: CallSyntax = CallSyntax {
    before: "<tool_call>\n",
    key: "arguments",
    after: "\n</tool_call>",
    between: "\n",
};

static MODEL: LazyLock<LoadedModel> = LazyLock::new(|| {
    let device = device::choose("cpu").unwrap();
    let dtype = device::dtype(Dtype::F32, &device);
    model::load("builtin:tiny", &device, dtype, &mut |_, _| {}).unwrap()
});
static GRAMMARS: LazyLock<Grammars> = LazyLock::new(|| Grammars::new(MODEL.tokenizer.clone(), &[END, 269]));

fn of_schema(schema: &Value) -> String {
    let grammar = AnswerGrammar {
        reasoning: Reasoning::None,
        content: Content::Json(schema.clone()),
        calls: None,
    };
    grammar.text()
}

/// A random answer, the closing characters preferred after a while so that it ends.
fn random_answer(grammar: &str, seed: u64) -> String {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut matcher = GRAMMARS.matcher(grammar).unwrap();
    let mut ids: Vec<u32> = vec![];
    let closing: Vec<u32> = MODEL.tokenizer.encode("\"]}").unwrap();
    loop {
        let allowed = matcher.allowed().unwrap();
        let choices: Vec<u32> = (0..VOCABULARY as u32).filter(|id| allowed.contains(*id)).collect();
        assert_eq!(choices.len(), allowed.len());
        let closes = |id: &&u32| **id == END || closing.contains(id);
        let preferred: Vec<u32> = choices.iter().filter(closes).copied().collect();
        let hurried = !preferred.is_empty() && ids.len() > 20 + rng.random_range(0..40);
        let next = *if hurried { &preferred } else { &choices }.choose(&mut rng).unwrap();
        matcher.push(next).unwrap();
        if next == END || next == 269 {
            let text: Vec<u8> = ids
                .iter()
                .flat_map(|id| MODEL.tokenizer.token_bytes(*id))
                .copied()
                .collect();
            return String::from_utf8(text).unwrap();
        }
        ids.push(next);
        assert!(ids.len() < 5000, "{:?}", MODEL.tokenizer.decode(&ids, false));
    }
}

fn accepts(grammar: &str, text: &str) -> bool {
    let mut matcher = GRAMMARS.matcher(grammar).unwrap();
    let mut ids = MODEL.tokenizer.encode(text).unwrap();
    ids.push(END);
    ids.iter()
        .all(|id| matcher.allowed().unwrap().contains(*id) && matcher.push(*id).is_ok())
}

/// What this module's schemas say of a value.
fn fits(schema: &Value, value: &Value, root: &Value) -> bool {
    if let Some(name) = schema["$ref"].as_str() {
        return fits(root.pointer(&name[1..]).unwrap(), value, root);
    }
    if let Some(options) = schema["anyOf"].as_array() {
        return options.iter().any(|option| fits(option, value, root));
    }
    if let Some(options) = schema["enum"].as_array() {
        return options.contains(value);
    }
    match schema["type"].as_str() {
        Some("null") => value.is_null(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.as_number().is_some_and(|n| {
            let n: f64 = n.to_string().parse().unwrap();
            n.fract() == 0.0 && schema["minimum"].as_f64().is_none_or(|least| n >= least)
        }),
        Some("number") => value.is_number(),
        Some("string") => value.as_str().is_some_and(|text| {
            schema["maxLength"]
                .as_u64()
                .is_none_or(|most| text.chars().count() as u64 <= most)
        }),
        Some("array") => value.as_array().is_some_and(|items| {
            schema["maxItems"]
                .as_u64()
                .is_none_or(|most| items.len() as u64 <= most)
                && items.iter().all(|item| fits(&schema["items"], item, root))
        }),
        Some("object") => value.as_object().is_some_and(|fields| {
            let required = schema["required"].as_array().into_iter().flatten();
            required
                .map(|name| name.as_str().unwrap())
                .all(|name| fields.contains_key(name))
                && fields
                    .iter()
                    .all(|(name, value)| fits(&schema["properties"][name], value, root))
        }),
        other => panic!("{other:?}"),
    }
}

fn schemas() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!({"type": "null"})),
        Just(json!({"type": "boolean"})),
        Just(json!({"type": "number"})),
        (-20i64..20).prop_map(|least| json!({"type": "integer", "minimum": least})),
        (0u64..9).prop_map(|most| json!({"type": "string", "maxLength": most})),
        Just(json!({"enum": ["a", 1, null, "say \"hi\"", {"x": [1, 2]}, "<|im_end|>", "größer"]})),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            (inner.clone(), 0u64..4)
                .prop_map(|(items, most)| json!({"type": "array", "items": items, "maxItems": most})),
            prop::collection::vec(inner.clone(), 1..3).prop_map(|options| json!({"anyOf": options})),
            (prop::collection::vec(inner, 0..4), 0usize..4).prop_map(|(fields, required)| {
                let names: Vec<String> = (0..fields.len())
                    .map(|number| format!("field {number}/\"é\""))
                    .collect();
                json!({
                    "type": "object",
                    "required": names[..required.min(names.len())],
                    "properties": names.iter().cloned().zip(fields).collect::<serde_json::Map<_, _>>(),
                    "additionalProperties": false,
                })
            }),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn any_answer_fits_its_schema(schema in schemas(), seed: u64) {
        let text = random_answer(&of_schema(&schema), seed);
        let value: Value = serde_json::from_str(&text).unwrap();
        prop_assert!(fits(&schema, &value, &schema), "{text}\n{schema}");
    }
}

#[test]
fn recursive_schemas_end() {
    let schema = json!({
        "$defs": {"node": {
            "type": "object",
            "properties": {
                "value": {"type": "integer"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            },
            "required": ["value", "children"],
            "additionalProperties": false,
        }},
        "$ref": "#/$defs/node",
    });
    for seed in 0..20 {
        let text = random_answer(&of_schema(&schema), seed);
        let value: Value = serde_json::from_str(&text).unwrap();
        assert!(fits(&schema, &value, &schema), "{text}");
    }
}

#[test]
fn forced_text_is_tokenized_as_the_tokenizer_does() {
    let schema = json!({"type": "object", "properties": {"system": {"const": "Reverse"}}, "required": ["system"],
        "additionalProperties": false});
    let mut matcher = GRAMMARS.matcher(&of_schema(&schema)).unwrap();
    let text = r#"{"system": "Reverse"}"#;
    for id in MODEL.tokenizer.encode(text).unwrap() {
        let allowed = matcher.allowed().unwrap();
        assert!(allowed.contains(id) && allowed.len() == 1, "{allowed:?} {id}");
        matcher.push(id).unwrap();
    }
    assert!(matcher.is_complete());
    assert_eq!(matcher.allowed().unwrap(), [END, 269].into_iter().collect());
}

#[test]
fn a_token_that_is_not_allowed_is_refused() {
    let mut matcher = GRAMMARS.matcher(&of_schema(&json!({"type": "boolean"}))).unwrap();
    let no = MODEL.tokenizer.encode("x").unwrap()[0];
    assert_eq!(matcher.push(no), Err(GrammarError::Token(no)));
}

fn calls(parallel: bool, opened: Option<Opened>) -> Calls {
    let function = |name: &str, schema: Value| Function {
        name: name.into(),
        arguments: schema,
    };
    let point = json!({"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"],
        "additionalProperties": false});
    let mut functions = vec![function("move", point)];
    if opened != Some(Opened::Arguments) {
        functions.push(function("say \"hi\"", json!({"type": "object"})));
    }
    Calls {
        functions,
        syntax: HERMES,
        parallel,
        opened,
    }
}

#[test]
fn calls_are_written_as_the_model_writes_them() {
    let grammar = |content: Content, calls: Calls| {
        let grammar = AnswerGrammar {
            reasoning: Reasoning::None,
            content,
            calls: Some(calls),
        };
        grammar.text()
    };
    let one = "<tool_call>\n{\"name\": \"move\", \"arguments\": {\"x\": 7}}\n</tool_call>";
    let other = "<tool_call>\n{\"name\": \"say \\\"hi\\\"\", \"arguments\": {\"y\": [1, \"z\"]}}\n</tool_call>";
    let wrong = "<tool_call>\n{\"name\": \"move\", \"arguments\": {\"x\": \"7\"}}\n</tool_call>";
    let both = format!("{one}\n{other}");
    let rest = |call: &str, head: &str| call.strip_prefix(head).unwrap().to_owned();
    let (at_name, at_arguments) = (
        "<tool_call>\n{\"name\": \"",
        "<tool_call>\n{\"name\": \"move\", \"arguments\": ",
    );
    for (content, calls, accepted, refused) in [
        (
            Content::None,
            calls(false, None),
            vec![one, other],
            vec![wrong, &both, "", "x"],
        ),
        (Content::None, calls(true, None), vec![one, &both], vec![wrong]),
        (
            Content::Text,
            calls(true, None),
            vec![one, &both, "", "any < text\n", &format!("Well. {both}")],
            vec![wrong, &format!("Well. {wrong}"), "<tool_call>"],
        ),
        (
            Content::Json(json!({"type": "null"})),
            calls(false, None),
            vec!["null", one],
            vec!["x", wrong],
        ),
        (
            Content::None,
            calls(false, Some(Opened::Name)),
            vec![&rest(one, at_name), &rest(other, at_name)],
            vec![one, &rest(wrong, at_name), &rest(&both, at_name)],
        ),
        (
            Content::None,
            calls(true, Some(Opened::Arguments)),
            vec![&rest(one, at_arguments), &format!("{}\n{one}", rest(one, at_arguments))],
            vec![&rest(wrong, at_arguments)],
        ),
    ] {
        let grammar = grammar(content, calls);
        for text in accepted {
            assert!(accepts(&grammar, text), "{grammar}\n{text}");
        }
        for text in refused {
            assert!(!accepts(&grammar, text), "{grammar}\n{text}");
        }
    }
}

#[test]
fn calls_without_tags_are_told_from_text_by_their_beginning() {
    let grammar = AnswerGrammar {
        reasoning: Reasoning::None,
        content: Content::Text,
        calls: Some(Calls {
            syntax: CallSyntax {
                before: "",
                key: "parameters",
                after: "",
                between: "; ",
            },
            ..calls(true, None)
        }),
    };
    let grammar = grammar.text();
    let call = r#"{"name": "move", "parameters": {"x": 1}}"#;
    for text in ["Hello {}", "", call, &format!("{call}; {call}")] {
        assert!(accepts(&grammar, text), "{text}");
    }
    for text in ["{}", r#"{"name": "move", "parameters": {}}"#] {
        assert!(!accepts(&grammar, text), "{text}");
    }
}

#[test]
fn reasoning_comes_before_the_answer() {
    let grammar = |reasoning| {
        let grammar = AnswerGrammar {
            reasoning,
            content: Content::Json(json!({"type": "boolean"})),
            calls: None,
        };
        grammar.text()
    };
    let (allowed, open) = (grammar(Reasoning::Allowed), grammar(Reasoning::Open));
    assert!(accepts(&allowed, "true") && accepts(&allowed, "<think>\nHm </thin.\n</think>\n\ntrue"));
    assert!(accepts(&open, "Hm.</think>\n\nfalse") && accepts(&open, "\n</think>false"));
    assert!(!accepts(&open, "true") && !accepts(&allowed, "<think>true") && !accepts(&allowed, "Hm</think>true"));
}

#[test]
fn schemas_that_cannot_be_enforced_are_refused_with_the_place() {
    let object = |part: Value| json!({"type": "object", "properties": {"a": {"type": "array", "items": part}}});
    let mut told = vec![];
    for schema in [
        json!({"type": "text"}),
        json!({"type": 7}),
        object(json!({"type": "string", "pattern": "("})),
        object(json!({"if": {"type": "string"}})),
        json!({"type": "integer", "minimum": 3, "maximum": 1}),
        json!({"anyOf": [{"type": "null"}, {"$ref": "#/$defs/gone"}]}),
        json!({"type": "array", "uniqueItems": true}),
        json!({"type": "object", "x-guidance": {"lenient": true}, "if": {}}),
        json!({"not": {}}),
        json!(false),
    ] {
        let error = check_schema(&GRAMMARS, &schema).map_err(|error| error.to_string());
        told.push(error.unwrap_err());
    }
    insta::assert_snapshot!(told.join("\n"));
    for fine in [
        json!({}),
        json!(true),
        object(json!({"type": ["string", "null"], "format": "date"})),
    ] {
        assert_eq!(check_schema(&GRAMMARS, &fine), Ok(()), "{fine}");
    }
}
