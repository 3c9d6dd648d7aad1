//! Isolation: a mini-batch whose tries are spent is run again in ranges of its items, so that the job loses only the
//! items at fault.
//!
//! A range that fails is divided into halves, and these are run on their own, down to single items, from left to right.
//! Nothing of this is announced: the mini-batch keeps its lease, ends with one attempt, and starts from its last try again
//! on another node if this one dies.
//!
//! One bad item among `n` costs at most `2 * log2(n)` runs of together twice the size of the mini-batch. A range is divided
//! without a run of its own if it must hold a bad item, because what it is a part of has failed and the items before it have
//! not; or if it probably does, by the distances between the last bad items. Isolation ends early if it has no chance or takes
//! too long. It has no chance if the first items fail alone, and so do probes from the middle of the largest ranges that are
//! left: the first items may be the only bad ones. Pure.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use protocol::{AttemptStatus, Ending, ErrorReport, FailedItems, FailedRun, Isolate, Rejected, Waited, Warning};

use super::Moment;
use super::pipe::Handed;
use super::rejects::{shorten, shorten_error};

/// Single items that fail before anything succeeds, after which single items from elsewhere are run.
const FIRST_ITEMS: u32 = 8;
/// As many again, after which the mini-batch fails as a whole: the cause is probably the script, or something that it
/// needs.
const HOPELESS_ITEMS: u32 = 2 * FIRST_ITEMS;
/// Distances between bad items that are remembered.
const GAPS: usize = 8;
/// Warnings that an attempt carries.
const WARNINGS_MAX: usize = 10;

/// A mini-batch that is being isolated.
pub(super) struct Isolation {
    division: Isolate,
    /// How its last try ended, and when.
    whole: Ending,
    pub(super) began: Moment,
    ended: Moment,
    /// When ranges that have not been run are rejected: later by each wait for a service, or for the limits of the job.
    until: Instant,
    /// Ranges to run, in reverse order.
    pending: Vec<Pending>,
    /// The next range to run, if it is not the last one of these.
    probe: Option<usize>,
    /// The range that was run again.
    again: Option<Range<u64>>,
    good: Good,
    rejected: Vec<Failed>,
    gaps: Gaps,
    /// Single items that have failed.
    items_failed: u32,
    runs: u32,
    /// How long the last try and the ranges waited.
    pub(super) waited: Waited,
    load_seconds: f64,
    run_seconds: f64,
    process_seconds: f64,
    warnings: Vec<Warning>,
    warnings_total: u64,
}

/// The results of the ranges that have succeeded, in the order of the items.
#[derive(Default)]
struct Good {
    ranges: u32,
    returned: u64,
    items_kept: u64,
    /// By the first item.
    rows: BTreeMap<u64, Bytes>,
    /// The first item of each piece of these rows, and its size.
    pieces: Vec<(u64, u64)>,
    /// Whether failed items lie within a piece.
    is_undivided: bool,
    columns: Option<Vec<String>>,
    has_other_columns: bool,
    has_checkpoints: bool,
}

/// A range to run, and the failure of the range that it is a part of.
struct Pending {
    items: Range<u64>,
    cause: Arc<Cause>,
    /// Where the range begins whose end this is, if that range holds a bad item.
    bad_from: Option<u64>,
}

/// The numbers of good items before each of the last bad ones.
struct Gaps {
    recent: VecDeque<u64>,
    /// The item behind the last bad one.
    next: u64,
}

impl Gaps {
    fn found(&mut self, bad: u64) {
        self.recent.truncate(GAPS - 1);
        self.recent.push_front(bad.saturating_sub(self.next));
        self.next = bad + 1;
    }

    /// Whether a range is longer than bad items are apart, and much longer than the distance since the last one.
    fn expects_bad_in(&self, items: &Range<u64>) -> bool {
        let count = self.recent.len() as u64;
        let mean = self.recent.iter().sum::<u64>() / count.max(1);
        let passed = items.start.saturating_sub(self.next);
        count > 1 && items.end - items.start > mean.max(2 * passed)
    }
}

/// A range that has failed and is not divided further.
struct Failed {
    items: Range<u64>,
    cause: Arc<Cause>,
}

struct Cause {
    status: AttemptStatus,
    error: ErrorReport,
    run: FailedRun,
}

impl Cause {
    fn of(ending: &Ending, run: FailedRun) -> Arc<Self> {
        let mut error = ending.error.clone().unwrap_or_default();
        shorten_error(&mut error);
        Arc::new(Self { status: ending.status, error, run })
    }

    /// Whether an item is at fault, rather than the size of the range.
    fn is_of_an_item(&self) -> bool {
        matches!(self.status, AttemptStatus::RunRaised | AttemptStatus::IllegalResult)
    }
}

/// The outcome of an isolation, as the mini-batch announces it.
pub(super) struct Isolated {
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
    pub(super) ended: Moment,
}

impl Isolated {
    /// Whether a part of the mini-batch was saved.
    pub(super) fn has_succeeded(&self) -> bool {
        self.ending.status == AttemptStatus::Succeeded
    }
}

impl Isolation {
    /// Divides a mini-batch of at least two items, which are these of its argument. `whole`: how its last try ended,
    /// which this process began at `began`.
    pub(super) fn new(
        items: Range<u64>,
        division: Isolate,
        whole: Ending,
        process: &str,
        [began, ended]: [Moment; 2],
        until: Instant,
    ) -> Self {
        let mut isolation = Self {
            division,
            began,
            ended,
            until,
            pending: Vec::new(),
            probe: None,
            again: None,
            good: Good::default(),
            rejected: Vec::new(),
            gaps: Gaps { recent: VecDeque::new(), next: items.start },
            items_failed: 0,
            runs: 0,
            waited: Waited::default(),
            load_seconds: known(whole.load_seconds),
            run_seconds: whole.run_seconds,
            process_seconds: whole.process_seconds,
            warnings: Vec::new(),
            warnings_total: 0,
            whole,
        };
        let run = FailedRun { process: process.into(), started_at: began.milliseconds };
        let cause = Cause::of(&isolation.whole, run);
        isolation.divide(items, &cause, cause.is_of_an_item());
        isolation
    }

    /// Returns the items to run next; `None`: the isolation is over.
    pub(super) fn next(&self) -> Option<Range<u64>> {
        let next = self.pending.get(self.position()?)?;
        (!self.is_hopeless()).then(|| next.items.clone())
    }

    /// Takes the time that the range to run next has waited for a service, or for the limits of the job: no item is at
    /// fault.
    pub(super) fn waited(&mut self, handed: &Handed) {
        self.until += handed.waited();
        self.waited.add(handed.waits());
    }

    fn position(&self) -> Option<usize> {
        self.probe.or(self.pending.len().checked_sub(1))
    }

    /// Takes the result of the range that was to be run next, and which run that was.
    pub(super) fn ended(&mut self, ending: Ending, rows: Bytes, run: FailedRun, now: Instant) {
        let Some(position) = self.position() else { return };
        let Pending { items, .. } = self.pending.remove(position);
        self.probe = None;
        self.runs = self.runs.saturating_add(1);
        self.load_seconds += known(ending.load_seconds);
        self.run_seconds += ending.run_seconds;
        self.process_seconds += ending.process_seconds;
        if ending.status == AttemptStatus::Succeeded {
            self.succeeded(&items, ending, rows, &run);
        } else {
            let cause = Cause::of(&ending, run);
            let count = items.end - items.start;
            if count == 1 {
                self.items_failed += 1;
                self.gaps.found(items.start);
            }
            if count > 1 && self.division == Isolate::Items {
                self.divide(items, &cause, cause.is_of_an_item());
            } else {
                self.rejected.push(Failed { items, cause });
            }
            self.choose_probe();
        }
        self.divide_bad();
        if now > self.until && self.next().is_some() {
            self.abandon("it took too long");
        }
    }

    /// Divides the next range without a run of its own, as long as it must hold a bad item, or probably does.
    fn divide_bad(&mut self) {
        while self.probe.is_none() && self.division == Isolate::Items {
            let Some(Pending { items, bad_from, .. }) = self.pending.last() else { return };
            let is_certain = bad_from.is_some_and(|start| !self.has_rejected_in(&(start..items.start)));
            let is_bad = is_certain || self.gaps.expects_bad_in(items);
            if items.end - items.start < 2 || !is_bad {
                return;
            }
            let Some(Pending { items, cause, .. }) = self.pending.pop() else { return };
            self.divide(items, &cause, is_certain);
        }
    }

    /// Whether a range holds a rejected item. They are in order, except for the first ones, which were probes.
    fn has_rejected_in(&self, range: &Range<u64>) -> bool {
        let last = self.rejected.iter().rev().take_while(|failed| range.start < failed.items.end);
        let mut possible = self.rejected.iter().take(HOPELESS_ITEMS as usize).chain(last);
        possible.any(|failed| failed.items.start < range.end && range.start < failed.items.end)
    }

    /// Makes the item in the middle of the largest range the next one to run, once enough items have failed in vain.
    fn choose_probe(&mut self) {
        if self.good.ranges > 0 || self.items_failed < FIRST_ITEMS {
            return;
        }
        let size = |pending: &Pending| pending.items.end - pending.items.start;
        let Some(position) = (0..self.pending.len()).max_by_key(|position| size(&self.pending[*position])) else {
            return;
        };
        let Pending { items: Range { start, end }, cause, .. } = self.pending.remove(position);
        let middle = start + (end - start) / 2;
        let pieces = [middle + 1..end, middle..middle + 1, start..middle];
        self.probe = Some(position + usize::from(middle + 1 < end));
        let pieces = pieces.into_iter().filter(|items| !items.is_empty());
        let pieces = pieces.map(|items| Pending { items, cause: cause.clone(), bad_from: None });
        self.pending.splice(position..position, pieces);
    }

    fn succeeded(&mut self, items: &Range<u64>, ending: Ending, rows: Bytes, run: &FailedRun) {
        let Good {
            ranges,
            returned,
            items_kept,
            rows: all,
            pieces,
            is_undivided,
            columns,
            has_other_columns,
            has_checkpoints,
        } = &mut self.good;
        *ranges += 1;
        *items_kept += ending.items_kept.min(items.end - items.start);
        *has_checkpoints |= ending.has_checkpoints;
        match &ending.pieces[..] {
            [] => {
                // The rows of this range cannot be divided.
                *is_undivided |= !ending.failed_items.is_empty() && !rows.is_empty();
                pieces.push((items.start, rows.len() as u64));
            }
            divided => pieces.extend(divided.iter().map(|&(item, bytes)| (items.start.saturating_add(item), bytes))),
        }
        *returned += ending.returned.min(items.end - items.start);
        if !rows.is_empty() {
            all.insert(items.start, rows);
        }
        match (&*columns, ending.columns) {
            (None, these) => *columns = these,
            (Some(first), Some(these)) => *has_other_columns |= *first != these,
            (Some(_), None) => {}
        }
        ending.warnings.into_iter().for_each(|warning| self.warn(warning));
        let without_result = (items.end - items.start).saturating_sub(ending.returned);
        self.reject(items, ending.failed_items, without_result, run);
    }

    /// Rejects items of a range that has succeeded.
    fn reject(&mut self, range: &Range<u64>, failed: Vec<FailedItems>, mut without_result: u64, run: &FailedRun) {
        for FailedItems { item, items, status, mut error } in failed {
            let items = items.min(without_result);
            without_result -= items;
            let start = range.start.saturating_add(item).min(range.end);
            let items = start..start.saturating_add(items).min(range.end);
            if !items.is_empty() {
                shorten_error(&mut error);
                let cause = Arc::new(Cause { status, error, run: run.clone() });
                self.rejected.push(Failed { items, cause });
            }
        }
    }

    /// `is_bad`: the range holds a bad item.
    fn divide(&mut self, items: Range<u64>, cause: &Arc<Cause>, is_bad: bool) {
        let middle = items.start + (items.end - items.start) / 2;
        let bad_from = is_bad.then_some(items.start);
        self.pending.push(Pending { items: middle..items.end, cause: cause.clone(), bad_from });
        self.pending.push(Pending { items: items.start..middle, cause: cause.clone(), bad_from: None });
    }

    /// Runs the next range again, because it has failed through no fault of its items. Returns whether it may: once.
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
        self.good = Good::default();
    }

    /// Rejects the ranges that have not been run, each with the failure of the range that it is a part of.
    pub(super) fn abandon(&mut self, reason: &str) {
        let left: u64 = self.pending.iter().map(|pending| pending.items.end - pending.items.start).sum();
        let message = format!("{left} items were rejected without a run of their own, because {reason}");
        self.warn(Warning { message });
        self.probe = None;
        let rest = self.pending.drain(..).map(|Pending { items, cause, .. }| Failed { items, cause });
        self.rejected.extend(rest);
    }

    fn warn(&mut self, warning: Warning) {
        self.warnings_total += 1;
        if self.warnings.len() < WARNINGS_MAX {
            self.warnings.push(warning);
        }
    }

    /// Whether no range has succeeded so far.
    pub(super) fn is_vain(&self) -> bool {
        self.good.ranges == 0
    }

    fn is_hopeless(&self) -> bool {
        self.good.ranges == 0 && self.items_failed >= HOPELESS_ITEMS
    }

    /// Returns the outcome. `detail` names an item for people; `by_position`: columns have no names in the output.
    pub(super) fn finish(mut self, detail: impl Fn(u64) -> String, by_position: bool, now: Moment) -> Isolated {
        let extra_runs = self.runs;
        if self.good.has_other_columns && by_position {
            // As one mini-batch, they would have had the columns of all.
            let first = self.good.columns.as_deref().unwrap_or_default();
            let message = format!(
                "other items of the mini-batch returned other columns than the first, {first:?}, so their rows cannot stand \
                 below one header, and all its items failed; return the same columns for every item, or set \
                 output_format: parquet or jsonl"
            );
            self.whole.warnings.push(Warning { message });
            self.give_up();
        }
        if self.good.ranges == 0 {
            let (ending, ended) = (self.whole, self.ended);
            return Isolated {
                warnings_total: ending.warnings.len() as u64,
                ending,
                rows: Bytes::new(),
                pieces: Vec::new(),
                rejected: Vec::new(),
                extra_runs,
                ended,
            };
        }
        let rejected = rejected(self.rejected, detail);
        let ending = Ending {
            returned: self.good.returned,
            columns: self.good.columns,
            load_seconds: self.load_seconds,
            run_seconds: self.run_seconds,
            process_seconds: self.process_seconds,
            warnings: self.warnings,
            has_checkpoints: self.good.has_checkpoints,
            items_kept: self.good.items_kept,
            ..Ending::empty()
        };
        let rows: Vec<Bytes> = self.good.rows.into_values().collect();
        let rows = match <[Bytes; 1]>::try_from(rows) {
            Ok([rows]) => rows,
            Err(rows) => rows.concat().into(),
        };
        let mut pieces = if self.good.is_undivided { Vec::new() } else { self.good.pieces };
        pieces.sort_unstable_by_key(|(item, _)| *item);
        // Without a reject between them they are one piece.
        pieces.dedup_by(|next, last| {
            let before = |item| rejected.partition_point(|rejected| rejected.item < item);
            let joins = before(last.0) == before(next.0);
            if joins {
                last.1 += next.1;
            }
            joins
        });
        Isolated { ending, rows, pieces, rejected, warnings_total: self.warnings_total, extra_runs, ended: now }
    }
}

/// Returns the duration of loading, unless it ended with its process.
fn known(load_seconds: f64) -> f64 {
    if load_seconds.is_finite() { load_seconds } else { 0.0 }
}

/// Returns the rejected ranges in order.
fn rejected(mut failed: Vec<Failed>, detail: impl Fn(u64) -> String) -> Vec<Rejected> {
    failed.sort_unstable_by_key(|failed| failed.items.start);
    let rejected = failed.into_iter().map(|Failed { items, cause }| Rejected {
        item: items.start,
        items: items.end - items.start,
        detail: detail(items.start),
        values: String::new(),
        status: cause.status,
        error: cause.error.clone(),
        run: Some(cause.run.clone()),
    });
    let mut rejected = rejected.collect::<Vec<_>>();
    shorten(&mut rejected);
    rejected
}
