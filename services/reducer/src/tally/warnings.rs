//! Warnings of the attempts that count: their number, the first of them, and their kinds.

use protocol::{Attempt, WarningKind};

use crate::failures::one_line;

/// Warnings that the result quotes.
const NAMED_MAX: usize = 5;
/// Warnings about values of a table that an attempt carries as text.
const WORDED_MAX: u64 = 10;

/// Part of the tally, and pure like it.
#[derive(Clone, Debug, Default)]
pub struct Warnings {
    count: u64,
    /// The first distinct warnings with their mini-batches.
    first: Vec<(u64, String)>,
    kinds: Vec<WarningKind>,
    /// The lowest mini-batch with a warning of each kind.
    first_in: Vec<u64>,
}

impl Warnings {
    /// Adds the warnings of an attempt that counts.
    pub(super) fn add(&mut self, attempt: &Attempt) {
        self.count += attempt.warnings_total.max(attempt.warnings.len() as u64);
        self.add_first(attempt);
        self.add_kinds(attempt);
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

    fn add_kinds(&mut self, attempt: &Attempt) {
        for kind in &attempt.warning_kinds {
            kind.clone().add_to(&mut self.kinds);
            let is_same = |known: &WarningKind| known.column == kind.column && known.problem == kind.problem;
            let Some(index) = self.kinds.iter().position(is_same) else { continue };
            if self.first_in.len() == index {
                self.first_in.push(attempt.mini_batch);
            }
            if attempt.mini_batch < self.first_in[index] {
                self.first_in[index] = attempt.mini_batch;
                self.kinds[index].first.clone_from(&kind.first);
            }
        }
    }

    /// Returns the number of warnings.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the first distinct warnings, one line each.
    pub fn first(&self) -> impl Iterator<Item = String> + '_ {
        self.first.iter().map(|(mini_batch, line)| format!("mini-batch {mini_batch}: {line}"))
    }

    /// Returns the warnings by kind, each with the first in the order of the mini-batches.
    pub fn kinds(&self) -> &[WarningKind] {
        &self.kinds
    }
}
