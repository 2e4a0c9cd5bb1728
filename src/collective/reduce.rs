//! Sums in the order of ranks, over what each rank sent.

/// Adds up `gathered`, the equally long parts of all ranks one after the other, into `sum`.
pub fn sum_in_order(gathered: &[f32], sum: &mut [f32]) {
    sum.fill(0.0);
    for part in gathered.chunks_exact(sum.len().max(1)) {
        sum.iter_mut().zip(part).for_each(|(sum, value)| *sum += value);
    }
}
