//! Tracks whether a worker is present, and the total time with one. Pure: moments in.
//!
//! On a target, workers come and go. A job without workers waits and does not fail: the limits on time without progress
//! count only the time in which a worker gave a sign, by a result or in the store. On one machine, the same applies to
//! the time in which the whole process is stopped (Ctrl-Z, a frozen container, a sleeping laptop).

use std::time::Duration;

use protocol::milliseconds_since_epoch;
use storage::Beat;
use tokio::time::Instant;

/// One moment on two clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    /// For durations.
    pub instant: Instant,
    /// Wall clock, in milliseconds since 1970, for people.
    pub epoch_milliseconds: u64,
}

impl Moment {
    /// Reads both clocks.
    pub fn now() -> Self {
        Self { instant: Instant::now(), epoch_milliseconds: milliseconds_since_epoch() }
    }

    #[cfg(test)]
    pub fn after(self, time: Duration) -> Self {
        let epoch_milliseconds = self.epoch_milliseconds + time.as_millis() as u64;
        Self { instant: self.instant + time, epoch_milliseconds }
    }
}

/// The signs of life of the workers of a job.
#[derive(Debug)]
pub(crate) struct Presence {
    silence: Duration,
    /// What is added to `silence` while several nodes work.
    silence_of_several: Duration,
    /// Number of nodes that have worked on the job.
    nodes: usize,
    /// Time of the last sign; before the first sign, the start of listening.
    heard: Instant,
    /// The last sign on the wall clock; `None` before the first.
    heard_at: Option<u64>,
    /// The last sign of life read from the store; `None` before the first read.
    beat: Option<Option<Beat>>,
    attended: Duration,
}

impl Presence {
    /// Starts to listen. A worker counts as absent after `silence`. Several nodes count as absent `silence_of_several`
    /// later: one gives the signs for all, and when it dies, the others notice up to two periods after its last sign.
    pub fn new(silence: Duration, silence_of_several: Duration, now: Moment) -> Self {
        let (heard, attended) = (now.instant, Duration::ZERO);
        Self { silence, silence_of_several, nodes: 0, heard, heard_at: None, beat: None, attended }
    }

    /// Sets the number of nodes that have worked on the job.
    pub fn set_nodes(&mut self, nodes: usize) {
        self.nodes = nodes;
    }

    /// Records a sign of a worker.
    pub fn heard(&mut self, now: Moment) {
        if !self.is_silent(now) {
            self.attended += now.instant - self.heard;
        }
        self.heard = now.instant;
        self.heard_at = Some(now.epoch_milliseconds);
    }

    /// Records the sign of life in the store. The age of the first one is unknown, so a worker that gave it counts as
    /// absent once `silence` passes without another.
    pub fn looked(&mut self, beat: Option<Beat>, now: Moment) {
        let at = beat.as_ref().map(|beat| beat.at);
        let is_new = self.beat.as_ref().is_some_and(|before| beat.is_some() && *before != beat);
        let is_first = self.beat.replace(beat).is_none();
        if is_new {
            self.heard(now);
        } else if is_first && at.is_some() {
            self.heard = now.instant;
            self.heard_at = self.heard_at.max(at);
        }
    }

    /// Whether any worker has ever given a sign.
    pub fn has_heard(&self) -> bool {
        self.heard_at.is_some()
    }

    /// Whether the last sign is so recent that the store need not be read.
    pub fn is_recent(&self, period: Duration, now: Moment) -> bool {
        self.has_heard() && now.instant - self.heard < period
    }

    /// Returns when all workers count as absent, unless one gives a sign before.
    pub fn silent_at(&self) -> Instant {
        let more = if self.nodes > 1 { self.silence_of_several } else { Duration::ZERO };
        self.heard + self.silence + more
    }

    /// Whether all workers count as absent.
    pub fn is_silent(&self, now: Moment) -> bool {
        now.instant >= self.silent_at()
    }

    /// Returns the wall clock of the last sign if all workers count as absent; `None` if none has ever given a sign.
    pub fn silent_since(&self, now: Moment) -> Option<u64> {
        self.heard_at.filter(|_| self.is_silent(now))
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
    const MORE: Duration = Duration::from_secs(4);

    fn beat(at: u64) -> Option<Beat> {
        Some(Beat { node: "a".into(), count: at, at })
    }

    fn seconds(now: &mut Moment, seconds: u64) -> Moment {
        *now = now.after(Duration::from_secs(seconds));
        *now
    }

    #[test]
    fn time_without_workers_does_not_count() {
        let mut now = Moment::now();
        let mut presence = Presence::new(SILENCE, MORE, now);
        for _ in 0..10 {
            presence.heard(seconds(&mut now, 3));
        }
        assert_eq!((presence.attended().as_secs(), presence.is_silent(now)), (30, false));
        let heard_at = now.epoch_milliseconds;
        seconds(&mut now, 3600);
        assert_eq!((presence.attended().as_secs(), presence.is_silent(now)), (30, true));
        assert_eq!(presence.silent_since(now), Some(heard_at));
        presence.heard(now);
        assert_eq!((presence.attended().as_secs(), presence.silent_since(now)), (30, None));
        presence.heard(seconds(&mut now, 3));
        assert_eq!(presence.attended().as_secs(), 33);
    }

    #[test]
    fn several_nodes_count_as_absent_later_than_one() {
        let mut now = Moment::now();
        let mut presence = Presence::new(SILENCE, MORE, now);
        presence.set_nodes(2);
        presence.heard(now);
        assert!(!presence.is_silent(seconds(&mut now, 8)));
        assert!(presence.is_silent(seconds(&mut now, 1)));
    }

    #[test]
    fn only_a_changed_beat_is_a_sign_of_life() {
        let mut now = Moment::now();
        let mut presence = Presence::new(SILENCE, MORE, now);
        presence.looked(beat(7), now);
        presence.looked(beat(7), seconds(&mut now, 6));
        assert_eq!(presence.silent_since(now), Some(7), "a worker was present before");
        presence.looked(beat(8), now);
        assert!(!presence.is_silent(now));
        presence.looked(None, seconds(&mut now, 6));
        assert!(presence.is_silent(now));
    }

    #[test]
    fn worker_that_is_first_seen_late_is_not_absent() {
        let mut now = Moment::now();
        let mut presence = Presence::new(SILENCE, MORE, now);
        presence.looked(beat(7), seconds(&mut now, 6));
        assert_eq!(presence.silent_since(now), None, "the worker may have given it just now");
        presence.looked(beat(7), seconds(&mut now, 6));
        assert_eq!(presence.silent_since(now), Some(7));
    }

    #[test]
    fn job_without_a_first_worker_has_no_last_sign() {
        let mut now = Moment::now();
        let mut presence = Presence::new(SILENCE, MORE, now);
        presence.looked(None, now);
        presence.looked(None, seconds(&mut now, 60));
        assert_eq!((presence.is_silent(now), presence.silent_since(now)), (true, None));
        presence.looked(beat(1), now);
        assert!(!presence.is_silent(now), "the first worker arrives");
    }
}
