//! The state of a server without a status feed, such as Python's, from its pool.

use super::printable;
use crate::client::{ClientError, SwarmClient};
use crate::config::schema::CollectionMethod;
use crate::overwatch::clock::unix_now;
use crate::overwatch::update::Observed;
use crate::protocol::status::{
    BatchProgress, ClientInfo, Distribution, EngineState, ExperimentInfo, GroupEpisode, PHASES, Phase, RunningEpisode,
    ServerInfo, Status, TaskGroup,
};
use crate::protocol::swarm::{EngineStatusAnswer, PoolInformation, RunningEpisodeDetail, VerboseLog};

/// What such a server does not tell.
const MISSING: &str =
    "this server has no status feed: no time left, no curves of earlier steps, no load, no finished episodes";

/// Watches the pool of one server and remembers the states that it saw.
#[derive(Debug, Default)]
pub(super) struct PoolWatcher {
    phases: Vec<Phase>,
}

impl PoolWatcher {
    /// Reads the state.
    ///
    /// # Errors
    /// As [`SwarmClient::observe`]; pool and log may be missing, since older servers lack them.
    pub async fn look(&mut self, swarm: &SwarmClient) -> Result<Observed, ClientError> {
        let status: EngineStatusAnswer = swarm.observe("/get_engine_status", None, &[]).await?;
        let (pool, logs) = tokio::join!(
            swarm.observe("/get_current_batch_rollout_pool_information", None, &[]),
            swarm.verbose_logs(),
        );
        let pool: PoolInformation = pool.unwrap_or_default();
        let status = self.status(&status, pool, logs.unwrap_or_default(), unix_now());
        let value = serde_json::to_value(status).and_then(printable::lines);
        let status = value.map_err(|error| ClientError::Answer {
            url: swarm.url().to_string(),
            call: "/get_engine_status",
            reason: error.to_string(),
        })?;
        Ok(Observed {
            status,
            missing: Some(MISSING.into()),
        })
    }

    fn status(&mut self, status: &EngineStatusAnswer, pool: PoolInformation, log: Vec<VerboseLog>, now: f64) -> Status {
        let engine = self.engine(status, now);
        let running = running(&pool, now);
        let begun = running.iter().filter(|episode| episode.has_begun()).count();
        let model = pool.training_model_path.clone();
        Status {
            server: ServerInfo {
                now,
                ..ServerInfo::default()
            },
            experiment: model.map(|model| ExperimentInfo {
                model,
                ..ExperimentInfo::default()
            }),
            engine,
            batch: batch(&pool),
            clients: clients(&pool),
            running_total: begun as u64,
            claimed_total: (running.len() - begun) as u64,
            running,
            groups: groups(&pool),
            dropped: pool.dropped_episodes,
            latest_metrics: pool.latest_metrics,
            log,
            ..Status::default()
        }
    }

    /// Adds the state if it is new. Such a server does not tell since when it is in it.
    fn engine(&mut self, answer: &EngineStatusAnswer, now: f64) -> EngineState {
        let (status, global_step) = (answer.engine_status, answer.global_step);
        if self
            .phases
            .last()
            .is_none_or(|last| (last.status, last.global_step) != (status, global_step))
        {
            self.phases.push(Phase {
                status,
                since: now,
                global_step,
            });
            let excess = self.phases.len().saturating_sub(PHASES);
            self.phases.drain(..excess);
        }
        EngineState {
            status,
            detail: answer.engine_status_detail.clone(),
            since: self.phases.last().map_or(now, |phase| phase.since),
            global_step,
            phases: self.phases.clone(),
            ..EngineState::default()
        }
    }
}

fn batch(pool: &PoolInformation) -> BatchProgress {
    let clients = &pool.swarm_client_instruction.active_clients;
    let agreed = clients.iter().filter(|client| client.allowed_sync_weight).count() as u64;
    use CollectionMethod::*;
    let (unit, done, target) = match CollectionMethod::from_name(&pool.sample_collection_method) {
        Some(RolloutUntilFinishEnoughTasks) => ("tasks", pool.completed_tasks, pool.completed_task_target),
        Some(RolloutUntilFinishEnoughNonDummyTasks) => (
            "tasks with different rewards",
            pool.completed_non_dummy_tasks,
            pool.completed_non_dummy_task_target,
        ),
        Some(RolloutUntilAnyClientAgreeSyncWeight) => ("clients", agreed, 1),
        Some(RolloutUntilAllClientsAgreeSyncWeight) => ("clients", agreed, clients.len() as u64),
        _ => ("episodes", pool.completed_episodes, pool.completed_episode_target),
    };
    BatchProgress {
        rule: pool.sample_collection_method.clone(),
        unit: unit.into(),
        done,
        target,
        episodes: pool.completed_episodes,
        episodes_target: pool.completed_episode_target,
        repeats: pool.task_expected_num_repeat,
        seconds_left: None,
        reward: Distribution::of(pool.completed_tasks_rewards.values().flatten().copied()),
    }
}

fn clients(pool: &PoolInformation) -> Vec<ClientInfo> {
    let finished = |client: &str| {
        let all = pool.completed_tasks_client_uuids.values().flatten();
        all.filter(|other| *other == client).count() as u64
    };
    let running = |client: &str| {
        let all = pool.running_episode_details.iter().flatten();
        all.filter(|(_, episode)| episode.client_uuid == client).count() as u64
    };
    let clients = pool.swarm_client_instruction.active_clients.iter();
    let told = clients.map(|client| ClientInfo {
        client_uuid: client.client_uuid.clone(),
        last_activity: client.last_activity_at,
        running: running(&client.client_uuid),
        finished: finished(&client.client_uuid),
        agreed: client.allowed_sync_weight,
    });
    told.collect()
}

fn running(pool: &PoolInformation, now: f64) -> Vec<RunningEpisode> {
    let seconds = |text: &str| text.trim_end_matches('s').parse().unwrap_or(0.0);
    let told = |(id, detail): (&String, &RunningEpisodeDetail)| RunningEpisode {
        episode_uuid: id.clone(),
        task_id: detail.optional_task_id.clone(),
        client_uuid: detail.client_uuid.clone(),
        claimed: now,
        idle: seconds(&detail.time_since_last_activity),
        patience: seconds(&detail.discard_episode_timeout),
        llm_calls: detail.llm_call_count.parse().unwrap_or(0),
        ..RunningEpisode::default()
    };
    pool.running_episode_details.iter().flatten().map(told).collect()
}

fn groups(pool: &PoolInformation) -> Vec<TaskGroup> {
    let at = |lists: &indexmap::IndexMap<String, Vec<String>>, task: &str, place: usize| {
        lists
            .get(task)
            .and_then(|list| list.get(place))
            .cloned()
            .unwrap_or_default()
    };
    let told = |(task, rewards): (&String, &Vec<f64>)| TaskGroup {
        task_id: task.clone(),
        has_signal: rewards.iter().any(|reward| (reward - rewards[0]).abs() > f64::EPSILON),
        running: 0,
        episodes: rewards
            .iter()
            .enumerate()
            .map(|(place, reward)| GroupEpisode {
                episode_uuid: at(&pool.completed_tasks_details, task, place),
                client_uuid: at(&pool.completed_tasks_client_uuids, task, place),
                reward: *reward,
            })
            .collect(),
    };
    pool.completed_tasks_rewards.iter().map(told).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::protocol::swarm::{EngineStatus, understand};

    fn pool(method: &str) -> PoolInformation {
        let pool = json!({
            "sample_collection_method": method,
            "completed_episodes": 12, "completed_episode_target": 32,
            "completed_tasks": 2, "completed_task_target": 8,
            "completed_non_dummy_tasks": 1, "completed_non_dummy_task_target": 8,
            "task_expected_num_repeat": 4,
            "completed_tasks_rewards": {"task_7": [1.0, 0.0], "task_8": [1.0, 1.0], "task_9": []},
            "completed_tasks_details": {"task_7": ["a", "b"]},
            "completed_tasks_client_uuids": {"task_7": ["c1", "c2"]},
            "running_episode_details": {"3f1c9a52": {"time_since_last_activity": "1.2s", "discard_episode_timeout": "240.0s",
                "llm_call_count": "3", "client_uuid": "c1", "optional_task_id": "task_10"}},
            "training_model_path": "Qwen/Qwen2.5-0.5B-Instruct",
            "swarm_client_instruction": {"active_clients": [
                {"client_uuid": "c1", "last_activity_at": 1190.0, "allowed_sync_weight": true},
                {"client_uuid": "c2", "last_activity_at": 1100.0, "allowed_sync_weight": false},
            ]},
        });
        serde_json::from_value(pool).unwrap()
    }

    #[test]
    fn the_active_rule_is_the_progress() {
        for (method, unit, done, target) in [
            ("rollout_until_finish_enough_episodes", "episodes", 12, 32),
            ("rollout_until_finish_enough_tasks", "tasks", 2, 8),
            (
                "rollout_until_finish_enough_non_dummy_tasks",
                "tasks with different rewards",
                1,
                8,
            ),
            ("rollout_until_any_client_agree_sync_weight", "clients", 1, 1),
            ("rollout_until_all_clients_agree_sync_weight", "clients", 1, 2),
            ("", "episodes", 12, 32),
        ] {
            let batch = batch(&pool(method));
            assert_eq!(
                (batch.unit.as_str(), batch.done, batch.target),
                (unit, done, target),
                "{method}"
            );
        }
    }

    #[test]
    fn groups_episodes_and_clients() {
        let pool = pool("");
        let groups = groups(&pool);
        assert_eq!(
            groups.iter().map(|group| group.has_signal).collect::<Vec<_>>(),
            [true, false, false]
        );
        assert_eq!(
            (
                groups[0].episodes[1].episode_uuid.as_str(),
                groups[0].episodes[1].reward
            ),
            ("b", 0.0)
        );
        let running = running(&pool, 5.0);
        assert_eq!(
            (running[0].idle, running[0].patience, running[0].llm_calls),
            (1.2, 240.0, 3)
        );
        let clients = clients(&pool);
        assert_eq!(
            (clients[0].running, clients[0].finished, clients[0].agreed),
            (1, 1, true)
        );
    }

    #[test]
    fn states_are_remembered_from_when_they_were_seen() {
        let mut watcher = PoolWatcher::default();
        let mut look = |engine_status, now| {
            let answer = EngineStatusAnswer {
                engine_status,
                engine_status_detail: None,
                global_step: 1,
            };
            watcher.status(&answer, PoolInformation::default(), vec![], now)
        };
        look(EngineStatus::Booting, 10.0);
        look(EngineStatus::Rolling, 20.0);
        let status = look(EngineStatus::Rolling, 30.0);
        assert_eq!((status.engine.since, status.engine.phases.len()), (20.0, 2));
    }

    #[test]
    fn a_python_servers_nulls_and_missing_fields_are_understood() {
        let status: EngineStatusAnswer =
            understand(br#"{"engine_status":"ENGINE.OFFLINE","global_step":null}"#).unwrap();
        assert_eq!((status.engine_status, status.global_step), (EngineStatus::Offline, 0));
        let pool: PoolInformation = understand(
            br#"{"completed_tasks_rewards":{"t":[1.0,null]},"running_episode_details":null,"swarm_client_instruction":{},
                "something_new":{"a":[1]}}"#,
        )
        .unwrap();
        assert_eq!(pool.completed_tasks_rewards["t"], [1.0]);
        assert!(pool.running_episode_details.is_none());
        for body in ["<html>", "{}", r#"{"engine_status":"READY"}"#] {
            assert!(understand::<EngineStatusAnswer>(body.as_bytes()).is_err(), "{body}");
        }
    }
}
