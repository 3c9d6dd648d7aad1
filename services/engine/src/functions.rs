//! The files of calls from Python. Python writes them below the home, and names them in job files:
//!
//! ```text
//! functions/inputs/<digest>-<rows>.parquet    tables and objects that were in memory
//! functions/environments/<digest>.yml         conda files that were in memory
//! functions/<name>/<digest>/                  a function, as the folder of an entry script
//! functions/outputs/<name>-<digest>/          outputs of functions, unless the call names another folder
//! ```
//!
//! A job of this machine reads them in place. A job of a compute target has copies in its store.

use std::path::Path;

use anyhow::{Context, Result};
use protocol::JobSpec;
use storage::JobStore;
use worker::replace_paths;

use crate::Home;

/// Copies the inputs that were in memory to the folder of the job in its store, where every node can read them, and where
/// they disappear with the job. Unless `is_here`, an output below the home moves there too, where the caller finds it.
pub(crate) async fn send(spec: &mut JobSpec, job: &JobStore, home: &Home, is_here: bool) -> Result<()> {
    let mut moved = Vec::new();
    for path in spec.inputs.iter_mut().flat_map(|input| &mut input.paths) {
        let file = path.as_path().to_owned();
        if let Some(name) = file.file_name().and_then(|name| name.to_str()).filter(|_| was_in_memory(&file, home)) {
            *path = job.put_input(name, &file).await.with_context(|| format!("send {}", file.display()))?;
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
    let Some(parent) = path.parent().filter(|parent| parent.file_name() == folder.file_name()) else { return false };
    // Two paths may lead to one home.
    parent == folder || matches!((parent.canonicalize(), folder.canonicalize()), (Ok(one), Ok(other)) if one == other)
}
