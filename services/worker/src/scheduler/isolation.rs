//! Isolation: a mini-batch whose tries are spent is run again in ranges of its items, so that the job loses only the
//! items at fault.
//!
//! A range that fails is divided into halves, and these are run on their own, down to single items, from left to right. If
//! the process knows on which item it was working, that *suspect* is run first, then the items before it, which are probably
//! good, and those after it. A suspect that succeeds alone was a wrong one: from then on there are halves only.
//! Nothing of this is announced: the mini-batch keeps its lease, process and limits, ends with one
//! attempt, and starts from its last try again on another node if this one dies.
//!
//! One bad item among `n` costs at most `2 * log2(n)` runs of together twice the size of the
//! mini-batch, and two more after a wrong suspect; three if the suspect is right. A range is split
//! without a run if it must contain a bad item, because the range that contains it has failed and
//! the items before it have not. It is also split if it probably contains one, by the distances
//! between the last bad items (`gaps`) and the cost of runs (`run_cost`). The remainders of ranges
//! behind their bad items are joined to ranges of the length that the gaps suggest. Isolation ends
//! early if it is hopeless or takes too long. It is hopeless if the first items fail alone, and so do probes from
//! the middle of the largest remaining ranges: the first items may be the only bad ones.
//!
//! A mini-batch that runs its rejected items again is isolated from the beginning: its ranges are
//! those that an earlier round has rejected, each with all its tries, and the results of the other
//! items exist. Pure.
//!
//! Plan, ledger and protocol hold only whole mini-batches: before the last range the node announces
//! only progress, then one attempt carries the rows of all good ranges in order, and the rejected
//! items. A crash between two ranges is a lost delivery.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use protocol::words::counted;
use protocol::{
    AttemptStatus, Ending, ErrorReport, FailedItems, FailedRun, Isolate, Kept, Rejected, WaitTimes,
    Warning,
};

use super::causes::{Cause, FailedRange, is_of_an_item, rejected};
use super::gaps::Gaps;
use super::pipe::PipedMiniBatch;
use super::ranges::{Pending, RangeKind, Suspects};
use super::rejects::shorten_error;
use super::run_cost::RunCost;
use super::successful_rows::SuccessfulRows;
use super::{ProcessId, Timestamp};

/// Single items that fail before anything succeeds, after which single items from elsewhere are run.
const FIRST_ITEMS: u32 = 8;
/// Twice as many, after which the mini-batch fails as a whole: the cause is probably the script, or
/// a dependency of it.
const HOPELESS_ITEMS: u32 = 2 * FIRST_ITEMS;
/// The cause of items that an earlier round has rejected, before they run again.
const EARLIER: &str = "an earlier round of the job has rejected the items";
/// Warnings that an attempt carries.
const WARNINGS_MAX: usize = 10;

/// The isolation of a mini-batch.
pub(super) struct Isolation {
    division: Isolate,
    /// How its last try ended, and when.
    whole: Ending,
    pub(super) began: Timestamp,
    ended: Timestamp,
    /// The process that has run the last range, or the mini-batch: it has the items at hand. `None`: none has yet.
    pub(super) process: Option<ProcessId>,
    /// When the remaining ranges are rejected without a run. Each wait for a service or a limit postpones it.
    until: Instant,
    /// Ranges to run, in reverse order.
    pending: Vec<Pending>,
    /// The next range to run, if it is not the last one of these.
    probe: Option<usize>,
    /// The range that was run again.
    again: Option<Range<u64>>,
    /// Number of ranges that an earlier round has rejected; 0: the mini-batch has failed its last try.
    ranges_of_round: u32,
    /// These ranges, in a job of rejected items: it has no other items of the mini-batch. Else empty.
    all_items: Vec<(u64, u64)>,
    good: SuccessfulRows,
    /// By the first item.
    rejected: BTreeMap<u64, FailedRange>,
    gaps: Gaps,
    run_cost: RunCost,
    /// When the range to run next began, later by its waits; `None`: unknown.
    range_began: Option<Instant>,
    suspects: Suspects,
    /// Single items that have failed.
    items_failed: u32,
    runs: u32,
    /// How long the last try and the ranges waited.
    pub(super) waited: WaitTimes,
    load_seconds: f64,
    run_seconds: f64,
    process_seconds: f64,
    warnings: Vec<Warning>,
    warnings_total: u64,
}

/// The outcome of an isolation, as the mini-batch announces it.
pub(super) struct IsolationOutcome {
    /// The sum of all ranges that succeeded, or how the last try ended if none did.
    pub(super) ending: Ending,
    pub(super) rows: Bytes,
    /// The first item of each piece of the rows, and its size.
    pub(super) pieces: Vec<(u64, u64)>,
    pub(super) rejected: Vec<Rejected>,
    /// Number of warnings, including those that `ending` leaves out.
    pub(super) warnings_total: u64,
    pub(super) extra_runs: u32,
    /// When the attempt ended.
    pub(super) ended: Timestamp,
}

impl IsolationOutcome {
    /// Whether a part of the mini-batch was saved.
    pub(super) fn has_succeeded(&self) -> bool {
        self.ending.status == AttemptStatus::Succeeded
    }
}

impl Isolation {
    /// Divides a mini-batch of at least two items, which are these of its argument. `division`: if off, only those results
    /// count that the script has handed back. `whole`: how its last try ended, which this process began at `began`.
    pub(super) fn new(
        items: Range<u64>,
        division: Isolate,
        whole: Ending,
        process: ProcessId,
        [began, ended]: [Timestamp; 2],
        until: Instant,
    ) -> Self {
        let cause = Cause::of(
            &whole,
            FailedRun { process: process.name().into(), started_at: began.milliseconds },
        );
        let (suspect, warnings) =
            (whole.suspect.filter(|_| division == Isolate::Items), whole.warnings.clone());
        let mut isolation =
            Self::empty(&items, division, whole, Some(process), [began, ended], until);
        if isolation.only_kept() {
            warnings.into_iter().for_each(|warning| isolation.warn(warning));
            isolation.pending.push(Pending::kept(items, cause));
        } else {
            isolation.divide(items, &cause, suspect);
        }
        isolation
    }

    /// Runs the items that an earlier round has rejected, at most `tries` times each before they are divided.
    pub(super) fn of_round(
        kept: Kept,
        rows: Bytes,
        division: Isolate,
        tries: u32,
        now: Timestamp,
        until: Instant,
    ) -> Self {
        let error = ErrorReport { message: EARLIER.to_owned(), ..ErrorReport::default() };
        let whole = Ending::failed(AttemptStatus::RunRaised, error);
        let cause =
            Cause::of(&whole, FailedRun { process: "".into(), started_at: now.milliseconds });
        let ranges: Vec<_> = kept.ranges.iter().map(|(first, end)| *first..*end).collect();
        let all =
            ranges.first().map_or(0, |first| first.start)..ranges.last().map_or(0, |last| last.end);
        let mut isolation = Self::empty(&all, division, whole, None, [now, now], until);
        isolation.ranges_of_round = u32::try_from(ranges.len()).unwrap_or(u32::MAX);
        isolation.pending =
            ranges.into_iter().rev().map(|items| Pending::again(items, &cause, tries)).collect();
        if kept.is_separate {
            isolation.all_items.clone_from(&kept.ranges);
        }
        isolation.good = SuccessfulRows::kept(kept, rows);
        isolation
    }

    fn empty(
        items: &Range<u64>,
        division: Isolate,
        whole: Ending,
        process: Option<ProcessId>,
        [began, ended]: [Timestamp; 2],
        until: Instant,
    ) -> Self {
        Self {
            division,
            began,
            ended,
            process,
            until,
            pending: Vec::new(),
            probe: None,
            again: None,
            ranges_of_round: 0,
            all_items: Vec::new(),
            good: SuccessfulRows::default(),
            rejected: BTreeMap::new(),
            gaps: Gaps::of(items),
            run_cost: RunCost::default(),
            range_began: None,
            suspects: Suspects::Untested,
            items_failed: 0,
            runs: 0,
            waited: WaitTimes::default(),
            load_seconds: known(whole.load_seconds),
            run_seconds: whole.run_seconds,
            process_seconds: whole.process_seconds,
            warnings: Vec::new(),
            warnings_total: 0,
            whole,
        }
    }

    /// Whether it divides nothing, because only what the script has handed back may still count.
    pub(super) fn only_kept(&self) -> bool {
        self.division == Isolate::Off && self.ranges_of_round == 0
    }

    /// Returns the items to run next; `None`: the isolation is over.
    pub(super) fn next(&self) -> Option<Range<u64>> {
        let next = self.pending.get(self.position()?)?;
        (!self.is_hopeless()).then(|| next.items.clone())
    }

    /// Whether the next range only collects results that the script has handed back: `run` is not called.
    pub(super) fn next_is_kept(&self) -> bool {
        self.position().is_some_and(|position| self.pending[position].kind == RangeKind::Kept)
    }

    /// Records the start of the range that has just ended, and its waits for a service or
    /// for the limits of the job, for which no item is at fault.
    pub(super) fn handed(&mut self, handed: &PipedMiniBatch) {
        if self.process.is_none() {
            // It has waited for a process.
            self.until += handed.began.instant.saturating_duration_since(self.began.instant);
            self.began = handed.began;
        }
        self.range_began = Some(handed.began.instant + handed.waited());
        self.until += handed.waited();
        self.waited.add(handed.waits());
    }

    fn position(&self) -> Option<usize> {
        self.probe.or(self.pending.len().checked_sub(1))
    }

    /// Handles the result of the range that was to run next, and the run that produced it.
    pub(super) fn ended(&mut self, ending: Ending, rows: Bytes, run: FailedRun, now: Instant) {
        let Some(position) = self.position() else { return };
        let Pending { items, kind, cause: earlier, tries_left, .. } = self.pending.remove(position);
        self.probe = None;
        self.runs = self.runs.saturating_add(u32::from(kind != RangeKind::Kept));
        self.load_seconds += known(ending.load_seconds);
        self.run_seconds += ending.run_seconds;
        self.process_seconds += ending.process_seconds;
        if kind != RangeKind::Kept {
            self.measure(&items, &ending, now);
        }
        if self.is_short_in_round(&items, kind, &ending) {
            // No later round could run items that nothing names.
            self.divide(items, &Cause::no_result(run), None);
        } else if ending.status == AttemptStatus::Succeeded {
            if kind == RangeKind::Suspect {
                self.suspects = Suspects::Wrong;
            }
            let earlier = (kind == RangeKind::Kept).then_some(earlier);
            self.succeeded(&items, ending, rows, &run, earlier);
        } else if kind == RangeKind::Kept {
            self.reject(items, earlier);
        } else {
            let cause = Cause::of(&ending, run);
            let count = items.end - items.start;
            if self.ranges_of_round > 0 && self.has_no_success() {
                self.whole = ending.clone();
            }
            if tries_left > 0 {
                self.pending.push(Pending::again(items, &cause, tries_left));
                return;
            }
            if count == 1 {
                self.items_failed += 1;
                self.gaps.found(items.start);
            }
            if kind == RangeKind::Suspect && self.suspects != Suspects::Wrong {
                self.suspects = Suspects::Right;
            }
            if count > 1 && self.division == Isolate::Items {
                self.divide(items, &cause, ending.suspect);
            } else if ending.has_checkpoints {
                self.pending.push(Pending::kept(items, cause));
            } else {
                self.reject(items, cause);
            }
            self.choose_probe();
        }
        self.divide_next();
        if now > self.until && self.next().is_some() {
            self.abandon("isolation took too long");
        }
    }

    /// Whether a process returned fewer results than items for a range of this round, and did not name the others.
    fn is_short_in_round(&self, items: &Range<u64>, kind: RangeKind, ending: &Ending) -> bool {
        let count = items.end - items.start;
        let named: u64 = ending.failed_items.iter().map(|failed| failed.items).sum();
        self.ranges_of_round > 0
            && self.division == Isolate::Items
            && kind != RangeKind::Kept
            && ending.status == AttemptStatus::Succeeded
            && ending.returned > 0
            && ending.returned.saturating_add(named) < count
    }

    /// Records the cost of a run of a range. Loading counts as little as possible: the first range
    /// loads the items of all.
    fn measure(&mut self, items: &Range<u64>, ending: &Ending, now: Instant) {
        let Some(began) = self.range_began.take() else { return };
        let seconds = now.saturating_duration_since(began).as_secs_f64()
            - known(ending.load_seconds).max(0.0);
        let count = items.end - items.start;
        match ending.status {
            AttemptStatus::Succeeded => self.run_cost.succeeded(count, seconds),
            status if is_of_an_item(status) => self.run_cost.failed(count, seconds),
            _ => {}
        }
    }

    /// Joins and divides the next ranges without running them. A range is divided while it certainly holds a bad item, or
    /// is long enough to hold one probably.
    fn divide_next(&mut self) {
        while self.probe.is_none() && self.division == Isolate::Items {
            self.join_next();
            let Some(next) = self.pending.last().filter(|next| next.kind != RangeKind::Kept) else {
                return;
            };
            let (start, count) = (next.items.start, next.count());
            let is_doubtful =
                next.kind != RangeKind::BeforeSuspect || self.suspects == Suspects::Wrong;
            let length = self.length(start).filter(|length| *length < count && is_doubtful);
            let is_bad =
                next.is_last_part && next.cause.is_of_an_item() && !self.is_explained(next);
            if count < 2 || (length.is_none() && !is_bad) {
                return;
            }
            let Some(Pending { items, part_of, is_last_part, cause, .. }) = self.pending.pop()
            else {
                return;
            };
            match length {
                Some(length) => {
                    let parts =
                        [(start..start + length, false), (start + length..items.end, is_last_part)];
                    self.pend(parts, &part_of, &cause);
                }
                None => self.divide(items, &cause, None),
            }
        }
    }

    /// Joins the next range, while it is short, with the range behind it. Both must be remainders
    /// of ranges whose bad items are known: joined with others, it might equal a range that has
    /// failed.
    fn join_next(&mut self) {
        while let [.., behind, next] = &self.pending[..]
            && next.items.end == behind.items.start
            && [next, behind]
                .into_iter()
                .all(|range| range.kind == RangeKind::Ordinary && self.is_explained(range))
            && self.length(next.items.start).is_some_and(|length| next.count() < length)
        {
            let start = next.items.start;
            self.pending.pop();
            if let Some(joined) = self.pending.last_mut() {
                joined.items.start = start;
            }
        }
    }

    /// Returns the length that a range from `start` should have, if enough is known.
    fn length(&self, start: u64) -> Option<u64> {
        // Without suspects, a search for one bad item would cost more runs.
        let least = if self.suspects == Suspects::Right { 1 } else { 2 };
        self.gaps.length(start, least, self.run_cost.cost_in_items(), self.runs)
    }

    /// Whether a known bad item explains the failure of the range that contains this one.
    fn is_explained(&self, pending: &Pending) -> bool {
        pending.cause.is_of_an_item() && self.has_rejected_in(&pending.part_of)
    }

    fn has_rejected_in(&self, range: &Range<u64>) -> bool {
        let last = self.rejected.range(..range.end).next_back();
        last.is_some_and(|(_, failed)| range.start < failed.items.end)
    }

    /// Makes the item in the middle of the largest range the next one to run, once enough items have failed in vain.
    fn choose_probe(&mut self) {
        if self.good.ranges > 0 || self.items_failed < FIRST_ITEMS {
            return;
        }
        let positions = (0..self.pending.len())
            .filter(|position| self.pending[*position].kind != RangeKind::Kept);
        let Some(position) = positions.max_by_key(|position| self.pending[*position].count())
        else {
            return;
        };
        let Pending { items: Range { start, end }, part_of, cause, .. } =
            self.pending.remove(position);
        let middle = start + (end - start) / 2;
        let pieces = [middle + 1..end, middle..middle + 1, start..middle];
        self.probe = Some(position + usize::from(middle + 1 < end));
        let pieces = pieces.into_iter().filter(|items| !items.is_empty());
        let pieces = pieces.map(|items| Pending::part(items, false, &part_of, &cause));
        self.pending.splice(position..position, pieces);
    }

    /// Takes the result of a range. `earlier`: why the range has failed, if the result is what it had handed back.
    fn succeeded(
        &mut self,
        items: &Range<u64>,
        mut ending: Ending,
        rows: Bytes,
        run: &FailedRun,
        earlier: Option<Arc<Cause>>,
    ) {
        self.good.add(items, &mut ending, rows);
        ending.warnings.into_iter().for_each(|warning| self.warn(warning));
        let mut without_result = (items.end - items.start).saturating_sub(ending.returned);
        for FailedItems { item, items: count, status, mut error } in ending.failed_items {
            let count = count.min(without_result);
            without_result -= count;
            let start = items.start.saturating_add(item).min(items.end);
            let failed = start..start.saturating_add(count).min(items.end);
            if failed.is_empty() {
                continue;
            }
            // The others do not fit the schema of the job.
            if let Some(cause) = earlier.as_ref().filter(|_| status != AttemptStatus::IllegalResult)
            {
                self.reject(failed, cause.clone());
            } else {
                shorten_error(&mut error);
                self.reject(failed, Arc::new(Cause { status, error, run: run.clone() }));
            }
        }
        if earlier.is_none() && without_result == items.end - items.start {
            self.reject(items.clone(), Cause::no_result(run.clone()));
        }
    }

    fn reject(&mut self, items: Range<u64>, cause: Arc<Cause>) {
        self.rejected.insert(items.start, FailedRange { items, cause });
    }

    /// Divides a range around a suspect, which counts from its first item, or into halves.
    fn divide(&mut self, items: Range<u64>, cause: &Arc<Cause>, suspect: Option<u64>) {
        let Range { start, end } = items;
        let trusts = cause.is_of_an_item() && self.suspects != Suspects::Wrong;
        let suspect = suspect.and_then(|suspect| start.checked_add(suspect));
        let Some(suspect) = suspect.filter(|suspect| trusts && *suspect < end) else {
            let middle = start + (end - start) / 2;
            return self.pend([(start..middle, false), (middle..end, true)], &items, cause);
        };
        let [before, after] = [start..suspect, suspect + 1..end];
        let is_last = after.is_empty();
        self.pend([(before, is_last), (after, !is_last)], &items, cause);
        if let Some(Pending { items, kind, .. }) = self.pending.last_mut()
            && items.start < suspect
        {
            *kind = RangeKind::BeforeSuspect;
        }
        self.pending.push(Pending {
            kind: RangeKind::Suspect,
            ..Pending::part(suspect..suspect + 1, false, &items, cause)
        });
    }

    /// Adds parts of a range in the order in which they are to run, each with whether it is the last one.
    fn pend(&mut self, parts: [(Range<u64>, bool); 2], part_of: &Range<u64>, cause: &Arc<Cause>) {
        let parts = parts.into_iter().rev().filter(|(items, _)| !items.is_empty());
        self.pending
            .extend(parts.map(|(items, is_last)| Pending::part(items, is_last, part_of, cause)));
    }

    /// Runs the next range again, because its failure is not the fault of its items. Returns
    /// `false` the second time.
    pub(super) fn again(&mut self) -> bool {
        let next = self.next();
        if self.again == next {
            return false;
        }
        self.again = next;
        self.runs = self.runs.saturating_add(1);
        true
    }

    /// Ends the isolation as if no range had succeeded.
    pub(super) fn give_up(&mut self) {
        self.pending.clear();
        self.probe = None;
        self.good = SuccessfulRows::default();
    }

    /// Rejects the ranges that have not been run, each with the failure of the range that it is a part of.
    pub(super) fn abandon(&mut self, reason: &str) {
        let left: u64 = self.pending.iter().map(Pending::count).sum();
        let were = if left == 1 { "was" } else { "were" };
        let left = counted(left, "item");
        let message =
            format!("{left} {were} rejected without a run of their own, because {reason}");
        self.warn(Warning { message });
        self.probe = None;
        let rest = self.pending.drain(..).map(|Pending { items, cause, kind, .. }| {
            let cause = if kind == RangeKind::Kept { cause } else { cause.of_a_whole(reason) };
            (items.start, FailedRange { items, cause })
        });
        self.rejected.extend(rest);
    }

    /// Rejects the items of `all_items` that are not rejected yet, with the failure of the mini-batch.
    fn reject_the_rest(&mut self) {
        let cause = Cause::of(
            &self.whole,
            FailedRun { process: "".into(), started_at: self.began.milliseconds },
        );
        for (first, end) in std::mem::take(&mut self.all_items) {
            let mut next = first;
            let known: Vec<_> =
                self.rejected.range(first..end).map(|(_, failed)| failed.items.clone()).collect();
            for items in known.into_iter().chain(std::iter::once(end..end)) {
                if next < items.start {
                    self.reject(next..items.start, cause.clone());
                }
                next = items.end;
            }
        }
    }

    fn warn(&mut self, warning: Warning) {
        self.warnings_total += 1;
        if self.warnings.len() < WARNINGS_MAX {
            self.warnings.push(warning);
        }
    }

    /// Whether no range has succeeded so far.
    pub(super) fn has_no_success(&self) -> bool {
        self.good.ranges == 0
    }

    fn is_hopeless(&self) -> bool {
        self.has_no_success() && self.items_failed >= HOPELESS_ITEMS
    }

    /// Returns the outcome. `detail` names an item for people; `by_position`: columns have no names in the output.
    pub(super) fn finish(
        mut self,
        detail: impl Fn(u64) -> String,
        by_position: bool,
        now: Timestamp,
    ) -> IsolationOutcome {
        let extra_runs = self.runs.saturating_sub(self.ranges_of_round);
        if self.good.has_other_columns && by_position {
            // As one mini-batch, they would have had the columns of all.
            let first = self.good.columns.as_deref().unwrap_or_default();
            let message = format!(
                "other items of the mini-batch returned other columns than the first, {first:?}, so their rows cannot stand \
                 below one header, and all its items failed; return the same columns for every item, or set \
                 output_format: native"
            );
            if self.ranges_of_round > 0 {
                // What the other items have stays, because the round fails.
                let error = ErrorReport {
                    category: "IllegalResult".to_owned(),
                    message,
                    ..ErrorReport::default()
                };
                self.whole = Ending::failed(AttemptStatus::IllegalResult, error);
            } else {
                self.whole.warnings.push(Warning { message });
            }
            self.give_up();
        }
        if self.has_no_success() {
            // Otherwise the failure of the mini-batch says that all its items are rejected.
            let rejected = match self.all_items.is_empty() {
                true => Vec::new(),
                false => {
                    self.reject_the_rest();
                    rejected(self.rejected, detail)
                }
            };
            let (ending, ended) = (self.whole, self.ended);
            return IsolationOutcome {
                warnings_total: ending.warnings.len() as u64,
                ending,
                rows: Bytes::new(),
                pieces: Vec::new(),
                rejected,
                extra_runs,
                ended,
            };
        }
        // A process that was able to says itself what happened after it had handed back results.
        let is_untold = self.ranges_of_round == 0
            && (self.good.items_kept == 0
                || !matches!(
                    self.whole.status,
                    AttemptStatus::RunRaised | AttemptStatus::IllegalResult
                ));
        if let Some(error) =
            self.whole.error.as_ref().filter(|_| self.rejected.is_empty() && is_untold)
        {
            // Nothing else tells why its ranges ran.
            let how = match self.good.items_kept >= self.good.returned {
                true => "after it had handed back all its items, whose results count",
                false => "with all its items together, and none of them failed alone",
            };
            self.warn(Warning {
                message: format!("the mini-batch failed {how}: {}", error.sentence()),
            });
        }
        let rejected = rejected(self.rejected, detail);
        let ending = Ending {
            returned: self.good.returned,
            columns: self.good.columns.take(),
            load_seconds: self.load_seconds,
            run_seconds: self.run_seconds,
            process_seconds: self.process_seconds,
            warnings: self.warnings,
            has_checkpoints: self.good.has_checkpoints,
            items_kept: self.good.items_kept,
            ..Ending::empty()
        };
        let (rows, pieces) = self.good.into_rows(&rejected);
        IsolationOutcome {
            ending,
            rows,
            pieces,
            rejected,
            warnings_total: self.warnings_total,
            extra_runs,
            ended: now,
        }
    }
}

/// Returns the duration of loading, unless it ended with its process.
fn known(load_seconds: f64) -> f64 {
    if load_seconds.is_finite() { load_seconds } else { 0.0 }
}
