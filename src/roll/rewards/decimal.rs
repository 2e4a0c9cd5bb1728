//! Exact decimal arithmetic at any length: what comparing two written numbers takes.

use std::cmp::Ordering;

/// `±digits × 10^exponent`. Zero has no digits, and no number begins or ends with the digit 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Decimal {
    negative: bool,
    /// From 0 to 9, most significant first.
    digits: Vec<u8>,
    exponent: i64,
}

impl Decimal {
    /// A number whose last digit is worth `10^exponent`.
    pub fn new(negative: bool, mut digits: Vec<u8>, mut exponent: i64) -> Self {
        digits.drain(..digits.iter().take_while(|digit| **digit == 0).count());
        while digits.last() == Some(&0) {
            digits.pop();
            exponent += 1;
        }
        let is_zero = digits.is_empty();
        Self {
            negative: negative && !is_zero,
            digits,
            exponent: if is_zero { 0 } else { exponent },
        }
    }

    /// The number 1.
    pub fn one() -> Self {
        Self::new(false, vec![1], 0)
    }

    pub fn is_zero(&self) -> bool {
        self.digits.is_empty()
    }

    pub fn is_whole(&self) -> bool {
        self.exponent >= 0
    }

    /// Number of digits, those of a trailing exponent left out.
    pub fn length(&self) -> usize {
        self.digits.len()
    }

    pub fn negated(self) -> Self {
        Self::new(!self.negative, self.digits, self.exponent)
    }

    /// The product, in time proportional to the product of the lengths.
    pub fn times(&self, other: &Self) -> Self {
        let mut sums = vec![0_u64; self.digits.len() + other.digits.len()];
        for (i, a) in self.digits.iter().enumerate() {
            for (j, b) in other.digits.iter().enumerate() {
                sums[i + j + 1] += u64::from(a * b);
            }
        }
        let mut carry = 0;
        for sum in sums.iter_mut().rev() {
            carry += *sum;
            (*sum, carry) = (carry % 10, carry / 10);
        }
        let digits = sums.into_iter().map(|digit| digit as u8).collect();
        Self::new(self.negative != other.negative, digits, self.exponent + other.exponent)
    }

    pub fn plus(&self, other: &Self) -> Self {
        let exponent = self.exponent.min(other.exponent);
        let (a, b) = (self.down_to(exponent), other.down_to(exponent));
        if self.negative == other.negative {
            return Self::new(self.negative, add(&a, &b), exponent);
        }
        match self.compare_size(other) {
            Ordering::Less => Self::new(other.negative, subtract(&b, &a), exponent),
            _ => Self::new(self.negative, subtract(&a, &b), exponent),
        }
    }

    /// Compares without the signs.
    pub fn compare_size(&self, other: &Self) -> Ordering {
        let magnitude = |number: &Self| match number.is_zero() {
            true => i64::MIN,
            false => number.digits.len() as i64 + number.exponent,
        };
        // Without zeros at the ends, digits of one magnitude compare as texts do.
        (magnitude(self), &self.digits).cmp(&(magnitude(other), &other.digits))
    }

    /// The digits with zeros after them, so that the last is worth `10^exponent`, which is not above its own.
    fn down_to(&self, exponent: i64) -> Vec<u8> {
        let mut digits = self.digits.clone();
        if !self.is_zero() {
            digits.resize(digits.len() + (self.exponent - exponent) as usize, 0);
        }
        digits
    }
}

/// The sum of two whole numbers.
fn add(a: &[u8], b: &[u8]) -> Vec<u8> {
    let (mut a, mut b, mut carry) = (a.iter().rev(), b.iter().rev(), 0);
    let mut sum = vec![];
    loop {
        match (a.next(), b.next()) {
            (None, None) => break,
            (a, b) => carry += a.unwrap_or(&0) + b.unwrap_or(&0),
        }
        sum.push(carry % 10);
        carry /= 10;
    }
    sum.push(carry);
    sum.reverse();
    sum
}

/// The difference of two whole numbers, of which the first is not the smaller one.
fn subtract(a: &[u8], b: &[u8]) -> Vec<u8> {
    let (mut b, mut borrowed) = (b.iter().rev(), 0);
    let mut difference: Vec<u8> = vec![];
    for digit in a.iter().rev() {
        let less = b.next().unwrap_or(&0) + borrowed;
        borrowed = u8::from(*digit < less);
        difference.push(digit + 10 * borrowed - less);
    }
    difference.reverse();
    difference
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decimal(number: i64, exponent: i64) -> Decimal {
        let text = number.unsigned_abs().to_string();
        Decimal::new(number < 0, text.bytes().map(|digit| digit - b'0').collect(), exponent)
    }

    #[test]
    fn zeros_at_the_ends_do_not_count() {
        assert_eq!(decimal(-1200, -3), decimal(-12, -1));
        assert_eq!(decimal(0, 7), decimal(0, 0));
        assert!(decimal(1200, -2).is_whole() && !decimal(1200, -3).is_whole());
    }

    proptest::proptest! {
        #[test]
        fn sums_products_and_order_are_those_of_integers(
            a in -1_000_000_i64..1_000_000, b in -1_000_000_i64..1_000_000, shift in 0_u32..6,
        ) {
            let scale = 10_i64.pow(shift);
            let scaled = decimal(a, i64::from(shift));
            proptest::prop_assert_eq!(scaled.plus(&decimal(b, 0)), decimal(a * scale + b, 0));
            proptest::prop_assert_eq!(scaled.times(&decimal(b, 0)), decimal(a * scale * b, 0));
            proptest::prop_assert_eq!(scaled.compare_size(&decimal(b, 0)), (a * scale).abs().cmp(&b.abs()));
        }
    }
}
