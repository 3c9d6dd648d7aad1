//! The order in which things happen: receive, commit, acknowledge; judge; and at the end `finish`.

mod finish;
mod receive;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use protocol::{
    JobResult, JobSpec, OutputAction, Progress, Record, ResultEvent, encode_record, milliseconds_since_epoch,
};
use queue::{Delivery, Queue, Receive};
use storage::JobStore;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::failures::one_line;
use crate::ledger::{Batch, Ledger, SEGMENT_BYTES_MAX, Superseded};
use crate::reports::Reports;
use crate::tally::Effect;
use crate::thresholds::{self, Elapsed, Limits, describe};
use crate::{CrashPoint, Options, Tally};

/// Messages of one receive. Workers put many outcomes into a message, so this bounds memory more than it costs speed.
const MESSAGES_MAX: usize = 64;
/// Receives that may wait while a segment is committed.
const RECEIVES_AHEAD_MAX: usize = 2;
/// Segments are committed no more often than this: 40 objects a second at most.
const COMMIT_INTERVAL_MIN: Duration = Duration::from_millis(25);
/// How long a receive waits for the first message.
const RECEIVE_WAIT: Duration = Duration::from_secs(1);

/// Commits the results of one job, and ends it.
#[derive(Debug)]
pub struct Reducer {
    store: JobStore,
    results: Arc<dyn Queue>,
    spec: JobSpec,
    options: Options,
    limits: Limits,
    ledger: Ledger,
    tally: Tally,
    reports: Reports,
    progress: watch::Sender<Progress>,
    failure: watch::Sender<Option<String>>,
    started: Instant,
    /// When a mini-batch was created, the first process started, or an attempt ended; `None`: no mini-batch is known to exist.
    progressed: Option<Instant>,
    in_init_since: Option<Instant>,
    committed: Option<Instant>,
}

/// Lets somebody else end the job: the plan cannot be made, an agent cannot be started.
#[derive(Clone, Debug)]
pub struct FailJob(watch::Sender<Option<String>>);

impl FailJob {
    /// The job ends as failed, with this cause, in one line. The first cause counts.
    pub fn fail(&self, cause: impl Into<String>) {
        self.0.send_if_modified(|known| {
            let is_first = known.is_none();
            known.get_or_insert_with(|| cause.into());
            is_first
        });
    }
}

/// How the work ended, before the output is written.
enum End {
    Complete,
    Failed(String),
    Canceled(Option<String>),
}

impl Reducer {
    /// Reads spec and ledger, and stands where the former reducer stood.
    pub async fn open(store: JobStore, results: Arc<dyn Queue>, options: Options) -> anyhow::Result<Self> {
        let spec = store.spec().await.context("read the job")?;
        let limits = Limits::new(&spec, options.process_count_per_node, options.init_failure_age);
        let reports = Reports::new(store.folder(), &options.writer);
        let started_at = milliseconds_since_epoch();
        let progress = Progress {
            at: started_at,
            started_at,
            planned: false,
            mini_batches: Default::default(),
            items: Default::default(),
            retries: 0,
            processes: 0,
            waiting: vec![],
        };
        let mut reducer = Self {
            ledger: Ledger::new(store.clone()),
            store,
            results,
            spec,
            options,
            limits,
            tally: Tally::default(),
            reports,
            progress: watch::Sender::new(progress),
            failure: watch::Sender::new(None),
            started: Instant::now(),
            progressed: None,
            in_init_since: None,
            committed: None,
        };
        while let Some(records) = reducer.ledger.read_next().await? {
            reducer.absorb(records, false);
        }
        if !reducer.options.nodes_outlive_reducer {
            reducer.tally.begin_session();
        }
        // The limit on standing still begins anew with the job.
        reducer.progressed = reducer.progressed.map(|_| reducer.started);
        reducer.reports.started(&reducer.spec.job_id, &reducer.tally);
        reducer.show_progress();
        Ok(reducer)
    }

    /// The job.
    pub fn spec(&self) -> &JobSpec {
        &self.spec
    }

    /// What the ledger says.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// How the job stands, for a progress bar: changes with every commit.
    pub fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    /// A handle by which others end the job as failed.
    pub fn fail_job(&self) -> FailJob {
        FailJob(self.failure.clone())
    }

    /// Commits what the result queue holds now, without waiting. Returns the number of messages.
    pub async fn drain(&mut self) -> anyhow::Result<usize> {
        let mut messages = 0;
        loop {
            let deliveries = self.results.receive(self.request(Duration::ZERO)).await.context("receive results")?;
            if deliveries.is_empty() {
                return Ok(messages);
            }
            messages += deliveries.len();
            self.commit(deliveries).await?;
        }
    }

    /// Opens an ended job again: its failed mini-batches are pending, with all their tries; `result.json` and a
    /// request to cancel are removed.
    pub async fn reopen(&mut self) -> anyhow::Result<()> {
        let mut body = Vec::new();
        encode_record(&ResultEvent::Reopened { at: milliseconds_since_epoch() }, b"", &mut body);
        let mut batch = Batch::default();
        batch.add(Bytes::from(body));
        self.append(batch).await?;
        self.store.reopen().await.context("open the job again")?;
        Ok(())
    }

    /// Runs until the job ends, and writes `result.json`. An error means that the job has not ended: another reducer
    /// may finish it, or already does ([`Superseded`]).
    ///
    /// When `cancel` is cancelled, what the queue holds at that moment is still committed; so whoever cancels lets
    /// workers announce what they have first.
    pub async fn run(mut self, cancel: CancellationToken) -> anyhow::Result<JobResult> {
        if let Some(result) = self.store.result().await? {
            self.tidy(result.state).await;
            return Ok(result);
        }
        let end = match self.work(&cancel).await {
            Ok(end) => end,
            Err(error) if error.is::<Superseded>() => return Err(error),
            Err(error) => End::Failed(format!("{error:#}")),
        };
        self.finish(end).await
    }

    async fn work(&mut self, cancel: &CancellationToken) -> anyhow::Result<End> {
        let (sender, mut incoming) = mpsc::channel(RECEIVES_AHEAD_MAX);
        let request = self.request(RECEIVE_WAIT);
        let receiver =
            AbortOnDropHandle::new(tokio::spawn(receive::receive_all(self.results.clone(), request, sender)));
        let mut failure = self.failure.subscribe();
        let mut progress = ticks(self.options.progress_interval);
        let mut report = ticks(self.options.report_interval);
        let end = loop {
            if let Some(end) = self.verdict(false) {
                break end;
            }
            tokio::select! {
                biased;
                () = cancel.cancelled() => break End::Canceled(None),
                cause = first_cause(&mut failure) => break End::Failed(cause),
                _ = progress.tick() => {
                    if let Some(end) = self.look_around().await {
                        break end;
                    }
                }
                _ = report.tick() => {
                    self.reports.tick(&self.tally, self.started.elapsed());
                    if let Some(end) = self.verdict(true) {
                        break end;
                    }
                }
                received = incoming.recv() => {
                    let deliveries = received.context("receiving results stopped")??;
                    self.commit_with_waiting(deliveries, &mut incoming).await?;
                }
            }
        };
        drop(receiver);
        incoming.close();
        let mut left = Vec::new();
        while let Some(Ok(deliveries)) = incoming.recv().await {
            left.extend(deliveries);
        }
        if matches!(end, End::Canceled(_)) {
            self.commit(left).await?;
            self.drain().await?;
            return Ok(if self.tally.is_complete() { self.verdict(false).unwrap_or(end) } else { end });
        }
        // They tell nothing that matters now, but if the job is opened again they do.
        let receipts: Vec<_> = left.into_iter().map(|delivery| delivery.receipt).collect();
        if let Err(error) = self.results.release(&receipts).await {
            tracing::debug!(%error, "received results come back by themselves");
        }
        Ok(end)
    }

    fn request(&self, wait: Duration) -> Receive {
        Receive { messages_max: MESSAGES_MAX, visibility: self.options.visibility, wait }
    }

    /// Commits what was received, and with it what came while the former segment was committed. In a job of many quick
    /// mini-batches a short wait makes one segment of what would have been many.
    async fn commit_with_waiting(
        &mut self,
        mut deliveries: Vec<Delivery>,
        incoming: &mut mpsc::Receiver<anyhow::Result<Vec<Delivery>>>,
    ) -> anyhow::Result<()> {
        let due = self.committed.map_or_else(Instant::now, |committed| committed + COMMIT_INTERVAL_MIN);
        let mut bytes: usize = deliveries.iter().map(|delivery| delivery.body.len()).sum();
        while bytes < SEGMENT_BYTES_MAX
            && let Ok(Some(more)) = timeout_at(due, incoming.recv()).await
        {
            let more = more?;
            bytes += more.iter().map(|delivery| delivery.body.len()).sum::<usize>();
            deliveries.extend(more);
        }
        self.commit(deliveries).await?;
        self.committed = Some(Instant::now());
        Ok(())
    }

    /// Commits messages in segments of bounded size, and only then acknowledges them.
    async fn commit(&mut self, deliveries: Vec<Delivery>) -> anyhow::Result<()> {
        let mut deliveries = deliveries.into_iter().peekable();
        while deliveries.peek().is_some() {
            let mut batch = Batch::default();
            let mut receipts = Vec::new();
            while !batch.is_full()
                && let Some(delivery) = deliveries.next()
            {
                receipts.push(delivery.receipt);
                if let Some(unreadable) = batch.add(delivery.body) {
                    self.reports.unreadable(&unreadable);
                }
            }
            self.append(batch).await?;
            // If this fails they come again, and count for nothing.
            if let Err(error) = self.results.acknowledge(&receipts).await {
                tracing::warn!(%error, "committed results could not be acknowledged and will come again");
            }
            (self.options.crash)(CrashPoint::AfterAcknowledge);
        }
        self.show_progress();
        Ok(())
    }

    async fn append(&mut self, batch: Batch) -> anyhow::Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        (self.options.crash)(CrashPoint::BeforeSegmentCommit);
        let records = self.ledger.commit(batch).await?;
        (self.options.crash)(CrashPoint::AfterSegmentCommit);
        self.absorb(records, true);
        Ok(())
    }

    /// Folds the records of the latest segment into everything that follows from them.
    fn absorb(&mut self, records: Vec<Record>, is_new: bool) {
        let segment = self.ledger.segments() - 1;
        let (now, elapsed) = (Instant::now(), self.started.elapsed());
        for record in records {
            let was_deserted = self.tally.fleet().processes_per_node_seen() == 0;
            let effect = self.tally.apply(&record.event);
            if effect == Effect::Nothing {
                continue;
            }
            if was_deserted && self.tally.fleet().processes_per_node_seen() > 0 {
                // Until now nobody was there to make progress.
                self.progressed = self.progressed.map(|_| now);
            }
            if let ResultEvent::Attempt(attempt) = &record.event {
                self.progressed = Some(now);
                if effect == Effect::Won {
                    self.ledger.index.place(attempt, segment, record.rows_offset, record.rows.len());
                }
            }
            if is_new {
                announce(&record.event);
            }
            self.reports.event(&record.event, is_new, elapsed);
        }
        match (self.tally.fleet().is_in_init(), self.in_init_since) {
            (true, None) => self.in_init_since = Some(Instant::now()),
            (false, Some(_)) => self.in_init_since = None,
            _ => {}
        }
    }

    fn verdict(&self, polled: bool) -> Option<End> {
        if let Some(cause) = self.tally.plan_failure() {
            return Some(End::Failed(cause.to_owned()));
        }
        let polled = polled && !self.tally.is_complete();
        if let Some(cause) = thresholds::exceeded(&self.tally, &self.spec.thresholds, polled) {
            return Some(End::Failed(cause));
        }
        if self.tally.is_complete() {
            let rows_wanted = self.spec.output.action == OutputAction::AppendRow;
            if rows_wanted && let Some(cause) = thresholds::nothing_succeeded(&self.tally) {
                return Some(End::Failed(cause));
            }
            return Some(End::Complete);
        }
        thresholds::init_failure(self.tally.fleet(), &self.limits, &self.elapsed()).map(End::Failed)
    }

    fn elapsed(&self) -> Elapsed {
        Elapsed {
            since_start: self.started.elapsed(),
            since_progress: self.progressed.map(|progressed| progressed.elapsed()),
            in_init: self.in_init_since.map(|since| since.elapsed()),
        }
    }

    /// What has to be done from time to time.
    async fn look_around(&mut self) -> Option<End> {
        self.show_progress();
        self.write_progress().await;
        self.reports.flush();
        match self.store.cancel_requested().await {
            Ok(None) => {}
            Ok(Some(reason)) => return Some(End::Canceled(Some(reason))),
            Err(error) => tracing::warn!(%error, "cannot look for a request to cancel, trying again"),
        }
        if self.progressed.is_none() && self.is_planning_visible().await {
            self.progressed = Some(Instant::now());
        }
        thresholds::stalled(&self.tally, &self.limits, &self.elapsed()).map(End::Failed)
    }

    /// Whether a mini-batch exists, although none has ended yet.
    async fn is_planning_visible(&self) -> bool {
        self.tally.planned().is_some() || self.store.plan_chunk(0).await.is_ok()
    }

    fn show_progress(&self) {
        self.progress.send_modify(|progress| {
            progress.at = milliseconds_since_epoch();
            progress.planned = self.tally.planned().is_some();
            progress.mini_batches = self.tally.mini_batches();
            progress.items = self.tally.items();
            progress.retries = self.tally.retries();
            progress.processes = self.tally.fleet().processes_up() as u64;
            progress.waiting = self.tally.fleet().waiting().cloned().collect();
        });
    }

    async fn write_progress(&self) {
        let progress = self.progress.borrow().clone();
        if let Err(error) = self.store.put_progress(&progress).await {
            tracing::warn!(%error, "progress cannot be written, the job goes on without it");
        }
    }
}

/// Waits for somebody to fail the job.
async fn first_cause(failure: &mut watch::Receiver<Option<String>>) -> String {
    loop {
        if let Some(cause) = failure.borrow_and_update().clone() {
            return cause;
        }
        failure.changed().await.expect("the reducer holds a sender");
    }
}

/// Tells whoever watches this process what the user should know at once.
fn announce(event: &ResultEvent) {
    match event {
        ResultEvent::Waiting(waiting) => tracing::warn!("waiting for {}", describe(waiting)),
        ResultEvent::InitFailed { node, process, error } => {
            let (category, message, log) = (&error.category, one_line(&error.message), &error.log);
            tracing::warn!(node, process, "init() failed: {category}: {message}; open logs/{log}");
        }
        ResultEvent::NodeStopped { node, cause: Some(cause) } => tracing::warn!(node, "the node stopped: {cause}"),
        _ => {}
    }
}

/// The first tick comes after one period.
fn ticks(period: Duration) -> tokio::time::Interval {
    let mut ticks = interval_at(Instant::now() + period, period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

#[cfg(test)]
mod tests;
