//! Receives and reads messages ahead of the commits.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use backon::BackoffBuilder;
use protocol::{ReducerTrouble, one_line};
use queue::pauses::UNTIL_IT_ANSWERS;
use queue::{Delivery, Queue, Receive};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::batch::{Batch, Unreadable};
use crate::believed::refused;

/// The first pause between receives is shorter by this factor, so that a job soon shows its first progress.
const FIRST_PAUSE_PART: u32 = 16;

/// Longest wait of a receive while the queue does not answer.
const WAIT_IN_TROUBLE: Duration = Duration::from_secs(1);

/// A receive without an answer this long after its wait is reported.
const LATE_AFTER: Duration = Duration::from_secs(2);

/// A delivery and its records.
pub(crate) struct Received {
    pub delivery: Delivery,
    pub records: Batch,
    /// Number of records that end a mini-batch.
    pub ended: u64,
    /// Unreadable and refused parts of the message.
    pub unreadable: Vec<Unreadable>,
}

/// Deliveries that another thread is reading.
pub(crate) type Reading = JoinHandle<Vec<Received>>;

/// Waits for the reading thread.
pub(crate) async fn received(reading: Reading) -> anyhow::Result<Vec<Received>> {
    reading.await.context("read results")
}

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

/// Records why the reducer cannot continue: its queue or its store does not answer.
pub(crate) fn tell(trouble: &watch::Sender<Option<ReducerTrouble>>, reason: String) {
    trouble.send_modify(|trouble| {
        *trouble = Some(ReducerTrouble::continuing(trouble.as_ref(), reason))
    });
}

/// Receives until the channel is closed, with a pause after every call that returned fewer messages than requested.
/// Calls an unavailable queue again after growing pauses, and records the reason in `trouble`.
pub(crate) async fn receive_all(
    results: Arc<dyn Queue>,
    request: Receive,
    pause_between: Duration,
    sender: mpsc::Sender<anyhow::Result<Reading>>,
    trouble: watch::Sender<Option<ReducerTrouble>>,
) {
    let mut pauses = UNTIL_IT_ANSWERS.build();
    let mut gathering = pause_between / FIRST_PAUSE_PART;
    loop {
        // A short wait, so that a recovered queue answers soon.
        let wait = if trouble.borrow().is_some() {
            request.wait.min(WAIT_IN_TROUBLE)
        } else {
            request.wait
        };
        let receiving = results.receive(Receive { wait, ..request });
        tokio::pin!(receiving);
        let answer = tokio::select! {
            biased;
            answer = &mut receiving => answer,
            () = sleep(wait + LATE_AFTER) => {
                // A cause that an earlier receive has told stays.
                if trouble.borrow().is_none() {
                    tell(&trouble, "the queue of results does not answer".to_owned());
                }
                receiving.await
            }
        };
        if answer.is_ok() {
            trouble.send_if_modified(|trouble| trouble.take().is_some());
        }
        let (received, is_full) = match answer {
            Ok(deliveries) if deliveries.is_empty() => continue,
            Ok(deliveries) => {
                pauses = UNTIL_IT_ANSWERS.build();
                let is_full = deliveries.len() >= request.messages_max;
                let read = async { deliveries.into_iter().map(Received::read).collect() };
                (Ok(tokio::spawn(read)), is_full)
            }
            Err(error @ queue::Error::Unavailable { .. }) => {
                let pause = pauses.next().expect("the number of retries has no limit");
                tell(
                    &trouble,
                    one_line(&format!("the queue of results does not answer: {error:#}")),
                );
                tracing::warn!(error = %format!("{error:#}"), pause.seconds = pause.as_secs_f64(), "cannot receive results, trying again");
                sleep(pause).await;
                continue;
            }
            Err(error) => (Err(anyhow::Error::from(error).context("receive results")), false),
        };
        let is_last = received.is_err();
        if sender.send(received).await.is_err() || is_last {
            return;
        }
        if !is_full && !pause_between.is_zero() {
            sleep(gathering).await;
            gathering = (gathering * 2).min(pause_between);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use async_trait::async_trait;
    use queue::{Depth, Error, Limits, Message, Receipt};

    use super::*;

    /// Refuses the first receive, and answers no other.
    #[derive(Debug, Default)]
    struct Down(AtomicBool);

    #[async_trait]
    impl Queue for Down {
        async fn receive(&self, _: Receive) -> Result<Vec<Delivery>, Error> {
            if self.0.swap(true, Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
            let (queue, source) = ("results".to_owned(), "nothing listens".into());
            Err(Error::Unavailable { queue, source })
        }

        async fn send(&self, _: Vec<Message>) -> Result<(), Error> {
            unimplemented!()
        }

        async fn extend(&self, _: &[(Receipt, Duration)]) -> Result<Vec<Receipt>, Error> {
            unimplemented!()
        }

        async fn acknowledge(&self, _: &[Receipt]) -> Result<Vec<Receipt>, Error> {
            unimplemented!()
        }

        async fn release(&self, _: &[Receipt]) -> Result<(), Error> {
            unimplemented!()
        }

        async fn depth(&self) -> Result<Depth, Error> {
            unimplemented!()
        }

        fn limits(&self) -> Limits {
            unimplemented!()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn cause_of_a_silent_queue_stays_known() {
        let (trouble, known) = watch::channel(None);
        let (sender, _receiver) = mpsc::channel(1);
        let request = Receive {
            messages_max: 1,
            wait: Duration::from_secs(1),
            visibility: Duration::from_secs(60),
        };
        let receiving = tokio::spawn(receive_all(
            Arc::new(Down::default()),
            request,
            Duration::ZERO,
            sender,
            trouble,
        ));
        sleep(Duration::from_secs(600)).await;
        let reason = known.borrow().clone().expect("it does not answer").reason;
        assert!(reason.ends_with("nothing listens"), "{reason}");
        receiving.abort();
    }
}
