//! The swarm protocol and the model API against fake engines, over real sockets.

mod access;
mod claims;
mod crashes;
mod episode_ends;
mod introspection;
mod lifecycle;
mod model_api;
mod slow_pollers;
mod stop_rules;
