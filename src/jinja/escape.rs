//! Text made safe for HTML, as markupsafe does it.

use minijinja::{Error, State, Value};

use super::{charge, python};

/// The value as text in which HTML has no meaning; text that is marked safe stays.
pub(super) fn escape(state: &State, value: &Value) -> Result<Value, Error> {
    if value.is_safe() {
        return Ok(value.clone());
    }
    let text = python::text(state, value)?;
    charge(state, text.len().saturating_mul(5))?;
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            c => out.push(c),
        }
    }
    Ok(Value::from_safe_string(out))
}
