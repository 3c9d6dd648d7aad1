//! Encodings as Python defines them: bytes without a character are invalid, even where WHATWG assigns one.

use std::borrow::Cow;

use encoding_rs::{Encoding, UTF_8};
use protocol::TableOptions;

use crate::error::{Error, Result};

/// First byte beyond ASCII.
const BEYOND: u8 = 0x80;
/// First byte beyond the control characters that WHATWG assigns to the gaps of code pages.
const BEYOND_CONTROLS: u8 = 0xA0;

/// Returns the encoding in `options`.
pub(crate) fn encoding_of(options: &TableOptions) -> Result<&'static Encoding> {
    let label = options.encoding.as_str();
    encoding_for(label).ok_or_else(|| {
        Error::Options(format!(
            "encoding \"{label}\" is unknown; use a label such as utf-8, latin-1, windows-1252 or shift_jis"
        ))
    })
}

/// Returns the encoding of a label of WHATWG or Python: `utf_8`, `latin-1`, `utf-8-sig`, `cp1252`, `utf-16`. As
/// everywhere on the web, Latin-1 is read as windows-1252, which has more characters; [`Charset`] says which bytes have
/// none.
pub fn encoding_for(label: &str) -> Option<&'static Encoding> {
    /// Names in Python that are not labels of WHATWG, without hyphens.
    const OF_PYTHON: [(&str, &str); 14] = [
        ("latin", "latin1"),
        ("l2", "latin2"),
        ("iso88591", "latin1"),
        ("iso885915", "iso-8859-15"),
        ("646", "ascii"),
        ("utf16", "utf-16le"),
        ("cp932", "shift_jis"),
        ("ms932", "shift_jis"),
        ("mskanji", "shift_jis"),
        ("cp936", "gbk"),
        ("ms936", "gbk"),
        ("cp949", "euc-kr"),
        ("cp950", "big5"),
        ("eucjp", "euc-jp"),
    ];
    let label = label.trim().to_ascii_lowercase().replace(['_', ' '], "-");
    let label = label.strip_suffix("-sig").unwrap_or(&label);
    let bare = label.replace('-', "");
    let other = OF_PYTHON.iter().find(|(python, _)| *python == bare).map_or("", |(_, other)| other);
    let big_endian =
        bare.strip_prefix("utf16").map(|end| format!("utf-16{end}")).unwrap_or_default();
    let windows = bare
        .strip_prefix("cp")
        .or(bare.strip_prefix("windows"))
        .map(|page| format!("windows-{page}"));
    let labels =
        [label, &label.replace('-', "_"), &bare, other, &big_endian, &windows.unwrap_or_default()];
    labels.into_iter().find_map(|label| Encoding::for_label_no_replacement(label.as_bytes()))
}

/// An encoding, and the bytes that are not valid in it although `encoding_rs` decodes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Charset {
    pub encoding: &'static Encoding,
    /// One bit for each byte from [`BEYOND`] on. Only single-byte encodings have gaps.
    gaps: u128,
}

impl From<&'static Encoding> for Charset {
    fn from(encoding: &'static Encoding) -> Self {
        Self { encoding, gaps: 0 }
    }
}

impl Charset {
    /// Returns the encoding in `options`.
    pub fn of(options: &TableOptions) -> Result<Self> {
        let encoding = encoding_of(options)?;
        let bare: String = options
            .encoding
            .to_ascii_lowercase()
            .chars()
            .filter(char::is_ascii_alphanumeric)
            .collect();
        let page = encoding.name().strip_prefix("windows-");
        let gaps = match page {
            // WHATWG reads ASCII as windows-1252, so that any byte has a character.
            _ if ["ascii", "usascii", "646", "ansix341968", "iso646us"]
                .contains(&bare.as_str()) =>
            {
                u128::MAX
            }
            // Other labels, such as latin-1, do have these control characters.
            Some(page) if encoding.is_single_byte() && bare.ends_with(page) => {
                let is_gap = |byte: &u8| {
                    encoding.decode_without_bom_handling(&[*byte]).0.chars().eq([char::from(*byte)])
                };
                (BEYOND..BEYOND_CONTROLS)
                    .filter(is_gap)
                    .fold(0, |gaps, byte| gaps | 1 << (byte - BEYOND))
            }
            _ => 0,
        };
        Ok(Self { encoding, gaps })
    }

    pub fn is_utf8(self) -> bool {
        self.encoding == UTF_8
    }

    /// Returns the position of the first byte in a gap.
    pub fn first_gap(self, raw: &[u8]) -> Option<usize> {
        let is_gap = |&byte: &u8| byte >= BEYOND && (self.gaps >> (byte - BEYOND)) & 1 == 1;
        if self.gaps == 0 { None } else { raw.iter().position(is_gap) }
    }

    /// Decodes whole characters, and returns whether U+FFFD replaced invalid bytes.
    pub fn decode(self, raw: &[u8]) -> (Cow<'_, str>, bool) {
        let Some(first) = self.first_gap(raw) else {
            return self.encoding.decode_without_bom_handling(raw);
        };
        let (mut text, mut rest, mut gap) =
            (String::with_capacity(raw.len() + 2), raw, Some(first));
        while let Some(at) = gap {
            text.push_str(&self.encoding.decode_without_bom_handling(&rest[..at]).0);
            text.push(char::REPLACEMENT_CHARACTER);
            rest = &rest[at + 1..];
            gap = self.first_gap(rest);
        }
        text.push_str(&self.encoding.decode_without_bom_handling(rest).0);
        (Cow::Owned(text), true)
    }

    /// Returns whether [`decode`](Self::decode) is necessary, because the decoder of `encoding_rs` ignores gaps.
    pub fn has_gaps(self) -> bool {
        self.gaps != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(encoding: &str, raw: &[u8]) -> (String, bool) {
        let charset =
            Charset::of(&TableOptions { encoding: encoding.to_owned(), ..TableOptions::default() });
        let (text, replaced) = charset.expect("known").decode(raw);
        (text.into_owned(), replaced)
    }

    #[test]
    fn bytes_without_a_character_are_replaced() {
        for (encoding, raw, text) in [
            ("ascii", &b"a\xc3\xa9b"[..], "a\u{fffd}\u{fffd}b"),
            ("US-ASCII", b"\xe9", "\u{fffd}"),
            ("cp1252", b"\x80\x81\xe9\x9d", "\u{20ac}\u{fffd}\u{e9}\u{fffd}"),
            ("windows-1252", b"\x90", "\u{fffd}"),
            ("windows_1251", b"\x98\xe4", "\u{fffd}\u{434}"),
        ] {
            assert_eq!(decoded(encoding, raw), (text.to_owned(), true), "{encoding}");
        }
        for (encoding, raw, text) in [
            ("ascii", &b"ab"[..], "ab"),
            ("cp1252", b"\x80\x92", "\u{20ac}\u{2019}"),
            ("latin-1", b"\x81\xe9", "\u{81}\u{e9}"),
            ("iso8859-1", b"\x81", "\u{81}"),
            ("cp1251", b"\xe4", "\u{434}"),
        ] {
            assert_eq!(decoded(encoding, raw), (text.to_owned(), false), "{encoding}");
        }
    }
}
