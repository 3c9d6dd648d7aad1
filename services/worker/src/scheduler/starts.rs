//! Decides whether another Python process starts after one whose `init()` failed. Pure.
//!
//! A node does not retry failures that would recur. Before its first success:
//!
//! - a script with wrong code or arguments ends the node at the first failure;
//! - a script that fails alike in every process ends the node when all of them have failed, and at least two: a node
//!   with one process starts a second one for confirmation. Until then nothing starts, because a process that is still
//!   in `init()` may succeed, and then the others may too;
//! - if a network, a server or a full machine caused the failure, the node starts processes until
//!   three failures in a row for each process, as Azure ML does. It does the same after its first
//!   success.

use std::time::Duration;

use protocol::{ErrorReport, RestartChance, TableForm};

/// Failures in a row, per process, after which a node gives up.
const FAILURES_PER_PROCESS: u32 = 3;
/// Equal failures after which a node gives up.
const EQUAL_FAILURES: u32 = 2;

/// Deaths in a row, per process, between two mini-batches, after which a node gives up.
const IDLE_DEATHS_PER_PROCESS: u32 = 3;
/// Pause before the next start after a failure; doubles with each failure in a row.
const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// The results of all starts of a node.
#[derive(Debug, Default)]
pub(super) struct Starts {
    has_succeeded: bool,
    takes: TableForm,
    failed: u32,
    /// The last failure, for comparison and for people.
    kind: String,
    sentence: String,
    /// Whether all failures so far were equal, and none of them is likely to heal.
    are_equal: bool,
    cannot_heal: bool,
    /// Processes in a row that were ready and ended without an answer and without a mini-batch to blame, and the cause
    /// of the last one.
    idle_deaths: u32,
    last_death: String,
}

/// The decision for an empty slot.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum StartDecision {
    Start,
    /// Other processes are still starting; their results decide.
    Wait,
    /// The cause, for people.
    GiveUp(String),
}

impl Starts {
    /// Notes that `init()` of a process has returned, and how the script gets the rows of a table.
    pub(super) fn succeeded(&mut self, takes: TableForm) {
        let (idle_deaths, last_death) = (self.idle_deaths, std::mem::take(&mut self.last_death));
        *self = Self { has_succeeded: true, takes, idle_deaths, last_death, ..Self::default() };
    }

    /// How the script gets the rows of a table.
    pub(super) fn takes(&self) -> TableForm {
        self.takes
    }

    pub(super) fn failed(&mut self, process: &str, chance: RestartChance, error: &ErrorReport) {
        // Equal failures differ in the paths of their process.
        let kind = format!("{}: {}", error.category, error.message).replace(process, "processNNN");
        self.are_equal = chance != RestartChance::Likely
            && (self.failed == 0 || self.are_equal && self.kind == kind);
        self.cannot_heal |= chance == RestartChance::Never;
        self.failed += 1;
        (self.kind, self.sentence) = (kind, error.sentence());
    }

    /// Notes that a process has died between two mini-batches. That spends no try, so only this count keeps a node from
    /// starting processes forever.
    pub(super) fn died_idle(&mut self, sentence: String) {
        self.idle_deaths += 1;
        self.last_death = sentence;
    }

    pub(super) fn answered(&mut self) {
        self.idle_deaths = 0;
    }

    /// Returns the pause before the next start; `None`: nothing has failed.
    pub(super) fn pause(&self) -> Option<Duration> {
        let failures = self.failed.max(self.idle_deaths);
        (failures > 0).then(|| (PAUSE * 2u32.saturating_pow(failures.min(8))).min(PAUSE_MAX))
    }

    /// Decides for an empty slot. `processes`: how many the node runs; `starting`: how many of them are in `init()`.
    pub(super) fn next(&self, processes: u32, starting: usize) -> StartDecision {
        if self.idle_deaths >= IDLE_DEATHS_PER_PROCESS * processes {
            let (deaths, last) = (self.idle_deaths, &self.last_death);
            return StartDecision::GiveUp(format!(
                "{deaths} processes in a row ended between two mini-batches; {last}"
            ));
        }
        if !self.has_succeeded {
            if self.cannot_heal {
                return StartDecision::GiveUp(format!(
                    "the script cannot start: {}",
                    self.sentence
                ));
            }
            if self.are_equal && self.failed > 0 {
                if starting > 0 {
                    return StartDecision::Wait;
                }
                if self.failed >= EQUAL_FAILURES {
                    let (all, what) = (self.failed, &self.sentence);
                    return StartDecision::GiveUp(format!(
                        "the script cannot start: {what} All {all} starts failed alike."
                    ));
                }
            }
        }
        if self.failed >= FAILURES_PER_PROCESS * processes {
            let failed = self.failed;
            return StartDecision::GiveUp(format!(
                "{failed} starts in a row failed, the last one with: {}",
                self.sentence
            ));
        }
        StartDecision::Start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fail(starts: &mut Starts, chance: RestartChance, what: &str) {
        starts.failed(
            "process000",
            chance,
            &ErrorReport { category: what.into(), ..ErrorReport::default() },
        );
    }

    fn after(failures: &[(RestartChance, &str)]) -> Starts {
        let mut starts = Starts::default();
        failures.iter().for_each(|(chance, what)| fail(&mut starts, *chance, what));
        starts
    }

    fn gives_up(next: &StartDecision) -> bool {
        matches!(next, StartDecision::GiveUp(_))
    }

    #[test]
    fn wrong_code_gives_up_immediately() {
        let next = after(&[(RestartChance::Never, "SyntaxError: x.")]).next(8, 7);
        assert_eq!(next, StartDecision::GiveUp("the script cannot start: SyntaxError: x.".into()));
    }

    #[test]
    fn equal_failures_of_all_processes_give_up() {
        let failure = (RestartChance::Perhaps, "KeyError: x.");
        assert_eq!(
            after(&[failure]).next(2, 1),
            StartDecision::Wait,
            "the other process may succeed"
        );
        let next = after(&[failure, failure]).next(2, 0);
        assert_eq!(
            next,
            StartDecision::GiveUp(
                "the script cannot start: KeyError: x. All 2 starts failed alike.".into()
            )
        );
    }

    #[test]
    fn single_process_confirms_the_failure_once() {
        let failure = (RestartChance::Perhaps, "KeyError: x.");
        assert_eq!(after(&[failure]).next(1, 0), StartDecision::Start);
        assert!(gives_up(&after(&[failure, failure]).next(1, 0)));
    }

    #[test]
    fn different_or_healing_failures_are_retried_three_times_per_process() {
        for chance in [RestartChance::Likely, RestartChance::Perhaps] {
            let failures: Vec<_> =
                (0..6).map(|number| (chance, format!("failure {number}"))).collect();
            let failures: Vec<_> =
                failures.iter().map(|(chance, what)| (*chance, what.as_str())).collect();
            assert_eq!(after(&failures[..5]).next(2, 0), StartDecision::Start);
            assert!(gives_up(&after(&failures).next(2, 0)));
        }
        let likely = [(RestartChance::Likely, "timed out"); 5];
        assert_eq!(after(&likely).next(2, 1), StartDecision::Start);
    }

    #[test]
    fn equal_failures_after_a_success_are_retried() {
        let mut starts = after(&[(RestartChance::Perhaps, "KeyError: x.")]);
        starts.succeeded(TableForm::Frame);
        for _ in 0..2 {
            fail(&mut starts, RestartChance::Perhaps, "KeyError: x.");
        }
        assert_eq!((starts.next(1, 0), starts.pause()), (StartDecision::Start, Some(4 * PAUSE)));
        fail(&mut starts, RestartChance::Perhaps, "KeyError: x.");
        assert!(gives_up(&starts.next(1, 0)));
    }

    #[test]
    fn process_names_do_not_make_failures_different() {
        let mut starts = Starts::default();
        for process in ["process000", "process001"] {
            let message = format!("no module x in scratch/{process}");
            starts.failed(
                process,
                RestartChance::Perhaps,
                &ErrorReport { message, ..ErrorReport::default() },
            );
        }
        assert!(gives_up(&starts.next(2, 0)));
    }

    #[test]
    fn idle_deaths_give_up_unless_a_mini_batch_is_answered() {
        let mut starts = Starts::default();
        starts.succeeded(TableForm::Frame);
        for _ in 0..5 {
            starts.died_idle("it crashed.".into());
            starts.succeeded(TableForm::Frame);
        }
        assert_eq!(starts.next(2, 0), StartDecision::Start);
        starts.died_idle("it crashed.".into());
        let cause = "6 processes in a row ended between two mini-batches; it crashed.";
        assert_eq!(starts.next(2, 0), StartDecision::GiveUp(cause.into()));
        starts.answered();
        assert_eq!((starts.next(2, 0), starts.pause()), (StartDecision::Start, None));
    }

    #[test]
    fn pauses_double_up_to_a_limit() {
        let pauses: Vec<_> =
            (0..9).map(|count| after(&vec![(RestartChance::Likely, "x"); count]).pause()).collect();
        let milliseconds = [100, 200, 400, 800, 1600, 3200, 5000, 5000];
        let expected = milliseconds.map(|milliseconds| Some(Duration::from_millis(milliseconds)));
        assert_eq!(pauses[0], None);
        assert_eq!(pauses[1..], expected);
    }
}
