//! Events for the control plane: published from any thread, streamed by `GET /events`.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::protocol::engine::{DropReason, EngineEvent, EngineLoad, EnginePhase, LogLevel, PoolSnapshot};

/// Maximum number of events kept for the first subscriber, if no control plane ever connects.
const BACKLOG: usize = 1000;

/// Publishes events to subscribers. No subscriber misses an event or slows the publishers down.
#[derive(Debug)]
pub struct EventHub {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    phase: EnginePhase,
    detail: Option<String>,
    global_step: u64,
    fatal: Option<String>,
    backlog: Vec<EngineEvent>,
    subscribers: Vec<UnboundedSender<EngineEvent>>,
}

impl Default for EventHub {
    fn default() -> Self {
        Self {
            state: Mutex::new(State {
                phase: EnginePhase::Booting,
                detail: None,
                global_step: 0,
                fatal: None,
                backlog: Vec::new(),
                subscribers: Vec::new(),
            }),
        }
    }
}

impl EventHub {
    /// Subscribes to all future events, preceded by the current status; the first subscriber also gets the events
    /// published before.
    pub fn subscribe(&self) -> UnboundedReceiver<EngineEvent> {
        let (sender, receiver) = unbounded_channel();
        let mut state = self.lock();
        let mut first = vec![state.status()];
        first.append(&mut state.backlog);
        first.extend(state.fatal.clone().map(|message| EngineEvent::Fatal { message }));
        for event in first {
            let _ = sender.send(event); // the receiver still exists
        }
        state.subscribers.push(sender);
        receiver
    }

    /// Ends all streams after the published events.
    pub fn close(&self) {
        self.lock().subscribers.clear();
    }

    /// Reports the engine's phase.
    pub fn phase(&self, phase: EnginePhase, global_step: u64, detail: Option<String>) {
        let mut state = self.lock();
        (state.phase, state.global_step, state.detail) = (phase, global_step, detail);
        let status = state.status();
        state.send(status);
    }

    /// Reports the current activity within the phase.
    pub fn detail(&self, detail: impl Into<String>) {
        let mut state = self.lock();
        state.detail = Some(detail.into());
        let status = state.status();
        state.send(status);
    }

    /// Reports the pool.
    pub fn pool(&self, pool: PoolSnapshot) {
        self.lock().send(EngineEvent::Pool { pool });
    }

    /// Reports the load of sampling, which is of no interest to later subscribers.
    pub fn load(&self, load: EngineLoad) {
        self.lock().send(EngineEvent::Load { load });
    }

    /// Reports episodes that were dropped.
    pub fn dropped(&self, reason: DropReason, count: u64) {
        if count > 0 {
            self.publish(EngineEvent::Dropped { reason, count });
        }
    }

    /// Reports a warning, in the logs of engine and server.
    pub fn warn(&self, message: impl Into<String>) {
        let message = message.into();
        tracing::warn!("{message}");
        self.log(LogLevel::Warn, message);
    }

    /// Reports information, in the logs of engine and server.
    pub fn info(&self, message: impl Into<String>) {
        let message = message.into();
        tracing::info!("{message}");
        self.log(LogLevel::Info, message);
    }

    /// Reports the reason why the engine is about to end. Only the first reason counts.
    pub fn fatal(&self, message: &str) {
        let mut state = self.lock();
        if state.fatal.is_none() {
            state.fatal = Some(message.to_owned());
            state.send(EngineEvent::Fatal {
                message: message.to_owned(),
            });
        }
    }

    /// Publishes an event that is not part of the current state.
    pub fn publish(&self, event: EngineEvent) {
        let mut state = self.lock();
        if state.subscribers.is_empty() && state.backlog.len() < BACKLOG {
            state.backlog.push(event);
        } else {
            state.send(event);
        }
    }

    fn log(&self, level: LogLevel, message: String) {
        self.publish(EngineEvent::Log { level, message });
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Poisoning is ignored: every change of the state is a plain assignment.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn status(&self) -> EngineEvent {
        EngineEvent::Status {
            phase: self.phase,
            detail: self.detail.clone(),
            global_step: self.global_step,
        }
    }

    fn send(&mut self, event: EngineEvent) {
        self.subscribers.retain(|s| s.send(event.clone()).is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(receiver: &mut UnboundedReceiver<EngineEvent>) -> Vec<String> {
        let mut lines = Vec::new();
        while let Ok(event) = receiver.try_recv() {
            let value = serde_json::to_value(event).unwrap();
            let (kind, fields) = value.as_object().unwrap().iter().next().unwrap();
            let text = ["detail", "message", "reason"].iter().find_map(|k| fields[k].as_str());
            lines.push(format!("{kind} {}", text.unwrap_or("")));
        }
        lines
    }

    #[test]
    fn a_stream_begins_with_the_present_and_what_was_published_before_anyone_came() {
        let hub = EventHub::default();
        hub.phase(EnginePhase::Booting, 0, Some("loading".into()));
        hub.warn("slow disk");
        hub.dropped(DropReason::OverCache, 0);
        let mut first = hub.subscribe();
        hub.detail("loaded");
        hub.dropped(DropReason::Dummy, 3);
        assert_eq!(
            drain(&mut first),
            ["status loading", "log slow disk", "status loaded", "dropped dummy"]
        );
        let mut second = hub.subscribe();
        assert_eq!(drain(&mut second), ["status loaded"]);
    }

    #[test]
    fn whoever_comes_late_still_hears_why_the_engine_ends() {
        let hub = EventHub::default();
        hub.fatal("no such model");
        hub.fatal("the model thread is gone");
        let mut late = hub.subscribe();
        assert_eq!(drain(&mut late).last().unwrap(), "fatal no such model");
        hub.close();
        assert!(late.blocking_recv().is_none());
    }
}
