//! What people see of texts that others have written: names of files, messages of scripts, reasons of brokers.
//!
//! A terminal obeys what is printed to it. So every control character but line break and tab is shown instead of sent,
//! in the form that JSON has for it.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, Write};

/// The text, harmless to a terminal.
pub fn printable(text: &str) -> Cow<'_, str> {
    let is_harmless = |character: char| !is_command(character) || matches!(character, '\n' | '\t');
    if text.chars().all(is_harmless) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        match is_harmless(character) {
            true => shown.push(character),
            false => {
                let _ = write!(shown, "\\u{:04x}", u32::from(character));
            }
        }
    }
    Cow::Owned(shown)
}

/// Controls, and those characters of Unicode that turn the direction of the text around them: with these, a name looks
/// like another.
fn is_command(character: char) -> bool {
    character.is_control() || matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Stderr for the log. What is written at once is one event, and becomes one line: no text in it can look like another.
#[derive(Debug)]
pub struct LogLines;

impl Write for LogLines {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        io::stderr().write_all(one_line(&String::from_utf8_lossy(event)).as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

fn one_line(event: &str) -> String {
    printable(event.trim_end_matches('\n')).replace('\n', "\\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_gets_no_commands() {
        let text = "a\x1b]0;title\x07b\u{9b}2Jc\rd\x08e\u{202e}f";
        let shown = printable(text);
        assert_eq!(shown, "a\\u001b]0;title\\u0007b\\u009b2Jc\\u000dd\\u0008e\\u202ef");
        assert_eq!(printable("one\n\ttwo ä 漢"), "one\n\ttwo ä 漢");
    }

    #[test]
    fn an_event_is_one_line() {
        assert_eq!(one_line("WARN a\nERROR b\x1b[2J\n"), "WARN a\\nERROR b\\u001b[2J\n");
    }

    #[test]
    fn json_stays_json() {
        let json = serde_json::to_string(&["\u{9b}2J\x1b"]).expect("plain data");
        let read: Vec<String> = serde_json::from_str(&printable(&json)).expect("still JSON");
        assert_eq!(read, ["\u{9b}2J\x1b"]);
    }
}
