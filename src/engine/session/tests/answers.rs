//! Whole answers: recorded calls, several choices, given beginnings, tool calls and errors.

use super::*;

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
    let Ok(ChatAnswer::Whole(whole)) = bench
        .session
        .chat(&to_raw_value(&body).unwrap(), EpisodeType::Eval)
        .await
    else {
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
    let Ok(ChatAnswer::Stream(chunks)) = bench
        .session
        .chat(&to_raw_value(&body).unwrap(), EpisodeType::Eval)
        .await
    else {
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
        assert!(
            bench
                .session
                .chat(&to_raw_value(&body).unwrap(), EpisodeType::Eval)
                .await
                .is_ok()
        );
    }
    for asked in bench.sampler.asked.lock().unwrap().iter() {
        assert_eq!((asked.params.top_k, asked.params.top_p), (Some(1), 1.0));
        assert!(crate::inference::sampler::check(&asked.params).is_ok());
    }
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

    // What was sampled stays in the row, including the call that was not returned.
    body["messages"]
        .as_array_mut()
        .unwrap()
        .extend([json!(first.choices[0].message), user("r")]);
    bench.whole(body).await;
    assert_eq!(bench.session.finish().rows.len(), 1);
}

/// Seen in the quickstart: a warning that its chat template leaves tools out, which no request brings.
#[tokio::test]
async fn tools_are_warned_of_once_and_only_where_there_are_some() {
    let bench = Bench::new(["a", "b", "c"].map(Script::Says));
    let warnings = || bench.tool_warnings.load(Ordering::Relaxed);
    bench.whole(ask("q")).await;
    assert_eq!(warnings(), 0);
    for _ in 0..2 {
        bench.whole(with_tools(ask("q"))).await;
        assert_eq!(warnings(), 1);
    }
}
