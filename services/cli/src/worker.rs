//! `gristmill worker`: runs a worker of a compute target.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use engine::{NAME_LENGTH_MAX, is_node_name, new_node_name};
use protocol::{LABEL_ALLOWED, is_label};
use storage::WORKER_ENTRY_LASTS;
use telemetry::Role;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use worker::{
    Ended, SpotNotice, Stop, StopSender, TaskProtection, UserRange, hide_process, is_root,
};

use crate::{Exit, ListenFlag, ObservedRole, Settings, TargetFlags, life, usage, watch_signals};

/// Period of the requests for spot notices, as AWS recommends.
const SPOT_NOTICE_EVERY: Duration = Duration::from_secs(5);

#[derive(Debug, clap::Args)]
pub struct WorkerArguments {
    /// Name of this node in logs and reports, unique among all nodes [default: the host name and random digits].
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Exit after this time without a job.
    #[arg(long, value_name = "SECONDS")]
    idle_exit: Option<u64>,
    /// Time for running mini-batches to end when the worker must stop [default: 30].
    #[arg(long, value_name = "SECONDS")]
    grace: Option<u64>,
    /// Number of Python processes that jobs share, whatever a job sets [default: one for each core or GPU, or as a job
    /// sets it].
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=1000))]
    process_count: Option<u32>,
    /// Maximum size of the caches of this machine (environments, snapshots, copies of side inputs): `500MB`, `20GB`.
    /// Entries in use stay even beyond it [default: 20GB, but at most a quarter of the disk].
    #[arg(long, value_name = "SIZE", value_parser = crate::clean::parse_size)]
    cache_size: Option<u64>,
    /// Remove cache entries that no job has used for this long: `12h`, `7d` [default: 30d].
    #[arg(long, value_name = "AGE", value_parser = humantime::parse_duration)]
    cache_age: Option<Duration>,
    /// A label that jobs may require, for example `zone=a`. May be repeated.
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    /// An environment variable of the worker that scripts get besides the usual ones, for example `HF_TOKEN`; `NAME*`:
    /// all with this prefix. May be repeated.
    #[arg(long, value_name = "NAME")]
    pass_environment: Vec<String>,
    /// Range of user ids, of which each job gets its own; `none`: scripts run as the user of the worker [default:
    /// 20000-29999 if that is root, else none].
    #[arg(long, value_name = "FIRST-LAST")]
    job_users: Option<String>,
    /// Stop in time when the cloud announces that it reclaims this spot instance [default URL: the metadata service of
    /// AWS].
    #[arg(long, value_name = "URL", num_args = 0..=1, require_equals = true)]
    spot_notice: Option<Option<String>>,
    /// Exit status after a spot notice, for supervisors that restart on a non-zero exit status.
    #[arg(long, value_name = "STATUS", default_value_t = 0, requires = "spot_notice")]
    spot_exit_status: u8,
    #[command(flatten)]
    listen: ListenFlag,
    #[command(flatten)]
    target: TargetFlags,
}

pub async fn worker(arguments: WorkerArguments, settings: &Settings) -> Result<ExitCode> {
    hide_process();
    let job_users = job_users(arguments.job_users.as_deref().or(settings.job_users.as_deref()))?;
    if let Some(users) = &job_users {
        users.share_new_files();
    }
    let mut target = arguments.target.require(None, settings)?;
    target.pass_environment.extend(arguments.pass_environment);
    if let Some(name) = &arguments.node
        && !is_node_name(name)
    {
        return Err(usage(anyhow!(
            "--node {name:?}: a name must have 1 to {NAME_LENGTH_MAX} letters, digits, `-`, `_` and `.`, and not begin with `.`"
        )));
    }
    let mut watched = ObservedRole::start(Role::Worker, &target, &arguments.listen, settings)?;
    let (store, mut queues) = tokio::try_join!(target.open_store(), target.open_queues_to_work())?;
    watched.ready(&mut queues);
    if let Some(name) = &arguments.node
        && store.worker_names().await.is_ok_and(|names| names.contains(name))
    {
        tracing::warn!(
            "target {} had a worker {name} less than {} s ago: if it still runs, end one of them or give it another --node, \
             because both count as one",
            target.name,
            WORKER_ENTRY_LASTS.as_secs()
        );
    }
    let name = arguments.node.unwrap_or_else(new_node_name);
    let folders = settings.engine.node_folders(&name)?;
    let mut node = settings.engine.node(name.clone(), &target, &store, &queues, &folders)?;
    node.options.idle_exit = arguments.idle_exit.map(Duration::from_secs);
    node.options.process_count = arguments.process_count;
    node.options.cache = folders.cache_limits(arguments.cache_size, arguments.cache_age);
    node.options.limits_memory = true;
    node.options.job_users = job_users;
    node.options.labels = settings.labels()?;
    node.options.labels.extend(arguments.labels);
    node.options.health = watched.health.clone();
    if let Some(seconds) = arguments.grace {
        node.options.timing.grace = Duration::from_secs(seconds);
    }
    if let Some(address) = &arguments.spot_notice {
        node.options.spot_notice = Some(SpotNotice::new(address.as_deref(), SPOT_NOTICE_EVERY)?);
    }
    node.options.task_protection =
        settings.ecs_agent.as_deref().map(TaskProtection::new).transpose()?;
    let stop = StopSender::default();
    let stopped = stop.subscribe();
    let (drain, kill) = (CancellationToken::new(), CancellationToken::new());
    let _ending = watched.until_ending(drain.clone());
    let watching = watch_signals(drain.clone(), kill.clone());
    let killed = kill.clone();
    let _signals = AbortOnDropHandle::new(tokio::spawn(async move {
        let _watching = AbortOnDropHandle::new(tokio::spawn(watching));
        drain.cancelled().await;
        stop.raise(Stop::Drain);
        kill.cancelled().await;
        stop.raise(Stop::Kill);
        // The node would stop if the sender were dropped.
        std::future::pending::<()>().await;
    }));
    life!("worker {name} is ready for the jobs of target {} ({})", target.name, target.queue()?);
    life!("worker {name} offers {}", node.offer());
    watched.print_address();
    let ended = node.run(stopped).await;
    let is_killed = killed.is_cancelled();
    let _ = killed.run_until_cancelled(queues.close()).await;
    match ended.with_context(|| format!("worker {name} failed"))? {
        Ended::Idle => {
            let idle = arguments.idle_exit.unwrap_or_default();
            life!("worker {name} ends: no job for {idle} s");
        }
        Ended::Stopped if is_killed => {
            life!(
                "worker {name} ends: stopped by a second signal; other workers run its mini-batches"
            );
            return Ok(Exit::Canceled.into());
        }
        Ended::Stopped => life!("worker {name} ends: stopped by a signal"),
        Ended::SpotNotice => {
            life!("worker {name} ends: spot notice for this machine");
            return Ok(ExitCode::from(arguments.spot_exit_status));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the users of jobs. `wanted`: the value of the flag or the variable.
fn job_users(wanted: Option<&str>) -> Result<Option<UserRange>> {
    match wanted {
        Some("none") => Ok(None),
        Some(range) => range.parse().map(Some).context("--job-users").map_err(usage),
        None => Ok(is_root().then(UserRange::default)),
    }
}

/// Reads `NAME=VALUE`.
pub fn label(text: &str) -> Result<(String, String)> {
    match text.split_once('=').map(|(name, value)| (name.trim(), value.trim())) {
        Some((name, value)) if is_label(name) && is_label(value) => {
            Ok((name.to_owned(), value.to_owned()))
        }
        Some(_) => bail!("name and value must each have {LABEL_ALLOWED}"),
        None => bail!("write it as NAME=VALUE"),
    }
}
