//! Names that come from outside and become part of a path, a key or a line: job ids, parts, final files.
//!
//! Whoever can put a message on a queue chooses them, so none of them is used before it has been looked at.

/// The longest job id: a name of 32 characters and what is appended to it leave plenty of room.
const JOB_ID_BYTES_MAX: usize = 120;
/// As long as file systems allow.
const FILE_NAME_BYTES_MAX: usize = 255;

/// Whether a text can be the id of a job: ASCII letters, digits, `-`, `_`, `.` and `+`, beginning with a letter or digit.
pub fn is_job_id(text: &str) -> bool {
    let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.+".contains(&byte);
    text.len() <= JOB_ID_BYTES_MAX
        && text.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric())
        && text.bytes().all(is_legal)
}

/// Whether a text can be the name of one file: it leads nowhere else, and does not break a line.
pub fn is_file_name(text: &str) -> bool {
    let is_legal = |character: char| character != '/' && !character.is_control();
    (1..=FILE_NAME_BYTES_MAX).contains(&text.len()) && text != "." && text != ".." && text.chars().all(is_legal)
}

/// Whether a text can be the name of a part of this mini-batch: parts of others are not its rows.
pub fn is_part_of(text: &str, mini_batch: u64) -> bool {
    let number = text.split('-').next().unwrap_or_default();
    is_file_name(text) && number.len() < text.len() && number.parse() == Ok(mini_batch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leads_elsewhere_is_no_name() {
        for id in ["a", "digits-20261121-033347-0888", "lost+found", "A_b.c"] {
            assert!(is_job_id(id), "{id}");
        }
        let long = "a".repeat(JOB_ID_BYTES_MAX + 1);
        for id in
            ["", ".", "..", "../a", "a/b", "a\\b", "a b", "a\nb", "a\0", "\x1b[2J", "-a", ".a", "ä", "a%2fb", &long]
        {
            assert!(!is_job_id(id), "{id:?}");
        }
        for name in ["", ".", "..", "a/b", "/a", "a\nb", "a\x1b"] {
            assert!(!is_file_name(name), "{name:?}");
        }
        assert!(is_file_name("rows of ä.csv"));
    }

    #[test]
    fn a_part_belongs_to_its_mini_batch() {
        assert!(is_part_of("0000000007-1-0-node-1700000000000", 7));
        for name in ["0000000008-1-0-node-17", "7", "-7", "7-../8", "../7-1", "+7x-1", ""] {
            assert!(!is_part_of(name, 7), "{name:?}");
        }
    }
}
