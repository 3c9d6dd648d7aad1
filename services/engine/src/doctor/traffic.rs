//! Sends one message through a queue: publish, receive, extend, delete.

use std::time::Duration;

use protocol::{Descriptor, Work, begin_message};
use queue::{Message, Queue, Receive};
use tokio::time::Instant;

use super::Report;
use crate::Role;

const PATIENCE: Duration = Duration::from_secs(15);
const VISIBILITY: Duration = Duration::from_secs(30);
/// The size of the smallest form of any event.
const MESSAGE_BYTES_MIN: usize = 16 * 1024;
/// Smaller messages cause more requests.
const MESSAGE_BYTES_GOOD: usize = 128 * 1024;

/// Sends a message that names a job that does not exist, and removes it again.
pub async fn check(role: Role, name: &str, queue: &dyn Queue, report: &mut Report) {
    let carried = queue.limits().message_bytes_max;
    let check = |what: &str| format!("queue {name}, {what}");
    if carried < MESSAGE_BYTES_MIN {
        let message = format!("messages are limited to {carried} bytes; allow {MESSAGE_BYTES_GOOD}");
        report.failed(check("message size"), message);
    } else if carried < MESSAGE_BYTES_GOOD {
        let message = format!(
            "messages are limited to {carried} bytes, which causes more of them than {MESSAGE_BYTES_GOOD}; raise the limit"
        );
        report.warning(check("message size"), message);
    } else {
        report.ok(check("message size"), format!("{carried} bytes"));
    }
    let waiting = match queue.depth().await {
        Ok(depth) => depth.total(),
        Err(error) => return report.failed(check("depth"), format!("{error:#}")),
    };
    let job_id = format!("doctor-{}", storage::random_name());
    let body = probe(role, &job_id);
    if let Err(error) = queue.send(vec![Message::new(body.clone(), &job_id)]).await {
        return report.failed(check("publish"), format!("{error:#}"));
    }
    report.ok(check("publish"), "allowed");
    let what = check("receive, extend, delete");
    if waiting > 0 {
        let message = format!(
            "{waiting} messages are in the queue, and receiving one would count as a lost delivery of its mini-batch; check \
             again while no job is open"
        );
        return report.not_checked(what, message);
    }
    match take_out(queue, &body).await {
        Ok(Some(())) => report.ok(what, "allowed"),
        Ok(None) => {
            let message = format!(
                "the message did not arrive within {} s; a worker or reducer of this target may have received it",
                PATIENCE.as_secs()
            );
            report.not_checked(what, message);
        }
        Err(error) => report.failed(what, format!("{error:#}")),
    }
}

/// Returns a message that the roles drop.
fn probe(role: Role, job_id: &str) -> Vec<u8> {
    match role {
        Role::Tasks => {
            let descriptor = Descriptor::new(job_id, 0, Work::Rank);
            serde_json::to_vec(&descriptor).expect("descriptors always serialise")
        }
        Role::Results | Role::DeadLetters => begin_message(job_id),
    }
}

async fn take_out(queue: &dyn Queue, body: &[u8]) -> Result<Option<()>, queue::Error> {
    let began = Instant::now();
    while let Some(wait) = PATIENCE.checked_sub(began.elapsed()) {
        let request = Receive { messages_max: 10, visibility: VISIBILITY, wait: wait.min(Duration::from_secs(5)) };
        let (ours, others): (Vec<_>, Vec<_>) =
            queue.receive(request).await?.into_iter().partition(|delivery| *delivery.body == *body);
        let others: Vec<_> = others.into_iter().map(|delivery| delivery.receipt).collect();
        if !others.is_empty() {
            queue.release(&others).await?;
        }
        if let Some(delivery) = ours.into_iter().next() {
            queue.extend(&[(delivery.receipt.clone(), VISIBILITY)]).await?;
            queue.acknowledge(&[delivery.receipt]).await?;
            return Ok(Some(()));
        }
    }
    Ok(None)
}
