//! Structured output of a random model: every answer fits, and what it chose is what the trainer computes.

use ajet_swarm::config::Ajet;
use ajet_swarm::config::schema::Kernels;
use ajet_swarm::grammar::Grammars;
use ajet_swarm::model::{LoadedModel, Trainable, Weights, load};
use ajet_swarm::timeline::Row;
use ajet_swarm::train::{TrainEpisode, Trainer};
use candle_core::{DType, Device};
use futures_util::StreamExt;
use serde_json::{Value, json};
use std::sync::Arc;

use super::model_api::Engine;

/// Answers are at most so many tokens.
const TURN: usize = 1000;

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 6},
            "tags": {"type": "array", "items": {"enum": ["red", "green", 7]}, "maxItems": 3},
            "next": {"anyOf": [{"type": "null"}, {"$ref": "#"}]},
        },
        "required": ["name", "tags", "next"],
        "additionalProperties": false,
    })
}

fn fits(value: &Value) -> bool {
    let fields = value.as_object().unwrap();
    fields.keys().eq(["name", "tags", "next"])
        && fields["name"].as_str().unwrap().chars().count() <= 6
        && fields["tags"]
            .as_array()
            .unwrap()
            .iter()
            .all(|tag| [json!("red"), json!("green"), json!(7)].contains(tag))
        && (fields["next"].is_null() || fits(&fields["next"]))
}

fn request(format: Value) -> Value {
    json!({"messages": [{"role": "user", "content": "go"}], "response_format": format, "enable_thinking": false})
}

fn json_schema(schema: Value) -> Value {
    json!({"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": true}})
}

/// The text of a streamed answer.
async fn streamed(engine: &Engine, episode: &str, mut request: Value) -> String {
    request["stream"] = json!(true);
    let answer = engine.send(episode, request).await;
    assert_eq!(answer.head.status.as_u16(), 200);
    let bytes = answer
        .into_bytes_stream()
        .map(|bytes| bytes.unwrap().to_vec())
        .concat()
        .await;
    let text = String::from_utf8(bytes).unwrap();
    let events = text
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .filter(|data| *data != "[DONE]");
    let chunks = events.map(|data| serde_json::from_str::<Value>(data).unwrap());
    let pieces = chunks.filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str().map(str::to_owned));
    pieces.collect()
}

fn load_model(path: &str) -> LoadedModel {
    load(path, &Device::Cpu, DType::F32, &mut |_, _| {}).unwrap()
}

/// Row masks leave out just the tokens that the grammar determined. Returns their number.
fn check_mask(grammars: &Grammars, row: &Row) -> usize {
    let [constrained] = row.constrained.as_slice() else {
        panic!("{:?}", row.constrained)
    };
    let mut matcher = grammars.matcher(&constrained.grammar).unwrap();
    let mut determined = 0;
    for (index, token) in row.token_ids.iter().enumerate() {
        if !constrained.contains(index) {
            assert!(!row.loss_mask[index]);
            continue;
        }
        let allowed = matcher.allowed().unwrap();
        assert!(allowed.contains(*token));
        assert_eq!(row.loss_mask[index], allowed.len() > 1);
        determined += usize::from(allowed.len() == 1);
        matcher.push(*token).unwrap();
    }
    determined
}

#[tokio::test]
async fn every_answer_fits_its_schema_and_the_trainer_agrees_with_the_sampler() {
    let engine = Engine::random(TURN).await;
    let model = load_model(&engine.model);
    let grammars = Arc::new(Grammars::new(model.tokenizer, &model.generation.eos_token_ids));
    let mut episodes = vec![];
    for number in 0..12 {
        let episode = number.to_string();
        let request = request(json_schema(schema()));
        let text = match number % 2 {
            0 => streamed(&engine, &episode, request).await,
            _ => {
                let (status, body) = engine.try_chat(&episode, request).await;
                assert_eq!(
                    (status, &body["choices"][0]["finish_reason"]),
                    (200, &json!("stop")),
                    "{body}"
                );
                body["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
            }
        };
        let value: Value = serde_json::from_str(&text).unwrap();
        assert!(fits(&value), "{text}");
        engine.end(&episode).await;
        let rows: Vec<Row> = serde_json::from_value(engine.journaled(&episode)["rows"].clone()).unwrap();
        assert!(check_mask(&grammars, &rows[0]) > 10);
        episodes.push(TrainEpisode {
            task_id: (number / 6).to_string(),
            episode_uuid: episode,
            reward: f64::from(number % 3),
            rows,
        });
    }
    for kernels in [Kernels::Auto, Kernels::Plain] {
        let mut config = Ajet::default();
        config.engine.kernels = kernels;
        config.data.max_prompt_length = 4000;
        let mismatch = |episodes: &[TrainEpisode]| {
            let model = load_model(&engine.model);
            let mut weights = Weights::new(model.config, model.tensors, &Trainable::All).unwrap();
            let mut trainer = Trainer::new(&weights, &config).unwrap().with_grammars(grammars.clone());
            trainer.update(&mut weights, episodes, &mut |_| ()).unwrap().metrics["mismatch_kl"]
        };
        let agreed = mismatch(&episodes);
        assert!(agreed.abs() <= 1e-6, "{kernels:?}: {agreed}");
        let mut forgotten = episodes.clone();
        forgotten
            .iter_mut()
            .flat_map(|episode| &mut episode.rows)
            .for_each(|row| row.constrained.clear());
        assert!(
            mismatch(&forgotten) > 0.01,
            "{kernels:?}: without the grammars they differ"
        );
    }
}

fn tools(strict: bool) -> Value {
    let point = json!({"type": "object", "properties": {"x": {"enum": [1, 2]}, "y": {"type": "boolean"}},
        "required": ["x", "y"], "additionalProperties": false});
    let function = |name: &str| json!({"name": name, "parameters": point, "strict": strict});
    json!([{"type": "function", "function": function("move")}, {"type": "function", "function": function("turn")}])
}

fn check_calls(message: &Value, names: &[&str]) -> usize {
    let calls = message["tool_calls"].as_array().unwrap_or_else(|| panic!("{message}"));
    for call in calls {
        let function = &call["function"];
        assert!(names.contains(&function["name"].as_str().unwrap()), "{function}");
        let arguments: Value = serde_json::from_str(function["arguments"].as_str().unwrap()).unwrap();
        assert!(
            [json!(1), json!(2)].contains(&arguments["x"]) && arguments["y"].is_boolean(),
            "{arguments}"
        );
        assert_eq!(arguments.as_object().unwrap().len(), 2);
    }
    calls.len()
}

#[tokio::test]
async fn required_calls_are_calls_with_valid_arguments() {
    let engine = Engine::random(TURN).await;
    for number in 0..6 {
        let named = json!({"type": "function", "function": {"name": "turn"}});
        for (choice, names) in [(json!("required"), &["move", "turn"][..]), (named, &["turn"])] {
            let request = json!({"messages": [{"role": "user", "content": "go"}], "tools": tools(number % 2 == 0),
                "tool_choice": choice, "parallel_tool_calls": false});
            let (status, body) = engine.try_chat(&number.to_string(), request).await;
            let choice = &body["choices"][0];
            assert_eq!(
                (status, &choice["finish_reason"]),
                (200, &json!("tool_calls")),
                "{body}"
            );
            assert_eq!(check_calls(&choice["message"], names), 1);
        }
    }
}

#[tokio::test]
async fn a_model_may_think_before_it_answers() {
    let engine = Engine::random(TURN).await;
    for number in 0..16 {
        let mut request = request(json_schema(json!({"type": "boolean"})));
        request["max_tokens"] = json!(100);
        request["enable_thinking"] = json!(number % 2 == 0);
        let (_, body) = engine.try_chat(&number.to_string(), request).await;
        let choice = &body["choices"][0];
        let content = choice["message"]["content"].as_str().unwrap();
        match choice["finish_reason"].as_str().unwrap() {
            "stop" => assert!(["true", "false"].contains(&content), "{choice}"),
            _ => assert!(number % 2 == 0 && content.starts_with("<think>"), "{choice}"),
        }
    }
}

#[tokio::test]
async fn an_answer_that_is_cut_says_so() {
    let engine = Engine::random(TURN).await;
    let mut request = request(json_schema(schema()));
    request["max_tokens"] = json!(5);
    let (_, body) = engine.try_chat("e", request).await;
    assert_eq!(body["choices"][0]["finish_reason"], "length", "{body}");
}

#[tokio::test]
async fn any_object_is_an_answer_to_json_object() {
    let engine = Engine::random(TURN).await;
    let mut whole = 0;
    for number in 0..8 {
        let (_, body) = engine
            .try_chat(&number.to_string(), request(json!({"type": "json_object"})))
            .await;
        let choice = &body["choices"][0];
        if choice["finish_reason"] == "stop" {
            let value: Value = serde_json::from_str(choice["message"]["content"].as_str().unwrap()).unwrap();
            assert!(value.is_object(), "{value}");
            whole += 1;
        }
    }
    assert!(whole > 0, "every answer was cut");
}

#[tokio::test]
async fn schemas_that_cannot_be_enforced_are_refused_with_their_place() {
    let engine = Engine::random(TURN).await;
    let bad = json!({"type": "object", "properties": {"a": {"type": "array", "items": {"if": {}}}}});
    let function = json!({"name": "f", "parameters": bad, "strict": true});
    let with_tool = json!({"messages": [{"role": "user", "content": "go"}],
        "tools": [{"type": "function", "function": function}]});
    for (request, param) in [
        (request(json_schema(bad.clone())), "response_format"),
        (request(json!({"type": "json_schema"})), "response_format"),
        (request(json!({"type": "xml"})), "response_format"),
        (with_tool, "tools[0]"),
    ] {
        let (status, body) = engine.try_chat("e", request).await;
        assert_eq!((status, &body["error"]["param"]), (400, &json!(param)), "{body}");
        let message = body["error"]["message"].as_str().unwrap();
        assert!(
            message.contains("#/properties/a/items") || message.contains("response_format"),
            "{message}"
        );
    }
}
