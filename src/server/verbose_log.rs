//! Log lines that clients push to the dashboard: few and short-lived.

use std::collections::VecDeque;

use crate::protocol::swarm::VerboseLog;

/// Maximum number of lines.
const MAX_LINES: usize = 50;
/// Lifetime of a line in seconds.
const SECONDS: f64 = 30.0;
/// Maximum bytes of a message.
const MESSAGE_BYTES: usize = 16 * 1024;

/// Maximum bytes of a tag.
const TAG_BYTES: usize = 256;

fn cut(text: &mut String, max: usize) {
    let mut kept = text.len().min(max);
    while !text.is_char_boundary(kept) {
        kept -= 1;
    }
    text.truncate(kept);
    text.shrink_to_fit();
}

/// The log lines of the last 30 s, at most 50.
#[derive(Debug, Default)]
pub struct VerboseLogs {
    entries: VecDeque<VerboseLog>,
}

impl VerboseLogs {
    /// Adds a line, truncating a long tag or message.
    pub fn push(&mut self, mut tag: String, mut message: String, now: f64) {
        cut(&mut tag, TAG_BYTES);
        cut(&mut message, MESSAGE_BYTES);
        self.entries.push_back(VerboseLog {
            timestamp: now,
            tag,
            message,
        });
        if self.entries.len() > MAX_LINES {
            self.entries.pop_front();
        }
    }

    /// Returns the current lines, oldest first.
    pub fn recent(&mut self, now: f64) -> Vec<VerboseLog> {
        self.entries.retain(|entry| now - entry.timestamp <= SECONDS);
        self.entries.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_lines_and_those_over_fifty_go() {
        let mut logs = VerboseLogs::default();
        for i in 0..60 {
            logs.push("t".into(), i.to_string(), f64::from(i));
        }
        let recent = logs.recent(60.0);
        assert_eq!(recent.len(), 30);
        assert_eq!(recent[0].message, "30");
        logs.push("é".repeat(TAG_BYTES), "é".repeat(MESSAGE_BYTES), 61.0);
        let last = logs.recent(61.0).pop().unwrap();
        assert_eq!((last.tag.len(), last.message.len()), (TAG_BYTES, MESSAGE_BYTES));
        assert!(logs.recent(100.0).is_empty());
    }
}
