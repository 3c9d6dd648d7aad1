//! What a round of a job needs before it begins: its script, and the files that its rejected items are in.

use std::io::ErrorKind;
use std::path::Path;

use anyhow::Context;
use protocol::{Descriptor, FileVersion, ItemPath, JobSpec, Work};
use reducer::{Begun, Reducer, ScriptOfRound, Selection};

use crate::Error;
use crate::error::Change;

/// Replaces the folder of a job's entry script.
pub(crate) fn take_script(spec: &mut JobSpec, folder: &Path) -> crate::Result<()> {
    let job_id = || spec.job_id.clone();
    if spec.has_built_in_script() {
        return Err(Error::NoScript { job_id: job_id() });
    }
    if !folder.join(&spec.entry_script).is_file() {
        let (folder, entry_script) = (folder.to_owned(), spec.entry_script.clone());
        return Err(Error::ScriptMissing { job_id: job_id(), folder, entry_script });
    }
    spec.source_directory = folder.into();
    Ok(())
}

/// Begins a round of a job. `is_running`: no process has ended or canceled it. `is_here`: its workers are on this machine.
pub(crate) async fn begin_round(
    reducer: &mut Reducer,
    selection: Selection,
    script: &ScriptOfRound,
    [is_running, is_here]: [bool; 2],
) -> crate::Result<Begun> {
    let job_id = reducer.spec().job_id.clone();
    let check = move |planned: &Descriptor| Ok(check_input(planned, &job_id, is_here)?);
    Ok(reducer.begin_round(selection, script, is_running, check).await?)
}

/// Checks that the local files of a mini-batch still exist, and that its local tables are those that were planned: a range of
/// their rows runs again. Nodes check remote ones when they read them, and those that only they may see. `is_here`: the
/// nodes are on this machine.
pub(crate) fn check_input(planned: &Descriptor, job_id: &str, is_here: bool) -> crate::Result<()> {
    const REMAINS: &str = "its rejected items cannot run again";
    let changed = |path: &ItemPath, change, consequence| Error::InputChanged {
        job_id: job_id.to_owned(),
        path: path.as_path().to_owned(),
        change,
        consequence,
    };
    let version = |path: &ItemPath| -> crate::Result<Option<FileVersion>> {
        match std::fs::metadata(path.as_path()) {
            Ok(metadata) if metadata.is_dir() => Err(changed(path, Change::IsFolder, REMAINS)),
            Ok(metadata) => Ok(Some(FileVersion::of_file(&metadata))),
            Err(error) if error.kind() == ErrorKind::NotFound && !is_here => Ok(None),
            Err(error) if error.kind() == ErrorKind::NotFound => Err(changed(path, Change::Removed, REMAINS)),
            Err(error) => Err(error).with_context(|| format!("read {}", path.display()))?,
        }
    };
    match &planned.work {
        Work::Files { paths, .. } => {
            for path in paths.iter().filter(|path| !path.is_url()) {
                version(path)?;
            }
        }
        Work::Rows { blocks, .. } => {
            for block in blocks.iter().filter(|block| !block.path.is_url()) {
                let Some(found) = version(&block.path)? else { continue };
                if block.version.as_ref().is_some_and(|planned| *planned != found) {
                    let consequence = "its rejected rows cannot be found: run the whole job again";
                    return Err(changed(&block.path, Change::Changed, consequence));
                }
            }
        }
        Work::Rank | Work::Planned { .. } => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use protocol::{Block, BlockRange};

    use super::*;

    #[test]
    fn files_that_only_nodes_see_are_left_to_them() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let file = folder.path().join("t.csv");
        let rows = |version| {
            let block =
                Block { path: file.as_path().into(), version, range: BlockRange::WholeText, path_columns: vec![] };
            Work::Rows { input: 0, blocks: vec![block], rows_before: None, key: vec![] }
        };
        let files =
            Work::Files { input: 0, paths: vec![file.as_path().into()], versions: vec![], stamps: vec![], key: vec![] };
        let other = FileVersion { bytes: 7, etag: None, modified: Some(7) };
        for work in [files, rows(None), rows(Some(other.clone()))] {
            let planned = Descriptor::new("first", 0, work);
            check_input(&planned, "first", false).expect("it may be on the nodes");
            let refused = check_input(&planned, "first", true).expect_err("it is nowhere");
            assert!(refused.to_string().contains("t.csv has been removed since job first was planned"));
        }
        std::fs::write(&file, "id\n").expect("writable");
        let planned = Descriptor::new("first", 0, rows(Some(other)));
        let refused = check_input(&planned, "first", false).expect_err("it is here, and has changed");
        assert!(refused.to_string().contains("t.csv has changed since job first was planned"));
    }

    #[test]
    fn file_that_has_become_a_folder_is_refused() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let paths = vec![folder.path().into()];
        let files = Work::Files { input: 0, paths, versions: vec![], stamps: vec![], key: vec![] };
        let refused = check_input(&Descriptor::new("first", 0, files), "first", true).expect_err("no file");
        assert!(refused.to_string().contains("has become a folder since job first"), "{refused:#}");
    }
}
