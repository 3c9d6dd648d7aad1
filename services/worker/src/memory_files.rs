//! Memory files for tables on their way to Python processes, used again and again.
//!
//! A process copies what it gets into memory of its own before it calls `run()`. So a file is free once its mini-batch
//! is answered, and the next table overwrites pages that are there already, and mapped: the kernel takes longer to find,
//! to fill and to give back pages one by one than it takes to copy into them.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::MemfdFlags;

/// A file is this part larger than its first table: the next ones are seldom much longer.
const SPARE_PART: usize = 16;

/// One memory file.
#[derive(Debug)]
pub struct MemoryFile {
    /// The file, as it is sent to a process.
    pub file: Arc<OwnedFd>,
    /// All of it.
    memory: MmapRaw,
}

/// The files that are free. Shared by the threads that decode.
#[derive(Debug)]
pub struct MemoryFiles {
    free: Mutex<Free>,
    bytes_max: u64,
}

#[derive(Debug, Default)]
struct Free {
    files: Vec<MemoryFile>,
    bytes: u64,
}

impl MemoryFiles {
    /// Keeps free files of `bytes_max` together, at most.
    pub fn new(bytes_max: u64) -> Self {
        Self { free: Mutex::default(), bytes_max }
    }

    /// A file that begins with `pieces`, one after the other. What stands behind them means nothing.
    pub fn fill<'a>(&self, pieces: impl Iterator<Item = &'a [u8]> + Clone) -> Result<MemoryFile> {
        let bytes = pieces.clone().map(<[u8]>::len).sum();
        let mut file = match self.take() {
            Some(file) if file.memory.len() >= bytes => file,
            Some(file) => MemoryFile::with_room(file.file, bytes)?,
            None => {
                let file = rustix::fs::memfd_create("gristmill-table", MemfdFlags::CLOEXEC);
                MemoryFile::with_room(Arc::new(file.context("make a memory file")?), bytes)?
            }
        };
        file.overwrite(pieces);
        Ok(file)
    }

    /// Takes back a file that no process looks into any more.
    pub fn give_back(&self, file: MemoryFile) {
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

impl MemoryFile {
    /// Makes a file large enough for so many bytes, and takes all its pages at once.
    fn with_room(file: Arc<OwnedFd>, bytes: usize) -> Result<Self> {
        let length = (bytes + bytes / SPARE_PART).max(1);
        rustix::fs::ftruncate(&file, length as u64).context("make room in a memory file")?;
        let memory = MmapOptions::new().len(length).populate().map_raw(&*file).context("map a memory file")?;
        Ok(Self { file, memory })
    }

    fn overwrite<'a>(&mut self, pieces: impl Iterator<Item = &'a [u8]>) {
        let mut at = 0;
        for piece in pieces {
            assert!(piece.len() <= self.memory.len() - at, "there is room for all of them");
            // SAFETY: the target lies within the mapping, which nobody else of this process writes to or reads, and no
            // other process looks into a file that is free. A memory file only grows.
            unsafe { self.memory.as_mut_ptr().add(at).copy_from_nonoverlapping(piece.as_ptr(), piece.len()) };
            at += piece.len();
        }
    }

    /// Memory that it takes.
    fn occupied(&self) -> u64 {
        self.memory.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;

    use super::*;

    fn content(file: &MemoryFile, length: usize) -> Vec<u8> {
        let opened = std::fs::File::open(format!("/proc/self/fd/{}", file.file.as_raw_fd())).expect("open");
        let mut bytes = vec![0; length];
        opened.read_exact_at(&mut bytes, 0).expect("read");
        bytes
    }

    fn pieces() -> impl Iterator<Item = &'static [u8]> + Clone {
        [&b"some "[..], b"", b"table"].into_iter()
    }

    #[test]
    fn a_file_that_was_given_back_is_filled_again_from_its_beginning() {
        let files = MemoryFiles::new(1000);
        let first = files.fill(pieces()).expect("fill");
        let number = first.file.as_raw_fd();
        files.give_back(first);
        let second = files.fill([&b"other"[..]].into_iter()).expect("fill");
        assert_eq!((second.file.as_raw_fd(), &content(&second, 10)[..]), (number, &b"othertable"[..]));
    }

    #[test]
    fn a_larger_table_finds_room_in_a_file_that_was_smaller() {
        let files = MemoryFiles::new(1 << 30);
        let mut number = None;
        for size in [0, 10, 100_000, 50, 104_000, 3_000_000] {
            let table: Vec<u8> = (0..size).map(|at| at as u8 ^ size as u8).collect();
            let (first, second) = table.split_at(table.len() / 3);
            let file = files.fill([first, second].into_iter()).expect("fill");
            assert_eq!(*number.get_or_insert(file.file.as_raw_fd()), file.file.as_raw_fd());
            assert!(content(&file, size) == table, "{size} bytes");
            files.give_back(file);
        }
    }

    #[test]
    fn a_file_in_use_is_never_given_to_another() {
        let files = MemoryFiles::new(1000);
        let first = files.fill(pieces()).expect("fill");
        let second = files.fill([&b"other"[..]].into_iter()).expect("fill");
        assert_ne!(first.file.as_raw_fd(), second.file.as_raw_fd());
        assert_eq!(content(&first, 10), b"some table");
    }

    #[test]
    fn free_files_together_never_occupy_more_than_agreed() {
        let files = MemoryFiles::new(25);
        let taken: Vec<_> = (0..4).map(|_| files.fill(pieces()).expect("fill")).collect();
        taken.into_iter().for_each(|file| files.give_back(file));
        let free = files.free.lock().expect("lock");
        assert_eq!((free.files.len(), free.bytes), (2, 20));
    }
}
