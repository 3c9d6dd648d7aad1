//! The ranges of an isolated mini-batch that are to run. Pure.

use std::ops::Range;
use std::sync::Arc;

use super::causes::Cause;

/// A range to run.
pub(super) struct Pending {
    pub(super) items: Range<u64>,
    /// The range that contains it, which has failed, or must contain a bad item.
    pub(super) part_of: Range<u64>,
    pub(super) is_last_part: bool,
    /// The failure of that range.
    pub(super) cause: Arc<Cause>,
    pub(super) kind: RangeKind,
    /// How often it runs again if it fails, before it is divided or rejected.
    pub(super) tries_left: u32,
}

impl Pending {
    /// A part of a range that has failed with this cause.
    pub(super) fn part(
        items: Range<u64>,
        is_last_part: bool,
        part_of: &Range<u64>,
        cause: &Arc<Cause>,
    ) -> Self {
        Self {
            items,
            part_of: part_of.clone(),
            is_last_part,
            cause: cause.clone(),
            kind: RangeKind::Ordinary,
            tries_left: 0,
        }
    }

    /// A range that runs again as a whole, with this many tries.
    pub(super) fn again(items: Range<u64>, cause: &Arc<Cause>, tries: u32) -> Self {
        Self {
            tries_left: tries.saturating_sub(1),
            ..Self::part(items.clone(), false, &items, cause)
        }
    }

    /// A range that has failed with this cause, and of which the script has handed results back.
    pub(super) fn kept(items: Range<u64>, cause: Arc<Cause>) -> Self {
        Self { kind: RangeKind::Kept, ..Self::part(items.clone(), false, &items, &cause) }
    }

    pub(super) fn count(&self) -> u64 {
        self.items.end - self.items.start
    }
}

/// The known facts about a range, mostly from the exception of the range that contains it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RangeKind {
    Ordinary,
    /// The item on which the process was working.
    Suspect,
    /// Before that item.
    BeforeSuspect,
    /// It has failed, and only its checkpoints may still count.
    Kept,
}

/// Whether the items on which the process was working have failed alone.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Suspects {
    Untested,
    Right,
    /// One has not.
    Wrong,
}
