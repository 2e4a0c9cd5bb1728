//! Sessions on a made-up model and a sampler that plays given answers.

use std::collections::VecDeque;

use serde_json::json;
use tokio::sync::mpsc::UnboundedSender;

use super::*;
use crate::config::schema::{Ajet, MadnessCheck};
use crate::inference::{FinishReason, SampleEvent, SampleRequest, SampledToken, SamplingParams};
use crate::protocol::openai::{self, ChatMessage, ChoiceLogprobs, ToolCall};
use crate::timeline::Renderer;
use crate::timeline::fake::{END_OF_TEXT, Fake, IM_END, Template};
use futures_util::StreamExt;

impl ChatModel for Fake {
    fn token_bytes(&self, id: u32) -> Vec<u8> {
        self.decode(&[id]).into_bytes()
    }

    fn is_special(&self, id: u32) -> bool {
        id <= END_OF_TEXT
    }

    fn stop_token_ids(&self) -> &[u32] {
        &[IM_END, END_OF_TEXT]
    }

    fn chat_template(&self) -> &str {
        "<tool_call> </think>"
    }
}

/// How the next request is answered.
pub enum Script {
    /// With this text and an end token, as far as `max_tokens` and stop strings allow.
    Says(&'static str),
    /// The same with a token for each letter, so that encoding the text gives other tokens.
    Spells(&'static str),
    /// With these tokens so far; the test goes on by the channel.
    Begins(&'static str),
    /// It is queued; the test goes on by the channel.
    Waits,
    /// Not at all.
    Fails(&'static str),
    /// It is not even queued.
    QueueFull,
}

/// A request as it arrived.
struct Asked {
    prompt: Vec<u32>,
    params: SamplingParams,
    events: UnboundedSender<SampleEvent>,
}

struct Scripted {
    model: Arc<dyn ChatModel>,
    scripts: Mutex<VecDeque<Script>>,
    asked: Mutex<Vec<Asked>>,
}

fn token(id: u32) -> SampleEvent {
    SampleEvent::Token(SampledToken {
        id,
        logprob: -0.5,
        top: vec![(id, -0.5), (IM_END, -2.0)],
    })
}

impl Scripted {
    fn spelled(&self, text: &str) -> Vec<u32> {
        text.chars()
            .flat_map(|c| self.model.encode(&c.to_string()).unwrap())
            .collect()
    }
}

impl Sampler for Scripted {
    fn submit(&self, mut request: SampleRequest) -> Result<(), ChatError> {
        let script = self
            .scripts
            .lock()
            .unwrap()
            .pop_front()
            .expect("a script for each request");
        let events = request.events.clone();
        let tell = |event| events.send(event).unwrap();
        self.asked.lock().unwrap().push(Asked {
            prompt: request.prompt.clone(),
            params: request.params.clone(),
            events: request.events.clone(),
        });
        let (mut ids, goes_on) = match script {
            Script::QueueFull => return Err(ChatError::QueueFull("8 requests wait, 8 are allowed".into())),
            Script::Fails(why) => {
                tell(SampleEvent::Failed(why.into()));
                return Ok(());
            }
            Script::Waits => return Ok(()),
            Script::Says(text) => (self.model.encode(text).unwrap(), false),
            Script::Spells(text) => (self.spelled(text), false),
            Script::Begins(text) => (self.model.encode(text).unwrap(), true),
        };
        tell(SampleEvent::Started { cached_tokens: 3 });
        if goes_on {
            ids.into_iter().for_each(|id| tell(token(id)));
            return Ok(());
        }
        ids.extend(request.params.stop_token_ids.first());
        for (at, id) in ids.into_iter().enumerate() {
            tell(token(id));
            let stopped = request.stop.as_mut().is_some_and(|stop| stop.push(id));
            if stopped || request.params.stop_token_ids.contains(&id) {
                tell(SampleEvent::Finished(FinishReason::Stop));
                break;
            }
            if at + 1 == request.params.max_tokens {
                tell(SampleEvent::Finished(FinishReason::Length));
                break;
            }
        }
        Ok(())
    }

    fn weight_version(&self) -> u64 {
        4
    }
}

/// A session with its sampler.
pub struct Bench {
    sampler: Arc<Scripted>,
    pub session: Arc<Session>,
}

impl Bench {
    fn new(scripts: impl IntoIterator<Item = Script>) -> Self {
        Self::configured(scripts, |_| {})
    }

    fn configured(scripts: impl IntoIterator<Item = Script>, configure: impl FnOnce(&mut Ajet)) -> Self {
        let mut ajet = Ajet::default();
        ajet.rollout.max_model_len = Some(400);
        configure(&mut ajet);
        Self::with_model(Arc::new(Fake::new(Template::Keep)), scripts, &ajet)
    }

    pub fn with_model(model: Arc<dyn ChatModel>, scripts: impl IntoIterator<Item = Script>, ajet: &Ajet) -> Self {
        let sampler = Arc::new(Scripted {
            model: model.clone(),
            scripts: Mutex::new(scripts.into_iter().collect()),
            asked: Mutex::default(),
        });
        let backend = ChatBackend::new(model, sampler.clone(), ChatSettings::new(ajet)).unwrap();
        Self {
            sampler,
            session: Session::new(Arc::new(backend), "e"),
        }
    }

    async fn train(&self, body: Value) -> Result<ChatAnswer, ChatError> {
        self.session.chat(body, EpisodeType::Train).await
    }

    pub async fn whole(&self, body: Value) -> ChatCompletion {
        match self.train(body).await.unwrap() {
            ChatAnswer::Whole(completion) => *completion,
            ChatAnswer::Stream(_) => panic!("a stream was not asked for"),
        }
    }

    async fn chunks(&self, mut body: Value) -> Vec<ChatCompletionChunk> {
        body["stream"] = json!(true);
        match self.train(body).await.unwrap() {
            ChatAnswer::Stream(chunks) => chunks.map(Result::unwrap).collect().await,
            ChatAnswer::Whole(_) => panic!("a stream was asked for"),
        }
    }
}

fn user(content: &str) -> Value {
    json!({"role": "user", "content": content})
}

fn ask(content: &str) -> Value {
    json!({"model": "m", "messages": [user(content)]})
}

fn with_tools(mut body: Value) -> Value {
    body["tools"] = json!([{"type": "function", "function": {"name": "f", "parameters": {}}}]);
    body
}

/// The message that a client puts together from a stream, call ids left out.
fn sum(chunks: &[ChatCompletionChunk]) -> (ChatMessage, Option<openai::FinishReason>, Vec<u32>, usize) {
    let mut message = ChatMessage {
        content: Value::Null,
        ..ChatMessage::default()
    };
    let (mut finish, mut ids, mut logprobs) = (None, vec![], 0);
    for choice in chunks.iter().flat_map(|chunk| &chunk.choices) {
        assert_eq!(finish, None, "nothing comes after the finish reason");
        message.role += choice.delta.role.as_deref().unwrap_or("");
        if let Some(more) = &choice.delta.content {
            message.content = (message.content.as_str().unwrap_or("").to_owned() + more).into();
        }
        if let Some(more) = &choice.delta.reasoning_content {
            message.reasoning_content.get_or_insert_default().push_str(more);
        }
        for call in choice.delta.tool_calls.iter().flatten() {
            let calls = message.tool_calls.get_or_insert_default();
            assert_eq!(call.index as usize, calls.len());
            let function = call.function.clone().unwrap();
            calls.push(ToolCall {
                kind: call.kind.clone().unwrap(),
                function: crate::protocol::openai::FunctionCall {
                    name: function.name.unwrap(),
                    arguments: function.arguments.unwrap(),
                },
                ..ToolCall::default()
            });
        }
        ids.extend(choice.token_ids.iter().flatten());
        logprobs += choice.logprobs.as_ref().map_or(0, |logprobs| logprobs.content.len());
        finish = choice.finish_reason.clone();
    }
    (message, finish, ids, logprobs)
}

#[tokio::test]
async fn a_conversation_with_a_tool_is_one_row() {
    let bench = Bench::new([
        Script::Says("ab\n<tool_call>\n{\"name\":  \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>"),
        Script::Says("done"),
    ]);
    let first = bench.whole(with_tools(ask("q"))).await;
    let choice = &first.choices[0];
    assert_eq!(choice.finish_reason, Some(openai::FinishReason::ToolCalls));
    assert_eq!(choice.message.content, "ab");
    let call = &choice.message.tool_calls.as_ref().unwrap()[0];
    assert_eq!(
        (call.function.name.as_str(), call.function.arguments.as_str()),
        ("f", r#"{"a": 1}"#)
    );
    assert!(call.id.starts_with("call_"));
    assert_eq!(
        first.usage.total_tokens,
        first.usage.prompt_tokens + first.usage.completion_tokens
    );
    assert_eq!(first.usage.prompt_tokens_details.as_ref().unwrap().cached_tokens, 3);

    let mut body = with_tools(ask("q"));
    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(json!(choice.message));
    messages.push(json!({"role": "tool", "content": "t", "tool_call_id": call.id}));
    let second = bench.whole(body).await;
    assert_eq!(second.choices[0].message.content, "done");

    let record = bench.session.finish();
    assert_eq!(record.rows.len(), 1);
    let sampled = first.usage.completion_tokens + second.usage.completion_tokens;
    assert_eq!(record.rows[0].response_tokens() as u64, sampled);
    assert_eq!((record.usage.llm_calls, record.usage.completion_tokens), (2, sampled));
    assert_eq!(record.usage.cached_tokens, 6);
    assert!(record.usage.counters.is_empty(), "{:?}", record.usage.counters);
    assert_eq!(record.calls[0].agent, "m");
    assert_eq!(record.calls[0].weight_version, 4);
    assert_eq!(bench.session.finish().rows.len(), 0, "the record is taken");
}

#[tokio::test]
async fn a_stream_is_the_whole_answer_in_pieces() {
    for text in [
        "",
        "abc 日本é\n",
        "<think>\nab\n</think>\n\nabc",
        "<think>ab",
        "ab <tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>\n<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": {a}}</tool_call>",
        "a STOP b",
        "ab <tool_call>{\"name\": \"f\"}</tool_call> b",
        "<tool_call>{\"name\": \"f\", \"arguments\": null}",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1.10}}</tool",
        "<tool_call>{\"name\": \"f\", \"argu",
    ] {
        let bench = Bench::new([Script::Says(text), Script::Says(text)]);
        let mut body = with_tools(ask("q"));
        body["stop"] = json!(["STOP"]);
        body["logprobs"] = json!(true);
        body["top_logprobs"] = json!(2);
        body["return_token_ids"] = json!(true);
        body["stream_options"] = json!({"include_usage": true});
        let mut whole = bench.whole(body.clone()).await;
        let chunks = bench.chunks(body).await;

        let choice = &mut whole.choices[0];
        let calls = choice.message.tool_calls.iter_mut().flatten();
        calls.for_each(|call| call.id.clear());
        let (mut message, finish, ids, logprobs) = sum(&chunks);
        if choice.message.content.is_null() && message.content == "" {
            message.content = Value::Null; // the role chunk has an empty content
        }
        assert_eq!(message, choice.message, "{text}");
        assert_eq!(finish, choice.finish_reason);
        assert_eq!(Some(ids), choice.token_ids);
        let told: &ChoiceLogprobs = choice.logprobs.as_ref().unwrap();
        assert_eq!((logprobs, told.content[0].top_logprobs.len()), (told.content.len(), 2));
        assert_eq!(chunks.last().unwrap().usage.as_ref(), Some(&whole.usage));
        assert_eq!(chunks[0].prompt_token_ids, whole.prompt_token_ids);
        assert!(whole.prompt_token_ids.is_some());
        assert!(chunks.iter().all(|chunk| chunk.id == chunks[0].id));

        let record = bench.session.finish();
        assert_eq!(
            record.calls[0].sampled, record.calls[1].sampled,
            "both are recorded alike"
        );
        assert_eq!(record.rows.len(), 2);
    }
}

#[tokio::test]
async fn tokens_stream_as_they_are_sampled() {
    let bench = Bench::new([Script::Begins("ab")]);
    let mut body = ask("q");
    body["stream"] = json!(true);
    let Ok(ChatAnswer::Stream(mut chunks)) = bench.train(body).await else {
        panic!()
    };
    assert_eq!(
        chunks.next().await.unwrap().unwrap().choices[0].delta.role.as_deref(),
        Some("assistant")
    );
    let delta = chunks.next().await.unwrap().unwrap().choices[0].delta.clone();
    assert_eq!(delta.content.as_deref(), Some("ab"));
    drop(chunks);
    let events = bench.sampler.asked.lock().unwrap()[0].events.clone();
    assert!(events.is_closed(), "an agent that goes away cancels its sampling");
    assert_eq!(bench.session.finish().calls.len(), 0, "and nothing is recorded");
}

#[tokio::test]
async fn ending_an_episode_cancels_what_is_sampled() {
    let bench = Bench::new([Script::Begins("ab")]);
    let mut body = ask("q");
    body["stream"] = json!(true);
    let Ok(ChatAnswer::Stream(mut chunks)) = bench.train(body).await else {
        panic!()
    };
    bench.session.end();
    let mut last = None;
    while let Some(chunk) = chunks.next().await {
        last = Some(chunk);
    }
    assert_eq!(last.unwrap().unwrap_err(), ChatError::EpisodeNotFound("e".into()));
    assert_eq!(bench.train(ask("q")).await.err().unwrap().status(), 404);
}

#[tokio::test]
async fn limits_of_a_turn() {
    let bench = Bench::configured(
        [Script::Says("abcabcabc"), Script::Says("a"), Script::Says("a")],
        |ajet| ajet.rollout.max_response_length_in_one_turn = Some(200),
    );
    let mut body = ask("q");
    body["max_tokens"] = json!(2);
    body["temperature"] = json!(0.1);
    let cut = bench.whole(body).await;
    assert_eq!(cut.choices[0].finish_reason, Some(openai::FinishReason::Length));
    assert_eq!(cut.usage.completion_tokens, 2);
    let mut body = ask("r");
    body["max_completion_tokens"] = json!(10_000);
    bench.whole(body).await;
    bench.whole(ask(&"x ".repeat(150))).await;
    let asked = bench.sampler.asked.lock().unwrap();
    assert_eq!(asked[0].params.temperature, 1.0, "train episodes draw as configured");
    assert_eq!(asked[1].params.max_tokens, 200);
    assert_eq!(
        asked[2].params.max_tokens,
        400 - asked[2].prompt.len(),
        "what is left of max_model_len"
    );
    drop(asked);
    assert_eq!(bench.session.finish().usage.counters["turn_length_cut"], 1);
}

#[tokio::test]
async fn answers_have_their_full_length_where_end_tokens_are_ignored() {
    let bench = Bench::configured([Script::Spells("abcdef")], |ajet| ajet.rollout.ignore_eos = true);
    let mut body = ask("q");
    body["max_tokens"] = json!(4);
    let answer = bench.whole(body).await;
    assert_eq!(answer.choices[0].finish_reason, Some(openai::FinishReason::Length));
    assert_eq!(answer.usage.completion_tokens, 4);
    let asked = bench.sampler.asked.lock().unwrap();
    assert!(
        asked[0].params.stop_token_ids.is_empty(),
        "nothing ends it but its length"
    );
}

/// A conversation of these messages, the user's and the model's in turn.
fn talk(messages: &[&str]) -> Value {
    let roles = ["user", "assistant"].into_iter().cycle();
    let messages = roles
        .zip(messages)
        .map(|(role, content)| json!({"role": role, "content": content}));
    json!({"model": "m", "messages": messages.collect::<Vec<_>>()})
}

/// Seen with AgentJet's helper, which looks for these words, and with agents that compact their history after them.
#[tokio::test]
async fn a_prompt_that_does_not_fit_is_answered_in_agentjets_words_and_a_shorter_one_goes_on() {
    let long = "x ".repeat(400);
    let limit = 399;
    let histories: [(&str, &[&str]); 4] = [
        ("the same task, shorter", &["compact"]),
        ("the conversation so far, shorter from there", &["q", "ab", "short"]),
        ("the notice left in", &["q", "ab", "OVERFLOW", "short"]),
        ("the notice left in behind a summary", &["summary", "OVERFLOW", "short"]),
    ];
    for (what, history) in histories {
        let bench = Bench::new([Script::Says("ab"), Script::Says("ok")]);
        bench.whole(ask("q")).await;
        let answer = bench.whole(talk(&["q", "ab", &long])).await;
        let choice = &answer.choices[0];
        let given = answer.usage.prompt_tokens;
        let notice = choice.message.content.as_str().unwrap();
        assert_eq!(
            notice,
            format!("AgentJet: Exceeded max model context length. token_overflow({given} > {limit})")
        );
        assert_eq!(
            (&choice.finish_reason, answer.usage.completion_tokens),
            (&Some(openai::FinishReason::Length), 0)
        );
        let (message, finish, ..) = sum(&bench.chunks(talk(&["q", "ab", &long])).await);
        assert_eq!(
            (&message.content, finish),
            (&json!(notice), Some(openai::FinishReason::Length))
        );

        let history: Vec<&str> = history
            .iter()
            .map(|text| if *text == "OVERFLOW" { notice } else { text })
            .collect();
        let next = bench.whole(talk(&history)).await;
        assert_eq!(next.choices[0].message.content, "ok", "{what}");
        let record = bench.session.finish();
        assert_eq!(record.usage.counters["episode_overflow"], 1, "{what}");
        assert_eq!(record.calls.len(), 2, "{what}: notices are no calls");
        let trained: usize = record.rows.iter().map(Row::response_tokens).sum();
        let sampled: usize = record.calls.iter().map(|call| call.sampled.len()).sum();
        assert_eq!(trained, sampled, "{what}: what the model sampled, and only that");
    }
}

#[tokio::test]
async fn a_prompt_that_does_not_fit_is_openais_error_where_configured_and_a_shorter_one_goes_on() {
    let bench = Bench::configured([Script::Says("ab"), Script::Says("ok")], |ajet| {
        ajet.rollout.on_context_overflow = OnContextOverflow::Error
    });
    for words in [400, 1000] {
        let error = bench.train(ask(&"x ".repeat(words))).await.err().unwrap();
        let ChatError::ContextLengthExceeded { given, .. } = error else {
            panic!("{error}");
        };
        let object = error.body().error;
        let openais = format!(
            "This model's maximum context length is 400 tokens. However, your messages resulted in {given} tokens."
        );
        assert!(object.message.starts_with(&openais), "{}", object.message);
        assert_eq!(
            (error.status(), object.code.as_deref(), object.kind.as_str()),
            (400, Some("context_length_exceeded"), "invalid_request_error")
        );
        let tokens = object.prompt_tokens.unwrap();
        assert_eq!((tokens.given, tokens.max), (given as u64, 399));
        let next = bench.whole(ask("compacted")).await;
        assert_ne!(next.choices[0].message.content, "");
    }
    let record = bench.session.finish();
    assert_eq!((record.rows.len(), record.usage.counters["episode_overflow"]), (2, 1));
}

#[tokio::test]
async fn a_model_that_lost_control_is_flagged_and_asked_no_more_where_configured() {
    for terminates in [true, false] {
        let bench = Bench::configured([Script::Says("<think>ab"), Script::Says("ab")], |ajet| {
            ajet.rollout.compute_madness_checklist = vec![MadnessCheck::UnpairedThink, MadnessCheck::NonAscii];
            ajet.rollout.agent_madness_termination = terminates;
        });
        assert_eq!(bench.whole(ask("q")).await.choices[0].message.content, "<think>ab");
        let next = &bench.whole(ask("again")).await.choices[0];
        match terminates {
            true => assert_eq!(
                (&next.message.content, &next.finish_reason),
                (&json!(""), &Some(openai::FinishReason::Length))
            ),
            false => assert_eq!(next.message.content, "ab"),
        }
        let record = bench.session.finish();
        assert!(record.mad);
        assert_eq!(record.usage.counters["madness/un-paired-think"], 1);
        assert!(!record.usage.counters.contains_key("madness/non_ascii"));
        assert_eq!(
            (record.calls.len(), record.usage.llm_calls),
            (if terminates { 1 } else { 2 }, 2)
        );
    }
}

#[tokio::test]
async fn failures_are_errors_of_the_right_kind() {
    let bench = Bench::new([Script::Fails("out of memory"), Script::QueueFull]);
    let mut streamed = ask("q");
    streamed["stream"] = json!(true);
    let failed = bench.train(streamed).await.err().unwrap();
    assert_eq!((failed.status(), failed.retry_after()), (500, None));
    assert!(failed.to_string().contains("out of memory"));
    let full = bench.train(ask("q")).await.err().unwrap();
    assert_eq!((full.status(), full.retry_after()), (429, Some(1)));
    assert_eq!(bench.train(json!({"messages": []})).await.err().unwrap().status(), 400);
    assert_eq!(bench.session.finish().calls.len(), 0);
}

#[tokio::test]
async fn a_full_queue_is_told_until_an_answer_is_through() {
    let scripts = [Script::Begins("a"), Script::Begins("b"), Script::Says("c")];
    let bench = Bench::configured(scripts, |ajet| {
        ajet.rollout.max_num_seqs = 1;
        ajet.rollout.max_queued_requests = 1;
    });
    let mut body = ask("q");
    body["stream"] = json!(true);
    let first = bench.train(body.clone()).await.unwrap();
    let _second = bench.train(body).await.unwrap();
    let Err(full) = bench.train(ask("q")).await else {
        panic!("there was no room");
    };
    assert_eq!((full.status(), full.retry_after()), (429, Some(1)));
    assert!(
        full.to_string().contains("limit of 2 sampled and queued requests"),
        "{full}"
    );
    drop(first);
    assert_eq!(bench.whole(ask("q")).await.choices[0].message.content, "c");
}

/// The beginning is context, the answer holds only what is new, and the turn that the client puts together goes on.
#[tokio::test]
async fn an_answer_goes_on_from_the_beginning_that_the_request_gives() {
    for (begun, says, new) in [
        ("ab", "c abc", "c abc"),
        ("ab\n\n", "abc", "abc"),
        ("a <tool", "b", "b"),
        ("{\"", " abc", " abc"),
        ("", "abc", "abc"),
    ] {
        let bench = Bench::new([Script::Says(says), Script::Says("b")]);
        let mut body = with_tools(ask("q"));
        let messages = json!([user("q"), {"role": "assistant", "content": begun}]);
        body["messages"] = messages;
        body["continue_final_message"] = json!(true);
        let whole = bench.whole(body.clone()).await;
        assert_eq!(whole.choices[0].message.content, new, "{begun:?}");
        let prompt = bench
            .sampler
            .model
            .decode(&bench.sampler.asked.lock().unwrap()[0].prompt);
        assert!(prompt.ends_with(begun), "{prompt:?}");
        let (streamed, ..) = sum(&Bench::new([Script::Says(says)]).chunks(body.clone()).await);
        assert_eq!(streamed.content, new, "{begun:?}");

        body["messages"] = json!([user("q"), {"role": "assistant", "content": format!("{begun}{new}")}, user("q")]);
        body["continue_final_message"] = json!(false);
        bench.whole(body).await;
        let record = bench.session.finish();
        let last = record.calls.last().unwrap();
        assert!(record.calls[0].is_prefix_of(&last.prompt), "{begun:?}");
        assert_eq!(record.rows.len(), 1, "{begun:?}");
        let trained = record.rows[0].response_tokens();
        assert_eq!(trained, record.calls[0].sampled.len() + last.sampled.len(), "{begun:?}");
    }
}

#[tokio::test]
async fn several_answers_in_an_eval_episode() {
    let bench = Bench::new([
        Script::Says("a"),
        Script::Says("b"),
        Script::Says("a"),
        Script::Says("b"),
    ]);
    let mut body = ask("q");
    body["n"] = json!(2);
    body["seed"] = json!(5);
    let Ok(ChatAnswer::Whole(whole)) = bench.session.chat(body.clone(), EpisodeType::Eval).await else {
        panic!()
    };
    let contents: Vec<&str> = whole
        .choices
        .iter()
        .map(|choice| choice.message.content.as_str().unwrap())
        .collect();
    assert_eq!(contents, ["a", "b"]);
    assert_eq!(whole.usage.completion_tokens, 4);
    let seeds: Vec<u64> = bench
        .sampler
        .asked
        .lock()
        .unwrap()
        .iter()
        .map(|asked| asked.params.seed)
        .collect();
    assert_eq!(seeds[0], 5);
    assert!(
        seeds[1].abs_diff(5) > 1 << 32,
        "not what a neighbouring seed gives: {seeds:?}"
    );

    body["stream"] = json!(true);
    let Ok(ChatAnswer::Stream(chunks)) = bench.session.chat(body, EpisodeType::Eval).await else {
        panic!()
    };
    let chunks: Vec<_> = chunks.map(Result::unwrap).collect().await;
    for (index, expected) in ["a", "b"].into_iter().enumerate() {
        let of_one: Vec<ChatCompletionChunk> = chunks
            .iter()
            .cloned()
            .map(|mut chunk| {
                chunk.choices.retain(|choice| choice.index == index as u32);
                chunk
            })
            .collect();
        assert_eq!(sum(&of_one).0.content, expected);
    }
    assert_eq!(bench.session.finish().usage.llm_calls, 2);
}

/// Seen with `top_p: 0`, which was a 500 that clients tried again.
#[tokio::test]
async fn a_nucleus_of_no_mass_is_greedy() {
    let bench = Bench::new([Script::Says("a"), Script::Says("a"), Script::Says("a")]);
    for top_p in [json!(0), json!(-0.0), json!(1e-60)] {
        let mut body = ask("q");
        body["top_p"] = top_p;
        assert!(bench.session.chat(body, EpisodeType::Eval).await.is_ok());
    }
    for asked in bench.sampler.asked.lock().unwrap().iter() {
        assert_eq!((asked.params.top_k, asked.params.top_p), (Some(1), 1.0));
        assert!(crate::inference::sampler::check(&asked.params).is_ok());
    }
}

/// Seen with long prompts and full queues: no byte came before the first token.
#[tokio::test]
async fn a_stream_begins_before_its_first_token() {
    let bench = Bench::new([Script::Waits]);
    let mut body = ask("q");
    body["stream"] = json!(true);
    body["stream_options"] = json!({"include_usage": true});
    let Ok(ChatAnswer::Stream(mut chunks)) = bench.train(body).await else {
        panic!()
    };
    let role = chunks.next().await.unwrap().unwrap();
    assert_eq!(role.choices[0].delta.role.as_deref(), Some("assistant"));
    let events = bench.sampler.asked.lock().unwrap()[0].events.clone();
    let ids = bench.sampler.model.encode("ab").unwrap();
    let end = [SampleEvent::Finished(FinishReason::Stop)];
    for event in [SampleEvent::Started { cached_tokens: 2 }]
        .into_iter()
        .chain(ids.into_iter().map(token))
        .chain(end)
    {
        events.send(event).unwrap();
    }
    let rest: Vec<_> = chunks.map(Result::unwrap).collect().await;
    assert_eq!(sum(&rest).0.content, "ab");
    let usage = rest.last().unwrap().usage.clone().unwrap();
    assert_eq!(usage.prompt_tokens_details.unwrap().cached_tokens, 2);
    assert_eq!(bench.session.finish().usage.cached_tokens, 2);
}

#[tokio::test]
async fn without_tools_a_tool_call_is_text() {
    let text = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
    let bench = Bench::new([Script::Says(text), Script::Says(text)]);
    assert_eq!(bench.whole(ask("q")).await.choices[0].message.content, text);
    let mut body = with_tools(ask("q"));
    body["tool_choice"] = json!("none");
    assert_eq!(bench.whole(body).await.choices[0].message.content, text);
}

#[tokio::test]
async fn one_call_where_parallel_ones_are_not_wanted() {
    let two = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>\
               <tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>";
    let bench = Bench::new([Script::Says(two), Script::Says("ab")]);
    let mut body = with_tools(ask("q"));
    body["parallel_tool_calls"] = json!(false);
    let first = bench.whole(body.clone()).await;
    let calls = first.choices[0].message.tool_calls.as_ref().unwrap();
    assert_eq!(
        calls.iter().map(|call| call.function.name.as_str()).collect::<Vec<_>>(),
        ["f"]
    );

    // What was sampled stays in the row, the call that was not told of included.
    body["messages"]
        .as_array_mut()
        .unwrap()
        .extend([json!(first.choices[0].message), user("r")]);
    bench.whole(body).await;
    assert_eq!(bench.session.finish().rows.len(), 1);
}
