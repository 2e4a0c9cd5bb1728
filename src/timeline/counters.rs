//! Counters of an episode's timelines, for the metrics.

use std::collections::BTreeMap;

/// Why a call could not continue the tokens of an earlier one, so that its whole prompt was rendered again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SplitReason {
    /// The template omits the thinking of the earlier turn.
    ThinkingDropped,
    /// The template renders earlier messages differently once others follow.
    TemplateRewrites,
    /// The template renders the model's answer differently from how it was sampled.
    AnswerRewritten,
    /// The tool list in the prompt changed.
    ToolsChanged,
    /// The system message changed.
    SystemChanged,
    /// The agent changed or removed earlier messages.
    HistoryEdited,
    /// The call has nothing in common with an earlier one.
    NewConversation,
}

impl SplitReason {
    /// Returns the name in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ThinkingDropped => "thinking_dropped",
            Self::TemplateRewrites => "template_rewrites",
            Self::AnswerRewritten => "answer_rewritten",
            Self::ToolsChanged => "tools_changed",
            Self::SystemChanged => "system_changed",
            Self::HistoryEdited => "history_edited",
            Self::NewConversation => "new_conversation",
        }
    }
}

/// Counters of one or more episodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Number of calls that started a new row, by reason.
    pub timeline_splits: BTreeMap<SplitReason, u64>,
    /// Number of episodes with a prompt beyond the context length.
    pub episode_overflow: u64,
    /// Number of turns that ended at a token limit.
    pub turn_length_cut: u64,
    /// Number of truncated rows.
    pub row_cut: u64,
    /// Number of rows that were dropped because the episode had too many.
    pub rows_left_out: u64,
}

impl Counters {
    /// Adds other counters.
    pub fn add(&mut self, other: &Self) {
        for (reason, count) in &other.timeline_splits {
            *self.timeline_splits.entry(*reason).or_default() += count;
        }
        self.episode_overflow += other.episode_overflow;
        self.turn_length_cut += other.turn_length_cut;
        self.row_cut += other.row_cut;
        self.rows_left_out += other.rows_left_out;
    }

    /// Returns the counters above 0 by name, such as `timeline_splits/thinking_dropped`.
    pub fn named(&self) -> Vec<(String, u64)> {
        let splits = self
            .timeline_splits
            .iter()
            .map(|(reason, count)| (format!("timeline_splits/{}", reason.as_str()), *count));
        let plain = [
            ("episode_overflow", self.episode_overflow),
            ("turn_length_cut", self.turn_length_cut),
            ("row_cut", self.row_cut),
            ("rows_left_out", self.rows_left_out),
        ];
        splits
            .chain(plain.map(|(name, count)| (name.to_owned(), count)))
            .filter(|(_, count)| *count > 0)
            .collect()
    }
}
