//! Messages that are not mini-batches: kept for people to inspect, and removed from the task queue.

use protocol::DeadLetter;
use queue::{Delivery, Message, Queue};

/// Moves a delivery to the dead letters, with the reason, or removes it if nobody keeps dead letters. Acknowledges it last, so
/// that the queue redelivers a message that could not be moved.
pub async fn bury(
    tasks: &dyn Queue,
    dead_letters: Option<&dyn Queue>,
    node: &str,
    delivery: Delivery,
    reason: &str,
) -> Result<(), queue::Error> {
    if let Some(dead_letters) = dead_letters {
        let bytes_max = dead_letters.limits().message_bytes_max;
        let letter = DeadLetter::message(reason, node, "tasks", &delivery.body, bytes_max);
        dead_letters.send(vec![Message::new(letter, "dead-letters")]).await?;
    }
    tasks.acknowledge(&[delivery.receipt]).await.map(drop)
}
