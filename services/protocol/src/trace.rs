//! W3C trace context: the trace of a message, and the step of the trace that sent it.
//!
//! Traces help people find where time is spent. Nothing else depends on them: a missing or unreadable context does not
//! make a message invalid.

use std::fmt;

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A `traceparent` of version 00 (<https://www.w3.org/TR/trace-context/>).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TraceParent {
    /// The trace of all steps of one mini-batch. Never 0.
    pub trace_id: [u8; 16],
    /// The step. Never 0.
    pub span_id: [u8; 8],
    /// Bit 0: the step is recorded.
    pub flags: u8,
}

/// Characters of version, ids and flags, including their hyphens.
const LENGTH: usize = 55;

impl TraceParent {
    /// Parses a context, a later version like this one, as the standard requires. Returns `None` if invalid.
    pub fn parse(text: &str) -> Option<Self> {
        let (head, rest) = text.split_at_checked(LENGTH)?;
        let (version, rest_allowed) = (head.get(..2)?, rest.starts_with('-'));
        let is_version = version != "ff" && hex::<1>(version).is_some();
        if !is_version || !rest.is_empty() && (version == "00" || !rest_allowed) {
            return None;
        }
        let mut parts = head.get(3..)?.split('-');
        let parsed = Self {
            trace_id: hex(parts.next()?)?,
            span_id: hex(parts.next()?)?,
            flags: hex::<1>(parts.next()?)?[0],
        };
        let is_whole = parts.next().is_none() && head.as_bytes()[2] == b'-';
        (is_whole && parsed.trace_id != [0; 16] && parsed.span_id != [0; 8]).then_some(parsed)
    }

    /// Whether the step is recorded, and therefore the steps after it.
    pub fn is_sampled(&self) -> bool {
        self.flags & 1 == 1
    }
}

/// Parses two lower-case digits for each byte.
fn hex<const BYTES: usize>(text: &str) -> Option<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    if text.len() != 2 * BYTES {
        return None;
    }
    for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        let digit = |digit: u8| match digit {
            b'0'..=b'9' => Some(digit - b'0'),
            b'a'..=b'f' => Some(digit - b'a' + 10),
            _ => None,
        };
        *byte = digit(digits[0])? << 4 | digit(digits[1])?;
    }
    Some(bytes)
}

/// Writes bytes as lower-case digits.
fn write_hex(formatter: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
}

impl fmt::Display for TraceParent {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("00-")?;
        write_hex(formatter, &self.trace_id)?;
        formatter.write_str("-")?;
        write_hex(formatter, &self.span_id)?;
        write!(formatter, "-{:02x}", self.flags)
    }
}

impl fmt::Debug for TraceParent {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl Serialize for TraceParent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Reads an invalid context as `None`.
pub(crate) fn lenient<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<TraceParent>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum TextOrOther {
        Text(String),
        Other(IgnoredAny),
    }
    Ok(match TextOrOther::deserialize(deserializer)? {
        TextOrOther::Text(text) => TraceParent::parse(&text),
        TextOrOther::Other(IgnoredAny) => None,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Descriptor, Work};

    const EXAMPLE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn example_of_the_standard_is_parsed() {
        let parsed = TraceParent::parse(EXAMPLE).expect("valid");
        assert_eq!(
            (parsed.trace_id[0], parsed.span_id[7], parsed.is_sampled()),
            (0x4b, 0xb7, true)
        );
        assert_eq!(parsed.to_string(), EXAMPLE);
        let later =
            TraceParent::parse(&format!("{}-what-will-be", EXAMPLE.replacen("00", "cc", 1)));
        assert_eq!(later, Some(parsed));
    }

    #[test]
    fn invalid_text_returns_none() {
        let zeros = "00-00000000000000000000000000000000-00f067aa0ba902b7-01";
        let no_span = "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01";
        let later = EXAMPLE.replacen("00", "ff", 1);
        let longer = format!("{EXAMPLE}-x");
        for text in
            ["", "00", zeros, no_span, &later, &longer, &EXAMPLE.to_uppercase(), &EXAMPLE[1..]]
        {
            assert_eq!(TraceParent::parse(text), None, "{text}");
        }
    }

    fn descriptor(traceparent: Option<TraceParent>) -> Descriptor {
        Descriptor { traceparent, ..Descriptor::new("a-20261121-100203-ab12", 7, Work::Rank) }
    }

    #[test]
    fn message_without_trace_omits_the_field() {
        let text = serde_json::to_string(&descriptor(None)).expect("serialises");
        assert!(!text.contains("traceparent"), "{text}");
    }

    proptest! {
        #[test]
        fn context_survives_encoding(
            trace_id in any::<[u8; 16]>().prop_filter("never 0", |id| *id != [0; 16]),
            span_id in any::<[u8; 8]>().prop_filter("never 0", |id| *id != [0; 8]),
            flags in any::<u8>(),
        ) {
            let context = TraceParent { trace_id, span_id, flags };
            prop_assert_eq!(TraceParent::parse(&context.to_string()), Some(context));
            let sent = serde_json::to_vec(&descriptor(Some(context))).expect("serialises");
            let received: Descriptor = serde_json::from_slice(&sent).expect("readable");
            prop_assert_eq!(received.traceparent, Some(context));
        }

        #[test]
        fn invalid_context_does_not_make_a_message_unreadable(value in prop_oneof![
            any::<String>().prop_map(serde_json::Value::from),
            any::<i64>().prop_map(serde_json::Value::from),
            any::<Vec<String>>().prop_map(serde_json::Value::from),
            Just(serde_json::Value::Null),
        ]) {
            let mut sent = serde_json::to_value(descriptor(None)).expect("serialises");
            sent["traceparent"] = value.clone();
            let received: Descriptor = serde_json::from_value(sent).expect("readable");
            let expected = value.as_str().and_then(TraceParent::parse);
            prop_assert_eq!(received, descriptor(expected));
        }
    }
}
