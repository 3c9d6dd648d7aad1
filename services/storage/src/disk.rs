//! Forcing names to a local disk. What a file holds is on the disk once the file is synced; that it is there, once its
//! folder is.

use std::fs::File;
use std::io;
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
