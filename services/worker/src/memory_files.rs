//! Memory files for tables on their way to Python processes, used again and again.
//!
//! A process copies what it gets into memory of its own before it calls `run()`. So a file is free once its mini-batch
//! is answered, and the next table overwrites pages that are there already: the kernel takes longer to find and to
//! give back pages than to fill them.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use rustix::fs::MemfdFlags;

/// One memory file and how much memory it occupies.
#[derive(Debug)]
pub struct MemoryFile {
    /// The file, as it is sent to a process.
    pub file: Arc<OwnedFd>,
    occupied: u64,
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
    pub fn fill<'a>(&self, pieces: impl Iterator<Item = &'a [u8]>) -> Result<MemoryFile> {
        let mut file = match self.take() {
            Some(file) => file,
            None => MemoryFile::new()?,
        };
        let mut at = 0;
        for mut rest in pieces {
            while !rest.is_empty() {
                let written = rustix::io::pwrite(&file.file, rest, at).context("fill a memory file")?;
                rest = &rest[written..];
                at += written as u64;
            }
        }
        file.occupied = file.occupied.max(at);
        Ok(file)
    }

    /// Takes back a file that no process looks into any more.
    pub fn give_back(&self, file: MemoryFile) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.bytes + file.occupied <= self.bytes_max {
            free.bytes += file.occupied;
            free.files.push(file);
        }
    }

    fn take(&self) -> Option<MemoryFile> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let file = free.files.pop()?;
        free.bytes -= file.occupied;
        Some(file)
    }
}

impl MemoryFile {
    fn new() -> Result<Self> {
        let file = rustix::fs::memfd_create("gristmill-table", MemfdFlags::CLOEXEC).context("make a memory file")?;
        Ok(Self { file: Arc::new(file), occupied: 0 })
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

    fn pieces() -> impl Iterator<Item = &'static [u8]> {
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
