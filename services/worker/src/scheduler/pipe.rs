//! The mini-batches that a process has been handed and has not answered, in order.
//!
//! Their number follows from the duration of runs: enough that the process never waits, few enough that nothing waits
//! behind a slow run.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use protocol::WaitTimes;

use super::Timestamp;
use crate::lease::LeaseId;

/// Work that a pipe should hold, in seconds.
const PIPE_SECONDS: f64 = 0.02;
const PIPE_MAX: usize = 256;
const MEAN_WEIGHT: f64 = 0.2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PipedMiniBatch {
    pub(super) sequence: u64,
    pub(super) lease: LeaseId,
    /// When its attempt started: it was handed over, and the mini-batch before it had ended.
    pub(super) began: Timestamp,
    /// Time that it waits for a service that limits its rate.
    pub(super) rate_limited: Duration,
    /// Time that it waits for the limits of the job.
    pub(super) limited: Duration,
    /// Until when the process waits, because a service has limited its rate.
    pub(super) waits_until: Option<Instant>,
}

impl PipedMiniBatch {
    /// Returns the end of its attempt. Waiting for a service, or for the limits of the job, does not count towards the limit.
    pub(super) fn deadline(&self, limit: Duration) -> Instant {
        self.began.instant + limit + self.waited()
    }

    /// Returns how long it waits for a service and for the limits of the job.
    pub(super) fn waited(&self) -> Duration {
        self.rate_limited + self.limited
    }

    /// Returns the same in the form of an attempt.
    pub(super) fn waits(&self) -> WaitTimes {
        let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        WaitTimes {
            limits_milliseconds: milliseconds(self.limited),
            services_milliseconds: milliseconds(self.rate_limited),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Pipe {
    handed: VecDeque<PipedMiniBatch>,
    last_sequence: u64,
    mean_seconds: Option<f64>,
}

impl Pipe {
    /// Returns the number of mini-batches that the pipe should hold.
    pub(super) fn depth(&self) -> usize {
        self.mean_seconds
            .map_or(1, |mean| 1 + ((PIPE_SECONDS / mean.max(1e-9)) as usize).min(PIPE_MAX - 1))
    }

    /// Returns the time that a mini-batch usually takes, with loading and reporting.
    pub(super) fn mean(&self) -> Option<Duration> {
        self.mean_seconds.and_then(|mean| Duration::try_from_secs_f64(mean).ok())
    }

    /// Returns the number of mini-batches to hand over now: 0 while the pipe is more than half full.
    pub(super) fn wanted(&self) -> usize {
        let depth = self.depth();
        if self.handed.len() * 2 > depth { 0 } else { depth - self.handed.len() }
    }

    pub(super) fn len(&self) -> usize {
        self.handed.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.handed.is_empty()
    }

    /// Adds a mini-batch, and returns the number of the hand-over.
    pub(super) fn hand_over(&mut self, lease: LeaseId, now: Timestamp) -> u64 {
        self.last_sequence += 1;
        self.handed.push_back(PipedMiniBatch {
            sequence: self.last_sequence,
            lease,
            began: now,
            rate_limited: Duration::ZERO,
            limited: Duration::ZERO,
            waits_until: None,
        });
        self.last_sequence
    }

    /// Removes the hand-over that the process has answered, which must be the first. `seconds` is the duration with
    /// loading and reporting; `None`: it says nothing about other mini-batches.
    pub(super) fn answered(
        &mut self,
        sequence: u64,
        seconds: Option<f64>,
        now: Timestamp,
    ) -> Option<PipedMiniBatch> {
        let answered = self.skipped(sequence)?;
        if let Some(seconds) = seconds {
            let mean = self.mean_seconds.unwrap_or(seconds);
            self.mean_seconds = Some(mean + MEAN_WEIGHT * (seconds - mean));
        }
        if let Some(next) = self.handed.front_mut() {
            next.began = now;
        }
        Some(answered)
    }

    /// Removes a recalled hand-over that the process has skipped, if it is the first.
    pub(super) fn skipped(&mut self, sequence: u64) -> Option<PipedMiniBatch> {
        self.handed.pop_front_if(|first| first.sequence == sequence)
    }

    pub(super) fn behind(&self) -> Option<Range<u64>> {
        Some(self.handed.get(1)?.sequence..self.last_sequence + 1)
    }

    pub(super) fn recall(&mut self, now: Timestamp) -> Vec<PipedMiniBatch> {
        let Some(front) = self.handed.front() else { return Vec::new() };
        // Slow runs often follow each other, so the next one is handed over alone too.
        let so_far = now.instant.duration_since(front.began.instant).as_secs_f64();
        self.mean_seconds = self.mean_seconds.map(|mean| mean.max(so_far));
        self.handed.drain(1..).collect()
    }

    pub(super) fn remove(&mut self, sequence: u64) -> Option<PipedMiniBatch> {
        let position = self.handed.iter().position(|handed| handed.sequence == sequence)?;
        self.handed.remove(position)
    }

    /// Returns the first hand-over, which the process works on.
    pub(super) fn front(&self) -> Option<PipedMiniBatch> {
        self.handed.front().copied()
    }

    /// Adds a wait to the first hand-over, which it returns, if it has this number.
    pub(super) fn rate_limited(
        &mut self,
        sequence: u64,
        time: Duration,
        now: Timestamp,
    ) -> Option<PipedMiniBatch> {
        let front = self.handed.front_mut().filter(|front| front.sequence == sequence)?;
        front.rate_limited += time;
        front.waits_until =
            Some(front.waits_until.map_or(now.instant, |until| until.max(now.instant)) + time);
        Some(*front)
    }

    /// Adds a wait for the limits of the job to the first hand-over, which it returns.
    pub(super) fn limited(&mut self, time: Duration) -> Option<PipedMiniBatch> {
        let front = self.handed.front_mut()?;
        front.limited += time;
        Some(*front)
    }

    /// Returns the last hand-over.
    pub(super) fn back(&self) -> Option<PipedMiniBatch> {
        self.handed.back().copied()
    }

    pub(super) fn get(&self, sequence: u64) -> Option<PipedMiniBatch> {
        self.handed.iter().find(|handed| handed.sequence == sequence).copied()
    }

    pub(super) fn take(&mut self) -> Vec<PipedMiniBatch> {
        std::mem::take(&mut self.handed).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        Timestamp { instant: Instant::now(), milliseconds: 0 }
    }

    #[test]
    fn pipe_holds_one_slow_run_and_many_fast_ones() {
        let (mut pipe, now) = (Pipe::default(), now());
        assert_eq!(pipe.wanted(), 1, "before anything is known");
        pipe.hand_over(0, now);
        assert_eq!(pipe.wanted(), 0);
        pipe.answered(1, Some(5.0), now).expect("the first");
        assert_eq!(pipe.wanted(), 1);
        for round in 0..100 {
            pipe.hand_over(round, now);
            pipe.answered(2 + round, Some(0.000_01), now).expect("the first");
        }
        assert_eq!(pipe.wanted(), PIPE_MAX);
    }

    #[test]
    fn answer_starts_the_next_attempt() {
        let (mut pipe, now) = (Pipe::default(), now());
        pipe.hand_over(70, now);
        pipe.hand_over(71, now);
        let later = Timestamp { instant: now.instant + Duration::from_secs(3), ..now };
        pipe.answered(1, Some(3.0), later).expect("the first");
        assert_eq!(pipe.front().map(|front| front.began), Some(later));
    }

    #[test]
    fn recall_leaves_one_hand_over() {
        let (mut pipe, now) = (Pipe::default(), now());
        pipe.hand_over(0, now);
        pipe.answered(1, Some(0.001), now).expect("the first");
        for lease in 10..20 {
            pipe.hand_over(lease, now);
        }
        assert_eq!(pipe.behind(), Some(3..12));
        let later = Timestamp { instant: now.instant + Duration::from_millis(60), ..now };
        let recalled: Vec<_> = pipe.recall(later).iter().map(|handed| handed.lease).collect();
        assert_eq!(recalled, (11..20).collect::<Vec<_>>());
        assert_eq!((pipe.handed.len(), pipe.depth(), pipe.wanted()), (1, 1, 0));
    }
}
