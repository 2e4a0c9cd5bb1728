//! Checks of a job before it runs: sizes that do not match, tasks without a prompt, templates that do not match a task,
//! missing programs.

use std::collections::HashSet;

use super::batch_rule::Rule;
use super::job::{Job, Length};
use super::tasks::{Task, TaskSets};
use crate::client::ServerUrl;

/// Maximum number of problems with tasks that are reported.
const REPORTED: usize = 3;

/// Number of tasks of a set that a run checks; `job check` checks all of them.
pub(super) const TASKS_BEFORE_A_RUN: usize = 1000;

/// Problems of a job with its tasks, of which the first `tasks_checked` of each set are looked at one by one. Each is a
/// sentence, most with a hint. Empty where the job can run. A run that does not train needs no full batch.
pub fn problems(job: &Job, tasks: &TaskSets, tasks_checked: usize, trains: bool) -> Vec<String> {
    let method = job.ajet.swarm_mode_sample_collection_method.name();
    let batch = job.ajet.data.train_batch_size as u64;
    let batch_problem = batch_problem(batch, Rule::of_method(method), job.roll.length(), &tasks.training);
    let mut problems: Vec<_> = batch_problem.filter(|_| trains).into_iter().collect();
    let urls = job.models().into_iter().map(|model| ServerUrl::parse(model.swarm_url));
    problems.extend(urls.filter_map(|url| url.err().map(|error| error.to_string())));
    if job.roll.eval.is_some() && tasks.validation.is_empty() {
        problems.push(
            "roll.eval asks for an evaluation, but there are no validation tasks\nhint: name a validation file in \
             ajet.task_reader, or remove roll.eval"
                .into(),
        );
    }
    problems.extend(task_problems(job, tasks, tasks_checked));
    problems
}

/// Returns why no batch of `batch` tasks can become full, if so.
pub(super) fn batch_problem(batch: u64, rule: Rule, length: Length, tasks: &[Task]) -> Option<String> {
    let different = tasks.iter().map(|task| &task.task_id).collect::<HashSet<_>>().len() as u64;
    if rule.counts_tasks() && different < batch {
        return Some(format!(
            "a batch needs ajet.data.train_batch_size = {batch} different tasks, and there are {different}\nhint: lower \
             ajet.data.train_batch_size, or add training tasks"
        ));
    }
    match length {
        Length::Epochs(epochs) if epochs.saturating_mul(tasks.len() as u64) < batch => Some(format!(
            "a batch needs ajet.data.train_batch_size = {batch} tasks, and the whole job has {} ({} tasks, roll.epochs = \
             {epochs})\nhint: raise roll.epochs, or lower ajet.data.train_batch_size",
            epochs * tasks.len() as u64,
            tasks.len()
        )),
        _ => None,
    }
}

/// Returns problems of agent or reward with tasks, each with the first task that has it.
fn task_problems(job: &Job, tasks: &TaskSets, checked: usize) -> Vec<String> {
    let mut seen = HashSet::new();
    let mut problems = vec![];
    // A judge's key may be missing where a job is only checked.
    let rewards: Vec<_> = job
        .roll
        .rewards()
        .filter_map(|(key, reward)| reward.scorer(&key).ok())
        .collect();
    let models = job.roll.model_names();
    for set in [&tasks.training, &tasks.validation] {
        for task in set.iter().take(checked) {
            let asked = job.roll.agent.verify(task, &models).err();
            let program = job.roll.agent.check(task, &models).err();
            let unscored = rewards.iter().filter_map(|reward| reward.verify(task).err());
            let unscored = unscored.map(|error| error.to_string());
            for problem in asked.into_iter().chain(program).chain(unscored) {
                if seen.insert(problem.clone()) {
                    problems.push(format!("task {}: {problem}", task.task_id));
                }
            }
            if problems.len() >= REPORTED {
                return problems;
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tasks(ids: &[&str]) -> Vec<Task> {
        let task = |id: &&str| Task {
            task_id: (*id).into(),
            ..Task::default()
        };
        ids.iter().map(task).collect()
    }

    /// Seen with 12 tasks and batches of 20: the run hung.
    #[test]
    fn a_batch_that_cannot_be_filled_is_named() {
        let four = tasks(&["a", "b", "c", "c"]);
        for (batch, rule, length, told) in [
            (3, Rule::Tasks, Length::Steps(9), None),
            (
                4,
                Rule::Tasks,
                Length::Steps(9),
                Some("4 different tasks, and there are 3"),
            ),
            (4, Rule::NonDummyTasks, Length::Epochs(9), Some("there are 3")),
            (4, Rule::Episodes, Length::Steps(9), None),
            (9, Rule::Episodes, Length::Epochs(2), Some("the whole job has 8")),
            (8, Rule::Agreement, Length::Epochs(2), None),
        ] {
            let problem = batch_problem(batch, rule, length, &four);
            let is_right = match (&problem, told) {
                (Some(problem), Some(told)) => problem.contains(told) && problem.contains("\nhint: "),
                (None, None) => true,
                _ => false,
            };
            assert!(is_right, "{batch} {rule:?} {length:?}: {problem:?}");
        }
    }

    /// Seen with coding agents that were run for one episode: a batch that never fills was refused there too.
    #[test]
    fn a_run_that_does_not_train_needs_no_full_batch() {
        let yaml = "ajet: {model: {path: 'builtin:tiny'}, data: {train_batch_size: 9}}\n\
                    roll: {agent: {type: chat, user: hi}, reward: {type: exact_match, answer: x}}";
        let job = Job::parse(std::path::Path::new("job.yaml"), yaml).unwrap();
        let sets = TaskSets {
            training: tasks(&["a"]),
            ..TaskSets::default()
        };
        assert_eq!(problems(&job, &sets, 10, false), Vec::<String>::new());
        assert_eq!(problems(&job, &sets, 10, true).len(), 1);
    }
}
