//! The deliveries that this process has leased, by its own clock.
//!
//! Services are lax about old receipts: some extend an expired lease, even if another receiver holds the message.
//! So the queue records its leases and their ends, and neither extends nor releases anything else.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

/// SQS ends every lease this long after the receive, regardless of extensions, and rejects an
/// extension beyond that.
pub(super) const LEASE_MAX: Duration = Duration::from_secs(12 * 3600);
/// Allowance for differences between clocks, and for the time of a request.
const MARGIN: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(super) struct Leases {
    held: HashMap<Arc<str>, Lease>,
    /// Number of leases at which expired ones are removed.
    swept_at: usize,
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    lapses: Instant,
    /// When the service ends it in any case.
    ends: Instant,
}

impl Leases {
    /// Records a delivery that is leased from `leased_at`.
    pub fn took(&mut self, receipt: Arc<str>, leased_at: Instant, visibility: Duration) {
        if self.held.len() >= self.swept_at {
            self.held.retain(|_, lease| lease.lapses > leased_at);
            self.swept_at = (2 * self.held.len()).max(1000);
        }
        self.held
            .insert(receipt, Lease { lapses: leased_at + visibility, ends: leased_at + LEASE_MAX });
    }

    /// Returns the seconds by which the lease can be extended, at most `asked`; `None` if it is lost.
    pub fn extension(&mut self, receipt: &str, asked: Duration, now: Instant) -> Option<i32> {
        let lease = self.held.get(receipt)?;
        let left = (lease.ends - MARGIN).saturating_duration_since(now).as_secs();
        if lease.lapses <= now || left == 0 {
            self.held.remove(receipt);
            return None;
        }
        Some(seconds(asked).min(i32::try_from(left).expect("12 hours fit")))
    }

    /// Records that the lease lasts this many seconds from `now`; with 0 it has ended.
    pub fn extended(&mut self, receipt: &str, seconds: i32, now: Instant) {
        if seconds == 0 {
            self.held.remove(receipt);
        } else if let Some(lease) = self.held.get_mut(receipt) {
            lease.lapses = now + Duration::from_secs(seconds.unsigned_abs().into());
        }
    }

    pub fn holds(&self, receipt: &str, now: Instant) -> bool {
        self.held.get(receipt).is_some_and(|lease| lease.lapses > now)
    }

    pub fn lost(&mut self, receipt: &str) {
        self.held.remove(receipt);
    }

    /// Returns how long a request may wait for messages: until the first lease lapses. If this process is killed, SQS
    /// does not see it at once, and would give the messages of this process to its own abandoned request, where they
    /// stay for another lease.
    pub fn wait_max(&self, now: Instant) -> Option<Duration> {
        let left = self
            .held
            .values()
            .filter_map(|lease| lease.lapses.checked_duration_since(now))
            .min()?;
        Some(Duration::from_secs(left.as_secs().max(1)))
    }
}

/// The wait for an answer. A lease begins when the service answers, and a process that was stopped, or whose machine slept,
/// reads the answer much later.
#[derive(Debug)]
pub(super) struct AnswerTimer {
    /// The last looks at which the answer had not arrived, one before the other.
    looks: [Instant; 2],
    /// The process has not run for a while, and the answer may have arrived then.
    was_stopped: bool,
}

impl AnswerTimer {
    pub const LOOK: Duration = Duration::from_secs(1);

    pub fn since(requested: Instant) -> Self {
        Self { looks: [requested; 2], was_stopped: false }
    }

    /// Notes that the answer has not arrived.
    pub fn look(&mut self, now: Instant) {
        self.was_stopped |= now - self.looks[1] > 2 * Self::LOOK;
        if !self.was_stopped {
            self.looks = [self.looks[1], now];
        }
    }

    /// Returns a time before the service answered: an answer is not on its way for longer than from one look to the next.
    pub fn leased_at(&self) -> Instant {
        self.looks[0]
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

    fn took(visibility: Duration) -> (Leases, Instant) {
        let (mut leases, start) = (Leases::default(), Instant::now());
        leases.took("a".into(), start, visibility);
        (leases, start)
    }

    #[test]
    fn requests_wait_no_longer_than_the_first_lease_lasts() {
        let (mut leases, start) = took(60 * SECOND);
        assert_eq!(Leases::default().wait_max(start), None);
        assert_eq!(leases.wait_max(start), Some(60 * SECOND));
        leases.took("b".into(), start, 8 * SECOND);
        assert_eq!(leases.wait_max(start + SECOND / 2), Some(7 * SECOND), "in whole seconds");
        assert_eq!(
            leases.wait_max(start + 8 * SECOND - SECOND / 10),
            Some(SECOND),
            "without requests in a row"
        );
        leases.extended("b", 8, start + 7 * SECOND);
        assert_eq!(leases.wait_max(start + 8 * SECOND), Some(7 * SECOND));
        assert_eq!(
            leases.wait_max(start + 16 * SECOND),
            Some(44 * SECOND),
            "a lapsed lease counts no more"
        );
        leases.lost("a");
        assert_eq!(leases.wait_max(start + 16 * SECOND), None);
    }

    #[test]
    fn lease_begins_at_the_end_of_the_wait_unless_the_process_was_stopped_in_it() {
        let start = Instant::now();
        let leased_at = |looks: &[u32]| {
            let mut waiting = AnswerTimer::since(start);
            looks.iter().for_each(|look| waiting.look(start + *look * SECOND));
            (waiting.leased_at() - start).as_secs()
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
        let (mut leases, start) = took(10 * SECOND);
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
        let (mut leases, start) = took(10 * SECOND);
        leases.extended("a", 0, start);
        assert!(!leases.holds("a", start));
    }

    #[test]
    fn extension_ends_twelve_hours_after_the_receive() {
        let (mut leases, start) = took(12 * HOUR);
        assert_eq!(leases.extension("a", 13 * HOUR, start), Some(43_195));
        assert_eq!(leases.extension("a", HOUR, start + 11 * HOUR), Some(3595));
        assert_eq!(leases.extension("a", 60 * SECOND, start + 11 * HOUR), Some(60));
        assert_eq!(leases.extension("a", 60 * SECOND, start + 12 * HOUR - 7 * SECOND), Some(2));
        assert_eq!(leases.extension("a", 60 * SECOND, start + 12 * HOUR - 5 * SECOND), None);
    }

    #[test]
    fn expired_leases_are_removed() {
        let (mut leases, start) = took(10 * SECOND);
        for number in 0..100_000 {
            let now = start + number * Duration::from_millis(10);
            leases.took(number.to_string().into(), now, 10 * SECOND);
        }
        assert!(leases.held.len() <= 2002, "{}", leases.held.len());
    }
}
