//! Snapshots: folders and files of a job, packed into one object that is named by the digest of its content.
//!
//! The same content gives the same bytes, so a snapshot is stored and unpacked once, no matter how many jobs send it.
//! Names are sorted, times and owners are zero, and the only mode kept is "executable". A snapshot has the targets of
//! symbolic links in their place, as in Azure ML, but no dangling or circular links and no empty folders.
//!
//! The digest is that of the tar stream before compression. [`unpack()`] checks it, and [`digest_of`] computes it again
//! from the unpacked files, so a node runs exactly the files that were sent.
//!
//! Only targets have snapshots. A local job runs its script in place. If the script changes between two runs, that is
//! another job, which `run` neither continues nor reuses.

mod fit;
mod unpack;
mod walk;

#[cfg(test)]
mod tests;

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use blake3::Hasher;
use ignore::gitignore::Gitignore;
use protocol::Snapshot;

use crate::{Error, Result};

pub use fit::fit;
pub use unpack::unpack;
pub use walk::{Listing, files};

/// A level that compresses text well and is fast enough for data.
const COMPRESSION_LEVEL: i32 = 3;

/// The file that marks a folder of jobs, queues or a store, which is not part of scripts.
const MARK: &str = ".gristmill-data";

/// Marks a folder of jobs, queues or a store, so that snapshots of the scripts around it leave it out.
pub fn mark(folder: &Path) -> io::Result<()> {
    let text = "Gristmill keeps jobs, queues or a store in this folder. It is not part of the scripts around it.\n";
    match File::create_new(folder.join(MARK)) {
        Ok(mut file) => file.write_all(text.as_bytes()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// Returns whether a folder is [marked](mark).
pub fn is_marked(folder: &Path) -> bool {
    mark_of(folder).exists()
}

/// Returns the path of the mark of a folder.
pub(crate) fn mark_of(folder: &Path) -> PathBuf {
    folder.join(MARK)
}

/// The source of a snapshot.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// A folder of scripts: every file that its `.amlignore` or `.gitignore` does not exclude, without files of
    /// editors, systems and version control (`.git`, `.vscode`, `__pycache__`, `.DS_Store`, `*.swp`, …), environments
    /// of Python, [marked](mark) folders and logs (`*.log`, `nohup.out`).
    Scripts {
        /// The folder.
        folder: &'a Path,
        /// A file that is packed even if it is excluded, relative to the folder.
        entry_script: Option<&'a str>,
        /// Further files to exclude.
        excluded: &'a Gitignore,
    },
    /// A folder with all its files, or one file.
    Data(&'a Path),
}

/// The limit of a snapshot's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The largest total size of all files.
    pub bytes: u64,
    /// The largest number of files.
    pub files: usize,
}

impl Limit {
    /// The limit of scripts: more bytes than any folder of scripts needs (a larger one contains data), and as many
    /// files as a start can read without a noticeable delay.
    pub const SCRIPTS: Self = Self { bytes: 300 * 1024 * 1024, files: 20_000 };

    /// The limit of models and tables, of which every node keeps a copy. Larger data belongs in a store, and the job
    /// names its URL.
    pub const DATA: Self = Self { bytes: 32 * 1024 * 1024 * 1024, files: 200_000 };
}

/// Packs `source` into the file `archive`, which it creates or replaces.
///
/// [`Error::TooLarge`] names the largest files and the remedy. Fails with [`Error::Unavailable`] if a file changes
/// meanwhile. Blocks: it reads and compresses all files.
pub fn pack(source: Source<'_>, archive: &Path) -> Result<Snapshot> {
    let files = files(source)?.files;
    match source {
        Source::Data(path) => {
            let file = if path.is_file() { Some(file_name(path)?.to_owned()) } else { None };
            Ok(Snapshot { file, ..pack_files(&files, archive)? })
        }
        Source::Scripts { .. } => {
            let (files, left_out) = fit(files, |_| true)?;
            debug_assert!(left_out.is_none(), "everything is needed");
            pack_files(&files, archive)
        }
    }
}

/// Works like [`pack`] for listed files.
pub fn pack_files(files: &[SnapshotFile], archive: &Path) -> Result<Snapshot> {
    let written = failed(archive);
    let output = BufWriter::new(File::create(archive).map_err(&written)?);
    let compressed = zstd::Encoder::new(output, COMPRESSION_LEVEL).map_err(&written)?;
    let (compressed, digest) = write_tar(files, compressed, archive)?;
    let output = compressed.finish().map_err(&written)?;
    let output = output.into_inner().map_err(|error| written(error.into_error()))?;
    let bytes = output.metadata().map_err(&written)?.len();
    Ok(Snapshot { digest, bytes, file: None })
}

/// Returns the digest of the snapshot that an unpacked folder contains now. Returns `None` if it has entries that no
/// snapshot has (links, devices, empty folders). Blocks: it reads every file.
pub fn digest_of(folder: &Path) -> Result<Option<String>> {
    let mut files = Vec::new();
    if !list_unpacked(folder, folder, &mut files).map_err(failed(folder))? {
        return Ok(None);
    }
    files.sort();
    write_tar(&files, io::sink(), folder).map(|(_, digest)| Some(digest))
}

/// Lists the files below `folder`. Returns `false` if it contains an entry that [`unpack()`] does not create.
fn list_unpacked(folder: &Path, root: &Path, files: &mut Vec<SnapshotFile>) -> io::Result<bool> {
    let mut is_empty = true;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        is_empty = false;
        let (path, kind) = (entry.path(), entry.file_type()?);
        if kind.is_dir() {
            if !list_unpacked(&path, root, files)? {
                return Ok(false);
            }
        } else if kind.is_file() {
            let name = path.strip_prefix(root).expect("it is below the root").to_owned();
            files.push(SnapshotFile { name, path, bytes: entry.metadata()?.len() });
        } else {
            return Ok(false);
        }
    }
    Ok(!is_empty || folder == root)
}

/// Writes the tar stream of a snapshot. Returns the output and the digest of the stream. Errors name the path `shown`.
fn write_tar<W: Write>(files: &[SnapshotFile], output: W, shown: &Path) -> Result<(W, String)> {
    let mut tar = tar::Builder::new(Digesting { inner: output, hasher: Hasher::new() });
    for file in files {
        append(&mut tar, &file.name, &file.path)?;
    }
    let Digesting { inner, hasher } = tar.into_inner().map_err(failed(shown))?;
    Ok((inner, hasher.finalize().to_hex().to_string()))
}

fn append(tar: &mut tar::Builder<impl Write>, name: &Path, path: &Path) -> Result<()> {
    let failed = failed(path);
    let file = File::open(path).map_err(&failed)?;
    let metadata = file.metadata().map_err(&failed)?;
    let is_executable = metadata.permissions().mode() & 0o111 != 0;
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Regular);
    header.set_size(metadata.len());
    header.set_mode(mode(is_executable));
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    tar.append_data(&mut header, name, SteadyFile { file, left: metadata.len() }).map_err(&failed)
}

fn failed(path: &Path) -> impl Fn(io::Error) -> Error + '_ {
    move |error| Error::unavailable(&path.display().to_string(), error)
}

fn mode(is_executable: bool) -> u32 {
    if is_executable { 0o755 } else { 0o644 }
}

/// Returns the name of a single file in its snapshot. It must be UTF-8, because `spec.json` contains it.
fn file_name(path: &Path) -> Result<&str> {
    let name = path.file_name().and_then(OsStr::to_str);
    name.ok_or_else(|| {
        Error::unavailable(&path.display().to_string(), "its name is not valid UTF-8")
    })
}

/// A file that must keep the length that its header states.
struct SteadyFile {
    file: File,
    left: u64,
}

impl Read for SteadyFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(buffer)?;
        let is_whole = if count == 0 {
            self.left == 0 || buffer.is_empty()
        } else {
            count as u64 <= self.left
        };
        if !is_whole {
            return Err(io::Error::other(
                "it changed during packing; run again when no program writes to it",
            ));
        }
        self.left -= count as u64;
        Ok(count)
    }
}

/// A writer that forwards bytes and computes their digest.
struct Digesting<W> {
    inner: W,
    hasher: Hasher,
}

impl<W: Write> Write for Digesting<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(bytes)?;
        self.hasher.update(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// A file to pack.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SnapshotFile {
    /// Its name in the snapshot.
    pub name: PathBuf,
    /// Its path.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
}
