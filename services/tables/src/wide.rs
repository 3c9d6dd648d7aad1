//! Text in UTF-16 without a byte order mark.

use encoding_rs::{Encoding, UTF_16BE, UTF_16LE};

use crate::detect::MAGIC_BYTES;

/// Returns why text with these first bytes is not UTF-8, as a sentence that continues the name of the file. As UTF-8,
/// such text would be read without an error, with a NUL after every character. The survey and each reader check the
/// same bytes.
pub(crate) fn unmarked_utf16(head: &[u8]) -> Option<String> {
    let found = wide(&head[..head.len().min(MAGIC_BYTES)])?.name();
    let label = found.to_lowercase();
    Some(format!(
        "looks like {found} text without a byte order mark; set `encoding: {label}`, or convert it to UTF-8"
    ))
}

/// Returns the kind of UTF-16 that a text resembles: nearly every other byte is zero.
fn wide(head: &[u8]) -> Option<&'static Encoding> {
    let zeros = |odd: usize| head.iter().skip(odd).step_by(2).filter(|&&byte| byte == 0).count();
    let (even, odd, pairs) = (zeros(0), zeros(1), head.len() / 2);
    match pairs >= 2 {
        true if odd * 2 > pairs && even * 10 < pairs => Some(UTF_16LE),
        true if even * 2 > pairs && odd * 10 < pairs => Some(UTF_16BE),
        _ => None,
    }
}
