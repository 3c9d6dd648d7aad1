//! Where every object of a job lives, over any `object_store`.
//!
//! A job is a folder of objects, and these objects are the truth: queues can be rebuilt from them.
//!
//! ```text
//! spec.json            the job, resolved                                    written once
//! plan/<chunk>         descriptors, one JSON line each                      created if absent, by the partitioner
//! plan/schemas.json    column names and types, one entry an input           written before the first chunk
//! plan/complete.json   how many chunks, mini-batches and items there are    written last
//! parts/<name>         rows of one successful attempt, when they are large  by a worker, before it announces them
//! ledger/<sequence>    records the reducer has committed                    created if absent: this is the commit
//! control/cancel       the user wants the job to stop                       created if absent
//! progress.json        how the job stands                                   overwritten
//! result.json          how it ended                                         created if absent
//! logs/                the log tree, local jobs only                        by all roles, directly in the folder
//! ```

mod error;
mod job_store;
mod plan;
mod remote;

pub use error::Error;
pub use job_store::{Commit, JobStore};
pub use plan::{PLAN_CHUNK_MINI_BATCHES, PlanComplete};
pub use remote::{download, file_name, open_url};

/// What every call gives.
pub type Result<T> = std::result::Result<T, Error>;
