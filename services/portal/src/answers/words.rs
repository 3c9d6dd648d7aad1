//! Words and paths that several answers share.

use protocol::{JobSpec, OutputAction, OutputFormat};

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
        OutputAction::AppendRow => format!("{}/{}", folder.trim_end_matches('/'), spec.output.file_name),
    }
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
        for (text, expected) in
            [("/a/b.yaml", "/a/b.yaml"), ("a b", "'a b'"), ("a'b", "'a'\\''b'"), ("$(x)", "'$(x)'"), ("", "''")]
        {
            assert_eq!(quoted(text), expected);
        }
    }
}
