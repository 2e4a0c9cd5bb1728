//! Safe output to a terminal. Text of models, agents, clients and servers must not control the terminal, or hide or
//! reorder what is shown.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};

/// Exit code after the reader of a pipe went away: what a shell reports for a process ended by SIGPIPE.
pub const READER_GONE: u8 = 141;

static OUTPUT_LOST: AtomicBool = AtomicBool::new(false);

/// Maximum number of characters shown of a line.
const MAX_LINE_CHARS: usize = 10_000;

/// Returns whether a character controls a terminal or the text around it instead of being visible: control characters
/// except line feed and tab, directional marks, and zero-width characters. Joiners, needed by emoji and some scripts,
/// are allowed.
fn is_hidden(character: char) -> bool {
    match character {
        '\n' | '\t' => false,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{feff}' => true,
        '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}' => true,
        other => other.is_control(),
    }
}

/// Escapes hidden characters, as in `\u{1b}`. Line feeds and tabs stay; lines of more than 10,000 characters are
/// truncated with a note.
pub fn printable(text: &str) -> Cow<'_, str> {
    let is_long = |line: &str| line.len() > MAX_LINE_CHARS && line.chars().count() > MAX_LINE_CHARS;
    if !text.contains(is_hidden) && !text.split('\n').any(is_long) {
        return Cow::Borrowed(text);
    }
    let lines = text.split('\n').map(|line| {
        let line = line.strip_suffix('\r').unwrap_or(line);
        let mut shown = visible(line.chars().take(MAX_LINE_CHARS));
        if is_long(line) {
            // Writing to a string cannot fail.
            let _ = write!(shown, "… ({} more characters)", line.chars().count() - MAX_LINE_CHARS);
        }
        shown
    });
    Cow::Owned(lines.collect::<Vec<_>>().join("\n"))
}

/// Returns whether [`one_line`] would leave a text as it is.
pub fn is_one_line(text: &str) -> bool {
    let changes = |character| is_hidden(character) || matches!(character, '\n' | '\t');
    text.len() <= MAX_LINE_CHARS && !text.contains(changes)
}

/// As [`printable`], with spaces instead of line feeds and tabs.
pub fn one_line(text: &str) -> String {
    let line = text.replace("\r\n", " ").replace(['\n', '\r', '\t'], " ");
    printable(&line).into_owned()
}

fn visible(characters: impl Iterator<Item = char>) -> String {
    characters.fold(String::new(), |mut shown, character| {
        match is_hidden(character) {
            true => shown.extend(character.escape_unicode()),
            false => shown.push(character),
        }
        shown
    })
}

/// Escapes hidden characters in JSON text, where they only occur in strings, as JSON does, so that its meaning is
/// unchanged.
pub fn json(text: &str) -> Cow<'_, str> {
    if !text.contains(is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        match is_hidden(character) {
            true => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    // Writing to a string cannot fail.
                    let _ = write!(shown, "\\u{unit:04x}");
                }
            }
            false => shown.push(character),
        }
    }
    Cow::Owned(shown)
}

/// Writes text to standard output. If its reader went away, as `head` does, the process ends quietly, since output is
/// all such a command does.
pub fn print(text: &str) {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(READER_GONE.into()),
        // A full disk behind a redirection: the job continues, and its exit code reports the incomplete output.
        Err(error) => {
            OUTPUT_LOST.store(true, Ordering::Relaxed);
            note(&format!("error: cannot write to standard output: {error}"));
        }
        Ok(()) => {}
    }
}

/// Returns whether [`fn@print`] failed to write some of its output.
pub fn output_is_incomplete() -> bool {
    OUTPUT_LOST.load(Ordering::Relaxed)
}

/// Writes a line for people to standard error, ignoring errors.
pub fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", printable(text));
}

/// Prints a line for people to standard output; see [`printable`] and [`fn@print`].
#[macro_export]
macro_rules! say {
    ($($part:tt)*) => {
        $crate::terminal::print(&format!("{}\n", $crate::terminal::printable(&format!($($part)*))))
    };
}

/// Prints a line for people to standard error; see [`printable`] and [`note`].
#[macro_export]
macro_rules! note {
    ($($part:tt)*) => { $crate::terminal::note(&format!($($part)*)) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seen with OSC 52 (the clipboard), titles, cleared screens and reordered text from models, agents and engines.
    #[test]
    fn foreign_text_does_not_steer_the_terminal() {
        for (text, shown) in [
            ("plain ünïcödé 👩‍👩‍👧 نص", "plain ünïcödé 👩‍👩‍👧 نص"),
            ("two\nlines\tand a tab", "two\nlines\tand a tab"),
            ("dos\r\nlines", "dos\nlines"),
            ("\u{1b}]52;c;ZXZpbA==\u{7}", "\\u{1b}]52;c;ZXZpbA==\\u{7}"),
            ("\u{1b}]0;title\u{1b}\\", "\\u{1b}]0;title\\u{1b}\\"),
            ("\u{1b}[2J\u{1b}[H", "\\u{1b}[2J\\u{1b}[H"),
            ("\u{9b}2J\u{9d}52;c;x\u{9c}", "\\u{9b}2J\\u{9d}52;c;x\\u{9c}"),
            ("progress\rhidden", "progress\\u{d}hidden"),
            ("\u{8}\u{7f}\0", "\\u{8}\\u{7f}\\u{0}"),
            ("a\u{202e}b\u{2066}c\u{2069}", "a\\u{202e}b\\u{2066}c\\u{2069}"),
            (
                "zero\u{200b}width\u{feff}\u{2060}",
                "zero\\u{200b}width\\u{feff}\\u{2060}",
            ),
            ("tag\u{e0041}", "tag\\u{e0041}"),
        ] {
            assert_eq!(printable(text), shown, "{text:?}");
            assert!(!one_line(text).contains(['\n', '\t', '\u{1b}']), "{text:?}");
            assert_eq!(is_one_line(text), one_line(text) == text, "{text:?}");
        }
        assert_eq!(one_line("a\r\nb\tc\rd"), "a b c d");
    }

    #[test]
    fn a_very_long_line_is_cut_and_says_so() {
        let text = format!("{}\nend", "é".repeat(10_003));
        let shown = printable(&text);
        assert!(shown.ends_with("é… (3 more characters)\nend"), "{}", shown.len());
        assert_eq!(printable(&"é".repeat(10_000)), "é".repeat(10_000));
    }

    #[test]
    fn json_means_the_same() {
        let text = serde_json::to_string(&["\u{9b}2J\u{7f}", "\u{202e}", "\u{e0041}", "é\n"]).unwrap();
        let shown = json(&text);
        assert!(!shown.contains(is_hidden), "{shown}");
        let (read, meant): (Vec<String>, Vec<String>) = (
            serde_json::from_str(&shown).unwrap(),
            serde_json::from_str(&text).unwrap(),
        );
        assert_eq!(read, meant);
    }
}
