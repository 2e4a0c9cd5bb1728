//! Methods of Python's strings, lists and dictionaries.

use std::sync::Arc;

use minijinja::value::{Kwargs, Object, ObjectRepr, Rest, Tuple, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;

use super::arguments::Arguments;
use super::method_names::{HIDDEN, OF_DICTIONARIES, OF_LISTS, OF_NUMBERS, OF_STRINGS};
use super::objects::View;
use super::weight::weigh;
use super::{charge, format, invalid, is_tests, python, usable};

/// A method of a value that is not called, or not yet.
#[derive(Debug)]
pub(super) struct Method {
    of: Value,
    name: String,
}

impl Method {
    /// The value's method of this name.
    pub(super) fn of(value: &Value, name: &str) -> Result<Option<Value>, Error> {
        let names = match value.kind() {
            ValueKind::Map if is_tests::is_namespace(value) || is_tests::is_loop(value) => return Ok(None),
            ValueKind::Map | ValueKind::Seq if HIDDEN.contains(&name) && !value.is_tuple() => {
                return Ok(Some(Value::UNDEFINED));
            }
            ValueKind::String => &OF_STRINGS[..],
            ValueKind::Map => &OF_DICTIONARIES,
            ValueKind::Seq if value.is_tuple() => &["count", "index"],
            ValueKind::Seq => &OF_LISTS,
            ValueKind::Number | ValueKind::Bool if OF_NUMBERS.contains(&name) => {
                return Err(invalid(format!(
                    "attributes of numbers, such as `{name}`, are not supported"
                )));
            }
            _ => &[],
        };
        let method = || {
            Value::from_object(Self {
                of: value.clone(),
                name: name.to_owned(),
            })
        };
        Ok(names.contains(&name).then(method))
    }
}

impl Object for Method {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        self.of.call_method(state, &self.name, args)
    }
}

/// Calls a method that minijinja's values do not have.
pub(super) fn call(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let own = match value.kind() {
        ValueKind::String => string(state, value.as_str().unwrap_or_default(), method, args)?,
        ValueKind::Map if !is_tests::is_namespace(value) => dictionary(state, value, method, args)?,
        ValueKind::Seq | ValueKind::Iterable if value.downcast_object_ref::<View>().is_none() => {
            list(state, value, method, args)?
        }
        _ => None,
    };
    match own {
        Some(result) => Ok(result),
        None => pycompat::unknown_method_callback(state, value, method, args),
    }
}

fn string(state: &State, text: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    charge(state, text.len())?;
    let nothing = || Arguments::of(args, &[]).map(|_| ());
    let all = |holds: fn(char) -> bool| nothing().map(|()| Value::from(!text.is_empty() && text.chars().all(holds)));
    Ok(Some(match method {
        "index" | "rindex" | "find" | "rfind" | "count" => search(text, method, args)?,
        "startswith" | "endswith" if args.len() > 1 => {
            let arguments = Arguments::of(args, &["prefix", "start", "end"])?;
            let (_, part) = part(text, arguments.number(1)?, arguments.number(2)?);
            return string(state, part, method, &args[..1]);
        }
        "split" | "rsplit" => split(text, method, args)?,
        "splitlines" => {
            let arguments = Arguments::of(args, &["keepends"])?;
            let lines = python::lines(text, arguments.flag(0));
            lines.into_iter().map(Value::from).collect()
        }
        "partition" | "rpartition" => partition(text, method, args)?,
        "removeprefix" | "removesuffix" => {
            let arguments = Arguments::of(args, &["affix"])?;
            let affix = arguments.needed_text(0)?;
            let rest = match method {
                "removeprefix" => text.strip_prefix(affix),
                _ => text.strip_suffix(affix),
            };
            Value::from(rest.unwrap_or(text))
        }
        "join" => {
            let arguments = Arguments::of(args, &["items"])?;
            let items = arguments
                .value(0)
                .ok_or_else(|| invalid("join needs a list of strings"))?;
            join(state, text, items)?
        }
        "center" | "ljust" | "rjust" | "zfill" => Value::from(padded(state, text, method, args)?),
        "expandtabs" => Value::from(expand_tabs(state, text, args)?),
        "title" => {
            nothing()?;
            Value::from(title(text)?)
        }
        "capitalize" => {
            nothing()?;
            let mut chars = text.chars();
            let first = chars.next().map_or(Ok(String::new()), titled)?;
            Value::from(first + &chars.as_str().to_lowercase())
        }
        "swapcase" => {
            nothing()?;
            let swapped = text.chars().map(|c| {
                if c.is_uppercase() {
                    c.to_lowercase().to_string()
                } else {
                    c.to_uppercase().to_string()
                }
            });
            Value::from(swapped.collect::<String>())
        }
        "isdigit" => all(|c| c.is_ascii_digit() || matches!(c, '²' | '³' | '¹' | '⁰' | '⁴'..='⁹' | '₀'..='₉'))?,
        "isdecimal" => all(|c| c.is_ascii_digit())?,
        "format" => {
            let (positional, named): (Rest<Value>, Kwargs) = from_args(args)?;
            let named = |name: &str| named.get::<Value>(name).ok();
            Value::from(format::braces(state, text, &positional, &named)?)
        }
        "replace" => Value::from(replaced(state, text, args)?),
        _ => return Ok(None),
    }))
}

/// The characters from `start` to `end` of a text, and how many come before them.
fn part(text: &str, start: Option<i64>, end: Option<i64>) -> (usize, &str) {
    let length = text.chars().count() as i64;
    let place = |at: i64| (if at < 0 { at + length } else { at }).clamp(0, length) as usize;
    let (start, end) = (place(start.unwrap_or(0)), place(end.unwrap_or(length)));
    let byte = |at: usize| text.char_indices().nth(at).map_or(text.len(), |(byte, _)| byte);
    (start, &text[byte(start)..byte(end.max(start))])
}

fn search(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let arguments = Arguments::of(args, &["sub", "start", "end"])?;
    let wanted = arguments.needed_text(0)?;
    let (before, part) = part(text, arguments.number(1)?, arguments.number(2)?);
    if method == "count" {
        return Ok(Value::from(part.matches(wanted).count()));
    }
    let found = if method.starts_with('r') {
        part.rfind(wanted)
    } else {
        part.find(wanted)
    };
    match found {
        Some(byte) => Ok(Value::from(before + part[..byte].chars().count())),
        None if method.ends_with("find") => Ok(Value::from(-1)),
        None => Err(invalid("substring not found")),
    }
}

fn split(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let arguments = Arguments::of(args, &["sep", "maxsplit"])?;
    let limit = arguments.number(1)?.and_then(|n| usize::try_from(n).ok());
    let limit = limit.map_or(usize::MAX, |n| n.saturating_add(1));
    let from_right = method == "rsplit";
    let mut parts: Vec<&str> = match arguments.text(0)? {
        Some("") => return Err(invalid("empty separator")),
        Some(separator) if from_right => text.rsplitn(limit, separator).collect(),
        Some(separator) => text.splitn(limit, separator).collect(),
        None => words(text, limit, from_right),
    };
    if from_right {
        parts.reverse();
    }
    Ok(parts.into_iter().map(Value::from).collect())
}

/// Words between white space in the order they are met, the last of `limit` with all that follows.
fn words(text: &str, limit: usize, from_right: bool) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = text;
    loop {
        rest = if from_right { rest.trim_end() } else { rest.trim_start() };
        let cut = match from_right {
            true => rest
                .rsplit_once(char::is_whitespace)
                .map(|(before, word)| (word, before)),
            false => rest.split_once(char::is_whitespace),
        };
        match cut {
            _ if rest.is_empty() => return words,
            Some((word, after)) if words.len() + 1 < limit => {
                words.push(word);
                rest = after;
            }
            _ => {
                words.push(rest);
                return words;
            }
        }
    }
}

fn partition(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let arguments = Arguments::of(args, &["sep"])?;
    let separator = arguments.needed_text(0)?;
    let parts = match (method, separator) {
        (_, "") => return Err(invalid("empty separator")),
        ("partition", _) => match text.split_once(separator) {
            Some((before, after)) => [before, separator, after],
            None => [text, "", ""],
        },
        _ => match text.rsplit_once(separator) {
            Some((before, after)) => [before, separator, after],
            None => ["", "", text],
        },
    };
    Ok(Value::from(Tuple::from(parts.map(Value::from))))
}

fn join(state: &State, separator: &str, items: &Value) -> Result<Value, Error> {
    let mut out = String::new();
    for (place, item) in usable(state, items)?.try_iter()?.checked().enumerate() {
        let item = item?;
        let text = item
            .as_str()
            .ok_or_else(|| invalid(format!("join: item {place} is a {}, not a string", item.kind())))?;
        charge(state, text.len() + separator.len())?;
        if place > 0 {
            out.push_str(separator);
        }
        out.push_str(text);
    }
    Ok(Value::from(out))
}

fn replaced(state: &State, text: &str, args: &[Value]) -> Result<String, Error> {
    if args.last().is_some_and(Value::is_kwargs) {
        return Err(invalid("replace takes its arguments by place only"));
    }
    let arguments = Arguments::of(args, &["old", "new", "count"])?;
    let (old, new) = (arguments.needed_text(0)?, arguments.needed_text(1)?);
    let limit = arguments.number(2)?.and_then(|count| usize::try_from(count).ok());
    let found = text.matches(old).count().min(limit.unwrap_or(usize::MAX));
    charge(state, text.len().saturating_add(found.saturating_mul(new.len())))?;
    Ok(text.replacen(old, new, found))
}

fn padded(state: &State, text: &str, method: &str, args: &[Value]) -> Result<String, Error> {
    let arguments = Arguments::of(args, &["width", "fillchar"])?;
    let width = arguments
        .number(0)?
        .ok_or_else(|| invalid(format!("{method} needs a width")))?;
    let width = usize::try_from(width).unwrap_or(0);
    let missing = width.saturating_sub(text.chars().count());
    let fill = match arguments.text(1)?.unwrap_or(if method == "zfill" { "0" } else { " " }) {
        fill if fill.chars().count() == 1 => fill,
        fill => return Err(invalid(format!("`{fill}` is not one character"))),
    };
    charge(state, missing.saturating_mul(fill.len()))?;
    let pad = |count: usize| fill.repeat(count);
    Ok(match method {
        "ljust" => format!("{text}{}", pad(missing)),
        "rjust" => format!("{}{text}", pad(missing)),
        "zfill" => {
            let (sign, digits) = text.split_at(usize::from(text.starts_with(['+', '-'])));
            format!("{sign}{}{digits}", pad(missing))
        }
        _ => {
            let left = missing / 2 + (missing & width & 1);
            format!("{}{text}{}", pad(left), pad(missing - left))
        }
    })
}

fn expand_tabs(state: &State, text: &str, args: &[Value]) -> Result<String, Error> {
    let arguments = Arguments::of(args, &["tabsize"])?;
    let size = usize::try_from(arguments.number(0)?.unwrap_or(8)).unwrap_or(0);
    let (mut out, mut column) = (String::new(), 0);
    for c in text.chars() {
        match c {
            '\t' if size > 0 => {
                let spaces = size - column % size;
                charge(state, spaces)?;
                out.push_str(&" ".repeat(spaces));
                column += spaces;
            }
            '\t' => {}
            c => {
                out.push(c);
                column = if matches!(c, '\n' | '\r') { 0 } else { column + 1 };
            }
        }
    }
    Ok(out)
}

/// Letters after anything but a letter are capitals.
fn title(text: &str) -> Result<String, Error> {
    let mut after_letter = false;
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match after_letter {
            true => out.extend(c.to_lowercase()),
            false => out.push_str(&titled(c)?),
        }
        after_letter = c.is_alphabetic();
    }
    Ok(out)
}

/// A letter as words begin with it.
fn titled(c: char) -> Result<String, Error> {
    if matches!(c, '\u{1c4}'..='\u{1cc}' | '\u{1f1}'..='\u{1f3}' | '\u{10d0}'..='\u{10ff}' | '\u{1f80}'..='\u{1fff}') {
        return Err(invalid(format!("the letter `{c}` as a capital is not supported")));
    }
    let mut upper = c.to_uppercase();
    let first = upper.next().unwrap_or(c).to_string();
    Ok(first + &upper.collect::<String>().to_lowercase())
}

fn dictionary(state: &State, value: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let view = |name, pick: fn((Value, Value)) -> Value| -> Result<Option<Value>, Error> {
        Arguments::of(args, &[])?;
        charge(state, value.len().unwrap_or(0).saturating_mul(64))?;
        let items = pairs_of(value)?.into_iter().map(pick).collect();
        Ok(Some(Value::from_object(View { name, items })))
    };
    match method {
        "keys" => view("dict_keys", |(key, _)| key),
        "values" => view("dict_values", |(_, item)| item),
        "items" => view("dict_items", |(key, item)| Value::from(Tuple::from([key, item]))),
        "copy" => Arguments::of(args, &[]).map(|_| Some(value.clone())),
        _ => Ok(None),
    }
}

/// The entries of a dictionary.
pub(super) fn pairs_of(value: &Value) -> Result<Vec<(Value, Value)>, Error> {
    let pair = |key: Result<Value, Error>| {
        let key = key?;
        let item = value.get_item(&key)?;
        Ok((key, item))
    };
    value.try_iter()?.checked().map(pair).collect()
}

fn list(state: &State, value: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    match method {
        "index" => {
            let arguments = Arguments::of(args, &["value"])?;
            weigh(state, value)?;
            let wanted = arguments.value(0).cloned().unwrap_or(Value::from(()));
            for (place, item) in value.try_iter()?.checked().enumerate() {
                if item? == wanted {
                    return Ok(Some(Value::from(place)));
                }
            }
            Err(invalid(format!("{wanted} is not in the list")))
        }
        "copy" if !value.is_tuple() => Arguments::of(args, &[]).map(|_| Some(value.clone())),
        "append" | "extend" | "insert" | "pop" | "remove" | "clear" | "sort" | "reverse" => Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("`{method}` changes a list, which templates may not"),
        )),
        _ => Ok(None),
    }
}
