//! Comparisons of texts.

/// Whether two texts are the same, white space at the ends aside.
pub fn same(answer: &str, output: &str, ignore_case: bool) -> bool {
    match ignore_case {
        true => answer.trim().to_lowercase() == output.trim().to_lowercase(),
        false => answer.trim() == output.trim(),
    }
}

/// Whether the answer occurs in the output. Its words and numbers do not occur within longer ones, and an empty answer
/// nowhere.
pub fn contains(answer: &str, output: &str, ignore_case: bool) -> bool {
    let (answer, output) = match ignore_case {
        true => (answer.trim().to_lowercase(), output.to_lowercase()),
        false => (answer.trim().to_string(), output.to_string()),
    };
    let first = answer.chars().next();
    let last = answer.chars().next_back();
    let is_cut = |at: usize| {
        let (before, after) = (&output[..at], &output[at + answer.len()..]);
        runs_on(first, before.chars().rev(), true) || runs_on(last, after.chars(), false)
    };
    !answer.is_empty() && output.match_indices(&answer).any(|(at, _)| !is_cut(at))
}

/// Whether the word or number that ends with `edge` goes on beside it.
fn runs_on(edge: Option<char>, mut beside: impl Iterator<Item = char>, leftwards: bool) -> bool {
    match edge {
        Some(edge) if edge.is_ascii_digit() => number_runs_on(beside, leftwards),
        Some(edge) if is_spelt(edge) => beside.next().is_some_and(is_spelt),
        _ => false,
    }
}

/// Whether a letter is of a script that puts spaces between words; those from Thai on do not.
fn is_spelt(letter: char) -> bool {
    letter.is_alphabetic() && letter < '\u{e00}'
}

/// Whether a number that ends where `beside` begins goes on there: with a digit, a point or comma and a digit, or,
/// leftwards, with its sign.
fn number_runs_on(mut beside: impl Iterator<Item = char>, leftwards: bool) -> bool {
    let next = beside.next();
    let then = beside.next();
    match next {
        Some('.' | ',') => then.is_some_and(|then| then.is_ascii_digit()),
        Some('-') => leftwards && !then.is_some_and(char::is_alphanumeric),
        next => next.is_some_and(|next| next.is_ascii_digit()),
    }
}

/// 1 less the Levenshtein distance over the longer length, in characters; 1 for two empty texts.
pub fn similarity(answer: &str, output: &str) -> f64 {
    strsim::normalized_levenshtein(answer.trim(), output.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seen with an answer `4` that the output 42 contained, and `cat` in `concatenate`.
    #[test]
    fn a_number_or_word_does_not_occur_within_another_one() {
        for (answer, output, is_there) in [
            ("4", "so 4.", true),
            ("4", "42", false),
            ("4", "14", false),
            ("4", "4.5", false),
            ("4", "3.4", false),
            ("4", "1,4000 4", true),
            ("234", "1,234", false),
            ("4", "is -4", false),
            ("4", "2-4", true),
            ("-4", "is -4,", true),
            ("x = 4", "x = 42", false),
            ("no 4 to", "no 4 to 5", true),
            ("", "anything", false),
            (" Vienna ", "it is vienna", true),
            ("wien", "vienna", false),
            // Words within words.
            ("cat", "concatenate", false),
            ("cat", "a cat.", true),
            ("cat", "my_cat", true),
            ("art", "state of the art", true),
            ("art", "party, start", false),
            ("no", "I know", false),
            ("no", "No!", true),
            ("мир", "умирать", false),
            ("мир", "(мир)", true),
            ("東京", "答えは東京です", true),
            ("kg", "3kg", true),
            ("42 apples", "42 applesauces", false),
        ] {
            assert_eq!(contains(answer, output, true), is_there, "{answer:?} in {output:?}");
        }
    }

    #[test]
    fn similarity_is_by_characters() {
        assert_eq!(similarity("abc", " abc\n"), 1.0);
        assert_eq!(similarity("", ""), 1.0);
        assert_eq!(similarity("abcd", ""), 0.0);
        assert_eq!(similarity("éa", "ea"), 0.5);
    }
}
