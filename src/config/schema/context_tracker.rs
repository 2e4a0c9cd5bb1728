//! `ajet.context_tracker`: how LLM calls become rows.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `ajet.context_tracker`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(default, deny_unknown_fields)]
pub struct ContextTracker {
    /// When two LLM calls become one training row.
    pub timeline_merging_policy: TimelineMergingPolicy,
}

/// `ajet.context_tracker.timeline_merging_policy`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TimelineMergingPolicy {
    /// How to compare calls to detect that one continues another. `text_and_image` means `text`.
    pub timeline_compare_level: CompareLevel,
    /// Ignore a changed tool list.
    pub ignore_tools: bool,
}

impl Default for TimelineMergingPolicy {
    fn default() -> Self {
        Self {
            timeline_compare_level: CompareLevel::default(),
            ignore_tools: true,
        }
    }
}

/// What is compared to find that a call continues another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum CompareLevel {
    /// Token ids.
    #[serde(rename = "token")]
    Token,
    /// Text; the sampled ids are taken.
    #[default]
    #[schemars(extend("x-aliases" = ["text_and_image"]))]
    #[serde(rename = "text")]
    Text,
}
