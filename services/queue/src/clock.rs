//! The clock by which leases lapse and delays end. Tests hold a manual one, so that none of them sleeps.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Says what time it is.
#[derive(Clone, Debug)]
pub enum Clock {
    /// The wall clock, the only one that processes sharing a file agree on. Setting it back lengthens the leases that
    /// run at that moment.
    System,
    /// The clock of the tokio runtime, which tests can pause.
    Tokio(tokio::time::Instant),
    /// A clock that moves when it is told to.
    Manual(ManualClock),
}

impl Clock {
    /// The clock of the tokio runtime.
    pub fn tokio() -> Self {
        Self::Tokio(tokio::time::Instant::now())
    }

    /// Milliseconds since some moment in the past.
    pub(crate) fn now_milliseconds(&self) -> i64 {
        match self {
            Self::System => whole_milliseconds(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()),
            Self::Tokio(start) => START_MILLISECONDS + whole_milliseconds(start.elapsed()),
            Self::Manual(clock) => clock.0.load(Ordering::SeqCst),
        }
    }

    /// The moment that lies `duration` ahead.
    pub(crate) fn after(&self, duration: Duration) -> i64 {
        self.now_milliseconds().saturating_add(milliseconds(duration))
    }
}

/// A clock that stands still until it is advanced. Clones share the time.
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<AtomicI64>);

/// Where clocks start that do not follow the wall clock: a date like today's (2023-11-14), so that stored times look alike.
const START_MILLISECONDS: i64 = 1_700_000_000_000;

impl ManualClock {
    /// A clock at an arbitrary moment.
    pub fn new() -> Self {
        Self(Arc::new(AtomicI64::new(START_MILLISECONDS)))
    }

    /// A clock that shows that date.
    pub fn at(date: SystemTime) -> Self {
        let since_epoch = date.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(Arc::new(AtomicI64::new(whole_milliseconds(since_epoch))))
    }

    /// Lets time pass.
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
    i64::try_from(duration.as_millis()).expect("clocks show a date that fits")
}

/// A century: longer than anything waits, and short enough that no sum overflows.
const CENTURY: Duration = Duration::from_secs(100 * 366 * 24 * 3600);

/// Rounded up, so that nothing ends early.
fn milliseconds(duration: Duration) -> i64 {
    whole_milliseconds(duration.min(CENTURY) + Duration::from_nanos(999_999))
}

/// The moment until which a call waits.
pub(crate) fn deadline(wait: Duration) -> tokio::time::Instant {
    tokio::time::Instant::now() + wait.min(CENTURY)
}
