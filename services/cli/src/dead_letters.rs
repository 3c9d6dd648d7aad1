//! `gristmill dead-letters`: what is in the queue of messages that nobody can read, and why.
//!
//! Looking changes nothing: messages are leased for a moment, and given back.

use std::fmt;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use protocol::{DeadLetter, Descriptor, job_of_message};
use queue::{Delivery, Queue, Receive};
use serde::Serialize;
use serde_json::Value;

use crate::targets::{Role, Target};

/// More than anybody reads; also bounds memory.
const MESSAGES_MAX: usize = 1000;
/// Messages of one receive.
const RECEIVE_MAX: usize = 100;
/// Leases end by themselves should this command be killed.
const VISIBILITY: Duration = Duration::from_secs(30);
/// Services that keep messages on several machines may overlook some at once.
const RECEIVE_WAIT: Duration = Duration::from_secs(1);
/// Of a body, so many characters are shown.
const CHARACTERS_MAX: usize = 100;

/// Lists the messages.
pub async fn dead_letters(target: &Target, json: bool) -> Result<ExitCode> {
    let queue = target.open_queue(Role::DeadLetters).await?;
    let (deliveries, failure) = look(&*queue).await;
    let letters: Vec<Letter> = deliveries.iter().map(|delivery| Letter::of(&delivery.body)).collect();
    if json {
        say!(out, "{}", serde_json::to_string(&letters).expect("plain data always serialises"));
    } else {
        letters.iter().for_each(|letter| say!(out, "{letter}"));
    }
    let receipts: Vec<_> = deliveries.iter().map(|delivery| delivery.receipt.clone()).collect();
    queue.release(&receipts).await.context("give the messages back")?;
    if let Some(error) = failure {
        return Err(error).context("read the queue of dead letters");
    }
    match deliveries.len() {
        0 => say!(err, "there are no dead letters in {}", target.queue()?.name(Role::DeadLetters)),
        MESSAGES_MAX.. => say!(err, "these are the first {MESSAGES_MAX}"),
        _ => {}
    }
    Ok(ExitCode::SUCCESS)
}

/// Everything there is, up to the limit, and why there may be more.
async fn look(queue: &dyn Queue) -> (Vec<Delivery>, Option<queue::Error>) {
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

/// What can be said of a message.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Letter {
    /// Job, where it names one.
    job_id: Option<String>,
    /// Why it is here.
    reason: String,
    /// Queue it came from, who could not read it, and when; `None`: the service itself has moved it here.
    moved: Option<Moved>,
    /// Size of the message.
    bytes: u64,
    /// Its beginning, as text.
    body: String,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Moved {
    queue: String,
    node: String,
    at: String,
}

impl Letter {
    fn of(message: &Bytes) -> Self {
        if let Ok(letter) = serde_json::from_slice::<DeadLetter>(message) {
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
            true => "it was received too often: the redrive policy of the queue moved it".to_owned(),
            false => "it is no message of Gristmill".to_owned(),
        };
        let bytes = message.len() as u64;
        Self { job_id: job_of(message), reason, moved: None, bytes, body: shown(message) }
    }
}

/// The job that a message belongs to, if it names one; a newer version may have written it.
fn job_of(body: &Bytes) -> Option<String> {
    let of_descriptor = || Some(serde_json::from_slice::<Value>(body).ok()?.get("job_id")?.as_str()?.to_owned());
    job_of_message(body).ok().or_else(of_descriptor)
}

impl fmt::Display for Letter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(Moved { queue, node, at }) = &self.moved {
            write!(formatter, "{at}  {queue}, by {node}: ")?;
        }
        if let Some(job) = &self.job_id {
            write!(formatter, "job {job}: ")?;
        }
        write!(formatter, "{} ({} bytes)\n  {}", self.reason, self.bytes, self.body)
    }
}

/// The beginning of a body, on one line.
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
    fn a_letter_says_why_it_is_here_and_whose_it_is() {
        let body = format!(r#"{{"job_id":"{JOB}","mini_batch":0,"work":{{"kind":"video"}}}}"#);
        let message = DeadLetter::message("unknown variant `video`", "node-1", "tasks", body.as_bytes(), 1000);
        let letter = Letter::of(&message.into());
        assert_eq!(letter.job_id.as_deref(), Some(JOB));
        assert_eq!(letter.bytes, body.len() as u64);
        let text = letter.to_string();
        assert!(text.contains("tasks, by node-1: job") && text.contains("unknown variant `video` ("), "{text}");
    }

    #[test]
    fn what_the_service_moved_by_itself_is_told_apart() {
        let letter = |body: &str| Letter::of(&Bytes::copy_from_slice(body.as_bytes()));
        assert!(letter("hello").reason.contains("no message of Gristmill"));
        let redriven = letter(&format!(r#"{{"job_id":"{JOB}","mini_batch":0,"work":{{"kind":"rank"}}}}"#));
        assert!(redriven.reason.contains("redrive policy"), "{redriven:?}");
        assert_eq!(redriven.job_id.as_deref(), Some(JOB));
    }

    #[test]
    fn a_body_is_shown_on_one_line() {
        assert_eq!(shown(b"a\nb\x1b[2J"), "a b [2J");
        assert!(shown(&[b'x'; 500]).ends_with("x…"));
    }
}
