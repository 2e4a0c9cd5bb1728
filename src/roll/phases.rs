//! How far the servers of a run are: they fill the same batches, and one may be a batch ahead of another. Pure.

/// Steps of the servers, in the order of the models. The common step is counted as the first server counts.
#[derive(Debug)]
pub(super) struct Phases {
    /// Step of each when they were lined up.
    base: Vec<i64>,
    /// Present step of each.
    present: Vec<i64>,
}

impl Phases {
    /// Servers whose present batches are the same one.
    pub fn new(steps: &[u64]) -> Self {
        let steps: Vec<_> = steps.iter().map(|step| *step as i64).collect();
        Self {
            base: steps.clone(),
            present: steps,
        }
    }

    /// Takes the present steps. Returns the servers that went back, to a checkpoint: their present batch is the common
    /// one from now on. Where the first one does, all are lined up at its step.
    pub fn see(&mut self, steps: &[u64]) -> Vec<usize> {
        let steps: Vec<_> = steps.iter().map(|step| *step as i64).collect();
        let went_back = |at: &usize| steps[*at] < self.present[*at];
        let back: Vec<_> = (0..steps.len()).filter(went_back).collect();
        if back.contains(&0) {
            (self.base, self.present) = (steps.clone(), steps);
            return back;
        }
        let done = self.done();
        self.present = steps;
        for &at in &back {
            self.base[at] = self.present[at] - done;
        }
        back
    }

    /// Step of the batch that is the same for all.
    pub fn common(&self) -> u64 {
        (self.base[0] + self.done()) as u64
    }

    /// Whether a server is at the common batch, and not ahead of it.
    pub fn is_at_common(&self, server: usize) -> bool {
        self.present[server] - self.base[server] == self.done()
    }

    /// The first server that is at the common batch.
    pub fn first_at_common(&self) -> usize {
        (0..self.base.len()).find(|at| self.is_at_common(*at)).unwrap_or(0)
    }

    /// What a server itself calls a common step.
    pub fn own_step(&self, server: usize, common: u64) -> u64 {
        (common as i64 - self.base[0] + self.base[server]).max(0) as u64
    }

    /// Batches that all have done since they were lined up.
    fn done(&self) -> i64 {
        let done = self
            .present
            .iter()
            .zip(&self.base)
            .map(|(present, base)| present - base);
        done.min().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_common_batch_is_that_of_the_server_that_is_behind() {
        let mut phases = Phases::new(&[5, 1]);
        assert_eq!((phases.common(), phases.first_at_common()), (5, 0));
        assert!(phases.see(&[6, 1]).is_empty());
        assert_eq!((phases.common(), phases.first_at_common()), (5, 1));
        assert!(!phases.is_at_common(0) && phases.is_at_common(1));
        assert!(phases.see(&[6, 2]).is_empty());
        assert_eq!((phases.common(), phases.first_at_common()), (6, 0));
        assert_eq!((phases.own_step(0, 6), phases.own_step(1, 6)), (6, 2));
    }

    #[test]
    fn a_server_that_went_back_to_a_checkpoint_is_lined_up_with_the_others() {
        let mut phases = Phases::new(&[5, 5]);
        phases.see(&[9, 9]);
        assert_eq!(phases.see(&[9, 2]), [1]);
        assert_eq!((phases.common(), phases.own_step(1, 9)), (9, 2));
        phases.see(&[10, 3]);
        assert_eq!(phases.common(), 10);
        assert_eq!(phases.see(&[4, 3]), [0]);
        assert_eq!((phases.common(), phases.own_step(1, 5)), (4, 4));
    }

    #[test]
    fn a_single_server_counts_for_itself() {
        let mut phases = Phases::new(&[3]);
        phases.see(&[7]);
        assert_eq!((phases.common(), phases.own_step(0, 6)), (7, 6));
        assert_eq!(phases.see(&[2]), [0]);
        assert_eq!(phases.common(), 2);
    }
}
