//! Builds the pool information, which clients and dashboards poll, from the engine's pool and the server's records.

use indexmap::IndexMap;

use super::episodes::{Episode, Registry};
use super::pool_view::PoolView;
use crate::config::schema::Ajet;
use crate::protocol::swarm::{EpisodeStatus, PoolInformation, RunningEpisodeDetail};

/// Builds the answer from the configuration, the pool and the running episodes; the engine's state is left empty.
pub fn assemble(config: Option<&Ajet>, pool: &PoolView, episodes: &Registry, now: f64) -> PoolInformation {
    let mut info = PoolInformation {
        completed_episodes: pool.episodes().len() as u64,
        completed_tasks: pool.completed_tasks,
        completed_non_dummy_tasks: pool.completed_non_dummy_tasks,
        running_episode_details: running(episodes, now),
        ..PoolInformation::default()
    };
    if let Some(config) = config {
        let tasks = config.data.train_batch_size as u64;
        info.sample_collection_method = config.swarm_mode_sample_collection_method.name().into();
        info.completed_episode_target = config.episodes_per_batch() as u64;
        info.completed_task_target = tasks;
        info.completed_non_dummy_task_target = tasks;
        info.task_expected_num_repeat = config.rollout.num_repeat as u64;
    }
    for episode in pool.episodes() {
        let task = || episode.task_id.clone();
        let (uuid, client) = (episode.episode_uuid.clone(), episode.client_uuid.clone());
        info.completed_tasks_details.entry(task()).or_default().push(uuid);
        info.completed_tasks_rewards
            .entry(task())
            .or_default()
            .push(episode.reward);
        info.completed_tasks_client_uuids
            .entry(task())
            .or_default()
            .push(client);
    }
    info
}

/// Returns the running episodes; null, not `{}`, if there are none: Python clients branch on it.
fn running(episodes: &Registry, now: f64) -> Option<IndexMap<String, RunningEpisodeDetail>> {
    let details: IndexMap<_, _> = episodes
        .iter()
        .map(|episode| (episode.uuid.clone(), running_detail(episode, now)))
        .collect();
    (!details.is_empty()).then_some(details)
}

fn running_detail(episode: &Episode, now: f64) -> RunningEpisodeDetail {
    RunningEpisodeDetail {
        episode_status: "claimed".into(),
        time_since_last_activity: format!("{:.1}s", now - episode.last_activity),
        discard_episode_timeout: format!("{:.1}s", episode.discard_timeout),
        llm_call_count: episode.llm_calls.to_string(),
        client_uuid: episode.client_uuid.clone(),
        optional_task_id: episode.task_id.clone(),
    }
}

/// Returns an entry of the episode buffer. The key is a secret of the episode's client and stays blank.
pub fn listing(episode: &Episode, base_url: &str) -> EpisodeStatus {
    EpisodeStatus {
        episode_uuid: episode.uuid.clone(),
        episode_status: "claimed".into(),
        episode_type: episode.kind,
        openai_base_url: base_url.to_owned(),
        openai_api_key: String::new(),
        client_uuid: episode.client_uuid.clone(),
        zmq_listen_result_addr: String::new(),
        latest_activity_timestamp: episode.last_activity,
        discard_episode_timeout: episode.discard_timeout,
        llm_call_count: episode.llm_calls,
        debug_log: Vec::new(),
        optional_task_id: episode.task_id.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::engine::{PoolSnapshot, PooledEpisode};
    use crate::protocol::swarm::EpisodeType;
    use crate::server::swarm::episodes::Claim;

    #[test]
    fn finished_episodes_are_grouped_by_task_and_running_ones_told_in_strings() {
        let pooled = |uuid: &str, task: &str, client: &str, reward| PooledEpisode {
            entered: uuid.parse().unwrap(),
            episode_uuid: uuid.into(),
            task_id: task.into(),
            client_uuid: client.into(),
            reward,
        };
        let mut pool = PoolView::default();
        pool.replace(PoolSnapshot {
            episodes: vec![
                pooled("1", "t", "a", 0.5),
                pooled("2", "u", "a", 1.0),
                pooled("3", "t", "b", 0.0),
            ],
            completed_tasks: 1,
            ..PoolSnapshot::default()
        });
        let mut episodes = Registry::default();
        let empty = assemble(Some(&Ajet::default()), &pool, &episodes, 0.0);
        assert!(empty.running_episode_details.is_none(), "null when nothing runs");
        let claim = Claim {
            client_uuid: "a".into(),
            kind: EpisodeType::Train,
            discard_timeout: 240.0,
            task_id: "t".into(),
            global_step: 1,
        };
        let uuid = episodes.claim(claim, 1, 10.0).unwrap().uuid.clone();
        episodes.begin_call(&uuid, 20.0);
        episodes.count_call(&uuid);

        let info = assemble(Some(&Ajet::default()), &pool, &episodes, 21.25);
        assert_eq!(info.completed_episodes, 3);
        assert_eq!(info.completed_episode_target, 128);
        assert_eq!(info.completed_tasks_details["t"], ["1", "3"]);
        assert_eq!(info.completed_tasks_rewards["t"], [0.5, 0.0]);
        assert_eq!(info.completed_tasks_client_uuids["t"], ["a", "b"]);
        let running = &info.running_episode_details.unwrap()[&uuid];
        assert_eq!(running.time_since_last_activity, "1.2s");
        assert_eq!(running.discard_episode_timeout, "240.0s");
        assert_eq!(running.llm_call_count, "1");
        assert_eq!(running.optional_task_id, "t");
    }
}
