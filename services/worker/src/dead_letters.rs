//! Moves messages that are not mini-batches from the task queue to the dead letters, where people
//! can inspect them. Each letter has the reason. A mini-batch that keeps failing never becomes one.

use protocol::DeadLetter;
use queue::{Delivery, Message, Queue, Receipt};

/// Moves deliveries to the dead letters, with the reasons, or removes them if the target has no
/// such queue. Sends all of them in one call, because there may be many. Acknowledges them last, so
/// that the queue redelivers those that could not be moved.
pub async fn dead_letter(
    tasks: &dyn Queue,
    dead_letters: Option<&dyn Queue>,
    node: &str,
    job_id: &str,
    dead_lettered: Vec<(Delivery, String)>,
) -> Result<(), queue::Error> {
    if dead_lettered.is_empty() {
        return Ok(());
    }
    if let Some(dead_letters) = dead_letters {
        let bytes_max = dead_letters.limits().message_bytes_max;
        let letter = |(delivery, reason): &(Delivery, String)| {
            let letter =
                DeadLetter::message(reason, node, job_id, "tasks", &delivery.body, bytes_max);
            Message::new(letter)
        };
        dead_letters.send(dead_lettered.iter().map(letter).collect()).await?;
    }
    let receipts: Vec<Receipt> =
        dead_lettered.into_iter().map(|(delivery, _)| delivery.receipt).collect();
    tasks.acknowledge(&receipts).await.map(drop)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use queue::{MemoryOptions, MemoryQueue, Receive};

    use super::*;

    #[tokio::test]
    async fn messages_are_dead_lettered_together_and_stay_in_the_queue_until_then() {
        let [tasks, dead_letters] = [(); 2].map(|()| MemoryQueue::new(MemoryOptions::default()));
        let poison = |number: usize| Message::new(format!("poison {number}"));
        tasks.send((0..3).map(poison).collect()).await.expect("sends");
        let lease = Duration::from_secs(60);
        let received = tasks
            .receive(Receive { messages_max: 3, visibility: lease, wait: Duration::ZERO })
            .await;
        let dead_lettered: Vec<_> = received
            .expect("receives")
            .into_iter()
            .map(|delivery| (delivery, "no task".to_owned()))
            .collect();
        let counts = async || {
            let [tasks, letters] = [tasks.depth().await, dead_letters.depth().await];
            (tasks.expect("answers").in_flight, letters.expect("answers").visible)
        };

        dead_letters.fail_next(1);
        let failed =
            dead_letter(&tasks, Some(&dead_letters), "node", "job", dead_lettered.clone()).await;
        assert!(failed.is_err());
        assert_eq!(counts().await, (3, 0), "the queue redelivers what could not be moved");

        // One call sends all letters, before one call acknowledges all messages.
        tasks.fail_next(1);
        assert!(
            dead_letter(&tasks, Some(&dead_letters), "node", "job", dead_lettered.clone())
                .await
                .is_err()
        );
        assert_eq!(counts().await, (3, 3));
        dead_letter(&tasks, None, "node", "job", dead_lettered).await.expect("removes them");
        assert_eq!(counts().await, (0, 3));
    }
}
