//! Detects answers in which the model has lost control (`ajet.rollout.compute_madness_checklist`). Pure.

use std::borrow::Cow;
use std::collections::VecDeque;

use crate::config::schema::MadnessCheck;
use crate::inference::parsers::{AnswerParser, Piece, ReasoningFormat, ToolFormat};

/// Marker of chat templates that only appears in an answer if the model continues the conversation itself.
const LEAKED_MARKER: &str = "<|im_start|>";
/// This many words in a row that all occur among the few before are a loop.
const REPEATED_WORDS: usize = 10;
/// Number of different words remembered.
const REMEMBERED_WORDS: usize = 5;
/// As [`REPEATED_WORDS`], for characters: rulers and indentation are not loops.
const REPEATED_CHARS: usize = 200;
/// As [`REMEMBERED_WORDS`], for characters.
const REMEMBERED_CHARS: usize = 4;

/// Start of thinking.
const OPEN: &str = "<think>";
/// End of thinking.
const CLOSE: &str = "</think>";

/// A sampled answer.
#[derive(Clone, Copy, Debug)]
pub struct Sampled<'a> {
    /// Text that the answer continues; only its end matters.
    pub prompt: &'a str,
    /// Answer with special tokens, without the end token.
    pub text: &'a str,
    /// Format of the model's thinking.
    pub reasoning: ReasoningFormat,
    /// Format of the model's tool calls.
    pub tools: ToolFormat,
}

/// Returns the checks that flag the answer.
pub fn flagged<'a>(checks: &'a [MadnessCheck], answer: &'a Sampled) -> impl Iterator<Item = MadnessCheck> + 'a {
    checks.iter().copied().filter(|check| answer.flags(*check))
}

impl Sampled<'_> {
    fn flags(&self, check: MadnessCheck) -> bool {
        match check {
            MadnessCheck::Nonsense => is_nonsense(self.text),
            MadnessCheck::NonAscii => !self.text.is_ascii(),
            MadnessCheck::UnpairedThink => !thinking_tags_match(&self.thinking_included()),
            MadnessCheck::FormatType1 => !is_thinking_and_python(&self.thinking_included()),
            MadnessCheck::WrongToolcall => self.has_broken_call(),
        }
    }

    /// Returns the answer with the thinking tag that the template wrote at the end of the prompt.
    fn thinking_included(&self) -> Cow<'_, str> {
        match self.prompt.trim_end().ends_with(OPEN) {
            true => format!("{OPEN}{}", self.text).into(),
            false => self.text.into(),
        }
    }

    /// Returns whether the marker of a tool call is not followed by a valid call. A plain JSON answer has no marker.
    fn has_broken_call(&self) -> bool {
        let marker = match self.tools {
            ToolFormat::Hermes => "<tool_call>",
            ToolFormat::Llama3Json => "<|python_tag|>",
            ToolFormat::Json | ToolFormat::None => return false,
        };
        let mut parser = AnswerParser::new(self.reasoning, self.tools, self.prompt, &[]);
        let mut pieces = parser.push(self.text);
        pieces.extend(parser.finish().pieces);
        let marked = |piece: &Piece| matches!(piece, Piece::Content(text) if text.contains(marker));
        pieces.iter().any(marked)
    }
}

/// Returns whether the answer starts another turn, or repeats the same few words or characters over and over.
fn is_nonsense(text: &str) -> bool {
    text.contains(LEAKED_MARKER)
        || has_loop(text.split_whitespace(), REMEMBERED_WORDS, REPEATED_WORDS)
        || has_loop(text.chars(), REMEMBERED_CHARS, REPEATED_CHARS)
}

/// Returns whether `limit` items in a row are all among the last `remembered` different ones before them.
fn has_loop<T: PartialEq>(items: impl Iterator<Item = T>, remembered: usize, timeout: usize) -> bool {
    let mut recent = VecDeque::with_capacity(remembered + 1);
    let mut known_in_a_row = 0;
    for item in items {
        if recent.contains(&item) {
            known_in_a_row += 1;
            if known_in_a_row == timeout {
                return true;
            }
            continue;
        }
        known_in_a_row = 0;
        recent.push_back(item);
        if recent.len() > remembered {
            recent.pop_front();
        }
    }
    false
}

/// Returns whether every opening tag is closed before the next one, and nothing else is closed.
fn thinking_tags_match(text: &str) -> bool {
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(OPEN) {
        let Some((inside, behind)) = after.split_once(CLOSE) else {
            return false;
        };
        if before.contains(CLOSE) || inside.contains(OPEN) {
            return false;
        }
        rest = behind;
    }
    !rest.contains(CLOSE)
}

/// Returns whether the answer consists of thinking and then one block of Python.
fn is_thinking_and_python(text: &str) -> bool {
    const FENCE: &str = "```";
    let code = text.trim().strip_prefix(OPEN).and_then(|rest| rest.split_once(CLOSE));
    let Some((thinking, code)) = code else { return false };
    let block = code
        .trim()
        .strip_prefix("```python\n")
        .and_then(|code| code.strip_suffix(FENCE));
    !thinking.contains(OPEN)
        && block.is_some_and(|code| !code.contains(FENCE) && !code.contains(OPEN) && !code.contains(CLOSE))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(check: MadnessCheck, prompt: &str, text: &str) -> bool {
        let answer = Sampled {
            prompt,
            text,
            reasoning: ReasoningFormat::Think,
            tools: ToolFormat::Hermes,
        };
        flagged(&[check], &answer).next().is_some()
    }

    fn table(name: MadnessCheck, cases: &[(&str, bool)]) {
        for (text, mad) in cases {
            assert_eq!(check(name, "user: hi", text), *mad, "{name:?} of {text:?}");
        }
    }

    #[test]
    fn nonsense_is_another_turn_or_a_loop() {
        let ruler = "-".repeat(120);
        let stuck = "ha".repeat(150);
        table(
            MadnessCheck::Nonsense,
            &[
                ("", false),
                ("The answer is 19.", false),
                ("19<|im_start|>user\nand 20?", true),
                ("no no no no no no no no no no", false),
                ("no no no no no no no no no no no", true),
                ("one two one two one two one two one two one two", true),
                ("a b c d e a b c d e a b c d e", true),
                ("a b c d e f a b c d e f a b c d e f", false),
                (&ruler, false),
                (&stuck, true),
            ],
        );
    }

    #[test]
    fn non_ascii_is_any_character_beyond_it() {
        table(
            MadnessCheck::NonAscii,
            &[
                ("plain\ttext\n~", false),
                ("caf\u{e9}", true),
                ("\u{4f60}\u{597d}", true),
                ("", false),
            ],
        );
    }

    #[test]
    fn thinking_comes_in_pairs() {
        table(
            MadnessCheck::UnpairedThink,
            &[
                ("no thinking", false),
                ("<think>a</think>b", false),
                ("<think>a</think>b<think>c</think>", false),
                ("<think>a", true),
                ("a</think>b", true),
                ("</think>a<think>", true),
                ("<think>a<think>b</think></think>", true),
            ],
        );
        assert!(!check(
            MadnessCheck::UnpairedThink,
            "assistant\n<think>\n",
            "a</think>b"
        ));
        assert!(check(MadnessCheck::UnpairedThink, "assistant\n<think>\n", "a"));
    }

    #[test]
    fn format_type_1_is_thinking_and_one_block_of_python() {
        table(
            MadnessCheck::FormatType1,
            &[
                ("<think>a</think>\n\n```python\nprint(1)\n```", false),
                ("  <think>\na\n</think>```python\nx = 1\n```\n", false),
                ("```python\nprint(1)\n```", true),
                ("<think>a</think>\nsee:\n```python\nprint(1)\n```", true),
                ("<think>a</think>\n```python\nprint(1)\n```\ndone", true),
                ("<think>a</think>\n```python\na\n```\n```python\nb\n```", true),
                ("<think>a</think>\n```rust\na\n```", true),
                ("<think>a\n```python\nprint(1)\n```", true),
                ("<think>a<think></think>\n```python\na\n```", true),
                ("", true),
            ],
        );
        assert!(!check(
            MadnessCheck::FormatType1,
            "<think>\n",
            "a</think>\n```python\na\n```"
        ));
    }

    #[test]
    fn a_tool_calls_marker_needs_a_call() {
        table(
            MadnessCheck::WrongToolcall,
            &[
                ("no call", false),
                (
                    r#"<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>"#,
                    false,
                ),
                (r#"<tool_call>{"name": "add", "arguments": {"a": 1}</tool_call>"#, true),
                ("<tool_call>add(1)</tool_call>", true),
                ("<tool_call>", true),
                (
                    r#"<tool_call>{"name": "add", "arguments": {}}</tool_call><tool_call>rest</tool_call>"#,
                    true,
                ),
            ],
        );
    }

    #[test]
    fn only_what_is_asked_for_is_checked() {
        let answer = Sampled {
            prompt: "",
            text: "caf\u{e9} <think>",
            reasoning: ReasoningFormat::None,
            tools: ToolFormat::None,
        };
        assert_eq!(flagged(&[], &answer).count(), 0);
        let found: Vec<_> = flagged(
            &[
                MadnessCheck::UnpairedThink,
                MadnessCheck::Nonsense,
                MadnessCheck::NonAscii,
            ],
            &answer,
        )
        .collect();
        assert_eq!(found, [MadnessCheck::UnpairedThink, MadnessCheck::NonAscii]);
    }
}
