//! Requests that upload an object to any store.

use std::sync::Arc;

use bytes::Bytes;
use object_store::path::Path as ObjectPath;
use object_store::{MultipartUpload, ObjectStore, ObjectStoreExt};

use super::Sending;
use crate::{Error, Result};

#[derive(Debug)]
pub(super) struct AnyUpload {
    pub store: Arc<dyn ObjectStore>,
    pub path: ObjectPath,
    /// Set once the first part is sent.
    pub upload: Option<Box<dyn MultipartUpload>>,
}

impl AnyUpload {
    /// Returns the request that sends the next part.
    pub async fn part(&mut self, name: &str, body: Bytes) -> Result<Sending> {
        let upload = match &mut self.upload {
            Some(upload) => upload,
            None => {
                let begun = self.store.put_multipart(&self.path).await;
                self.upload.insert(begun.map_err(|error| Error::from_store(name, error))?)
            }
        };
        let (sending, name) = (upload.put_part(body.into()), name.to_owned());
        Ok(Box::pin(async move {
            sending.await.map(|()| None).map_err(|error| Error::from_store(&name, error))
        }))
    }

    /// Completes the object after its last part. Without parts, `whole` is its content.
    pub async fn complete(&mut self, name: &str, whole: Bytes) -> Result<()> {
        let completed = match &mut self.upload {
            Some(upload) => upload.complete().await,
            None => self.store.put(&self.path, whole.into()).await,
        };
        completed.map(drop).map_err(|error| Error::from_store(name, error))
    }

    pub async fn abort(self) {
        if let Some(mut upload) = self.upload {
            let _ = upload.abort().await;
        }
    }
}
