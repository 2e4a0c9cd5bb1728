//! The plan against a server of the stop rules alone, with clients that take turns at random.

use std::collections::HashMap;

use proptest::prelude::*;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;
use crate::protocol::swarm::{PoolInformation, RunningEpisodeDetail};

fn target(rule: Rule, tasks: u64, repeats: u64) -> Target {
    Target {
        rule,
        tasks,
        repeats,
        share: None,
        spare_tasks: 0,
        retries: 3,
    }
}

/// A plan of `tasks` tasks named by `prefix`.
fn plan(target: Target, prefix: &str, tasks: usize, end: Option<u64>, offset: usize) -> Plan {
    let ids = (0..tasks).map(|task| format!("{prefix}{task}")).collect();
    Plan::new(target, ids, TaskOrder::new(tasks, 1, 0, end), offset)
}

/// Begins all that may be begun.
fn begin_all(plan: &mut Plan, company: Company) -> (Vec<Work>, Next) {
    let mut begun = vec![];
    loop {
        match plan.next(company) {
            Next::Begin(work) if begun.len() < 10_000 => begun.push(work),
            last => return (begun, last),
        }
    }
}

/// The set of this model.
fn only(model: usize) -> Models {
    Models::default().with(model)
}

fn tasks_of(begun: &[Work]) -> HashSet<usize> {
    begun.iter().map(|work| work.task).collect()
}

#[test]
fn a_lone_client_begins_what_its_rule_asks_for() {
    for (rule, episodes) in [
        (Rule::Tasks, 12),
        (Rule::NonDummyTasks, 12),
        (Rule::Episodes, 12),
        (Rule::Agreement, 12),
    ] {
        let mut plan = plan(target(rule, 4, 3), "t", 100, None, 7);
        let (begun, last) = begin_all(&mut plan, Company::Alone);
        assert_eq!((begun.len(), last), (episodes, Next::Wait), "{rule:?}");
        assert!(
            begun.chunks(3).all(|group| tasks_of(group).len() == 1),
            "{rule:?}: task by task"
        );
        for work in &begun {
            plan.ended(work.ticket, &work.ticket.to_string(), only(0));
        }
        assert_eq!(
            plan.next(Company::Alone),
            Next::Wait,
            "{rule:?}: the next batch is not begun before the update"
        );
        plan.advance(true);
        assert_eq!(begin_all(&mut plan, Company::Alone).0.len(), episodes, "{rule:?}");
    }
    let mut endless = plan(target(Rule::Never, 4, 3), "t", 5, Some(10), 0);
    assert_eq!(
        begin_all(&mut endless, Company::Alone).0.len(),
        30,
        "whatever a batch has"
    );
}

#[test]
fn spare_tasks_are_begun_beyond_the_batch() {
    for rule in [Rule::Tasks, Rule::Episodes] {
        let target = Target {
            spare_tasks: 2,
            ..target(rule, 4, 3)
        };
        assert_eq!(
            begin_all(&mut plan(target, "t", 100, None, 0), Company::Alone).0.len(),
            18
        );
    }
}

#[test]
fn what_failed_is_tried_again_first_and_a_task_that_keeps_failing_is_replaced() {
    let mut plan = plan(
        Target {
            retries: 1,
            ..target(Rule::Tasks, 2, 2)
        },
        "t",
        9,
        None,
        0,
    );
    let (begun, _) = begin_all(&mut plan, Company::Alone);
    plan.failed(begun[0].ticket, "failed", Models::default(), Cause::Task);
    for _ in 0..2 {
        let (again, _) = begin_all(&mut plan, Company::Alone);
        assert_eq!((again.len(), again[0].task), (1, begun[0].task));
        // Its tries are kept.
        plan.not_begun(again[0].ticket);
    }
    let (again, _) = begin_all(&mut plan, Company::Alone);
    plan.failed(again[0].ticket, "failed", Models::default(), Cause::Task);
    let (other, _) = begin_all(&mut plan, Company::Alone);
    assert_eq!((other.len(), tasks_of(&other).len()), (2, 1));
    assert!(!tasks_of(&begun).contains(&other[0].task));
}

/// A batch of a task with two repeats on the servers of two models, and its first two attempts.
fn joint_plan(retries: u32) -> (Plan, Vec<Work>) {
    let target = Target {
        retries,
        ..target(Rule::Tasks, 1, 2)
    };
    let mut plan = plan(target, "t", 9, None, 0);
    let (begun, _) = begin_all(&mut plan, Company::Alone);
    (plan, begun)
}

/// The batch of a model's server, with these episodes of the task.
fn seen(plan: &Plan, model: usize, task: usize, finished: &[&str]) -> BatchView {
    let finished = finished.iter().map(|uuid| (*uuid).to_owned()).collect();
    let pool = PoolInformation {
        completed_tasks_details: [(format!("t{task}"), finished)].into(),
        ..PoolInformation::default()
    };
    BatchView::new(model, &pool, "me", |uuid| plan.has_ended(uuid))
}

#[test]
fn a_repeat_that_one_server_took_is_filled_by_its_own_task_on_the_others() {
    // Whatever was tried before, and whatever is seen of the batch in between.
    for (retries, looks) in [(0, false), (0, true), (3, true)] {
        let (mut plan, begun) = joint_plan(retries);
        let task = begun[0].task;
        plan.ended(begun[1].ticket, "whole", only(0).with(1));
        plan.failed(begun[0].ticket, "half", only(0), Cause::Task);
        for _ in 0..4 {
            if looks {
                plan.see(seen(&plan, 0, task, &["whole", "half"]));
            }
            let (again, _) = begin_all(&mut plan, Company::Alone);
            assert_eq!((again.len(), again[0].task, again[0].taken_by), (1, task, only(0)));
            plan.failed(again[0].ticket, "nowhere", Models::default(), Cause::Task);
        }
        let (again, _) = begin_all(&mut plan, Company::Alone);
        plan.ended(again[0].ticket, "other half", only(1));
        assert_eq!(plan.next(Company::Alone), Next::Wait);
        // The two servers know it by different ids.
        let all = ["whole", "half", "other half"].map(str::to_owned).into();
        for (model, finished) in [(0, ["whole", "half"]), (1, ["whole", "other half"])] {
            plan.see(seen(&plan, model, task, &finished));
            assert_eq!(plan.replace_vanished(&all), 0, "{finished:?}");
            assert_eq!(plan.next(Company::Alone), Next::Wait);
        }
    }
}

#[test]
fn an_episode_that_one_server_forgot_is_replaced_there() {
    let (mut plan, begun) = joint_plan(3);
    for (work, uuid) in begun.iter().zip(["kept", "forgotten"]) {
        plan.ended(work.ticket, uuid, only(0).with(1));
    }
    plan.see(seen(&plan, 1, begun[0].task, &["kept"]));
    assert_eq!(
        plan.replace_vanished(&["kept", "forgotten"].map(str::to_owned).into()),
        1
    );
    let (again, _) = begin_all(&mut plan, Company::Alone);
    assert_eq!((again.len(), again[0].taken_by), (1, only(0)));
}

#[test]
fn an_episode_that_its_server_lost_is_no_failure_of_its_task() {
    let (mut plan, begun) = joint_plan(0);
    plan.failed(begun[0].ticket, "lost", Models::default(), Cause::Server);
    let (again, _) = begin_all(&mut plan, Company::Alone);
    assert_eq!((again.len(), again[0].task), (1, begun[0].task));
    plan.failed(again[0].ticket, "failed", Models::default(), Cause::Task);
    let (other, _) = begin_all(&mut plan, Company::Alone);
    assert!(other.len() == 2 && other[0].task != begun[0].task, "{other:?}");
}

#[test]
fn an_epoch_ends_and_a_task_is_not_twice_in_a_batch() {
    // Batches of 4 from epochs of 6: the second batch has the last two of the first epoch and two others.
    let mut plan = plan(target(Rule::Tasks, 4, 2), "t", 6, Some(12), 0);
    let mut count = HashMap::new();
    for _ in 0..3 {
        let (begun, last) = begin_all(&mut plan, Company::Alone);
        assert_eq!((tasks_of(&begun).len(), begun.len(), last), (4, 8, Next::Wait));
        for work in begun {
            *count.entry(work.task).or_insert(0) += 1;
            plan.ended(work.ticket, &work.ticket.to_string(), only(0));
        }
        plan.advance(true);
    }
    assert_eq!(plan.next(Company::Alone), Next::NoTask);
    assert!(count.len() == 6 && count.values().all(|count| *count == 4), "{count:?}");
    let mut few = super::tests::plan(target(Rule::Tasks, 4, 2), "t", 3, None, 0);
    let (begun, last) = begin_all(&mut few, Company::Alone);
    assert_eq!((begun.len(), last), (6, Next::NoTask), "too few tasks do not spin");
    let mut repeated = super::tests::plan(target(Rule::Episodes, 4, 2), "t", 3, None, 0);
    assert_eq!(
        begin_all(&mut repeated, Company::Alone).0.len(),
        8,
        "episodes may be of any tasks"
    );
}

/// What others have, as (task, finished, running).
fn view(others: &[(&str, u64, u64)], nameless: u64) -> BatchView {
    let of = |(task, finished, running): &(&str, u64, u64)| {
        let others = super::super::batch_view::OthersOfTask {
            finished: *finished,
            running: *running,
        };
        ((*task).to_owned(), others)
    };
    BatchView {
        others: others.iter().map(of).collect(),
        nameless,
        ..BatchView::default()
    }
}

#[test]
fn what_others_have_is_not_begun_again() {
    for (rule, others, nameless, episodes) in [
        (Rule::Tasks, vec![("x", 2, 1), ("y", 0, 3)], 0, 6),
        // Open groups of others are theirs to complete.
        (Rule::Tasks, vec![("x", 0, 1)], 0, 9),
        (Rule::Tasks, vec![("x", 0, 1)], 2, 9),
        (Rule::Tasks, vec![("x", 0, 1)], 3, 6),
        (Rule::Tasks, vec![], 4, 6),
        (Rule::Episodes, vec![("x", 2, 1)], 2, 7),
    ] {
        let mut plan = plan(target(rule, 4, 3), "t", 100, None, 0);
        plan.see(view(&others, nameless));
        let begun = begin_all(&mut plan, Company::Others).0.len();
        assert_eq!(begun, episodes, "{rule:?} {others:?} {nameless}");
    }
}

#[test]
fn a_share_holds_while_there_is_someone_to_share_with() {
    let halved = Target {
        share: Some(0.5),
        ..target(Rule::Tasks, 4, 3)
    };
    for (company, tasks) in [(Company::Others, 2), (Company::Alone, 4)] {
        let (begun, last) = begin_all(&mut plan(halved, "t", 100, None, 0), company);
        assert_eq!((begun.len(), last), (3 * tasks, Next::Wait), "{company:?}");
    }
    let mut stalled = plan(halved, "t", 100, None, 0);
    for work in begin_all(&mut stalled, Company::Others).0 {
        stalled.ended(work.ticket, &work.ticket.to_string(), only(0));
    }
    assert!(
        matches!(stalled.next(Company::Stalled), Next::Begin(_)),
        "the others do not come"
    );
}

#[test]
fn a_run_that_was_killed_is_continued() {
    let mut first = plan(target(Rule::Tasks, 2, 4), "t", 9, None, 0);
    let order: Vec<_> = begin_all(&mut first, Company::Alone).0;
    let name = |at: usize| format!("t{}", order[at].task);
    let mut next = plan(target(Rule::Tasks, 2, 4), "t", 9, None, 0);
    // The first task is complete. Of the second, one episode has ended and two are not known to be dead yet.
    next.see(view(&[(&name(0), 4, 0), (&name(4), 1, 2)], 0));
    assert_eq!(next.next(Company::Others), Next::Wait);
    next.see(view(&[(&name(0), 4, 0), (&name(4), 1, 0)], 0));
    let (begun, last) = begin_all(&mut next, Company::Others);
    assert_eq!((begun.len(), begun[0].task, last), (3, order[4].task, Next::Wait));
}

#[test]
fn an_episode_that_is_not_in_the_batch_is_replaced() {
    let mut plan = plan(target(Rule::Tasks, 1, 2), "t", 9, None, 0);
    let (begun, _) = begin_all(&mut plan, Company::Alone);
    for (work, uuid) in begun.iter().zip(["there", "lost"]) {
        plan.ended(work.ticket, uuid, only(0));
    }
    plan.see(BatchView {
        finished: ["there".to_owned()].into(),
        ..BatchView::default()
    });
    assert_eq!(plan.replace_vanished(&HashSet::new()), 0, "it may be told of yet");
    assert_eq!(
        plan.replace_vanished(&["there".to_owned(), "lost".to_owned()].into()),
        1
    );
    assert_eq!(begin_all(&mut plan, Company::Alone).0.len(), 1);
}

#[test]
fn a_group_that_the_batch_did_not_wait_for_is_run_again_as_a_whole() {
    for (carry_over, again) in [(true, true), (false, false)] {
        let spare = Target {
            spare_tasks: 1,
            ..target(Rule::Tasks, 2, 3)
        };
        let mut plan = plan(spare, "t", 99, None, 0);
        let (begun, _) = begin_all(&mut plan, Company::Alone);
        for work in &begun[..7] {
            plan.ended(work.ticket, &work.ticket.to_string(), only(0));
        }
        plan.advance(carry_over);
        plan.ended(begun[8].ticket, "too late", only(0));
        let (next, _) = begin_all(&mut plan, Company::Alone);
        assert_eq!(next.len(), 9);
        assert_eq!(next[0].task == begun[8].task, again);
    }
}

// ---- clients and a server ----

#[derive(Default)]
struct Server {
    finished: Vec<(String, String, usize, bool)>,
    /// Episode → (task, client, ticket).
    running: Vec<(String, String, usize, u64)>,
    episodes: u64,
}

impl Server {
    fn pool(&self, target: &Target) -> PoolInformation {
        let mut pool = PoolInformation::default();
        let mut rewards: HashMap<&str, HashSet<bool>> = HashMap::new();
        for (uuid, task, _, reward) in &self.finished {
            pool.completed_tasks_details
                .entry(task.clone())
                .or_default()
                .push(uuid.clone());
            rewards.entry(task).or_default().insert(*reward);
        }
        let complete = |task: &&String| pool.completed_tasks_details[*task].len() as u64 >= target.repeats;
        let tasks: Vec<_> = pool.completed_tasks_details.keys().filter(complete).collect();
        pool.completed_non_dummy_tasks = tasks.iter().filter(|task| rewards[task.as_str()].len() > 1).count() as u64;
        pool.completed_tasks = tasks.len() as u64;
        let running = self.running.iter().map(|(uuid, task, client, _)| {
            let detail = RunningEpisodeDetail {
                client_uuid: client.to_string(),
                optional_task_id: task.clone(),
                ..RunningEpisodeDetail::default()
            };
            (uuid.clone(), detail)
        });
        pool.running_episode_details = Some(running.collect());
        pool
    }

    fn is_full(&self, target: &Target) -> bool {
        let pool = self.pool(target);
        match target.rule {
            Rule::Episodes => self.finished.len() as u64 >= target.episodes(),
            Rule::NonDummyTasks => pool.completed_non_dummy_tasks >= target.tasks,
            _ => pool.completed_tasks >= target.tasks,
        }
    }
}

/// What became of a batch.
struct Batch {
    /// Episodes by task.
    sizes: HashMap<String, u64>,
    /// Tasks with episodes of each client.
    by_client: HashMap<usize, HashSet<String>>,
}

/// Samples batches with clients that have `slots` each and see the batch every `stale` of their turns. Episodes fail
/// at the rate `failing`.
fn sample(mut plans: Vec<Plan>, slots: usize, stale: usize, failing: f64, batches: usize, seed: u64) -> Vec<Batch> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let (mut server, mut sampled, mut quiet) = (Server::default(), vec![], 0);
    let mut turns = vec![0_usize; plans.len()];
    let target = *plans[0].target();
    for _ in 0..200_000 {
        if sampled.len() == batches {
            break;
        }
        let full = server.is_full(&target);
        if full && server.running.is_empty() {
            let mut batch = Batch {
                sizes: HashMap::new(),
                by_client: HashMap::new(),
            };
            for (_, task, client, _) in server.finished.drain(..) {
                *batch.sizes.entry(task.clone()).or_default() += 1;
                batch.by_client.entry(client).or_default().insert(task);
            }
            sampled.push(batch);
            plans.iter_mut().for_each(|plan| plan.advance(true));
            turns.fill(0);
            continue;
        }
        let client = rng.random_range(0..plans.len());
        let own = server.running.iter().filter(|(_, _, of, _)| *of == client).count();
        if !full && own < slots && rng.random_bool(0.7) {
            if turns[client].is_multiple_of(stale) {
                let is_own = |uuid: &str| {
                    plans[client].has_ended(uuid)
                        || server
                            .running
                            .iter()
                            .any(|(known, _, of, _)| known == uuid && *of == client)
                };
                let view = BatchView::new(0, &server.pool(&target), &client.to_string(), is_own);
                plans[client].see(view);
            }
            turns[client] += 1;
            quiet += 1;
            let company = match plans.len() {
                _ if quiet > 50 && server.running.is_empty() => Company::Stalled,
                1 => Company::Alone,
                _ => Company::Others,
            };
            if let Next::Begin(work) = plans[client].next(company) {
                quiet = 0;
                server.episodes += 1;
                let task = plans[client].ids[work.task].clone();
                server
                    .running
                    .push((server.episodes.to_string(), task, client, work.ticket));
            }
        } else if let Some((uuid, ..)) = server.running.choose(&mut rng) {
            quiet = 0;
            let at = server.running.iter().position(|(known, ..)| known == uuid).unwrap();
            let (uuid, task, client, ticket) = server.running.swap_remove(at);
            match rng.random_bool(failing) {
                true => plans[client].failed(ticket, &uuid, Models::default(), Cause::Task),
                false => {
                    plans[client].ended(ticket, &uuid, only(0));
                    server.finished.push((uuid, task, client, rng.random_bool(0.5)));
                }
            }
        }
    }
    assert_eq!(sampled.len(), batches, "the clients got stuck");
    sampled
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// A lone client ends exactly the requested episodes, whatever fails.
    #[test]
    fn a_lone_clients_batches_are_exact(
        tasks in 1..9_u64, repeats in 1..6_u64, slots in 1..30_usize, failing in 0.0..0.4, seed in any::<u64>(),
    ) {
        for rule in [Rule::Tasks, Rule::Episodes] {
            let target = Target { retries: 1000, ..target(rule, tasks, repeats) };
            for batch in sample(vec![plan(target, "t", 30, None, 0)], slots, 1, failing, 3, seed) {
                prop_assert_eq!(batch.sizes.len() as u64, tasks);
                prop_assert!(batch.sizes.values().all(|size| *size == repeats), "{:?}", batch.sizes);
            }
        }
    }

    /// A task that fails for good leaves some of its episodes, and another takes its place.
    #[test]
    fn a_broken_group_is_the_only_excess(
        tasks in 1..6_u64, repeats in 2..5_u64, slots in 1..20_usize, seed in any::<u64>(),
    ) {
        let target = Target { retries: 0, ..target(Rule::Tasks, tasks, repeats) };
        for batch in sample(vec![plan(target, "t", 400, None, 0)], slots, 1, 0.1, 3, seed) {
            let complete = batch.sizes.values().filter(|size| **size == repeats).count() as u64;
            prop_assert_eq!(complete, tasks);
            prop_assert!(batch.sizes.values().all(|size| *size <= repeats));
        }
    }

    /// Clients of one job that see each other split a batch, and clients of different ones keep their shares. What failed
    /// at another client cannot be seen, so nothing fails where the tasks are the same.
    #[test]
    fn clients_share_batches(
        tasks in 2..9_u64, repeats in 1..5_u64, slots in 1..20_usize, clients in 2..4_usize, seed in any::<u64>(),
    ) {
        let target = target(Rule::Tasks, tasks, repeats);
        let same = (0..clients).map(|client| plan(target, "t", 40, None, client * 17)).collect();
        for batch in sample(same, slots, 1, 0.0, 3, seed) {
            prop_assert_eq!(batch.sizes.len() as u64, tasks);
            prop_assert!(batch.sizes.values().all(|size| *size == repeats), "{:?}", batch.sizes);
        }
        // Seen with a task that had failed for good: its episodes stand beside those of the task in its place.
        let shared = Target { tasks: 2 * tasks, share: Some(0.5), retries: 1000, ..target };
        let different = ["a", "b"].map(|name| plan(shared, name, 40, None, 0)).into();
        for batch in sample(different, slots.max(4), 1, 0.1, 3, seed) {
            prop_assert!(batch.by_client.values().all(|own| own.len() as u64 == tasks));
            prop_assert!(batch.sizes.values().all(|size| *size == repeats), "{:?}", batch.sizes);
        }
    }

    /// Tasks with different rewards are what the batch asks for; few more are begun than it needs.
    #[test]
    fn tasks_without_a_signal_are_replaced(tasks in 4..12_u64, seed in any::<u64>()) {
        let target = target(Rule::NonDummyTasks, tasks, 2);
        for batch in sample(vec![plan(target, "t", 400, None, 0)], 16, 1, 0.0, 3, seed) {
            // Half of the groups of two have equal rewards.
            prop_assert!((batch.sizes.len() as u64) < 8 * tasks, "{}", batch.sizes.len());
        }
    }
}

/// Clients that see the batch late begin the same task at times, and get on all the same.
#[test]
fn clients_with_old_views_overshoot_little() {
    let mut excess = vec![];
    for seed in 0..20 {
        let plans = (0..2)
            .map(|client| plan(target(Rule::Tasks, 16, 4), "t", 200, None, client * 9))
            .collect();
        for batch in sample(plans, 24, 20, 0.05, 3, seed) {
            excess.push(batch.sizes.values().sum::<u64>() as f64 / 64.0);
        }
    }
    let mean = excess.iter().sum::<f64>() / excess.len() as f64;
    assert!(mean < 1.5, "{mean}: {excess:?}");
}
