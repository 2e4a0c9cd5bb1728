//! Completions of token ids: an engine that only samples is a sampler of another one's episodes, with that one's adapters.

use futures_util::{Stream, StreamExt, stream};
use indexmap::IndexMap;
use tokio::sync::RwLock;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio_stream::wrappers::UnboundedReceiverStream;

use super::model_thread::ModelHandle;
use crate::inference::{Bias, FinishReason, SampleEvent, SampleRequest, SampledToken, SamplingParams};
use crate::protocol::completions::{
    CompletionChoice, CompletionChunk, CompletionLogprobs, CompletionRequest, LoadAdapter, LoadedAdapter,
    UnloadAdapter, write_token_id,
};

/// Reasons why a completion, or loading an adapter, failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompletionError {
    /// The weights that the request names are not loaded.
    #[error("no adapter `{0}` is loaded; hint: POST /v1/load_lora_adapter loads one, in the place of the one before")]
    NoAdapter(String),
    /// A field has a value that is not supported.
    #[error("`{field}` must be {required}; hint: /v1/chat/completions is for conversations")]
    Unsupported {
        /// Name of the field.
        field: &'static str,
        /// Supported value.
        required: &'static str,
    },
    /// The sampler refused the request.
    #[error("{0}")]
    Refused(String),
    /// The adapter cannot be loaded.
    #[error("cannot load the adapter: {0}")]
    Adapter(String),
    /// The sampler has stopped.
    #[error("the engine stopped sampling; hint: try again")]
    Stopped,
}

/// Answers completions with the adapter that was loaded last.
pub struct Completions {
    model: ModelHandle,
    /// Name of the adapter. Locked for writing while another one is loaded, so that no request gets other weights than the
    /// ones it names.
    adapter: RwLock<Option<String>>,
}

impl Completions {
    /// Creates it for a model thread, without an adapter.
    pub fn new(model: ModelHandle) -> Self {
        Self {
            model,
            adapter: RwLock::default(),
        }
    }

    /// Returns the loaded adapter.
    pub async fn adapter(&self) -> LoadedAdapter {
        LoadedAdapter {
            lora_name: self.adapter.read().await.clone(),
        }
    }

    /// Loads an adapter in the place of the one before, whose requests are cancelled.
    ///
    /// # Errors
    /// Fails if it cannot be read or is not of the model; then no adapter is loaded.
    pub async fn load(&self, load: LoadAdapter) -> Result<(), CompletionError> {
        let mut adapter = self.adapter.write().await;
        *adapter = None;
        let loaded = self.model.load_adapter(&load.lora_path).await;
        loaded.map_err(CompletionError::Adapter)?;
        *adapter = Some(load.lora_name);
        Ok(())
    }

    /// Answers no requests any more that name this adapter.
    ///
    /// # Errors
    /// Fails if it is not loaded.
    pub async fn unload(&self, unload: UnloadAdapter) -> Result<(), CompletionError> {
        let mut adapter = self.adapter.write().await;
        if adapter.as_ref() != Some(&unload.lora_name) {
            return Err(CompletionError::NoAdapter(unload.lora_name));
        }
        *adapter = None;
        Ok(())
    }

    /// Samples an answer; returns when its prompt is computed. `id` is unique among the engine's requests. Dropping the
    /// stream cancels it.
    ///
    /// # Errors
    /// Fails if the adapter is not loaded or the request is not valid.
    pub async fn answer(
        &self,
        id: u64,
        request: CompletionRequest,
    ) -> Result<impl Stream<Item = Result<CompletionChunk, CompletionError>> + Send + use<>, CompletionError> {
        let top = request.logprobs;
        let (params, prompt, model) = read(request)?;
        let (sender, mut events) = unbounded_channel();
        {
            let adapter = self.adapter.read().await;
            if adapter.as_ref() != Some(&model) {
                return Err(CompletionError::NoAdapter(model));
            }
            self.model.submit(SampleRequest {
                id,
                group: id.to_string(),
                prompt,
                params,
                forced_tokens: vec![],
                grammar: None,
                stop: None,
                events: sender,
            });
        }
        match events.recv().await {
            Some(SampleEvent::Started { .. }) => Ok(chunks(events, top)),
            Some(SampleEvent::Failed(reason)) => Err(CompletionError::Refused(reason)),
            _ => Err(CompletionError::Stopped),
        }
    }
}

/// Reads the sampling parameters, the prompt and the adapter's name.
fn read(request: CompletionRequest) -> Result<(SamplingParams, Vec<u32>, String), CompletionError> {
    for (field, given) in [
        ("ignore_eos", request.ignore_eos),
        ("return_tokens_as_token_ids", request.return_tokens_as_token_ids),
        ("stream", request.stream),
    ] {
        if !given {
            let required = "true";
            return Err(CompletionError::Unsupported { field, required });
        }
    }
    let params = SamplingParams {
        temperature: request.temperature as f32,
        top_p: request.top_p as f32,
        top_k: usize::try_from(request.top_k).ok().filter(|k| *k > 0),
        min_p: request.min_p as f32,
        bias: Bias::default(),
        seed: request.seed,
        max_tokens: request.max_tokens,
        stop_token_ids: request.stop_token_ids,
        top_logprobs: request.logprobs,
    };
    Ok((params, request.prompt, request.model))
}

/// Converts the events of an answer until its last one.
fn chunks(
    events: UnboundedReceiver<SampleEvent>,
    top: usize,
) -> impl Stream<Item = Result<CompletionChunk, CompletionError>> + Send + use<> {
    let events = UnboundedReceiverStream::new(events)
        .map(Some)
        .chain(stream::once(async { None }));
    let converted = events.scan(false, move |ended, event| {
        let chunk = match event {
            _ if *ended => None,
            Some(SampleEvent::Started { .. }) => Some(Ok(CompletionChunk::default())),
            Some(SampleEvent::Token(token)) => Some(Ok(token_chunk(&token, top))),
            Some(SampleEvent::Finished(FinishReason::Stop)) => Some(Ok(last_chunk("stop"))),
            Some(SampleEvent::Finished(FinishReason::Length)) => Some(Ok(last_chunk("length"))),
            Some(SampleEvent::Failed(reason)) => Some(Err(CompletionError::Refused(reason))),
            Some(SampleEvent::Finished(FinishReason::Cancelled)) | None => Some(Err(CompletionError::Stopped)),
        };
        *ended |= match &chunk {
            Some(Ok(chunk)) => chunk.choices.iter().any(|choice| choice.finish_reason.is_some()),
            Some(Err(_)) | None => true,
        };
        std::future::ready(chunk)
    });
    Box::pin(converted)
}

fn token_chunk(token: &SampledToken, top: usize) -> CompletionChunk {
    let likely = token.top.iter().map(|(id, logprob)| (write_token_id(*id), *logprob));
    let likely: IndexMap<String, f32> = likely.collect();
    one_choice(CompletionChoice {
        logprobs: Some(CompletionLogprobs {
            tokens: vec![write_token_id(token.id)],
            token_logprobs: vec![Some(token.logprob)],
            top_logprobs: (top > 0).then(|| vec![Some(likely)]),
        }),
        ..CompletionChoice::default()
    })
}

fn last_chunk(reason: &str) -> CompletionChunk {
    one_choice(CompletionChoice {
        finish_reason: Some(reason.to_owned()),
        ..CompletionChoice::default()
    })
}

fn one_choice(choice: CompletionChoice) -> CompletionChunk {
    CompletionChunk { choices: vec![choice] }
}
