//! Everything below a URL: one object, or a folder of objects. Nodes fetch side inputs with it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path as ObjectPath;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};
use protocol::FileVersion;

use crate::remote::{download, file_name};
use crate::{Error, Result, Stores};

/// The number of concurrent downloads.
const DOWNLOADS_AT_ONCE: usize = 8;

/// One object or a folder, in the versions that were listed.
#[derive(Debug)]
pub struct Tree {
    store: Arc<dyn ObjectStore>,
    /// The URL without its secrets, for messages.
    url: String,
    /// The name of the object or folder.
    name: String,
    objects: Vec<Object>,
    digest: String,
}

#[derive(Debug)]
struct Object {
    location: ObjectPath,
    /// The path below the folder; empty for a single object.
    relative: PathBuf,
    version: FileVersion,
}

impl Stores {
    /// Lists the object of a URL, or else all objects below it.
    pub async fn tree(&self, url: &str) -> Result<Tree> {
        let name = file_name(url);
        let (store, path, url) = self.at(url).await?;
        let metas = list(&*store, &path, &url).await?;
        let mut hasher = blake3::Hasher::new();
        hasher.update(url.as_bytes());
        // Some tools create an empty object for each folder, which is skipped below.
        let folders: BTreeSet<ObjectPath> =
            metas.iter().flat_map(|meta| folders_of(&meta.location)).collect();
        let mut objects = Vec::new();
        for meta in metas {
            if meta.size == 0 && folders.contains(&meta.location) {
                continue;
            }
            let relative = relative(&meta.location, &path, &url)?;
            // Without an ETag, the time stands for the version.
            let version = meta.e_tag.clone().unwrap_or_else(|| meta.last_modified.to_rfc3339());
            for text in [meta.location.as_ref(), &version, &meta.size.to_string()] {
                hasher.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
            }
            let version = FileVersion { bytes: meta.size, etag: meta.e_tag, modified: None };
            objects.push(Object { location: meta.location, relative, version });
        }
        let digest = hasher.finalize().to_hex().to_string();
        Ok(Tree { store, url, name, objects, digest })
    }

    /// Fails with [`Error::NotFound`] if no object exists at a URL or below it.
    pub async fn must_exist(&self, url: &str) -> Result<()> {
        let (store, path, url) = self.at(url).await?;
        if single(&*store, &path, &url).await?.is_none() {
            let first = store.list(Some(&path)).next().await;
            let first = first.ok_or_else(|| Error::NotFound { object: url.clone() })?;
            first.map_err(|error| not_listed(&url, error))?;
        }
        Ok(())
    }
}

impl Tree {
    /// Returns a digest of the URL and the versions of all objects.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Returns the name of the object or folder: a plain file name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the total size of all objects.
    pub fn bytes(&self) -> u64 {
        self.objects.iter().map(|object| object.version.bytes).sum()
    }

    /// Downloads all objects. `to` becomes the file or the folder.
    pub async fn download(&self, to: &Path) -> Result<()> {
        let downloads: Vec<_> = self.objects.iter().map(|object| self.fetch(object, to)).collect();
        stream::iter(downloads).buffer_unordered(DOWNLOADS_AT_ONCE).try_collect().await
    }

    async fn fetch(&self, object: &Object, to: &Path) -> Result<()> {
        let (name, to) = match object.relative.as_os_str().is_empty() {
            true => (self.url.clone(), to.to_owned()),
            false => {
                let folder = self.url.trim_end_matches('/');
                let relative = &object.relative;
                (format!("{folder}/{}", relative.display()), to.join(relative))
            }
        };
        download(&*self.store, &object.location, &name, Some(&object.version), &to).await
    }
}

/// Lists the object, or those below it, sorted by name.
async fn list(store: &dyn ObjectStore, path: &ObjectPath, url: &str) -> Result<Vec<ObjectMeta>> {
    if let Some(meta) = single(store, path, url).await? {
        return Ok(vec![meta]);
    }
    let listed = store.list(Some(path)).try_collect().await;
    let mut metas: Vec<ObjectMeta> = listed.map_err(|error| not_listed(url, error))?;
    if metas.is_empty() {
        return Err(Error::NotFound { object: url.to_owned() });
    }
    metas.sort_by(|left, right| left.location.cmp(&right.location));
    Ok(metas)
}

/// Returns the object of this name; `None` if it does not exist, so that the name may be that of a folder.
async fn single(
    store: &dyn ObjectStore,
    path: &ObjectPath,
    url: &str,
) -> Result<Option<ObjectMeta>> {
    if url.ends_with('/') || path.as_ref().is_empty() {
        return Ok(None);
    }
    match store.head(path).await {
        Ok(meta) => Ok(Some(meta)),
        // A plain web server has no folders.
        Err(object_store::Error::NotFound { .. }) if !url.starts_with("http") => Ok(None),
        Err(error) => Err(Error::from_store(url, error)),
    }
}

fn not_listed(url: &str, error: object_store::Error) -> Error {
    /// The codes with which stores report that a bucket or container does not exist.
    const NO_BUCKET: [&str; 2] = ["NoSuchBucket", "ContainerNotFound"];
    let message = crate::error::short_message(&error);
    match url.starts_with("http") {
        true => Error::unavailable(
            url,
            format!("a web server cannot list folders; use the URL of one file ({message})"),
        ),
        false if NO_BUCKET.iter().any(|code| message.contains(code)) => {
            Error::NotFound { object: url.to_owned() }
        }
        false => Error::from_store(url, error),
    }
}

/// Returns every folder that contains an object.
fn folders_of(location: &ObjectPath) -> impl Iterator<Item = ObjectPath> {
    let parts: Vec<_> = location.parts().map(|part| part.as_ref().to_owned()).collect();
    (1..parts.len()).map(move |count| parts[..count].join("/").into())
}

/// Returns the path of an object below the folder. Fails if the path would lead out of it.
fn relative(location: &ObjectPath, below: &ObjectPath, url: &str) -> Result<PathBuf> {
    let outside = || Error::unavailable(url, format!("{location} cannot be the name of a file"));
    let parts = location.prefix_match(below).ok_or_else(outside)?;
    let mut relative = PathBuf::new();
    for part in parts {
        if ["", ".", ".."].contains(&part.as_ref()) || part.as_ref().contains(['/', '\0']) {
            return Err(outside());
        }
        relative.push(part.as_ref());
    }
    Ok(relative)
}

#[cfg(test)]
mod tests {
    use std::fs::read_to_string;

    use object_store::memory::InMemory;
    use url::Url;

    use super::*;

    async fn stores(objects: &[(&str, &str)]) -> (Stores, Arc<InMemory>) {
        let memory = Arc::new(InMemory::new());
        for (name, content) in objects {
            put(&memory, name, content).await;
        }
        let stores = Stores::default();
        stores.stand_in(&Url::parse("s3://bucket").expect("a URL"), memory.clone());
        (stores, memory)
    }

    async fn put(memory: &InMemory, name: &str, content: &str) {
        let put = memory.put(&ObjectPath::from(name), content.to_owned().into()).await;
        put.expect("memory is always there");
    }

    #[tokio::test]
    async fn object_becomes_a_file_and_prefix_a_folder() {
        let objects =
            [("ref/a.txt", "a"), ("ref/sub/b.txt", "b"), ("ref/sub", ""), ("reference/c.txt", "c")];
        let (stores, _) = stores(&objects).await;
        let folder = tempfile::tempdir().expect("a folder");
        let file = stores.tree("s3://bucket/ref/a.txt").await.expect("it is there");
        assert_eq!((file.name(), file.bytes()), ("a.txt", 1));
        file.download(&folder.path().join("file")).await.expect("downloads");
        assert_eq!(read_to_string(folder.path().join("file")).expect("a file"), "a");
        for (url, to) in [("s3://bucket/ref", "one"), ("s3://bucket/ref/", "two")] {
            let tree = stores.tree(url).await.expect("it is there");
            assert_eq!((tree.name(), tree.bytes()), ("ref", 2), "{url}");
            let to = folder.path().join(to);
            tree.download(&to).await.expect("downloads");
            assert_eq!(read_to_string(to.join("sub/b.txt")).expect("a file"), "b");
            assert_eq!(std::fs::read_dir(&to).expect("a folder").count(), 2);
        }
        let missing = stores.tree("s3://bucket/nothing").await.expect_err("it is not there");
        assert_eq!(missing.to_string(), "s3://bucket/nothing does not exist");
        for (url, exists) in [
            ("ref/a.txt", true),
            ("ref", true),
            ("ref/", true),
            ("ref/a", false),
            ("nothing/", false),
        ] {
            let checked = stores.must_exist(&format!("s3://bucket/{url}")).await;
            assert!(matches!(checked, Ok(()) | Err(Error::NotFound { .. })), "{checked:?}");
            assert_eq!(checked.is_ok(), exists, "{url}");
        }
    }

    #[test]
    fn path_outside_the_folder_is_rejected() {
        let below = ObjectPath::from("ref");
        let of = |location: &str| {
            // A listing of a foreign store could contain this.
            relative(&ObjectPath::parse(location).map_err(|_| ())?, &below, "s3://bucket/ref")
                .map_err(drop)
        };
        assert_eq!(of("ref/a/b.txt"), Ok("a/b.txt".into()));
        assert_eq!(of("ref/%2E%2E/b.txt"), Ok("%2E%2E/b.txt".into()), "a name as any other");
        for location in ["ref/../b.txt", "ref/./b.txt", "reference/b.txt", "else", "ref/a\0b"] {
            assert!(of(location).is_err(), "{location:?}");
        }
    }

    #[tokio::test]
    async fn changed_object_changes_the_digest_and_fails_the_download() {
        let (stores, memory) = stores(&[("ref/a", "1"), ("ref/b", "1")]).await;
        let digest =
            async || stores.tree("s3://bucket/ref").await.expect("it is there").digest().to_owned();
        let before = digest().await;
        assert_eq!(before, digest().await);
        let tree = stores.tree("s3://bucket/ref").await.expect("it is there");
        put(&memory, "ref/b", "2").await;
        assert_ne!(before, digest().await);
        let folder = tempfile::tempdir().expect("a folder");
        let error =
            tree.download(&folder.path().join("ref")).await.expect_err("it is another one now");
        assert!(matches!(error, Error::Changed { .. }), "{error}");
    }
}
