//! The pool of compute threads, which sampling and training share.
//!
//! A region of work is a number of tasks that threads claim one by one. The caller takes part and waits for the tasks,
//! not for the threads: a thread that the system gave no core to is simply not there, and costs nothing. Idle threads
//! spin briefly, because the next region of a forward pass is microseconds away, and then sleep.

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::isa::Isa;

/// How long an idle thread looks for work before it sleeps, longer than the gap between two steps of a decode.
const SPIN: Duration = Duration::from_micros(200);

/// The low bits of `Shared::open` count the unclaimed tasks; the rest number the region, so that a claim
/// made on an old view fails.
const TASK_BITS: u32 = 24;
const TASK_MASK: u64 = (1 << TASK_BITS) - 1;

/// A fixed set of compute threads, including the caller, and their instruction set.
pub struct Pool {
    isa: Isa,
    shared: Arc<Shared>,
    /// Held by the caller whose region runs.
    region: Mutex<()>,
    workers: Vec<JoinHandle<()>>,
}

struct Shared {
    open: AtomicU64,
    job: AtomicPtr<Job<'static>>,
    finished: AtomicUsize,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    closing: AtomicBool,
    sleepers: AtomicUsize,
    sleep: Mutex<()>,
    wake: Condvar,
}

struct Job<'a> {
    task: &'a (dyn Fn(usize) + Sync),
}

impl Pool {
    /// Returns the number of cores that the process may use, not counting a core's second thread.
    pub fn physical_cores() -> usize {
        num_cpus::get_physical().clamp(1, Self::logical_cpus())
    }

    /// Returns the number of threads that this machine runs at once for the process.
    pub fn logical_cpus() -> usize {
        thread::available_parallelism().map_or(1, |n| n.get())
    }

    /// Returns the number of threads to start: the configured one, at most the logical CPUs; by default one per
    /// physical core.
    pub fn threads_for(asked: Option<usize>) -> usize {
        asked.map_or_else(Self::physical_cores, |asked| asked.clamp(1, Self::logical_cpus()))
    }

    /// Starts a pool of `threads` (at least 1), of which the caller is one, with this machine's best instruction set.
    pub fn new(threads: usize) -> Self {
        Self::with_isa(threads, Isa::detect())
    }

    /// Starts a pool with one of this machine's instruction sets.
    pub fn with_isa(threads: usize, isa: Isa) -> Self {
        let shared = Arc::new(Shared {
            open: AtomicU64::new(0),
            job: AtomicPtr::new(ptr::null_mut()),
            finished: AtomicUsize::new(0),
            panic: Mutex::new(None),
            closing: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            sleep: Mutex::new(()),
            wake: Condvar::new(),
        });
        let workers = (1..threads)
            .map_while(|i| {
                let shared = shared.clone();
                // Fewer threads than requested do the same work.
                thread::Builder::new()
                    .name(format!("compute-{i}"))
                    .spawn(move || shared.work())
                    .ok()
            })
            .collect();
        Self {
            isa,
            shared,
            region: Mutex::new(()),
            workers,
        }
    }

    /// Returns the instruction set to compute with.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Returns the number of compute threads.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `task` with every number below `tasks`, on all threads and in no order, and returns when all is done.
    /// A panic in a task reaches the caller, after the other tasks. Within a task, it runs on that thread alone.
    pub fn run(&self, tasks: usize, task: impl Fn(usize) + Sync) {
        assert!(
            tasks as u64 <= TASK_MASK,
            "{tasks} tasks in one region, at most {TASK_MASK}"
        );
        if tasks <= 1 || self.workers.is_empty() {
            return (0..tasks).for_each(task);
        }
        let Ok(region) = self.region.try_lock() else {
            return (0..tasks).for_each(task);
        };
        let job = Job { task: &task };
        let shared = &*self.shared;
        shared.finished.store(0, Relaxed);
        shared
            .job
            .store(ptr::from_ref(&job).cast::<Job<'static>>().cast_mut(), Relaxed);
        let number = (shared.open.load(Relaxed) & !TASK_MASK).wrapping_add(TASK_MASK + 1);
        shared.open.store(number | tasks as u64, SeqCst);
        if shared.sleepers.load(SeqCst) > 0 {
            drop(lock(&shared.sleep));
            shared.wake.notify_all();
        }
        while shared.claim_and_run() {}
        // Until here every claimed task is finished, the job may not leave the stack.
        let mut spins = 0u32;
        while shared.finished.load(Acquire) < tasks {
            std::hint::spin_loop();
            spins += 1;
            if spins > 1000 {
                thread::yield_now();
            }
        }
        let panic = lock(&shared.panic).take();
        drop(region);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    /// Calls `task` with ranges of at least `least` items that cover `0..len`, a few ranges per thread.
    pub fn run_ranges(&self, len: usize, least: usize, task: impl Fn(Range<usize>) + Sync) {
        let ranges = (len / least.max(1)).clamp(1, 4 * self.threads());
        self.run(ranges, |i| task(len * i / ranges..len * (i + 1) / ranges));
    }

    /// Calls `task` with every item and its number, on all threads.
    pub fn for_each<T: Send>(&self, items: &mut [T], task: impl Fn(usize, &mut T) + Sync) {
        let base = SharedMut::new(items);
        self.run(items.len(), |i| {
            // SAFETY: i is below the length, and every i is claimed once: no two tasks see the same item.
            task(i, unsafe { &mut *base.at(i) })
        });
    }

    /// Calls `task` with every item, on all threads.
    pub fn each<T: Send>(&self, items: impl IntoIterator<Item = T>, task: impl Fn(T) + Sync) {
        let mut items: Vec<Option<T>> = items.into_iter().map(Some).collect();
        self.for_each(&mut items, |_, item| item.take().into_iter().for_each(&task));
    }

    /// Returns the results of `task` for every item, in the items' order.
    pub fn map<T: Send, R: Send>(&self, items: impl IntoIterator<Item = T>, task: impl Fn(T) -> R + Sync) -> Vec<R> {
        let mut pairs: Vec<(Option<T>, Option<R>)> = items.into_iter().map(|item| (Some(item), None)).collect();
        self.for_each(&mut pairs, |_, (item, result)| *result = item.take().map(&task));
        pairs.into_iter().filter_map(|(_, result)| result).collect()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.closing.store(true, SeqCst);
        drop(lock(&self.shared.sleep));
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            let _ = worker.join(); // Tasks' panics are caught: the loop itself has none.
        }
    }
}

impl Shared {
    fn work(&self) {
        loop {
            while self.claim_and_run() {}
            if !self.wait() {
                return;
            }
        }
    }

    /// Takes one open task and runs it; false if there is none.
    fn claim_and_run(&self) -> bool {
        let mut open = self.open.load(Acquire);
        loop {
            if open & TASK_MASK == 0 {
                return false;
            }
            let job = self.job.load(Relaxed);
            match self.open.compare_exchange_weak(open, open - 1, AcqRel, Acquire) {
                Ok(_) => {
                    // SAFETY: the exchange says that the region whose number we read is still open, so `job` is its
                    // job; and `run` keeps that alive until `finished` counts the task just claimed.
                    let task = unsafe { (*job).task };
                    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| task((open & TASK_MASK) as usize - 1))) {
                        *lock(&self.panic) = Some(panic);
                    }
                    self.finished.fetch_add(1, Release);
                    return true;
                }
                Err(now) => open = now,
            }
        }
    }

    /// Spins, then sleeps, until there is a task; false if the pool closes.
    fn wait(&self) -> bool {
        let start = Instant::now();
        while start.elapsed() < SPIN {
            for _ in 0..32 {
                if self.closing.load(Relaxed) {
                    return false;
                }
                if self.open.load(Relaxed) & TASK_MASK != 0 {
                    return true;
                }
                std::hint::spin_loop();
            }
        }
        let mut guard = lock(&self.sleep);
        // `run` opens a region and then looks for sleepers, we announce ourselves and then look for a region: whichever
        // comes second sees the other.
        self.sleepers.fetch_add(1, SeqCst);
        while self.open.load(SeqCst) & TASK_MASK == 0 && !self.closing.load(SeqCst) {
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, SeqCst);
        !self.closing.load(SeqCst)
    }
}

/// Locks what no panic can leave half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A pointer shared by tasks, each of which writes a separate part.
pub(super) struct SharedMut<T>(*mut T);

// SAFETY: it is a plain address. Each dereference states why no two tasks touch the same place.
unsafe impl<T: Send> Send for SharedMut<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for SharedMut<T> {}

impl<T> SharedMut<T> {
    /// Shares the slice, which stays borrowed by the caller.
    pub fn new(slice: &mut [T]) -> Self {
        Self(slice.as_mut_ptr())
    }

    /// Returns the address of element `i`.
    ///
    /// # Safety
    /// `i` lies within the allocation.
    pub unsafe fn at(&self, i: usize) -> *mut T {
        // SAFETY: the caller's promise.
        unsafe { self.0.add(i) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once() {
        for threads in [1, 2, 5] {
            let pool = Pool::new(threads);
            for tasks in [0, 1, 2, 3, 17, 1000] {
                let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                pool.run(tasks, |i| {
                    counts[i].fetch_add(1, Relaxed);
                });
                assert!(
                    counts.iter().all(|c| c.load(Relaxed) == 1),
                    "{threads} threads, {tasks} tasks"
                );
            }
        }
    }

    #[test]
    fn regions_follow_each_other_closely() {
        let pool = Pool::new(4);
        let mut items = vec![0u64; 37];
        for round in 0..5000 {
            pool.for_each(&mut items, |i, item| *item += i as u64 + round);
        }
        let rounds: u64 = (0..5000).sum();
        assert!(
            items
                .iter()
                .enumerate()
                .all(|(i, &item)| item == 5000 * i as u64 + rounds)
        );
    }

    #[test]
    fn threads_wake_from_sleep() {
        let pool = Pool::new(3);
        let count = AtomicUsize::new(0);
        for _ in 0..5 {
            thread::sleep(SPIN * 5);
            pool.run(8, |_| {
                count.fetch_add(1, Relaxed);
            });
        }
        assert_eq!(count.load(Relaxed), 40);
    }

    #[test]
    fn ranges_cover_everything_once() {
        let pool = Pool::new(2);
        for (len, least) in [(0, 1), (1, 1), (7, 3), (100, 1), (100, 1000)] {
            let sum = AtomicUsize::new(0);
            pool.run_ranges(len, least, |range| {
                sum.fetch_add(range.map(|i| i + 1).sum::<usize>(), Relaxed);
            });
            assert_eq!(sum.load(Relaxed), len * (len + 1) / 2, "{len} items");
        }
    }

    #[test]
    fn items_are_handed_out_once_and_results_keep_their_order() {
        let pool = Pool::new(3);
        let sum = AtomicUsize::new(0);
        pool.each((1..=100).map(Box::new), |item| {
            sum.fetch_add(*item, Relaxed);
        });
        assert_eq!(sum.load(Relaxed), 5050);
        let squares = pool.map(0..100, |i| i * i);
        assert!(squares.iter().enumerate().all(|(i, square)| i * i == *square));
    }

    #[test]
    fn a_panic_reaches_the_caller_and_leaves_the_pool_whole() {
        let pool = Pool::new(2);
        let caught = catch_unwind(AssertUnwindSafe(|| pool.run(10, |i| assert!(i != 3, "task three"))));
        assert!(caught.is_err());
        pool.run(10, |_| {});
    }

    #[test]
    fn a_region_within_a_task_runs_there() {
        let pool = Pool::new(2);
        let count = AtomicUsize::new(0);
        pool.run(4, |_| {
            pool.run(4, |_| {
                count.fetch_add(1, Relaxed);
            })
        });
        assert_eq!(count.load(Relaxed), 16);
    }
}
