//! What happened to an episode's timelines, for the metrics.

use std::collections::BTreeMap;

/// Why a call could not continue the tokens of an earlier one and was rendered anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SplitReason {
    /// The template leaves out the thinking of the earlier turn.
    ThinkingDropped,
    /// The template writes the earlier messages differently now that others follow.
    TemplateRewrites,
    /// The template writes the model's answer differently from how it was sampled.
    AnswerRewritten,
    /// The tool list in the prompt changed.
    ToolsChanged,
    /// The system message changed.
    SystemChanged,
    /// The agent changed or left out earlier messages.
    HistoryEdited,
    /// Nothing in common with an earlier call.
    NewConversation,
}

impl SplitReason {
    /// The name in metrics.
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

/// Counts over an episode, or over many.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Calls that started a new row, by reason.
    pub timeline_splits: BTreeMap<SplitReason, u64>,
    /// Episodes in which a prompt did not fit the context.
    pub episode_overflow: u64,
    /// Turns ended by their token limit.
    pub turn_length_cut: u64,
    /// Rows cut at their end.
    pub row_cut: u64,
    /// Rows left out because the episode had too many.
    pub rows_left_out: u64,
}

impl Counters {
    /// Adds another's counts.
    pub fn add(&mut self, other: &Self) {
        for (reason, count) in &other.timeline_splits {
            *self.timeline_splits.entry(*reason).or_default() += count;
        }
        self.episode_overflow += other.episode_overflow;
        self.turn_length_cut += other.turn_length_cut;
        self.row_cut += other.row_cut;
        self.rows_left_out += other.rows_left_out;
    }

    /// Name and count of everything that happened at all, such as `timeline_splits/thinking_dropped`.
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
