//! What this machine keeps for later jobs: unpacked snapshots, environments and copies of side inputs. Files that scripts have
//! left in their working directories count too ([`files`]).
//!
//! An entry is named by a digest of its content, so jobs with the same content share it, also those of other workers on
//! this machine. It appears whole or not at all:
//!
//! ```text
//! <kind>/<name>/           an entry
//! <kind>/<name>.lock       locked by its users, and exclusively by the process that creates or removes the entry; holds
//!                          the size of the entry, and its time is that of the last use
//! <kind>/<name>.partial/   an entry that is being created
//! <kind>/<name>.removed/   an entry that is being removed
//! eviction.lock            locked by the process that evicts
//! ```
//!
//! The kernel releases the locks of a killed process. The next process then removes what it has left, and ends the programs
//! that still write to it.
//! [`evict`] removes the entries that were not used for the longest time.

mod evict;
pub(crate) mod files;
#[cfg(test)]
mod tests;

use std::fs::{File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use storage::disk;
use tokio::time::sleep;

use crate::tools::kill_creators;
pub use evict::{FullDisk, Limits};

/// How long a job waits before it looks again whether another one has created an entry.
pub(crate) const TURN_EVERY: Duration = Duration::from_millis(100);
/// Marks an environment that is complete.
const COMPLETE: &str = "complete";
/// The entry, in the folder in which it is created.
const CONTENT: &str = "content";

/// The caches of this machine.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: PathBuf,
    limits: Limits,
}

/// What an entry holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// An unpacked snapshot: the scripts of a job, or packed reference data.
    Snapshot,
    /// A Python environment, which cannot be moved once it is created.
    Environment,
    /// A copy of reference data behind a URL.
    SideInput,
    /// Files that scripts have left, which no job shares.
    Files,
}

/// An entry that a job uses. Nothing removes it before this value is dropped.
#[derive(Debug)]
pub struct Used {
    path: PathBuf,
    lock: File,
}

/// What a process may do with an entry.
#[derive(Debug)]
pub(crate) enum Turn {
    /// It is there.
    Present(Used),
    /// It is not there, and this process creates it.
    Absent(Making),
    /// Another process creates or removes it.
    Taken,
}

/// An entry that this process creates. Removed again if this value is dropped before [`keep`](Self::keep).
#[derive(Debug)]
pub(crate) struct Making {
    kind: EntryKind,
    path: PathBuf,
    lock: File,
    is_kept: bool,
}

impl EntryKind {
    /// The kinds that jobs share.
    const SHARED: [Self; 3] = [Self::Snapshot, Self::Environment, Self::SideInput];

    fn folder(self) -> &'static str {
        match self {
            Self::Snapshot => "snapshots",
            Self::Environment => "environments",
            Self::SideInput => "side-inputs",
            Self::Files => "nodes",
        }
    }

    fn is_complete(self, entry: &Path) -> bool {
        match self {
            Self::Environment => entry.join(COMPLETE).exists(),
            Self::Snapshot | Self::SideInput | Self::Files => entry.is_dir(),
        }
    }
}

impl Used {
    /// Returns the folder of the entry.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Used {
    fn drop(&mut self) {
        // At worst it counts as older than it is.
        let _ = self.lock.set_modified(SystemTime::now());
    }
}

impl Cache {
    /// Opens the caches in a folder. Touches nothing.
    pub fn new(folder: PathBuf, limits: Limits) -> Self {
        Self { folder, limits }
    }

    /// Returns the path of an entry, which need not exist.
    pub(crate) fn entry(&self, kind: EntryKind, name: &str) -> PathBuf {
        self.folder.join(kind.folder()).join(name)
    }

    /// Returns where `make` of [`get`](Self::get) creates a folder.
    pub(crate) fn content(&self, kind: EntryKind, name: &str) -> PathBuf {
        beside(&self.entry(kind, name), ".partial").join(CONTENT)
    }

    /// Returns an entry, which `make` creates at [`content`](Self::content) if it is missing. `bytes`: what that takes.
    pub(crate) async fn get(
        &self,
        kind: EntryKind,
        name: &str,
        bytes: u64,
        make: impl Future<Output = Result<()>>,
    ) -> Result<Used> {
        let making = match self.turn(kind, name).await? {
            Ok(used) => return Ok(used),
            Err(making) => making,
        };
        let cache = self.clone();
        let room = tokio::task::spawn_blocking(move || cache.make_room(bytes));
        room.await.context("evicting panicked")??;
        make.await?;
        tokio::task::spawn_blocking(move || making.keep()).await.context("keeping an entry panicked")??;
        match self.turn(kind, name).await? {
            Ok(used) => Ok(used),
            Err(_) => bail!("{} was removed again; try again later", self.entry(kind, name).display()),
        }
    }

    /// Names the disk as the cause of an error, in one line.
    pub(crate) fn explain(&self, error: anyhow::Error) -> anyhow::Error {
        match self.full_disk(0) {
            Ok(full) if is_full(&error) && !error.is::<FullDisk>() => {
                tracing::warn!("the disk of the caches is full: {error:#}");
                full.into()
            }
            _ => error,
        }
    }

    async fn turn(&self, kind: EntryKind, name: &str) -> Result<std::result::Result<Used, Making>> {
        loop {
            match self.take(kind, name)? {
                Turn::Present(used) => return Ok(Ok(used)),
                Turn::Absent(making) => return Ok(Err(making)),
                Turn::Taken => sleep(TURN_EVERY).await,
            }
        }
    }

    /// Takes an entry, or the right to create it.
    pub(crate) fn take(&self, kind: EntryKind, name: &str) -> Result<Turn> {
        let path = self.entry(kind, name);
        let lock_path = beside(&path, ".lock");
        let folder = self.folder.join(kind.folder());
        std::fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
        let failed = || format!("lock {}", lock_path.display());
        let lock = File::options().create(true).truncate(false).read(true).write(true).open(&lock_path);
        let lock = lock.with_context(failed)?;
        if !is_locked(lock.try_lock_shared()).with_context(failed)? {
            return Ok(Turn::Taken);
        }
        if kind.is_complete(&path) && is_at(&lock, &lock_path) {
            // Another principal may own the file.
            let _ = lock.set_modified(SystemTime::now());
            return Ok(Turn::Present(Used { path, lock }));
        }
        lock.unlock().with_context(failed)?;
        if !is_locked(lock.try_lock()).with_context(failed)? || !is_at(&lock, &lock_path) || kind.is_complete(&path) {
            return Ok(Turn::Taken);
        }
        let making = Making { kind, path, lock, is_kept: false };
        if kind == EntryKind::Environment {
            kill_creators(&making.path);
        }
        making.clear().with_context(|| format!("remove the rest of {}", making.path.display()))?;
        let partial = beside(&making.path, ".partial");
        std::fs::create_dir(&partial).with_context(|| format!("create {}", partial.display()))?;
        Ok(Turn::Absent(making))
    }
}

impl Making {
    /// Keeps what was created. It is never checked again, so it must survive a power cut.
    pub(crate) fn keep(mut self) -> Result<()> {
        let partial = beside(&self.path, ".partial");
        let made = if self.kind == EntryKind::Environment { self.path.clone() } else { partial.join(CONTENT) };
        let failed = || format!("write {}", self.path.display());
        disk::sync_file_system(&made).with_context(failed)?;
        let bytes = evict::bytes_on_disk(&made);
        put_bytes(&mut self.lock, bytes).with_context(failed)?;
        match self.kind {
            EntryKind::Environment => drop(File::create(made.join(COMPLETE)).with_context(failed)?),
            EntryKind::Snapshot | EntryKind::SideInput | EntryKind::Files => {
                std::fs::rename(&made, &self.path).with_context(failed)?
            }
        }
        self.is_kept = true;
        Ok(())
    }

    /// Removes what is there of the entry.
    fn clear(&self) -> io::Result<()> {
        [&self.path, &beside(&self.path, ".partial"), &beside(&self.path, ".removed")]
            .into_iter()
            .try_for_each(|path| remove(path))
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        let cleared = match self.is_kept {
            true => remove(&beside(&self.path, ".partial")),
            false => self.clear(),
        };
        if let Err(error) = cleared {
            let path = self.path.display();
            tracing::warn!("cannot remove the rest of {path}, which the next job does: {error}");
        }
    }
}

/// Whether a disk without room has caused an error, also in a program that has only printed it.
pub(crate) fn is_full(error: &anyhow::Error) -> bool {
    let text = format!("{error:#}");
    error.is::<FullDisk>() || ["No space left on device", "Disk quota exceeded"].iter().any(|said| text.contains(said))
}

/// Returns the size that the lock of an entry names.
fn bytes_in(lock: &mut File) -> Option<u64> {
    let mut text = String::new();
    lock.rewind().ok()?;
    lock.read_to_string(&mut text).ok()?;
    text.parse().ok()
}

/// Writes the size of an entry into its lock.
fn put_bytes(lock: &mut File, bytes: u64) -> io::Result<()> {
    lock.set_len(0)?;
    lock.rewind()?;
    lock.write_all(bytes.to_string().as_bytes())
}

fn is_locked(locked: Result<(), TryLockError>) -> io::Result<bool> {
    match locked {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Whether an open file is still the one at `path`, which another process may have replaced.
fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), path.metadata()) {
        (Ok(open), Ok(there)) => (open.dev(), open.ino()) == (there.dev(), there.ino()),
        _ => false,
    }
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

fn remove(path: &Path) -> io::Result<()> {
    let removed = match path.symlink_metadata() {
        Ok(metadata) if metadata.is_dir() => std::fs::remove_dir_all(path),
        Ok(_) => std::fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
