//! The objects of jobs and targets, in any `object_store`.
//!
//! A job is a folder of objects, and these objects are the truth: Gristmill can rebuild the queues from them. The last
//! column says when, how or by which role an object is written.
//!
//! ```text
//! inputs/<name>        tables that were in the memory of a submitter         before spec.json, in stores of targets
//! spec.json            the resolved job                                      once
//! plan/identity.json   properties that distinguish the job from others       overwritten
//! plan/<chunk>         descriptors, one JSON line each                       created if absent, by the partitioner
//! plan/schemas.json    column names and types, one entry per input           before the first chunk
//! plan/complete.json   number of chunks, mini-batches and items              last of the plan
//! plan/failed          why the job cannot be planned                         by the command that plans it
//! plan/planning        the last sign of that command                         overwritten
//! plan/publishing      the last sign of the reducer that publishes the plan  overwritten
//! plan/published       the schedule whose queues have all messages           overwritten, by reducers
//! parts/<name>         rows of one successful attempt, if large              by a worker, before it announces them
//! checkpoints/…        results that a script hands back early                by a worker
//! ledger/<sequence>    records that a reducer has committed                  created if absent: this is the commit
//! control/cancel       a request to cancel the job                           overwritten
//! control/retry        a request for another round                           overwritten
//! control/priority     the priority, if it was changed                       overwritten
//! control/members      nodes that work on the job, and nodes that must not   overwritten, by reducers
//! control/removing     an announced removal of the job                       by `clean`, before it deletes spec.json
//! copies/<epoch>       mini-batches with speculative runs                    created if absent, by reducers
//! copies/decided       those of them that have succeeded                     overwritten, by reducers
//! copies/round-<n>     the reducer that publishes a round                    created if absent, by reducers
//! progress.json        progress of the job                                   overwritten
//! result.json          how the job ended                                     created if absent
//! reused.json          when the result was reused                            overwritten, by `run` and `enqueue`
//! sources/<n>/         the Python files of the script                        before it runs, on this machine
//! logs/                the log tree                                          by all roles, directly if it is a folder
//! ```
//!
//! The store of a compute target ([`TargetStore`]) contains many jobs.

mod aws;
pub mod check;
mod clock;
mod create;
pub mod disk;
mod error;
mod folder;
mod job_store;
mod listing;
mod logs;
mod objects;
mod plan;
mod probe;
mod random;
mod remote;
pub mod snapshot;
mod stores;
mod target;
mod tree;
mod upload;
mod web;

pub use create::Commit;
pub use error::{Answer, Error, Source as ErrorSource, deepest_cause};
pub use folder::{NOT_A_STORE, real_path};
pub use job_store::{CheckpointPiece, JobStore, PartStream, Reuses, RoundRequest, records_of};
pub use logs::{LogFile, UPLOADED_LOG_BEGINNING_BYTES, UPLOADED_LOG_BYTES_MAX};
pub use plan::{LeftOut, PlanComplete};
pub use probe::{Probe, create_bucket, probe};
pub use random::{random_bits, random_name};
pub use remote::{Destination, file_name, is_below};
pub use snapshot::{Limit, Source, digest_of, pack, unpack};
pub use stores::{StoreOptions, Stores};
pub use target::{
    OpenJob, Removal, ScheduleFollower, SeenWorker, TargetStore, WORKER_ENTRY_LASTS, WORKER_PERIOD,
    WORKER_PERIOD_AT_WORK, WorkerWatch,
};
pub use tree::Tree;
pub use upload::Upload;

/// The result of every call.
pub type Result<T> = std::result::Result<T, Error>;
