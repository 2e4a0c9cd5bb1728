//! Parser of answers that consist of calls only: JSON objects `{"name": …, "parameters": …}`, several separated by `;`,
//! or a list of them, optionally after `<|python_tag|>` (Llama 3). Anything else is text.

use super::json_call::{JsonCall, could_be_call, is_cut, parse, split_value};
use super::tag::could_become;
use super::{ParsedCall, Pieces};

const TAG: &str = "<|python_tag|>";

/// State of the parser between two pieces of text.
pub struct WholeJson {
    /// The answer so far, as long as it may consist of calls.
    held: String,
    is_text: bool,
    /// Names of the tools of the request. Without a tag, `{"name": "Ann"}` may be an answer in JSON, so it is a call
    /// only if it names a tool.
    offered: Vec<String>,
}

impl WholeJson {
    pub fn new(offered: &[String]) -> Self {
        Self {
            held: String::new(),
            is_text: false,
            offered: offered.to_vec(),
        }
    }

    pub fn push(&mut self, text: &str, out: &mut Pieces) {
        if self.is_text {
            return out.content(text);
        }
        self.held.push_str(text);
        let begun = self.held.trim_start();
        let json = begun.strip_prefix(TAG).unwrap_or(begun);
        if !(could_become(begun, TAG) || could_be_call(json)) {
            self.is_text = true;
            out.content(&std::mem::take(&mut self.held));
        }
    }

    /// Emits the answer; returns whether it was truncated within a call.
    pub fn finish(self, out: &mut Pieces) -> bool {
        match self.calls() {
            Some(calls) => calls.into_iter().for_each(|call| out.call(call)),
            None => out.content(&self.held),
        }
        let begun = self.held.trim_start();
        is_cut(last(begun.strip_prefix(TAG).unwrap_or(begun)))
    }

    fn calls(&self) -> Option<Vec<ParsedCall>> {
        let begun = self.held.trim();
        let (tagged, json) = match begun.strip_prefix(TAG) {
            Some(json) => (true, json),
            None => (false, begun),
        };
        let calls = separated(json)?;
        let meant = |json: &JsonCall| tagged || json.has_arguments || self.offered.contains(&json.call.name);
        calls
            .iter()
            .all(meant)
            .then(|| calls.into_iter().map(|json| json.call).collect())
    }
}

/// Returns the last of the values that are separated by `;`.
fn last(text: &str) -> &str {
    let mut rest = text;
    while let Ok((_, behind)) = split_value(rest)
        && let Some(next) = behind.trim_start().strip_prefix(';')
    {
        rest = next;
    }
    rest
}

/// Parses calls that are separated by `;`.
fn separated(text: &str) -> Option<Vec<JsonCall>> {
    let mut calls = Vec::new();
    let mut rest = text;
    loop {
        let (written, behind) = split_value(rest).ok()?;
        calls.extend(parse(written)?);
        rest = behind.trim_start();
        if rest.is_empty() {
            return Some(calls);
        }
        rest = rest.strip_prefix(';')?;
        if rest.trim().is_empty() {
            return Some(calls);
        }
    }
}
