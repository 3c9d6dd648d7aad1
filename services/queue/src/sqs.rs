//! Amazon SQS: standard queues, up to ten messages per request, and concurrent requests.
//!
//! [`service`] sends and retries requests, [`failure`] explains errors, [`leases`] tracks the leases of this process,
//! [`body`] encodes bytes as text, [`attributes`] creates and describes queues, and [`broker`] has the queues of a
//! target.
//!
//! Every request costs money, so the queue sends none whose answer it knows. A lease cannot last longer than 12 hours
//! after the receive. The queue shortens extensions to the remaining time, and without remaining time the lease is
//! lost. Times are whole seconds, rounded up. Receive counts and depths are approximate.

mod attributes;
mod body;
mod broker;
mod failure;
mod leases;
mod service;

use std::collections::BTreeMap;
use std::fmt::{self, Debug, Formatter};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use aws_sdk_sqs::Client;
use aws_sdk_sqs::error::BuildError;
use aws_sdk_sqs::types::{
    ChangeMessageVisibilityBatchRequestEntry, DeleteMessageBatchRequestEntry, Message as Received,
    MessageSystemAttributeName, SendMessageBatchRequestEntry,
};
use futures::future::join_all;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};
use tokio_util::task::TaskTracker;

pub use self::attributes::{Redrive, SqsAttributes};
pub use self::broker::SqsBroker;
use self::failure::{DELETE, EXTEND, Failure, SEND};
use self::leases::{AnswerTimer, LEASE_MAX, Leases, seconds};
use self::service::{
    BATCH_MAX, Batch, REQUEST_TIME, REQUESTS_MAX, answer, connect, send_batches, with_retries,
};
use crate::clock::deadline;
use crate::error::check_sizes;
use crate::{Delivery, Depth, Error, LeaseClock, Limits, Message, Queue, Receipt, Receive};

/// The limit of `WaitTimeSeconds`.
const WAIT_MAX: Duration = Duration::from_secs(20);
/// The limit of `DelaySeconds`.
const DELAY_MAX: Duration = Duration::from_secs(900);
/// The smallest size limit of a batch. A batch may be as large as the largest message that the service allows, even if
/// the queue allows less for one message.
const BATCH_BYTES_MIN: usize = 256 << 10;

/// The address of a queue.
#[derive(Clone, Debug, Default)]
pub struct SqsOptions {
    /// The name of the queue in the account of the AWS settings, or its URL; for [`SqsBroker`] the prefix of all
    /// names.
    pub queue: String,
    /// The endpoint of SQS, which overrides that of the AWS settings.
    pub endpoint: Option<String>,
    /// The region, which overrides that of the AWS settings.
    pub region: Option<String>,
    /// Whether to create the queue if it does not exist; for [`SqsBroker`] those of the target itself.
    pub create: bool,
    /// The KMS key that encrypts new queues: its ARN, id or `alias/NAME`. `None`: SQS's own key.
    pub kms_key: Option<String>,
    /// The tags of new queues.
    pub tags: BTreeMap<String, String>,
}

/// A queue of Amazon SQS or of a service with the same protocol.
#[derive(Clone, Debug)]
pub struct SqsQueue {
    inner: Arc<Inner>,
}

struct Inner {
    client: Client,
    /// Receives in progress from the queues of all jobs of the broker.
    receives: TaskTracker,
    name: String,
    url: String,
    /// Whether the queue belongs to a job, so that it may be deleted at any time.
    of_job: bool,
    message_bytes_max: usize,
    leases: Mutex<Leases>,
}

impl Debug for Inner {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Inner").field("url", &self.url).finish_non_exhaustive()
    }
}

impl SqsQueue {
    /// Opens a queue with the AWS settings of the environment.
    pub async fn open(options: SqsOptions) -> Result<Self, Error> {
        let client = connect(&options).await?;
        let (queue, _) = Self::open_with(client, &options, &TaskTracker::new()).await?;
        Ok(queue)
    }

    /// Returns the attributes of the queue.
    pub async fn attributes(&self) -> Result<SqsAttributes, Error> {
        let described = attributes::describe(&self.inner.client, &self.inner.url).await;
        described.map(|(attributes, _)| attributes).map_err(|failure| self.inner.error(failure))
    }

    /// Returns the limits of a queue whose encoded messages have at most this many bytes.
    fn limits_of(message_bytes_max: usize) -> Limits {
        Limits {
            message_bytes_max: body::bytes_max(message_bytes_max),
            lease_max: Some(LEASE_MAX),
            delay_max: DELAY_MAX,
            timed_lease: true,
            bundle_max: 1,
        }
    }

    /// Deletes the queue with its messages.
    pub async fn delete(&self) -> Result<(), Error> {
        let deleted = attributes::delete(&self.inner.client, &self.inner.url).await;
        deleted.map_err(|failure| self.inner.error(failure))
    }
}

impl Inner {
    fn error(&self, failure: Failure) -> Error {
        match self.of_job {
            true => failure.explain_of_job(&self.name, region(&self.client)),
            false => failure.explain(&self.name, region(&self.client)),
        }
    }

    fn leases(&self) -> MutexGuard<'_, Leases> {
        self.leases.lock().expect("no holder panics")
    }

    async fn send(&self, messages: Vec<Message>) -> Result<(), Error> {
        check_sizes(&messages, body::bytes_max(self.message_bytes_max), &self.name)?;
        let encoded = messages.into_iter().map(|message| Encoded {
            body: body::encode(&message.body),
            delay_seconds: seconds(message.delay.min(DELAY_MAX)),
        });
        let batches = pack(encoded, self.message_bytes_max.max(BATCH_BYTES_MIN));
        let batches = send_batches(SEND, batches, |entries| {
            let entries = entries.iter().enumerate().map(|(id, message)| message.entry(id));
            let request = self.client.send_message_batch().queue_url(&self.url);
            let request = request.set_entries(Some(entries.collect()));
            async { Ok(answer(SEND, REQUEST_TIME, request.send()).await?.failed) }
        });
        self.outcome(batches.await).map(drop)
    }

    /// Returns the lost entries of all batches, or the failure of the first failed batch.
    fn outcome<E>(&self, batches: Vec<Batch<E>>) -> Result<Vec<E>, Error> {
        let mut lost = Vec::new();
        for batch in batches {
            if let Some(failure) = batch.failure {
                return Err(self.error(failure));
            }
            lost.extend(batch.lost);
        }
        Ok(lost)
    }

    /// Receives until messages arrive, the deadline passes, or the caller no longer wants the result.
    async fn receive(
        self: &Arc<Self>,
        request: Receive,
        is_wanted: impl Fn() -> bool,
    ) -> Result<Claimed, Error> {
        let first = request.messages_max.min(BATCH_MAX);
        let mut claimed = Claimed { inner: self.clone(), deliveries: Vec::new() };
        let deadline = deadline(request.wait);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let wait =
                self.leases().wait_max(LeaseClock::System.now()).map_or(left, |max| left.min(max));
            let polled = with_retries(|| self.poll(first, request.visibility, wait)).await;
            claimed.deliveries = polled.map_err(|failure| self.error(failure))?;
            if !claimed.deliveries.is_empty() || Instant::now() >= deadline || !is_wanted() {
                break;
            }
        }
        let mut left = request.messages_max - first;
        let mut width = 1;
        let mut more = claimed.deliveries.len() == first;
        // A round that gets at least half of the requested messages justifies the requests of a larger one.
        while more && left > 0 && is_wanted() {
            width = (2 * width).min(REQUESTS_MAX).min(left.div_ceil(BATCH_MAX));
            let requested = left.min(width * BATCH_MAX);
            let sizes = (0..width).map(|index| (requested - index * BATCH_MAX).min(BATCH_MAX));
            let polls =
                join_all(sizes.map(|size| self.poll(size, request.visibility, Duration::ZERO)))
                    .await;
            let mut arrived = 0;
            for poll in polls {
                match poll {
                    Ok(deliveries) => {
                        arrived += deliveries.len();
                        claimed.deliveries.extend(deliveries);
                    }
                    // The call has deliveries to return. If the failure persists, the next call reports it.
                    Err(failure) => {
                        tracing::debug!("queue {}: received fewer messages: {failure:?}", self.name)
                    }
                }
            }
            left -= requested;
            more = 2 * arrived >= requested;
        }
        Ok(claimed)
    }

    /// Sends one receive request.
    async fn poll(
        &self,
        messages_max: usize,
        visibility: Duration,
        wait: Duration,
    ) -> Result<Vec<Delivery>, Failure> {
        let visibility_seconds = seconds(visibility);
        let wait = Duration::from_secs(seconds(wait.min(WAIT_MAX)).unsigned_abs().into());
        let request = self.client.receive_message().queue_url(&self.url);
        let request = request
            .max_number_of_messages(i32::try_from(messages_max).expect("ten at most"))
            .visibility_timeout(visibility_seconds)
            .wait_time_seconds(i32::try_from(wait.as_secs()).expect("20 at most"))
            .message_system_attribute_names(MessageSystemAttributeName::ApproximateReceiveCount);
        let mut timer = AnswerTimer::since(LeaseClock::System.now());
        let mut answered =
            std::pin::pin!(answer("ReceiveMessage", wait + REQUEST_TIME, request.send()));
        let received = loop {
            tokio::select! {
                biased;
                received = &mut answered => break received?,
                () = sleep(AnswerTimer::CHECK_INTERVAL) => timer.check(LeaseClock::System.now()),
            }
        };
        let (leased_at, mut leases) = (timer.leased_at(), self.leases());
        let visibility = Duration::from_secs(visibility_seconds.unsigned_abs().into());
        let deliveries = received.messages.unwrap_or_default().into_iter().filter_map(|message| {
            let (delivery, handle) = delivery(message, leased_at)?;
            leases.record(handle, leased_at, visibility);
            Some(delivery)
        });
        Ok(deliveries.collect())
    }

    /// Sets the remaining seconds of each lease. Returns the lost leases.
    async fn change_visibility(&self, changes: Vec<(Receipt, i32)>) -> Result<Vec<Receipt>, Error> {
        let batches = send_batches(EXTEND, in_batches(changes), |entries| {
            let entries = entries.iter().enumerate().map(|(id, (receipt, seconds))| {
                let entry = ChangeMessageVisibilityBatchRequestEntry::builder().id(id.to_string());
                complete(entry.receipt_handle(handle(receipt)).visibility_timeout(*seconds).build())
            });
            let request = self.client.change_message_visibility_batch().queue_url(&self.url);
            let request = request.set_entries(Some(entries.collect()));
            async { Ok(answer(EXTEND, REQUEST_TIME, request.send()).await?.failed) }
        });
        let started = LeaseClock::System.now();
        let batches = batches.await;
        let mut leases = self.leases();
        for batch in &batches {
            // The lease counts from before the request, so that it never seems longer than it is.
            batch
                .done
                .iter()
                .for_each(|(receipt, seconds)| leases.extended(handle(receipt), *seconds, started));
            batch.lost.iter().for_each(|(receipt, _)| leases.remove(handle(receipt)));
        }
        drop(leases);
        Ok(self.outcome(batches)?.into_iter().map(|(receipt, _)| receipt).collect())
    }

    async fn acknowledge(&self, receipts: &[Receipt]) -> Result<Vec<Receipt>, Error> {
        let (ours, mut lost): (Vec<_>, Vec<_>) =
            receipts.iter().cloned().partition(|receipt| receipt.handle().is_some());
        let batches = send_batches(DELETE, in_batches(ours), |entries| {
            let entries = entries.iter().enumerate().map(|(id, receipt)| {
                let entry = DeleteMessageBatchRequestEntry::builder().id(id.to_string());
                complete(entry.receipt_handle(handle(receipt)).build())
            });
            let request = self.client.delete_message_batch().queue_url(&self.url);
            let request = request.set_entries(Some(entries.collect()));
            async { Ok(answer(DELETE, REQUEST_TIME, request.send()).await?.failed) }
        });
        let batches = batches.await;
        let mut leases = self.leases();
        let ended = batches.iter().flat_map(|batch| batch.done.iter().chain(&batch.lost));
        ended.for_each(|receipt| leases.remove(handle(receipt)));
        drop(leases);
        lost.extend(self.outcome(batches)?);
        Ok(lost)
    }

    async fn release(&self, receipts: &[Receipt]) -> Result<(), Error> {
        let now = LeaseClock::System.now();
        let held = |receipt: &&Receipt| {
            receipt.handle().is_some_and(|handle| self.leases().holds(handle, now))
        };
        let changes = receipts.iter().filter(held).map(|receipt| (receipt.clone(), 0)).collect();
        self.change_visibility(changes).await.map(drop)
    }
}

#[async_trait]
impl Queue for SqsQueue {
    async fn send(&self, messages: Vec<Message>) -> Result<(), Error> {
        self.inner.send(messages).await
    }

    /// A receive that does not wait asks only some servers of the service, so it may find nothing in a queue with few
    /// messages.
    ///
    /// A dropped future does not end its request, because the service may lease messages to it anyway. The queue then
    /// releases these messages.
    async fn receive(&self, request: Receive) -> Result<Vec<Delivery>, Error> {
        if request.messages_max == 0 {
            return Ok(Vec::new());
        }
        let (hand_over, received) = oneshot::channel();
        let inner = self.inner.clone();
        let receiving = async move {
            let claimed = inner.receive(request, || !hand_over.is_closed()).await;
            drop(hand_over.send(claimed));
        };
        // Reducers list jobs as well, so nothing depends on a message that a queue of the target itself hides.
        match self.inner.of_job {
            true => self.inner.receives.spawn(receiving),
            false => tokio::spawn(receiving),
        };
        Ok(received.await.expect("the task lives as long as the runtime")?.keep())
    }

    async fn extend(&self, leases: &[(Receipt, Duration)]) -> Result<Vec<Receipt>, Error> {
        let (mut changes, mut lost) = (Vec::new(), Vec::new());
        let now = LeaseClock::System.now();
        for (receipt, duration) in leases {
            let held = receipt
                .handle()
                .and_then(|handle| self.inner.leases().extension(handle, *duration, now));
            match held {
                Some(seconds) => changes.push((receipt.clone(), seconds)),
                None => lost.push(receipt.clone()),
            }
        }
        lost.extend(self.inner.change_visibility(changes).await?);
        Ok(lost)
    }

    /// Services usually accept an old receipt as well.
    async fn acknowledge(&self, receipts: &[Receipt]) -> Result<Vec<Receipt>, Error> {
        self.inner.acknowledge(receipts).await
    }

    async fn release(&self, receipts: &[Receipt]) -> Result<(), Error> {
        self.inner.release(receipts).await
    }

    async fn depth(&self) -> Result<Depth, Error> {
        let described = attributes::describe(&self.inner.client, &self.inner.url).await;
        described.map(|(_, depth)| depth).map_err(|failure| self.inner.error(failure))
    }

    fn limits(&self) -> Limits {
        Self::limits_of(self.inner.message_bytes_max)
    }
}

/// Received messages that the caller does not have yet. Dropping them makes them visible again.
#[derive(Debug)]
struct Claimed {
    inner: Arc<Inner>,
    deliveries: Vec<Delivery>,
}

impl Claimed {
    fn keep(mut self) -> Vec<Delivery> {
        std::mem::take(&mut self.deliveries)
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        // Without a runtime the process is ending, and the leases expire.
        if let (false, Ok(runtime)) = (self.deliveries.is_empty(), Handle::try_current()) {
            let (inner, deliveries) = (self.inner.clone(), std::mem::take(&mut self.deliveries));
            let receives = inner.receives.clone();
            let release = async move {
                let receipts: Vec<Receipt> =
                    deliveries.into_iter().map(|delivery| delivery.receipt).collect();
                if let Err(error) = inner.release(&receipts).await {
                    tracing::warn!(
                        "{error:#}; {} messages of a dropped receive wait until their leases expire",
                        receipts.len()
                    );
                }
            };
            receives.spawn_on(release, &runtime);
        }
    }
}

/// A message in the form in which it is sent.
#[derive(Debug)]
struct Encoded {
    body: String,
    delay_seconds: i32,
}

impl Encoded {
    fn entry(&self, id: usize) -> SendMessageBatchRequestEntry {
        let entry =
            SendMessageBatchRequestEntry::builder().id(id.to_string()).message_body(&self.body);
        complete(entry.delay_seconds(self.delay_seconds).build())
    }
}

/// Packs messages into batches of at most ten messages and `bytes_max` bytes.
fn pack(messages: impl IntoIterator<Item = Encoded>, bytes_max: usize) -> Vec<Vec<Encoded>> {
    let mut batches: Vec<Vec<Encoded>> = Vec::new();
    let mut bytes = 0;
    for message in messages {
        bytes += message.body.len();
        match batches.last_mut() {
            Some(batch) if batch.len() < BATCH_MAX && bytes <= bytes_max => batch.push(message),
            _ => {
                bytes = message.body.len();
                batches.push(vec![message]);
            }
        }
    }
    batches
}

fn in_batches<E>(entries: Vec<E>) -> Vec<Vec<E>> {
    let mut entries = entries.into_iter();
    let tens = std::iter::repeat_with(|| entries.by_ref().take(BATCH_MAX).collect::<Vec<_>>());
    tens.take_while(|batch| !batch.is_empty()).collect()
}

fn delivery(message: Received, leased_at: Instant) -> Option<(Delivery, Arc<str>)> {
    let counts = message.attributes.unwrap_or_default();
    let count = counts.get(&MessageSystemAttributeName::ApproximateReceiveCount);
    let handle: Arc<str> = message.receipt_handle?.into();
    let delivery = Delivery {
        body: body::decode(message.body.unwrap_or_default()),
        receipt: Receipt::named(handle.clone()),
        receive_count: count.and_then(|count| count.parse().ok()).unwrap_or(1),
        leased_at,
    };
    Some((delivery, handle))
}

/// Returns the handle of a receipt of this kind of queue.
fn handle(receipt: &Receipt) -> &str {
    receipt.handle().expect("receipts of other kinds were filtered out")
}

fn complete<T>(built: Result<T, BuildError>) -> T {
    built.expect("every required field is set")
}

fn region(client: &Client) -> &str {
    client.config().region().map_or("(none)", |region| region.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(bytes: usize) -> Encoded {
        Encoded { body: "x".repeat(bytes), delay_seconds: 0 }
    }

    #[test]
    fn batches_are_limited_by_count_and_bytes() {
        let sizes = |sizes: &[usize]| -> Vec<usize> {
            pack(sizes.iter().map(|size| encoded(*size)), 100).iter().map(Vec::len).collect()
        };
        assert_eq!(sizes(&[]), [0; 0]);
        assert_eq!(sizes(&[1; 25]), [10, 10, 5]);
        assert_eq!(sizes(&[50, 50, 1, 99, 1, 100, 100]), [2, 2, 1, 1, 1]);
        assert_eq!(in_batches(vec![0; 21]).iter().map(Vec::len).collect::<Vec<_>>(), [10, 10, 1]);
    }
}
