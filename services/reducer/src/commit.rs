//! Commits received messages: appends them to the ledger, applies them to tally and reports, and only then acknowledges
//! them.
//!
//! A commit follows every 25 ms at most, on a target every 200, and more rarely as the ledger
//! grows, because a reducer that starts reads every segment.

use std::time::{Duration, SystemTime};

use anyhow::{Context, ensure};
use protocol::{Attempt, AttemptStatus, Counts, DeadLetter, ResultEvent};
use queue::{Delivery, Message};
use rustc_hash::{FxBuildHasher, FxHashSet};
use telemetry::metrics;
use telemetry::metrics::OUTCOME;
use telemetry::trace::{self, Step, StepKind};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

use crate::batch::{Batch, Event, PlaceInSegment, RecordView, Unreadable};
use crate::job_liveness::Timestamp;
use crate::judge::SegmentEffects;
use crate::ledger::{Committed, SEGMENT_BYTES_MAX};
use crate::receive::{Reading, Received, received};
use crate::tally::Effect;
use crate::tasks::joined;
use crate::{CrashPoint, Reducer, Tally};

/// Size from which a segment does not wait for more messages. Unless messages are large, one receive is smaller than
/// the rest of [`SEGMENT_BYTES_MAX`].
const SEGMENT_BYTES_MIN: usize = SEGMENT_BYTES_MAX / 2;
/// After each of this many segments, the time between two commits grows, up to this maximum: opening a job reads every
/// segment.
const SEGMENTS_UNTIL_RARER: u32 = 1000;
const COMMIT_INTERVAL_MAX: Duration = Duration::from_millis(500);
/// Segments that are read concurrently, and their size. A job of many days has hundreds of thousands of small ones, and
/// a request for a small one takes a store as long as one for a large one.
const SEGMENTS_AHEAD_MAX: usize = 64;
const SEGMENT_BYTES_AHEAD_MAX: usize = 16 * SEGMENT_BYTES_MAX;

/// The result of appending a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Appended {
    /// It is in the ledger.
    Committed,
    /// The ledger held all of it already.
    Known,
    /// It was not committed, because another reducer has ended the job, or mini-batches are pending again since it was
    /// received.
    TooLate,
}

impl Reducer {
    /// Commits messages together with those that arrive until the next commit is due. In a job of many quick
    /// mini-batches, a short wait makes one segment instead of many. Does not wait once every mini-batch has ended.
    pub(crate) async fn commit_with_waiting(
        &mut self,
        mut messages: Vec<Received>,
        incoming: &mut mpsc::Receiver<anyhow::Result<Reading>>,
    ) -> anyhow::Result<()> {
        let interval = commit_interval(self.options.commit_interval, self.ledger.segments());
        let due = self.committed.map_or_else(Instant::now, |committed| committed + interval);
        let bytes_of = |messages: &[Received]| {
            messages.iter().map(|message| message.delivery.body.len()).sum::<usize>()
        };
        let ended_in =
            |messages: &[Received]| messages.iter().map(|message| message.ended).sum::<u64>();
        let pending = self
            .tally
            .planned()
            .map_or(u64::MAX, |planned| planned.mini_batches.saturating_sub(self.tally.ended()));
        let (mut bytes, mut ended) = (bytes_of(&messages), ended_in(&messages));
        while bytes < SEGMENT_BYTES_MIN
            && ended < pending
            && let Ok(Some(more)) = timeout_at(due, incoming.recv()).await
        {
            let more = received(more?).await?;
            bytes += bytes_of(&more);
            ended += ended_in(&more);
            messages.extend(more);
        }
        self.commit(messages).await?;
        self.committed = Some(Instant::now());
        Ok(())
    }

    /// Commits messages in segments of bounded size, and only then acknowledges them.
    pub(crate) async fn commit(&mut self, messages: Vec<Received>) -> anyhow::Result<()> {
        let mut messages = messages.into_iter().peekable();
        while messages.peek().is_some() {
            let mut batch = Batch::default();
            let mut held = Vec::new();
            while batch.bytes() < SEGMENT_BYTES_MAX
                && let Some(Received { delivery, mut records, mut unreadable, .. }) =
                    messages.next()
            {
                unreadable.extend(
                    self.take_refused(&mut records)
                        .await
                        .context("compare results with the plan")?,
                );
                batch.append(records);
                // One dead letter holds the whole message. Without it, the queue delivers the message again, and its
                // readable records count once.
                let is_kept = match unreadable.first() {
                    Some(first) => self.keep_unreadable(&delivery, first).await,
                    None => true,
                };
                held.extend(is_kept.then_some(delivery));
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

    /// Starts to acknowledge committed messages, concurrently with the next commit.
    async fn acknowledge(&mut self, committed: Vec<Delivery>) {
        self.acknowledged().await;
        let (results, crash) = (self.results.clone(), self.options.crash.clone());
        let acknowledging = async move {
            let receipts: Vec<_> = committed.into_iter().map(|delivery| delivery.receipt).collect();
            // If this fails, the queue delivers them again and they do not count.
            if let Err(error) = results.acknowledge(&receipts).await {
                tracing::warn!(error = %format!("{error:#}"), "cannot acknowledge committed results, which the queue will deliver again");
            }
            crash(CrashPoint::AfterAcknowledge);
        };
        self.acknowledging =
            Some(AbortOnDropHandle::new(tokio::spawn(acknowledging.in_current_span())));
    }

    /// Waits until committed messages are acknowledged.
    pub(crate) async fn acknowledged(&mut self) {
        if let Some(acknowledging) = self.acknowledging.take() {
            let _ = joined(acknowledging.await);
        }
    }

    /// Keeps an unreadable message for people. Returns whether that succeeded.
    async fn keep_unreadable(&mut self, delivery: &Delivery, unreadable: &Unreadable) -> bool {
        self.reports.unreadable(unreadable).await;
        let Some(dead_letters) = &self.options.dead_letters else { return true };
        let bytes_max = dead_letters.limits().message_bytes_max;
        let (writer, job_id) = (&self.options.writer, &self.spec.job_id);
        let letter = DeadLetter::message(
            &unreadable.reason,
            writer,
            job_id,
            "results",
            &delivery.body,
            bytes_max,
        );
        let sent = dead_letters.send(vec![Message::new(letter)]).await;
        sent.inspect_err(|error| {
            tracing::warn!(
                job.id = self.spec.job_id,
                "cannot move an unreadable message to the dead letters; the queue redelivers it: {error:#}"
            );
        })
        .is_ok()
    }

    /// Commits the events that are new.
    pub(crate) async fn append(&mut self, mut batch: Batch) -> anyhow::Result<Appended> {
        let (has_ended, times_reverted) =
            (self.tally.ended_as().is_some(), self.tally.times_reverted());
        loop {
            let mut failed_copies = Vec::new();
            if self.spec.speculation {
                batch.retain(|event| match failed_copy(event) {
                    Some(attempt) => {
                        failed_copies.push(attempt.clone());
                        false
                    }
                    None => true,
                });
            }
            failed_copies.iter().for_each(|attempt| self.copy_failed(attempt));
            let known = retain_new(&mut batch, &self.tally);
            if known > 0 {
                self.duplicates += known;
                metrics().duplicates_dropped.inc_by(known);
                self.judge.attempt_ended();
            }
            if batch.is_empty() {
                // An outcome of a reopened job may equal one of its first run: only the end of the
                // ledger distinguishes them.
                self.catch_up().await?;
                let is_current = self.tally.times_reverted() == times_reverted;
                return Ok(if is_current { Appended::Known } else { Appended::TooLate });
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
                    self.apply_segment(batch, true).await;
                    count_ended(before, self.tally.mini_batches());
                    return Ok(Appended::Committed);
                }
                Committed::Lost(lost) => {
                    let segments = self.ledger.segments();
                    self.read_ledger(true).await?;
                    // An end that was decided before the job was reopened must not end it again.
                    let is_reverted = self.tally.times_reverted() != times_reverted;
                    if is_reverted || !has_ended && self.tally.ended_as().is_some() {
                        return Ok(Appended::TooLate);
                    }
                    let job = &self.spec.job_id;
                    ensure!(
                        self.ledger.segments() > segments,
                        "segment {segments} of job {job} is there but not read"
                    );
                    batch = lost;
                    batch.retain(|event| {
                        !matches!(event.other(), Some(ResultEvent::Duplicates { .. }))
                    });
                }
            }
        }
    }

    /// Records the last step in the trace of each committed attempt.
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

    pub(crate) async fn append_event(&mut self, event: &ResultEvent) -> anyhow::Result<Appended> {
        let mut batch = Batch::default();
        batch.add_event(event);
        self.append(batch).await
    }

    /// Reads the segments that this reducer does not know yet. `is_new`: other reducers have committed them since this
    /// one opened the job. Returns whether there were any.
    pub(crate) async fn read_ledger(&mut self, is_new: bool) -> anyhow::Result<bool> {
        let mut ahead = 1;
        while let Some(segment) = self.ledger.read_next(ahead).await? {
            self.compare_with_plan(&segment).await?;
            ahead = (2 * ahead).min(ahead_max(segment.bytes()));
            self.apply_segment(segment, is_new).await;
        }
        Ok(ahead > 1)
    }

    /// Applies the latest segment to tally, index and reports.
    async fn apply_segment(&mut self, mut segment: Batch, is_new: bool) {
        let (mut news, now) = (SegmentEffects::default(), Timestamp::now());
        segment.retain_in_segment(|record, place| {
            let changes = self.apply_record(record, place, &mut news);
            if changes
                && is_new
                && let Some(event) = record.event.other()
            {
                if let ResultEvent::Waiting(waiting) = event {
                    tracing::warn!("waiting for {waiting}");
                }
                self.failed_starts.note(event, now.instant);
            }
            changes
        });
        self.judge.committed(news, &self.tally, is_new, now);
        self.reports.events(segment, is_new, self.started.elapsed()).await;
    }

    /// Applies one record of the latest segment to tally and index. Returns whether it changes anything.
    fn apply_record(
        &mut self,
        record: RecordView<'_>,
        place: PlaceInSegment,
        news: &mut SegmentEffects,
    ) -> bool {
        let was_deserted = self.judge.is_deserted(&self.tally);
        let effect = self.tally.apply_record(record);
        if effect == Effect::Nothing {
            return false;
        }
        news.has_arrived |= was_deserted && !self.judge.is_deserted(&self.tally);
        news.has_progressed |= record.event.attempted().is_some();
        news.is_from_worker |= record.event.is_from_worker();
        let segment = self.ledger.segments() - 1;
        if self.spec.speculation
            && effect == Effect::Won
            && let Some((seconds, items)) = duration_of(record.event)
        {
            self.speculation.run_times.add(seconds, items);
        }
        self.ledger.index_mut().apply(record, effect, segment, place.rows());
        self.rejects.apply(record.event, effect, &self.tally, segment, place.record());
        if let Event::Other(event) = record.event {
            news.has_progressed |=
                matches!(**event, ResultEvent::Working { .. } | ResultEvent::Duplicates { .. });
            if let ResultEvent::Waiting(waiting) = &**event {
                self.judge.waits.note(waiting, self.tally.nodes());
            }
        }
        true
    }
}

/// Returns the time from one commit to the next, given that of a new ledger and the number of its segments.
fn commit_interval(first: Duration, segments: u32) -> Duration {
    (first * (1 + segments / SEGMENTS_UNTIL_RARER)).min(first.max(COMMIT_INTERVAL_MAX))
}

/// Returns how many segments of about this size are read concurrently.
fn ahead_max(bytes: usize) -> usize {
    (SEGMENT_BYTES_AHEAD_MAX / bytes.max(1)).clamp(2, SEGMENTS_AHEAD_MAX)
}

/// Removes the events that change nothing: the ledger has them, they come too late, or the batch holds them twice. Returns
/// how many of them were attempts.
pub(crate) fn retain_new(batch: &mut Batch, tally: &Tally) -> u64 {
    let mut seen = Seen::with_capacity(batch.len());
    batch.retain(|event| !tally.is_known(event) && !seen.is_repeated(event))
}

/// Adds the mini-batches that a commit of this reducer has ended to its metrics.
fn count_ended(before: Counts, now: Counts) {
    let metrics = metrics();
    for (outcome, before, now) in
        [("succeeded", before.succeeded, now.succeeded), ("failed", before.failed, now.failed)]
    {
        metrics
            .mini_batches
            .get_or_create(&[(OUTCOME, outcome)])
            .inc_by(now.saturating_sub(before));
    }
    // A commit may hold only reports of waits.
    if now != before {
        metrics.progressed();
    }
}

/// The attempts of a batch, because one batch may hold the same message twice.
struct Seen {
    /// Successes of a mini-batch differ only in the deliveries lost before.
    succeeded: FxHashSet<(u64, u32)>,
    failed: FxHashSet<(u64, u32, u32, AttemptStatus, bool, u64)>,
}

impl Seen {
    fn with_capacity(attempts: usize) -> Self {
        Self {
            succeeded: FxHashSet::with_capacity_and_hasher(attempts, FxBuildHasher),
            failed: FxHashSet::default(),
        }
    }

    /// Whether the batch holds the same attempt before this event.
    fn is_repeated(&mut self, event: &Event) -> bool {
        let attempt = match event {
            Event::Success(success) => {
                return !self.succeeded.insert((success.mini_batch, success.deliveries_lost));
            }
            Event::Other(event) => match &**event {
                ResultEvent::Attempt(attempt) => attempt,
                _ => return false,
            },
        };
        let Attempt { mini_batch, try_number, deliveries_lost, status, is_final, total, .. } =
            **attempt;
        match status {
            AttemptStatus::Succeeded => !self.succeeded.insert((mini_batch, deliveries_lost)),
            _ => !self.failed.insert((
                mini_batch,
                try_number,
                deliveries_lost,
                status,
                is_final,
                total,
            )),
        }
    }
}

/// Returns the attempt if it is the failure of a copy, which the ledger does not hold.
fn failed_copy(event: &Event) -> Option<&Attempt> {
    match event.other()? {
        ResultEvent::Attempt(attempt)
            if attempt.copy && attempt.status != AttemptStatus::Succeeded =>
        {
            Some(attempt)
        }
        _ => None,
    }
}

/// Returns the seconds and the items of an attempt.
fn duration_of(event: &Event) -> Option<(f64, u64)> {
    match event {
        Event::Success(success) => Some((success.elapsed_seconds, success.total)),
        Event::Other(event) => match &**event {
            ResultEvent::Attempt(attempt) => Some((attempt.elapsed_seconds, attempt.total)),
            _ => None,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A job of ten million mini-batches takes half an hour on one machine.
    #[test]
    fn commits_become_rarer_as_the_ledger_grows() {
        let milliseconds = Duration::from_millis;
        let intervals = |first| {
            [0, 999, 1000, 4500, 1_000_000].map(|segments| commit_interval(first, segments))
        };
        assert_eq!(intervals(milliseconds(25)), [25, 25, 50, 125, 500].map(milliseconds));
        assert_eq!(intervals(milliseconds(200)), [200, 200, 400, 500, 500].map(milliseconds));
        assert_eq!(
            intervals(Duration::from_secs(60)),
            [Duration::from_secs(60); 5],
            "the longer one counts"
        );
        let (mut time, mut segments) = (Duration::ZERO, 0);
        while time < Duration::from_secs(1722) {
            time += commit_interval(milliseconds(25), segments);
            segments += 1;
        }
        assert!(segments < 12_000, "{segments} instead of 68 880");
    }

    #[test]
    fn more_segments_are_read_at_a_time_if_they_are_small() {
        assert_eq!(ahead_max(SEGMENT_BYTES_MAX), 16);
        assert_eq!((ahead_max(0), ahead_max(1000)), (SEGMENTS_AHEAD_MAX, SEGMENTS_AHEAD_MAX));
        assert_eq!(ahead_max(usize::MAX), 2, "a message may be larger than a segment should be");
    }
}
