//! The leases of this process, and their ends by its own clock.
//!
//! Services are lax about old receipts: some extend an expired lease, even if another receiver holds the message.
//! So the queue extends and releases only leases that it has recorded and that have not expired.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

/// The longest time from a receive to the end of its lease. SQS rejects an extension beyond it.
pub(super) const LEASE_MAX: Duration = Duration::from_secs(12 * 3600);
/// The allowance for differences between clocks, and for the time of a request.
const MARGIN: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(super) struct Leases {
    held: HashMap<Arc<str>, Lease>,
    /// The number of leases at which the next call removes expired ones.
    swept_at: usize,
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    expires_at: Instant,
    /// When the service ends the lease regardless of extensions.
    ends_at: Instant,
}

impl Leases {
    /// Records a delivery whose lease lasts for `visibility` from `leased_at`.
    pub fn record(&mut self, receipt: Arc<str>, leased_at: Instant, visibility: Duration) {
        if self.held.len() >= self.swept_at {
            self.held.retain(|_, lease| lease.expires_at > leased_at);
            self.swept_at = (2 * self.held.len()).max(1000);
        }
        let (expires_at, ends_at) = (leased_at + visibility, leased_at + LEASE_MAX);
        self.held.insert(receipt, Lease { expires_at, ends_at });
    }

    /// Returns the seconds by which the lease can be extended, at most `requested`; `None` if it is lost.
    pub fn extension(&mut self, receipt: &str, requested: Duration, now: Instant) -> Option<i32> {
        let lease = self.held.get(receipt)?;
        let left = (lease.ends_at - MARGIN).saturating_duration_since(now).as_secs();
        if lease.expires_at <= now || left == 0 {
            self.held.remove(receipt);
            return None;
        }
        Some(seconds(requested).min(i32::try_from(left).expect("12 hours fit")))
    }

    /// Records that the lease lasts this many seconds from `now`; 0 ends it.
    pub fn extended(&mut self, receipt: &str, seconds: i32, now: Instant) {
        if seconds == 0 {
            self.held.remove(receipt);
        } else if let Some(lease) = self.held.get_mut(receipt) {
            lease.expires_at = now + Duration::from_secs(seconds.unsigned_abs().into());
        }
    }

    pub fn holds(&self, receipt: &str, now: Instant) -> bool {
        self.held.get(receipt).is_some_and(|lease| lease.expires_at > now)
    }

    pub fn remove(&mut self, receipt: &str) {
        self.held.remove(receipt);
    }

    /// Returns how long a request may wait for messages: until the first lease expires. SQS does not notice at once
    /// that this process was killed. A longer request would get the process's own messages again and hide them for
    /// another lease.
    pub fn wait_max(&self, now: Instant) -> Option<Duration> {
        let left = self
            .held
            .values()
            .filter_map(|lease| lease.expires_at.checked_duration_since(now))
            .min()?;
        Some(Duration::from_secs(left.as_secs().max(1)))
    }
}

/// The wait for an answer. A lease begins when the service answers, but a process that was stopped, or whose machine
/// slept, reads the answer much later.
#[derive(Debug)]
pub(super) struct AnswerTimer {
    /// The last two checks before which the answer had not arrived, in order.
    checks: [Instant; 2],
    /// Whether the process did not run for a while. The answer may have arrived in that time.
    was_stopped: bool,
}

impl AnswerTimer {
    pub const CHECK_INTERVAL: Duration = Duration::from_secs(1);

    pub fn since(requested: Instant) -> Self {
        Self { checks: [requested; 2], was_stopped: false }
    }

    /// Records that the answer has not arrived.
    pub fn check(&mut self, now: Instant) {
        self.was_stopped |= now - self.checks[1] > 2 * Self::CHECK_INTERVAL;
        if !self.was_stopped {
            self.checks = [self.checks[1], now];
        }
    }

    /// Returns a time before the service answered: an answer travels for less than the interval between two checks.
    pub fn leased_at(&self) -> Instant {
        self.checks[0]
    }
}

/// Returns whole seconds, the unit of SQS, rounded up so that nothing ends early, and at most 12 hours.
pub(super) fn seconds(duration: Duration) -> i32 {
    let whole = duration.min(LEASE_MAX).as_millis().div_ceil(1000);
    i32::try_from(whole).expect("12 hours fit")
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);
    const SECOND: Duration = Duration::from_secs(1);

    fn leased(visibility: Duration) -> (Leases, Instant) {
        let (mut leases, start) = (Leases::default(), Instant::now());
        leases.record("a".into(), start, visibility);
        (leases, start)
    }

    #[test]
    fn requests_wait_no_longer_than_the_first_lease_lasts() {
        let (mut leases, start) = leased(60 * SECOND);
        assert_eq!(Leases::default().wait_max(start), None);
        assert_eq!(leases.wait_max(start), Some(60 * SECOND));
        leases.record("b".into(), start, 8 * SECOND);
        assert_eq!(leases.wait_max(start + SECOND / 2), Some(7 * SECOND), "in whole seconds");
        assert_eq!(
            leases.wait_max(start + 8 * SECOND - SECOND / 10),
            Some(SECOND),
            "at least a second, so that requests do not follow each other closely"
        );
        leases.extended("b", 8, start + 7 * SECOND);
        assert_eq!(leases.wait_max(start + 8 * SECOND), Some(7 * SECOND));
        assert_eq!(
            leases.wait_max(start + 16 * SECOND),
            Some(44 * SECOND),
            "an expired lease does not count"
        );
        leases.remove("a");
        assert_eq!(leases.wait_max(start + 16 * SECOND), None);
    }

    #[test]
    fn lease_begins_at_the_end_of_the_wait_unless_the_process_was_stopped() {
        let start = Instant::now();
        let leased_at = |checks: &[u32]| {
            let mut timer = AnswerTimer::since(start);
            checks.iter().for_each(|check| timer.check(start + *check * SECOND));
            (timer.leased_at() - start).as_secs()
        };
        assert_eq!(leased_at(&[]), 0);
        assert_eq!(leased_at(&[1, 2, 3, 4, 5]), 4);
        assert_eq!(leased_at(&[1, 2, 3, 24, 25, 26]), 2);
    }

    #[test]
    fn seconds_are_rounded_up() {
        let cases =
            [(0, 0), (1, 1), (1000, 1), (1001, 2), (43_200_000, 43_200), (u64::MAX, 43_200)];
        for (milliseconds, expected) in cases {
            assert_eq!(seconds(Duration::from_millis(milliseconds)), expected);
        }
        assert_eq!(seconds(Duration::from_nanos(1_000_001)), 1);
    }

    #[test]
    fn lease_expires_by_the_local_clock() {
        let (mut leases, start) = leased(10 * SECOND);
        assert_eq!(leases.extension("a", 30 * SECOND, start + 9 * SECOND), Some(30));
        leases.extended("a", 30, start + 9 * SECOND);
        assert!(leases.holds("a", start + 38 * SECOND));
        assert!(!leases.holds("a", start + 39 * SECOND));
        assert_eq!(leases.extension("a", SECOND, start + 39 * SECOND), None);
        assert_eq!(
            leases.extension("a", SECOND, start + 9 * SECOND),
            None,
            "a lost lease stays lost"
        );
        assert_eq!(leases.extension("b", SECOND, start), None);
    }

    #[test]
    fn ended_lease_is_not_held() {
        let (mut leases, start) = leased(10 * SECOND);
        leases.extended("a", 0, start);
        assert!(!leases.holds("a", start));
    }

    #[test]
    fn extension_ends_twelve_hours_after_the_receive() {
        let (mut leases, start) = leased(12 * HOUR);
        assert_eq!(leases.extension("a", 13 * HOUR, start), Some(43_195));
        assert_eq!(leases.extension("a", HOUR, start + 11 * HOUR), Some(3595));
        assert_eq!(leases.extension("a", 60 * SECOND, start + 11 * HOUR), Some(60));
        assert_eq!(leases.extension("a", 60 * SECOND, start + 12 * HOUR - 7 * SECOND), Some(2));
        assert_eq!(leases.extension("a", 60 * SECOND, start + 12 * HOUR - 5 * SECOND), None);
    }

    #[test]
    fn expired_leases_are_removed() {
        let (mut leases, start) = leased(10 * SECOND);
        for number in 0..100_000 {
            let now = start + number * Duration::from_millis(10);
            leases.record(number.to_string().into(), now, 10 * SECOND);
        }
        assert!(leases.held.len() <= 2002, "{}", leases.held.len());
    }
}
