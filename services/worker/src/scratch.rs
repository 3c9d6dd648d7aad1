//! The working directory of a process: a private folder with links to the entries of the snapshot.
//!
//! Scripts can open their files by relative name and write `./outputs`, and processes do not overwrite each other's
//! files.

use std::path::Path;

use anyhow::{Context, Result};

/// Folders that scripts write to. They are not linked, so that the snapshot does not change.
const WRITTEN: [&str; 2] = ["outputs", "logs"];

pub fn create(scratch: &Path, snapshot: &Path) -> Result<()> {
    std::fs::create_dir_all(scratch)
        .with_context(|| format!("create the working folder {}", scratch.display()))?;
    let entries =
        std::fs::read_dir(snapshot).with_context(|| format!("read {}", snapshot.display()))?;
    for entry in entries {
        let name = entry.with_context(|| format!("read {}", snapshot.display()))?.file_name();
        if WRITTEN.iter().any(|written| name == *written) {
            continue;
        }
        match std::os::unix::fs::symlink(snapshot.join(&name), scratch.join(&name)) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(error).with_context(|| {
                    format!("link {} into {}", name.display(), scratch.display())
                });
            }
            _ => {}
        }
    }
    Ok(())
}

/// Makes a model available in `folder` under this name: a file as a link, a folder as a folder with links to its entries.
/// MLflow loads no model whose own path is a link.
pub fn link_model(folder: &Path, name: &str, model: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    let place = folder.join(name);
    if !model.is_dir() {
        return link(&place, model);
    }
    std::fs::create_dir_all(&place).with_context(|| format!("create {}", place.display()))?;
    for entry in std::fs::read_dir(model).with_context(|| format!("read {}", model.display()))? {
        let entry = entry.with_context(|| format!("read {}", model.display()))?;
        link(&place.join(entry.file_name()), &entry.path())?;
    }
    Ok(())
}

/// Links to `target`, in place of an earlier link.
fn link(link: &Path, target: &Path) -> Result<()> {
    if std::fs::read_link(link).is_ok_and(|earlier| earlier == target) {
        return Ok(());
    }
    let _ = std::fs::remove_file(link);
    std::os::unix::fs::symlink(target, link).with_context(|| format!("link {}", link.display()))
}

/// Removes the folder, unless user code left files in it.
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
    fn snapshot_is_linked_and_files_of_the_script_are_kept() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let (snapshot, scratch) = (folder.path().join("snapshot"), folder.path().join("scratch"));
        std::fs::create_dir_all(snapshot.join("outputs")).expect("writable");
        std::fs::write(snapshot.join("model.txt"), "weights").expect("writable");

        create(&scratch, &snapshot).expect("possible");
        assert_eq!(std::fs::read_to_string(scratch.join("model.txt")).expect("linked"), "weights");
        std::fs::create_dir(scratch.join("outputs")).expect("not linked");
        std::fs::write(scratch.join("outputs/mine.txt"), "result").expect("writable");
        remove(&scratch);
        assert!(scratch.join("outputs/mine.txt").exists());
        assert!(!snapshot.join("outputs/mine.txt").exists());
        assert!(snapshot.join("model.txt").exists());

        let models = folder.path().join("models");
        for _ in 0..2 {
            link_model(&models, "iris", &snapshot).expect("possible");
        }
        assert!(!models.join("iris").is_symlink());
        assert_eq!(
            std::fs::read_to_string(models.join("iris/model.txt")).expect("linked"),
            "weights"
        );
        link_model(&models, "weights.txt", &snapshot.join("model.txt")).expect("possible");
        assert_eq!(std::fs::read_to_string(models.join("weights.txt")).expect("linked"), "weights");

        let unused = folder.path().join("unused");
        create(&unused, &snapshot).expect("possible");
        remove(&unused);
        assert!(!unused.exists());
    }
}
