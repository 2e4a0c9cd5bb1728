//! The system's processes: who descends from whom, and how much memory a family holds. Read from `/proc`, so where there
//! is none (macOS), nothing is found and no memory limit is enforced.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Pause between two measurements of a program's memory.
const PAUSE: Duration = Duration::from_millis(200);

/// Running processes by their parent.
#[derive(Debug, Default)]
pub(super) struct Table {
    children: HashMap<u32, Vec<u32>>,
}

impl Table {
    /// Reads the running processes.
    pub fn read() -> Self {
        let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            // A process that ended meanwhile has no file any more.
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            if let Some(parent) = parent_in(&stat) {
                children.entry(parent).or_default().push(pid);
            }
        }
        Self { children }
    }

    /// A table that is at most [`PAUSE`] old. All programs share it, since reading it costs a file for each process of
    /// the machine.
    fn recent() -> Arc<Self> {
        static RECENT: Mutex<Option<(Instant, Arc<Table>)>> = Mutex::new(None);
        // Nothing panics while it holds the lock.
        let mut recent = RECENT.lock().unwrap_or_else(PoisonError::into_inner);
        match &*recent {
            Some((read, table)) if read.elapsed() < PAUSE => table.clone(),
            _ => {
                let table = Arc::new(Self::read());
                *recent = Some((Instant::now(), table.clone()));
                table
            }
        }
    }

    /// Every running process that descends from `ancestor`.
    pub fn descendants(&self, ancestor: u32) -> Vec<u32> {
        let mut found = vec![ancestor];
        let mut at = 0;
        while let Some(parent) = found.get(at) {
            found.extend(self.children.get(parent).into_iter().flatten());
            at += 1;
        }
        found.split_off(1)
    }

    /// Bytes of memory that `ancestor` and its descendants hold. Pages that a forked child shares with its parent count
    /// for both.
    fn memory(&self, ancestor: u32) -> u64 {
        let family = [ancestor].into_iter().chain(self.descendants(ancestor));
        let memory = |pid: u32| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            memory_in(&status)
        };
        family.map(memory).sum()
    }
}

/// Waits until `ancestor` and its descendants hold more than `limit` bytes, and returns how many. Without a limit it
/// never returns.
pub(super) async fn memory_above(ancestor: Option<u32>, limit: Option<u64>) -> u64 {
    let (Some(ancestor), Some(limit)) = (ancestor, limit) else {
        return std::future::pending().await;
    };
    loop {
        tokio::time::sleep(PAUSE).await;
        let memory = Table::recent().memory(ancestor);
        if memory > limit {
            return memory;
        }
    }
}

/// The parent in a line of `/proc/PID/stat`, `PID (NAME) STATE PARENT …`; `None` of a process that has ended.
fn parent_in(stat: &str) -> Option<u32> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace();
    let state = fields.next()?;
    (!matches!(state, "Z" | "X")).then(|| fields.next()?.parse().ok())?
}

/// Bytes of a process's own memory in its `/proc/PID/status`. Mapped files are left out: the system can drop them.
fn memory_in(status: &str) -> u64 {
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kibibytes = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
        kibibytes.unwrap_or(0).saturating_mul(1024)
    };
    field("RssAnon:").saturating_add(field("RssShmem:"))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn parents_are_read_whatever_the_name() {
        assert_eq!(parent_in("7 (sh) S 3 7 7 0"), Some(3));
        assert_eq!(parent_in("7 (a) R 9) S (b) S 12 7"), Some(12));
        assert_eq!(parent_in("7 (sh) Z 3 7"), None);
        assert_eq!(parent_in(""), None);
    }

    #[test]
    fn memory_is_what_a_process_cannot_give_back() {
        let status = "Name:\tsh\nVmRSS:\t  900 kB\nRssAnon:\t     100 kB\nRssFile:\t   780 kB\nRssShmem:\t  20 kB\n";
        assert_eq!(memory_in(status), 120 * 1024);
        assert_eq!(memory_in("Name:\tkthreadd\n"), 0);
        assert_eq!(memory_in("RssAnon:\t18446744073709551615 kB\n"), u64::MAX);
    }

    #[test]
    fn children_are_descendants_until_they_end() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let me = std::process::id();
        assert!(Table::read().descendants(me).contains(&child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!Table::read().descendants(me).contains(&child.id()));
    }
}
