//! What it costs to look at all of a value.

use minijinja::value::ValueKind;
use minijinja::{Error, State, Value};

use super::objects::{Generator, Range};
use super::{MAX_DEPTH, charge, invalid, is_tests};

/// Values of a container that are visited for one step.
const STEP_VALUES: usize = 2;

/// Pays for looking at all that a value holds, and refuses what is nested too deep.
pub(super) fn weigh(state: &State, value: &Value) -> Result<(), Error> {
    let mut seen = 0;
    weigh_within(state, value, 0, &mut seen)
}

fn weigh_within(state: &State, value: &Value, depth: usize, seen: &mut usize) -> Result<(), Error> {
    *seen += 1;
    if seen.is_multiple_of(STEP_VALUES) {
        charge(state, 0)?;
    }
    if depth > MAX_DEPTH {
        return Err(invalid(format!("a value is nested deeper than {MAX_DEPTH} levels")));
    }
    let mut inner = |value: Value| weigh_within(state, &value, depth + 1, seen);
    if let Some(generator) = value.downcast_object_ref::<Generator>() {
        return generator.peek().into_iter().try_for_each(inner);
    }
    match value.kind() {
        ValueKind::String => match value.as_str().map_or(0, str::len) / STEP_VALUES {
            0..512 => Ok(()),
            bytes => charge(state, bytes),
        },
        _ if is_tests::is_loop(value) => Err(invalid("`loop` as a value is not supported")),
        _ if value.downcast_object_ref::<Range>().is_some() => Ok(()),
        ValueKind::Seq | ValueKind::Iterable => value.try_iter()?.checked().try_for_each(|item| inner(item?)),
        ValueKind::Map => value.try_iter()?.checked().try_for_each(|key| {
            let key = key?;
            let item = value.get_item(&key)?;
            inner(key)?;
            inner(item)
        }),
        _ => Ok(()),
    }
}
