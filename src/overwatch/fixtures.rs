//! States of a server for tests.

use serde_json::json;

use super::state::State;
use super::update::{Observed, Query, Subject, Update};
use crate::protocol::engine::EndpointLoad;
use crate::protocol::status::{
    BatchProgress, ClientInfo, Distribution, EngineState, EpisodeDetail, EpisodeSummary, Episodes, ExperimentInfo,
    GroupEpisode, Phase, RunningEpisode, SamplingLoad, ServerInfo, Status, StepMetrics, TaskGroup, TokenRow,
    TranscriptConversation,
};
use crate::protocol::swarm::{EngineStatus, VerboseLog};

/// Time of all fixtures.
pub const NOW: f64 = 10_000.0;

/// Text that would steer a terminal.
pub const HOSTILE: &str = "\u{1b}[2J\u{1b}]52;c;ZXZpbA==\u{7}a\u{202e}b\u{200b}c";

/// A server that samples its 37th batch.
pub fn rolling() -> Status {
    let uuid = |number: usize| format!("{number:08x}-aaaa");
    let group = |number: usize, rewards: &[f64], running| TaskGroup {
        task_id: format!("reverse_text_{number}"),
        episodes: rewards
            .iter()
            .enumerate()
            .map(|(place, reward)| GroupEpisode {
                episode_uuid: uuid(100 * number + place),
                client_uuid: "c1ient01-x".into(),
                reward: *reward,
            })
            .collect(),
        running,
        has_signal: rewards.iter().any(|reward| *reward != rewards[0]),
    };
    let running = |number: usize, calls_in_flight, idle| RunningEpisode {
        episode_uuid: uuid(number),
        task_id: if number == 2 {
            String::new()
        } else {
            format!("reverse_text_{}", 1200 + number)
        },
        client_uuid: "c1ient01-x".into(),
        claimed: NOW - 12.0,
        idle,
        patience: 240.0,
        llm_calls: number as u64,
        calls_in_flight,
        completion_tokens: 40 * number as u64,
        ..RunningEpisode::default()
    };
    let times = |p50: f64| Distribution {
        count: 200,
        mean: p50,
        p10: p50 / 2.0,
        p50,
        p90: p50 * 2.0,
    };
    Status {
        server: ServerInfo {
            version: "0.1.0".into(),
            started: NOW - 600.0,
            now: NOW,
        },
        experiment: Some(ExperimentInfo {
            project: "quickstart".into(),
            name: "quickstart_20261201".into(),
            directory: "/runs/quickstart_20261201".into(),
            model: "builtin:tiny".into(),
            device: "cpu".into(),
            parameters: 65_100,
            trainable_parameters: 65_100,
        }),
        engine: EngineState {
            status: EngineStatus::Rolling,
            since: NOW - 42.0,
            global_step: 37,
            total_steps: Some(300),
            phases: phases(),
            ..EngineState::default()
        },
        batch: BatchProgress {
            rule: "rollout_until_finish_enough_tasks".into(),
            unit: "tasks".into(),
            done: 10,
            target: 16,
            episodes: 84,
            episodes_target: 128,
            repeats: 4,
            seconds_left: Some(18.0),
            reward: Distribution::of([0.0, 0.5, 1.0, 1.0]),
        },
        sampling: Some(SamplingLoad {
            running_requests: 32,
            waiting_requests: 4,
            cache_usage: 0.42,
            prefix_hit_rate: 0.89,
            tokens_per_second: 4285.5,
            prompt_tokens_per_second: 812.0,
            episodes_per_second: 5.14,
            time_to_first_token: Some(times(0.085)),
            time_per_token: Some(times(0.0042)),
            memory_bytes: 93 << 20,
            endpoints: vec![
                EndpointLoad {
                    url: "http://box2:8000".into(),
                    weight_version: Some(41),
                    running_requests: 20,
                    sampled_tokens: 1_000_000,
                    problem: None,
                },
                EndpointLoad {
                    url: "http://box3:8000".into(),
                    problem: Some("cannot be reached: connection refused".into()),
                    ..EndpointLoad::default()
                },
            ],
        }),
        clients: vec![ClientInfo {
            client_uuid: "c1ient01-x".into(),
            last_activity: NOW - 1.0,
            running: 3,
            finished: 84,
            agreed: false,
        }],
        running: vec![running(1, 1, 0.0), running(2, 0, 130.0), running(3, 2, 0.0)],
        running_total: 3,
        claimed_total: 0,
        groups: vec![
            group(7, &[1.0, 0.0, 1.0, 1.0], 0),
            group(8, &[1.0, 1.0, 1.0, 1.0], 0),
            group(9, &[0.25, -0.5], 2),
            group(10, &[], 1),
        ],
        dropped: [("idle".to_owned(), 2), ("aborted".to_owned(), 1)].into(),
        latest_metrics: metrics(36),
        latest_eval: None,
        log: vec![VerboseLog {
            timestamp: NOW - 5.0,
            tag: "client".into(),
            message: "task_7 done".into(),
        }],
    }
}

fn phases() -> Vec<Phase> {
    let mut phases = vec![Phase {
        status: EngineStatus::Booting,
        since: NOW - 600.0,
        global_step: 0,
    }];
    for step in 27..=37_u64 {
        let since = NOW - 42.0 - 50.0 * (37 - step) as f64;
        phases.push(Phase {
            status: EngineStatus::Rolling,
            since,
            global_step: step,
        });
        if step < 37 {
            phases.push(Phase {
                status: EngineStatus::RollingPost,
                since: since + 35.0,
                global_step: step,
            });
            phases.push(Phase {
                status: EngineStatus::WeightSyncing,
                since: since + 40.0,
                global_step: step,
            });
        }
    }
    phases
}

fn metrics(step: u64) -> indexmap::IndexMap<String, f64> {
    let rising = 0.45 + 0.01 * step as f64 + [0.02, -0.02, 0.01][step as usize % 3];
    let values = [
        ("global_step", step as f64),
        ("reward_mean", rising),
        ("reward_min", 0.0),
        ("reward_max", 1.0),
        ("reward_p10", 0.0),
        ("reward_p90", 1.0),
        ("success_rate", rising),
        ("loss", 0.02 - 0.001 * step as f64),
        ("kl", 0.0001 * step as f64),
        ("entropy", 0.53 - 0.005 * step as f64),
        ("clip_frac_low", 0.0),
        ("clip_frac_high", 0.01),
        ("grad_norm", 1.7),
        ("mismatch_kl", 3.7e-13),
        ("truncated_share", 0.0),
        ("seconds/update", 8.2),
        ("seconds/update_forward", 3.1),
        ("seconds/update_backward", 4.4),
    ];
    values.map(|(name, value)| (name.to_owned(), value)).into()
}

/// Metrics of the steps before.
pub fn history() -> Update {
    let step = |global_step| {
        let mut metrics = metrics(global_step);
        if global_step % 12 == 1 {
            metrics.insert("eval/reward_mean".into(), 0.4 + 0.01 * global_step as f64);
        }
        StepMetrics { global_step, metrics }
    };
    Update::History {
        run: "quickstart_20261201".into(),
        since: 1,
        steps: (1..=36).map(step).collect(),
    }
}

/// A finished episode.
pub fn detail() -> EpisodeDetail {
    let messages = vec![
        json!({"role": "system", "content": "You reverse words."}),
        json!({"role": "user", "content": "Reverse: hello"}),
        json!({"role": "assistant", "reasoning_content": "Spell it backwards.", "content": null,
            "tool_calls": [{"function": {"name": "reverse", "arguments": "{\"word\":\"hello\"}"}}]}),
        json!({"role": "tool", "tool_call_id": "call_1", "content": "olleh"}),
        json!({"role": "assistant", "content": "The answer is olleh."}),
    ];
    EpisodeDetail {
        summary: summary(702, 0.25),
        running: false,
        log_metrics: [
            ("reward/format".to_owned(), json!(0.25)),
            ("turns".to_owned(), json!(2)),
        ]
        .into(),
        conversations: vec![TranscriptConversation {
            model: "default".into(),
            tools: vec![json!({"type": "function", "function": {"name": "reverse"}})],
            messages,
        }],
        rows: vec![TokenRow {
            ids: vec![1, 2, 3, 4],
            texts: vec!["Reverse: ".into(), "hello\n".into(), "ol".into(), "leh".into()],
            mask: vec![false, false, true, true],
            logprobs: vec![0.0, 0.0, -0.5, -0.25],
            advantages: Some(vec![0.0, 0.0, -1.0, -1.0]),
            truncated: false,
        }],
    }
}

fn summary(number: usize, reward: f64) -> EpisodeSummary {
    EpisodeSummary {
        episode_uuid: format!("{number:08x}-aaaa"),
        global_step: 37,
        task_id: "reverse_text_7".into(),
        client_uuid: "c1ient01-x".into(),
        reward,
        is_success: Some(reward == 1.0),
        llm_calls: 2,
        prompt_tokens: 120,
        completion_tokens: 34,
        seconds: 4.2,
        ended: NOW - 20.0,
        has_transcript: true,
        ..EpisodeSummary::default()
    }
}

/// A page of finished episodes of many.
pub fn page() -> Update {
    let mut episodes: Vec<_> = (0..40)
        .map(|number| summary(700 + number, number as f64 / 40.0))
        .collect();
    episodes[1].dropped = Some("idle".into());
    episodes[2].episode_type = crate::protocol::swarm::EpisodeType::Eval;
    Update::Episodes(
        Query::default(),
        Ok(Episodes {
            episodes,
            total: 10_000,
        }),
    )
}

/// Returns a state that received a status.
pub fn watching(status: Status) -> State {
    let mut state = State::new("http://localhost:10086".into(), NOW);
    state.take(observed(status), NOW);
    state
}

/// Returns a status as an update.
pub fn observed(status: Status) -> Update {
    Update::Status(Box::new(Observed { status, missing: None }))
}

/// A state with everything known.
pub fn full() -> State {
    let mut state = watching(rolling());
    state.take(history(), NOW);
    state.take(page(), NOW);
    state.take(
        Update::Transcript(Subject::Episode(detail().summary.episode_uuid), Ok(Box::new(detail()))),
        NOW,
    );
    state
}
