//! Concatenated token sequences without padding, as a forest in which a prefix that several rows share occurs once
//! ("Prefix Grouper", arXiv 2506.05433, extended from one prompt to a tree).

use std::ops::Range;

use super::error::{ModelError, Result};

/// A run of tokens in a [`PackedBatch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Index of its first token in the batch.
    pub start: usize,
    /// Number of its tokens, at least 1.
    pub len: usize,
    /// Segment that it continues; `None` if it begins a row.
    pub parent: Option<usize>,
}

/// Tokens of one forward pass. A token attends to its segment up to itself, and to all ancestors of its segment. A row
/// that shares nothing is one segment without a parent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackedBatch {
    /// Token ids of all segments.
    pub token_ids: Vec<u32>,
    /// Position of each token in its row, from 0.
    pub positions: Vec<u32>,
    /// Segments, which cover the tokens in order without gaps; a parent precedes its children.
    pub segments: Vec<Segment>,
}

impl PackedBatch {
    /// Packs rows without sharing. Empty rows are omitted.
    pub fn from_rows<R: AsRef<[u32]>>(rows: &[R]) -> Self {
        let mut batch = Self::default();
        for row in rows {
            batch.push(row.as_ref(), None);
        }
        batch
    }

    /// Appends a segment that continues `parent`, and returns its index; `None` if it has no token.
    pub fn push(&mut self, tokens: &[u32], parent: Option<usize>) -> Option<usize> {
        if tokens.is_empty() {
            return parent;
        }
        let first = parent.map_or(0, |p| self.end_position(p));
        self.segments.push(Segment {
            start: self.token_ids.len(),
            len: tokens.len(),
            parent,
        });
        self.token_ids.extend_from_slice(tokens);
        self.positions.extend(first..first + tokens.len() as u32);
        Some(self.segments.len() - 1)
    }

    /// Returns the number of tokens.
    pub fn len(&self) -> usize {
        self.token_ids.len()
    }

    /// Returns whether the batch has no token.
    pub fn is_empty(&self) -> bool {
        self.token_ids.is_empty()
    }

    /// Returns the token ranges of a segment's ancestors, root first.
    pub fn ancestors(&self, segment: usize) -> Vec<Range<usize>> {
        let mut ranges = Vec::new();
        let mut next = self.segments[segment].parent;
        while let Some(index) = next {
            let Segment { start, len, parent } = self.segments[index];
            ranges.push(start..start + len);
            next = parent;
        }
        ranges.reverse();
        ranges
    }

    /// Checks that the segments cover the tokens and that parents precede children.
    ///
    /// # Errors
    /// Fails with the first segment that does not.
    pub fn validate(&self) -> Result<()> {
        let mut end = 0;
        for (index, segment) in self.segments.iter().enumerate() {
            if segment.start != end || segment.len == 0 {
                return Err(ModelError::Batch(format!(
                    "segment {index} does not begin where the one before ends"
                )));
            }
            if segment.parent.is_some_and(|parent| parent >= index) {
                return Err(ModelError::Batch(format!("segment {index} comes before its parent")));
            }
            end += segment.len;
        }
        if end != self.token_ids.len() || end != self.positions.len() {
            return Err(ModelError::Batch(format!(
                "segments cover {end} of {} tokens",
                self.token_ids.len()
            )));
        }
        Ok(())
    }

    fn end_position(&self, segment: usize) -> u32 {
        let Segment { start, len, .. } = self.segments[segment];
        self.positions[start + len - 1] + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_branch_continues_its_parents_positions() {
        let mut batch = PackedBatch::default();
        let root = batch.push(&[1, 2, 3], None);
        let child = batch.push(&[4, 5], root).unwrap();
        let grandchild = batch.push(&[6], Some(child)).unwrap();
        batch.push(&[7], root);
        batch.validate().unwrap();
        assert_eq!(batch.positions, [0, 1, 2, 3, 4, 5, 3]);
        assert_eq!(batch.ancestors(grandchild), [0..3, 3..5]);
    }

    #[test]
    fn an_empty_branch_is_its_parent() {
        let mut batch = PackedBatch::default();
        assert_eq!(batch.push(&[], None), None);
        let root = batch.push(&[1], None);
        assert_eq!(batch.push(&[], root), root);
    }

    #[test]
    fn a_malformed_batch_is_refused() {
        let mut batch = PackedBatch::from_rows(&[[1, 2], [3, 4]]);
        batch.segments[0].parent = Some(1);
        assert!(
            batch
                .validate()
                .unwrap_err()
                .to_string()
                .contains("segment 0 comes before its parent")
        );
        batch.segments[0] = Segment {
            start: 1,
            len: 1,
            parent: None,
        };
        assert!(batch.validate().is_err());
    }
}
