//! The folders that a job writes. `{run-id}` in their paths stands for its id, so that each run has folders of its own. The
//! folders that a document does not name are the same in each run, and empty at its beginning.
//!
//! The fingerprint contains the word, not the id: a later run finds the job, and reuses its result.

use std::path::PathBuf;

use anyhow::{Context, Result};
use job_file::RUN_ID;
use protocol::{ItemPath, JobSpec};

use crate::{Events, Notice};

/// Empties these folders: moves each with the files of an earlier run beside itself, in place of those of the run before it.
/// The caller has made sure that no open job writes them.
pub fn set_aside(folders: &[PathBuf], events: &Events) -> Result<()> {
    for folder in folders {
        let has_files = std::fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some());
        let Some(name) = folder.file_name().filter(|_| has_files) else { continue };
        let mut before = name.to_owned();
        before.push(".before");
        let to = folder.with_file_name(before);
        let _ = std::fs::remove_dir_all(&to);
        let moved = std::fs::rename(folder, &to).and_then(|()| std::fs::create_dir(folder));
        moved.with_context(|| {
            let (folder, to) = (folder.display(), to.display());
            format!(
                "cannot move the files of an earlier run from {folder} to {to}; move what is there away, then run again"
            )
        })?;
        events.notice(Notice::SetAside { folder: folder.clone(), to });
    }
    Ok(())
}

/// Replaces the word in the outputs of a job that has its id, and wherever the job passes these paths on.
pub fn own_paths(spec: &mut JobSpec) {
    let id = spec.job_id.clone();
    let paths = spec.outputs.values_mut().chain([&mut spec.output.folder]);
    let mut written = Vec::new();
    for path in paths {
        let folder = path.display();
        *path = ItemPath::from(folder.replace(RUN_ID, &id).as_str());
        written.push(folder.trim_end_matches('/').to_owned());
    }
    written.retain(|folder| !folder.is_empty());
    for text in spec.argv.iter_mut().chain(spec.environment_variables.values_mut()) {
        for folder in &written {
            *text = with_id(text, folder, &id);
        }
    }
}

/// Replaces the word wherever a text names a folder, or a file in it.
fn with_id(text: &str, folder: &str, id: &str) -> String {
    let (mut replaced, mut rest) = (String::new(), text);
    while let Some(begin) = rest.find(folder) {
        let inside = &rest[begin + folder.len()..];
        // Else the text names another folder, whose name begins alike.
        let is_inside =
            !inside.starts_with(|next: char| next.is_alphanumeric() || "-_.{".contains(next));
        let length =
            if is_inside { inside.find(char::is_whitespace).unwrap_or(inside.len()) } else { 0 };
        let end = begin + folder.len() + length;
        replaced.push_str(&rest[..begin]);
        replaced.push_str(&rest[begin..end].replace(RUN_ID, id));
        rest = &rest[end..];
    }
    replaced + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_job_has_its_own_paths() {
        let mut spec = JobSpec { job_id: "rate-1".to_owned(), ..JobSpec::example() };
        spec.output.folder = ItemPath::from("/out/{run-id}/rows");
        spec.outputs.insert("log".to_owned(), ItemPath::from("/log"));
        spec.outputs.insert("more".to_owned(), ItemPath::from("s3://b/{run-id}"));
        spec.argv = [
            "--to",
            "/out/{run-id}/rows/x",
            "--word",
            "{run-id}",
            "a '/log'/{run-id}.txt b",
            "/login/{run-id}",
        ]
        .map(str::to_owned)
        .to_vec();
        spec.environment_variables.insert("MORE".to_owned(), "s3://b/{run-id}/".to_owned());
        own_paths(&mut spec);
        assert_eq!(spec.output.folder.display(), "/out/rate-1/rows");
        assert_eq!(spec.outputs["more"].display(), "s3://b/rate-1");
        assert_eq!(
            spec.argv,
            [
                "--to",
                "/out/rate-1/rows/x",
                "--word",
                "{run-id}",
                "a '/log'/rate-1.txt b",
                "/login/{run-id}"
            ]
        );
        assert_eq!(spec.environment_variables["MORE"], "s3://b/rate-1/");
    }
}
