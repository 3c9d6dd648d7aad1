//! Makes the broker send as many messages as the callers of the queue request.
//!
//! A consumer of a quorum queue has a fixed prefetch, and a channel as a whole has none. So the first request begins a
//! consumer, a larger one adds another, and a much smaller one replaces all of them. Messages of a canceled consumer
//! stay leased, and make no room for others. (If each larger request replaced the consumer, a node that holds older
//! messages would replace it at every receive, which then takes three times as long.) One task of the session does all
//! of this, so a dropped receive cannot interrupt a change.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::future::{join_all, try_join};
use lapin::message::{Delivery, DeliveryResult};
use lapin::options::{
    BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicNackOptions,
    BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation, Consumer, ConsumerDelegate};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::connections::OwnChannel;
use super::failure::{is_refusal, message};
use super::frames::{Frame, queued};
use super::leases::{ConsumerChange, ConsumerSet, Incoming, Leases, Settlement};
use crate::Receipt;

/// The time without a request after which consumers end, and waiting messages return to the queue.
const IDLE_MAX: Duration = Duration::from_secs(5);
/// The time that the broker has to fill the prefetch.
const SETTLE_MAX: Duration = Duration::from_millis(500);
/// The time that the broker has to confirm returned messages.
const CONFIRM_MAX: Duration = Duration::from_secs(5);
/// The delivery mode of messages that the broker writes to disk before it confirms them.
pub(super) const PERSISTENT: u8 = 2;
/// The header with the number of deliveries of a message before it returned as a new one.
const DELIVERIES_BEFORE: &str = "x-gristmill-deliveries";

/// The channel on which messages arrive and are settled.
#[derive(Debug)]
pub(super) struct Subscription {
    pub channel: OwnChannel,
    pub leases: Arc<Leases>,
    /// The name of the queue.
    pub queue: String,
    arguments: FieldTable,
    /// Held while frames that settle are queued. The broker must get them in the planned order, because a frame may
    /// include all earlier tags.
    order: Mutex<()>,
    /// Held while consumers end. Settling a message at that time would make the broker send them another one.
    ending: tokio::sync::RwLock<()>,
    /// Held while all consumers end and waiting messages return to the queue.
    stopping: tokio::sync::Mutex<()>,
}

/// The way to settle messages.
#[derive(Clone, Copy)]
enum Settle {
    Acknowledge,
    Release,
}

impl Subscription {
    pub fn new(
        channel: OwnChannel,
        leases: Arc<Leases>,
        queue: &str,
        consumer_timeout: Option<Duration>,
    ) -> Self {
        let mut arguments = FieldTable::default();
        if let Some(timeout) = consumer_timeout {
            arguments
                .insert("x-consumer-timeout".into(), AMQPValue::LongLongInt(milliseconds(timeout)));
        }
        Self {
            channel,
            leases,
            queue: queue.to_owned(),
            arguments,
            order: Mutex::default(),
            ending: Default::default(),
            stopping: Default::default(),
        }
    }

    /// Adapts the consumers to the requests until the session ends.
    pub async fn keep(self: Arc<Self>) {
        if let Err(error) = self.adapt().await {
            end(&self.leases, &error);
        }
    }

    async fn adapt(&self) -> lapin::Result<()> {
        let mut consumers: Vec<Consumer> = Vec::new();
        let mut idle_since = None;
        loop {
            let change = self.leases.required_change();
            if change != ConsumerChange::Idle {
                idle_since = None;
            }
            match change {
                ConsumerChange::Ended => return Ok(()),
                ConsumerChange::Unchanged => self.leases.demand_changed.notified().await,
                ConsumerChange::More(messages) => consumers.push(self.consume(messages).await?),
                ConsumerChange::Replace => self.cancel(&mut consumers).await?,
                ConsumerChange::Stop => self.stop(&mut consumers).await?,
                ConsumerChange::Idle => {
                    let until = *idle_since.get_or_insert_with(Instant::now) + IDLE_MAX;
                    tokio::select! {
                        () = self.leases.demand_changed.notified() => {}
                        () = sleep_until(until) => self.stop(&mut consumers).await?,
                    }
                }
            }
        }
    }

    /// Adds a consumer.
    async fn consume(&self, messages: usize) -> lapin::Result<Consumer> {
        let prefetch = u16::try_from(messages).unwrap_or(u16::MAX);
        let set = self.leases.add_consumer(prefetch.into());
        // A prefetch applies to later consumers. This sends both requests in this order.
        let qos = self.channel.basic_qos(prefetch, BasicQosOptions::default());
        let (queue, arguments) = (self.queue.as_str().into(), self.arguments.clone());
        let consume =
            self.channel.basic_consume(queue, "".into(), BasicConsumeOptions::default(), arguments);
        let ((), consumer) = try_join(qos, consume).await?;
        consumer.set_delegate(Arrivals { leases: self.leases.clone(), set });
        self.leases.changed.notify_waiters();
        Ok(consumer)
    }

    /// Ends all consumers once the broker has nothing to send to them.
    async fn cancel(&self, consumers: &mut Vec<Consumer>) -> lapin::Result<()> {
        let _ending = self.ending.write().await;
        self.settle_down().await?;
        let set = self.leases.remove_consumers();
        for mut consumer in consumers.drain(..) {
            self.channel.basic_cancel(consumer.tag(), BasicCancelOptions::default()).await?;
            // Messages that arrive after the request bypass the delegate.
            while let Some(delivery) = consumer.next().await {
                arrive(&self.leases, set, delivery?);
            }
        }
        self.leases.changed.notify_waiters();
        Ok(())
    }

    async fn stop(&self, consumers: &mut Vec<Consumer>) -> lapin::Result<()> {
        let _stopping = self.stopping.lock().await;
        if !consumers.is_empty() {
            self.cancel(consumers).await?;
        }
        self.send_back().await
    }

    /// Waits until the broker has nothing to send: the consumers are full, or the queue is empty. If a message were
    /// still on its way when its consumer ends, the broker would return it and count the delivery.
    async fn settle_down(&self) -> lapin::Result<()> {
        let until = Instant::now() + SETTLE_MAX;
        while self.ready().await? > 0 && self.leases.may_arrive() && Instant::now() < until {
            sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    /// Waits until all consumers have ended, and unrequested messages have returned to the queue.
    pub async fn stopped(&self) {
        loop {
            let mut changed = std::pin::pin!(self.leases.changed.notified());
            changed.as_mut().enable();
            if !self.leases.is_stopping() {
                break;
            }
            changed.await;
        }
        let _stopping = self.stopping.lock().await;
    }

    /// Returns waiting messages to the queue as new messages that carry their counts. If this process rejected them
    /// instead, the broker would count a delivery that no caller had.
    async fn send_back(&self) -> lapin::Result<()> {
        let arrived = self.leases.take_arrived();
        if arrived.is_empty() {
            return Ok(());
        }
        let (mut sent, mut unsent) = (BTreeSet::new(), BTreeSet::new());
        for ((tag, _), is_sent) in arrived.iter().zip(self.sent_back(&arrived).await) {
            let tags = if is_sent { &mut sent } else { &mut unsent };
            tags.insert(*tag);
        }
        for (settle, tags) in [(Settle::Acknowledge, sent), (Settle::Release, unsent)] {
            written(self.queue_frames(settle, || (self.leases.settle_tags(&tags), ())).0).await?;
        }
        Ok(())
    }

    /// Sends copies. Returns for each whether the broker has confirmed it.
    async fn sent_back(&self, arrived: &[(u64, Incoming)]) -> Vec<bool> {
        let confirmed = async {
            self.channel.confirm_select(ConfirmSelectOptions::default()).await?;
            let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
            let mut confirms = Vec::with_capacity(arrived.len());
            for (_, message) in arrived {
                let mut headers = FieldTable::default();
                let before = message.receive_count.saturating_sub(1);
                headers.insert(DELIVERIES_BEFORE.into(), AMQPValue::LongLongInt(before.into()));
                let properties =
                    BasicProperties::default().with_delivery_mode(PERSISTENT).with_headers(headers);
                let queue = self.queue.as_str().into();
                confirms.push(
                    self.channel
                        .basic_publish("".into(), queue, options, &message.body, properties)
                        .await?,
                );
            }
            let mut confirmed = Vec::with_capacity(confirms.len());
            for confirm in confirms {
                confirmed.push(matches!(confirm.await?, Confirmation::Ack(None)));
            }
            Ok::<_, lapin::Error>(confirmed)
        };
        // The caller rejects messages without a confirmed copy.
        timeout(CONFIRM_MAX, confirmed)
            .await
            .ok()
            .and_then(Result::ok)
            .unwrap_or_else(|| vec![false; arrived.len()])
    }

    /// Acknowledges messages. Returns the lost receipts.
    pub async fn acknowledge(&self, receipts: &[Receipt]) -> lapin::Result<Vec<Receipt>> {
        let ending = self.ending.read().await;
        let (frames, lost) =
            self.queue_frames(Settle::Acknowledge, || self.leases.settle(receipts));
        drop(ending);
        written(frames).await.map(|()| lost)
    }

    /// Releases messages; those with lost leases have been released already.
    pub async fn release(&self, receipts: &[Receipt]) -> lapin::Result<()> {
        let ending = self.ending.read().await;
        let frames = self.queue_frames(Settle::Release, || self.leases.settle(receipts)).0;
        drop(ending);
        written(frames).await
    }

    /// Plans frames and queues them without other frames in between.
    fn queue_frames<T>(
        &self,
        settle: Settle,
        plan: impl FnOnce() -> (Vec<Settlement>, T),
    ) -> (Vec<Frame<'_>>, T) {
        let _order = self.order.lock().expect("no holder panics");
        let (steps, rest) = plan();
        let mut frames: Vec<Frame<'_>> = Vec::with_capacity(steps.len());
        for (tag, multiple) in steps {
            frames.push(queued(match settle {
                Settle::Acknowledge => {
                    Box::pin(self.channel.basic_ack(tag, BasicAckOptions { multiple }))
                }
                Settle::Release => Box::pin(
                    self.channel.basic_nack(tag, BasicNackOptions { multiple, requeue: true }),
                ),
            }));
        }
        (frames, rest)
    }

    /// Returns the number of ready messages, after all messages that the broker was sending have arrived: it answers
    /// the second request after everything that it had to send when it answered the first.
    pub async fn ready(&self) -> lapin::Result<usize> {
        ready(&self.channel, &self.queue).await?;
        ready(&self.channel, &self.queue).await
    }
}

/// Returns the number of ready messages in a queue.
pub(super) async fn ready(channel: &Channel, queue: &str) -> lapin::Result<usize> {
    let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    let declared = channel.queue_declare(queue.into(), options, FieldTable::default()).await?;
    Ok(declared.message_count() as usize)
}

/// Returns whole milliseconds, the unit of the broker.
pub(super) fn milliseconds(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

async fn written(frames: Vec<Frame<'_>>) -> lapin::Result<()> {
    join_all(frames).await.into_iter().collect()
}

/// Records the deliveries of a consumer in the order of arrival.
struct Arrivals {
    leases: Arc<Leases>,
    set: ConsumerSet,
}

impl ConsumerDelegate for Arrivals {
    fn on_new_delivery(
        &self,
        delivery: DeliveryResult,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        match delivery {
            Ok(Some(delivery)) => arrive(&self.leases, self.set, delivery),
            Ok(None) => self.leases.end(
                "the broker canceled the consumer: a lease was too long, or the queue was deleted",
                false,
            ),
            Err(error) => end(&self.leases, &error),
        }
        Box::pin(std::future::ready(()))
    }
}

fn arrive(leases: &Leases, set: ConsumerSet, delivery: Delivery) {
    let receive_count = receive_count(&delivery);
    let message = Incoming { body: Bytes::from(delivery.data), receive_count };
    leases.arrive(delivery.delivery_tag, set, message);
}

fn end(leases: &Leases, error: &lapin::Error) {
    leases.end(message(error), is_refusal(error));
}

/// Returns the number of deliveries, this one included. Until RabbitMQ 4.2, `x-delivery-count` counted every return to
/// the queue; since 4.3 it counts only failures, and `x-acquired-count` counts all deliveries. The larger one is
/// correct for all versions.
fn receive_count(delivery: &Delivery) -> u32 {
    let headers = delivery.properties.headers().as_ref();
    let count = |name: &str| {
        headers.and_then(|headers| headers.inner().get(name)).and_then(number).unwrap_or(0)
    };
    let before = count("x-delivery-count")
        .max(count("x-acquired-count"))
        .max(u32::from(delivery.redelivered));
    before.saturating_add(count(DELIVERIES_BEFORE)).saturating_add(1)
}

fn number(value: &AMQPValue) -> Option<u32> {
    match *value {
        AMQPValue::ShortShortInt(number) => number.try_into().ok(),
        AMQPValue::ShortShortUInt(number) => Some(number.into()),
        AMQPValue::ShortInt(number) => number.try_into().ok(),
        AMQPValue::ShortUInt(number) => Some(number.into()),
        AMQPValue::LongInt(number) => number.try_into().ok(),
        AMQPValue::LongUInt(number) => Some(number),
        AMQPValue::LongLongInt(number) => number.try_into().ok(),
        _ => None,
    }
}
