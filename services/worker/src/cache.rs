//! The caches of this machine: unpacked snapshots, environments and copies of side inputs, for
//! later jobs. Files that scripts have left in their working directories count too ([`files`]).
//!
//! An entry is named by a digest of its content, so jobs with the same content share it, also those of other workers on
//! this machine. It appears whole or not at all:
//!
//! ```text
//! <kind>/<name>/           an entry
//! <kind>/<name>.lock       locked by its users, and exclusively by the process that creates or removes the entry; holds
//!                          the size and the seal of a complete entry, and its time is that of the last use
//! <kind>/<name>.partial/   an entry that is being created
//! <kind>/<name>.removed/   an entry that is being removed
//! eviction.lock            locked by the process that evicts
//! ```
//!
//! The kernel releases the locks of a killed process. The next process then removes its partial
//! entry, and ends the programs that still write to it. [`evict`] removes the entries that were not
//! used for the longest time.
//!
//! Jobs of different people share the entries of a worker, so these are read-only, and the worker checks an entry whenever a
//! job begins to use it ([`Cache::guarded`]). It compares the seal ([`seal`]), and reads a snapshot whole to compare its digest
//! with its name; environments and copies of side inputs may have gigabytes. A changed entry is removed, and made anew.

mod evict;
pub(crate) mod files;
mod seal;
#[cfg(test)]
mod tests;

use std::fmt;
use std::fs::{File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use storage::disk::{self, remove_all};
use tokio::time::sleep;

use crate::tools::kill_creators;
pub use evict::{FullDisk, Limits};

/// How long a job waits before it looks again whether another one has created an entry.
pub(crate) const ACQUIRE_EVERY: Duration = Duration::from_millis(100);
/// The entry, in the folder in which it is created.
const CONTENT: &str = "content";

/// The caches of this machine.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: PathBuf,
    limits: Limits,
    /// Whether entries are read-only, and checked.
    is_guarded: bool,
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
pub struct PinnedEntry {
    path: PathBuf,
    lock: File,
}

/// The result of a request for an entry.
#[derive(Debug)]
pub(crate) enum Acquisition {
    /// The entry exists.
    Present(PinnedEntry),
    /// The entry is missing, and this process creates it.
    Absent(NewEntry),
    /// Another process creates or removes it.
    Taken,
}

/// An entry that this process creates. Removed again if this value is dropped before [`keep`](Self::keep).
#[derive(Debug)]
pub(crate) struct NewEntry {
    kind: EntryKind,
    path: PathBuf,
    lock: File,
    is_guarded: bool,
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

    /// Whether an entry is unchanged since its creation. Blocks.
    fn is_intact(self, entry: &Path, seal: &str) -> bool {
        // A script can also make files unreadable.
        let is_sealed = seal::of(entry).is_ok_and(|now| now == seal);
        let is_content = || match self {
            Self::Snapshot => storage::digest_of(entry)
                .is_ok_and(|now| now.is_some_and(|digest| entry.ends_with(digest))),
            Self::Environment | Self::SideInput | Self::Files => true,
        };
        is_sealed && is_content()
    }
}

impl PinnedEntry {
    /// Returns the folder of the entry.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for PinnedEntry {
    fn drop(&mut self) {
        // At worst it counts as older than it is.
        let _ = self.lock.set_modified(SystemTime::now());
    }
}

impl Cache {
    /// Opens the caches of one person in a folder. Touches nothing.
    pub fn new(folder: PathBuf, limits: Limits) -> Self {
        Self { folder, limits, is_guarded: false }
    }

    /// Protects the entries from the scripts that use them: the caches of jobs of several people.
    pub(crate) fn guarded(self) -> Self {
        Self { is_guarded: true, ..self }
    }

    /// Returns the folders of all kinds of entries, in the folder of the caches.
    pub(crate) fn folders(folder: &Path) -> impl Iterator<Item = PathBuf> {
        EntryKind::SHARED
            .into_iter()
            .chain([EntryKind::Files])
            .map(|kind| folder.join(kind.folder()))
    }

    pub(crate) fn is_guarded(&self) -> bool {
        self.is_guarded
    }

    /// Returns the path of an entry, which need not exist.
    pub(crate) fn entry(&self, kind: EntryKind, name: &str) -> PathBuf {
        self.folder.join(kind.folder()).join(name)
    }

    /// Returns where `make` of [`get`](Self::get) creates a folder.
    pub(crate) fn content(&self, kind: EntryKind, name: &str) -> PathBuf {
        beside(&self.entry(kind, name), ".partial").join(CONTENT)
    }

    /// Returns an entry, which `make` creates at [`content`](Self::content) if it is missing.
    /// `bytes`: the disk space that this takes.
    pub(crate) async fn get(
        &self,
        kind: EntryKind,
        name: &str,
        bytes: u64,
        make: impl Future<Output = Result<()>>,
    ) -> Result<PinnedEntry> {
        let making = loop {
            let (cache, entry) = (self.clone(), name.to_owned());
            let taken = tokio::task::spawn_blocking(move || cache.take(kind, &entry)).await;
            match taken.context("examining an entry panicked")?? {
                Acquisition::Present(used) => return Ok(used),
                Acquisition::Absent(making) => break making,
                Acquisition::Taken => sleep(ACQUIRE_EVERY).await,
            }
        };
        let cache = self.clone();
        let room = tokio::task::spawn_blocking(move || cache.make_room(bytes));
        room.await.context("evicting panicked")??;
        make.await?;
        tokio::task::spawn_blocking(move || making.keep())
            .await
            .context("keeping an entry panicked")?
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

    /// Takes an entry, or the right to create it. Blocks while it checks the entry.
    pub(crate) fn take(&self, kind: EntryKind, name: &str) -> Result<Acquisition> {
        let path = self.entry(kind, name);
        let lock_path = beside(&path, ".lock");
        let folder = self.folder.join(kind.folder());
        std::fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
        let failed = || format!("lock {}", lock_path.display());
        let mut lock = open_lock(&lock_path).with_context(failed)?;
        if !is_locked(lock.try_lock_shared()).with_context(failed)? {
            return Ok(Acquisition::Taken);
        }
        if let Some(record) = complete(&path, &mut lock)
            && is_at(&lock, &lock_path)
        {
            if self.is_guarded && !kind.is_intact(&path, &record.seal) {
                self.discard(&path, &lock).with_context(|| format!("remove {}", path.display()))?;
                return Ok(Acquisition::Taken);
            }
            // Another principal may own the file.
            let _ = lock.set_modified(SystemTime::now());
            return Ok(Acquisition::Present(PinnedEntry { path, lock }));
        }
        lock.unlock().with_context(failed)?;
        if !is_locked(lock.try_lock()).with_context(failed)?
            || !is_at(&lock, &lock_path)
            || complete(&path, &mut lock).is_some()
        {
            return Ok(Acquisition::Taken);
        }
        let making = NewEntry { kind, path, lock, is_guarded: self.is_guarded, is_kept: false };
        if kind == EntryKind::Environment {
            kill_creators(&making.path);
        }
        making.clear().with_context(|| format!("remove the rest of {}", making.path.display()))?;
        let partial = beside(&making.path, ".partial");
        std::fs::create_dir(&partial).with_context(|| format!("create {}", partial.display()))?;
        Ok(Acquisition::Absent(making))
    }

    /// Removes an entry that was changed, even if other jobs use it: they find the new one under the same path. `lock`: its
    /// lock, shared.
    fn discard(&self, path: &Path, lock: &File) -> io::Result<()> {
        let eviction = self.eviction_lock()?;
        eviction.lock()?;
        let lock_path = beside(path, ".lock");
        if is_at(lock, &lock_path) {
            tracing::warn!(
                "{} has changed since it was made, although it is read-only: a script or a person has written to it. It is \
                 removed and made anew",
                path.display()
            );
            let removed = beside(path, ".removed");
            remove_all(&removed)?;
            std::fs::rename(path, &removed)?;
            // The next process makes a new lock.
            remove_all(&lock_path)?;
            remove_all(&removed)?;
        }
        Ok(())
    }

    /// Opens the lock of the process that evicts.
    fn eviction_lock(&self) -> io::Result<File> {
        open_lock(&self.folder.join("eviction.lock"))
    }
}

impl NewEntry {
    /// Completes the new entry, and forces it to disk: nothing may check it after a power cut.
    pub(crate) fn keep(mut self) -> Result<PinnedEntry> {
        let partial = beside(&self.path, ".partial");
        let made = if self.kind == EntryKind::Environment {
            self.path.clone()
        } else {
            partial.join(CONTENT)
        };
        let failed = || format!("write {}", self.path.display());
        disk::sync_file_system(&made).with_context(failed)?;
        let bytes = evict::bytes_on_disk(&made);
        if self.kind != EntryKind::Environment {
            std::fs::rename(&made, &self.path).with_context(failed)?;
        }
        if self.is_guarded {
            seal::make_read_only(&self.path).with_context(failed)?;
        }
        let record = Record { bytes, seal: seal::of(&self.path).with_context(failed)? };
        put_text(&mut self.lock, &record.to_string()).with_context(failed)?;
        self.is_kept = true;
        let lock = self.lock.try_clone().with_context(failed)?;
        // The kernel may let another process remove the entry between the two kinds of locks.
        lock.lock_shared().with_context(failed)?;
        if !is_at(&lock, &beside(&self.path, ".lock")) {
            bail!("{} was removed again; try again later", self.path.display());
        }
        Ok(PinnedEntry { path: self.path.clone(), lock })
    }

    /// Removes the partial entry.
    fn clear(&self) -> io::Result<()> {
        [&self.path, &beside(&self.path, ".partial"), &beside(&self.path, ".removed")]
            .into_iter()
            .try_for_each(|path| remove_all(path))
    }
}

impl Drop for NewEntry {
    fn drop(&mut self) {
        let cleared = match self.is_kept {
            true => remove_all(&beside(&self.path, ".partial")),
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
    error.is::<FullDisk>()
        || ["No space left on device", "Disk quota exceeded"].iter().any(|said| text.contains(said))
}

/// The content of the lock file of a complete entry.
#[derive(Debug)]
struct Record {
    bytes: u64,
    seal: String,
}

impl fmt::Display for Record {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}", self.bytes, self.seal)
    }
}

/// Returns the record in the lock file of an entry; `None`: the entry is missing or incomplete.
fn complete(path: &Path, lock: &mut File) -> Option<Record> {
    let text = text_in(lock)?;
    let (bytes, seal) = text.split_once(' ')?;
    path.is_dir().then_some(Record { bytes: bytes.parse().ok()?, seal: seal.to_owned() })
}

fn text_in(file: &mut File) -> Option<String> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.read_to_string(&mut text).ok()?;
    Some(text)
}

fn put_text(file: &mut File, text: &str) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(text.as_bytes())
}

/// Opens a lock, or creates it. Scripts cannot open it, so they cannot hold it.
fn open_lock(path: &Path) -> io::Result<File> {
    File::options().create(true).truncate(false).read(true).write(true).mode(0o600).open(path)
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
