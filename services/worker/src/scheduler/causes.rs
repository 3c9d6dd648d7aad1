//! The causes of failed ranges of an isolated mini-batch, and the resulting rejects. Pure.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use protocol::{AttemptStatus, Ending, ErrorReport, FailedRun, Rejected};

use super::rejects::{shorten, shorten_error};

/// Category of the errors of items that an isolation has not run alone when it ends early.
const NOT_RUN_ALONE: &str = "NotRunAlone";

/// A range that has failed and is not divided further.
pub(super) struct FailedRange {
    pub(super) items: Range<u64>,
    pub(super) cause: Arc<Cause>,
}

/// How the run of a range ended.
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

    /// Returns the cause for items without a result of a run that ended without an error.
    pub(super) fn no_result(run: FailedRun) -> Arc<Self> {
        let error = ErrorReport::no_result("run() returned no result");
        Arc::new(Self { status: AttemptStatus::IllegalResult, error, run })
    }

    /// Returns the cause for a part of the range that has not been run.
    pub(super) fn of_a_whole(&self, reason: &str) -> Arc<Self> {
        let together = ErrorReport { log: String::new(), ..self.error.clone() }.sentence();
        let message = format!("not run alone, because {reason}; together with others: {together}");
        let (category, log) = (NOT_RUN_ALONE.to_owned(), self.error.log.clone());
        let mut error = ErrorReport { category, message, log, ..ErrorReport::default() };
        shorten_error(&mut error);
        Arc::new(Self { status: self.status, error, run: self.run.clone() })
    }

    pub(super) fn is_of_an_item(&self) -> bool {
        is_of_an_item(self.status)
    }
}

/// Whether an item is at fault for a failure, rather than the size of the range.
pub(super) fn is_of_an_item(status: AttemptStatus) -> bool {
    matches!(status, AttemptStatus::RunRaised | AttemptStatus::IllegalResult)
}

/// Returns the rejected ranges in order.
pub(super) fn rejected(
    failed: BTreeMap<u64, FailedRange>,
    detail: impl Fn(u64) -> String,
) -> Vec<Rejected> {
    let rejected = failed.into_values().map(|FailedRange { items, cause }| Rejected {
        item: items.start,
        items: items.end - items.start,
        detail: detail(items.start),
        values: String::new(),
        status: cause.status,
        error: cause.error.clone(),
        run: Some(cause.run.clone()),
    });
    let mut rejected = rejected.collect::<Vec<_>>();
    shorten(&mut rejected);
    rejected
}
