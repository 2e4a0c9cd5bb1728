//! Reports what a run would do, without a training episode.

use std::time::Duration;

use super::check;
use super::episode::Player;
use super::error::RollError;
use super::fleet::{Fleet, Member};
use super::interrupt::Interrupt;
use super::job::Job;
use super::progress::Progress;
use super::runner::{read_tasks, refuse};
use crate::client::{BeginEpisode, SwarmClient};
use crate::protocol::openai::ChatMessage;
use crate::protocol::swarm::{EngineStatus, EpisodeType};

/// Maximum number of prompts whose tokens are counted.
const COUNTED: usize = 100;

/// Maximum time to wait for an episode slot, whose key is needed to count tokens.
const PATIENCE: Duration = Duration::from_secs(5);

/// Counts the tokens of a prompt with the tokenizer of a model that is at hand.
pub type CountTokens<'a> = &'a dyn Fn(&[ChatMessage]) -> Result<u64, String>;

/// Returns what a run would do, without an episode. Prompts are counted by the engine where it runs, or else by
/// `count`, whose error says why they cannot be counted without.
///
/// # Errors
/// Fails if tasks, the agent's program or a judge's key are missing, or a server cannot be started.
pub async fn dry_run(job: &Job, count: Result<CountTokens<'_>, &str>) -> Result<Vec<String>, RollError> {
    let progress = Progress::new(false, Interrupt::default());
    let tasks = read_tasks(job, &progress).await?;
    refuse(check::problems(job, &tasks, usize::MAX, true))?;
    Player::new(job, None)?;
    let mut lines = vec![format!(
        "tasks: {} to train on, {} to evaluate on",
        tasks.training.len(),
        tasks.validation.len()
    )];
    let models = job.roll.model_names();
    if let Some(task) = tasks.training.first()
        && let Some(program) = job.roll.agent.check(task, &models).map_err(RollError::Check)?
    {
        lines.push(format!("agent: {}", program.display()));
    }
    let fleet = Fleet::new(job)?;
    let mut is_rolling = true;
    for Member { swarm, .. } in fleet.members() {
        let (line, status) = server_line(job, swarm).await?;
        lines.push(line);
        is_rolling &= status == EngineStatus::Rolling;
    }
    let prompts = tasks.training.iter().take(COUNTED);
    let prompts: Vec<_> = prompts.filter_map(|task| job.roll.agent.prompt(task)).collect();
    if prompts.is_empty() {
        return Ok(lines);
    }
    let counted = match (is_rolling, count) {
        (true, _) => counted_by_engine(&prompts, fleet.lead()).await?,
        (false, Ok(count)) => {
            let counts = prompts.iter().map(|prompt| count(prompt)).collect::<Result<_, _>>();
            Some(counts.map_err(RollError::Check)?)
        }
        (false, Err(reason)) => {
            lines.push(format!("prompts: not counted, since {reason}"));
            None
        }
    };
    let limit = job.ajet.data.max_prompt_length as u64;
    lines.extend(counted.and_then(|counts: Vec<u64>| summary(&counts, limit)));
    Ok(lines)
}

/// A line on a server, and its engine's status.
async fn server_line(job: &Job, swarm: &SwarmClient) -> Result<(String, EngineStatus), RollError> {
    let url = swarm.url();
    match swarm.health().await {
        Ok(()) => {
            let status = swarm.status().await?;
            let detail = status
                .engine_status_detail
                .map_or_else(String::new, |detail| format!(", {detail}"));
            let line = format!("server: {url} answers, {}{detail}", status.engine_status);
            Ok((line, status.engine_status))
        }
        Err(_) if job.roll.starts_server(url) => {
            let line = format!("server: none at {url}, one would be started");
            Ok((line, EngineStatus::Offline))
        }
        Err(error) => Err(error.into()),
    }
}

/// Lengths of prompts by the engine's model; none where no slot is free.
async fn counted_by_engine(prompts: &[Vec<ChatMessage>], swarm: &SwarmClient) -> Result<Option<Vec<u64>>, RollError> {
    let begin = BeginEpisode {
        episode_type: EpisodeType::Eval,
        ..BeginEpisode::default()
    };
    let Ok(episode) = tokio::time::timeout(PATIENCE, swarm.begin_episode(&begin)).await else {
        return Ok(None);
    };
    let episode = episode?;
    let mut counts = vec![];
    for prompt in prompts {
        counts.push(episode.model().count_tokens(prompt).await?);
    }
    episode.abort().await?;
    Ok(Some(counts))
}

/// Returns the shortest, longest and mean length, and the number of prompts longer than `limit`.
fn summary(counts: &[u64], limit: u64) -> Option<String> {
    let (shortest, longest) = (counts.iter().min()?, counts.iter().max()?);
    let mean = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
    let too_long = counts.iter().filter(|count| **count > limit).count();
    let mut line = format!(
        "prompts: {shortest} to {longest} tokens, mean {mean:.1}, of {} tasks",
        counts.len()
    );
    if too_long > 0 {
        line += &format!(
            "; {too_long} are longer than ajet.data.max_prompt_length = {limit}, which leaves less room for answers\n\
             hint: raise ajet.data.max_prompt_length to {longest}, or leave these tasks out"
        );
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
            line.contains("of 4 tasks; 2 are longer than ajet.data.max_prompt_length = 8,")
                && line.ends_with("raise ajet.data.max_prompt_length to 20, or leave these tasks out"),
            "{line}"
        );
    }
}
