//! Decides which notices about this job are due: each function returns whether one is, and records
//! that it is given. Pure.

use std::time::{Duration, Instant};

use super::Timestamp;

/// The notices that users, the reducer and the node have received.
#[derive(Debug, Default)]
pub(super) struct Notices {
    /// When a slow preparation was last reported.
    preparation: Option<Instant>,
    /// When the reducer was last told that a mini-batch goes on; at first, when there was something to tell.
    progress: Option<Instant>,
    has_told_memory: bool,
    has_ended_one: bool,
}

impl Notices {
    /// Whether to report that a preparation is slow, again after this time.
    pub(super) fn slow_preparation(&mut self, now: Timestamp, again: Duration) -> bool {
        let is_due = self.preparation.is_none_or(|told| now.instant - told > again);
        if is_due {
            self.preparation = Some(now.instant);
        }
        is_due
    }

    /// Whether to report that a mini-batch makes progress, always after a pause.
    pub(super) fn progress(&mut self, now: Timestamp, pause: Duration) -> bool {
        let told = self.progress.get_or_insert(now.instant);
        let is_due = now.instant.saturating_duration_since(*told) >= pause;
        if is_due {
            *told = now.instant;
        }
        is_due
    }

    /// Whether to report that the limit of memory is too low, once.
    pub(super) fn low_memory_limit(&mut self) -> bool {
        !std::mem::replace(&mut self.has_told_memory, true)
    }

    /// Whether to report that the first attempt has ended here.
    pub(super) fn first_attempt(&mut self) -> bool {
        !std::mem::replace(&mut self.has_ended_one, true)
    }

    /// Whether an attempt has ended here.
    pub(super) fn has_ended_one(&self) -> bool {
        self.has_ended_one
    }
}
