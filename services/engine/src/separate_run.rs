//! Runs a part of a job as a separate job: one mini-batch, or the rejected items. It has the same
//! items and settings, the same script or that of another folder, and another output. The first job
//! does not change.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use protocol::words::counted;
use protocol::{
    Attempt, Descriptor, ErrorThresholds, ItemPath, JobResult, JobSpec, Kept, PlanPosition,
    Replaceable, Rerun, Work,
};
use reducer::Rejects;
use storage::{JobStore, PlanComplete};
use worker::replace_paths;

use crate::execute::Execution;
use crate::retry::open_job;
use crate::round::{check_input, check_script_is_there, take_script};
use crate::run::{Locks, lock_output};
use crate::submit::send_snapshots;
use crate::{
    Busy, Engine, Error, Events, Fixable, FoundJob, Jobs, Purpose, Remedy, StopRequest, Submission,
    Target, name_with, new_job_id,
};

/// The part of the names of the objects that list the items to run.
const OBJECT: &str = "separate";
/// End of the names of jobs that run rejected items.
const SUFFIX: &str = "-rejects";

/// The part of a job that a separate job runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeparateRun {
    /// One mini-batch, with one try, whether or not it failed.
    MiniBatch(u64),
    /// The rejected items, and all items of failed mini-batches.
    Rejects,
}

/// A part of a job, as the plan of a separate job.
#[derive(Default)]
struct PlanExcerpt {
    plan: Vec<Descriptor>,
    /// The items to run, of mini-batches that run in part.
    kept: BTreeMap<u64, Kept>,
    /// Its content and its omissions, for people.
    notes: Vec<String>,
}

impl PlanExcerpt {
    fn add(&mut self, planned: Descriptor, kept: Option<Kept>) {
        let number = self.plan.len() as u64;
        let name = kept.is_some().then(|| Kept::name(number, OBJECT));
        self.kept.extend(kept.map(|kept| (number, kept)));
        let shown_as = planned.shown_as.or(Some(planned.mini_batch));
        let descriptor =
            Descriptor { again: None, shown_as, ..Descriptor::new("", number, planned.work) };
        self.plan.push(descriptor.run_again(Some(Rerun { round: 0, kept: name })));
    }

    /// Returns the number of items, if it is known.
    fn items(&self) -> Option<u64> {
        let items = |descriptor: &Descriptor| match self.kept.get(&descriptor.mini_batch) {
            Some(kept) => Some(kept.items()),
            None => descriptor.items(),
        };
        self.plan.iter().map(items).sum()
    }
}

impl Engine {
    /// Runs a part of a job of this machine in a job of its own. `source_directory`: a folder that replaces that of the entry
    /// script.
    pub async fn run_separately(
        &self,
        wanted: &str,
        separate_run: SeparateRun,
        source_directory: Option<&Path>,
        stop: &StopRequest,
        events: &Events,
    ) -> crate::Result<JobResult> {
        let (home, jobs) = (self.home(), self.jobs());
        let job = jobs.with_script(wanted, source_directory).await?;
        self.check_script(&job.spec, false, events)?;
        self.check_gpus(&job.spec)?;
        let job = jobs.describe(job, separate_run).await?;
        let lock = home.try_lock_job(&job.spec.job_id)?.context("a new job is already locked")?;
        let locks = Locks::new(home, lock, lock_output(&job.spec, home)?, &job.spec.job_id)?;
        self.execute(Execution::new(job, self), locks, stop, events).await
    }

    /// Creates a job that runs a part of a job of a compute target, and opens it. Its script is the one that was sent with
    /// that job, unless `source_directory` replaces it.
    pub async fn run_separately_on(
        &self,
        wanted: &str,
        separate_run: SeparateRun,
        source_directory: Option<&Path>,
        target: &Target,
        events: &Events,
    ) -> crate::Result<Box<Submission>> {
        let store = target.open_store().await?;
        let jobs = target.jobs(store.clone());
        let mut job = jobs.with_script(wanted, source_directory).await?;
        if source_directory.is_some() {
            self.check_script(&job.spec, true, events)?;
            send_snapshots(&mut job.spec, &store, self.home(), target.queue()?, events).await?;
        }
        open_job(jobs.describe(job, separate_run).await?, store, target, events).await
    }
}

impl FoundJob {
    /// Returns a mini-batch as it was planned. `None`: the plan has been removed, or does not contain it yet.
    pub async fn descriptor(&self, mini_batch: u64) -> Option<Descriptor> {
        let PlanPosition { chunk, line } = PlanPosition::of(mini_batch);
        let chunk = self.store.plan_chunk(chunk).await.ok()?;
        let line = chunk.split(|byte| *byte == b'\n').nth(usize::try_from(line).ok()?)?;
        serde_json::from_slice(line).ok()
    }

    /// Works like [`Self::descriptor`], with an error that names the missing part.
    pub(crate) async fn planned(&self, mini_batch: u64) -> crate::Result<Descriptor> {
        if let Some(descriptor) = self.descriptor(mini_batch).await {
            return Ok(descriptor);
        }
        let job_id = &self.spec.job_id;
        if self.descriptor(0).await.is_none() {
            return Err(Error::Refused(format!(
                "the plan of job {job_id} has been removed, or is not written yet; run the whole job again"
            )));
        }
        let others = match self.store.plan_complete().await?.map(|plan| plan.mini_batches) {
            None => "it is not complete yet".to_owned(),
            Some(0) => "it has none".to_owned(),
            Some(1) => "it has only mini-batch 0".to_owned(),
            Some(count) => format!("it has mini-batches 0 to {}", count - 1),
        };
        Err(Error::Refused(format!(
            "the plan of job {job_id} has no mini-batch {mini_batch}; {others}"
        )))
    }
}

impl Jobs {
    /// Creates a job that runs a part of another job, and returns its id. `retry` starts it.
    ///
    /// It has the settings of the other job, and an output in its own folder. Files are read as they are now; a table must be
    /// as it was planned, because a mini-batch is a range of its rows.
    pub async fn describe_separate_run(
        &self,
        wanted: &str,
        separate_run: SeparateRun,
    ) -> crate::Result<String> {
        let job = self.with_script(wanted, None).await?;
        Ok(self.describe(job, separate_run).await?.spec.job_id)
    }

    /// Finds a job, with its current script, or that of another folder.
    async fn with_script(
        &self,
        wanted: &str,
        source_directory: Option<&Path>,
    ) -> crate::Result<FoundJob> {
        let mut job = self.find(wanted, Purpose::Look).await?;
        take_script(&mut job.spec, source_directory)?;
        // A target has packed the script, unless another replaces it.
        if matches!(self, Self::Here(_)) || source_directory.is_some() {
            check_script_is_there(&job.spec)?;
            job_file::renew_script(&mut job.spec);
        }
        Ok(job)
    }

    /// Creates a job that runs a part of `job`, with the script of `job`. Fails if a compute target has removed that script.
    async fn describe(&self, job: FoundJob, separate_run: SeparateRun) -> crate::Result<FoundJob> {
        let from = job.spec.job_id.clone();
        let (mut excerpt, name, description) = match separate_run {
            SeparateRun::MiniBatch(mini_batch) => {
                let planned = job.planned(mini_batch).await?;
                check_items(&planned, mini_batch, &from)?;
                let note = format!(
                    "runs mini-batch {mini_batch} of job {from} again; that job does not change"
                );
                let mut excerpt = PlanExcerpt { notes: vec![note], ..PlanExcerpt::default() };
                let kept = planned_items(&job, &planned).await?;
                excerpt.add(planned, kept);
                let name = name_with(&job.spec.name, &format!("-{mini_batch}"));
                (excerpt, name, format!("Mini-batch {mini_batch} of job {from}, run again alone."))
            }
            SeparateRun::Rejects => {
                let name = name_with(job.spec.name.trim_end_matches(SUFFIX), SUFFIX);
                let description = format!("The rejected items of job {from}, run again.");
                (self.rejects_of(&job).await?, name, description)
            }
        };
        let (id, durability) = (new_job_id(&name), job.spec.durability);
        let (store, _turn) = match self {
            Self::Here(home) => {
                // Until the job is described, so that no clean-up removes it.
                let turn = home.lock()?;
                // Without a fingerprint, no later run finds it.
                home.index()?.add("", &name, &id, durability)?;
                (home.create_job(&id, durability)?, Some(turn))
            }
            Self::There { .. } => (self.store(&id)?, None),
        };
        excerpt.plan.iter_mut().for_each(|descriptor| descriptor.job_id.clone_from(&id));
        let schemas = job.store.schemas().await.context("read the plan")?;
        let mut spec = job.spec.clone();
        move_outputs(&mut spec, &store)?;
        (spec.job_id, spec.name) = (id, name);
        // No later run continues or reuses it.
        spec.fingerprint.clear();
        spec.allow_reuse = false;
        spec.description = description;
        spec.notes.clone_from(&excerpt.notes);
        if let SeparateRun::MiniBatch(_) = separate_run {
            spec.run_max_try = 1;
            spec.thresholds = ErrorThresholds { error_threshold: 0, ..ErrorThresholds::default() };
            (spec.node_count, spec.process_count_per_node) = (Some(1), Some(1));
        }
        let (mini_batches, items) = (excerpt.plan.len() as u64, excerpt.items());
        let files = items.unwrap_or(mini_batches);
        let complete = PlanComplete { mini_batches, items, files, ..PlanComplete::default() };
        let written = async {
            for (number, kept) in &excerpt.kept {
                store.put_part(&Kept::name(*number, OBJECT), kept.encode(b"").into()).await?;
            }
            store.put_schemas(&schemas).await?;
            for (number, chunk) in PlanPosition::divide(&excerpt.plan) {
                let mut lines = Vec::new();
                for descriptor in chunk {
                    serde_json::to_writer(&mut lines, descriptor)
                        .expect("descriptors always serialise");
                    lines.push(b'\n');
                }
                store.create_plan_chunk(number, lines.into()).await?;
            }
            store.put_plan_complete(&complete).await?;
            // Last, because a job without it does not exist.
            store.put_spec(&spec).await
        };
        written.await.with_context(|| format!("write job {}", spec.job_id))?;
        match self {
            Self::There { store, target } if !store.has_snapshots(&spec).await? => {
                let problem = format!("the target has removed the script of job {from}");
                Err(Fixable::error(problem, Remedy::RunAgain(target.clone())).into())
            }
            _ => Ok(FoundJob::new(store, spec)),
        }
    }

    /// Returns the rejected items of an ended job, or the reason why none can run.
    async fn rejects_of(&self, job: &FoundJob) -> crate::Result<PlanExcerpt> {
        let job_id = job.spec.job_id.clone();
        if job.result.is_none() {
            if !self.is_abandoned(&job_id)? {
                return Err(Busy::Running(job_id).into());
            }
            let problem = format!("job {job_id} has not ended");
            let remedy = Remedy::Retry { job_id, target: self.target().clone() };
            return Err(Fixable::error(problem, remedy).into());
        }
        let read = || format!("read job {job_id}");
        let mut rejects = Rejects::find(&job.store, &job_id).await.with_context(read)?;
        let mut excerpt = PlanExcerpt::default();
        let (mut items, mut unread, mut unnamed) = (0, 0, 0);
        loop {
            let mini_batches = rejects.next().await.with_context(read)?;
            if mini_batches.is_empty() {
                break;
            }
            for rejected in mini_batches {
                let Attempt { mini_batch, total, unread: records, .. } = &rejected.attempt;
                unread += records.iter().map(|record| record.records).sum::<u64>();
                unnamed += rejected.attempt.unnamed();
                if !rejected.can_run_again() {
                    continue;
                }
                let planned = rejected.descriptor.as_ref().with_context(|| {
                    format!("the plan of job {job_id} has no mini-batch {mini_batch}, or has been removed")
                })?;
                check_items(planned, *mini_batch, &job_id)?;
                check_input(planned, &job_id, matches!(self, Self::Here(_)))?;
                let kept = match rejected.is_rejected_whole() {
                    true => planned_items(job, planned).await?,
                    false => Some(Kept {
                        ranges: rejected.rejected_ranges(),
                        is_separate: true,
                        ..Kept::default()
                    }),
                };
                items += kept.as_ref().map_or((*total).max(1), Kept::items);
                excerpt.add(planned.clone(), kept);
            }
        }
        let left = left_out(unread, unnamed);
        if excerpt.plan.is_empty() {
            return Err(Error::Refused(match &left[..] {
                [] => format!("job {job_id} has no rejected items: nothing runs again"),
                left => format!("job {job_id} has no rejects but {}", left.join("; and ")),
            }));
        }
        let items = counted(items, "rejected item");
        excerpt.notes =
            vec![format!("runs {items} of job {job_id} again; that job does not change")];
        excerpt.notes.extend(left.into_iter().map(|left| format!("does not run {left}")));
        Ok(excerpt)
    }
}

/// Returns the items that a mini-batch of a separate job runs; `None`: all.
async fn planned_items(job: &FoundJob, planned: &Descriptor) -> Result<Option<Kept>> {
    let Some(name) = planned.again.as_ref().and_then(|again| again.kept.as_ref()) else {
        return Ok(None);
    };
    let content = job.store.part(name).await.with_context(|| format!("read parts/{name}"))?;
    let (kept, _) = Kept::decode(&content).with_context(|| format!("read parts/{name}"))?;
    Ok(Some(kept))
}

/// Returns the rejects that cannot run: unreadable records, and items that their mini-batches do
/// not name.
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

/// Returns whether the result of a mini-batch depends only on its items.
pub fn can_run_alone(descriptor: &Descriptor) -> bool {
    match &descriptor.work {
        Work::Files { paths, .. } => !paths.is_empty(),
        Work::Rows { blocks, .. } => !blocks.is_empty(),
        Work::Rank | Work::Planned { .. } => false,
    }
}

/// Rejects a mini-batch that consists of a number, which only the whole job can run.
fn check_items(planned: &Descriptor, mini_batch: u64, job_id: &str) -> crate::Result<()> {
    match can_run_alone(planned) {
        true => Ok(()),
        false => Err(Error::Refused(format!(
            "mini-batch {mini_batch} of job {job_id} has no items, only a number, and cannot run alone"
        ))),
    }
}

/// Moves the folders that a job writes to into its own folder, also in the arguments and variables of the script.
fn move_outputs(spec: &mut JobSpec, store: &JobStore) -> Result<()> {
    let mut moved: Vec<(String, String)> = Vec::new();
    let mut move_to = |folder: &mut ItemPath, to: String| -> Result<()> {
        let Ok(from) = String::from_utf8(folder.as_bytes().to_vec()) else {
            bail!(
                "{} is not valid UTF-8, so the arguments of the script cannot name another folder",
                folder.display()
            )
        };
        *folder = ItemPath::from(to.as_str());
        moved.push((from.trim_end_matches('/').to_owned(), to));
        Ok(())
    };
    spec.output.replaceable = Replaceable::Anything;
    move_to(&mut spec.output.folder, store.shown("output"))?;
    for (key, folder) in &mut spec.outputs {
        move_to(folder, store.shown(&format!("outputs/{key}")))?;
    }
    moved.retain(|(from, _)| !from.is_empty());
    // Longest first, because one may contain another.
    moved.sort_by_key(|(from, _)| std::cmp::Reverse(from.len()));
    let texts = spec.argv.iter_mut().chain(spec.environment_variables.values_mut());
    texts.for_each(|text| *text = replace_paths(text, &moved));
    Ok(())
}
