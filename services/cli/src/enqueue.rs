//! `gristmill enqueue`, and what every command does that starts or continues a job of a compute target.
//!
//! The order is the point: what travels is uploaded, the job is described, it is marked as open, people learn its id,
//! and only then is anything published. Whatever stops in between, `retry` goes on.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use partitioner::Partitioner;
use protocol::{
    Durability, Environment, ItemPath, JobSpec, JobState, ResultEvent, Snapshot, begin_message, encode_record,
};
use queue::{Message, Queue};
use reducer::Reducer;
use storage::{JobStore, PlanComplete, Source, TargetStore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::execute::make_output_folder;
use crate::follow::{LOOK_EVERY, follow, stop_following};
use crate::job_file::{self, Parsed};
use crate::jobs::{FoundJob, new_job_id};
use crate::run::{CANCELED, FAILED, RetryArguments, check_columns, load, report};
use crate::settings::Settings;
use crate::targets::{QueueAddress, Queues, Target, TargetFlags};
use crate::unfinished::{self, Unfinished};

/// A node's own deadline lies before that of its lease.
const LEASE_MARGIN: Duration = Duration::from_secs(5);
/// How many paths a warning names.
const PATHS_NAMED_MAX: usize = 3;

/// Arguments of `enqueue`.
#[derive(Debug, clap::Args)]
pub struct EnqueueArguments {
    /// The job file.
    job_file: PathBuf,
    /// Replace a setting of the job file, for example `mini_batch_size=20`.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Follow the job to its end, as `run` does; the exit status says how it ended.
    #[arg(long)]
    wait: bool,
    /// Print one JSON object and nothing else on stdout: the job id at once, or, with --wait, the result at the end.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: TargetFlags,
}

/// A job that is described in the store of its target.
#[derive(Debug)]
pub struct Enqueued {
    /// The target's store.
    pub store: TargetStore,
    /// The job's objects.
    pub job: JobStore,
    /// What it is.
    pub spec: JobSpec,
    /// Where it is published.
    pub queues: Queues,
}

/// Plans a job and publishes it to a compute target.
pub async fn enqueue(arguments: EnqueueArguments, settings: &Settings) -> Result<ExitCode> {
    let parsed = match load(&arguments.job_file, &arguments.set, arguments.target.name(settings), settings)? {
        Ok(parsed) => parsed,
        Err(status) => return Ok(status),
    };
    let target = arguments.target.require(parsed.compute_target.as_deref(), settings)?;
    if let Err(status) = check_columns(&parsed, &target.store_options()) {
        return Ok(status);
    }
    let (stopped, _signals) = watch_for_stop();
    let queues = target.open_queues(false).await?;
    let enqueued = describe(parsed, &target, queues).await?;
    let show = Show { wait: arguments.wait, json: arguments.json, stopped };
    show.job_id(&enqueued, &target);
    show.to_the_end(&enqueued, Unfinished::all(), &target).await
}

/// Continues a job of a compute target: what is neither done nor failed for good is published to the target's queue,
/// and with a job that has ended also what failed. Whatever still is in a queue does no harm.
pub async fn retry(arguments: RetryArguments, target: &Target) -> Result<ExitCode> {
    let store = target.open_store().await?;
    let jobs = target.jobs(store.clone());
    let FoundJob { store: job, spec, result } = jobs.find(&arguments.job).await?;
    let job_id = spec.job_id.clone();
    if let Some(result) = result.as_ref().filter(|result| result.state == JobState::Completed)
        && result.mini_batches.failed == 0
    {
        say!(err, "job {job_id} is completed, and no mini-batch failed: nothing to do");
        return Ok(report(result, arguments.json, &jobs.flag()));
    }
    let queues = target.open_queues(false).await?;
    let mut reducer = Reducer::open(job.clone(), queues.results.clone(), reducer::Options::shared()).await?;
    let lost = reducer.forget_lost_rows().await?;
    if let Some(warning) = unfinished::lost_rows(&lost) {
        say!(err, "{warning}");
    }
    let mini_batches = reducer.tally().mini_batches();
    // A request to cancel that no reducer has seen yet is taken back too, and an end that has no result yet.
    let has_ended = result.is_some() || reducer.tally().ended_as().is_some();
    let reopened = has_ended || job.cancel_requested().await?.is_some();
    if reopened {
        reducer.reopen().await?;
    }
    let unfinished = Unfinished::new(reducer.tally(), Default::default());
    say!(err, "{}", unfinished.explain(&spec, mini_batches.succeeded, 0, mini_batches.failed, reopened));
    store.mark_open(&job_id).await?;
    let enqueued = Enqueued { store, job, spec, queues };
    let (stopped, _signals) = watch_for_stop();
    let show = Show { wait: arguments.wait, json: arguments.json, stopped };
    show.job_id(&enqueued, target);
    show.to_the_end(&enqueued, unfinished, target).await
}

/// Ctrl-C and SIGTERM end this command, and never the job.
fn watch_for_stop() -> (CancellationToken, AbortOnDropHandle<()>) {
    let stopped = CancellationToken::new();
    let watching = AbortOnDropHandle::new(tokio::spawn(stop_following(stopped.clone())));
    (stopped, watching)
}

/// What people want to see of a job.
struct Show {
    wait: bool,
    json: bool,
    stopped: CancellationToken,
}

impl Show {
    fn job_id(&self, enqueued: &Enqueued, target: &Target) {
        let job_id = &enqueued.spec.job_id;
        match (self.wait, self.json) {
            (true, _) => say!(err, "job {job_id}"),
            (false, true) => say!(out, "{}", serde_json::json!({ "job_id": job_id, "target": target.name })),
            (false, false) => say!(out, "{job_id}"),
        }
    }

    /// Publishes a job, and follows it if that is wanted.
    async fn to_the_end(&self, enqueued: &Enqueued, unfinished: Unfinished, target: &Target) -> Result<ExitCode> {
        let job_id = &enqueued.spec.job_id;
        let jobs = target.jobs(enqueued.store.clone());
        let flag = jobs.flag();
        let published = tokio::select! {
            published = publish(enqueued, unfinished, target) => published?,
            () = self.stopped.cancelled() => {
                say!(err, "job {job_id} is published in part; `gristmill retry {job_id}{flag}` goes on");
                return Ok(ExitCode::from(CANCELED));
            }
        };
        enqueued.queues.close().await;
        match published {
            Published::All(plan) if !self.wait => {
                say!(err, "{} mini-batches of {} files are planned", plan.mini_batches, plan.files);
                return Ok(ExitCode::SUCCESS);
            }
            Published::Never(cause) if !self.wait => {
                say!(err, "job {job_id} fails: {cause}");
                return Ok(ExitCode::from(FAILED));
            }
            // The reducer says the same.
            Published::All(_) | Published::Never(_) => {}
        }
        match follow(&jobs, job_id, LOOK_EVERY, &self.stopped).await? {
            Some(result) => Ok(report(&result, self.json, &flag)),
            None => {
                say!(
                    err,
                    "job {job_id} goes on; `gristmill status {job_id}{flag}` shows how it stands, `gristmill cancel` \
                     stops it"
                );
                Ok(ExitCode::from(CANCELED))
            }
        }
    }
}

/// Checks what only the target can tell, uploads what travels, and describes the job in the store.
pub async fn describe(parsed: Parsed, target: &Target, queues: Queues) -> Result<Enqueued> {
    let mut spec = parsed.spec;
    check_durability(&spec, target)?;
    check_lease(&spec, &*queues.tasks)?;
    let address = target.queue()?;
    if !target.is_on_this_machine()? {
        warn_of_local_paths(&spec, address);
    }
    let store = target.open_store().await?;
    spec.job_id = loop {
        let id = new_job_id(&spec.name);
        // Machines that share a store draw ids by themselves.
        if matches!(store.job(&id).spec().await, Err(storage::Error::NotFound { .. })) {
            break id;
        }
    };
    let job = store.job(&spec.job_id);
    if spec.output.folder.as_bytes().is_empty() {
        // summary_only without an output folder: the script's own files have a place all the same.
        spec.output.folder = ItemPath::from(job.shown("output").as_str());
    }
    make_output_folder(&spec)?;
    send_snapshots(&mut spec, &store, address).await?;
    job.put_spec(&spec).await.with_context(|| format!("write job {}", spec.job_id))?;
    store.mark_open(&spec.job_id).await?;
    Ok(Enqueued { store, job, spec, queues })
}

/// A mini-batch must fit into the time that one delivery can be held.
fn check_lease(spec: &JobSpec, tasks: &dyn Queue) -> Result<()> {
    let needed = spec.run_invocation_timeout_seconds + spec.task_overhead_timeout_seconds;
    match tasks.limits().lease_max {
        Some(lease_max) if Duration::from_secs(needed) + LEASE_MARGIN > lease_max => bail!(
            "a mini-batch may take {needed} s (run_invocation_timeout {} + --task_overhead_timeout {}), and this queue \
             holds a message for {} s at most: lower the timeouts and make mini-batches smaller, or use RabbitMQ",
            spec.run_invocation_timeout_seconds,
            spec.task_overhead_timeout_seconds,
            lease_max.as_secs()
        ),
        _ => Ok(()),
    }
}

/// What is shared by jobs is written as most of them want it.
fn check_durability(spec: &JobSpec, target: &Target) -> Result<()> {
    let is_folder = target.store()?.starts_with("file:");
    let kept = match (target.queue()?, is_folder) {
        _ if spec.durability == Durability::Process => return Ok(()),
        (QueueAddress::Sqlite { .. }, true) => "its queue in SQLite and its objects in a folder",
        (QueueAddress::Sqlite { .. }, false) => "its queue in SQLite",
        (_, true) => "its objects in a folder",
        (_, false) => return Ok(()),
    };
    bail!(
        "durability: full is not possible on target {}: it keeps {kept}, without forcing them to disk; leave the key \
         out, run the job without a target, or use one with RabbitMQ or SQS and an object store",
        target.name
    )
}

fn warn_of_local_paths(spec: &JobSpec, address: &QueueAddress) {
    let inputs = spec.inputs.iter().flat_map(|input| &input.paths);
    let local: Vec<String> = inputs
        .chain([&spec.output.folder])
        .filter(|path| !path.is_url() && !path.as_bytes().is_empty())
        .map(ItemPath::display)
        .collect();
    if !local.is_empty() {
        let more = local.len().saturating_sub(PATHS_NAMED_MAX);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        say!(
            err,
            "warning: {}{more} are paths of this machine, and the nodes at {address} may be others: they need the same \
             files at the same place (a shared disk); URLs (s3://…) work everywhere",
            local[..local.len().min(PATHS_NAMED_MAX)].join(", ")
        );
    }
}

/// Packs and uploads what nodes elsewhere cannot see at its place.
async fn send_snapshots(spec: &mut JobSpec, store: &TargetStore, address: &QueueAddress) -> Result<()> {
    let folder = std::env::temp_dir().join(format!("gristmill-{}", spec.job_id));
    std::fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    let sent = send_from(&folder, spec, store, address).await;
    let _ = std::fs::remove_dir_all(&folder);
    sent
}

async fn send_from(folder: &Path, spec: &mut JobSpec, store: &TargetStore, address: &QueueAddress) -> Result<()> {
    let archive = folder.join("archive");
    let packing = (spec.clone(), archive.clone());
    let source = send(store, &archive, move || job_file::pack_script(&packing.0, &packing.1)).await;
    spec.snapshots.source = Some(source.context("pack source_directory")?);
    if let Environment::Requirements { file, .. } = &spec.environment {
        let is_project = file.as_path().extension().is_some_and(|extension| extension == "toml");
        let (file, to) = (file.as_path().to_owned(), archive.clone());
        let environment = send(store, &archive, move || match file.parent().filter(|_| is_project) {
            Some(folder) => {
                let excluded = ignore::gitignore::Gitignore::empty();
                storage::pack(Source::Scripts { folder, entry_script: None, excluded: &excluded }, &to)
            }
            None => storage::pack(Source::Data(&file), &to),
        });
        spec.snapshots.environment = Some(environment.await.context("pack the environment's files")?);
    }
    // All nodes are on this machine: reference data stays where it is.
    if matches!(address, QueueAddress::Sqlite { .. }) {
        return Ok(());
    }
    for (name, path) in spec.side_inputs.iter().filter(|(_, path)| !path.is_url()) {
        let (path, to) = (path.as_path().to_owned(), archive.clone());
        let snapshot = send(store, &archive, move || storage::pack(Source::Data(&path), &to)).await;
        let snapshot = snapshot.with_context(|| format!("pack side input {name}"))?;
        spec.snapshots.side_inputs.insert(name.clone(), snapshot);
    }
    Ok(())
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

/// What planning came to.
#[derive(Debug)]
pub enum Published {
    /// Every mini-batch that needs a message has one.
    All(PlanComplete),
    /// The job cannot be planned, and a reducer is told so: this is the cause.
    Never(String),
}

/// Plans and publishes. An error means that the job is open, and published in part at most.
pub async fn publish(enqueued: &Enqueued, unfinished: Unfinished, target: &Target) -> Result<Published> {
    let Enqueued { job, spec, queues, .. } = enqueued;
    let (tasks, results) = (queues.tasks.clone(), queues.results.clone());
    let partitioner = Partitioner::new(spec.clone(), job.clone(), tasks, results.clone());
    let error = match partitioner.resume(|mini_batch| unfinished.pending(mini_batch), |_| ()).await {
        Ok(complete) => return Ok(Published::All(complete)),
        Err(error) => error,
    };
    let Some(cause) = error.downcast_ref::<partitioner::Error>().map(ToString::to_string) else {
        let (id, flag) = (&spec.job_id, target.flag());
        return Err(error.context(format!("job {id} is not published; go on with `gristmill retry {id}{flag}`")));
    };
    tell_reducer(&results, &spec.job_id, &cause).await.context("tell the reducers that the job cannot be planned")?;
    Ok(Published::Never(cause))
}

async fn tell_reducer(results: &Arc<dyn Queue>, job_id: &str, cause: &str) -> Result<()> {
    let mut body = begin_message(job_id);
    encode_record(&ResultEvent::PlanFailed { cause: cause.to_owned() }, b"", &mut body);
    Ok(results.send(vec![Message::new(body, job_id)]).await?)
}
