//! Submits a job to a compute target, or continues it there.
//!
//! The order matters: upload snapshots and inputs, describe the job, mark it as open, tell the caller its id, and only then
//! plan. A retry continues after an interruption at any of these steps once the job is described. Reducers publish the plan,
//! chunk by chunk, once the schedule has admitted the job.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use job_file::Parsed;
use partitioner::{Inputs, Partitioner};
use protocol::{
    Durability, Environment, ItemPath, JobSpec, LABEL_LENGTH_MAX, ReachedQuota, Snapshot,
    WaitingJob, WaitsFor, WhenFull, is_label,
};
use queue::{Message, Queue};
use storage::{JobStore, PlanComplete, Source, TargetStore};
use tokio_util::task::AbortOnDropHandle;

use crate::ended::replaceable;
use crate::execute::make_output_folder;
use crate::fit::warn_of_workers;
use crate::functions;
use crate::own_paths::{own_paths, set_aside};
use crate::{
    Blocker, Busy, Engine, Error, Events, Fixable, Home, Jobs, Notice, QueueAddress, Queues,
    Remedy, Target, new_job_id, newest_first, reuse,
};

/// A node's own deadline comes this long before that of its lease.
const LEASE_MARGIN: Duration = Duration::from_secs(5);
/// The number of times that snapshots are sent which a concurrent clean-up of the target removes.
const SENDS_MAX: usize = 3;
const PATHS_NAMED_MAX: usize = 3;
/// Time between two heartbeats of a process that plans or publishes.
pub(crate) const HEARTBEAT_EVERY: Duration = Duration::from_secs(4);

/// A job that is described in the store of its target and not yet published.
#[derive(Debug)]
pub struct Submission {
    /// The store of the target.
    pub store: TargetStore,
    /// The objects of the job.
    pub job: JobStore,
    /// Its specification.
    pub spec: JobSpec,
    /// The queues of the target.
    pub queues: Queues,
    /// The target itself.
    pub target: Target,
    pub(crate) listings: Inputs,
}

/// The effect of planning.
#[derive(Debug)]
pub enum PlannedJob {
    /// The plan is complete.
    All(PlanComplete),
    /// The job cannot be planned, for this cause, which the reducers know.
    Never(String),
}

impl Engine {
    /// Checks the job against the limits of the target, uploads its snapshots, and describes it in
    /// the store of the target. `create_queues`: creates missing SQS queues. `refuses_when_full`:
    /// rejects a job that would have to wait for a quota with [`Busy::Full`], as quotas may demand
    /// for all jobs.
    pub async fn submit(
        &self,
        parsed: Parsed,
        target: &Target,
        create_queues: bool,
        refuses_when_full: bool,
        events: &Events,
    ) -> crate::Result<Submission> {
        let queues = match create_queues {
            true => target.open_queues(true).await?,
            false => target.open_queues_to_work().await?,
        };
        let mut spec = parsed.spec;
        check_durability(&spec, target)?;
        // The queues of jobs have the limits of those of their target.
        check_lease(&spec, &*queues.control)?;
        if spec.owner.is_empty() {
            spec.owner = owner(self.settings().user.as_deref());
        }
        let address = target.queue()?;
        let store = target.open_store().await?;
        store.create().context("create the store of the target")?;
        let (full, when_full) = full(&store, &spec).await?;
        if let Some(full) = full.filter(|_| refuses_when_full || when_full == WhenFull::Refuse) {
            return Err(Busy::Full { target: target.reference(), full }.into());
        }
        spec.job_id = new_job_id(&spec.name);
        own_paths(&mut spec);
        let job = store.job(&spec.job_id);
        let is_here = target.is_on_this_machine(self.settings())?;
        let given = spec.inputs.clone();
        functions::send(&mut spec, &job, self.home(), is_here).await?;
        let inputs_digest = match spec.inputs == given {
            true => None,
            false => parsed.listings.digest(&JobSpec { inputs: given, ..spec.clone() }).await.ok(),
        };
        if !is_here {
            warn_of_local_paths(&spec, &job, address, events);
        }
        if spec.output.folder.as_bytes().is_empty() {
            // summary_only without an output folder: the script's own files need one.
            spec.output.folder = ItemPath::from(job.shown("output").as_str());
        }
        make_output_folder(&spec)?;
        let others = check_writers(&spec, &store, target).await?;
        let last = newest_first(others).into_iter().next();
        spec.output.replaceable = replaceable(&target.jobs(store.clone()), last).await;
        set_aside(&parsed.own_folders, events)?;
        for _ in 0..SENDS_MAX {
            send_snapshots(&mut spec, &store, self.home(), address, events).await?;
            // No later job reuses one whose script changed while it was packed.
            if !job_file::script_has_changed(&spec) {
                reuse::keep(&job, parsed.identity.clone(), inputs_digest.clone()).await?;
            }
            job.put_spec(&spec).await.with_context(|| format!("write job {}", spec.job_id))?;
            // A clean-up keeps the snapshots of this job from now on, and may have removed them a moment ago.
            if store.has_snapshots(&spec).await? {
                enter(&spec, &store, target).await?;
                let (target, listings) = (target.clone(), parsed.listings);
                return Ok(Submission { store, job, spec, queues, target, listings });
            }
        }
        let job_id = spec.job_id;
        Err(Error::Refused(format!(
            "a clean-up of the target removed the script of job {job_id} {SENDS_MAX} times; try again later"
        )))
    }
}

impl Submission {
    /// Returns the id of the job.
    pub fn job_id(&self) -> &str {
        &self.spec.job_id
    }

    /// Returns the jobs of the target.
    pub fn jobs(&self) -> Jobs {
        self.target.jobs(self.store.clone())
    }

    /// Plans the job, while reducers publish the planned chunks. After an error the job is open,
    /// and at most partly planned.
    pub async fn plan(&self) -> crate::Result<PlannedJob> {
        let Self { job, spec, .. } = self;
        let signing = job.clone();
        let _planning = show_life(move |heartbeat| {
            let job = signing.clone();
            async move { job.put_planning(heartbeat).await }
        });
        let partitioner =
            Partitioner::planning(spec.clone(), job.clone()).with_inputs(self.listings.clone());
        self.notify_reducers().await;
        let planned = partitioner.plan_only().await;
        self.notify_reducers().await;
        let error = match planned {
            Ok(complete) => return Ok(PlannedJob::All(complete)),
            Err(error) => error,
        };
        let Some(cause) =
            error.downcast_ref::<partitioner::Error>().map(|error| format!("{error:#}"))
        else {
            let problem = format!("job {} is not planned", spec.job_id);
            return Err(Fixable::caused(problem, self.remedy(), error).into());
        };
        job.put_plan_failure(&cause)
            .await
            .context("tell the reducers that the job cannot be planned")?;
        Ok(PlannedJob::Never(cause))
    }

    /// Wakes a reducer, so that it serves the job at once. Without the message, reducers find it within four seconds.
    async fn notify_reducers(&self) {
        let news = Message::new(self.spec.job_id.clone().into_bytes());
        if let Err(error) = self.queues.control.send(vec![news]).await {
            tracing::debug!("cannot tell the reducers about the job: {error:#}");
        }
    }

    /// Warns if the job waits for a quota, or if no running worker meets its requirements.
    /// `is_followed`: the caller will learn why the job waits.
    pub async fn warn(&self, is_followed: bool, events: &Events) {
        match full(&self.store, &self.spec).await {
            Ok((Some(full), _)) => {
                let blocker = Blocker::Schedule(WaitsFor::Quota(full));
                events.notice(Notice::Waiting(self.jobs().hint(self.job_id(), blocker)));
            }
            Ok((None, _)) => {}
            Err(error) => tracing::debug!("cannot read the quotas of the target: {error:#}"),
        }
        warn_of_workers(self, is_followed, events).await;
    }

    /// Returns the remedy that continues the job after an interruption.
    pub fn remedy(&self) -> Remedy {
        Remedy::Retry { job_id: self.spec.job_id.clone(), target: self.target.reference() }
    }
}

/// Rejects a job whose output another job of the target writes. Returns the ended jobs that have written it, in no order.
pub(crate) async fn check_writers(
    spec: &JobSpec,
    store: &TargetStore,
    target: &Target,
) -> crate::Result<Vec<String>> {
    let others = store.other_writers(spec).await?;
    let Some(open) = store.first_open(&others).await? else { return Ok(others) };
    let (output, target) = (spec.output.path(), target.reference());
    Err(Busy::SameOutput { job_id: Some(open.clone()), output, target }.into())
}

/// Opens a job, as one that writes its output. If another job opens at the same time and writes the same output, this job is
/// canceled.
pub(crate) async fn enter(
    spec: &JobSpec,
    store: &TargetStore,
    target: &Target,
) -> crate::Result<()> {
    store.put_writer(spec).await?;
    store.mark_open(&spec.job_id).await?;
    let checked = check_writers(spec, store, target).await;
    if let Err(error) = &checked {
        store.job(&spec.job_id).request_cancel(&error.to_string()).await?;
        // A reducer may have seen the job already.
        store.mark_open(&spec.job_id).await?;
    }
    checked.map(drop)
}

/// Returns the limit of jobs at a time for which a new job has to wait, as far as the last schedule
/// shows, and whether quotas let such jobs wait.
async fn full(
    store: &TargetStore,
    spec: &JobSpec,
) -> crate::Result<(Option<ReachedQuota>, WhenFull)> {
    let Some(quotas) = store.quotas().await? else { return Ok((None, WhenFull::Wait)) };
    let jobs = store.last_schedule().await?.unwrap_or_default().jobs;
    // A reducer may have admitted it in the meantime.
    if jobs.iter().any(|job| job.job_id == spec.job_id && job.admitted_in.is_some()) {
        return Ok((None, quotas.when_full));
    }
    // One that is opened again may have ended just now.
    let others = jobs.into_iter().filter(|job| job.job_id != spec.job_id);
    let (running, waiting): (Vec<_>, Vec<_>) = others.partition(|job| job.admitted_in.is_some());
    let running: Vec<String> = running.into_iter().map(|job| job.owner).collect();
    let (job_id, owner, priority) = (String::new(), spec.owner.clone(), spec.priority);
    let new = WaitingJob { job_id, owner, priority, since: i64::MAX };
    let earlier = waiting.into_iter().map(|job| WaitingJob {
        job_id: job.job_id,
        owner: job.owner,
        ..new.clone()
    });
    let decisions = quotas.decide(&running, earlier.chain([new.clone()]).collect());
    let full =
        decisions.into_iter().find(|(job, _)| job.job_id.is_empty()).and_then(|(_, full)| full);
    Ok((full, quotas.when_full))
}

/// Returns the owner of a job that names none.
fn owner(user: Option<&str>) -> String {
    let legal = |character: char| {
        if is_label(character.encode_utf8(&mut [0; 4])) { character } else { '-' }
    };
    let user: String = user.unwrap_or_default().chars().map(legal).take(LABEL_LENGTH_MAX).collect();
    if user.is_empty() { "unknown".to_owned() } else { user }
}

fn warn_of_local_paths(spec: &JobSpec, job: &JobStore, address: &QueueAddress, events: &Events) {
    let inputs = spec.inputs.iter().flat_map(|input| &input.paths);
    // The nodes can read the folder of the job, so only other paths count.
    let is_sent =
        |path: &ItemPath| job.folder().is_some_and(|folder| path.as_path().starts_with(folder));
    let mut paths: Vec<String> = inputs
        .chain([&spec.output.folder])
        .filter(|path| !path.is_url() && !path.as_bytes().is_empty() && !is_sent(path))
        .map(ItemPath::display)
        .collect();
    if !paths.is_empty() {
        let more = paths.len().saturating_sub(PATHS_NAMED_MAX);
        paths.truncate(PATHS_NAMED_MAX);
        events.notice(Notice::LocalPaths { paths, more, queue: address.to_string() });
    }
}

/// Rejects a job whose mini-batches may take longer than the queue holds a message.
fn check_lease(spec: &JobSpec, tasks: &dyn Queue) -> crate::Result<()> {
    let needed = spec.run_invocation_timeout_seconds + spec.task_overhead_timeout_seconds;
    match tasks.limits().lease_max {
        Some(lease_max) if Duration::from_secs(needed) + LEASE_MARGIN > lease_max => {
            Err(Error::Refused(format!(
                "a mini-batch may take {needed} s (run_invocation_timeout {} + task_overhead_timeout {}), and this queue \
             holds a message for {} s at most: lower the timeouts and make mini-batches smaller, or use RabbitMQ",
                spec.run_invocation_timeout_seconds,
                spec.task_overhead_timeout_seconds,
                lease_max.as_secs()
            )))
        }
        _ => Ok(()),
    }
}

/// Rejects `durability: full` on targets that do not force their data to disk.
fn check_durability(spec: &JobSpec, target: &Target) -> crate::Result<()> {
    let is_folder = target.store()?.starts_with("file:");
    let kept = match (target.queue()?, is_folder) {
        _ if spec.durability == Durability::Process => return Ok(()),
        (QueueAddress::Sqlite { .. }, true) => "its queue in SQLite and its objects in a folder",
        (QueueAddress::Sqlite { .. }, false) => "its queue in SQLite",
        (_, true) => "its objects in a folder",
        (_, false) => return Ok(()),
    };
    Err(Error::Refused(format!(
        "durability: full is not possible on target {}: it keeps {kept}, without forcing them to disk; leave the key \
         out, run the job without a target, or use one with RabbitMQ or SQS and an object store",
        target.name
    )))
}

/// Packs and uploads the files that other nodes cannot read in place.
pub(crate) async fn send_snapshots(
    spec: &mut JobSpec,
    store: &TargetStore,
    home: &Home,
    address: &QueueAddress,
    events: &Events,
) -> Result<()> {
    let folder = tempfile::Builder::new().prefix("gristmill-").tempdir();
    let folder = folder.context("create a temporary folder")?;
    let archive = folder.path().join("archive");
    let packing = (spec.clone(), archive.clone());
    let doubts = events.clone();
    let source = send(store, &archive, move || {
        let (snapshot, incomplete) = job_file::pack_script(&packing.0, &packing.1)?;
        incomplete
            .into_iter()
            .for_each(|incomplete| doubts.notice(Notice::LargeScriptFolder(incomplete)));
        Ok(snapshot)
    });
    spec.snapshots.source = Some(source.await.context("pack source_directory")?);
    if let Environment::Requirements { file, .. } = &spec.environment {
        let is_project = file.as_path().extension().is_some_and(|extension| extension == "toml");
        let (file, to) = (file.as_path().to_owned(), archive.clone());
        let environment =
            send(store, &archive, move || match file.parent().filter(|_| is_project) {
                Some(folder) => {
                    let excluded = ignore::gitignore::Gitignore::empty();
                    storage::pack(
                        Source::Scripts { folder, entry_script: None, excluded: &excluded },
                        &to,
                    )
                }
                None => storage::pack(Source::Data(&file), &to),
            });
        spec.snapshots.environment =
            Some(environment.await.context("pack the environment's files")?);
    }
    for (name, path) in spec.side_inputs.iter().filter(|(_, path)| !path.is_url()) {
        // All nodes are on this machine, so reference data stays in place, except for what a clean-up of the home removes.
        if matches!(address, QueueAddress::Sqlite { .. })
            && !functions::was_in_memory(path.as_path(), home)
        {
            continue;
        }
        let (path, to) = (path.as_path().to_owned(), archive.clone());
        let snapshot = send(store, &archive, move || storage::pack(Source::Data(&path), &to)).await;
        let snapshot = snapshot.with_context(|| format!("pack side input {name}"))?;
        spec.snapshots.side_inputs.insert(name.clone(), snapshot);
    }
    Ok(())
}

/// Renews a heartbeat while this process plans or publishes a job, until the handle is dropped.
/// `put` writes it.
pub(crate) fn show_life<F: Future<Output = storage::Result<()>> + Send>(
    put: impl Fn(String) -> F + Send + 'static,
) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            if let Err(error) = put(storage::random_name()).await {
                tracing::warn!(
                    "cannot record that this process plans or publishes the job: {error:#}"
                );
            }
            tokio::time::sleep(HEARTBEAT_EVERY).await;
        }
    }))
}

async fn send(
    store: &TargetStore,
    archive: &Path,
    pack: impl FnOnce() -> storage::Result<Snapshot> + Send + 'static,
) -> Result<Snapshot> {
    let snapshot = tokio::task::spawn_blocking(pack).await.context("packing panicked")??;
    store.put_snapshot(&snapshot.digest, archive).await?;
    Ok(snapshot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_is_the_user() {
        let long = "a".repeat(90);
        for (user, expected) in [
            (Some("ana.b"), "ana.b"),
            (Some("DOMAIN\\ana b"), "DOMAIN-ana-b"),
            (None, "unknown"),
            (Some(&*long), &long[..63]),
        ] {
            assert_eq!(owner(user), expected);
            assert!(is_label(&owner(user)));
        }
    }
}
