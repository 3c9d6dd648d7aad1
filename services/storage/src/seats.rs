//! Seats limit how many nodes may work on a job at a time.
//!
//! A seat has epochs, each an object that is created if absent and names its holder. The holder creates the next one
//! from time to time. A seat without a new epoch for a while is free, and the node that creates the next epoch takes
//! it. Clocks are not compared: each node measures with its own clock how long nothing has changed.

use futures::TryStreamExt;
use object_store::ObjectStore;
use serde::{Deserialize, Serialize};

use crate::create::Commit;
use crate::random::random_bits;
use crate::{Error, JobStore, Result};

/// The state of a seat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seat {
    /// The last epoch.
    pub epoch: u64,
    /// Node that created it.
    pub node: String,
}

/// The content of an epoch.
#[derive(Serialize, Deserialize)]
struct Claim {
    node: String,
    /// Different for every claim, so that one of two claims with the same node name is lost.
    claim: u64,
}

impl JobStore {
    /// Takes or keeps a seat by creating the epoch `epoch`, one more than the last.
    pub async fn claim_seat(&self, seat: u32, epoch: u64, node: &str) -> Result<Commit> {
        let claim = Claim { node: node.to_owned(), claim: random_bits() };
        let claim = serde_json::to_vec(&claim).expect("plain data always serialises");
        self.create(&format!("nodes/{seat}/{epoch:010}"), claim.into()).await
    }

    /// Returns the last epoch of a seat, at least `known`, which the caller has seen; `None` if no node has ever had
    /// it.
    pub async fn seat(&self, seat: u32, known: u64) -> Result<Option<Seat>> {
        let folder = self.path(&format!("nodes/{seat}"));
        let before = self.path(&format!("nodes/{seat}/{:010}", known.saturating_sub(1)));
        let listed = if known == 0 {
            self.store.list(Some(&folder))
        } else {
            self.store.list_with_offset(Some(&folder), &before)
        };
        let epochs = listed
            .try_filter_map(|meta| async move { Ok(meta.location.filename().and_then(|name| name.parse().ok())) });
        let last = epochs.try_fold(None, |last: Option<u64>, epoch: u64| async move { Ok(last.max(Some(epoch))) });
        let last = last.await.map_err(|error| Error::from_store(&self.name(&format!("nodes/{seat}")), error))?;
        let Some(epoch) = last else { return Ok(None) };
        let claim: Claim = self.json(&format!("nodes/{seat}/{epoch:010}")).await?;
        Ok(Some(Seat { epoch, node: claim.node }))
    }
}
