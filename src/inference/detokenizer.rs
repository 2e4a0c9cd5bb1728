//! Incremental decoding of tokens to text, without splitting a character.

/// Collects the bytes of tokens and returns complete characters. The pieces together equal [`String::from_utf8_lossy`]
/// of all bytes.
#[derive(Clone, Debug, Default)]
pub struct Detokenizer {
    /// Incomplete character at the end.
    pending: Vec<u8>,
}

impl Detokenizer {
    /// Adds a token's bytes; returns the text that is certain by now. Invalid UTF-8 becomes U+FFFD.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.pending.extend_from_slice(bytes);
        let mut text = String::new();
        let mut rest = self.pending.as_slice();
        loop {
            let error = match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    rest = &[];
                    break;
                }
                Err(error) => error,
            };
            let (valid, broken) = rest.split_at(error.valid_up_to());
            text.push_str(&String::from_utf8_lossy(valid));
            rest = broken;
            match error.error_len() {
                Some(len) => {
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &rest[len..];
                }
                None => break,
            }
        }
        self.pending = rest.to_vec();
        text
    }

    /// Ends the text: an incomplete character becomes U+FFFD.
    pub fn finish(self) -> String {
        String::from_utf8_lossy(&self.pending).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_character_waits_for_all_of_its_bytes() {
        let mut detokenizer = Detokenizer::default();
        let bytes = "日a".as_bytes();
        assert_eq!(detokenizer.push(&bytes[..2]), "");
        assert_eq!(detokenizer.push(&bytes[2..3]), "日");
        assert_eq!(detokenizer.push(&bytes[3..]), "a");
        assert_eq!(detokenizer.push(&bytes[..1]), "");
        assert_eq!(detokenizer.finish(), "\u{fffd}");
    }

    proptest! {
        #[test]
        fn pieces_make_the_whole(bytes in prop::collection::vec(prop::sample::select(
            vec![0x61_u8, 0xe6, 0x97, 0xa5, 0xf0, 0x9f, 0x98, 0x80, 0xc3, 0xa9, 0xff]), 0..20), size in 1_usize..4) {
            let mut detokenizer = Detokenizer::default();
            let mut text: String = bytes.chunks(size).map(|piece| detokenizer.push(piece)).collect();
            text += &detokenizer.finish();
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
        }
    }
}
