//! What a run would do, without an episode of training.

use std::time::Duration;

use super::check;
use super::error::RollError;
use super::interrupt::Interrupt;
use super::job::Job;
use super::progress::Progress;
use super::runner::{read_tasks, refuse};
use super::tasks::Task;
use crate::client::{BeginEpisode, SwarmClient};
use crate::protocol::swarm::{EngineStatus, EpisodeType};

/// Maximum number of prompts whose tokens are counted.
const COUNTED: usize = 100;

/// How long an episode slot is waited for, whose key counts tokens.
const PATIENCE: Duration = Duration::from_secs(5);

/// Says what a run would do, without an episode.
///
/// # Errors
/// Something is missing: tasks, the agent's program, a server that cannot be started.
pub async fn dry_run(job: &Job) -> Result<Vec<String>, RollError> {
    let progress = Progress::new(false, Interrupt::default());
    let tasks = read_tasks(job, &progress).await?;
    refuse(check::problems(job, &tasks, usize::MAX, true))?;
    let mut lines = vec![format!(
        "tasks: {} to train on, {} to evaluate on",
        tasks.training.len(),
        tasks.validation.len()
    )];
    if let Some(task) = tasks.training.first()
        && let Some(program) = job.roll.agent.check(task).map_err(RollError::Check)?
    {
        lines.push(format!("agent: {}", program.display()));
    }
    let mut is_rolling = false;
    let swarm = SwarmClient::new(&job.roll.swarm_url)?;
    lines.push(match swarm.health().await {
        Ok(()) => {
            let status = swarm.status().await?;
            is_rolling = status.engine_status == EngineStatus::Rolling;
            let detail = status
                .engine_status_detail
                .map_or_else(String::new, |detail| format!(", {detail}"));
            format!("server: {} answers, {}{detail}", swarm.url(), status.engine_status)
        }
        Err(_) if job.roll.auto_start_swarm_server && swarm.url().is_local() => {
            format!("server: none at {}, one would be started", swarm.url())
        }
        Err(error) => return Err(error.into()),
    });
    if is_rolling {
        lines.extend(prompt_lengths(job, &tasks.training, &swarm).await?);
    }
    Ok(lines)
}

/// A line on the lengths of the first prompts, counted by the engine's model. None where the agent makes its own prompts,
/// and where no slot is free.
async fn prompt_lengths(job: &Job, tasks: &[Task], swarm: &SwarmClient) -> Result<Option<String>, RollError> {
    let prompts = tasks
        .iter()
        .take(COUNTED)
        .filter_map(|task| job.roll.agent.prompt(task));
    let prompts: Vec<_> = prompts.collect();
    let begin = BeginEpisode {
        episode_type: EpisodeType::Eval,
        ..BeginEpisode::default()
    };
    if prompts.is_empty() {
        return Ok(None);
    }
    let Ok(episode) = tokio::time::timeout(PATIENCE, swarm.begin_episode(&begin)).await else {
        return Ok(None);
    };
    let episode = episode?;
    let mut counts = vec![];
    for prompt in &prompts {
        counts.push(episode.model().count_tokens(prompt).await?);
    }
    episode.abort().await?;
    Ok(summary(&counts, job.ajet.data.max_prompt_length as u64))
}

/// Shortest, longest and mean prompt, and how many are longer than `limit`.
fn summary(counts: &[u64], limit: u64) -> Option<String> {
    let (shortest, longest) = (counts.iter().min()?, counts.iter().max()?);
    let mean = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
    let too_long = counts.iter().filter(|count| **count > limit).count();
    let mut line = format!(
        "prompts: {shortest} to {longest} tokens, mean {mean:.1}, of {} tasks",
        counts.len()
    );
    if too_long > 0 {
        line += &format!("; {too_long} are longer than ajet.data.max_prompt_length = {limit}");
    }
    Some(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_are_measured_by_the_limit() {
        assert_eq!(summary(&[], 8), None);
        assert_eq!(
            summary(&[3, 8], 8).unwrap(),
            "prompts: 3 to 8 tokens, mean 5.5, of 2 tasks"
        );
        let line = summary(&[3, 8, 9, 20], 8).unwrap();
        assert!(
            line.ends_with("of 4 tasks; 2 are longer than ajet.data.max_prompt_length = 8"),
            "{line}"
        );
    }
}
