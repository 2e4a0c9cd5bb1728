//! Chooses the next episode, so that an update trains on exactly one batch of complete groups. Pure: no clock, no I/O.
//!
//! A *group* is the episodes of one task in one batch. The plan begins a group only if the batch has room for it,
//! including the episodes of other clients. It completes its groups before it begins another one, and replaces failed
//! episodes.

use std::collections::{HashSet, VecDeque};

use super::batch_rule::Rule;
use super::batch_view::BatchView;
use super::joint_episode::Models;
use super::order::TaskOrder;
use super::repeat::Repeat;

/// Size of a batch, and the share of this client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    pub rule: Rule,
    /// Number of tasks of a batch, B.
    pub tasks: u64,
    /// Number of episodes per task, N.
    pub repeats: u64,
    /// Maximum share of the tasks for this client while others take part.
    pub share: Option<f64>,
    /// Number of tasks beyond the batch, so that slow ones do not delay it.
    pub spare_tasks: u64,
    /// Maximum number of retries of a failed repeat.
    pub retries: u32,
}

impl Target {
    /// Returns the number of episodes of a batch.
    pub fn episodes(&self) -> u64 {
        self.tasks * self.repeats
    }
}

/// One attempt at one repeat of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Work {
    /// Id of the attempt in the plan.
    pub ticket: u64,
    /// Index into the training tasks.
    pub task: usize,
    /// Id of its group, which all repeats of a task in one batch share.
    pub group: u64,
    /// Models whose servers took an earlier try, which another server did not take.
    pub taken_by: Models,
}

/// Next action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Begin this episode.
    Begin(Work),
    /// The batch has no room for another episode.
    Wait,
    /// The batch has room, and no task is left for it.
    NoTask,
}

/// Other clients that take part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Company {
    /// No other client recently.
    Alone,
    /// Other clients.
    Others,
    /// No episode of any client has run for a while, and the batch is not full.
    Stalled,
}

/// Whose failure an attempt is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The agent's or the reward's, which another task may not have.
    Task,
    /// A server's, which lost the episode.
    Server,
}

/// Episodes of a task in the current batch.
#[derive(Debug)]
struct Group {
    id: u64,
    task: usize,
    /// Whether it includes the episodes of other clients, as the first group of its task does.
    is_first: bool,
    running: Vec<(Work, Repeat)>,
    /// Repeats that all servers accepted.
    ended: Vec<Repeat>,
    /// Repeats to be tried again.
    again: Vec<Repeat>,
    /// Whether a repeat failed finally, so that the group cannot be completed.
    is_broken: bool,
    /// Number of episodes that the server accepted but that are not in the batch.
    vanished: u32,
}

impl Group {
    fn repeats(&self) -> impl Iterator<Item = &Repeat> {
        let running = self.running.iter().map(|(_, repeat)| repeat);
        running.chain(&self.ended).chain(&self.again)
    }
}

/// Plan of the episodes of a run.
#[derive(Debug)]
pub(super) struct Plan {
    target: Target,
    /// Ids of the tasks.
    ids: Vec<String>,
    order: TaskOrder,
    /// Tasks to run before those of the order.
    ahead: VecDeque<usize>,
    /// Index in `ahead` at which this client begins while others take part, so that clients of one job choose different
    /// tasks.
    offset: usize,
    groups: Vec<Group>,
    view: BatchView,
    tickets: u64,
    groups_begun: u64,
}

impl Plan {
    /// Creates a plan for tasks with these ids; `offset` differs between clients.
    pub fn new(target: Target, ids: Vec<String>, order: TaskOrder, offset: usize) -> Self {
        Self {
            target,
            ids,
            order,
            ahead: VecDeque::new(),
            offset,
            groups: Vec::new(),
            view: BatchView::default(),
            tickets: 0,
            groups_begun: 0,
        }
    }

    /// Size of a batch, and the share of this client.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Returns the next action; an episode to begin counts as running from then on.
    pub fn next(&mut self, company: Company) -> Next {
        if self.target.rule == Rule::Episodes && self.begun() >= self.most_episodes() {
            return Next::Wait;
        }
        let open = (0..self.groups.len()).find(|&at| self.missing(&self.groups[at]) > 0);
        let at = match open.or_else(|| self.take_abandoned().map(|task| self.open(task))) {
            Some(at) => at,
            None if !self.has_room(company) => return Next::Wait,
            None => match self.take_task(company) {
                Some(task) => self.open(task),
                None => return Next::NoTask,
            },
        };
        self.tickets += 1;
        let group = &mut self.groups[at];
        let repeat = group.again.pop().unwrap_or_default();
        let work = Work {
            ticket: self.tickets,
            task: group.task,
            group: group.id,
            taken_by: repeat.taken_by(),
        };
        group.running.push((work, repeat));
        Next::Begin(work)
    }

    /// Returns an attempt that was not begun, which does not count as a failure.
    pub fn not_begun(&mut self, ticket: u64) {
        if let Some((group, repeat)) = self.settle(ticket)
            && !repeat.is_new()
        {
            group.again.push(repeat);
        }
    }

    /// Records that the servers of the models `taken_by`, which are those that did not have it, accepted the episode.
    pub fn ended(&mut self, ticket: u64, uuid: &str, taken_by: Models) {
        if let Some((group, mut repeat)) = self.settle(ticket) {
            repeat.took(taken_by, uuid);
            group.ended.push(repeat);
        }
        if self.target.rule == Rule::Never {
            let repeats = self.target.repeats;
            self.groups.retain(|group| (group.ended.len() as u64) < repeats);
        }
    }

    /// Records that the episode failed after the servers of the models `taken_by` had taken it.
    ///
    /// A repeat that fails `retries` times gives its group up. One that a server has taken does not: its place is filled
    /// there, and another task could fill it only at the others. Nor does one that a server lost.
    pub fn failed(&mut self, ticket: u64, uuid: &str, taken_by: Models, cause: Cause) {
        let retries = self.target.retries;
        let Some((group, mut repeat)) = self.settle(ticket) else {
            return;
        };
        repeat.took(taken_by, uuid);
        if cause == Cause::Task {
            repeat.tried += 1;
        }
        match repeat.tried > retries && repeat.taken_by() == Models::default() {
            true => group.is_broken = true,
            false => group.again.push(repeat),
        }
    }

    /// Updates the plan with the state of the batch.
    pub fn see(&mut self, view: BatchView) {
        self.view = view;
    }

    /// Replaces those of `candidates` that all servers accepted but that the one last seen does not have in its batch.
    /// Returns their number.
    pub fn replace_vanished(&mut self, candidates: &HashSet<String>) -> u64 {
        let retries = self.target.retries;
        let BatchView { model, finished, .. } = &self.view;
        let is_there = |repeat: &Repeat| repeat.id_at(*model).is_some_and(|uuid| finished.contains(uuid));
        let is_candidate = |repeat: &Repeat| repeat.last_id().is_some_and(|uuid| candidates.contains(uuid));
        let mut count = 0;
        for group in &mut self.groups {
            let vanished: Vec<_> = group
                .ended
                .extract_if(.., |repeat| is_candidate(repeat) && !is_there(repeat))
                .collect();
            group.vanished += vanished.len() as u32;
            group.is_broken |= group.vanished > retries;
            count += vanished.len() as u64;
            group.again.extend(vanished.into_iter().map(|mut repeat| {
                repeat.lost_by(*model);
                repeat
            }));
        }
        count
    }

    /// Ends the batch. Incomplete groups are run again as a whole if `carry_over`.
    pub fn advance(&mut self, carry_over: bool) {
        let groups = std::mem::take(&mut self.groups);
        let incomplete = groups
            .iter()
            .filter(|group| !group.is_broken && !self.is_complete(group));
        let tasks: Vec<_> = incomplete.map(|group| group.task).collect();
        // What others were at has been trained on.
        let (ids, view, repeats) = (&self.ids, &self.view, self.target.repeats);
        if self.target.rule.counts_tasks() {
            self.ahead.retain(|task| view.others_of(&ids[*task]).begun() < repeats);
        }
        if carry_over {
            tasks.into_iter().rev().for_each(|task| self.ahead.push_front(task));
        }
        self.view = BatchView::default();
    }

    /// Returns the episodes of this client in the batch.
    pub fn own_ended(&self) -> u64 {
        self.groups.iter().map(|group| group.ended.len() as u64).sum()
    }

    /// Returns whether a server took this episode of this client.
    pub fn has_ended(&self, uuid: &str) -> bool {
        let mut repeats = self.groups.iter().flat_map(Group::repeats);
        repeats.any(|repeat| repeat.has_id(uuid))
    }

    /// Removes a ticket from its group.
    fn settle(&mut self, ticket: u64) -> Option<(&mut Group, Repeat)> {
        self.groups.iter_mut().find_map(|group| {
            let at = group.running.iter().position(|(work, _)| work.ticket == ticket)?;
            let (_, repeat) = group.running.swap_remove(at);
            Some((group, repeat))
        })
    }

    fn open(&mut self, task: usize) -> usize {
        let is_first = !self.groups.iter().any(|group| self.ids[group.task] == self.ids[task]);
        self.groups_begun += 1;
        self.groups.push(Group {
            id: self.groups_begun,
            task,
            is_first,
            running: Vec::new(),
            ended: Vec::new(),
            again: Vec::new(),
            is_broken: false,
            vanished: 0,
        });
        self.groups.len() - 1
    }

    /// Returns the number of episodes of the group, of all clients.
    fn begun_of(&self, group: &Group) -> u64 {
        let others = match group.is_first {
            true => self.view.others_of(&self.ids[group.task]).begun(),
            false => 0,
        };
        (group.running.len() + group.ended.len()) as u64 + others
    }

    /// Returns the number of episodes to begin.
    fn missing(&self, group: &Group) -> u64 {
        match group.is_broken {
            true => 0,
            false => self.target.repeats.saturating_sub(self.begun_of(group)),
        }
    }

    fn is_complete(&self, group: &Group) -> bool {
        let others = self.view.others_of(&self.ids[group.task]).finished;
        group.ended.len() as u64 + others >= self.target.repeats
    }

    /// Returns the number of finished and running episodes of the batch, of all clients.
    fn begun(&self) -> u64 {
        let own = self.groups.iter().map(|group| group.running.len() + group.ended.len());
        own.sum::<usize>() as u64 + self.view.begun_by_others()
    }

    fn most_episodes(&self) -> u64 {
        self.target.episodes() + self.target.spare_tasks * self.target.repeats
    }

    /// Returns whether another group may be begun, once all groups of this client are begun in full.
    fn has_room(&self, company: Company) -> bool {
        let target = &self.target;
        let tasks = (target.tasks + target.spare_tasks) as f64;
        match (target.rule, company) {
            (Rule::Never, _) => true,
            (Rule::Agreement, _) => self.own_groups() < target.tasks,
            (Rule::Episodes, Company::Stalled) => true,
            (Rule::Episodes, _) => self.is_within_share(company) && self.begun() < self.most_episodes(),
            // The groups that were counted as part of the batch have failed.
            (Rule::Tasks, Company::Stalled) => self.view.completed_tasks < target.tasks,
            (Rule::NonDummyTasks, Company::Stalled) => self.view.completed_non_dummy_tasks < target.tasks,
            (Rule::Tasks, _) => self.is_within_share(company) && (self.live_tasks() as f64) < tasks,
            (Rule::NonDummyTasks, _) => self.is_within_share(company) && self.expected_non_dummy_tasks() < tasks,
        }
    }

    /// Returns whether this client's share allows another group. Groups with episodes of others do not count.
    fn is_within_share(&self, company: Company) -> bool {
        let Some(share) = self.target.share.filter(|_| company == Company::Others) else {
            return true;
        };
        let own = self
            .groups
            .iter()
            .filter(|group| self.view.others_of(&self.ids[group.task]).begun() == 0);
        (own.filter(|group| !group.is_broken).count() as f64) < self.target.tasks as f64 * share
    }

    fn own_groups(&self) -> u64 {
        self.groups.iter().filter(|group| !group.is_broken).count() as u64
    }

    /// Returns the number of tasks that are complete or will be, of all clients.
    fn live_tasks(&self) -> u64 {
        let live = self
            .groups
            .iter()
            .filter(|group| !group.is_broken || self.is_complete(group));
        let own: HashSet<&str> = self.groups.iter().map(|group| self.ids[group.task].as_str()).collect();
        let others = self.view.others.iter().filter(|(task, _)| !own.contains(task.as_str()));
        let (mut other_tasks, mut open) = (0, 0);
        for (_, task) in others {
            other_tasks += 1;
            open += self.target.repeats.saturating_sub(task.begun());
        }
        // Episodes of unknown tasks complete the tasks of others first.
        let nameless = self
            .view
            .nameless
            .saturating_sub(open)
            .div_ceil(self.target.repeats.max(1));
        live.count() as u64 + other_tasks + nameless
    }

    /// Estimates the number of tasks with different rewards in the full batch, from the share among the complete ones.
    fn expected_non_dummy_tasks(&self) -> f64 {
        let (complete, differ) = (self.view.completed_tasks, self.view.completed_non_dummy_tasks);
        let undecided = self.live_tasks().saturating_sub(complete) as f64;
        differ as f64 + undecided * (differ + 1) as f64 / (complete + 1) as f64
    }

    /// Returns the next task that the batch can use.
    fn take_task(&mut self, company: Company) -> Option<usize> {
        if company == Company::Others && self.target.share.is_none() {
            self.look_ahead();
        }
        let start = match (company, self.ahead.len()) {
            (Company::Others, 1..) if self.target.share.is_none() => self.offset % self.ahead.len(),
            _ => 0,
        };
        self.ahead.rotate_left(start);
        let task = self.take_from_ahead();
        let back = start.min(self.ahead.len());
        self.ahead.rotate_right(back);
        task.or_else(|| self.take_from_order())
    }

    /// Returns a task of this job with episodes in the batch of a client that is gone.
    fn take_abandoned(&mut self) -> Option<usize> {
        if self.view.others.is_empty() || !self.target.rule.counts_tasks() {
            return None;
        }
        self.look_ahead();
        let is_abandoned = |task: usize| {
            let others = self.view.others_of(&self.ids[task]);
            others.running == 0 && (1..self.target.repeats).contains(&others.finished)
        };
        let usable = |task: usize| is_abandoned(task) && matches!(self.fit(task), Fit::Usable);
        let at = self.ahead.iter().position(|&task| usable(task))?;
        self.ahead.remove(at)
    }

    /// Takes the tasks of a batch from the order, to begin in the middle of them.
    fn look_ahead(&mut self) {
        while (self.ahead.len() as u64) < self.target.tasks
            && let Some(task) = self.order.next()
        {
            self.ahead.push_back(task);
        }
    }

    fn take_from_ahead(&mut self) -> Option<usize> {
        let mut at = 0;
        while at < self.ahead.len() {
            match self.fit(self.ahead[at]) {
                Fit::Usable => return self.ahead.remove(at),
                Fit::Done => drop(self.ahead.remove(at)),
                Fit::Later => at += 1,
            }
        }
        None
    }

    fn take_from_order(&mut self) -> Option<usize> {
        // Every task of an epoch is looked at at most, so that this ends where none can be used.
        for _ in 0..self.order.tasks() {
            if self.ahead.len() >= self.order.tasks() {
                return None;
            }
            let task = self.order.next()?;
            match self.fit(task) {
                Fit::Usable => return Some(task),
                Fit::Done => {}
                Fit::Later => self.ahead.push_back(task),
            }
        }
        None
    }

    fn fit(&self, task: usize) -> Fit {
        if !self.target.rule.counts_tasks() {
            return Fit::Usable;
        }
        let id = &self.ids[task];
        if self.groups.iter().any(|group| self.ids[group.task] == *id) {
            return Fit::Later;
        }
        let others = self.view.others_of(id);
        match self.target.repeats {
            repeats if others.finished >= repeats => Fit::Done,
            repeats if others.begun() >= repeats => Fit::Later,
            _ => Fit::Usable,
        }
    }
}

/// Whether the current batch can use a task.
enum Fit {
    Usable,
    /// All of its episodes belong to others: another client of the same job, or an earlier run of it.
    Done,
    /// It is in the batch, or others run it.
    Later,
}

#[cfg(test)]
mod tests;
