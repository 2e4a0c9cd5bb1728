//! y(M,N) = x(M,K) · W(N,K)ᵀ on weights packed once per weight version.
//!
//! W is cut in panels of as many output columns as two vectors have lanes; within a panel the columns of one k lie side
//! by side, so that decoding streams the weights once, in order. Each output is one chain of multiply-adds over k from
//! 0 to K−1, kept in f32: it depends neither on the other rows nor on how the work is split.

use half::bf16;
use std::ops::Range;

use super::simd::{Isa, Kernel, Vector};
use super::threads::{Pool, SharedMut};

/// Rows whose inputs stay in the second-level cache while the panels pass: a multiple of every tile height.
const ROW_BLOCK: usize = 72;
/// Inner length per pass where there are many rows, so that a panel's piece stays in the first-level cache.
const K_BLOCK: usize = 256;
/// Rows up to which a panel is taken in one piece: decoding.
const FEW_ROWS: usize = 24;
/// How far ahead of its use a weight is asked for, where a panel is passed once.
const PREFETCH_BYTES: usize = 4096;
const CACHE_LINE: usize = 64;
/// The tallest tile and the widest panel of any instruction set.
const MAX_TILE: (usize, usize) = (12, 32);

/// What weights are stored as. Sums are always f32.
pub trait Element: Copy + Default + Send + Sync + 'static {
    /// Rounds to the stored type.
    fn from_f32(x: f32) -> Self;
    /// Loads a vector of them.
    ///
    /// # Safety
    /// As [`Vector::load`].
    #[doc(hidden)]
    #[allow(private_bounds)]
    unsafe fn load<V: Vector>(p: *const Self) -> V;
}

impl Element for f32 {
    fn from_f32(x: f32) -> Self {
        x
    }
    #[inline(always)]
    #[allow(private_bounds)]
    unsafe fn load<V: Vector>(p: *const Self) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::load(p) }
    }
}

impl Element for bf16 {
    fn from_f32(x: f32) -> Self {
        bf16::from_f32(x)
    }
    #[inline(always)]
    #[allow(private_bounds)]
    unsafe fn load<V: Vector>(p: *const Self) -> V {
        // SAFETY: the caller's promise; a bf16 is its 16 bits (`repr(transparent)`).
        unsafe { V::load_bf16(p.cast()) }
    }
}

/// A linear layer's weight, packed for this machine, with its bias.
pub struct PackedMatrix<E = f32> {
    isa: Isa,
    outputs: usize,
    inputs: usize,
    panels: Vec<E>,
    bias: Option<Vec<f32>>,
}

impl<E: Element> PackedMatrix<E> {
    /// Room for a weight of `outputs` × `inputs`, all zero.
    pub fn new(isa: Isa, outputs: usize, inputs: usize) -> Self {
        let columns = outputs.next_multiple_of(isa.panel_width());
        Self {
            isa,
            outputs,
            inputs,
            panels: vec![E::default(); columns * inputs],
            bias: None,
        }
    }

    /// Takes the rows of `parts`, one matrix (out × in, row-major) under the other, and their biases. The total shape
    /// must be that of [`PackedMatrix::new`].
    pub fn pack(&mut self, pool: &Pool, parts: &[&[f32]], bias: Option<Vec<f32>>) {
        let (inputs, width) = (self.inputs, self.isa.panel_width());
        let rows: Vec<&[f32]> = parts.iter().flat_map(|part| part.chunks_exact(inputs)).collect();
        assert_eq!(rows.len(), self.outputs, "rows of the weight");
        assert!(
            bias.as_ref().is_none_or(|b| b.len() == self.outputs),
            "a bias for each output"
        );
        self.bias = bias;
        let mut panels: Vec<&mut [E]> = self.panels.chunks_exact_mut(inputs * width).collect();
        pool.for_each(&mut panels, |p, panel| {
            let columns = &rows[p * width..rows.len().min((p + 1) * width)];
            for (k, line) in panel.chunks_exact_mut(width).enumerate() {
                for (cell, column) in line.iter_mut().zip(columns) {
                    *cell = E::from_f32(column[k]);
                }
            }
        });
    }

    /// Output features.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Input features.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Bytes that one pass over the weight reads.
    pub fn bytes(&self) -> usize {
        size_of_val(&self.panels[..])
    }

    /// y = x · Wᵀ + bias for every row of `x` (rows × inputs); `y` is rows × outputs.
    pub fn multiply(&self, pool: &Pool, x: &[f32], y: &mut [f32]) {
        let rows = x.len() / self.inputs;
        assert_eq!(
            (x.len(), y.len()),
            (rows * self.inputs, rows * self.outputs),
            "lengths of x and y"
        );
        let y = SharedMut::new(y);
        self.each_panel_range(pool, rows, |panels| {
            // SAFETY: lengths are checked above; ranges of panels do not overlap, so tasks write other columns of y.
            unsafe { self.multiply_panels(x, rows, y.at(0), panels) }
        });
    }

    /// Cuts the panels in ranges that are worth a thread's while, and runs them on the pool.
    pub(super) fn each_panel_range(&self, pool: &Pool, rows: usize, task: impl Fn(Range<usize>) + Sync) {
        let panels = self.outputs.div_ceil(self.isa.panel_width());
        let work = rows.max(4) * self.inputs * self.isa.panel_width();
        pool.run_ranges(panels, (1 << 15) / work.max(1), task);
    }

    /// The columns of `panels` for all rows.
    ///
    /// # Safety
    /// `x` is rows × inputs and `y` rows × outputs; nothing else touches these columns of `y` meanwhile.
    pub(super) unsafe fn multiply_panels(&self, x: &[f32], rows: usize, y: *mut f32, panels: Range<usize>) {
        // SAFETY: the caller's promise is what the kernel asks for.
        unsafe {
            self.isa.run(Multiply {
                weight: self,
                x: x.as_ptr(),
                rows,
                y,
                panels,
            })
        }
    }

    /// Columns of a panel.
    pub(super) fn panel_width(&self) -> usize {
        self.isa.panel_width()
    }

    /// The instruction set it is packed for.
    pub(super) fn isa(&self) -> Isa {
        self.isa
    }
}

struct Multiply<'a, E> {
    weight: &'a PackedMatrix<E>,
    x: *const f32,
    rows: usize,
    y: *mut f32,
    panels: Range<usize>,
}

impl<E: Element> Kernel for Multiply<'_, E> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let (inputs, outputs) = (self.weight.inputs, self.weight.outputs);
        let k_block = if self.rows <= FEW_ROWS { inputs } else { K_BLOCK };
        for row in (0..self.rows).step_by(ROW_BLOCK) {
            let rows = ROW_BLOCK.min(self.rows - row);
            for k in (0..inputs).step_by(k_block) {
                let length = k_block.min(inputs - k);
                for panel in self.panels.clone() {
                    // SAFETY: row, k and panel are within the matrices, whose lengths `multiply` checked.
                    unsafe {
                        let w = self.weight.panels.as_ptr().add((panel * inputs + k) * 2 * V::LANES);
                        let x = self.x.add(row * inputs + k);
                        let y = self.y.add(row * outputs + panel * 2 * V::LANES);
                        self.panel::<V>((x, inputs), w, length, (y, outputs), rows, panel, k == 0);
                    }
                }
            }
        }
    }
}

impl<E: Element> Multiply<'_, E> {
    /// One panel's piece for up to a row block; `first` starts from the bias, later pieces add to y.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    unsafe fn panel<V: Vector>(
        &self,
        x: (*const f32, usize),
        w: *const E,
        length: usize,
        y: (*mut f32, usize),
        rows: usize,
        panel: usize,
        first: bool,
    ) {
        let width = 2 * V::LANES;
        let columns = width.min(self.weight.outputs - panel * width);
        let bias = self
            .weight
            .bias
            .as_ref()
            .map(|b| &b[panel * width..panel * width + columns]);
        let tiles = rows.div_ceil(V::TILE_ROWS);
        for tile in 0..tiles {
            let ahead = Ahead::of(w, width, self.weight.inputs, length, tile, tiles);
            let (from, to) = (rows * tile / tiles, rows * (tile + 1) / tiles);
            // SAFETY: rows `from..to` are within x and y; the buffer holds the tallest and widest tile.
            unsafe {
                let (x, y) = ((x.0.add(from * x.1), x.1), (y.0.add(from * y.1), y.1));
                if columns == width && (!first || bias.is_none()) {
                    let start = if first { Start::Zero } else { Start::Output };
                    any_tile::<V, E>(to - from, x, (w, width), length, y, start, ahead);
                    continue;
                }
                let mut buffer = [0f32; MAX_TILE.0 * MAX_TILE.1];
                for m in 0..to - from {
                    let line = &mut buffer[m * width..m * width + columns];
                    match (first, bias) {
                        (true, Some(bias)) => line.copy_from_slice(bias),
                        (true, None) => {}
                        (false, _) => line.copy_from_slice(std::slice::from_raw_parts(y.0.add(m * y.1), columns)),
                    }
                }
                let buffer_y = (buffer.as_mut_ptr(), width);
                any_tile::<V, E>(to - from, x, (w, width), length, buffer_y, Start::Output, ahead);
                for m in 0..to - from {
                    y.0.add(m * y.1)
                        .copy_from_nonoverlapping(buffer.as_ptr().add(m * width), columns);
                }
            }
        }
    }
}

/// Which memory a tile asks for while it computes: `step` bytes further at each k.
#[derive(Clone, Copy)]
pub(super) struct Ahead {
    from: *const u8,
    step: usize,
}

impl Ahead {
    /// Nothing: the memory that the tile reads anyway.
    pub(super) fn none<E>(w: *const E) -> Self {
        Self {
            from: w.cast(),
            step: 0,
        }
    }

    /// Where one tile passes the panel, what it needs itself soon. Where several do, they find the panel in the cache:
    /// each asks for its part of the next panel, so that all the time is used to wait for memory.
    fn of<E>(w: *const E, width: usize, inputs: usize, length: usize, tile: usize, tiles: usize) -> Self {
        let line = width * size_of::<E>();
        match tiles {
            1 => Self {
                from: w.cast::<u8>().wrapping_add(PREFETCH_BYTES),
                step: line,
            },
            _ => {
                let next = w.cast::<u8>().wrapping_add(inputs * line);
                Self {
                    from: next.wrapping_add(length * line / tiles * tile),
                    step: line / tiles,
                }
            }
        }
    }
}

/// What a tile's sums start from.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Start {
    Zero,
    Output,
}

/// A tile of `rows` (at most `V::TILE_ROWS`) by two vectors: `y = start + Σₖ x[·][k] · w[k][·]`. Each pointer comes with
/// its stride: x and y by row, w by k.
///
/// # Safety
/// Pointers are valid for these strides and lengths.
#[inline(always)]
pub(super) unsafe fn any_tile<V: Vector, E: Element>(
    rows: usize,
    x: (*const f32, usize),
    w: (*const E, usize),
    length: usize,
    y: (*mut f32, usize),
    start: Start,
    ahead: Ahead,
) {
    macro_rules! heights {
        ($($rows:literal)*) => {
            match rows {
                // SAFETY: the caller's promise. Heights beyond TILE_ROWS are cut when compiling.
                $($rows if $rows <= V::TILE_ROWS => unsafe { tile::<V, E, $rows>(x, w, length, y, start, ahead) },)*
                _ => debug_assert!(rows == 0, "a tile of {rows} rows"),
            }
        };
    }
    heights!(1 2 3 4 5 6 7 8 9 10 11 12)
}

#[inline(always)]
unsafe fn tile<V: Vector, E: Element, const ROWS: usize>(
    (x, x_stride): (*const f32, usize),
    (w, w_stride): (*const E, usize),
    length: usize,
    (y, y_stride): (*mut f32, usize),
    start: Start,
    ahead: Ahead,
) {
    // SAFETY: rows below ROWS and k below `length` are valid by the caller's promise; prefetching needs no validity.
    unsafe {
        let mut sums = [[V::splat(0.0); 2]; ROWS];
        if start == Start::Output {
            for (m, sum) in sums.iter_mut().enumerate() {
                *sum = [V::load(y.add(m * y_stride)), V::load(y.add(m * y_stride + V::LANES))];
            }
        }
        for k in 0..length {
            let line = w.add(k * w_stride);
            let soon = ahead.from.wrapping_add(k * ahead.step);
            V::prefetch(soon);
            if 2 * V::LANES * size_of::<E>() > CACHE_LINE {
                V::prefetch(soon.wrapping_add(CACHE_LINE));
            }
            let (left, right): (V, V) = (E::load(line), E::load(line.add(V::LANES)));
            for (m, sum) in sums.iter_mut().enumerate() {
                let factor = V::splat(*x.add(m * x_stride + k));
                *sum = [factor.mul_add(left, sum[0]), factor.mul_add(right, sum[1])];
            }
        }
        for (m, sum) in sums.iter().enumerate() {
            sum[0].store(y.add(m * y_stride));
            sum[1].store(y.add(m * y_stride + V::LANES));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_close, random};
    use super::*;

    fn plain(x: &[f32], w: &[f32], bias: Option<&[f32]>, inputs: usize) -> Vec<f32> {
        let row = |x: &[f32], n: usize, w: &[f32]| {
            let sum: f64 = x.iter().zip(w).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
            sum as f32 + bias.map_or(0.0, |b| b[n])
        };
        x.chunks(inputs)
            .flat_map(|x| w.chunks(inputs).enumerate().map(move |(n, w)| row(x, n, w)))
            .collect()
    }

    fn packed<E: Element>(pool: &Pool, isa: Isa, w: &[f32], inputs: usize, bias: Option<Vec<f32>>) -> PackedMatrix<E> {
        let mut packed = PackedMatrix::new(isa, w.len() / inputs, inputs);
        packed.pack(pool, &[w], bias);
        packed
    }

    #[test]
    fn agrees_with_a_plain_loop_on_odd_shapes() {
        let pool = Pool::new(2);
        for isa in Isa::available() {
            for (outputs, inputs) in [
                (1, 1),
                (3, 7),
                (16, 5),
                (17, 64),
                (31, 33),
                (32, 16),
                (70, 800),
                (129, 385),
            ] {
                for rows in [1, 2, 3, 5, 7, 13, 25, 64, 75] {
                    let (x, w) = (random(rows * inputs, 1), random(outputs * inputs, 2));
                    for bias in [None, Some(random(outputs, 3))] {
                        let matrix = packed::<f32>(&pool, isa, &w, inputs, bias.clone());
                        let mut y = vec![f32::NAN; rows * outputs];
                        matrix.multiply(&pool, &x, &mut y);
                        assert_close(&y, &plain(&x, &w, bias.as_deref(), inputs), 1e-4);
                    }
                }
            }
        }
    }

    #[test]
    fn bf16_weights_are_rounded_and_nothing_else() {
        let pool = Pool::new(1);
        let (x, w) = (random(9 * 50, 1), random(40 * 50, 2));
        let rounded: Vec<f32> = w.iter().map(|&w| bf16::from_f32(w).to_f32()).collect();
        for isa in Isa::available() {
            let mut y = vec![0.0; 9 * 40];
            packed::<bf16>(&pool, isa, &w, 50, None).multiply(&pool, &x, &mut y);
            assert_close(&y, &plain(&x, &rounded, None, 50), 1e-5);
        }
    }

    #[test]
    fn a_row_does_not_depend_on_its_batch_or_on_threads() {
        let (outputs, inputs) = (83, 901);
        let (x, w) = (random(90 * inputs, 4), random(outputs * inputs, 5));
        for isa in Isa::available() {
            let alone: Vec<u32> = {
                let pool = Pool::new(1);
                let matrix = packed::<f32>(&pool, isa, &w, inputs, None);
                let mut y = vec![0.0; 90 * outputs];
                x.chunks(inputs)
                    .zip(y.chunks_mut(outputs))
                    .for_each(|(x, y)| matrix.multiply(&pool, x, y));
                y.iter().map(|y| y.to_bits()).collect()
            };
            for threads in [1, 3] {
                let pool = Pool::new(threads);
                let matrix = packed::<f32>(&pool, isa, &w, inputs, None);
                for rows in (1..=64).chain([73, 90]) {
                    let mut y = vec![0.0; rows * outputs];
                    matrix.multiply(&pool, &x[..rows * inputs], &mut y);
                    let bits: Vec<u32> = y.iter().map(|y| y.to_bits()).collect();
                    assert_eq!(
                        bits,
                        alone[..rows * outputs],
                        "{} rows, {threads} threads, {}",
                        rows,
                        isa.name()
                    );
                }
            }
        }
    }

    #[test]
    fn parts_are_packed_one_under_the_other() {
        let pool = Pool::new(1);
        let (a, b) = (random(5 * 6, 1), random(7 * 6, 2));
        let mut joined = PackedMatrix::<f32>::new(Isa::detect(), 12, 6);
        joined.pack(&pool, &[&a, &b], None);
        let x = random(6, 3);
        let mut y = vec![0.0; 12];
        joined.multiply(&pool, &x, &mut y);
        assert_close(&y, &plain(&x, &[a, b].concat(), None, 6), 1e-6);
    }
}
