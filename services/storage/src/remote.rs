//! Single objects by URL: the inputs of jobs.
//!
//! Every read requests the planned version of an object (`If-Match`), so that no reader mixes two versions.

use std::fs::File;
use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use futures::TryStreamExt;
use object_store::path::Path as ObjectPath;
use object_store::{GetOptions, GetRange, GetResult, ObjectMeta, ObjectStore, ObjectStoreExt};
use protocol::{FileVersion, ItemPath};
use tokio::io::AsyncWriteExt;
use url::Url;

use crate::stores::shown;
use crate::{Error, Result, Stores};

impl Stores {
    /// Downloads an object into a file that appears complete or not at all. Streams the object, so that memory does not
    /// depend on its size.
    ///
    /// Each caller must use its own folder. After an error, a partial file may remain there, which the caller removes
    /// with the folder.
    pub async fn download(
        &self,
        url: &str,
        version: Option<&FileVersion>,
        to: &Path,
    ) -> Result<()> {
        let (store, path, name) = self.at(url).await?;
        download(&*store, &path, &name, version, to).await
    }

    /// Reads a range of bytes of an object, which must be within the object.
    pub async fn read(
        &self,
        url: &str,
        version: Option<&FileVersion>,
        range: Range<u64>,
    ) -> Result<Bytes> {
        let (store, path, name) = self.at(url).await?;
        let object = get(&*store, &path, &name, version, Some(range)).await?;
        object.bytes().await.map_err(|error| Error::from_store(&name, error))
    }

    /// Streams a range of bytes of an object into the same range of a file.
    pub async fn read_into(
        &self,
        url: &str,
        version: Option<&FileVersion>,
        range: Range<u64>,
        file: &File,
    ) -> Result<()> {
        let (store, path, name) = self.at(url).await?;
        let mut at = range.start;
        let mut pieces = get(&*store, &path, &name, version, Some(range)).await?.into_stream();
        while let Some(piece) =
            pieces.try_next().await.map_err(|error| Error::from_store(&name, error))?
        {
            file.write_all_at(&piece, at)
                .map_err(|error| Error::unavailable("a file for an input", error))?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    /// Returns the current version of a local file or of an object.
    pub async fn version(&self, path_or_url: &str) -> Result<FileVersion> {
        if !path_or_url.contains("://") {
            let found = std::fs::metadata(path_or_url);
            return match found {
                Ok(metadata) => Ok(FileVersion::of_file(&metadata)),
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    Err(Error::NotFound { object: path_or_url.to_owned() })
                }
                Err(error) => Err(Error::unavailable(path_or_url, error)),
            };
        }
        let (store, path, name) = self.at(path_or_url).await?;
        let found = store.head(&path).await.map_err(|error| Error::from_store(&name, error))?;
        Ok(FileVersion { bytes: found.size, etag: found.e_tag, modified: None })
    }

    /// Copies an object within its store.
    pub async fn copy(&self, from: &str, to: &str) -> Result<()> {
        let (store, path, name) = self.at(from).await?;
        let (_, copied, _) = self.at(to).await?;
        store.copy(&path, &copied).await.map_err(|error| Error::from_store(&name, error))
    }

    /// Returns the size of an object.
    pub async fn size(&self, url: &str) -> Result<u64> {
        let (store, path, name) = self.at(url).await?;
        let found = store.head(&path).await.map_err(|error| Error::from_store(&name, error))?;
        Ok(found.size)
    }

    /// Returns the store of a URL, the path in it, and the URL for messages. Sends no request.
    pub(crate) async fn at(&self, url: &str) -> Result<(Arc<dyn ObjectStore>, ObjectPath, String)> {
        let url = parsed(url)?;
        let (store, path) = self.open(&url).await?;
        Ok((store, path, shown(&url)))
    }
}

/// The destination of a file of a job's output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// The folder of the file, on a local or shared disk.
    Folder(PathBuf),
    /// The URL of the file.
    Url(String),
}

impl Destination {
    /// Returns the destination of a file in `folder`, a path or a URL. A `file://` URL counts as a path.
    pub fn of(folder: &ItemPath, file_name: &str) -> Result<Self> {
        if !folder.is_url() {
            return Ok(Self::Folder(folder.as_path().to_owned()));
        }
        let mut url = parsed(&folder.display())?;
        if url.scheme() == "file" {
            let path = url.to_file_path();
            return path.map(Self::Folder).map_err(|()| {
                Error::unavailable(&shown(&url), "it is not a path of this machine")
            });
        }
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().push(file_name);
        }
        Ok(Self::Url(url.into()))
    }
}

/// Returns the decoded name of the object of a URL.
pub fn file_name(url: &str) -> String {
    let path = Url::parse(url).ok().and_then(|url| ObjectPath::from_url_path(url.path()).ok());
    path.and_then(|path| path.filename().map(str::to_owned)).unwrap_or_else(|| "object".to_owned())
}

/// Returns whether a URL names the object of `base`, or one below it, in the same store.
pub fn is_below(url: &Url, base: &Url) -> bool {
    let store = |url: &Url| (url.scheme().to_owned(), url.authority().to_owned());
    let path = |url: &Url| ObjectPath::from_url_path(url.path()).ok();
    let (Some(path), Some(below)) = (path(url), path(base)) else { return false };
    // A web server has no folders, so only a URL with a final slash counts as one.
    let is_folder = !base.scheme().starts_with("http") || base.path().ends_with('/');
    store(url) == store(base) && if is_folder { path.prefix_matches(&below) } else { path == below }
}

/// Parses a URL. The message does not quote an invalid URL, because it may contain a password.
pub(crate) fn parsed(url: &str) -> Result<Url> {
    Url::parse(url).map_err(|error| Error::unavailable("an invalid URL", error))
}

pub(crate) async fn download(
    store: &dyn ObjectStore,
    path: &ObjectPath,
    name: &str,
    version: Option<&FileVersion>,
    to: &Path,
) -> Result<()> {
    let local = |error: std::io::Error| Error::unavailable(&to.display().to_string(), error);
    let object = get(store, path, name, version, None).await?;
    if let Some(folder) = to.parent() {
        tokio::fs::create_dir_all(folder).await.map_err(local)?;
    }
    let mut partial = to.as_os_str().to_owned();
    partial.push(".partial");
    let mut file = tokio::fs::File::create(&partial).await.map_err(local)?;
    let mut pieces = object.into_stream();
    while let Some(piece) =
        pieces.try_next().await.map_err(|error| Error::from_store(name, error))?
    {
        file.write_all(&piece).await.map_err(local)?;
    }
    file.flush().await.map_err(local)?;
    tokio::fs::rename(&partial, to).await.map_err(local)
}

async fn get(
    store: &dyn ObjectStore,
    path: &ObjectPath,
    name: &str,
    version: Option<&FileVersion>,
    range: Option<Range<u64>>,
) -> Result<GetResult> {
    let etag = version.and_then(|version| version.etag.as_deref());
    let options = GetOptions {
        // `If-Match` with a weak ETag never matches.
        if_match: etag.filter(|etag| !etag.starts_with("W/")).map(str::to_owned),
        range: range.map(GetRange::Bounded),
        ..GetOptions::default()
    };
    let changed = |version: &FileVersion, found: &ObjectMeta| Error::Changed {
        object: name.to_owned(),
        expected: described(version.etag.as_deref(), version.bytes),
        found: described(found.e_tag.as_deref(), found.size),
    };
    match (store.get_opts(path, options).await, version) {
        // Some stores ignore If-Match.
        (Ok(object), Some(version)) if !is_version(&object.meta, version) => {
            Err(changed(version, &object.meta))
        }
        (Ok(object), _) => Ok(object),
        // A range that does not exist may mean another version.
        (Err(error), Some(version)) if !matches!(error, object_store::Error::NotFound { .. }) => {
            match store.head(path).await {
                Ok(found) if !is_version(&found, version) => Err(changed(version, &found)),
                _ => Err(Error::from_store(name, error)),
            }
        }
        (Err(error), _) => Err(Error::from_store(name, error)),
    }
}

fn is_version(found: &ObjectMeta, version: &FileVersion) -> bool {
    let same_etag = match (&found.e_tag, &version.etag) {
        (Some(found), Some(planned)) => found == planned,
        _ => true,
    };
    same_etag && found.size == version.bytes
}

fn described(etag: Option<&str>, bytes: u64) -> String {
    match etag {
        Some(etag) => format!("ETag {etag}, {bytes} bytes"),
        None => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destination_is_a_folder_or_a_url() {
        let of = |folder: &str| Destination::of(&folder.into(), "a b.txt").expect("valid");
        assert_eq!(of("/data/out"), Destination::Folder("/data/out".into()));
        assert_eq!(of("file:///data/o%20ut/"), Destination::Folder("/data/o ut/".into()));
        for folder in ["s3://bucket/out", "s3://bucket/out/"] {
            assert_eq!(of(folder), Destination::Url("s3://bucket/out/a%20b.txt".into()));
        }
        assert_eq!(of("s3://bucket"), Destination::Url("s3://bucket/a%20b.txt".into()));
    }

    #[test]
    fn file_name_is_decoded() {
        assert_eq!(file_name("s3://bucket/images/a%20b.png"), "a b.png");
        assert_eq!(file_name("https://host/data/caf%C3%A9.csv?version=2"), "café.csv");
        assert_eq!(file_name("https://host/"), "object");
    }
}
