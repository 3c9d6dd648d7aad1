//! Prepares a round of a job: its script, and the files with its rejected items.

use std::io::ErrorKind;
use std::path::Path;

use anyhow::Context;
use protocol::words::counted;
use protocol::{Descriptor, FileVersion, JobSpec, Work};
use reducer::{BegunRound, Reducer, RoundScript};
use storage::RoundRequest;

use crate::{Error, Events, FoundJob, Notice};

/// What follows if a file cannot be read as it was planned.
const UNREADABLE: &str = "cannot be read: restore the file, or run the whole job again";

/// Replaces the folder of a job's entry script, if there is another.
pub(crate) fn take_script(spec: &mut JobSpec, folder: Option<&Path>) -> crate::Result<()> {
    let Some(folder) = folder else { return Ok(()) };
    if spec.has_built_in_script() {
        let job_id = &spec.job_id;
        return Err(Error::Refused(format!(
            "job {job_id} has no entry script of its own that another could replace"
        )));
    }
    spec.source_directory = folder.into();
    check_script_is_there(spec)
}

/// Fails if this machine does not have the entry script of a job.
pub(crate) fn check_script_is_there(spec: &JobSpec) -> crate::Result<()> {
    let JobSpec { job_id, entry_script, .. } = spec;
    let folder = spec.source_directory.as_path();
    if spec.has_built_in_script() || folder.join(entry_script).is_file() {
        return Ok(());
    }
    let folder = folder.display();
    Err(Error::Refused(format!(
        "{folder} has no file {entry_script}, the entry script of job {job_id}"
    )))
}

/// Writes a job whose rows are of two scripts from now on: no later job continues or reuses it, and what the earlier script
/// has handed back does not count.
pub(crate) async fn forget_script(job: &mut FoundJob) -> anyhow::Result<()> {
    job.spec.fingerprint.clear();
    job.store.put_spec(&job.spec).await.context("write the job")?;
    job.store.delete_checkpoints().await.context("remove results of the earlier script")
}

/// Lets the successes of a job whose rows are lost run again, with a notice. Returns them.
pub(crate) async fn forget_lost_rows(
    reducer: &mut Reducer,
    events: &Events,
) -> anyhow::Result<Vec<u64>> {
    let lost =
        reducer.forget_lost_rows().await.context("look for the rows of what is committed")?;
    if let Some(first) = lost.first() {
        events.notice(Notice::RowsLost { mini_batches: lost.len() as u64, first: *first });
    }
    Ok(lost)
}

/// Begins a round of a job. `is_running`: the job has neither ended nor been canceled. `is_here`:
/// its workers are on this machine.
pub(crate) async fn begin_round(
    reducer: &mut Reducer,
    request: RoundRequest,
    script: &RoundScript,
    is_running: bool,
    is_here: bool,
) -> crate::Result<BegunRound> {
    let job_id = reducer.spec().job_id.clone();
    if let Some((records, first)) = reducer.unread_that_fail_the_job() {
        return Err(Error::Refused(format!(
            "job {job_id} would fail again: {} could not be read (first: {first}), and a retry reads them in the same way; \
             correct the input, or change `columns`, `on_type_mismatch` or `error_threshold` in the job file, and run the \
             whole job again",
            counted(records, "record")
        )));
    }
    let check = move |planned: &Descriptor| Ok(check_input(planned, &job_id, is_here)?);
    Ok(reducer.begin_round(request, script, is_running, check).await?)
}

/// Checks that the local tables of a mini-batch are those that were planned: a mini-batch is a range of their rows. Nodes
/// check remote ones when they read them, and those that only they may see. `is_here`: the nodes are on this machine.
///
/// The script reads files as they are now. If one has been removed, only that item fails.
pub(crate) fn check_input(planned: &Descriptor, job_id: &str, is_here: bool) -> crate::Result<()> {
    let Work::Rows { blocks, .. } = &planned.work else { return Ok(()) };
    for block in blocks.iter().filter(|block| !block.path.is_url()) {
        let path = block.path.as_path().display();
        let (change, so) = match std::fs::metadata(block.path.as_path()) {
            Ok(metadata) if metadata.is_dir() => ("become a folder", UNREADABLE),
            Ok(metadata) => {
                let found = FileVersion::of_file(&metadata);
                if block.version.as_ref().is_none_or(|planned| *planned == found) {
                    continue;
                }
                ("changed", "cannot be found: run the whole job again")
            }
            Err(error) if error.kind() == ErrorKind::NotFound && !is_here => continue,
            Err(error) if error.kind() == ErrorKind::NotFound => ("been removed", UNREADABLE),
            Err(error) => return Err(error).with_context(|| format!("read {path}"))?,
        };
        return Err(Error::Refused(format!(
            "{path} has {change} since job {job_id} was planned, so its rows {so}"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use protocol::{Block, BlockRange};

    use super::*;

    fn rows(path: &Path, version: Option<FileVersion>) -> Descriptor {
        let (range, path_columns) = (BlockRange::WholeText, vec![]);
        let blocks = vec![Block { path: path.into(), version, range, path_columns }];
        let work = Work::Rows { input: 0, blocks, rows_before: None, key: vec![] };
        Descriptor::new("first", 0, work)
    }

    #[test]
    fn tables_that_only_nodes_see_are_left_to_them() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let file = folder.path().join("t.csv");
        let other = FileVersion { bytes: 7, etag: None, modified: Some(7) };
        for planned in [rows(&file, None), rows(&file, Some(other.clone()))] {
            check_input(&planned, "first", false).expect("it may be on the nodes");
            let refused = check_input(&planned, "first", true).expect_err("it is nowhere");
            assert!(
                refused.to_string().contains("t.csv has been removed since job first was planned")
            );
        }
        std::fs::write(&file, "id\n").expect("writable");
        let planned = rows(&file, Some(other));
        let refused = check_input(&planned, "first", false).expect_err("it has changed");
        assert!(refused.to_string().contains("t.csv has changed since job first was planned"));
    }

    #[test]
    fn table_that_has_become_a_folder_is_refused() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let planned = rows(folder.path(), None);
        let refused = check_input(&planned, "first", true).expect_err("no file");
        assert!(refused.to_string().contains("has become a folder since job first"), "{refused:#}");
    }
}
