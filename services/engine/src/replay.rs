//! Runs the rejected items of an ended job again, in a job of their own: the same items and settings, and the script as it
//! is now. The first job does not change.
//!
//! The plan of the new job names the rejected files and rows, and their places in the mini-batches of the first job. Its
//! output replaces that of the first job by the rows of both, each at its place (`reducer/src/output/merged.rs`), or is a
//! file of its own. Otherwise it is a job like any other, so a replay of a replay, and one that is killed, need no more.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use protocol::words::counted;
use protocol::{Attempt, Descriptor, FileVersion, ItemPath, JobResult, JobSpec, OutputAction, Work};
use reducer::{Rejects, job_without_rows};

use crate::again::{can_run_alone, describe, move_outputs, take_script};
use crate::ended::has_completed;
use crate::error::Change;
use crate::execute::Execution;
use crate::replayed::{check_output, key, name_of_replay};
use crate::run::{Locks, take_output};
use crate::submit::send_snapshots;
use crate::targets::Target;
use crate::{
    Busy, Engine, Error, Events, Fixable, For, FoundJob, Jobs, Remedy, Republish, Retry, Separate, StopRequest,
};

/// Beginning of the notes about rejects that a replay does not run.
const LEAVES_OUT: &str = "does not replay ";
/// Consequence of a missing file.
const NOT_REPLAYED: &str = "it cannot be replayed";

/// How a replay differs from the job that it replays.
#[derive(Clone, Debug, Default)]
pub struct ReplayOptions {
    /// Write the rows to a file of their own, and leave the output of the job as it is.
    pub separate: bool,
    /// A folder that replaces that of the entry script.
    pub source_directory: Option<PathBuf>,
}

/// What a replay runs.
struct Replay {
    spec: JobSpec,
    plan: Vec<Descriptor>,
    items: u64,
}

impl Engine {
    /// Runs the rejected items of a job of this machine again; `wanted`: its id, the beginning of its id, or its name.
    /// The output of that job then holds the rows of both, unless they go to a file of their own. An interrupted replay is
    /// continued, and one that completed is replayed in turn.
    pub async fn replay(
        &self,
        wanted: &str,
        options: &ReplayOptions,
        stop: &StopRequest,
        events: &Events,
    ) -> crate::Result<JobResult> {
        let home = self.home();
        let jobs = Jobs::Here(home.clone());
        let mut job = jobs.find(wanted, For::Look).await?;
        let separate = options.separate;
        // The last one holds what is still rejected.
        while let Some(next) = if separate { None } else { jobs.replay_of(&job).await? } {
            if !has_completed(&next) {
                if options.begins_anew(&next, &jobs)? {
                    break;
                }
                return self.retry(&next.spec.job_id, stop, events).await;
            }
            job = next;
        }
        let job_id = job.spec.job_id.clone();
        if job.result.is_none() && home.is_running(&job_id)? {
            return Err(Busy::Running(job_id).into());
        }
        let mut replay = jobs.rejects_of(&job, options).await?;
        job_file::renew_script(&mut replay.spec);
        self.check_script(&replay.spec, false, events)?;
        self.check_gpus(&replay.spec)?;
        // Before anything is created: another job may be writing it.
        let output = if separate { None } else { take_output(&replay.spec, home)? };
        if replay.spec.replays.is_some() {
            check_output(&job).await?;
        }
        let key = if separate { String::new() } else { key(&job_id) };
        let (id, store, turn) = jobs.create(&replay.spec.name, &key, replay.spec.durability).await?;
        let Replay { spec, plan, items } = replay.named(id, separate, &store)?;
        let schemas = job.store.schemas().await.context("read the plan")?;
        let lock = home.try_lock_job(&spec.job_id)?.context("a new job is already locked")?;
        let output = if separate { take_output(&spec, home)? } else { output };
        describe(&store, &spec, &schemas, &plan, Some(items)).await?;
        let locks = Locks::new(home, lock, output, &spec.job_id)?;
        drop(turn);
        let execution =
            Execution { resumed: false, ..Execution::resume(FoundJob::new(store, spec), home, self.settings()) };
        self.execute(execution, locks, stop, events).await
    }

    /// Creates a replay of a job of a compute target, or of the last replay of that job, or
    /// continues one that has not ended. The script is that of this machine, if its folder is here.
    pub async fn replay_on(
        &self,
        wanted: &str,
        options: &ReplayOptions,
        target: &Target,
        events: &Events,
    ) -> crate::Result<Retry> {
        let separate = options.separate;
        let target_store = target.open_store().await?;
        let jobs = target.jobs(target_store.clone());
        let mut job = jobs.find(wanted, For::Look).await?;
        while let Some(next) = if separate { None } else { jobs.replay_of(&job).await? } {
            match &next.result {
                None => {
                    options.begins_anew(&next, &jobs)?;
                    return self.retry_on(&next.spec.job_id, Republish::Missing, target, events).await;
                }
                // It would run the script that it has packed.
                Some(_) if !has_completed(&next) => break,
                Some(_) => job = next,
            }
        }
        let mut replay = jobs.rejects_of(&job, options).await?;
        let has_script = replay.spec.snapshots.source.is_some()
            && replay.spec.source_directory.as_path().join(&replay.spec.entry_script).is_file();
        if has_script {
            job_file::renew_script(&mut replay.spec);
            self.check_script(&replay.spec, true, events)?;
        }
        let (id, store, _) = jobs.create(&replay.spec.name, "", replay.spec.durability).await?;
        let Replay { mut spec, plan, items } = replay.named(id, separate, &store)?;
        if has_script {
            send_snapshots(&mut spec, &target_store, self.home(), target.queue()?, events).await?;
        }
        let schemas = job.store.schemas().await.context("read the plan")?;
        describe(&store, &spec, &schemas, &plan, Some(items)).await?;
        jobs.check_has_script(&spec, &job.spec.job_id).await?;
        self.open_planned(store, spec, target_store, target, events).await
    }
}

impl ReplayOptions {
    /// Whether a replay that has not completed stays as it is, because it was canceled and ran another script. An error: it
    /// has not ended.
    fn begins_anew(&self, replay: &FoundJob, jobs: &Jobs) -> crate::Result<bool> {
        let begun_with = replay.spec.source_directory.as_path();
        match &self.source_directory {
            Some(folder) if !is_same(folder, begun_with) => match &replay.result {
                Some(_) => Ok(true),
                None => {
                    let (job_id, target) = (replay.spec.job_id.clone(), jobs.target().clone());
                    Err(Error::OtherScript { job_id, folder: begun_with.to_owned(), target })
                }
            },
            _ => Ok(false),
        }
    }
}

impl Jobs {
    /// Returns what a replay of a job runs, or why it cannot run.
    async fn rejects_of(&self, job: &FoundJob, options: &ReplayOptions) -> crate::Result<Replay> {
        let ReplayOptions { separate, source_directory } = options;
        let job_id = &job.spec.job_id;
        let (id, target) = (|| job_id.clone(), || self.target().clone());
        let Some(result) = &job.result else {
            return Err(Error::NotEnded { job_id: id(), target: target() });
        };
        let ended = result.mini_batches.ended();
        let is_planned = job.store.plan_complete().await?.is_some_and(|plan| plan.mini_batches == ended);
        let mut rejects = Rejects::find(&job.store, job_id).await.with_context(|| format!("read job {job_id}"))?;
        // What earlier replays of the same output have left out.
        let left_before: Vec<_> = job.spec.notes.iter().filter(|note| note.starts_with(LEAVES_OUT)).cloned().collect();
        if rejects.mini_batches() == 0 && is_planned {
            let left_out = left_before.iter().filter_map(|note| note.strip_prefix(LEAVES_OUT));
            return Err(Error::NothingToReplay { job_id: id(), left_out: left_out.map(str::to_owned).collect() });
        }
        if !is_planned {
            return Err(Error::NotAllEnded { job_id: id(), target: target() });
        }
        let merges = !*separate && job.spec.output.action == OutputAction::AppendRow;
        let mut plan = Vec::new();
        let (mut items, mut unread, mut unnamed) = (0, 0, 0);
        loop {
            let mini_batches = rejects.next().await.with_context(|| format!("read job {job_id}"))?;
            if mini_batches.is_empty() {
                break;
            }
            for rejected in &mini_batches {
                let Attempt { succeeded, rejected: named, unread: records, pieces, .. } = &rejected.attempt;
                unread += records.iter().map(|record| record.records).sum::<u64>();
                unnamed += rejected.attempt.unnamed();
                if !rejected.can_be_replayed() {
                    continue;
                }
                if merges && *succeeded > 0 && !named.is_empty() && pieces.is_empty() {
                    return Err(Error::NoPlaceInOutput { job_id: id(), target: target() });
                }
                let again = || {
                    check_items(rejected.descriptor.as_ref(), rejected.attempt.mini_batch)?;
                    rejected.replay(job.spec.replays.is_some())
                };
                let again = again().with_context(|| format!("replay job {job_id}"))?;
                items += again.items;
                plan.extend(again.plan);
            }
        }
        let left = left_out(unread, unnamed);
        if plan.is_empty() {
            return Err(Error::NothingToReplay { job_id: id(), left_out: left });
        }
        let without = match merges {
            true => job_without_rows(&job.store, job_id).await.map_err(|error| {
                let remedy = Remedy::ReplaySeparately { job_id: id(), target: target(), or: Separate::Only };
                Fixable::caused(format!("the rejects of job {job_id} cannot join its output"), remedy, error)
            })?,
            false => None,
        };
        if let Some(without) = without {
            return Err(Error::NoRowsBesideOutput { job_id: id(), without, target: target() });
        }
        check_inputs(&plan, job_id, matches!(self, Self::Here(_)))?;
        let mut spec = job.spec.clone();
        if let Some(folder) = source_directory {
            take_script(&mut spec, folder)?;
        }
        spec.replays = merges.then(|| job_id.clone());
        spec.replays_run = merges.then(|| rejects.times_reopened());
        spec.notes =
            vec![format!("replays {} of job {job_id}, which does not change", counted(items, "rejected item"))];
        spec.notes.extend(left_before);
        spec.notes.extend(left.into_iter().map(|left| format!("{LEAVES_OUT}{left}")));
        spec.description = format!("The rejected items of job {job_id}, run again.");
        spec.name = name_of_replay(&spec.name);
        // No later run continues or reuses it.
        spec.fingerprint.clear();
        spec.allow_reuse = false;
        Ok(Replay { spec, plan, items })
    }
}

impl Replay {
    /// Returns it as the job with this id.
    fn named(mut self, id: String, separate: bool, store: &storage::JobStore) -> Result<Self> {
        if separate {
            move_outputs(&mut self.spec, store)?;
        }
        for (number, descriptor) in (0..).zip(&mut self.plan) {
            (descriptor.job_id, descriptor.mini_batch) = (id.clone(), number);
        }
        self.spec.job_id = id;
        Ok(self)
    }
}

fn is_same(one: &Path, other: &Path) -> bool {
    one == other || matches!((one.canonicalize(), other.canonicalize()), (Ok(one), Ok(other)) if one == other)
}

/// Returns what a replay leaves out: records that could not be read, and items of mini-batches that do not name them.
fn left_out(unread: u64, unnamed: u64) -> Vec<String> {
    let unread = (unread > 0).then(|| {
        let records = counted(unread, "unreadable record");
        format!("{records}, whose places may change with the file: correct the input, and run the job again")
    });
    let unnamed = (unnamed > 0).then(|| {
        let items = counted(unnamed, "item");
        format!(
            "{items} without a result, which their mini-batches do not name: correct the script, and run the job again"
        )
    });
    unread.into_iter().chain(unnamed).collect()
}

/// Checks that the items of a mini-batch can run alone.
fn check_items(planned: Option<&Descriptor>, number: u64) -> Result<()> {
    let Some(planned) = planned else { bail!("its plan has no mini-batch {number}, or has been removed") };
    if !can_run_alone(planned) {
        bail!("mini-batch {number} has no items, only a number, so only a retry can run it again");
    }
    Ok(())
}

/// Checks that local files still exist, and that local tables are those that were planned: a replay runs a range of their
/// rows. Nodes check remote ones when they read them, and those that only they may see. `is_here`: the nodes are on
/// this machine.
fn check_inputs(plan: &[Descriptor], job_id: &str, is_here: bool) -> crate::Result<()> {
    let mut versions: HashMap<PathBuf, Option<FileVersion>> = HashMap::new();
    let changed = |path: PathBuf, change, consequence| Error::InputChanged {
        job_id: job_id.to_owned(),
        path,
        change,
        consequence,
    };
    let mut version = |path: &ItemPath| -> crate::Result<Option<FileVersion>> {
        let path = path.as_path().to_owned();
        if let Some(known) = versions.get(&path) {
            return Ok(known.clone());
        }
        let found = match std::fs::metadata(&path) {
            Ok(metadata) if metadata.is_dir() => {
                return Err(changed(path, Change::IsFolder, NOT_REPLAYED));
            }
            Ok(metadata) => Some(FileVersion::of_file(&metadata)),
            Err(error) if !is_here && error.kind() == ErrorKind::NotFound => None,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(changed(path, Change::Removed, NOT_REPLAYED));
            }
            Err(error) => return Err(error).with_context(|| format!("read {}", path.display()))?,
        };
        versions.insert(path, found.clone());
        Ok(found)
    };
    for descriptor in plan {
        match &descriptor.work {
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
                        return Err(changed(block.path.as_path().to_owned(), Change::Changed, consequence));
                    }
                }
            }
            Work::Rank | Work::Planned { .. } => {}
        }
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
            let plan = [Descriptor::new("first", 0, work)];
            check_inputs(&plan, "first", false).expect("it may be on the nodes");
            let refused = check_inputs(&plan, "first", true).expect_err("it is nowhere");
            assert!(refused.to_string().contains("t.csv has been removed since job first was planned"));
        }
        std::fs::write(&file, "id\n").expect("writable");
        let plan = [Descriptor::new("first", 0, rows(Some(other)))];
        let refused = check_inputs(&plan, "first", false).expect_err("it is here, and has changed");
        assert!(refused.to_string().contains("t.csv has changed since job first was planned"));
    }

    #[test]
    fn file_that_has_become_a_folder_is_refused() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let paths = vec![folder.path().into()];
        let files = Work::Files { input: 0, paths, versions: vec![], stamps: vec![], key: vec![] };
        let refused = check_inputs(&[Descriptor::new("first", 0, files)], "first", true).expect_err("no file");
        assert!(refused.to_string().contains("has become a folder since job first"), "{refused:#}");
    }

    #[test]
    fn mini_batch_without_items_is_refused() {
        let rank = Descriptor::new("first", 7, Work::Rank);
        let refused = check_items(Some(&rank), 7).expect_err("no items");
        assert!(refused.to_string().contains("only a retry"));
        assert!(check_items(None, 7).is_err());
    }
}
