//! Any bytes as a body that SQS takes: text travels as it is, so that people can read it; the rest as base64.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;

/// How an encoded body begins. Text that begins so is encoded too.
const MARKER: &str = "base64:";

/// The text to send.
pub(super) fn encode(body: &[u8]) -> String {
    match std::str::from_utf8(body) {
        Ok(text) if travels(text) => text.to_owned(),
        _ => format!("{MARKER}{}", STANDARD.encode(body)),
    }
}

/// The bytes that were sent. What does not decode was not sent from here, and is left to who reads it.
pub(super) fn decode(body: String) -> Bytes {
    match body.strip_prefix(MARKER).map(|encoded| STANDARD.decode(encoded)) {
        Some(Ok(bytes)) => bytes.into(),
        _ => body.into(),
    }
}

/// The largest body that fits whatever it holds, into messages of that size.
pub(super) fn bytes_max(message_bytes_max: usize) -> usize {
    message_bytes_max.saturating_sub(MARKER.len()) / 4 * 3
}

/// SQS refuses empty bodies and the characters that XML 1.0 cannot hold.
fn travels(text: &str) -> bool {
    let allowed = |c| matches!(c, '\t' | '\n' | '\r' | ' '..='\u{fffd}' | '\u{10000}'..);
    !text.is_empty() && !text.starts_with(MARKER) && text.chars().all(allowed)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn readable_text_stays_readable() {
        for text in ["{\"a\": [1, 2]}\n", " ", "größer", "a\tb\r\n", "\u{fffd}\u{10000}\u{10ffff}", "base64"] {
            assert_eq!(encode(text.as_bytes()), text);
        }
    }

    #[test]
    fn what_sqs_refuses_is_encoded() {
        for body in [&b""[..], b"\0", b"\x1b[1m", b"\xff", "\u{fffe}".as_bytes(), "\u{ffff}".as_bytes(), b"base64:AAAA"]
        {
            assert!(encode(body).starts_with(MARKER), "{body:?}");
        }
    }

    #[test]
    fn a_foreign_body_is_handed_over_as_it_is() {
        assert_eq!(decode("base64:?".to_owned()), "base64:?");
    }

    proptest! {
        #[test]
        fn every_body_comes_back(body: Vec<u8>) {
            let encoded = encode(&body);
            prop_assert_eq!(decode(encoded), body);
        }

        #[test]
        fn every_text_comes_back(text in "(base64:)?\\PC*[\\x00-\\x20]?") {
            prop_assert_eq!(decode(encode(text.as_bytes())), text);
        }

        #[test]
        fn what_the_limit_allows_fits(limit in 1024usize..300_000, byte: u8) {
            prop_assert!(encode(&vec![byte; bytes_max(limit)]).len() <= limit);
        }
    }
}
