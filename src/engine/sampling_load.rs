//! Reports the load of sampling to the control plane. It only reads what the model thread and the sessions count
//! anyway, so it does not slow sampling down.

use std::sync::Arc;
use std::time::Duration;

use indexmap::IndexMap;

use super::events::EventHub;
use super::model_thread::{SamplingLoad, SamplingTotals};
use super::session::Recent;
use crate::model::memory;
use crate::protocol::engine::{EndpointLoad, EngineLoad};

/// Interval between reports.
const INTERVAL: Duration = Duration::from_millis(500);
/// Change of memory worth a report, in bytes.
const MEMORY_STEP: u64 = 1024 * 1024;

/// Reports what `read` returns whenever it has changed, until it returns `None` because the engine has ended.
pub async fn report(read: impl Fn() -> Option<EngineLoad>, hub: Arc<EventHub>) {
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut reported = EngineLoad::default();
    loop {
        ticks.tick().await;
        let Some(load) = read() else { return };
        if load != reported {
            reported = without_news(&load);
            hub.load(load);
        }
    }
}

/// Combines what the parts of the engine counted.
pub fn engine_load(
    load: SamplingLoad,
    sampled: SamplingTotals,
    recent: Recent,
    new_tokens: IndexMap<String, u64>,
    endpoints: Vec<EndpointLoad>,
) -> EngineLoad {
    EngineLoad {
        running_requests: load.running as u64,
        waiting_requests: load.waiting as u64,
        cache_usage: load.cache_usage,
        sampled_tokens: sampled.tokens,
        prompt_tokens: load.totals.prompt_tokens,
        cached_tokens: load.totals.cached_tokens,
        computed_tokens: load.totals.computed_tokens,
        preemptions: load.totals.preemptions,
        memory_bytes: memory::resident().unwrap_or(0) as u64 / MEMORY_STEP * MEMORY_STEP,
        time_to_first_token: recent.time_to_first_token,
        time_per_token: recent.time_per_token,
        new_tokens,
        endpoints,
    }
}

/// Returns the load without what happened since the last report, to compare with the next one.
fn without_news(load: &EngineLoad) -> EngineLoad {
    EngineLoad {
        time_to_first_token: vec![],
        time_per_token: vec![],
        new_tokens: IndexMap::new(),
        ..load.clone()
    }
}
