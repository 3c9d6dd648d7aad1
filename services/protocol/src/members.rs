//! The nodes of a job, as its reducer knows them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The nodes that work on a job. A reducer writes it, and nodes on which attempts have failed read
/// it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Members {
    /// Nodes with processes of the job. The number grows with the attempts that end there, as long as attempts keep
    /// failing on any node, so that the others can tell whether it is alive.
    pub working: BTreeMap<String, u64>,
    /// Nodes that must not work on the job, because their attempts fail where those of others succeed, and the evidence.
    pub excluded: BTreeMap<String, String>,
}
