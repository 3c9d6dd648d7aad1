//! Reads documents that people write into the specification of a job: the job file, YAML with the keys of
//! `ParallelRunConfig` and `ParallelRunStep`, and documents of Azure ML, each step of which becomes a job file.
//!
//! [`load()`] finds all mistakes at once, each as a [`Problem`] with its line, the value found and the values allowed.
//! It never reads the environment of the process: the caller passes a [`Context`]. `JOB_FILE.md` is the guide for
//! users, and `REFERENCE.md` has all keys and rules.
//!
//! | module | purpose |
//! |---|---|
//! | `tree`, `yaml` | a document with the line of every key and value |
//! | `problem` | mistakes and warnings |
//! | `context` | the surroundings on which the meaning of a job file depends |
//! | `keys` | the table of keys; `values` and the files below `keys/` parse single values |
//! | `section` | reads one mapping by the table |
//! | `overrides` | `--set key=value` |
//! | `script`, `inputs`, `mini_batches`, `output`, `result_schema`, `environment`, `limits`, `requires`, `arguments`, `options` | keys that depend on others |
//! | `requirements` | finds lines that pip would refuse |
//! | `paths`, `destination` | paths and URLs; where results may go |
//! | `argv` | the argument list of the script |
//! | `identity`, `snapshot`, `words` | whether two jobs are the same |
//! | `load` | all of it, in order |
//! | `reference` | the tables of `REFERENCE.md` |
//! | `azure` | documents and keys of Azure ML, read into entries of a job file |
//! | `other` | further files that a document refers to |
//! | `written` | entries as YAML |
//!
//! A value parser returns a value or a `Fault`, and the collector `Problems` knows the location. Another kind of
//! document becomes another reader in front of `load`: it turns its entries into entries of a job file that keep their
//! locations.

mod arguments;
mod argv;
mod azure;
mod context;
mod destination;
mod environment;
mod identity;
mod inputs;
mod keys;
mod limits;
mod load;
mod mini_batches;
mod options;
mod other;
mod output;
mod overrides;
mod paths;
mod problem;
mod reference;
mod requirements;
mod requires;
mod result_schema;
mod script;
mod section;
mod snapshot;
mod tree;
mod values;
mod words;
mod written;
mod yaml;

#[cfg(test)]
mod tests;

pub use argv::arguments_of;
pub use azure::{Asset, AzureNames, DocumentOverrides, RUN_ID, Register, Step, Steps};
pub use context::{Context, ModelFolders};
pub use identity::{Difference, Identity, JobPart, RunPeriod};
pub use keys::settable;
pub use load::{Parsed, load, renew_script, script_has_changed};
pub use paths::not_kept;
pub use problem::{Problem, STDIN, did_you_mean, nearest, shown};
pub use reference::with_tables;
pub use snapshot::{Incomplete, pack_script};

// Names that many modules of this crate share.
use paths::Paths;
use problem::{Fault, Problems};
use section::Section;
use tree::{Entry, Location, Node, Scalar, ScalarKind, Value, find};
