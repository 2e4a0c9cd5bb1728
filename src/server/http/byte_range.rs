//! The `Range` header (RFC 9110, section 14): one range of bytes of a file.

use std::ops::Range;

/// The part of a file that a request asks for.
#[derive(Debug, PartialEq, Eq)]
pub enum Part {
    /// The whole file.
    Whole,
    /// These bytes; never empty.
    Bytes(Range<u64>),
    /// The range lies beyond the end of the file.
    Unsatisfiable,
}

/// Reads a `Range` header for a file of `size` bytes. Other units, several ranges and invalid headers mean the whole
/// file, as the standard allows.
pub fn requested(header: Option<&str>, size: u64) -> Part {
    let Some((first, last)) = header.and_then(bounds) else {
        return Part::Whole;
    };
    let range = match (first, last) {
        (Some(first), Some(last)) if first > last => return Part::Whole,
        (Some(first), last) => first..last.map_or(size, |last| size.min(last.saturating_add(1))),
        (None, Some(length)) => size.saturating_sub(length)..size,
        (None, None) => return Part::Whole,
    };
    match range.start < range.end {
        true => Part::Bytes(range),
        false => Part::Unsatisfiable,
    }
}

/// Returns the numbers before and after the dash.
fn bounds(header: &str) -> Option<(Option<u64>, Option<u64>)> {
    let (first, last) = header.trim().strip_prefix("bytes=")?.split_once('-')?;
    let number = |text: &str| match text.trim() {
        "" => Some(None),
        digits if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.parse().ok().map(Some),
        _ => None,
    };
    Some((number(first)?, number(last)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        for (header, size, part) in [
            (None, 10, Part::Whole),
            (Some("bytes=0-"), 10, Part::Bytes(0..10)),
            (Some("bytes=4-"), 10, Part::Bytes(4..10)),
            (Some("bytes=4-4"), 10, Part::Bytes(4..5)),
            (Some("bytes=4-99"), 10, Part::Bytes(4..10)),
            (Some("bytes=0-18446744073709551615"), 10, Part::Bytes(0..10)),
            (Some("bytes=-3"), 10, Part::Bytes(7..10)),
            (Some("bytes=-30"), 10, Part::Bytes(0..10)),
            (Some("bytes=10-"), 10, Part::Unsatisfiable),
            (Some("bytes=0-"), 0, Part::Unsatisfiable),
            (Some("bytes=-0"), 10, Part::Unsatisfiable),
            (Some("bytes=5-4"), 10, Part::Whole),
            (Some("bytes=-"), 10, Part::Whole),
            (Some("bytes=0-1,4-5"), 10, Part::Whole),
            (Some("bytes=+1-"), 10, Part::Whole),
            (Some("bytes=99999999999999999999-"), 10, Part::Whole),
            (Some("rows=0-1"), 10, Part::Whole),
        ] {
            assert_eq!(requested(header, size), part, "{header:?} of {size}");
        }
    }
}
