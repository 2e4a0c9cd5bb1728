//! Log lines that clients push to the dashboard: few and short-lived.

use std::collections::VecDeque;

use crate::protocol::status::LOG_LINES;
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

/// Maximum bytes of a line of the status feed, which is sent on every change.
const FEED_BYTES: usize = 512;

/// The log lines of the last 30 s, at most 50, and those of the status feed.
#[derive(Debug, Default)]
pub struct VerboseLogs {
    entries: VecDeque<VerboseLog>,
    /// The last lines of clients, server and engine.
    feed: VecDeque<VerboseLog>,
}

impl VerboseLogs {
    /// Adds a line, truncating a long tag or message.
    pub fn push(&mut self, mut tag: String, mut message: String, now: f64) {
        cut(&mut tag, TAG_BYTES);
        cut(&mut message, MESSAGE_BYTES);
        self.show(&tag, &message, now);
        self.entries.push_back(VerboseLog {
            timestamp: now,
            tag,
            message,
        });
        if self.entries.len() > MAX_LINES {
            self.entries.pop_front();
        }
    }

    /// Adds a line to the status feed only.
    pub fn show(&mut self, tag: &str, message: &str, now: f64) {
        let (mut tag, mut message) = (tag.to_owned(), message.to_owned());
        cut(&mut tag, TAG_BYTES);
        cut(&mut message, FEED_BYTES);
        if self.feed.len() >= LOG_LINES {
            self.feed.pop_front();
        }
        self.feed.push_back(VerboseLog {
            timestamp: now,
            tag,
            message,
        });
    }

    /// Returns the lines of the status feed, oldest first.
    pub fn feed(&self) -> Vec<VerboseLog> {
        self.feed.iter().cloned().collect()
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

    #[test]
    fn the_status_feed_keeps_its_last_lines_without_end_but_in_bounds() {
        let mut logs = VerboseLogs::default();
        for at in 0..LOG_LINES + 3 {
            logs.push("client".into(), "é".repeat(FEED_BYTES), at as f64);
        }
        logs.show("engine", "step 3", 1e6);
        let feed = logs.feed();
        assert_eq!((feed.len(), feed[0].message.len()), (LOG_LINES, FEED_BYTES));
        assert_eq!(
            (feed[LOG_LINES - 1].tag.as_str(), feed[LOG_LINES - 1].message.as_str()),
            ("engine", "step 3")
        );
        assert!(logs.recent(1e6).is_empty());
    }
}
