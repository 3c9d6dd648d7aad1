//! Encodes any bytes as a body that SQS accepts: text unchanged, so that people can read it; everything else as base64.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;

/// The beginning of an encoded body. Text that happens to begin with it is encoded as well.
const MARKER: &str = "base64:";

/// Returns the text to send.
pub(super) fn encode(body: &[u8]) -> String {
    match std::str::from_utf8(body) {
        Ok(text) if travels(text) => text.to_owned(),
        _ => format!("{MARKER}{}", STANDARD.encode(body)),
    }
}

/// Returns the bytes that were sent. A body that does not decode comes from other software, and is returned unchanged.
pub(super) fn decode(body: String) -> Bytes {
    match body.strip_prefix(MARKER).map(|encoded| STANDARD.decode(encoded)) {
        Some(Ok(bytes)) => bytes.into(),
        _ => body.into(),
    }
}

/// Returns the largest size, in bytes, with which any body fits into a message of `message_bytes_max`.
pub(super) fn bytes_max(message_bytes_max: usize) -> usize {
    message_bytes_max.saturating_sub(MARKER.len()) / 4 * 3
}

/// Returns whether SQS accepts a text: it rejects empty bodies and characters that XML 1.0 cannot represent.
fn travels(text: &str) -> bool {
    let allowed = |c| matches!(c, '\t' | '\n' | '\r' | ' '..='\u{fffd}' | '\u{10000}'..);
    !text.is_empty() && !text.starts_with(MARKER) && text.chars().all(allowed)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn plain_text_is_not_encoded() {
        for text in [
            "{\"a\": [1, 2]}\n",
            " ",
            "größer",
            "a\tb\r\n",
            "\u{fffd}\u{10000}\u{10ffff}",
            "base64",
        ] {
            assert_eq!(encode(text.as_bytes()), text);
        }
    }

    #[test]
    fn bodies_that_sqs_rejects_are_encoded() {
        for body in [
            &b""[..],
            b"\0",
            b"\x1b[1m",
            b"\xff",
            "\u{fffe}".as_bytes(),
            "\u{ffff}".as_bytes(),
            b"base64:AAAA",
        ] {
            assert!(encode(body).starts_with(MARKER), "{body:?}");
        }
    }

    #[test]
    fn invalid_encoding_is_returned_unchanged() {
        assert_eq!(decode("base64:?".to_owned()), "base64:?");
    }

    proptest! {
        #[test]
        fn any_body_is_decoded(body: Vec<u8>) {
            let encoded = encode(&body);
            prop_assert_eq!(decode(encoded), body);
        }

        #[test]
        fn any_text_is_decoded(text in "(base64:)?\\PC*[\\x00-\\x20]?") {
            prop_assert_eq!(decode(encode(text.as_bytes())), text);
        }

        #[test]
        fn body_within_the_limit_fits(limit in 1024usize..300_000, byte: u8) {
            prop_assert!(encode(&vec![byte; bytes_max(limit)]).len() <= limit);
        }
    }
}
