//! An unreadable message in the dead-letters queue.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::milliseconds_since_epoch;

/// An unreadable message with the reason, for the person who examines it later.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadLetter {
    /// Reason in one line.
    pub reason: String,
    /// Wall clock, milliseconds since the epoch.
    pub at: u64,
    /// Node that could not read it.
    pub node: String,
    /// The job whose queue held it.
    pub job_id: String,
    /// Which of its queues: `tasks` or `results`.
    pub queue: String,
    /// Size of the whole message, of which `body` may hold only the beginning.
    pub bytes: u64,
    /// The message.
    #[serde(flatten)]
    pub body: DeadBody,
}

/// A message's bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeadBody {
    /// Valid UTF-8.
    #[serde(rename = "body")]
    Text(String),
    /// Other bytes, in base64.
    #[serde(rename = "body_base64")]
    Base64(String),
}

impl DeadLetter {
    /// Returns the message about `body`, in at most `bytes_max` bytes. It keeps the beginning of a larger body.
    pub fn message(
        reason: &str,
        node: &str,
        job_id: &str,
        queue: &str,
        body: &[u8],
        bytes_max: usize,
    ) -> Vec<u8> {
        let mut kept = body.len();
        loop {
            let beginning = &body[..kept];
            let letter = Self {
                reason: reason.chars().take(1000).collect(),
                at: milliseconds_since_epoch(),
                node: node.to_owned(),
                job_id: job_id.to_owned(),
                queue: queue.to_owned(),
                bytes: body.len() as u64,
                body: match std::str::from_utf8(beginning) {
                    Ok(text) => DeadBody::Text(text.to_owned()),
                    Err(_) => DeadBody::Base64(STANDARD.encode(beginning)),
                },
            };
            let message = serde_json::to_vec(&letter).expect("plain data always serialises");
            if message.len() <= bytes_max || kept == 0 {
                return message;
            }
            kept /= 2;
        }
    }

    /// Returns the kept bytes.
    pub fn body(&self) -> Vec<u8> {
        match &self.body {
            DeadBody::Text(text) => text.clone().into_bytes(),
            DeadBody::Base64(text) => STANDARD.decode(text).unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(message: &[u8]) -> DeadLetter {
        serde_json::from_slice(message).expect("it was written here")
    }

    #[test]
    fn any_body_survives_encoding() {
        for body in [&b"hello"[..], b"\xff\xfe\x00", b""] {
            let letter =
                read(&DeadLetter::message("no JSON", "node-1", "job", "tasks", body, 10_000));
            assert_eq!((letter.body(), letter.bytes), (body.to_vec(), body.len() as u64));
            assert_eq!(
                (&*letter.reason, &*letter.node, &*letter.job_id, &*letter.queue),
                ("no JSON", "node-1", "job", "tasks")
            );
        }
    }

    #[test]
    fn too_large_body_loses_its_end() {
        for body in [vec![b'"'; 9000], vec![0xff; 9000]] {
            let message = DeadLetter::message("no JSON", "node-1", "job", "tasks", &body, 10_000);
            assert!(message.len() <= 10_000);
            let letter = read(&message);
            assert!(letter.body().len() > 1000 && body.starts_with(&letter.body()));
            assert_eq!(letter.bytes, 9000);
        }
    }
}
