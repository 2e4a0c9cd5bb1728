//! The whole answer is a JSON object with `name` and `arguments`, or a list of such. Anything else is text.

use super::Pieces;
use super::json_call::{could_be_call, parse_list, parse_one};

/// The state between two pieces of text.
#[derive(Default)]
pub struct PlainJson {
    /// The answer so far, as long as it may be calls.
    held: String,
    is_text: bool,
}

impl PlainJson {
    pub fn push(&mut self, text: &str, out: &mut Pieces) {
        if self.is_text {
            return out.content(text);
        }
        self.held.push_str(text);
        let begun = self.held.trim_start();
        let first = begun.strip_prefix('[').map_or(begun, str::trim_start);
        if !(first.is_empty() || could_be_call(first)) {
            self.is_text = true;
            out.content(&std::mem::take(&mut self.held));
        }
    }

    pub fn finish(self, out: &mut Pieces) {
        match parse_one(&self.held)
            .map(|call| vec![call])
            .or_else(|| parse_list(&self.held))
        {
            Some(calls) => calls.into_iter().for_each(|call| out.call(call)),
            None => out.content(&self.held),
        }
    }
}
