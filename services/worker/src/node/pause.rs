//! Detects that the node did not run for a while, because its machine slept or its process was
//! stopped.
//!
//! Leases do not depend on it: they count the time that passed. It explains in the log why
//! mini-batches run again, and wakes code that does not use the clock of leases.

use std::time::Duration;

use queue::LeaseClock;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;

use crate::lease::LEASE_STEP;

/// Time between two readings of the clock.
const LOOK: Duration = Duration::from_secs(1);
/// Shorter pauses cost no lease.
const PAUSE_MIN: Duration = LEASE_STEP.checked_div(2).expect("two is not zero");

/// A period in which the node did not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Suspension {
    pub(super) time: Duration,
    /// The part of it in which the machine was suspended.
    pub(super) asleep: Duration,
}

/// Watches for pauses until it is dropped, and logs them.
pub(super) struct Pauses {
    found: mpsc::Receiver<Suspension>,
    _watching: AbortOnDropHandle<()>,
}

impl Pauses {
    pub(super) fn watch(clock: LeaseClock) -> Self {
        let (sender, found) = mpsc::channel(1);
        let watching = tokio::spawn(async move {
            let mut last = ClockReading::at(&clock);
            loop {
                sleep(LOOK).await;
                let look = ClockReading::at(&clock);
                if let Some(pause) = last.pause_until(look) {
                    tracing::warn!(
                        "{}; the queue redelivers mini-batches whose leases ended meanwhile",
                        pause.words()
                    );
                    if sender.send(pause).await.is_err() {
                        return;
                    }
                }
                last = look;
            }
        });
        Self { found, _watching: AbortOnDropHandle::new(watching) }
    }

    /// Waits for the next pause, at its end.
    pub(super) async fn next(&mut self) -> Suspension {
        match self.found.recv().await {
            Some(pause) => pause,
            None => std::future::pending().await,
        }
    }
}

#[derive(Clone, Copy)]
struct ClockReading {
    at: Instant,
    suspended: Duration,
}

impl ClockReading {
    fn at(clock: &LeaseClock) -> Self {
        Self { at: clock.now(), suspended: clock.suspended() }
    }

    fn pause_until(self, next: Self) -> Option<Suspension> {
        let time = (next.at - self.at).saturating_sub(LOOK);
        (time >= PAUSE_MIN).then_some(Suspension { time, asleep: next.suspended - self.suspended })
    }
}

impl Suspension {
    fn words(self) -> String {
        let seconds = self.time.as_secs();
        match self.asleep * 2 > self.time {
            true => format!("this machine slept for {seconds} s"),
            false => format!("this process was stopped for {seconds} s, or had no processor"),
        }
    }
}

#[cfg(test)]
mod tests {
    use queue::ManualSleep;
    use tokio::time::{advance, timeout};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn pauses_of_machine_and_process_are_noticed() {
        let machine = ManualSleep::default();
        let mut pauses = Pauses::watch(LeaseClock::Manual(machine.clone()));
        assert!(timeout(60 * SECOND, pauses.next()).await.is_err(), "the node runs");
        machine.suspend(312 * SECOND);
        let slept = pauses.next().await;
        assert_eq!(slept.words(), "this machine slept for 312 s");
        assert_eq!((slept.time, slept.asleep), (312 * SECOND, 312 * SECOND));
        advance(21 * SECOND).await;
        let stopped = pauses.next().await;
        assert_eq!(stopped.words(), "this process was stopped for 20 s, or had no processor");
        assert!(timeout(60 * SECOND, pauses.next()).await.is_err(), "each is noticed once");
    }
}
