//! Nouns with their counts, for messages.

/// Returns a noun with its count: `1 task`, `3 tasks`, `1,500 tasks`.
pub fn counted(count: u64, noun: &str) -> String {
    match count {
        1 => format!("1 {noun}"),
        _ => format!("{} {noun}s", thousands(count)),
    }
}

/// Formats a count: `1,234`.
pub fn thousands(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_singular_and_large_counts_are_grouped() {
        for (count, text) in [
            (0, "0 tasks"),
            (1, "1 task"),
            (2, "2 tasks"),
            (999, "999 tasks"),
            (1_500, "1,500 tasks"),
            (1_234_567, "1,234,567 tasks"),
        ] {
            assert_eq!(counted(count, "task"), text);
        }
    }
}
