//! The reducer: the only committer of a job's results.
//!
//! It receives result messages, appends them to the ledger, and only then acknowledges them. What the ledger
//! says is folded into the [`Tally`], a pure value: progress, thresholds, reports and the decision to end the job all
//! follow from it, so a restarted reducer reads the ledger and goes on. At the end one ordered pass over the ledger
//! and the parts makes the final file.
//!
//! | to see | open |
//! |---|---|
//! | which attempt counts | `tally.rs` |
//! | who is up, and who waits | `fleet.rs` |
//! | what went wrong, grouped | `failures.rs` |
//! | when a job is given up | `thresholds.rs` |
//! | how results are committed and found again | `ledger.rs` |
//! | how the final file is made | `output/` |
//! | what people read | `reports/` |
//! | the order in which all this happens | `reducer.rs`, `reducer/finish.rs` |
//! | how one process serves all jobs of a compute target | `service.rs` |
//!
//! What is deliberately absent: any knowledge of queues' makes, of how rows were made, and of how mini-batches get to
//! workers. Nothing here publishes a descriptor.

mod batch;
mod believed;
mod csv;
mod failures;
#[cfg(test)]
mod fixtures;
mod fleet;
mod ledger;
mod options;
mod output;
mod reducer;
mod reports;
mod service;
mod tally;
mod thresholds;

pub use failures::{Dominant, FailureGroup, Failures, GivenUp};
pub use fleet::Fleet;
pub use options::{CrashPoint, Options};
pub use reducer::{FailJob, Reducer};
pub use service::{Service, ServiceOptions};
pub use tally::{Effect, MiniBatchState, Tally};
pub use thresholds::{Elapsed, Limits};
