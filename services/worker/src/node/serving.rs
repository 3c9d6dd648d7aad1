//! One job on this node, from the first message that came for it to the last: looked up, seated, provisioned, worked on,
//! and left.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};
use protocol::{Descriptor, JobSpec, ResultEvent};
use queue::{Queue, Receipt, Refusal, View};
use storage::JobStore;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

use super::Shared;
use super::logs::LogUpload;
use super::provision::Provisioned;
use super::seat::{Observed, Seat};
use crate::agent::{Agent, Stop};
use crate::announce::{give_back, tell};
use crate::default_process_count;

/// For how long nobody receives what this node may not work on, where the queue can do that.
const TURNED_AWAY_DELAY: Duration = Duration::from_secs(5);
/// For how much longer an idle node then asks for nothing, so that those who may work on it find it first.
const TURNED_AWAY_PAUSE: Duration = Duration::from_secs(3);
/// For how long it is held instead, where the queue cannot.
const TURNED_AWAY_HOLD: Duration = Duration::from_secs(2);
/// While a job is provisioned, what came for it is given back this often: others may be ready for it.
const PROVISIONING_HOLD: Duration = Duration::from_secs(10);
/// Looks for a request to cancel, for each look whether a busy job has ended.
const LOOKS_PER_RESULT: u32 = 5;
/// Messages to receive at once, for a moment, when there are some of a job that is over: usually there are many.
const DROP_WISH: usize = 256;
/// How long the end of a job here waits for a store that does not answer.
const STORE_WAIT_MAX: Duration = Duration::from_secs(15);
/// Failures to fetch a job's folders, in a row, after which they count as the job's own.
const FETCH_FAILURES_MAX: u32 = 3;

/// What is remembered of a job between two times that it is served.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    observed: Observed,
    /// Until when the job is left to others.
    rests_until: Option<Instant>,
    fetch_failures: u32,
}

impl Memory {
    pub(super) fn is_worth_keeping(&self) -> bool {
        !self.observed.is_empty() || self.rests_until.is_some() || self.fetch_failures > 0
    }
}

/// What a job here is busy with.
#[derive(Clone, Debug)]
pub(super) enum Activity {
    /// Whether it is for this node is not known, or it is not.
    LookingUp {
        /// No other was before: whoever has just come is not sent home by a store that takes its time. Later, jobs that
        /// are not for this node are looked up again and again, and are no reason to stay.
        is_first: bool,
    },
    /// It is made ready.
    Provisioning,
    /// Its agent works.
    Working(Arc<View>),
    /// Its agent has ended.
    Leaving,
}

impl Activity {
    /// Until when there was something to do; `None`: there was nothing.
    pub(super) fn busy_until(&self, now: Instant) -> Option<Instant> {
        match self {
            Self::LookingUp { is_first } => is_first.then_some(now),
            Self::Provisioning | Self::Leaving => Some(now),
            Self::Working(view) => Some(view.quiet_since().unwrap_or(now)),
        }
    }
}

/// What the store says of a job.
enum Found {
    Open(Box<JobSpec>),
    /// There is nothing to do for it, and why.
    Over(&'static str),
}

/// Why an agent is to stop.
enum Verdict {
    Canceled,
    Ended,
    SeatLost,
    Idle,
}

/// A job that has messages here.
#[derive(Debug)]
pub(super) struct Serving {
    shared: Arc<Shared>,
    job_id: String,
    store: JobStore,
    activity: Arc<Mutex<Activity>>,
}

impl Serving {
    pub(super) fn new(shared: Arc<Shared>, job_id: String, activity: Arc<Mutex<Activity>>) -> Self {
        let store = shared.node.target.job(&job_id);
        Self { shared, job_id, store, activity }
    }

    /// Serves the job until there is nothing more to do here.
    pub(super) async fn run(self, mut memory: Memory, mut stop: watch::Receiver<Stop>) -> Memory {
        self.serve(&mut memory, &mut stop).await;
        self.shared.demultiplexer.close(&self.job_id);
        memory
    }

    async fn serve(&self, memory: &mut Memory, stop: &mut watch::Receiver<Stop>) {
        let mut seat = None;
        let spec = tokio::select! {
            spec = self.admit(memory, &mut seat) => spec,
            // What waits here is given back by the node itself.
            _ = stop.changed() => None,
        };
        let Some(spec) = spec else { return };
        self.is_busy_with(Activity::Provisioning);
        let hold = self.shared.protection.hold();
        if let Some(provisioned) = self.provision(spec, memory, stop, &mut seat).await {
            hold.settled().await;
            self.work(provisioned, memory, stop, &mut seat).await;
        }
        self.is_busy_with(Activity::Leaving);
        if let Some(seat) = seat {
            let _ = timeout(STORE_WAIT_MAX, seat.leave(&self.store)).await;
        }
    }

    fn is_busy_with(&self, activity: Activity) {
        *self.activity.lock().expect("no holder panics") = activity;
    }

    /// Finds the job, and a seat where it has any. `None`: it is not for this node, and what waits here is dropped or
    /// left to others.
    async fn admit(&self, memory: &mut Memory, seat: &mut Option<Seat>) -> Option<JobSpec> {
        let looked_at = Instant::now();
        let spec = match self.look_up().await {
            Ok(Found::Open(spec)) => *spec,
            Ok(Found::Over(why)) => {
                tracing::info!(job.id = self.job_id, "messages of the job are dropped: {why}");
                self.drop_waiting(looked_at).await;
                return None;
            }
            Err(error) => {
                tracing::warn!(job.id = self.job_id, "cannot look the job up: {error}");
                self.turn_away().await;
                return None;
            }
        };
        let is_resting = memory.rests_until.is_some_and(|until| until > Instant::now());
        if is_resting || !self.take_seat(&spec, memory, seat).await {
            self.turn_away().await;
            return None;
        }
        Some(spec)
    }

    async fn take_seat(&self, spec: &JobSpec, memory: &mut Memory, seat: &mut Option<Seat>) -> bool {
        let Some(seats) = spec.node_count else { return true };
        let node = &self.shared.node;
        match memory.observed.take(&self.store, seats, &node.name, node.options.seat_lapse).await {
            Ok(taken) => *seat = taken,
            Err(error) => tracing::warn!(job.id = self.job_id, "cannot take a seat: {error}"),
        }
        seat.is_some()
    }

    // ---- the job ---------------------------------------------------------------------------------------------

    async fn look_up(&self) -> storage::Result<Found> {
        if let Some(why) = self.is_over().await? {
            return Ok(Found::Over(why));
        }
        match self.store.spec().await {
            Ok(spec) => Ok(Found::Open(Box::new(spec))),
            Err(storage::Error::NotFound { .. }) => Ok(Found::Over("there is no such job in the store")),
            Err(error) => Err(error),
        }
    }

    async fn is_over(&self) -> storage::Result<Option<&'static str>> {
        if self.store.result().await?.is_some() {
            return Ok(Some("it has ended"));
        }
        Ok(self.store.cancel_requested().await?.map(|_| "it was canceled"))
    }

    /// What waits here for a job that is over is of no use. What came after it was looked up is looked up again: the
    /// job may have been opened again meanwhile.
    async fn drop_waiting(&self, looked_at: Instant) {
        self.shared.demultiplexer.set_idle_wish(DROP_WISH);
        let refusal = Refusal::Drop { received_before: looked_at };
        if let Err(error) = self.shared.demultiplexer.refuse(&self.job_id, refusal).await {
            tracing::warn!(job.id = self.job_id, "cannot drop messages: {error}");
        }
    }

    /// Leaves to others what waits here, and does not ask for it again at once.
    async fn turn_away(&self) {
        let (demultiplexer, node) = (&self.shared.demultiplexer, &self.shared.node);
        let delay = node.tasks.limits().delay_max.min(TURNED_AWAY_DELAY);
        if delay.is_zero() {
            sleep(TURNED_AWAY_HOLD).await;
        }
        if let Err(error) = demultiplexer.refuse(&self.job_id, Refusal::GiveBack { delay }).await {
            tracing::warn!(job.id = self.job_id, "cannot give messages back: {error}");
        }
        if demultiplexer.quiet_since().is_some() {
            // A node with nothing else to do would be the first to ask when they are visible again.
            demultiplexer.pause(delay + TURNED_AWAY_PAUSE);
        } else if delay.is_zero() {
            demultiplexer.pause(TURNED_AWAY_HOLD / 4);
        }
    }

    // ---- before the work -------------------------------------------------------------------------------------

    /// Makes the job ready. `None`: it cannot be, or should not any more.
    async fn provision(
        &self,
        spec: JobSpec,
        memory: &mut Memory,
        stop: &mut watch::Receiver<Stop>,
        seat: &mut Option<Seat>,
    ) -> Option<Provisioned> {
        tracing::info!(job.id = self.job_id, "provisioning");
        let mut provisioning = std::pin::pin!(self.shared.provisioner.provision(spec));
        let mut verdict = std::pin::pin!(self.mind(None, seat));
        let result = loop {
            tokio::select! {
                result = &mut provisioning => break result,
                verdict = &mut verdict => {
                    let why = self.stop_for(verdict, None).1;
                    tracing::info!(job.id = self.job_id, "the job is not needed here any more: {why}");
                    // What waits is looked up again.
                    return None;
                }
                _ = stop.changed() => return None,
                () = sleep(PROVISIONING_HOLD) => {
                    let refusal = Refusal::GiveBack { delay: Duration::ZERO };
                    let _ = self.shared.demultiplexer.refuse(&self.job_id, refusal).await;
                }
            }
        };
        let error = match result {
            Ok(provisioned) => {
                memory.fetch_failures = 0;
                return Some(provisioned);
            }
            Err(error) => error,
        };
        tracing::warn!(job.id = self.job_id, "the job cannot start here: {error:#}");
        memory.fetch_failures += 1;
        let may_pass = matches!(error.downcast_ref(), Some(storage::Error::Unavailable { .. }));
        if !may_pass || memory.fetch_failures >= FETCH_FAILURES_MAX {
            self.give_up(memory, &error).await;
        }
        tokio::select! {
            () = self.turn_away() => {}
            _ = stop.changed() => {}
        }
        None
    }

    /// Tells the job that it cannot be worked on here, and leaves it to others for a while.
    async fn give_up(&self, memory: &mut Memory, error: &anyhow::Error) {
        let node = &self.shared.node;
        let cause = format!("the job cannot be worked on at node {}: {error:#}", node.name);
        let event = ResultEvent::NodeStopped { node: node.name.clone(), cause: Some(cause) };
        if let Err(error) = tell(&*node.results, &self.job_id, &event, node.options.timing.patience).await {
            tracing::warn!(job.id = self.job_id, "nobody is told: {error:#}");
        }
        memory.rests_until = Some(Instant::now() + node.options.rest);
    }

    // ---- the work --------------------------------------------------------------------------------------------

    async fn work(
        &self,
        provisioned: Provisioned,
        memory: &mut Memory,
        stop: &mut watch::Receiver<Stop>,
        seat: &mut Option<Seat>,
    ) {
        let node = &self.shared.node;
        let view = self.shared.demultiplexer.view(&self.job_id);
        self.is_busy_with(Activity::Working(view.clone()));
        let agent = self.agent(provisioned, view.clone());
        let folder = agent.work_folder.clone();
        let mut logs = self
            .store
            .folder()
            .is_none()
            .then(|| LogUpload::new(agent.logs(), self.store.clone(), node.options.log_period));
        let processes = agent.process_count;
        tracing::info!(job.id = self.job_id, "working on it with {processes} processes");
        let agent_stop = watch::Sender::new(*stop.borrow_and_update());
        let span = tracing::error_span!("agent", job.id = self.job_id, node.id = node.name);
        let working = agent.work(agent_stop.subscribe()).instrument(span);
        let mut working = AbortOnDropHandle::new(tokio::spawn(working));
        let worked = {
            let mut uploading = std::pin::pin!(async {
                match &mut logs {
                    Some(logs) => logs.keep().await,
                    None => std::future::pending().await,
                }
            });
            let mut verdict = std::pin::pin!(self.mind(Some(&view), seat));
            let mut is_decided = false;
            loop {
                tokio::select! {
                    worked = &mut working => break worked.context("the agent panicked").and_then(|worked| worked),
                    verdict = &mut verdict, if !is_decided => {
                        is_decided = true;
                        let (how, why) = self.stop_for(verdict, Some(&view));
                        tracing::info!(job.id = self.job_id, "leaving the job: {why}");
                        raise(&agent_stop, how);
                    }
                    changed = stop.changed() => {
                        raise(&agent_stop, changed.map_or(Stop::Kill, |()| *stop.borrow_and_update()));
                    }
                    () = &mut uploading => unreachable!("logs are uploaded until the agent ends"),
                }
            }
        };
        self.is_busy_with(Activity::Leaving);
        let was_told = *agent_stop.borrow() != Stop::No;
        match worked {
            Ok(held) => {
                if !was_told {
                    tracing::warn!(
                        job.id = self.job_id,
                        "no process can start; the job is left to other nodes for a while"
                    );
                    memory.rests_until = Some(Instant::now() + node.options.rest);
                }
                if let Err(error) = self.let_go(held, &view).await {
                    tracing::warn!(job.id = self.job_id, "what was held comes back when its lease ends: {error:#}");
                }
            }
            Err(error) => {
                tracing::warn!(job.id = self.job_id, "the agent ended, what it held is redelivered: {error:#}")
            }
        }
        if let Some(logs) = &mut logs {
            let _ = timeout(2 * STORE_WAIT_MAX, logs.finish()).await;
            let _ = std::fs::remove_dir_all(folder.join("logs"));
        }
        for cache in ["inputs", "scratch"] {
            // Working directories in which user code left something stay.
            let _ = match cache {
                "inputs" => std::fs::remove_dir_all(folder.join(cache)),
                _ => std::fs::remove_dir(folder.join(cache)),
            };
        }
        let _ = std::fs::remove_dir(&folder);
    }

    fn agent(&self, provisioned: Provisioned, view: Arc<View>) -> Agent {
        let Provisioned { spec, python } = provisioned;
        let node = &self.shared.node;
        Agent {
            store: self.store.clone(),
            tasks: view,
            results: node.results.clone(),
            dead_letters: Some(node.dead_letters.clone()),
            node: node.name.clone(),
            process_count: node
                .options
                .process_count
                .or(spec.process_count_per_node)
                .unwrap_or_else(|| default_process_count(node.gpu_count)),
            gpu_count: node.gpu_count,
            python,
            package: node.package.clone(),
            work_folder: self.shared.job_folder(&self.job_id),
            prefetch_bytes_max: node.prefetch_bytes_max,
            timing: node.options.timing,
            health: node.options.health.clone(),
            crash: node.crash,
            spec: Arc::new(spec),
        }
    }

    fn stop_for(&self, verdict: Verdict, view: Option<&View>) -> (Stop, &'static str) {
        match verdict {
            Verdict::Canceled => (Stop::Kill, "it was canceled"),
            // Whatever still runs is of no use.
            Verdict::Ended if view.is_some_and(|view| view.quiet_since().is_none()) => (Stop::Kill, "it has ended"),
            Verdict::Ended => (Stop::Finish, "it has ended"),
            Verdict::SeatLost => (Stop::Drain, "another node has its seat"),
            Verdict::Idle => (Stop::Finish, "nothing came for it for a while"),
        }
    }

    /// What an agent held when it was stopped is given back, or dropped where it is of no use to anybody.
    async fn let_go(&self, held: Vec<(Receipt, Descriptor)>, view: &View) -> Result<()> {
        // All of it came before this look, so nothing is dropped that was published when the job was opened again.
        if !held.is_empty() && matches!(timeout(STORE_WAIT_MAX, self.is_over()).await, Ok(Ok(Some(_)))) {
            let receipts: Vec<Receipt> = held.into_iter().map(|(receipt, _)| receipt).collect();
            return view.acknowledge(&receipts).await.map(drop).context("drop messages");
        }
        give_back(view, &self.job_id, held, self.shared.node.options.timing.patience).await
    }

    // ---- meanwhile -------------------------------------------------------------------------------------------

    /// Waits for a reason to leave the job.
    async fn mind(&self, view: Option<&View>, seat: &mut Option<Seat>) -> Verdict {
        let options = &self.shared.node.options;
        let seat_lost = async {
            match seat {
                Some(seat) => {
                    seat.keep(&self.store, &self.shared.node.name, options.seat_period, options.seat_lapse).await;
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            verdict = self.watch(view) => verdict,
            () = seat_lost => Verdict::SeatLost,
        }
    }

    /// Looks at the job from time to time, with as few requests as cancelling within seconds allows.
    async fn watch(&self, view: Option<&View>) -> Verdict {
        let options = &self.shared.node.options;
        let mut looks = 0;
        loop {
            sleep(options.watch_period).await;
            looks += 1;
            match self.store.cancel_requested().await {
                Ok(Some(_)) => return Verdict::Canceled,
                Ok(None) => {}
                Err(error) => tracing::warn!(job.id = self.job_id, "cannot see whether the job was canceled: {error}"),
            }
            let quiet_since = view.and_then(View::quiet_since);
            if quiet_since.is_some() || looks % LOOKS_PER_RESULT == 0 {
                match self.store.result().await {
                    Ok(Some(_)) => return Verdict::Ended,
                    Ok(None) => {}
                    Err(error) => tracing::warn!(job.id = self.job_id, "cannot see whether the job has ended: {error}"),
                }
            }
            if quiet_since.is_some_and(|since| since.elapsed() >= options.job_idle) {
                return Verdict::Idle;
            }
        }
    }
}

/// Stops only ever get larger.
fn raise(sender: &watch::Sender<Stop>, stop: Stop) {
    sender.send_if_modified(|current| {
        let is_later = stop > *current;
        *current = stop.max(*current);
        is_later
    });
}
