//! Writes down which mini-batches a node holds, because a queue in memory forgets them when its process dies. The next run of
//! the job reads which of them may have killed the node.
//!
//! Each write replaces the first line of the file. Remains of a longer line may follow it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A mini-batch, and how often it was lost with a node before.
pub type HeldMiniBatch = (u64, u32);

/// The file of one node. Dropping it removes it: its node returns its mini-batches.
#[derive(Debug)]
pub(crate) struct HeldFile {
    path: PathBuf,
    file: File,
}

impl HeldFile {
    pub fn create(folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let path = path_in(folder);
        Ok(Self { file: File::create(&path)?, path })
    }

    pub fn write(&self, held: &[HeldMiniBatch]) -> io::Result<()> {
        let mut line = serde_json::to_vec(held).expect("numbers always serialise");
        line.push(b'\n');
        self.file.write_all_at(&line, 0)
    }
}

impl Drop for HeldFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Returns the mini-batches that a node held when it died; none after an orderly end. `folder`: its
/// work folder.
pub fn held_by_dead_node(folder: &Path) -> Vec<HeldMiniBatch> {
    let text = fs::read(path_in(folder)).unwrap_or_default();
    let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
    serde_json::from_slice(line).unwrap_or_default()
}

fn path_in(folder: &Path) -> PathBuf {
    folder.join("held.json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_mini_batches_outlive_their_node() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let folder = folder.path().join("0");
        assert!(held_by_dead_node(&folder).is_empty());
        let file = HeldFile::create(&folder).expect("writable");
        assert!(held_by_dead_node(&folder).is_empty(), "nothing is held");
        for held in [vec![(7, 0), (1_000_000, 3)], vec![(8, 1)], vec![]] {
            file.write(&held).expect("writable");
            assert_eq!(held_by_dead_node(&folder), held);
        }
        drop(file);
        assert!(!path_in(&folder).exists());
    }
}
