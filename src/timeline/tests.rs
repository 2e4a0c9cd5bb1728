//! Whole episodes of random agents on a made-up model: what must hold of every timeline.

use proptest::prelude::*;
use rand::Rng;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use super::fake::{self, Fake, IM_END, Template};
use super::*;
use crate::config::schema::CompareLevel;

fn policy(compare_level: CompareLevel) -> MergePolicy {
    MergePolicy {
        compare_level,
        ignore_tools: true,
        max_row_len: usize::MAX,
        max_rows: usize::MAX,
        seed: 0,
        weight_version: 0,
    }
}

/// An episode as the engine records it.
struct Episode {
    fake: Fake,
    rng: ChaCha8Rng,
    calls: Vec<Call>,
    counters: Counters,
    tools: Vec<Value>,
}

impl Episode {
    fn new(template: Template, seed: u64) -> Self {
        Self {
            fake: Fake::new(template),
            rng: ChaCha8Rng::seed_from_u64(seed),
            calls: Vec::new(),
            counters: Counters::default(),
            tools: Vec::new(),
        }
    }

    fn prompt(&mut self, messages: &[Value]) -> Prompt {
        let conversation = Conversation {
            messages: messages.to_vec(),
            tools: self.tools.clone(),
            ..Conversation::default()
        };
        let prompt = prompt_for(&self.calls, conversation, &self.fake).unwrap();
        if let Some(reason) = prompt.split {
            *self.counters.timeline_splits.entry(reason).or_default() += 1;
        }
        prompt
    }

    fn record(&mut self, prompt: Prompt, sampled: Vec<u32>, answer: Option<Value>) -> Value {
        let ended = sampled.last().is_some_and(|id| *id <= 2);
        let body = &sampled[..sampled.len() - usize::from(ended)];
        let sampled_text = self.fake.decode(body);
        let answer = answer.unwrap_or_else(|| json!({"role": "assistant", "content": sampled_text}));
        self.calls.push(Call {
            conversation: prompt.conversation,
            rendered: prompt.rendered,
            prompt: prompt.ids,
            logprobs: sampled.iter().map(|_| -self.rng.random::<f32>()).collect(),
            sampled,
            sampled_text,
            end: if ended { TurnEnd::EndToken } else { TurnEnd::Length },
            ..fake::call(vec![], answer.clone())
        });
        answer
    }

    /// One call with a random answer.
    fn call(&mut self, messages: &[Value]) -> Value {
        let prompt = self.prompt(messages);
        let cut = self.rng.random_bool(0.1);
        let sampled = self.fake.sample(&mut self.rng, cut);
        self.record(prompt, sampled, None)
    }

    /// One call in which the model writes this text.
    fn call_with(&mut self, messages: &[Value], written: &str, answer: Option<Value>) -> Value {
        let prompt = self.prompt(messages);
        let mut sampled = self.fake.encode(written).unwrap();
        sampled.push(IM_END);
        self.record(prompt, sampled, answer)
    }

    fn rows(&self, level: CompareLevel) -> Vec<Row> {
        merge(self.calls.clone(), &policy(level), &self.fake).0
    }
}

fn user(content: impl Into<String>) -> Value {
    json!({"role": "user", "content": content.into()})
}

fn tool(content: &str) -> Value {
    json!({"role": "tool", "content": content, "tool_call_id": "x"})
}

fn thinking(answer: &str) -> (String, Option<Value>) {
    let message = json!({"role": "assistant", "content": answer, "reasoning_content": "cab"});
    (format!("<think>\ncab\n</think>\n\n{answer}"), Some(message))
}

/// A random conversation with random behaviour: goes on, branches, asks again, edits, drops, calls in parallel.
fn random_agent(episode: &mut Episode, id: usize, turns: usize) {
    let mut messages = vec![user(format!("agent {id}"))];
    for turn in 0..turns {
        let answer = episode.call(&messages);
        match episode.rng.random_range(0..12) {
            0 => _ = episode.call(&messages),
            1 => messages = vec![user(format!("agent {id}")), user("")],
            2 => {
                let edited = episode.rng.random_range(0..messages.len());
                messages[edited]["content"] = json!("edited");
            }
            3 => messages.truncate(1),
            4 => {
                let parallel = [messages.clone(), vec![answer.clone(), user("left")]].concat();
                episode.call(&parallel);
                messages.extend([answer, user("right")]);
            }
            5 => messages.extend([answer, tool("日本"), tool("\n"), tool("")]),
            _ => messages.extend([answer, user(format!("turn {turn}\n\n"))]),
        }
    }
}

fn check_rows(episode: &Episode, rows: &[Row]) {
    let sampled: usize = episode.calls.iter().map(|call| call.sampled.len()).sum();
    assert_eq!(
        rows.iter().map(Row::response_tokens).sum::<usize>(),
        sampled,
        "each sampled token once"
    );
    // Every call's tokens are in some row, at their place, masked in with their log-probabilities.
    let mut expected: Vec<(Vec<u32>, u32)> = Vec::new();
    for call in &episode.calls {
        for (at, logprob) in call.logprobs.iter().enumerate() {
            expected.push((call.sequence()[..=call.prompt.len() + at].to_vec(), logprob.to_bits()));
        }
    }
    let mut found: Vec<(Vec<u32>, u32)> = Vec::new();
    for row in rows {
        assert_eq!(row.token_ids.len(), row.loss_mask.len());
        assert_eq!(row.token_ids.len(), row.logprobs.len());
        for at in (0..row.token_ids.len()).filter(|at| row.loss_mask[*at]) {
            found.push((row.token_ids[..=at].to_vec(), row.logprobs[at].to_bits()));
        }
    }
    expected.sort();
    found.sort();
    assert!(
        expected == found,
        "what is trained is what was sampled, behind exactly what the model saw"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn random_agents_train_every_sampled_token_once(seed: u64, agents in 1_usize..4, turns in 1_usize..9) {
        for template in [Template::Keep, Template::DropThinking] {
            let mut episode = Episode::new(template, seed);
            for id in 0..agents {
                random_agent(&mut episode, id, turns);
            }
            check_rows(&episode, &episode.rows(CompareLevel::Token));
            let rows = episode.rows(CompareLevel::Text);
            let sampled: usize = episode.calls.iter().map(|call| call.sampled.len()).sum();
            prop_assert_eq!(rows.iter().map(Row::response_tokens).sum::<usize>(), sampled);
        }
    }

    #[test]
    fn a_linear_conversation_is_one_row(seed: u64, turns in 1_usize..9) {
        for template in [Template::Keep, Template::DropThinking] {
            let mut episode = Episode::new(template, seed);
            let mut messages = vec![json!({"role": "system", "content": "日本\n"}), user("a")];
            for turn in 0..turns {
                let answer = episode.call(&messages);
                messages.push(answer);
                match turn % 3 {
                    0 => messages.push(user("\n")),
                    1 => messages.extend([tool("é"), tool("")]),
                    _ => messages.push(user(" ab ")),
                }
            }
            let rows = episode.rows(CompareLevel::Token);
            prop_assert_eq!(rows.len(), 1);
            prop_assert!(episode.counters.timeline_splits.is_empty());
            check_rows(&episode, &rows);
        }
    }

    #[test]
    fn two_agents_interleave_freely(seed: u64, order in prop::collection::vec(0_usize..2, 2..10)) {
        let mut episode = Episode::new(Template::Keep, seed);
        let mut conversations = [vec![user("one")], vec![user("two")]];
        for agent in &order {
            let answer = episode.call(&conversations[*agent]);
            conversations[*agent].extend([answer, user("go on")]);
        }
        let agents = (0..2).filter(|agent| order.contains(agent)).count();
        let rows = episode.rows(CompareLevel::Token);
        prop_assert_eq!(rows.len(), agents);
        check_rows(&episode, &rows);
    }

    #[test]
    fn the_bridge_is_the_templates_rendering_where_text_comes_back(seed: u64, turns in 1_usize..7) {
        let mut episode = Episode::new(Template::Keep, seed);
        let mut messages = vec![user("a")];
        for _ in 0..turns {
            let prompt = episode.prompt(&messages);
            let conversation = Conversation { messages: messages.clone(), ..Conversation::default() };
            let whole = episode.fake.encode(&episode.fake.render(&conversation, true).unwrap()).unwrap();
            prop_assert_eq!(&prompt.ids, &whole);
            // An answer that re-tokenises to itself, behind this prompt.
            let cut = episode.rng.random_bool(0.2);
            let sampled = episode.fake.sample(&mut episode.rng, true);
            let written = prompt.rendered.clone() + &episode.fake.decode(&sampled);
            let encoded = episode.fake.encode(&written).unwrap();
            let mut sampled = encoded.strip_prefix(prompt.ids.as_slice()).map_or_else(|| vec![20], <[u32]>::to_vec);
            if !cut {
                sampled.push(IM_END);
            }
            let answer = episode.record(prompt, sampled, None);
            messages.push(answer);
            messages.extend((0..episode.rng.random_range(0..3)).map(|_| tool("\n日本")));
            messages.push(user("\n\nab"));
        }
    }
}

#[test]
fn a_turn_cut_by_length_gets_the_templates_end_as_context() {
    let mut episode = Episode::new(Template::Keep, 0);
    let prompt = episode.prompt(&[user("a")]);
    let sampled = episode.fake.encode("abc").unwrap();
    let answer = episode.record(prompt, sampled, None);
    episode.call_with(&[user("a"), answer, user("b")], "c", None);

    let rows = episode.rows(CompareLevel::Token);
    assert_eq!(rows.len(), 1);
    let masked: Vec<u32> = (0..rows[0].token_ids.len())
        .filter(|at| rows[0].loss_mask[*at])
        .map(|at| rows[0].token_ids[at])
        .collect();
    assert_eq!(episode.fake.decode(&masked), "abcc<|im_end|>");
    assert_eq!(
        episode.fake.decode(&rows[0].token_ids),
        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nabc<|im_end|>\n\
         <|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\nc<|im_end|>"
    );
}

#[test]
fn thinking_that_the_template_drops_splits_the_row_and_is_counted() {
    let mut episode = Episode::new(Template::DropThinking, 0);
    let (written, message) = thinking("a");
    let first = episode.call_with(&[user("q")], &written, message);
    // A tool answer keeps the thinking, the next question drops it.
    let (written, message) = thinking("b");
    let second = episode.call_with(&[user("q"), first.clone(), tool("t")], &written, message);
    assert!(episode.counters.timeline_splits.is_empty());
    episode.call_with(&[user("q"), first, tool("t"), second, user("r")], "c", None);

    assert_eq!(
        episode.counters.named(),
        [("timeline_splits/thinking_dropped".to_owned(), 1)]
    );
    let rows = episode.rows(CompareLevel::Token);
    assert_eq!(rows.len(), 2);
    check_rows(&episode, &rows);
}

#[test]
fn thinking_that_the_template_keeps_is_one_row_even_if_the_client_drops_it() {
    let mut episode = Episode::new(Template::Keep, 0);
    let (written, message) = thinking("a");
    let mut answer = episode.call_with(&[user("q")], &written, message);
    answer.as_object_mut().unwrap().remove("reasoning_content");
    episode.call_with(&[user("q"), answer, user("r")], "c", None);
    assert_eq!(episode.rows(CompareLevel::Token).len(), 1);
}

#[test]
fn a_tool_call_laid_out_in_another_way_is_bridged_with_the_sampled_tokens() {
    let message = json!({"role": "assistant", "content": null, "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": \"\\u00e9\"}"}}]});
    // Other white space, keys in another order, an escaped letter.
    let cases = [
        "<tool_call>{\"name\":\"f\",   \"arguments\":{\"a\":\"é\"}}</tool_call>",
        "<tool_call>\n{\"arguments\": {\"a\": \"\\u00e9\"}, \"name\": \"f\"}\n</tool_call>",
    ];
    for written in cases {
        let mut episode = Episode::new(Template::Keep, 0);
        let answer = episode.call_with(&[user("q")], written, Some(message.clone()));
        episode.call_with(&[user("q"), answer, tool("t")], "c", None);
        assert!(episode.counters.timeline_splits.is_empty(), "{written}");
        let rows = episode.rows(CompareLevel::Token);
        assert_eq!(rows.len(), 1, "{written}");
        assert!(episode.fake.decode(&rows[0].token_ids).contains(written));
        check_rows(&episode, &rows);
    }
}

#[test]
fn an_answer_whose_text_is_replayed_in_another_shape_is_bridged() {
    let mut episode = Episode::new(Template::Keep, 0);
    let (written, message) = thinking("a");
    episode.call_with(&[user("q")], &written, message);
    let replayed = json!({"role": "assistant", "content": written});
    episode.call_with(&[user("q"), replayed, user("r")], "c", None);
    assert_eq!(episode.rows(CompareLevel::Token).len(), 1);
}

#[test]
fn splits_are_counted_by_reason() {
    let system = |content: &str| json!({"role": "system", "content": content});
    let assistant = |content: &str| json!({"role": "assistant", "content": content});
    let cases = [
        (vec![system("s"), user("q")], None),
        (vec![system("s"), user("q"), assistant("a"), user("r")], None),
        (
            vec![system("t"), user("q"), assistant("a"), user("r")],
            Some(SplitReason::SystemChanged),
        ),
        (
            vec![system("s"), user("q"), assistant("b"), user("r")],
            Some(SplitReason::HistoryEdited),
        ),
        (vec![system("s"), user("r")], Some(SplitReason::NewConversation)),
    ];
    for (messages, reason) in cases {
        let mut episode = Episode::new(Template::Keep, 0);
        episode.call_with(&[system("s"), user("q")], "a", None);
        assert_eq!(episode.prompt(&messages).split, reason, "{messages:?}");
    }
    let mut episode = Episode::new(Template::Keep, 0);
    let answer = episode.call_with(&[user("q")], "a", None);
    episode.tools = vec![json!({"type": "function"})];
    assert_eq!(
        episode.prompt(&[user("q"), answer, user("r")]).split,
        Some(SplitReason::ToolsChanged)
    );
}

#[test]
fn tokens_shared_by_two_branches_are_trained_in_the_first_row_only() {
    let mut episode = Episode::new(Template::Keep, 0);
    let first = episode.call_with(&[user("q")], "abc", None);
    episode.call_with(&[user("q"), first.clone(), user("l")], "a", None);
    episode.call_with(&[user("q"), first, user("r")], "b", None);
    let rows = episode.rows(CompareLevel::Token);
    assert_eq!(rows.iter().map(Row::response_tokens).collect::<Vec<_>>(), [4, 2]);
    check_rows(&episode, &rows);
}

#[test]
fn text_level_takes_the_tokens_that_were_sampled() {
    let fake = Fake::new(Template::Keep);
    let call = |prompt: &str, sampled: &[&str]| {
        let sampled: Vec<u32> = sampled.iter().flat_map(|piece| fake.encode(piece).unwrap()).collect();
        Call {
            prompt: fake.encode(prompt).unwrap(),
            logprobs: vec![-1.0; sampled.len()],
            sampled,
            ..fake::call(vec![], Value::Null)
        }
    };
    // "ab" + "c" was sampled; encoded again it is the one token "abc".
    let calls = vec![
        call("q ", &["ab", "c", "<|im_end|>"]),
        call("q abc<|im_end|>\n", &["b"]),
    ];
    assert_eq!(merge(calls.clone(), &policy(CompareLevel::Token), &fake).0.len(), 2);
    let rows = merge(calls.clone(), &policy(CompareLevel::Text), &fake).0;
    assert_eq!(rows.len(), 1);
    assert!(calls[0].is_prefix_of(&rows[0].token_ids));
    assert_eq!(rows[0].response_tokens(), 4);
}

#[test]
fn limits_cut_at_the_end_sample_rows_by_seed_and_are_counted() {
    let mut episode = Episode::new(Template::Keep, 0);
    for id in 0..9 {
        episode.call_with(&[user(id.to_string())], "abcabcabc", None);
    }
    let limited = MergePolicy {
        max_rows: 4,
        seed: 7,
        ..policy(CompareLevel::Text)
    };
    let (rows, counters) = merge(episode.calls.clone(), &limited, &episode.fake);
    assert_eq!((rows.len(), counters.rows_left_out), (4, 5));
    assert_eq!(
        merge(episode.calls.clone(), &limited, &episode.fake).0,
        rows,
        "the same seed keeps the same rows"
    );

    let row_len = rows[0].token_ids.len();
    let short = MergePolicy {
        max_row_len: row_len - 2,
        ..policy(CompareLevel::Text)
    };
    let (cut, counters) = merge(episode.calls[..1].to_vec(), &short, &episode.fake);
    assert_eq!(counters.row_cut, 1);
    assert!(cut[0].truncated);
    assert_eq!(cut[0].response_tokens(), episode.calls[0].sampled.len() - 2);
    assert!(episode.calls[0].sequence().starts_with(&cut[0].token_ids));
}

#[test]
fn what_older_weights_sampled_is_context_only() {
    let mut episode = Episode::new(Template::Keep, 0);
    let first = episode.call_with(&[user("q")], "abc", None);
    episode.call_with(&[user("q"), first, user("r")], "b", None);
    episode.calls[1].weight_version = 1;
    let newer = MergePolicy {
        weight_version: 1,
        ..policy(CompareLevel::Text)
    };
    let (rows, _) = merge(episode.calls.clone(), &newer, &episode.fake);
    assert_eq!(rows.iter().map(Row::response_tokens).collect::<Vec<_>>(), [2]);
}

#[test]
fn tokens_that_a_grammar_determined_are_context_and_rows_know_their_grammars() {
    let fake = Fake::new(Template::Keep);
    let call = |prompt: &[u32], sampled: &[u32], grammar: Option<&str>, determined: &[usize]| Call {
        prompt: prompt.to_vec(),
        sampled: sampled.to_vec(),
        logprobs: vec![-1.0; sampled.len()],
        grammar: grammar.map(Into::into),
        determined: determined.to_vec(),
        ..fake::call(vec![], Value::Null)
    };
    let calls = vec![
        call(&[5, 6], &[7, 8, 9], Some("a"), &[0, 2]),
        call(&[5, 6, 7, 8, 9, 10], &[11, 12], None, &[]),
        call(&[5, 6, 7, 8, 9, 10, 11, 12, 13], &[14, 15, 16], Some("b"), &[1]),
        call(&[5, 6], &[7], Some("a"), &[0]),
    ];
    let merged = |max_row_len| {
        let policy = MergePolicy {
            max_row_len,
            ..policy(CompareLevel::Token)
        };
        merge(calls.clone(), &policy, &fake).0
    };
    let rows = merged(100);
    assert_eq!(rows.len(), 1, "the last call has nothing to train");
    let trained: Vec<usize> = (0..12).filter(|at| rows[0].loss_mask[*at]).collect();
    assert_eq!(trained, [3, 6, 7, 9, 11]);
    assert!((0..12).all(|at| (rows[0].logprobs[at] != 0.0) == rows[0].loss_mask[at]));
    let grammars = |row: &Row| -> Vec<(usize, usize, String)> {
        let constrained = row.constrained.iter();
        constrained.map(|c| (c.start, c.len, c.grammar.to_string())).collect()
    };
    let (first, last) = ((2, 3, "a".to_owned()), (9, 3, "b".to_owned()));
    assert_eq!(grammars(&rows[0]), [first.clone(), last]);
    assert_eq!(grammars(&merged(10)[0]), [first.clone(), (9, 1, "b".to_owned())]);
    assert_eq!(grammars(&merged(9)[0]), [first]);
    let json = serde_json::to_string(&rows[0]).unwrap();
    assert_eq!(serde_json::from_str::<Row>(&json).unwrap(), rows[0]);
}
