//! Creates an object if it is absent: the commit of everything that must not be committed twice.
//!
//! A store answers 412 if the object exists, and 409 while another create is in progress, which may fail.
//! `object_store` reports both as `AlreadyExists`, and retries a create after errors of the server but not after a lost
//! answer. So the object itself decides: a writer that finds its own bytes has won, and without an object it retries
//! the create.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use bytes::Bytes;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutPayload};

use crate::{Error, Result};

/// Pauses between tries of a create, until one would be longer than the cause is worth: 3 seconds in all, or 0.3. These are
/// races of writers, not outages, which the client of the store waits for.
const RETRY: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_millis(100))
    .without_max_delay()
    .without_max_times();
/// The longest pause while another create is in progress, which may be slow.
const PAUSE_MAX_CONFLICT: Duration = Duration::from_secs(2);
/// The longest pause after a lost answer. The client has already retried the errors that the store reported.
const PAUSE_MAX_LOST: Duration = Duration::from_millis(200);

/// The result of creating an object if absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Commit {
    /// It was absent and now contains our bytes.
    Committed,
    /// Another writer has created it; our bytes are not stored.
    Lost,
}

/// Creates an object unless it exists. Two writers of the same bytes both get `Committed`: where
/// that matters, the bytes must name their writer.
pub(crate) async fn create(
    store: &dyn ObjectStore,
    path: &ObjectPath,
    name: &str,
    bytes: PutPayload,
) -> Result<Commit> {
    let mut pauses = RETRY.build();
    loop {
        let (error, pause_max) =
            match store.put_opts(path, bytes.clone(), PutMode::Create.into()).await {
                Ok(_) => return Ok(Commit::Committed),
                Err(error @ object_store::Error::AlreadyExists { .. }) => {
                    match holds(store, path, &bytes).await {
                        Ok(true) => return Ok(Commit::Committed),
                        Ok(false) => return Ok(Commit::Lost),
                        Err(object_store::Error::NotFound { .. }) => (error, PAUSE_MAX_CONFLICT),
                        Err(error) => (error, PAUSE_MAX_LOST),
                    }
                }
                // The object may have been created nevertheless.
                Err(error @ object_store::Error::Generic { .. }) if !is_local(&error) => {
                    (error, PAUSE_MAX_LOST)
                }
                Err(error) => return Err(Error::from_store(name, error)),
            };
        match pauses.next().filter(|pause| *pause <= pause_max) {
            Some(pause) => tokio::time::sleep(pause).await,
            None => return Err(Error::from_store(name, error)),
        }
    }
}

/// Returns whether an object contains these bytes.
async fn holds(
    store: &dyn ObjectStore,
    path: &ObjectPath,
    bytes: &PutPayload,
) -> object_store::Result<bool> {
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

/// Returns whether the error is that of a local disk, which loses no answers, and stays full.
fn is_local(error: &object_store::Error) -> bool {
    matches!(error, object_store::Error::Generic { store: "LocalFileSystem", .. })
}
