//! The store of a compute target: all jobs, which of them are open, and the folders that travel with them.
//!
//! ```text
//! jobs/<job_id>/…      the objects of one job: `JobStore`
//! open/<job_id>        empty: the job has not ended
//! snapshots/<digest>   a packed folder or file, named by its content
//! ```

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use futures::TryStreamExt;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};
use protocol::{Durability, is_job_id};
use url::Url;

use crate::error::said;
use crate::stores::shown;
use crate::{Error, JobStore, Result, StoreOptions, Stores, Upload};

/// All jobs of one compute target.
#[derive(Clone, Debug)]
pub struct TargetStore {
    url: String,
    store: Arc<dyn ObjectStore>,
    prefix: ObjectPath,
    /// For `file://`: a disk that every machine of the target shares.
    folder: Option<PathBuf>,
    stores: Stores,
}

impl TargetStore {
    /// Opens `s3://bucket/prefix`, `file:///folder` (which is made if it is absent), or the URL of any other store, and
    /// looks into it once: what is wrong with the address, the bucket or the credentials is told here.
    pub async fn open(url: &str, options: StoreOptions) -> Result<Self> {
        let parsed = Url::parse(url).map_err(|error| {
            Error::unavailable(url, format_args!("not a URL of a store such as s3://bucket/prefix: {error}"))
        })?;
        let stores = Stores::new(options);
        let shown = shown(&parsed).trim_end_matches('/').to_owned();
        let folder = match parsed.scheme() {
            "file" => {
                let folder =
                    parsed.to_file_path().map_err(|()| Error::unavailable(&shown, "not a path of this machine"))?;
                std::fs::create_dir_all(&folder).map_err(|error| Error::unavailable(&shown, error))?;
                // Whoever may only read it has made no scripts there.
                let _ = crate::snapshot::mark(&folder);
                Some(folder)
            }
            _ => None,
        };
        let (store, prefix) = stores.open(&parsed).await?;
        let target = Self { url: shown, store, prefix, folder, stores };
        let look = target.store.list(Some(&target.path("open"))).try_next().await;
        match look {
            Ok(_) => Ok(target),
            Err(error) => Err(target.explained(&parsed, error).await),
        }
    }

    /// A listing that fails does not say why: S3 is asked for the bucket itself.
    async fn explained(&self, url: &Url, error: object_store::Error) -> Error {
        let no_bucket = || {
            let message = "there is no such bucket; create it, or mend `store` of the compute target";
            Error::unavailable(&self.url, message)
        };
        match (self.stores.bucket_status(url).await, error) {
            (Some(404), _) | (None, object_store::Error::NotFound { .. }) => no_bucket(),
            (Some(401 | 403), error) => Error::Denied { object: self.url.clone(), message: said(&error) },
            (_, error) => Error::from_store(&self.url, error),
        }
    }

    /// The URL, without what may be secret in it, and without a slash at its end.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The root folder of a `file://` store.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// Opens inputs and outputs, with the same settings.
    pub fn stores(&self) -> &Stores {
        &self.stores
    }

    /// The objects as they are: the store, and the prefix of this target in it.
    pub fn objects(&self) -> (Arc<dyn ObjectStore>, ObjectPath) {
        (Arc::clone(&self.store), self.prefix.clone())
    }

    /// The objects of one job. Asks the store nothing: there may be no such job.
    pub fn job(&self, job_id: &str) -> JobStore {
        // One name, whatever it is: what would lead elsewhere is encoded.
        let name = ObjectPath::default().join(job_id);
        JobStore {
            store: Arc::clone(&self.store),
            commits: Arc::clone(&self.store),
            durability: Durability::Process,
            prefix: self.path("jobs").join(job_id),
            folder: self.folder.as_ref().map(|folder| folder.join("jobs").join(name.as_ref())),
            url: format!("{}/jobs/{name}/", self.url),
            stores: self.stores.clone(),
            job_id: Some(job_id.to_owned()),
        }
    }

    /// Every job that has ever been enqueued here, by name.
    pub async fn job_ids(&self) -> Result<Vec<String>> {
        let listed = self.store.list_with_delimiter(Some(&self.path("jobs"))).await;
        let listed = listed.map_err(|error| Error::from_store(&self.name("jobs"), error))?;
        let mut ids: Vec<_> =
            listed.common_prefixes.iter().filter_map(|prefix| prefix.filename().map(str::to_owned)).collect();
        ids.retain(|id| is_job_id(id));
        ids.sort();
        Ok(ids)
    }

    /// Jobs that have not ended, by name.
    pub async fn open_jobs(&self) -> Result<Vec<String>> {
        let listed = self.store.list(Some(&self.path("open")));
        let id = |meta: ObjectMeta| meta.location.filename().filter(|name| is_job_id(name)).map(str::to_owned);
        let ids = listed.try_filter_map(|meta| async move { Ok(id(meta)) });
        let mut ids: Vec<_> = ids.try_collect().await.map_err(|error| Error::from_store(&self.name("open"), error))?;
        ids.sort();
        Ok(ids)
    }

    /// Says that a job has not ended. Comes before its first message, so that a reducer finds whatever has messages.
    pub async fn mark_open(&self, job_id: &str) -> Result<()> {
        let name = format!("open/{job_id}");
        let put = self.store.put(&self.path(&name), Bytes::new().into()).await;
        put.map(drop).map_err(|error| Error::from_store(&self.name(&name), error))
    }

    /// Says that a job has ended. Comes after its `result.json`.
    pub async fn mark_ended(&self, job_id: &str) -> Result<()> {
        let name = format!("open/{job_id}");
        match self.store.delete(&self.path(&name)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(Error::from_store(&self.name(&name), error)),
        }
    }

    /// Downloads a snapshot into a file that appears whole or not at all.
    pub async fn snapshot(&self, digest: &str, to: &Path) -> Result<()> {
        let name = format!("snapshots/{digest}");
        crate::remote::download(&*self.store, &self.path(&name), &self.name(&name), None, to).await
    }

    /// Uploads a snapshot, unless one of this digest is there already; says whether it had to.
    pub async fn put_snapshot(&self, digest: &str, file: &Path) -> Result<bool> {
        let name = format!("snapshots/{digest}");
        let path = self.path(&name);
        match self.store.head(&path).await {
            Ok(_) => return Ok(false),
            Err(object_store::Error::NotFound { .. }) => {}
            Err(error) => return Err(Error::from_store(&self.name(&name), error)),
        }
        Upload::file(Arc::clone(&self.store), path, self.name(&name), file).await?;
        Ok(true)
    }

    fn path(&self, name: &str) -> ObjectPath {
        self.prefix.parts().chain(ObjectPath::from(name).parts()).collect()
    }

    fn name(&self, name: &str) -> String {
        format!("{}/{name}", self.url)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_job_id_leads_nowhere_else() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let root = folder.path().join("store");
        std::fs::create_dir_all(root.join("jobs")).expect("writable");
        std::fs::create_dir_all(root.join("open")).expect("writable");
        let spec = serde_json::to_vec(&protocol::JobSpec::example()).expect("plain data");
        std::fs::write(folder.path().join("spec.json"), spec).expect("writable");
        let url = Url::from_file_path(&root).expect("absolute");
        let target = TargetStore::open(url.as_str(), StoreOptions::default()).await.expect("it is there");
        for id in ["../..", "..", "../../", "a/../../..", "", "/", folder.path().to_str().expect("text")] {
            let job = target.job(id);
            assert!(matches!(job.spec().await, Err(Error::NotFound { .. })), "{id}");
            let place = job.folder().expect("a folder").canonicalize();
            assert!(place.is_err() || id.is_empty() || id == "/", "{id}: {place:?}");
        }
        for name in ["a-job", "-job", ".hidden", "a job", "j\u{202e}ob"] {
            std::fs::write(root.join("open").join(name), "").expect("writable");
        }
        assert_eq!(target.open_jobs().await.expect("readable"), ["a-job"]);
    }
}
