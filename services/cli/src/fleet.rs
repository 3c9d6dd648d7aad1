//! `gristmill worker | reducer`, and `gristmill run --target`: the roles of a compute target, in this process.

use std::path::PathBuf;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use protocol::JobState;
use reducer::{Service, ServiceOptions};
use storage::TargetStore;
use telemetry::Role;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use worker::{Ended, Node, NodeOptions, SpotNotice, Stop, TaskProtection};

use crate::enqueue::{describe, publish};
use crate::follow::follow;
use crate::home::Home;
use crate::job_file::Parsed;
use crate::observe::{ListenFlag, Watched, life};
use crate::progress::watch_signals;
use crate::run::{CANCELED, report};
use crate::settings::Settings;
use crate::targets::{Queues, Target, TargetFlags};
use crate::unfinished::Unfinished;

/// Between two looks at a job whose roles are here.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// As often as AWS advises.
const SPOT_NOTICE_EVERY: Duration = Duration::from_secs(5);
/// Names of nodes are names of folders, and parts of more.
const NAME_LENGTH_MAX: usize = 64;

/// Arguments of `reducer`.
#[derive(Debug, clap::Args)]
pub struct ReducerArguments {
    /// Exit when no job has been open for so long.
    #[arg(long, value_name = "SECONDS")]
    idle_exit: Option<u64>,
    #[command(flatten)]
    listen: ListenFlag,
    #[command(flatten)]
    target: TargetFlags,
}

/// Serves every open job of a target until it is told to stop.
pub async fn reducer(arguments: ReducerArguments, settings: &Settings) -> Result<ExitCode> {
    let target = arguments.target.require(None, settings)?;
    let mut watched = Watched::start(Role::Reducer, &target, &arguments.listen, settings)?;
    let (store, mut queues) = tokio::try_join!(target.open_store(), target.open_queues(false))?;
    watched.ready(&mut queues);
    let name = new_name();
    let (stop, kill) = (CancellationToken::new(), CancellationToken::new());
    let _signals = AbortOnDropHandle::new(tokio::spawn(watch_signals(stop.clone(), kill.clone())));
    life!("reducer {name} is ready: it serves the open jobs of target {} ({})", target.name, store.url());
    watched.tell_where();
    let mut service = service(&name, store, &queues, arguments.idle_exit);
    service.options.health = watched.health.clone();
    let _ending = watched.until_ending(stop.clone());
    let served = tokio::select! {
        served = service.run(stop.clone()) => served,
        () = kill.cancelled() => {
            life!("reducer {name} ends: it was stopped twice; messages that it held come again");
            return Ok(ExitCode::from(CANCELED));
        }
    };
    queues.close().await;
    served.with_context(|| format!("reducer {name} ends"))?;
    let idle = arguments.idle_exit.unwrap_or_default();
    match stop.is_cancelled() {
        true => life!("reducer {name} ends: it was told to stop"),
        false => life!("reducer {name} ends: no job has been open for {idle} s"),
    }
    Ok(ExitCode::SUCCESS)
}

fn service(name: &str, store: TargetStore, queues: &Queues, idle_exit: Option<u64>) -> Service {
    Service {
        target: store,
        results: queues.results.clone(),
        dead_letters: queues.dead_letters.clone(),
        options: ServiceOptions {
            reducer: reducer::Options {
                writer: name.to_owned(),
                crash: Arc::new(crate::crash::at),
                ..reducer::Options::shared()
            },
            idle_exit: idle_exit.map(Duration::from_secs),
            ..ServiceOptions::default()
        },
    }
}

fn is_name(name: &str) -> bool {
    let legal = |character: char| character.is_ascii_alphanumeric() || matches!(character, '-' | '_' | '.');
    (1..=NAME_LENGTH_MAX).contains(&name.len()) && name.chars().all(legal) && !name.starts_with('.')
}

/// A name that no other role has: the machine's, and a few digits.
fn new_name() -> String {
    let machine = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let legal = |character: char| character.is_ascii_alphanumeric() || character == '-';
    let machine: String = machine.trim().chars().map(|c| if legal(c) { c } else { '-' }).take(32).collect();
    let seed = format!("{machine} {} {:?}", std::process::id(), chrono::Utc::now());
    let digits = &blake3::hash(seed.as_bytes()).to_hex()[..4];
    if machine.is_empty() { format!("node-{digits}") } else { format!("{machine}-{digits}") }
}

/// Runs a job with all roles in this process, but through the queues and the store of a target. What other jobs of the
/// target have published meanwhile is worked on too.
pub async fn run(parsed: Parsed, target: &Target, json: bool, home: &Home, settings: &Settings) -> Result<ExitCode> {
    let queues = target.open_queues(true).await?;
    let enqueued = describe(parsed, target, queues.clone()).await?;
    let job_id = enqueued.spec.job_id.clone();
    say!(err, "job {job_id}");
    let (cancel, kill) = (CancellationToken::new(), CancellationToken::new());
    let _signals = AbortOnDropHandle::new(tokio::spawn(watch_signals(cancel.clone(), kill.clone())));
    let jobs = target.jobs(enqueued.store.clone());

    let name = new_name();
    let stop_reducer = CancellationToken::new();
    let service = service(&name, enqueued.store.clone(), &queues, None);
    let mut reducing = AbortOnDropHandle::new(tokio::spawn(service.run(stop_reducer.clone())));
    let (stop, stopped) = watch::channel(Stop::No);
    let mut nodes = JoinSet::new();
    let private = Private::new(home, &name)?;
    for number in 0..enqueued.spec.node_count.unwrap_or(1) {
        let name = if number == 0 { name.clone() } else { format!("{name}-{number}") };
        let node = node(name, target, &enqueued.store, &queues, &private, settings)?;
        nodes.spawn(node.run(stopped.clone()));
    }
    let enqueued = Arc::new(enqueued);
    let (publishing, to) = (enqueued.clone(), target.clone());
    let mut publishing =
        AbortOnDropHandle::new(tokio::spawn(async move { publish(&publishing, Unfinished::all(), &to).await }));

    let mut following = pin!(follow(&jobs, &job_id, LOOK_EVERY, &kill));
    let (mut is_published, mut is_canceled) = (false, false);
    let followed = loop {
        tokio::select! {
            followed = &mut following => break followed,
            published = &mut publishing, if !is_published => match published.context("planning panicked")? {
                Ok(_) => is_published = true,
                Err(error) => break Err(error),
            },
            () = cancel.cancelled(), if !is_canceled => {
                is_canceled = true;
                stop.send_replace(Stop::Drain);
                enqueued.job.request_cancel("canceled by the user").await?;
            }
            Some(ended) = nodes.join_next(), if !is_canceled => {
                let ended = ended.context("a node panicked")?;
                break ended.and_then(|_| bail!("the node ended before the job"));
            }
            reduced = &mut reducing => {
                break reduced.context("the reducer panicked")?.and_then(|()| bail!("the reducer ended before the job"));
            }
        }
    };
    drop(publishing);
    let completed = matches!(&followed, Ok(Some(result)) if result.state == JobState::Completed);
    stop.send_replace(match (completed, kill.is_cancelled()) {
        (true, _) => Stop::Finish,
        (false, false) => Stop::Drain,
        (false, true) => Stop::Kill,
    });
    while nodes.join_next().await.is_some() {}
    stop_reducer.cancel();
    if !reducing.is_finished() {
        let _ = reducing.await;
    }
    queues.close().await;
    match followed.with_context(|| format!("job {job_id} goes on with `gristmill retry {job_id}{}`", jobs.flag()))? {
        Some(result) => Ok(report(&result, json, &jobs.flag())),
        None => Ok(ExitCode::from(CANCELED)),
    }
}

/// Arguments of `worker`.
#[derive(Debug, clap::Args)]
pub struct WorkerArguments {
    /// Name of this node, in logs and reports; unlike that of any other node. By default the machine's, and some digits.
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Exit when there has been nothing to do for so long.
    #[arg(long, value_name = "SECONDS")]
    idle_exit: Option<u64>,
    /// How long mini-batches that run may take to end when the node is told to stop.
    #[arg(long, value_name = "SECONDS")]
    grace: Option<u64>,
    /// Python processes for each job, instead of what the job asks for.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=1000))]
    process_count: Option<u32>,
    /// Stop in time when this spot instance will be taken away. The address is that of the instance's metadata.
    #[arg(long, value_name = "URL", num_args = 0..=1, require_equals = true)]
    spot_notice: Option<Option<String>>,
    /// Exit status after a spot notice, for those who start again by it what has not ended with 0.
    #[arg(long, value_name = "STATUS", default_value_t = 0, requires = "spot_notice")]
    spot_exit_status: u8,
    #[command(flatten)]
    listen: ListenFlag,
    #[command(flatten)]
    target: TargetFlags,
}

/// Works on the jobs of a target until it is told to stop.
pub async fn worker(arguments: WorkerArguments, home: &Home, settings: &Settings) -> Result<ExitCode> {
    let target = arguments.target.require(None, settings)?;
    if let Some(name) = &arguments.node
        && !is_name(name)
    {
        bail!("--node {name:?}: a name has 1 to {NAME_LENGTH_MAX} letters, digits, `-`, `_` and `.`");
    }
    let mut watched = Watched::start(Role::Worker, &target, &arguments.listen, settings)?;
    let (store, mut queues) = tokio::try_join!(target.open_store(), target.open_queues(false))?;
    watched.ready(&mut queues);
    let name = arguments.node.unwrap_or_else(new_name);
    let private = Private::new(home, &name)?;
    let mut node = node(name.clone(), &target, &store, &queues, &private, settings)?;
    node.options.idle_exit = arguments.idle_exit.map(Duration::from_secs);
    node.options.process_count = arguments.process_count;
    node.options.health = watched.health.clone();
    if let Some(seconds) = arguments.grace {
        node.options.timing.grace = Duration::from_secs(seconds);
    }
    if let Some(address) = &arguments.spot_notice {
        node.options.spot_notice = Some(SpotNotice::new(address.as_deref(), SPOT_NOTICE_EVERY)?);
    }
    node.options.task_protection = settings.ecs_agent.as_deref().map(TaskProtection::new).transpose()?;
    let (stop, stopped) = watch::channel(Stop::No);
    let (drain, kill) = (CancellationToken::new(), CancellationToken::new());
    let _ending = watched.until_ending(drain.clone());
    let watching = watch_signals(drain.clone(), kill.clone());
    let _signals = AbortOnDropHandle::new(tokio::spawn(async move {
        let _watching = AbortOnDropHandle::new(tokio::spawn(watching));
        drain.cancelled().await;
        stop.send_replace(Stop::Drain);
        kill.cancelled().await;
        stop.send_replace(Stop::Kill);
        // The node takes a lost sender for the end of everything.
        std::future::pending::<()>().await;
    }));
    life!("worker {name} is ready: it works on the jobs of target {} ({})", target.name, target.queue()?);
    watched.tell_where();
    let ended = node.run(stopped).await;
    queues.close().await;
    match ended.with_context(|| format!("worker {name} ends"))? {
        Ended::Idle => {
            let idle = arguments.idle_exit.unwrap_or_default();
            life!("worker {name} ends: there has been nothing to do for {idle} s");
        }
        Ended::Stopped => life!("worker {name} ends: it was told to stop"),
        Ended::SpotNotice => {
            life!("worker {name} ends: there was a spot notice for this machine");
            return Ok(ExitCode::from(arguments.spot_exit_status));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn node(
    name: String,
    target: &Target,
    store: &TargetStore,
    queues: &Queues,
    private: &Private,
    settings: &Settings,
) -> Result<Node> {
    let python = target.python.clone().or_else(|| settings.python.clone());
    let mut options = NodeOptions::default();
    options.timing.lease_step = settings.lease_step.unwrap_or(options.timing.lease_step);
    Ok(Node {
        target: store.clone(),
        tasks: queues.tasks.clone(),
        results: queues.results.clone(),
        dead_letters: queues.dead_letters.clone(),
        name,
        gpu_count: settings.gpu_count.unwrap_or_else(worker::count_by_driver),
        python: python.unwrap_or_else(|| "python3".into()),
        package: settings.package(&private.folder)?,
        work_folder: private.shared.clone(),
        prefetch_bytes_max: settings.prefetch_bytes_max,
        options,
        crash: |point| crate::crash::at(point),
    })
}

/// What a process of the fleet keeps on disk: caches, which others of this machine share, and a folder of its own, which
/// is removed at the end.
struct Private {
    shared: PathBuf,
    folder: PathBuf,
}

impl Private {
    fn new(home: &Home, name: &str) -> Result<Self> {
        home.make()?;
        let shared = home.fleet();
        Ok(Self { folder: shared.join("processes").join(name), shared })
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
