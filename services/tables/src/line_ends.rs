//! Detects CR as the end of a line, as pandas and old Macs take it. In this crate, only LF ends a line.

use crate::error::{Error, Result};
use crate::split::{Splitter, is_blank};

/// Why a file whose lines end with CR alone is rejected, as a sentence that continues its name. The whole file would be
/// one row, which would be lost as a header.
pub(crate) const CR_ALONE: &str =
    "has lines that end with CR alone, as old Macs wrote them; convert it to LF (`tr '\\r' '\\n'`)";

/// Returns whether a byte other than LF follows a CR in a text, within quotes or not.
pub(crate) fn has_lone_cr(text: &[u8]) -> bool {
    memchr::memchr_iter(b'\r', text).any(|at| text.get(at + 1).is_some_and(|&next| next != b'\n'))
}

/// The line ends of a text.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct LineEnds {
    /// The first CR outside quotes that a byte other than LF follows.
    pub lone_cr: Option<usize>,
    /// The position after the first LF that ends a row which is not blank.
    first_end: Option<usize>,
}

impl LineEnds {
    /// Finds the ends of lines in a text that begins with a row, by the rules of [`Splitter`].
    pub fn of(splitter: Splitter, text: &[u8]) -> Self {
        let mut ends = Self::default();
        let (mut row, mut cell, mut quoted, mut after_quote) = (0, 0, false, usize::MAX);
        for (at, &byte) in text.iter().enumerate() {
            match byte {
                b'\n' if !(quoted && splitter.multi_line) => {
                    if ends.first_end.is_none() && !is_blank(&text[row..at], splitter.delimiter) {
                        ends.first_end = Some(at + 1);
                    }
                    (row, cell, quoted) = (at + 1, at + 1, false);
                }
                b'"' if quoted => (quoted, after_quote) = (false, at + 1),
                b'"' => quoted = at == cell || at == after_quote,
                _ if quoted => {}
                b'\r' if text.get(at + 1).is_some_and(|&next| next != b'\n') => {
                    ends.lone_cr.get_or_insert(at);
                }
                _ if byte == splitter.delimiter => cell = at + 1,
                _ => {}
            }
            if ends.lone_cr.is_some() && ends.first_end.is_some() {
                break;
            }
        }
        ends
    }

    /// Returns whether the first row holds a CR outside quotes.
    pub fn divide_first_row(&self) -> bool {
        self.lone_cr.is_some_and(|at| self.first_end.is_none_or(|end| at < end))
    }

    /// Returns whether CR ends all lines of `text`: no row follows the first LF, if there is one. `is_whole`: the text
    /// is that of the whole file.
    pub fn are_cr_alone(&self, text: &[u8], is_whole: bool, delimiter: u8) -> bool {
        let is_last = |end: usize| {
            is_whole
                && text[end..].split(|&byte| byte == b'\n').all(|line| is_blank(line, delimiter))
        };
        self.lone_cr.is_some() && self.first_end.is_none_or(is_last)
    }
}

/// Fails if CR ends all lines of the file of this name. `first_row` is its text up to the end of its first row: without
/// an LF there, the file has no other row.
pub(crate) fn refuse_cr_alone(name: &str, splitter: Splitter, first_row: &[u8]) -> Result<()> {
    match LineEnds::of(splitter, first_row).are_cr_alone(first_row, false, splitter.delimiter) {
        true => Err(Error::kind(name, CR_ALONE)),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cr_is_lone_outside_quotes() {
        for (text, multi_line, lone_cr, is_alone) in [
            ("a,b\r1,2\r", true, Some(3), true),
            ("a,b\r1,\"x\ny\"\r", true, Some(3), true),
            ("a,b\r1,2\r\n", true, Some(3), true),
            ("\n \r\na,b\r1,2\r", false, Some(7), true),
            ("a,b\n1,2\r3,4\n", true, Some(7), false),
            ("a,b\n1,\"x\r\n\ry\"\n", true, None, false),
            ("a,b\n1,\"x\"\ry\n", true, Some(9), false),
            ("a,b\n1,\"x\n2,y\r3,z\n", false, Some(12), false),
            ("a,b\n1,\"x\n2,y\r3,z\n", true, None, false),
            ("a,b\n1,5\" \r2\n", true, Some(9), false),
            ("a,b\r\n1,2\r\n", false, None, false),
            ("a,b\r", false, None, false),
        ] {
            let splitter = Splitter { delimiter: b',', multi_line, drops_lossy: false };
            let ends = LineEnds::of(splitter, text.as_bytes());
            assert_eq!(ends.lone_cr, lone_cr, "{text:?}");
            assert_eq!(ends.are_cr_alone(text.as_bytes(), true, b','), is_alone, "{text:?}");
        }
    }
}
