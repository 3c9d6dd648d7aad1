//! The loop of one job, from opening its ledger to its end.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use backon::Retryable;
use protocol::{
    JobResult, JobSpec, Members, Progress, ReducerTrouble, ResultEvent, milliseconds_since_epoch,
};
use queue::pauses::FOR_SECONDS;
use queue::{Delivery, MemoryOptions, MemoryQueue, Queue, Receive};
use storage::JobStore;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

use crate::believed::KnownPlan;
use crate::commit::Appended;
use crate::job_liveness::Timestamp;
use crate::judge::{End, Judge};
use crate::ledger::Ledger;
use crate::pace::Pace;
use crate::receive::{Received, receive_all, received};
use crate::rejects::RejectIndex;
use crate::reports::Reports;
use crate::speculation::Speculation;
use crate::starts::FailedStarts;
use crate::{Backlog, Options, Peers, Tally};

/// Messages of one receive. Workers put many outcomes into a message, so this limit bounds memory and costs little
/// speed.
const MESSAGES_MAX: usize = 64;
/// Longest wait for results from a queue whose leases belong to a connection.
const RECEIVE_WAIT_ON_CONNECTION_MAX: Duration = Duration::from_secs(1);
/// Receives that may wait while a segment is committed.
const RECEIVES_AHEAD_MAX: usize = 2;

/// Commits the results of one job, and ends it.
#[derive(Debug)]
pub struct Reducer {
    pub(crate) store: JobStore,
    pub(crate) results: Arc<dyn Queue>,
    pub(crate) spec: JobSpec,
    pub(crate) options: Options,
    pub(crate) peers: Peers,
    pub(crate) ledger: Ledger,
    pub(crate) rejects: RejectIndex,
    pub(crate) known_plan: KnownPlan,
    pub(crate) tally: Tally,
    /// The last round whose mini-batches have been published.
    pub(crate) rounds_published: u64,
    pub(crate) judge: Judge,
    pub(crate) speculation: Speculation,
    pub(crate) reports: Reports,
    pub(crate) progress: watch::Sender<Progress>,
    pub(crate) failed_starts: FailedStarts,
    /// The members that nodes last received.
    pub(crate) members: Members,
    /// Whether the absence of workers has been logged.
    pub(crate) is_silent: bool,
    failure: watch::Sender<Option<String>>,
    all_ended: CancellationToken,
    pub(crate) started: Instant,
    before: Times,
    /// Whether a node has reported its activity for the job.
    pub(crate) has_entries: bool,
    /// Why it cannot continue now.
    pub(crate) trouble: watch::Sender<Option<ReducerTrouble>>,
    pub(crate) pace: Pace,
    /// Time of the last commit of messages.
    pub(crate) committed: Option<Instant>,
    /// Acknowledges the messages of the last commit.
    pub(crate) acknowledging: Option<AbortOnDropHandle<()>>,
    /// Dropped duplicates of attempts that the ledger does not count yet.
    pub(crate) duplicates: u64,
}

/// Lets another part of the process fail the job: the plan cannot be made, or an agent cannot start.
#[derive(Clone, Debug)]
pub struct FailJob(watch::Sender<Option<String>>);

impl FailJob {
    /// Fails the job with a cause of one line. The first cause counts.
    pub fn fail(&self, cause: impl Into<String>) {
        self.0.send_if_modified(|known| {
            let is_first = known.is_none();
            known.get_or_insert_with(|| cause.into());
            is_first
        });
    }
}

/// The times of a job before this reducer.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    elapsed: Duration,
    worked: Duration,
}

impl Times {
    fn of(progress: &Progress) -> Self {
        let duration = |seconds| Duration::try_from_secs_f64(seconds).unwrap_or_default();
        Self {
            elapsed: duration(progress.elapsed_seconds),
            worked: duration(progress.worked_seconds),
        }
    }
}

/// Why a reducer stops receiving.
enum Exit {
    /// The job ends.
    Ends(End),
    /// The caller asked it to stop.
    Stopped,
    /// Another reducer has written the result.
    EndedElsewhere(Box<JobResult>),
}

impl Reducer {
    /// Reads specification and ledger, and continues where the previous reducer stopped.
    pub async fn open(
        store: JobStore,
        results: Arc<dyn Queue>,
        options: Options,
    ) -> anyhow::Result<Self> {
        let spec = store.spec().await.context("read the job")?;
        let peers = options.peers;
        let began = Timestamp::now();
        let mut reducer = Self {
            ledger: peers.ledger(&store, &spec.job_id, &options),
            rejects: RejectIndex::default(),
            judge: Judge::new(&spec, &options, began),
            speculation: Speculation::default(),
            reports: Reports::new(&store, &options).await,
            store,
            results,
            spec,
            options,
            peers,
            known_plan: KnownPlan::default(),
            tally: Tally::default(),
            rounds_published: 0,
            progress: watch::Sender::new(Self::no_progress()),
            failed_starts: FailedStarts::default(),
            members: Members::default(),
            is_silent: false,
            failure: watch::Sender::new(None),
            all_ended: CancellationToken::new(),
            started: began.instant,
            before: Times::default(),
            has_entries: false,
            trouble: watch::Sender::new(None),
            pace: Pace::default(),
            committed: None,
            acknowledging: None,
            duplicates: 0,
        };
        reducer.read_ledger(false).await?;
        match peers {
            // The process that ran the job before has ended. This one publishes the rest.
            Peers::Alone => {
                reducer.rounds_published = reducer.tally.rounds();
                reducer.store.forget_round_request().await?;
                reducer.begin_times().await;
            }
            Peers::Many => reducer.continue_times().await,
        }
        reducer.judge.resume();
        reducer.open_copies().await?;
        reducer.open_members().await.context("read which nodes work on the job")?;
        reducer.reports.started(&reducer.spec.job_id, &reducer.tally).await;
        reducer.take_over().await;
        Ok(reducer)
    }

    /// Opens the ledger of a job of a target, to read it or to append what a command decides. Receives no results.
    pub async fn of_ledger(store: JobStore) -> anyhow::Result<Self> {
        let nothing = Arc::new(MemoryQueue::new(MemoryOptions::default()));
        Self::open(store, nothing, Options { reports: false, ..Options::shared() }).await
    }

    /// Continues the times and the pace of the last reducer that served the job.
    async fn continue_times(&mut self) {
        let Some(last) = self.store.progress().await.ok().flatten() else { return };
        let since = Duration::from_millis(milliseconds_since_epoch().saturating_sub(last.at));
        let was_at_work = last.nodes_at_work > 0 && last.silent_since.is_none();
        if was_at_work && since < self.options.silence {
            self.judge.job_liveness.heard(Timestamp::now());
        }
        self.before = Times::of(&last);
        self.before.elapsed += since;
        self.before.worked += if was_at_work { since } else { Duration::ZERO };
        self.progress.send_modify(|progress| progress.started_at = last.started_at);
        self.pace = Pace::after(last.rate);
    }

    /// From now on time counts again.
    pub(crate) async fn begin_times(&mut self) {
        if let Some(last) = self.store.progress().await.ok().flatten() {
            self.before = Times::of(&last);
        }
        self.started = Instant::now();
        self.progress.send_modify(|progress| progress.started_at = milliseconds_since_epoch());
    }

    /// Returns the time from the start of the job, without that between an end and a retry.
    pub(crate) fn elapsed(&self) -> Duration {
        self.before.elapsed + self.started.elapsed()
    }

    /// Returns the part of that time in which a worker was alive.
    pub(crate) fn worked(&self) -> Duration {
        (self.before.worked + self.judge.job_liveness.attended_until(Timestamp::now()))
            .min(self.elapsed())
    }

    /// Returns the specification of the job.
    pub fn spec(&self) -> &JobSpec {
        &self.spec
    }

    /// Returns the state of the job according to the ledger.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Returns a token that this reducer cancels when every mini-batch has ended, before it writes the final file. From
    /// then on no process has work left. Opening the ledger of such a job does not cancel it.
    pub fn all_ended(&self) -> CancellationToken {
        self.all_ended.clone()
    }

    /// Returns a handle that fails the job.
    pub fn fail_job(&self) -> FailJob {
        FailJob(self.failure.clone())
    }

    /// Commits the current messages of the result queue without waiting for more. Returns their number.
    pub async fn drain(&mut self) -> anyhow::Result<usize> {
        let mut messages = 0;
        loop {
            let receive = || self.results.receive(self.request(Duration::ZERO));
            let received = receive
                .retry(FOR_SECONDS)
                .when(|error| matches!(error, queue::Error::Unavailable { .. }));
            let deliveries = received.await.context("receive results")?;
            if deliveries.is_empty() {
                self.acknowledged().await;
                return Ok(messages);
            }
            messages += deliveries.len();
            self.commit(deliveries.into_iter().map(Received::read).collect()).await?;
        }
    }

    /// Returns the number of repaired segments: a machine that stopped had left them empty or truncated.
    pub fn segments_repaired(&self) -> u32 {
        self.ledger.repaired
    }

    /// Reverts the successes whose parts are missing or truncated, because a machine stopped before they were on its
    /// disk, or because the job has completed before. Returns their mini-batches, which are pending again.
    pub async fn forget_lost_rows(&mut self) -> anyhow::Result<Vec<u64>> {
        let parts = self.ledger.index.parts();
        let mut lost = self
            .store
            .lost_parts(parts)
            .await
            .context("look for the parts of committed mini-batches")?;
        lost.sort_unstable();
        lost.dedup();
        if lost.is_empty()
            || self.append_event(&ResultEvent::RowsLost { mini_batches: lost.clone() }).await?
                == Appended::TooLate
        {
            return Ok(Vec::new());
        }
        self.forget_decided().await?;
        Ok(lost)
    }

    /// Runs until the job ends, and writes `result.json`. After an error the job has not ended, and another reducer may
    /// finish it.
    ///
    /// When `cancel` is canceled, the reducer still commits the messages in the queue. The caller should let workers
    /// announce their results first.
    pub async fn run(self, cancel: CancellationToken) -> anyhow::Result<JobResult> {
        let result = self.run_until(&cancel, &CancellationToken::new()).await?;
        result.context("the reducer stopped without being asked to")
    }

    /// Runs like [`run`](Self::run) a job with [`Peers::Many`]. When `stop` is canceled, the reducer commits what it
    /// has received, abandons a final file that takes long, and returns `None`; other reducers continue the job.
    pub async fn serve(self, stop: CancellationToken) -> anyhow::Result<Option<JobResult>> {
        self.run_until(&CancellationToken::new(), &stop).await
    }

    async fn run_until(
        mut self,
        cancel: &CancellationToken,
        stop: &CancellationToken,
    ) -> anyhow::Result<Option<JobResult>> {
        loop {
            if let Some(result) = self.store.result().await? {
                self.tidy(result.state).await;
                return Ok(Some(self.ended_elsewhere(result).await));
            }
            // Boxed: the compiler limits the nesting of futures.
            let end = match Box::pin(self.work(cancel, stop)).await {
                Ok(Exit::Ends(end)) => end,
                Ok(Exit::EndedElsewhere(result)) => {
                    return Ok(Some(self.ended_elsewhere(*result).await));
                }
                Ok(Exit::Stopped) => {
                    self.leave().await;
                    return Ok(None);
                }
                Err(error) => self.end_by(error)?,
            };
            if end == End::Complete {
                self.all_ended.cancel();
            }
            if let Some(result) = Box::pin(self.finish(end, cancel, stop)).await? {
                return Ok(Some(result));
            }
            if stop.is_cancelled() {
                self.leave().await;
                return Ok(None);
            }
        }
    }

    async fn work(
        &mut self,
        cancel: &CancellationToken,
        stop: &CancellationToken,
    ) -> anyhow::Result<Exit> {
        let (sender, mut incoming) = mpsc::channel(RECEIVES_AHEAD_MAX);
        let mut wait = self.options.receive_wait;
        if !self.results.limits().timed_lease {
            // Such a call costs nothing, and notices a broken connection at its end.
            wait = wait.min(RECEIVE_WAIT_ON_CONNECTION_MAX);
        }
        let request = self.request(wait);
        let pause = self.peers.receive_pause(&self.options);
        let receiving =
            receive_all(self.results.clone(), request, pause, sender, self.trouble.clone())
                .in_current_span();
        let receiver = AbortOnDropHandle::new(tokio::spawn(receiving));
        let mut failure = self.failure.subscribe();
        let mut progress = ticks(self.options.progress_interval);
        let mut report = ticks(self.options.report_interval);
        let mut knows_run_times = self.knows_run_times();
        let exit = loop {
            self.hear_workers();
            self.publish_backlog();
            if let Some(end) = self.verdict(false) {
                break Exit::Ends(end);
            }
            tokio::select! {
                biased;
                () = cancel.cancelled() => break Exit::Ends(End::Canceled(None)),
                () = stop.cancelled() => break Exit::Stopped,
                cause = first_cause(&mut failure) => break Exit::Ends(End::Failed(cause)),
                _ = progress.tick() => {
                    if let Some(exit) = self.periodic_checks().await? {
                        break exit;
                    }
                    progress.reset_at(self.next_look());
                }
                _ = report.tick() => {
                    self.report().await?;
                    if let Some(end) = self.verdict(true) {
                        break Exit::Ends(end);
                    }
                }
                reading = incoming.recv() => {
                    let messages = received(reading.context("receiving results stopped")??).await?;
                    self.commit_with_waiting(messages, &mut incoming).await?;
                    // Once the progress says how long runs take, the partitioner sends quick mini-batches together.
                    if !std::mem::replace(&mut knows_run_times, self.knows_run_times())
                        && knows_run_times
                        && self.tally.planned().is_none()
                    {
                        progress.reset_immediately();
                    }
                }
            }
        };
        drop(receiver);
        self.trouble.send_replace(None);
        incoming.close();
        let mut left = Vec::new();
        while let Some(Ok(reading)) = incoming.recv().await {
            left.extend(received(reading).await?);
        }
        match exit {
            Exit::Ends(End::Canceled(reason)) if self.tally.ended_as().is_none() => {
                self.commit(left).await?;
                self.drain().await?;
                let complete = if self.tally.is_complete() { self.verdict(false) } else { None };
                return Ok(Exit::Ends(complete.unwrap_or(End::Canceled(reason))));
            }
            Exit::Stopped => self.commit(left).await?,
            // They matter only if the job is reopened.
            Exit::Ends(_) | Exit::EndedElsewhere(_) => {
                self.release(left.into_iter().map(|message| message.delivery).collect()).await
            }
        }
        self.acknowledged().await;
        Ok(exit)
    }

    fn verdict(&self, polled: bool) -> Option<End> {
        let end = self.judge.end(&self.tally, polled, Timestamp::now())?;
        // A copy may still succeed.
        let waits = self.tally.ended_as().is_none()
            && self.speculation.holds(&self.tally, polled, Instant::now());
        (!waits).then_some(end)
    }

    pub(crate) async fn release(&self, deliveries: Vec<Delivery>) {
        let receipts: Vec<_> = deliveries.into_iter().map(|delivery| delivery.receipt).collect();
        if let Err(error) = self.results.release(&receipts).await {
            tracing::debug!(error = %format!("{error:#}"), "cannot release received results, which the queue will deliver again");
        }
    }

    pub(crate) fn request(&self, wait: Duration) -> Receive {
        Receive { messages_max: MESSAGES_MAX, visibility: self.options.visibility, wait }
    }

    /// Sends the backlog to the planner of the target.
    fn publish_backlog(&self) {
        let planned = self.tally.planned().map(|planned| planned.mini_batches);
        let ended = (self.tally.times_reverted(), self.tally.ended());
        self.options.backlog.send_if_modified(|known| {
            let is_new = (known.planned, known.ended) != (planned, ended)
                || !known.excluded.iter().eq(self.members.excluded.keys());
            if is_new {
                *known = Backlog {
                    planned,
                    ended,
                    excluded: self.members.excluded.keys().cloned().collect(),
                };
            }
            is_new
        });
    }

    /// Whether the progress contains the duration of runs.
    fn knows_run_times(&self) -> bool {
        self.speculation.run_times.most().is_some()
    }

    /// Returns the time of the next periodic checks: after an interval, and before workers count as
    /// absent.
    fn next_look(&self) -> Instant {
        let now = Instant::now();
        let next = now + self.options.progress_interval;
        Some(self.judge.job_liveness.silent_at())
            .filter(|silent_at| *silent_at > now)
            .map_or(next, |at| at.min(next))
    }

    /// Performs the periodic checks and updates.
    async fn periodic_checks(&mut self) -> anyhow::Result<Option<Exit>> {
        if let Some(result) = self.check_peers().await? {
            return Ok(Some(Exit::EndedElsewhere(Box::new(result))));
        }
        if let Err(error) = self.check_rounds().await {
            tracing::warn!(
                job.id = self.spec.job_id,
                "cannot begin another round now, trying again: {error:#}"
            );
        }
        self.log_failed_starts(false);
        self.check_workers().await;
        self.speculate().await;
        self.publish_members().await;
        self.show_progress();
        self.write_progress().await;
        self.reports.flush().await;
        match self.store.cancel_requested().await {
            Ok(None) => {}
            Ok(Some(reason)) => return Ok(Some(Exit::Ends(End::Canceled(Some(reason))))),
            Err(error) => {
                tracing::warn!(error = %format!("{error:#}"), "cannot check for a request to cancel, trying again")
            }
        }
        if self.judge.has_no_mini_batch() && self.is_planning_visible().await {
            self.judge.mini_batch_exists();
        }
        Ok(self.judge.stalled(&self.tally, Timestamp::now()).map(Exit::Ends))
    }

    /// Logs that processes do not start. `all`: also what has just happened.
    pub(crate) fn log_failed_starts(&mut self, all: bool) {
        self.failed_starts
            .due(Instant::now(), all)
            .iter()
            .for_each(|line| tracing::warn!("{line}"));
    }

    /// Whether a mini-batch exists, even if none has ended yet.
    async fn is_planning_visible(&self) -> bool {
        self.tally.planned().is_some() || self.store.plan_chunk(0).await.is_ok()
    }

    /// Reads the commits of other reducers and updates the reports, unless another reducer has ended the job and writes
    /// them itself.
    pub(crate) async fn report(&mut self) -> anyhow::Result<()> {
        self.catch_up().await?;
        if self.tally.ended_as().is_none() {
            self.reports.tick(&self.tally, self.elapsed(), self.remaining()).await;
        }
        Ok(())
    }

    /// Stops. The job continues, unless another reducer has just ended it.
    pub(crate) async fn leave(&mut self) {
        if let Some(result) = self.ended_by_peer().await {
            self.ended_elsewhere(result).await;
            return;
        }
        self.show_progress();
        self.write_progress().await;
        self.reports.left(&self.tally, self.elapsed(), self.remaining()).await;
    }
}

/// Waits for another part of the process to fail the job.
async fn first_cause(failure: &mut watch::Receiver<Option<String>>) -> String {
    loop {
        if let Some(cause) = failure.borrow_and_update().clone() {
            return cause;
        }
        failure.changed().await.expect("the reducer holds a sender");
    }
}

/// Returns an interval whose first tick is after one period.
pub(crate) fn ticks(period: Duration) -> tokio::time::Interval {
    let mut ticks = interval_at(Instant::now() + period, period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}
