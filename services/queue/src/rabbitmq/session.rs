//! The session of a queue on a connection: a channel that sends, and a channel that receives and holds the leases.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures::future::join_all;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions, QueuePurgeOptions};
use lapin::protocol::{AMQPErrorKind, AMQPSoftError};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation};
use tokio_util::task::AbortOnDropHandle;

use super::RabbitOptions;
use super::address::Address;
use super::connections::{OwnChannel, Seat};
use super::failure::{During, explain, is_absence, reply};
use super::frames::{Frame, queued};
use super::lanes::Lanes;
use super::leases::Leases;
use super::subscription::{self, Subscription, group_header, milliseconds};
use crate::Error;

/// Written to disk before it is confirmed.
const PERSISTENT: u8 = 2;
/// Limits of the messages and bytes that are in flight to the broker at a time, copies included.
const BURST_MESSAGES_MAX: usize = 1024;
const BURST_BYTES_MAX: usize = 16 << 20;

/// One session. Dropping it closes its channels, which ends its leases, and a connection that it has for itself.
#[derive(Debug)]
pub(super) struct Session {
    pub leases: Arc<Leases>,
    pub subscription: Arc<Subscription>,
    publishing: tokio::sync::Mutex<OwnChannel>,
    /// Held while frames of messages are queued, because the broker must get them in the order of their numbers.
    order: Mutex<()>,
    seat: Seat,
    /// Whether the queue did not exist before.
    pub is_new: bool,
    _keeper: AbortOnDropHandle<()>,
}

/// A message to send.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub body: Bytes,
    pub group: String,
    pub lane: usize,
}

/// Why messages were not sent.
pub(super) enum Unsent {
    /// The connection broke before these were confirmed; they may have arrived.
    Broken(Vec<Outgoing>, lapin::Error),
    /// The broker rejects them.
    Refused(String),
    /// There is no such queue.
    Absent,
    /// The broker cannot accept them now.
    NotNow,
}

impl Session {
    /// Opens a session on a connection. With `declare`, creates the lanes of the queue and its dead-letter queue; otherwise
    /// they must exist.
    pub async fn open(
        seat: Seat,
        address: &Address,
        options: &RabbitOptions,
        lanes: &Arc<Lanes>,
        generation: u32,
        declare: bool,
    ) -> Result<Self, Error> {
        let during = if declare { During::Declaring } else { During::Looking };
        let asks = declare && !address.of_job;
        let session = Self::open_channels(seat, options, lanes, generation, declare, asks).await;
        session.map_err(|error| explain(address, during, error))
    }

    async fn open_channels(
        seat: Seat,
        options: &RabbitOptions,
        lanes: &Arc<Lanes>,
        generation: u32,
        declare: bool,
        asks_whether_new: bool,
    ) -> lapin::Result<Self> {
        let is_new = asks_whether_new && is_absent(&seat, &lanes.names()[0]).await?;
        let publishing = publishing_channel(&seat).await?;
        if let Some(dead_letters) = options.dead_letters.as_deref().filter(|_| declare) {
            declare_queue(&publishing, dead_letters, declare, arguments(options, None)).await?;
        }
        let arguments = arguments(options, options.dead_letters.as_deref());
        for lane in lanes.names() {
            declare_queue(&publishing, lane, declare, arguments.clone()).await?;
        }
        let leases = Arc::new(Leases::new(generation, lanes.clone()));
        seat.hold(&leases);
        let receiving = seat.create_channel().await?;
        let subscription = Arc::new(Subscription::new(receiving, leases.clone(), options.consumer_timeout));
        let keeper = AbortOnDropHandle::new(tokio::spawn(subscription.clone().keep()));
        let publishing = tokio::sync::Mutex::new(publishing);
        Ok(Self { leases, subscription, publishing, order: Mutex::default(), seat, is_new, _keeper: keeper })
    }

    /// Returns whether the leases are still valid. Lost leases never become valid again.
    pub fn is_alive(&self) -> bool {
        if self.leases.ended().is_some() {
            return false;
        }
        let alive = self.seat.is_alive() && self.subscription.channel.status().connected();
        if !alive {
            self.leases.end("the connection is closed", false);
        }
        alive
    }

    /// Returns whether the broker accepts nothing because it is short of memory or disk.
    pub fn is_blocked(&self) -> bool {
        self.seat.is_blocked()
    }

    /// Returns the channel for everything except received messages: it may break without ending a lease.
    async fn channel(&self) -> lapin::Result<Channel> {
        let mut channel = self.publishing.lock().await;
        if !channel.status().connected() {
            *channel = publishing_channel(&self.seat).await?;
        }
        Ok((**channel).clone())
    }

    /// Gives each message the lane of its group.
    pub async fn place(&self, messages: &mut [Outgoing]) -> lapin::Result<()> {
        let lanes = &self.leases.lanes;
        let groups = || messages.iter().map(|message| message.group.as_str());
        let ready = if lanes.are_placed(groups()) { vec![0; lanes.names().len()] } else { self.ready().await? };
        let placed = lanes.place(groups(), ready);
        messages.iter_mut().zip(placed).for_each(|(message, lane)| message.lane = lane);
        Ok(())
    }

    /// Sends messages, and returns when the broker has confirmed them all.
    pub async fn send(&self, messages: Vec<Outgoing>) -> Result<(), Unsent> {
        let channel = match self.channel().await {
            Ok(channel) => channel,
            Err(error) => return Err(Unsent::Broken(messages, error)),
        };
        let mut confirms = Vec::with_capacity(messages.len());
        for burst in bursts(&messages) {
            for result in join_all(self.publish(&channel, burst)).await {
                match result {
                    Ok(confirm) => confirms.push(Some(confirm)),
                    Err(error) => confirms.push(refused_size(&error)?),
                }
            }
        }
        let (mut unconfirmed, mut broken) = (Vec::new(), None);
        for (message, confirm) in messages.into_iter().zip(confirms) {
            match confirm {
                None => unconfirmed.push(message),
                Some(confirm) => match confirm.await {
                    Ok(Confirmation::Ack(None) | Confirmation::NotRequested) => {}
                    Ok(Confirmation::Ack(Some(_)) | Confirmation::Nack(Some(_))) => {
                        return Err(Unsent::Absent);
                    }
                    Ok(Confirmation::Nack(None)) => return Err(Unsent::NotNow),
                    Err(error) => {
                        refused_size(&error)?;
                        unconfirmed.push(message);
                        broken = Some(error);
                    }
                },
            }
        }
        match (unconfirmed.is_empty(), broken) {
            (true, _) => Ok(()),
            (false, error) => {
                let error = error.unwrap_or_else(|| lapin::ErrorKind::FutureCompleted.into());
                Err(Unsent::Broken(unconfirmed, error))
            }
        }
    }

    /// Queues the frames of messages without other frames in between.
    fn publish<'a>(
        &'a self,
        channel: &'a Channel,
        messages: &'a [Outgoing],
    ) -> Vec<Frame<'a, lapin::PublisherConfirm>> {
        let _order = self.order.lock().expect("no holder panics");
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let plain = BasicProperties::default().with_delivery_mode(PERSISTENT);
        let lanes = &self.leases.lanes;
        let mut frames: Vec<Frame<'a, _>> = Vec::with_capacity(messages.len());
        for Outgoing { body, group, lane } in messages {
            let queue = lanes.names()[*lane].as_str().into();
            let properties = match lanes.are_several() {
                true => plain.clone().with_headers(group_header(group)),
                false => plain.clone(),
            };
            frames.push(queued(Box::pin(channel.basic_publish("".into(), queue, options, body, properties))));
        }
        frames
    }

    /// Returns the number of ready messages in each lane.
    pub async fn ready(&self) -> lapin::Result<Vec<usize>> {
        subscription::ready(&self.channel().await?, self.leases.lanes.names()).await
    }

    /// Deletes the messages that no consumer holds.
    pub async fn purge(&self) -> lapin::Result<()> {
        let channel = self.channel().await?;
        for lane in self.leases.lanes.names() {
            channel.queue_purge(lane.as_str().into(), QueuePurgeOptions::default()).await?;
        }
        self.subscription.acknowledge_arrived().await
    }

    /// Closes the connection after all frames written before.
    pub async fn close(&self) -> lapin::Result<()> {
        self.leases.end("the queue was closed", false);
        self.seat.close_connection().await
    }
}

/// Fails if the broker closed the channel because a message exceeds its `max_message_size`. Otherwise the
/// connection broke, and the message has no confirmation.
fn refused_size(error: &lapin::Error) -> Result<Option<lapin::PublisherConfirm>, Unsent> {
    match reply(error) {
        Some(AMQPErrorKind::Soft(AMQPSoftError::PRECONDITIONFAILED)) => {
            Err(Unsent::Refused(format!("a message exceeds the broker's limit; raise its max_message_size ({error})")))
        }
        _ => Ok(None),
    }
}

async fn publishing_channel(seat: &Seat) -> lapin::Result<OwnChannel> {
    let channel = seat.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    Ok(channel)
}

/// Returns whether a queue does not exist.
async fn is_absent(seat: &Seat, name: &str) -> lapin::Result<bool> {
    // The broker closes the channel if it does not.
    let channel = seat.create_channel().await?;
    match declare_queue(&channel, name, false, FieldTable::default()).await {
        Ok(()) => channel.close(200, "looked".into()).await.map(|()| false),
        Err(error) if is_absence(&error) => Ok(true),
        Err(error) => Err(error),
    }
}

/// Creates the queue, or only checks that it exists.
async fn declare_queue(channel: &Channel, name: &str, declare: bool, arguments: FieldTable) -> lapin::Result<()> {
    let options = QueueDeclareOptions { passive: !declare, durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(name.into(), options, arguments).await.map(drop)
}

fn arguments(options: &RabbitOptions, dead_letters: Option<&str>) -> FieldTable {
    let mut arguments = FieldTable::default();
    let text = |text: &str| AMQPValue::LongString(text.into());
    arguments.insert("x-queue-type".into(), text("quorum"));
    arguments.insert("x-delivery-limit".into(), AMQPValue::LongLongInt(options.delivery_limit.into()));
    if let Some(name) = dead_letters {
        arguments.insert("x-dead-letter-exchange".into(), text(""));
        arguments.insert("x-dead-letter-routing-key".into(), text(name));
    }
    if let Some(timeout) = options.consumer_timeout {
        arguments.insert("x-consumer-timeout".into(), AMQPValue::LongLongInt(milliseconds(timeout)));
    }
    arguments
}

/// Splits messages into bursts, so that at most one burst is in memory twice.
fn bursts(mut messages: &[Outgoing]) -> impl Iterator<Item = &[Outgoing]> {
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fitting = messages.iter().take(BURST_MESSAGES_MAX).take_while(|message| {
            bytes += message.body.len();
            bytes <= BURST_BYTES_MAX
        });
        let (burst, rest) = messages.split_at(fitting.count().max(1).min(messages.len()));
        messages = rest;
        (!burst.is_empty()).then_some(burst)
    })
}
