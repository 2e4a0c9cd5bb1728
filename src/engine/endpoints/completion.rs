//! The wire format of vLLM's completions: a request with token ids, and the chunks of its answer. Pure.

use indexmap::IndexMap;
use serde::Deserialize;
use serde_json::Value;

use super::EndpointError;
use crate::inference::{SampledToken, SamplingParams};
use crate::protocol::completions::{CompletionChunk, CompletionRequest, read_token_id};

/// Returns the body of `POST /v1/completions`. `sampled` are the tokens of the answer so far, which end the prompt.
pub fn request(model: &str, prompt: &[u32], sampled: &[u32], params: &SamplingParams) -> CompletionRequest {
    CompletionRequest {
        model: model.to_owned(),
        prompt: [prompt, sampled].concat(),
        max_tokens: params.max_tokens.saturating_sub(sampled.len()),
        temperature: params.temperature.into(),
        top_p: params.top_p.into(),
        top_k: params.top_k.map_or(-1, |k| i64::try_from(k).unwrap_or(-1)),
        min_p: params.min_p.into(),
        // Servers take signed numbers.
        seed: params.seed >> 1,
        stop_token_ids: params.stop_token_ids.clone(),
        // What ends an answer is in `stop_token_ids`, whatever the endpoint's files say.
        ignore_eos: true,
        logprobs: params.top_logprobs,
        return_tokens_as_token_ids: true,
        skip_special_tokens: false,
        stream: true,
    }
}

/// Part of a streamed answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chunk {
    /// The next tokens.
    pub tokens: Vec<SampledToken>,
    /// Whether the endpoint has ended the answer.
    pub is_last: bool,
}

/// An error object in the place of a chunk.
#[derive(Deserialize)]
struct ErrorEvent {
    error: Value,
}

/// Reads the data of a server-sent event. `top` is the number of most likely tokens that were asked for.
///
/// # Errors
/// Fails if it is an error object or has no ids and log-probabilities of tokens.
pub fn chunk(data: &str, top: usize) -> Result<Chunk, EndpointError> {
    let unexpected = |reason: String| EndpointError::Unexpected(reason);
    if let Ok(ErrorEvent { error }) = serde_json::from_str(data) {
        let message = error["message"]
            .as_str()
            .map_or_else(|| error.to_string(), str::to_owned);
        return Err(unexpected(message));
    }
    let chunk: CompletionChunk = serde_json::from_str(data).map_err(|error| unexpected(error.to_string()))?;
    // A chunk without choices has the usage.
    let Some(choice) = chunk.choices.into_iter().next() else {
        return Ok(Chunk::default());
    };
    let mut read = Chunk {
        is_last: choice.finish_reason.is_some(),
        ..Chunk::default()
    };
    let Some(logprobs) = choice.logprobs else {
        return Ok(read);
    };
    let mut tops = logprobs.top_logprobs.unwrap_or_default().into_iter();
    for (index, token) in logprobs.tokens.iter().enumerate() {
        let logprob = logprobs.token_logprobs.get(index).copied().flatten();
        let logprob = logprob.filter(|logprob| logprob.is_finite());
        read.tokens.push(SampledToken {
            id: token_id(token)?,
            logprob: logprob.ok_or_else(|| unexpected(format!("no log-probability of {token}")))?,
            determined: false,
            top: most_likely(tops.next().flatten().unwrap_or_default(), top)?,
        });
    }
    Ok(read)
}

fn token_id(token: &str) -> Result<u32, EndpointError> {
    read_token_id(token).ok_or_else(|| EndpointError::Unexpected(format!("token {token:?} instead of its id")))
}

/// Sorts the most likely tokens; a server may add the sampled one.
fn most_likely(tokens: IndexMap<String, f32>, count: usize) -> Result<Vec<(u32, f32)>, EndpointError> {
    let read = |(token, logprob): (String, f32)| Ok((token_id(&token)?, logprob));
    let mut tokens: Vec<(u32, f32)> = tokens.into_iter().map(read).collect::<Result<_, _>>()?;
    tokens.sort_by(|a, b| b.1.total_cmp(&a.1));
    tokens.truncate(count);
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_continues_an_answer_and_leaves_its_end_to_the_engine() {
        let params = SamplingParams {
            max_tokens: 10,
            seed: u64::MAX,
            stop_token_ids: vec![2],
            ..SamplingParams::unmodified()
        };
        let body = request("ajet.e.1a.3", &[5, 6], &[7], &params);
        assert_eq!(body.prompt, [5, 6, 7]);
        assert_eq!((body.max_tokens, body.top_k, body.seed), (9, -1, i64::MAX as u64));
        assert_eq!((body.model.as_str(), &body.stop_token_ids), ("ajet.e.1a.3", &vec![2]));
        assert!(body.ignore_eos);
    }

    // As vLLM 0.32 sends them.
    #[test]
    fn chunks_have_ids_and_log_probabilities() {
        let data = r#"{"id":"cmpl-1","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":" a",
            "logprobs":{"text_offset":[0],"token_logprobs":[-1.5],"tokens":["token_id:7"],
            "top_logprobs":[{"token_id:7":-1.5,"token_id:9":-0.5}]},"finish_reason":null,"stop_reason":null}],"usage":null}"#;
        let token = |top| SampledToken {
            id: 7,
            logprob: -1.5,
            determined: false,
            top,
        };
        assert_eq!(chunk(data, 0).unwrap().tokens, [token(vec![])]);
        assert_eq!(chunk(data, 2).unwrap().tokens, [token(vec![(9, -0.5), (7, -1.5)])]);
        assert!(!chunk(data, 0).unwrap().is_last);
        let last = r#"{"choices":[{"index":0,"text":"","logprobs":null,"finish_reason":"length"}]}"#;
        assert_eq!(
            chunk(last, 0).unwrap(),
            Chunk {
                tokens: vec![],
                is_last: true
            }
        );
        assert_eq!(
            chunk(r#"{"choices":[],"usage":{"prompt_tokens":1}}"#, 0).unwrap(),
            Chunk::default()
        );
    }

    #[test]
    fn anything_else_is_an_error_with_its_reason() {
        for (data, reason) in [
            ("<html>", "expected value"),
            (r#"{"error":{"message":"out of memory","code":500}}"#, "out of memory"),
            (
                r#"{"choices":[{"logprobs":{"tokens":["a"],"token_logprobs":[-1]}}]}"#,
                r#"token "a" instead of its id"#,
            ),
            (
                r#"{"choices":[{"logprobs":{"tokens":["token_id:1"],"token_logprobs":[null]}}]}"#,
                "no log-probability of token_id:1",
            ),
        ] {
            let error = chunk(data, 0).unwrap_err().to_string();
            assert!(error.contains(reason), "{data}: {error}");
        }
    }
}
