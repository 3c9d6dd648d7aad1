//! `${{…}}` and `$[[…]]` in texts, and arguments that are written as one text.

use crate::Fault;

/// A piece of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    Text(String),
    /// The name in `${{name}}`.
    Name(String),
    /// `$[[…]]`: left out if an optional input in it is absent.
    Optional(Vec<Piece>),
}

/// Divides a text into its parts.
pub fn parts(text: &str) -> Result<Vec<Piece>, Fault> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find("${{").into_iter().chain(rest.find("$[[")).min() {
        if start > 0 {
            parts.push(Piece::Text(rest[..start].to_owned()));
        }
        let is_optional = rest[start..].starts_with("$[[");
        let end_mark = if is_optional { "]]" } else { "}}" };
        let inner = &rest[start + 3..];
        let end = inner.find(end_mark).filter(|end| is_optional || !inner[..*end].contains("${{"));
        let Some(end) = end else {
            let found: String = rest[start..].chars().take(60).collect();
            let message = format!("an expression has no end: `{end_mark}` is missing");
            return Err(Fault::of(
                format!("{found:?}"),
                "${{inputs.NAME}}, $[[--option ${{inputs.NAME}}]]",
            )
            .saying(message));
        };
        parts.push(match is_optional {
            true => Piece::Optional(self::parts(&inner[..end])?),
            false => Piece::Name(inner[..end].trim().to_owned()),
        });
        rest = &inner[end + 2..];
    }
    if !rest.is_empty() {
        parts.push(Piece::Text(rest.to_owned()));
    }
    Ok(parts)
}

/// Returns the name of a text that is one `${{name}}` and nothing else.
pub fn only_name(text: &str) -> Option<String> {
    match parts(text.trim()).ok()?.as_slice() {
        [Piece::Name(name)] => Some(name.clone()),
        _ => None,
    }
}

/// Returns a text with its names replaced. `value` returns `Ok(None)` for an optional input that is absent.
pub fn replace(
    text: &str,
    value: &mut dyn FnMut(&str) -> Result<Option<String>, Fault>,
) -> Result<String, Fault> {
    let absent = |name: &str| {
        let allowed = "an input that is given, or the argument within $[[ ]]";
        Fault::of(format!("${{{{{name}}}}}"), allowed).saying("the input is optional and absent")
    };
    joined(&parts(text)?, value)?.map_err(|AbsentInput(name)| absent(&name))
}

/// The name of an optional input that is absent.
struct AbsentInput(String);

fn joined(
    parts: &[Piece],
    value: &mut dyn FnMut(&str) -> Result<Option<String>, Fault>,
) -> Result<Result<String, AbsentInput>, Fault> {
    let mut text = String::new();
    for part in parts {
        match part {
            Piece::Text(part) => text.push_str(part),
            Piece::Name(name) => match value(name)? {
                Some(value) => text.push_str(&value),
                None => return Ok(Err(AbsentInput(name.clone()))),
            },
            Piece::Optional(inner) => {
                if let Ok(inner) = joined(inner, value)? {
                    text.push_str(&inner);
                }
            }
        }
    }
    Ok(Ok(text))
}

/// Splits arguments as a shell would, and replaces their names. A value with blanks stays one argument.
pub fn split(
    text: &str,
    value: &mut dyn FnMut(&str) -> Result<Option<String>, Fault>,
) -> Result<Vec<String>, Fault> {
    /// Encloses the index of a value. No document contains this private-use character.
    const MARK: char = '\u{f8ff}';
    let mut values: Vec<String> = Vec::new();
    let marked = replace(text, &mut |name| {
        Ok(value(name)?.map(|value| {
            values.push(value);
            format!("{MARK}{}{MARK}", values.len() - 1)
        }))
    })?;
    let words = shlex::split(&marked).ok_or_else(|| {
        Fault::of(format!("{text:?}"), "pairs of quotes")
            .saying("these arguments have a quote without its pair")
    })?;
    let restored = |word: String| {
        let pieces = word.split(MARK).enumerate();
        pieces
            .map(|(position, piece)| match position % 2 {
                0 => piece.to_owned(),
                _ => piece
                    .parse::<usize>()
                    .ok()
                    .and_then(|index| values.get(index).cloned())
                    .unwrap_or_default(),
            })
            .collect()
    };
    Ok(words.into_iter().map(restored).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(name: &str) -> Result<Option<String>, Fault> {
        match name {
            "inputs.a" => Ok(Some("two words".to_owned())),
            "inputs.none" => Ok(None),
            name => Err(Fault::only(format!("no {name}"))),
        }
    }

    #[test]
    fn arguments_are_split_as_a_shell_would() {
        for (text, expected) in [
            ("--a ${{inputs.a}} --b", vec!["--a", "two words", "--b"]),
            ("--a '${{ inputs.a }}/x' \"--b c\"", vec!["--a", "two words/x", "--b c"]),
            (
                "--x 1\n $[[--y ${{inputs.none}}]] $[[--z ${{inputs.a}}]]",
                vec!["--x", "1", "--z", "two words"],
            ),
            ("", vec![]),
        ] {
            assert_eq!(split(text, &mut values).expect(text), expected, "{text}");
        }
    }

    #[test]
    fn faulty_texts_are_refused() {
        for text in
            ["--a ${{inputs.a", "$[[--a ${{inputs.a}}", "--a 'x", "${{inputs.none}}", "${{other}}"]
        {
            split(text, &mut values).expect_err(text);
        }
    }
}
