//! Queues that connect the roles: each delivers every message at least once, under a lease.
//!
//! The documentation of [`Queue`] is the contract, [`contract`] is the same contract as tests, and every backend passes
//! them. Backends differ where the services behind them differ. Each difference is a field of
//! [`contract::Capabilities`].
//!
//! The life of a message: *sent*, *delayed* for the requested time, *visible*, *in flight* from the moment it is
//! received until its lease ends, and then either removed (acknowledged) or visible again (expired or released). Each
//! hand-over is a [`Delivery`] with its own [`Receipt`] and a count.
//!
//! A [`Broker`] has the queues of a compute target; its contract is [`contract::brokers`]. A job without a target has a
//! [`MemoryQueue`] for each direction: after a kill, the engine restores its messages from plan and ledger.
//!
//! | | [`SqliteBroker`] | [`SqsBroker`] | [`RabbitBroker`] | [`MemoryBroker`] |
//! |---|---|---|---|---|
//! | used for | one machine, nothing to install | several machines, AWS | several machines | one process, tests |
//! | a killed process loses | nothing | nothing | nothing | everything |
//! | leases end | by the wall clock | by the clock of the service | with their connection | by a clock of the test |
//! | longest lease | any time | 12 h | `consumer_timeout`, 30 min | any time |
//! | longest delay | any time | 15 min | none | any time |
//! | redelivery count | exact | approximate | at least the returns to the queue | exact |
//! | messages in flight | counted | counted, approximately | only those of the process itself | counted |
//! | largest body | 256 MiB | 191 KiB by default | 16 MiB | any |
//! | mini-batches in a message | 1 | 64 | 1 | 1 |
//! | connections | a file | none: a waiting receiver costs a request every 20 s | few, shared by all queues | none |
//!
//! Code reads the differences that it needs from [`Limits`].
//!
//! Deliberately absent: topics, priorities, a dead-letter policy (the receiver decides which messages it cannot read),
//! and any knowledge of the meaning of a body.

mod broker;
mod bundles;
mod clock;
pub mod contract;
mod error;
mod memory;
mod observed;
pub mod pauses;
mod rabbitmq;
mod sqlite;
mod sqs;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::time::Instant;

pub use broker::{Broker, CONTROL, DEAD_LETTERS, JobQueues, TargetQueues};
pub use bundles::{Bundles, members};
pub use clock::{Clock, LeaseClock, ManualClock, ManualSleep};
pub use error::{Cause, Error};
pub use memory::{MemoryBroker, MemoryOptions, MemoryQueue};
pub use observed::Observed;
pub use rabbitmq::{RabbitBroker, RabbitOptions};
pub use sqlite::{SqliteBroker, SqliteOptions, SqliteQueue};
pub use sqs::{Redrive, SqsAttributes, SqsBroker, SqsOptions, SqsQueue};

/// A queue of messages, delivered at least once.
///
/// For every backend:
///
/// - A message for which [`send`](Queue::send) returned `Ok` is delivered until one of its deliveries is acknowledged.
///   It may be delivered more than once, and in any order.
/// - While a delivery is leased, no other receiver gets the message, except for the rare duplicate that some services
///   allow. A lease therefore only saves work; the reducer ensures that each result counts once.
/// - A lease is *lost* when it has expired or was released, or when the message was delivered again. Loss is an answer,
///   not an error, and the queue answers each receipt of a batch separately.
/// - Calls take batches of any size. A backend whose service takes ten at a time splits them.
/// - After [`Error::Unavailable`] a call may have taken effect, in whole or in part. Calling again is always correct.
/// - A call whose future is dropped either takes effect or does not. A dropped [`receive`](Queue::receive) loses no
///   message: those that it claimed return immediately if the backend supports that, and otherwise when their leases
///   expire.
#[async_trait]
pub trait Queue: Send + Sync + Debug {
    /// Sends messages. After `Ok`, all of them are as durable as the backend makes them.
    ///
    /// [`Error::TooLarge`] means that none was sent; any other error means that some may have been.
    async fn send(&self, messages: Vec<Message>) -> Result<(), Error>;

    /// Receives up to `messages_max` visible messages and leases each for `visibility`.
    ///
    /// Returns immediately if any are visible (a backend may return fewer than that); otherwise
    /// waits up to `wait` for the first, and returns an empty list if none arrives.
    async fn receive(&self, request: Receive) -> Result<Vec<Delivery>, Error>;

    /// Sets the remaining time of each lease, which lengthens or shortens it. Returns the receipts that are
    /// lost; their work should stop.
    async fn extend(&self, leases: &[(Receipt, Duration)]) -> Result<Vec<Receipt>, Error>;

    /// Removes messages permanently. Returns the receipts that were lost and therefore not acknowledged.
    ///
    /// Two cases are the backend's choice: a receipt whose lease expired or was released, while no receiver has got the
    /// message since; and an old receipt of a message that was delivered again, which removes it on some services.
    /// Therefore acknowledge only what is announced durably. Acknowledging a removed message does no harm, and the
    /// queue may answer either way.
    async fn acknowledge(&self, receipts: &[Receipt]) -> Result<Vec<Receipt>, Error>;

    /// Ends leases: the messages are visible again immediately. Nodes that drain use this. The next delivery continues
    /// the receive count. The queue ignores lost receipts.
    async fn release(&self, receipts: &[Receipt]) -> Result<(), Error>;

    /// Returns the approximate number of messages: for progress and scaling, never to decide that all work is done.
    async fn depth(&self) -> Result<Depth, Error>;

    /// Returns the limits of the service behind the queue.
    fn limits(&self) -> Limits;
}

/// A message to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Any bytes.
    pub body: Bytes,
    /// Time until the message becomes visible.
    pub delay: Duration,
    /// The largest number of messages, this one included, that may share one message of the service; 1: it travels
    /// alone. Only [`Bundles`] uses it.
    pub bundle_max: usize,
}

impl Message {
    /// Creates a message that is visible immediately, and travels alone.
    pub fn new(body: impl Into<Bytes>) -> Self {
        Self { body: body.into(), delay: Duration::ZERO, bundle_max: 1 }
    }
}

/// A request to receive messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receive {
    /// Maximum number of messages, except that the members of a bundle arrive together. With 0 the call returns none; a
    /// backend that prefetches then returns its unclaimed messages to the queue, and fetches no more until the next
    /// receive.
    pub messages_max: usize,
    /// Duration of each lease.
    pub visibility: Duration,
    /// Maximum wait for the first message. A backend may wait less if its service cannot wait that long.
    pub wait: Duration,
}

/// One hand-over of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The bytes that were sent.
    pub body: Bytes,
    /// Identifies this hand-over to [`Queue::extend`], [`Queue::acknowledge`] and [`Queue::release`].
    pub receipt: Receipt,
    /// Number of deliveries of the message, this one included: 1 at first. Some services only estimate it.
    pub receive_count: u32,
    /// The earliest time of the [`LeaseClock`] at which the lease may have begun.
    pub leased_at: Instant,
}

/// Identifies one delivery of one message to the queue that issued it. Opaque, and meaningless to any other queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Receipt(Name);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Name {
    /// A message and one of its deliveries, or a delivery tag and the session in which it is valid.
    Numbered { message: i64, delivery: u32 },
    /// The handle that a service issued.
    Handle(Arc<str>),
    /// A member of a delivered bundle.
    Member(bundles::Member),
}

impl Receipt {
    fn numbered(message: i64, delivery: u32) -> Self {
        Self(Name::Numbered { message, delivery })
    }

    fn named(handle: Arc<str>) -> Self {
        Self(Name::Handle(handle))
    }

    /// Returns the handle of the service, if a service issued the receipt.
    fn handle(&self) -> Option<&str> {
        match &self.0 {
            Name::Handle(handle) => Some(handle),
            Name::Numbered { .. } | Name::Member(_) => None,
        }
    }

    /// Returns message and delivery. For a receipt of another kind of queue, these numbers match no message.
    fn numbers(&self) -> (i64, u32) {
        match self.0 {
            Name::Numbered { message, delivery } => (message, delivery),
            Name::Handle(_) | Name::Member(_) => (-1, 0),
        }
    }
}

/// The limits of the service behind a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest [`Message::body`].
    pub message_bytes_max: usize,
    /// The longest time that one delivery can stay leased, extensions included; `None`: no limit.
    pub lease_max: Option<Duration>,
    /// The longest [`Message::delay`]; longer delays are shortened to it, and with zero all are ignored.
    pub delay_max: Duration,
    /// Whether leases expire by time. Otherwise all leases of a connection end with that connection.
    pub timed_lease: bool,
    /// The largest useful [`Message::bundle_max`]; 1: each message travels alone.
    pub bundle_max: usize,
}

/// The approximate number of messages in a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Depth {
    /// Messages that a receiver could get now.
    pub visible: u64,
    /// Leased messages. Where leases belong to connections ([`Limits::timed_lease`] is false), only those of this
    /// connection.
    pub in_flight: u64,
    /// Messages that are not yet visible and were never received.
    pub delayed: u64,
}

impl Depth {
    /// Returns the number of all messages.
    pub fn total(&self) -> u64 {
        self.visible + self.in_flight + self.delayed
    }
}
