//! The failures of a job, grouped so that a million failures of one kind are one line.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use protocol::{Attempt, AttemptStatus, ErrorReport, FailureCause, one_line};

/// Reasons with a group of their own; others are counted by category only.
pub(crate) const GROUPS_MAX: usize = 200;
/// Mini-batches named for each group.
pub(crate) const EXAMPLES_MAX: usize = 5;
/// Failed mini-batches described individually.
const GIVEN_UP_MAX: usize = 10;
/// Causes in the result of a job.
const CAUSES_MAX: usize = 5;

/// Everything known about the failures of a job.
#[derive(Clone, Debug, Default)]
pub struct Failures {
    /// By reason.
    groups: HashMap<String, FailureGroup>,
    /// The failure that ended the job by itself.
    ended_by: Option<FailureGroup>,
    statuses: HashMap<AttemptStatus, u64>,
    categories: BTreeMap<String, u64>,
    attempts_succeeded: u64,
    attempts_failed: u64,
    given_up: BTreeMap<u64, GivenUp>,
    /// Mini-batches whose last try failed and that have another try.
    retrying: BTreeMap<u64, GivenUp>,
    next_group: usize,
    /// Number of failed attempts for each reason.
    reasons: HashMap<String, u64>,
    repeated: Option<RepeatedReason>,
}

/// The most frequent reason of failed attempts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepeatedReason {
    /// Number of attempts.
    pub count: u64,
    /// The latest error.
    pub sentence: String,
}

/// Failures with one reason: their category, and a message that differs only in numbers, paths and quoted texts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FailureGroup {
    /// `ValueError`, `RunTimeout`, …
    pub category: String,
    /// That of the first mini-batch, in one line; empty if the group collects messages of any kind.
    pub message: String,
    /// Other messages of the group differ from the first one.
    pub has_others: bool,
    /// Number of failures: attempts, and ranges of rejected items.
    pub count: u64,
    /// Number of failed attempts among them.
    pub attempts: u64,
    /// The first of the mini-batches; empty for failures of `init()`, and for the one that ended the job.
    pub mini_batches: Vec<u64>,
    /// Traceback of the first failure.
    pub traceback: String,
    /// File below `logs/` to open next, for the first failure.
    pub log: String,
    /// The last lines printed before the first failure.
    pub printed: String,
    /// Whether it ended the job by itself.
    pub ended_job: bool,
    /// The order of groups: the first mini-batch, and the position among the groups.
    order: (u64, usize),
}

/// A mini-batch that failed, finally or until its next try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenUp {
    /// Number of the mini-batch.
    pub mini_batch: u64,
    /// First item.
    pub detail: String,
    /// Number of tries.
    pub tries: u32,
    /// Error of the last try.
    pub error: ErrorReport,
}

/// The cause of most attempts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DominantCause {
    /// Attempts with this cause.
    pub count: u64,
    /// All ended attempts.
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
            || ErrorReport {
                category: attempt.status.report_word().to_owned(),
                ..ErrorReport::default()
            },
            in_lines,
        );
        *self.categories.entry(error.category.clone()).or_default() += 1;
        self.count_reason(&error);
        self.add(&error, Some(attempt.mini_batch));
    }

    fn count_reason(&mut self, error: &ErrorReport) {
        let reason = reason(&error.category, &error.message);
        if self.reasons.len() >= GROUPS_MAX && !self.reasons.contains_key(&reason) {
            return;
        }
        let count = self.reasons.entry(reason).or_default();
        *count += 1;
        if self.repeated.as_ref().is_none_or(|repeated| repeated.count < *count) {
            self.repeated = Some(RepeatedReason { count: *count, sentence: error_sentence(error) });
        }
    }

    /// Returns the most frequent reason of failed attempts.
    pub fn repeated(&self) -> Option<&RepeatedReason> {
        self.repeated.as_ref()
    }

    pub(crate) fn init_failed(&mut self, error: &ErrorReport) {
        self.add(&in_lines(error), None);
    }

    /// Adds the failure of a process that ended the job by itself.
    pub(crate) fn job_ended_by(&mut self, error: &ErrorReport) {
        let group = FailureGroup {
            ended_job: true,
            count: 1,
            attempts: 1,
            ..FailureGroup::of(&in_lines(error), (0, 0))
        };
        self.ended_by = Some(group);
    }

    /// Adds the last attempt of a mini-batch.
    pub(crate) fn given_up(&mut self, attempt: &Attempt) {
        self.retrying.remove(&attempt.mini_batch);
        remember(&mut self.given_up, attempt);
    }

    /// Adds the items that were rejected from a mini-batch that succeeded: each range is one failure with its error.
    pub(crate) fn items_rejected(&mut self, attempt: &Attempt) {
        // Its last try has failed like any other.
        if let Some(rejected) = attempt.rejected.first().filter(|_| attempt.failed_in_part()) {
            self.count_reason(&in_lines(&rejected.error));
        }
        for rejected in &attempt.rejected {
            self.add_many(&in_lines(&rejected.error), Some(attempt.mini_batch), 1);
        }
        for (category, count) in attempt.rejected_part.iter().flat_map(|part| &part.others) {
            let error = ErrorReport { category: category.clone(), ..ErrorReport::default() };
            self.add_many(&in_lines(&error), Some(attempt.mini_batch), *count);
        }
    }

    /// Adds a failed attempt that another try follows.
    pub(crate) fn retried(&mut self, attempt: &Attempt) {
        remember(&mut self.retrying, attempt);
    }

    /// Removes the failure of a mini-batch that has succeeded.
    pub(crate) fn forgive(&mut self, mini_batch: u64) {
        self.given_up.remove(&mini_batch);
        self.retrying.remove(&mini_batch);
    }

    fn add(&mut self, error: &ErrorReport, mini_batch: Option<u64>) {
        self.add_many(error, mini_batch, 1).attempts += 1;
    }

    /// Adds failures with this error. Returns their group.
    fn add_many(
        &mut self,
        error: &ErrorReport,
        mini_batch: Option<u64>,
        count: u64,
    ) -> &mut FailureGroup {
        let mut key = reason(&error.category, &error.message);
        let is_beyond = self.groups.len() >= GROUPS_MAX && !self.groups.contains_key(&key);
        if is_beyond {
            key = reason(&error.category, "");
        }
        let order = (mini_batch.unwrap_or(u64::MAX), self.next_group);
        let group = self.groups.entry(key).or_insert_with(|| FailureGroup::of(error, order));
        group.has_others |= !group.message.is_empty() && group.message != one_line(&error.message);
        self.next_group += usize::from(group.count == 0);
        if order.0 < group.order.0 {
            group.show(error);
            group.order.0 = order.0;
        }
        if is_beyond {
            group.message.clear();
        }
        group.count += count;
        if let Some(mini_batch) = mini_batch
            && let Err(place) = group.mini_batches.binary_search(&mini_batch)
        {
            group.mini_batches.insert(place, mini_batch);
            group.mini_batches.truncate(EXAMPLES_MAX);
        }
        group
    }

    /// Returns the groups, the one that ended the job and then the most frequent first.
    pub fn groups(&self) -> Vec<&FailureGroup> {
        let mut groups: Vec<_> = self.groups.values().collect();
        groups.sort_by_key(|group| (Reverse(group.count), group.order));
        self.ended_by.iter().chain(groups).collect()
    }

    /// Returns the error of the first mini-batch for each reason of failed mini-batches and rejected items, the most
    /// frequent reason first. Leaves out errors after which another try succeeded.
    pub(crate) fn kinds(&self) -> Vec<String> {
        let last = self.given_up.values().map(|given_up| &given_up.error);
        let given_up: BTreeSet<_> =
            last.map(|error| reason(&error.category, &error.message)).collect();
        let lasts = |(key, group): &(&String, &FailureGroup)| {
            group.count > group.attempts || group.mini_batches.is_empty() || given_up.contains(*key)
        };
        let lasting: Vec<_> = self.groups.iter().filter(lasts).map(|(_, group)| group).collect();
        // Beyond a limit, failures are known by their category alone.
        let groups = if lasting.is_empty() { self.groups() } else { lasting };
        Self::by_frequency(groups).into_iter().map(|(_, first)| first.error()).collect()
    }

    /// Returns the most frequent reason of failed attempts and rejected items, by its first error, and their number.
    pub(crate) fn most_frequent(&self) -> Option<(u64, &FailureGroup)> {
        let of_mini_batches = self.groups.values().filter(|group| !group.mini_batches.is_empty());
        Self::by_frequency(of_mini_batches.collect()).into_iter().next()
    }

    /// Returns groups with their numbers, the most frequent first. Failures without a message, and those beyond the
    /// groups, are probably more of the most frequent ones of their category.
    fn by_frequency(groups: Vec<&FailureGroup>) -> Vec<(u64, &FailureGroup)> {
        let (said, silent): (Vec<_>, Vec<_>) =
            groups.into_iter().partition(|group| !group.message.is_empty());
        let mut kinds: Vec<_> = said.into_iter().map(|group| (group.count, group)).collect();
        for group in silent {
            let alike = kinds.iter_mut().filter(|(_, known)| known.category == group.category);
            match alike.max_by_key(|(count, known)| (*count, Reverse(known.order))) {
                Some((count, _)) => *count += group.count,
                None => kinds.push((group.count, group)),
            }
        }
        kinds.sort_by_key(|(count, first)| (Reverse(*count), first.order));
        kinds
    }

    /// Returns some of the finally failed mini-batches, lowest first.
    pub fn given_up_first(&self) -> impl Iterator<Item = &GivenUp> {
        self.given_up.values()
    }

    /// Returns the failed mini-batch to examine first: one that failed finally, else one that has another try.
    pub fn first(&self) -> Option<&GivenUp> {
        self.given_up.values().next().or_else(|| self.retrying.values().next())
    }

    /// Returns the causes of failed attempts for the result of the job, the most frequent first.
    pub fn causes(&self) -> Vec<FailureCause> {
        let cause = |group: &FailureGroup| FailureCause {
            error: group.error(),
            attempts: group.attempts,
            mini_batches: group.mini_batches.clone(),
            log: group.log.clone(),
            printed: group.printed.clone(),
        };
        self.groups().into_iter().take(CAUSES_MAX).map(cause).collect()
    }

    /// Returns the number of failed attempts.
    pub fn attempts_failed(&self) -> u64 {
        self.attempts_failed
    }

    /// Returns the cause of more than half of all outcomes, if there is one: timeouts of any kind, or one category.
    pub fn dominant(&self) -> Option<DominantCause> {
        let attempts = self.attempts_succeeded + self.attempts_failed;
        let of = |status| self.statuses.get(&status).copied().unwrap_or_default();
        let timeouts = of(AttemptStatus::RunTimedOut) + of(AttemptStatus::LoadTimedOut);
        if timeouts * 2 > attempts {
            let cause = "a timeout (see run_invocation_timeout)".to_owned();
            return Some(DominantCause { count: timeouts, attempts, cause });
        }
        let (category, &count) = self.categories.iter().max_by_key(|(_, count)| **count)?;
        if count * 2 <= attempts {
            return None;
        }
        let message = self
            .groups()
            .into_iter()
            .find(|group| group.category == *category)
            .map(|group| &group.message);
        let cause = error_line(category, message.map_or("", String::as_str));
        Some(DominantCause { count, attempts, cause })
    }
}

impl FailureGroup {
    /// Returns the empty group that begins with an error.
    fn of(error: &ErrorReport, order: (u64, usize)) -> Self {
        let mut group = Self { order, ..Self::default() };
        group.show(error);
        group
    }

    /// Makes an error the example of the group.
    fn show(&mut self, error: &ErrorReport) {
        let ErrorReport { category, message, traceback, log, printed } = error.clone();
        (self.category, self.message) = (category, one_line(&message));
        (self.traceback, self.log, self.printed) = (traceback, log, printed);
    }

    /// Returns the reason that its failures share, as groups of rejected items have it.
    pub fn reason(&self) -> String {
        reason(&self.category, &self.message)
    }

    /// Returns category and message in one line.
    pub fn error(&self) -> String {
        error_line(&self.category, &self.message)
    }
}

impl GivenUp {
    /// Returns category and message of the last try in one line.
    pub fn error_line(&self) -> String {
        error_line(&self.error.category, &one_line(&self.error.message))
    }
}

/// Returns the error and the file to open in whole sentences, its message in one line.
pub(crate) fn error_sentence(error: &ErrorReport) -> String {
    let (category, log) = (error.category.clone(), error.log.clone());
    ErrorReport { category, message: one_line(&error.message), log, ..ErrorReport::default() }
        .sentence()
}

pub(crate) fn error_line(category: &str, message: &str) -> String {
    match (category.is_empty(), message.is_empty()) {
        (_, true) => category.to_owned(),
        (true, false) => message.to_owned(),
        (false, false) => format!("{category}: {message}"),
    }
}

fn remember(mini_batches: &mut BTreeMap<u64, GivenUp>, attempt: &Attempt) {
    let failed = GivenUp {
        mini_batch: attempt.mini_batch,
        detail: one_line(&attempt.detail),
        tries: attempt.try_number,
        error: attempt.error.as_deref().map(in_lines).unwrap_or_default(),
    };
    mini_batches.insert(attempt.mini_batch, failed);
    if mini_batches.len() > GIVEN_UP_MAX {
        mini_batches.pop_last();
    }
}

/// Returns the same report with one-line names.
fn in_lines(error: &ErrorReport) -> ErrorReport {
    ErrorReport { category: one_line(&error.category), log: one_line(&error.log), ..error.clone() }
}

/// Returns the reason of a failure, which is equal for errors that differ only in numbers, paths and quoted texts.
pub(crate) fn reason(category: &str, message: &str) -> String {
    const PUNCTUATION: [char; 11] = ['(', ')', '[', ']', '{', '}', ',', ';', ':', '.', '='];
    let mut reason = format!("{category}:");
    let mut quote = None;
    for word in one_line(message).split_whitespace() {
        let word = word.trim_matches(PUNCTUATION);
        if quote.is_some() {
            quote = quote.filter(|quote| !word.ends_with(*quote));
            continue;
        }
        let begins = word.chars().next().filter(|first| ['\'', '"', '`'].contains(first));
        quote = begins.filter(|quote| word.len() == 1 || !word.ends_with(*quote));
        let is_name = begins.is_some()
            || word.contains(|c: char| c == '/' || c == '\\' || c.is_ascii_digit());
        reason.push(' ');
        reason.push_str(if is_name { "…" } else { word });
    }
    reason
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
    fn first_mini_batch_of_the_plan_stands_for_a_group_whatever_fails_first() {
        let told = |order: &[u64]| {
            let mut failures = Failures::default();
            for mini_batch in order {
                let mut attempt = failed(*mini_batch, 1, true, 1);
                let error = attempt.error.as_mut().expect("failed");
                error.message = if *mini_batch == 9 {
                    "no total".into()
                } else {
                    format!("row {mini_batch} is bad")
                };
                error.log = format!("log of {mini_batch}");
                failures.attempt_failed(&attempt);
            }
            failures.causes()
        };
        let causes = told(&[7, 3, 9, 8, 1, 5, 2, 6]);
        assert_eq!(causes, told(&[1, 2, 3, 5, 6, 7, 8, 9]));
        assert_eq!((&*causes[0].error, &*causes[0].log), ("ValueError: row 1 is bad", "log of 1"));
        assert_eq!(causes[0].mini_batches, [1, 2, 3, 5, 6]);
    }

    #[test]
    fn number_of_groups_is_bounded() {
        let mut failures = Failures::default();
        for mini_batch in 0..1000 {
            let mut attempt = failed(mini_batch, 1, true, 1);
            let word: String = mini_batch
                .to_string()
                .bytes()
                .map(|digit| char::from(digit - b'0' + b'a'))
                .collect();
            attempt.error.as_mut().expect("failed").message = format!("cannot {word}");
            failures.attempt_failed(&attempt);
            failures.given_up(&attempt);
        }
        assert_eq!(failures.groups().len(), GROUPS_MAX + 1);
        assert_eq!(failures.groups()[0].count, 1000 - GROUPS_MAX as u64);
        assert_eq!(failures.given_up_first().count(), GIVEN_UP_MAX);
    }

    #[test]
    fn reason_ignores_files_and_numbers() {
        let mut failures = Failures::default();
        let messages = [
            "cannot read /data/1.png: 3 bytes",
            "cannot read /data/2.png: 17 bytes",
            "model 'a b c' is missing",
            "cannot read 0x7f: 5 bytes",
            "model 'd' is missing",
            "model 'd' is gone",
        ];
        for (mini_batch, message) in (0..).zip(messages) {
            let mut attempt = failed(mini_batch, 1, true, 1);
            attempt.error.as_mut().expect("failed").message = message.into();
            failures.attempt_failed(&attempt);
        }
        let repeated = failures.repeated().expect("there are failures");
        assert_eq!(repeated.count, 3);
        assert!(repeated.sentence.contains("cannot read 0x7f"), "{}", repeated.sentence);
        assert_eq!(failures.reasons.len(), 3, "{:?}", failures.reasons);
        let groups = failures.groups();
        let shown: Vec<_> =
            groups.iter().map(|group| (group.count, group.has_others, group.error())).collect();
        let error = |message| format!("ValueError: {message}");
        let expected = [
            (3, true, error("cannot read /data/1.png: 3 bytes")),
            (2, true, error("model 'a b c' is missing")),
            (1, false, error("model 'd' is gone")),
        ];
        assert_eq!(shown, expected);
        assert_eq!(failures.causes()[0].mini_batches, [0, 1, 3]);
    }

    #[test]
    fn kinds_of_errors_differ_in_more_than_numbers() {
        let mut failures = Failures::default();
        let mut fail = |message: &str| {
            let mut attempt = failed(0, 1, true, 1);
            attempt.error.as_mut().expect("failed").message = message.into();
            failures.attempt_failed(&attempt);
        };
        fail("no total");
        fail("no total");
        (0..1000).for_each(|row| fail(&format!("row {row} is bad")));
        assert_eq!(failures.kinds(), ["ValueError: row 0 is bad", "ValueError: no total"]);
    }

    #[test]
    fn failure_that_ended_the_job_stands_beside_earlier_ones_of_its_kind() {
        let mut failures = Failures::default();
        let attempt = failed(0, 1, false, 1);
        failures.attempt_failed(&attempt);
        failures.job_ended_by(attempt.error.as_deref().expect("failed"));
        let groups: Vec<_> =
            failures.groups().iter().map(|group| (group.ended_job, group.count)).collect();
        assert_eq!(groups, [(true, 1), (false, 1)]);
    }

    #[test]
    fn texts_from_workers_stay_on_one_line() {
        let mut attempt = failed(0, 1, true, 1);
        attempt.detail = "a.png\nCause: none".into();
        let error = attempt.error.as_mut().expect("failed");
        (error.category, error.log) = ("Error\nforged".into(), "x\ny".into());
        let mut failures = Failures::default();
        failures.attempt_failed(&attempt);
        failures.given_up(&attempt);
        let given_up = failures.given_up_first().next().expect("one");
        assert_eq!(
            (&*given_up.detail, &*given_up.error.category, &*given_up.error.log),
            ("a.png", "Error", "x")
        );
        assert_eq!(failures.groups()[0].category, "Error");
    }

    #[test]
    fn cause_of_more_than_half_of_the_outcomes_dominates() {
        let mut failures = Failures::default();
        failures.attempt_succeeded();
        failures.attempt_failed(&failed(0, 1, true, 1));
        assert_eq!(failures.dominant(), None, "half is not more than half");
        failures.attempt_failed(&failed(1, 1, true, 1));
        let dominant = failures.dominant().expect("two of three");
        assert_eq!(
            (dominant.count, dominant.attempts, &*dominant.cause),
            (2, 3, "ValueError: bad value")
        );
    }

    #[test]
    fn timeouts_dominate_by_status() {
        let mut failures = Failures::default();
        failures.attempt_failed(&attempt(0, 1, AttemptStatus::RunTimedOut, true, 1, 0));
        assert!(failures.dominant().expect("all").cause.contains("timeout"));
    }
}
