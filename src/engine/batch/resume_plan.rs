//! Derives from the journal what a resume has to repeat. Pure.

use super::finished::FinishedEpisode;
use super::journal::Record;
use crate::protocol::swarm::EpisodeType;

/// Episodes of one step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepEpisodes {
    /// Train episodes in the order in which they ended, so that the pool treats them as before.
    pub train: Vec<FinishedEpisode>,
    /// Eval episodes claimed at this step.
    pub eval: Vec<FinishedEpisode>,
}

/// Work to repeat after loading a checkpoint.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Batches whose updates are to be repeated, starting with the first step after the checkpoint.
    pub updates: Vec<StepEpisodes>,
    /// Batch that was being sampled.
    pub running: StepEpisodes,
}

/// The journal does not continue the checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the journal continues at step {found}, but the checkpoint requires step {expected}")]
pub struct Gap {
    expected: u64,
    found: u64,
}

/// Sorts a journal's records into the work after a checkpoint whose next step is `next_step`. Records that the
/// checkpoint covers are skipped (the process died before it could remove them). A lost line may have been an update;
/// the records after it show whether it was.
pub fn plan(records: Vec<Record>, next_step: u64) -> Result<Plan, Gap> {
    let mut plan = Plan::default();
    let mut step = next_step;
    let mut lost = 0;
    for record in records {
        while lost > 0 && record.global_step().is_some_and(|of| of > step) {
            plan.updates.push(std::mem::take(&mut plan.running));
            step += 1;
            lost -= 1;
        }
        match record {
            Record::Begin { .. } => {}
            Record::Lost { .. } => lost += 1,
            Record::Episode(episode) if episode.global_step < step => {
                // Eval episodes may end after the step at which they were claimed; their metrics of that step are
                // already reported. Train episodes belong to the sampled step, so the checkpoint covers them.
            }
            Record::Episode(episode) if episode.global_step == step => match episode.episode_type {
                EpisodeType::Train => plan.running.train.push(*episode),
                EpisodeType::Eval => plan.running.eval.push(*episode),
            },
            Record::Update { global_step } if global_step < step => {}
            Record::Update { global_step } if global_step == step => {
                plan.updates.push(std::mem::take(&mut plan.running));
                step += 1;
            }
            Record::Episode(episode) => return Err(gap(step, episode.global_step)),
            Record::Update { global_step } => return Err(gap(step, global_step)),
        }
    }
    Ok(plan)
}

fn gap(expected: u64, found: u64) -> Gap {
    Gap { expected, found }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::batch::identity::RunIdentity;

    fn episode(uuid: &str, global_step: u64, episode_type: EpisodeType) -> Record {
        Record::Episode(Box::new(FinishedEpisode {
            episode_uuid: uuid.into(),
            global_step,
            episode_type,
            ..Default::default()
        }))
    }

    fn train(uuid: &str, step: u64) -> Record {
        episode(uuid, step, EpisodeType::Train)
    }

    fn eval(uuid: &str, step: u64) -> Record {
        episode(uuid, step, EpisodeType::Eval)
    }

    fn update(global_step: u64) -> Record {
        Record::Update { global_step }
    }

    fn names(episodes: &[FinishedEpisode]) -> Vec<&str> {
        episodes.iter().map(|e| e.episode_uuid.as_str()).collect()
    }

    fn journal() -> Vec<Record> {
        let run = RunIdentity::default();
        vec![
            Record::Begin { run },
            train("a", 1),
            eval("v", 1),
            train("b", 1),
            update(1),
            train("c", 2),
            update(2),
            train("d", 3),
            eval("w", 3),
        ]
    }

    #[test]
    fn without_a_checkpoint_everything_is_done_again() {
        let plan = plan(journal(), 1).unwrap();
        assert_eq!(plan.updates.len(), 2);
        assert_eq!(names(&plan.updates[0].train), ["a", "b"]);
        assert_eq!(names(&plan.updates[0].eval), ["v"]);
        assert_eq!(names(&plan.updates[1].train), ["c"]);
        assert_eq!(names(&plan.running.train), ["d"]);
        assert_eq!(names(&plan.running.eval), ["w"]);
    }

    #[test]
    fn what_a_checkpoint_covers_is_passed_over() {
        let plan = plan(journal(), 3).unwrap();
        assert!(plan.updates.is_empty());
        assert_eq!(names(&plan.running.train), ["d"]);
    }

    #[test]
    fn a_lost_line_costs_one_episode_or_nothing_but_its_update_is_done_all_the_same() {
        let whole = plan(journal(), 1).unwrap();
        for at in 1..journal().len() {
            let mut records = journal();
            let lost = std::mem::replace(
                &mut records[at],
                Record::Lost {
                    line: 1,
                    why: String::new(),
                },
            );
            let plan = plan(records, 1).unwrap();
            match lost {
                Record::Update { .. } => assert_eq!(plan, whole, "line {at}"),
                _ => assert_eq!(plan.updates.len(), 2, "line {at}"),
            }
        }
    }

    #[test]
    fn a_journal_that_begins_after_the_checkpoint_is_a_gap() {
        let journal: Vec<Record> = journal().into_iter().skip(5).collect();
        let gap = plan(journal.clone(), 1).unwrap_err();
        assert_eq!(gap, Gap { expected: 1, found: 2 });
        assert!(plan(vec![update(7)], 2).unwrap_err().to_string().contains("step 7"));
        assert!(plan(journal, 2).is_ok());
        assert_eq!(plan(vec![], 9), Ok(Plan::default()));
    }
}
