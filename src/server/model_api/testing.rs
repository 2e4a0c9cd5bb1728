//! Random chat answers, whole and cut into chunks, and what goes through a translator.

use proptest::prelude::*;
use serde_json::Value;

use super::{AnswerWriter, Translator};
use crate::protocol::openai::{
    ChatCompletion, ChatCompletionChunk, ChatMessage, Choice, ChunkChoice, CompletionTokensDetails, Delta,
    FinishReason, FunctionCall, FunctionCallDelta, PromptTokensDetails, ToolCall, ToolCallDelta, Usage,
};

/// A chat answer, and the same as a stream.
#[derive(Clone, Debug)]
pub struct Answered {
    pub whole: ChatCompletion,
    pub chunks: Vec<ChatCompletionChunk>,
}

/// Any answer that the engine may give, cut anywhere, with its calls anywhere between the pieces of its text.
pub fn answered() -> impl Strategy<Value = Answered> {
    let pieces = || prop::collection::vec("[a-zé日\n\"]{0,4}", 0..5);
    let calls = prop::collection::vec(("(ns__)?[a-z]{1,4}", "[a-zé\"\\\\]{0,6}", 0_usize..6), 0..3);
    (pieces(), pieces(), calls, 0_usize..3).prop_map(|(thinking, text, calls, end)| {
        let calls: Vec<(ToolCall, usize)> = calls
            .into_iter()
            .enumerate()
            .map(|(number, (name, argument, at))| (call(number, name, &argument), at))
            .collect();
        build(&thinking, &text, &calls, end)
    })
}

fn call(number: usize, name: String, argument: &str) -> ToolCall {
    ToolCall {
        id: format!("call_{number}"),
        kind: "function".into(),
        function: FunctionCall {
            name,
            arguments: serde_json::json!({"input": argument}).to_string(),
        },
    }
}

fn build(thinking: &[String], text: &[String], calls: &[(ToolCall, usize)], end: usize) -> Answered {
    let (finish, stop) = match (end, calls.is_empty()) {
        (0, _) => (FinishReason::Length, None),
        (_, false) => (FinishReason::ToolCalls, None),
        (1, true) => (FinishReason::Stop, Some("END".to_owned())),
        _ => (FinishReason::Stop, None),
    };
    let usage = Usage {
        prompt_tokens: 9,
        completion_tokens: 5,
        total_tokens: 14,
        prompt_tokens_details: Some(PromptTokensDetails { cached_tokens: 4 }),
        completion_tokens_details: Some(CompletionTokensDetails { reasoning_tokens: 2 }),
    };
    let whole_calls: Vec<ToolCall> = calls.iter().map(|(call, _)| call.clone()).collect();
    let message = ChatMessage {
        role: "assistant".into(),
        content: match text.iter().all(String::is_empty) && !calls.is_empty() {
            true => Value::Null,
            false => text.concat().into(),
        },
        reasoning_content: Some(thinking.concat()).filter(|text| !text.is_empty()),
        tool_calls: (!whole_calls.is_empty()).then_some(whole_calls),
        ..ChatMessage::default()
    };
    let whole = ChatCompletion {
        id: "chatcmpl-00ff".into(),
        object: "chat.completion".into(),
        created: 7,
        model: "m".into(),
        choices: vec![Choice {
            message,
            finish_reason: Some(finish.clone()),
            stop_reason: stop.clone(),
            ..Choice::default()
        }],
        usage: usage.clone(),
        prompt_token_ids: None,
    };
    let role = Delta {
        role: Some("assistant".into()),
        content: Some(String::new()),
        ..Delta::default()
    };
    let thinking = thinking.iter().map(|more| Delta {
        reasoning_content: Some(more.clone()),
        ..Delta::default()
    });
    let mut deltas: Vec<Delta> = std::iter::once(role).chain(thinking).collect();
    for place in 0..6 {
        deltas.extend(text.get(place).map(|more| Delta {
            content: Some(more.clone()),
            ..Delta::default()
        }));
        let here = calls.iter().zip(0..).filter(|((_, at), _)| *at == place);
        deltas.extend(here.map(|((call, _), index)| Delta {
            tool_calls: Some(vec![ToolCallDelta {
                index,
                id: Some(call.id.clone()),
                kind: Some(call.kind.clone()),
                function: Some(FunctionCallDelta {
                    name: Some(call.function.name.clone()),
                    arguments: Some(call.function.arguments.clone()),
                }),
            }]),
            ..Delta::default()
        }));
    }
    deltas.push(Delta::default());
    let last = deltas.len() - 1;
    let chunk = |choices| ChatCompletionChunk {
        id: whole.id.clone(),
        object: "chat.completion.chunk".into(),
        created: whole.created,
        model: whole.model.clone(),
        choices,
        usage: Some(usage.clone()),
        prompt_token_ids: None,
    };
    let choices = deltas.into_iter().enumerate().map(|(at, delta)| ChunkChoice {
        delta,
        finish_reason: (at == last).then(|| finish.clone()),
        stop_reason: stop.clone().filter(|_| at == last),
        ..ChunkChoice::default()
    });
    let mut chunks: Vec<ChatCompletionChunk> = choices.map(|choice| chunk(vec![choice])).collect();
    chunks.push(chunk(vec![]));
    sort_calls(Answered { whole, chunks })
}

/// The whole answer lists its calls as they came.
fn sort_calls(mut answered: Answered) -> Answered {
    let deltas = answered.chunks.iter().flat_map(|chunk| &chunk.choices);
    let order: Vec<String> = deltas
        .flat_map(|choice| choice.delta.tool_calls.iter().flatten())
        .filter_map(|call| call.id.clone())
        .collect();
    if let Some(calls) = &mut answered.whole.choices[0].message.tool_calls {
        calls.sort_by_key(|call| order.iter().position(|id| *id == call.id));
    }
    answered
}

/// JSON made of the words of these APIs, mostly in wrong places.
pub fn any_json() -> impl Strategy<Value = Value> {
    let words = [
        "type",
        "role",
        "content",
        "text",
        "user",
        "assistant",
        "tool_use",
        "tool_result",
        "tool_use_id",
        "input",
        "name",
        "function_call",
        "call_id",
        "arguments",
        "output",
        "message",
        "reasoning",
        "summary",
        "custom",
        "namespace",
        "tools",
        "function",
        "id",
        "messages",
        "system",
        "tool_choice",
        "any",
        "tool",
        "thinking",
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        prop::sample::select(words.to_vec()).prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 60, 6, move |inner| {
        let fields = prop::collection::vec((prop::sample::select(words.to_vec()), inner.clone()), 0..6);
        prop_oneof![
            prop::collection::vec(inner, 0..4).prop_map(Value::from),
            fields.prop_map(|fields| fields
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect()),
        ]
    })
}

/// The engine's bytes of a stream.
pub fn stream_bytes(chunks: &[ChatCompletionChunk]) -> Vec<u8> {
    let events = chunks
        .iter()
        .map(|chunk| format!("data: {}\n\n", serde_json::to_string(chunk).unwrap()));
    (events.collect::<String>() + "data: [DONE]\n\n").into_bytes()
}

/// The events that come of a stream whose bytes arrive `cut` at a time.
pub fn translated_stream(
    writer: impl AnswerWriter + 'static,
    chunks: &[ChatCompletionChunk],
    cut: usize,
) -> Vec<Value> {
    let mut translator = Translator::new(Box::new(writer), true);
    let mut out = Vec::new();
    for bytes in stream_bytes(chunks).chunks(cut) {
        out.extend(translator.push(bytes).unwrap());
    }
    assert!(translator.finish().unwrap().is_empty());
    let text = String::from_utf8(out).unwrap();
    let event = |event: &str| {
        let (name, data) = event.split_once('\n').unwrap();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str());
        data
    };
    text.split_terminator("\n\n").map(event).collect()
}

/// What comes of a whole answer.
pub fn translated_whole(writer: impl AnswerWriter + 'static, whole: &ChatCompletion) -> Value {
    let mut translator = Translator::new(Box::new(writer), false);
    assert!(translator.push(&serde_json::to_vec(whole).unwrap()).unwrap().is_empty());
    assert!(translator.kept().is_none());
    serde_json::from_slice(&translator.finish().unwrap()).unwrap()
}
