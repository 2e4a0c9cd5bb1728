//! Sets of token ids, one bit each.

use std::fmt;
use std::sync::Arc;

/// Logit of a token outside the allowed set: its probability is exactly 0, and sums over logits stay finite.
pub const DISALLOWED_LOGIT: f32 = -1e30;

/// Tokens that may come at a position; `None` if all may.
pub type Allowed = Option<Arc<TokenSet>>;

/// Bits of a word.
const BITS: usize = u32::BITS as usize;

/// A set of token ids.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct TokenSet(Box<[u32]>);

impl TokenSet {
    /// Creates a set from words of 32 bits, the lowest bit of the first word being token 0.
    pub fn from_words(words: &[u32]) -> Self {
        Self(words.into())
    }

    /// Returns whether the set contains a token.
    pub fn contains(&self, id: u32) -> bool {
        let id = id as usize;
        self.0.get(id / BITS).is_some_and(|word| word >> (id % BITS) & 1 == 1)
    }

    /// Returns the number of tokens in the set.
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Returns whether the set contains no token.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// Disallows the tokens outside the set, given the logits of the ids from `first` on.
    pub fn restrict(&self, logits: &mut [f32], first: usize) {
        let mut at = 0;
        while at < logits.len() {
            let (word, bit) = ((first + at) / BITS, (first + at) % BITS);
            let count = (BITS - bit).min(logits.len() - at);
            let bits = self.0.get(word).map_or(0, |bits| bits >> bit);
            let part = &mut logits[at..at + count];
            match bits {
                u32::MAX => {}
                0 => part.fill(DISALLOWED_LOGIT),
                bits => {
                    for (number, logit) in part.iter_mut().enumerate() {
                        if bits >> number & 1 == 0 {
                            *logit = DISALLOWED_LOGIT;
                        }
                    }
                }
            }
            at += count;
        }
    }

    /// Returns 1 for the tokens in the set and 0 for the others, for a vocabulary of this size.
    pub fn flags(&self, vocabulary: usize) -> impl Iterator<Item = u8> {
        (0..vocabulary as u32).map(|id| u8::from(self.contains(id)))
    }
}

impl fmt::Debug for TokenSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenSet of {}", self.len())
    }
}

impl FromIterator<u32> for TokenSet {
    fn from_iter<T: IntoIterator<Item = u32>>(ids: T) -> Self {
        let mut words = vec![];
        for id in ids {
            let (word, bit) = (id as usize / BITS, id as usize % BITS);
            if words.len() <= word {
                words.resize(word + 1, 0);
            }
            words[word] |= 1 << bit;
        }
        Self(words.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_outside_the_set_is_disallowed(
            ids in prop::collection::btree_set(0u32..200, 0..200),
            range in (0usize..220, 0usize..100),
        ) {
            let set: TokenSet = ids.iter().copied().collect();
            prop_assert_eq!(set.len(), ids.len());
            prop_assert_eq!(set.is_empty(), ids.is_empty());
            let (first, len) = range;
            let mut logits = vec![1.0; len];
            set.restrict(&mut logits, first);
            for (at, logit) in logits.iter().enumerate() {
                let id = (first + at) as u32;
                prop_assert_eq!(set.contains(id), ids.contains(&id));
                prop_assert_eq!(*logit, if ids.contains(&id) { 1.0 } else { DISALLOWED_LOGIT });
            }
            let flags: Vec<u8> = set.flags(210).collect();
            prop_assert!((0..210).all(|id| (flags[id] == 1) == ids.contains(&(id as u32))));
        }
    }
}
