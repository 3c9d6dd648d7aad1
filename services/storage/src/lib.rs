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
//! nodes/<seat>/<epoch> who may work on the job, where that is limited       created if absent, by workers
//! logs/                the log tree                                         by all roles, directly where it is a folder
//! ```
//!
//! The store of a compute target ([`TargetStore`]) holds many jobs.

mod aws;
pub mod check;
mod create;
pub mod disk;
mod error;
mod job_store;
mod logs;
mod plan;
mod probe;
mod remote;
mod seats;
pub mod snapshot;
mod stores;
mod target;
mod tree;
mod upload;
mod web;

pub use create::Commit;
pub use error::Error;
pub use job_store::{JobStore, PartStream};
pub use logs::LogFile;
pub use plan::{PLAN_CHUNK_MINI_BATCHES, PlanComplete};
pub use probe::{Probe, create_bucket, probe};
pub use remote::{Destination, file_name, is_below};
pub use seats::Seat;
pub use snapshot::{Limit, Source, pack, unpack};
pub use stores::{StoreOptions, Stores};
pub use target::TargetStore;
pub use tree::Tree;
pub use upload::Upload;

/// What every call gives.
pub type Result<T> = std::result::Result<T, Error>;
