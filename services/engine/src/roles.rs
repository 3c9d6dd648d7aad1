//! Runs roles of a compute target in one process: workers, reducers, or all of them for one job.

use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use job_file::Parsed;
use protocol::JobState;
use reducer::{Fleet, FleetOptions};
use storage::TargetStore;
use telemetry::Health;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use worker::{CacheLimits, Node, NodeOptions, Stop, StopSender, Variables};

use crate::publisher::Planned;
use crate::{Engine, Event, Events, Fixable, FollowEnd, Lock, Queues, StopRequest, Target, follow};

/// The longest name of a node. Names become names of folders, with additions.
pub const NAME_LENGTH_MAX: usize = 64;

impl Engine {
    /// Runs a job with all roles in this process, through the queues and the store of a target. The roles also serve the
    /// other jobs of the target meanwhile. Unless `fresh`, reuses the result of a completed job.
    pub async fn run_on(
        &self,
        mut parsed: Parsed,
        target: &Target,
        fresh: bool,
        stop_request: &StopRequest,
        events: &Events,
    ) -> Result<FollowEnd> {
        let assets = std::mem::take(&mut parsed.assets);
        let followed = self.run_there(parsed, target, fresh, stop_request, events).await?;
        if let FollowEnd::Ended(result) = &followed {
            self.register(&assets, result, events)?;
        }
        Ok(followed)
    }

    async fn run_there(
        &self,
        parsed: Parsed,
        target: &Target,
        fresh: bool,
        stop_request: &StopRequest,
        events: &Events,
    ) -> Result<FollowEnd> {
        let StopRequest { cancel, kill } = stop_request;
        if !fresh && let Some(result) = self.reusable(&parsed, target, events).await? {
            events.send(Event::Reused(result.job_id.clone()));
            return Ok(FollowEnd::Ended(Box::new(result)));
        }
        let submission = self.submit(parsed, target, true, false, events).await?;
        let (queues, job_id) = (submission.queues.clone(), submission.job_id().to_owned());
        events.send(Event::Job(job_id.clone()));
        submission.warn(true, events).await;
        let jobs = submission.jobs();

        let name = new_node_name();
        let stop_reducer = CancellationToken::new();
        let options = ReducingOptions { tidies: true, ..ReducingOptions::default() };
        let ended = options.ended.clone();
        let reducing =
            self.reduce(&name, submission.store.clone(), &queues, options, stop_reducer.clone());
        let mut reducing = AbortOnDropHandle::new(tokio::spawn(reducing));
        let stop = StopSender::default();
        let mut nodes = JoinSet::new();
        let folders = self.node_folders(&name)?;
        for number in 0..submission.spec.node_count.unwrap_or(1) {
            let name = if number == 0 { name.clone() } else { format!("{name}-{number}") };
            let node = self.node(name, target, &submission.store, &queues, &folders)?;
            nodes.spawn(node.run(stop.subscribe()));
        }
        let submission = Arc::new(submission);
        let planning = submission.clone();
        let mut planning =
            AbortOnDropHandle::new(tokio::spawn(async move { planning.plan().await }));

        let mut following = pin!(follow(&jobs, &job_id, &ended, kill, events));
        let (mut is_planned, mut is_canceled) = (false, false);
        let followed = loop {
            tokio::select! {
                followed = &mut following => break followed.map_err(anyhow::Error::from),
                planned = &mut planning, if !is_planned => match planned.context("planning panicked")? {
                    Ok(_) => is_planned = true,
                    Err(error) => break Err(error.into()),
                },
                () = cancel.cancelled(), if !is_canceled => {
                    is_canceled = true;
                    stop.raise(Stop::Drain);
                    if let Err(error) = submission.job.request_cancel("canceled by the user").await {
                        break Err(error.into());
                    }
                }
                Some(ended) = nodes.join_next(), if !is_canceled => {
                    let ended = ended.context("a node panicked")?;
                    break ended.and_then(|_| bail!("the node ended before the job"));
                }
                reduced = &mut reducing => {
                    let reduced = reduced.context("the reducer panicked")?;
                    break reduced.and_then(|()| bail!("the reducer ended before the job"));
                }
            }
        };
        drop(planning);
        let completed = matches!(&followed, Ok(FollowEnd::Ended(result)) if result.state == JobState::Completed);
        stop.raise(match (completed, kill.is_cancelled()) {
            (true, _) => Stop::Finish,
            (false, false) => Stop::Drain,
            (false, true) => Stop::Kill,
        });
        while nodes.join_next().await.is_some() {}
        stop_reducer.cancel();
        if !reducing.is_finished() {
            // It may be writing an output. Another reducer then starts that from the beginning.
            let _ = kill.run_until_cancelled(&mut reducing).await;
        }
        let _ = kill.run_until_cancelled(queues.close()).await;
        let remedy = submission.remedy();
        followed
            .map_err(|error| Fixable::caused(format!("job {job_id} is interrupted"), remedy, error))
    }

    /// Reduces every open job of a target, until `stop` is canceled or no job has been open for `idle_exit`.
    pub fn reduce(
        &self,
        name: &str,
        target: TargetStore,
        queues: &Queues,
        options: ReducingOptions,
        stop: CancellationToken,
    ) -> impl Future<Output = Result<()>> + Send + use<> {
        let ReducingOptions { idle_exit, tidies, health, ended } = options;
        let reducer = reducer::Options {
            writer: name.to_owned(),
            crash: Arc::new(crate::crash::at),
            ..reducer::Options::shared()
        };
        let options = FleetOptions {
            reducer,
            idle_exit,
            tidies,
            health,
            ended,
            build: self.settings().build.clone(),
            ..FleetOptions::default()
        };
        let Queues { control, dead_letters, broker, .. } = queues.clone();
        Fleet { target, broker, control, dead_letters, publisher: Arc::new(Planned), options }
            .run(stop)
    }

    /// Returns a worker of a target, with default options.
    pub fn node(
        &self,
        name: String,
        target: &Target,
        store: &TargetStore,
        queues: &Queues,
        folders: &NodeFolders,
    ) -> Result<Node> {
        let settings = self.settings();
        let python = target.python.clone().or_else(|| settings.python.clone());
        let mut options = NodeOptions::default();
        options.timing.lease_step = settings.lease_step.unwrap_or(options.timing.lease_step);
        options.cache = folders.cache_limits(None, None);
        options.build = settings.build.clone();
        Ok(Node {
            target: store.clone(),
            broker: queues.broker.clone(),
            dead_letters: queues.dead_letters.clone(),
            name,
            gpus: settings.gpus(),
            python: python.unwrap_or_else(|| "python3".into()),
            package: settings.package(&folders.private)?,
            variables: Variables::without_secrets(
                settings.environment.clone(),
                &[&settings.pass_environment[..], &target.pass_environment].concat(),
                &target.secret_variables,
            ),
            work_folder: folders.shared.clone(),
            prefetch_bytes_max: settings.prefetch_bytes_max,
            options,
            crash: |point| crate::crash::at(point),
        })
    }

    /// Creates the folders of a process whose workers have this name.
    pub fn node_folders(&self, name: &str) -> Result<NodeFolders> {
        self.home().make()?;
        let shared = self.home().cache("fleet");
        Ok(NodeFolders {
            private: shared.join("processes").join(name),
            shared,
            _use: self.home().use_fleet()?,
        })
    }
}

/// The options of a reducer process.
#[derive(Clone, Debug, Default)]
pub struct ReducingOptions {
    /// End when no job has been open for this long; `None`: never.
    pub idle_exit: Option<Duration>,
    /// Delete the queues of ended jobs at the end.
    pub tidies: bool,
    /// Where the process shows that it makes progress.
    pub health: Health,
    /// Notified when a job has ended.
    pub ended: Arc<Notify>,
}

/// The folders of a process with workers: caches that the processes of this machine share, and a private folder that is
/// removed at the end.
#[derive(Debug)]
pub struct NodeFolders {
    shared: PathBuf,
    private: PathBuf,
    /// Prevents a clean-up from removing the caches.
    _use: Lock,
}

impl NodeFolders {
    /// Returns the limits of the caches, with defaults that depend on the disk.
    pub fn cache_limits(&self, bytes: Option<u64>, age: Option<Duration>) -> CacheLimits {
        CacheLimits::of(&self.shared, bytes, age)
    }
}

impl Drop for NodeFolders {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.private);
    }
}

/// Whether a name can stand in commands, files and URLs.
pub fn is_legal(name: &str) -> bool {
    let legal =
        |character: char| character.is_ascii_alphanumeric() || matches!(character, '-' | '_' | '.');
    (1..=NAME_LENGTH_MAX).contains(&name.len()) && name.chars().all(legal)
}

/// Whether a worker or reducer may have this name.
pub fn is_node_name(name: &str) -> bool {
    is_legal(name) && !name.starts_with('.')
}

/// Returns a name that no other role has: the machine's, and 64 random bits.
pub fn new_node_name() -> String {
    let machine = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let legal = |character: char| character.is_ascii_alphanumeric() || character == '-';
    let machine: String =
        machine.trim().chars().map(|c| if legal(c) { c } else { '-' }).take(32).collect();
    let machine = if machine.is_empty() { "node" } else { &machine };
    format!("{machine}-{}", storage::random_name())
}
