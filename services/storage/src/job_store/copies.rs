//! The records of copies, and of the copied mini-batches that have succeeded.

use serde::{Deserialize, Serialize};

use super::{JobStore, json, optional};
use crate::Result;
use crate::create::Commit;

/// The object that names the copied mini-batches that have succeeded.
const DECIDED: &str = "copies/decided";

/// The copies of one epoch.
#[derive(Serialize, Deserialize)]
struct Started {
    /// The reducer. Without it, two reducers could write equal records and both win.
    writer: String,
    mini_batches: Vec<u64>,
}

impl JobStore {
    /// Records that a reducer is about to copy these mini-batches. `Lost` means that another reducer has used this
    /// epoch.
    pub async fn create_copies(
        &self,
        epoch: u64,
        writer: &str,
        mini_batches: &[u64],
    ) -> Result<Commit> {
        let started = Started { writer: writer.to_owned(), mini_batches: mini_batches.to_owned() };
        self.commits.create(&epoch_of(epoch), json(&started)).await
    }

    /// Returns the mini-batches that were copied in this epoch; `None` if the epoch does not exist.
    pub async fn copies(&self, epoch: u64) -> Result<Option<Vec<u64>>> {
        let started: Option<Started> = optional(self.objects.json(&epoch_of(epoch)).await)?;
        Ok(started.map(|started| started.mini_batches))
    }

    /// Publishes which copied mini-batches have succeeded, so that nodes stop their remaining runs.
    pub async fn put_decided(&self, mini_batches: &[u64]) -> Result<()> {
        self.objects.put(DECIDED, json(mini_batches)).await
    }

    /// Returns the copied mini-batches that have succeeded.
    pub async fn decided(&self) -> Result<Vec<u64>> {
        Ok(optional(self.objects.json(DECIDED).await)?.unwrap_or_default())
    }

    /// Clears the list of copied mini-batches that have succeeded, before one of them has to run again.
    pub async fn forget_decided(&self) -> Result<()> {
        self.objects.delete(DECIDED).await
    }
}

fn epoch_of(epoch: u64) -> String {
    format!("copies/{epoch:06}")
}
