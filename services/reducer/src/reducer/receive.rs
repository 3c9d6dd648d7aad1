//! Receives ahead of the commits, and reads the messages meanwhile.

use std::sync::Arc;
use std::time::Duration;

use queue::{Delivery, Queue, Receive};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::batch::{Batch, Unreadable};
use crate::believed::refused;

/// Pauses between calls to a queue that does not answer, each twice as long as the one before.
const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// The first pause in which messages gather is shorter by this: a job shows soon that it has begun.
const FIRST_PAUSE_PART: u32 = 16;

/// A delivery, and what it holds.
pub(super) struct Received {
    pub delivery: Delivery,
    pub records: Batch,
    /// How many of them end their mini-batch.
    pub ended: u64,
    /// What cannot be read of it, or is not believed.
    pub unreadable: Vec<Unreadable>,
}

/// Deliveries that are being read by another thread.
pub(super) type Reading = JoinHandle<Vec<Received>>;

impl Received {
    /// Reads a delivery.
    pub fn read(delivery: Delivery) -> Self {
        let mut records = Batch::default();
        let mut unreadable = Vec::from_iter(records.add(&delivery.body));
        unreadable.extend(records.take_refused(refused));
        let ended = records.events().filter(|event| event.is_final()).count() as u64;
        Self { delivery, records, ended, unreadable }
    }
}

/// Receives until nobody wants more, with a pause after every call that did not find all it asked for. A queue that
/// does not answer is asked again, with growing pauses.
pub(super) async fn receive_all(
    results: Arc<dyn Queue>,
    request: Receive,
    pause_between: Duration,
    sender: mpsc::Sender<anyhow::Result<Reading>>,
) {
    let mut pause = BACKOFF_MIN;
    let mut gathering = pause_between / FIRST_PAUSE_PART;
    loop {
        let (received, found_all) = match results.receive(request).await {
            Ok(deliveries) if deliveries.is_empty() => continue,
            Ok(deliveries) => {
                pause = BACKOFF_MIN;
                let found_all = deliveries.len() >= request.messages_max;
                let read = async { deliveries.into_iter().map(Received::read).collect() };
                (Ok(tokio::spawn(read)), found_all)
            }
            Err(error @ queue::Error::Unavailable { .. }) => {
                tracing::warn!(%error, pause.seconds = pause.as_secs_f64(), "results cannot be received, trying again");
                sleep(pause).await;
                pause = (pause * 2).min(BACKOFF_MAX);
                continue;
            }
            Err(error) => (Err(anyhow::Error::from(error).context("receive results")), false),
        };
        let is_last = received.is_err();
        if sender.send(received).await.is_err() || is_last {
            return;
        }
        if !found_all && !pause_between.is_zero() {
            sleep(gathering).await;
            gathering = (gathering * 2).min(pause_between);
        }
    }
}
