//! Which places of a sequence a slice takes.

/// Where a slice begins and ends, as Python bounds it.
pub(super) fn bounds(length: usize, start: Option<i64>, stop: Option<i64>, step: i64) -> (i64, i64) {
    let length = i64::try_from(length).unwrap_or(i64::MAX);
    let (low, high) = if step > 0 { (0, length) } else { (-1, length - 1) };
    let place = |at: i64| {
        if at < 0 {
            at.saturating_add(length).max(low)
        } else {
            at.min(high)
        }
    };
    let (first, last) = if step > 0 { (low, high) } else { (high, low) };
    (start.map_or(first, place), stop.map_or(last, place))
}

/// The places of a slice, in its order.
pub(super) fn places(length: usize, start: Option<i64>, stop: Option<i64>, step: i64) -> impl Iterator<Item = usize> {
    let (start, stop) = bounds(length, start, stop, step);
    let next = move |at: &i64| at.checked_add(step);
    let within = move |at: &i64| if step > 0 { *at < stop } else { *at > stop };
    std::iter::successors(Some(start), next)
        .take_while(within)
        .map(|at| at as usize)
}
