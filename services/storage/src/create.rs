//! Creates an object if it is absent: the commit of everything that must not be committed twice.
//!
//! A store answers 412 if the object exists, and 409 while another create is in progress, which may fail.
//! `object_store` reports both as `AlreadyExists`. It retries a create after errors of the server, but not after a lost
//! answer. So the writer reads the object: if it has the writer's bytes, the writer has won, and if it does not exist,
//! the writer retries the create.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use bytes::Bytes;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutPayload};

use crate::{Error, Result};

/// The pauses between retries of a create. The retries end when a pause would exceed the limit of its cause: after 3 or
/// 0.3 seconds in all. They are for races of writers; the client of the store itself waits for the end of outages.
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
    /// The object was absent, and now contains the caller's bytes.
    Committed,
    /// Another writer has created the object, and the caller's bytes are not stored.
    Lost,
}

/// Creates an object unless it exists. Two writers of the same bytes both get `Committed`. Where that matters, the
/// bytes must name their writer.
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
                // The store may have created the object although its answer is lost.
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
    let starts_with = |piece: &Bytes| match rest.strip_prefix(&piece[..]) {
        Some(after) => {
            rest = after;
            true
        }
        None => false,
    };
    Ok(bytes.iter().all(starts_with) && rest.is_empty())
}

/// Returns whether the error is that of a local disk, where a retry does not help: it loses no answers, and stays full.
fn is_local(error: &object_store::Error) -> bool {
    matches!(error, object_store::Error::Generic { store: "LocalFileSystem", .. })
}
