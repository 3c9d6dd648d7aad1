//! What an announced attempt says about the items of its mini-batch, and the parts that it names.

use std::hash::{DefaultHasher, Hash, Hasher};

use protocol::{Attempt, AttemptStatus, RejectedList, Rows};

use crate::job::Job;

/// Returns the names of the parts that must exist when an attempt is announced.
pub(super) fn parts_of(attempt: &Attempt) -> impl Iterator<Item = &str> {
    let rows = match &attempt.rows {
        Rows::Part { name, .. } => Some(name.as_str()),
        Rows::None | Rows::Inline => None,
    };
    rows.into_iter().chain(attempt.rejected_part.as_ref().map(|part| part.name.as_str()))
}

/// Whether a success accounts for each item of its mini-batch. `list`: the part of this name, which exists.
pub(super) fn has_all_items<'a>(
    attempt: &'a Attempt,
    job: &Job,
    list: impl FnOnce(&str) -> &'a RejectedList,
) -> bool {
    let rejected =
        attempt.rejected_part.as_ref().map_or(&attempt.rejected, |part| &list(&part.name).rejected);
    let items: Vec<u64> = rejected
        .iter()
        .flat_map(|rejected| rejected.item..rejected.item + rejected.items)
        .collect();
    let bad: Vec<u64> = job.bad(attempt.mini_batch).collect();
    attempt.status != AttemptStatus::Succeeded
        || items == bad
            && attempt.items_rejected() == bad.len() as u64
            && attempt.succeeded + bad.len() as u64 == job.items(attempt.mini_batch)
}

/// Returns a number that stands for content.
pub(super) fn hash_of(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}
