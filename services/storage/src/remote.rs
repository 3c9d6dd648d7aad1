//! Single objects anywhere, by URL: what jobs read, as opposed to what they are.

use std::path::Path;

use futures::TryStreamExt;
use object_store::ObjectStoreExt;
use tokio::io::AsyncWriteExt;
use url::Url;

use crate::{Error, Result};

/// Downloads an object into a file that appears whole or not at all. Streams: memory does not depend on its size.
///
/// Stores are configured by the usual variables of their vendors (`AWS_…`, `AZURE_…`, `GOOGLE_…`).
pub async fn download(url: &str, to: &Path) -> Result<()> {
    let local =
        |error: std::io::Error| Error::Unavailable { object: to.display().to_string(), message: error.to_string() };
    let parsed =
        Url::parse(url).map_err(|error| Error::Unavailable { object: url.to_owned(), message: error.to_string() })?;
    let variables = std::env::vars().map(|(name, value)| (name.to_ascii_lowercase(), value));
    let (store, path) =
        object_store::parse_url_opts(&parsed, variables).map_err(|error| Error::from_store(url, error))?;
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
