//! Parts of splits, written as for `datasets`: `train`, `train[:1000]`, `train[90%:]`, several joined by `+`.

use std::ops::Range;

/// Rows of a split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The split.
    pub split: String,
    from: Option<Bound>,
    to: Option<Bound>,
}

/// Where a part begins or ends; from the end of the split where it is negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bound {
    Rows(i64),
    Percent(i64),
}

/// The parts that a text names; `None` where it is not of this form.
pub fn parts(text: &str) -> Option<Vec<Part>> {
    text.split('+').map(|part| Part::parse(part.trim())).collect()
}

impl Part {
    fn parse(text: &str) -> Option<Self> {
        let Some((split, range)) = text.split_once('[') else {
            return (!text.is_empty()).then(|| Self {
                split: text.to_owned(),
                from: None,
                to: None,
            });
        };
        let (from, to) = range.strip_suffix(']')?.split_once(':')?;
        Some(Self {
            split: split.to_owned(),
            from: Bound::parse(from)?,
            to: Bound::parse(to)?,
        })
    }

    /// Whether the number of the split's rows has to be known.
    pub fn needs_count(&self) -> bool {
        let needs_count = |bound: &Bound| !matches!(bound, Bound::Rows(0..));
        self.from.iter().chain(&self.to).any(needs_count)
    }

    /// The numbers of the rows in a split of `count` rows.
    pub fn rows(&self, count: u64) -> Range<u64> {
        let from = self.from.map_or(0, |bound| bound.row(count));
        let to = self.to.map_or(count, |bound| bound.row(count));
        from..to
    }
}

impl Bound {
    /// `None` where the text is no bound, `Some(None)` where it is empty.
    fn parse(text: &str) -> Option<Option<Self>> {
        let text = text.trim();
        let number = |text: &str| text.replace('_', "").parse::<i64>().ok();
        match text.strip_suffix('%') {
            _ if text.is_empty() => Some(None),
            None => Some(Some(Self::Rows(number(text)?))),
            Some(percent) => {
                let percent = number(percent).filter(|percent| (-100..=100).contains(percent))?;
                Some(Some(Self::Percent(percent)))
            }
        }
    }

    fn row(self, count: u64) -> u64 {
        let offset = match self {
            Self::Rows(rows) => i128::from(rows),
            // The nearest row, the even one where two are as near.
            Self::Percent(percent) => (percent as f64 * count as f64 / 100.0).round_ties_even() as i128,
        };
        let is_from_end = matches!(self, Self::Rows(..0) | Self::Percent(..0));
        let row = if is_from_end {
            offset + i128::from(count)
        } else {
            offset
        };
        row.clamp(0, count.into()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_those_of_datasets() {
        for (text, expected) in [
            ("train", vec![("train", 0..7)]),
            ("train[:3]", vec![("train", 0..3)]),
            ("train[2:5]", vec![("train", 2..5)]),
            ("train[-2:]", vec![("train", 5..7)]),
            ("train[:-1_0]", vec![("train", 0..0)]),
            ("train[:50%]", vec![("train", 0..4)]),
            ("train[50%:]", vec![("train", 4..7)]),
            ("train[-20%:]", vec![("train", 6..7)]),
            ("train[5:100]", vec![("train", 5..7)]),
            ("train[:2]+test", vec![("train", 0..2), ("test", 0..7)]),
        ] {
            let parts = parts(text).unwrap();
            let found: Vec<_> = parts.iter().map(|part| (part.split.as_str(), part.rows(7))).collect();
            assert_eq!(found, expected, "{text}");
        }
        for text in [
            "",
            "train+",
            "train[",
            "train[3]",
            "train[a:]",
            "train[:101%]",
            "train[:1]x",
        ] {
            assert_eq!(parts(text), None, "{text}");
        }
    }

    #[test]
    fn rows_are_counted_only_where_they_have_to_be() {
        for (text, needs_count) in [("a", false), ("a[1:2]", false), ("a[:-1]", true), ("a[5%:]", true)] {
            assert_eq!(parts(text).unwrap()[0].needs_count(), needs_count, "{text}");
        }
    }
}
