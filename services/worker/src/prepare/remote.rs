//! Remote inputs: downloads whole files for `run()`, and only the needed bytes of tables.
//!
//! The needed bytes of a table are written at their offsets in a local file with holes, which is then read like any
//! local file. Nothing is kept for the next mini-batch, because each byte of an input is needed once; except the
//! beginnings and footers of files, which are cached.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use protocol::{Block, BlockRange, FileVersion, ItemPath, TableOptions};
use storage::Stores;
use tokio::runtime::Handle;
use tokio::sync::OnceCell;

use super::local;

/// Concurrent downloads of one mini-batch.
const DOWNLOADS_AT_ONCE: usize = 4;
/// The beginning of a text file: byte order mark and header line.
const HEAD_BYTES: u64 = 4 * 1024;
/// Bytes that are read behind a block, because its last line usually ends there.
const TAIL_BYTES: u64 = 64 * 1024;
/// Longest line that is read to its end.
const LINE_BYTES_MAX: u64 = tables::LINE_BYTES_MAX as u64;
/// Whole objects that are kept.
const COPIES_MAX: usize = 4;
/// Bytes of beginnings and footers that are cached.
const CACHED_BYTES_MAX: usize = 32 << 20;

/// Reads remote inputs.
pub(super) struct Remote {
    stores: Stores,
    /// Folder for files.
    folder: PathBuf,
    next: AtomicU64,
    cached: Mutex<Cached>,
    /// The last objects that had to be fetched whole.
    copies: Mutex<VecDeque<WholeObject>>,
    /// The last object that was read, by the address of its store.
    read: Mutex<HashMap<String, String>>,
}

/// An object whose blocks are read from front to back, so it is fetched whole.
#[derive(Clone)]
struct WholeObject {
    path: ItemPath,
    etag: Option<String>,
    file: Arc<OnceCell<Arc<File>>>,
}

/// Pieces of files by path, ETag and offset.
#[derive(Default)]
struct Cached {
    pieces: HashMap<(ItemPath, Option<String>, u64), Bytes>,
    bytes: usize,
}

/// Downloaded files, removed when this value is dropped.
#[derive(Debug)]
pub struct Downloads {
    folder: PathBuf,
}

/// A local table file.
#[derive(Debug)]
pub(super) enum TableFile {
    /// A local input.
    Own(PathBuf),
    /// The needed bytes of an object at their offsets. The file has no name and ends with this value.
    Holed(Arc<File>),
    /// A whole object, shared by its blocks.
    Whole(Arc<File>),
}

impl Drop for Downloads {
    fn drop(&mut self) {
        let folder = std::mem::take(&mut self.folder);
        // Remaining files are removed with the folder of the node.
        let remove = move || drop(std::fs::remove_dir_all(folder));
        // The loop of an agent drops this value, and does not wait for a disk.
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(remove)),
            Err(_) => remove(),
        }
    }
}

impl TableFile {
    pub fn path(&self) -> PathBuf {
        match self {
            Self::Own(path) => path.clone(),
            Self::Holed(file) | Self::Whole(file) => {
                format!("/proc/self/fd/{}", file.as_raw_fd()).into()
            }
        }
    }

    pub fn has_holes(&self) -> bool {
        matches!(self, Self::Holed(_))
    }
}

impl Remote {
    /// Creates a reader. Only this node and job use `folder`.
    pub fn new(stores: Stores, folder: PathBuf) -> Self {
        let (next, cached, copies, read) =
            (AtomicU64::new(0), Mutex::default(), Mutex::default(), Mutex::default());
        Self { stores, folder, next, cached, copies, read }
    }

    fn unique(&self, kind: &str) -> PathBuf {
        self.folder.join(format!(
            "{kind}-{}-{}",
            std::process::id(),
            self.next.fetch_add(1, Ordering::Relaxed)
        ))
    }

    /// Downloads remote files. Returns the local paths of all files, and the guard of the downloads.
    pub async fn files(
        &self,
        paths: &[ItemPath],
        versions: &[FileVersion],
    ) -> Result<(Vec<ItemPath>, Downloads)> {
        let downloads = Downloads { folder: self.unique("files") };
        // Collected first, because the compiler does not accept a stream of these futures as `Send`.
        let files = paths
            .iter()
            .enumerate()
            .map(|(index, path)| self.file(path, versions.get(index), &downloads.folder));
        let files: Vec<_> = files.collect();
        let local = stream::iter(files).buffered(DOWNLOADS_AT_ONCE).try_collect().await?;
        Ok((local, downloads))
    }

    async fn file(
        &self,
        path: &ItemPath,
        version: Option<&FileVersion>,
        folder: &Path,
    ) -> Result<ItemPath> {
        if !path.is_url() {
            local::check_file(path, version)?;
            return Ok(path.clone());
        }
        let url = url(path)?;
        // Files of different folders may have the same name.
        let digest = blake3::hash(path.as_bytes()).to_hex();
        let copy = folder.join(&digest[..16]).join(storage::file_name(url));
        match self.stores.download(url, version, &copy).await {
            Ok(()) => self.note_read(url),
            Err(error) => return Err(self.explained(url, version, error).await),
        }
        Ok(copy.into())
    }

    /// Returns a file with the needed bytes for each block.
    pub async fn tables(&self, blocks: &[Block], options: &TableOptions) -> Result<Vec<TableFile>> {
        let files: Vec<_> = blocks.iter().map(|block| self.table(block, options)).collect();
        stream::iter(files).buffered(DOWNLOADS_AT_ONCE).try_collect().await
    }

    async fn table(&self, block: &Block, options: &TableOptions) -> Result<TableFile> {
        if !block.path.is_url() {
            return Ok(TableFile::Own(block.path.as_path().to_owned()));
        }
        let url = url(&block.path)?;
        let fetched = match block.range {
            BlockRange::Records { .. }
                if tables::is_read_from_front(block.path.as_bytes(), options) =>
            {
                self.whole(url, block).await.map(TableFile::Whole)
            }
            _ => self.block(url, block).await.map(TableFile::Holed),
        };
        match fetched {
            Ok(fetched) => {
                self.note_read(url);
                Ok(fetched)
            }
            Err(error) => Err(match error.downcast::<storage::Error>() {
                Ok(error) => self.explained(url, block.version.as_ref(), error).await,
                Err(error) => error,
            }),
        }
    }

    fn note_read(&self, url: &str) {
        self.read.lock().expect("no holder panics").insert(store_of(url), url.to_owned());
    }

    /// Explains an error that the input has caused. Others stay those of the store.
    async fn explained(
        &self,
        url: &str,
        version: Option<&FileVersion>,
        error: storage::Error,
    ) -> anyhow::Error {
        if !matches!(error, storage::Error::Unavailable { .. } | storage::Error::Denied { .. }) {
            return explained(url, version, error);
        }
        let other = self.read.lock().expect("no holder panics").get(&store_of(url)).cloned();
        match other {
            // For example, the object is archived, or has rights of its own.
            Some(other) if other != url && self.stores.size(&other).await.is_ok() => {
                anyhow::anyhow!("{error:#}; its store serves other objects")
            }
            _ => error.into(),
        }
    }

    /// Returns the whole object, which the first of its blocks fetches.
    async fn whole(&self, url: &str, block: &Block) -> Result<Arc<File>> {
        let etag = block.version.as_ref().and_then(|version| version.etag.clone());
        let copy = {
            let mut copies = self.copies.lock().expect("no holder panics");
            match copies.iter().find(|copy| copy.path == block.path && copy.etag == etag) {
                Some(known) => known.clone(),
                None => {
                    copies.truncate(COPIES_MAX - 1);
                    copies.push_front(WholeObject {
                        path: block.path.clone(),
                        etag,
                        file: Arc::default(),
                    });
                    copies[0].clone()
                }
            }
        };
        let whole = Block { range: BlockRange::WholeText, ..block.clone() };
        copy.file.get_or_try_init(|| self.block(url, &whole)).await.cloned()
    }

    async fn block(&self, url: &str, block: &Block) -> Result<Arc<File>> {
        let size = match &block.version {
            Some(version) => version.bytes,
            None => self.stores.size(url).await?,
        };
        let file = self.nameless()?;
        file.set_len(size).context("create a file for an input")?;
        let object = Object { remote: self, url, block, size, file: &file };
        match block.range {
            BlockRange::WholeText | BlockRange::RowGroup { rows: 0, .. } => {
                object.fetch(0..size).await?
            }
            BlockRange::Lines { first, last } => object.lines(first, last).await?,
            BlockRange::Records { start, end } => object.records(start, end).await?,
            BlockRange::RowGroup { row_group, .. } => object.row_group(row_group).await?,
        }
        Ok(Arc::new(file))
    }

    fn nameless(&self) -> Result<File> {
        let path = self.unique("block");
        let make = || {
            std::fs::create_dir_all(&self.folder)?;
            let file = File::options().read(true).write(true).create_new(true).open(&path)?;
            std::fs::remove_file(&path)?;
            Ok::<_, std::io::Error>(file)
        };
        make().with_context(|| format!("create a file for an input in {}", self.folder.display()))
    }
}

/// An object, and the file for its bytes.
struct Object<'a> {
    remote: &'a Remote,
    url: &'a str,
    block: &'a Block,
    size: u64,
    file: &'a File,
}

impl Object<'_> {
    async fn fetch(&self, range: Range<u64>) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        Ok(self
            .remote
            .stores
            .read_into(self.url, self.block.version.as_ref(), range, self.file)
            .await?)
    }

    /// Returns a piece of the object that other blocks need too.
    async fn piece(&self, range: Range<u64>) -> Result<Bytes> {
        let etag = self.block.version.as_ref().and_then(|version| version.etag.clone());
        let key = (self.block.path.clone(), etag, range.start);
        let known = self.remote.cached.lock().expect("no holder panics").pieces.get(&key).cloned();
        if let Some(known) = known.filter(|known| known.len() as u64 == range.end - range.start) {
            return Ok(known);
        }
        let piece = self.remote.stores.read(self.url, self.block.version.as_ref(), range).await?;
        let mut cached = self.remote.cached.lock().expect("no holder panics");
        if cached.bytes + piece.len() > CACHED_BYTES_MAX {
            *cached = Cached::default();
        }
        cached.bytes += piece.len();
        cached.pieces.insert(key, piece.clone());
        Ok(piece)
    }

    fn put(&self, bytes: &[u8], at: u64) -> Result<()> {
        std::os::unix::fs::FileExt::write_all_at(self.file, bytes, at)
            .context("write a part of an input")
    }

    /// Fetches the lines that start at a byte from `first` to `last`, the line break in front of them, and the head of
    /// the file.
    async fn lines(&self, first: u64, last: u64) -> Result<()> {
        let last = last.min(self.size);
        let from = first.saturating_sub(1).min(last);
        let mut fetched = (last + TAIL_BYTES).min(self.size);
        if from > HEAD_BYTES {
            let head = self.piece(0..HEAD_BYTES.min(self.size)).await?;
            // The first line is not within the head, so read the whole file.
            if head.iter().all(u8::is_ascii_whitespace) {
                return self.fetch(0..self.size).await;
            }
            self.put(&head, 0)?;
            self.fetch(from..fetched).await?;
        } else {
            self.fetch(0..fetched).await?;
        }
        let mut searched = last;
        while fetched < self.size && !self.has_line_break(searched..fetched)? {
            if fetched - last > LINE_BYTES_MAX {
                bail!(
                    "{}, byte {last}: a line here is longer than {LINE_BYTES_MAX} bytes",
                    self.block.path.display()
                );
            }
            searched = fetched;
            fetched = (fetched + 4 * (fetched - last)).min(self.size);
            self.fetch(searched..fetched).await?;
        }
        Ok(())
    }

    /// Fetches the records in a range of bytes, and the head of the file.
    async fn records(&self, start: u64, end: u64) -> Result<()> {
        let end = end.min(self.size);
        if start > HEAD_BYTES {
            self.put(&self.piece(0..HEAD_BYTES.min(self.size)).await?, 0)?;
            return self.fetch(start.min(end)..end).await;
        }
        self.fetch(0..end.max(HEAD_BYTES.min(self.size))).await
    }

    fn has_line_break(&self, range: Range<u64>) -> Result<bool> {
        let mut bytes = vec![0; usize::try_from(range.end - range.start)?];
        std::os::unix::fs::FileExt::read_exact_at(self.file, &mut bytes, range.start)
            .context("read an input again")?;
        Ok(bytes.contains(&b'\n'))
    }

    /// Fetches the footer, and the columns of one row group, which are contiguous.
    async fn row_group(&self, row_group: u32) -> Result<()> {
        let guess = self.size.saturating_sub(tables::FOOTER_BYTES_GUESS);
        let end = self.piece(guess..self.size).await?;
        self.put(&end, guess)?;
        if let Some(start) = tables::footer_start(self.size, &end).filter(|start| *start < guess) {
            self.put(&self.piece(start..guess).await?, start)?;
        }
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let name = self.block.path.display();
        let range = tables::row_group_bytes(path.as_ref(), &name, row_group)?;
        self.fetch(range.start..range.end.min(guess.max(range.start))).await
    }
}

fn url(path: &ItemPath) -> Result<&str> {
    std::str::from_utf8(path.as_bytes()).context("a URL must be text")
}

/// Returns the address of the store of an object.
fn store_of(url: &str) -> String {
    url::Url::parse(url)
        .map_or_else(|_| url.to_owned(), |url| url[..url::Position::BeforePath].to_owned())
}

/// Explains an error that a changed input has caused.
fn explained(url: &str, version: Option<&FileVersion>, error: storage::Error) -> anyhow::Error {
    let now = match (&error, version) {
        (storage::Error::Changed { found, .. }, _) => found.clone(),
        (storage::Error::NotFound { .. }, Some(_)) => "it does not exist".to_owned(),
        _ => return error.into(),
    };
    let planned = match version {
        Some(FileVersion { etag: Some(etag), bytes, .. }) => {
            format!("planned as ETag {etag}, {bytes} bytes")
        }
        Some(FileVersion { etag: None, bytes, .. }) => format!("planned as {bytes} bytes"),
        None => "planned".to_owned(),
    };
    anyhow::anyhow!(
        "input changed since the job was planned: {url} ({planned}; now {now}); put it back as it was and retry the \
         job, or start a new job with the inputs as they are"
    )
}

#[cfg(test)]
mod tests;
