//! The engine's side of the model API: whole episodes on real models, and the rows that they come to.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ajet_swarm::collective::Alone;
use ajet_swarm::engine::boot::{EngineError, Options, Purpose, run};
use ajet_swarm::model::{PackedBatch, Trainable, Transformer, Weights, load};
use ajet_swarm::protocol::engine::{ChatCall, EndEpisode, EndOutcome};
use ajet_swarm::protocol::swarm::{EpisodeConversations, EpisodeType};
use ajet_swarm::server::engine::client::{EngineAnswer, EngineClient};
use ajet_swarm::timeline::Row;
use candle_core::{DType, Device, Tensor};
use futures_util::StreamExt;
use futures_util::future::{join_all, select_all};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::value::to_raw_value;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A small random model, which speaks ASCII.
const RANDOM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/models/llama");
/// A template with tools.
const TEMPLATE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/assets/models/scripted/chat_template.jinja"
);

/// A running engine, in this process.
pub(super) struct Engine {
    client: EngineClient,
    dir: tempfile::TempDir,
    pub(super) model: String,
    model_dir: Option<tempfile::TempDir>,
    _task: JoinHandle<Result<(), EngineError>>,
    _abandon: oneshot::Sender<()>,
}

/// A call as the sampler saw it.
#[derive(Clone, Debug)]
struct Sampled {
    prompt: Vec<u32>,
    sampled: Vec<u32>,
    cached: u64,
}

impl Engine {
    async fn start(model: &str, max_model_len: usize, turn: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let options = Options {
            socket: dir.path().join("s"),
            config: dir.path().join("config.json"),
            experiment_dir: dir.path().join("experiment"),
            purpose: Purpose::Training,
        };
        let config = json!({"ajet": {
            "experiment_name": "test", "model": {"path": model},
            "data": {"train_batch_size": 100, "max_prompt_length": max_model_len / 2, "max_response_length": max_model_len / 2},
            // A random model talks nonsense, which would end its episodes.
            "rollout": {"max_model_len": max_model_len, "max_response_length_in_one_turn": turn, "max_num_seqs": 4,
                "compute_madness_checklist": []},
            "engine": {"device": "cpu", "threads": 1},
        }});
        std::fs::write(&options.config, config.to_string()).unwrap();
        let client = EngineClient::new(&options.socket);
        let (abandon, abandoned) = oneshot::channel::<()>();
        let mut task = tokio::spawn(run(options, Arc::new(Alone), async {
            let _ = abandoned.await;
        }));
        while !client.hello().await.is_ok_and(|hello| hello.ready) {
            assert!(!task.is_finished(), "{:?}", (&mut task).await);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Self {
            client,
            model: model.to_owned(),
            model_dir: None,
            dir,
            _task: task,
            _abandon: abandon,
        }
    }

    /// The random model with room for long conversations and a template with tools.
    pub(super) async fn random(turn: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for file in std::fs::read_dir(RANDOM).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), dir.path().join(file.file_name())).unwrap();
        }
        std::fs::copy(TEMPLATE, dir.path().join("chat_template.jinja")).unwrap();
        let config = std::fs::read_to_string(dir.path().join("config.json")).unwrap();
        let mut config: Value = serde_json::from_str(&config).unwrap();
        config["max_position_embeddings"] = json!(8192);
        std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
        let mut engine = Self::start(&dir.path().display().to_string(), 8192, turn).await;
        engine.model_dir = Some(dir);
        engine
    }

    /// The scripted model with these answers.
    async fn scripted(lines: &[Value]) -> Self {
        Self::scripted_with(lines, 400).await
    }

    async fn scripted_with(lines: &[Value], turn: usize) -> Self {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        std::fs::write(file.path(), text).unwrap();
        Self::start(&format!("builtin:scripted:{}", file.path().display()), 16_000, turn).await
    }

    pub(super) async fn send(&self, episode: &str, request: Value) -> EngineAnswer {
        let call = ChatCall {
            episode_type: EpisodeType::Train,
            request: to_raw_value(&request).unwrap(),
        };
        self.client.chat(episode, &call).await.unwrap()
    }

    pub(super) async fn try_chat(&self, episode: &str, request: Value) -> (u16, Value) {
        let answer = self.send(episode, request).await;
        let status = answer.head.status.as_u16();
        let body: Vec<u8> = answer
            .into_bytes_stream()
            .map(|bytes| bytes.unwrap().to_vec())
            .concat()
            .await;
        (status, serde_json::from_slice(&body).unwrap())
    }

    /// One call of an agent: the choice, and what the sampler saw.
    async fn chat(&self, episode: &str, mut request: Value) -> (Value, Sampled) {
        request["return_token_ids"] = json!(true);
        let (status, body) = self.try_chat(episode, request).await;
        assert_eq!(status, 200, "{body}");
        let choice = body["choices"][0].clone();
        let ids = |value: &Value| serde_json::from_value::<Vec<u32>>(value.clone()).unwrap();
        let sampled = Sampled {
            prompt: ids(&body["prompt_token_ids"]),
            sampled: ids(&choice["token_ids"]),
            cached: body["usage"]["prompt_tokens_details"]["cached_tokens"]
                .as_u64()
                .unwrap(),
        };
        assert_eq!(body["usage"]["prompt_tokens"], sampled.prompt.len());
        assert_eq!(body["usage"]["completion_tokens"], sampled.sampled.len());
        (choice, sampled)
    }

    pub(super) async fn end(&self, episode: &str) -> EndOutcome {
        let end = EndEpisode {
            episode_type: EpisodeType::Train,
            client_uuid: "client".into(),
            task_id: "task".into(),
            reward: 1.0,
            is_success: None,
            claimed_at_step: 1,
            metadata: Default::default(),
            log_metrics: Default::default(),
        };
        self.client.end(episode, &end).await.unwrap()
    }

    /// What the journal has of an episode.
    pub(super) fn journaled(&self, episode: &str) -> Value {
        let journal = std::fs::read_to_string(self.dir.path().join("experiment/journal.jsonl")).unwrap();
        let mut records = journal.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        records.find(|record| record["episode_uuid"] == episode).unwrap()
    }

    /// Ends an episode; its rows have each sampled token once, behind what the model saw, with the log-probability that
    /// the trainer computes.
    async fn end_with_rows(&self, episode: &str, calls: &[Sampled]) -> Vec<Row> {
        let outcome = self.end(episode).await;
        let rows: Vec<Row> = serde_json::from_value(self.journaled(episode)["rows"].clone()).unwrap();
        assert_eq!(outcome.rows, rows.len() as u64);
        let mut expected: Vec<Vec<u32>> = Vec::new();
        for call in calls {
            let all = [call.prompt.as_slice(), &call.sampled].concat();
            expected.extend((call.prompt.len()..all.len()).map(|at| all[..=at].to_vec()));
        }
        let mut found: Vec<Vec<u32>> = Vec::new();
        for row in &rows {
            let trained = (0..row.token_ids.len()).filter(|at| row.loss_mask[*at]);
            found.extend(trained.map(|at| row.token_ids[..=at].to_vec()));
        }
        expected.sort();
        found.sort();
        assert!(
            expected == found,
            "what is trained is what was sampled, behind what the model saw, each token once"
        );
        let weights = self.weights();
        for row in &rows {
            check_log_probs(&weights, row);
        }
        rows
    }

    fn weights(&self) -> Weights {
        let model = load(&self.model, &Device::Cpu, DType::F32, &mut |_, _| {}).unwrap();
        Weights::new(model.config, model.tensors, &Trainable::Nothing).unwrap()
    }
}

fn check_log_probs(weights: &Weights, row: &Row) {
    let targets: Vec<usize> = (0..row.token_ids.len()).filter(|at| row.loss_mask[*at]).collect();
    let before: Vec<u32> = targets.iter().map(|at| *at as u32 - 1).collect();
    let ids: Vec<u32> = targets.iter().map(|at| row.token_ids[*at]).collect();
    let transformer = Transformer::new(weights);
    let hidden = transformer.hidden(&PackedBatch::from_rows(&[&row.token_ids])).unwrap();
    let hidden = hidden
        .index_select(&Tensor::new(before.as_slice(), &Device::Cpu).unwrap(), 0)
        .unwrap();
    let (found, _) = transformer.log_probs(&hidden, &ids, &[], 1.0).unwrap();
    for (found, at) in found
        .flatten_all()
        .unwrap()
        .to_vec1::<f32>()
        .unwrap()
        .iter()
        .zip(&targets)
    {
        let recorded = row.logprobs[*at];
        assert!(
            (found - recorded).abs() < 1e-4,
            "place {at}: {found} recomputed, {recorded} recorded"
        );
    }
}

fn user(content: impl Into<String>) -> Value {
    json!({"role": "user", "content": content.into()})
}

fn tool_call(name: &str, arguments: &Value) -> String {
    format!(
        "<tool_call>\n{}\n</tool_call>",
        json!({"name": name, "arguments": arguments})
    )
}

fn tools() -> Value {
    json!([{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}])
}

/// The answer to a call of a tool.
fn tool_result(choice: &Value, content: &str) -> Value {
    let id = &choice["message"]["tool_calls"][0]["id"];
    json!({"role": "tool", "content": content, "tool_call_id": id})
}

/// Plays a random agent on its own conversation: it goes on, branches, asks again and in parallel, edits and drops
/// messages, answers tools.
async fn random_agent(engine: &Engine, episode: &str, id: usize, rng: &mut ChaCha8Rng, calls: &mut Vec<Sampled>) {
    let start = || vec![user(format!("agent {id}"))];
    let mut messages = start();
    for turn in 0..6 {
        let ask = |messages: &[Value]| json!({"model": format!("agent-{id}"), "messages": messages, "tools": tools()});
        let (choice, call) = engine.chat(episode, ask(&messages)).await;
        calls.push(call);
        let answer = choice["message"].clone();
        match rng.random_range(0..8) {
            0 => messages = start(),
            1 => {
                let edited = rng.random_range(0..messages.len());
                messages[edited]["content"] = json!("edited");
            }
            2 => messages.truncate(messages.len().saturating_sub(2).max(1)),
            3 => {
                let branches = ["left", "right"].map(|side| [&messages[..], &[answer.clone(), user(side)]].concat());
                let asked = join_all(branches.iter().map(|branch| engine.chat(episode, ask(branch)))).await;
                calls.extend(asked.into_iter().map(|(_, call)| call));
                messages.extend([answer, user("right")]);
            }
            4 => {
                messages.extend([
                    answer,
                    json!({"role": "tool", "content": "seen\n", "tool_call_id": "x"}),
                ]);
                messages.push(json!({"role": "tool", "content": "", "tool_call_id": "y"}));
            }
            _ => messages.extend([answer, user(format!("turn {turn}\n\n"))]),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn random_agents_train_every_sampled_token_once_with_its_log_probability() {
    let engine = Engine::random(12).await;
    for seed in 0..6 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let episode = format!("random-{seed}");
        let mut calls = Vec::new();
        for id in 0..=seed as usize % 2 {
            random_agent(&engine, &episode, id, &mut rng, &mut calls).await;
        }
        engine.end_with_rows(&episode, &calls).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn interleaved_agents_have_a_row_each() {
    let engine = Engine::random(6).await;
    let mut conversations = [vec![user("one")], vec![user("two")]];
    let mut calls = Vec::new();
    for turn in 0..8 {
        let messages = &mut conversations[turn % 2];
        let (choice, call) = engine.chat("e", json!({"messages": messages})).await;
        messages.extend([choice["message"].clone(), user("go on")]);
        calls.push(call);
    }
    assert_eq!(engine.end_with_rows("e", &calls).await.len(), 2);
}

/// Plays turns of one conversation, in which tools answer where the model calls them and now and then besides; checks
/// that each turn feeds the tokens of the one before and computes only what is new.
async fn play_linear(engine: &Engine, turns: usize) -> Vec<Sampled> {
    let mut messages = vec![json!({"role": "system", "content": "s"}), user("go")];
    let mut calls: Vec<Sampled> = Vec::new();
    for turn in 0..turns {
        let (choice, call) = engine.chat("e", json!({"messages": messages, "tools": tools()})).await;
        if let Some(last) = calls.last() {
            let before = [&last.prompt[..], &last.sampled].concat();
            assert!(call.prompt.starts_with(&before), "turn {turn} feeds what was sampled");
            // The last sampled token was never fed, so it is computed with the new ones.
            let computed_before = before.len() as u64 - 1;
            assert!(
                call.cached >= computed_before,
                "turn {turn}: {} of {computed_before} cached",
                call.cached
            );
        }
        messages.push(choice["message"].clone());
        messages.push(match (choice["finish_reason"] == "tool_calls", turn % 7) {
            (true, _) => tool_result(&choice, "seen"),
            (false, 3) => json!({"role": "tool", "content": "late\n", "tool_call_id": "x"}),
            (false, _) => user("on"),
        });
        calls.push(call);
    }
    calls
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_turns_are_one_row_and_only_new_tokens_are_computed() {
    let engine = Engine::random(8).await;
    let calls = play_linear(&engine, 100).await;
    assert_eq!(engine.end_with_rows("e", &calls).await.len(), 1);
    let usage = &engine.journaled("e")["usage"];
    let splits = usage["counters"]
        .as_object()
        .unwrap()
        .keys()
        .filter(|name| name.starts_with("timeline_splits"));
    assert_eq!((usage["llm_calls"].as_u64(), splits.count()), (Some(100), 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn turns_with_tool_calls_are_one_row_too() {
    let text = |turn: usize| match turn % 3 {
        1 => format!("see:\n{}", tool_call("look", &json!({"at": turn}))),
        _ => "é ok".to_owned(),
    };
    let script: Vec<Value> = (0..9).map(|turn| json!({"turn": turn, "text": text(turn)})).collect();
    let engine = Engine::scripted(&script).await;
    let calls = play_linear(&engine, 9).await;
    assert_eq!(engine.end_with_rows("e", &calls).await.len(), 1);
    assert_eq!(engine.journaled("e")["usage"]["counters"], json!({}));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_is_played_through_parsers_and_streams() {
    let thinking = format!(
        "<think>\nlet me\n</think>\n\nI look.\n{}",
        tool_call("look", &json!({"at": "日"}))
    );
    let script = [
        json!({"text": "a title", "contains": "title"}),
        json!({"text": thinking, "turn": 0, "tool": "look"}),
        json!({"text": "done END of it", "turn": 1}),
    ];
    let engine = Engine::scripted(&script).await;
    let asked = json!({"model": "m", "messages": [user("go")], "tools": tools()});
    let (choice, first) = engine.chat("e", asked.clone()).await;
    let message = &choice["message"];
    assert_eq!(
        (&message["content"], &message["reasoning_content"]),
        (&json!("I look."), &json!("let me"))
    );
    assert_eq!(
        message["tool_calls"][0]["function"],
        json!({"name": "look", "arguments": r#"{"at":"日"}"#})
    );
    assert_eq!(choice["finish_reason"], "tool_calls");

    let mut streamed = asked;
    streamed["stream"] = json!(true);
    streamed["stream_options"] = json!({"continuous_usage_stats": true});
    let answer = engine.send("other", streamed).await;
    let bytes: Vec<u8> = answer
        .into_bytes_stream()
        .map(|bytes| bytes.unwrap().to_vec())
        .concat()
        .await;
    let text = String::from_utf8(bytes).unwrap();
    let chunks: Vec<Value> = text
        .split_terminator("\n\n")
        .filter_map(|event| serde_json::from_str(event.strip_prefix("data: ")?).ok())
        .collect();
    let delta = |field: &str| -> String {
        let deltas = chunks.iter().map(|chunk| &chunk["choices"][0]["delta"][field]);
        deltas.filter_map(Value::as_str).collect()
    };
    assert_eq!(
        (delta("content").as_str(), delta("reasoning_content").as_str()),
        ("I look.", "let me")
    );
    let counts: Vec<u64> = chunks
        .iter()
        .map(|chunk| chunk["usage"]["completion_tokens"].as_u64().unwrap())
        .collect();
    assert!(
        counts.is_sorted() && counts[0] == 0 && counts.last() == Some(&(first.sampled.len() as u64)),
        "{counts:?}"
    );
    assert_eq!(chunks[0]["usage"]["prompt_tokens"], first.prompt.len());

    let messages = json!([user("go"), message, tool_result(&choice, "found")]);
    let (choice, second) = engine
        .chat("e", json!({"messages": messages, "tools": tools(), "stop": "END"}))
        .await;
    assert_eq!(
        (&choice["message"]["content"], &choice["stop_reason"]),
        (&json!("done "), &json!("END"))
    );
    assert_eq!(engine.end_with_rows("e", &[first, second]).await.len(), 1);

    let (_, title) = engine
        .chat("third", json!({"messages": [user("a title, please")]}))
        .await;
    assert_eq!(engine.end_with_rows("third", &[title]).await.len(), 1);
    let (status, refused) = engine.try_chat("fourth", json!({"messages": [user("go")]})).await;
    assert_eq!(status, 400);
    assert!(
        refused["error"]["message"].as_str().unwrap().contains("no script line"),
        "{refused}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forced_tool_call_begins_as_one_and_its_beginning_is_not_trained() {
    let engine = Engine::scripted(&[
        json!({"text": tool_call("look", &json!({"at": 1})), "turn": 0}),
        json!({"text": "thanks", "turn": 1}),
    ])
    .await;
    for (episode, choice) in [
        ("required", json!("required")),
        ("named", json!({"type": "function", "function": {"name": "look"}})),
    ] {
        let request = json!({"messages": [user("go")], "tools": tools(), "tool_choice": choice});
        let (choice, first) = engine.chat(episode, request.clone()).await;
        assert_eq!(choice["finish_reason"], "tool_calls");
        assert_eq!(choice["message"]["tool_calls"][0]["function"]["name"], "look");
        let messages = json!([user("go"), choice["message"], tool_result(&choice, "seen")]);
        let (_, second) = engine
            .chat(episode, json!({"messages": messages, "tools": tools()}))
            .await;
        let rows = engine.end_with_rows(episode, &[first, second]).await;
        assert_eq!(rows.len(), 1, "the forced beginning is context");
        // A call that is cut is text, its beginning with it.
        let mut cut = request;
        cut["max_tokens"] = json!(3);
        let (choice, _) = engine.chat(&format!("{episode}-cut"), cut).await;
        assert_eq!(choice["finish_reason"], "length");
        assert!(
            choice["message"]["content"]
                .as_str()
                .unwrap()
                .starts_with("<tool_call>\n{\"name\": \""),
            "{choice}"
        );
    }
    let plain = Engine::start("builtin:tiny", 600, 6).await;
    let request = json!({"messages": [user("go")], "tools": tools(), "tool_choice": "required"});
    let (status, refused) = plain.try_chat("e", request).await;
    assert_eq!((status, &refused["error"]["param"]), (400, &json!("tool_choice")));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_whose_agent_hangs_up_is_not_recorded() {
    let engine = Engine::random(4000).await;
    let request = json!({"messages": [user("go on and on")], "stream": true});
    let mut stream = Box::pin(engine.send("e", request).await.into_bytes_stream());
    for _ in 0..3 {
        stream.next().await.unwrap().unwrap();
    }
    drop(stream);
    let (_, call) = engine
        .chat("e", json!({"messages": [user("again")], "max_tokens": 4}))
        .await;
    let rows = engine.end_with_rows("e", &[call]).await;
    assert_eq!(rows.len(), 1);
    assert_eq!(engine.journaled("e")["usage"]["llm_calls"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_said_is_told_with_answers_counts_and_times() {
    let engine = Engine::scripted(&[
        json!({"contains": "sure", "text": "yes"}),
        json!({"contains": "2 + 2", "text": "4"}),
    ])
    .await;
    let told = async || {
        let answer = engine.client.conversations("e").await.unwrap();
        let body: Vec<u8> = answer
            .into_bytes_stream()
            .map(|bytes| bytes.unwrap().to_vec())
            .concat()
            .await;
        serde_json::from_slice::<EpisodeConversations>(&body).unwrap()
    };
    assert_eq!(told().await.conversations, []);
    let mut messages = vec![user("2 + 2?")];
    let (first, first_call) = engine.chat("e", json!({"messages": messages, "model": "solver"})).await;
    messages.extend([first["message"].clone(), user("sure?")]);
    let (_, second_call) = engine.chat("e", json!({"messages": messages, "model": "solver"})).await;
    let told = told().await;
    assert_eq!((told.llm_calls, told.main, told.conversations.len()), (2, Some(0), 1));
    let main = &told.conversations[0];
    assert_eq!((main.model.as_str(), main.messages.len()), ("solver", 4));
    assert_eq!(main.messages[1]["content"], first["message"]["content"]);
    assert_eq!(main.messages[3]["content"], "yes");
    for (answer, (place, call)) in main.answers.iter().zip([(1, first_call), (3, second_call)]) {
        assert_eq!((answer.message, answer.finish_reason.as_str()), (place, "stop"));
        assert_eq!(answer.prompt_tokens, call.prompt.len() as u64);
        assert_eq!(answer.completion_tokens, call.sampled.len() as u64);
        assert!(answer.begun > 1.0e9 && answer.seconds < 60.0, "{answer:?}");
    }
    engine.end("e").await;
}

/// Four answers run at once, so that a fifth begins only where one has given its place and cache back.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_hangs_up_makes_room_at_once() {
    let engine = Engine::scripted_with(
        &[
            json!({"contains": "long", "text": "and so on ".repeat(700)}),
            json!({"contains": "short", "text": "done"}),
        ],
        8000,
    )
    .await;
    let mut streams = Vec::new();
    for episode in ["a", "b", "c", "d"] {
        let request = json!({"messages": [user("long")], "stream": true});
        let mut stream = Box::pin(engine.send(episode, request).await.into_bytes_stream());
        stream.next().await.unwrap().unwrap();
        streams.push(stream);
    }
    drop(streams.pop());
    let hung_up = Instant::now();
    let others = streams.into_iter().map(|stream| Box::pin(stream.count()));
    tokio::select! {
        _ = engine.chat("short", json!({"messages": [user("short")]})) => {}
        _ = select_all(others) => panic!("the place was free only after an answer had ended"),
    }
    println!("another answer was whole {:?} after the hang-up", hung_up.elapsed());
    let outcome = engine.end("d").await;
    assert_eq!((outcome.llm_calls, outcome.rows), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_counted_as_they_would_be_fed() {
    let engine = Engine::start("builtin:tiny", 600, 4).await;
    let count = async |messages: &Value| {
        let call = ChatCall {
            episode_type: EpisodeType::Train,
            request: to_raw_value(&json!({"messages": messages})).unwrap(),
        };
        let answer = engine.client.count_tokens("e", &call).await.unwrap();
        let body: Vec<u8> = answer
            .into_bytes_stream()
            .map(|bytes| bytes.unwrap().to_vec())
            .concat()
            .await;
        serde_json::from_slice::<Value>(&body).unwrap()["input_tokens"]
            .as_u64()
            .unwrap()
    };
    let mut messages = vec![user("how many?")];
    for _ in 0..2 {
        let counted = count(&json!(messages)).await;
        let (choice, call) = engine.chat("e", json!({"messages": messages})).await;
        assert_eq!(counted, call.prompt.len() as u64);
        messages.extend([choice["message"].clone(), user("more")]);
    }
    assert_eq!(engine.end("e").await.llm_calls, 2, "counting is no call");
}
