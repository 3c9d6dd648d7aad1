//! The health of a role: whether it makes progress. Each of its loops, and each service that it calls, is a [`Duty`]
//! that must send heartbeats. The role is unhealthy if a heartbeat is overdue for longer than a limit.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// The health of a role. Clones share it.
#[derive(Clone)]
pub struct Health(Arc<Shared>);

struct Shared {
    /// The time for which a duty may be overdue.
    limit: Duration,
    began: Instant,
    duties: Mutex<Vec<Weak<State>>>,
    not_ready: Mutex<Option<NotReady>>,
}

struct State {
    name: String,
    /// When the next heartbeat is due, in milliseconds since [`Shared::began`].
    due: AtomicU64,
}

/// The [`State::due`] of a duty without a heartbeat that is due.
const NOTHING: u64 = u64::MAX;

/// A duty that must send heartbeats until it is dropped.
pub struct Duty {
    began: Instant,
    state: Arc<State>,
}

/// Why a role is unhealthy.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("no heartbeat of {duty} for {} s", overdue.as_secs())]
pub struct Unhealthy {
    /// The name of the duty.
    pub duty: String,
    /// The time since its heartbeat was due.
    pub overdue: Duration,
}

/// Why a role is not ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotReady {
    /// Not all of its services have answered.
    #[error("it is starting")]
    Starting,
    /// The role accepts no new work.
    #[error("it is ending")]
    Ending,
}

impl Health {
    /// Creates the health of a role that is starting, and whose duties may be overdue for `limit`.
    pub fn new(limit: Duration) -> Self {
        Self(Arc::new(Shared {
            limit,
            began: Instant::now(),
            duties: Mutex::default(),
            not_ready: Mutex::new(Some(NotReady::Starting)),
        }))
    }

    /// Adds a loop, which must call [`Duty::beat`] in each round. `name` appears in errors.
    pub fn coming_round(&self, name: impl Into<String>) -> Duty {
        let duty = self.answering(name);
        duty.beat();
        duty
    }

    /// Adds a service, which must answer each call in time.
    pub fn answering(&self, name: impl Into<String>) -> Duty {
        let state = Arc::new(State { name: name.into(), due: AtomicU64::new(NOTHING) });
        let mut duties = self.0.duties.lock().expect("no holder panics");
        duties.retain(|duty| duty.strong_count() > 0);
        duties.push(Arc::downgrade(&state));
        Duty { began: self.0.began, state }
    }

    /// Checks every duty. The error names the duty that is overdue for the longest time.
    pub fn check(&self) -> Result<(), Unhealthy> {
        let now = self.0.began.elapsed();
        let duties = self.0.duties.lock().expect("no holder panics");
        let overdue = duties.iter().filter_map(Weak::upgrade).filter_map(|state| {
            let due = Duration::from_millis(state.due.load(Ordering::Relaxed));
            let overdue = now.checked_sub(due).filter(|overdue| *overdue > self.0.limit)?;
            Some((overdue, state))
        });
        match overdue.max_by_key(|(overdue, _)| *overdue) {
            None => Ok(()),
            Some((overdue, state)) => Err(Unhealthy { duty: state.name.clone(), overdue }),
        }
    }

    /// Records that all services of the role have answered.
    pub fn ready(&self) {
        *self.0.not_ready.lock().expect("no holder panics") = None;
    }

    /// Records that the role is ending and accepts no new work.
    pub fn ending(&self) {
        *self.0.not_ready.lock().expect("no holder panics") = Some(NotReady::Ending);
    }

    /// Checks whether the role is ready.
    pub fn check_ready(&self) -> Result<(), NotReady> {
        self.0.not_ready.lock().expect("no holder panics").map_or(Ok(()), Err)
    }
}

impl Default for Health {
    /// Creates a health without a limit.
    fn default() -> Self {
        Self::new(Duration::MAX)
    }
}

impl Duty {
    /// Records that the loop has completed a round.
    pub fn beat(&self) {
        self.state.due.store(self.after(Duration::ZERO), Ordering::Relaxed);
    }

    /// Records a call that may take as long as `wait`. A further call does not extend the deadline of an unanswered
    /// one.
    pub fn asked(&self, wait: Duration) {
        let _ = self.state.due.compare_exchange(
            NOTHING,
            self.after(wait),
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
    }

    /// Records an answer, or that the role no longer waits for one.
    pub fn answered(&self) {
        self.state.due.store(NOTHING, Ordering::Relaxed);
    }

    fn after(&self, wait: Duration) -> u64 {
        u64::try_from((self.began.elapsed() + wait).as_millis()).unwrap_or(NOTHING)
    }
}

impl fmt::Debug for Health {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Health").field("limit", &self.0.limit).finish_non_exhaustive()
    }
}

impl fmt::Debug for Duty {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Duty").field(&self.state.name).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a health with the limit 0: a duty that is due now is overdue as soon as the clock advances.
    fn strict() -> Health {
        Health::new(Duration::ZERO)
    }

    /// Waits until the role is unhealthy, and returns why.
    fn wait_until_unhealthy(health: &Health) -> String {
        loop {
            if let Err(error) = health.check() {
                return error.to_string();
            }
            std::hint::spin_loop();
        }
    }

    #[test]
    fn stuck_loop_is_named_until_it_ends() {
        let health = strict();
        let duty = health.coming_round("the loop of the node");
        assert_eq!(wait_until_unhealthy(&health), "no heartbeat of the loop of the node for 0 s");
        drop(duty);
        assert_eq!(health.check(), Ok(()));
    }

    #[test]
    fn only_a_call_makes_an_answer_due() {
        let health = strict();
        let queue = health.answering("the queue");
        assert_eq!(health.check(), Ok(()));
        queue.asked(Duration::ZERO);
        wait_until_unhealthy(&health);
        queue.answered();
        assert_eq!(health.check(), Ok(()));
    }

    #[test]
    fn further_call_does_not_extend_the_deadline() {
        let health = strict();
        let queue = health.answering("the queue");
        queue.asked(Duration::ZERO);
        queue.asked(Duration::from_secs(3600));
        wait_until_unhealthy(&health);
        queue.answered();
        queue.asked(Duration::from_secs(3600));
        assert_eq!(health.check(), Ok(()), "a long wait was announced");
    }

    #[test]
    fn role_without_limit_is_healthy_and_ready_between_start_and_end() {
        let health = Health::default();
        let _duty = health.coming_round("the loop");
        assert_eq!(health.check(), Ok(()));
        assert_eq!(health.check_ready(), Err(NotReady::Starting));
        health.ready();
        assert_eq!(health.check_ready(), Ok(()));
        health.ending();
        assert_eq!(health.check_ready(), Err(NotReady::Ending));
    }
}
