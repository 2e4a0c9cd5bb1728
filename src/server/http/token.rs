//! A server's access token.

use std::fmt;

use rand::Rng;
use sha2::{Digest, Sha256};

use crate::server::hex::hex;

/// A server's token. Only its digest is kept; it is never shown.
#[derive(Clone)]
pub struct Token([u8; 32]);

/// Why something cannot be a token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// It would be guessed.
    #[error("a token has at least {MIN_TOKEN_LENGTH} characters, this one has {0}")]
    TooShort(usize),
    /// It could not stand in a path.
    #[error("a token is made of letters, digits and -._~ (it may stand in a URL), this one contains {0:?}")]
    Character(char),
}

const MIN_TOKEN_LENGTH: usize = 8;

impl Token {
    /// A token, without the white space around it.
    ///
    /// # Errors
    ///
    /// It is too short, or has characters that cannot stand in a URL's path.
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

    /// A token that cannot be guessed, and its text.
    pub fn random() -> (Self, String) {
        let text = hex(&rand::rng().random::<[u8; 16]>());
        (Self(Sha256::digest(&text).into()), text)
    }

    /// Compares digests, and all of their bytes, so that the time it takes tells nothing about the token.
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
