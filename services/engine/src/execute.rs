//! One job in one process tree: partitioner, agents and reducer, wired to the job's own queues and folder.
//!
//! The roles do not depend on each other. They share two queues and a store, as they would across
//! machines. This file starts them, and stops them in an order that loses nothing: agents first, so
//! that they announce their results, then the reducer, which commits them. When all work is done,
//! agents end while the reducer writes the final file. A kill ends that, too, and leaves a canceled
//! job whose output the next run or retry writes.
//!
//! If the whole process tree is killed, the next run or retry locks the job and publishes every
//! mini-batch that the ledger does not record as ended: also those whose outcomes the reducer had
//! not committed, some milliseconds of work. Each one that the node held (`worker/src/held.rs`) has
//! one more lost delivery.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use partitioner::{Inputs, Partitioner};
use protocol::{Activity, Durability, JobResult, JobSpec, JobState, Running};
use queue::{MemoryOptions, MemoryQueue};
use reducer::{FailJob, Reducer, RoundScript, Workers};
use storage::{JobStore, RoundRequest, disk};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use worker::{Agent, PinnedEntry, Stop, StopSender, Variables, VisibleGpus};

use crate::round::{begin_round, forget_lost_rows, forget_script};
use crate::{Check, Engine, Event, Events, FoundJob, Lock, Notice, Unfinished, reuse, source};

/// Lease of a delivery of a local job. The next process that locks the job releases all deliveries.
const LEASE: Duration = Duration::from_secs(365 * 24 * 3600);

/// A job that this process has locked and is about to run.
#[derive(Debug)]
pub struct Execution<'a> {
    /// Its specification has been written.
    pub job: FoundJob,
    /// Listings of its inputs that a check has begun.
    pub listings: Inputs,
    /// Whether it continues an earlier run.
    pub resumed: bool,
    /// Ended mini-batches that run again. `None`: all that failed if the job had ended, none if it
    /// was interrupted. An interrupted job begins a new round only if the selection is not empty.
    pub round: Option<RoundRequest>,
    /// Whether its script counts as changed since the last round, even if the files are equal.
    pub has_other_script: bool,
    pub engine: &'a Engine,
    /// The check of the script, which runs while queues and reducer are opened.
    pub check: Option<Check>,
    /// The notice why a new job does not continue or reuse an earlier one, sent once its script has
    /// passed the check.
    pub new_job: Option<Box<Notice>>,
}

/// The queues and the reducer of a job, and the mini-batches to publish.
struct Opened {
    tasks: Arc<MemoryQueue>,
    results: Arc<MemoryQueue>,
    reducer: Reducer,
    activities: Activities,
    unfinished: Unfinished,
    gpus: VisibleGpus,
    process_count: u32,
}

/// The activity of each agent, by name, in their order.
type Activities = Vec<(String, watch::Sender<Activity>)>;

/// The specification with the paths of copied side inputs, the interpreter, and the cache entries
/// of the job.
type Provisioned = (Arc<JobSpec>, PathBuf, (Vec<PinnedEntry>, Option<PinnedEntry>));

/// While the queue has this many mini-batches, more than all processes of a machine hold, the partitioner waits.
const TASKS_MAX: usize = 16_384;
/// While the queue has this many messages, of at most about 128 KiB, agents wait.
const RESULTS_MAX: usize = 256;
/// Name of the first agent; the others count from here.
const FIRST_NODE: &str = "0";

/// Stops a job that this process runs.
#[derive(Clone, Debug, Default)]
pub struct StopRequest {
    /// Stops it in an orderly way: running mini-batches may end, the others are kept for later.
    pub cancel: CancellationToken,
    /// Stops it at once. Only after `cancel`.
    pub kill: CancellationToken,
}

impl Execution<'_> {
    /// Runs the job to its end, or until it is stopped. Fails with [`Error::Invalid`](crate::Error::Invalid) before anything
    /// starts if the script does not pass its check. `output`: excludes other writers of the output until that is complete.
    pub async fn run(
        mut self,
        output: Option<Lock>,
        stop_request: &StopRequest,
        events: &Events,
    ) -> Result<JobResult> {
        self.job.store = self.job.store.with_durability(self.job.spec.durability)?;
        let opened = self.open(stop_request, events).await?;
        let result = self.run_roles(opened, output, stop_request, events).await?;
        let models = self.engine.settings().models();
        if result.as_ref().is_ok_and(|result| result.state == JobState::Completed)
            && !self.job.spec.fingerprint.is_empty()
            && let Some(notice) = reuse::changed(&self.job, &models, true).await
        {
            events.notice(notice);
            forget_script(&mut self.job).await?;
        }
        result
    }

    fn folder(&self) -> Result<&Path> {
        self.job.store.folder().context("a local job has a folder")
    }

    /// Opens queues and reducer during the check of the script, and takes over the state of an
    /// earlier run.
    async fn open(&mut self, stop_request: &StopRequest, events: &Events) -> Result<Opened> {
        let settings = self.engine.settings();
        let models = settings.models();
        // First, because the writes below change the time at which the job last ran.
        let changed = match self.resumed {
            true => reuse::changed(&self.job, &models, false).await,
            false => None,
        };
        source::keep_first(self.folder()?, &self.job.spec, &models);
        if self.resumed && self.job.store.remove_damaged_result().await? {
            events.notice(Notice::DamagedResult);
        }
        // Plan and ledger show the remaining work after the end of this process.
        let [tasks, results] =
            [(); 2].map(|()| Arc::new(MemoryQueue::new(MemoryOptions::default())));
        let gpus = settings.gpus();
        let process_count = worker::process_count(&self.job.spec, gpus.count());
        let nodes = 0..self.job.spec.node_count.unwrap_or(1);
        let activities: Activities =
            nodes.map(|node| (node.to_string(), watch::Sender::default())).collect();
        let options = reducer::Options {
            process_count_per_node: Some(process_count),
            tasks: Some(tasks.clone()),
            workers: workers(&activities),
            kill: stop_request.kill.clone(),
            crash: Arc::new(crate::crash::at),
            ..reducer::Options::default()
        };
        let mut reducer = Reducer::open(self.job.store.clone(), results.clone(), options).await?;
        if let Some(notice) = changed {
            events.notice(notice);
            forget_script(&mut self.job).await?;
        }
        if let Some(check) = self.check.take() {
            tokio::select! {
                checked = tokio::task::spawn_blocking(|| check.finish()) => {
                    checked.context("the check panicked")??;
                }
                () = stop_request.cancel.cancelled() => {}
            }
        }
        let unfinished = if self.resumed {
            self.take_over(&mut reducer, events).await?
        } else {
            Unfinished::all(None)
        };
        self.new_job.take().into_iter().for_each(|notice| events.notice(*notice));
        if !self.resumed {
            events.send(Event::Job(self.job.spec.job_id.clone()));
        }
        Ok(Opened { tasks, results, reducer, activities, unfinished, gpus, process_count })
    }

    /// Starts partitioner, reducer and agents, and stops them in an order that loses nothing. Fails
    /// if they cannot start; the inner result is that of the reducer.
    async fn run_roles(
        &self,
        opened: Opened,
        output: Option<Lock>,
        stop_request: &StopRequest,
        events: &Events,
    ) -> Result<Result<JobResult>> {
        let StopRequest { cancel, kill } = stop_request;
        let agent = self.agent(&opened)?;
        let provisioning = self.provision(&opened.results, events);
        let Opened { tasks, results, reducer, activities, unfinished, .. } = opened;
        let (progress, all_ended, fail_job) =
            (reducer.progress(), reducer.all_ended(), reducer.fail_job());
        let stop = StopSender::default();
        let reduce_cancel = CancellationToken::new();
        let mut reducing = tokio::spawn(reducer.run(reduce_cancel.clone()));
        let tasks = Arc::new(tasks.bounded(TASKS_MAX));
        let partitioner =
            Partitioner::new(self.job.spec.clone(), self.job.store.clone(), tasks, results.clone())
                .with_inputs(self.listings.clone());
        let planning = tokio::spawn(plan(partitioner, unfinished, fail_job.clone()));
        let shown = events.progress(progress, tokio::sync::watch::channel(None).1);
        if let Err(error) = make_output_folder(&self.job.spec) {
            fail_job.fail(format!("{error:#}"));
        }

        let mut agents = JoinSet::new();
        tokio::pin!(provisioning);
        let mut starting = true;
        // The cache entries of the job stay until it ends.
        let mut _used = None;
        let mut canceled = false;
        let result = loop {
            tokio::select! {
                provisioned = &mut provisioning, if starting => {
                    starting = false;
                    match provisioned {
                        Ok((spec, python, used)) => {
                            _used = Some(used);
                            let limiters = worker::limiters(spec.limits, spec.node_count.unwrap_or(1));
                            for ((node, activity), limiter) in activities.clone().into_iter().zip(limiters) {
                                let work_folder = agent.work_folder.join(&node);
                                let (spec, python) = (spec.clone(), python.clone());
                                let agent = Agent { spec, node, work_folder, python, limiter, activity, ..agent.clone() };
                                agents.spawn(agent.run(stop.subscribe()));
                            }
                        }
                        Err(error) => fail_job.fail(format!("{error:#}")),
                    }
                }
                Some(ended) = agents.join_next(), if !agents.is_empty() => {
                    if let Err(error) = ended.context("an agent panicked").and_then(|ended| ended) {
                        fail_job.fail(format!("{error:#}"));
                    }
                    if canceled && agents.is_empty() {
                        reduce_cancel.cancel();
                    }
                }
                () = all_ended.cancelled(), if stop.current() == Stop::No => stop.raise(Stop::Finish),
                () = cancel.cancelled(), if !canceled => {
                    canceled = true;
                    planning.abort();
                    stop.raise(Stop::Drain);
                    if agents.is_empty() {
                        reduce_cancel.cancel();
                    }
                }
                () = kill.cancelled(), if canceled && stop.current() < Stop::Kill => stop.raise(Stop::Kill),
                reduced = &mut reducing => break reduced.context("the reducer panicked")?,
            }
        };
        planning.abort();
        results.abandon();
        let completed = result.as_ref().is_ok_and(|result| result.state == JobState::Completed);
        stop.raise(if completed { Stop::Finish } else { Stop::Kill });
        // The output is complete, so another job may write it while the processes of this one exit.
        let output = output.filter(|_| !completed);
        end_agents(&mut agents, events).await;
        drop((shown, output));
        Ok(result)
    }

    /// Returns the common part of the agents of the job. They differ in name and folder;
    /// interpreter and reference data follow later.
    fn agent(&self, opened: &Opened) -> Result<Agent> {
        let folder = self.folder()?;
        let node_count = self.job.spec.node_count.unwrap_or(1);
        let settings = self.engine.settings();
        Ok(Agent {
            spec: Arc::new(self.job.spec.clone()),
            store: self.job.store.clone(),
            tasks: opened.tasks.clone(),
            results: Arc::new(opened.results.bounded(RESULTS_MAX)),
            dead_letters: None,
            node: String::new(),
            process_count: opened.process_count,
            agent_link: None,
            limiter: None,
            activity: watch::Sender::default(),
            memory_group: None,
            gpus: opened.gpus.clone(),
            python: PathBuf::new(),
            package: settings.package(folder)?,
            variables: self.variables(),
            user: None,
            work_folder: folder.join("nodes"),
            node_lock: worker::NodeLock::new(folder.join("nodes").join("alone")),
            prefetch_bytes_max: settings.prefetch_bytes_max / u64::from(node_count),
            is_alone: node_count == 1,
            notes_held: true,
            // No other process may take over a delivery, even after the laptop was suspended.
            timing: worker::Timing { lease_step: LEASE, ..worker::Timing::default() },
            health: telemetry::Health::default(),
            crash: |point| crate::crash::at(point),
        })
    }

    /// Returns all variables: the person who runs the job has set them.
    fn variables(&self) -> Variables {
        Variables::all(self.engine.settings().environment.clone())
    }

    /// Fetches side inputs and creates the environment.
    fn provision(
        &self,
        results: &Arc<MemoryQueue>,
        events: &Events,
    ) -> impl Future<Output = Result<Provisioned>> + use<> {
        let (environment, preparing) = (self.job.spec.environment.clone(), events.clone());
        let creating = move |file: &Path, folder: &Path| {
            preparing.notice(Notice::CreatingEnvironment {
                file: file.to_owned(),
                folder: folder.to_owned(),
            });
        };
        let (stores, cache) = (self.job.store.stores().clone(), self.engine.home().caches());
        // The specification of a local job names its interpreter.
        let interpreter = worker::interpreter(
            environment,
            "python3".into(),
            cache.clone(),
            self.variables(),
            creating,
        );
        let (mut spec, waits, job_id) =
            (self.job.spec.clone(), results.clone(), self.job.spec.job_id.clone());
        async move {
            let made_ready = async {
                let copies = async {
                    let copies = worker::fetch_side_inputs(&mut spec, &stores, &cache).await?;
                    anyhow::Ok((spec, copies))
                };
                let ((spec, copies), (python, environment)) =
                    tokio::try_join!(copies, interpreter)?;
                anyhow::Ok((Arc::new(spec), python, (copies, environment)))
            };
            worker::report_provisioning(&*waits, &job_id, FIRST_NODE, made_ready).await
        }
    }

    /// Returns the current script.
    fn script(&self) -> RoundScript {
        let mut now = self.job.spec.clone();
        job_file::renew_script(&mut now);
        RoundScript { digest: now.snapshot_digest, has_other_script: self.has_other_script }
    }

    /// Returns the unfinished work of an earlier run.
    async fn take_over(&self, reducer: &mut Reducer, events: &Events) -> Result<Unfinished> {
        if reducer.segments_repaired() > 0 {
            events.notice(Notice::LedgerMended(reducer.segments_repaired()));
        }
        forget_lost_rows(reducer, events).await?;
        let nodes = std::fs::read_dir(self.folder()?.join("nodes")).into_iter().flatten().flatten();
        let held = nodes.flat_map(|node| worker::held_by_dead_node(&node.path()));
        // A node holds a mini-batch until it has heard that the reducer has committed it.
        let interrupted =
            held.filter(|&(mini_batch, _)| !reducer.tally().state(mini_batch).has_ended());
        let interrupted = interrupted.map(|(mini_batch, lost)| (mini_batch, lost + 1)).collect();
        // It may have ended without a result.
        let has_ended = self.job.result.is_some() || reducer.tally().ended_as().is_some();
        let round =
            self.round.unwrap_or(if has_ended { RoundRequest::ALL } else { RoundRequest::NOTHING });
        // An engine that died while it wrote the output has to complete that output first. A different one would look like
        // a file that somebody has edited.
        let begun = match has_ended || !reducer.tally().is_complete() && reducer.lacks(round) {
            true => Some(begin_round(reducer, round, &self.script(), false, true).await?),
            false => {
                reducer.go_on(&self.script()).await.context("continue the job")?;
                None
            }
        };
        let unfinished = Unfinished::new(reducer.tally(), interrupted);
        let continuation = unfinished.explain(reducer.tally(), &self.job.spec, begun);
        events.notice(Notice::Continuing(continuation));
        Ok(unfinished)
    }
}

/// Returns the activity of the agents for the reducer.
fn workers(activities: &Activities) -> Arc<dyn Fn() -> Arc<Workers> + Send + Sync> {
    let activities: Vec<_> =
        activities.iter().map(|(node, activity)| (node.clone(), activity.subscribe())).collect();
    Arc::new(move || {
        let running = |(node, activity): &(String, watch::Receiver<Activity>)| {
            (node.clone(), Running { activity: activity.borrow().clone(), ..Running::default() })
        };
        let nodes: BTreeMap<_, _> = activities.iter().map(running).collect();
        Arc::new(Workers {
            held: nodes.values().map(|running| running.activity.held).sum(),
            nodes,
            ..Workers::default()
        })
    })
}

/// Waits until the agents have ended. They may wait for Python processes.
async fn end_agents(agents: &mut JoinSet<Result<()>>, events: &Events) {
    const SILENCE_MAX: Duration = Duration::from_secs(1);
    if timeout(SILENCE_MAX, async { while agents.join_next().await.is_some() {} }).await.is_err() {
        events.notice(Notice::WaitingForProcesses);
        while agents.join_next().await.is_some() {}
    }
}

async fn plan(partitioner: Partitioner, unfinished: Unfinished, fail_job: FailJob) {
    if let Err(error) =
        partitioner.resume(|mini_batch| unfinished.pending(mini_batch), |_| ()).await
    {
        fail_job.fail(format!("{error:#}"));
    }
}

/// Creates the output folders before the script starts, because the script may write files there.
pub fn make_output_folder(spec: &JobSpec) -> Result<()> {
    let folders = spec.outputs.values().chain([&spec.output.folder]);
    for folder in folders.filter(|folder| !folder.as_bytes().is_empty() && !folder.is_url()) {
        let made = match spec.durability {
            Durability::Process => std::fs::create_dir_all(folder.as_path()),
            Durability::Full => disk::create_folder(folder.as_path()),
        };
        made.with_context(|| format!("create the output folder {}", folder.display()))?;
    }
    Ok(())
}

/// Watches the job's folder for a request to cancel, which another process may write.
pub async fn watch_for_cancel(store: JobStore, cancel: CancellationToken) {
    const PERIOD: Duration = Duration::from_millis(500);
    loop {
        tokio::time::sleep(PERIOD).await;
        if matches!(store.cancel_requested().await, Ok(Some(_))) {
            cancel.cancel();
            return;
        }
    }
}

impl<'a> Execution<'a> {
    /// Continues a job found on disk.
    pub fn resume(job: FoundJob, engine: &'a Engine) -> Self {
        Self { resumed: true, ..Self::new(job, engine) }
    }

    /// Runs a new job.
    pub fn new(job: FoundJob, engine: &'a Engine) -> Self {
        let listings = Inputs::new(job.store.stores().options());
        Self {
            job,
            listings,
            resumed: false,
            round: None,
            has_other_script: false,
            engine,
            check: None,
            new_job: None,
        }
    }
}
