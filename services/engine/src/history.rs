//! The recorded attempts of one job in memory, for callers that show it: read segment by segment from the ledger while the
//! job runs, and from its report of attempts once a completed job has dropped its ledger.
//!
//! Each attempt takes 72 bytes, so a million of them fit beside everything else that shows a job. Texts stay in the store:
//! [`FoundJob::recorded_attempts`](crate::FoundJob::recorded_attempts) reads those of single attempts. The states and
//! counts are those of [`Tally`], the code of the reducer.

mod attempts;
mod read;
mod report;
mod segment;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::HashMap;
use std::ops::Range;

use bytes::Bytes;
use protocol::{
    AttemptCore, AttemptStatus, JobResult, Phases, ProcessName, RecordError, ResultEvent,
};
use reducer::{Effect, MiniBatchState, Tally};

use attempts::Attempts;
pub use read::{RecordedAttempt, SharedHistory};
use segment::{RecordedEvent, Segment};

/// Attempts that are kept for one job; the tally counts the others.
pub const ATTEMPTS_MAX: usize = 3_000_000;
/// Mini-batches that share one mark of their last change.
pub const MARKED_TOGETHER: usize = 4096;
/// Processes whose attempts are kept for one job: each has a position of 16 bits.
pub const PROCESSES_MAX: usize = u16::MAX as usize;

/// The source of a history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// Nothing has been recorded, or it has been removed.
    #[default]
    Nothing,
    /// The ledger.
    Ledger,
    /// The report of attempts, which has no tracebacks.
    Report,
}

/// The place of the record of an attempt: a range of a ledger segment, or of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordAt {
    /// Segment of the ledger; 0 in the report.
    pub segment: u32,
    /// First byte.
    pub start: u64,
    /// Number of bytes.
    pub length: u32,
}

/// One attempt, without its texts.
#[derive(Clone, Copy, Debug)]
pub struct AttemptSummary {
    /// The place of its record.
    pub place: RecordAt,
    /// Wall clock at its start, milliseconds since 1970.
    pub started_at: u64,
    /// Mini-batch.
    pub mini_batch: u32,
    /// Position of the attempt before this one of the same mini-batch, plus one; 0: none.
    previous: u32,
    /// From hand-over to the process to its end.
    pub elapsed_seconds: f32,
    /// Duration of `run()`.
    pub run_seconds: f32,
    /// Processor time.
    pub process_seconds: f32,
    /// Its phases before `run()`.
    pub phases: Phases,
    /// Items of the mini-batch.
    pub items: u32,
    /// Items that succeeded.
    pub succeeded: u32,
    /// Number of this try, from 1.
    pub try_number: u16,
    /// Position of its process.
    pub process: u16,
    /// Number of this attempt among those of its mini-batch, from 1.
    pub ordinal: u16,
    /// How it ended.
    pub status: AttemptStatus,
    /// Whether no other try was to follow, and whether its rows are those of the mini-batch.
    flags: u8,
}

const IS_FINAL: u8 = 1;
const COUNTS: u8 = 2;
const IS_COPY: u8 = 4;

fn flag(is_set: bool, flag: u8) -> u8 {
    if is_set { flag } else { 0 }
}

impl AttemptSummary {
    /// Whether no other try was to follow.
    pub fn is_final(&self) -> bool {
        self.flags & IS_FINAL != 0
    }

    /// Whether it succeeded and its rows are those of the mini-batch.
    pub fn counts(&self) -> bool {
        self.flags & COUNTS != 0
    }

    /// Whether it was a copy of its mini-batch.
    pub fn is_copy(&self) -> bool {
        self.flags & IS_COPY != 0
    }

    /// Returns the duration from the end of `run()` to the answer; `None`: nothing measured its phases.
    pub fn reported_seconds(&self) -> Option<f32> {
        let reported =
            || self.phases.reported_seconds(self.elapsed_seconds.into(), self.run_seconds.into());
        self.phases.are_known().then(|| reported() as f32)
    }

    /// Returns the time of its end, milliseconds since 1970.
    pub fn ended_at(&self) -> u64 {
        self.started_at.saturating_add((f64::from(self.elapsed_seconds.max(0.0)) * 1000.0) as u64)
    }
}

/// A process, and the sum of its attempts.
#[derive(Clone, Debug)]
pub struct ProcessHistory {
    /// Node and process.
    pub name: ProcessName<String>,
    /// Attempts that it ended.
    pub attempts: u64,
    /// Those that did not succeed.
    pub failed: u64,
    /// Time from hand-over to end, over all attempts.
    pub busy_seconds: f64,
    /// Start of its first attempt, milliseconds since 1970.
    pub first_at: u64,
    /// End of its last one.
    pub last_at: u64,
    /// Its latest process id, if it is known.
    pub pid: Option<u32>,
}

/// The recorded attempts of one job.
#[derive(Debug, Default)]
pub struct History {
    origin: Origin,
    segments: u32,
    /// Changes with every segment.
    version: u32,
    tally: Tally,
    attempts: Attempts,
    /// Position of the latest attempt of each mini-batch, plus one; 0: none.
    latest: Vec<u32>,
    /// Version of the last change, for each [`MARKED_TOGETHER`] mini-batches.
    changed: Vec<u32>,
    processes: Vec<ProcessHistory>,
    /// Position of each process, by node and process.
    positions: HashMap<String, HashMap<String, u16>>,
    /// Largest number of a try.
    most_tries: u32,
    /// Attempts beyond [`ATTEMPTS_MAX`], or of processes beyond [`PROCESSES_MAX`].
    left_out: u64,
    /// First segment of the ledger that cannot be read.
    unreadable: Option<u32>,
    /// The result that ended the records. A job that has continued since has another result.
    sealed: Option<Box<JobResult>>,
}

impl History {
    /// Adds the next segment of the ledger, up to the first bytes that are not a record. An error changes nothing: the
    /// segment may be repaired later.
    pub fn add_segment(&mut self, bytes: &Bytes) -> Result<(), RecordError> {
        self.add_decoded(&Segment::decode(bytes)?);
        Ok(())
    }

    fn add_decoded(&mut self, segment: &Segment) {
        let number = self.segments;
        self.begin(Origin::Ledger);
        for RecordedEvent { start, length, event } in &segment.entries {
            let place = RecordAt { segment: number, start: *start, length: *length };
            match event {
                segment::Event::Success(success) => {
                    let ProcessName { node, process } =
                        &segment.processes[success.process as usize];
                    self.add_success(ProcessName { node, process }, success, place);
                }
                segment::Event::Other(event) => self.add(event, place),
            }
        }
        self.segments += 1;
    }

    fn begin(&mut self, origin: Origin) {
        self.origin = origin;
        self.version += 1;
    }

    fn add_success<P, T, C>(
        &mut self,
        process: ProcessName<&str>,
        success: &AttemptCore<P, T, C>,
        place: RecordAt,
    ) {
        let effect = self.tally.apply_success_of(process, success);
        let flags = IS_FINAL | flag(effect == Effect::Won, COUNTS);
        self.add_attempt(process, success, AttemptStatus::Succeeded, flags, place);
    }

    fn add(&mut self, event: &ResultEvent, place: RecordAt) {
        let effect = self.tally.apply(event);
        match event {
            ResultEvent::Attempt(attempt) => {
                let flags = flag(attempt.is_final, IS_FINAL)
                    | flag(attempt.copy, IS_COPY)
                    | flag(effect == Effect::Won, COUNTS);
                let core = attempt.core();
                self.add_attempt(core.process, &core, attempt.status, flags, place);
            }
            ResultEvent::RowsLost { mini_batches } => {
                for &mini_batch in mini_batches {
                    self.lose(mini_batch);
                }
            }
            ResultEvent::Round(_) => {
                self.changed.fill(self.version);
            }
            ResultEvent::ProcessStarted { node, process, pid, .. } => {
                if let Some(position) = self.process(ProcessName { node, process }) {
                    self.processes[usize::from(position)].pid = Some(*pid);
                }
            }
            _ => {}
        }
    }

    fn add_attempt<P, T, C>(
        &mut self,
        process: ProcessName<&str>,
        attempt: &AttemptCore<P, T, C>,
        status: AttemptStatus,
        flags: u8,
        place: RecordAt,
    ) {
        let Ok(mini_batch) = u32::try_from(attempt.mini_batch) else { return };
        if self.tally.is_outside_plan(attempt.mini_batch) {
            return;
        }
        self.most_tries = self.most_tries.max(attempt.try_number);
        self.mark(mini_batch);
        let Some(process) = self.process(process) else {
            self.left_out += 1;
            return;
        };
        let seconds = [attempt.elapsed_seconds, attempt.run_seconds, attempt.process_seconds];
        let [elapsed, run, cpu] =
            seconds.map(|seconds| if (seconds as f32).is_finite() { seconds } else { 0.0 });
        let ended_at = attempt.started_at.saturating_add((elapsed.max(0.0) * 1000.0) as u64);
        let of_process = &mut self.processes[usize::from(process)];
        of_process.attempts += 1;
        of_process.failed += u64::from(status != AttemptStatus::Succeeded);
        of_process.busy_seconds += elapsed.max(0.0);
        of_process.first_at = of_process.first_at.min(attempt.started_at);
        of_process.last_at = of_process.last_at.max(ended_at);
        if self.attempts.len() >= ATTEMPTS_MAX {
            self.left_out += 1;
            return;
        }
        let index = mini_batch as usize;
        if self.latest.len() <= index {
            self.latest.resize(index + 1, 0);
        }
        let previous = self.latest[index];
        let ordinal = previous
            .checked_sub(1)
            .map_or(0, |before| self.attempts.get(before).ordinal)
            .saturating_add(1);
        let narrow = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        self.attempts.push(AttemptSummary {
            place,
            started_at: attempt.started_at,
            mini_batch,
            previous,
            elapsed_seconds: elapsed as f32,
            run_seconds: run as f32,
            process_seconds: cpu as f32,
            phases: attempt.phases.checked(),
            items: narrow(attempt.total),
            succeeded: narrow(attempt.succeeded),
            try_number: u16::try_from(attempt.try_number).unwrap_or(u16::MAX),
            process,
            ordinal,
            status,
            flags,
        });
        self.latest[index] =
            u32::try_from(self.attempts.len()).expect("fewer than 4 thousand million attempts");
    }

    fn mark(&mut self, mini_batch: u32) {
        let chunk = mini_batch as usize / MARKED_TOGETHER;
        if self.changed.len() <= chunk {
            self.changed.resize(chunk + 1, self.version);
        }
        self.changed[chunk] = self.version;
    }

    fn lose(&mut self, mini_batch: u64) {
        let Ok(mini_batch) = u32::try_from(mini_batch) else { return };
        let mut at = self.latest.get(mini_batch as usize).copied().unwrap_or_default();
        while let Some(position) = at.checked_sub(1) {
            let attempt = self.attempts.get_mut(position);
            attempt.flags &= !COUNTS;
            at = attempt.previous;
        }
        self.mark(mini_batch);
    }

    fn process(&mut self, name: ProcessName<&str>) -> Option<u16> {
        let known = self.positions.get(name.node).and_then(|processes| processes.get(name.process));
        if let Some(position) = known {
            return Some(*position);
        }
        if self.processes.len() >= PROCESSES_MAX {
            return None;
        }
        let position = u16::try_from(self.processes.len()).ok()?;
        let name = ProcessName { node: name.node.to_owned(), process: name.process.to_owned() };
        self.positions.entry(name.node.clone()).or_default().insert(name.process.clone(), position);
        self.processes.push(ProcessHistory {
            name,
            attempts: 0,
            failed: 0,
            busy_seconds: 0.0,
            first_at: u64::MAX,
            last_at: 0,
            pid: None,
        });
        Some(position)
    }

    /// Returns its source.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Returns the number of changes so far.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Returns the counts and states, as the reducer computes them.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Returns the number of mini-batches: that of the plan if it is known, else one more than the largest with an
    /// attempt.
    pub fn mini_batches(&self) -> u64 {
        self.tally.planned().map_or(self.latest.len() as u64, |planned| planned.mini_batches)
    }

    /// Returns the state of a mini-batch.
    pub fn state(&self, mini_batch: u64) -> MiniBatchState {
        self.tally.state(mini_batch)
    }

    /// Returns all attempts, in the order of their records.
    pub fn attempts(&self) -> impl DoubleEndedIterator<Item = &AttemptSummary> {
        self.attempts.iter()
    }

    /// Returns the number of attempts that are kept.
    pub fn attempts_kept(&self) -> usize {
        self.attempts.len()
    }

    /// Returns the number of attempts that are only counted.
    pub fn attempts_left_out(&self) -> u64 {
        self.left_out
    }

    /// Returns the first segment of the ledger that cannot be read: it is damaged, or a machine stopped while it wrote
    /// it.
    pub fn unreadable(&self) -> Option<u32> {
        self.unreadable
    }

    /// Returns the attempts of a mini-batch, latest first.
    pub fn attempts_of(&self, mini_batch: u64) -> impl Iterator<Item = &AttemptSummary> {
        let latest =
            usize::try_from(mini_batch).ok().and_then(|index| self.latest.get(index)).copied();
        let mut at = latest.unwrap_or_default();
        std::iter::from_fn(move || {
            let attempt = self.attempts.get(at.checked_sub(1)?);
            at = attempt.previous;
            Some(attempt)
        })
    }

    /// Returns the attempt that stands for a mini-batch: the one whose rows count, or else the latest.
    pub fn shown(&self, mini_batch: u64) -> Option<&AttemptSummary> {
        let latest = self.attempts_of(mini_batch).next()?;
        if latest.counts() || self.state(mini_batch) != MiniBatchState::Succeeded {
            return Some(latest);
        }
        self.attempts_of(mini_batch).find(|attempt| attempt.counts()).or(Some(latest))
    }

    /// Returns the processes; [`AttemptSummary::process`] is a position among them.
    pub fn processes(&self) -> &[ProcessHistory] {
        &self.processes
    }

    /// Returns the largest number of a try.
    pub fn most_tries(&self) -> u32 {
        self.most_tries
    }

    /// Returns the ranges of mini-batches in which something has changed after a version.
    pub fn changed_since(&self, version: u32) -> impl Iterator<Item = Range<u64>> {
        let chunks =
            self.changed.iter().enumerate().filter(move |(_, changed)| **changed > version);
        chunks.map(|(chunk, _)| {
            (chunk * MARKED_TOGETHER) as u64..((chunk + 1) * MARKED_TOGETHER) as u64
        })
    }

    /// Returns the memory that it takes, roughly.
    pub fn memory_bytes(&self) -> usize {
        self.attempts.len() * size_of::<AttemptSummary>()
            + self.latest.capacity() * (size_of::<u32>() + 20)
    }
}
