//! The scheduler over a model whose next token is a function of all tokens before it.

use std::collections::HashSet;
use std::sync::Arc;

use proptest::prelude::*;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::error::Result;
use super::forward::{BLOCK_TOKENS, BlockId, Chunk, Forward, Logits};
use super::request::{Bias, FinishReason, SampleEvent, SampleRequest, SamplingParams};
use super::scheduler::{Limits, Scheduler, plan};
use crate::model::Weights;
use crate::model::kernels::Pool;

const VOCAB: usize = 11;

/// Remembers tokens instead of keys and values, and prefers the token that a hash of all of them names.
struct Remembering {
    /// Number of tokens above which it runs out of memory.
    fits: usize,
    blocks: Vec<Vec<u32>>,
    largest_batch: usize,
    computed: usize,
}

impl Default for Remembering {
    fn default() -> Self {
        Self {
            fits: usize::MAX,
            blocks: vec![],
            largest_batch: 0,
            computed: 0,
        }
    }
}

fn next_token(tokens: &[u32]) -> u32 {
    let hash = tokens.iter().fold(7u32, |hash, t| (hash ^ t).wrapping_mul(16_777_619));
    (hash >> 8) % VOCAB as u32
}

impl Forward for Remembering {
    fn block_bytes(&self) -> usize {
        1
    }

    fn reserve(&mut self, _: usize) {}

    fn forward(&mut self, chunks: &[Chunk]) -> Result<Logits> {
        if chunks.iter().map(|chunk| chunk.tokens.len()).sum::<usize>() > self.fits {
            return Err(candle_core::Error::Msg("CUDA_ERROR_OUT_OF_MEMORY".into()).into());
        }
        let mut logits = vec![];
        for chunk in chunks {
            for (i, &token) in chunk.tokens.iter().enumerate() {
                let (block, slot) = (
                    chunk.blocks[(chunk.start + i) / BLOCK_TOKENS],
                    (chunk.start + i) % BLOCK_TOKENS,
                );
                let needed = self.blocks.len().max(block + 1);
                self.blocks.resize(needed, vec![u32::MAX; BLOCK_TOKENS]);
                self.blocks[block][slot] = token;
            }
            if chunk.logits {
                let end = chunk.start + chunk.tokens.len();
                let seen: Vec<u32> = chunk
                    .blocks
                    .iter()
                    .flat_map(|&b| &self.blocks[b])
                    .copied()
                    .take(end)
                    .collect();
                let next = next_token(&seen);
                logits.extend((0..VOCAB as u32).map(|t| if t == next { 5.0 } else { 0.0 }));
            }
        }
        self.largest_batch = self.largest_batch.max(chunks.len());
        self.computed += chunks.iter().map(|c| c.tokens.len()).sum::<usize>();
        Ok(Logits::Host(logits))
    }

    fn copy_block(&mut self, from: BlockId, to: BlockId) -> Result<()> {
        let needed = self.blocks.len().max(to + 1);
        self.blocks.resize(needed, vec![u32::MAX; BLOCK_TOKENS]);
        self.blocks[to] = self.blocks[from].clone();
        Ok(())
    }

    fn refresh(&mut self, _: &Weights) -> Result<()> {
        Ok(())
    }

    fn release_blocks(&mut self) {
        self.blocks.clear();
    }
}

fn scheduler(max_num_seqs: usize, blocks: usize) -> Scheduler {
    scheduler_over(Remembering::default(), max_num_seqs, blocks)
}

fn scheduler_over(model: Remembering, max_num_seqs: usize, blocks: usize) -> Scheduler {
    let limits = Limits {
        max_num_seqs,
        max_model_len: 200,
        step_tokens: max_num_seqs + 40,
        cache_bytes: blocks,
        vocab_size: VOCAB,
    };
    Scheduler::with_forward(Box::new(model), Arc::new(Pool::new(1)), limits).unwrap()
}

fn request(id: u64, prompt: &[u32], max_tokens: usize) -> (SampleRequest, UnboundedReceiver<SampleEvent>) {
    let (events, receiver) = unbounded_channel();
    let params = SamplingParams {
        temperature: 0.0,
        top_p: 1.0,
        top_k: None,
        min_p: 0.0,
        bias: Bias::default(),
        seed: id,
        max_tokens,
        stop_token_ids: vec![],
        top_logprobs: 0,
    };
    let group = format!("episode {}", id % 3);
    (
        SampleRequest {
            id,
            group,
            prompt: prompt.to_vec(),
            params,
            forced_tokens: vec![],
            grammar: None,
            stop: None,
            events,
        },
        receiver,
    )
}

fn prompt(len: usize, kind: u32) -> Vec<u32> {
    (0..len as u32)
        .map(|i| (i * 7 + i / 13 + kind) % VOCAB as u32)
        .collect()
}

/// What greedy sampling must give.
fn expected(prompt: &[u32], max_tokens: usize) -> Vec<u32> {
    let mut tokens = prompt.to_vec();
    for _ in 0..max_tokens {
        tokens.push(next_token(&tokens));
    }
    tokens.split_off(prompt.len())
}

/// The prompt's cached tokens, the sampled tokens and the end.
fn answer(events: &mut UnboundedReceiver<SampleEvent>) -> (usize, Vec<u32>, Option<SampleEvent>) {
    let (mut cached, mut tokens, mut end) = (0, vec![], None);
    while let Ok(event) = events.try_recv() {
        assert!(end.is_none(), "{event:?} after the end");
        match event {
            SampleEvent::Started { cached_tokens } => {
                assert!(tokens.is_empty());
                cached = cached_tokens;
            }
            SampleEvent::Token(token) => tokens.push(token.id),
            other => end = Some(other),
        }
    }
    (cached, tokens, end)
}

fn run(scheduler: &mut Scheduler) -> usize {
    let mut steps = 0;
    while !scheduler.is_idle() {
        scheduler.step().unwrap();
        steps += 1;
        assert!(steps < 10_000, "the scheduler gets nowhere");
    }
    steps
}

const LENGTH: Option<SampleEvent> = Some(SampleEvent::Finished(FinishReason::Length));
const CANCELLED: Option<SampleEvent> = Some(SampleEvent::Finished(FinishReason::Cancelled));

#[test]
fn decoding_goes_before_prompts_and_prompts_share_what_is_left() {
    for (remaining, budget, counts) in [
        (vec![], 10, vec![]),
        (vec![1, 1, 1], 10, vec![1, 1, 1]),
        (vec![100, 1, 50, 1], 60, vec![58, 1, 0, 1]),
        (vec![20, 30, 40], 60, vec![20, 30, 10]),
        (vec![1, 1, 9], 2, vec![1, 1, 0]),
        (vec![9, 1, 1, 1], 2, vec![0, 1, 1, 0]),
    ] {
        assert_eq!(plan(&remaining, budget), counts, "{remaining:?} with {budget}");
    }
}

#[test]
fn requests_are_batched_join_and_leave() {
    let mut scheduler = scheduler(8, 100);
    let prompts: Vec<Vec<u32>> = (0..5).map(|i| prompt(3 + 20 * i, i as u32)).collect();
    let mut answers = vec![];
    for (i, prompt) in prompts.iter().enumerate() {
        let (request, events) = request(i as u64, prompt, 10 + i);
        scheduler.submit(request);
        answers.push(events);
        scheduler.step().unwrap();
    }
    let steps = run(&mut scheduler);
    assert!(steps < 30, "{steps} steps: not batched");
    for (i, events) in answers.iter_mut().enumerate() {
        let (_, tokens, end) = answer(events);
        assert_eq!((tokens, end), (expected(&prompts[i], 10 + i), LENGTH));
    }
}

#[test]
fn repeats_of_a_prompt_are_computed_once() {
    let mut scheduler = scheduler(32, 100);
    let prompt = prompt(150, 1);
    let mut answers: Vec<_> = (0..16)
        .map(|id| {
            let (request, events) = request(id, &prompt, 5);
            scheduler.submit(request);
            events
        })
        .collect();
    let mut prefilled = 0;
    while !scheduler.is_idle() {
        prefilled += scheduler.step().unwrap().prefilled;
    }
    assert_eq!(prefilled, 150);
    let cached: Vec<usize> = answers
        .iter_mut()
        .map(|events| {
            let (cached, tokens, end) = answer(events);
            assert_eq!((tokens, end), (expected(&prompt, 5), LENGTH));
            cached
        })
        .collect();
    assert_eq!(cached.iter().filter(|&&c| c == 149).count(), 15, "{cached:?}");
    assert_eq!(
        (scheduler.totals().prompt_tokens, scheduler.totals().cached_tokens),
        (16 * 150, 15 * 149)
    );
}

#[test]
fn the_next_turn_computes_its_new_tokens_only() {
    let mut scheduler = scheduler(4, 100);
    let mut conversation = prompt(100, 2);
    for turn in 0..3 {
        let (request, mut events) = request(turn, &conversation, 7);
        scheduler.submit(request);
        run(&mut scheduler);
        let (cached, tokens, _) = answer(&mut events);
        // The last sampled token was never computed.
        assert_eq!(cached, if turn == 0 { 0 } else { conversation.len() - 10 - 1 });
        conversation.extend(tokens);
        conversation.extend(prompt(10, 3));
    }
}

#[test]
fn too_little_memory_slows_but_changes_nothing() {
    // Seven blocks: one sequence of full length and hardly more.
    let mut scheduler = scheduler(6, 7);
    let prompts: Vec<Vec<u32>> = (0..6).map(|i| prompt(30 + i, i as u32)).collect();
    let mut answers = vec![];
    for (i, prompt) in prompts.iter().enumerate() {
        let (request, events) = request(i as u64, prompt, 100);
        scheduler.submit(request);
        answers.push(events);
    }
    run(&mut scheduler);
    assert!(scheduler.totals().preemptions > 0);
    for (prompt, events) in prompts.iter().zip(&mut answers) {
        let (_, tokens, end) = answer(events);
        assert_eq!((tokens, end), (expected(prompt, 100), LENGTH));
    }
}

#[test]
fn where_device_memory_runs_out_a_step_takes_less_and_answers_stay_right() {
    for fits in [1, 3, 30] {
        let model = Remembering {
            fits,
            ..Remembering::default()
        };
        let mut scheduler = scheduler_over(model, 6, 100);
        let prompts: Vec<Vec<u32>> = (0..6).map(|i| prompt(30 + i, i as u32)).collect();
        let mut answers = vec![];
        for (i, prompt) in prompts.iter().enumerate() {
            let (request, events) = request(i as u64, prompt, 20);
            scheduler.submit(request);
            answers.push(events);
        }
        run(&mut scheduler);
        for (prompt, events) in prompts.iter().zip(&mut answers) {
            let (_, tokens, end) = answer(events);
            assert_eq!((tokens, end), (expected(prompt, 20), LENGTH), "{fits} tokens fit");
        }
    }
}

#[test]
fn where_device_memory_does_not_suffice_for_a_token_the_error_says_what_to_do() {
    let model = Remembering {
        fits: 0,
        ..Remembering::default()
    };
    let mut scheduler = scheduler_over(model, 2, 100);
    let (request, _events) = request(1, &[1, 2, 3], 5);
    scheduler.submit(request);
    let error = scheduler.step().unwrap_err().to_string();
    assert!(
        error.contains("out of memory while computing a single token: CUDA_ERROR_OUT_OF_MEMORY")
            && error.contains("ajet.rollout.gpu_memory_utilization"),
        "{error}"
    );
}

#[test]
fn requests_whose_receiver_is_gone_leave_within_a_step() {
    let mut scheduler = scheduler(2, 100);
    let mut answers: Vec<_> = (0..4)
        .map(|id| {
            let (request, events) = request(id, &prompt(40, id as u32), 50);
            scheduler.submit(request);
            events
        })
        .collect();
    scheduler.step().unwrap();
    scheduler.step().unwrap();
    drop(answers.remove(3)); // waiting
    drop(answers.remove(1)); // running
    let report = scheduler.step().unwrap();
    assert_eq!((report.running, report.waiting), (2, 0));
    scheduler.cancel_all();
    assert!(scheduler.is_idle());
    for events in &mut answers {
        assert_eq!(answer(events).2, CANCELLED);
    }
}

#[test]
fn stop_tokens_and_stop_checks_end_with_their_token() {
    struct Third(usize);
    impl super::request::StopCheck for Third {
        fn push(&mut self, _: u32) -> bool {
            self.0 += 1;
            self.0 == 3
        }
    }
    let mut scheduler = scheduler(2, 100);
    let prompt = prompt(20, 5);
    let all = expected(&prompt, 30);
    let stop = Some(SampleEvent::Finished(FinishReason::Stop));

    let (mut checked, mut events) = request(1, &prompt, 30);
    checked.stop = Some(Box::new(Third(0)));
    scheduler.submit(checked);
    run(&mut scheduler);
    assert_eq!(answer(&mut events), (0, all[..3].to_vec(), stop.clone()));

    let (mut stopped, mut events) = request(2, &prompt, 30);
    stopped.params.stop_token_ids = vec![all[4]];
    scheduler.submit(stopped);
    run(&mut scheduler);
    let place = all.iter().position(|&t| t == all[4]).unwrap();
    let (_, tokens, end) = answer(&mut events);
    assert_eq!((tokens, end), (all[..=place].to_vec(), stop));
}

#[test]
fn bias_and_penalties_change_what_is_drawn() {
    let answered = |bias: Bias| {
        let mut scheduler = scheduler(2, 100);
        let (mut request, mut events) = request(1, &prompt(20, 1), 2 * VOCAB);
        request.params.bias = bias;
        scheduler.submit(request);
        run(&mut scheduler);
        answer(&mut events).1
    };
    let each_once = |tokens: &[u32]| tokens.iter().collect::<HashSet<_>>().len() == VOCAB;
    assert!(!each_once(&answered(Bias::default())[..VOCAB]));
    let tokens = answered(Bias {
        frequency_penalty: 1e3,
        ..Bias::default()
    });
    assert!(each_once(&tokens[..VOCAB]) && each_once(&tokens[VOCAB..]), "{tokens:?}");
    let tokens = answered(Bias {
        presence_penalty: 1e3,
        ..Bias::default()
    });
    assert!(each_once(&tokens[..VOCAB]), "{tokens:?}");
    let tokens = answered(Bias {
        presence_penalty: 5e2,
        logits: vec![(2, -1e3), (5, 1e3)],
        ..Bias::default()
    });
    assert!(tokens.iter().all(|token| *token == 5), "{tokens:?}");
}

#[test]
fn what_cannot_be_sampled_fails_with_a_sentence_and_disturbs_nobody() {
    let mut scheduler = scheduler(2, 100);
    let (good, mut good_events) = request(1, &prompt(20, 1), 30);
    scheduler.submit(good);
    let nan = SamplingParams {
        temperature: f32::NAN,
        ..request(9, &[], 1).0.params
    };
    let with = |mut r: (SampleRequest, _), params: &SamplingParams| {
        r.0.params = params.clone();
        r
    };
    for (bad, message) in [
        (request(2, &[], 5), "no tokens"),
        (request(2, &[3, 11], 5), "token id 11"),
        (request(2, &prompt(190, 1), 11), "limit of 200 tokens"),
        (request(2, &[1], usize::MAX), "limit of 200 tokens"),
        (request(2, &[1], 0), "max_tokens must be"),
        (request(1, &[1], 5), "duplicate request id 1"),
        (with(request(2, &[1], 5), &nan), "got NaN"),
    ] {
        let (bad, mut events) = bad;
        scheduler.submit(bad);
        match answer(&mut events).2 {
            Some(SampleEvent::Failed(sentence)) => assert!(sentence.contains(message), "{sentence}"),
            other => panic!("{other:?}, expected a failure that says {message}"),
        }
    }
    run(&mut scheduler);
    assert_eq!(answer(&mut good_events).1.len(), 30);
}

#[test]
fn a_cache_that_holds_no_sequence_is_refused() {
    let limits = Limits {
        max_num_seqs: 1,
        max_model_len: 200,
        step_tokens: 9,
        cache_bytes: 6,
        vocab_size: VOCAB,
    };
    let pool = Arc::new(Pool::new(1));
    let error = Scheduler::with_forward(Box::<Remembering>::default(), pool, limits)
        .err()
        .unwrap();
    assert!(
        error
            .to_string()
            .starts_with("the KV cache has 192 tokens, but one sequence may need 200"),
        "{error}"
    );
}

#[derive(Clone, Debug)]
enum Action {
    Submit {
        length: usize,
        kind: u32,
        max_tokens: usize,
    },
    Leave(usize),
    Step,
    Refresh,
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let action = prop_oneof![
        3 => (1..120usize, 0..3u32, 1..60usize)
            .prop_map(|(length, kind, max_tokens)| Action::Submit { length, kind, max_tokens }),
        2 => (0..30usize).prop_map(Action::Leave),
        8 => Just(Action::Step),
        1 => Just(Action::Refresh),
    ];
    prop::collection::vec(action, 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever joins and leaves, every answer is what greedy sampling gives, every request ends once, and no block is
    /// lost.
    #[test]
    fn any_traffic_gives_right_answers(actions in actions(), blocks in 7..40usize, max_num_seqs in 1..9usize) {
        let mut scheduler = scheduler(max_num_seqs, blocks);
        let mut requests: Vec<(Vec<u32>, usize, Option<UnboundedReceiver<SampleEvent>>)> = vec![];
        for action in actions {
            match action {
                Action::Submit { length, kind, max_tokens } => {
                    let prompt = prompt(length, kind);
                    let (request, events) = request(requests.len() as u64, &prompt, max_tokens);
                    scheduler.submit(request);
                    requests.push((prompt, max_tokens, Some(events)));
                }
                Action::Leave(i) => {
                    if let Some((_, _, events)) = requests.get_mut(i) {
                        *events = None;
                    }
                }
                Action::Step => {
                    let report = scheduler.step().unwrap();
                    prop_assert!(report.running <= max_num_seqs);
                }
                Action::Refresh => scheduler.release_caches(),
            }
        }
        run(&mut scheduler);
        for (prompt, max_tokens, events) in &mut requests {
            let Some(events) = events else { continue };
            let (_, tokens, end) = answer(events);
            prop_assert_eq!((tokens, end), (expected(prompt, *max_tokens), LENGTH));
        }
        scheduler.release_caches();
        let (free, all) = scheduler.block_counts();
        prop_assert_eq!(free, all);
    }
}
