//! Numbers as Python calculates with them.

use minijinja::Value;
use minijinja::value::ValueKind;

/// A number, booleans among them, as Python calculates with it.
#[derive(Clone, Copy)]
pub(super) enum Number {
    Whole(i128),
    Float(f64),
}

impl Number {
    pub(super) fn of(value: &Value) -> Option<Self> {
        match value.kind() {
            ValueKind::Bool => Some(Self::Whole(i128::from(value.is_true()))),
            ValueKind::Number if value.is_integer() => i128::try_from(value.clone()).ok().map(Self::Whole),
            ValueKind::Number => f64::try_from(value.clone()).ok().map(Self::Float),
            _ => None,
        }
    }

    pub(super) fn truncated(self) -> Option<i128> {
        match self {
            Self::Whole(number) => Some(number),
            Self::Float(number) => (number.abs() < 1e38).then_some(number.trunc() as i128),
        }
    }

    pub(super) fn float(self) -> f64 {
        match self {
            Self::Whole(number) => number as f64,
            Self::Float(number) => number,
        }
    }
}
