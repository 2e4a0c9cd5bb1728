//! Bodies that clients should not send: valid ones with something wrong in them.

use rand::Rng;
use rand::seq::IndexedRandom;
use serde_json::{Map, Value, json};

/// One wrong body made of a valid one: nine times in ten with a value, key or shape that is not expected, otherwise
/// with bytes that are no JSON any more.
pub fn body(valid: &Value, rng: &mut impl Rng) -> Vec<u8> {
    let mut value = valid.clone();
    for _ in 0..rng.random_range(1..=3) {
        structure(&mut value, rng);
    }
    let mut bytes = value.to_string().into_bytes();
    match rng.random_range(0..20) {
        0 | 1 => raw(&mut bytes, rng),
        2 => replace_literal(&mut bytes, rng),
        3 => bytes = duplicate_keys(&value).into_bytes(),
        _ => {}
    }
    bytes
}

/// Text in which something is wrong, line by line or byte by byte: for YAML, whose structure is its layout.
pub fn text(valid: &str, rng: &mut impl Rng) -> String {
    let mut lines: Vec<String> = valid.lines().map(str::to_owned).collect();
    for _ in 0..rng.random_range(1..=4) {
        let at = rng.random_range(0..lines.len());
        match rng.random_range(0..8) {
            0 => drop(lines.remove(at)),
            1 => lines.insert(at, lines[rng.random_range(0..lines.len())].clone()),
            2 => lines[at].insert_str(0, "  "),
            3 => lines[at] = lines[at].trim_start().to_owned(),
            4 => {
                let other = rng.random_range(0..lines.len());
                lines.swap(at, other);
            }
            _ => {
                let key = lines[at].split(':').next().unwrap_or_default().to_owned();
                lines[at] = format!("{key}: {}", SCALARS.choose(rng).unwrap());
            }
        }
        if lines.is_empty() {
            lines.push(String::new());
        }
    }
    let mut bytes = lines.join("\n").into_bytes();
    if rng.random_ratio(1, 5) {
        raw(&mut bytes, rng);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

const SCALARS: [&str; 24] = [
    "",
    "null",
    "~",
    "0",
    "-1",
    "1e400",
    "-.inf",
    ".nan",
    "0x7fffffffffffffffffff",
    "9223372036854775808",
    "1e-9",
    "yes",
    "''",
    "\"\\ud800\"",
    "[",
    "[[[[[]]]]]",
    "{}",
    "{a: {b: c}}",
    "&a [*a]",
    "*missing",
    "!!binary aGk=",
    "!tag x",
    "|\n   text",
    "<<: {a: 1}",
];

/// Changes one place of a value to something that nobody expects there.
fn structure(value: &mut Value, rng: &mut impl Rng) {
    match value {
        Value::Object(object) if !object.is_empty() && rng.random_ratio(9, 10) => {
            let keys: Vec<String> = object.keys().cloned().collect();
            let key = keys.choose(rng).unwrap();
            match rng.random_range(0..10) {
                0 => drop(object.remove(key)),
                1 => {
                    let inner = object.remove(key).unwrap_or_default();
                    object.insert(strange_text(rng), inner);
                }
                2 => drop(object.insert(strange_text(rng), strange(rng))),
                _ => structure(&mut object[key.as_str()], rng),
            }
        }
        Value::Array(list) if !list.is_empty() && rng.random_ratio(4, 5) => {
            let at = rng.random_range(0..list.len());
            match rng.random_range(0..4) {
                0 => drop(list.remove(at)),
                1 => list.insert(at, strange(rng)),
                _ => structure(&mut list[at], rng),
            }
        }
        other => *other = strange(rng),
    }
}

fn strange(rng: &mut impl Rng) -> Value {
    match rng.random_range(0..14) {
        0 => Value::Null,
        1 => json!(rng.random::<bool>()),
        2 => json!(rng.random::<i64>()),
        3 => json!(u64::MAX),
        4 => json!(-1),
        5 => json!(0),
        6 => json!(f64::MAX),
        7 => json!(-f64::MIN_POSITIVE),
        8 => json!([]),
        9 => json!({}),
        10 => json!([null, 1, "a", [2]]),
        11 => deep(rng.random_range(1..400)),
        _ => json!(strange_text(rng)),
    }
}

fn deep(levels: usize) -> Value {
    (0..levels).fold(Value::Null, |inner, level| match level % 2 {
        0 => json!([inner]),
        _ => Value::Object(Map::from_iter([("a".to_owned(), inner)])),
    })
}

fn strange_text(rng: &mut impl Rng) -> String {
    match rng.random_range(0..10) {
        0 => String::new(),
        1 => "\0".into(),
        2 => "a/../../b".into(),
        3 => "\u{202e}\u{feff}\u{1f980}".into(),
        4 => "NaN".into(),
        5 => "x".repeat(rng.random_range(1..5000)),
        6 => "ENGINE.ROLLING".into(),
        7 => "sk-ajet-0".into(),
        8 => "{\"a\":1}\r\n\r\nGET / HTTP/1.1".into(),
        _ => (0..rng.random_range(1..12)).map(|_| rng.random::<char>()).collect(),
    }
}

/// Changes bytes without looking at what they mean.
pub fn raw(bytes: &mut Vec<u8>, rng: &mut impl Rng) {
    for _ in 0..rng.random_range(1..=4) {
        let at = rng.random_range(0..=bytes.len());
        match rng.random_range(0..5) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, rng.random()),
            2 if at < bytes.len() => bytes[at] ^= 1 << rng.random_range(0..8),
            3 if at < bytes.len() => drop(bytes.remove(at)),
            _ => bytes.extend_from_within(at..),
        }
    }
}

/// Numbers as JSON does not have them.
fn replace_literal(bytes: &mut Vec<u8>, rng: &mut impl Rng) {
    let literal = *[
        "NaN",
        "-Infinity",
        "1e999",
        "-0",
        "00",
        "1_0",
        "0x1",
        "+1",
        "true false",
        "'a'",
    ]
    .choose(rng)
    .unwrap();
    let text = String::from_utf8_lossy(bytes).into_owned();
    let places: Vec<usize> = text.match_indices(':').map(|(at, _)| at + 1).collect();
    if let Some(&at) = places.choose(rng) {
        let end = text[at..].find([',', '}']).map_or(text.len(), |end| at + end);
        *bytes = [&text[..at], literal, &text[end..]].concat().into_bytes();
    }
}

/// Every key of the outermost object twice.
fn duplicate_keys(value: &Value) -> String {
    let text = value.to_string();
    match text.strip_suffix('}') {
        Some(open) if text.len() > 2 => format!("{open},{}", &text[1..]),
        _ => text,
    }
}
