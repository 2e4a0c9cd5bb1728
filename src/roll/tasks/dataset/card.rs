//! The configurations of a data set, as the header of its README has them.

use indexmap::IndexMap;
use serde::Deserialize;
use serde_json::Value;

use super::layout::{Patterns, TRAIN};
use crate::config::yaml;
use crate::roll::tasks::rows::Options;

/// A named part of a data set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Configuration {
    /// Its name.
    pub name: String,
    /// Whether it is read where none is named.
    pub is_default: bool,
    /// Which files belong to which split; inferred from the files' names where absent.
    pub patterns: Option<Patterns>,
    /// The directory that its files are in.
    pub directory: Option<String>,
    /// How its files are read.
    pub options: Options,
    /// Parameters that have no effect here.
    pub ignored: Vec<String>,
}

/// The part of the header that says how files are read.
#[derive(Deserialize)]
struct Header {
    #[serde(default)]
    configs: Option<Vec<IndexMap<String, Value>>>,
}

/// Reads the configurations of a README; none where it has no header or no `configs`.
///
/// # Errors
/// Fails with what is wrong with the header.
pub fn configurations(readme: &str) -> Result<Vec<Configuration>, String> {
    let Some(header) = header(readme) else {
        return Ok(vec![]);
    };
    let wrong = |error: &dyn std::fmt::Display| format!("the README's header: {error}");
    let header = yaml::parse(header).map_err(|error| wrong(&error))?.to_json();
    let header: Option<Header> = serde_json::from_value(header).map_err(|error| wrong(&error))?;
    let configs = header.and_then(|header| header.configs);
    configs.unwrap_or_default().iter().map(configuration).collect()
}

/// The YAML between the two lines `---` that a README begins with.
fn header(readme: &str) -> Option<&str> {
    let text = readme.trim_start_matches('\u{feff}').trim_start();
    let text = text.strip_prefix("---")?.trim_start_matches(' ');
    let text = text.strip_prefix("\r\n").or_else(|| text.strip_prefix('\n'))?;
    let end = text.find("\n---").map_or(text.len(), |end| end + 1);
    Some(&text[..end]).filter(|header| !header.trim().is_empty())
}

fn configuration(entries: &IndexMap<String, Value>) -> Result<Configuration, String> {
    let mut configuration = Configuration::default();
    for (key, value) in entries {
        let wrong = |allowed: &str| format!("the README's configs: {key} is not {allowed}");
        match key.as_str() {
            "config_name" => configuration.name = text(value).ok_or_else(|| wrong("text"))?,
            "default" => configuration.is_default = value.as_bool().ok_or_else(|| wrong("true or false"))?,
            "data_files" => configuration.patterns = Some(patterns(value)?),
            "data_dir" => configuration.directory = Some(text(value).ok_or_else(|| wrong("text"))?),
            "field" => configuration.options.field = Some(text(value).ok_or_else(|| wrong("text"))?),
            "sep" | "delimiter" => {
                configuration.options.delimiter = Some(byte(value).ok_or_else(|| wrong("one ASCII character"))?);
            }
            "quotechar" => {
                configuration.options.quote = Some(byte(value).ok_or_else(|| wrong("one ASCII character"))?);
            }
            "names" | "column_names" => {
                configuration.options.column_names = Some(texts(value).ok_or_else(|| wrong("a list of texts"))?);
            }
            "description" | "version" | "features" => {}
            other => configuration.ignored.push(other.to_owned()),
        }
    }
    match configuration.name.is_empty() {
        true => Err("the README's configs: a configuration has no config_name".into()),
        false => Ok(configuration),
    }
}

/// A pattern, a list of patterns, or a list of splits with theirs.
fn patterns(value: &Value) -> Result<Patterns, String> {
    let wrong = || {
        "the README's configs: data_files is not a pattern, a list of patterns, or a list of {split, path}".to_string()
    };
    if let Some(all) = texts(value) {
        return Ok(Patterns::from([(TRAIN.to_owned(), all)]));
    }
    let mut patterns = Patterns::new();
    for entry in value.as_array().ok_or_else(wrong)? {
        let split = entry.get("split").and_then(text).ok_or_else(wrong)?;
        let paths = entry.get("path").and_then(texts).ok_or_else(wrong)?;
        if patterns.insert(split.clone(), paths).is_some() {
            return Err(format!(
                "the README's configs: data_files names the split {split:?} twice"
            ));
        }
    }
    Ok(patterns)
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// One text or a list of texts.
fn texts(value: &Value) -> Option<Vec<String>> {
    match value {
        Value::Array(items) => items.iter().map(text).collect(),
        one => Some(vec![text(one)?]),
    }
}

fn byte(value: &Value) -> Option<u8> {
    match value.as_str()?.as_bytes() {
        [byte] if byte.is_ascii() => Some(*byte),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(configuration: &Configuration) -> (&str, bool) {
        (&configuration.name, configuration.is_default)
    }

    #[test]
    fn every_form_of_data_files_is_read() {
        let readme = "---\nlicense: mit\nconfigs:\n\
            - config_name: main\n  default: true\n  data_files:\n\
            \x20 - split: train\n    path: main/train-*\n  - split: test\n    path: [a, b]\n\
            - config_name: one\n  data_files: one.csv\n  sep: '\t'\n\
            - config_name: many\n  data_files: [x/*, y/*]\n  data_dir: sub\n  field: data\n  encoding: latin-1\n\
            ---\n# Title\n---\n";
        let found = configurations(readme).unwrap();
        assert_eq!(
            found.iter().map(named).collect::<Vec<_>>(),
            [("main", true), ("one", false), ("many", false)]
        );
        let patterns = |index: usize| format!("{:?}", found[index].patterns.as_ref().unwrap());
        assert_eq!(patterns(0), r#"{"train": ["main/train-*"], "test": ["a", "b"]}"#);
        assert_eq!(patterns(1), r#"{"train": ["one.csv"]}"#);
        assert_eq!(patterns(2), r#"{"train": ["x/*", "y/*"]}"#);
        assert_eq!(found[1].options.delimiter, Some(b'\t'));
        assert_eq!(found[2].options.field.as_deref(), Some("data"));
        assert_eq!(found[2].directory.as_deref(), Some("sub"));
        assert_eq!(found[2].ignored, ["encoding"]);
    }

    #[test]
    fn a_readme_without_configurations_has_none() {
        for readme in [
            "",
            "# Title\n---\na: b\n---\n",
            "---\nlicense: mit\n---\n",
            "---\n---\n",
            "---",
        ] {
            assert_eq!(configurations(readme), Ok(vec![]), "{readme:?}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (header, told) in [
            ("configs: [", "header"),
            ("configs: [{data_files: x}]", "no config_name"),
            (
                "configs: [{config_name: a, data_files: [{split: t}]}]",
                "data_files is not",
            ),
            (
                "configs: [{config_name: a, data_files: [{split: t, path: a}, {split: t, path: b}]}]",
                "\"t\" twice",
            ),
            ("configs: [{config_name: a, sep: ab}]", "sep is not one ASCII character"),
        ] {
            let message = configurations(&format!("---\n{header}\n---\n")).unwrap_err();
            assert!(message.contains(told), "{message}");
        }
    }
}
