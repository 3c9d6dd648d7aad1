//! Warnings of the attempts that count: their number, the first of them, and their kinds. The successes count, and the
//! last attempts of mini-batches that have failed, until these run again.

use std::collections::HashSet;

use protocol::{Attempt, WarningKind, one_line};

/// Warnings that the result quotes.
const NAMED_MAX: usize = 5;
/// Warnings about values of a table that an attempt carries as text.
const WORDED_MAX: u64 = 10;

/// Part of the tally, and pure like it.
#[derive(Clone, Debug, Default)]
pub struct Warnings {
    of_successes: Counted,
    of_failures: Counted,
    /// Mini-batches that have failed, and had warnings.
    failed: HashSet<u64>,
    /// Mini-batches that have succeeded with warnings: a later round that runs one again reads the same records.
    succeeded: HashSet<u64>,
}

impl Warnings {
    /// Adds the warnings of a success that counts, unless those of the same mini-batch have counted before.
    pub(super) fn succeeded(&mut self, attempt: &Attempt) {
        if has_warnings(attempt)
            && !self.failed.contains(&attempt.mini_batch)
            && self.succeeded.insert(attempt.mini_batch)
        {
            self.of_successes.add(attempt);
        }
    }

    /// Adds the warnings of the last attempt of a mini-batch that has failed.
    pub(super) fn given_up(&mut self, attempt: &Attempt) {
        if has_warnings(attempt) {
            self.failed.insert(attempt.mini_batch);
            self.of_failures.add(attempt);
        }
    }

    /// Forgets the warnings of the mini-batches that have failed, since they run again.
    pub(super) fn reopen(&mut self) {
        self.of_failures = Counted::default();
        self.failed.clear();
    }

    /// Returns the number of warnings.
    pub fn count(&self) -> u64 {
        self.of_successes.count + self.of_failures.count
    }

    /// Returns the first distinct warnings, one line each.
    pub fn first(&self) -> impl Iterator<Item = String> + '_ {
        let mut both: Vec<_> =
            self.of_successes.first.iter().chain(&self.of_failures.first).collect();
        both.sort_by_key(|(mini_batch, _)| *mini_batch);
        let mut lines = HashSet::new();
        both.retain(|(_, line)| lines.insert(line));
        both.into_iter()
            .take(NAMED_MAX)
            .map(|(mini_batch, line)| format!("mini-batch {mini_batch}: {line}"))
    }

    /// Returns the warnings by kind, each with the first in the order of the mini-batches.
    pub fn kinds(&self) -> Vec<WarningKind> {
        let mut kinds = self.of_successes.clone();
        for (kind, mini_batch) in self.of_failures.kinds.iter().zip(&self.of_failures.first_in) {
            kinds.add_kind(kind, *mini_batch);
        }
        kinds.kinds
    }

    /// Returns the number of records that successes could not read, and the first of them; `None`: all could. A record of
    /// which several values do not fit has several warnings.
    pub(crate) fn records_unread(&self) -> Option<(u64, &str)> {
        let first = self.of_successes.kinds.iter().find(|kind| kind.loses_records())?;
        Some((self.of_successes.records_unread, &first.first))
    }
}

fn has_warnings(attempt: &Attempt) -> bool {
    attempt.warnings_total > 0 || !attempt.warnings.is_empty() || !attempt.warning_kinds.is_empty()
}

#[derive(Clone, Debug, Default)]
struct Counted {
    count: u64,
    records_unread: u64,
    /// The first distinct warnings with their mini-batches.
    first: Vec<(u64, String)>,
    kinds: Vec<WarningKind>,
    /// The lowest mini-batch with a warning of each kind.
    first_in: Vec<u64>,
}

impl Counted {
    fn add(&mut self, attempt: &Attempt) {
        self.count += attempt.warnings_total.max(attempt.warnings.len() as u64);
        self.records_unread += attempt.records_unread();
        self.add_first(attempt);
        attempt.warning_kinds.iter().for_each(|kind| self.add_kind(kind, attempt.mini_batch));
    }

    fn add_first(&mut self, attempt: &Attempt) {
        // The first ones concern values of tables, which are counted by kind.
        let counts = attempt.warning_kinds.iter().map(|kind| kind.count);
        let of_kinds = counts.fold(0, u64::saturating_add).min(WORDED_MAX) as usize;
        for warning in attempt.warnings.iter().skip(of_kinds) {
            let line = one_line(&warning.message);
            // Every mini-batch has the same warning about a column that cannot be converted.
            if !self.first.iter().any(|(_, known)| *known == line) {
                self.first.push((attempt.mini_batch, line));
            }
        }
        // In the order of the input, not in the order of arrival.
        self.first.sort_by_key(|(mini_batch, _)| *mini_batch);
        self.first.truncate(NAMED_MAX);
    }

    fn add_kind(&mut self, kind: &WarningKind, mini_batch: u64) {
        kind.clone().add_to(&mut self.kinds);
        let is_same =
            |known: &WarningKind| known.column == kind.column && known.problem == kind.problem;
        let Some(index) = self.kinds.iter().position(is_same) else { return };
        if self.first_in.len() == index {
            self.first_in.push(mini_batch);
        }
        if mini_batch < self.first_in[index] {
            self.first_in[index] = mini_batch;
            self.kinds[index].first.clone_from(&kind.first);
        }
    }
}
