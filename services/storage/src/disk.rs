//! Forces files to a local disk, and removes them. Syncing a file forces its content to disk; syncing its folder forces
//! its name.

use std::fs::{File, Permissions};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// Forces a file, or the names in a folder, to disk.
pub fn sync(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Forces to disk everything that the file system of a folder holds in memory: one call for many files. Callers that
/// trust a file because it exists call this before the file gets its name.
pub fn sync_file_system(folder: &Path) -> io::Result<()> {
    Ok(rustix::fs::syncfs(File::open(folder)?)?)
}

/// Starts writing a range of bytes of a file to disk without waiting for it, so that a later sync takes less time.
/// After a failure, that sync only takes longer.
pub fn begin_writing(file: &File, range: Range<u64>) -> io::Result<()> {
    let offset = |bytes: u64| i64::try_from(bytes).map_err(io::Error::other);
    let (from, bytes) = (offset(range.start)?, offset(range.end - range.start)?);
    // SAFETY: the descriptor is open for as long as `file` is borrowed, and no memory is passed.
    match unsafe {
        libc::sync_file_range(file.as_raw_fd(), from, bytes, libc::SYNC_FILE_RANGE_WRITE)
    } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Creates a folder and its missing parents, and forces them to disk.
pub fn create_folder(path: &Path) -> io::Result<()> {
    let missing = path.ancestors().take_while(|folder| !folder.exists()).count();
    std::fs::create_dir_all(path)?;
    path.ancestors().skip(1).take(missing).try_for_each(|parent| {
        match parent.as_os_str().is_empty() {
            true => sync(Path::new(".")),
            false => sync(parent),
        }
    })
}

/// Runs a function that blocks on a disk, which may be that of another machine, on a thread for blocking work.
pub(crate) async fn blocking<T: Send + 'static>(
    function: impl FnOnce() -> T + Send + 'static,
) -> T {
    match tokio::task::spawn_blocking(function).await {
        Ok(value) => value,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// Works like [`remove_all`], without blocking.
pub(crate) async fn remove_folder(folder: PathBuf) -> Result<()> {
    blocking(move || unless_absent(remove_all(&folder), &folder)).await
}

/// Converts the result of a removal. Ignores an error that says that nothing exists at the path.
pub(crate) fn unless_absent(removed: io::Result<()>, path: &Path) -> Result<()> {
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::unavailable(&path.display().to_string(), error))
        }
        _ => Ok(()),
    }
}

/// Removes a file, or a folder with everything in it, even if folders in it are read-only. Does nothing if it is
/// absent.
pub fn remove_all(path: &Path) -> io::Result<()> {
    let remove = || match path.symlink_metadata()?.is_dir() {
        true => std::fs::remove_dir_all(path),
        false => std::fs::remove_file(path),
    };
    let removed = match remove() {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            make_writable(path).and_then(|()| remove())
        }
        removed => removed,
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Makes the folders of a tree writable for their owner.
fn make_writable(path: &Path) -> io::Result<()> {
    if path.symlink_metadata()?.is_dir() {
        std::fs::set_permissions(path, Permissions::from_mode(0o700))?;
        for entry in std::fs::read_dir(path)? {
            make_writable(&entry?.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writing_starts_for_files_only() {
        let file = tempfile::tempfile().expect("temporary file");
        file.set_len(100_000).expect("writable");
        begin_writing(&file, 4096..100_000).expect("a file on a disk");
        begin_writing(&file, 100_000..200_000).expect("nothing to do beyond its end");
        let (pipe, _) = std::io::pipe().expect("a pipe");
        begin_writing(&File::from(std::os::fd::OwnedFd::from(pipe)), 0..1).expect_err("no disk");
    }

    #[test]
    fn read_only_tree_is_removed() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let (tree, outside) = (folder.path().join("tree"), folder.path().join("outside"));
        std::fs::create_dir_all(tree.join("a/b")).expect("writable");
        std::fs::create_dir(&outside).expect("writable");
        std::fs::write(tree.join("a/b/file"), "").expect("writable");
        std::os::unix::fs::symlink(&outside, tree.join("link")).expect("writable");
        for name in ["a/b", "a", ""] {
            std::fs::set_permissions(tree.join(name), Permissions::from_mode(0o555))
                .expect("own folder");
        }
        remove_all(&tree).expect("own files");
        assert!(!tree.exists() && outside.exists());
        remove_all(&tree).expect("a missing tree is no error");
    }

    #[test]
    fn folder_is_created_with_its_parents() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let deep = folder.path().join("a/b/c");
        create_folder(&deep).expect("writable");
        create_folder(&deep).expect("it exists");
        assert!(deep.is_dir());
        std::fs::write(folder.path().join("file"), "").expect("writable");
        create_folder(&folder.path().join("file/a")).expect_err("a file is in the way");
    }
}
