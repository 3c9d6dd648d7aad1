//! The book in which the nodes of a job divide its `limits`.
//!
//! It has versions, each an object that is created if absent, so of two nodes that write the same version one fails. The
//! rules of its content are in `worker/src/limit/book.rs`.

use futures::TryStreamExt;
use object_store::ObjectStore;
use serde::{Deserialize, Serialize};

use crate::create::Commit;
use crate::{Error, JobStore, Result};

/// The shares of all nodes, in the order in which they get one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitBook {
    /// One entry for each node that needs the service.
    pub entries: Vec<LimitEntry>,
}

/// The share of one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitEntry {
    /// Random number of the node's visit.
    pub id: u64,
    /// Name of the node, for people.
    pub node: String,
    /// Counts the versions that the node has written.
    pub renewals: u64,
    /// Its share.
    pub parts: u32,
    /// The share that it could use.
    pub want: u32,
    /// The smallest share that is of use to it.
    pub least: u32,
}

impl JobStore {
    /// Returns a random number that distinguishes a node from others with its name.
    pub fn limit_id() -> u64 {
        crate::random::random_bits()
    }

    /// Creates a version of the book.
    pub async fn create_limit_book(&self, version: u64, book: &LimitBook) -> Result<Commit> {
        let book = serde_json::to_vec(book).expect("plain data always serialises");
        self.create(&name(version), book.into()).await
    }

    /// Returns the last version of the book, at least `known`, which the caller has seen; version 0 is empty.
    pub async fn limit_book(&self, known: u64) -> Result<(u64, LimitBook)> {
        let (folder, before) = (self.path(FOLDER), self.path(&name(known.saturating_sub(1))));
        let listed = if known == 0 {
            self.store.list(Some(&folder))
        } else {
            self.store.list_with_offset(Some(&folder), &before)
        };
        let versions = listed
            .try_filter_map(|meta| async move { Ok(meta.location.filename().and_then(|name| name.parse().ok())) });
        let last = versions.try_fold(known, |last: u64, version: u64| async move { Ok(last.max(version)) });
        let last = last.await.map_err(|error| Error::from_store(&self.name(FOLDER), error))?;
        if last == 0 {
            return Ok((0, LimitBook::default()));
        }
        Ok((last, self.json(&name(last)).await?))
    }

    /// Removes a version that a later one has replaced.
    pub async fn remove_limit_book(&self, version: u64) -> Result<()> {
        self.delete(&name(version)).await
    }
}

const FOLDER: &str = "nodes/limits";

fn name(version: u64) -> String {
    format!("{FOLDER}/{version:010}")
}
