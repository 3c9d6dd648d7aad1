//! One shared queue seen as many: each job gets a view of it, and a view is a [`Queue`].
//!
//! A fleet shares one queue between all jobs, while whoever works on a job wants to be alone with it. So one loop
//! receives, as much as all views together ask for, and sorts what comes by group. A group that nobody has a view of
//! yet is told to the owner as an [`Arrival`]; its deliveries wait, their leases extended, until the owner opens a
//! view or refuses them. What waits in vain for a reader that has moved on is given back for others.
//!
//! Sending, extending and acknowledging go straight through: a receipt of a view is one of the shared queue.

mod state;
mod view;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use backon::{ExponentialBuilder, Retryable};
use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::task::AbortOnDropHandle;

use crate::{Delivery, Error, Message, Queue, Receipt, Receive};
use state::{Poll, Shared};
pub use view::View;

/// Arrivals that the owner has not looked at yet, before receiving waits for it.
const ARRIVALS_MAX: usize = 256;
/// Pauses between calls to a queue that does not answer, each twice as long as the one before.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// How a shared queue is split.
#[derive(Clone, Debug)]
pub struct DemultiplexerOptions {
    /// Whose a message is; in the error, why it cannot be read.
    pub group_of: fn(&Bytes) -> Result<String, String>,
    /// How deliveries that nobody here wants go back.
    pub return_by: ReturnBy,
    /// Leases of deliveries that wait for a view or its reader.
    pub lease: Duration,
    /// The longest wait of one call to the shared queue.
    pub poll_wait: Duration,
    /// Messages to receive while there are no views, so that groups are noticed. Where there are some, others come with
    /// what their readers ask for.
    pub idle_wish: usize,
    /// How long a delivery waits for the reader of its view before it is given back; `None`: for ever.
    pub hold_max: Option<Duration>,
}

/// How deliveries that nobody here wants go back.
#[derive(Clone, Copy, Debug)]
pub enum ReturnBy {
    /// Their leases end. The next delivery counts on.
    Release,
    /// What the function makes of them is sent, then they are acknowledged. The next delivery is a first one, so the
    /// function puts into the body what the queue had counted.
    Republish(fn(&Delivery) -> Bytes),
}

/// What the owner of a demultiplexer should look at.
#[derive(Debug)]
pub enum Arrival {
    /// Deliveries of this group wait for a view, or to be refused.
    NewGroup(String),
    /// A message that is none of ours. It stays leased for a while, and is the owner's to acknowledge.
    Unreadable {
        /// The message.
        delivery: Delivery,
        /// Why it cannot be read.
        reason: String,
    },
    /// The shared queue cannot be used; nothing more is received.
    Failed(Error),
}

/// What becomes of deliveries that wait for a view.
#[derive(Clone, Copy, Debug)]
pub enum Refusal {
    /// They are of no use to anybody, and acknowledged. Only those received before the reason was looked up: a job may
    /// be opened again at any time.
    Drop {
        /// When the looking up began.
        received_before: Instant,
    },
    /// Somebody else may want them.
    GiveBack {
        /// How long nobody receives them, where the queue can do that.
        delay: Duration,
    },
}

/// Splits one shared queue. Dropping it ends receiving, and the views are empty from then on.
#[derive(Debug)]
pub struct Demultiplexer {
    shared: Arc<Shared>,
    polling: tokio::sync::Mutex<Option<AbortOnDropHandle<()>>>,
    _keeping: AbortOnDropHandle<()>,
}

impl Demultiplexer {
    /// Starts receiving. The second part tells what its owner should look at, and must be read.
    pub fn start(queue: Arc<dyn Queue>, options: DemultiplexerOptions) -> (Self, mpsc::Receiver<Arrival>) {
        let shared = Arc::new(Shared::new(queue, options));
        let (arrivals, receiver) = mpsc::channel(ARRIVALS_MAX);
        let polling = AbortOnDropHandle::new(tokio::spawn(poll(shared.clone(), arrivals.clone())));
        let keeping = AbortOnDropHandle::new(tokio::spawn(keep(shared.clone())));
        shared.set_arrivals(arrivals);
        (Self { shared, polling: tokio::sync::Mutex::new(Some(polling)), _keeping: keeping }, receiver)
    }

    /// The view of a group. What waits for it goes there.
    pub fn view(&self, group: &str) -> Arc<View> {
        self.shared.open(group);
        Arc::new(View::new(self.shared.clone(), group.to_owned()))
    }

    /// Nobody reads the view of a group any more. If something waits there, the group is told as a new one.
    pub fn close(&self, group: &str) {
        self.shared.close(group);
    }

    /// Ends the waiting of deliveries for a view that is not opened, or has been closed.
    pub async fn refuse(&self, group: &str, refusal: Refusal) -> Result<(), Error> {
        match refusal {
            Refusal::Drop { received_before } => {
                let dropped = self.shared.take_unviewed(group, Some(received_before));
                let receipts: Vec<Receipt> = dropped.into_iter().map(|delivery| delivery.receipt).collect();
                persist(|| self.shared.queue.acknowledge(&receipts)).await.map(drop)
            }
            Refusal::GiveBack { delay } => {
                let deliveries = self.shared.take_unviewed(group, None);
                give_back(&*self.shared.queue, self.shared.options.return_by, group, deliveries, delay).await
            }
        }
    }

    /// Receives nothing for that long, whoever asks.
    pub fn pause(&self, time: Duration) {
        self.shared.pause_until(Instant::now() + time);
    }

    /// Changes [`DemultiplexerOptions::idle_wish`].
    pub fn set_idle_wish(&self, messages: usize) {
        self.shared.set_idle_wish(messages);
    }

    /// Since when nothing has been held here, by a view's reader or waiting for one; `None`: something is.
    pub fn quiet_since(&self) -> Option<Instant> {
        self.shared.quiet_since()
    }

    /// Stops receiving for good, and gives back everything that no reader has yet.
    pub async fn drain(&self) -> Result<(), Error> {
        if let Some(polling) = self.polling.lock().await.take() {
            polling.abort();
            let _ = polling.await;
            // What a backend has fetched ahead goes back too.
            let (visibility, wait) = (self.shared.options.lease, Duration::ZERO);
            self.shared.queue.receive(Receive { messages_max: 0, visibility, wait }).await?;
        }
        self.shared.stop();
        for (group, deliveries) in self.shared.take_all() {
            give_back(&*self.shared.queue, self.shared.options.return_by, &group, deliveries, Duration::ZERO).await?;
        }
        Ok(())
    }
}

impl Drop for Demultiplexer {
    fn drop(&mut self) {
        self.shared.stop();
    }
}

/// Receives what is asked for, and sorts it.
async fn poll(shared: Arc<Shared>, arrivals: mpsc::Sender<Arrival>) {
    let mut pause = PAUSE_MIN;
    loop {
        let request = match shared.next_poll() {
            Poll::Receive(request) => request,
            Poll::WaitUntil(moment) => {
                sleep_until(moment).await;
                continue;
            }
            Poll::Wait => {
                shared.asked.notified().await;
                continue;
            }
        };
        let told = match shared.queue.receive(request).await {
            Ok(deliveries) => {
                pause = PAUSE_MIN;
                shared.arrived(deliveries, request.visibility)
            }
            Err(error) => {
                shared.failed(&error);
                if matches!(error, Error::Unavailable { .. }) {
                    tracing::warn!("{error}; trying again in {pause:?}");
                    sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                    continue;
                }
                vec![Arrival::Failed(error)]
            }
        };
        for arrival in told {
            let is_last = matches!(arrival, Arrival::Failed(_));
            if arrivals.send(arrival).await.is_err() || is_last {
                return;
            }
        }
    }
}

/// Extends the leases of what waits, and gives back what waits in vain.
async fn keep(shared: Arc<Shared>) {
    let lease = shared.options.lease;
    let period = shared.options.hold_max.map_or(lease / 3, |hold_max| hold_max.min(lease / 3));
    loop {
        sleep(period).await;
        for (group, excess) in shared.take_excess() {
            let count = excess.len();
            match give_back(&*shared.queue, shared.options.return_by, &group, excess, Duration::ZERO).await {
                Ok(()) => tracing::debug!(job.id = group, "{count} messages that nobody here needs are given back"),
                Err(error) => tracing::warn!(job.id = group, "cannot give {count} messages back: {error}"),
            }
        }
        let leases: Vec<(Receipt, Duration)> =
            shared.waiting_receipts().into_iter().map(|receipt| (receipt, lease)).collect();
        if leases.is_empty() {
            continue;
        }
        let extended_at = Instant::now();
        match shared.queue.extend(&leases).await {
            Ok(lost) => shared.extended(extended_at, &lost),
            Err(error) => tracing::warn!("cannot extend {} leases, trying again: {error}", leases.len()),
        }
    }
}

/// Gives deliveries back, after `delay` where the queue can do that.
async fn give_back(
    queue: &dyn Queue,
    return_by: ReturnBy,
    group: &str,
    deliveries: Vec<Delivery>,
    delay: Duration,
) -> Result<(), Error> {
    if deliveries.is_empty() {
        return Ok(());
    }
    let receipts: Vec<Receipt> = deliveries.iter().map(|delivery| delivery.receipt.clone()).collect();
    match return_by {
        ReturnBy::Release if delay.is_zero() || !queue.limits().timed_lease => {
            persist(|| queue.release(&receipts)).await
        }
        ReturnBy::Release => {
            let leases: Vec<(Receipt, Duration)> = receipts.into_iter().map(|receipt| (receipt, delay)).collect();
            persist(|| queue.extend(&leases)).await.map(drop)
        }
        ReturnBy::Republish(body_of) => {
            let delay = delay.min(queue.limits().delay_max);
            let message = |delivery| Message { body: body_of(delivery), group: group.to_owned(), delay };
            let messages: Vec<Message> = deliveries.iter().map(message).collect();
            persist(|| queue.send(messages.clone())).await?;
            persist(|| queue.acknowledge(&receipts)).await.map(drop)
        }
    }
}

async fn persist<T, F: Future<Output = Result<T, Error>>>(call: impl FnMut() -> F) -> Result<T, Error> {
    call.retry(ExponentialBuilder::default().with_jitter().with_max_delay(Duration::from_secs(2)).with_max_times(6))
        .when(|error| matches!(error, Error::Unavailable { .. }))
        .await
}
