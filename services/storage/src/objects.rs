//! The objects below a prefix of a store, by their names.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use futures::TryStreamExt;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt, PutPayload};
use serde::de::DeserializeOwned;

use crate::create::{Commit, create};
use crate::error::found;
use crate::upload::Upload;
use crate::{Error, Result};

/// The objects of one job, or of a target.
#[derive(Clone, Debug)]
pub(crate) struct Objects {
    pub store: Arc<dyn ObjectStore>,
    /// The prefix of every object in `store`; empty for a local job, whose store is rooted in its folder.
    pub prefix: ObjectPath,
    /// The URL of the prefix, ending with a slash, for messages; empty for a local job.
    pub url: String,
}

impl Objects {
    pub fn path(&self, name: &str) -> ObjectPath {
        self.prefix.parts().chain(ObjectPath::from(name).parts()).collect()
    }

    /// Returns the URL of an object for messages; for a local job its name.
    pub fn name(&self, name: &str) -> String {
        format!("{}{name}", self.url)
    }

    /// Reads an object.
    pub async fn get(&self, name: &str) -> Result<Bytes> {
        let read = async { self.store.get(&self.path(name)).await?.bytes().await };
        read.await.map_err(|error| Error::from_store(&self.name(name), error))
    }

    /// Reads a range of bytes of an object.
    pub async fn range(&self, name: &str, range: Range<u64>) -> Result<Bytes> {
        let read = self.store.get_range(&self.path(name), range).await;
        read.map_err(|error| Error::from_store(&self.name(name), error))
    }

    /// Reads an object that is JSON.
    pub async fn json<T: DeserializeOwned>(&self, name: &str) -> Result<T> {
        let bytes = self.get(name).await?;
        serde_json::from_slice(&bytes).map_err(|error| Error::damaged(self.name(name), error))
    }

    /// Returns what the store says about an object; `None` if it does not exist.
    pub async fn head(&self, name: &str) -> Result<Option<ObjectMeta>> {
        found(self.store.head(&self.path(name)).await, &self.name(name))
    }

    /// Writes or replaces an object.
    pub async fn put(&self, name: &str, bytes: impl Into<PutPayload>) -> Result<()> {
        let put = self.store.put(&self.path(name), bytes.into()).await;
        put.map(drop).map_err(|error| Error::from_store(&self.name(name), error))
    }

    /// Writes or replaces an object of any size with the content of a local file.
    pub async fn put_file(&self, name: &str, file: &Path) -> Result<()> {
        Upload::file(Arc::clone(&self.store), self.path(name), self.name(name), file).await
    }

    /// Creates an object unless it exists.
    pub async fn create(&self, name: &str, bytes: impl Into<PutPayload>) -> Result<Commit> {
        create(&*self.store, &self.path(name), &self.name(name), bytes.into()).await
    }

    /// Deletes an object, if it exists.
    pub async fn delete(&self, name: &str) -> Result<()> {
        found(self.store.delete(&self.path(name)).await, &self.name(name)).map(drop)
    }

    /// Returns the objects of a folder.
    pub async fn list(&self, folder: &str) -> Result<Vec<ObjectMeta>> {
        let listed = self.store.list(Some(&self.path(folder))).try_collect().await;
        listed.map_err(|error| Error::from_store(&self.name(folder), error))
    }

    /// Returns whether a folder has any object.
    pub async fn has_any(&self, folder: &str) -> Result<bool> {
        let first = self.store.list(Some(&self.path(folder))).try_next().await;
        let first = first.map_err(|error| Error::from_store(&self.name(folder), error))?;
        Ok(first.is_some())
    }

    /// Deletes the objects of a folder.
    pub async fn delete_all(&self, folder: &str) -> Result<()> {
        let objects = self.store.list(Some(&self.path(folder))).map_ok(|meta| meta.location);
        let deleted =
            self.store.delete_stream(Box::pin(objects)).try_for_each(|_| async { Ok(()) }).await;
        // Another role may delete the same objects.
        found(deleted, &self.name(folder)).map(drop)
    }
}
