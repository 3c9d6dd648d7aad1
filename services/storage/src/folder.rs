//! Folders as a store: `LocalFileSystem`, with listings that skip files whose names no object path can have.
//!
//! A listing of `LocalFileSystem` alone fails at the first such file, which any process that may write into the folder
//! can create.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use object_store::local::LocalFileSystem;
use object_store::path::{Path as ObjectPath, PathPart};
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult,
    RenameOptions, Result,
};

use crate::listing::SkippedKeys;
use crate::snapshot;

/// What a folder without a mark is.
pub const NOT_A_STORE: &str =
    "is not the folder of a store: it is not mounted, or nothing was enqueued yet";

/// Returns an absolute path without symbolic links. The end of the path need not exist.
pub fn real_path(path: &Path) -> PathBuf {
    for existing in path.ancestors() {
        if let Ok(real) = existing.canonicalize() {
            // Joining an empty path would add a slash, which turns a file into a folder.
            let rest = path.strip_prefix(existing).ok().filter(|rest| !rest.as_os_str().is_empty());
            return rest.map_or_else(|| real.clone(), |rest| real.join(rest));
        }
    }
    path.to_owned()
}

/// Files of this machine.
#[derive(Clone, Debug)]
pub(crate) struct Folder {
    files: LocalFileSystem,
    unnameable: SkippedKeys,
    /// The folder that must be marked before anything is written.
    root: Option<PathBuf>,
}

impl Folder {
    /// Wraps a file system. Listings add the names that they skip to `unnameable`.
    pub fn new(files: LocalFileSystem, unnameable: SkippedKeys) -> Self {
        Self { files, unnameable, root: None }
    }

    /// Returns a store that writes nothing while `root` is not [marked](snapshot::mark): its disk may not be mounted.
    pub fn below(self, root: PathBuf) -> Self {
        Self { root: Some(root), ..self }
    }

    async fn check_root(&self) -> Result<()> {
        let Some(root) = &self.root else { return Ok(()) };
        if tokio::fs::try_exists(snapshot::mark_of(root)).await.unwrap_or(false) {
            return Ok(());
        }
        let source = format!("{} {NOT_A_STORE}", root.display());
        Err(Error::Generic { store: "LocalFileSystem", source: source.into() })
    }

    /// Lists one folder without the names that no object path can have.
    async fn list_by_name(&self, folder: &ObjectPath) -> Result<ListResult> {
        let path = self.files.path_to_filesystem(folder)?;
        let unreadable =
            |error| Error::Generic { store: "LocalFileSystem", source: Box::new(error) };
        let mut entries = tokio::fs::read_dir(&path).await.map_err(unreadable)?;
        let mut listed =
            ListResult { common_prefixes: vec![], objects: vec![], extensions: Default::default() };
        while let Some(entry) = entries.next_entry().await.map_err(unreadable)? {
            let name = entry.file_name();
            let Some(part) = name.to_str().and_then(|name| PathPart::parse(name).ok()) else {
                self.unnameable.add([entry.path().to_string_lossy().into_owned()]);
                continue;
            };
            let location = folder.clone().join(part);
            // Follow links, and skip broken ones.
            match tokio::fs::metadata(entry.path()).await {
                Ok(metadata) if metadata.is_dir() => listed.common_prefixes.push(location),
                Ok(_) => match self.files.head(&location).await {
                    Ok(meta) => listed.objects.push(meta),
                    // The file was removed since, or `LocalFileSystem` is still writing it.
                    Err(Error::NotFound { .. } | Error::Generic { .. }) => {}
                    Err(error) => return Err(error),
                },
                Err(_) => {}
            }
        }
        listed.common_prefixes.sort();
        Ok(listed)
    }

    /// Lists all files below a folder, one folder after the other.
    fn list_folders(&self, folder: ObjectPath) -> BoxStream<'static, Result<ObjectMeta>> {
        let store = self.clone();
        let folders = stream::try_unfold(vec![folder], move |mut folders| {
            let store = store.clone();
            async move {
                let Some(folder) = folders.pop() else { return Ok::<_, Error>(None) };
                let listed = store.list_with_delimiter(Some(&folder)).await?;
                folders.extend(listed.common_prefixes);
                Ok(Some((stream::iter(listed.objects.into_iter().map(Ok)), folders)))
            }
        });
        folders.try_flatten().boxed()
    }
}

impl fmt::Display for Folder {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.files.fmt(out)
    }
}

#[async_trait]
impl ObjectStore for Folder {
    fn list(&self, prefix: Option<&ObjectPath>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (store, folder) = (self.clone(), prefix.cloned().unwrap_or_default());
        // Read the whole listing first, because any name in it may make it fail.
        let list = async move {
            match store.files.list(Some(&folder)).try_collect::<Vec<_>>().await {
                Ok(all) => stream::iter(all.into_iter().map(Ok)).boxed(),
                Err(Error::InvalidPath { .. }) => store.list_folders(folder),
                Err(error) => stream::iter([Err(error)]).boxed(),
            }
        };
        stream::once(list).flatten().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&ObjectPath>) -> Result<ListResult> {
        match self.files.list_with_delimiter(prefix).await {
            Err(Error::InvalidPath { .. }) => {
                self.list_by_name(&prefix.cloned().unwrap_or_default()).await
            }
            listed => listed,
        }
    }

    async fn put_opts(
        &self,
        location: &ObjectPath,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.check_root().await?;
        self.files.put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &ObjectPath,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.check_root().await?;
        self.files.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &ObjectPath, options: GetOptions) -> Result<GetResult> {
        self.files.get_opts(location, options).await
    }

    async fn get_ranges(&self, location: &ObjectPath, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.files.get_ranges(location, ranges).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<ObjectPath>>,
    ) -> BoxStream<'static, Result<ObjectPath>> {
        self.files.delete_stream(locations)
    }

    async fn copy_opts(
        &self,
        from: &ObjectPath,
        to: &ObjectPath,
        options: CopyOptions,
    ) -> Result<()> {
        self.files.copy_opts(from, to, options).await
    }

    async fn rename_opts(
        &self,
        from: &ObjectPath,
        to: &ObjectPath,
        options: RenameOptions,
    ) -> Result<()> {
        self.files.rename_opts(from, to, options).await
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;

    use super::*;

    async fn listed(folder: &Path) -> (Vec<String>, Vec<String>, Vec<String>, Folder) {
        let store = Folder::new(LocalFileSystem::new(), SkippedKeys::default());
        let prefix = ObjectPath::from_absolute_path(folder).expect("a path");
        let name = |path: &ObjectPath| path.as_ref()[prefix.as_ref().len()..].to_owned();
        let mut all: Vec<_> = store
            .list(Some(&prefix))
            .map_ok(|meta| name(&meta.location))
            .try_collect()
            .await
            .expect("listed");
        all.sort();
        let one = store.list_with_delimiter(Some(&prefix)).await.expect("listed");
        let mut files: Vec<_> = one.objects.iter().map(|meta| name(&meta.location)).collect();
        files.sort();
        (all, files, one.common_prefixes.iter().map(name).collect(), store)
    }

    #[tokio::test]
    async fn files_without_an_object_path_are_skipped() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().canonicalize().expect("there");
        std::fs::create_dir_all(path.join("sub/deep")).expect("created");
        for name in ["a", "b%41 é~", "half#1", "sub/c", "sub/deep/d"] {
            std::fs::write(path.join(name), "12").expect("written");
        }
        std::os::unix::fs::symlink(path.join("nowhere"), path.join("link")).expect("created");
        let plain = listed(&path).await;
        assert_eq!(plain.0, ["/a", "/b%41 é~", "/sub/c", "/sub/deep/d"]);
        assert_eq!(
            (&plain.1[..], &plain.2[..]),
            (&["/a".to_owned(), "/b%41 é~".to_owned()][..], &["/sub".to_owned()][..])
        );
        assert_eq!(plain.3.unnameable.keys(), Vec::<String>::new());

        for name in [&b"a\x01b"[..], b"sub/deep/\xff", b"sub/x\ny"] {
            std::fs::write(path.join(OsStr::from_bytes(name)), "").expect("written");
        }
        std::fs::create_dir(path.join("folder\x7f")).expect("created");
        let strange = listed(&path).await;
        assert_eq!((strange.0, strange.1, strange.2), (plain.0, plain.1, plain.2));
        assert_eq!(strange.3.unnameable.keys().len(), 4);
    }

    #[tokio::test]
    async fn missing_folder_is_empty() {
        let folder = tempfile::tempdir().expect("a folder");
        let (all, ..) = listed(&folder.path().canonicalize().expect("there").join("none")).await;
        assert!(all.is_empty());
    }
}
