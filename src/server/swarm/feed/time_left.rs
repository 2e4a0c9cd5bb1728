//! Estimates of the time that is left until the batch is full or the update done.

/// Progress of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Progress {
    /// Count of the active rule, in its unit.
    pub done: u64,
    /// Count at which the batch is full.
    pub target: u64,
    /// Finished train episodes.
    pub episodes: u64,
    /// Train episodes that fill a batch.
    pub episodes_target: u64,
    /// Whether clients decide when the batch ends, so that nothing can be estimated.
    pub clients_decide: bool,
}

/// Returns the seconds until a batch is full at the rate of its recent episodes, which ended at the times `ends`,
/// oldest first. `None` before the second one.
pub fn until_full(progress: Progress, ends: impl ExactSizeIterator<Item = f64>, now: f64) -> Option<f64> {
    let intervals = ends.len().checked_sub(1)?;
    let first = { ends }.next()?;
    let left = episodes_left(progress)?;
    let elapsed = now - first;
    (intervals > 0 && elapsed > 0.0).then(|| left * elapsed / intervals as f64)
}

/// Returns the number of episodes until a batch is full. Where the rule counts tasks, it goes by how many episodes one
/// has taken so far.
fn episodes_left(progress: Progress) -> Option<f64> {
    if progress.clients_decide {
        return None;
    }
    let units_left = progress.target.saturating_sub(progress.done) as f64;
    let by_target = progress.episodes_target.saturating_sub(progress.episodes) as f64;
    match progress.done {
        _ if units_left == 0.0 => Some(0.0),
        0 => Some(by_target.max(1.0)),
        done => {
            // Episodes of unfinished tasks count as progress too, so the smaller estimate holds while it is positive.
            let by_units = units_left * progress.episodes as f64 / done as f64;
            Some(if by_target > 0.0 {
                by_units.min(by_target)
            } else {
                by_units
            })
        }
    }
}

/// Returns what is left at `now` of a state that was entered at `since` and typically lasts that many seconds; 0 if it
/// lasts longer than usual.
pub fn of_typical(seconds: Option<f64>, since: f64, now: f64) -> Option<f64> {
    seconds.map(|seconds| (since + seconds - now).max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_follows_the_rate_of_the_last_episodes() {
        let progress = |done, target, episodes, episodes_target| Progress {
            done,
            target,
            episodes,
            episodes_target,
            clients_decide: false,
        };
        let by_clients = Progress {
            clients_decide: true,
            ..progress(0, 1, 5, 8)
        };
        type Case = (&'static str, Progress, &'static [f64], f64, Option<f64>);
        #[rustfmt::skip]
        let table: [Case; 9] = [
            ("no episode yet", progress(0, 8, 0, 8), &[], 9.0, None),
            ("one is no rate", progress(1, 8, 1, 8), &[1.0], 9.0, None),
            ("episodes", progress(3, 8, 3, 8), &[0.0, 2.0, 4.0], 4.0, Some(10.0)),
            ("a stall slows the rate down", progress(3, 8, 3, 8), &[0.0, 2.0, 4.0], 8.0, Some(20.0)),
            ("tasks, none complete", progress(0, 4, 3, 16), &[0.0, 1.0, 2.0], 2.0, Some(13.0)),
            ("tasks, one complete", progress(1, 4, 6, 16), &[0.0, 1.0, 2.0], 2.0, Some(10.0)),
            ("few tasks have signal", progress(1, 4, 16, 16), &[0.0, 1.0, 2.0], 2.0, Some(48.0)),
            ("full", progress(4, 4, 16, 16), &[0.0, 1.0], 2.0, Some(0.0)),
            ("clients decide", by_clients, &[0.0, 1.0], 2.0, None),
        ];
        for (what, progress, ends, now, expected) in table {
            assert_eq!(until_full(progress, ends.iter().copied(), now), expected, "{what}");
        }
    }

    #[test]
    fn a_state_that_lasts_longer_than_usual_has_nothing_left() {
        for (seconds, now, expected) in [
            (None, 5.0, None),
            (Some(9.0), 5.0, Some(5.0)),
            (Some(9.0), 20.0, Some(0.0)),
        ] {
            assert_eq!(of_typical(seconds, 1.0, now), expected);
        }
    }
}
