//! The types of blocks that GGUF files quantise weights in, and how their fields are read. A block is some successive
//! inputs of one output: a whole number q for each, and a scale and a shift for each group of them, of which the weight is
//! scale·q + shift. See <https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h> for the layouts.

use half::f16;

/// Inputs of the larger blocks, the "K-quants".
const LARGE: usize = 256;
/// Inputs of the smaller blocks.
const SMALL: usize = 32;
/// Fields of six bits in the larger blocks: eight scales and eight minima, in twelve bytes.
const SIX_BIT_FIELDS: usize = 12;

/// A type of block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BlockFormat {
    /// Four bits, 32 inputs a scale.
    Q4_0,
    /// Four bits, 32 inputs a scale and a minimum.
    Q4_1,
    /// Five bits, 32 inputs a scale.
    Q5_0,
    /// Five bits, 32 inputs a scale and a minimum.
    Q5_1,
    /// Eight bits, 32 inputs a scale.
    Q8_0,
    /// Four bits, 32 inputs a scale and a minimum of six bits each, 256 inputs the scales of those.
    Q4K,
    /// As `Q4K` with five bits.
    Q5K,
    /// Six bits, 16 inputs a scale of eight bits, 256 inputs the scale of those.
    Q6K,
}

/// What one block of a file says.
pub(super) struct Block {
    /// Bits of the half-precision scales and minima.
    pub(super) halves: [u16; 2],
    /// Scales of groups, as unsigned bytes.
    pub(super) scales: [u8; 16],
    /// Minima of groups.
    pub(super) minima: [u8; 8],
    /// Unsigned numbers, one an input.
    pub(super) numbers: [u8; LARGE],
}

impl BlockFormat {
    /// All types.
    pub const ALL: [Self; 8] = [
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
    ];

    /// Name in GGUF tools, such as `Q4_K`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q8_0 => "Q8_0",
            Self::Q4K => "Q4_K",
            Self::Q5K => "Q5_K",
            Self::Q6K => "Q6_K",
        }
    }

    /// Inputs of a block of a file; rows consist of whole ones.
    pub fn block_inputs(self) -> usize {
        match self {
            Self::Q4K | Self::Q5K | Self::Q6K => LARGE,
            _ => SMALL,
        }
    }

    /// Bytes of a block of a file.
    pub fn block_bytes(self) -> usize {
        match self {
            Self::Q4_0 => 2 + SMALL / 2,
            Self::Q4_1 => 4 + SMALL / 2,
            Self::Q5_0 => 2 + 4 + SMALL / 2,
            Self::Q5_1 => 4 + 4 + SMALL / 2,
            Self::Q8_0 => 2 + SMALL,
            Self::Q4K => 4 + SIX_BIT_FIELDS + LARGE / 2,
            Self::Q5K => 4 + SIX_BIT_FIELDS + LARGE / 8 + LARGE / 2,
            Self::Q6K => LARGE / 2 + LARGE / 4 + 16 + 2,
        }
    }

    /// Returns how many blocks of a file have a scale or minimum that is NaN or infinite; the weights of all others are
    /// finite.
    pub fn non_finite_blocks(self, bytes: &[u8]) -> usize {
        let blocks = bytes.chunks_exact(self.block_bytes());
        let finite = |block: &&[u8]| {
            let halves = self.read(block).halves;
            halves.iter().all(|bits| f16::from_bits(*bits).is_finite())
        };
        blocks.len() - blocks.filter(finite).count()
    }

    /// Reads a block.
    ///
    /// # Panics
    /// Panics if there are fewer bytes than a block has.
    pub(super) fn read(self, bytes: &[u8]) -> Block {
        let mut block = Block {
            halves: [0; 2],
            scales: [0; 16],
            minima: [0; 8],
            numbers: [0; LARGE],
        };
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        match self {
            Self::Q4_0 | Self::Q5_0 | Self::Q8_0 => block.halves = [half(0), 0],
            Self::Q4_1 | Self::Q5_1 | Self::Q4K | Self::Q5K => block.halves = [half(0), half(2)],
            Self::Q6K => block.halves = [half(self.block_bytes() - 2), 0],
        }
        match self {
            Self::Q4_0 => block.small(&bytes[2..], None),
            Self::Q4_1 => block.small(&bytes[4..], None),
            Self::Q5_0 => block.small(&bytes[6..], Some([bytes[2], bytes[3], bytes[4], bytes[5]])),
            Self::Q5_1 => block.small(&bytes[8..], Some([bytes[4], bytes[5], bytes[6], bytes[7]])),
            Self::Q8_0 => {
                // signed bytes, as unsigned ones 128 larger
                let numbers = block.numbers.iter_mut().zip(&bytes[2..][..SMALL]);
                numbers.for_each(|(number, byte)| *number = byte ^ 0x80);
            }
            Self::Q4K => block.large(&bytes[4..], None),
            Self::Q5K => block.large(&bytes[4..], Some(LARGE / 8)),
            Self::Q6K => block.six_bits(bytes),
        }
        block
    }
}

impl Block {
    /// 32 numbers: the first half in the lower four bits of the bytes, the second half in the upper ones, and a fifth bit
    /// of each.
    fn small(&mut self, fours: &[u8], fifth: Option<[u8; 4]>) {
        let fifth = fifth.map_or(0, u32::from_le_bytes);
        for (i, number) in self.numbers[..SMALL].iter_mut().enumerate() {
            let byte = fours[i % (SMALL / 2)];
            let four = if i < SMALL / 2 { byte & 15 } else { byte >> 4 };
            *number = four | ((fifth >> i & 1) as u8) << 4;
        }
    }

    /// 256 numbers in groups of 32, behind the scales and minima of groups: of two groups one in the lower and one in the
    /// upper four bits of 32 bytes. The fifth bits of the `n`th group are the `n`th bits of 32 bytes before that.
    fn large(&mut self, bytes: &[u8], fifth_bytes: Option<usize>) {
        let (fields, rest) = bytes.split_at(SIX_BIT_FIELDS);
        let (fifth, fours) = rest.split_at(fifth_bytes.unwrap_or(0));
        for group in 0..8 {
            (self.scales[group], self.minima[group]) = six_bit_fields(fields, group);
        }
        for (i, number) in self.numbers.iter_mut().enumerate() {
            let (group, at) = (i / SMALL, i % SMALL);
            let byte = fours[group / 2 * SMALL + at];
            let four = if group.is_multiple_of(2) { byte & 15 } else { byte >> 4 };
            *number = four | fifth.get(at).map_or(0, |bits| (bits >> group & 1) << 4);
        }
    }

    /// 256 numbers in two halves of four times 32: lower four bits in 64 bytes, upper two in 32, and a signed scale of
    /// each 16, which is stored 128 larger.
    fn six_bits(&mut self, bytes: &[u8]) {
        let (fours, rest) = bytes.split_at(LARGE / 2);
        let (twos, rest) = rest.split_at(LARGE / 4);
        for (i, number) in self.numbers.iter_mut().enumerate() {
            let (half, quarter, at) = (i / 128, i / 32 % 4, i % 32);
            let byte = fours[64 * half + 32 * (quarter % 2) + at];
            let four = if quarter < 2 { byte & 15 } else { byte >> 4 };
            *number = four | (twos[32 * half + at] >> (2 * quarter) & 3) << 4;
        }
        let scales = self.scales.iter_mut().zip(rest);
        scales.for_each(|(scale, byte)| *scale = byte ^ 0x80);
    }
}

/// The scale and the minimum of a group, of six bits each: those of the first four groups have bytes of their own, in whose
/// upper bits are parts of the others.
fn six_bit_fields(fields: &[u8], group: usize) -> (u8, u8) {
    match group {
        0..4 => (fields[group] & 63, fields[group + 4] & 63),
        _ => {
            let (scale, minimum, fours) = (fields[group - 4] >> 6, fields[group] >> 6, fields[group + 4]);
            (fours & 15 | scale << 4, fours >> 4 | minimum << 4)
        }
    }
}
