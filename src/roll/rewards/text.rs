//! Comparisons of texts and of the numbers in them.

/// Whether two texts are the same, white space at the ends aside.
pub fn same(answer: &str, output: &str, ignore_case: bool) -> bool {
    match ignore_case {
        true => answer.trim().to_lowercase() == output.trim().to_lowercase(),
        false => answer.trim() == output.trim(),
    }
}

/// Whether the answer occurs in the output.
pub fn contains(answer: &str, output: &str, ignore_case: bool) -> bool {
    match ignore_case {
        true => output.to_lowercase().contains(&answer.trim().to_lowercase()),
        false => output.contains(answer.trim()),
    }
}

/// 1 less the Levenshtein distance over the longer length, in characters; 1 for two empty texts.
pub fn similarity(answer: &str, output: &str) -> f64 {
    strsim::normalized_levenshtein(answer.trim(), output.trim())
}

/// Whether two numbers are the same but for a relative difference.
pub fn close(wanted: f64, given: f64, tolerance: f64) -> bool {
    (wanted - given).abs() <= tolerance * wanted.abs().max(1.0)
}

/// The number that a text ends up with: the last in the last `\boxed{}`, or the first after the last `####`, or the
/// last in the text. Thousands' commas, units, currency signs and trailing periods do not matter.
pub fn number_in(text: &str) -> Option<f64> {
    if let Some(boxed) = last_boxed(text) {
        return numbers(boxed).pop();
    }
    if let Some((_, after)) = text.rsplit_once("####") {
        return numbers(after).into_iter().next();
    }
    numbers(text).pop()
}

/// What stands in the last `\boxed{}`, braces balanced.
fn last_boxed(text: &str) -> Option<&str> {
    const OPENING: &str = "\\boxed{";
    let inside = &text[text.rfind(OPENING)? + OPENING.len()..];
    let mut depth = 1;
    for (at, character) in inside.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(&inside[..at]);
        }
    }
    Some(inside)
}

/// Every number of a text.
fn numbers(text: &str) -> Vec<f64> {
    let characters: Vec<char> = text.chars().map(|c| if c == '\u{2212}' { '-' } else { c }).collect();
    let mut found = vec![];
    let mut at = 0;
    while at < characters.len() {
        match number_at(&characters, at) {
            Some((number, end)) => {
                found.push(number);
                at = end;
            }
            None => at += 1,
        }
    }
    found
}

/// The number that begins at `start`, and where it ends.
fn number_at(characters: &[char], start: usize) -> Option<(f64, usize)> {
    let digit = |at: usize| characters.get(at).is_some_and(char::is_ascii_digit);
    let is = |at: usize, wanted: char| characters.get(at) == Some(&wanted);
    let after_word = start > 0 && characters[start - 1].is_alphanumeric();
    let mut at = start;
    let mut written = String::new();
    // After a digit or a letter, a minus is a hyphen or an operator; a currency sign may stand between it and its digits.
    if is(at, '-') && !after_word {
        written.push('-');
        at += 1;
        if characters.get(at).is_some_and(|sign| "$€£¥".contains(*sign)) {
            at += 1;
        }
    }
    if !(digit(at) || is(at, '.') && digit(at + 1) && !after_word) {
        return None;
    }
    let first = at;
    while digit(at) || (is(at, ',') && at > first && (1..=3).all(|i| digit(at + i)) && !digit(at + 4)) {
        if digit(at) {
            written.push(characters[at]);
        }
        at += 1;
    }
    if is(at, '.') && digit(at + 1) {
        written.push('.');
        at += 1;
        while digit(at) {
            written.push(characters[at]);
            at += 1;
        }
    }
    if is(at, 'e') || is(at, 'E') {
        let signed = usize::from(is(at + 1, '-') || is(at + 1, '+'));
        if digit(at + 1 + signed) {
            written.extend(&characters[at..=at + signed]);
            at += 1 + signed;
            while digit(at) {
                written.push(characters[at]);
                at += 1;
            }
        }
    }
    written.parse().ok().map(|number| (number, at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_that_counts_by_table() {
        for (text, number) in [
            ("42", Some(42.0)),
            ("The answer is 42.", Some(42.0)),
            ("first 3, then 7", Some(7.0)),
            ("12 + 30 = 42", Some(42.0)),
            ("5-3", Some(3.0)),
            ("x = -3", Some(-3.0)),
            ("\u{2212}3 degrees", Some(-3.0)),
            ("$1,234.50", Some(1234.5)),
            ("-$5", Some(-5.0)),
            ("1,2,3", Some(3.0)),
            ("12,345,678 people", Some(12_345_678.0)),
            ("about .5", Some(0.5)),
            ("1.5e3 metres", Some(1500.0)),
            ("2e-3", Some(0.002)),
            ("15%", Some(15.0)),
            ("3kg", Some(3.0)),
            ("reasons 1 2 3\n#### 1,000 apples in 2 baskets", Some(1000.0)),
            ("\\boxed{1} or rather \\boxed{\\text{about } {7}} 9", Some(7.0)),
            ("so \\boxed{8", Some(8.0)),
            ("\\boxed{none} 9", None),
            ("####", None),
            ("no number", None),
            ("", None),
        ] {
            assert_eq!(number_in(text), number, "{text:?}");
        }
    }

    #[test]
    fn numbers_are_compared_relative_to_their_size() {
        assert!(close(1e9, 1e9 + 1.0, 1e-6));
        assert!(!close(1.0, 1.001, 1e-6));
        assert!(close(0.0, 1e-7, 1e-6));
    }

    #[test]
    fn similarity_is_by_characters() {
        assert_eq!(similarity("abc", " abc\n"), 1.0);
        assert_eq!(similarity("", ""), 1.0);
        assert_eq!(similarity("abcd", ""), 0.0);
        assert_eq!(similarity("éa", "ea"), 0.5);
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_without_panic(text in "(\\PC|[-0-9.,eE#$\\\\{}]|boxed){0,60}") {
            number_in(&text);
        }

        #[test]
        fn a_written_number_is_found(number in -1_000_000_i64..1_000_000) {
            proptest::prop_assert_eq!(number_in(&format!("it is {number}.")), Some(number as f64));
        }
    }
}
