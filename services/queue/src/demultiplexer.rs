//! One shared queue seen as many: each job gets a view of it, and a view is a [`Queue`].
//!
//! A compute target shares one queue between all jobs, while an agent or a reducer works on one job. So one loop
//! receives as much as all views together ask for, and sorts it by group. The loop reports a group without a view to
//! the owner as an [`Arrival`]; its deliveries wait, their leases extended, until the owner opens a view or refuses
//! them. The demultiplexer returns deliveries to the queue if their reader does not fetch them.
//!
//! Sending, extending and acknowledging pass through unchanged: a receipt of a view is a receipt of the shared queue.

mod state;
mod view;

use std::collections::HashSet;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder, Retryable};
use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::pauses::{FOR_SECONDS, UNTIL_IT_ANSWERS};
use crate::{Delivery, Error, LeaseClock, Message, Queue, Receipt, Receive};
use state::{Poll, Shared};
pub use view::View;

/// Arrivals that the owner has not yet handled, before receiving waits for the owner.
const ARRIVALS_MAX: usize = 256;

/// Settings of a demultiplexer.
#[derive(Clone, Debug)]
pub struct DemultiplexerOptions {
    /// Returns the group of a message, or why it cannot be read.
    pub group_of: fn(&Bytes) -> Result<String, Unreadable>,
    /// How unwanted deliveries return to the queue.
    pub return_by: ReturnBy,
    /// Lease of deliveries that wait for a view or its reader.
    pub lease: Duration,
    /// The longest wait of one call to the shared queue.
    pub poll_wait: Duration,
    /// Number of messages to receive while there are no views, so that the owner learns of groups. Once there are
    /// views, messages of other groups arrive together with those that readers request.
    pub idle_wish: usize,
    /// How long a delivery waits for the reader of its view before it is returned; `None`: without limit.
    pub hold_max: Option<Duration>,
    /// How often the demultiplexer looks for other groups while readers ask for nothing: it receives one message, and
    /// returns it at once if its view is open. `None`: never.
    pub look_every: Option<Duration>,
}

/// Why a message cannot be read, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable(pub String);

/// How unwanted deliveries return to the queue.
#[derive(Clone, Copy, Debug)]
pub enum ReturnBy {
    /// Releases them. The next delivery continues the count.
    Release,
    /// Sends the bodies that the function returns, equal ones once, then acknowledges the deliveries. The next delivery
    /// counts as the first, so the function records the previous count in the body.
    Republish(fn(&Delivery) -> Bytes),
}

/// An event that the owner of a demultiplexer must handle.
#[derive(Debug)]
pub enum Arrival {
    /// Deliveries of this group wait until the owner opens a view or refuses them.
    NewGroup(String),
    /// A message that cannot be read. It stays leased for a while; the owner acknowledges it.
    Unreadable {
        /// The message.
        delivery: Delivery,
        /// Why it cannot be read.
        reason: String,
    },
    /// The shared queue cannot be used; receiving has stopped.
    Failed(Error),
}

/// How to end the wait of deliveries without a view.
#[derive(Clone, Copy, Debug)]
pub enum Refusal {
    /// Acknowledges them because nothing needs them. Only those received before the owner looked up the group, because
    /// a job may be opened again at any time.
    Drop {
        /// When the look-up began.
        received_before: Instant,
    },
    /// Returns them to the queue, for another process.
    GiveBack {
        /// How long they stay invisible, if the queue supports that.
        delay: Duration,
    },
}

/// Splits one shared queue into views. Dropping it stops receiving, and the views then stay empty.
#[derive(Debug)]
pub struct Demultiplexer {
    shared: Arc<Shared>,
    polling: tokio::sync::Mutex<Option<AbortOnDropHandle<()>>>,
    _keeping: AbortOnDropHandle<()>,
}

impl Demultiplexer {
    /// Starts receiving. The owner must read the returned channel.
    pub fn start(queue: Arc<dyn Queue>, options: DemultiplexerOptions) -> (Self, mpsc::Receiver<Arrival>) {
        let shared = Arc::new(Shared::new(queue, options));
        let (arrivals, receiver) = mpsc::channel(ARRIVALS_MAX);
        let polling = AbortOnDropHandle::new(tokio::spawn(poll(shared.clone(), arrivals.clone())));
        let keeping = AbortOnDropHandle::new(tokio::spawn(keep(shared.clone())));
        shared.set_arrivals(arrivals);
        (Self { shared, polling: tokio::sync::Mutex::new(Some(polling)), _keeping: keeping }, receiver)
    }

    /// Opens the view of a group, which gets the deliveries that wait for it.
    pub fn view(&self, group: &str) -> Arc<View> {
        self.shared.open(group);
        Arc::new(View::new(self.shared.clone(), group.to_owned()))
    }

    /// Closes the view of a group. If deliveries wait there, the owner gets another [`Arrival::NewGroup`]. Those that its
    /// reader still holds return to the queue: when their leases expire, or at once where leases do not expire.
    pub fn close(&self, group: &str) {
        self.shared.close(group);
    }

    /// Ends the wait of deliveries whose view is not open.
    pub async fn refuse(&self, group: &str, refusal: Refusal) -> Result<(), Error> {
        match refusal {
            Refusal::Drop { received_before } => {
                let dropped = self.shared.take_unviewed(group, Some(received_before));
                let receipts: Vec<Receipt> = dropped.into_iter().map(|delivery| delivery.receipt).collect();
                persist(|| self.shared.queue.acknowledge(&receipts)).await.map(drop)
            }
            Refusal::GiveBack { delay } => {
                let deliveries = self.shared.take_unviewed(group, None);
                return_deliveries(&*self.shared.queue, self.shared.options.return_by, group, deliveries, delay).await
            }
        }
    }

    /// Returns since when a delivery has waited for a view of this group; `None` if none waits, or the view is open.
    pub fn unviewed_since(&self, group: &str) -> Option<Instant> {
        self.shared.unviewed_since(group)
    }

    /// Pauses receiving for this long.
    pub fn pause(&self, time: Duration) {
        self.shared.pause_until(Instant::now() + time);
    }

    /// Changes [`DemultiplexerOptions::idle_wish`].
    pub fn set_idle_wish(&self, messages: usize) {
        self.shared.set_idle_wish(messages);
    }

    /// Returns since when no delivery has been held here, by a reader or waiting for one; `None` if one is.
    pub fn quiet_since(&self) -> Option<Instant> {
        self.shared.quiet_since()
    }

    /// Stops receiving permanently, and returns all deliveries that no reader has to the queue.
    pub async fn drain(&self) -> Result<(), Error> {
        if let Some(polling) = self.polling.lock().await.take() {
            polling.abort();
            let _ = polling.await;
            // Also returns what the backend has prefetched.
            let (visibility, wait) = (self.shared.options.lease, Duration::ZERO);
            self.shared.queue.receive(Receive { messages_max: 0, visibility, wait }).await?;
        }
        self.shared.stop();
        for (group, deliveries) in self.shared.take_all() {
            return_deliveries(&*self.shared.queue, self.shared.options.return_by, &group, deliveries, Duration::ZERO)
                .await?;
        }
        Ok(())
    }
}

impl Drop for Demultiplexer {
    fn drop(&mut self) {
        self.shared.stop();
    }
}

/// Receives what readers request, and sorts it by group.
async fn poll(shared: Arc<Shared>, arrivals: mpsc::Sender<Arrival>) {
    let mut pauses = UNTIL_IT_ANSWERS.build();
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
            Poll::WaitOrLook(moment) => {
                tokio::select! { () = shared.asked.notified() => {} () = sleep_until(moment) => {} }
                continue;
            }
        };
        let arrived = match shared.queue.receive(request).await {
            Ok(deliveries) => {
                pauses = UNTIL_IT_ANSWERS.build();
                shared.arrived(deliveries, request.visibility)
            }
            Err(error) => {
                shared.failed(&error);
                if matches!(error, Error::Unavailable { .. }) {
                    let pause = pauses.next().expect("the number of retries has no limit");
                    tracing::warn!("{error:#}; trying again in {pause:?}");
                    sleep(pause).await;
                    continue;
                }
                vec![Arrival::Failed(error)]
            }
        };
        for arrival in arrived {
            let is_last = matches!(arrival, Arrival::Failed(_));
            if arrivals.send(arrival).await.is_err() || is_last {
                return;
            }
        }
    }
}

/// Extends the leases of waiting deliveries, and returns those that have waited too long or whose reader has ended.
async fn keep(shared: Arc<Shared>) {
    let lease = shared.options.lease;
    let period = shared.options.hold_max.map_or(lease / 4, |hold_max| hold_max.min(lease / 4));
    loop {
        tokio::select! { () = sleep(period) => {} () = shared.found.notified() => {} }
        for (group, excess) in shared.take_excess() {
            let count = excess.len();
            match return_deliveries(&*shared.queue, shared.options.return_by, &group, excess, Duration::ZERO).await {
                Ok(()) => tracing::debug!(job.id = group, "returned {count} messages that no reader here fetched"),
                Err(error) => tracing::warn!(job.id = group, "cannot return {count} messages: {error:#}"),
            }
        }
        let abandoned = shared.take_abandoned();
        if !abandoned.is_empty()
            && let Err(error) = persist(|| shared.queue.release(&abandoned)).await
        {
            tracing::warn!("cannot return {} messages: {error:#}", abandoned.len());
        }
        let extended_at = LeaseClock::System.now();
        // Halfway through a lease, give or take half a round.
        let ending = shared.ending_before(extended_at + lease * 5 / 8);
        let leases: Vec<(Receipt, Duration)> = ending.into_iter().map(|receipt| (receipt, lease)).collect();
        if leases.is_empty() {
            continue;
        }
        // A reader that gets a delivery whose lease was not extended in time extends it itself.
        match timeout(lease / 2, shared.queue.extend(&leases)).await {
            Ok(Ok(lost)) => shared.extended(extended_at, &leases, &lost),
            Ok(Err(error)) => tracing::warn!("cannot extend {} leases, trying again: {error:#}", leases.len()),
            Err(_) => tracing::warn!("the queue has not extended {} leases in time, trying again", leases.len()),
        }
    }
}

/// Returns deliveries to the queue, invisible for `delay` if the queue supports that.
async fn return_deliveries(
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
            // Copies that meet return as one message. Calls whose answers are lost make copies, so they would multiply
            // from return to return.
            let mut seen = HashSet::new();
            let bodies = deliveries.iter().map(body_of).filter(|body| seen.insert(body.clone()));
            let messages: Vec<Message> = bodies.map(|body| Message { delay, ..Message::new(body, group) }).collect();
            persist(|| queue.send(messages.clone())).await?;
            persist(|| queue.acknowledge(&receipts)).await.map(drop)
        }
    }
}

async fn persist<T, F: Future<Output = Result<T, Error>>>(call: impl FnMut() -> F) -> Result<T, Error> {
    call.retry(FOR_SECONDS).when(|error| matches!(error, Error::Unavailable { .. })).await
}
