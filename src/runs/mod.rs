//! Reading the files of experiments: metrics by step, episodes and transcripts (`protocol/run_files.rs`).
//!
//! A running engine appends to them meanwhile; each index reads only what is new. Names come from the network and never
//! lead out of the experiments' directory.

mod episodes;
mod error;
mod experiments;
mod growing_file;
mod history;
mod transcript;

pub use episodes::{EpisodeIndex, EpisodeQuery, KEPT};
pub use error::RunsError;
pub use experiments::Experiments;
pub use history::{HistoryQuery, MetricsIndex};
pub use transcript::read_transcript;

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::protocol::run_files::{EPISODES_FILE, METRICS_FILE};
    use crate::protocol::status::EpisodeSummary;

    #[test]
    #[ignore = "measures; run it alone with --nocapture"]
    fn ten_thousand_episodes_and_a_thousand_steps() {
        let dir = tempfile::tempdir().unwrap();
        let values: String = (0..20).map(|n| format!(",\"metric_{n}\":0.123456{n}")).collect();
        let metrics: String = (1..=1000)
            .map(|step| format!("{{\"global_step\":{step}{values}}}\n"))
            .collect();
        std::fs::write(dir.path().join(METRICS_FILE), metrics).unwrap();
        let episode = |number: u64| EpisodeSummary {
            episode_uuid: format!("2f1c9c0e-0000-4000-8000-{number:012}"),
            task_id: format!("task-{}", number % 300),
            client_uuid: "2f1c9c0e-0000-4000-8000-000000000000".into(),
            reward: (number * 7919 % 1000) as f64 / 1000.0,
            ended: 1.7e9 + number as f64,
            ..EpisodeSummary::default()
        };
        let lines = (0..10_000).map(|number| serde_json::to_string(&episode(number)).unwrap() + "\n");
        std::fs::write(dir.path().join(EPISODES_FILE), lines.collect::<String>()).unwrap();
        let (mut metrics, mut episodes) = (MetricsIndex::new(dir.path()), EpisodeIndex::new(dir.path()));
        let by_reward = EpisodeQuery {
            sort: Some("-reward".into()),
            limit: Some(500),
            ..EpisodeQuery::default()
        };
        for round in ["cold", "warm", "warm"] {
            let begun = Instant::now();
            assert_eq!(metrics.read(&HistoryQuery::default()).unwrap().0.len(), 1000);
            let (history, begun) = (begun.elapsed(), Instant::now());
            assert_eq!(episodes.read(&by_reward).unwrap().total, 10_000);
            crate::note!("{round}: history {history:?}, episodes {:?}", begun.elapsed());
        }
    }
}
