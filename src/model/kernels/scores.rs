//! How products of queries and keys become attention scores and which keys a query sees, and how products of hidden
//! states and head become logits.

use super::isa::kernel;
use super::threads::Pool;
use super::vector::{load, store, tanh, vectors};

/// Scores of one layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionScores {
    /// Factor of query · key.
    pub scale: f32,
    /// c of the soft cap c·tanh(score / c), if the model has one.
    pub softcap: Option<f32>,
    /// Number of last positions that a query sees, its own included; `None` for all.
    pub window: Option<usize>,
}

impl AttentionScores {
    /// Returns the first position that a query at `position` sees.
    pub fn first_visible(&self, position: usize) -> usize {
        self.window.map_or(0, |window| (position + 1).saturating_sub(window))
    }
}

/// Elements per task.
const CHUNK: usize = 8 * 1024;

/// Scaling of hidden · headᵀ to logits, or to logits over a temperature.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogitScaling {
    /// Factor of the products.
    pub scale: f64,
    /// c of the soft cap c·tanh(x / c) of what the factor gives, if the model has one.
    pub softcap: Option<f64>,
}

impl LogitScaling {
    /// Turns products into logits.
    pub fn apply(&self, pool: &Pool, products: &mut [f32]) {
        if self.scale == 1.0 && self.softcap.is_none() {
            return;
        }
        let scale = self.scale as f32;
        pool.each(products.chunks_mut(CHUNK), |products| {
            products.iter_mut().for_each(|x| *x *= scale);
            if let Some(cap) = self.softcap {
                soft_cap(pool.isa(), products, cap as f32);
            }
        });
    }
}

kernel! {
    /// Replaces each x by c·tanh(x / c).
    pub fn soft_cap<V>(x: &mut [f32], cap: f32) {
        let (cap, inverse) = (V::splat(cap), V::splat(1.0 / cap));
        for (i, lanes) in vectors::<V>(x.len()) {
            let p = x.as_mut_ptr().add(i);
            store(tanh(load::<V>(p, lanes, 0.0).mul(inverse)).mul(cap), p, lanes);
        }
    }
}

kernel! {
    /// Writes the derivative of the soft cap, 1 − (y / c)², where its result is y.
    ///
    /// # Panics
    /// Panics if the lengths differ.
    pub fn soft_cap_slopes<V>(capped: &[f32], cap: f32, slopes: &mut [f32]) {
        assert_eq!(capped.len(), slopes.len(), "lengths of results and slopes");
        let (one, inverse) = (V::splat(1.0), V::splat(1.0 / cap));
        for (i, lanes) in vectors::<V>(capped.len()) {
            let share = load::<V>(capped.as_ptr().add(i), lanes, 0.0).mul(inverse);
            store(one.sub(share.mul(share)), slopes.as_mut_ptr().add(i), lanes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::isa::Isa;
    use super::super::testing::{assert_close, random};
    use super::*;

    #[test]
    fn a_window_ends_at_the_query() {
        let scores = |window| AttentionScores {
            scale: 1.0,
            softcap: None,
            window,
        };
        for (window, position, first) in [
            (None, 7, 0),
            (Some(3), 0, 0),
            (Some(3), 2, 0),
            (Some(3), 3, 1),
            (Some(1), 9, 9),
            (Some(usize::MAX), 9, 0),
        ] {
            assert_eq!(
                scores(window).first_visible(position),
                first,
                "{window:?} at {position}"
            );
        }
    }

    #[test]
    fn logits_are_scaled_and_capped() {
        let products: Vec<f32> = random(CHUNK + 5, 8);
        for (scaling, expected) in [
            (
                LogitScaling {
                    scale: 1.0,
                    softcap: None,
                },
                products.clone(),
            ),
            (
                LogitScaling {
                    scale: 4.0,
                    softcap: Some(2.0),
                },
                products.iter().map(|x| 2.0 * (2.0 * x).tanh()).collect(),
            ),
        ] {
            let mut logits = products.clone();
            scaling.apply(&Pool::new(2), &mut logits);
            assert_close(&logits, &expected, 1e-6);
        }
    }

    #[test]
    fn a_soft_cap_and_its_slopes_agree_with_f64() {
        let x: Vec<f32> = random(77, 4).iter().map(|x| x * 200.0).collect();
        let share = |x: &f32| f64::from(*x) / 50.0;
        let expected: Vec<f32> = x.iter().map(|x| (50.0 * share(x).tanh()) as f32).collect();
        let slopes: Vec<f32> = x.iter().map(|x| (1.0 - share(x).tanh().powi(2)) as f32).collect();
        for isa in Isa::available() {
            let (mut capped, mut found) = (x.clone(), vec![0.0; x.len()]);
            soft_cap(isa, &mut capped, 50.0);
            assert_close(&capped, &expected, 1e-6);
            soft_cap_slopes(isa, &capped, 50.0, &mut found);
            assert_close(&found, &slopes, 1e-6);
        }
    }
}
