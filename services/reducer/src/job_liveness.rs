//! Tracks whether a job has a live worker, and the total time with one. Pure: the caller passes the
//! time.
//!
//! On a target, workers come and go. A job without workers waits and does not fail: the limits on
//! time without progress count only the time in which a worker sent heartbeats, by a result or in
//! the store. On one machine, the same applies to the time in which the whole process is stopped
//! (Ctrl-Z, a frozen container, a sleeping laptop).

use std::time::Duration;

use protocol::milliseconds_since_epoch;
use tokio::time::Instant;

/// A time on two clocks.
#[derive(Clone, Copy, Debug)]
pub struct Timestamp {
    /// For durations.
    pub instant: Instant,
    /// Wall clock, in milliseconds since 1970, for people.
    pub epoch_milliseconds: u64,
}

impl Timestamp {
    /// Reads both clocks.
    pub fn now() -> Self {
        Self { instant: Instant::now(), epoch_milliseconds: milliseconds_since_epoch() }
    }

    /// Returns the time that was this long before.
    pub fn before(self, time: Duration) -> Self {
        let milliseconds = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Self {
            instant: self.instant.checked_sub(time).unwrap_or(self.instant),
            epoch_milliseconds: self.epoch_milliseconds.saturating_sub(milliseconds),
        }
    }

    #[cfg(test)]
    pub(crate) fn after(self, time: Duration) -> Self {
        let epoch_milliseconds = self.epoch_milliseconds + time.as_millis() as u64;
        Self { instant: self.instant + time, epoch_milliseconds }
    }
}

/// The heartbeats of the workers of a job.
#[derive(Debug)]
pub(crate) struct JobLiveness {
    silence: Duration,
    /// Time of the last heartbeat; before the first one, the start of listening.
    heard: Instant,
    /// The last heartbeat on the wall clock; `None` before the first.
    heard_at: Option<u64>,
    attended: Duration,
}

impl JobLiveness {
    /// Starts to listen. A worker counts as absent after `silence`.
    pub fn new(silence: Duration, now: Timestamp) -> Self {
        Self { silence, heard: now.instant, heard_at: None, attended: Duration::ZERO }
    }

    /// Records a heartbeat of a worker at this time, which may be some time ago.
    pub fn heard(&mut self, at: Timestamp) {
        self.heard_at = self.heard_at.max(Some(at.epoch_milliseconds));
        if at.instant <= self.heard {
            return;
        }
        if !self.is_silent(at) {
            self.attended += at.instant - self.heard;
        }
        self.heard = at.instant;
    }

    /// Whether any worker has ever sent a heartbeat.
    pub fn has_heard(&self) -> bool {
        self.heard_at.is_some()
    }

    /// Returns when all workers count as absent, unless one sends a heartbeat before.
    pub fn silent_at(&self) -> Instant {
        self.heard + self.silence
    }

    /// Whether all workers count as absent.
    pub fn is_silent(&self, now: Timestamp) -> bool {
        now.instant >= self.silent_at()
    }

    /// Returns the wall clock of the last heartbeat if all workers count as absent; `None` if none
    /// has ever sent one.
    pub fn silent_since(&self, now: Timestamp) -> Option<u64> {
        self.heard_at.filter(|_| self.is_silent(now))
    }

    /// Returns the total time with at least one worker, including the time since its last
    /// heartbeat.
    pub fn attended_until(&self, now: Timestamp) -> Duration {
        let is_there = self.has_heard() && !self.is_silent(now);
        self.attended
            + if is_there {
                now.instant.saturating_duration_since(self.heard)
            } else {
                Duration::ZERO
            }
    }

    /// Returns the total time with at least one worker.
    pub fn attended(&self) -> Duration {
        self.attended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENCE: Duration = Duration::from_secs(5);

    fn seconds(now: &mut Timestamp, seconds: u64) -> Timestamp {
        *now = now.after(Duration::from_secs(seconds));
        *now
    }

    #[test]
    fn time_without_workers_does_not_count() {
        let mut now = Timestamp::now();
        let mut job_liveness = JobLiveness::new(SILENCE, now);
        for _ in 0..10 {
            job_liveness.heard(seconds(&mut now, 3));
        }
        assert_eq!((job_liveness.attended().as_secs(), job_liveness.is_silent(now)), (30, false));
        assert_eq!(job_liveness.attended_until(now.after(Duration::from_secs(2))).as_secs(), 32);
        assert_eq!(
            job_liveness.attended_until(now.after(Duration::from_secs(9))).as_secs(),
            30,
            "it is silent"
        );
        let heard_at = now.epoch_milliseconds;
        seconds(&mut now, 3600);
        assert_eq!((job_liveness.attended().as_secs(), job_liveness.is_silent(now)), (30, true));
        assert_eq!(job_liveness.silent_since(now), Some(heard_at));
        job_liveness.heard(now);
        assert_eq!((job_liveness.attended().as_secs(), job_liveness.silent_since(now)), (30, None));
        job_liveness.heard(seconds(&mut now, 3));
        assert_eq!(job_liveness.attended().as_secs(), 33);
    }

    #[test]
    fn heartbeat_of_some_time_ago_counts_from_then() {
        let mut now = Timestamp::now();
        let mut job_liveness = JobLiveness::new(SILENCE, now);
        let heartbeat = seconds(&mut now, 3);
        job_liveness.heard(seconds(&mut now, 4).before(Duration::from_secs(4)));
        assert_eq!((job_liveness.attended().as_secs(), job_liveness.is_silent(now)), (3, false));
        job_liveness.heard(heartbeat);
        assert!(job_liveness.is_silent(seconds(&mut now, 1)));
        assert_eq!(job_liveness.silent_since(now), Some(heartbeat.epoch_milliseconds));
        job_liveness.heard(now);
        assert_eq!(
            (job_liveness.attended().as_secs(), job_liveness.is_silent(now)),
            (3, false),
            "no worker was present in between"
        );
    }

    #[test]
    fn job_without_a_first_worker_has_no_last_heartbeat() {
        let mut now = Timestamp::now();
        let mut job_liveness = JobLiveness::new(SILENCE, now);
        seconds(&mut now, 60);
        assert_eq!((job_liveness.is_silent(now), job_liveness.silent_since(now)), (true, None));
        job_liveness.heard(now);
        assert!(!job_liveness.is_silent(now), "the first worker arrives");
    }
}
