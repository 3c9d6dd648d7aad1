//! One job in one process tree: partitioner, agents and reducer, wired to the job's own queues and folder.
//!
//! The roles do not know each other. What they share here is what they would share across machines: two queues and a
//! store. This file starts them, and stops them in the order that loses nothing: agents first, so that they announce
//! what they have, then the reducer, which commits it. When all work is done, agents end while the reducer writes the final
//! file.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use partitioner::Partitioner;
use protocol::{Descriptor, Durability, JobResult, JobSpec, JobState, Progress};
use queue::{SqliteOptions, SqliteQueue};
use reducer::{FailJob, Reducer};
use storage::{JobStore, disk};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use worker::{Agent, Stop};

use crate::home::Home;
use crate::job_file;
use crate::jobs::FoundJob;
use crate::settings::Settings;
use crate::unfinished::{self, Unfinished};

/// A job that this process has locked and is about to run.
#[derive(Debug)]
pub struct Execution<'a> {
    /// The job's objects; the spec is written.
    pub store: JobStore,
    /// What it is.
    pub spec: JobSpec,
    /// An earlier run has left something.
    pub resumed: bool,
    /// It had ended, and what failed then is tried again.
    pub reopened: bool,
    /// Folders of the machine.
    pub home: &'a Home,
    /// The environment.
    pub settings: &'a Settings,
}

/// Called with the progress while the job runs.
pub type Show = Box<dyn Fn(watch::Receiver<Progress>) -> tokio::task::JoinHandle<()> + Send>;

impl Execution<'_> {
    /// Runs the job to its end. `tell` gets lines for people; `cancel` stops it in an orderly way, and `kill` at once.
    pub async fn run(
        mut self,
        tell: &dyn Fn(&str),
        show: Show,
        cancel: CancellationToken,
        kill: CancellationToken,
    ) -> Result<JobResult> {
        let folder = self.store.folder().context("a local job has a folder")?.to_owned();
        self.store = self.store.with_durability(self.spec.durability)?;
        if self.resumed && self.store.remove_damaged_result().await? {
            tell("warning: result.json cannot be read and is removed: how the job ended is found out again");
        }
        let tasks = open_queue(folder.join("tasks.db"), self.spec.durability)?;
        let results = open_queue(folder.join("results.db"), self.spec.durability)?;
        // The job is locked, so whoever held a message is gone.
        results.release_all().await.context("take over the result queue")?;

        let gpu_count = self.settings.gpu_count.unwrap_or_else(worker::count_by_driver);
        let process_count =
            self.spec.process_count_per_node.unwrap_or_else(|| worker::default_process_count(gpu_count));
        let options = reducer::Options {
            process_count_per_node: Some(process_count),
            crash: Arc::new(crate::crash::at),
            ..reducer::Options::default()
        };
        let mut reducer = Reducer::open(self.store.clone(), results.clone(), options).await?;
        if self.resumed && job_file::script_has_changed(&self.spec) {
            tell(
                "warning: the script has changed since the job began: what is committed keeps the rows of the former \
                 script, what runs now uses the new one",
            );
            self.forget_fingerprint().await?;
        }
        let pending = if self.resumed { self.take_over(&tasks, &mut reducer, tell).await? } else { Unfinished::all() };
        let progress = reducer.progress();
        let all_ended = reducer.all_ended();
        let fail_job = reducer.fail_job();

        let spec = Arc::new(self.spec.clone());
        let (stop, stopped) = watch::channel(Stop::No);
        let reduce_cancel = CancellationToken::new();
        let mut reducing = tokio::spawn(reducer.run(reduce_cancel.clone()));
        let partitioner = Partitioner::new((*spec).clone(), self.store.clone(), tasks.clone(), results.clone());
        let planning = tokio::spawn(plan(partitioner, pending, fail_job.clone()));
        let bar = show(progress);
        if let Err(error) = make_output_folder(&spec) {
            fail_job.fail(one_line(&error));
        }

        let mut agents = JoinSet::new();
        let environment = spec.environment.clone();
        let environments = self.home.environments();
        let (told, mut telling) = tokio::sync::mpsc::unbounded_channel::<String>();
        let interpreter = tokio::task::spawn_blocking(move || {
            // A local job always names its interpreter.
            worker::interpreter(&environment, Path::new("python3"), &environments, |line| {
                let _ = told.send(line.to_owned());
            })
        });
        let (stores, side_inputs) = (self.store.stores().clone(), self.home.side_inputs());
        let mut local_spec = self.spec.clone();
        let provisioning = async move {
            worker::fetch_side_inputs(&mut local_spec, &stores, &side_inputs).await?;
            anyhow::Ok((Arc::new(local_spec), interpreter.await.context("make the environment")??))
        };
        // All agents are alike but for id and folder. Interpreter and reference data come later.
        let agent = Agent {
            spec: spec.clone(),
            store: self.store.clone(),
            tasks: tasks.clone(),
            results: results.clone(),
            dead_letters: None,
            node: String::new(),
            process_count,
            gpu_count,
            python: PathBuf::new(),
            package: self.settings.package(&folder)?,
            work_folder: folder.join("nodes"),
            prefetch_bytes_max: self.settings.prefetch_bytes_max / u64::from(spec.node_count.unwrap_or(1)),
            timing: worker::Timing::default(),
            health: telemetry::Health::default(),
            crash: |point| crate::crash::at(point),
        };
        tokio::pin!(provisioning);
        let mut starting = true;
        let mut canceled = false;
        let result = loop {
            tokio::select! {
                Some(line) = telling.recv() => tell(&line),
                provisioned = &mut provisioning, if starting => {
                    starting = false;
                    match provisioned {
                        Ok((local_spec, python)) => {
                            for node in (0..spec.node_count.unwrap_or(1)).map(|node| node.to_string()) {
                                let work_folder = agent.work_folder.join(&node);
                                let (spec, python) = (local_spec.clone(), python.clone());
                                let agent = Agent { spec, node, work_folder, python, ..agent.clone() };
                                agents.spawn(agent.run(stopped.clone()));
                            }
                        }
                        Err(error) => fail_job.fail(one_line(&error)),
                    }
                }
                Some(ended) = agents.join_next(), if !agents.is_empty() => {
                    if let Err(error) = ended.context("an agent panicked").and_then(|ended| ended) {
                        fail_job.fail(one_line(&error));
                    }
                    if canceled && agents.is_empty() {
                        reduce_cancel.cancel();
                    }
                }
                () = all_ended.cancelled(), if *stop.borrow() == Stop::No => raise(&stop, Stop::Finish),
                () = cancel.cancelled(), if !canceled => {
                    canceled = true;
                    planning.abort();
                    raise(&stop, Stop::Drain);
                    if agents.is_empty() {
                        reduce_cancel.cancel();
                    }
                }
                () = kill.cancelled(), if canceled && *stop.borrow() < Stop::Kill => raise(&stop, Stop::Kill),
                reduced = &mut reducing => break reduced.context("the reducer panicked")?,
            }
        };
        planning.abort();
        let completed = result.as_ref().is_ok_and(|result| result.state == JobState::Completed);
        raise(&stop, if completed { Stop::Finish } else { Stop::Kill });
        while agents.join_next().await.is_some() {}
        bar.abort();
        let _ = bar.await;
        if completed {
            remove_queues(&folder);
            if !self.spec.fingerprint.is_empty() && job_file::script_has_changed(&self.spec) {
                tell(
                    "warning: the script, or a file beside it, was changed while the job ran: rows may come from either version",
                );
                self.forget_fingerprint().await?;
            }
        }
        result
    }

    /// A job that has mixed two versions of its script is never continued or reused by `run`.
    async fn forget_fingerprint(&mut self) -> Result<()> {
        self.spec.fingerprint.clear();
        self.store.put_spec(&self.spec).await.context("write the job")
    }

    /// What an earlier run has left: everything announced is committed, the rest is published again.
    async fn take_over(&self, tasks: &SqliteQueue, reducer: &mut Reducer, tell: &dyn Fn(&str)) -> Result<Unfinished> {
        let committed_before = reducer.tally().mini_batches().succeeded;
        reducer.drain().await.context("commit what was announced")?;
        let announced = reducer.tally().mini_batches().succeeded - committed_before;
        if reducer.segments_mended() > 0 {
            tell(&format!(
                "warning: {} segments of the ledger are empty or cut short, as a power cut leaves them; what only they \
                 held runs again",
                reducer.segments_mended()
            ));
        }
        let lost = reducer.forget_lost_rows().await.context("look for the rows of what is committed")?;
        if let Some(warning) = unfinished::lost_rows(&lost) {
            tell(&warning);
        }
        let tally = reducer.tally();
        let committed = tally.mini_batches().succeeded.saturating_sub(announced);
        let failed = tally.mini_batches().failed;
        if self.reopened {
            reducer.reopen().await?;
        }
        let mut interrupted = HashMap::new();
        for (body, receive_count) in tasks.in_flight().await.context("read the task queue")? {
            if let Ok(descriptor) = serde_json::from_slice::<Descriptor>(&body) {
                interrupted.insert(descriptor.mini_batch, descriptor.deliveries_lost + receive_count);
            }
        }
        tasks.purge().await.context("clear the task queue")?;
        let unfinished = Unfinished::new(reducer.tally(), interrupted);
        tell(&unfinished.explain(&self.spec, committed, announced, failed, self.reopened));
        Ok(unfinished)
    }
}

/// Tells the agents to stop, unless they were told more.
fn raise(stop: &watch::Sender<Stop>, to: Stop) {
    stop.send_if_modified(|stop| {
        let is_more = to > *stop;
        *stop = to.max(*stop);
        is_more
    });
}

async fn plan(partitioner: Partitioner, unfinished: Unfinished, fail_job: FailJob) {
    if let Err(error) = partitioner.resume(|mini_batch| unfinished.pending(mini_batch), |_| ()).await {
        fail_job.fail(one_line(&error));
    }
}

/// Scripts write files of their own there, so it stands before the first one starts.
pub fn make_output_folder(spec: &JobSpec) -> Result<()> {
    let folder = &spec.output.folder;
    if folder.as_bytes().is_empty() || folder.is_url() {
        return Ok(());
    }
    let made = match spec.durability {
        Durability::Process => std::fs::create_dir_all(folder.as_path()),
        Durability::Full => disk::create_folder(folder.as_path()),
    };
    made.with_context(|| format!("make the output folder {}", folder.display()))
}

fn open_queue(path: PathBuf, durability: Durability) -> Result<Arc<SqliteQueue>> {
    let durability = match durability {
        Durability::Process => queue::Durability::Normal,
        Durability::Full => queue::Durability::Full,
    };
    Ok(Arc::new(SqliteQueue::open(path, SqliteOptions { durability, ..SqliteOptions::default() })?))
}

/// A completed job needs no queues.
fn remove_queues(folder: &std::path::Path) {
    for queue in ["tasks", "results"] {
        for suffix in ["db", "db-wal", "db-shm"] {
            let _ = std::fs::remove_file(folder.join(format!("{queue}.{suffix}")));
        }
    }
}

pub fn one_line(error: &anyhow::Error) -> String {
    format!("{error:#}")
}

/// Watches the job's folder for a request to cancel, from `gristmill cancel` in another terminal.
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
    pub fn resume(job: FoundJob, home: &'a Home, settings: &'a Settings) -> Self {
        let reopened = job.result.is_some();
        Self { store: job.store, spec: job.spec, resumed: true, reopened, home, settings }
    }
}
