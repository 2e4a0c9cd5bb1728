//! OpenAI's Responses API by way of a chat call.

mod answer;
mod client_tools;
mod kept;
mod request;
#[cfg(test)]
mod tests;
mod tools;

pub use answer::ResponseWriter;
pub use kept::{Kept, KeptResponses};
pub use request::{ChatInput, chat_input};
