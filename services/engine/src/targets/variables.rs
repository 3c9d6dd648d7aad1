//! `${NAME}` in values of `gristmill.toml`.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// The characters to percent-encode in the user info of an address: all but unreserved ones.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Why the variables of a text cannot be replaced.
#[derive(Debug, thiserror::Error)]
pub(super) enum VariableError {
    #[error("a `${{` without `}}`")]
    Unclosed,
    #[error("the environment variable {0} is not set")]
    NotSet(String),
}

/// Returns the names of the variables in a text.
pub(super) fn names_in(text: &str) -> impl Iterator<Item = String> {
    text.split("${").skip(1).filter_map(|rest| Some(rest.split_once('}')?.0.to_owned()))
}

/// Replaces `${NAME}` by the values of variables. Percent-encodes values in the user info of an address, because a password
/// may hold any character.
pub(super) fn replace_variables(
    text: &str,
    variable: &impl Fn(&str) -> Option<String>,
) -> Result<String, VariableError> {
    let user_info =
        text.split_once("://").and_then(|(scheme, _)| Some(scheme.len() + 3..text.rfind('@')?));
    let (mut replaced, mut position) = (String::new(), 0);
    while let Some(start) = text[position..].find("${").map(|start| position + start) {
        let end = text[start..].find('}').map(|end| start + end).ok_or(VariableError::Unclosed)?;
        let name = &text[start + 2..end];
        let value = variable(name).ok_or_else(|| VariableError::NotSet(name.to_owned()))?;
        replaced.push_str(&text[position..start]);
        match user_info.as_ref().is_some_and(|user_info| user_info.contains(&start)) {
            true => replaced.extend(utf8_percent_encode(&value, ENCODED)),
            false => replaced.push_str(&value),
        }
        position = end + 1;
    }
    replaced.push_str(&text[position..]);
    Ok(replaced)
}
