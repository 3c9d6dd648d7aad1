//! A decorator that sends several messages as one message of the service: a *bundle*.
//!
//! A message of 100 bytes takes a service as long as one of 10 KB, and costs as much, so quick mini-batches are cheaper
//! together. The sender decides which messages may travel together ([`Message::bundle_max`]). A receiver gets each of
//! them as a [`Delivery`] of its own, a *member*. The members of a bundle share its lease and receive count, and the
//! bundle is acknowledged at the service once all members are. If a receiver dies, the service therefore delivers
//! acknowledged members again, together with the others. The receiver of a redelivered bundle first sends each member
//! again alone, because one of them may have killed the last receiver.
//!
//! A bundle is the line `bundle MEMBER-BYTES…` and the members.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::{Delivery, Depth, Error, Limits, Message, Name, Queue, Receipt, Receive};

/// The largest number of members of a bundle.
const MEMBERS_MAX: usize = 64;
/// The beginning of a bundle. A message that happens to begin with it is sent as a bundle of one.
const MARKER: &[u8] = b"bundle ";
/// An upper bound of the first line of any bundle.
const HEADER_BYTES_MAX: usize = 16 * (MEMBERS_MAX + 1);

/// A wrapper around a queue.
#[derive(Debug)]
pub struct Bundles {
    queue: Arc<dyn Queue>,
    resent: fn(&Delivery) -> Bytes,
    /// The average number of members in the messages of the last receive.
    members_seen: AtomicUsize,
}

/// A bundle that this process has received.
#[derive(Debug)]
pub(crate) struct Bundle {
    delivery: Delivery,
    members: Vec<Bytes>,
    /// For each member, whether it is acknowledged, or sent again alone.
    ended: Mutex<Vec<bool>>,
}

/// A member of a bundle. Two deliveries of a bundle have different members.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    bundle: Arc<Bundle>,
    index: usize,
}

impl PartialEq for Member {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.bundle, &other.bundle) && self.index == other.index
    }
}

impl Eq for Member {}

impl Hash for Member {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (Arc::as_ptr(&self.bundle), self.index).hash(state);
    }
}

impl Member {
    fn delivery(&self) -> Delivery {
        Delivery {
            body: self.bundle.members[self.index].clone(),
            receipt: Receipt(Name::Member(self.clone())),
            ..self.bundle.delivery.clone()
        }
    }

    /// Records that the member has ended. Returns whether all have.
    fn end(&self) -> bool {
        let mut ended = self.bundle.ended.lock().expect("no holder panics");
        ended[self.index] = true;
        ended.iter().all(|ended| *ended)
    }
}

/// Receipts, grouped by the receipt of their message. Messages are in the order of their first receipt.
#[derive(Default)]
struct ByMessage {
    messages: Vec<(Receipt, Vec<Receipt>)>,
    places: HashMap<Receipt, usize>,
}

impl ByMessage {
    /// Adds a receipt. Returns the index of its message.
    fn add(&mut self, receipt: &Receipt) -> usize {
        let message = member(receipt).map_or(receipt, |member| &member.bundle.delivery.receipt);
        let place = *self.places.entry(message.clone()).or_insert_with(|| {
            self.messages.push((message.clone(), Vec::new()));
            self.messages.len() - 1
        });
        self.messages[place].1.push(receipt.clone());
        place
    }

    /// Returns the receipts of these messages.
    fn receipts_of(&self, messages: &[Receipt]) -> Vec<Receipt> {
        let places = messages.iter().filter_map(|message| self.places.get(message));
        places.flat_map(|place| self.messages[*place].1.iter().cloned()).collect()
    }
}

impl Bundles {
    /// Wraps a queue. `resent` returns the body with which a member is sent again. The new message starts the service's
    /// receive count anew, so the body must carry the former count.
    pub fn new(queue: Arc<dyn Queue>, resent: fn(&Delivery) -> Bytes) -> Self {
        Self { queue, resent, members_seen: AtomicUsize::new(1) }
    }

    /// Sends each member again alone, then acknowledges it.
    async fn send_alone(&self, members: &[Delivery]) -> Result<(), Error> {
        let messages = members.iter().map(|member| Message::new((self.resent)(member))).collect();
        self.send(messages).await?;
        let receipts: Vec<Receipt> = members.iter().map(|member| member.receipt.clone()).collect();
        self.acknowledge(&receipts).await.map(drop)
    }
}

#[async_trait]
impl Queue for Bundles {
    async fn send(&self, messages: Vec<Message>) -> Result<(), Error> {
        self.queue.send(bundle(messages, self.queue.limits().message_bytes_max)).await
    }

    /// Expects bundles as large as those of the last receive, so it may return fewer or more messages than requested.
    async fn receive(&self, request: Receive) -> Result<Vec<Delivery>, Error> {
        let messages_max = request.messages_max.div_ceil(self.members_seen.load(Ordering::Relaxed));
        let received = self.queue.receive(Receive { messages_max, ..request }).await?;
        let messages = received.len();
        let mut deliveries = Vec::new();
        for delivery in received {
            let members = unbundle(delivery);
            match &members[..] {
                [Delivery { receive_count: 2.., .. }, _, ..] => {
                    if let Err(error) = self.send_alone(&members).await {
                        tracing::warn!(
                            "{error:#}; {} messages wait until their lease expires",
                            members.len()
                        );
                    }
                }
                _ => deliveries.extend(members),
            }
        }
        if let Some(members_seen) = deliveries.len().checked_div(messages) {
            self.members_seen.store(members_seen.max(1), Ordering::Relaxed);
        }
        Ok(deliveries)
    }

    /// A bundle stays leased for as long as one of its members needs.
    async fn extend(&self, leases: &[(Receipt, Duration)]) -> Result<Vec<Receipt>, Error> {
        let mut by_message = ByMessage::default();
        let mut durations: Vec<Duration> = Vec::new();
        for (receipt, duration) in leases {
            let place = by_message.add(receipt);
            durations.resize(by_message.messages.len(), Duration::ZERO);
            durations[place] = durations[place].max(*duration);
        }
        let messages = by_message.messages.iter().map(|(message, _)| message.clone());
        let leases: Vec<(Receipt, Duration)> = messages.zip(durations).collect();
        Ok(by_message.receipts_of(&self.queue.extend(&leases).await?))
    }

    async fn acknowledge(&self, receipts: &[Receipt]) -> Result<Vec<Receipt>, Error> {
        let mut by_message = ByMessage::default();
        let mut whole: Vec<Receipt> = Vec::new();
        for receipt in receipts {
            let place = by_message.add(receipt);
            // Once all members have ended, each further call acknowledges again, because the first may have failed.
            let is_whole = member(receipt).is_none_or(Member::end);
            let message = &by_message.messages[place].0;
            if is_whole && whole.last() != Some(message) {
                whole.push(message.clone());
            }
        }
        Ok(by_message.receipts_of(&self.queue.acknowledge(&whole).await?))
    }

    /// Releases a bundle if `receipts` has all its members; otherwise sends the given members again alone.
    async fn release(&self, receipts: &[Receipt]) -> Result<(), Error> {
        let mut by_message = ByMessage::default();
        for receipt in receipts {
            by_message.add(receipt);
        }
        let mut released = Vec::new();
        for (message, receipts) in by_message.messages {
            let members: Vec<&Member> = receipts.iter().filter_map(member).collect();
            match members.first() {
                Some(first) if members.len() < first.bundle.members.len() => {
                    let members: Vec<Delivery> =
                        members.iter().map(|member| member.delivery()).collect();
                    self.send_alone(&members).await?;
                }
                _ => released.push(message),
            }
        }
        self.queue.release(&released).await
    }

    async fn depth(&self) -> Result<Depth, Error> {
        self.queue.depth().await
    }

    fn limits(&self) -> Limits {
        Limits { bundle_max: MEMBERS_MAX, ..self.queue.limits() }
    }
}

fn member(receipt: &Receipt) -> Option<&Member> {
    match &receipt.0 {
        Name::Member(member) => Some(member),
        Name::Numbered { .. } | Name::Handle(_) => None,
    }
}

/// Joins adjacent messages that may travel together, into messages of at most `bytes_max` bytes.
fn bundle(messages: Vec<Message>, bytes_max: usize) -> Vec<Message> {
    let mut sent = Vec::new();
    let mut rest = &messages[..];
    while let Some((first, others)) = rest.split_first() {
        let members_max = first.bundle_max.min(MEMBERS_MAX);
        let mut bytes = HEADER_BYTES_MAX + first.body.len();
        let joins = |other: &&Message| {
            bytes += other.body.len();
            bytes <= bytes_max && other.delay == first.delay && other.bundle_max > 1
        };
        let count = 1 + others.iter().take(members_max.saturating_sub(1)).take_while(joins).count();
        let members;
        (members, rest) = rest.split_at(count);
        let body = match members {
            [alone] if !alone.body.starts_with(MARKER) => alone.body.clone(),
            members => write(members),
        };
        sent.push(Message { body, delay: first.delay, bundle_max: 1 });
    }
    sent
}

fn write(members: &[Message]) -> Bytes {
    let sizes: Vec<String> = members.iter().map(|member| member.body.len().to_string()).collect();
    let mut body = [MARKER, sizes.join(" ").as_bytes(), b"\n"].concat();
    members.iter().for_each(|member| body.extend_from_slice(&member.body));
    body.into()
}

/// Returns the members of a bundle; `None` if the message is not a bundle.
pub fn members(message: &Bytes) -> Option<Vec<Bytes>> {
    let line_end = message.iter().take(HEADER_BYTES_MAX).position(|byte| *byte == b'\n')?;
    let sizes = std::str::from_utf8(message[..line_end].strip_prefix(MARKER)?).ok()?;
    let mut rest = message.slice(line_end + 1..);
    let mut members = Vec::new();
    for size in sizes.split(' ') {
        let size = size.parse().ok().filter(|size| *size <= rest.len())?;
        members.push(rest.split_to(size));
    }
    rest.is_empty().then_some(members)
}

fn unbundle(delivery: Delivery) -> Vec<Delivery> {
    let Some(members) = members(&delivery.body) else { return vec![delivery] };
    let ended = Mutex::new(vec![false; members.len()]);
    let bundle = Arc::new(Bundle { delivery, members, ended });
    (0..bundle.members.len())
        .map(|index| Member { bundle: bundle.clone(), index }.delivery())
        .collect()
}

#[cfg(test)]
mod tests;
