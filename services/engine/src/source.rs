//! Keeps the script of a job as it ran, for people: on this machine, copies of its Python files
//! beside the job; on a compute target, the snapshot that its nodes use.
//!
//! ```text
//! sources/0/entry.py    when the job began
//! sources/1/entry.py    when it was continued with another script
//! ```

use std::io;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result};
use job_file::{Identity, ModelFolders};
use protocol::JobSpec;
use serde::Serialize;
use storage::{Limit, disk, unpack};

use crate::{FoundJob, Jobs};

const FOLDER: &str = "sources";
/// A version that is being written.
const PARTIAL: &str = "partial";
/// The source of a function from Python, beside the script that calls it.
const FUNCTION: &str = "function.txt";
/// Files and bytes that a job keeps: more than people read, and little beside a job.
const KEPT_FILES_MAX: usize = 500;
const KEPT_BYTES_MAX: u64 = 8 << 20;
/// A larger snapshot holds data, and is not fetched to be read.
const SNAPSHOT_BYTES_MAX: u64 = 64 << 20;
/// Files that are shown, and the size of one whose text is.
const SHOWN_FILES_MAX: usize = 2000;
const TEXT_BYTES_MAX: u64 = 1 << 20;

/// The script of a job and the files beside it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ScriptSource {
    /// The number of scripts that the job has run with, one after the other.
    pub versions: usize,
    /// The number of this script, from 0.
    pub version: usize,
    /// The files, by path.
    pub files: Vec<SourceFile>,
    /// Why no file can be shown.
    pub absent: Option<String>,
}

/// A file of a script.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SourceFile {
    /// Relative to the folder of the script.
    pub path: String,
    /// Its size.
    pub bytes: u64,
    /// `None`: it is not text, or too long to show.
    pub text: Option<String>,
}

/// Copies the Python files of a script into the folder of its job, unless the last copy is the same. The job does not need
/// the copy, so a failure is only logged.
pub(crate) fn keep(folder: &Path, spec: &JobSpec, identity: &Identity) {
    if spec.has_built_in_script() {
        return;
    }
    if let Err(error) = add_version(&folder.join(FOLDER), spec, identity) {
        tracing::warn!("cannot keep the script of job {}: {error:#}", spec.job_id);
    }
}

/// Keeps the script of a job that follows from another one, unless a script is kept already.
pub(crate) fn keep_first(folder: &Path, spec: &JobSpec, models: &ModelFolders) {
    if spec.has_built_in_script() || versions(&folder.join(FOLDER)) > 0 {
        return;
    }
    match Identity::of(spec, &[], Path::new(&spec.job_file), models) {
        Ok((identity, _)) => keep(folder, spec, &identity),
        Err(error) => tracing::warn!("cannot keep the script of job {}: {error:#}", spec.job_id),
    }
}

/// Adds a version to the folder of all versions, complete or not at all.
fn add_version(sources: &Path, spec: &JobSpec, identity: &Identity) -> Result<()> {
    let partial = sources.join(PARTIAL);
    disk::remove_all(&partial).with_context(|| format!("remove {}", partial.display()))?;
    std::fs::create_dir_all(&partial).with_context(|| format!("create {}", partial.display()))?;
    copy(&partial, spec, identity)?;
    let version = versions(sources);
    let is_new = match version.checked_sub(1) {
        Some(last) => files(&partial)? != files(&sources.join(last.to_string()))?,
        None => true,
    };
    let added = match is_new {
        true => std::fs::rename(&partial, sources.join(version.to_string())),
        false => std::fs::remove_dir_all(&partial),
    };
    added.with_context(|| format!("keep {}", partial.display()))
}

fn copy(to: &Path, spec: &JobSpec, identity: &Identity) -> Result<()> {
    let from = spec.source_directory.as_path();
    // The entry script before what it may import.
    let mut names: Vec<&str> = identity.code().filter(|name| name.ends_with(".py")).collect();
    names.sort_by_key(|name| (*name != spec.entry_script, name.matches('/').count()));
    let mut left = KEPT_BYTES_MAX;
    for name in [FUNCTION].into_iter().chain(names).take(KEPT_FILES_MAX) {
        let (source, target) = (from.join(name), to.join(name));
        // Only the folder of a function has the first one. A name with escaped bytes names no file.
        let Ok(metadata) = source.metadata() else { continue };
        let Some(rest) = left.checked_sub(metadata.len()) else { continue };
        left = rest;
        let parent = target.parent().context("a file is in a folder")?;
        std::fs::create_dir_all(parent).with_context(|| format!("create {}", parent.display()))?;
        std::fs::copy(&source, &target).with_context(|| format!("copy {}", source.display()))?;
    }
    Ok(())
}

fn versions(sources: &Path) -> usize {
    (0..).find(|version| !sources.join(version.to_string()).exists()).unwrap_or(0)
}

impl Jobs {
    /// Reads the script with which a job ran. `version`: which of several, or the last.
    pub async fn source(&self, job: &FoundJob, version: Option<usize>) -> Result<ScriptSource> {
        if job.spec.has_built_in_script() {
            return Ok(ScriptSource::absent("The entry script is part of Gristmill."));
        }
        match self {
            Self::Here(home) => {
                let sources = home.job_folder(&job.spec.job_id).join(FOLDER);
                tokio::task::spawn_blocking(move || here(&sources, version)).await?
            }
            Self::There { store, .. } => {
                let Some(snapshot) = job.spec.snapshots.source.clone() else {
                    return Ok(ScriptSource::absent(
                        "The nodes use the script in its folder, so the job has no copy.",
                    ));
                };
                if snapshot.bytes > SNAPSHOT_BYTES_MAX {
                    let size = protocol::words::size(snapshot.bytes);
                    return Ok(ScriptSource::absent(&format!(
                        "The snapshot of the script is too large to show ({size})."
                    )));
                }
                let folder = tempfile::tempdir().context("create a folder for the snapshot")?;
                let (archive, into) = (folder.path().join("archive"), folder.path().join("source"));
                match store.snapshot(&snapshot.digest, &archive).await {
                    Err(storage::Error::NotFound { .. }) => {
                        return Ok(ScriptSource::absent(
                            "The snapshot of the script is no longer in the store.",
                        ));
                    }
                    fetched => fetched.context("fetch the snapshot of the script")?,
                }
                let read = move || {
                    unpack(&archive, &snapshot, Limit::SCRIPTS, &into)?;
                    let files = files(&into)?;
                    drop(folder);
                    Ok(ScriptSource { versions: 1, version: 0, files, absent: None })
                };
                tokio::task::spawn_blocking(read).await?
            }
        }
    }
}

impl ScriptSource {
    fn absent(reason: &str) -> Self {
        Self { absent: Some(reason.to_owned()), ..Self::default() }
    }
}

fn here(sources: &Path, version: Option<usize>) -> Result<ScriptSource> {
    let versions = versions(sources);
    let Some(version) = version.or(versions.checked_sub(1)).filter(|version| *version < versions)
    else {
        return Ok(ScriptSource::absent("The job has not kept its script."));
    };
    let files = files(&sources.join(version.to_string()))?;
    Ok(ScriptSource { versions, version, files, absent: None })
}

/// Reads the files below a folder, by path.
fn files(folder: &Path) -> Result<Vec<SourceFile>> {
    let mut paths = Vec::new();
    collect(folder, &mut paths).with_context(|| format!("read {}", folder.display()))?;
    paths.sort();
    let read = |path: PathBuf| {
        let bytes = path.metadata().map_or(0, |metadata| metadata.len());
        let text = if bytes > TEXT_BYTES_MAX { None } else { std::fs::read(&path).ok() };
        let text =
            text.filter(|text| !text.contains(&0)).and_then(|text| String::from_utf8(text).ok());
        let relative = path.strip_prefix(folder).unwrap_or(&path);
        let names = relative.components().filter(|part| matches!(part, Component::Normal(_)));
        let names: Vec<_> = names.map(|name| name.as_os_str().to_string_lossy()).collect();
        SourceFile { path: names.join("/"), bytes, text }
    };
    Ok(paths.into_iter().take(SHOWN_FILES_MAX).map(read).collect())
}

fn collect(folder: &Path, paths: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => collect(&entry.path(), paths)?,
            false => paths.push(entry.path()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    struct Script {
        _folder: tempfile::TempDir,
        spec: JobSpec,
        job: PathBuf,
    }

    impl Script {
        fn new() -> Self {
            let folder = tempfile::tempdir().expect("temporary folder");
            let source = folder.path().join("code");
            fs::create_dir_all(source.join("inner")).expect("writable");
            let spec = JobSpec { source_directory: source.as_path().into(), ..JobSpec::example() };
            let job = folder.path().join("job");
            Self { _folder: folder, spec, job }
        }

        fn write(&self, name: &str, text: impl AsRef<[u8]>) {
            fs::write(self.spec.source_directory.as_path().join(name), text).expect("writable");
        }

        fn sources(&self) -> PathBuf {
            self.job.join(FOLDER)
        }

        fn keep(&self) {
            let (identity, _) =
                Identity::of(&self.spec, &[], Path::new("/job.yml"), &ModelFolders::default())
                    .expect("readable");
            keep(&self.job, &self.spec, &identity);
        }
    }

    fn texts(source: &ScriptSource) -> Vec<(&str, &str)> {
        source
            .files
            .iter()
            .map(|file| (&*file.path, file.text.as_deref().unwrap_or("no text")))
            .collect()
    }

    #[test]
    fn each_script_of_a_job_is_kept() {
        let script = Script::new();
        assert_eq!(
            here(&script.sources(), None).expect("readable").absent.expect("a reason").as_str(),
            "The job has not kept its script."
        );
        script.write("entry.py", "one");
        script.write("inner/module.py", "import this");
        script.write("data.csv", "1,2");
        script.keep();
        script.write("entry.py", "two");
        // What a killed process has left is no version.
        fs::create_dir(script.sources().join(PARTIAL)).expect("writable");
        fs::write(script.sources().join(PARTIAL).join("old.py"), "old").expect("writable");
        script.keep();
        // A second retry with the same script adds none.
        script.keep();
        let last = here(&script.sources(), None).expect("readable");
        assert_eq!((last.versions, last.version), (2, 1));
        assert_eq!(texts(&last), [("entry.py", "two"), ("inner/module.py", "import this")]);
        assert_eq!(
            texts(&here(&script.sources(), Some(0)).expect("readable"))[0],
            ("entry.py", "one")
        );
        assert!(here(&script.sources(), Some(2)).expect("readable").absent.is_some());
    }

    #[test]
    fn large_files_are_not_kept_and_files_that_are_no_text_have_none() {
        let script = Script::new();
        script.write("entry.py", "small");
        script.write("a.py", vec![b'x'; KEPT_BYTES_MAX as usize]);
        script.write("latin.py", b"# \xe4");
        script.write("long.py", vec![b'x'; TEXT_BYTES_MAX as usize + 1]);
        script.keep();
        let kept = here(&script.sources(), None).expect("readable");
        assert_eq!(
            texts(&kept),
            [("entry.py", "small"), ("latin.py", "no text"), ("long.py", "no text")]
        );
    }
}
