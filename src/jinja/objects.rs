//! Python's objects that minijinja does not have.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use minijinja::value::{Enumerator, Object, ObjectRepr};
use minijinja::{Error, Value};

use super::invalid;
use super::slices::bounds;

/// Numbers of a range, as Jinja2's sandbox allows them.
const MAX_RANGE: usize = 100_000;

/// What `keys`, `values` and `items` of a dictionary give.
#[derive(Debug)]
pub(super) struct View {
    pub(super) name: &'static str,
    pub(super) items: Vec<Value>,
}

impl Object for View {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.items.clone())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// An integer beyond 128 bits, which is only printed.
#[derive(Debug)]
pub(super) struct Digits(pub(super) String);

impl Object for Digits {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What filters such as `map` give: items that are taken once.
#[derive(Debug)]
pub(super) struct Generator(Mutex<VecDeque<Value>>);

impl Generator {
    pub(super) fn value(items: Vec<Value>) -> Value {
        Value::from_object(Self(Mutex::new(items.into())))
    }

    fn items(&self) -> MutexGuard<'_, VecDeque<Value>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes all that is left.
    pub(super) fn rest(&self) -> Vec<Value> {
        std::mem::take(&mut *self.items()).into()
    }

    /// What is left, which stays.
    pub(super) fn peek(&self) -> Vec<Value> {
        self.items().iter().cloned().collect()
    }
}

impl Object for Generator {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        let generator = self.clone();
        Enumerator::Iter(Box::new(std::iter::from_fn(move || generator.items().pop_front())))
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        None
    }

    fn is_true(self: &Arc<Self>) -> bool {
        true
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<generator>")
    }
}

/// `range(start, stop, step)`.
#[derive(Debug)]
pub(super) struct Range {
    start: i64,
    stop: i64,
    step: i64,
}

impl Range {
    pub(super) fn value(first: i64, stop: Option<i64>, step: Option<i64>) -> Result<Value, Error> {
        let (start, stop) = stop.map_or((0, first), |stop| (first, stop));
        let range = Self {
            start,
            stop,
            step: step.unwrap_or(1),
        };
        if range.step == 0 {
            return Err(invalid("range: the step is 0"));
        }
        if range.length() > MAX_RANGE {
            return Err(invalid(format!(
                "range: {} numbers exceed the limit of {MAX_RANGE}",
                range.length()
            )));
        }
        Ok(Value::from_object(range))
    }

    fn length(&self) -> usize {
        let (start, stop, step) = (i128::from(self.start), i128::from(self.stop), i128::from(self.step));
        let span = if step > 0 { stop - start } else { start - stop };
        let step = step.abs();
        usize::try_from((span.max(0) + step - 1) / step).unwrap_or(usize::MAX)
    }

    fn at(&self, place: usize) -> i64 {
        self.start
            .saturating_add(self.step.saturating_mul(i64::try_from(place).unwrap_or(i64::MAX)))
    }

    /// A slice of it.
    pub(super) fn part(&self, start: Option<i64>, stop: Option<i64>, step: i64) -> Self {
        let (start, stop) = bounds(self.length(), start, stop, step);
        let at = |place: i64| self.start.saturating_add(self.step.saturating_mul(place));
        Self {
            start: at(start),
            stop: at(stop),
            step: self.step.saturating_mul(step),
        }
    }
}

impl Object for Range {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let place = usize::try_from(key.clone())
            .ok()
            .filter(|place| *place < self.length())?;
        Some(Value::from(self.at(place)))
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.length())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "range({}, {}", self.start, self.stop)?;
        match self.step {
            1 => f.write_str(")"),
            step => write!(f, ", {step})"),
        }
    }
}
