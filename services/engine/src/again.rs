//! Runs one mini-batch of a job again, as a job of its own: the same items, script and settings, another output. The first
//! job does not change.

use anyhow::{Context, Result, bail};
use protocol::{
    Descriptor, Durability, ErrorThresholds, ItemPath, JobSpec, PLAN_CHUNK_MINI_BATCHES, PlanPosition, TableSchema,
    Work,
};
use storage::{JobStore, PlanComplete};
use worker::replace_paths;

use crate::{For, FoundJob, Jobs, Lock, name_with, new_job_id};

/// Maximum number of ids to try where machines share a store.
const IDS_MAX: usize = 5;

impl FoundJob {
    /// Returns a mini-batch as it was planned. `None`: the plan has been removed, or does not contain it yet.
    pub async fn descriptor(&self, mini_batch: u64) -> Option<Descriptor> {
        let PlanPosition { chunk, line } = PlanPosition::of(mini_batch);
        let chunk = self.store.plan_chunk(chunk).await.ok()?;
        let line = chunk.split(|byte| *byte == b'\n').nth(usize::try_from(line).ok()?)?;
        serde_json::from_slice(line).ok()
    }
}

impl Jobs {
    /// Creates a job of one mini-batch of another job, beside that job, and returns its id. `retry` starts it.
    ///
    /// It has the settings of the other job, one try, and an output in its own folder. Files are read as they are now; a
    /// table must be as it was planned, because the mini-batch is a range of its rows.
    pub async fn describe_again(&self, wanted: &str, mini_batch: u64) -> Result<String> {
        let job = self.find(wanted, For::Look).await?;
        let from = &job.spec.job_id;
        let Some(mut descriptor) = job.descriptor(mini_batch).await else {
            bail!("the plan of job {from} has no mini-batch {mini_batch}, or has been removed; run the whole job again")
        };
        if !can_run_alone(&descriptor) {
            bail!("mini-batch {mini_batch} of job {from} has no items, only a number, and cannot run alone");
        }
        if let Work::Files { versions, stamps, .. } = &mut descriptor.work {
            versions.clear();
            stamps.clear();
        }
        let items = match &descriptor.work {
            Work::Files { paths, .. } => Some(paths.len() as u64),
            _ => None,
        };
        let name = name_with(&job.spec.name, &format!("-{mini_batch}"));
        let (id, store, _turn) = self.create(&name, "", job.spec.durability).await?;
        let spec = alone(&job.spec, id.clone(), name, mini_batch, &store)?;
        (descriptor.job_id, descriptor.mini_batch) = (id.clone(), 0);
        let schemas = job.store.schemas().await.context("read the plan")?;
        describe(&store, &spec, &schemas, &[descriptor], items).await?;
        self.open(&spec, from).await?;
        Ok(id)
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

    /// Lets the roles of a compute target find a described job, which has the script of job `from`.
    pub(crate) async fn open(&self, spec: &JobSpec, from: &str) -> Result<()> {
        if let Self::There { store, .. } = self {
            if !store.has_snapshots(spec).await? {
                bail!("the target has removed the script of job {from}; enqueue its job file again");
            }
            store.mark_open(&spec.job_id).await?;
        }
        Ok(())
    }

    /// Returns an id that no job of the store has. Machines that share a store do not agree on ids.
    async fn unused_id(&self, name: &str) -> Result<String> {
        for _ in 0..IDS_MAX {
            let id = new_job_id(name);
            if matches!(self.store(&id)?.spec().await, Err(storage::Error::NotFound { .. })) {
                return Ok(id);
            }
        }
        bail!("the store of {} does not answer; try again later", self.place())
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
        for (number, chunk) in (0..).zip(plan.chunks(PLAN_CHUNK_MINI_BATCHES as usize)) {
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
