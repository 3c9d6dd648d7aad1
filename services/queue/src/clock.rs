//! The clocks of leases and delays: that of a queue, and that of a process which holds leases. Tests use manual clocks
//! instead of sleeping.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

/// A source of the current time.
#[derive(Clone, Debug)]
pub enum Clock {
    /// The wall clock, the only clock on which processes that share a file agree. Setting it back lengthens the leases
    /// that exist at that moment.
    System,
    /// The clock of the Tokio runtime, which tests can pause.
    Tokio(tokio::time::Instant),
    /// A clock that tests advance.
    Manual(ManualClock),
}

impl Clock {
    /// Returns the clock of the Tokio runtime.
    pub fn tokio() -> Self {
        Self::Tokio(tokio::time::Instant::now())
    }

    /// Returns the milliseconds since a fixed moment in the past.
    pub(crate) fn now_milliseconds(&self) -> i64 {
        match self {
            Self::System => {
                whole_milliseconds(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
            }
            Self::Tokio(start) => START_MILLISECONDS + whole_milliseconds(start.elapsed()),
            Self::Manual(clock) => clock.0.load(Ordering::SeqCst),
        }
    }

    /// Returns the time `duration` from now, in milliseconds.
    pub(crate) fn after(&self, duration: Duration) -> i64 {
        self.now_milliseconds().saturating_add(milliseconds(duration))
    }
}

/// A clock that moves only when a test advances it. Clones share the time.
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<AtomicI64>);

/// The start of clocks that do not follow the wall clock: a recent date (2023-11-14), so that stored times look real.
const START_MILLISECONDS: i64 = 1_700_000_000_000;

impl ManualClock {
    /// Creates a clock at an arbitrary time.
    pub fn new() -> Self {
        Self(Arc::new(AtomicI64::new(START_MILLISECONDS)))
    }

    /// Creates a clock that starts at this date.
    pub fn at(date: SystemTime) -> Self {
        let since_epoch = date.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(Arc::new(AtomicI64::new(whole_milliseconds(since_epoch))))
    }

    /// Advances the clock.
    pub fn advance(&self, duration: Duration) {
        self.0.fetch_add(milliseconds(duration), Ordering::SeqCst);
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

fn whole_milliseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).expect("dates of clocks fit")
}

/// A century: longer than any wait, and short enough that no sum overflows.
const CENTURY: Duration = Duration::from_secs(100 * 366 * 24 * 3600);

/// Converts to milliseconds, rounded up so that nothing ends early.
fn milliseconds(duration: Duration) -> i64 {
    whole_milliseconds(duration.min(CENTURY) + Duration::from_nanos(999_999))
}

/// The clock by which a process measures its leases. Unlike [`Instant`] on Linux, it includes the time during which the
/// machine was suspended, or paused as a virtual machine. It is monotonic.
#[derive(Clone, Debug)]
pub enum LeaseClock {
    /// The clocks of the system.
    System,
    /// The clock of the Tokio runtime, and the time for which a test has suspended the machine.
    Manual(ManualSleep),
}

/// The time for which a test has suspended its machine. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct ManualSleep(Arc<AtomicU64>);

impl ManualSleep {
    /// Suspends the machine for this long: only [`LeaseClock`] advances.
    pub fn suspend(&self, time: Duration) {
        self.0.fetch_add(time.as_millis() as u64, Ordering::SeqCst);
    }
}

impl LeaseClock {
    /// Returns the current time.
    pub fn now(&self) -> Instant {
        Instant::now() + self.suspended()
    }

    /// Returns how long the machine has been suspended since the first call.
    pub fn suspended(&self) -> Duration {
        match self {
            Self::System => suspended(),
            Self::Manual(sleep) => Duration::from_millis(sleep.0.load(Ordering::SeqCst)),
        }
    }

    /// Returns the time of [`Instant::now`] at which this clock reaches `at` if the machine is not suspended before.
    pub fn awake_at(&self, at: Instant) -> Instant {
        Instant::now() + at.saturating_duration_since(self.now())
    }
}

/// A shorter difference between clocks does not count as a suspension.
const SUSPENDED_MIN_MILLISECONDS: u64 = 1000;

/// Returns how long the machine has been suspended since the first call.
///
/// The kernel counts its own suspensions. After a pause of a virtual machine, only the wall clock jumps forward. A
/// person who sets it forward causes the same jump. That costs leases, which only repeats work.
fn suspended() -> Duration {
    static AT_START: OnceLock<[i64; 2]> = OnceLock::new();
    static SUSPENDED: AtomicU64 = AtomicU64::new(0);
    let ahead = ahead_of_monotonic();
    let at_start = AT_START.get_or_init(|| ahead);
    let measured = ahead.iter().zip(at_start).map(|(now, start)| now - start).max();
    let measured = measured.map_or(0, |measured| u64::try_from(measured).unwrap_or(0));
    let known = SUSPENDED.load(Ordering::SeqCst);
    let known = if measured < known + SUSPENDED_MIN_MILLISECONDS {
        known
    } else {
        SUSPENDED.fetch_max(measured, Ordering::SeqCst).max(measured)
    };
    Duration::from_millis(known)
}

/// Returns how many milliseconds the clock that includes suspensions, and the wall clock, are ahead of that of
/// [`Instant`].
fn ahead_of_monotonic() -> [i64; 2] {
    let milliseconds = |clock| {
        let time = clock_gettime(clock);
        time.tv_sec * 1000 + time.tv_nsec / 1_000_000
    };
    let others = [milliseconds(ClockId::Boottime), milliseconds(ClockId::Realtime)];
    // This clock is read last, so that an interruption between two readings does not look like a suspension.
    let monotonic = milliseconds(ClockId::Monotonic);
    others.map(|other| other - monotonic)
}

/// Returns the deadline of a call that waits this long.
pub(crate) fn deadline(wait: Duration) -> tokio::time::Instant {
    tokio::time::Instant::now() + wait.min(CENTURY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn lease_clock_counts_suspensions() {
        let sleep = ManualSleep::default();
        let (clock, start) = (LeaseClock::Manual(sleep.clone()), Instant::now());
        tokio::time::advance(Duration::from_secs(1)).await;
        sleep.suspend(Duration::from_secs(300));
        assert_eq!(clock.now() - start, Duration::from_secs(301));
        assert_eq!(
            clock.awake_at(start + Duration::from_secs(303)) - start,
            Duration::from_secs(3)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn lease_clock_without_suspension_equals_that_of_the_runtime() {
        let clock = LeaseClock::System;
        for _ in 0..1000 {
            assert_eq!(clock.now(), Instant::now());
        }
    }
}
