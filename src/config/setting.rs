//! Settings of the command line, which go over a document.

use super::node::Node;
use super::yaml;

/// Puts a setting `KEY=VALUE`, such as `ajet.trainer_common.optim.lr=1e-4`, into a document. The value is YAML.
///
/// # Errors
/// Returns what is wrong with a setting that is none, or whose key is not below `ajet` or `roll`.
pub fn apply(document: &mut Node, setting: &str) -> Result<(), String> {
    let (key, value) = setting.split_once('=').ok_or("it has no `=`")?;
    let key = key.trim();
    if !key.starts_with("ajet.") && !key.starts_with("roll.") {
        return Err(format!("{key:?} is not a key of `ajet` or `roll`"));
    }
    if key.contains('[') || key.split('.').any(str::is_empty) {
        return Err(format!(
            "{key:?} is not a path of names with dots between; an element of a list cannot be set"
        ));
    }
    let value = yaml::parse(value)
        .map_err(|reason| format!("the value is no YAML ({reason}); quotes around it make it text: '{key}=\"…\"'"))?;
    document.set(key, value);
    Ok(())
}
