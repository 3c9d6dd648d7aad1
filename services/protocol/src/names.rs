//! Names from messages that become part of a path, a key or a line: job ids, parts, final files.
//!
//! Any principal that can write to a queue chooses them, so every role checks a name before using it.

/// The longest job id. A name of 32 characters with the usual suffix is much shorter.
const JOB_ID_BYTES_MAX: usize = 120;
/// The limit of file systems.
const FILE_NAME_BYTES_MAX: usize = 255;

/// Whether a text is a valid job id: ASCII letters, digits, `-`, `_`, `.` and `+`, beginning with a letter or digit.
pub fn is_job_id(text: &str) -> bool {
    let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.+".contains(&byte);
    text.len() <= JOB_ID_BYTES_MAX
        && text.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric())
        && text.bytes().all(is_legal)
}

/// An invalid name: it could point to another path or break a line.
#[derive(Debug, thiserror::Error)]
pub enum NameError {
    /// Not the id of a job.
    #[error("{0:?} is not a valid job id")]
    JobId(String),
    /// Not the name of an output file.
    #[error("{0:?} is not a valid name of an output file")]
    OutputFile(String),
    /// Not the name of a model.
    #[error("{0:?} is not a valid name of a model")]
    Model(String),
}

/// Checks the id of a job.
pub fn check_job_id(text: &str) -> Result<(), NameError> {
    if is_job_id(text) { Ok(()) } else { Err(NameError::JobId(text.to_owned())) }
}

/// Whether a text is a valid name of one file: it points to no other path and does not break a line.
pub fn is_file_name(text: &str) -> bool {
    let is_legal = |character: char| character != '/' && !character.is_control();
    (1..=FILE_NAME_BYTES_MAX).contains(&text.len())
        && text != "."
        && text != ".."
        && text.chars().all(is_legal)
}

/// Whether a text is a valid name of a part of this mini-batch. Parts of other mini-batches are not its rows.
pub fn is_part_of(text: &str, mini_batch: u64) -> bool {
    let number = text.split('-').next().unwrap_or_default();
    is_file_name(text) && number.len() < text.len() && number.parse() == Ok(mini_batch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_that_points_elsewhere_is_invalid() {
        for id in ["a", "digits-20261121-033347-0888", "lost+found", "A_b.c"] {
            assert!(is_job_id(id), "{id}");
        }
        let long = "a".repeat(JOB_ID_BYTES_MAX + 1);
        for id in [
            "", ".", "..", "../a", "a/b", "a\\b", "a b", "a\nb", "a\0", "\x1b[2J", "-a", ".a", "ä",
            "a%2fb", &long,
        ] {
            assert!(!is_job_id(id), "{id:?}");
        }
        for name in ["", ".", "..", "a/b", "/a", "a\nb", "a\x1b"] {
            assert!(!is_file_name(name), "{name:?}");
        }
        assert!(is_file_name("rows of ä.csv"));
    }

    #[test]
    fn part_belongs_to_its_mini_batch() {
        assert!(is_part_of("0000000007-1-0-node-1700000000000", 7));
        for name in ["0000000008-1-0-node-17", "7", "-7", "7-../8", "../7-1", "+7x-1", ""] {
            assert!(!is_part_of(name, 7), "{name:?}");
        }
    }
}
