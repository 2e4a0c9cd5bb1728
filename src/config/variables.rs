//! `${VAR}` in the values of a document that the user wrote.

use super::error::Problem;
use super::keys::join;
use super::node::Node;

/// Replaces `${VAR}` and `${VAR:-default}` in every scalar by what `lookup` knows of the variable. `$${` stands for
/// `${`, and what has no name of a variable in it, such as `${oc.select:a,1}`, stays as it is.
///
/// This runs after parsing, so that a variable's text cannot add keys. Documents from the network must not get here.
///
/// # Errors
/// Fails if variables have neither a value nor a default, with the keys that name them.
pub fn expand(document: &mut Node, lookup: &dyn Fn(&str) -> Option<String>) -> Result<(), Vec<Problem>> {
    let mut problems = vec![];
    expand_below(document, "", lookup, &mut problems);
    match problems.is_empty() {
        true => Ok(()),
        false => Err(problems),
    }
}

type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

fn expand_below(node: &mut Node, path: &str, lookup: Lookup, problems: &mut Vec<Problem>) {
    match node {
        Node::Scalar(scalar) => match expand_text(&scalar.text, lookup) {
            Ok(text) => scalar.text = text,
            Err(name) => {
                let message = format!(
                    "the environment variable {name} is not set; `${{{name}:-default}}` gives a default, and `$${{` stands \
                     for `${{`"
                );
                problems.push(Problem::new(path, message));
            }
        },
        Node::List(items) => {
            for (index, item) in items.iter_mut().enumerate() {
                expand_below(item, &format!("{path}[{index}]"), lookup, problems);
            }
        }
        Node::Section(entries) => {
            for (name, node) in entries {
                expand_below(node, &join(path, name), lookup, problems);
            }
        }
    }
}

/// The text with its variables replaced, or the name of the first one without a value.
fn expand_text(text: &str, lookup: Lookup) -> Result<String, String> {
    let mut expanded = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        let (before, from) = rest.split_at(at);
        expanded.push_str(before);
        let variable = from.find('}').and_then(|end| Some((variable(&from[2..end])?, end)));
        match variable {
            _ if before.ends_with('$') => {
                expanded.push('{'); // the `$` before is there already
                rest = &from[2..];
            }
            Some(((name, default), end)) => {
                let value = lookup(name).filter(|value| default.is_none() || !value.is_empty());
                let value = value.or_else(|| default.map(str::to_owned));
                expanded.push_str(&value.ok_or_else(|| name.to_owned())?);
                rest = &from[end + 1..];
            }
            None => {
                expanded.push_str("${");
                rest = &from[2..];
            }
        }
    }
    expanded.push_str(rest);
    Ok(expanded)
}

/// A variable's name and its default, if the text between the braces is that.
fn variable(text: &str) -> Option<(&str, Option<&str>)> {
    let (name, default) = match text.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (text, None),
    };
    let is_name = name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    is_name.then_some((name, default))
}

#[cfg(test)]
mod tests {
    use super::super::yaml::parse;
    use super::*;

    fn lookup(name: &str) -> Option<String> {
        match name {
            "LR" => Some("1e-4".into()),
            "EMPTY" => Some(String::new()),
            "EVIL" => Some("x, y: [\n1".into()),
            _ => None,
        }
    }

    #[test]
    fn variables_are_replaced_in_scalars() {
        for (text, want) in [
            ("${LR}", "1e-4"),
            ("lr=${LR}, ${LR}", "lr=1e-4, 1e-4"),
            ("${NONE:-a b}", "a b"),
            ("${EMPTY:-a}", "a"),
            ("${EMPTY}", ""),
            ("${LR:-a}", "1e-4"),
            ("$${LR}", "${LR}"),
            ("$$${LR}", "$${LR}"),
            ("$LR $ {LR} ${ ${}", "$LR $ {LR} ${ ${}"),
            ("${oc.select:a,1}", "${oc.select:a,1}"),
            ("${1A}", "${1A}"),
            ("${EVIL}", "x, y: [\n1"),
        ] {
            assert_eq!(expand_text(text, &lookup).as_deref(), Ok(want), "{text}");
        }
    }

    #[test]
    fn a_variable_cannot_add_keys_and_stays_a_number_without_quotes() {
        let mut document = parse("a: {b: [\"${EVIL}\"]}\nlr: ${LR}").unwrap();
        expand(&mut document, &lookup).unwrap();
        assert_eq!(
            document.to_json(),
            serde_json::json!({"a": {"b": ["x, y: [\n1"]}, "lr": 1e-4})
        );
    }

    #[test]
    fn a_missing_variable_is_named_with_its_key() {
        let mut document = parse("{roll: {agent: {argv: [sh, '${NONE}']}}, b: '${OTHER}'}").unwrap();
        let problems = expand(&mut document, &lookup).unwrap_err();
        let told: Vec<_> = problems.iter().map(Problem::to_string).collect();
        assert_eq!(
            told[0],
            "roll.agent.argv[1]: the environment variable NONE is not set; `${NONE:-default}` gives a default, and `$${` \
             stands for `${`"
        );
        assert!(
            told[1].starts_with("b: the environment variable OTHER is not set"),
            "{told:?}"
        );
    }
}
