//! What the engine tells the control plane: [`EngineEvent`]s, published from any thread, streamed by `GET /events`.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::protocol::engine::{DropReason, EngineEvent, EnginePhase, LogLevel, PoolSnapshot};

/// Events kept for the first subscriber; a control plane that never comes must not cost memory.
const BACKLOG: usize = 1000;

/// Where events are published and subscribed to. A subscriber misses nothing and slows nobody.
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
    /// All events from now on, after the present status; the first subscriber also gets what was published
    /// before it came.
    pub fn subscribe(&self) -> UnboundedReceiver<EngineEvent> {
        let (sender, receiver) = unbounded_channel();
        let mut state = self.lock();
        let mut first = vec![state.status()];
        first.append(&mut state.backlog);
        first.extend(state.fatal.clone().map(|message| EngineEvent::Fatal { message }));
        for event in first {
            let _ = sender.send(event); // the receiver is in our hands
        }
        state.subscribers.push(sender);
        receiver
    }

    /// Ends every stream, after what was published.
    pub fn close(&self) {
        self.lock().subscribers.clear();
    }

    /// The engine is in this phase now.
    pub fn phase(&self, phase: EnginePhase, global_step: u64, detail: Option<String>) {
        let mut state = self.lock();
        (state.phase, state.global_step, state.detail) = (phase, global_step, detail);
        let status = state.status();
        state.send(status);
    }

    /// What it is doing in this phase.
    pub fn detail(&self, detail: impl Into<String>) {
        let mut state = self.lock();
        state.detail = Some(detail.into());
        let status = state.status();
        state.send(status);
    }

    /// The pool as it is now.
    pub fn pool(&self, pool: PoolSnapshot) {
        self.lock().send(EngineEvent::Pool { pool });
    }

    /// Episodes left the batch without training.
    pub fn dropped(&self, reason: DropReason, count: u64) {
        if count > 0 {
            self.publish(EngineEvent::Dropped { reason, count });
        }
    }

    /// Something the user should know, in the engine's log and in the server's.
    pub fn warn(&self, message: impl Into<String>) {
        let message = message.into();
        tracing::warn!("{message}");
        self.log(LogLevel::Warn, message);
    }

    /// Something worth a line, in the engine's log and in the server's.
    pub fn info(&self, message: impl Into<String>) {
        let message = message.into();
        tracing::info!("{message}");
        self.log(LogLevel::Info, message);
    }

    /// The engine is about to end because of this. The first reason is the one that counts.
    pub fn fatal(&self, message: &str) {
        let mut state = self.lock();
        if state.fatal.is_none() {
            state.fatal = Some(message.to_owned());
            state.send(EngineEvent::Fatal {
                message: message.to_owned(),
            });
        }
    }

    /// Any event that is not part of the present state.
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
        // Every change of the state is a plain assignment, so it is whole even after a panic elsewhere.
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
