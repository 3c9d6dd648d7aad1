//! Receives ahead of the commits, and reads the messages meanwhile.

use std::sync::Arc;
use std::time::Duration;

use queue::{Delivery, Queue, Receive};
use tokio::sync::mpsc;
use tokio::time::sleep;

use crate::believed::refused;
use crate::ledger::{Batch, Unreadable};

/// Pauses between calls to a queue that does not answer, each twice as long as the one before.
const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(10);

/// A delivery, and what it holds.
pub(super) struct Received {
    pub delivery: Delivery,
    pub records: Batch,
    /// What cannot be read of it, or is not believed.
    pub unreadable: Vec<Unreadable>,
}

impl Received {
    /// Reads a delivery.
    pub fn read(delivery: Delivery) -> Self {
        let mut records = Batch::default();
        let mut unreadable = Vec::from_iter(records.add(&delivery.body));
        unreadable.extend(records.take_refused(refused));
        Self { delivery, records, unreadable }
    }
}

/// Receives until nobody wants more, with a pause after every call that did not find all it asked for. A queue that
/// does not answer is asked again, with growing pauses.
pub(super) async fn receive_all(
    results: Arc<dyn Queue>,
    request: Receive,
    pause_between: Duration,
    sender: mpsc::Sender<anyhow::Result<Vec<Received>>>,
) {
    let mut pause = BACKOFF_MIN;
    loop {
        let received = match results.receive(request).await {
            Ok(deliveries) if deliveries.is_empty() => continue,
            Ok(deliveries) => {
                pause = BACKOFF_MIN;
                Ok(deliveries.into_iter().map(Received::read).collect::<Vec<_>>())
            }
            Err(error @ queue::Error::Unavailable { .. }) => {
                tracing::warn!(%error, pause.seconds = pause.as_secs_f64(), "results cannot be received, trying again");
                sleep(pause).await;
                pause = (pause * 2).min(BACKOFF_MAX);
                continue;
            }
            Err(error) => Err(anyhow::Error::from(error).context("receive results")),
        };
        let is_last = received.is_err();
        let found_all = received.as_ref().is_ok_and(|messages| messages.len() >= request.messages_max);
        if sender.send(received).await.is_err() || is_last {
            return;
        }
        if !found_all && !pause_between.is_zero() {
            sleep(pause_between).await;
        }
    }
}
