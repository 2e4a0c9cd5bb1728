//! An episode as text: what was said, what it took, and what came of it.

use std::fmt::Write as _;

use serde_json::Value;

use super::agents::Rollout;
use super::failures::Failure;
use super::rewards::Score;
use super::tasks::Task;
use crate::protocol::swarm::{EpisodeConversations, RecordedAnswer, RecordedConversation};

/// Conversation of an agent without a recording server.
pub(super) fn told_by(rollout: &Rollout) -> EpisodeConversations {
    let messages = rollout
        .messages
        .iter()
        .map(|message| serde_json::to_value(message).unwrap_or_default());
    let conversation = RecordedConversation {
        messages: messages.collect(),
        answers: rollout.answers.clone(),
        ..RecordedConversation::default()
    };
    EpisodeConversations {
        llm_calls: rollout.llm_calls.unwrap_or_default(),
        conversations: if rollout.messages.is_empty() {
            vec![]
        } else {
            vec![conversation]
        },
        ..EpisodeConversations::default()
    }
}

/// Every message, the answer, its worth and the time it took. `None` for conversations that were not recorded.
pub(super) fn transcript(
    task: &Task,
    said: Option<&EpisodeConversations>,
    played: &Result<(Rollout, Vec<Score>), Failure>,
    seconds: f64,
) -> String {
    let mut text = format!("task {}\n", task.task_id);
    match said {
        Some(said) => conversations(&mut text, said),
        None => text.push_str("\nthe conversation was not recorded\n"),
    }
    // Writing to a string cannot fail.
    let _ = match played {
        Ok((rollout, scores)) => outcome(&mut text, rollout, scores),
        Err(failure) => writeln!(text, "\nfailed ({}): {}", failure.reason, failure.detail),
    };
    let answers = || {
        said.iter()
            .flat_map(|said| &said.conversations)
            .flat_map(|said| &said.answers)
    };
    if let Some(said) = said {
        let sum = |tokens: fn(&RecordedAnswer) -> u64| answers().map(tokens).sum::<u64>();
        let (prompt, completion) = (
            sum(|answer| answer.prompt_tokens),
            sum(|answer| answer.completion_tokens),
        );
        let _ = writeln!(
            text,
            "LLM calls: {}, prompt tokens: {prompt}, completion tokens: {completion}",
            said.llm_calls
        );
    }
    let _ = write!(text, "seconds: {seconds:.2}");
    let in_model: f64 = answers().map(|answer| answer.seconds).sum();
    if in_model > 0.0 {
        let _ = write!(text, ", of which the model took {in_model:.2}");
    }
    text
}

fn conversations(text: &mut String, said: &EpisodeConversations) {
    let count = said.conversations.len();
    if said.llm_calls == 0 {
        text.push_str("\nthe model was never called\n");
    }
    for (place, conversation) in said.conversations.iter().enumerate() {
        if count > 1 {
            let _ = writeln!(
                text,
                "\n==== conversation {} of {count}, model {:?}",
                place + 1,
                conversation.model
            );
        }
        let names: Vec<_> = conversation
            .tools
            .iter()
            .filter_map(|tool| tool["function"]["name"].as_str())
            .collect();
        if !names.is_empty() {
            let _ = writeln!(text, "\ntools: {}", names.join(", "));
        }
        for (place, message) in conversation.messages.iter().enumerate() {
            let answer = conversation.answers.iter().find(|answer| answer.message == place);
            let _ = one_message(text, message, answer);
        }
    }
    if said.left_out > 0 {
        let _ = writeln!(text, "\n{} shorter conversations are left out", said.left_out);
    }
}

fn one_message(text: &mut String, message: &Value, answer: Option<&RecordedAnswer>) -> std::fmt::Result {
    write!(text, "\n[{}", message["role"].as_str().unwrap_or_default())?;
    if let Some(id) = message["tool_call_id"].as_str().filter(|id| !id.is_empty()) {
        write!(text, " {id}")?;
    }
    text.push(']');
    if let Some(answer) = answer {
        let RecordedAnswer {
            prompt_tokens,
            completion_tokens,
            finish_reason,
            seconds,
            ..
        } = answer;
        write!(
            text,
            " {prompt_tokens} → {completion_tokens} tokens, {seconds:.2} s, {finish_reason}"
        )?;
    }
    text.push('\n');
    if let Some(thinking) = message["reasoning_content"]
        .as_str()
        .filter(|thinking| !thinking.is_empty())
    {
        writeln!(text, "(thinking) {thinking}")?;
    }
    match &message["content"] {
        Value::Null => {}
        Value::String(content) if content.is_empty() => {}
        Value::String(content) => writeln!(text, "{content}")?,
        parts => writeln!(text, "{parts}")?,
    }
    for call in message["tool_calls"].as_array().into_iter().flatten() {
        let function = &call["function"];
        let [id, name, arguments] =
            [&call["id"], &function["name"], &function["arguments"]].map(|part| part.as_str().unwrap_or_default());
        writeln!(text, "(calls {name} as {id}) {arguments}")?;
    }
    Ok(())
}

/// What came of the agent, and what that is worth to each model.
fn outcome(text: &mut String, rollout: &Rollout, scores: &[Score]) -> std::fmt::Result {
    if !rollout.stderr.trim().is_empty() {
        writeln!(text, "\n[stderr]\n{}", rollout.stderr.trim_end())?;
    }
    writeln!(text, "\noutput: {:?}", rollout.output)?;
    for (place, score) in scores.iter().enumerate() {
        let of_model = match scores.len() {
            1 => String::new(),
            _ => format!(" of model {}", place + 1),
        };
        writeln!(text, "reward{of_model}: {}", score.reward)?;
        if let Some(is_success) = score.is_success {
            writeln!(text, "success{of_model}: {is_success}")?;
        }
        for (name, value) in &score.log_metrics {
            writeln!(text, "{name}: {value}")?;
        }
    }
    for (name, value) in &rollout.log_metrics {
        writeln!(text, "{name}: {value}")?;
    }
    for (name, value) in &rollout.metadata {
        writeln!(text, "metadata {name}: {value}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn said() -> EpisodeConversations {
        let answer = |message, finish_reason: &str| RecordedAnswer {
            message,
            prompt_tokens: 20,
            completion_tokens: 4,
            finish_reason: finish_reason.into(),
            begun: 0.0,
            seconds: 0.25,
        };
        EpisodeConversations {
            llm_calls: 2,
            conversations: vec![RecordedConversation {
                tools: vec![json!({"function": {"name": "add"}})],
                messages: vec![
                    json!({"role": "user", "content": "1+1?"}),
                    json!({"role": "assistant", "content": null, "reasoning_content": "a tool", "tool_calls": [
                        {"id": "c1", "function": {"name": "add", "arguments": "{\"a\": 1}"}}]}),
                    json!({"role": "tool", "tool_call_id": "c1", "content": "2"}),
                    json!({"role": "assistant", "content": "2"}),
                ],
                answers: vec![answer(1, "tool_calls"), answer(3, "stop")],
                ..RecordedConversation::default()
            }],
            ..EpisodeConversations::default()
        }
    }

    fn task() -> Task {
        Task {
            task_id: "t1".into(),
            ..Task::default()
        }
    }

    #[test]
    fn a_transcript_has_all_that_was_said_and_what_it_took() {
        let rollout = Rollout {
            output: "2".into(),
            stderr: "a note\n".into(),
            ..Rollout::default()
        };
        let score = Score {
            reward: 1.0,
            is_success: Some(true),
            log_metrics: [("reward/length".to_string(), json!(0.5))].into(),
        };
        let text = transcript(&task(), Some(&said()), &Ok((rollout, vec![score])), 1.5);
        assert_eq!(
            text,
            "task t1\n\ntools: add\n\n[user]\n1+1?\n\n[assistant] 20 → 4 tokens, 0.25 s, tool_calls\n(thinking) a tool\n\
             (calls add as c1) {\"a\": 1}\n\n[tool c1]\n2\n\n[assistant] 20 → 4 tokens, 0.25 s, stop\n2\n\n\
             [stderr]\na note\n\noutput: \"2\"\nreward: 1\nsuccess: true\nreward/length: 0.5\n\
             LLM calls: 2, prompt tokens: 40, completion tokens: 8\nseconds: 1.50, of which the model took 0.50"
        );
    }

    #[test]
    fn a_failure_is_shown_with_what_was_said_before_it() {
        let failed = || Err(Failure::passing("agent_failed", "\"sh\" ended with exit status: 1"));
        let text = transcript(&task(), Some(&said()), &failed(), 1.5);
        assert!(text.contains("[user]\n1+1?\n"), "{text}");
        assert!(
            text.contains("\nfailed (agent_failed): \"sh\" ended with exit status: 1\n"),
            "{text}"
        );
        let silent = transcript(&task(), Some(&EpisodeConversations::default()), &failed(), 0.0);
        assert!(silent.contains("the model was never called\n"), "{silent}");
        let unknown = transcript(&task(), None, &failed(), 0.0);
        assert!(unknown.contains("the conversation was not recorded\n"), "{unknown}");
    }
}
