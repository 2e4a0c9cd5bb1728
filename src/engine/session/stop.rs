//! Detection of stop strings across tokens; they are never shown.

use std::sync::Arc;

use super::backend::ChatModel;
use super::visible::VisibleText;
use crate::inference::StopCheck;

/// Searches for stop strings in text that arrives in pieces.
#[derive(Clone, Debug)]
pub struct StopScanner {
    stops: Vec<String>,
    held: String,
    /// Stop string that was found.
    found: Option<String>,
}

impl StopScanner {
    pub fn new(stops: &[String]) -> Self {
        Self {
            stops: stops.to_vec(),
            held: String::new(),
            found: None,
        }
    }

    /// Adds text; returns what certainly precedes any stop string.
    pub fn push(&mut self, text: &str) -> String {
        if self.found.is_some() {
            return String::new();
        }
        self.held.push_str(text);
        // The stop string that is complete first wins, so that the result does not depend on how the text is split.
        let matches = self
            .stops
            .iter()
            .filter_map(|stop| Some((self.held.find(stop.as_str())?, stop)));
        if let Some((at, stop)) = matches.min_by_key(|(at, stop)| (at + stop.len(), *at)) {
            self.found = Some(stop.clone());
            self.held.truncate(at);
            return std::mem::take(&mut self.held);
        }
        let certain = self.held.len() - self.stops.iter().map(|stop| begun(&self.held, stop)).max().unwrap_or(0);
        self.held.drain(..certain).collect()
    }

    /// Returns the stop string that was found.
    pub fn found(&self) -> Option<&str> {
        self.found.as_deref()
    }

    /// Ends the answer; returns the text held back.
    pub fn finish(self) -> String {
        self.held
    }
}

/// Returns how many bytes at the end of `text` may be the beginning of `stop`.
fn begun(text: &str, stop: &str) -> usize {
    let lengths = (1..stop.len()).rev().filter(|len| stop.is_char_boundary(*len));
    lengths
        .into_iter()
        .find(|len| text.ends_with(&stop[..*len]))
        .unwrap_or(0)
}

/// Stop check that ends sampling at a stop string.
struct StopAtString {
    text: VisibleText,
    scanner: StopScanner,
}

/// Creates the check for these strings; `None` if there are none.
pub fn stop_check(model: &Arc<dyn ChatModel>, stops: &[String]) -> Option<Box<dyn StopCheck>> {
    if stops.is_empty() {
        return None;
    }
    Some(Box::new(StopAtString {
        text: VisibleText::new(model.clone()),
        scanner: StopScanner::new(stops),
    }))
}

impl StopCheck for StopAtString {
    fn push(&mut self, token_id: u32) -> bool {
        let text = self.text.push(token_id);
        self.scanner.push(&text);
        self.scanner.found().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn scan(stops: &[&str], parts: &[&str]) -> (String, bool) {
        let stops: Vec<String> = stops.iter().map(|stop| stop.to_string()).collect();
        let mut scanner = StopScanner::new(&stops);
        let mut text: String = parts.iter().map(|part| scanner.push(part)).collect();
        let found = scanner.found().is_some();
        if !found {
            text += &scanner.finish();
        }
        (text, found)
    }

    #[test]
    fn the_first_stop_string_ends_the_text() {
        assert_eq!(scan(&["END"], &["a E", "N", "D b"]), ("a ".into(), true));
        assert_eq!(scan(&["END"], &["a E", "N", "G"]), ("a ENG".into(), false));
        assert_eq!(scan(&["\n\n", "b"], &["a\n", "\nb"]), ("a".into(), true));
        assert_eq!(scan(&["日本"], &["日", "日", "本"]), ("日".into(), true));
        assert_eq!(scan(&[], &["a", "b"]), ("ab".into(), false));
        assert_eq!(scan(&["x"], &["a", "x", "b"]), ("a".into(), true));
    }

    proptest! {
        #[test]
        fn the_split_does_not_matter(text in "[ab]{0,12}", a in "[ab]{1,3}", b in "[ab]{1,3}", cut in 0_usize..13) {
            let cut = cut.min(text.len());
            prop_assert_eq!(scan(&[&a, &b], &[&text]), scan(&[&a, &b], &[&text[..cut], &text[cut..]]));
        }
    }
}
