//! An exact number, its arithmetic and comparison.

use bigdecimal::{BigDecimal, One, Zero};

/// Largest power of ten that is read. Beyond it a number has no value that could be compared.
pub(super) const LARGEST_EXPONENT: i64 = 1_000_000;

/// Maximum number of digits of a fraction's parts and of a power, whose arithmetic takes quadratic time.
pub(super) const LONGEST_FACTOR: u64 = 1000;

/// A number, exactly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Number {
    pub(super) numerator: BigDecimal,
    /// Above 0.
    pub(super) denominator: BigDecimal,
    /// The power of ten of the last digit that was written; `None` where the number is a fraction, or too long.
    pub(super) last_digit: Option<i64>,
}

impl Number {
    pub(super) fn whole(numerator: BigDecimal) -> Self {
        Self {
            numerator,
            denominator: BigDecimal::one(),
            last_digit: Some(0),
        }
    }

    pub(super) fn negated(self) -> Self {
        Self {
            numerator: -self.numerator,
            ..self
        }
    }

    /// The number over another one; `None` over zero, and where that takes too long.
    pub(super) fn over(&self, other: &Self) -> Option<Self> {
        let parts = [&self.numerator, &self.denominator, &other.numerator, &other.denominator];
        let short = parts.iter().all(|part| part.digits() <= LONGEST_FACTOR);
        (short && !other.numerator.is_zero()).then(|| Self {
            numerator: &self.numerator * &other.denominator,
            denominator: &self.denominator * &other.numerator,
            last_digit: None,
        })
    }

    /// Whether an answer is this number, the reference. Without a `tolerance`, a reference with decimals accepts what
    /// differs by at most half a unit of its last digit, and a whole number or a fraction only itself. A `tolerance` is
    /// the largest difference, relative to the reference.
    pub fn accepts(&self, answer: &Self, tolerance: Option<&BigDecimal>) -> bool {
        let difference = &answer.numerator * &self.denominator - &self.numerator * &answer.denominator;
        let allowed = match (tolerance, self.last_digit) {
            (Some(tolerance), _) => tolerance * self.numerator.abs(),
            (None, Some(last)) if !self.numerator.is_integer() => BigDecimal::new(5.into(), 1 - last),
            (None, _) => return difference.is_zero(),
        };
        difference.abs() <= allowed * &answer.denominator
    }
}

/// A power with a whole exponent; `None` where it is too long.
pub(super) fn raised(number: &Number, exponent: i64) -> Option<Number> {
    let times = usize::try_from(exponent.unsigned_abs()).ok()?;
    let length = number.numerator.digits().checked_mul(times as u64)?;
    if length > LONGEST_FACTOR || number.last_digit?.checked_mul(exponent)?.abs() > LARGEST_EXPONENT {
        return None;
    }
    let numerator = (0..times).fold(BigDecimal::one(), |power, _| power * &number.numerator);
    let power = Number {
        numerator,
        denominator: BigDecimal::one(),
        last_digit: None,
    };
    match exponent < 0 {
        true => Number::whole(BigDecimal::one()).over(&power),
        false => Some(power),
    }
}
