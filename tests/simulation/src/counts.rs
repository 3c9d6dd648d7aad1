//! Counts what roles ask of queues and store, as SQS and S3 count it.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use queue::{Delivery, Depth, Error, Limits, Message, Queue, Receipt, Receive};
use tokio::time::Instant;

/// Messages and bytes of one request to SQS, requests at a time, and the bytes that it bills as one request.
const BATCH: usize = 10;
const BATCH_BYTES: usize = 256 << 10;
const REQUESTS_AT_ONCE: usize = 16;
const BILLED_BYTES: usize = 64 << 10;
/// SQS answers a receive after this long at the latest.
const POLL: Duration = Duration::from_secs(20);
/// The busiest second is looked for in steps of this length.
const SECOND: Duration = Duration::from_secs(1);

/// Requests to the services behind queues and store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Requests {
    /// Requests to SQS as it bills them: one for each 64 KiB.
    pub sends: u64,
    pub receives: u64,
    pub deletes: u64,
    pub extensions: u64,
    pub puts: u64,
    pub gets: u64,
    pub lists: u64,
    /// Bytes of the largest message.
    pub message_bytes_max: u64,
    /// Messages where each travels alone, as on RabbitMQ, and their bytes.
    pub messages: u64,
    pub message_bytes: u64,
    pub deliveries: u64,
    /// Requests in the busiest second of each.
    pub sqs_a_second_max: u64,
    pub puts_a_second_max: u64,
    pub gets_a_second_max: u64,
}

impl Requests {
    /// Returns the number of requests to the queues.
    pub fn sqs(&self) -> u64 {
        self.sends + self.receives + self.deletes + self.extensions
    }

    /// Returns the number of all requests.
    pub fn all(&self) -> u64 {
        self.sqs() + self.puts + self.gets + self.lists
    }
}

#[derive(Debug, Default)]
struct State {
    requests: Requests,
    /// The second that began last, and the requests before it.
    second: Option<(Instant, Requests)>,
    stopped_at: Option<Instant>,
}

/// Counts until it is stopped. Clones share their counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts(Arc<Mutex<State>>);

impl Counts {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no holder panics")
    }

    /// Counts requests, unless it is stopped.
    pub fn add(&self, add: impl FnOnce(&mut Requests)) {
        let mut state = self.state();
        if state.stopped_at.is_some() {
            return;
        }
        let now = Instant::now();
        let (since, before) = state
            .second
            .filter(|(since, _)| now - *since < SECOND)
            .unwrap_or((now, state.requests));
        state.second = Some((since, before));
        let requests = &mut state.requests;
        add(requests);
        requests.sqs_a_second_max = requests.sqs_a_second_max.max(requests.sqs() - before.sqs());
        requests.puts_a_second_max = requests.puts_a_second_max.max(requests.puts - before.puts);
        requests.gets_a_second_max = requests.gets_a_second_max.max(requests.gets - before.gets);
    }

    /// Counts messages that a role sends, before they are joined.
    pub fn sent(&self, messages: &[Message]) {
        let bytes: usize = messages.iter().map(|message| message.body.len()).sum();
        self.add(|requests| {
            requests.messages += messages.len() as u64;
            requests.message_bytes += bytes as u64;
        });
    }

    /// Counts messages that a role receives.
    pub fn received(&self, deliveries: usize) {
        self.add(|requests| requests.deliveries += deliveries as u64);
    }

    /// Counts no more: the first job has ended.
    pub fn stop(&self) {
        self.state().stopped_at.get_or_insert_with(Instant::now);
    }

    /// Returns when it was stopped.
    pub fn stopped_at(&self) -> Option<Instant> {
        self.state().stopped_at
    }

    /// Returns the counts, and begins again.
    pub fn take(&self) -> Requests {
        std::mem::take(&mut *self.state()).requests
    }
}

/// A queue that counts what the SQS backend would ask.
#[derive(Debug)]
pub(crate) struct CountedQueue {
    pub inner: Arc<dyn Queue>,
    pub counts: Counts,
}

/// Returns the requests for which SQS bills one of this size.
fn billed(bytes: usize) -> u64 {
    bytes.div_ceil(BILLED_BYTES).max(1) as u64
}

fn tens(messages: usize) -> u64 {
    messages.div_ceil(BATCH) as u64
}

/// Returns the requests that send messages of these sizes: ten at a time, and not more than fit into one.
fn sends(sizes: impl Iterator<Item = usize>) -> u64 {
    let (mut requests, mut messages, mut bytes) = (0, 0, 0);
    for size in sizes {
        if messages == BATCH || messages > 0 && bytes + size > BATCH_BYTES {
            requests += billed(bytes);
            (messages, bytes) = (0, 0);
        }
        messages += 1;
        bytes += size;
    }
    if messages > 0 { requests + billed(bytes) } else { requests }
}

/// Returns how often a sender of messages of these sizes waits for answers, with as many requests at a time as the
/// backend.
pub(crate) fn rounds(sizes: impl Iterator<Item = usize>) -> u64 {
    sends(sizes).div_ceil(REQUESTS_AT_ONCE as u64)
}

/// Returns the requests after the first one that receive this many messages. Each round shows whether the next, larger
/// one is worth its requests.
fn more_receives(asked: usize, received: usize) -> u64 {
    let first = asked.min(BATCH);
    let (mut left, mut rest) = (asked - first, received.saturating_sub(first));
    let (mut requests, mut width, mut more) = (0, 1, received >= first);
    while more && left > 0 {
        width = (2 * width).min(REQUESTS_AT_ONCE).min(left.div_ceil(BATCH));
        let round = left.min(width * BATCH);
        let arrived = rest.min(round);
        requests += width as u64;
        (left, rest, more) = (left - round, rest - arrived, 2 * arrived >= round);
    }
    requests
}

#[async_trait]
impl Queue for CountedQueue {
    async fn send(&self, messages: Vec<Message>) -> Result<(), Error> {
        let largest = messages.iter().map(|message| message.body.len()).max().unwrap_or(0) as u64;
        let count = sends(messages.iter().map(|message| message.body.len()));
        self.counts.add(|requests| {
            requests.sends += count;
            requests.message_bytes_max = requests.message_bytes_max.max(largest);
        });
        self.inner.send(messages).await
    }

    async fn receive(&self, request: Receive) -> Result<Vec<Delivery>, Error> {
        let began = Instant::now();
        if request.messages_max > 0 {
            // Also where the receiver goes away before the answer.
            self.counts.add(|requests| requests.receives += 1);
        }
        let deliveries = self.inner.receive(request).await?;
        let polls = (began.elapsed().as_millis() / POLL.as_millis()) as u64;
        let bytes: usize = deliveries.iter().map(|delivery| delivery.body.len()).sum();
        let more = more_receives(request.messages_max, deliveries.len());
        let extra = billed(bytes).saturating_sub(tens(deliveries.len()).max(1));
        self.counts.add(|requests| requests.receives += polls + more + extra);
        Ok(deliveries)
    }

    async fn extend(&self, leases: &[(Receipt, Duration)]) -> Result<Vec<Receipt>, Error> {
        self.counts.add(|requests| requests.extensions += tens(leases.len()));
        self.inner.extend(leases).await
    }

    async fn acknowledge(&self, receipts: &[Receipt]) -> Result<Vec<Receipt>, Error> {
        self.counts.add(|requests| requests.deletes += tens(receipts.len()));
        self.inner.acknowledge(receipts).await
    }

    async fn release(&self, receipts: &[Receipt]) -> Result<(), Error> {
        self.counts.add(|requests| requests.extensions += tens(receipts.len()));
        self.inner.release(receipts).await
    }

    async fn depth(&self) -> Result<Depth, Error> {
        self.inner.depth().await
    }

    fn limits(&self) -> Limits {
        self.inner.limits()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_those_of_the_backend() {
        assert_eq!(sends([].into_iter()), 0);
        assert_eq!(sends([100; 25].into_iter()), 3);
        assert_eq!(
            sends([200 << 10; 2].into_iter()),
            8,
            "each has its own request, of four times 64 KiB"
        );
        assert_eq!((more_receives(5, 5), more_receives(10, 10), more_receives(100, 9)), (0, 0, 0));
        assert_eq!(more_receives(100, 10), 2, "a look for more");
        assert_eq!(more_receives(100, 100), 2 + 4 + 3);
    }

    #[tokio::test(start_paused = true)]
    async fn counts_end_when_they_are_stopped() {
        let counts = Counts::default();
        for _ in 0..3 {
            counts.add(|requests| requests.puts += 1);
        }
        tokio::time::advance(SECOND).await;
        counts.add(|requests| requests.puts += 1);
        counts.add(|requests| requests.gets += 1);
        counts.stop();
        counts.add(|requests| requests.puts += 1);
        let requests = counts.take();
        assert_eq!((requests.puts, requests.gets, requests.all()), (4, 1, 5));
        assert_eq!((requests.puts_a_second_max, requests.gets_a_second_max), (3, 1));
        assert_eq!(counts.take(), Requests::default());
    }
}
