//! The two ways in which templates are read.

/// How templates treat the white space around tags and names that are undefined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialect {
    /// As `transformers` sets Jinja2 up: a tag takes its line with it, and an undefined name is empty text.
    #[default]
    Chat,
    /// Jinja2 with `StrictUndefined`: text stays as it stands, and the use of an undefined name is an error.
    Job,
}
