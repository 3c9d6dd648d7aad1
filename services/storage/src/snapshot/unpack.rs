//! Unpacks archives without trusting their content.
//!
//! It creates only regular files, each once, in a temporary folder. It renames this folder once all files are written
//! and the digest is correct. So an archive cannot write through links or overwrite files, and no folder is partial.

use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use blake3::Hasher;
use protocol::Snapshot;

use super::{Limit, failed, mode};
use crate::{Error, Result, disk};

/// The largest size of the description of a file: its header, long name and padding.
const DESCRIPTION_BYTES_MAX: u64 = 64 * 1024;

/// Unpacks the file `archive` into the folder `into`, unless that exists. The folder appears complete or not at all.
///
/// Processes of a node may call this concurrently: one unpacks, and the others wait for it. The next process removes
/// the partial folder of a killed one. [`Error::Damaged`] means that the archive is not this snapshot, tries to write
/// outside the folder, or is larger than `limit`. Blocks.
pub fn unpack(archive: &Path, snapshot: &Snapshot, limit: Limit, into: &Path) -> Result<()> {
    if into.is_dir() {
        return Ok(());
    }
    if let Some(parent) = into.parent() {
        std::fs::create_dir_all(parent).map_err(failed(parent))?;
    }
    let lock_path = beside(into, ".lock");
    let lock = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&lock_path)
        .map_err(failed(&lock_path))?;
    // The system releases the lock with the file, also when this process is killed.
    lock.lock().map_err(failed(&lock_path))?;
    if into.is_dir() {
        return Ok(());
    }
    let partial = beside(into, ".partial");
    disk::remove_all(&partial).map_err(failed(&partial))?;
    std::fs::create_dir(&partial).map_err(failed(&partial))?;
    let unpacked = extract(archive, snapshot, limit, &partial);
    // Callers trust an existing folder even after a power cut, so its files must be on disk before it gets its name.
    let unpacked =
        unpacked.and_then(|()| disk::sync_file_system(&partial).map_err(failed(&partial)));
    let renamed = unpacked.and_then(|()| std::fs::rename(&partial, into).map_err(failed(into)));
    if renamed.is_err() {
        // If this fails, the next process clears the folder.
        let _ = disk::remove_all(&partial);
    }
    renamed
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    PathBuf::from(name)
}

fn extract(archive: &Path, snapshot: &Snapshot, limit: Limit, folder: &Path) -> Result<()> {
    let damaged = |message: String| Error::damaged(archive.display().to_string(), message);
    let unreadable = |error: io::Error| Error::damaged(archive.display().to_string(), error);
    let file = File::open(archive).map_err(failed(archive))?;
    let decoder = zstd::Decoder::new(file).map_err(unreadable)?;
    let allowance = Cell::new(0);
    let mut source = Bounded { inner: decoder, allowance: &allowance, hasher: Hasher::new() };
    let (mut bytes, mut files) = (0, 0);
    {
        let mut tar = tar::Archive::new(&mut source);
        let mut entries = tar.entries().map_err(unreadable)?;
        loop {
            allowance.set(DESCRIPTION_BYTES_MAX);
            let Some(entry) = entries.next() else { break };
            let mut entry = entry.map_err(unreadable)?;
            let name = entry.path_bytes().into_owned();
            let shown = String::from_utf8_lossy(&name).into_owned();
            if entry.header().entry_type() != tar::EntryType::Regular {
                return Err(damaged(format!("{shown:?} is not a regular file")));
            }
            let path = inner_path(&name)
                .ok_or_else(|| damaged(format!("{shown:?} is not a path below the folder")))?;
            (bytes, files) = (entry.size().saturating_add(bytes), files + 1);
            if bytes > limit.bytes || files > limit.files {
                let Limit { bytes, files } = limit;
                return Err(damaged(format!("it has more than {files} files or {bytes} bytes")));
            }
            allowance.set(entry.size());
            let is_executable = entry.header().mode().map_err(unreadable)? & 0o111 != 0;
            write(&mut entry, &folder.join(path), is_executable, folder).map_err(|problem| {
                match problem {
                    Problem::Archive(error) => damaged(format!("{shown:?}: {error}")),
                    Problem::Disk(error) => failed(folder)(error),
                }
            })?;
        }
    }
    // The digest includes bytes after the end of the archive.
    allowance.set(DESCRIPTION_BYTES_MAX);
    io::copy(&mut source, &mut io::sink()).map_err(unreadable)?;
    let digest = source.hasher.finalize().to_hex();
    if digest.as_str() != snapshot.digest {
        return Err(damaged(format!(
            "its content has the digest {digest}, not {}",
            snapshot.digest
        )));
    }
    Ok(())
}

/// Returns the path if it is relative and consists of plain names; `None` for any other path.
fn inner_path(name: &[u8]) -> Option<&Path> {
    let path = Path::new(OsStr::from_bytes(name));
    let is_plain = path.components().all(|component| matches!(component, Component::Normal(_)));
    (is_plain && path.file_name().is_some() && !name.contains(&0) && !name.ends_with(b"/"))
        .then_some(path)
}

enum Problem {
    Archive(io::Error),
    Disk(io::Error),
}

fn write(
    entry: &mut impl Read,
    path: &Path,
    is_executable: bool,
    folder: &Path,
) -> std::result::Result<(), Problem> {
    // The archive has contradictory names: a file twice, or a file where another name needs a folder.
    let contradiction = |error: io::Error| match error.kind() {
        io::ErrorKind::AlreadyExists
        | io::ErrorKind::NotADirectory
        | io::ErrorKind::InvalidFilename => Problem::Archive(error),
        _ => Problem::Disk(error),
    };
    let parent = path.parent().unwrap_or(folder);
    std::fs::create_dir_all(parent).map_err(contradiction)?;
    let mut file = File::create_new(path).map_err(contradiction)?;
    let mut buffer = [0; 64 * 1024];
    loop {
        let count = entry.read(&mut buffer).map_err(Problem::Archive)?;
        if count == 0 {
            break;
        }
        io::Write::write_all(&mut file, &buffer[..count]).map_err(Problem::Disk)?;
    }
    file.set_permissions(Permissions::from_mode(mode(is_executable))).map_err(Problem::Disk)
}

/// A reader that forwards only as many bytes as the next step allows, and computes their digest. So a small archive
/// cannot become large, not even in memory.
struct Bounded<'a, R> {
    inner: R,
    allowance: &'a Cell<u64>,
    hasher: Hasher,
}

impl<R: Read> Read for Bounded<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        let left = self.allowance.get().checked_sub(count as u64);
        self.allowance.set(left.ok_or_else(|| io::Error::other("a header or name is too long"))?);
        self.hasher.update(&buffer[..count]);
        Ok(count)
    }
}
