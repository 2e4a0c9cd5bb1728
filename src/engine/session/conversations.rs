//! A running episode's conversations for the client that owns it: bounded in size, the longest first.

use std::cmp::Reverse;

use serde_json::Value;

use crate::protocol::swarm::{EpisodeConversations, RecordedAnswer, RecordedConversation};
use crate::timeline::{Branch, Call, TurnEnd, branches};

/// Maximum size of all messages and tools as JSON. A conversation is bounded by the model's context; there may be many.
const MAX_BYTES: usize = 32 << 20;

/// The longest conversation alone is larger than the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the episode's longest conversation has {bytes} bytes as JSON, more than the limit of {limit}")]
pub struct ConversationTooLarge {
    bytes: usize,
    limit: usize,
}

/// Returns the conversations of an episode from its calls.
///
/// # Errors
/// The longest conversation is too large.
pub fn conversations(episode_uuid: &str, calls: &[Call]) -> Result<EpisodeConversations, ConversationTooLarge> {
    within(MAX_BYTES, episode_uuid, calls)
}

fn within(limit: usize, episode_uuid: &str, calls: &[Call]) -> Result<EpisodeConversations, ConversationTooLarge> {
    let branches = branches(calls);
    let mut longest_first: Vec<usize> = (0..branches.len()).rev().collect();
    longest_first.sort_by_key(|index| Reverse(branches[*index].message_count(calls)));
    let (mut taken, mut bytes) = (vec![], 0);
    for index in &longest_first {
        bytes += size(&branches[*index], calls);
        if bytes > limit {
            break;
        }
        taken.push(*index);
    }
    let main = longest_first.first().copied();
    if main.is_some() && taken.is_empty() {
        return Err(ConversationTooLarge { bytes, limit });
    }
    taken.sort_unstable();
    Ok(EpisodeConversations {
        episode_uuid: episode_uuid.to_owned(),
        llm_calls: calls.len() as u64,
        main: main.and_then(|main| taken.iter().position(|index| *index == main)),
        left_out: (branches.len() - taken.len()) as u64,
        conversations: taken.iter().map(|index| recorded(&branches[*index], calls)).collect(),
    })
}

fn recorded(branch: &Branch, calls: &[Call]) -> RecordedConversation {
    let last = branch.calls.last().and_then(|index| calls.get(*index));
    RecordedConversation {
        model: last.map(|call| call.agent.clone()).unwrap_or_default(),
        tools: last.map(|call| call.conversation.tools.clone()).unwrap_or_default(),
        messages: branch.messages(calls).into_iter().cloned().collect(),
        answers: branch
            .answers(calls)
            .map(|(message, call)| answer(message, call))
            .collect(),
    }
}

fn answer(message: usize, call: &Call) -> RecordedAnswer {
    let has_calls = call.answer["tool_calls"]
        .as_array()
        .is_some_and(|calls| !calls.is_empty());
    let finish_reason = match call.end {
        TurnEnd::Length => "length",
        TurnEnd::EndToken | TurnEnd::StopString if has_calls => "tool_calls",
        TurnEnd::EndToken | TurnEnd::StopString => "stop",
    };
    RecordedAnswer {
        message,
        prompt_tokens: call.prompt.len() as u64,
        completion_tokens: call.sampled.len() as u64,
        finish_reason: finish_reason.into(),
        begun: call.begun,
        // The clock may have been set back meanwhile.
        seconds: (call.ended - call.begun).max(0.0),
    }
}

/// Bytes of a conversation as JSON.
fn size(branch: &Branch, calls: &[Call]) -> usize {
    let tools = branch.calls.last().and_then(|index| calls.get(*index));
    let tools = tools.into_iter().flat_map(|call| &call.conversation.tools);
    branch.messages(calls).into_iter().chain(tools).map(json_bytes).sum()
}

fn json_bytes(value: &Value) -> usize {
    let mut counter = Counter(0);
    // Neither a value's serialization nor the counter fails.
    let _ = serde_json::to_writer(&mut counter, value);
    counter.0
}

struct Counter(usize);

impl std::io::Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::fake;
    use serde_json::json;

    fn call(messages: Value, answer: Value, end: TurnEnd) -> Call {
        let mut call = fake::call(messages.as_array().unwrap().clone(), answer);
        call.conversation.tools = vec![json!({"type": "function", "function": {"name": "f"}})];
        Call {
            prompt: vec![0; 7],
            sampled: vec![0; 3],
            end,
            agent: "planner".into(),
            begun: 100.0,
            ended: 102.5,
            ..call
        }
    }

    fn assistant(content: &str) -> Value {
        json!({"role": "assistant", "content": content})
    }

    fn user(content: &str) -> Value {
        json!({"role": "user", "content": content})
    }

    #[test]
    fn the_main_conversation_is_the_longest_and_answers_have_counts_and_times() {
        let called = json!({"role": "assistant", "content": "", "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]});
        let result = json!({"role": "tool", "tool_call_id": "c", "content": "9"});
        let calls = [
            call(json!([user("a")]), called.clone(), TurnEnd::EndToken),
            call(json!([user("other")]), assistant("b"), TurnEnd::EndToken),
            call(json!([user("a"), called, result]), assistant("c"), TurnEnd::Length),
            call(json!([user("last")]), assistant("d"), TurnEnd::StopString),
        ];
        let told = conversations("e", &calls).unwrap();
        assert_eq!((told.llm_calls, told.main, told.left_out), (4, Some(1), 0));
        let main = &told.conversations[1];
        assert_eq!(
            (main.messages.len(), main.model.as_str(), main.tools.len()),
            (4, "planner", 1)
        );
        let answers: Vec<_> = main
            .answers
            .iter()
            .map(|a| (a.message, a.finish_reason.as_str()))
            .collect();
        assert_eq!(answers, [(1, "tool_calls"), (3, "length")]);
        assert_eq!(told.conversations[2].answers[0].finish_reason, "stop");
        let first = &main.answers[0];
        assert_eq!(
            (first.prompt_tokens, first.completion_tokens, first.begun, first.seconds),
            (7, 3, 100.0, 2.5)
        );
        assert_eq!(conversations("e", &[]).unwrap().main, None);
    }

    #[test]
    fn what_does_not_fit_is_left_out_and_the_longest_never() {
        let long = "x".repeat(1000);
        let calls = [
            call(
                json!([user("a"), assistant(&long), user("b")]),
                assistant("c"),
                TurnEnd::EndToken,
            ),
            call(json!([user(&long)]), assistant("d"), TurnEnd::EndToken),
            call(json!([user("e")]), assistant("f"), TurnEnd::EndToken),
        ];
        let told = within(1400, "e", &calls).unwrap();
        assert_eq!((told.main, told.conversations.len(), told.left_out), (Some(0), 2, 1));
        assert_eq!(told.conversations[1].messages[0], user("e"));
        let error = within(1000, "e", &calls).unwrap_err().to_string();
        assert!(error.contains("more than the limit of 1000"), "{error}");
    }
}
