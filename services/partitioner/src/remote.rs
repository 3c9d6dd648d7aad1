//! Objects behind URLs, for blocking code.
//!
//! A listing is an iterator, because local folders are listed by blocking calls and both have the same readers. So the
//! asynchronous stores run on their own small runtime.

use std::io::{Seek, SeekFrom, Write};
use std::sync::{Arc, OnceLock, mpsc};

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::path::Path as ObjectPath;
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt};
use protocol::ItemPath;
use storage::{Answer, ErrorSource, StoreOptions, Stores};
use tempfile::NamedTempFile;
use tokio::runtime::Runtime;
use url::Url;

/// Objects in one step of a listing: one page of S3.
const PAGE_OBJECTS: usize = 1000;

/// The result of a call. Callers name the URL.
type Result<T> = std::result::Result<T, ErrorSource>;

/// Opened stores and their runtime. Cheap until the first URL.
#[derive(Debug, Default)]
pub(crate) struct Remote {
    runtime: OnceLock<Runtime>,
    stores: Stores,
    /// Number of listings begun.
    #[cfg(test)]
    pub(crate) listings: std::sync::atomic::AtomicUsize,
}

/// One object.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    pub(crate) url: Url,
    pub(crate) size: u64,
    pub(crate) etag: Option<String>,
    /// ETag, or the time of the last change if there is none.
    pub(crate) stamp: String,
}

/// The part of an object to fetch.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fetch {
    /// Whole lines from the beginning, at most this many bytes.
    Head(u64),
    /// All of it.
    Whole,
    /// The footer of a Parquet file at its offset, after a hole.
    ParquetFooter,
}

/// The objects below a prefix, in the order of their names.
pub(crate) struct Objects {
    remote: Arc<Remote>,
    /// Ends with a slash.
    base: Url,
    prefix: ObjectPath,
    pages: Option<BoxStream<'static, Vec<object_store::Result<ObjectMeta>>>>,
    page: std::vec::IntoIter<object_store::Result<ObjectMeta>>,
}

impl Drop for Remote {
    fn drop(&mut self) {
        // Waiting for the runtime's threads is forbidden on a thread of another runtime.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Remote {
    /// Opens stores with these settings.
    pub(crate) fn new(options: &StoreOptions) -> Self {
        Self {
            runtime: OnceLock::new(),
            stores: Stores::new(options.clone()),
            #[cfg(test)]
            listings: Default::default(),
        }
    }

    /// Runs `future` to its end.
    fn wait<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> T {
        let runtime = self.runtime.get_or_init(|| {
            tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .thread_name("input-listing")
                .enable_all()
                .build()
                .expect("the system has a thread left")
        });
        let (sender, receiver) = mpsc::sync_channel(1);
        runtime.spawn(async move {
            // The receiver waits for the answer.
            let _ = sender.send(future.await);
        });
        receiver.recv().expect("the future does not panic")
    }

    fn open(&self, url: &Url) -> Result<(Arc<dyn ObjectStore>, ObjectPath)> {
        let (stores, url) = (self.stores.clone(), url.clone());
        self.wait(async move { stores.open(&url).await }).map_err(|error| match error {
            // The caller names the URL.
            storage::Error::Unavailable { source, .. } => source,
            error => error.into(),
        })
    }

    /// Returns the object of a URL, if it exists.
    pub(crate) fn head(&self, url: &Url) -> Result<Option<Object>> {
        let (store, path) = self.open(url)?;
        match self.wait(async move { store.head(&path).await }) {
            Ok(meta) => Ok(Some(Object::new(url.clone(), &meta))),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(Answer(error).into()),
        }
    }

    /// Lists all objects below `base`, which ends with a slash.
    pub(crate) fn list(self: &Arc<Self>, base: &Url) -> Result<Objects> {
        let (store, prefix) = self.open(base)?;
        // WebDAV servers list in no order; the others list in the order of names.
        let sorted = !matches!(base.scheme(), "http" | "https");
        Ok(Objects::new(Arc::clone(self), base.clone(), prefix, &store, sorted))
    }

    /// Reads the first bytes of an object of `size` bytes.
    pub(crate) fn first_bytes(&self, url: &ItemPath, size: u64, bytes_max: u64) -> Result<Bytes> {
        if size == 0 {
            return Ok(Bytes::new());
        }
        let url = parse_url(url.as_bytes()).expect("the listing gives valid URLs");
        let (store, path) = self.open(&url)?;
        self.wait(
            async move { get(&*store, &path, GetRange::Bounded(0..size.min(bytes_max))).await },
        )
    }

    /// Fetches an object, or a part of it, into a temporary file.
    pub(crate) fn fetch(&self, url: &Url, fetch: Fetch) -> Result<NamedTempFile> {
        let (store, path) = self.open(url)?;
        let mut file = NamedTempFile::new()
            .map_err(|error| format!("cannot create a temporary file: {error}"))?;
        let written = match fetch {
            Fetch::Whole => {
                let file = file.reopen()?;
                self.wait(async move { download(&*store, &path, file).await })
            }
            Fetch::Head(bytes_max) => self
                .wait(async move { head_bytes(&*store, &path, bytes_max).await })
                .and_then(|head| Ok(file.write_all(&head)?)),
            Fetch::ParquetFooter => self
                .wait(async move { footer(&*store, &path).await })
                .and_then(|(start, footer)| {
                    file.seek(SeekFrom::Start(start))?;
                    Ok(file.write_all(&footer)?)
                }),
        };
        written.map(|()| file)
    }
}

impl Object {
    fn new(url: Url, meta: &ObjectMeta) -> Self {
        let stamp = meta.e_tag.clone().unwrap_or_else(|| meta.last_modified.to_rfc3339());
        Self { url, size: meta.size, etag: meta.e_tag.clone(), stamp }
    }
}

impl Objects {
    fn new(
        remote: Arc<Remote>,
        base: Url,
        prefix: ObjectPath,
        store: &Arc<dyn ObjectStore>,
        sorted: bool,
    ) -> Self {
        let metas = store.list(Some(&prefix));
        let mut objects = Self {
            remote,
            base,
            prefix,
            pages: Some(metas.ready_chunks(PAGE_OBJECTS).boxed()),
            page: Vec::new().into_iter(),
        };
        if !sorted {
            let mut all = Vec::new();
            while objects.turn_page() {
                all.extend(objects.page.by_ref());
            }
            all.sort_by(|left, right| match (left, right) {
                (Ok(left), Ok(right)) => left.location.cmp(&right.location),
                (left, right) => left.is_ok().cmp(&right.is_ok()),
            });
            objects.page = all.into_iter();
        }
        objects
    }

    fn turn_page(&mut self) -> bool {
        let Some(mut pages) = self.pages.take() else { return false };
        let (page, pages) = self.remote.wait(async move {
            let page = pages.next().await;
            (page, pages)
        });
        let turned = page.is_some();
        self.pages = turned.then_some(pages);
        self.page = page.unwrap_or_default().into_iter();
        turned
    }

    fn object(&self, meta: &ObjectMeta) -> Option<Object> {
        let mut url = self.base.clone();
        let mut segments = meta.location.prefix_match(&self.prefix)?.peekable();
        // Some tools create an empty object with the name of a folder.
        segments.peek()?;
        url.path_segments_mut()
            .expect("URLs of stores have paths")
            .pop_if_empty()
            .extend(segments.map(|segment| segment.as_ref().to_owned()));
        Some(Object::new(url, meta))
    }
}

impl Iterator for Objects {
    type Item = Result<Object>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.page.next() {
                Some(Ok(meta)) => match self.object(&meta) {
                    Some(object) => return Some(Ok(object)),
                    None => continue,
                },
                Some(Err(error)) => return Some(Err(Answer(error).into())),
                None if self.turn_page() => {}
                None => return None,
            }
        }
    }
}

pub(crate) fn parse_url(url: &[u8]) -> Option<Url> {
    Url::parse(std::str::from_utf8(url).ok()?).ok()
}

/// Returns the name of an object in a URL, decoded.
pub(crate) fn readable_path(url: &Url) -> Option<String> {
    ObjectPath::from_url_path(url.path()).ok().map(String::from)
}

/// Returns the name of an object relative to the folder `base`, decoded.
pub(crate) fn readable_below(base: &Url, object: &Url) -> String {
    let readable = |url: &Url| readable_path(url).unwrap_or_default();
    let (base, object) = (readable(base), readable(object));
    let relative = object.strip_prefix(&base).unwrap_or(&object);
    relative.trim_start_matches('/').to_owned()
}

async fn download(
    store: &dyn ObjectStore,
    path: &ObjectPath,
    mut file: std::fs::File,
) -> Result<()> {
    let object = store.get_opts(path, GetOptions::default()).await.map_err(Answer)?;
    let mut pieces = object.into_stream();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(Answer)?;
        file.write_all(&piece)?;
    }
    Ok(())
}

async fn head_bytes(store: &dyn ObjectStore, path: &ObjectPath, bytes_max: u64) -> Result<Bytes> {
    let size = store.head(path).await.map_err(Answer)?.size;
    if size == 0 {
        return Ok(Bytes::new());
    }
    let head = get(store, path, GetRange::Bounded(0..size.min(bytes_max))).await?;
    let last_line_end = head.iter().rposition(|&byte| byte == b'\n');
    Ok(match last_line_end {
        Some(end) if size > bytes_max => head.slice(..=end),
        _ => head,
    })
}

/// Reads the footer. Returns its offset, too.
async fn footer(store: &dyn ObjectStore, path: &ObjectPath) -> Result<(u64, Bytes)> {
    let size = store.head(path).await.map_err(Answer)?.size;
    if size == 0 {
        return Ok((0, Bytes::new()));
    }
    let from = |start: u64| get(store, path, GetRange::Bounded(start..size));
    let guess = size.saturating_sub(tables::FOOTER_BYTES_GUESS);
    let end = from(guess).await?;
    if end.len() as u64 != size - guess {
        return Err("the object changed while it was read".into());
    }
    match tables::footer_start(size, &end) {
        Some(start) if start < guess => Ok((start, from(start).await?)),
        _ => Ok((guess, end)),
    }
}

async fn get(store: &dyn ObjectStore, path: &ObjectPath, range: GetRange) -> Result<Bytes> {
    let options = GetOptions { range: Some(range), ..GetOptions::default() };
    let object = store.get_opts(path, options).await.map_err(Answer)?;
    Ok(object.bytes().await.map_err(Answer)?)
}

#[cfg(test)]
pub(crate) mod fixtures {
    use object_store::memory::InMemory;

    use super::*;

    /// Returns stores with a bucket of these keys, tables of one row, behind `s3://bucket/`.
    pub(crate) fn bucket(keys: &[&str]) -> Arc<Remote> {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let remote = Remote::default();
        for key in keys {
            let (store, key) = (Arc::clone(&store), ObjectPath::parse(key).expect("a key"));
            remote.wait(async move { store.put(&key, "1\n2\n".into()).await }).expect("in memory");
        }
        remote.stores.stand_in(&Url::parse("s3://bucket/").expect("a URL"), store);
        Arc::new(remote)
    }
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;
    use protocol::{Input, InputKind, TableOptions};

    use super::fixtures::bucket;
    use super::*;
    use crate::listing::Listing;
    use crate::walk::Outputs;

    fn listed(remote: &Arc<Remote>, path: &str) -> crate::Result<Vec<(String, u64)>> {
        let input = Input {
            name: "images".to_owned(),
            kind: InputKind::File,
            paths: vec![ItemPath::from(path)],
            partition_format: None,
            table: TableOptions::default(),
        };
        let listing = Listing::new(&input, Arc::clone(remote), Outputs::default());
        listing.map(|listed| listed.map(|listed| (listed.path.display(), listed.group))).collect()
    }

    #[test]
    fn prefix_is_a_folder_of_sorted_objects() {
        let remote =
            bucket(&["d/b.png", "d/a b%.png", "d/sub/c.png", "d/z.png", "else/x.png", "d2/y.png"]);
        let listed = listed(&remote, "s3://bucket/d/").expect("listable");
        let urls: Vec<&str> = listed.iter().map(|(url, _)| url.as_str()).collect();
        let expected = [
            "s3://bucket/d/a%20b%25.png",
            "s3://bucket/d/b.png",
            "s3://bucket/d/sub/c.png",
            "s3://bucket/d/z.png",
        ];
        assert_eq!(urls, expected);
        let groups: Vec<u64> = listed.iter().map(|(_, group)| *group).collect();
        assert!(
            groups[0] == groups[1] && groups[1] < groups[2] && groups[2] < groups[3],
            "{groups:?}"
        );
        for url in urls {
            let url = Url::parse(url).expect("listed");
            assert!(
                remote.head(&url).expect("in memory").is_some(),
                "{url} names the object it was made from"
            );
        }
    }

    #[test]
    fn whole_bucket_can_be_listed() {
        let remote = bucket(&["b", "a/c"]);
        for path in ["s3://bucket/", "s3://bucket"] {
            let urls: Vec<String> =
                listed(&remote, path).expect("listable").into_iter().map(|(url, _)| url).collect();
            assert_eq!(urls, ["s3://bucket/a/c", "s3://bucket/b"]);
        }
    }

    #[test]
    fn glob_matches_objects() {
        let remote = bucket(&["d/2020/a.csv", "d/2020/a.txt", "d/2021/x/b.csv", "d/c.csv"]);
        let urls = |path| {
            listed(&remote, path)
                .map(|listed| listed.into_iter().map(|(url, _)| url).collect::<Vec<_>>())
        };
        assert_eq!(urls("s3://bucket/d/*/*.csv").expect("listable"), ["s3://bucket/d/2020/a.csv"]);
        assert_eq!(urls("s3://bucket/d/**/*.csv").expect("listable").len(), 3);
        let refused = format!("{:#}", urls("s3://bucket/d/*.parquet").expect_err("nothing"));
        assert_eq!(
            refused,
            "input 'images': s3://bucket/d/*.parquet matches no object; correct the pattern"
        );
    }

    #[test]
    fn hidden_objects_are_left_out_unless_a_pattern_names_them() {
        let remote =
            bucket(&["d/_SUCCESS", "d/.a.crc", "d/a.csv", "d/_temporary/0/b.csv", "d/_k=v/c.csv"]);
        let left_out = |path: &str| {
            let input = Input {
                name: "sales".to_owned(),
                kind: InputKind::Tabular,
                paths: vec![ItemPath::from(path)],
                partition_format: None,
                table: TableOptions::default(),
            };
            let mut listing = Listing::new(&input, Arc::clone(&remote), Outputs::default());
            let files = listing.by_ref().filter(crate::Result::is_ok).count();
            let left_out = listing.left_out();
            (files, left_out.count, left_out.line().unwrap_or_default())
        };
        let (files, count, line) = left_out("s3://bucket/d/");
        assert_eq!((files, count), (2, 3), "{line}");
        assert!(line.contains("s3://bucket/d/_SUCCESS (begins with `_`)"), "{line}");
        assert_eq!(
            left_out("s3://bucket/d/*.csv"),
            (1, 0, String::new()),
            "names that do not match anyway are reported"
        );
        assert_eq!(left_out("s3://bucket/d/**").1, 3);
        assert_eq!(left_out("s3://bucket/d/_temporary/**").0, 1);
    }

    #[test]
    fn empty_prefix_is_rejected() {
        let refused =
            format!("{:#}", listed(&bucket(&["a"]), "s3://bucket/none/").expect_err("nothing"));
        assert!(
            refused.starts_with("input 'images': s3://bucket/none/ holds no files; "),
            "{refused}"
        );
    }

    #[test]
    fn head_of_a_text_ends_with_a_line() {
        let remote = Remote::default();
        let (store, path) = (InMemory::new(), ObjectPath::from("a"));
        let head = remote.wait(async move {
            store.put(&path, "one\ntwo\nthree\n".into()).await.expect("in memory");
            (
                head_bytes(&store, &path, 9).await,
                head_bytes(&store, &path, 99).await,
                head_bytes(&store, &path, 2).await,
            )
        });
        assert_eq!(head.0.expect("read"), "one\ntwo\n");
        assert_eq!(head.1.expect("read"), "one\ntwo\nthree\n");
        assert_eq!(head.2.expect("read"), "on", "a longer line is truncated");
    }

    #[test]
    fn footer_larger_than_the_guess_is_read_completely() {
        let remote = Remote::default();
        let (store, path) = (InMemory::new(), ObjectPath::from("a"));
        let length = u32::try_from(tables::FOOTER_BYTES_GUESS * 2).expect("small");
        let mut object = vec![7; 100];
        object.extend(vec![8; length as usize]);
        object.extend(length.to_le_bytes());
        object.extend(b"PAR1");
        let expected = object[100..].to_vec();
        let read = remote.wait(async move {
            store.put(&path, object.into()).await.expect("in memory");
            footer(&store, &path).await
        });
        assert!(read.expect("read") == (100, Bytes::from(expected)));
    }
}
