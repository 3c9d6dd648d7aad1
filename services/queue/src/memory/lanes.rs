//! The lanes of a RabbitMQ task queue in memory, as one connection sees them, for tests. The code of the backend gives
//! groups their lanes and divides requests ([`Lanes`], [`divide`]); the rest of a broker is absent: leases end by time,
//! and nothing is sent ahead of a request.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures::future::select_all;
use tokio::time::Instant;

use super::{MemoryQueue, NAME};
use crate::clock::deadline;
use crate::error::check_sizes;
use crate::rabbitmq::lanes::{Lane, Lanes, divide, whole_lanes};
use crate::{Delivery, Depth, Error, Fairness, Limits, Message, Queue, Receipt, Receive};

/// Numbers of messages in each lane.
pub(super) const LANE_BITS: u32 = 40;

/// Several queues in memory that are the lanes of one queue. Needs a Tokio runtime.
#[derive(Debug)]
pub struct MemoryLanes {
    queues: Vec<Arc<MemoryQueue>>,
    lanes: Lanes,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    /// The ends of the leases of this connection.
    leases: HashMap<Receipt, Instant>,
    /// The number of the last arrival of each lane.
    turns: Vec<u64>,
    arrivals: u64,
}

impl MemoryLanes {
    /// Connects to lanes, which are [`MemoryQueue::lane`]s in order.
    pub fn new(queues: Vec<Arc<MemoryQueue>>) -> Self {
        let held = Mutex::new(Held { turns: vec![0; queues.len()], ..Held::default() });
        Self { lanes: Lanes::new("tasks", queues.len()), queues, held }
    }

    fn ready(&self) -> Vec<usize> {
        self.queues.iter().map(|queue| queue.visible_now()).collect()
    }

    /// Returns how many messages to take from each lane.
    fn divided(&self, messages_max: usize) -> Vec<usize> {
        let mut held = self.held.lock().expect("no holder panics");
        held.leases.retain(|_, until| *until > Instant::now());
        let mut counts = vec![0; self.queues.len()];
        held.leases.keys().for_each(|receipt| counts[lane_of(receipt)] += 1);
        let (mut lanes, ready) = (Vec::new(), self.ready());
        for (number, ((ready, held), turn)) in ready.into_iter().zip(counts).zip(&held.turns).enumerate() {
            let parts = self.lanes.parts(number, ready);
            lanes.push(Lane { ready, held, free: 0, capacity: 0, parts, turn: *turn });
        }
        divide(&lanes, messages_max, false).into_iter().map(|change| change.add).collect()
    }

    async fn take(&self, request: Receive) -> Result<Vec<Delivery>, Error> {
        let mut deliveries: Vec<Delivery> = Vec::new();
        for (lane, wanted) in self.divided(request.messages_max).into_iter().enumerate() {
            // While nothing is ready, each lane may send one.
            let messages_max = wanted.min(request.messages_max - deliveries.len());
            let request = Receive { messages_max, wait: Duration::ZERO, ..request };
            let received = self.queues[lane].receive(request).await?;
            let mut held = self.held.lock().expect("no holder panics");
            for delivery in &received {
                if let Some(group) = self.queues[lane].group_of(&delivery.receipt) {
                    self.lanes.arrived(&group, lane);
                }
                held.arrivals += 1;
                held.turns[lane] = held.arrivals;
                held.leases.insert(delivery.receipt.clone(), Instant::now() + request.visibility);
            }
            deliveries.extend(received);
        }
        Ok(deliveries)
    }

    /// Divides something by the lanes of receipts.
    fn by_lane<T>(&self, all: impl IntoIterator<Item = T>, receipt: impl Fn(&T) -> &Receipt) -> Vec<Vec<T>> {
        let mut lanes: Vec<Vec<T>> = self.queues.iter().map(|_| Vec::new()).collect();
        all.into_iter().for_each(|one| lanes[lane_of(receipt(&one))].push(one));
        lanes
    }

    fn forget<'a>(&self, receipts: impl IntoIterator<Item = &'a Receipt>) {
        let mut held = self.held.lock().expect("no holder panics");
        for receipt in receipts {
            held.leases.remove(receipt);
        }
    }
}

fn lane_of(receipt: &Receipt) -> usize {
    (receipt.numbers().0.max(0) >> LANE_BITS) as usize
}

#[async_trait]
impl Queue for MemoryLanes {
    async fn send(&self, messages: Vec<Message>) -> Result<(), Error> {
        check_sizes(&messages, self.limits().message_bytes_max, NAME)?;
        let placed = self.lanes.place(messages.iter().map(|message| message.group.as_str()), self.ready());
        let mut lanes: Vec<Vec<Message>> = self.queues.iter().map(|_| Vec::new()).collect();
        messages.into_iter().zip(placed).for_each(|(message, lane)| lanes[lane].push(message));
        for (queue, messages) in self.queues.iter().zip(lanes).filter(|(_, messages)| !messages.is_empty()) {
            queue.send(messages).await?;
        }
        Ok(())
    }

    async fn receive(&self, request: Receive) -> Result<Vec<Delivery>, Error> {
        let deadline = deadline(request.wait);
        loop {
            let deliveries = self.take(request).await?;
            if !deliveries.is_empty() || request.messages_max == 0 || Instant::now() >= deadline {
                return Ok(deliveries);
            }
            select_all(self.queues.iter().map(|queue| Box::pin(queue.visible_by(deadline)))).await;
        }
    }

    async fn extend(&self, leases: &[(Receipt, Duration)]) -> Result<Vec<Receipt>, Error> {
        let mut lost = Vec::new();
        for (queue, leases) in self.queues.iter().zip(self.by_lane(leases.to_vec(), |(receipt, _)| receipt)) {
            lost.extend(queue.extend(&leases).await?);
        }
        self.forget(&lost);
        let mut held = self.held.lock().expect("no holder panics");
        for (receipt, duration) in leases {
            held.leases.entry(receipt.clone()).and_modify(|until| *until = Instant::now() + *duration);
        }
        Ok(lost)
    }

    async fn acknowledge(&self, receipts: &[Receipt]) -> Result<Vec<Receipt>, Error> {
        let mut lost = Vec::new();
        for (queue, receipts) in self.queues.iter().zip(self.by_lane(receipts.to_vec(), |receipt| receipt)) {
            lost.extend(queue.acknowledge(&receipts).await?);
        }
        self.forget(receipts);
        Ok(lost)
    }

    async fn release(&self, receipts: &[Receipt]) -> Result<(), Error> {
        for (queue, receipts) in self.queues.iter().zip(self.by_lane(receipts.to_vec(), |receipt| receipt)) {
            queue.release(&receipts).await?;
        }
        self.forget(receipts);
        Ok(())
    }

    async fn depth(&self) -> Result<Depth, Error> {
        let mut sum = Depth::default();
        for queue in &self.queues {
            let depth = queue.depth().await?;
            sum.visible += depth.visible;
            sum.in_flight += depth.in_flight;
            sum.delayed += depth.delayed;
        }
        Ok(sum)
    }

    fn limits(&self) -> Limits {
        Limits { fairness: Fairness::Lanes(whole_lanes(self.queues.len())), ..self.queues[0].limits() }
    }
}
