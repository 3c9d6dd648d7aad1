//! Lists the messages that no worker or reducer of a target could read, and why.
//!
//! This changes nothing: the messages are leased for a moment, and then released.

use std::time::Duration;

use anyhow::{Context, Error, Result};
use bytes::Bytes;
use protocol::{Descriptor, job_of_message};
use queue::{Delivery, Queue, Receive};
use serde::Serialize;
use serde_json::Value;

use crate::{Role, Target};

/// The most messages that are read, to bound memory.
const MESSAGES_MAX: usize = 1000;
const RECEIVE_MAX: usize = 100;
/// Leases expire if this process is killed.
const VISIBILITY: Duration = Duration::from_secs(30);
/// One receive may miss messages of a service that spreads them over several machines.
const RECEIVE_WAIT: Duration = Duration::from_secs(1);
const CHARACTERS_MAX: usize = 100;

/// The dead letters of a target.
#[derive(Debug)]
pub struct DeadLetters {
    /// The letters, at most a thousand.
    pub letters: Vec<DeadLetter>,
    /// There may be more.
    pub is_partial: bool,
    /// Why the queue could not be read to its end.
    pub failure: Option<Error>,
}

impl Target {
    /// Reads the queue of dead letters.
    pub async fn dead_letters(&self) -> Result<DeadLetters> {
        let queue = self.open_queue(Role::DeadLetters).await?;
        let (deliveries, failure) = receive(&*queue).await;
        let letters = deliveries.iter().map(|delivery| DeadLetter::of(&delivery.body)).collect();
        let receipts: Vec<_> = deliveries.iter().map(|delivery| delivery.receipt.clone()).collect();
        let released = queue.release(&receipts).await.context("return the messages to the queue");
        let failure = match failure {
            Some(error) => Some(Error::from(error).context("read the queue of dead letters")),
            None => released.err(),
        };
        Ok(DeadLetters { letters, is_partial: deliveries.len() >= MESSAGES_MAX, failure })
    }
}

/// Receives all messages up to the limit. Returns the error that stopped it early.
async fn receive(queue: &dyn Queue) -> (Vec<Delivery>, Option<queue::Error>) {
    let mut deliveries = Vec::new();
    while deliveries.len() < MESSAGES_MAX {
        let messages_max = RECEIVE_MAX.min(MESSAGES_MAX - deliveries.len());
        match queue.receive(Receive { messages_max, visibility: VISIBILITY, wait: RECEIVE_WAIT }).await {
            Ok(received) if received.is_empty() => break,
            Ok(received) => deliveries.extend(received),
            Err(error) => return (deliveries, Some(error)),
        }
    }
    (deliveries, None)
}

/// A message that no role could read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeadLetter {
    /// Its job, if it names one.
    pub job_id: Option<String>,
    /// Why it is here.
    pub reason: String,
    /// The role that moved it here; `None`: the service itself did.
    pub moved: Option<Moved>,
    /// Size of the message.
    pub bytes: u64,
    /// Its beginning, as text.
    pub body: String,
}

/// The move of a message by a role that could not read it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Moved {
    /// The queue that held it.
    pub queue: String,
    /// Name of the worker or reducer.
    pub node: String,
    /// Time in UTC.
    pub at: String,
}

impl DeadLetter {
    fn of(message: &Bytes) -> Self {
        if let Ok(letter) = serde_json::from_slice::<protocol::DeadLetter>(message) {
            let body = Bytes::from(letter.body());
            let at = i64::try_from(letter.at).ok().and_then(chrono::DateTime::from_timestamp_millis);
            let at = at.map_or(String::new(), |at| at.format("%Y-%m-%d %H:%M:%S UTC").to_string());
            return Self {
                job_id: job_of(&body),
                reason: letter.reason,
                moved: Some(Moved { queue: letter.queue, node: letter.node, at }),
                bytes: letter.bytes,
                body: shown(&body),
            };
        }
        let reason = match serde_json::from_slice::<Descriptor>(message).is_ok() || job_of_message(message).is_ok() {
            true => "received too often; the redrive policy of the queue moved it".to_owned(),
            false => "not a message of Gristmill".to_owned(),
        };
        let bytes = message.len() as u64;
        Self { job_id: job_of(message), reason, moved: None, bytes, body: shown(message) }
    }
}

/// Returns the job of a message, if it names one. A newer version may have written the message.
fn job_of(body: &Bytes) -> Option<String> {
    let of_descriptor = || Some(serde_json::from_slice::<Value>(body).ok()?.get("job_id")?.as_str()?.to_owned());
    job_of_message(body).ok().or_else(of_descriptor)
}

/// Returns the beginning of a body, on one line.
fn shown(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(&body[..body.len().min(4 * CHARACTERS_MAX)]);
    let more = text.chars().count() > CHARACTERS_MAX || body.len() > 4 * CHARACTERS_MAX;
    let text: String = text.chars().take(CHARACTERS_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if more { format!("{text}…") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: &str = "a-20261121-100203-ab12";

    #[test]
    fn letter_has_reason_and_job() {
        let body = format!(r#"{{"job_id":"{JOB}","mini_batch":0,"work":{{"kind":"video"}}}}"#);
        let message =
            protocol::DeadLetter::message("unknown variant `video`", "node-1", "tasks", body.as_bytes(), 1000);
        let letter = DeadLetter::of(&message.into());
        assert_eq!(letter.job_id.as_deref(), Some(JOB));
        assert_eq!(letter.bytes, body.len() as u64);
        let moved = letter.moved.expect("a role moved it");
        assert_eq!((&*moved.queue, &*moved.node, &*letter.reason), ("tasks", "node-1", "unknown variant `video`"));
    }

    #[test]
    fn letter_of_the_service_names_the_redrive_policy() {
        let letter = |body: &str| DeadLetter::of(&Bytes::copy_from_slice(body.as_bytes()));
        assert!(letter("hello").reason.contains("not a message of Gristmill"));
        let redriven = letter(&format!(r#"{{"job_id":"{JOB}","mini_batch":0,"work":{{"kind":"rank"}}}}"#));
        assert!(redriven.reason.contains("redrive policy"), "{redriven:?}");
        assert_eq!(redriven.job_id.as_deref(), Some(JOB));
    }

    #[test]
    fn body_is_shown_on_one_line() {
        assert_eq!(shown(b"a\nb\x1b[2J"), "a b [2J");
        assert!(shown(&[b'x'; 500]).ends_with("x…"));
    }
}
