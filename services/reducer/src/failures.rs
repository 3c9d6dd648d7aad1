//! What went wrong in a job, grouped so that a million failures of one kind are one line.

use std::collections::{BTreeMap, HashMap};

use protocol::{Attempt, AttemptStatus, ErrorReport};

/// Distinct errors that are kept apart; more are counted under their category alone. Messages often name a file, so
/// there may be as many as mini-batches.
const GROUPS_MAX: usize = 200;
/// Mini-batches named for each error.
pub(crate) const EXAMPLES_MAX: usize = 5;
/// Failed mini-batches described one by one.
const GIVEN_UP_MAX: usize = 10;

/// Everything known of the failures of a job.
#[derive(Clone, Debug, Default)]
pub struct Failures {
    groups: HashMap<(String, String), FailureGroup>,
    statuses: HashMap<AttemptStatus, u64>,
    categories: BTreeMap<String, u64>,
    attempts_succeeded: u64,
    attempts_failed: u64,
    given_up: BTreeMap<u64, GivenUp>,
    next_group: usize,
}

/// Failures with the same category and message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailureGroup {
    /// `ValueError`, `RunTimeout`, …
    pub category: String,
    /// One line; empty where the group collects many.
    pub message: String,
    /// How often.
    pub count: u64,
    /// Some of the mini-batches; none for failures of `init()`.
    pub mini_batches: Vec<u64>,
    /// Traceback of the first.
    pub traceback: String,
    /// File below `logs/` to open next, of the first.
    pub log: String,
    order: usize,
}

/// A mini-batch that failed for good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenUp {
    /// Which.
    pub mini_batch: u64,
    /// Its first item.
    pub detail: String,
    /// How often it was tried.
    pub tries: u32,
    /// How the last try ended.
    pub error: ErrorReport,
}

/// What most attempts ended with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dominant {
    /// Attempts that ended so.
    pub count: u64,
    /// All attempts that ended.
    pub attempts: u64,
    /// The cause, for people.
    pub cause: String,
}

impl Failures {
    pub(crate) fn attempt_succeeded(&mut self) {
        self.attempts_succeeded += 1;
    }

    pub(crate) fn attempt_failed(&mut self, attempt: &Attempt) {
        self.attempts_failed += 1;
        *self.statuses.entry(attempt.status).or_default() += 1;
        let error = attempt.error.as_deref().map_or_else(
            || ErrorReport { category: attempt.status.report_word().to_owned(), ..ErrorReport::default() },
            in_lines,
        );
        *self.categories.entry(error.category.clone()).or_default() += 1;
        self.add(&error, Some(attempt.mini_batch));
    }

    pub(crate) fn init_failed(&mut self, error: &ErrorReport) {
        self.add(&in_lines(error), None);
    }

    pub(crate) fn given_up(&mut self, attempt: &Attempt) {
        let given_up = GivenUp {
            mini_batch: attempt.mini_batch,
            detail: one_line(&attempt.detail),
            tries: attempt.try_number,
            error: attempt.error.as_deref().map(in_lines).unwrap_or_default(),
        };
        self.given_up.insert(attempt.mini_batch, given_up);
        if self.given_up.len() > GIVEN_UP_MAX {
            self.given_up.pop_last();
        }
    }

    /// A success has beaten the failure.
    pub(crate) fn forgive(&mut self, mini_batch: u64) {
        self.given_up.remove(&mini_batch);
    }

    fn add(&mut self, error: &ErrorReport, mini_batch: Option<u64>) {
        let mut key = (error.category.clone(), one_line(&error.message));
        if self.groups.len() >= GROUPS_MAX && !self.groups.contains_key(&key) {
            key.1.clear();
        }
        let order = self.next_group;
        let group = self.groups.entry(key).or_insert_with_key(|(category, message)| FailureGroup {
            category: category.clone(),
            message: message.clone(),
            count: 0,
            mini_batches: vec![],
            traceback: error.traceback.clone(),
            log: error.log.clone(),
            order,
        });
        self.next_group += usize::from(group.count == 0);
        group.count += 1;
        if group.mini_batches.len() < EXAMPLES_MAX
            && let Some(mini_batch) = mini_batch
            && !group.mini_batches.contains(&mini_batch)
        {
            group.mini_batches.push(mini_batch);
        }
    }

    /// Groups, the most frequent first.
    pub fn groups(&self) -> Vec<&FailureGroup> {
        let mut groups: Vec<_> = self.groups.values().collect();
        groups.sort_by_key(|group| (std::cmp::Reverse(group.count), group.order));
        groups
    }

    /// Some of the mini-batches that failed for good, lowest first.
    pub fn given_up_first(&self) -> impl Iterator<Item = &GivenUp> {
        self.given_up.values()
    }

    /// The cause of more than half of all outcomes, if there is one: timeouts of any kind, or one kind of error.
    pub fn dominant(&self) -> Option<Dominant> {
        let attempts = self.attempts_succeeded + self.attempts_failed;
        let of = |status| self.statuses.get(&status).copied().unwrap_or_default();
        let timeouts = of(AttemptStatus::RunTimedOut) + of(AttemptStatus::LoadTimedOut);
        if timeouts * 2 > attempts {
            let cause = "a timeout (see run_invocation_timeout)".to_owned();
            return Some(Dominant { count: timeouts, attempts, cause });
        }
        let (category, &count) = self.categories.iter().max_by_key(|(_, count)| **count)?;
        if count * 2 <= attempts {
            return None;
        }
        let message = self.groups().into_iter().find(|group| group.category == *category).map(|group| &group.message);
        let cause = match message {
            Some(message) if !message.is_empty() => format!("{category}: {message}"),
            _ => category.clone(),
        };
        Some(Dominant { count, attempts, cause })
    }
}

/// The same report, with nothing in it that breaks the line it is told in.
fn in_lines(error: &ErrorReport) -> ErrorReport {
    ErrorReport { category: one_line(&error.category), log: one_line(&error.log), ..error.clone() }
}

/// The first line, cut where no terminal shows more.
pub(crate) fn one_line(text: &str) -> String {
    const CHARACTERS_MAX: usize = 400;
    let line = text.trim().lines().next().unwrap_or_default();
    match line.char_indices().nth(CHARACTERS_MAX) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{attempt, failed};

    #[test]
    fn equal_errors_are_one_group_with_a_few_examples() {
        let mut failures = Failures::default();
        for mini_batch in 0..100 {
            failures.attempt_failed(&failed(mini_batch, 1, true, 1));
        }
        let groups = failures.groups();
        assert_eq!(groups.len(), 1);
        assert_eq!((groups[0].count, &groups[0].mini_batches[..]), (100, &[0, 1, 2, 3, 4][..]));
    }

    #[test]
    fn distinct_messages_do_not_fill_the_memory() {
        let mut failures = Failures::default();
        for mini_batch in 0..1000 {
            let mut attempt = failed(mini_batch, 1, true, 1);
            attempt.error.as_mut().expect("failed").message = format!("cannot read file {mini_batch}");
            failures.attempt_failed(&attempt);
            failures.given_up(&attempt);
        }
        assert_eq!(failures.groups().len(), GROUPS_MAX + 1);
        assert_eq!(failures.groups()[0].count, 1000 - GROUPS_MAX as u64);
        assert_eq!(failures.given_up_first().count(), GIVEN_UP_MAX);
    }

    #[test]
    fn what_a_worker_says_stays_in_its_line() {
        let mut attempt = failed(0, 1, true, 1);
        attempt.detail = "a.png\nCause: none".into();
        let error = attempt.error.as_mut().expect("failed");
        (error.category, error.log) = ("Error\nforged".into(), "x\ny".into());
        let mut failures = Failures::default();
        failures.attempt_failed(&attempt);
        failures.given_up(&attempt);
        let given_up = failures.given_up_first().next().expect("one");
        assert_eq!((&*given_up.detail, &*given_up.error.category, &*given_up.error.log), ("a.png", "Error", "x"));
        assert_eq!(failures.groups()[0].category, "Error");
    }

    #[test]
    fn a_cause_dominates_with_more_than_half_of_the_outcomes() {
        let mut failures = Failures::default();
        failures.attempt_succeeded();
        failures.attempt_failed(&failed(0, 1, true, 1));
        assert_eq!(failures.dominant(), None, "half is not more than half");
        failures.attempt_failed(&failed(1, 1, true, 1));
        let dominant = failures.dominant().expect("two of three");
        assert_eq!((dominant.count, dominant.attempts, &*dominant.cause), (2, 3, "ValueError: bad value"));
    }

    #[test]
    fn timeouts_dominate_by_status() {
        let mut failures = Failures::default();
        failures.attempt_failed(&attempt(0, 1, AttemptStatus::RunTimedOut, true, 1, 0));
        assert!(failures.dominant().expect("all").cause.contains("timeout"));
    }
}
