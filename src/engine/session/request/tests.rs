//! What requests are parsed into, and the errors of invalid ones.

use serde_json::json;
use serde_json::value::to_raw_value;

use super::*;
use crate::inference::Bias;

fn read(episode_type: EpisodeType, extra: Value) -> Result<Request, ChatError> {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    Request::read(&to_raw_value(&body).unwrap(), episode_type, &Rollout::default())
}

#[test]
fn what_is_wrong_is_named() {
    let tool = json!({"type": "function", "function": {"name": "f"}});
    let message = |message: Value| json!({"messages": [{"role": "user", "content": "a"}, message]});
    let cases = [
        (json!({"n": 2}), "n", "2"),
        (json!({"n": 0}), "n", "0"),
        (json!({"max_tokens": 0}), "max_tokens", "at least 1"),
        (json!({"max_tokens": -1}), "max_tokens", "-1"),
        (json!({"max_completion_tokens": 0}), "max_completion_tokens", "0"),
        (json!({"top_logprobs": 21, "logprobs": true}), "top_logprobs", "21"),
        (json!({"top_logprobs": 2}), "top_logprobs", "logprobs"),
        (json!({"stop": [""]}), "stop", "empty"),
        (json!({"stop": 3}), "stop", "a string or a list of strings"),
        (
            json!({"response_format": "json"}),
            "response_format",
            "an object with `type`",
        ),
        (json!({"response_format": {}}), "response_format", "type"),
        (json!({"reasoning": "high"}), "reasoning", "an object"),
        (json!({"stop": vec!["x"; 1000]}), "stop", "1000"),
        (json!({"stream": "yes"}), "stream", "yes"),
        (json!({"messages": []}), "messages", "at least one message"),
        (json!({"messages": "hi"}), "messages", "hi"),
        (message(json!({"content": "a"})), "messages[1]", "role"),
        (
            message(json!({"role": "robot", "content": "a"})),
            "messages[1].role",
            "robot",
        ),
        (
            message(json!({"role": "user", "content": 3})),
            "messages[1].content",
            "3",
        ),
        (
            message(json!({"role": "user", "content": [{"type": "text", "text": "a"},
                                                       {"type": "image_url", "image_url": {"url": "x"}}]})),
            "messages[1].content[1]",
            "image_url",
        ),
        (
            message(json!({"role": "user", "tool_calls": [{"id": "1", "function": {"name": "f"}}]})),
            "messages[1].tool_calls",
            "user",
        ),
        (json!({"tools": [{"type": "retrieval"}]}), "tools[0]", "function"),
        (json!({"tool_choice": "required"}), "tool_choice", "tools"),
        (
            json!({"tool_choice": "sometimes", "tools": [tool]}),
            "tool_choice",
            "sometimes",
        ),
        (
            json!({"tool_choice": {"type": "function", "function": {"name": "g"}}, "tools": [tool]}),
            "tool_choice",
            "\"g\"",
        ),
    ];
    for (extra, field, said) in cases {
        match read(EpisodeType::Train, extra.clone()) {
            Err(ChatError::InvalidRequest { param, message }) => {
                assert_eq!(param.as_deref(), Some(field), "{message}");
                assert!(message.contains(said), "{message}");
            }
            other => panic!("{extra}: {other:?}"),
        }
    }
}

#[test]
fn train_episodes_draw_as_configured_and_eval_episodes_as_asked() {
    let asked = json!({"temperature": 0.2, "top_p": 0.5, "top_k": 3, "min_p": 0.1, "seed": 7,
                       "frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {"5": 0}});
    let train = read(EpisodeType::Train, asked.clone()).unwrap().sampling;
    assert_eq!(train, SamplingParams::configured(&Rollout::default()));
    assert_eq!((train.temperature, train.top_k, train.seed), (1.0, None, None));

    let eval = read(EpisodeType::Eval, asked).unwrap().sampling;
    let expected = SamplingParams {
        temperature: 0.2,
        top_p: 0.5,
        top_k: Some(3),
        min_p: 0.1,
        bias: Bias::default(),
        seed: Some(7),
    };
    assert_eq!(eval, expected);
    assert!(read(EpisodeType::Eval, json!({"n": 2})).is_ok());
    assert!(read(EpisodeType::Eval, json!({"temperature": 3})).is_err());
    assert!(
        read(EpisodeType::Train, json!({"temperature": 3})).is_ok(),
        "what is ignored is not refused"
    );

    // Tiny ones are greedy: their log-probabilities would be beyond f32.
    for (temperature, drawn) in [
        (0.0, 0.0),
        (-0.0, 0.0),
        (1e-40, 0.0),
        (1e-5, 0.0),
        (1e-3, 1e-3),
        (2.0, 2.0),
    ] {
        let read = read(EpisodeType::Eval, json!({"temperature": temperature})).unwrap();
        assert_eq!(read.sampling.temperature, drawn, "{temperature}");
    }
    for wrong in [
        json!({"temperature": -0.1}),
        json!({"top_p": 1.01}),
        json!({"top_p": -1}),
        json!({"min_p": 2}),
        json!({"top_k": -2}),
        json!({"seed": 1.5}),
        json!({"seed": u64::MAX}),
    ] {
        assert!(read(EpisodeType::Eval, wrong.clone()).is_err(), "{wrong}");
    }
    for right in [
        json!({"top_p": 0}),
        json!({"top_k": 0}),
        json!({"top_k": i64::MAX}),
        json!({"seed": -1}),
    ] {
        assert!(read(EpisodeType::Eval, right.clone()).is_ok(), "{right}");
    }

    let mut rollout = Rollout::default();
    rollout.val_kwargs.do_sample = false;
    let body = json!({"messages": [{"role": "user", "content": "a"}]});
    assert_eq!(
        Request::read(&to_raw_value(&body).unwrap(), EpisodeType::Eval, &rollout)
            .unwrap()
            .sampling
            .temperature,
        0.0
    );
}

#[test]
fn logits_are_changed_in_eval_episodes_alone() {
    let asked = json!({"frequency_penalty": 0.5, "presence_penalty": -2, "logit_bias": {"50": -100, "7": 1.5, "8": 0}});
    let bias = read(EpisodeType::Eval, asked).unwrap().sampling.bias;
    let expected = Bias {
        frequency_penalty: 0.5,
        presence_penalty: -2.0,
        logits: vec![(7, 1.5), (50, -100.0)],
    };
    assert_eq!(bias, expected);
    for (field, value) in [
        ("frequency_penalty", json!(2.1)),
        ("presence_penalty", json!(-3)),
        ("presence_penalty", json!("1")),
        ("logit_bias", json!({"7": 101})),
        ("logit_bias", json!({"the": 1})),
        ("logit_bias", json!({"-1": 1})),
        ("logit_bias", json!({"7": "x"})),
        ("logit_bias", json!([1])),
        (
            "logit_bias",
            (0..2000)
                .map(|id| (id.to_string(), json!(1)))
                .collect::<Map<_, _>>()
                .into(),
        ),
    ] {
        for episode_type in [EpisodeType::Eval, EpisodeType::Train] {
            match read(episode_type, json!({field: value})) {
                Err(ChatError::InvalidRequest { param, .. }) => assert_eq!(param.as_deref(), Some(field)),
                other => panic!("{field}: {value}: {other:?}"),
            }
        }
    }
}

#[test]
fn messages_are_brought_into_one_form() {
    let body = json!({"messages": [
        {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "user", "content": "q", "name": "ann"},
        {"role": "assistant", "content": null, "reasoning_content": "", "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "content": null, "tool_call_id": "1"},
        {"role": "assistant", "tool_calls": []},
    ]});
    let request = Request::read(&to_raw_value(&body).unwrap(), EpisodeType::Train, &Rollout::default()).unwrap();
    let expected = json!([
        {"role": "system", "content": "a\nb"},
        {"role": "user", "content": "q", "name": "ann"},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "content": "", "tool_call_id": "1"},
        {"role": "assistant", "content": ""},
    ]);
    assert_eq!(Value::from(request.conversation.messages), expected);
}

#[test]
fn refusals_and_reasoning_by_another_name_are_text_and_thinking() {
    let body = json!({"messages": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": null, "refusal": "no"},
        {"role": "assistant", "content": [{"type": "text", "text": "b"}, {"type": "refusal", "refusal": "never"}]},
        {"role": "assistant", "content": "c", "refusal": null, "reasoning": "hm", "reasoning_content": null},
        {"role": "assistant", "content": "d", "reasoning": {"effort": "low"}, "tool_calls": [
            {"id": null, "function": {"name": "f", "arguments": null}}]},
    ], "stream_options": {"include_usage": null}});
    let request = Request::read(&to_raw_value(&body).unwrap(), EpisodeType::Train, &Rollout::default()).unwrap();
    let expected = json!([
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "no"},
        {"role": "assistant", "content": "b\nnever"},
        {"role": "assistant", "content": "c", "reasoning_content": "hm"},
        {"role": "assistant", "content": "d", "tool_calls": [
            {"id": "", "type": "function", "function": {"name": "f", "arguments": ""}}]},
    ]);
    assert_eq!(Value::from(request.conversation.messages), expected);
    assert!(!request.include_usage);
}

#[test]
fn a_beginning_of_the_answer_alone_is_no_conversation() {
    let extra = json!({"messages": [{"role": "assistant", "content": "It"}], "continue_final_message": true});
    let refused = read(EpisodeType::Train, extra).unwrap_err().to_string();
    assert!(refused.contains("has only the assistant's message"), "{refused}");
}

#[test]
fn the_template_is_told_how_to_think() {
    let variables = |extra: Value| {
        let request = read(EpisodeType::Train, extra).unwrap();
        Value::from(request.conversation.template_kwargs)
    };
    for (given, expected) in [
        (json!({}), json!({})),
        (json!({"reasoning_effort": "low"}), json!({"reasoning_effort": "low"})),
        (
            json!({"reasoning_effort": "none"}),
            json!({"reasoning_effort": "none", "enable_thinking": false}),
        ),
        (json!({"enable_thinking": true}), json!({"enable_thinking": true})),
        (
            json!({"thinking": {"type": "disabled"}}),
            json!({"enable_thinking": false}),
        ),
        (
            json!({"thinking": {"type": "enabled", "budget": 9}}),
            json!({"enable_thinking": true}),
        ),
        (json!({"thinking": {"type": "auto"}}), json!({})),
        (
            json!({"reasoning": {"effort": "high"}}),
            json!({"reasoning_effort": "high"}),
        ),
        (
            json!({"reasoning": {"enabled": false}}),
            json!({"enable_thinking": false}),
        ),
        (
            json!({"reasoning": {"effort": "high"}, "reasoning_effort": "low"}),
            json!({"reasoning_effort": "low"}),
        ),
        (
            json!({"enable_thinking": true, "chat_template_kwargs": {"enable_thinking": false, "x": 1}}),
            json!({"enable_thinking": false, "x": 1}),
        ),
    ] {
        assert_eq!(variables(given.clone()), expected, "{given}");
    }
}

#[test]
fn the_last_message_may_begin_the_answer() {
    let asked = |message: Value, extra: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "q"}, message]});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        Request::read(&to_raw_value(&body).unwrap(), EpisodeType::Train, &Rollout::default())
    };
    let begun = json!({"role": "assistant", "content": "The answer is"});
    let request = asked(
        begun.clone(),
        json!({"continue_final_message": true, "add_generation_prompt": false}),
    )
    .unwrap();
    assert_eq!(request.opening.as_deref(), Some("The answer is"));
    assert_eq!(request.conversation.messages.len(), 1);
    assert_eq!(asked(begun.clone(), json!({})).unwrap().opening, None);

    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    let called = json!({"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]});
    let goes_on = json!({"continue_final_message": true});
    for (message, extra, named) in [
        (
            begun.clone(),
            json!({"add_generation_prompt": false}),
            "add_generation_prompt",
        ),
        (
            begun.clone(),
            json!({"continue_final_message": true, "add_generation_prompt": true}),
            "add_generation_prompt",
        ),
        (
            json!({"role": "user", "content": "a"}),
            goes_on.clone(),
            "continue_final_message",
        ),
        (called, goes_on, "continue_final_message"),
        (
            begun,
            json!({"continue_final_message": true, "tools": tools, "tool_choice": "required"}),
            "tool_choice",
        ),
    ] {
        match asked(message, extra).map(|_| ()) {
            Err(ChatError::InvalidRequest { param, .. }) => assert_eq!(param.as_deref(), Some(named)),
            other => panic!("{named}: {other:?}"),
        }
    }
}

#[test]
fn system_prompts_and_tools_follow_the_configuration() {
    let mut rollout = Rollout {
        default_system_prompt: Some("be good".into()),
        ..Rollout::default()
    };
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    let body =
        |choice: &str| json!({"messages": [{"role": "user", "content": "a"}], "tools": tools, "tool_choice": choice});
    let request = Request::read(&to_raw_value(&body("auto")).unwrap(), EpisodeType::Train, &rollout).unwrap();
    assert_eq!(
        request.conversation.messages[0],
        json!({"role": "system", "content": "be good"})
    );
    assert_eq!(request.conversation.tools.len(), 1);
    let request = Request::read(&to_raw_value(&body("none")).unwrap(), EpisodeType::Train, &rollout).unwrap();
    assert!(request.conversation.tools.is_empty());
    rollout.force_disable_toolcalls = true;
    let request = Request::read(&to_raw_value(&body("auto")).unwrap(), EpisodeType::Train, &rollout).unwrap();
    assert!(request.conversation.tools.is_empty());
}
