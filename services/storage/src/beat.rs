//! The sign of life of a job's workers: one object, which one of them overwrites every few seconds for all.
//!
//! Clocks are not compared: a reader concludes that a worker is alive when the object has changed.

use protocol::milliseconds_since_epoch;
use serde::{Deserialize, Serialize};

use crate::{Error, JobStore, Result};

/// One sign of life.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beat {
    /// Node that gave it.
    pub node: String,
    /// Number of earlier signs of this node, so that each differs from the last.
    pub count: u64,
    /// Wall clock of that node, milliseconds since the epoch.
    pub at: u64,
}

impl Beat {
    /// Creates a sign of life of this node, now.
    pub fn of(node: &str, count: u64) -> Self {
        Self { node: node.to_owned(), count, at: milliseconds_since_epoch() }
    }
}

impl JobStore {
    /// Overwrites `nodes/alive`.
    pub async fn put_beat(&self, beat: &Beat) -> Result<()> {
        let beat = serde_json::to_vec(beat).expect("plain data always serialises");
        self.put("nodes/alive", beat.into()).await
    }

    /// Reads `nodes/alive`. Returns `None` if no worker has given a sign of life, or if the object is damaged, which a
    /// worker soon overwrites.
    pub async fn beat(&self) -> Result<Option<Beat>> {
        match self.json("nodes/alive").await {
            Ok(beat) => Ok(Some(beat)),
            Err(Error::NotFound { .. } | Error::Damaged { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
