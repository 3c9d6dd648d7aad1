//! What one Python process is busy with, and how its attempts end. Decisions only: the agent talks to the world.
//!
//! A process works through its *pipe*, the mini-batches it has been handed, in order. How many it is handed follows
//! from how long its runs take: enough that it never waits, few enough that nothing waits behind a slow one.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use protocol::{
    Attempt, AttemptStatus, Descriptor, ErrorReport, MiniBatchFrame, Payload, Rows, Warning, Work,
    milliseconds_since_epoch,
};
use telemetry::trace::{self, Step, StepKind};

use crate::lease::LeaseId;
use crate::memory_files::MemoryFile;
use crate::prepare::Downloads;

/// Work that a pipe should hold, in seconds.
const PIPE_SECONDS: f64 = 0.02;
/// Mini-batches that a pipe may hold.
const PIPE_MAX: usize = 256;
/// Weight of the latest run in the mean.
const MEAN_WEIGHT: f64 = 0.2;

/// A mini-batch that is ready for a process.
#[derive(Debug)]
pub struct Prepared {
    /// Its delivery.
    pub lease: LeaseId,
    /// The mini-batch.
    pub descriptor: Descriptor,
    /// Deliveries lost before this one.
    pub deliveries_lost: u32,
    /// What `run()` gets.
    pub payload: Payload,
    /// The table, when there is one.
    pub file: Option<MemoryFile>,
    /// What keeps the files that were downloaded for it.
    pub downloads: Option<Arc<Downloads>>,
    /// Memory it holds.
    pub bytes: u64,
    /// Items that `run()` gets.
    pub passed: u64,
    /// Items of the mini-batch, those that failed before `run()` included.
    pub total: u64,
    /// What was noticed while it was read.
    pub warnings: Vec<Warning>,
    /// Number of warnings, those not kept included.
    pub warnings_total: u64,
}

/// A mini-batch in the pipe of a process.
#[derive(Debug)]
pub struct InPipe {
    /// Number of the hand-over.
    pub sequence: u64,
    /// The mini-batch.
    pub prepared: Prepared,
    /// Wall clock when its turn came, milliseconds since the epoch.
    pub started_at: u64,
    /// When its turn came: it was handed over and the one before it had ended.
    pub began: Instant,
}

/// The mini-batches a process has been handed and has not answered.
#[derive(Debug, Default)]
pub struct Pipe {
    handed: VecDeque<InPipe>,
    last_sequence: u64,
    mean_seconds: Option<f64>,
}

impl Pipe {
    /// How many mini-batches it should hold.
    pub fn depth(&self) -> usize {
        self.mean_seconds.map_or(1, |mean| 1 + ((PIPE_SECONDS / mean.max(1e-9)) as usize).min(PIPE_MAX - 1))
    }

    /// How many more it should be handed now: none while it is at least half full.
    pub fn wanted(&self) -> usize {
        let depth = self.depth();
        if self.handed.len() * 2 > depth { 0 } else { depth - self.handed.len() }
    }

    /// How many mini-batches it holds.
    pub fn len(&self) -> usize {
        self.handed.len()
    }

    /// Whether the process has nothing to do.
    pub fn is_empty(&self) -> bool {
        self.handed.is_empty()
    }

    /// Takes a mini-batch, and gives the frame for the process.
    pub fn hand_over(&mut self, prepared: Prepared) -> MiniBatchFrame {
        self.last_sequence += 1;
        let frame = MiniBatchFrame {
            sequence: self.last_sequence,
            mini_batch: prepared.descriptor.mini_batch,
            try_number: prepared.descriptor.tries_spent.saturating_add(1),
            key: prepared.descriptor.key().to_vec(),
            payload: prepared.payload.clone(),
        };
        self.handed.push_back(InPipe {
            sequence: self.last_sequence,
            prepared,
            started_at: milliseconds_since_epoch(),
            began: Instant::now(),
        });
        frame
    }

    /// Memory of the tables in it.
    pub fn bytes(&self) -> u64 {
        self.handed.iter().map(|handed| handed.prepared.bytes).sum()
    }

    /// The process has answered hand-over `sequence`: the oldest, or the answer makes no sense. `seconds` is what it
    /// took, loading and reporting included.
    pub fn answered(&mut self, sequence: u64, seconds: f64) -> Option<InPipe> {
        if self.handed.front()?.sequence != sequence {
            return None;
        }
        let mean = self.mean_seconds.unwrap_or(seconds);
        self.mean_seconds = Some(mean + MEAN_WEIGHT * (seconds - mean));
        let answered = self.handed.pop_front();
        if let Some(next) = self.handed.front_mut() {
            next.began = Instant::now();
            next.started_at = milliseconds_since_epoch();
        }
        answered
    }

    /// The hand-overs behind the one whose turn it is, if there are any: first and end.
    pub fn behind(&self) -> Option<(u64, u64)> {
        Some((self.handed.get(1)?.sequence, self.last_sequence + 1))
    }

    /// Takes back everything behind the hand-over whose turn it is, which has taken `so_far` already.
    pub fn recall(&mut self, so_far: Duration) -> impl DoubleEndedIterator<Item = InPipe> + '_ {
        // Slow runs come together more often than not: nothing is put behind the next one either.
        self.mean_seconds = self.mean_seconds.map(|mean| mean.max(so_far.as_secs_f64()));
        self.handed.drain(1..)
    }

    /// The process has skipped a recalled hand-over that is still here.
    pub fn skipped(&mut self, sequence: u64) -> Option<InPipe> {
        if self.handed.front()?.sequence != sequence {
            return None;
        }
        self.handed.pop_front()
    }

    /// Takes out one hand-over, wherever it stands.
    pub fn remove(&mut self, sequence: u64) -> Option<InPipe> {
        let position = self.handed.iter().position(|handed| handed.sequence == sequence)?;
        self.handed.remove(position)
    }

    /// The hand-over of a lease.
    pub fn sequence_of(&self, lease: LeaseId) -> Option<u64> {
        self.handed.iter().find(|handed| handed.prepared.lease == lease).map(|handed| handed.sequence)
    }

    /// The hand-over whose turn it is.
    pub fn front(&self) -> Option<&InPipe> {
        self.handed.front()
    }

    /// A hand-over, if it is still in the pipe.
    pub fn get_mut(&mut self, sequence: u64) -> Option<&mut InPipe> {
        self.handed.iter_mut().find(|handed| handed.sequence == sequence)
    }

    /// A hand-over, if it is still in the pipe.
    pub fn get(&self, sequence: u64) -> Option<&InPipe> {
        self.handed.iter().find(|handed| handed.sequence == sequence)
    }

    /// Takes back everything.
    pub fn drain(&mut self) -> impl Iterator<Item = InPipe> + '_ {
        self.handed.drain(..)
    }
}

impl Prepared {
    /// A mini-batch that could not be read: its items are those the descriptor knows, or one.
    pub fn unreadable(lease: LeaseId, descriptor: Descriptor, deliveries_lost: u32) -> Self {
        let total = match &descriptor.work {
            Work::Files { paths, .. } => paths.len() as u64,
            Work::Rows { blocks, .. } => blocks.iter().map(|block| block.range.rows().unwrap_or(0)).sum(),
            Work::Rank | Work::Planned { .. } => 1,
        };
        Self {
            lease,
            descriptor,
            deliveries_lost,
            payload: Payload::Rank,
            file: None,
            downloads: None,
            bytes: 0,
            passed: 0,
            total: total.max(1),
            warnings: Vec::new(),
            warnings_total: 0,
        }
    }
}

impl InPipe {
    /// For a mini-batch that no process sees.
    pub fn unrun(prepared: Prepared) -> Self {
        Self { sequence: 0, prepared, started_at: milliseconds_since_epoch(), began: Instant::now() }
    }
}

/// Deliveries of a mini-batch that were lost with their node: those that its descriptor brings along, and those that the
/// queue counts beyond this one.
pub fn deliveries_lost(descriptor: &Descriptor, receive_count: u32) -> u32 {
    descriptor.deliveries_lost.saturating_add(receive_count.saturating_sub(1))
}

/// Why a mini-batch is not begun any more, if it has been lost too often.
pub fn lost_too_often(descriptor: &Descriptor, lost: u32, lost_max: u32, node: &str) -> Option<ErrorReport> {
    (lost > lost_max).then(|| ErrorReport {
        category: "LostTooOften".into(),
        message: format!(
            "mini-batch {} was lost with its node {lost} times (limit {lost_max}): does it take the machine down? \
             Look at the memory of its last attempts in logs/perf",
            descriptor.mini_batch
        ),
        traceback: String::new(),
        log: format!("sys/node/{node}/_main.txt"),
    })
}

/// Who worked on an attempt.
#[derive(Clone, Copy, Debug)]
pub struct Worker<'a> {
    /// Node.
    pub node: &'a str,
    /// `processNNN`; empty when no process saw the mini-batch.
    pub process: &'a str,
}

/// How an attempt ended, and how long it took.
#[derive(Debug)]
pub struct Ending {
    /// How.
    pub status: AttemptStatus,
    /// Length of the result; 0 when there is none.
    pub returned: u64,
    /// Column names of a DataFrame.
    pub columns: Option<Vec<String>>,
    /// What went wrong.
    pub error: Option<ErrorReport>,
    /// Duration of `run()`.
    pub run_seconds: f64,
    /// Processor time of the process.
    pub process_seconds: f64,
}

impl Ending {
    /// An ending without a result.
    pub fn failed(status: AttemptStatus, error: ErrorReport) -> Self {
        Self { status, returned: 0, columns: None, error: Some(error), run_seconds: 0.0, process_seconds: 0.0 }
    }
}

/// The attempt as it is announced, and the descriptor of the next try if there is one.
pub fn conclude(handed: &mut InPipe, worker: Worker, ending: Ending, tries_max: u32) -> (Attempt, Option<Descriptor>) {
    let prepared = &mut handed.prepared;
    let descriptor = &prepared.descriptor;
    let try_number = descriptor.tries_spent.saturating_add(1);
    let succeeded = ending.status == AttemptStatus::Succeeded;
    let is_final = succeeded || try_number >= tries_max || ending.status == AttemptStatus::LostTooOften;
    let next_try = (!is_final).then(|| Descriptor {
        tries_spent: try_number,
        deliveries_lost: prepared.deliveries_lost,
        ..descriptor.clone()
    });
    let run_seconds = match ending.status {
        // The process could not say it any more.
        AttemptStatus::RunTimedOut | AttemptStatus::ProcessDied => handed.began.elapsed().as_secs_f64(),
        _ => ending.run_seconds,
    };
    let attempt = Attempt {
        mini_batch: descriptor.mini_batch,
        try_number,
        deliveries_lost: prepared.deliveries_lost,
        node: worker.node.into(),
        process: worker.process.into(),
        status: ending.status,
        is_final,
        total: prepared.total,
        succeeded: if succeeded { ending.returned.min(prepared.passed) } else { 0 },
        rows: Rows::None,
        columns: ending.columns,
        started_at: handed.started_at,
        elapsed_seconds: handed.began.elapsed().as_secs_f64().max(run_seconds),
        process_seconds: ending.process_seconds,
        run_seconds,
        error: ending.error.map(Box::new),
        warnings: std::mem::take(&mut prepared.warnings),
        warnings_total: prepared.warnings_total,
        detail: descriptor.detail(),
        traceparent: None,
    };
    let traceparent = trace::go_on(descriptor.traceparent, || processed(&descriptor.job_id, &attempt));
    (Attempt { traceparent, ..attempt }, next_try)
}

/// The attempt as a step of the trace of its mini-batch.
fn processed(job_id: &str, attempt: &Attempt) -> Step {
    let error = (attempt.status != AttemptStatus::Succeeded).then(|| attempt.status.word());
    Step {
        name: "process tasks",
        kind: StepKind::Consumer,
        parent: None,
        began: SystemTime::UNIX_EPOCH + Duration::from_millis(attempt.started_at),
        took: Duration::try_from_secs_f64(attempt.elapsed_seconds).unwrap_or_default(),
        fields: vec![
            ("job.id", job_id.into()),
            ("mini_batch.id", attempt.mini_batch.into()),
            ("attempt.number", u64::from(attempt.try_number).into()),
            ("node.id", attempt.node.as_str().into()),
            ("process.id", attempt.process.as_str().into()),
            ("outcome", attempt.status.word().into()),
        ],
        error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepared(mini_batch: u64, tries_spent: u32) -> Prepared {
        Prepared {
            lease: mini_batch,
            descriptor: Descriptor {
                job_id: "job".into(),
                mini_batch,
                tries_spent,
                deliveries_lost: 0,
                traceparent: None,
                work: Work::Files { input: 0, paths: vec!["/a".into(), "/b".into()], versions: vec![], key: vec![] },
            },
            deliveries_lost: 2,
            payload: Payload::Rank,
            file: None,
            downloads: None,
            bytes: 0,
            passed: 2,
            total: 2,
            warnings: vec![],
            warnings_total: 0,
        }
    }

    fn worker() -> Worker<'static> {
        Worker { node: "0", process: "process000" }
    }

    #[test]
    fn nothing_waits_behind_a_slow_run_and_fast_runs_come_in_packs() {
        let mut pipe = Pipe::default();
        assert_eq!(pipe.wanted(), 1, "before anything is known");
        pipe.hand_over(prepared(0, 0));
        assert_eq!(pipe.wanted(), 0);
        pipe.answered(1, 5.0).expect("the oldest");
        assert_eq!(pipe.wanted(), 1);
        for round in 0..100 {
            pipe.hand_over(prepared(round, 0));
            pipe.answered(2 + round, 0.000_01).expect("the oldest");
        }
        assert_eq!(pipe.wanted(), PIPE_MAX);
    }

    #[test]
    fn answers_out_of_turn_are_refused() {
        let mut pipe = Pipe::default();
        pipe.hand_over(prepared(0, 0));
        pipe.hand_over(prepared(1, 0));
        assert!(pipe.answered(2, 0.1).is_none());
        assert_eq!(pipe.answered(1, 0.1).expect("the oldest").prepared.descriptor.mini_batch, 0);
    }

    #[test]
    fn a_failed_try_is_followed_by_another_until_they_are_spent() {
        for (tries_spent, last) in [(0, false), (1, false), (2, true)] {
            let mut pipe = Pipe::default();
            pipe.hand_over(prepared(7, tries_spent));
            let mut handed = pipe.answered(1, 0.1).expect("the oldest");
            let ending = Ending::failed(AttemptStatus::RunRaised, ErrorReport::default());
            let (attempt, next) = conclude(&mut handed, worker(), ending, 3);
            assert_eq!((attempt.try_number, attempt.is_final), (tries_spent + 1, last));
            assert_eq!(
                next.map(|next| (next.tries_spent, next.deliveries_lost)),
                (!last).then_some((tries_spent + 1, 2))
            );
            assert_eq!((attempt.total, attempt.failed()), (2, 2));
        }
    }

    #[test]
    fn a_result_longer_than_its_input_counts_no_more_than_its_input() {
        for (returned, succeeded) in [(0, 0), (1, 1), (2, 2), (9, 2)] {
            let mut pipe = Pipe::default();
            pipe.hand_over(prepared(7, 0));
            let mut handed = pipe.answered(1, 0.1).expect("the oldest");
            let ending = Ending {
                status: AttemptStatus::Succeeded,
                returned,
                columns: None,
                error: None,
                run_seconds: 0.1,
                process_seconds: 0.1,
            };
            let (attempt, next) = conclude(&mut handed, worker(), ending, 3);
            assert_eq!((attempt.total, attempt.succeeded, next), (2, succeeded, None));
        }
    }
}
