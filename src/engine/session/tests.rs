//! Sessions on a made-up model and a sampler that plays given answers.

mod answers;
mod limits;
mod streams;

use std::collections::VecDeque;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::value::to_raw_value;
use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedSender;

use super::*;
use crate::config::schema::{Ajet, Dtype, MadnessCheck};
use crate::grammar::Grammars;
use crate::inference::{FinishReason, SampleEvent, SampleRequest, SampledToken, SamplingParams};
use crate::model::{device, load};
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

    /// Those of another tokenizer: the sampler plays given answers whatever their grammar.
    fn grammars(&self) -> &Arc<Grammars> {
        static GRAMMARS: LazyLock<Arc<Grammars>> = LazyLock::new(|| {
            let device = device::choose("cpu").unwrap();
            let dtype = device::dtype(Dtype::F32, &device);
            let model = load("builtin:tiny", &device, dtype, &mut |_, _| {}).unwrap();
            Arc::new(Grammars::new(model.tokenizer, &[]))
        });
        &GRAMMARS
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
        determined: false,
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
    tool_warnings: Arc<AtomicUsize>,
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
        let tool_warnings = Arc::new(AtomicUsize::new(0));
        let warned = tool_warnings.clone();
        let backend = ChatBackend::new(model, sampler.clone(), ChatSettings::new(ajet)).unwrap();
        let backend = backend.with_tool_warning(move || {
            warned.fetch_add(1, Ordering::Relaxed);
        });
        Self {
            tool_warnings,
            sampler,
            session: Session::new(Arc::new(backend), "e"),
        }
    }

    async fn train(&self, body: Value) -> Result<ChatAnswer, ChatError> {
        self.session
            .chat(&to_raw_value(&body).unwrap(), EpisodeType::Train)
            .await
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
