//! The reducer: the only committer of a job's results.
//!
//! It receives result messages, appends them to the ledger, and only then acknowledges them. The [`Tally`], a pure
//! value, follows from the ledger; progress, thresholds, reports and the decision to end the job follow from the tally.
//! A restarted reducer therefore reads the ledger and continues. At the end, one ordered pass over the ledger and the
//! parts writes the final file.
//!
//! | to see | open |
//! |---|---|
//! | the loop of one reducer, and its options | `job.rs`, `options.rs` |
//! | committing results | `receive.rs`, `batch.rs`, `commit.rs`, `ledger.rs` |
//! | dependencies on other processes that work on the job | `peers.rs` |
//! | which attempt counts | `tally.rs` |
//! | running nodes and processes, and waits | `nodes.rs` |
//! | excluded nodes | `exclusions.rs` decides, `members.rs` publishes |
//! | failures, grouped | `failures.rs` |
//! | when a job ends, and how | `judge.rs`, `thresholds.rs`, `stalls.rs` |
//! | log lines about processes that do not start | `starts.rs` |
//! | speculative runs of slow mini-batches | `speculation.rs` decides, `copies.rs` publishes |
//! | whether a worker of the job is alive | `job_liveness.rs` |
//! | which messages are refused | `believed.rs` |
//! | the final file | `finish.rs`, `output.rs` |
//! | rounds of a job | `rounds.rs`, `tally/rounds.rs` |
//! | rejected items, and their tables | `rejects.rs` |
//! | progress and reports for people | `progress.rs`, `pace.rs`, `reports.rs`, `csv.rs` |
//! | the progress of a killed reducer | `committed.rs` |
//! | panics of tasks | `tasks.rs` |
//! | the interface for `tests/simulation` | `simulation_api.rs` |
//! | one process that serves all jobs of a target, and their queues | `fleet.rs` |
//! | which node works on which job | `schedule.rs` decides, `planner.rs` commits, `worker_liveness.rs` finds silent nodes |
//!
//! Deliberately absent: any knowledge of queue backends, of how rows are made, and of how
//! mini-batches reach workers. The only descriptors that it publishes are copies, which a job can
//! lose.

mod batch;
mod believed;
mod commit;
mod committed;
mod copies;
mod csv;
mod exclusions;
mod failures;
mod finish;
#[cfg(test)]
mod fixtures;
mod fleet;
mod job;
mod job_liveness;
mod judge;
mod ledger;
mod members;
mod nodes;
mod options;
mod output;
mod pace;
mod peers;
pub mod planner;
mod progress;
mod receive;
mod rejects;
mod reports;
mod rounds;
pub mod schedule;
pub mod simulation_api;
mod speculation;
mod stalls;
mod starts;
mod tally;
mod tasks;
#[cfg(test)]
mod tests;
mod thresholds;
mod worker_liveness;

pub use committed::{committed, committed_in, tally_of};
pub use failures::{DominantCause, FailureGroup, Failures, GivenUp, RepeatedReason};
pub use fleet::{Fleet, FleetOptions, Publisher};
pub use job::{FailJob, Reducer};
pub use job_liveness::Timestamp;
pub use nodes::Nodes;
pub use options::{Backlog, CrashPoint, Options, Workers};
pub use peers::Peers;
pub use rejects::{FirstReject, Reject, RejectGroup, RejectGroups, RejectedMiniBatch, Rejects};
pub use rounds::{BegunRound, RoundScript};
pub use stalls::Elapsed;
pub use tally::{Effect, Effort, MiniBatchState, Tally, Unimproved, Warnings};
pub use thresholds::Limits;
