//! Arguments by place or by name, as Python functions take them.

use minijinja::value::{Kwargs, Rest, from_args};
use minijinja::{Error, Value};

use super::invalid;

/// Arguments in the order of a function's parameters; `None` stands for those that were not given, or are `none`.
pub(super) struct Arguments(Vec<Option<Value>>);

impl Arguments {
    /// Of a filter or function.
    pub(super) fn new(positional: Rest<Value>, keywords: Kwargs, names: &[&str]) -> Result<Self, Error> {
        if positional.len() > names.len() {
            return Err(invalid(format!(
                "{} arguments were given; allowed are {}",
                positional.len(),
                names.len()
            )));
        }
        let mut values = Vec::with_capacity(names.len());
        for (place, name) in names.iter().enumerate() {
            let value = match positional.get(place) {
                Some(value) => Some(value.clone()),
                None => keywords.get::<Option<Value>>(name)?,
            };
            values.push(value.filter(|value| !value.is_none()));
        }
        keywords.assert_all_used()?;
        Ok(Self(values))
    }

    /// Of a method.
    pub(super) fn of(args: &[Value], names: &[&str]) -> Result<Self, Error> {
        let (positional, keywords): (Rest<Value>, Kwargs) = from_args(args)?;
        Self::new(positional, keywords, names)
    }

    pub(super) fn value(&self, place: usize) -> Option<&Value> {
        self.0[place].as_ref()
    }

    pub(super) fn flag(&self, place: usize) -> bool {
        self.value(place).is_some_and(Value::is_true)
    }

    pub(super) fn number(&self, place: usize) -> Result<Option<i64>, Error> {
        let number =
            |value: &Value| i64::try_from(value.clone()).map_err(|_| invalid(format!("{value} is not an integer")));
        self.value(place).map(number).transpose()
    }

    pub(super) fn text(&self, place: usize) -> Result<Option<&str>, Error> {
        let text = |value| Value::as_str(value).ok_or_else(|| invalid(format!("{value} is not a string")));
        self.value(place).map(text).transpose()
    }

    pub(super) fn needed_text(&self, place: usize) -> Result<&str, Error> {
        self.text(place)?
            .ok_or_else(|| invalid("a string is missing among the arguments"))
    }
}
