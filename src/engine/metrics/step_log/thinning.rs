//! Which steps of a long run keep their metrics: the newest all, of older ones fewer the older they are. Pure.

use std::collections::BTreeSet;

/// A line of metrics.
#[derive(Clone, Copy, Debug)]
pub struct StepLine {
    /// Its step. A step that was updated and evaluated has several lines.
    pub step: u64,
    /// Whether it has metrics of an evaluation.
    pub is_eval: bool,
    /// Size in bytes.
    pub bytes: u64,
}

/// Returns the steps to keep so that their lines, oldest first, take at most half of `limit` bytes.
///
/// The newest quarter of `limit` is kept whole. Of the older steps every second one goes, the first one aside, as often
/// as needed: those without an evaluation first, so that a curve keeps its shape and its evaluations. A file that grows
/// to its limit again is thinned again, so that the density halves with the age.
pub fn kept_steps(lines: &[StepLine], limit: u64) -> BTreeSet<u64> {
    let mut newest_bytes = 0;
    let newest = lines.iter().rev().take_while(|line| {
        newest_bytes += line.bytes;
        newest_bytes <= limit / 4
    });
    let newest: BTreeSet<u64> = newest.map(|line| line.step).collect();
    let evaluated: BTreeSet<u64> = lines.iter().filter(|line| line.is_eval).map(|line| line.step).collect();
    let mut kept: BTreeSet<u64> = lines.iter().map(|line| line.step).collect();
    for may_go in [&kept.difference(&evaluated).copied().collect(), &evaluated] {
        let mut candidates: Vec<u64> = may_go.difference(&newest).copied().collect();
        while bytes_of(lines, &kept) > limit / 2 && candidates.len() > 1 {
            let gone = candidates.iter().skip(1).step_by(2);
            gone.for_each(|step| {
                kept.remove(step);
            });
            candidates = candidates.into_iter().step_by(2).collect();
        }
    }
    kept
}

fn bytes_of(lines: &[StepLine], kept: &BTreeSet<u64>) -> u64 {
    let lines = lines.iter().filter(|line| kept.contains(&line.step));
    lines.map(|line| line.bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(steps: std::ops::RangeInclusive<u64>, evaluated: impl Fn(u64) -> bool) -> Vec<StepLine> {
        let line = |step| StepLine {
            step,
            is_eval: evaluated(step),
            bytes: 10,
        };
        steps.map(line).collect()
    }

    #[test]
    fn the_newest_the_first_and_the_evaluated_steps_stay() {
        let all = lines(1..=100, |step| step % 20 == 1);
        let kept = kept_steps(&all, 1000);
        assert!(bytes_of(&all, &kept) <= 500, "{kept:?}");
        assert!((76..=100).all(|step| kept.contains(&step)), "{kept:?}");
        assert!([1, 2, 21, 41, 61].iter().all(|step| kept.contains(step)), "{kept:?}");
        assert!(kept.range(..76).count() >= 10, "{kept:?}");
    }

    #[test]
    fn evaluations_are_thinned_out_where_nothing_else_is_left() {
        let all = lines(1..=100, |_| true);
        let kept = kept_steps(&all, 1000);
        assert!(bytes_of(&all, &kept) <= 500 && kept.contains(&1), "{kept:?}");
        assert!((76..=100).all(|step| kept.contains(&step)), "{kept:?}");
    }

    #[test]
    fn little_is_kept_whole() {
        for all in [lines(1..=50, |_| false), lines(1..=1, |_| false), vec![]] {
            assert_eq!(kept_steps(&all, 1000).len(), all.len());
        }
    }
}
