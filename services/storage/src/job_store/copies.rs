//! Second starts of mini-batches: which there are, and which are over.

use serde::{Deserialize, Serialize};

use super::{JobStore, json, optional};
use crate::Result;
use crate::create::Commit;

/// The object that names the mini-batches whose second start is over.
const SETTLED: &str = "copies/settled";

/// The second starts of one epoch.
#[derive(Serialize, Deserialize)]
struct Started {
    /// The reducer, whose record would otherwise equal that of another.
    writer: String,
    mini_batches: Vec<u64>,
}

impl JobStore {
    /// Records that a reducer is about to start these mini-batches a second time. `Lost` means that another reducer has
    /// used this epoch.
    pub async fn create_copies(
        &self,
        epoch: u64,
        writer: &str,
        mini_batches: &[u64],
    ) -> Result<Commit> {
        let started = Started { writer: writer.to_owned(), mini_batches: mini_batches.to_owned() };
        self.create(&epoch_of(epoch), json(&started).into()).await
    }

    /// Returns the mini-batches that were started a second time in this epoch; `None`: there is no such epoch.
    pub async fn copies(&self, epoch: u64) -> Result<Option<Vec<u64>>> {
        let started: Option<Started> = optional(self.json(&epoch_of(epoch)).await)?;
        Ok(started.map(|started| started.mini_batches))
    }

    /// Tells nodes that these mini-batches have succeeded, so that they stop what still runs of them.
    pub async fn put_settled(&self, mini_batches: &[u64]) -> Result<()> {
        self.put(SETTLED, json(mini_batches)).await
    }

    /// Returns the mini-batches that were started twice and have succeeded.
    pub async fn settled(&self) -> Result<Vec<u64>> {
        Ok(optional(self.json(SETTLED).await)?.unwrap_or_default())
    }

    /// Forgets them, before one of them has to run again.
    pub async fn forget_settled(&self) -> Result<()> {
        self.delete(SETTLED).await
    }
}

fn epoch_of(epoch: u64) -> String {
    format!("copies/{epoch:06}")
}
