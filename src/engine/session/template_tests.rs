//! Conversations under the real chat templates: what the model sampled stays as it was, token by token.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::value::to_raw_value;
use serde_json::{Value, json};

use super::TextModel;
use super::tests::{Bench, Script};
use crate::config::schema::Ajet;
use crate::model::{ChatTemplate, Tokenizer};
use crate::timeline::{Renderer, Row};

const SPECIAL: [&str; 12] = [
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|python_tag|>",
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜Assistant｜>",
];

/// The printable characters that stand for bytes in byte-level vocabularies, by byte.
fn byte_letters() -> Vec<char> {
    let shown = |byte: u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut hidden = 0x100..;
    (0..=0xff_u32)
        .map(|byte| if shown(byte) { byte } else { hidden.next().unwrap() })
        .map(|letter| char::from_u32(letter).unwrap())
        .collect()
}

/// A byte-level tokenizer with some merges and all special tokens of the templates.
fn tokenizer() -> Tokenizer {
    let letters = byte_letters();
    let merges = [
        "a b", "ab c", "Ċ Ċ", "t o", "Ġ a", "n a", "na m", "nam e", "\" :", "{ \"", "` `",
    ];
    let mut vocabulary: Vec<String> = letters.iter().map(char::to_string).collect();
    vocabulary.extend(merges.map(|merge| merge.replace(' ', "")));
    let ids: serde_json::Map<String, Value> = vocabulary
        .iter()
        .enumerate()
        .map(|(id, piece)| (piece.clone(), id.into()))
        .collect();
    let added: Vec<Value> = SPECIAL
        .iter()
        .enumerate()
        .map(|(at, name)| {
            json!({"id": vocabulary.len() + at, "content": name, "special": true, "single_word": false,
                   "lstrip": false, "rstrip": false, "normalized": false})
        })
        .collect();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let json = json!({"version": "1.0", "added_tokens": added, "pre_tokenizer": byte_level, "decoder": byte_level,
        "normalizer": null, "post_processor": null, "truncation": null, "padding": null,
        "model": {"type": "BPE", "vocab": ids, "merges": merges}});
    Tokenizer::from_json(json.to_string().as_bytes()).unwrap()
}

fn model(name: &str) -> Arc<TextModel> {
    let path = format!(
        "{}/tests/fixtures/chat_templates/{name}.jinja",
        env!("CARGO_MANIFEST_DIR")
    );
    model_of(&std::fs::read_to_string(path).unwrap())
}

fn model_of(source: &str) -> Arc<TextModel> {
    let config = json!({"bos_token": "<|begin_of_text|>", "eos_token": "<|im_end|>"});
    let template = ChatTemplate::new(&config, Some(source), &BTreeMap::new()).unwrap();
    Arc::new(TextModel::from_parts(tokenizer(), template, &[]))
}

/// Plays a conversation: the model spells the answers, the agent says what comes between; gives the rows and why they
/// were split.
async fn play(
    name: &str,
    tools: Value,
    answers: &[&'static str],
    between: &[Value],
) -> (Arc<TextModel>, Vec<Row>, Vec<String>) {
    let model = model(name);
    let bench = Bench::with_model(
        model.clone(),
        answers.iter().map(|text| Script::Spells(text)),
        &Ajet::default(),
    );
    let mut messages = vec![
        json!({"role": "system", "content": "be\ngood "}),
        json!({"role": "user", "content": "q"}),
    ];
    for turn in 0..answers.len() {
        let body = json!({"messages": messages, "tools": tools});
        let answer = bench.whole(body).await;
        messages.push(json!(answer.choices[0].message));
        if let Some(said) = between.get(turn) {
            messages.extend(said.as_array().unwrap().iter().cloned());
        }
    }
    let record = bench.session.finish();
    let sampled: usize = record.calls.iter().map(|call| call.sampled.len()).sum();
    assert_eq!(
        record.rows.iter().map(Row::response_tokens).sum::<usize>(),
        sampled,
        "{name}"
    );
    for call in &record.calls {
        assert!(
            record.rows.iter().any(|row| call.is_prefix_of(&row.token_ids)),
            "{name}: every call is in a row"
        );
    }
    let splits = record.usage.counters.keys().cloned().collect();
    (model, record.rows, splits)
}

fn user(content: &str) -> Value {
    json!([{"role": "user", "content": content}])
}

fn tools() -> Value {
    json!([{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}])
}

fn answered(content: &str) -> Value {
    json!([{"role": "tool", "content": content}])
}

#[tokio::test]
async fn plain_conversations_are_one_row() {
    let templates = [
        "smollm2",
        "qwen2_5",
        "qwen3",
        "qwen3_instruct_2507",
        "qwen3_training",
        "llama3",
        "llama3_1",
        "llama3_2",
    ];
    for name in templates {
        let answers = ["abc toto 日本", "\n\n name abc \n", "", "`` a"];
        let between = [user("é\n\n"), user("\nabc"), user("go on")];
        let (model, rows, splits) = play(name, json!([]), &answers, &between).await;
        assert_eq!((rows.len(), splits), (1, vec![]), "{name}");
        let text = model.decode(&rows[0].token_ids);
        for said in ["abc toto 日本", "\n\n name abc \n", "go on", "`` a"] {
            assert!(text.contains(said), "{name}: {text}");
        }
        let row = &rows[0];
        let trained: Vec<u32> = (0..row.token_ids.len())
            .filter(|at| row.loss_mask[*at])
            .map(|at| row.token_ids[at])
            .collect();
        let ends = if name.starts_with("llama") {
            "<|eot_id|>"
        } else {
            "<|im_end|>"
        };
        assert_eq!(
            model.decode(&trained),
            answers.map(|answer| answer.to_owned() + ends).concat(),
            "{name}"
        );
    }
}

#[tokio::test]
async fn bridges_end_turns_as_the_template_does() {
    for name in ["qwen2_5", "llama3_2"] {
        let (model, rows, _) = play(name, json!([]), &["abc", "to"], &[user("r")]).await;
        let text = model.decode(&rows[0].token_ids);
        let expected = if name == "qwen2_5" {
            "<|im_start|>assistant\nabc<|im_end|>\n<|im_start|>user\nr<|im_end|>\n<|im_start|>assistant\nto<|im_end|>"
        } else {
            "<|start_header_id|>assistant<|end_header_id|>\n\nabc<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n\
             r<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nto<|eot_id|>"
        };
        assert!(text.ends_with(expected), "{text}");
    }
}

#[tokio::test]
async fn tool_loops_are_one_row() {
    let hermes = [
        "I look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\":  \"é\"}}\n</tool_call>",
        "<tool_call>{\"arguments\": {}, \"name\": \"f\"}</tool_call>\n\
         <tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": 1.50}}\n</tool_call>",
        "done",
    ];
    let between = [answered("日本\n"), json!([answered("")[0], answered("x")[0]])];
    for name in ["qwen2_5", "qwen3", "qwen3_instruct_2507", "qwen3_training"] {
        let (_, rows, splits) = play(name, tools(), &hermes, &between).await;
        assert_eq!((rows.len(), splits), (1, vec![]), "{name}");
    }
    let llama = [
        "{\"name\": \"f\", \"parameters\": {\"a\": \"é\"}}",
        "{\"name\":\"f\",\"parameters\":{\"b\":1.50}}",
        "done",
    ];
    for name in ["llama3_1", "llama3_2"] {
        let (_, rows, splits) = play(name, tools(), &llama, &[answered("t"), answered("t")]).await;
        assert_eq!((rows.len(), splits), (1, vec![]), "{name}");
    }
}

#[tokio::test]
async fn thinking_splits_rows_only_where_the_template_drops_it() {
    let answers = ["<think>\nabc\n</think>\n\nto", "<think>\nname\n</think>\n\nto", "to"];
    for (name, rows_expected) in [("qwen3", 3), ("qwen3_training", 1)] {
        let (_, rows, splits) = play(name, json!([]), &answers, &[user("r"), user("s")]).await;
        assert_eq!(rows.len(), rows_expected, "{name} {splits:?}");
        let dropped = splits == ["timeline_splits/thinking_dropped"];
        assert_eq!(dropped, rows_expected > 1, "{name} {splits:?}");
    }
    // The template opens the thinking itself and leaves it out later.
    let answers = ["abc\n</think>\n\nto", "name\n</think>\n\nto"];
    let (_, rows, splits) = play("deepseek_r1_distill", json!([]), &answers, &[user("r")]).await;
    assert_eq!(
        (rows.len(), splits),
        (2, vec!["timeline_splits/thinking_dropped".to_owned()])
    );
}

#[tokio::test]
async fn a_forced_call_is_begun_as_the_template_writes_it() {
    let hermes = "f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
    let llama = "f\", \"parameters\": {\"a\": 1}}";
    for (name, any, named) in [
        ("qwen2_5", hermes, "{\"a\": 1}}\n</tool_call>"),
        ("qwen3", hermes, "{\"a\": 1}}\n</tool_call>"),
        ("llama3_2", llama, "{\"a\": 1}}"),
    ] {
        for (choice, written) in [
            (json!("required"), any),
            (json!({"type": "function", "function": {"name": "f"}}), named),
        ] {
            let scripts = [Script::Spells(written), Script::Spells("to")];
            let bench = Bench::with_model(model(name), scripts, &Ajet::default());
            let mut messages = vec![json!({"role": "user", "content": "q"})];
            let body = json!({"messages": messages, "tools": tools(), "tool_choice": choice});
            let message = bench.whole(body).await.choices[0].message.clone();
            let call = &message.tool_calls.as_ref().unwrap()[0].function;
            assert_eq!(
                (call.name.as_str(), call.arguments.as_str()),
                ("f", "{\"a\": 1}"),
                "{name}"
            );
            messages.extend([json!(message), answered("t")[0].clone()]);
            bench.whole(json!({"messages": messages, "tools": tools()})).await;
            let record = bench.session.finish();
            assert_eq!(
                (record.rows.len(), record.usage.counters.len()),
                (1, 0),
                "{name} {choice}"
            );
            let sampled: usize = record.calls.iter().map(|call| call.sampled.len()).sum();
            assert_eq!(
                record.rows[0].response_tokens(),
                sampled,
                "{name}: the beginning is context"
            );
        }
    }
}

/// Hermes calls, which the template recognises by a content that is none, or prints beside whatever the content is.
const CALLS_WITHOUT_CONTENT: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is none %}CALLS\
    {% else %}{{ '' + m.content }}{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n\
    {% endif %}";
const CALLS_WITH_CONTENT: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ '' + m.content }}CALLS<|im_end|>\n\
    {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
const CALLS: &str = "{% for c in m.tool_calls %}<tool_call>\n\
    {\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}";

#[tokio::test]
async fn calls_without_content_are_one_row_however_clients_replay_them() {
    let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
    for source in [CALLS_WITHOUT_CONTENT, CALLS_WITH_CONTENT] {
        for replayed in [None, Some(Value::Null), Some(json!(""))] {
            let model = model_of(&source.replace("CALLS", CALLS));
            let bench = Bench::with_model(model.clone(), [call, "done"].map(Script::Spells), &Ajet::default());
            let mut messages = vec![json!({"role": "user", "content": "q"})];
            let answer = bench.whole(json!({"messages": messages, "tools": tools()})).await;
            let mut said = json!(answer.choices[0].message);
            let fields = said.as_object_mut().unwrap();
            assert_eq!(fields.remove("content"), Some(Value::Null));
            fields.extend(replayed.clone().map(|content| ("content".to_owned(), content)));
            messages.extend([said, answered("t")[0].clone()]);
            // another conversation, whose calls the template sees in the client's form only
            let mut other = messages.clone();
            other[0]["content"] = json!("p");
            bench.whole(json!({"messages": messages, "tools": tools()})).await;
            let request = super::request::Request::read(
                &to_raw_value(&json!({"messages": other})).unwrap(),
                crate::protocol::swarm::EpisodeType::Train,
                &Ajet::default().rollout,
            );
            let rendered = model.render(&request.unwrap().conversation, true).unwrap();
            assert!(rendered.contains("\"name\": \"f\""), "{rendered}");
            let record = bench.session.finish();
            assert_eq!(
                (record.rows.len(), record.usage.counters.len()),
                (1, 0),
                "{source} {replayed:?}"
            );
        }
    }
}

/// Seen with small models, whose agents took half a call for the final answer.
#[tokio::test]
async fn a_call_that_the_model_does_not_end_is_an_answer_that_is_not_whole() {
    use crate::protocol::openai::FinishReason;
    let cases = [
        (
            "qwen2_5",
            "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1",
            FinishReason::Length,
        ),
        (
            "qwen2_5",
            "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}",
            FinishReason::ToolCalls,
        ),
        ("qwen2_5", "<tool_call>\n{name}\n</tool_call>", FinishReason::Stop),
        (
            "llama3_2",
            "{\"name\": \"f\", \"parameters\": {\"a",
            FinishReason::Length,
        ),
    ];
    for (name, spelled, expected) in cases {
        let bench = Bench::with_model(model(name), [Script::Spells(spelled)], &Ajet::default());
        let body = json!({"messages": [{"role": "user", "content": "q"}], "tools": tools()});
        let choice = bench.whole(body).await.choices[0].clone();
        assert_eq!(choice.finish_reason, Some(expected), "{spelled}");
        let told = choice.message.content.as_str().unwrap_or_default();
        assert_eq!(told.is_empty(), choice.message.tool_calls.is_some(), "{spelled}");
        let record = bench.session.finish();
        assert!(!record.rows[0].truncated, "the turn itself was not cut");
    }
}
