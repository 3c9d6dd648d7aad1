//! Where roles meet: a queue that delivers every message at least once, under a lease.
//!
//! The one idea: the documentation of [`Queue`] is the contract, [`contract`] is the same contract as tests, and every
//! backend passes it. Backends differ where the services behind them differ; each difference is a field of
//! [`contract::Capabilities`], so it is written down once.
//!
//! The life of a message: *sent*, *delayed* for as long as it asked, *visible*, *in flight* from the moment it is
//! received until its lease ends, and then either gone (acknowledged) or visible again (lapsed or released). Each
//! hand-over is a [`Delivery`] with a [`Receipt`] of its own and a count.
//!
//! | backend | for | a killed process loses | leases end |
//! |---|---|---|---|
//! | [`SqliteQueue`] | one machine, nothing to install | nothing | by the wall clock |
//! | [`RabbitQueue`] | several machines, on RabbitMQ | nothing | with their connection |
//! | [`SqsQueue`] | several machines, on AWS | nothing | by the clock of the service, after 12 hours at most |
//! | [`MemoryQueue`] | tests | everything | by a clock the test may hold |
//!
//! What is deliberately absent: topics, priorities, a dead-letter policy (who receives decides what cannot be read),
//! and any knowledge of what a body means.

mod clock;
pub mod contract;
mod demultiplexer;
mod error;
mod memory;
mod observed;
mod rabbitmq;
mod sqlite;
mod sqs;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

pub use clock::{Clock, ManualClock};
pub use demultiplexer::{Arrival, Demultiplexer, DemultiplexerOptions, Refusal, ReturnBy, View};
pub use error::Error;
pub use memory::{MemoryOptions, MemoryQueue};
pub use observed::Observed;
pub use rabbitmq::{RabbitOptions, RabbitQueue};
pub use sqlite::{Durability, SqliteOptions, SqliteQueue};
pub use sqs::{Redrive, SqsAttributes, SqsOptions, SqsQueue, SqsTarget};

/// A queue of messages, delivered at least once.
///
/// What holds for every backend:
///
/// - A message for which [`send`](Queue::send) returned `Ok` is delivered until a delivery of it is acknowledged.
///   It may be delivered more than once, and in any order.
/// - While a delivery is leased, no other receiver gets the message, save for the rare duplicate that some services
///   allow. So a lease is for economy; only counting once, downstream, makes a result count once.
/// - A lease is *lost* when it has lapsed, was released, or the message was delivered again. Loss is an answer, not an
///   error, and each receipt of a batch is answered on its own.
/// - Calls take batches of any size. A backend whose service takes ten at a time splits them.
/// - After [`Error::Unavailable`] a call may have had its effect, wholly or in part. Calling again is always right.
/// - Dropping the future of a call leaves it done or not done. A dropped [`receive`](Queue::receive) loses no message:
///   what it had claimed comes back at once where the backend can do that, and otherwise when its lease lapses.
#[async_trait]
pub trait Queue: Send + Sync + Debug {
    /// Sends messages. When this returns `Ok`, all of them are as durable as the backend makes them.
    ///
    /// [`Error::TooLarge`] means that none was sent; after any other error some may have been.
    async fn send(&self, messages: Vec<Message>) -> Result<(), Error>;

    /// Receives up to `messages_max` visible messages and leases each for `visibility`.
    ///
    /// Returns at once when any are there, with what is there (a backend may return fewer than are visible); otherwise
    /// waits up to `wait` for the first, and returns empty when none came.
    async fn receive(&self, request: Receive) -> Result<Vec<Delivery>, Error>;

    /// Makes each lease end that long from now: later than it would have, or earlier. Returns the receipts that are
    /// lost, whose work should stop.
    async fn extend(&self, leases: &[(Receipt, Duration)]) -> Result<Vec<Receipt>, Error>;

    /// Removes messages for good. Returns the receipts that were lost and therefore not acknowledged.
    ///
    /// Two cases are the backend's choice: a receipt whose lease lapsed or was released, while nobody received the
    /// message since; and an old receipt of a message that was delivered again, which on some services removes it.
    /// So acknowledge only what is announced durably. Acknowledging what is already gone does no harm, and may be
    /// answered either way.
    async fn acknowledge(&self, receipts: &[Receipt]) -> Result<Vec<Receipt>, Error>;

    /// Ends leases: the messages are visible again at once. Used when a node drains. Their receive count stays; the
    /// next delivery counts on. Lost receipts are ignored.
    async fn release(&self, receipts: &[Receipt]) -> Result<(), Error>;

    /// How much is in the queue, approximately: for progress and scaling, never for deciding that work is done.
    async fn depth(&self) -> Result<Depth, Error>;

    /// What the service behind the queue allows.
    fn limits(&self) -> Limits;
}

/// What is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Any bytes.
    pub body: Bytes,
    /// The job it belongs to. A backend that can deliver fairly between groups does, so that a large job does not keep
    /// a small one waiting; the others ignore it.
    pub group: String,
    /// How long nobody receives it.
    pub delay: Duration,
}

impl Message {
    /// A message that is visible at once.
    pub fn new(body: impl Into<Bytes>, group: impl Into<String>) -> Self {
        Self { body: body.into(), group: group.into(), delay: Duration::ZERO }
    }
}

/// What to receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receive {
    /// The most messages to return. With 0 the call returns none; a backend that fetches ahead gives back what nobody
    /// has, and fetches no more until it is asked again.
    pub messages_max: usize,
    /// How long each delivery is leased.
    pub visibility: Duration,
    /// How long to wait for the first message. A backend may wait less if its service cannot wait that long.
    pub wait: Duration,
}

/// One hand-over of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The bytes that were sent.
    pub body: Bytes,
    /// Names this hand-over to [`Queue::extend`], [`Queue::acknowledge`] and [`Queue::release`].
    pub receipt: Receipt,
    /// How many times the message has been delivered, this time included: 1 at first. Some services only estimate it.
    pub receive_count: u32,
}

/// Names one delivery of one message to the queue that made it. Opaque, and worth nothing to any other queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Receipt(Name);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Name {
    /// A message and one of its deliveries, or a delivery tag and the connection it is valid on.
    Numbered { message: i64, delivery: u32 },
    /// What a service calls it.
    Handle(Arc<str>),
}

impl Receipt {
    fn numbered(message: i64, delivery: u32) -> Self {
        Self(Name::Numbered { message, delivery })
    }

    fn named(handle: Arc<str>) -> Self {
        Self(Name::Handle(handle))
    }

    /// What the service calls it, if it is the receipt of a service.
    fn handle(&self) -> Option<&str> {
        match &self.0 {
            Name::Handle(handle) => Some(handle),
            Name::Numbered { .. } => None,
        }
    }

    /// Message and delivery. A receipt of a queue of another kind gives numbers that name nothing.
    fn numbers(&self) -> (i64, u32) {
        match self.0 {
            Name::Numbered { message, delivery } => (message, delivery),
            Name::Handle(_) => (-1, 0),
        }
    }
}

/// What the service behind a queue allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest [`Message::body`].
    pub message_bytes_max: usize,
    /// The longest time that one delivery can stay leased, extensions included; `None`: as long as it is extended.
    pub lease_max: Option<Duration>,
    /// The longest [`Message::delay`]; longer ones are cut to it, and with zero all are ignored.
    pub delay_max: Duration,
    /// Leases end by time. Otherwise a lease is as long as the connection it was made on, and all end with that.
    pub timed_lease: bool,
}

/// How much is in a queue, approximately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Depth {
    /// Messages that could be received now.
    pub visible: u64,
    /// Messages that are leased.
    pub in_flight: u64,
    /// Messages that are not visible yet and were never received.
    pub delayed: u64,
}

impl Depth {
    /// Messages of any kind.
    pub fn total(&self) -> u64 {
        self.visible + self.in_flight + self.delayed
    }
}
