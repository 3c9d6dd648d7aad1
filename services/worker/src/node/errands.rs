//! Executes the errands of a visit: every request that a node makes to the store and to the shared queues, except those
//! of agents and of provisioning.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use protocol::{Descriptor, JobSpec, Priority, ResultEvent, milliseconds_since_epoch};
use queue::{Demultiplexer, Queue, Receipt, Refusal, View};
use storage::JobStore;
use tokio::time::{Instant, timeout};

use super::allocations::Over;
use super::roster::{Answer, Errand, Event, Found, Standing, Step, Unanswered, VisitId};
use crate::announce::{give_back, tell};
use crate::scheduler::wait_of_node;

/// How long the end of a visit waits for a store that does not answer.
pub const STORE_WAIT_MAX: Duration = Duration::from_secs(15);

/// Mini-batches that an agent still held when it stopped.
pub type Held = Vec<(Receipt, Descriptor)>;

/// A job that a node works on.
#[derive(Clone, Debug)]
pub struct JobAccess {
    pub job_id: String,
    pub store: JobStore,
    pub results: Arc<dyn Queue>,
}

/// What the errands of a visit need.
#[derive(Clone, Debug)]
pub struct Errands {
    pub visit: VisitId,
    pub job_id: String,
    pub node: String,
    pub store: JobStore,
    /// The task queue.
    pub demultiplexer: Arc<Demultiplexer>,
    pub results: Arc<dyn Queue>,
    /// How long to wait for a result queue that does not answer.
    pub patience: Duration,
}

impl Errands {
    /// Returns the job.
    pub fn access(&self) -> JobAccess {
        let Self { job_id, store, results, .. } = self.clone();
        JobAccess { job_id, store, results }
    }

    /// Executes an errand, and returns the answer. Logs what prevents it.
    pub async fn run(self, errand: Errand) -> Event {
        let visit = self.visit;
        match errand {
            Errand::LookUp => {
                let looked_at = Instant::now();
                Event::LookedUp { visit, looked_at, found: self.answer("look the job up", self.look_up().await) }
            }
            Errand::ReadSeat { number, known } => {
                Event::SeatRead { visit, seat: self.answer("read a seat", self.store.seat(number, known).await) }
            }
            Errand::ClaimSeat { number, epoch } => {
                let asked_at = Instant::now();
                let commit = self.store.claim_seat(number, epoch, &self.node).await;
                Event::SeatClaimed { visit, asked_at, commit: self.answer("take or renew a seat", commit) }
            }
            Errand::LeaveSeat { number, epoch } => {
                // If this fails, the seat lapses.
                if let Ok(left) = timeout(STORE_WAIT_MAX, self.store.claim_seat(number, epoch, "")).await {
                    let _ = self.answer("leave a seat", left);
                }
                Event::Done { visit, step: Step::LeaveSeat }
            }
            Errand::Watch { with_result } => {
                let standing = self.watch(with_result).await;
                let priority = if with_result && standing == Standing::Open { self.priority().await } else { None };
                Event::Watched { visit, standing, priority }
            }
            Errand::CheckHeld => {
                let is_over = matches!(timeout(STORE_WAIT_MAX, over(&self.store)).await, Ok(Ok(Some(_))));
                Event::HeldChecked { visit, is_over }
            }
            Errand::GiveBack { delay } => {
                self.refuse(Refusal::GiveBack { delay }).await;
                Event::GivenBack { visit, is_quiet: self.demultiplexer.quiet_since().is_some() }
            }
            Errand::PassOn => {
                self.refuse(Refusal::GiveBack { delay: Duration::ZERO }).await;
                Event::Done { visit, step: Step::PassOn }
            }
            Errand::Drop { received_before } => {
                self.refuse(Refusal::Drop { received_before }).await;
                Event::Done { visit, step: Step::Drop }
            }
            Errand::Tell { reason } => {
                let cause = Some(format!("node {} cannot work on the job: {reason}", self.node));
                let event = ResultEvent::NodeStopped { node: self.node.clone(), cause };
                if let Err(error) = tell(&*self.results, &self.job_id, &event, self.patience).await {
                    tracing::warn!(job.id = self.job_id, "cannot tell the reducer why the job cannot start: {error:#}");
                }
                Event::Done { visit, step: Step::Tell }
            }
            Errand::TellWait { waited, detail } => {
                let waiting = wait_of_node(&self.node, waited, milliseconds_since_epoch(), detail);
                self.tell_if_possible(ResultEvent::Waiting(waiting.into())).await;
                Event::Done { visit, step: Step::TellWait }
            }
            Errand::TellEnd => {
                self.tell_if_possible(ResultEvent::NodeStopped { node: self.node.clone(), cause: None }).await;
                Event::Done { visit, step: Step::TellEnd }
            }
        }
    }

    /// Tells the reducer what only status and reports show.
    async fn tell_if_possible(&self, event: ResultEvent) {
        if let Err(error) = tell(&*self.results, &self.job_id, &event, Duration::ZERO).await {
            tracing::debug!(job.id = self.job_id, "cannot tell the reducer that the job waits here: {error:#}");
        }
    }

    fn answer<T>(&self, what: &str, answer: storage::Result<T>) -> Answer<T> {
        answer.map_err(|error| {
            tracing::warn!(job.id = self.job_id, "cannot {what}: {error:#}");
            Unanswered
        })
    }

    async fn look_up(&self) -> storage::Result<Found> {
        look_up(&self.store, &self.job_id).await
    }

    async fn watch(&self, with_result: bool) -> Standing {
        let canceled = self.answer("see whether the job was canceled", self.store.cancel_requested().await);
        if matches!(canceled, Ok(Some(_))) {
            return Standing::Canceled;
        }
        let is_ended = with_result
            && matches!(self.answer("see whether the job has ended", self.store.result().await), Ok(Some(_)));
        if is_ended { Standing::Ended } else { Standing::Open }
    }

    async fn priority(&self) -> Option<Priority> {
        changed_priority(&self.store, &self.job_id).await
    }

    async fn refuse(&self, refusal: Refusal) {
        if let Err(error) = self.demultiplexer.refuse(&self.job_id, refusal).await {
            tracing::warn!(job.id = self.job_id, "cannot return or drop messages: {error:#}");
        }
    }
}

/// Returns what the store says of a job.
pub(super) async fn look_up(store: &JobStore, job_id: &str) -> storage::Result<Found> {
    match over(store).await? {
        Some(Over::Ended) => return Ok(Found::Over("it has ended")),
        Some(Over::Canceled) => return Ok(Found::Over("it was canceled")),
        None => {}
    }
    let Some(spec) = store.find_spec().await? else {
        return Ok(Found::Over("there is no such job in the store"));
    };
    let priority = changed_priority(store, job_id).await.unwrap_or(spec.priority);
    Ok(Found::Open(Box::new(JobSpec { priority, ..spec })))
}

/// Returns how a job is over, if it is.
pub(super) async fn over(store: &JobStore) -> storage::Result<Option<Over>> {
    if store.result().await?.is_some() {
        return Ok(Some(Over::Ended));
    }
    Ok(store.cancel_requested().await?.map(|_| Over::Canceled))
}

/// Returns the priority of a job if it was changed. A worker that may not read it works with the old one.
async fn changed_priority(store: &JobStore, job_id: &str) -> Option<Priority> {
    let read = store.changed_priority().await;
    read.inspect_err(|error| tracing::debug!(job.id = job_id, "cannot read the priority: {error:#}")).ok()?
}

impl Errand {
    /// Returns the answer to an errand that has panicked: as if store or queue had not answered.
    pub fn unanswered(&self, visit: VisitId) -> Event {
        let now = Instant::now();
        let done = |step| Event::Done { visit, step };
        match self {
            Self::LookUp => Event::LookedUp { visit, looked_at: now, found: Err(Unanswered) },
            Self::ReadSeat { .. } => Event::SeatRead { visit, seat: Err(Unanswered) },
            Self::ClaimSeat { .. } => Event::SeatClaimed { visit, asked_at: now, commit: Err(Unanswered) },
            Self::Watch { .. } => Event::Watched { visit, standing: Standing::Open, priority: None },
            Self::CheckHeld => Event::HeldChecked { visit, is_over: false },
            Self::GiveBack { .. } => Event::GivenBack { visit, is_quiet: false },
            Self::LeaveSeat { .. } => done(Step::LeaveSeat),
            Self::PassOn => done(Step::PassOn),
            Self::Drop { .. } => done(Step::Drop),
            Self::Tell { .. } => done(Step::Tell),
            Self::TellWait { .. } => done(Step::TellWait),
            Self::TellEnd => done(Step::TellEnd),
        }
    }
}

/// Returns what an agent held when it stopped, or drops it if the job is over.
pub async fn let_go(view: &View, job_id: &str, held: Held, is_over: bool, patience: Duration) -> Result<()> {
    if is_over {
        let receipts: Vec<Receipt> = held.into_iter().map(|(receipt, _)| receipt).collect();
        return view.acknowledge(&receipts).await.map(drop).context("drop messages");
    }
    give_back(view, job_id, held, patience).await
}
