//! A server's access token.

use std::fmt;

use rand::Rng;
use sha2::{Digest, Sha256};

use crate::config::checksum::hex;

/// A server's access token. Only its digest is kept, and it is never printed.
#[derive(Clone)]
pub struct Token([u8; 32]);

/// Reasons why a text is not a valid token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The token is short enough to be guessed.
    #[error("the token must have at least {MIN_TOKEN_LENGTH} characters, got {0}")]
    TooShort(usize),
    /// The token could not be part of a URL path.
    #[error("the token may only contain letters, digits and -._~, since it may be part of a URL; got {0:?}")]
    Character(char),
}

const MIN_TOKEN_LENGTH: usize = 8;

impl Token {
    /// Creates a token from text; surrounding white space is removed.
    ///
    /// # Errors
    ///
    /// Fails if it is too short or has characters that are not allowed in a URL path.
    pub fn new(text: &str) -> Result<Self, TokenError> {
        let text = text.trim();
        if text.len() < MIN_TOKEN_LENGTH {
            return Err(TokenError::TooShort(text.len()));
        }
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-._~".contains(c);
        match text.chars().find(|&c| !allowed(c)) {
            Some(c) => Err(TokenError::Character(c)),
            None => Ok(Self(Sha256::digest(text).into())),
        }
    }

    /// Generates a random token; returns it with its text.
    pub fn random() -> (Self, String) {
        let text = hex(&rand::rng().random::<[u8; 16]>());
        (Self(Sha256::digest(&text).into()), text)
    }

    /// Compares all bytes of the digests, so that the time taken reveals nothing about the token.
    pub fn is(&self, candidate: &str) -> bool {
        let digest = Sha256::digest(candidate);
        let differing = digest.iter().zip(self.0).fold(0, |bits, (a, b)| bits | (a ^ b));
        std::hint::black_box(differing) == 0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_compared_whole_and_never_shown() {
        let token = Token::new(" long-enough\n").unwrap();
        assert!(token.is("long-enough"));
        assert!(!token.is("long-enougH") && !token.is("") && !token.is("long-enough-and-more"));
        assert_eq!(format!("{token:?}"), "Token(…)");
        assert!(matches!(Token::new("short"), Err(TokenError::TooShort(5))));
        assert!(matches!(Token::new("with/a/slash"), Err(TokenError::Character('/'))));
    }
}
