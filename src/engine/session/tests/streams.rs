//! Streamed answers, chunk by chunk.

use super::*;

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
