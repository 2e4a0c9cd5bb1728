//! The lines that clients push for the dashboard: few and short-lived.

use std::collections::VecDeque;

use crate::protocol::swarm::VerboseLog;

/// Most lines kept.
const MOST: usize = 50;
/// Seconds a line is kept.
const SECONDS: f64 = 30.0;
/// Most bytes kept of one message.
const MESSAGE_BYTES: usize = 16 * 1024;

/// Most bytes kept of one tag.
const TAG_BYTES: usize = 256;

fn cut(text: &mut String, most: usize) {
    let mut kept = text.len().min(most);
    while !text.is_char_boundary(kept) {
        kept -= 1;
    }
    text.truncate(kept);
    text.shrink_to_fit();
}

/// The lines of the last 30 s, 50 at most.
#[derive(Debug, Default)]
pub struct VerboseLogs {
    entries: VecDeque<VerboseLog>,
}

impl VerboseLogs {
    /// Adds a line; a tag or message that is too long is cut.
    pub fn push(&mut self, mut tag: String, mut message: String, now: f64) {
        cut(&mut tag, TAG_BYTES);
        cut(&mut message, MESSAGE_BYTES);
        self.entries.push_back(VerboseLog {
            timestamp: now,
            tag,
            message,
        });
        if self.entries.len() > MOST {
            self.entries.pop_front();
        }
    }

    /// The lines that are still young, oldest first.
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
