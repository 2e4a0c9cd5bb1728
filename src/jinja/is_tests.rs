//! Tests (`is …`) that answer as Python's types would.

use minijinja::value::ValueKind;
use minijinja::{Environment, Error, State, Value};

use super::objects::{Generator, View};
use super::{invalid, usable};

pub(super) fn add_to(environment: &mut Environment<'static>) {
    environment.add_test("iterable", |state: &State, value: &Value| {
        usable(state, value).map(is_iterable)
    });
    environment.add_test("sequence", |state: &State, value: &Value| {
        usable(state, value).is_ok_and(is_sequence)
    });
    environment.add_test("mapping", is_mapping);
    environment.add_test("callable", is_callable);
    environment.add_test("odd", |value: &Value| is_odd(value));
    environment.add_test("even", |value: &Value| is_odd(value).map(|odd| !odd));
}

fn is_iterable(value: &Value) -> bool {
    match value.kind() {
        ValueKind::Undefined | ValueKind::String | ValueKind::Seq | ValueKind::Iterable => true,
        ValueKind::Map => !is_namespace(value),
        _ => false,
    }
}

fn is_sequence(value: &Value) -> bool {
    let is_taken_in_order =
        value.downcast_object_ref::<View>().is_some() || value.downcast_object_ref::<Generator>().is_some();
    is_iterable(value) && !is_taken_in_order
}

fn is_mapping(value: &Value) -> bool {
    value.kind() == ValueKind::Map && !is_namespace(value)
}

fn is_callable(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Undefined | ValueKind::Plain)
}

pub(super) fn is_namespace(value: &Value) -> bool {
    is_of_type(value, "Namespace")
}

pub(super) fn is_loop(value: &Value) -> bool {
    is_of_type(value, "::Loop")
}

/// Types of minijinja that are not public.
fn is_of_type(value: &Value, name: &str) -> bool {
    value
        .as_object()
        .is_some_and(|object| object.type_name().ends_with(name))
}

fn is_odd(value: &Value) -> Result<bool, Error> {
    if let (ValueKind::Number | ValueKind::Bool, Ok(number)) = (value.kind(), f64::try_from(value.clone())) {
        let whole = i128::try_from(value.clone()).map(|n| n.rem_euclid(2) as f64);
        return Ok(whole.unwrap_or(number.rem_euclid(2.0)) == 1.0);
    }
    Err(invalid(format!("a {} is neither odd nor even", value.kind())))
}
