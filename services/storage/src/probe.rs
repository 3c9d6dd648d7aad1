//! Tries each kind of request that a store must allow, and compares its clock.

use std::time::{Duration, SystemTime};

use futures::TryStreamExt;
use object_store::path::Path as ObjectPath;
use object_store::{MultipartUpload, ObjectStore, ObjectStoreExt};

use crate::error::Answer;
use crate::remote::parsed;
use crate::stores::shown;
use crate::{Error, Result, StoreOptions, Stores, TargetStore, random_name};

/// The results of a probe.
#[derive(Debug)]
pub struct Probe {
    /// The kinds of requests and their results, in order. A failed put ends the probe.
    pub requests: Vec<(&'static str, Result<()>)>,
    /// The seconds by which the clock of the store is ahead of that of this machine, beyond what rounding explains.
    pub clock_ahead_seconds: Option<f64>,
}

/// Writes, reads, lists, uploads in parts and deletes objects below `doctor/`. Leaves objects behind only if the store
/// does not allow their deletion.
pub async fn probe(target: &TargetStore) -> Probe {
    let store = &*target.objects.store;
    let folder = target.objects.path("doctor");
    let name = format!("probe-{}", random_name());
    let (whole, parts) =
        (folder.clone().join(name.as_str()), folder.clone().join(format!("{name}-parts")));
    let failed = |error| Error::from_store(&target.objects.name("doctor"), error);

    let before = SystemTime::now();
    let put = store.put(&whole, "probe".into()).await;
    let after = SystemTime::now();
    if let Err(error) = put {
        return Probe { requests: vec![("put", Err(failed(error)))], clock_ahead_seconds: None };
    }
    let head = store.head(&whole).await;
    let get = async { store.get(&whole).await?.bytes().await };
    let requests = vec![
        ("put", Ok(())),
        ("get", get.await.map(drop).map_err(failed)),
        ("list", list(store, &folder, &whole).await.map_err(failed)),
        ("multipart upload", upload(store, &parts).await.map_err(failed)),
        ("delete", delete(store, [&whole, &parts]).await.map_err(failed)),
    ];
    let clock_ahead_seconds = head.ok().map(|meta| ahead(meta.last_modified.into(), before, after));
    Probe { requests, clock_ahead_seconds }
}

impl Stores {
    /// Checks whether objects can be written below `url`: begins and aborts an upload, which leaves nothing behind.
    /// Stores that begin an upload without a request always pass. [`Error::NotFound`] means that the bucket does not
    /// exist.
    pub async fn can_write(&self, url: &str) -> Result<()> {
        let (store, path, name) = self.at(url).await?;
        let upload = store.put_multipart(&path.join(".gristmill-probe")).await;
        // If the abort fails, the upload that remains is empty.
        let _ = upload.map_err(|error| Error::from_store(&name, error))?.abort().await;
        Ok(())
    }
}

async fn list(
    store: &dyn ObjectStore,
    folder: &ObjectPath,
    expected: &ObjectPath,
) -> object_store::Result<()> {
    let listed: Vec<_> =
        store.list(Some(folder)).map_ok(|meta| meta.location).try_collect().await?;
    match listed.contains(expected) {
        true => Ok(()),
        false => Err(object_store::Error::Generic {
            store: "list",
            source: "the listing lacks an object that was just written".into(),
        }),
    }
}

/// Uploads one part. It may be short, because it is the last one.
async fn upload(store: &dyn ObjectStore, path: &ObjectPath) -> object_store::Result<()> {
    let mut upload = store.put_multipart(path).await?;
    let uploaded = async {
        upload.put_part("part".into()).await?;
        upload.complete().await
    };
    match uploaded.await {
        Ok(_) => Ok(()),
        Err(error) => {
            // The caller needs the first error, not that of the abort.
            let _ = upload.abort().await;
            Err(error)
        }
    }
}

async fn delete(store: &dyn ObjectStore, paths: [&ObjectPath; 2]) -> object_store::Result<()> {
    for path in paths {
        match store.delete(path).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Returns by how many seconds the clock of the store is ahead. The store rounds times down to seconds, and wrote
/// between `before` and `after` by the clock of this machine.
fn ahead(written: SystemTime, before: SystemTime, after: SystemTime) -> f64 {
    let earliest = before - Duration::from_secs(1);
    let seconds = |later: SystemTime, earlier: SystemTime| {
        later.duration_since(earlier).map(|gap| gap.as_secs_f64())
    };
    match (seconds(earliest, written), seconds(written, after)) {
        (Ok(behind), _) => -behind,
        (_, Ok(ahead)) => ahead,
        _ => 0.0,
    }
}

/// Creates the bucket of an `s3://` URL unless it exists. Returns whether it created it. Does so only at another
/// endpoint than that of AWS (for emulators): elsewhere an administrator creates the bucket with a policy.
pub async fn create_bucket(url: &str, options: StoreOptions) -> Result<bool> {
    let parsed = parsed(url)?;
    let stores = Stores::new(options);
    let (Some(bucket), true) = (parsed.host_str(), parsed.scheme() == "s3") else {
        return Ok(false);
    };
    let aws = stores.aws().await?;
    if aws.endpoint.is_none() {
        return Ok(false);
    }
    let s3 = aws.s3();
    if s3.head_bucket().bucket(bucket).send().await.is_ok() {
        return Ok(false);
    }
    match s3.create_bucket().bucket(bucket).send().await {
        Ok(_) => Ok(true),
        Err(error) => Err(Error::unavailable(&shown(&parsed), Answer(error))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_does_not_count_as_a_difference_of_clocks() {
        let time = |seconds: f64| SystemTime::UNIX_EPOCH + Duration::from_secs_f64(seconds);
        let ahead =
            |written, before, after| ahead(time(written), time(before), time(after)).round();
        assert_eq!(ahead(100.0, 100.9, 101.2), 0.0);
        assert_eq!(ahead(101.0, 100.9, 101.2), 0.0);
        assert_eq!(ahead(90.0, 101.0, 101.2), -10.0);
        assert_eq!(ahead(131.0, 100.9, 101.0), 30.0);
    }

    #[tokio::test]
    async fn probe_of_a_folder_passes_and_leaves_nothing() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let url = url::Url::from_file_path(folder.path()).expect("absolute");
        let target =
            TargetStore::open(url.as_str(), StoreOptions::default()).await.expect("it is there");
        target.create().expect("writable");
        let probe = probe(&target).await;
        let names: Vec<_> =
            probe.requests.iter().map(|(name, result)| (*name, result.is_ok())).collect();
        assert_eq!(
            names,
            [
                ("put", true),
                ("get", true),
                ("list", true),
                ("multipart upload", true),
                ("delete", true)
            ],
            "{probe:?}"
        );
        assert_eq!(probe.clock_ahead_seconds, Some(0.0));
        assert_eq!(
            std::fs::read_dir(folder.path().join("doctor")).map_or(0, |left| left.count()),
            0
        );
    }
}
