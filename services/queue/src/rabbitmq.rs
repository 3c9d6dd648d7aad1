//! RabbitMQ: quorum queues whose leases last as long as their connection.
//!
//! A [`session`] of a queue has two channels on one of the shared [`connections`], [`leases`] tracks the messages that
//! it holds, [`subscription`] makes the broker send as many messages as receivers request, [`failure`] explains errors,
//! and [`broker`] has the queues of a target.
//!
//! RabbitMQ has no lease that ends by time. A delivery belongs to a channel until it is settled, and returns to the
//! queue when the channel closes: because its node died, the network failed, the broker restarted, or the broker's
//! `consumer_timeout` (30 minutes by default) expired. In each case *all* leases of the session are lost. The next call
//! opens a new session, and the queue reports receipts of the old one as lost.

mod address;
mod broker;
mod connections;
mod failure;
mod frames;
mod leases;
mod session;
mod subscription;

use std::fmt::{self, Debug, Formatter};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use backon::Retryable;
use bytes::Bytes;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use self::address::Address;
pub use self::broker::RabbitBroker;
use self::connections::Connections;
use self::failure::{Operation, explain, no_permission};
use self::session::{Session, Unsent};
use crate::clock::deadline;
use crate::error::check_sizes;
use crate::pauses::while_others_wait;
use crate::{Delivery, Depth, Error, Limits, Message, Queue, Receipt, Receive};

/// The largest body: the default `max_message_size` of RabbitMQ 4. RabbitMQ 3 allows 128 MiB.
const MESSAGE_BYTES_MAX: usize = 16 << 20;
/// How long a delivery may stay unsettled: the default `consumer_timeout` of the broker.
const CONSUMER_TIMEOUT: Duration = Duration::from_secs(30 * 60);
/// The number of returns to the queue after which the broker removes a message. The engine gives up much earlier, by
/// its own count; the default of RabbitMQ 4 is 20.
const DELIVERY_LIMIT: u32 = 1000;
/// The time within which a ready message arrives, unless it goes to another consumer.
const ARRIVAL_MAX: Duration = Duration::from_secs(1);
/// The largest number of sessions on which one call tries to do its work.
const TRIES_MAX: usize = 3;

/// The address and settings of the queues of a target.
#[derive(Clone)]
pub struct RabbitOptions {
    /// `amqp(s)://user:password@host:port/vhost`. Parameters: `heartbeat` (seconds), `cacertfile`.
    pub url: String,
    /// The beginning of all names.
    pub prefix: String,
    /// A file of certificate authorities (PEM) to trust besides those of the system; takes precedence over
    /// `cacertfile`.
    pub ca_file: Option<PathBuf>,
    /// How long a delivery may stay unsettled. If set, it becomes an argument of queues and of their consumers, and
    /// every process that opens them must set the same value. Brokers before 3.12 ignore the argument of queues, and
    /// brokers before 4.3 that of consumers; they need `consumer_timeout` in their configuration. `None`: the broker's
    /// 30 minutes.
    pub consumer_timeout: Option<Duration>,
    /// The number of returns to the queue after which the broker removes a message. A message of a job moves to the
    /// dead letters.
    pub delivery_limit: u32,
    /// The largest body.
    pub message_bytes_max: usize,
    /// How long a call tries to connect before it fails with [`Error::Unavailable`].
    pub connect_wait_max: Duration,
    /// How long a call waits for an answer of the broker before it fails with [`Error::Unavailable`].
    pub answer_wait_max: Duration,
    /// Whether [`RabbitBroker`] creates missing queues of the target itself.
    pub create: bool,
}

impl RabbitOptions {
    /// Returns the options for a broker with default settings.
    pub fn new(url: impl Into<String>, prefix: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            prefix: prefix.into(),
            ca_file: None,
            consumer_timeout: None,
            delivery_limit: DELIVERY_LIMIT,
            message_bytes_max: MESSAGE_BYTES_MAX,
            connect_wait_max: Duration::from_secs(15),
            answer_wait_max: Duration::from_secs(60),
            create: true,
        }
    }

    /// Returns the limits of the queues.
    pub fn limits(&self) -> Limits {
        Limits {
            message_bytes_max: self.message_bytes_max,
            lease_max: Some(self.consumer_timeout.unwrap_or(CONSUMER_TIMEOUT)),
            delay_max: Duration::ZERO,
            timed_lease: false,
            bundle_max: 1,
        }
    }

    /// Returns the name of a queue of the target itself.
    fn name_of_target(&self, end: &str) -> String {
        format!("{}-{end}", self.prefix)
    }
}

impl Debug for RabbitOptions {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("RabbitOptions")
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

/// A quorum queue of RabbitMQ, with a channel for each direction on a connection of a [`RabbitBroker`].
///
/// - A lease lasts as long as the session, and [`Queue::extend`] only reports lost leases. The `visibility` of a
///   receive and delays of messages are ignored.
/// - The broker sends as many messages as callers hold and request. Messages that arrive early wait in this process.
/// - Unclaimed messages return to the queue after five seconds without a request, or immediately after a receive with
///   `messages_max` 0. They return as new messages that carry their count, because the broker would count a delivery
///   that no caller had. So they come after the others.
/// - Sending returns once the broker has confirmed the messages: a quorum queue has them on disk on most of its nodes.
///   If the connection breaks, the queue sends unconfirmed messages again, which may duplicate them.
/// - AMQP does not confirm acknowledgements: one that was in flight when the connection broke may be lost.
/// - An open queue does not recreate a deleted queue, whose messages are lost: it fails, so that a person learns of it.
/// - A single broker that is killed within seconds after the creation of a queue forgets that queue (3.10).
///
/// AMQP does not report how many messages other consumers hold. [`Queue::depth`] counts ready messages and those that
/// this queue holds.
///
/// Tested with 3.10. Based on documentation only: `x-acquired-count` and its difference from `x-delivery-count` (4.3),
/// the default delivery limit of 20 (4.0), `x-consumer-timeout` of queues (3.12) and of consumers (4.3), and that 4.3
/// cancels a consumer at the timeout instead of closing the channel.
struct RabbitQueue {
    access: Access,
    current: Mutex<Arc<Session>>,
    /// Held while connecting. Contains the last failure to connect, and its time.
    connecting: tokio::sync::Mutex<Option<(Instant, Error)>>,
}

/// A queue, and everything needed to open a session of it.
struct Access {
    connections: Arc<Connections>,
    address: Address,
    options: RabbitOptions,
}

impl RabbitQueue {
    /// Opens the queue. With `declare`, creates it if it is absent; for a queue of a job, also the dead-letter queue.
    ///
    /// [`Error::Misconfigured`] means a queue of that name with other properties, or a missing permission;
    /// [`Error::Unavailable`] means any temporary failure.
    async fn open(access: Access, declare: bool) -> Result<Self, Error> {
        let session = access.connect(0, declare).await?;
        Ok(Self {
            access,
            current: Mutex::new(Arc::new(session)),
            connecting: tokio::sync::Mutex::default(),
        })
    }

    fn current(&self) -> MutexGuard<'_, Arc<Session>> {
        self.current.lock().expect("no holder panics")
    }

    /// Returns the session, if it is alive.
    fn live_session(&self) -> Option<Arc<Session>> {
        let session = self.current().clone();
        session.is_alive().then_some(session)
    }

    /// Returns the session, or a new one if it broke.
    async fn session(&self) -> Result<Arc<Session>, Error> {
        if let Some(session) = self.live_session() {
            return Ok(session);
        }
        let called = Instant::now();
        let mut connecting = self.connecting.lock().await;
        if let Some(session) = self.live_session() {
            return Ok(session);
        }
        if let Some((_, error)) = connecting.as_ref().filter(|(when, _)| *when > called) {
            return Err(error.clone());
        }
        let generation = self.current().leases.generation + 1;
        let session = self.access.connect(generation, false).await;
        let session =
            session.inspect_err(|error| *connecting = Some((Instant::now(), error.clone())))?;
        let session = Arc::new(session);
        let old = std::mem::replace(&mut *self.current(), session.clone());
        if old.is_connected() {
            let reason = old.leases.ended().map(|ended| ended.reason).unwrap_or_default();
            tracing::warn!(queue.name = %self.access.address, error = %reason, "reopened the session; all its leases are lost");
        }
        Ok(session)
    }

    /// Waits for an answer of the broker, up to the limit.
    async fn in_time<T>(&self, answer: impl Future<Output = T>) -> Result<T, Error> {
        let answered = timeout(self.access.options.answer_wait_max, answer).await;
        answered.map_err(|_| self.no_answer())
    }

    /// Works like [`in_time`](Self::in_time), and explains the error of an answer.
    async fn answer<T>(&self, answer: impl Future<Output = lapin::Result<T>>) -> Result<T, Error> {
        let answer = self.in_time(answer).await?;
        answer.map_err(|error| explain(&self.access.address, Operation::Working, error))
    }

    fn no_answer(&self) -> Error {
        let blocked = self.current().is_blocked();
        let seconds = self.access.options.answer_wait_max.as_secs();
        self.access.address.unavailable(if blocked {
            format!("the broker has been short of memory or disk for {seconds} s and accepts nothing; see its alarms")
        } else {
            format!("the broker has not answered for {seconds} s")
        })
    }

    /// Receives in one session. Returns `None` if the session ends meanwhile.
    async fn receive_on(
        &self,
        session: &Session,
        messages_max: usize,
        until: Instant,
    ) -> Result<Option<Vec<Delivery>>, Error> {
        let leases = &session.leases;
        let _request = leases.request(messages_max);
        let patience = until.max(Instant::now()) + self.access.options.answer_wait_max;
        let mut arrival_by = None;
        loop {
            let mut changed = std::pin::pin!(leases.changed.notified());
            changed.as_mut().enable();
            let deliveries = leases.take(messages_max);
            if !deliveries.is_empty() {
                return Ok(Some(deliveries));
            }
            if !session.is_alive() {
                return Ok(None);
            }
            if !leases.is_satisfied() {
                tokio::select! {
                    () = changed => continue,
                    () = sleep_until(patience) => return Err(self.no_answer()),
                }
            }
            if Instant::now() < until {
                tokio::select! { () = changed => {}, () = sleep_until(until) => {} }
                continue;
            }
            // The deadline has passed, but a message may still be on its way.
            let ready = match self.answer(session.subscription.ready()).await {
                Ok(ready) => ready,
                Err(error) if session.is_alive() => return Err(error),
                Err(_) => continue,
            };
            let deliveries = leases.take(messages_max);
            let arrival_by = *arrival_by.get_or_insert_with(|| Instant::now() + ARRIVAL_MAX);
            if !deliveries.is_empty() || ready == 0 || Instant::now() >= arrival_by {
                return Ok(Some(deliveries));
            }
            tokio::select! { () = changed => {}, () = sleep(Duration::from_millis(10)) => {} }
        }
    }
}

#[async_trait]
impl Queue for RabbitQueue {
    async fn send(&self, messages: Vec<Message>) -> Result<(), Error> {
        let Access { address, options, .. } = &self.access;
        check_sizes(&messages, options.message_bytes_max, &address.to_string())?;
        let mut messages: Vec<Bytes> = messages.into_iter().map(|message| message.body).collect();
        for tries in 1.. {
            if messages.is_empty() {
                break;
            }
            let session = self.session().await?;
            let error = match self.in_time(session.send(messages)).await? {
                Ok(()) => break,
                Err(Unsent::Broken(unconfirmed, _)) if tries < TRIES_MAX => {
                    messages = unconfirmed;
                    continue;
                }
                Err(Unsent::Broken(_, error)) => explain(address, Operation::Working, error),
                Err(Unsent::Refused(reason)) => address.misconfigured(reason),
                Err(Unsent::Absent) => {
                    address.absent("it does not exist; restart this command to create it")
                }
                Err(Unsent::NotNow) => address
                    .unavailable("the broker rejected a message; check that most of its nodes run"),
            };
            return Err(error);
        }
        Ok(())
    }

    async fn receive(&self, request: Receive) -> Result<Vec<Delivery>, Error> {
        if request.messages_max == 0 {
            let session = self.current().clone();
            session.leases.stop();
            let _ = self.in_time(session.subscription.stopped()).await;
            return Ok(Vec::new());
        }
        let (until, address) = (deadline(request.wait), &self.access.address);
        let mut ended = None;
        for _ in 0..TRIES_MAX {
            let session = self.session().await?;
            if let Some(deliveries) = self.receive_on(&session, request.messages_max, until).await?
            {
                return Ok(deliveries);
            }
            ended = session.leases.ended();
            if let Some(ended) = ended.as_ref().filter(|ended| ended.refused) {
                return Err(address.misconfigured(no_permission(address, &ended.reason)));
            }
        }
        let reason = ended
            .map_or_else(|| "the connection broke at every try".to_owned(), |ended| ended.reason);
        Err(address.unavailable(reason))
    }

    async fn extend(&self, leases: &[(Receipt, Duration)]) -> Result<Vec<Receipt>, Error> {
        let receipts = leases.iter().map(|(receipt, _)| receipt);
        Ok(match self.live_session() {
            Some(session) => session.leases.lost(receipts),
            None => receipts.cloned().collect(),
        })
    }

    async fn acknowledge(&self, receipts: &[Receipt]) -> Result<Vec<Receipt>, Error> {
        let Some(session) = self.live_session() else { return Ok(receipts.to_vec()) };
        let lost = self.in_time(session.subscription.acknowledge(receipts)).await?;
        // A broken connection has ended all leases.
        Ok(lost.unwrap_or_else(|_| receipts.to_vec()))
    }

    async fn release(&self, receipts: &[Receipt]) -> Result<(), Error> {
        let Some(session) = self.live_session() else { return Ok(()) };
        // A broken connection releases everything.
        self.in_time(session.subscription.release(receipts)).await.map(drop)
    }

    async fn depth(&self) -> Result<Depth, Error> {
        let session = self.session().await?;
        let ready: usize = self.answer(session.ready()).await?;
        let (held, arrived) = session.leases.counts();
        Ok(Depth { visible: (ready + arrived) as u64, in_flight: held as u64, delayed: 0 })
    }

    fn limits(&self) -> Limits {
        self.access.options.limits()
    }
}

impl Debug for RabbitQueue {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("RabbitQueue")
            .field("address", &self.access.address)
            .finish_non_exhaustive()
    }
}

impl Access {
    /// Opens a session. Retries until it succeeds, or `connect_wait_max` has passed.
    async fn connect(&self, generation: u32, declare: bool) -> Result<Session, Error> {
        let until = Instant::now() + self.options.connect_wait_max;
        let is_over = || Instant::now() >= until || self.connections.has_ended();
        let open = || async {
            let permit = self.connections.acquire(&self.address, until, true).await?;
            let session = Session::open(permit, self, generation, declare);
            let silent =
                || self.address.unavailable("it accepted the connection, but does not answer");
            timeout_at(until, session).await.unwrap_or_else(|_| Err(silent()))
        };
        open.retry(while_others_wait(None))
            .when(|error| matches!(error, Error::Unavailable { .. }) && !is_over())
            .await
    }
}
