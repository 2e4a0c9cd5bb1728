//! Finds a tag in text that arrives in pieces.

/// Result of the search for a tag in a text that may continue.
#[derive(Debug, PartialEq)]
pub enum Found {
    /// The tag begins at this byte.
    At(usize),
    /// Not found; from this byte on, the text may be the tag's beginning (the text's length if not).
    NotBefore(usize),
}

/// Searches `text` for `tag`.
pub fn find(text: &str, tag: &str) -> Found {
    if let Some(at) = text.find(tag) {
        return Found::At(at);
    }
    let begins = (1..tag.len())
        .rev()
        .find(|len| tag.is_char_boundary(*len) && text.ends_with(&tag[..*len]));
    Found::NotBefore(text.len() - begins.unwrap_or(0))
}

/// Returns whether `text` is a proper prefix of `tag`.
pub fn could_become(text: &str, tag: &str) -> bool {
    text.len() < tag.len() && tag.starts_with(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_found_or_its_beginning_held_back() {
        assert_eq!(find("ab<think>c", "<think>"), Found::At(2));
        assert_eq!(find("ab<thi", "<think>"), Found::NotBefore(2));
        assert_eq!(find("ab<<", "<think>"), Found::NotBefore(3));
        assert_eq!(find("ab", "<think>"), Found::NotBefore(2));
        assert!(could_become("<th", "<think>") && could_become("", "<think>"));
        assert!(!could_become("<think>", "<think>") && !could_become("x", "<think>"));
    }
}
