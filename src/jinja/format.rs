//! `text % values` and `text.format(values)`.

use minijinja::value::ValueKind;
use minijinja::{Error, State, Value};

use super::method_names::is_method;
use super::numbers::Number;
use super::{charge, invalid, python};

/// Maximum number of digits after the point of a float.
const MAX_PRECISION: usize = 1000;

/// In place of the next field's number where fields have numbers of their own.
const BY_HAND: usize = usize::MAX;

type Result<T> = std::result::Result<T, Error>;

/// How a value is to be written.
#[derive(Default)]
struct Spec {
    fill: Option<char>,
    /// `<`, `>`, `^`, or `=` for filling between sign and digits.
    align: Option<char>,
    /// `+` or a space before what is not negative.
    sign: Option<char>,
    alternate: bool,
    zero: bool,
    width: usize,
    group: Option<char>,
    precision: Option<usize>,
    kind: Option<char>,
}

/// Characters of a format, read from left to right.
struct Reader<'t> {
    rest: &'t str,
}

impl Reader<'_> {
    fn next(&mut self) -> Option<char> {
        let c = self.rest.chars().next()?;
        self.rest = &self.rest[c.len_utf8()..];
        Some(c)
    }

    fn take(&mut self, allowed: &str) -> Option<char> {
        let c = self.rest.chars().next().filter(|c| allowed.contains(*c))?;
        self.rest = &self.rest[c.len_utf8()..];
        Some(c)
    }

    fn number(&mut self) -> Result<Option<usize>> {
        let end = self.rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.rest.len());
        let (digits, rest) = self.rest.split_at(end);
        self.rest = rest;
        let too_long = || invalid(format!("format: {digits:.40} is too large a number"));
        match digits {
            "" => Ok(None),
            digits => digits.parse().map(Some).map_err(|_| too_long()),
        }
    }
}

/// `text % values`.
pub(super) fn percent(state: &State, text: &str, values: &Value) -> Result<String> {
    let mut given = match values.is_tuple() {
        true => values.try_iter()?.checked().collect::<Result<Vec<_>>>()?,
        false => vec![values.clone()],
    };
    given.reverse();
    let mut by_name = matches!(values.kind(), ValueKind::Map | ValueKind::Seq) && !values.is_tuple();
    let too_few = || invalid("not enough arguments for format string");
    let mut reader = Reader { rest: text };
    let mut out = String::new();
    while let Some(c) = reader.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        charge(state, 0)?;
        let mut named = None;
        if reader.take("(").is_some() {
            let (name, rest) = reader
                .rest
                .split_once(')')
                .ok_or_else(|| invalid("incomplete format key"))?;
            reader.rest = rest;
            if values.kind() != ValueKind::Map {
                return Err(invalid("format requires a mapping"));
            }
            by_name = true;
            named = Some(values.get_item(&Value::from(name))?);
            if named.as_ref().is_some_and(Value::is_undefined) {
                return Err(invalid(format!("the format names `{name}`, which is not given")));
            }
        }
        let mut spec = Spec::default();
        while let Some(flag) = reader.take("-+ #0") {
            match flag {
                '-' => spec.align = Some('<'),
                '#' => spec.alternate = true,
                '0' => spec.zero = true,
                '+' => spec.sign = Some('+'),
                _ => spec.sign = spec.sign.or(Some(' ')),
            }
        }
        let size = |reader: &mut Reader<'_>, given: &mut Vec<Value>| match reader.take("*") {
            None => reader.number(),
            Some(_) => match i64::try_from(given.pop().ok_or_else(too_few)?) {
                Ok(size) if size >= 0 => Ok(Some(size as usize)),
                _ => Err(invalid("`*` in a format needs an integer from 0")),
            },
        };
        spec.width = size(&mut reader, &mut given)?.unwrap_or(0);
        if reader.take(".").is_some() {
            spec.precision = Some(size(&mut reader, &mut given)?.unwrap_or(0));
        }
        reader.take("hlL");
        let kind = reader.next().ok_or_else(|| invalid("incomplete format"))?;
        if kind == '%' {
            out.push('%');
            continue;
        }
        let value = match named {
            Some(value) => value,
            None => given.pop().ok_or_else(too_few)?,
        };
        spec.kind = Some(kind);
        out.push_str(&converted(state, spec, &value)?);
    }
    match given.is_empty() || by_name {
        true => Ok(out),
        false => Err(invalid("not all arguments converted during string formatting")),
    }
}

/// One conversion of `%`.
fn converted(state: &State, mut spec: Spec, value: &Value) -> Result<String> {
    let kind = spec.kind.unwrap_or_default();
    let whole = || Number::of(value).and_then(|number| number.truncated());
    let needs_number = || invalid(format!("%{kind} format: a number is required, not a {}", value.kind()));
    spec.align = spec.align.or(Some('>'));
    match kind {
        's' | 'r' => {
            let text = match kind {
                's' => python::text(state, value)?,
                _ => python::repr(state, value)?,
            };
            spec.zero = false;
            spec.text(state, &text)
        }
        'd' | 'i' | 'u' => {
            spec.kind = Some('d');
            let minimum = spec.precision.take();
            spec.whole(state, whole().ok_or_else(needs_number)?, minimum)
        }
        'x' | 'X' | 'o' => {
            let number = whole().filter(|_| value.kind() == ValueKind::Bool || value.is_integer());
            let minimum = spec.precision.take();
            spec.whole(state, number.ok_or_else(needs_number)?, minimum)
        }
        'e' | 'E' | 'f' | 'F' | 'g' | 'G' => {
            let number = Number::of(value).ok_or_else(needs_number)?;
            spec.float(state, number.float())
        }
        'c' => {
            let character = match value.as_str() {
                Some(text) if text.chars().count() == 1 => text.chars().next(),
                Some(_) => None,
                None => whole().and_then(|code| char::from_u32(u32::try_from(code).ok()?)),
            };
            spec.zero = false;
            spec.precision = None;
            spec.text(
                state,
                &character
                    .ok_or_else(|| invalid("%c requires an integer or one character"))?
                    .to_string(),
            )
        }
        kind => Err(invalid(format!("the format `%{kind}` is not supported"))),
    }
}

/// `text.format(values)`.
pub(super) fn braces(
    state: &State,
    text: &str,
    positional: &[Value],
    named: &dyn Fn(&str) -> Option<Value>,
) -> Result<String> {
    let mut reader = Reader { rest: text };
    let (mut out, mut next) = (String::new(), 0);
    while let Some(c) = reader.next() {
        match c {
            '{' | '}' if reader.take(&c.to_string()).is_some() => out.push(c),
            '}' => return Err(invalid("single `}` in a format")),
            '{' => {
                charge(state, 0)?;
                let (field, rest) = reader
                    .rest
                    .split_once('}')
                    .ok_or_else(|| invalid("expected `}` before the end of the format"))?;
                if field.contains('{') {
                    return Err(invalid("fields within fields of a format are not supported"));
                }
                reader.rest = rest;
                let (name, spec) = field.split_once(':').unwrap_or((field, ""));
                let (name, conversion) = name.split_once('!').unwrap_or((name, ""));
                let value = field_value(name, positional, named, &mut next)?;
                let value = match conversion {
                    "" => value,
                    "s" => Value::from(python::text(state, &value)?),
                    "r" => Value::from(python::repr(state, &value)?),
                    other => {
                        return Err(invalid(format!(
                            "the conversion `!{other}` is not supported in `format`"
                        )));
                    }
                };
                out.push_str(&formatted(state, &value, spec)?);
            }
            c => out.push(c),
        }
    }
    Ok(out)
}

/// The value of a field such as `0.name[key]`.
fn field_value(
    name: &str,
    positional: &[Value],
    named: &dyn Fn(&str) -> Option<Value>,
    next: &mut usize,
) -> Result<Value> {
    let end = name.find(['.', '[']).unwrap_or(name.len());
    let (first, mut path) = name.split_at(end);
    let missing = || invalid(format!("the format names `{first}`, which is not given"));
    let switched = || invalid("format: fields are numbered by hand or in order, not both");
    let mut value = match first.parse::<usize>() {
        Ok(_) if !matches!(*next, 0 | BY_HAND) => return Err(switched()),
        Ok(place) => {
            *next = BY_HAND;
            positional.get(place).cloned()
        }
        Err(_) if first.is_empty() && *next == BY_HAND => return Err(switched()),
        Err(_) if first.is_empty() => {
            *next += 1;
            positional.get(*next - 1).cloned()
        }
        Err(_) => named(first),
    }
    .ok_or_else(missing)?;
    while !path.is_empty() {
        let (key, rest) = match (
            path.strip_prefix('.'),
            path.strip_prefix('[').and_then(|path| path.split_once(']')),
        ) {
            (Some(path), _) => path.split_at(path.find(['.', '[']).unwrap_or(path.len())),
            (_, Some(item)) => item,
            _ => return Err(invalid(format!("the field `{name}` of a format is not closed"))),
        };
        value = match key.parse::<i64>() {
            Ok(place) => value.get_item(&Value::from(place))?,
            Err(_) if is_method(key) => {
                return Err(invalid(format!("the attribute `{key}` in a format is not supported")));
            }
            Err(_) => value.get_item(&Value::from(key))?,
        };
        if value.is_undefined() {
            return Err(invalid(format!("the format names `{key}`, which is not given")));
        }
        path = rest;
    }
    Ok(value)
}

fn formatted(state: &State, value: &Value, text: &str) -> Result<String> {
    if text.is_empty() {
        return python::text(state, value);
    }
    let mut spec = Spec::default();
    let mut reader = Reader { rest: text };
    let mut chars = text.chars();
    match (chars.next(), chars.next()) {
        (Some(fill), Some(align)) if "<>^=".contains(align) => {
            spec.fill = Some(fill);
            spec.align = Some(align);
            reader.rest = chars.as_str();
        }
        _ => spec.align = reader.take("<>^="),
    }
    spec.sign = reader.take("+- ").filter(|sign| *sign != '-');
    spec.alternate = reader.take("#").is_some();
    spec.zero = reader.take("0").is_some();
    spec.width = reader.number()?.unwrap_or(0);
    spec.group = reader.take(",_");
    if reader.take(".").is_some() {
        let digits = reader.number()?;
        spec.precision = Some(digits.ok_or_else(|| invalid("format specifier missing precision"))?);
    }
    spec.kind = reader.next();
    let unsupported = || {
        invalid(format!(
            "the format `{text:.40}` is not supported for a {}",
            value.kind()
        ))
    };
    if !reader.rest.is_empty() {
        return Err(unsupported());
    }
    if let Some(text) = value.as_str() {
        let of_numbers = spec.sign.is_some() || spec.alternate || spec.group.is_some() || spec.align == Some('=');
        return match spec.kind {
            None | Some('s') if !of_numbers => {
                if spec.zero {
                    spec.fill = spec.fill.or(Some('0'));
                    spec.zero = false;
                }
                spec.align = spec.align.or(Some('<'));
                spec.text(state, text)
            }
            _ => Err(unsupported()),
        };
    }
    let number = Number::of(value).ok_or_else(unsupported)?;
    let is_whole = value.kind() == ValueKind::Bool || value.is_integer();
    match (spec.kind, number.truncated()) {
        (None | Some('d' | 'x' | 'X' | 'o' | 'b'), Some(number)) if is_whole && spec.precision.is_none() => {
            spec.whole(state, number, None)
        }
        (None, _) if !is_whole && spec.precision.is_some() => Err(unsupported()),
        (None | Some('e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%'), _) if !(is_whole && spec.kind.is_none()) => {
            spec.float(state, number.float())
        }
        _ => Err(unsupported()),
    }
}

impl Spec {
    /// A text, cut to the precision and filled to the width.
    fn text(&self, state: &State, text: &str) -> Result<String> {
        let end = self.precision.and_then(|most| text.char_indices().nth(most));
        self.filled(state, "", end.map_or(text, |(end, _)| &text[..end]))
    }

    fn whole(&self, state: &State, number: i128, minimum: Option<usize>) -> Result<String> {
        let size = number.unsigned_abs();
        let (digits, prefix) = match self.kind {
            Some('x') => (format!("{size:x}"), "0x"),
            Some('X') => (format!("{size:X}"), "0X"),
            Some('o') => (format!("{size:o}"), "0o"),
            Some('b') => (format!("{size:b}"), "0b"),
            _ => (size.to_string(), ""),
        };
        let missing = minimum.unwrap_or(0).saturating_sub(digits.len());
        charge(state, missing)?;
        let digits = "0".repeat(missing) + &digits;
        let prefix = if self.alternate { prefix } else { "" };
        self.number(state, number < 0, prefix, &digits, "")
    }

    fn float(&self, state: &State, number: f64) -> Result<String> {
        let precision = self.precision.unwrap_or(6);
        if precision > MAX_PRECISION {
            return Err(invalid(format!(
                "format: a precision of {precision} exceeds the limit of {MAX_PRECISION}"
            )));
        }
        let kind = self.kind.unwrap_or('r');
        let size = number.abs();
        let mut text = match kind.to_ascii_lowercase() {
            _ if !number.is_finite() => python::float(size),
            'f' => format!("{size:.precision$}"),
            '%' => format!("{:.precision$}", size * 100.0),
            'e' => exponential(size, precision),
            'g' => general(size, precision.max(1), self.alternate),
            _ => python::float(size),
        };
        if self.alternate && precision == 0 && number.is_finite() {
            return Err(invalid(
                "the flag `#` is not supported for floats without digits after the point",
            ));
        }
        if kind.is_ascii_uppercase() {
            text = text.to_uppercase();
        }
        let (digits, rest) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
        let rest = if kind == '%' {
            format!("{rest}%")
        } else {
            rest.to_owned()
        };
        self.number(state, number.is_sign_negative() && !number.is_nan(), "", digits, &rest)
    }

    /// Sign, prefix, digits and what follows them, with groups and filling.
    fn number(&self, state: &State, negative: bool, prefix: &str, digits: &str, rest: &str) -> Result<String> {
        let sign = match (negative, self.sign) {
            (true, _) => "-",
            (_, Some('+')) => "+",
            (_, Some(_)) => " ",
            _ => "",
        };
        let digits = match self.group {
            Some(mark) if self.zero => {
                return Err(invalid(format!(
                    "a format with `{mark}` and leading zeros is not supported"
                )));
            }
            Some('_') if matches!(self.kind, Some('x' | 'X' | 'o' | 'b')) => {
                return Err(invalid("a format with `_` is supported for decimal numbers only"));
            }
            Some(mark) => grouped(digits, mark),
            None => digits.to_owned(),
        };
        self.filled(state, &format!("{sign}{prefix}"), &format!("{digits}{rest}"))
    }

    fn filled(&self, state: &State, sign: &str, text: &str) -> Result<String> {
        if self.width == 0 {
            charge(state, text.len())?;
            return Ok(format!("{sign}{text}"));
        }
        let missing = self.width.saturating_sub(sign.len() + text.chars().count());
        charge(state, missing.saturating_mul(4).saturating_add(text.len()))?;
        let zero = self.zero && matches!(self.align, None | Some('>')) && self.fill.is_none();
        let fill = self.fill.unwrap_or(if zero { '0' } else { ' ' }).to_string();
        let filling = |count: usize| fill.repeat(count);
        Ok(match self.align {
            _ if zero => format!("{sign}{}{text}", filling(missing)),
            Some('=') => format!("{sign}{}{text}", filling(missing)),
            Some('<') => format!("{sign}{text}{}", filling(missing)),
            Some('^') => format!("{}{sign}{text}{}", filling(missing / 2), filling(missing - missing / 2)),
            _ => format!("{}{sign}{text}", filling(missing)),
        })
    }
}

fn grouped(digits: &str, mark: char) -> String {
    let mut out = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(mark);
        }
        out.push(digit);
    }
    out
}

/// `%e`: an exponent of two digits at least.
fn exponential(size: f64, precision: usize) -> String {
    let text = format!("{size:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, exponent) = match exponent.strip_prefix('-') {
        Some(exponent) => ('-', exponent),
        None => ('+', exponent),
    };
    format!("{digits}e{sign}{exponent:0>2}")
}

/// Formats like `%g`: `digits` significant digits, in the shorter of the two notations.
fn general(size: f64, digits: usize, keep_zeros: bool) -> String {
    let scientific = exponential(size, digits - 1);
    let exponent: i64 = scientific
        .split_once('e')
        .and_then(|(_, exponent)| exponent.parse().ok())
        .unwrap_or(0);
    let (text, exponent) = if exponent < -4 || exponent >= digits as i64 {
        scientific
            .split_once('e')
            .map_or((scientific.clone(), ""), |(text, exponent)| (text.to_owned(), exponent))
    } else {
        let after = usize::try_from(digits as i64 - 1 - exponent).unwrap_or(0);
        (format!("{size:.after$}"), "")
    };
    let text = match text.contains('.') && !keep_zeros {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => &text,
    };
    match exponent {
        "" => text.to_owned(),
        exponent => format!("{text}e{exponent}"),
    }
}
