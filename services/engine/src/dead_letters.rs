//! The messages that no worker or reducer of a target could read: lists them with the reasons,
//! sends them to their queues again, or deletes them. A read leases them, and then releases those
//! that stay.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use anyhow::{Context, Error, Result};
use bytes::Bytes;
use protocol::{Descriptor, job_of_message};
use queue::{Delivery, Message, Queue, Receipt, Receive};
use serde::Serialize;
use serde_json::Value;

use crate::Target;

/// The most messages that are read, to bound memory.
const MESSAGES_MAX: usize = 1000;
const RECEIVE_MAX: usize = 100;
/// Leases expire if this process is killed.
const VISIBILITY: Duration = Duration::from_secs(30);
/// One receive may miss messages of a service that spreads them over several machines.
const RECEIVE_WAIT: Duration = Duration::from_secs(1);
const CHARACTERS_MAX: usize = 100;
/// The queues of a job.
const TASKS: &str = "tasks";
const RESULTS: &str = "results";

/// The dead letters of a target.
#[derive(Debug)]
pub struct DeadLetters {
    /// The letters, at most a thousand.
    pub letters: Vec<DeadLetter>,
    /// Whether the queue may hold more.
    pub is_partial: bool,
    /// Why the queue could not be read to its end.
    pub failure: Option<Error>,
}

/// What to do with dead letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeadLetterAction {
    /// Send each to the queue of its job from which it came.
    Redrive,
    /// Delete each.
    Delete,
}

impl Target {
    /// Reads the queue of dead letters, and changes nothing.
    pub async fn dead_letters(&self) -> Result<DeadLetters> {
        let queues = self.open_queues(false).await?;
        let queue = &queues.dead_letters;
        let (deliveries, failure) = receive(&**queue).await;
        let letters = deliveries.iter().map(|delivery| DeadLetter::of(&delivery.body)).collect();
        let released =
            queue.release(&receipts(&deliveries)).await.context("return the messages to the queue");
        let failure = match failure {
            Some(error) => Some(Error::from(error).context("read the queue of dead letters")),
            None => released.err(),
        };
        Ok(DeadLetters { letters, is_partial: deliveries.len() >= MESSAGES_MAX, failure })
    }

    /// Sends dead letters to their queues again, or deletes them: those of a job, or all. Returns
    /// the letters that it has handled, and the number of others. A redrive leaves messages that
    /// are not of Gristmill, were cut, or whose job has no queues, because it has ended or waits.
    pub async fn dispose_of_dead_letters(
        &self,
        disposal: DeadLetterAction,
        job: Option<&str>,
    ) -> Result<(Vec<DeadLetter>, usize)> {
        let queues = self.open_queues(false).await?;
        let names = match disposal {
            DeadLetterAction::Redrive => {
                self.jobs(self.open_store().await?).queues().await?.into_iter().collect()
            }
            DeadLetterAction::Delete => HashMap::new(),
        };
        let (deliveries, failure) = receive(&*queues.dead_letters).await;
        let (mut done, mut disposed, mut left) = (Vec::new(), Vec::new(), Vec::new());
        let mut again: BTreeMap<(String, &'static str), Vec<Message>> = BTreeMap::new();
        for delivery in deliveries {
            let letter = DeadLetter::of(&delivery.body);
            let is_wanted = job.is_none_or(|job| letter.job_id.as_deref() == Some(job));
            let origin = origin(&delivery.body).filter(|origin| names.contains_key(&origin.job_id));
            match (disposal, origin) {
                _ if !is_wanted => left.push(delivery),
                (DeadLetterAction::Redrive, None) => left.push(delivery),
                (DeadLetterAction::Redrive, Some(Origin { job_id, queue, bodies })) => {
                    let messages = bodies.into_iter().map(Message::new);
                    again.entry((job_id.clone(), queue)).or_default().extend(messages);
                    done.push(delivery.receipt.clone());
                    disposed.push(letter);
                }
                (DeadLetterAction::Delete, _) => {
                    done.push(delivery.receipt.clone());
                    disposed.push(letter);
                }
            }
        }
        for ((job_id, queue), messages) in again {
            let sending = async {
                let of_job = queues.broker.open(&names[&job_id]).await?;
                let queue = if queue == TASKS { of_job.tasks } else { of_job.results };
                queue.send(messages).await
            };
            sending
                .await
                .with_context(|| format!("send them to the queue of {queue} of job {job_id}"))?;
        }
        // A message that is sent and not deleted is redriven twice, which does no harm.
        queues
            .dead_letters
            .acknowledge(&done)
            .await
            .context("delete them from the queue of dead letters")?;
        queues
            .dead_letters
            .release(&receipts(&left))
            .await
            .context("return the other messages to the queue")?;
        match failure {
            Some(error) => {
                Err(Error::from(error).context("read the queue of dead letters to its end"))
            }
            None => Ok((disposed, left.len())),
        }
    }
}

fn receipts(deliveries: &[Delivery]) -> Vec<Receipt> {
    deliveries.iter().map(|delivery| delivery.receipt.clone()).collect()
}

/// The origin of a message, and its content there: the members of a bundle travel alone.
#[derive(Debug, PartialEq, Eq)]
struct Origin {
    job_id: String,
    queue: &'static str,
    bodies: Vec<Bytes>,
}

/// Returns the origin of a message. `None`: it is not a message of Gristmill, or its end is
/// missing.
fn origin(message: &Bytes) -> Option<Origin> {
    if let Ok(letter) = serde_json::from_slice::<protocol::DeadLetter>(message) {
        let queue = [TASKS, RESULTS].into_iter().find(|queue| *queue == letter.queue)?;
        let body = letter.body();
        let is_whole = body.len() as u64 == letter.bytes;
        return is_whole.then(|| Origin {
            job_id: letter.job_id,
            queue,
            bodies: vec![body.into()],
        });
    }
    // The service moved it.
    let bodies = queue::members(message).unwrap_or_else(|| vec![message.clone()]);
    if let Ok(descriptor) = Descriptor::of_message(&bodies[0]) {
        return Some(Origin { job_id: descriptor.job_id, queue: TASKS, bodies });
    }
    let job_id = job_of_message(message).ok()?;
    Some(Origin { job_id, queue: RESULTS, bodies })
}

/// Receives all messages up to the limit. Returns the error that stopped it early.
async fn receive(queue: &dyn Queue) -> (Vec<Delivery>, Option<queue::Error>) {
    let mut deliveries = Vec::new();
    while deliveries.len() < MESSAGES_MAX {
        let messages_max = RECEIVE_MAX.min(MESSAGES_MAX - deliveries.len());
        match queue
            .receive(Receive { messages_max, visibility: VISIBILITY, wait: RECEIVE_WAIT })
            .await
        {
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
    /// Why it was moved here.
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
    /// The queue of its job that held it.
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
            let at =
                i64::try_from(letter.at).ok().and_then(chrono::DateTime::from_timestamp_millis);
            let at = at.map_or(String::new(), |at| at.format("%Y-%m-%d %H:%M:%S UTC").to_string());
            return Self {
                job_id: Some(letter.job_id),
                reason: letter.reason,
                moved: Some(Moved { queue: letter.queue, node: letter.node, at }),
                bytes: letter.bytes,
                body: shown(&body),
            };
        }
        let members = queue::members(message);
        let first = members.as_ref().map_or(message, |members| &members[0]);
        let is_own = Descriptor::of_message(first).is_ok() || job_of_message(first).is_ok();
        let reason = match is_own {
            true => "received too often; the redrive policy of the queue moved it".to_owned(),
            false => "not a message of Gristmill".to_owned(),
        };
        let bytes = message.len() as u64;
        Self { job_id: job_of(first), reason, moved: None, bytes, body: shown(message) }
    }
}

/// Returns the job of a message, if it names one. A newer version may have written the message.
fn job_of(body: &Bytes) -> Option<String> {
    let of_descriptor =
        || Some(serde_json::from_slice::<Value>(body).ok()?.get("job_id")?.as_str()?.to_owned());
    job_of_message(body).ok().or_else(of_descriptor)
}

/// Returns the beginning of a body, on one line.
fn shown(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(&body[..body.len().min(4 * CHARACTERS_MAX)]);
    let more = text.chars().count() > CHARACTERS_MAX || body.len() > 4 * CHARACTERS_MAX;
    let text: String =
        text.chars().take(CHARACTERS_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if more { format!("{text}…") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: &str = "a-20261121-100203-ab12";

    #[test]
    fn letter_has_reason_and_job() {
        let body = format!(r#"{{"job_id":"{JOB}","mini_batch":0,"work":{{"kind":"video"}}}}"#);
        let message = protocol::DeadLetter::message(
            "unknown variant `video`",
            "node-1",
            JOB,
            "tasks",
            body.as_bytes(),
            1000,
        );
        let letter = DeadLetter::of(&message.into());
        assert_eq!(letter.job_id.as_deref(), Some(JOB));
        assert_eq!(letter.bytes, body.len() as u64);
        let moved = letter.moved.expect("a role moved it");
        assert_eq!(
            (&*moved.queue, &*moved.node, &*letter.reason),
            ("tasks", "node-1", "unknown variant `video`")
        );
    }

    #[test]
    fn letter_goes_back_to_its_queue_if_it_is_whole() {
        let task = format!(r#"{{"job_id":"{JOB}","mini_batch":0,"work":{{"kind":"rank"}}}}"#);
        let moved = |queue: &str, bytes_max| {
            origin(
                &protocol::DeadLetter::message("r", "n", JOB, queue, task.as_bytes(), bytes_max)
                    .into(),
            )
        };
        let body = || Bytes::from(task.clone());
        let of = |queue, bodies| Some(Origin { job_id: JOB.to_owned(), queue, bodies });
        assert_eq!(moved("tasks", 1000), of(TASKS, vec![body()]));
        assert_eq!(moved("results", 1000), of(RESULTS, vec![body()]));
        assert_eq!(moved("tasks", 140), None, "it was cut");
        let bundle = format!("bundle {0} {0}\n{task}{task}", task.len());
        assert_eq!(origin(&bundle.into()), of(TASKS, vec![body(), body()]));
        let redriven =
            |body: &[u8]| origin(&Bytes::copy_from_slice(body)).map(|origin| origin.queue);
        assert_eq!(redriven(task.as_bytes()), Some(TASKS));
        assert_eq!(redriven(&protocol::begin_message(JOB)), Some(RESULTS));
        assert_eq!(redriven(b"hello"), None);
    }

    #[test]
    fn letter_of_the_service_names_the_redrive_policy() {
        let letter = |body: &str| DeadLetter::of(&Bytes::copy_from_slice(body.as_bytes()));
        assert!(letter("hello").reason.contains("not a message of Gristmill"));
        let task = format!(r#"{{"job_id":"{JOB}","mini_batch":0,"work":{{"kind":"rank"}}}}"#);
        for message in [task.clone(), format!("bundle {0} {0}\n{task}{task}", task.len())] {
            let redriven = letter(&message);
            assert!(redriven.reason.contains("redrive policy"), "{redriven:?}");
            assert_eq!(redriven.job_id.as_deref(), Some(JOB), "{message}");
        }
    }

    #[test]
    fn body_is_shown_on_one_line() {
        assert_eq!(shown(b"a\nb\x1b[2J"), "a b [2J");
        assert!(shown(&[b'x'; 500]).ends_with("x…"));
    }
}
