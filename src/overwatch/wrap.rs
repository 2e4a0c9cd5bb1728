//! Lines that fit a width.

use unicode_width::UnicodeWidthChar;

/// Width of a tab in a transcript.
const TAB: &str = "    ";

/// Splits text into lines of at most `width` columns, at spaces if there are any.
pub fn wrap(text: &str, width: u16) -> Vec<String> {
    let width = usize::from(width).max(1);
    let text = text.replace('\t', TAB);
    text.split('\n').flat_map(|line| wrap_line(line, width)).collect()
}

fn wrap_line(line: &str, width: usize) -> Vec<String> {
    let mut lines = vec![];
    let mut rest = line;
    loop {
        let Some(end) = overflow(rest, width) else {
            lines.push(rest.to_owned());
            return lines;
        };
        let space = if rest[end..].starts_with(' ') {
            Some(end)
        } else {
            rest[..end].rfind(' ')
        };
        match space.filter(|space| *space > 0) {
            Some(space) => {
                lines.push(rest[..space].to_owned());
                rest = &rest[space + 1..];
            }
            None => {
                lines.push(rest[..end].to_owned());
                rest = &rest[end..];
            }
        }
    }
}

/// Returns the index of the first character that does not fit, if any; at least one character always fits.
fn overflow(line: &str, width: usize) -> Option<usize> {
    let mut used = 0;
    line.char_indices().find_map(|(index, character)| {
        used += columns(character);
        (used > width && index > 0).then_some(index)
    })
}

/// Returns the columns of a character.
pub fn columns(character: char) -> usize {
    character.width().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_fit_and_nothing_but_spaces_is_lost() {
        for (text, width, want) in [
            ("", 5, vec![""]),
            ("one two three", 8, vec!["one two", "three"]),
            ("one two three", 7, vec!["one two", "three"]),
            ("abcdefgh", 3, vec!["abc", "def", "gh"]),
            ("a\n\nb", 3, vec!["a", "", "b"]),
            ("汉字汉字", 5, vec!["汉字", "汉字"]),
            ("汉", 1, vec!["汉"]),
            ("\tx", 8, vec!["    x"]),
            ("x", 0, vec!["x"]),
        ] {
            assert_eq!(wrap(text, width), want, "{text:?}");
        }
    }
}
