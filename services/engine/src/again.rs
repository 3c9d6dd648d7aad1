//! Runs one mini-batch of a job again, as a job of its own: the same items and settings, the same script or that of
//! another folder, another output. The first job does not change.

use std::path::Path;

use anyhow::{Context, Result, bail};
use protocol::{
    Descriptor, Durability, ErrorThresholds, ItemPath, JobResult, JobSpec, PlanPosition, TableSchema, Work,
};
use storage::{JobStore, PlanComplete};
use worker::replace_paths;

use crate::execute::Execution;
use crate::run::{Locks, take_output};
use crate::submit::send_snapshots;
use crate::targets::Target;
use crate::{Engine, Error, Events, For, FoundJob, Jobs, Lock, Retry, StopRequest, name_with, new_job_id};

/// Maximum number of ids to try where machines share a store.
const IDS_MAX: usize = 5;

/// A job of one mini-batch of another job, without its specification, so that no command finds it.
struct Alone {
    from: String,
    spec: JobSpec,
    store: JobStore,
    schemas: Vec<Option<TableSchema>>,
    descriptor: Descriptor,
    /// Held until the job is written, so that no clean-up removes it.
    turn: Option<Lock>,
}

impl Engine {
    /// Runs one mini-batch of a job of this machine again, in a job of its own: see [`Jobs::describe_again`].
    /// `source_directory`: a folder that replaces that of the entry script.
    pub async fn run_again(
        &self,
        wanted: &str,
        mini_batch: u64,
        source_directory: Option<&Path>,
        stop: &StopRequest,
        events: &Events,
    ) -> crate::Result<JobResult> {
        let (home, jobs) = (self.home(), self.jobs());
        let job = jobs.with_script(wanted, source_directory).await?;
        self.check_script(&job.spec, false, events)?;
        self.check_gpus(&job.spec)?;
        let alone = jobs.alone(job, mini_batch).await?;
        let lock = home.try_lock_job(&alone.spec.job_id)?.context("a new job is already locked")?;
        let output = take_output(&alone.spec, home)?;
        jobs.write(&alone).await?;
        let Alone { spec, store, turn, .. } = alone;
        let locks = Locks::new(home, lock, output, &spec.job_id)?;
        drop(turn);
        let execution =
            Execution { resumed: false, ..Execution::resume(FoundJob::new(store, spec), home, self.settings()) };
        self.execute(execution, locks, stop, events).await
    }

    /// Creates a job of one mini-batch of a job of a compute target, and opens it. Its script is the one that
    /// was sent with that job, unless `source_directory` replaces it.
    pub async fn run_again_on(
        &self,
        wanted: &str,
        mini_batch: u64,
        source_directory: Option<&Path>,
        target: &Target,
        events: &Events,
    ) -> crate::Result<Retry> {
        let store = target.open_store().await?;
        let jobs = target.jobs(store.clone());
        let job = jobs.with_script(wanted, source_directory).await?;
        if source_directory.is_some() {
            self.check_script(&job.spec, true, events)?;
        }
        let mut alone = jobs.alone(job, mini_batch).await?;
        if source_directory.is_some() {
            send_snapshots(&mut alone.spec, &store, self.home(), target.queue()?, events).await?;
        }
        jobs.write(&alone).await?;
        let Alone { spec, store: job, .. } = alone;
        self.open_planned(job, spec, store, target, events).await
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

    /// Works like [`Self::descriptor`], with an error that says what is missing.
    pub(crate) async fn planned(&self, mini_batch: u64) -> crate::Result<Descriptor> {
        if let Some(descriptor) = self.descriptor(mini_batch).await {
            return Ok(descriptor);
        }
        let job_id = self.spec.job_id.clone();
        match self.descriptor(0).await {
            Some(_) => Err(Error::NoSuchMiniBatch { job_id, mini_batch }),
            None => Err(Error::NoPlan { job_id }),
        }
    }
}

impl Jobs {
    /// Creates a job of one mini-batch of another job, beside that job, and returns its id. `retry` starts it.
    ///
    /// It has the settings of the other job, one try, and an output in its own folder. Files are read as they are now; a
    /// table must be as it was planned, because the mini-batch is a range of its rows.
    pub async fn describe_again(&self, wanted: &str, mini_batch: u64) -> crate::Result<String> {
        let alone = self.alone(self.with_script(wanted, None).await?, mini_batch).await?;
        self.write(&alone).await?;
        Ok(alone.spec.job_id)
    }

    /// Finds a job, with the script as it is now, or that of another folder.
    async fn with_script(&self, wanted: &str, source_directory: Option<&Path>) -> crate::Result<FoundJob> {
        let mut job = self.find(wanted, For::Look).await?;
        if let Some(folder) = source_directory {
            take_script(&mut job.spec, folder)?;
        }
        // A target has packed the script, unless another replaces it.
        if matches!(self, Self::Here(_)) || source_directory.is_some() {
            job_file::renew_script(&mut job.spec);
        }
        Ok(job)
    }

    async fn alone(&self, job: FoundJob, mini_batch: u64) -> crate::Result<Alone> {
        let from = &job.spec.job_id;
        let mut descriptor = job.planned(mini_batch).await?;
        if !can_run_alone(&descriptor) {
            return Err(Error::NoItems { job_id: from.clone(), mini_batch });
        }
        if let Work::Files { versions, stamps, .. } = &mut descriptor.work {
            versions.clear();
            stamps.clear();
        }
        let name = name_with(&job.spec.name, &format!("-{mini_batch}"));
        let (id, store, turn) = self.create(&name, "", job.spec.durability).await?;
        (descriptor.job_id, descriptor.mini_batch) = (id.clone(), 0);
        let schemas = job.store.schemas().await.context("read the plan")?;
        let spec = alone(&job.spec, id, name, mini_batch, &store)?;
        Ok(Alone { from: from.clone(), spec, store, schemas, descriptor, turn })
    }

    async fn write(&self, alone: &Alone) -> crate::Result<()> {
        let Alone { from, spec, store, schemas, descriptor, .. } = alone;
        let items = match &descriptor.work {
            Work::Files { paths, .. } => Some(paths.len() as u64),
            _ => None,
        };
        describe(store, spec, schemas, std::slice::from_ref(descriptor), items).await?;
        self.check_has_script(spec, from).await
    }

    /// Creates the place of a new job. Returns its id, its objects, and the lock of the home until it is described.
    /// `key`: how the index of this machine finds it, besides its name.
    pub(crate) async fn create(
        &self,
        name: &str,
        key: &str,
        durability: Durability,
    ) -> Result<(String, JobStore, Option<Lock>)> {
        match self {
            Self::Here(home) => {
                let turn = home.lock()?;
                let id = new_job_id(name);
                home.index()?.add(key, name, &id, durability)?;
                let store = home.create_job(&id, durability)?;
                Ok((id, store, Some(turn)))
            }
            Self::There { .. } => {
                let id = self.unused_id(name).await?;
                let store = self.store(&id)?;
                Ok((id, store, None))
            }
        }
    }

    /// Fails if a compute target does not have the script of a described job any more, which is that of job `from`.
    pub(crate) async fn check_has_script(&self, spec: &JobSpec, from: &str) -> crate::Result<()> {
        match self {
            Self::There { store, target } if !store.has_snapshots(spec).await? => {
                Err(Error::ScriptRemoved { job_id: from.to_owned(), target: target.clone() })
            }
            _ => Ok(()),
        }
    }

    /// Returns an id that no job of the store has. Machines that share a store do not agree on ids.
    async fn unused_id(&self, name: &str) -> Result<String> {
        for _ in 0..IDS_MAX {
            let id = new_job_id(name);
            if matches!(self.store(&id)?.spec().await, Err(storage::Error::NotFound { .. })) {
                return Ok(id);
            }
        }
        Err(Error::TryAgain(format!("the store of {} does not answer; try again later", self.place())).into())
    }
}

/// Writes plan and specification of a job.
pub(crate) async fn describe(
    store: &JobStore,
    spec: &JobSpec,
    schemas: &[Option<TableSchema>],
    plan: &[Descriptor],
    items: Option<u64>,
) -> Result<()> {
    let mini_batches = plan.len() as u64;
    let complete = PlanComplete {
        mini_batches,
        items,
        files: items.unwrap_or(mini_batches),
        inputs_digest: String::new(),
        left_out: Default::default(),
    };
    let described = async {
        store.put_schemas(schemas).await?;
        for (number, chunk) in PlanPosition::divide(plan) {
            let mut lines = Vec::new();
            for descriptor in chunk {
                serde_json::to_writer(&mut lines, descriptor).expect("descriptors always serialise");
                lines.push(b'\n');
            }
            store.create_plan_chunk(number, lines.into()).await?;
        }
        store.put_plan_complete(&complete).await?;
        // Last, because a job without it does not exist.
        store.put_spec(spec).await
    };
    described.await.with_context(|| format!("write job {}", spec.job_id))
}

/// Returns whether the items of a mini-batch alone decide what it does.
pub fn can_run_alone(descriptor: &Descriptor) -> bool {
    match &descriptor.work {
        Work::Files { paths, .. } => !paths.is_empty(),
        Work::Rows { blocks, .. } => !blocks.is_empty(),
        Work::Rank | Work::Planned { .. } => false,
    }
}

/// Returns the specification of the job that runs one mini-batch of another job. Folders of the new job replace those that
/// the other job writes to, also in the arguments and variables of the script.
fn alone(spec: &JobSpec, job_id: String, name: String, mini_batch: u64, store: &JobStore) -> Result<JobSpec> {
    let mut alone = spec.clone();
    move_outputs(&mut alone, store)?;
    alone.description = format!("Mini-batch {mini_batch} of job {}, run again alone.", spec.job_id);
    alone.notes = vec![format!("runs mini-batch {mini_batch} of job {} again; that job does not change", spec.job_id)];
    (alone.job_id, alone.name) = (job_id, name);
    // No later run continues or reuses it.
    alone.fingerprint.clear();
    alone.allow_reuse = false;
    alone.run_max_try = 1;
    alone.thresholds = ErrorThresholds { error_threshold: 0, ..ErrorThresholds::default() };
    (alone.node_count, alone.process_count_per_node) = (Some(1), Some(1));
    Ok(alone)
}

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

/// Moves the folders that a job writes to into its own folder, also in the arguments and variables of the script.
pub(crate) fn move_outputs(spec: &mut JobSpec, store: &JobStore) -> Result<()> {
    let mut moved: Vec<(String, String)> = Vec::new();
    let mut move_to = |folder: &mut ItemPath, to: String| -> Result<()> {
        let Ok(from) = String::from_utf8(folder.as_bytes().to_vec()) else {
            bail!("{} is not valid UTF-8, so the arguments of the script cannot name another folder", folder.display())
        };
        *folder = ItemPath::from(to.as_str());
        moved.push((from.trim_end_matches('/').to_owned(), to));
        Ok(())
    };
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
