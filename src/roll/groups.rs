//! Answers to one task that are scored together: each waits until the others are there, or cannot come any more.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;

use super::rewards::{Answer, RewardError, Score, Scorer};
use super::tasks::Task;

/// How long answers of an incomplete group wait for another episode of it to begin. Usually it does at once; where a
/// batch is full, no slot is free or an evaluation is due, those that are there are compared without it.
const PATIENCE: Duration = Duration::from_secs(3);

type Scored = Result<Score, RewardError>;

/// The groups of a run whose answers are not scored yet.
#[derive(Debug)]
pub(super) struct Groups {
    shared: Arc<Shared>,
    /// Scorings under way; they end with this.
    scoring: Mutex<JoinSet<()>>,
}

#[derive(Debug)]
struct Shared {
    scorer: Scorer,
    /// Episodes of a complete group.
    repeats: usize,
    patience: Duration,
    open: Mutex<HashMap<u64, Group>>,
    /// Another answer waits.
    answered: Notify,
}

/// The episodes of a group that are not scored.
#[derive(Debug, Default)]
struct Group {
    /// Those whose agents run.
    running: usize,
    waiting: Vec<(Answer, oneshot::Sender<Scored>)>,
    /// Grows with every change, by which a timer knows that nothing has happened since it was set.
    changes: u64,
}

/// What becomes of a group after a change.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// Others of it run, or nothing is left of it.
    Nothing,
    /// All that can come are there.
    Score,
    /// Another episode of it may begin: look again if there was no change since.
    Wait { changes: u64 },
}

impl Group {
    fn next(&self, repeats: usize) -> Next {
        match (self.running, self.waiting.len()) {
            (1.., _) | (_, 0) => Next::Nothing,
            (0, there) if there >= repeats => Next::Score,
            (0, _) => Next::Wait { changes: self.changes },
        }
    }
}

/// An episode of a group, from the claim on.
#[derive(Debug)]
pub(super) struct Member {
    groups: Arc<Groups>,
    group: u64,
    task: Task,
    /// Whether its answer is there.
    has_answered: bool,
}

impl Groups {
    /// Groups of `repeats` episodes.
    pub fn new(scorer: Scorer, repeats: usize) -> Arc<Self> {
        Self::with_patience(scorer, repeats, PATIENCE)
    }

    fn with_patience(scorer: Scorer, repeats: usize, patience: Duration) -> Arc<Self> {
        Arc::new(Self {
            shared: Arc::new(Shared {
                scorer,
                repeats: repeats.max(1),
                patience,
                open: Mutex::default(),
                answered: Notify::new(),
            }),
            scoring: Mutex::default(),
        })
    }

    /// An episode of a group begins.
    pub fn join(self: &Arc<Self>, group: u64, task: &Task) -> Member {
        self.shared.change(group, |group| group.running += 1);
        Member {
            groups: self.clone(),
            group,
            task: task.clone(),
            has_answered: false,
        }
    }

    /// Waits until another answer waits.
    pub async fn answered(&self) {
        self.shared.answered.notified().await;
    }

    /// Does what is due after a change of a group. `task` is the group's.
    fn proceed(&self, id: u64, task: &Task, next: Next) {
        if tokio::runtime::Handle::try_current().is_err() {
            return; // the process ends
        }
        let (shared, task) = (self.shared.clone(), task.clone());
        let mut scoring = lock(&self.scoring);
        while scoring.try_join_next().is_some() {}
        match next {
            Next::Nothing => {}
            Next::Score => _ = scoring.spawn(async move { shared.score(id, &task, None).await }),
            Next::Wait { changes } => {
                scoring.spawn(async move {
                    tokio::time::sleep(shared.patience).await;
                    shared.score(id, &task, Some(changes)).await;
                });
            }
        }
    }
}

impl Shared {
    /// Changes a group and says what follows. One without members is forgotten.
    fn change(&self, id: u64, change: impl FnOnce(&mut Group)) -> Next {
        let mut open = lock(&self.open);
        let group = open.entry(id).or_default();
        change(group);
        group.changes += 1;
        let next = group.next(self.repeats);
        if group.running == 0 && group.waiting.is_empty() {
            open.remove(&id);
        }
        next
    }

    /// Scores the answers that wait. With `unless_changed`, only if the group is as it was then.
    async fn score(&self, id: u64, task: &Task, unless_changed: Option<u64>) {
        let waiting = {
            let mut open = lock(&self.open);
            let Some(group) = open.get_mut(&id) else { return };
            if group.running > 0 || unless_changed.is_some_and(|changes| group.changes != changes) {
                return;
            }
            open.remove(&id).map(|group| group.waiting).unwrap_or_default()
        };
        let (answers, members): (Vec<_>, Vec<_>) = waiting.into_iter().unzip();
        let scores = self.scorer.score_group(task, &answers).await;
        for (score, member) in scores.into_iter().zip(members) {
            // A member that was abandoned in the meantime needs none.
            let _ = member.send(score);
        }
    }
}

impl Member {
    /// The score of this episode's answer, once the group is scored.
    ///
    /// # Errors
    /// Fails if it has none.
    pub async fn score(mut self, answer: Answer) -> Scored {
        let (sender, receiver) = oneshot::channel();
        self.has_answered = true;
        let next = self.groups.shared.change(self.group, |group| {
            group.running -= 1;
            group.waiting.push((answer, sender));
        });
        self.groups.proceed(self.group, &self.task, next);
        self.groups.shared.answered.notify_one();
        receiver.await.unwrap_or(Err(RewardError::GivenUp))
    }
}

impl Drop for Member {
    /// Without an answer, the episode failed. The others of its group do not wait for it.
    fn drop(&mut self) {
        if !self.has_answered {
            let next = self.groups.shared.change(self.group, |group| group.running -= 1);
            self.groups.proceed(self.group, &self.task, next);
        }
    }
}

/// Nothing panics while it holds one of these locks, so they are not poisoned.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use serde_json::json;

    use super::*;
    use crate::roll::rewards::test_judge::{FakeJudge, Reply, group_scorer};

    /// As many points as the text has `+`.
    fn pluses(shown: &str) -> f64 {
        shown.matches('+').count() as f64 / 10.0
    }

    fn task() -> Task {
        Task {
            task_id: "t".into(),
            metadata: json!({}),
            ..Task::default()
        }
    }

    fn answer(output: &str) -> Answer {
        Answer {
            output: output.into(),
            ..Answer::default()
        }
    }

    /// A group that is compared by a judge; its questions are counted.
    async fn groups(repeats: usize, patience_ms: u64) -> (Arc<Groups>, FakeJudge) {
        let fake = FakeJudge::start([Reply::Scores(pluses)]).await;
        let patience = Duration::from_millis(patience_ms);
        (Groups::with_patience(group_scorer(&fake), repeats, patience), fake)
    }

    async fn reward(member: Member, output: &str) -> f64 {
        member.score(answer(output)).await.unwrap().reward
    }

    #[tokio::test]
    async fn a_group_is_scored_when_its_last_answer_is_there() {
        let (groups, fake) = groups(3, 60_000).await;
        let answered = AtomicUsize::new(0);
        let slow = async |member: Member, output: &str, milliseconds| {
            tokio::time::sleep(Duration::from_millis(milliseconds)).await;
            answered.fetch_add(1, Ordering::Relaxed);
            let reward = reward(member, output).await;
            assert_eq!(answered.load(Ordering::Relaxed), 3, "scored before all were there");
            reward
        };
        // Episodes of another group of the same task run meanwhile.
        let other = groups.join(8, &task());
        let rewards = tokio::join!(
            slow(groups.join(7, &task()), "+", 1),
            slow(groups.join(7, &task()), "+++", 120),
            slow(groups.join(7, &task()), "++", 60)
        );
        assert_eq!(rewards, (0.0, 1.0, 0.5));
        assert_eq!(fake.requests().len(), 1);
        drop(other);
    }

    #[tokio::test]
    async fn a_failed_episode_is_not_waited_for_longer_than_its_next_try_takes_to_begin() {
        let (groups, fake) = groups(3, 50).await;
        let (first, second, third) = (
            groups.join(0, &task()),
            groups.join(0, &task()),
            groups.join(0, &task()),
        );
        let scored = async { tokio::join!(reward(first, "+"), reward(second, "++")) };
        let failed = async {
            tokio::time::sleep(Duration::from_millis(30)).await;
            drop(third);
        };
        let (rewards, ()) = tokio::join!(scored, failed);
        assert_eq!((rewards, fake.requests().len()), ((0.0, 1.0), 1));
        assert!(lock(&groups.shared.open).is_empty(), "nothing is left of a group");
    }

    #[tokio::test]
    async fn another_try_that_begins_in_time_is_compared_too() {
        let (groups, fake) = groups(2, 300).await;
        let first = groups.join(0, &task());
        let retried = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let again = groups.join(0, &task());
            tokio::time::sleep(Duration::from_millis(500)).await;
            reward(again, "+").await
        };
        let rewards = tokio::join!(reward(first, "++"), retried);
        assert_eq!((rewards, fake.requests().len()), ((1.0, 0.0), 1));
    }

    #[tokio::test]
    async fn an_answer_that_is_left_alone_has_an_error_and_no_reward() {
        let (groups, fake) = groups(2, 20).await;
        let (first, second) = (groups.join(0, &task()), groups.join(0, &task()));
        drop(second);
        let error = first.score(answer("+")).await.unwrap_err();
        assert!(matches!(error, RewardError::Alone), "{error}");
        assert!(fake.requests().is_empty());
    }

    #[tokio::test]
    async fn what_is_given_up_leaves_no_group_and_waits_for_nothing() {
        let (groups, _fake) = groups(2, 20).await;
        drop(groups.join(0, &task()));
        assert!(lock(&groups.shared.open).is_empty());
        let waiting = groups.join(1, &task()).score(answer("+"));
        let given_up = tokio::time::timeout(Duration::from_millis(1), waiting).await;
        assert!(given_up.is_err());
        tokio::time::sleep(Duration::from_millis(60)).await;
        assert!(lock(&groups.shared.open).is_empty());
    }
}
