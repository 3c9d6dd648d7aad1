//! The files of calls from Python. Python writes them below the home, and names them in job files:
//!
//! ```text
//! functions/inputs/<digest>-<rows>.parquet    tables and columns that were in memory
//! functions/inputs/<digest>.jsonl             objects that were in memory, each in a line
//! functions/environments/<digest>.yml         conda files that were in memory
//! functions/<name>/<digest>/                  a function, as the folder of an entry script
//! functions/outputs/<name>-<digest>/          outputs of functions, unless the call names another folder
//! ```
//!
//! A job of this machine reads them in place. A job of a compute target has copies in its store.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use protocol::{Environment, ItemPath, JobSpec};
use storage::JobStore;
use worker::replace_paths;

use crate::Home;

/// A call that has just written a file, or found it there, has started its job after this time.
const UNNAMED_FOR: Duration = Duration::from_secs(3600);

/// Copies the inputs that were in memory to the folder of the job in its store, where every node can read them, and where
/// they disappear with the job. Unless `is_here`, an output below the home moves there too, where the caller finds it.
pub(crate) async fn send(
    spec: &mut JobSpec,
    job: &JobStore,
    home: &Home,
    is_here: bool,
) -> Result<()> {
    let mut moved = Vec::new();
    for path in spec.inputs.iter_mut().flat_map(|input| &mut input.paths) {
        let file = path.as_path().to_owned();
        if let Some(name) =
            file.file_name().and_then(|name| name.to_str()).filter(|_| was_in_memory(&file, home))
        {
            *path = job
                .put_input(name, &file)
                .await
                .with_context(|| format!("send {}", file.display()))?;
            moved.push((file.display().to_string(), path.display()));
        }
    }
    let output = &mut spec.output.folder;
    if !is_here && is_in("outputs", output.as_path(), home) {
        moved.push((output.display(), job.shown("output")));
        *output = job.shown("output").as_str().into();
    }
    let texts = spec.argv.iter_mut().chain(spec.environment_variables.values_mut());
    texts.for_each(|text| *text = replace_paths(text, &moved));
    Ok(())
}

/// Whether this is a file of an input that was in memory.
pub(crate) fn was_in_memory(file: &Path, home: &Home) -> bool {
    is_in("inputs", file, home)
}

fn is_in(folder: &str, path: &Path, home: &Home) -> bool {
    let folder = home.cache("functions").join(folder);
    let Some(parent) = path.parent().filter(|parent| parent.file_name() == folder.file_name())
    else {
        return false;
    };
    // Two paths may lead to one home.
    parent == folder
        || matches!((parent.canonicalize(), folder.canonicalize()), (Ok(one), Ok(other)) if one == other)
}

/// Returns the files of calls, and the conda files of documents, that no job of the home names and no call has used for an
/// hour. Outputs are the user's. `gone`: jobs that count as removed. Only for the holder of [`Home::lock`].
pub(crate) fn unnamed(home: &Home, gone: &HashSet<String>) -> Result<Vec<PathBuf>> {
    let mut old = old_entries(&home.cache("document-files"));
    for folder in entries(&home.cache("functions")).filter(|folder| !folder.ends_with("outputs")) {
        old.extend(old_entries(&folder));
    }
    if !old.is_empty() {
        let named = named(home, gone)?;
        old.retain(|path| path.file_name().is_some_and(|name| !named.contains(name)));
    }
    Ok(old)
}

/// Returns the names of the files and folders that the jobs of the home read. The names of those of calls are digests, so
/// the folders that lead there do not matter.
fn named(home: &Home, gone: &HashSet<String>) -> Result<HashSet<OsString>> {
    let mut names = HashSet::new();
    for job_id in home.job_ids()?.iter().filter(|job_id| !gone.contains(*job_id)) {
        let path = home.job_folder(job_id).join("spec.json");
        let text = match std::fs::read(&path) {
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                continue;
            }
            text => text.with_context(|| format!("read {}", path.display()))?,
        };
        // A job whose description is damaged cannot run any more.
        let Ok(spec) = serde_json::from_slice::<JobSpec>(&text) else { continue };
        let environment = match &spec.environment {
            Environment::Requirements { file, .. } => Some(file),
            _ => None,
        };
        let inputs = spec.inputs.iter().flat_map(|input| &input.paths);
        let read = inputs
            .chain(spec.side_inputs.values())
            .chain([&spec.source_directory])
            .chain(environment);
        names.extend(
            read.filter_map(|path: &ItemPath| Some(path.as_path().file_name()?.to_owned())),
        );
    }
    Ok(names)
}

fn old_entries(folder: &Path) -> Vec<PathBuf> {
    entries(folder).filter(|path| age(path).is_some_and(|age| age >= UNNAMED_FOR)).collect()
}

/// Returns the time since the last use. A call that finds a file sets the time of its last access,
/// because a job whose input was modified is another job. The time of a folder itself identifies
/// nothing, and reading it is not a use.
fn age(path: &Path) -> Option<Duration> {
    let metadata = path.symlink_metadata().ok()?;
    let modified = metadata.modified().ok()?;
    let used = if metadata.is_dir() { modified } else { modified.max(metadata.accessed().ok()?) };
    used.elapsed().ok()
}

fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> {
    std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}
