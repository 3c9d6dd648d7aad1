//! The ranges of an isolated mini-batch: those to run, and why others have failed. Pure.

use std::ops::Range;
use std::sync::Arc;

use protocol::{AttemptStatus, Ending, ErrorReport, FailedRun};

use super::rejects::shorten_error;

/// A range to run.
pub(super) struct Pending {
    pub(super) items: Range<u64>,
    /// The range that it is a part of, which has failed, or must hold a bad item.
    pub(super) part_of: Range<u64>,
    pub(super) is_last_part: bool,
    /// The failure of that range.
    pub(super) cause: Arc<Cause>,
    pub(super) place: Place,
}

impl Pending {
    /// A part of a range that has failed with this cause.
    pub(super) fn part(items: Range<u64>, is_last_part: bool, part_of: &Range<u64>, cause: &Arc<Cause>) -> Self {
        Self { items, part_of: part_of.clone(), is_last_part, cause: cause.clone(), place: Place::Anywhere }
    }

    pub(super) fn count(&self) -> u64 {
        self.items.end - self.items.start
    }
}

/// Where a range lies, as far as the exception of the range that it is a part of says so.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Anywhere,
    /// The item on which the process was working.
    Suspect,
    /// Before that item.
    Before,
}

/// A range that has failed and is not divided further.
pub(super) struct Failed {
    pub(super) items: Range<u64>,
    pub(super) cause: Arc<Cause>,
}

/// A failure of a range, and which run that was.
pub(super) struct Cause {
    pub(super) status: AttemptStatus,
    pub(super) error: ErrorReport,
    pub(super) run: FailedRun,
}

impl Cause {
    pub(super) fn of(ending: &Ending, run: FailedRun) -> Arc<Self> {
        let mut error = ending.error.clone().unwrap_or_default();
        shorten_error(&mut error);
        Arc::new(Self { status: ending.status, error, run })
    }

    pub(super) fn is_of_an_item(&self) -> bool {
        is_of_an_item(self.status)
    }
}

/// Whether an item is at fault for a failure, rather than the size of the range.
pub(super) fn is_of_an_item(status: AttemptStatus) -> bool {
    matches!(status, AttemptStatus::RunRaised | AttemptStatus::IllegalResult)
}
