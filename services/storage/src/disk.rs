//! Forcing names to a local disk. What a file holds is on the disk once the file is synced; that it is there, once its
//! folder is.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::Path;

/// Forces a file, or what a folder lists, to disk.
pub fn sync(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Forces everything to disk that the file system of a folder holds in memory: one call for many files. What is kept for
/// later and believed because it is there is forced so before it gets its name.
pub fn sync_file_system(folder: &Path) -> io::Result<()> {
    Ok(rustix::fs::syncfs(File::open(folder)?)?)
}

/// Lets the disk begin to write a range of bytes of a file, and does not wait for it: what is forced to disk later takes
/// less time then. Where it cannot be done nothing is lost but time.
pub fn begin_writing(file: &File, range: Range<u64>) -> io::Result<()> {
    let offset = |bytes: u64| i64::try_from(bytes).map_err(io::Error::other);
    let (from, bytes) = (offset(range.start)?, offset(range.end - range.start)?);
    // SAFETY: the descriptor is open for as long as `file` is borrowed, and no memory is passed.
    match unsafe { libc::sync_file_range(file.as_raw_fd(), from, bytes, libc::SYNC_FILE_RANGE_WRITE) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes a folder and those above it. What was made is on the disk when this returns.
pub fn create_folder(path: &Path) -> io::Result<()> {
    let missing = path.ancestors().take_while(|folder| !folder.exists()).count();
    std::fs::create_dir_all(path)?;
    path.ancestors().skip(1).take(missing).try_for_each(|listing| match listing.as_os_str().is_empty() {
        true => sync(Path::new(".")),
        false => sync(listing),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_can_be_on_its_way_to_the_disk_and_a_pipe_cannot() {
        let file = tempfile::tempfile().expect("temporary file");
        file.set_len(100_000).expect("writable");
        begin_writing(&file, 4096..100_000).expect("a file on a disk");
        begin_writing(&file, 100_000..200_000).expect("beyond its end there is nothing to do");
        let (pipe, _) = std::io::pipe().expect("a pipe");
        begin_writing(&File::from(std::os::fd::OwnedFd::from(pipe)), 0..1).expect_err("no disk");
    }

    #[test]
    fn a_folder_is_made_with_those_above_it() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let deep = folder.path().join("a/b/c");
        create_folder(&deep).expect("writable");
        create_folder(&deep).expect("there already");
        assert!(deep.is_dir());
        std::fs::write(folder.path().join("file"), "").expect("writable");
        create_folder(&folder.path().join("file/a")).expect_err("a file is in the way");
    }
}
