//! The order in which things happen: receive, commit, acknowledge; judge; and at the end `finish`.

mod finish;
mod receive;

use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail, ensure};
use protocol::{
    Attempt, AttemptStatus, Counts, JobResult, JobSpec, JobState, OutputAction, Progress, ResultEvent,
    milliseconds_since_epoch,
};
use queue::{Delivery, Queue, Receive};
use rustc_hash::{FxBuildHasher, FxHashSet};
use storage::JobStore;
use telemetry::metrics;
use telemetry::metrics::OUTCOME;
use telemetry::trace::{self, Step, StepKind};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

use crate::batch::{Batch, Event, Shown, Unreadable};
use crate::believed::Published;
use crate::failures::one_line;
use crate::ledger::{Committed, Ledger, Place, SEGMENT_BYTES_MAX};
use crate::reports::Reports;
use crate::service::dead_letter;
use crate::tally::Effect;
use crate::thresholds::{self, Elapsed, Limits, describe};
use crate::{CrashPoint, Options, Tally};
use receive::{Reading, Received};

/// Messages of one receive. Workers put many outcomes into a message, so this bounds memory more than it costs speed.
const MESSAGES_MAX: usize = 64;
/// Enough for a segment. What is received at a time is less than the rest of [`SEGMENT_BYTES_MAX`], but for large messages.
const SEGMENT_BYTES_MIN: usize = SEGMENT_BYTES_MAX / 2;
/// Receives that may wait while a segment is committed.
const RECEIVES_AHEAD_MAX: usize = 2;
/// Segments that are read at a time.
const SEGMENTS_AHEAD_MAX: usize = 16;
/// Progress is written so often even where nothing changes, so that people see that somebody is there.
const SIGN_OF_LIFE_INTERVAL: Duration = Duration::from_secs(30);

/// Commits the results of one job, and ends it.
#[derive(Debug)]
pub struct Reducer {
    store: JobStore,
    results: Arc<dyn Queue>,
    spec: JobSpec,
    options: Options,
    limits: Limits,
    ledger: Ledger,
    published: Published,
    tally: Tally,
    reports: Reports,
    progress: watch::Sender<Progress>,
    failure: watch::Sender<Option<String>>,
    all_ended: CancellationToken,
    started: Instant,
    /// When a mini-batch was created, the first process started, or an attempt ended; `None`: no mini-batch is known to exist.
    progressed: Option<Instant>,
    in_init_since: Option<Instant>,
    committed: Option<Instant>,
    /// What was committed last is being acknowledged.
    acknowledging: Option<AbortOnDropHandle<()>>,
    /// Attempts that came again and were left out, and that the ledger does not mention yet.
    duplicates: u64,
    progress_written: Option<(Progress, Instant)>,
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

/// How a job ends, before the output is written.
enum End {
    Complete,
    Failed(String),
    Canceled(Option<String>),
}

impl End {
    /// As the ledger says it.
    fn committed(state: JobState, cause: Option<&str>) -> Self {
        match (state, cause) {
            (JobState::Completed, _) => Self::Complete,
            (JobState::Canceled, cause) => Self::Canceled(cause.map(str::to_owned)),
            (_, cause) => Self::Failed(cause.unwrap_or_default().to_owned()),
        }
    }

    /// For the ledger.
    fn event(&self) -> ResultEvent {
        let (state, cause) = match self {
            Self::Complete => (JobState::Completed, None),
            Self::Failed(cause) => (JobState::Failed, Some(cause.clone())),
            Self::Canceled(cause) => (JobState::Canceled, cause.clone()),
        };
        ResultEvent::Ended { state, cause }
    }
}

/// What became of a batch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Appended {
    /// It is in the ledger.
    Committed,
    /// All of it was there already.
    Known,
    /// Another reducer has ended the job meanwhile, so it was not committed.
    TooLate,
}

/// Why a reducer has no more work.
enum Rest {
    /// The job ends.
    Ends(End),
    /// It was told to stop.
    Stopped,
    /// Another reducer has written how the job ended.
    EndedElsewhere(Box<JobResult>),
}

impl Reducer {
    /// Reads spec and ledger, and stands where the former reducer stood.
    pub async fn open(store: JobStore, results: Arc<dyn Queue>, options: Options) -> anyhow::Result<Self> {
        let spec = store.spec().await.context("read the job")?;
        let limits = Limits::new(&spec, &options);
        let reports = Reports::new(&store, &options).await;
        let progress = Self::no_progress();
        let ledger = Ledger::new(store.clone(), &spec.job_id, options.store_patience);
        let mut reducer = Self {
            ledger: if options.shared { ledger } else { ledger.mending() },
            store,
            results,
            spec,
            options,
            limits,
            published: Published::default(),
            tally: Tally::default(),
            reports,
            progress: watch::Sender::new(progress),
            failure: watch::Sender::new(None),
            all_ended: CancellationToken::new(),
            started: Instant::now(),
            progressed: None,
            in_init_since: None,
            committed: None,
            acknowledging: None,
            duplicates: 0,
            progress_written: None,
        };
        reducer.catch_up(false).await?;
        if !reducer.options.shared {
            reducer.tally.begin_session();
        }
        // The limit on standing still begins anew with the job.
        reducer.progressed = reducer.progressed.map(|_| reducer.started);
        reducer.reports.started(&reducer.spec.job_id, &reducer.tally).await;
        reducer.show_progress();
        Ok(reducer)
    }

    /// Of a job of which nothing is known.
    pub(crate) fn no_progress() -> Progress {
        let now = milliseconds_since_epoch();
        Progress {
            at: now,
            started_at: now,
            planned: false,
            mini_batches: Default::default(),
            items: Default::default(),
            retries: 0,
            processes: 0,
            nodes: 0,
            trouble: None,
            waiting: vec![],
        }
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

    /// Cancelled once this reducer has found that every mini-batch has ended, and before it writes the final file: no
    /// process has anything to do any more. A job that is resumed may have been there before; that does not count.
    pub fn all_ended(&self) -> CancellationToken {
        self.all_ended.clone()
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
                self.acknowledged().await;
                return Ok(messages);
            }
            messages += deliveries.len();
            self.commit(deliveries.into_iter().map(Received::read).collect()).await?;
        }
    }

    /// Segments of the ledger that were found empty or cut short, because the machine had stopped, and were mended: what
    /// only they held is not known any more.
    pub fn segments_mended(&self) -> u32 {
        self.ledger.mended
    }

    /// Takes back the successes whose parts are gone or not whole: a machine stopped before they were on its disk, or the
    /// job has completed once. Their mini-batches are pending again, and are returned.
    pub async fn forget_lost_rows(&mut self) -> anyhow::Result<Vec<u64>> {
        let index = &self.ledger.index;
        let parts = index.places().filter_map(|(mini_batch, place)| match place {
            Place::Part(position) => Some((mini_batch, index.part(position))),
            Place::None | Place::Inline { .. } => None,
        });
        let parts = parts.map(|(mini_batch, part)| (mini_batch, &*part.name, part.bytes));
        let lost = self.store.lost_parts(parts).await.context("look for the rows of what is committed")?;
        if lost.is_empty()
            || self.append_event(&ResultEvent::RowsLost { mini_batches: lost.clone() }).await? == Appended::TooLate
        {
            return Ok(Vec::new());
        }
        Ok(lost)
    }

    /// Opens an ended job again: its failed mini-batches are pending, with all their tries; `result.json` and a
    /// request to cancel are removed.
    pub async fn reopen(&mut self) -> anyhow::Result<()> {
        self.append_event(&ResultEvent::Reopened { at: milliseconds_since_epoch() }).await?;
        self.store.reopen().await.context("open the job again")?;
        Ok(())
    }

    /// Runs until the job ends, and writes `result.json`. An error means that the job has not ended: another reducer
    /// may finish it.
    ///
    /// When `cancel` is cancelled, what the queue holds at that moment is still committed; so whoever cancels lets
    /// workers announce what they have first.
    pub async fn run(self, cancel: CancellationToken) -> anyhow::Result<JobResult> {
        let result = self.run_until(&cancel, &CancellationToken::new()).await?;
        result.context("a reducer stopped, although nobody asked it to")
    }

    /// As [`run`](Self::run), for a job that others serve too. When `stop` is cancelled, what was received is
    /// committed, the rest is given back, a final file that takes long is left to others, and `None` says that the job
    /// goes on without this reducer.
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
            let end = match self.work(cancel, stop).await {
                Ok(Rest::Ends(end)) => end,
                Ok(Rest::EndedElsewhere(result)) => return Ok(Some(self.ended_elsewhere(*result).await)),
                Ok(Rest::Stopped) => {
                    self.leave().await;
                    return Ok(None);
                }
                Err(error) if self.options.shared => return Err(error),
                Err(error) => End::Failed(format!("{error:#}")),
            };
            if matches!(end, End::Complete) {
                self.all_ended.cancel();
            }
            if let Some(result) = self.finish(end, stop).await? {
                return Ok(Some(result));
            }
            if stop.is_cancelled() {
                self.leave().await;
                return Ok(None);
            }
        }
    }

    async fn work(&mut self, cancel: &CancellationToken, stop: &CancellationToken) -> anyhow::Result<Rest> {
        let (sender, mut incoming) = mpsc::channel(RECEIVES_AHEAD_MAX);
        let request = self.request(self.options.receive_wait);
        // Where each call has a price, messages get the time to gather.
        let pause = if self.options.shared { self.options.commit_interval } else { Duration::ZERO };
        let receiving = receive::receive_all(self.results.clone(), request, pause, sender).in_current_span();
        let receiver = AbortOnDropHandle::new(tokio::spawn(receiving));
        let mut failure = self.failure.subscribe();
        let mut progress = ticks(self.options.progress_interval);
        let mut report = ticks(self.options.report_interval);
        let rest = loop {
            if let Some(end) = self.verdict(false) {
                break Rest::Ends(end);
            }
            tokio::select! {
                biased;
                () = cancel.cancelled() => break Rest::Ends(End::Canceled(None)),
                () = stop.cancelled() => break Rest::Stopped,
                cause = first_cause(&mut failure) => break Rest::Ends(End::Failed(cause)),
                _ = progress.tick() => {
                    if let Some(rest) = self.look_around().await? {
                        break rest;
                    }
                }
                _ = report.tick() => {
                    self.report().await?;
                    if let Some(end) = self.verdict(true) {
                        break Rest::Ends(end);
                    }
                }
                received = incoming.recv() => {
                    let messages = read(received.context("receiving results stopped")??).await?;
                    self.commit_with_waiting(messages, &mut incoming).await?;
                }
            }
        };
        drop(receiver);
        incoming.close();
        let mut left = Vec::new();
        while let Some(Ok(reading)) = incoming.recv().await {
            left.extend(read(reading).await?);
        }
        match rest {
            Rest::Ends(End::Canceled(reason)) if self.tally.ended_as().is_none() => {
                self.commit(left).await?;
                self.drain().await?;
                let complete = if self.tally.is_complete() { self.verdict(false) } else { None };
                return Ok(Rest::Ends(complete.unwrap_or(End::Canceled(reason))));
            }
            Rest::Stopped => self.commit(left).await?,
            // They tell nothing that matters now, but if the job is opened again they do.
            Rest::Ends(_) | Rest::EndedElsewhere(_) => {
                self.release(left.into_iter().map(|message| message.delivery).collect()).await
            }
        }
        self.acknowledged().await;
        Ok(rest)
    }

    async fn release(&self, deliveries: Vec<Delivery>) {
        let receipts: Vec<_> = deliveries.into_iter().map(|delivery| delivery.receipt).collect();
        if let Err(error) = self.results.release(&receipts).await {
            tracing::debug!(%error, "received results come back by themselves");
        }
    }

    fn request(&self, wait: Duration) -> Receive {
        Receive { messages_max: MESSAGES_MAX, visibility: self.options.visibility, wait }
    }

    /// Commits what was received, and with it what came while the former segment was committed. In a job of many quick
    /// mini-batches a short wait makes one segment of what would have been many; when all have ended, nothing more comes.
    async fn commit_with_waiting(
        &mut self,
        mut messages: Vec<Received>,
        incoming: &mut mpsc::Receiver<anyhow::Result<Reading>>,
    ) -> anyhow::Result<()> {
        let due = self.committed.map_or_else(Instant::now, |committed| committed + self.options.commit_interval);
        let bytes_of =
            |messages: &[Received]| messages.iter().map(|message| message.delivery.body.len()).sum::<usize>();
        let ended_in = |messages: &[Received]| messages.iter().map(|message| message.ended).sum::<u64>();
        let pending =
            self.tally.planned().map_or(u64::MAX, |planned| planned.mini_batches.saturating_sub(self.tally.ended()));
        let (mut bytes, mut ended) = (bytes_of(&messages), ended_in(&messages));
        while bytes < SEGMENT_BYTES_MIN
            && ended < pending
            && let Ok(Some(more)) = timeout_at(due, incoming.recv()).await
        {
            let more = read(more?).await?;
            bytes += bytes_of(&more);
            ended += ended_in(&more);
            messages.extend(more);
        }
        self.commit(messages).await?;
        self.committed = Some(Instant::now());
        Ok(())
    }

    /// Commits messages in segments of bounded size, and only then acknowledges them.
    async fn commit(&mut self, messages: Vec<Received>) -> anyhow::Result<()> {
        let mut messages = messages.into_iter().peekable();
        while messages.peek().is_some() {
            let mut batch = Batch::default();
            let mut held = Vec::new();
            while batch.bytes() < SEGMENT_BYTES_MAX
                && let Some(Received { delivery, mut records, mut unreadable, .. }) = messages.next()
            {
                if self.options.shared {
                    let refused = self.published.take_refused(&mut records, &self.store).await;
                    unreadable.extend(refused.context("compare results with the plan")?);
                }
                batch.append(records);
                // One letter holds the whole message.
                if let Some(first) = unreadable.first() {
                    self.put_aside(&delivery, first).await?;
                }
                held.push(delivery);
            }
            if self.append(batch).await? == Appended::TooLate {
                held.extend(messages.map(|message| message.delivery));
                self.release(held).await;
                break;
            }
            self.acknowledge(held).await;
        }
        self.show_progress();
        Ok(())
    }

    /// Begins to acknowledge what is committed, beside the next commit.
    async fn acknowledge(&mut self, committed: Vec<Delivery>) {
        self.acknowledged().await;
        let (results, crash) = (self.results.clone(), self.options.crash.clone());
        let acknowledging = async move {
            let receipts: Vec<_> = committed.into_iter().map(|delivery| delivery.receipt).collect();
            // If this fails they come again, and count for nothing.
            if let Err(error) = results.acknowledge(&receipts).await {
                tracing::warn!(%error, "committed results could not be acknowledged and will come again");
            }
            crash(CrashPoint::AfterAcknowledge);
        };
        self.acknowledging = Some(AbortOnDropHandle::new(tokio::spawn(acknowledging.in_current_span())));
    }

    /// Waits until what was committed is acknowledged.
    async fn acknowledged(&mut self) {
        if let Some(acknowledging) = self.acknowledging.take()
            && let Err(error) = acknowledging.await
            && let Ok(panic) = error.try_into_panic()
        {
            resume_unwind(panic);
        }
    }

    /// Keeps a message that cannot be read to its end, for people.
    async fn put_aside(&mut self, delivery: &Delivery, unreadable: &Unreadable) -> anyhow::Result<()> {
        self.reports.unreadable(unreadable).await;
        if let Some(dead_letters) = &self.options.dead_letters {
            let letter = dead_letter(&unreadable.reason, &self.options.writer, &delivery.body, &**dead_letters);
            dead_letters.send(vec![letter]).await.context("move a message that cannot be read to the dead letters")?;
        }
        Ok(())
    }

    /// Commits what is news.
    async fn append(&mut self, mut batch: Batch) -> anyhow::Result<Appended> {
        let has_ended = self.tally.ended_as().is_some();
        loop {
            let mut told = Told::with_capacity(batch.len());
            let known = batch.retain(|event| !self.tally.is_known(event) && !told.is_repeated(event));
            self.duplicates += known;
            metrics().duplicates_dropped.inc_by(known);
            if batch.is_empty() {
                return Ok(Appended::Known);
            }
            if self.duplicates > 0 {
                batch.add_event(&ResultEvent::Duplicates { count: self.duplicates });
            }
            (self.options.crash)(CrashPoint::BeforeSegmentCommit);
            let began = SystemTime::now();
            match self.ledger.commit(batch).await? {
                Committed::Ours(batch) => {
                    (self.options.crash)(CrashPoint::AfterSegmentCommit);
                    self.duplicates = 0;
                    let before = self.tally.mini_batches();
                    self.trace(&batch, began);
                    self.absorb(batch, true).await;
                    tell_ended(before, self.tally.mini_batches());
                    return Ok(Appended::Committed);
                }
                Committed::Lost(lost) => {
                    let segments = self.ledger.segments();
                    self.catch_up(true).await?;
                    if !has_ended && self.tally.ended_as().is_some() {
                        return Ok(Appended::TooLate);
                    }
                    let job = &self.spec.job_id;
                    ensure!(self.ledger.segments() > segments, "segment {segments} of job {job} is there but not read");
                    batch = lost;
                    batch.retain(|event| !matches!(event.other(), Some(ResultEvent::Duplicates { .. })));
                }
            }
        }
    }

    /// The last step of each attempt that was committed.
    fn trace(&self, batch: &Batch, began: SystemTime) {
        let took = began.elapsed().unwrap_or_default();
        for event in batch.events() {
            let Some(ResultEvent::Attempt(attempt)) = event.other() else { continue };
            trace::go_on(attempt.traceparent, || Step {
                name: "process results",
                kind: StepKind::Consumer,
                parent: None,
                began,
                took,
                fields: vec![
                    ("job.id", self.spec.job_id.as_str().into()),
                    ("mini_batch.id", attempt.mini_batch.into()),
                    ("attempt.number", u64::from(attempt.try_number).into()),
                    ("node.id", self.options.writer.as_str().into()),
                ],
                error: None,
            });
        }
    }

    async fn append_event(&mut self, event: &ResultEvent) -> anyhow::Result<Appended> {
        let mut batch = Batch::default();
        batch.add_event(event);
        self.append(batch).await
    }

    /// Reads what others have committed. Returns whether there was anything.
    async fn catch_up(&mut self, is_new: bool) -> anyhow::Result<bool> {
        let mut ahead = 1;
        while let Some(segment) = self.ledger.read_next(ahead).await? {
            if self.options.shared
                && let Some(reason) = self.published.contradicted(&segment, &self.store).await?
            {
                bail!("the ledger and the plan of job {} contradict each other: {reason}", self.spec.job_id);
            }
            self.absorb(segment, is_new).await;
            ahead = (2 * ahead).min(SEGMENTS_AHEAD_MAX);
        }
        Ok(ahead > 1)
    }

    /// Folds the latest segment into everything that follows from it.
    async fn absorb(&mut self, mut segment: Batch, is_new: bool) {
        let now = Instant::now();
        segment.retain_in_segment(|record, rows| {
            let changes = self.take_in(record, rows, now);
            if changes
                && is_new
                && let Some(event) = record.event.other()
            {
                announce(event);
            }
            changes
        });
        self.reports.events(segment, is_new, self.started.elapsed()).await;
        match (self.tally.fleet().is_in_init(), self.in_init_since) {
            (true, None) => self.in_init_since = Some(Instant::now()),
            (false, Some(_)) => self.in_init_since = None,
            _ => {}
        }
    }

    /// Folds one record of the latest segment into the tally. `rows`: where in the segment its rows are. Returns whether it changes anything.
    fn take_in(&mut self, record: Shown<'_>, rows: Range<usize>, now: Instant) -> bool {
        let was_deserted = self.limits.is_deserted(self.tally.fleet());
        let effect = match record.event {
            Event::Success(success) => self.tally.apply_success(success, record.process(success)),
            Event::Other(event) => self.tally.apply(event),
        };
        if effect == Effect::Nothing {
            return false;
        }
        if was_deserted && !self.limits.is_deserted(self.tally.fleet()) {
            // Until now nobody was there to make progress.
            self.progressed = self.progressed.map(|_| now);
        }
        if record.event.attempted().is_some() {
            self.progressed = Some(now);
        }
        let segment = self.ledger.segments() - 1;
        let index = &mut self.ledger.index;
        match record.event {
            Event::Success(success) => {
                let columns = record.columns(success);
                index.place(success.mini_batch, &success.rows, columns, segment, rows);
            }
            Event::Other(event) => match &**event {
                ResultEvent::Attempt(attempt) if effect == Effect::Won => {
                    let columns = attempt.columns.as_ref();
                    index.place(attempt.mini_batch, &attempt.rows, columns, segment, rows);
                }
                ResultEvent::Planned(planned) => index.expect(planned.mini_batches),
                ResultEvent::RowsLost { mini_batches } => {
                    mini_batches.iter().for_each(|&mini_batch| index.remove(mini_batch));
                }
                _ => {}
            },
        }
        true
    }

    fn verdict(&self, polled: bool) -> Option<End> {
        if let Some((state, cause)) = self.tally.ended_as() {
            return Some(End::committed(state, cause));
        }
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
    async fn look_around(&mut self) -> anyhow::Result<Option<Rest>> {
        if self.options.shared
            && let Some(result) = self.look_for_others().await?
        {
            return Ok(Some(Rest::EndedElsewhere(Box::new(result))));
        }
        self.show_progress();
        self.write_progress().await;
        self.reports.flush().await;
        match self.store.cancel_requested().await {
            Ok(None) => {}
            Ok(Some(reason)) => return Ok(Some(Rest::Ends(End::Canceled(Some(reason))))),
            Err(error) => tracing::warn!(%error, "cannot look for a request to cancel, trying again"),
        }
        if self.progressed.is_none() && self.is_planning_visible().await {
            self.progressed = Some(Instant::now());
        }
        let cause = thresholds::stalled(&self.tally, &self.limits, &self.elapsed());
        Ok(cause.map(|cause| Rest::Ends(End::Failed(cause))))
    }

    /// Brings what people read up to date. Of a job that others serve too only after a look at what they have committed:
    /// where one of them has decided how the job ends, the reports are its own.
    async fn report(&mut self) -> anyhow::Result<()> {
        if self.options.shared {
            self.catch_up(true).await?;
        }
        if self.tally.ended_as().is_none() {
            self.reports.tick(&self.tally, self.started.elapsed()).await;
        }
        Ok(())
    }

    /// What other reducers have done while this one had nothing to do: committed results, or ended the job.
    async fn look_for_others(&mut self) -> anyhow::Result<Option<JobResult>> {
        let is_quiet = self.committed.is_none_or(|committed| committed.elapsed() >= self.options.progress_interval);
        if !is_quiet || self.catch_up(true).await? {
            return Ok(None);
        }
        match self.store.result().await {
            Ok(result) => Ok(result),
            Err(error) => {
                tracing::warn!(%error, "cannot look whether the job has ended, trying again");
                Ok(None)
            }
        }
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
            progress.nodes = self.tally.fleet().nodes_seen() as u64;
            progress.waiting = self.tally.fleet().waiting().cloned().collect();
        });
    }

    /// In a store where every request has a price, only what has changed is written, and a sign of life.
    async fn write_progress(&mut self) {
        let progress = self.progress.borrow().clone();
        if self.options.shared
            && let Some((written, at)) = &self.progress_written
            && at.elapsed() < SIGN_OF_LIFE_INTERVAL
            && (Progress { at: progress.at, ..written.clone() }) == progress
        {
            return;
        }
        match self.store.put_progress(&progress).await {
            Ok(()) => self.progress_written = Some((progress, Instant::now())),
            Err(error) => tracing::warn!(%error, "progress cannot be written, the job goes on without it"),
        }
    }
}

/// Adds what a commit of this reducer has ended to its metrics.
fn tell_ended(before: Counts, now: Counts) {
    let metrics = metrics();
    for (outcome, before, now) in
        [("succeeded", before.succeeded, now.succeeded), ("failed", before.failed, now.failed)]
    {
        metrics.mini_batches.get_or_create(&[(OUTCOME, outcome)]).inc_by(now.saturating_sub(before));
    }
    metrics.progressed();
}

/// The attempts of a batch: a message may be delivered twice at a time.
struct Told {
    /// One success of a mini-batch is like another, but for the deliveries that were lost before.
    succeeded: FxHashSet<(u64, u32)>,
    failed: FxHashSet<(u64, u32, u32, AttemptStatus, bool, u64)>,
}

impl Told {
    fn with_capacity(attempts: usize) -> Self {
        Self { succeeded: FxHashSet::with_capacity_and_hasher(attempts, FxBuildHasher), failed: FxHashSet::default() }
    }

    /// Whether the same attempt was told before.
    fn is_repeated(&mut self, event: &Event) -> bool {
        let attempt = match event {
            Event::Success(success) => return !self.succeeded.insert((success.mini_batch, success.deliveries_lost)),
            Event::Other(event) => match &**event {
                ResultEvent::Attempt(attempt) => attempt,
                _ => return false,
            },
        };
        let Attempt { mini_batch, try_number, deliveries_lost, status, is_final, total, .. } = **attempt;
        match status {
            AttemptStatus::Succeeded => !self.succeeded.insert((mini_batch, deliveries_lost)),
            _ => !self.failed.insert((mini_batch, try_number, deliveries_lost, status, is_final, total)),
        }
    }
}

/// What another thread has read.
async fn read(reading: Reading) -> anyhow::Result<Vec<Received>> {
    reading.await.context("read results")
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
            tracing::warn!(
                node.id = node,
                process.id = process,
                "init() failed: {category}: {message}; open logs/{log}"
            );
        }
        ResultEvent::NodeStopped { node, cause: Some(cause) } => {
            tracing::warn!(node.id = node, "the node stopped: {cause}")
        }
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
#[cfg(test)]
mod together;
