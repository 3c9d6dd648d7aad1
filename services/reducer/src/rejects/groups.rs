//! Rejects grouped by cause, so that a million rejects of one kind are one line.

use std::collections::HashMap;

use protocol::{AttemptStatus, one_line};
use serde::Serialize;

use super::Reject;
use crate::failures::{GROUPS_MAX, error_line, reason};

/// Rejects whose errors differ only in numbers, paths and quoted texts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RejectGroup {
    /// Rejected items.
    pub items: u64,
    /// Mini-batches with such items.
    pub mini_batches: u64,
    /// The reason: the category, and the message without its varying parts. Groups of failures use
    /// the same.
    pub reason: String,
    /// How the last try ended.
    pub cause: &'static str,
    /// `ValueError`, `RunTimeout`, …
    pub exception: String,
    /// Message of the first reject, one line; empty if the group collects different messages.
    pub message: String,
    /// The first reject.
    pub first: FirstReject,
}

/// The first reject of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FirstReject {
    /// Its mini-batch.
    pub mini_batch: u64,
    /// The item for people.
    pub detail: String,
    /// The row as a JSON object; empty where no single row is known to be at fault, and for files.
    pub values: String,
    /// Traceback of its error; may be empty.
    pub traceback: String,
    /// The last lines printed before it; may be empty.
    pub printed: String,
    /// File below `logs/` to open next; may be empty.
    pub log: String,
}

/// Counts rejects by cause.
#[derive(Debug, Default)]
pub struct RejectGroups {
    groups: HashMap<(AttemptStatus, String), Group>,
    items: u64,
    mini_batches: u64,
    last_mini_batch: Option<u64>,
}

#[derive(Debug)]
struct Group {
    order: usize,
    last_mini_batch: Option<u64>,
    group: RejectGroup,
}

impl RejectGroups {
    /// Adds a reject. Those of a mini-batch follow each other.
    pub fn add(&mut self, reject: &Reject<'_>) {
        let error = &*reject.error;
        let mut key = (reject.status, reason(&error.category, &error.message));
        let mut message = one_line(&error.message);
        if self.groups.len() >= GROUPS_MAX && !self.groups.contains_key(&key) {
            key.1 = reason(&error.category, "");
            message.clear();
        }
        let order = self.groups.len();
        let shared = key.1.clone();
        let Group { group, last_mini_batch, .. } =
            self.groups.entry(key).or_insert_with(|| Group {
                order,
                last_mini_batch: None,
                group: RejectGroup {
                    items: 0,
                    mini_batches: 0,
                    reason: shared,
                    cause: reject.status.word(),
                    exception: one_line(&error.category),
                    message,
                    first: FirstReject {
                        mini_batch: reject.mini_batch,
                        detail: one_line(&reject.detail),
                        values: reject.values.to_owned(),
                        traceback: error.traceback.clone(),
                        printed: error.printed.clone(),
                        log: one_line(&error.log),
                    },
                },
            });
        let this = Some(reject.mini_batch);
        group.items += reject.items;
        group.mini_batches += u64::from(last_mini_batch.replace(reject.mini_batch) != this);
        self.items += reject.items;
        self.mini_batches += u64::from(self.last_mini_batch.replace(reject.mini_batch) != this);
    }

    /// Returns the number of rejected items.
    pub fn items(&self) -> u64 {
        self.items
    }

    /// Returns the number of mini-batches with rejected items.
    pub fn mini_batches(&self) -> u64 {
        self.mini_batches
    }

    /// Returns the groups, the largest first.
    pub fn into_groups(self) -> Vec<RejectGroup> {
        let mut groups: Vec<_> = self.groups.into_values().collect();
        groups.sort_by_key(|Group { order, group, .. }| (std::cmp::Reverse(group.items), *order));
        groups.into_iter().map(|Group { group, .. }| group).collect()
    }
}

impl RejectGroup {
    /// Returns exception and message in one line.
    pub fn error(&self) -> String {
        match error_line(&self.exception, &self.message) {
            nothing if nothing.is_empty() => self.cause.to_owned(),
            line => line,
        }
    }
}
