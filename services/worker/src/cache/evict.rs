//! Which entries leave the caches, and when: those that were not used for long, and those that were not used for the
//! longest time where the caches are too large or the disk is nearly full. An entry that a job uses stays.

use std::fmt;
use std::fs::{DirEntry, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use protocol::memory as size;
use storage::disk::remove_all;
use telemetry::metrics;
use telemetry::metrics::CAUSE;

use super::{Cache, EntryKind, beside, complete, files, is_at, is_locked, open_lock};

const GB: u64 = 1 << 30;
/// The default of [`Limits::bytes`]: at most this, and a part of the file system.
const BYTES: u64 = 20 * GB;
const PART_OF_DISK: u64 = 4;
/// The default of [`Limits::age`].
const AGE: Duration = Duration::from_secs(30 * 24 * 3600);
/// The free space below which every unused entry goes: at most this, and a part of the file system.
const FREE_MIN: u64 = 2 * GB;
const FREE_PART_OF_DISK: u64 = 20;

/// How much the caches may hold, and for how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// The size of all entries together; `None`: any.
    pub bytes: Option<u64>,
    /// Time since the last use; `None`: any.
    pub age: Option<Duration>,
    /// Free space of the disk that entries must not take, and give back.
    pub free_min: u64,
}

impl Limits {
    /// Returns the limits for caches in a folder, with defaults that depend on its file system.
    pub fn of(folder: &Path, bytes: Option<u64>, age: Option<Duration>) -> Self {
        let total = Disk::of(folder).map_or(0, |disk| disk.total);
        Self {
            bytes: bytes.or(Some(if total == 0 { BYTES } else { BYTES.min(total / PART_OF_DISK) })),
            age: age.or(Some(AGE)),
            free_min: FREE_MIN.min(total / FREE_PART_OF_DISK),
        }
    }
}

/// The file system of the caches.
#[derive(Clone, Copy, Debug)]
struct Disk {
    total: u64,
    free: u64,
}

impl Disk {
    fn of(folder: &Path) -> io::Result<Self> {
        let there = folder.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("/"));
        let found = rustix::fs::statvfs(there)?;
        Ok(Self { total: found.f_blocks * found.f_frsize, free: found.f_bavail * found.f_frsize })
    }
}

/// A disk without room for what a job needs. Its text is one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FullDisk {
    folder: PathBuf,
    free: u64,
    needed: u64,
    held: u64,
    used: u64,
}

impl std::error::Error for FullDisk {}

impl fmt::Display for FullDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { folder, free, needed, held, used } = self;
        write!(f, "the disk of {} is full: {} free", folder.display(), size(*free))?;
        if *needed > 0 {
            write!(f, ", {} needed", size(*needed))?;
        }
        write!(
            f,
            ", and jobs use {} of the {} in its caches; free space there, ",
            size(*used),
            size(*held)
        )?;
        f.write_str("or set GRISTMILL_HOME of the worker to a folder on a larger disk")
    }
}

/// Why an entry goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EvictionReason {
    Age,
    Size,
    Disk,
}

impl EvictionReason {
    fn word(self) -> &'static str {
        match self {
            Self::Age => "age",
            Self::Size => "size",
            Self::Disk => "disk",
        }
    }
}

/// An entry, as the decision sees it.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) bytes: u64,
    pub(super) used_at: SystemTime,
    pub(super) in_use: bool,
}

/// Returns the entries that go, in this order, so that `wanted` bytes have room. `free`: free space of the disk.
pub(super) fn evictions(
    entries: &[Candidate],
    limits: Limits,
    wanted: u64,
    free: u64,
    now: SystemTime,
) -> Vec<(usize, EvictionReason)> {
    let mut unused: Vec<usize> =
        (0..entries.len()).filter(|index| !entries[*index].in_use).collect();
    unused.sort_by_key(|index| entries[*index].used_at);
    let mut held = entries.iter().map(|entry| entry.bytes).sum::<u64>().saturating_add(wanted);
    let (mut free, needed) = (free, limits.free_min.saturating_add(wanted));
    let mut going = Vec::new();
    for index in unused {
        let entry = &entries[index];
        let age = now.duration_since(entry.used_at).unwrap_or_default();
        let why = match limits {
            Limits { age: Some(age_max), .. } if age > age_max => EvictionReason::Age,
            Limits { bytes: Some(bytes_max), .. } if held > bytes_max => EvictionReason::Size,
            _ if free < needed => EvictionReason::Disk,
            // The others were used later.
            _ => break,
        };
        held -= entry.bytes;
        free = free.saturating_add(entry.bytes);
        going.push((index, why));
    }
    going
}

/// What is in the caches.
#[derive(Debug, Default)]
struct Contents {
    paths: Vec<(EntryKind, PathBuf)>,
    entries: Vec<Candidate>,
}

impl Contents {
    fn bytes(&self) -> u64 {
        self.entries.iter().map(|entry| entry.bytes).sum()
    }
}

impl Cache {
    /// Evicts what is too old or too much, and removes what killed processes have left. Blocks.
    pub fn tidy(&self) -> Result<()> {
        self.evict(self.limits, 0).map(drop)
    }

    /// Evicts every entry that no job uses. Blocks.
    pub(crate) fn empty(&self) -> Result<()> {
        let all = Limits { bytes: Some(0), ..self.limits };
        self.evict(all, 0).map(drop)
    }

    /// Makes room for an entry. Fails with [`FullDisk`] if there is none.
    pub(crate) fn make_room(&self, bytes: u64) -> Result<()> {
        // Without limits nothing is ever evicted.
        if self.limits == Limits::default() {
            return Ok(());
        }
        self.evict(self.limits, bytes)?;
        let full = self.full_disk(bytes)?;
        if bytes > 0 && full.free < bytes { Err(full.into()) } else { Ok(()) }
    }

    /// Returns the state of the disk as an error.
    pub(super) fn full_disk(&self, needed: u64) -> Result<FullDisk> {
        let found = self.find()?;
        let used = found.entries.iter().filter(|entry| entry.in_use).map(|entry| entry.bytes).sum();
        let free = Disk::of(&self.folder)?.free;
        Ok(FullDisk { folder: self.folder.clone(), free, needed, held: found.bytes(), used })
    }

    fn evict(&self, limits: Limits, wanted: u64) -> Result<()> {
        std::fs::create_dir_all(&self.folder)
            .with_context(|| format!("create {}", self.folder.display()))?;
        let failed = || format!("lock the caches in {}", self.folder.display());
        let turn = self.eviction_lock().with_context(failed)?;
        turn.lock().with_context(failed)?;
        let found = self.find().context("look at the caches")?;
        let free = Disk::of(&self.folder).context("look at the disk of the caches")?.free;
        let mut held = found.bytes();
        for (index, why) in evictions(&found.entries, limits, wanted, free, SystemTime::now()) {
            let ((kind, path), entry) = (&found.paths[index], &found.entries[index]);
            let removed = match kind {
                EntryKind::Files => files::remove_unused(path),
                _ => remove_unused(path, entry.used_at),
            };
            match removed {
                Ok(true) => {
                    held -= entry.bytes;
                    metrics().cache_evictions.get_or_create(&[(CAUSE, why.word())]).inc();
                    tracing::info!("{}", evicted(*kind, path, entry, why, limits, free));
                }
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!("cannot evict {} from the caches: {error}", path.display())
                }
            }
        }
        metrics().cache_bytes.set(i64::try_from(held).unwrap_or(i64::MAX));
        Ok(())
    }

    /// Looks at every entry, and removes what killed processes have left of others.
    fn find(&self) -> Result<Contents> {
        let mut found = Contents::default();
        for kind in EntryKind::SHARED {
            let folder = self.folder.join(kind.folder());
            let entries: Vec<DirEntry> =
                std::fs::read_dir(&folder).into_iter().flatten().flatten().collect();
            let mut names: Vec<String> = entries
                .iter()
                .filter_map(|entry| Some(entry.file_name().to_str()?.split('.').next()?.to_owned()))
                .filter(|name| !name.is_empty())
                .collect();
            names.sort();
            names.dedup();
            for name in names {
                let path = folder.join(name);
                match look(&path) {
                    Ok(Some(entry)) => {
                        found.paths.push((kind, path));
                        found.entries.push(entry);
                    }
                    Ok(None) => {}
                    Err(error) => {
                        tracing::warn!("cannot examine {} in the caches: {error}", path.display())
                    }
                }
            }
        }
        for (path, entry) in files::find(&self.folder.join(EntryKind::Files.folder()), self.limits)
        {
            found.paths.push((EntryKind::Files, path));
            found.entries.push(entry);
        }
        Ok(found)
    }
}

/// Returns an entry; `None`: it is not there, or not complete. Removes what a killed process has left of it.
fn look(path: &Path) -> io::Result<Option<Candidate>> {
    let lock_path = beside(path, ".lock");
    let mut lock = open_lock(&lock_path)?;
    let in_use = !is_locked(lock.try_lock())?;
    let record = complete(path, &mut lock);
    if !in_use && is_at(&lock, &lock_path) {
        remove_all(&beside(path, ".partial"))?;
        remove_all(&beside(path, ".removed"))?;
        if record.is_none() {
            remove_all(path)?;
            remove_all(&lock_path)?;
        }
    }
    let used_at = lock.metadata()?.modified()?;
    Ok(record.map(|record| Candidate { bytes: record.bytes, used_at, in_use }))
}

/// Removes an entry, unless a job uses it or has used it since `used_at`.
fn remove_unused(path: &Path, used_at: SystemTime) -> io::Result<bool> {
    let lock_path = beside(path, ".lock");
    let lock = File::open(&lock_path)?;
    if !is_locked(lock.try_lock())?
        || !is_at(&lock, &lock_path)
        || lock.metadata()?.modified()? > used_at
    {
        return Ok(false);
    }
    let removed = beside(path, ".removed");
    // It disappears at one instant: whatever happens now, no job finds half of it.
    std::fs::rename(path, &removed)?;
    remove_all(&removed)?;
    remove_all(&lock_path)?;
    Ok(true)
}

/// Returns the line of the log about an eviction.
fn evicted(
    kind: EntryKind,
    path: &Path,
    entry: &Candidate,
    why: EvictionReason,
    limits: Limits,
    free: u64,
) -> String {
    let what = match kind {
        EntryKind::Snapshot => "snapshot",
        EntryKind::Environment => "environment",
        EntryKind::SideInput => "copy of a side input",
        EntryKind::Files => "files of a script in",
    };
    let unused = SystemTime::now().duration_since(entry.used_at).unwrap_or_default().as_secs();
    let why = match why {
        EvictionReason::Age => format!("no job has used it for {} hours", unused / 3600),
        EvictionReason::Size => {
            format!("the caches would exceed {}", size(limits.bytes.unwrap_or_default()))
        }
        EvictionReason::Disk => format!("only {} of the disk is free", size(free)),
    };
    format!(
        "evicted the {what} {} ({}, last used {unused} s ago) from the caches: {why}",
        path.display(),
        size(entry.bytes)
    )
}

/// Returns what a folder takes on its disk. Does not follow links.
pub(super) fn bytes_on_disk(path: &Path) -> u64 {
    let (mut bytes, mut rest) = (0, vec![path.to_owned()]);
    while let Some(path) = rest.pop() {
        let Ok(metadata) = path.symlink_metadata() else { continue };
        bytes += metadata.blocks() * 512;
        if metadata.is_dir() {
            rest.extend(
                std::fs::read_dir(&path).into_iter().flatten().flatten().map(|entry| entry.path()),
            );
        }
    }
    bytes
}
