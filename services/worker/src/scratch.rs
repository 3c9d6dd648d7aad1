//! The working directory of a process: a private folder that shows the top of the snapshot through links.
//!
//! So scripts that open their files by relative name find them, scripts that write `./outputs` may, and two processes
//! do not overwrite each other's files.

use std::path::Path;

use anyhow::{Context, Result};

/// Folders that scripts write into; they are made fresh instead of linked, so that the snapshot stays as it is.
const WRITTEN: [&str; 2] = ["outputs", "logs"];

/// Makes the folder and its links.
pub fn make(scratch: &Path, snapshot: &Path) -> Result<()> {
    std::fs::create_dir_all(scratch).with_context(|| format!("make the working folder {}", scratch.display()))?;
    let entries = std::fs::read_dir(snapshot).with_context(|| format!("read {}", snapshot.display()))?;
    for entry in entries {
        let name = entry.with_context(|| format!("read {}", snapshot.display()))?.file_name();
        if WRITTEN.iter().any(|written| name == *written) {
            continue;
        }
        match std::os::unix::fs::symlink(snapshot.join(&name), scratch.join(&name)) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(error).with_context(|| format!("link {} into {}", name.display(), scratch.display()));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Removes the folder, unless user code left something of its own in it.
pub fn remove(scratch: &Path) {
    let Ok(entries) = std::fs::read_dir(scratch) else { return };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_symlink()) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
    let _ = std::fs::remove_dir(scratch);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_snapshot_is_seen_and_what_the_script_wrote_is_kept() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let (snapshot, scratch) = (folder.path().join("snapshot"), folder.path().join("scratch"));
        std::fs::create_dir_all(snapshot.join("outputs")).expect("writable");
        std::fs::write(snapshot.join("model.txt"), "weights").expect("writable");

        make(&scratch, &snapshot).expect("possible");
        assert_eq!(std::fs::read_to_string(scratch.join("model.txt")).expect("linked"), "weights");
        std::fs::create_dir(scratch.join("outputs")).expect("not linked, so free");
        std::fs::write(scratch.join("outputs/mine.txt"), "result").expect("writable");
        remove(&scratch);
        assert!(scratch.join("outputs/mine.txt").exists());
        assert!(!snapshot.join("outputs/mine.txt").exists());
        assert!(snapshot.join("model.txt").exists());

        let unused = folder.path().join("unused");
        make(&unused, &snapshot).expect("possible");
        remove(&unused);
        assert!(!unused.exists());
    }
}
