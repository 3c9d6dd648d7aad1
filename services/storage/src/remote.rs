//! Single objects anywhere, by URL: what jobs read, as opposed to what they are.

use std::path::Path;
use std::sync::Arc;

use futures::TryStreamExt;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore, ObjectStoreExt};
use tokio::io::AsyncWriteExt;
use url::Url;

use crate::{Error, Result};

/// Opens the store that a URL points into, and returns the place in it.
///
/// Stores are configured by the usual variables of their vendors (`AWS_…`, `AZURE_…`, `GOOGLE_…`).
pub fn open_url(url: &Url) -> Result<(Arc<dyn ObjectStore>, ObjectPath)> {
    // Stores also know their options by short names: a variable `TOKEN` or `REGION` is none of ours.
    let ours = |name: &str| ["AWS_", "AZURE_", "GOOGLE_"].iter().any(|prefix| name.starts_with(prefix));
    let variables =
        std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let variables = variables.filter(|(name, _)| ours(name)).map(|(name, value)| (name.to_ascii_lowercase(), value));
    // Whoever writes `http` means it.
    let plain = (url.scheme() == "http").then(|| ("allow_http".to_owned(), "true".to_owned()));
    let (store, path) = object_store::parse_url_opts(url, variables.chain(plain))
        .map_err(|error| Error::from_store(url.as_str(), error))?;
    Ok((Arc::from(store), path))
}

/// The name of the object behind a URL, as its file was called: without percent encoding.
pub fn file_name(url: &str) -> String {
    let path = Url::parse(url).ok().and_then(|url| ObjectPath::from_url_path(url.path()).ok());
    path.and_then(|path| path.filename().map(str::to_owned)).unwrap_or_else(|| "object".to_owned())
}

/// Downloads an object into a file that appears whole or not at all. Streams: memory does not depend on its size.
///
/// The store is opened as by [`open_url`].
pub async fn download(url: &str, to: &Path) -> Result<()> {
    let local =
        |error: std::io::Error| Error::Unavailable { object: to.display().to_string(), message: error.to_string() };
    let parsed =
        Url::parse(url).map_err(|error| Error::Unavailable { object: url.to_owned(), message: error.to_string() })?;
    let (store, path) = open_url(&parsed)?;
    let object = store.get(&path).await.map_err(|error| Error::from_store(url, error))?;

    if let Some(folder) = to.parent() {
        tokio::fs::create_dir_all(folder).await.map_err(local)?;
    }
    let partial = to.with_extension("partial");
    let mut file = tokio::fs::File::create(&partial).await.map_err(local)?;
    let mut pieces = object.into_stream();
    while let Some(piece) = pieces.try_next().await.map_err(|error| Error::from_store(url, error))? {
        file.write_all(&piece).await.map_err(local)?;
    }
    file.flush().await.map_err(local)?;
    tokio::fs::rename(&partial, to).await.map_err(local)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_downloaded_file_has_the_name_it_had() {
        assert_eq!(file_name("s3://bucket/images/a%20b.png"), "a b.png");
        assert_eq!(file_name("https://host/data/caf%C3%A9.csv?version=2"), "café.csv");
        assert_eq!(file_name("https://host/"), "object");
    }
}
