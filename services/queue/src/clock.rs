//! The clock that ends leases and delays. Tests use a manual clock, so that none of them sleeps.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

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
            Self::System => whole_milliseconds(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()),
            Self::Tokio(start) => START_MILLISECONDS + whole_milliseconds(start.elapsed()),
            Self::Manual(clock) => clock.0.load(Ordering::SeqCst),
        }
    }

    /// Returns the time `duration` from now.
    pub(crate) fn after(&self, duration: Duration) -> i64 {
        self.now_milliseconds().saturating_add(milliseconds(duration))
    }
}

/// A clock that stands still until a test advances it. Clones share the time.
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<AtomicI64>);

/// The start of clocks that do not follow the wall clock: a recent date (2023-11-14), so that stored times look real.
const START_MILLISECONDS: i64 = 1_700_000_000_000;

impl ManualClock {
    /// Creates a clock at an arbitrary time.
    pub fn new() -> Self {
        Self(Arc::new(AtomicI64::new(START_MILLISECONDS)))
    }

    /// Creates a clock that shows this date.
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

/// Returns the deadline of a call that waits this long.
pub(crate) fn deadline(wait: Duration) -> tokio::time::Instant {
    tokio::time::Instant::now() + wait.min(CENTURY)
}
