//! Numbers as people and models write them, and whether two of them are the same answer. Nothing is rounded.

mod reader;
#[cfg(test)]
mod tests;
mod value;

use bigdecimal::BigDecimal;

use super::context;
use reader::Reader;
pub(super) use value::Number;

/// Fractions that are one character.
const VULGAR: [(char, &str); 9] = [
    ('½', " 1/2"),
    ('⅓', " 1/3"),
    ('⅔', " 2/3"),
    ('¼', " 1/4"),
    ('¾', " 3/4"),
    ('⅕', " 1/5"),
    ('⅛', " 1/8"),
    ('\u{2044}', "/"),
    ('\u{2215}', "/"),
];

/// The decimal of a finite float, as it is written.
pub(super) fn decimal_of(float: f64) -> Option<BigDecimal> {
    let text: Vec<char> = format!("{float}").chars().collect();
    let number = Reader { text: &text, at: 0 }.plain()?;
    Some(number.numerator)
}

/// The number that a text ends up with: the only one in the last `\boxed{}`, or the first after the last `####`, or
/// the last in the text. Thousands' separators, units, currency signs and trailing periods do not matter. `None` too
/// where what counts is not a number that can be compared, such as a root, or where what stands around it makes
/// something else of it.
pub(super) fn number_in(text: &str) -> Option<Number> {
    if let Some(boxed) = last_boxed(text) {
        let text = characters(boxed);
        let [number] = &numbers(&text)[..] else { return None };
        let (left, right) = number.around(&text, 0, text.len());
        let is_alone = context::stands_alone(&left, &right) && !context::is_expression(&left, &right);
        return number.value.clone().filter(|_| is_alone);
    }
    let (text, is_first) = match text.rsplit_once("####") {
        Some((_, after)) => (characters(after), true),
        None => (characters(text), false),
    };
    let found = numbers(&text);
    let at = if is_first { 0 } else { found.len().checked_sub(1)? };
    let number = found.get(at)?;
    let before = at.checked_sub(1).map(|before| found[before].end);
    let after = found.get(at + 1).map(|after| after.start);
    let (left, right) = number.around(&text, 0, text.len());
    let (from, to) = number.around(&text, before.unwrap_or(0), after.unwrap_or(text.len()));
    let is_alone = context::stands_alone(&left, &right)
        && !(before.is_some() && context::connects(&from) || after.is_some() && context::connects(&to));
    number.value.clone().filter(|_| is_alone)
}

/// What stands in the last `\boxed{}`, braces balanced; with its opening brace, which a sign may follow.
fn last_boxed(text: &str) -> Option<&str> {
    let (_, after) = text.rsplit_once("\\boxed").or_else(|| text.rsplit_once("\\fbox"))?;
    let after = after.trim_start();
    if !after.starts_with('{') {
        return after.split_whitespace().next();
    }
    let mut depth = 0;
    for (at, character) in after.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(&after[..at]);
        }
    }
    Some(after)
}

/// A text with one way of writing fractions, digits and minus signs.
fn characters(text: &str) -> Vec<char> {
    let mut plain = String::with_capacity(text.len());
    for character in text.chars() {
        match VULGAR.iter().find(|(vulgar, _)| *vulgar == character) {
            Some((_, spelt)) => plain.push_str(spelt),
            None if "\u{2212}\u{2010}\u{2011}\u{2012}\u{2013}\u{fe63}\u{ff0d}".contains(character) => plain.push('-'),
            // Full-width forms follow ASCII's order.
            None if ('\u{ff01}'..='\u{ff5e}').contains(&character) => {
                plain.extend(char::from_u32(u32::from(character) - 0xfee0));
            }
            None => plain.push(character),
        }
    }
    plain.chars().collect()
}

/// A number and where it stands in a text.
struct Found {
    start: usize,
    end: usize,
    /// `None` of one that cannot be compared.
    value: Option<Number>,
}

impl Found {
    /// What stands between `from` and it, and between it and `to`.
    fn around(&self, text: &[char], from: usize, to: usize) -> (String, String) {
        (
            text[from..self.start].iter().collect(),
            text[self.end..to].iter().collect(),
        )
    }
}

/// Every number of a text. Digits within a word are none.
fn numbers(text: &[char]) -> Vec<Found> {
    let mut reader = Reader { text, at: 0 };
    let mut found = vec![];
    while reader.at < text.len() {
        let start = reader.at;
        if reader.is_in_word() {
            reader.digits(&mut vec![]);
            continue;
        }
        match reader.signed() {
            Some(value) => found.push(Found {
                start,
                end: reader.at,
                value,
            }),
            None => reader.at = reader.at.max(start + 1),
        }
    }
    found
}
