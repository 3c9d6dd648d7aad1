//! Messages that are no mini-batches: kept for people to look at, and out of everybody's way.

use protocol::DeadLetter;
use queue::{Delivery, Message, Queue};

/// Moves a delivery to the dead letters, with the reason; removes it where there are none. It is acknowledged last, so a
/// message that cannot be moved comes again.
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
