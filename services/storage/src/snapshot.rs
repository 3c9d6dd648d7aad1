//! Folders and files that travel with a job: packed into one object whose name is the digest of its content.
//!
//! The one idea: the same content gives the same bytes, so a snapshot is stored and unpacked once, whoever sends it and
//! however often. Names are sorted, times and owners are zero, and of the modes only "executable" is kept. Symbolic links
//! are followed, as the original did: what they point to is packed in their place; a dangling or circular one is left
//! out. Empty folders do not travel.
//!
//! The digest is that of the tar stream before compression; [`unpack`] checks it, so a node never runs what was not sent.

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

pub use unpack::unpack;
pub use walk::files;

/// Good for text and quick enough for data.
const COMPRESSION_LEVEL: i32 = 3;

/// A file that says of its folder: this is where jobs, queues or a store are kept. It belongs to no script.
const MARK: &str = ".gristmill-data";

/// Marks a folder in which jobs, queues or a store are kept: it may lie among scripts, and would travel with them.
pub fn mark(folder: &Path) -> io::Result<()> {
    let text = "Jobs, queues or a store of Gristmill are kept in this folder. It is no part of scripts around it.\n";
    match File::create_new(folder.join(MARK)) {
        Ok(mut file) => file.write_all(text.as_bytes()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// What to pack.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// A folder of scripts: every file that `.amlignore` or `.gitignore` there does not exclude, without `.git`,
    /// `__pycache__`, virtual environments, folders that are [marked](mark) and logs (`*.log`, `nohup.out`).
    Scripts {
        /// The folder.
        folder: &'a Path,
        /// A file that is packed even if it is excluded, relative to the folder.
        entry_script: Option<&'a str>,
        /// What else does not belong to it.
        excluded: &'a Gitignore,
    },
    /// A folder as it is, or one file.
    Data(&'a Path),
}

/// How large what is packed may be, and what comes out of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The contents of all files together.
    pub bytes: u64,
    /// Number of files.
    pub files: usize,
}

impl Limit {
    /// Larger than any folder of scripts (a larger one holds data), and as many files as can be read at every start
    /// without being noticed.
    pub const SCRIPTS: Self = Self { bytes: 300 * 1024 * 1024, files: 20_000 };

    /// Models and tables that every node keeps a copy of. What is larger belongs into a store, and is named by its URL.
    pub const DATA: Self = Self { bytes: 32 * 1024 * 1024 * 1024, files: 200_000 };
}

impl Source<'_> {
    fn limit(&self) -> Limit {
        match self {
            Self::Scripts { .. } => Limit::SCRIPTS,
            Self::Data(_) => Limit::DATA,
        }
    }
}

/// Packs `source` into the file `archive`, which is created or replaced.
///
/// [`Error::TooLarge`] names the largest files and what to do. A file that changes meanwhile is [`Error::Unavailable`].
/// Blocks: it reads and compresses everything.
pub fn pack(source: Source<'_>, archive: &Path) -> Result<Snapshot> {
    let files = files(source)?;
    let file = match source {
        Source::Data(path) if path.is_file() => Some(file_name(path)?.to_owned()),
        _ => None,
    };
    let written = failed(archive);
    let output = BufWriter::new(File::create(archive).map_err(&written)?);
    let compressed = zstd::Encoder::new(output, COMPRESSION_LEVEL).map_err(&written)?;
    let mut tar = tar::Builder::new(Digesting { inner: compressed, hasher: Hasher::new() });
    for (name, path) in &files {
        append(&mut tar, name, path)?;
    }
    let Digesting { inner, hasher } = tar.into_inner().map_err(&written)?;
    let output = inner.finish().map_err(&written)?;
    let output = output.into_inner().map_err(|error| written(error.into_error()))?;
    let bytes = output.metadata().map_err(&written)?.len();
    Ok(Snapshot { digest: hasher.finalize().to_hex().to_string(), bytes, file })
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

/// The name under which one file is packed. It stands in the job as text.
fn file_name(path: &Path) -> Result<&str> {
    path.file_name().and_then(OsStr::to_str).ok_or_else(|| Error::Unavailable {
        object: path.display().to_string(),
        message: "its name is not valid UTF-8".to_owned(),
    })
}

/// A file that must be as long as it was when its header was written.
struct SteadyFile {
    file: File,
    left: u64,
}

impl Read for SteadyFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(buffer)?;
        let is_whole = if count == 0 { self.left == 0 || buffer.is_empty() } else { count as u64 <= self.left };
        if !is_whole {
            return Err(io::Error::other("it changed while it was being packed; try again once nobody writes to it"));
        }
        self.left -= count as u64;
        Ok(count)
    }
}

/// Passes bytes on and digests them.
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

/// A file to pack: its name in the snapshot, and where it stands.
pub type SnapshotFile = (PathBuf, PathBuf);
