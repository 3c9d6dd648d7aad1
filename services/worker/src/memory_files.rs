//! Memory files that carry tables to Python processes, and are reused.
//!
//! A process copies a table to its own memory before it calls `run()`, or maps the file privately and gives up that mapping
//! before it answers (`arrow_tables.py`). So the file is free once the mini-batch is answered, and the next table overwrites
//! pages that exist and are mapped: the kernel takes longer to allocate, clear and free pages than it takes to copy into
//! them. Both mappings rely on a file that never shrinks: access behind its end kills a process with SIGBUS. A script can write to
//! the file, so a seal prevents that, and another one prevents further seals.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, SealFlags};

/// A file is larger than its first table by this fraction, because the next tables are seldom much larger.
const SPARE_PART: usize = 16;

#[derive(Debug)]
pub struct MemoryFile {
    pub file: Arc<OwnedFd>,
    memory: MmapRaw,
}

/// The free files. Decoding threads share them.
pub struct MemoryFiles {
    free: Mutex<FreeFiles>,
    bytes_max: u64,
}

#[derive(Default)]
struct FreeFiles {
    files: Vec<MemoryFile>,
    bytes: u64,
}

impl MemoryFiles {
    /// Creates an empty list, which keeps at most `bytes_max` of free files.
    pub fn new(bytes_max: u64) -> Self {
        Self { free: Mutex::default(), bytes_max }
    }

    /// Returns a file that begins with `pieces`. Bytes behind them are undefined.
    pub fn fill<'a>(&self, pieces: impl Iterator<Item = &'a [u8]> + Clone) -> Result<MemoryFile> {
        let bytes = pieces.clone().map(<[u8]>::len).sum();
        let mut file = match self.take() {
            Some(file) if file.memory.len() >= bytes => file,
            Some(file) => MemoryFile::with_room(file.file, bytes)?,
            None => {
                let file = create("gristmill-table", 0, SealFlags::SHRINK)
                    .context("create a memory file")?;
                MemoryFile::with_room(Arc::new(file), bytes)?
            }
        };
        file.overwrite(pieces);
        Ok(file)
    }

    /// Frees a file that no process reads any more.
    pub fn recycle(&self, file: MemoryFile) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.bytes + file.occupied() <= self.bytes_max {
            free.bytes += file.occupied();
            free.files.push(file);
        }
    }

    fn take(&self) -> Option<MemoryFile> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let file = free.files.pop()?;
        free.bytes -= file.occupied();
        Some(file)
    }
}

/// Creates a memory file for a process, with these seals and no others.
pub fn create(name: &str, bytes: u64, seals: SealFlags) -> rustix::io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&file, bytes)?;
    rustix::fs::fcntl_add_seals(&file, seals | SealFlags::SEAL)?;
    Ok(file)
}

impl MemoryFile {
    /// Enlarges a file to hold `bytes`, and allocates all its pages.
    fn with_room(file: Arc<OwnedFd>, bytes: usize) -> Result<Self> {
        let length = (bytes + bytes / SPARE_PART).max(1);
        let held = rustix::fs::fstat(&file).context("look at a memory file")?.st_size as u64;
        // A script may have enlarged it further.
        rustix::fs::ftruncate(&file, held.max(length as u64)).context("enlarge a memory file")?;
        let memory = MmapOptions::new()
            .len(length)
            .populate()
            .map_raw(&*file)
            .context("map a memory file")?;
        Ok(Self { file, memory })
    }

    fn overwrite<'a>(&mut self, pieces: impl Iterator<Item = &'a [u8]>) {
        let mut at = 0;
        for piece in pieces {
            assert!(piece.len() <= self.memory.len() - at, "there is room for all of them");
            // SAFETY: the target lies within the mapping. No other code of this process accesses the mapping, and no
            // other process reads a free file. A memory file only grows.
            unsafe {
                self.memory
                    .as_mut_ptr()
                    .add(at)
                    .copy_from_nonoverlapping(piece.as_ptr(), piece.len())
            };
            at += piece.len();
        }
    }

    /// Returns a copy of the first `bytes`.
    pub fn copy(&self, bytes: u64) -> Result<Vec<u8>> {
        let mut copy = Vec::with_capacity(usize::try_from(bytes).context("a table of this size")?);
        while (copy.len() as u64) < bytes {
            let at = copy.len() as u64;
            let read = rustix::io::pread(&self.file, rustix::buffer::spare_capacity(&mut copy), at);
            if read.context("read a memory file")? == 0 {
                break;
            }
        }
        copy.truncate(bytes as usize);
        Ok(copy)
    }

    fn occupied(&self) -> u64 {
        self.memory.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;

    use rustix::io::Errno;

    use super::*;

    fn content(file: &MemoryFile, length: usize) -> Vec<u8> {
        let opened =
            std::fs::File::open(format!("/proc/self/fd/{}", file.file.as_raw_fd())).expect("open");
        let mut bytes = vec![0; length];
        opened.read_exact_at(&mut bytes, 0).expect("read");
        bytes
    }

    fn pieces() -> impl Iterator<Item = &'static [u8]> + Clone {
        [&b"some "[..], b"", b"table"].into_iter()
    }

    #[test]
    fn returned_file_is_filled_again_from_its_beginning() {
        let files = MemoryFiles::new(1000);
        let first = files.fill(pieces()).expect("fill");
        let number = first.file.as_raw_fd();
        files.recycle(first);
        let second = files.fill([&b"other"[..]].into_iter()).expect("fill");
        assert_eq!(
            (second.file.as_raw_fd(), &content(&second, 10)[..]),
            (number, &b"othertable"[..])
        );
    }

    #[test]
    fn file_grows_for_a_larger_table() {
        let files = MemoryFiles::new(1 << 30);
        let mut number = None;
        for size in [0, 10, 100_000, 50, 104_000, 3_000_000] {
            let table: Vec<u8> = (0..size).map(|at| at as u8 ^ size as u8).collect();
            let (first, second) = table.split_at(table.len() / 3);
            let file = files.fill([first, second].into_iter()).expect("fill");
            assert_eq!(*number.get_or_insert(file.file.as_raw_fd()), file.file.as_raw_fd());
            assert!(content(&file, size) == table, "{size} bytes");
            files.recycle(file);
        }
    }

    #[test]
    fn script_cannot_take_memory_from_under_the_agent() {
        let files = MemoryFiles::new(1 << 30);
        let given = files.fill(pieces()).expect("fill");
        assert_eq!(rustix::fs::ftruncate(&given.file, 0), Err(Errno::PERM));
        assert_eq!(rustix::fs::fcntl_add_seals(&given.file, SealFlags::GROW), Err(Errno::PERM));
        rustix::fs::ftruncate(&given.file, 1 << 20).expect("a script may enlarge it");
        files.recycle(given);
        let larger = vec![b'x'; 100_000];
        let file = files.fill([&larger[..]].into_iter()).expect("fill");
        assert!(content(&file, larger.len()) == larger);
    }

    #[test]
    fn file_in_use_is_not_reused() {
        let files = MemoryFiles::new(1000);
        let first = files.fill(pieces()).expect("fill");
        let second = files.fill([&b"other"[..]].into_iter()).expect("fill");
        assert_ne!(first.file.as_raw_fd(), second.file.as_raw_fd());
        assert_eq!(content(&first, 10), b"some table");
    }

    #[test]
    fn free_files_are_limited() {
        let files = MemoryFiles::new(25);
        let taken: Vec<_> = (0..4).map(|_| files.fill(pieces()).expect("fill")).collect();
        taken.into_iter().for_each(|file| files.recycle(file));
        let free = files.free.lock().expect("lock");
        assert_eq!((free.files.len(), free.bytes), (2, 20));
    }
}
