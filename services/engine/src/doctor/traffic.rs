//! Sends one message through a queue: publish, receive, extend, delete.

use std::time::Duration;

use queue::{CONTROL, DEAD_LETTERS, Message, Queue, Receive};
use tokio::time::Instant;

use super::Report;
use crate::Queues;

const PATIENCE: Duration = Duration::from_secs(15);
const VISIBILITY: Duration = Duration::from_secs(30);
/// The size of the smallest form of any event.
const MESSAGE_BYTES_MIN: usize = 16 * 1024;
/// Smaller messages cause more requests.
const MESSAGE_BYTES_GOOD: usize = 128 * 1024;

/// Checks the queues of the target itself, through which the check sends no message that a role
/// could misread.
pub async fn check_target(queues: &Queues, report: &mut Report) {
    for (name, queue) in [(CONTROL, &queues.control), (DEAD_LETTERS, &queues.dead_letters)] {
        match queue.depth().await {
            Ok(depth) => report.ok(format!("queue {name}"), format!("{} messages", depth.total())),
            Err(error) => report.failed(format!("queue {name}"), format!("{error:#}")),
        }
    }
    // A reducer that receives it looks for new jobs, and drops it.
    match queues.control.send(vec![Message::new(&b"doctor"[..])]).await {
        Ok(()) => report.ok(format!("queue {CONTROL}, publish"), "allowed"),
        Err(error) => report.failed(format!("queue {CONTROL}, publish"), format!("{error:#}")),
    }
}

/// Sends a message through a queue that only this check uses.
pub async fn check(name: &str, queue: &dyn Queue, report: &mut Report) {
    let carried = queue.limits().message_bytes_max;
    let check = |what: &str| format!("{name}, {what}");
    if carried < MESSAGE_BYTES_MIN {
        let message =
            format!("messages are limited to {carried} bytes; allow {MESSAGE_BYTES_GOOD}");
        report.failed(check("message size"), message);
    } else if carried < MESSAGE_BYTES_GOOD {
        let message = format!(
            "messages are limited to {carried} bytes, which causes more of them than {MESSAGE_BYTES_GOOD}; raise the limit"
        );
        report.warning(check("message size"), message);
    } else {
        report.ok(check("message size"), format!("{carried} bytes"));
    }
    let body = format!("doctor {}", storage::random_name());
    if let Err(error) = queue.send(vec![Message::new(body.clone().into_bytes())]).await {
        return report.failed(check("publish"), format!("{error:#}"));
    }
    report.ok(check("publish"), "allowed");
    let what = check("receive, extend, delete");
    match take_out(queue, body.as_bytes()).await {
        Ok(Some(())) => report.ok(what, "allowed"),
        Ok(None) => report
            .failed(what, format!("the message did not arrive within {} s", PATIENCE.as_secs())),
        Err(error) => report.failed(what, format!("{error:#}")),
    }
}

async fn take_out(queue: &dyn Queue, body: &[u8]) -> Result<Option<()>, queue::Error> {
    let began = Instant::now();
    while let Some(wait) = PATIENCE.checked_sub(began.elapsed()) {
        let request = Receive {
            messages_max: 10,
            visibility: VISIBILITY,
            wait: wait.min(Duration::from_secs(5)),
        };
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
