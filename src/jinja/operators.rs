//! What operators, subscripts and assignments of a template become: see `rewrite`.

use std::cmp::Ordering;

use minijinja::value::{Rest, Tuple, ValueKind};
use minijinja::{Environment, Error, State, Value};

use super::escape::escape;
use super::methods::Method;
use super::numbers::Number;
use super::objects::{Generator, Range};
use super::slices::places;
use super::weight::weigh;
use super::{charge, defined, format, invalid, is_strict, is_tests, python, usable};

/// Integers up to here are floats without loss.
const EXACT: i128 = 1 << 53;

type Result<T> = std::result::Result<T, Error>;

pub(super) fn add_to(environment: &mut Environment<'static>) {
    environment.add_function("__operate", |state: &State, terms: Rest<Value>| {
        fold(&terms, |left, operator, right| operate(state, &left, operator, right))
    });
    environment.add_function("__compare", compare_all);
    environment.add_function("__signed", signed);
    environment.add_function("__item", item);
    environment.add_function("__part", part);
    environment.add_function("__attribute", attribute);
    environment.add_function("__kept", kept);
    environment.add_function("__each", each);
}

/// From left to right over operands with operators between them.
fn fold(terms: &[Value], apply: impl Fn(Value, &str, &Value) -> Result<Value>) -> Result<Value> {
    let (first, rest) = terms
        .split_first()
        .ok_or_else(|| invalid("an operator has no operands"))?;
    rest.chunks_exact(2).try_fold(first.clone(), |left, pair| {
        apply(left, pair[0].as_str().unwrap_or_default(), &pair[1])
    })
}

pub(super) fn operate(state: &State, left: &Value, operator: &str, right: &Value) -> Result<Value> {
    if operator == "~" {
        let (left, right) = (python::text(state, left)?, python::text(state, right)?);
        charge(state, left.len() + right.len())?;
        return Ok(Value::from(left + &right));
    }
    defined(left)?;
    if operator == "%"
        && let Some(text) = left.as_str()
        && !(is_strict(state) && right.is_undefined())
    {
        if left.is_safe() {
            return Err(invalid("`%` after text that was escaped is not supported"));
        }
        return format::percent(state, text, right).map(Value::from);
    }
    defined(right)?;
    if let (Some(a), Some(b)) = (Number::of(left), Number::of(right)) {
        return calculate(a, operator, b).map_err(|why| invalid(format!("{left} {operator} {right}: {why}")));
    }
    match operator {
        "+" => add(state, left, right),
        "*" => match (Number::of(left), Number::of(right)) {
            (Some(Number::Whole(times)), _) => repeat(state, right, times),
            (_, Some(Number::Whole(times))) => repeat(state, left, times),
            _ => Err(unsupported(left, operator, right)),
        },
        _ => Err(unsupported(left, operator, right)),
    }
}

fn unsupported(left: &Value, operator: &str, right: &Value) -> Error {
    invalid(format!(
        "`{operator}` is not defined between a {} and a {}",
        left.kind(),
        right.kind()
    ))
}

fn calculate(a: Number, operator: &str, b: Number) -> std::result::Result<Value, &'static str> {
    const TOO_LARGE: &str = "the result has more than 128 bits";
    if let (Number::Whole(a), Number::Whole(b)) = (a, b) {
        let whole = |result: Option<i128>| result.map(Value::from).ok_or(TOO_LARGE);
        return match operator {
            "+" => whole(a.checked_add(b)),
            "-" => whole(a.checked_sub(b)),
            "*" => whole(a.checked_mul(b)),
            "//" | "%" | "/" if b == 0 => Err("division by zero"),
            "//" => whole(a.checked_div_euclid(b).and_then(|q| {
                let has_rest = a.checked_rem_euclid(b)? != 0;
                q.checked_sub(i128::from(has_rest && b < 0))
            })),
            "%" => whole(a.checked_rem_euclid(b).map(|r| if r != 0 && b < 0 { r + b } else { r })),
            "**" if b >= 0 => whole(u32::try_from(b).ok().and_then(|b| a.checked_pow(b))),
            "**" if a == 0 => Err("division by zero"),
            "/" | "**" if a.abs() > EXACT || b.abs() > EXACT => Err("the numbers have more than 53 bits"),
            "/" => Ok(Value::from(a as f64 / b as f64)),
            "**" => Ok(Value::from((a as f64).powf(b as f64))),
            _ => Err("unknown operator"),
        };
    }
    let (a, b) = (a.float(), b.float());
    Ok(Value::from(match operator {
        "+" => a + b,
        "-" => a - b,
        "*" => a * b,
        "//" | "%" | "/" if b == 0.0 => return Err("division by zero"),
        "/" => a / b,
        "//" => divided(a, b).0,
        "%" => divided(a, b).1,
        "**" => match a.powf(b) {
            power if power.is_nan() && !a.is_nan() && !b.is_nan() => return Err("the result is not a real number"),
            power if power.is_infinite() && a.is_finite() && b.is_finite() => return Err("the result is out of range"),
            power => power,
        },
        _ => return Err("unknown operator"),
    }))
}

/// `divmod` of floats.
fn divided(a: f64, b: f64) -> (f64, f64) {
    let mut rest = a % b;
    let mut quotient = (a - rest) / b;
    if rest == 0.0 {
        rest = 0.0_f64.copysign(b);
    } else if (b < 0.0) != (rest < 0.0) {
        rest += b;
        quotient -= 1.0;
    }
    if quotient == 0.0 {
        return (0.0_f64.copysign(a / b), rest);
    }
    let floor = quotient.floor();
    (if quotient - floor > 0.5 { floor + 1.0 } else { floor }, rest)
}

fn is_list(value: &Value) -> bool {
    value.kind() == ValueKind::Seq
}

fn items(state: &State, value: &Value) -> Result<Vec<Value>> {
    charge(state, value.len().unwrap_or(0).saturating_mul(32))?;
    value.try_iter()?.checked().collect()
}

/// A list, or a tuple where `like` is one.
fn sequence(like: &Value, items: Vec<Value>) -> Value {
    match like.is_tuple() {
        true => Value::from(Tuple::from(items)),
        false => Value::from(items),
    }
}

fn add(state: &State, left: &Value, right: &Value) -> Result<Value> {
    if let (Some(a), Some(b)) = (left.as_str(), right.as_str()) {
        charge(state, a.len() + b.len())?;
        if left.is_safe() || right.is_safe() {
            // As markupsafe: what is added to escaped text is escaped too.
            let (left, right) = (escape(state, left)?, escape(state, right)?);
            return Ok(Value::from_safe_string(left.to_string() + &right.to_string()));
        }
        return Ok(Value::from(format!("{a}{b}")));
    }
    if !is_list(left) || !is_list(right) || left.is_tuple() != right.is_tuple() {
        return Err(unsupported(left, "+", right));
    }
    let mut all = items(state, left)?;
    all.extend(items(state, right)?);
    Ok(sequence(left, all))
}

fn repeat(state: &State, value: &Value, times: i128) -> Result<Value> {
    let times = usize::try_from(times.max(0)).unwrap_or(usize::MAX);
    if let Some(text) = value.as_str() {
        charge(state, text.len().saturating_mul(times))?;
        return Ok(Value::from(text.repeat(if text.is_empty() { 0 } else { times })));
    }
    if !is_list(value) {
        return Err(unsupported(value, "*", &Value::from(times)));
    }
    let once = items(state, value)?;
    charge(state, once.len().saturating_mul(32).saturating_mul(times))?;
    let length = once.len().saturating_mul(times);
    Ok(sequence(value, once.iter().cycle().take(length).cloned().collect()))
}

fn signed(sign: &str, value: &Value) -> Result<Value> {
    match (Number::of(defined(value)?), sign) {
        (Some(Number::Whole(number)), "+") => Ok(Value::from(number)),
        (Some(Number::Whole(number)), _) => number
            .checked_neg()
            .map(Value::from)
            .ok_or_else(|| invalid(format!("-{value} has more than 128 bits"))),
        (Some(Number::Float(number)), "+") => Ok(Value::from(number)),
        (Some(Number::Float(number)), _) => Ok(Value::from(-number)),
        _ => Err(invalid(format!("`{sign}` is not defined for a {}", value.kind()))),
    }
}

fn compare_all(state: &State, terms: Rest<Value>) -> Result<bool> {
    for triple in terms.windows(3).step_by(2) {
        if !compare(state, &triple[0], triple[1].as_str().unwrap_or_default(), &triple[2])? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn compare(state: &State, left: &Value, operator: &str, right: &Value) -> Result<bool> {
    usable(state, left).and(usable(state, right))?;
    weigh(state, left)?;
    weigh(state, right)?;
    Ok(match operator {
        "==" => equal(left, right),
        "!=" => !equal(left, right),
        "in" => contains(left, right)?,
        "not in" => !contains(left, right)?,
        _ => {
            let order = order(left, operator, right)?;
            match operator {
                "<" => order == Some(Ordering::Less),
                ">" => order == Some(Ordering::Greater),
                "<=" => matches!(order, Some(Ordering::Less | Ordering::Equal)),
                _ => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
            }
        }
    })
}

pub(super) fn equal(left: &Value, right: &Value) -> bool {
    match (Number::of(left), Number::of(right)) {
        (Some(Number::Float(a)), _) | (_, Some(Number::Float(a))) if a.is_nan() => false,
        _ => left == right,
    }
}

/// Python orders numbers, texts, lists and tuples, each among themselves.
fn order(left: &Value, operator: &str, right: &Value) -> Result<Option<Ordering>> {
    if let (Some(a), Some(b)) = (Number::of(left), Number::of(right)) {
        return Ok(match (a, b) {
            (Number::Whole(a), Number::Whole(b)) => Some(a.cmp(&b)),
            (Number::Float(a), Number::Float(b)) => a.partial_cmp(&b),
            _ if a.float().is_nan() || b.float().is_nan() => None,
            _ => Some(left.cmp(right)),
        });
    }
    if let (Some(a), Some(b)) = (left.as_str(), right.as_str()) {
        return Ok(Some(a.cmp(b)));
    }
    if !is_list(left) || !is_list(right) || left.is_tuple() != right.is_tuple() {
        return Err(unsupported(left, operator, right));
    }
    for (a, b) in left.try_iter()?.zip(right.try_iter()?) {
        if !equal(&a, &b) {
            return order(&a, operator, &b);
        }
    }
    Ok(Some(left.len().cmp(&right.len())))
}

fn contains(item: &Value, container: &Value) -> Result<bool> {
    match (container.kind(), container.as_str(), item.as_str()) {
        (ValueKind::Undefined, ..) => Ok(false),
        (_, Some(text), Some(part)) => Ok(text.contains(part)),
        (ValueKind::Map, ..) if !is_tests::is_namespace(container) => {
            Ok(!container.get_item(item)?.is_undefined() || keys(container)?.any(|key| key == *item))
        }
        (ValueKind::Seq | ValueKind::Iterable, ..) => Ok(container.try_iter()?.any(|other| equal(&other, item))),
        _ => Err(unsupported(item, "in", container)),
    }
}

fn keys(container: &Value) -> Result<impl Iterator<Item = Value>> {
    container.try_iter()
}

/// `of[key]`, which in Jinja2 may also be an attribute.
fn item(state: &State, of: &Value, key: &Value) -> Result<Value> {
    defined(of)?;
    usable(state, key)?;
    let get = |place: i128| of.get_item(&Value::from(i64::try_from(place).unwrap_or(i64::MAX)));
    let found = match (of.kind(), Number::of(key)) {
        (ValueKind::Map, _) => of.get_item(key)?,
        (ValueKind::Seq | ValueKind::String, Some(Number::Whole(place))) => get(place)?,
        (_, Some(Number::Whole(place))) if of.downcast_object_ref::<Range>().is_some() => get(place)?,

        _ => Value::UNDEFINED,
    };
    match key.as_str() {
        Some(name) if found.is_undefined() => Method::of(of, name).map(|method| method.unwrap_or(Value::UNDEFINED)),
        _ => Ok(found),
    }
}

/// `of.name`, which in Jinja2 is an item only where it is no method.
fn attribute(of: &Value, name: &str) -> Result<Value> {
    match Method::of(defined(of)?, name)? {
        Some(method) => Ok(method),
        None => of.get_attr(name),
    }
}

/// `of[start:stop:step]`.
fn part(state: &State, of: &Value, start: &Value, stop: &Value, step: Option<&Value>) -> Result<Value> {
    defined(of)?;
    let bound = |value: &Value| match (value.is_none(), Number::of(value)) {
        (true, _) => Some(None),
        (_, Some(Number::Whole(number))) => Some(Some(i64::try_from(number).unwrap_or(i64::MAX))),
        _ => None,
    };
    let step = step.map_or(Some(None), bound);
    let (Some(start), Some(stop), Some(step)) = (bound(start), bound(stop), step) else {
        return Err(invalid("the bounds of a slice must be integers"));
    };
    let step = step.unwrap_or(1);
    if step == 0 {
        return Err(invalid("the step of a slice is 0"));
    }
    if let Some(range) = of.downcast_object_ref::<Range>() {
        return Ok(Value::from_object(range.part(start, stop, step)));
    }
    if !matches!(of.kind(), ValueKind::Seq | ValueKind::String) {
        return Err(invalid(format!("a {} has no slices", of.kind())));
    }
    if let Some(text) = of.as_str() {
        charge(state, text.len().saturating_mul(4))?;
        let chars: Vec<char> = text.chars().collect();
        let places = places(chars.len(), start, stop, step);
        return Ok(Value::from(places.map(|at| chars[at]).collect::<String>()));
    }
    let items = items(state, of)?;
    let places = places(items.len(), start, stop, step);
    Ok(sequence(of, places.map(|at| items[at].clone()).collect()))
}

/// A value that a name will hold: nested no deeper than it can be printed, compared and let go.
fn kept(state: &State, value: Value) -> Result<Value> {
    weigh(state, &value)?;
    Ok(value)
}

/// What a loop goes through.
fn each(state: &State, value: Value) -> Result<Value> {
    usable(state, &value)?;
    if value.is_none() {
        return Err(invalid("none cannot be iterated"));
    }
    weigh(state, &value)?;
    match value.downcast_object_ref::<Generator>() {
        Some(generator) => Ok(Value::from(generator.rest())),
        None => Ok(value),
    }
}
