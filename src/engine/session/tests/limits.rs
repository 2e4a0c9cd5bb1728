//! Limits of a turn and of the context, and the madness checks.

use super::*;

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
