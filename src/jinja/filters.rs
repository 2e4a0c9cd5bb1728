//! Filters that minijinja does not have, or has otherwise than Jinja2.

use minijinja::value::{Kwargs, Rest, Tuple, ValueKind};
use minijinja::{Environment, Error, State, Value, filters};

use super::arguments::Arguments;
use super::escape::escape;
use super::methods::pairs_of;
use super::objects::Generator;
use super::operators::operate;
use super::weight::weigh;
use super::{charge, format, invalid, python, python_json, usable};

/// What `pprint` writes on one line.
const PRETTY_WIDTH: usize = 80;

pub(super) fn add_to(environment: &mut Environment<'static>) {
    environment.add_filter("tojson", to_json);
    environment.add_filter("string", |state: &State, value: &Value| python::text(state, value));
    environment.add_filter("int", to_int);
    environment.add_filter("float", to_float);
    environment.add_filter("list", to_list);
    environment.add_filter("__once", once);
    environment.add_filter("sum", sum);
    environment.add_filter("format", percent);
    environment.add_filter("join", join);
    environment.add_filter("indent", indent);
    environment.add_filter("sort", sort);
    environment.add_filter("dictsort", dictsort);
    environment.add_filter("unique", unique);
    environment.add_filter("default", default);
    environment.add_filter("d", default);
    environment.add_filter("attr", attr);
    environment.add_filter("pprint", pprint);
    environment.add_filter("wordcount", word_count);
    environment.add_filter("truncate", truncate);
    environment.add_filter("center", center);
    environment.add_filter("capitalize", |state: &mut State, value: &Value| {
        let text = Value::from(python::text(state, value)?);
        super::methods::call(state, &text, "capitalize", &[])
    });
    for name in ["escape", "e", "forceescape"] {
        environment.add_filter(name, escape);
    }
}

fn given(value: &Value) -> Result<&Value, Error> {
    match value.kind() {
        ValueKind::Undefined => Err(invalid("the value is undefined")),
        _ => Ok(value),
    }
}

/// `json.dumps` with its own defaults and without HTML escapes.
fn to_json(state: &State, value: &Value, positional: Rest<Value>, keywords: Kwargs) -> Result<String, Error> {
    let names = ["ensure_ascii", "indent", "separators", "sort_keys"];
    let arguments = Arguments::new(positional, keywords, &names)?;
    let mut style = python_json::Style {
        ensure_ascii: arguments.flag(0),
        sort_keys: arguments.flag(3),
        ..python_json::Style::default()
    };
    if let Some(indent) = arguments.value(1) {
        let width = i64::try_from(indent.clone()).ok();
        style.indent = match width.map(|width| usize::try_from(width).unwrap_or(0)) {
            Some(width) => {
                charge(state, width)?;
                Some(" ".repeat(width))
            }
            None => indent.as_str().map(String::from),
        };
        style.item_separator = ",".into();
    }
    if let Some(separators) = arguments.value(2) {
        style.item_separator = separators.get_item_by_index(0)?.to_string();
        style.key_separator = separators.get_item_by_index(1)?.to_string();
    }
    python_json::dumps(usable(state, value)?, &style, &|bytes| charge(state, bytes))
}

fn to_int(value: &Value, positional: Rest<Value>, keywords: Kwargs) -> Result<Value, Error> {
    let arguments = Arguments::new(positional, keywords, &["default", "base"])?;
    let base = arguments.number(1)?.unwrap_or(10);
    let base = u32::try_from(base).ok().filter(|base| (2..=36).contains(base));
    let base = base.ok_or_else(|| invalid("int: the base must be from 2 to 36"))?;
    let whole = |float: f64| (float.abs() < 1e38).then_some(float.trunc() as i128);
    let number = match given(value)?.as_str() {
        Some(text) => python::parse_int(text, base).or_else(|| whole(python::parse_float(text)?)),
        None => match value.kind() {
            ValueKind::Bool => Some(i128::from(value.is_true())),
            ValueKind::Number if value.is_integer() => return Ok(value.clone()),
            ValueKind::Number => match whole(f64::try_from(value.clone())?) {
                Some(number) => Some(number),
                None => return Err(invalid(format!("int: {value} has no integer value"))),
            },
            _ => None,
        },
    };
    let default = || arguments.value(0).cloned().unwrap_or(Value::from(0));
    Ok(number.map_or_else(default, Value::from))
}

fn to_float(value: &Value, positional: Rest<Value>, keywords: Kwargs) -> Result<Value, Error> {
    let arguments = Arguments::new(positional, keywords, &["default"])?;
    let number = match given(value)?.as_str() {
        Some(text) => python::parse_float(text),
        None => match value.kind() {
            ValueKind::Bool => Some(if value.is_true() { 1.0 } else { 0.0 }),
            ValueKind::Number => f64::try_from(value.clone())
                .ok()
                .or_else(|| value.to_string().parse().ok()),
            _ => None,
        },
    };
    let default = || arguments.value(0).cloned().unwrap_or(Value::from(0.0));
    Ok(number.map_or_else(default, Value::from))
}

fn items(state: &State, value: &Value) -> Result<Vec<Value>, Error> {
    if value.is_none() {
        return Err(invalid("none cannot be iterated"));
    }
    let paid = |item| charge(state, 0).and(item);
    usable(state, value)?.try_iter()?.checked().map(paid).collect()
}

fn to_list(state: &State, value: &Value) -> Result<Value, Error> {
    items(state, value).map(Value::from)
}

/// What `map` and its like give can be gone through once.
fn once(state: &State, value: Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::String | ValueKind::Undefined => Ok(value),
        _ => items(state, &value).map(Generator::value),
    }
}

fn sum(state: &State, value: &Value, positional: Rest<Value>, keywords: Kwargs) -> Result<Value, Error> {
    let arguments = Arguments::new(positional, keywords, &["attribute", "start"])?;
    let start = arguments.value(1).cloned().unwrap_or(Value::from(0));
    if start.as_str().is_some() {
        return Err(invalid("sum: strings are joined by the filter `join`"));
    }
    items(state, value)?.into_iter().try_fold(start, |sum, item| {
        let item = match arguments.value(0) {
            Some(path) => attribute(item, path)?,
            None => item,
        };
        operate(state, &sum, "+", &item)
    })
}

fn percent(state: &State, text: &Value, positional: Rest<Value>, keywords: Kwargs) -> Result<String, Error> {
    let text = python::text(state, text)?;
    let named: Vec<&str> = keywords.args().collect();
    let values = match (positional.is_empty(), named.is_empty()) {
        (false, false) => return Err(invalid("format: values by place and by name cannot be mixed")),
        (_, false) => {
            let pair = |name: &str| Ok((Value::from(name), keywords.get::<Value>(name)?));
            let pairs: Vec<_> = named.into_iter().map(pair).collect::<Result<_, Error>>()?;
            Value::from_pairs(pairs)
        }
        _ => Value::from(Tuple::from(positional.to_vec())),
    };
    format::percent(state, &text, &values)
}

fn join(state: &State, value: &Value, positional: Rest<Value>, keywords: Kwargs) -> Result<String, Error> {
    let arguments = Arguments::new(positional, keywords, &["d", "attribute"])?;
    let separator = arguments
        .value(0)
        .map_or(Ok(String::new()), |d| python::text(state, d))?;
    let mut out = String::new();
    if value.is_none() {
        return Err(invalid("none cannot be iterated"));
    }
    for (place, item) in usable(state, value)?.try_iter()?.checked().enumerate() {
        let mut item = item?;
        if let Some(path) = arguments.value(1) {
            item = attribute(item, path)?;
        }
        let text = python::text(state, &item)?;
        charge(state, text.len() + separator.len())?;
        if place > 0 {
            out.push_str(&separator);
        }
        out.push_str(&text);
    }
    Ok(out)
}

/// `item.a.b`, by a dotted path or an index.
fn attribute(item: Value, path: &Value) -> Result<Value, Error> {
    let Some(path) = path.as_str() else {
        return item.get_item(path);
    };
    path.split('.').try_fold(item, |item, key| match key.parse::<usize>() {
        Ok(place) => item.get_item_by_index(place),
        Err(_) => item.get_attr(key),
    })
}

fn indent(state: &State, value: &Value, positional: Rest<Value>, keywords: Kwargs) -> Result<String, Error> {
    let arguments = Arguments::new(positional, keywords, &["width", "first", "blank"])?;
    let text = value
        .as_str()
        .ok_or_else(|| invalid(format!("indent: a {} is not a string", value.kind())))?;
    let (first, blank) = (arguments.flag(1), arguments.flag(2));
    let with_end = format!("{text}\n");
    let lines = python::lines(&with_end, false);
    let indention = match arguments.value(0).and_then(Value::as_str) {
        Some(indention) => indention.to_owned(),
        None => {
            let width = usize::try_from(arguments.number(0)?.unwrap_or(4)).unwrap_or(0);
            charge(state, width)?;
            " ".repeat(width)
        }
    };
    charge(state, lines.len().saturating_mul(indention.len()) + text.len())?;
    let mut out = String::new();
    for (place, line) in lines.iter().enumerate() {
        if place > 0 {
            out.push('\n');
        }
        if (place == 0 && first) || (place > 0 && (blank || !line.is_empty())) {
            out.push_str(&indention);
        }
        out.push_str(line);
    }
    Ok(out)
}

/// Python compares values of one kind only.
fn check_comparable<'a>(values: impl IntoIterator<Item = &'a Value>) -> Result<(), Error> {
    let kind = |value: &Value| match value.kind() {
        ValueKind::Bool => ValueKind::Number,
        kind => kind,
    };
    let mut kinds: Vec<ValueKind> = values.into_iter().map(kind).collect();
    if kinds.len() > 1
        && kinds
            .iter()
            .any(|kind| matches!(kind, ValueKind::None | ValueKind::Map))
    {
        return Err(invalid(format!("values of kind {} have no order", kinds[0])));
    }
    kinds.dedup();
    match kinds[..] {
        [first, second, ..] => Err(invalid(format!("a {first} and a {second} have no order"))),
        _ => Ok(()),
    }
}

fn named(arguments: &Arguments, names: &[&'static str]) -> Kwargs {
    let given = names.iter().enumerate();
    given
        .filter_map(|(place, name)| Some((*name, arguments.value(place)?.clone())))
        .collect()
}

fn sort(state: &State, value: Value, positional: Rest<Value>, keywords: Kwargs) -> Result<Value, Error> {
    let names = ["reverse", "case_sensitive", "attribute"];
    let arguments = Arguments::new(positional, keywords, &names)?;
    let items = items(state, &value)?;
    if arguments.value(2).is_none() {
        check_comparable(&items)?;
    }
    filters::sort(state, Value::from(items), named(&arguments, &names))
}

fn dictsort(state: &State, value: &Value, positional: Rest<Value>, keywords: Kwargs) -> Result<Value, Error> {
    let names = ["case_sensitive", "by", "reverse"];
    let arguments = Arguments::new(positional, keywords, &names)?;
    let pairs = pairs_of(value)?;
    charge(state, pairs.len().saturating_mul(64))?;
    match arguments.text(1)? {
        Some("value") => check_comparable(pairs.iter().map(|(_, item)| item))?,
        _ => check_comparable(pairs.iter().map(|(key, _)| key))?,
    }
    filters::dictsort(value, named(&arguments, &names))
}

fn unique(state: &State, value: Value, positional: Rest<Value>, keywords: Kwargs) -> Result<Value, Error> {
    let names = ["case_sensitive", "attribute"];
    let arguments = Arguments::new(positional, keywords, &names)?;
    weigh(state, &value)?;
    filters::unique(state, value, named(&arguments, &names))
}

fn default(value: &Value, positional: Rest<Value>, keywords: Kwargs) -> Result<Value, Error> {
    let nothing = positional.is_empty() && !keywords.has("default_value");
    let none = positional.first().is_some_and(Value::is_none);
    let arguments = Arguments::new(positional, keywords, &["default_value", "boolean"])?;
    if !value.is_undefined() && (value.is_true() || !arguments.flag(1)) {
        return Ok(value.clone());
    }
    let fallback = match (nothing, none) {
        (true, _) => Value::from(""),
        (_, true) => Value::from(()),
        _ => arguments.value(0).cloned().unwrap_or(Value::from(())),
    };
    Ok(fallback)
}

/// An attribute as Python has it, which is never an item.
fn attr(value: &Value, name: &str) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Map => Ok(Value::UNDEFINED),
        kind => Err(invalid(format!(
            "attr: attributes of a {kind}, such as `{name}`, are not supported"
        ))),
    }
}

fn pprint(state: &State, value: &Value) -> Result<String, Error> {
    let text = python::repr(state, value)?;
    if text.chars().count() > PRETTY_WIDTH {
        return Err(invalid(format!(
            "pprint: values longer than {PRETTY_WIDTH} characters are not supported"
        )));
    }
    Ok(text)
}

fn word_count(state: &State, value: &Value) -> Result<usize, Error> {
    let text = python::text(state, value)?;
    let words = text.split(|c: char| !(c.is_alphanumeric() || c == '_'));
    Ok(words.filter(|word| !word.is_empty()).count())
}

fn truncate(state: &State, value: &Value, positional: Rest<Value>, keywords: Kwargs) -> Result<String, Error> {
    let arguments = Arguments::new(positional, keywords, &["length", "killwords", "end", "leeway"])?;
    let size = |place, default| -> Result<usize, Error> {
        let number = arguments.number(place)?.unwrap_or(default);
        usize::try_from(number).map_err(|_| invalid(format!("truncate: {number} is negative")))
    };
    let (length, leeway) = (size(0, 255)?, size(3, 5)?);
    let end = arguments.text(2)?.unwrap_or("...");
    let text = python::text(state, value)?;
    let Some(room) = length.checked_sub(end.chars().count()) else {
        return Err(invalid(format!(
            "truncate: expected length >= {}, got {length}",
            end.chars().count()
        )));
    };
    if text.chars().count() <= length.saturating_add(leeway) {
        return Ok(text);
    }
    let cut: String = text.chars().take(room).collect();
    let kept = match arguments.flag(1) {
        true => cut.as_str(),
        false => cut.rsplit_once(' ').map_or(cut.as_str(), |(kept, _)| kept),
    };
    Ok(format!("{kept}{end}"))
}

fn center(state: &mut State, value: &Value, width: Option<i64>) -> Result<Value, Error> {
    let text = Value::from(python::text(state, value)?);
    super::methods::call(state, &text, "center", &[Value::from(width.unwrap_or(80))])
}
