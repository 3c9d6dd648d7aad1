//! Words and paths that several answers share.

use protocol::{JobSpec, OutputAction, OutputFormat};

use crate::error::{Answer, Refusal};

/// Returns a text as one word of a shell.
pub fn quoted(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+=:@%".contains(&byte);
    match !text.is_empty() && text.bytes().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

/// Returns where the output is, or will be.
pub fn output_path(spec: &JobSpec) -> String {
    let folder = spec.output.folder.display();
    match spec.output.action {
        OutputAction::SummaryOnly => folder,
        OutputAction::AppendRow => {
            format!("{}/{}", folder.trim_end_matches('/'), spec.output.file_name)
        }
    }
}

/// Reads states of jobs or mini-batches that are separated by commas.
pub fn listed<T, L: FromIterator<T>>(
    text: &str,
    of: &str,
    known: impl Fn(&str) -> Option<T>,
) -> Answer<L> {
    let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
    let unknown = |word| Refusal::bad(format!("there is no state {word:?} of {of}"));
    words.map(|word| known(word).ok_or_else(|| unknown(word))).collect()
}

pub fn format_word(format: OutputFormat) -> &'static str {
    match format {
        OutputFormat::Text => "text",
        OutputFormat::Csv => "csv",
        OutputFormat::Jsonl => "jsonl",
        OutputFormat::Parquet => "parquet",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn word_of_a_shell_is_quoted_where_necessary() {
        for (text, expected) in [
            ("/a/b.yaml", "/a/b.yaml"),
            ("a b", "'a b'"),
            ("a'b", "'a'\\''b'"),
            ("$(x)", "'$(x)'"),
            ("", "''"),
        ] {
            assert_eq!(quoted(text), expected);
        }
    }
}
