//! The session of a queue on a connection: a channel that sends, and a channel that receives and holds the leases.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures::future::join_all;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions};
use lapin::protocol::{AMQPErrorKind, AMQPSoftError};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation};
use tokio_util::task::AbortOnDropHandle;

use super::connections::{OwnChannel, SessionPermit};
use super::failure::{Operation, explain, is_gone, reply};
use super::frames::{Frame, queued};
use super::leases::Leases;
use super::subscription::{self, PERSISTENT, Subscription, milliseconds};
use super::{Access, RabbitOptions};
use crate::{DEAD_LETTERS, Error};

/// The limits of the messages and bytes that are in flight to the broker at a time.
const BURST_MESSAGES_MAX: usize = 1024;
const BURST_BYTES_MAX: usize = 16 << 20;

/// One session. Dropping it closes its channels, which ends its leases.
#[derive(Debug)]
pub(super) struct Session {
    pub leases: Arc<Leases>,
    pub subscription: Arc<Subscription>,
    publishing: tokio::sync::Mutex<OwnChannel>,
    /// Held while frames of messages are queued, because the broker must get them in the order of their numbers.
    order: Mutex<()>,
    permit: SessionPermit,
    /// Whether this session has created its queue, one of the target itself.
    pub is_new: bool,
    _keeper: AbortOnDropHandle<()>,
}

/// Why messages were not sent.
pub(super) enum Unsent {
    /// The connection broke before these were confirmed; they may have arrived.
    Broken(Vec<Bytes>, lapin::Error),
    /// The broker rejects them permanently.
    Refused(String),
    /// The queue does not exist.
    Absent,
    /// The broker cannot accept them now.
    NotNow,
}

impl Session {
    /// Opens a session on a connection. With `declare`, creates the queue, and for a queue of a job also the
    /// dead-letter queue; otherwise the queue must exist.
    pub async fn open(
        permit: SessionPermit,
        access: &Access,
        generation: u32,
        declare: bool,
    ) -> Result<Self, Error> {
        let during = if declare { Operation::Declaring } else { Operation::Opening };
        let session = Self::open_channels(permit, access, generation, declare).await;
        session.map_err(|error| explain(&access.address, during, error))
    }

    async fn open_channels(
        permit: SessionPermit,
        access: &Access,
        generation: u32,
        declare: bool,
    ) -> lapin::Result<Self> {
        let Access { address, options, .. } = access;
        let is_new = declare && !address.of_job && is_absent(&permit, &address.queue).await?;
        let publishing = publishing_channel(&permit).await?;
        let dead_letters = address.of_job.then(|| options.name_of_target(DEAD_LETTERS));
        if let Some(dead_letters) = dead_letters.as_deref().filter(|_| declare) {
            declare_queue(&publishing, dead_letters, declare, arguments(options, None)).await?;
        }
        let arguments = arguments(options, dead_letters.as_deref());
        declare_queue(&publishing, &address.queue, declare, arguments).await?;
        let leases = Arc::new(Leases::new(generation));
        permit.register(&leases);
        let receiving = permit.create_channel().await?;
        let subscription = Arc::new(Subscription::new(
            receiving,
            leases.clone(),
            &address.queue,
            options.consumer_timeout,
        ));
        let keeper = AbortOnDropHandle::new(tokio::spawn(subscription.clone().keep()));
        let publishing = tokio::sync::Mutex::new(publishing);
        Ok(Self {
            leases,
            subscription,
            publishing,
            order: Mutex::default(),
            permit,
            is_new,
            _keeper: keeper,
        })
    }

    /// Returns whether the leases are still valid. Lost leases never become valid again.
    pub fn is_alive(&self) -> bool {
        if self.leases.ended().is_some() {
            return false;
        }
        let alive = self.permit.is_alive() && self.subscription.channel.status().connected();
        if !alive {
            self.leases.end("the connection is closed", false);
        }
        alive
    }

    /// Returns whether the connection is alive, even if the leases are not.
    pub fn is_connected(&self) -> bool {
        self.permit.is_alive()
    }

    /// Returns whether the broker accepts no messages because it is short of memory or disk.
    pub fn is_blocked(&self) -> bool {
        self.permit.is_blocked()
    }

    /// Returns the channel for everything except received messages. If it breaks, no lease ends.
    async fn channel(&self) -> lapin::Result<Channel> {
        let mut channel = self.publishing.lock().await;
        if !channel.status().connected() {
            *channel = publishing_channel(&self.permit).await?;
        }
        Ok((**channel).clone())
    }

    /// Sends messages. Returns once the broker has confirmed all of them.
    pub async fn send(&self, messages: Vec<Bytes>) -> Result<(), Unsent> {
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
        messages: &'a [Bytes],
    ) -> Vec<Frame<'a, lapin::PublisherConfirm>> {
        let _order = self.order.lock().expect("no holder panics");
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let properties = BasicProperties::default().with_delivery_mode(PERSISTENT);
        let publish = |body: &'a Bytes| {
            let queue = self.subscription.queue.as_str().into();
            queued(Box::pin(channel.basic_publish(
                "".into(),
                queue,
                options,
                body,
                properties.clone(),
            )))
        };
        messages.iter().map(publish).collect()
    }

    /// Returns the number of ready messages.
    pub async fn ready(&self) -> lapin::Result<usize> {
        subscription::ready(&self.channel().await?, &self.subscription.queue).await
    }
}

/// Fails if the broker closed the channel because a message exceeds its `max_message_size`. Otherwise the
/// connection broke, and the message has no confirmation.
fn refused_size(error: &lapin::Error) -> Result<Option<lapin::PublisherConfirm>, Unsent> {
    match reply(error) {
        Some(AMQPErrorKind::Soft(AMQPSoftError::PRECONDITIONFAILED)) => Err(Unsent::Refused(
            format!("a message exceeds the broker's limit; raise its max_message_size ({error})"),
        )),
        _ => Ok(None),
    }
}

async fn publishing_channel(permit: &SessionPermit) -> lapin::Result<OwnChannel> {
    let channel = permit.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    Ok(channel)
}

/// Returns whether a queue does not exist.
async fn is_absent(permit: &SessionPermit, name: &str) -> lapin::Result<bool> {
    // The broker closes the channel if the queue is absent, so this needs its own channel.
    let channel = permit.create_channel().await?;
    match declare_queue(&channel, name, false, FieldTable::default()).await {
        Ok(()) => channel.close(200, "looked".into()).await.map(|()| false),
        Err(error) if is_gone(&error) => Ok(true),
        Err(error) => Err(error),
    }
}

/// Creates the queue, or without `declare` checks that it exists.
async fn declare_queue(
    channel: &Channel,
    name: &str,
    declare: bool,
    arguments: FieldTable,
) -> lapin::Result<()> {
    let options =
        QueueDeclareOptions { passive: !declare, durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(name.into(), options, arguments).await.map(drop)
}

fn arguments(options: &RabbitOptions, dead_letters: Option<&str>) -> FieldTable {
    let mut arguments = FieldTable::default();
    let text = |text: &str| AMQPValue::LongString(text.into());
    arguments.insert("x-queue-type".into(), text("quorum"));
    arguments
        .insert("x-delivery-limit".into(), AMQPValue::LongLongInt(options.delivery_limit.into()));
    if let Some(name) = dead_letters {
        arguments.insert("x-dead-letter-exchange".into(), text(""));
        arguments.insert("x-dead-letter-routing-key".into(), text(name));
    }
    if let Some(timeout) = options.consumer_timeout {
        arguments
            .insert("x-consumer-timeout".into(), AMQPValue::LongLongInt(milliseconds(timeout)));
    }
    arguments
}

/// Splits messages into bursts. Sending copies a burst, so this limits the memory of the copies.
fn bursts(mut messages: &[Bytes]) -> impl Iterator<Item = &[Bytes]> {
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fitting = messages.iter().take(BURST_MESSAGES_MAX).take_while(|message| {
            bytes += message.len();
            bytes <= BURST_BYTES_MAX
        });
        let (burst, rest) = messages.split_at(fitting.count().max(1).min(messages.len()));
        messages = rest;
        (!burst.is_empty()).then_some(burst)
    })
}
