//! Texts as strings of JSON.

/// Appends a text as a string of JSON. Only what JSON cannot hold is escaped.
pub fn push_string(text: &mut Vec<u8>, field: &[u8]) {
    text.push(b'"');
    let mut plain_from = 0;
    for (at, &byte) in field.iter().enumerate() {
        if byte >= 0x20 && byte != b'"' && byte != b'\\' {
            continue;
        }
        text.extend_from_slice(&field[plain_from..at]);
        plain_from = at + 1;
        match byte {
            b'"' | b'\\' => text.extend_from_slice(&[b'\\', byte]),
            b'\n' => text.extend_from_slice(b"\\n"),
            b'\r' => text.extend_from_slice(b"\\r"),
            b'\t' => text.extend_from_slice(b"\\t"),
            _ => text.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
        }
    }
    text.extend_from_slice(&field[plain_from..]);
    text.push(b'"');
}
