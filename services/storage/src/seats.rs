//! Seats: how many nodes may work on a job at a time, where the job says so.
//!
//! A seat has epochs, each an object that is created if absent and names its holder. The holder creates the next one
//! from time to time; a seat whose last epoch has not changed for a while is free, and whoever creates the next has it.
//! Clocks are not compared: everybody measures by his own for how long nothing has changed.

use std::hash::{BuildHasher, RandomState};

use futures::TryStreamExt;
use object_store::ObjectStore;
use serde::{Deserialize, Serialize};

use crate::create::Commit;
use crate::{Error, JobStore, Result};

/// How a seat stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seat {
    /// The last epoch.
    pub epoch: u64,
    /// Node that has created it.
    pub node: String,
}

/// What an epoch holds.
#[derive(Serialize, Deserialize)]
struct Claim {
    node: String,
    /// Another one for every claim: of two claims with the same name, one is lost.
    claim: u64,
}

impl JobStore {
    /// Takes or keeps a seat by creating its epoch `epoch`, one more than the last.
    pub async fn claim_seat(&self, seat: u32, epoch: u64, node: &str) -> Result<Commit> {
        let claim = Claim { node: node.to_owned(), claim: RandomState::new().hash_one(epoch) };
        let claim = serde_json::to_vec(&claim).expect("plain data always serialises");
        self.create(&format!("nodes/{seat}/{epoch:010}"), claim.into()).await
    }

    /// The last epoch of a seat that is at least `known`, an epoch that the caller has seen; `None`: nobody has ever had
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
