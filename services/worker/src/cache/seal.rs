//! Makes an entry read-only, and detects its changes without reading it.
//!
//! The seal of an entry is a digest of what the file system says of everything in it: names, kinds, modes, owners, inodes,
//! sizes, times and the targets of links. The kernel sets the time of the last change (`ctime`) at every write, and only root
//! can turn the clock back. So a process without the rights of root cannot change an entry and keep its seal.

use std::fs::Permissions;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use blake3::Hasher;

/// Bits of permissions.
const READ_ALL: u32 = 0o444;
const EXECUTE_ALL: u32 = 0o111;

/// Takes away every right to write. All users may read: a script may run as another user than the worker.
pub(super) fn make_read_only(path: &Path) -> io::Result<()> {
    let metadata = path.symlink_metadata()?;
    if metadata.is_symlink() {
        return Ok(());
    }
    if metadata.is_dir() {
        for entry in std::fs::read_dir(path)? {
            make_read_only(&entry?.path())?;
        }
    }
    let executes = metadata.is_dir() || metadata.mode() & EXECUTE_ALL != 0;
    std::fs::set_permissions(
        path,
        Permissions::from_mode(if executes { READ_ALL | EXECUTE_ALL } else { READ_ALL }),
    )
}

/// Returns the seal of an entry.
pub(super) fn of(entry: &Path) -> io::Result<String> {
    let mut hasher = Hasher::new();
    add(entry, &mut hasher)?;
    Ok(hasher.finalize().to_hex().to_string())
}

fn add(path: &Path, hasher: &mut Hasher) -> io::Result<()> {
    let metadata = path.symlink_metadata()?;
    let numbers = [
        metadata.ino(),
        metadata.mode().into(),
        metadata.uid().into(),
        metadata.gid().into(),
        metadata.size(),
        metadata.mtime().cast_unsigned(),
        metadata.mtime_nsec().cast_unsigned(),
        metadata.ctime().cast_unsigned(),
        metadata.ctime_nsec().cast_unsigned(),
    ];
    for number in numbers {
        hasher.update(&number.to_le_bytes());
    }
    if metadata.is_symlink() {
        add_name(std::fs::read_link(path)?.as_os_str().as_bytes(), hasher);
    }
    if metadata.is_dir() {
        let mut names = std::fs::read_dir(path)?
            .map(|entry| Ok(entry?.file_name()))
            .collect::<io::Result<Vec<_>>>()?;
        names.sort();
        hasher.update(&names.len().to_le_bytes());
        for name in names {
            add_name(name.as_bytes(), hasher);
            add(&path.join(name), hasher)?;
        }
    }
    Ok(())
}

/// Adds a name with its length, so that no two lists of names look alike.
fn add_name(name: &[u8], hasher: &mut Hasher) {
    hasher.update(&name.len().to_le_bytes()).update(name);
}
