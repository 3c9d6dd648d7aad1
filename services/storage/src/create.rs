//! Creating an object if it is absent: how everything is committed that must not be committed twice.
//!
//! A store answers 412 where another object is there already, and 409 where another create of it is under way, which
//! may come to nothing. `object_store` tells both as `AlreadyExists`, and tries a create again after errors of the
//! server but not after a lost answer. So what counts is the object itself: whoever meets his own bytes has won, and
//! where there is none the create is tried again.

use std::time::Duration;

use bytes::Bytes;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutPayload};

use crate::{Error, Result};

/// Pauses before a create is tried again, each twice as long as the one before.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// Where another create is under way, which may take its time.
const PAUSE_MAX_CONFLICT: Duration = Duration::from_secs(2);
/// Where the answer was lost: errors that a store owns up to have been tried again by its client.
const PAUSE_MAX_LOST: Duration = Duration::from_millis(200);

/// Whether a created-if-absent object is ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Commit {
    /// It was absent and now holds our bytes.
    Committed,
    /// Somebody else has created it; our bytes are nowhere.
    Lost,
}

/// Creates an object unless it exists. Two writers of the same bytes both believe that they have created it: where
/// that matters, the bytes must name their writer.
pub(crate) async fn create(
    store: &dyn ObjectStore,
    path: &ObjectPath,
    name: &str,
    bytes: PutPayload,
) -> Result<Commit> {
    let mut pause = PAUSE_MIN;
    loop {
        let (error, pause_max) = match store.put_opts(path, bytes.clone(), PutMode::Create.into()).await {
            Ok(_) => return Ok(Commit::Committed),
            Err(error @ object_store::Error::AlreadyExists { .. }) => match holds(store, path, &bytes).await {
                Ok(true) => return Ok(Commit::Committed),
                Ok(false) => return Ok(Commit::Lost),
                Err(object_store::Error::NotFound { .. }) => (error, PAUSE_MAX_CONFLICT),
                Err(error) => (error, PAUSE_MAX_LOST),
            },
            // It may have been created all the same.
            Err(error @ object_store::Error::Generic { .. }) if !is_local(&error) => (error, PAUSE_MAX_LOST),
            Err(error) => return Err(Error::from_store(name, error)),
        };
        if pause > pause_max {
            return Err(Error::from_store(name, error));
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
}

/// Whether an object holds these bytes.
async fn holds(store: &dyn ObjectStore, path: &ObjectPath, bytes: &PutPayload) -> object_store::Result<bool> {
    let found = store.get(path).await?.bytes().await?;
    let mut rest = &found[..];
    let is_begun_by = |piece: &Bytes| match rest.strip_prefix(&piece[..]) {
        Some(after) => {
            rest = after;
            true
        }
        None => false,
    };
    Ok(bytes.iter().all(is_begun_by) && rest.is_empty())
}

/// A disk does not lose answers, and a full one stays full.
fn is_local(error: &object_store::Error) -> bool {
    matches!(error, object_store::Error::Generic { store: "LocalFileSystem", .. })
}
