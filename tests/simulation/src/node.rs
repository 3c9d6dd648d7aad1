//! A node whose Python processes are simulated: leases, announcing, tries and lost deliveries are the production code's.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use protocol::{AttemptStatus, Descriptor, ErrorReport, ResultEvent};
use queue::{Delivery, Queue, Receipt, Receive};
use storage::JobStore;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;
use worker::decisions::{
    Announcement, Announcements, Announcer, Ending, InPipe, LeaseId, Leases, Outcome, Prepared, RowsRoom, Worker,
    conclude, deliveries_lost, lost_too_often,
};

use crate::actor::Actor;
use crate::queue_layer::QueueLayer;
use crate::weather::Bug;
use crate::witness::Witness;

const LEASE_STEP: Duration = Duration::from_secs(30);
const PATIENCE: Duration = Duration::from_secs(120);
const TICK: Duration = Duration::from_secs(5);
const PROCESSES: usize = 2;
/// Held at once, those that run included.
const HELD_MAX: usize = 4;
const TRIES_MAX: u32 = 3;
/// Of loading, running and reporting.
const LIMIT: Duration = Duration::from_secs(35);
/// The queue is the second line.
const GRACE: Duration = Duration::from_secs(5);

/// What one life of a node works with.
pub(crate) struct Node {
    pub actor: Actor,
    pub witness: Arc<Witness>,
    pub store: JobStore,
    pub tasks: Arc<QueueLayer>,
    pub results: Arc<QueueLayer>,
    pub job_id: String,
}

/// A delivery that has not ended.
#[derive(Clone)]
struct Held {
    lease: LeaseId,
    receipt: Receipt,
    descriptor: Descriptor,
    lost: u32,
}

struct Living {
    node: Node,
    leases: Leases,
    announcements: Announcements,
    room: RowsRoom,
    ready: VecDeque<Held>,
    running: HashMap<LeaseId, AbortHandle>,
    processes: JoinSet<(Held, AttemptStatus)>,
    attempts: u64,
}

impl Node {
    /// Works until it dies.
    pub async fn live(self) {
        // Who ignores what the queue says of leases does not watch the clock either.
        let leases = Leases::new(LEASE_STEP, self.tasks.bug != Some(Bug::IgnoresLostLeases));
        let (lost_sender, mut lost) = mpsc::unbounded_channel();
        let _heartbeat = leases.keep(self.tasks.clone(), move |lease| {
            let _ = lost_sender.send(lease);
        });
        let (announcements, announcer) = Announcer {
            job_id: self.job_id.clone(),
            store: self.store.clone(),
            tasks: self.tasks.clone(),
            results: self.results.clone(),
            leases: leases.clone(),
            patience: PATIENCE,
            crash: |_| {},
        }
        .start();
        let mut announcer = AbortOnDropHandle::new(announcer);
        let mut living = Living {
            node: self,
            leases,
            announcements,
            room: RowsRoom::default(),
            ready: VecDeque::new(),
            running: HashMap::new(),
            processes: JoinSet::new(),
            attempts: 0,
        };
        living.start_processes().await;
        let (received_sender, mut received) = mpsc::unbounded_channel();
        let mut receiving: Option<AbortOnDropHandle<()>> = None;
        loop {
            let wanted = HELD_MAX.saturating_sub(living.leases.count());
            if receiving.is_none() && wanted > 0 {
                let (tasks, sender) = (living.node.tasks.clone(), received_sender.clone());
                receiving = Some(AbortOnDropHandle::new(tokio::spawn(async move {
                    let request =
                        Receive { messages_max: wanted, visibility: LEASE_STEP, wait: Duration::from_secs(20) };
                    let asked = Instant::now();
                    let deliveries = tasks.receive(request).await;
                    if deliveries.is_err() {
                        sleep(Duration::from_secs(1)).await;
                    }
                    drop(sender.send((asked, deliveries.unwrap_or_default())));
                })));
            }
            living.begin_what_fits();
            tokio::select! {
                biased;
                _ = &mut announcer => return,
                Some(lease) = lost.recv() => {
                    living.lost(lease);
                    // Those that are lost together are told in no order.
                    while let Ok(lease) = lost.try_recv() {
                        living.lost(lease);
                    }
                }
                Some(ended) = living.processes.join_next(), if !living.processes.is_empty() => {
                    if let Ok((held, status)) = ended {
                        living.running.remove(&held.lease);
                        living.ended(held, status).await;
                    }
                }
                // Others end leases too.
                () = sleep(TICK) => {}
                Some((asked, deliveries)) = received.recv() => {
                    receiving = None;
                    for delivery in deliveries {
                        living.received(delivery, asked).await;
                    }
                }
            }
        }
    }
}

impl Living {
    async fn start_processes(&self) {
        for number in 0..PROCESSES {
            let (node, process) = (self.node.actor.name().to_owned(), format!("process{number:03}"));
            let started = ResultEvent::ProcessStarted { node: node.clone(), process: process.clone(), pid: 1 };
            let ready = ResultEvent::ProcessReady { node, process, init_seconds: 0.0 };
            for event in [started, ready] {
                drop(self.announcements.send(Announcement::Event(event)).await);
            }
        }
    }

    async fn received(&mut self, delivery: Delivery, asked: Instant) {
        let descriptor: Descriptor = serde_json::from_slice(&delivery.body).expect("only descriptors are sent");
        let lost = deliveries_lost(&descriptor, delivery.receive_count);
        let lease = self.leases.hold(delivery.receipt.clone(), asked);
        let held = Held { lease, receipt: delivery.receipt, descriptor, lost };
        let limit = self.node.witness.job.lost_delivery_max;
        match lost_too_often(&held.descriptor, lost, limit, self.node.actor.name()) {
            Some(error) => self.conclude(held, Ending::failed(AttemptStatus::LostTooOften, error)).await,
            None => self.ready.push_back(held),
        }
    }

    fn begin_what_fits(&mut self) {
        while self.running.len() < PROCESSES
            && let Some(held) = self.ready.pop_front()
        {
            let (witness, actor) = (&self.node.witness, &self.node.actor);
            let (job, dice) = (&witness.job, actor.dice());
            let (mini_batch, try_number) = (held.descriptor.mini_batch, held.descriptor.tries_spent + 1);
            witness.began(&held.receipt);
            self.leases.start(held.lease, Instant::now() + LIMIT + GRACE);
            let status = match job.flaky == Some(mini_batch) && dice.happens(0.5) {
                true => AttemptStatus::RunRaised,
                false => job.ends(mini_batch, try_number),
            };
            let time = match status {
                AttemptStatus::RunTimedOut => LIMIT,
                _ => Duration::from_millis(10) + dice.time(Duration::from_secs(30)),
            };
            let dies = (job.poison == Some(mini_batch)).then(|| actor.clone());
            let lease = held.lease;
            let process = self.processes.spawn(async move {
                sleep(time).await;
                if let Some(actor) = dies {
                    actor.kill();
                    actor.alive().await;
                }
                (held, status)
            });
            self.running.insert(lease, process);
        }
    }

    fn lost(&mut self, lease: LeaseId) {
        self.ready.retain(|held| held.lease != lease);
        if let Some(process) = self.running.remove(&lease) {
            process.abort();
        }
    }

    async fn ended(&mut self, held: Held, status: AttemptStatus) {
        let ending = match status {
            AttemptStatus::Succeeded => {
                Ending { status, returned: 1, columns: None, error: None, run_seconds: 0.0, process_seconds: 0.0 }
            }
            status => {
                let error = ErrorReport {
                    category: "Simulated".into(),
                    message: "as the script says".into(),
                    ..Default::default()
                };
                Ending::failed(status, error)
            }
        };
        self.conclude(held, ending).await;
    }

    async fn conclude(&mut self, held: Held, ending: Ending) {
        // A process that stands still decides nothing.
        self.node.actor.alive().await;
        let succeeded = ending.status == AttemptStatus::Succeeded;
        let mini_batch = held.descriptor.mini_batch;
        let mut prepared = Prepared::unreadable(held.lease, held.descriptor, held.lost);
        prepared.passed = 1;
        self.attempts += 1;
        let node = self.node.actor.name();
        // Names the attempt.
        let process = format!("{node}/{}", self.attempts);
        let worker = Worker { node, process: &process };
        let (attempt, next_try) = conclude(&mut InPipe::unrun(prepared), worker, ending, TRIES_MAX);
        let rows = if succeeded { self.node.witness.job.rows(mini_batch) } else { Default::default() };
        self.node.witness.submitted(&held.receipt, &process, next_try.as_ref().map(|next| next.tries_spent));
        let room = self.room.reserve(rows.len()).await;
        let outcome = Outcome { lease: held.lease, attempt, rows, next_try, room };
        drop(self.announcements.send(Announcement::Outcome(Box::new(outcome))).await);
    }
}
