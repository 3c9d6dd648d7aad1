//! Whether a role makes progress: each of its loops, and each thing that it waits for, is a [`Duty`] that must show signs
//! of life. A role is ill when one of them has not for longer than is allowed.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// How a role is. Clones are the same one.
#[derive(Clone)]
pub struct Health(Arc<Shared>);

struct Shared {
    /// A duty may be overdue for so long.
    limit: Duration,
    began: Instant,
    duties: Mutex<Vec<Weak<State>>>,
    /// Why the role is not to be relied on (yet, or any more); `None`: it is.
    not_ready: Mutex<Option<&'static str>>,
}

struct State {
    name: String,
    /// When the next sign of life is due, in milliseconds since the beginning.
    due: AtomicU64,
}

/// No sign of life is due.
const NOTHING: u64 = u64::MAX;

/// Something that must happen again and again. It ends when it is dropped.
pub struct Duty {
    began: Instant,
    state: Arc<State>,
}

impl Health {
    /// Of a role that is starting, and that may stand still for so long.
    pub fn new(limit: Duration) -> Self {
        Self(Arc::new(Shared {
            limit,
            began: Instant::now(),
            duties: Mutex::default(),
            not_ready: Mutex::new(Some("it is starting")),
        }))
    }

    /// A loop, which must come round. `name`: which one, for people.
    pub fn coming_round(&self, name: impl Into<String>) -> Duty {
        let duty = self.answering(name);
        duty.beat();
        duty
    }

    /// Somebody who is asked, and must answer.
    pub fn answering(&self, name: impl Into<String>) -> Duty {
        let state = Arc::new(State { name: name.into(), due: AtomicU64::new(NOTHING) });
        let mut duties = self.0.duties.lock().expect("no holder panics");
        duties.retain(|duty| duty.strong_count() > 0);
        duties.push(Arc::downgrade(&state));
        Duty { began: self.0.began, state }
    }

    /// Whether every duty is done; in the error, which is not, in one line.
    pub fn check(&self) -> Result<(), String> {
        let now = self.0.began.elapsed();
        let duties = self.0.duties.lock().expect("no holder panics");
        let overdue = duties.iter().filter_map(Weak::upgrade).filter_map(|state| {
            let due = Duration::from_millis(state.due.load(Ordering::Relaxed));
            let overdue = now.checked_sub(due).filter(|overdue| *overdue > self.0.limit)?;
            Some((overdue, state))
        });
        match overdue.max_by_key(|(overdue, _)| *overdue) {
            None => Ok(()),
            Some((overdue, state)) => Err(format!("no sign of life of {} for {} s", state.name, overdue.as_secs())),
        }
    }

    /// Everything the role needs has answered.
    pub fn ready(&self) {
        *self.0.not_ready.lock().expect("no holder panics") = None;
    }

    /// The role ends, and takes nothing new.
    pub fn ending(&self) {
        *self.0.not_ready.lock().expect("no holder panics") = Some("it is ending");
    }

    /// Whether the role can be relied on; in the error, why not.
    pub fn check_ready(&self) -> Result<(), &'static str> {
        self.0.not_ready.lock().expect("no holder panics").map_or(Ok(()), Err)
    }
}

/// Nobody looks.
impl Default for Health {
    fn default() -> Self {
        Self::new(Duration::MAX)
    }
}

impl Duty {
    /// The loop has come round.
    pub fn beat(&self) {
        self.state.due.store(self.after(Duration::ZERO), Ordering::Relaxed);
    }

    /// An answer is asked for, and may take so long. A question that waits for its answer already is not put off.
    pub fn asked(&self, wait: Duration) {
        let _ = self.state.due.compare_exchange(NOTHING, self.after(wait), Ordering::Relaxed, Ordering::Relaxed);
    }

    /// An answer has come, or nobody waits for one any more.
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

    /// Nothing may be overdue, so that time need not pass: what is due now is overdue at the next look that a clock can
    /// tell from this one.
    fn strict() -> Health {
        Health::new(Duration::ZERO)
    }

    fn until_ill(health: &Health) -> String {
        loop {
            if let Err(why) = health.check() {
                return why;
            }
            std::hint::spin_loop();
        }
    }

    #[test]
    fn a_loop_that_does_not_come_round_is_named_and_one_that_ended_is_not_missed() {
        let health = strict();
        let duty = health.coming_round("the loop of the node");
        assert_eq!(until_ill(&health), "no sign of life of the loop of the node for 0 s");
        drop(duty);
        assert_eq!(health.check(), Ok(()));
    }

    #[test]
    fn who_is_not_asked_need_not_answer() {
        let health = strict();
        let queue = health.answering("the queue");
        assert_eq!(health.check(), Ok(()));
        queue.asked(Duration::ZERO);
        until_ill(&health);
        queue.answered();
        assert_eq!(health.check(), Ok(()));
    }

    #[test]
    fn asking_again_puts_nothing_off() {
        let health = strict();
        let queue = health.answering("the queue");
        queue.asked(Duration::ZERO);
        queue.asked(Duration::from_secs(3600));
        until_ill(&health);
        queue.answered();
        queue.asked(Duration::from_secs(3600));
        assert_eq!(health.check(), Ok(()), "a long wait was announced");
    }

    #[test]
    fn a_role_that_may_stand_still_is_well() {
        let health = Health::default();
        let _duty = health.coming_round("the loop");
        assert_eq!(health.check(), Ok(()));
        assert_eq!(health.check_ready(), Err("it is starting"));
        health.ready();
        assert_eq!(health.check_ready(), Ok(()));
        health.ending();
        assert_eq!(health.check_ready(), Err("it is ending"));
    }
}
