//! Serves every open job of a compute target in one process: one [`Reducer`] a job, on the queues
//! of the job. Keeps the schedule of the target, which says which node works on which job.
//!
//! Any number of such processes may run: each reads what the others commit, and none owns a job or
//! the schedule. The process whose schedule admits a job publishes its mini-batches; if it dies,
//! another one does. If a process cannot serve a job, it reports that once, retries from time to
//! time, and serves the others.
//!
//! The queues of a job exist from the schedule that admits it until the first one that does not
//! list it.
//!
//! The names of queues contain the number of the schedule, because SQS refuses the name of a
//! deleted queue for a minute. Queues that no schedule has listed for 15 seconds are deleted; until
//! then nodes stop receiving, because RabbitMQ 3.10 closes the whole connection of a consumer that
//! starts during the deletion. If somebody deletes a queue, a reducer creates it again, and
//! publishes the mini-batches that an emptied queue has lost (`QueueLossDetector`).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context;
use protocol::{
    JobState, ReducerTrouble, Schedule, ScheduledJob, job_of_queues, milliseconds_since_epoch,
    one_line, queues_of,
};
use queue::{Broker, JobQueues, Queue, Receive};
use storage::{JobStore, TargetStore};
use telemetry::metrics::STATE;
use telemetry::{Duty, Health, metrics};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

use crate::planner::{Planner, PlannerReport};
use crate::{Backlog, Options, Reducer, Workers};

/// The longest wait of one call to the control queue: the limit of SQS.
const CONTROL_WAIT: Duration = Duration::from_secs(20);
/// Without open jobs the planner runs less often, by this factor, because each run has a price.
/// Commands announce new jobs.
const IDLE_LOOKS_RARER: u32 = 4;
/// The pause after the store did not answer.
const LOOK_AGAIN: Duration = Duration::from_secs(4);
/// Time between two searches for queues of killed processes.
const SWEEP_EVERY: Duration = Duration::from_secs(60);
/// Time between two checks of the task queue of a job: that it exists, and has messages.
const LOOK_FOR_TASKS_EVERY: Duration = Duration::from_secs(20);
/// How long the deletion of queues may take at the end.
const TIDY_TIME: Duration = Duration::from_secs(10);
/// Longest time from the request to stop to the end of the process; containers have 120 s.
const LEAVE_TIME: Duration = Duration::from_secs(90);

/// Publishes the mini-batches of jobs.
pub trait Publisher: Send + Sync {
    /// Publishes the unfinished mini-batches of a job, and follows its plan until that is complete.
    fn publish(
        &self,
        job: JobStore,
        queues: JobQueues,
    ) -> Pin<Box<dyn Future<Output = anyhow::Result<()>> + Send>>;
}

/// The options of a [`Fleet`].
#[derive(Clone, Debug)]
pub struct FleetOptions {
    /// The options of each job's reducer.
    pub reducer: Options,
    /// Time between two reads of jobs and nodes.
    pub look_interval: Duration,
    /// The pause before another attempt to serve a job.
    pub trouble_interval: Duration,
    /// Time from the first schedule that does not list a job to the deletion of its queues. Until
    /// then nodes stop receiving from them; some brokers close a whole connection on which a
    /// consumer starts during the deletion of its queue.
    pub delete_after: Duration,
    /// Return when no job has been open for this long; `None`: never.
    pub idle_exit: Option<Duration>,
    /// Delete the queues of ended jobs at the end: this process is the last one for now, and nodes have left these jobs.
    pub tidies: bool,
    /// Where the process shows that it makes progress.
    pub health: Health,
    /// Notified when a job has ended.
    pub ended: Arc<Notify>,
    /// Wakes the planner for new jobs.
    pub news: Arc<Notify>,
    /// The build of this process.
    pub build: String,
}

impl Default for FleetOptions {
    fn default() -> Self {
        Self {
            reducer: Options::shared(),
            look_interval: Duration::from_secs(1),
            trouble_interval: Duration::from_secs(20),
            delete_after: Duration::from_secs(15),
            idle_exit: None,
            tidies: false,
            health: Health::default(),
            ended: Arc::default(),
            news: Arc::default(),
            build: String::new(),
        }
    }
}

/// Serves every open job of a compute target, and keeps its schedule.
pub struct Fleet {
    /// The target's store.
    pub target: TargetStore,
    /// Its queues.
    pub broker: Arc<dyn Broker>,
    /// The control queue: commands send a message of any content to it after they have changed a
    /// job, so that a reducer reads the jobs at once.
    pub control: Arc<dyn Queue>,
    /// Queue for messages that no reducer can read.
    pub dead_letters: Arc<dyn Queue>,
    /// Publishes its jobs.
    pub publisher: Arc<dyn Publisher>,
    /// Its options.
    pub options: FleetOptions,
}

impl Fleet {
    /// Serves until `stop` is canceled, or no job has been open for `idle_exit`. Then it commits
    /// the received messages, and leaves its jobs to other processes.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let health = self.options.health.clone();
        let alive = health.coming_round("the loop of the reducer");
        let told = JobChannels::default();
        let (reports, schedules, planning) =
            plan(&self, told.clone(), health.answering("the store"));
        let tidying = delete_unused_queues(
            self.target.clone(),
            self.broker.clone(),
            schedules,
            self.options.delete_after,
        );
        let _keeping = [planning, AbortOnDropHandle::new(tokio::spawn(tidying))];
        let _hearing = AbortOnDropHandle::new(tokio::spawn(receive_notifications(
            self.control.clone(),
            self.options.news.clone(),
        )));
        let mut running = Running {
            jobs: HashMap::new(),
            publishing: HashMap::new(),
            tasks: JoinSet::new(),
            stop: stop.child_token(),
            schedule: Schedule::default(),
            quiet_since: Instant::now(),
            told,
            fleet: self,
        };
        let worked = running.work(reports, &stop, &alive).await;
        running.leave().await;
        let Running { fleet, .. } = running;
        if fleet.options.tidies && timeout(TIDY_TIME, fleet.tidy()).await.is_err() {
            tracing::warn!(
                "the queues of ended jobs stay until the next reducer runs: store or queue do not answer"
            );
        }
        worked
    }

    /// Deletes the queues of ended jobs.
    async fn tidy(&self) {
        let tidied = async {
            let schedule = Planner::new(self.target.clone(), self.broker.jobs_max())
                .look(|_| None)
                .await?
                .schedule;
            let mut queues = KnownQueues::default();
            queues.add(self.target.queues().await?);
            queues.delete_unused(&schedule, Duration::ZERO, &self.target, &*self.broker).await;
            storage::Result::Ok(())
        };
        if let Err(error) = tidied.await {
            tracing::warn!("the queues of ended jobs stay until the next reducer runs: {error:#}");
        }
    }
}

/// Receives messages of the control queue until it is dropped. The loss of a message costs up to four seconds.
async fn receive_notifications(control: Arc<dyn Queue>, news: Arc<Notify>) {
    let request =
        Receive { messages_max: 10, visibility: Duration::from_secs(30), wait: CONTROL_WAIT };
    loop {
        let heard = async {
            let deliveries = control.receive(request).await?;
            if !deliveries.is_empty() {
                news.notify_one();
                let receipts: Vec<_> =
                    deliveries.into_iter().map(|delivery| delivery.receipt).collect();
                control.acknowledge(&receipts).await?;
            }
            Ok::<_, queue::Error>(())
        };
        if let Err(error) = heard.await {
            tracing::debug!("cannot receive notices of new jobs, listing jobs instead: {error:#}");
            sleep(LOOK_AGAIN).await;
        }
    }
}

/// The backlog that the reducer of a job sends to the planner, and the workers that it receives
/// from it.
type JobChannel = (watch::Receiver<Backlog>, watch::Sender<Arc<Workers>>);

/// The channels between the planner and the reducers of jobs.
#[derive(Clone, Default)]
struct JobChannels {
    /// The channel of each job. Ordered, because reducers wake in this order.
    jobs: Arc<Mutex<BTreeMap<String, JobChannel>>>,
    /// Jobs that this process has published, and the schedules that have admitted them.
    published: Arc<Mutex<Vec<(String, u64)>>>,
}

impl JobChannels {
    fn backlog(&self, job_id: &str) -> Option<Backlog> {
        let jobs = self.jobs.lock().expect("no holder panics");
        jobs.get(job_id).map(|(backlog, _)| backlog.borrow().clone())
    }

    fn send_workers(&self, planner: &Planner) {
        let mut all = planner.workers();
        for (job_id, (_, workers)) in &*self.jobs.lock().expect("no holder panics") {
            let of_job = all.remove(job_id).unwrap_or_default();
            workers.send_replace(Arc::new(Workers { able: planner.able(job_id), ..of_job }));
        }
    }
}

/// Keeps the schedule of a target until the handle is dropped. Returns the reports of the planner,
/// and the schedules alone.
fn plan(
    fleet: &Fleet,
    told: JobChannels,
    store_answers: Duty,
) -> (mpsc::Receiver<PlannerReport>, watch::Receiver<Schedule>, AbortOnDropHandle<()>) {
    let (sender, reports) = mpsc::channel(1);
    let (schedules, last) = watch::channel(Schedule::default());
    let FleetOptions { look_interval, news, build, .. } = fleet.options.clone();
    let mut planner = Planner::new(fleet.target.clone(), fleet.broker.jobs_max()).of_build(build);
    let planning = async move {
        loop {
            store_answers.asked(Duration::ZERO);
            for (job_id, admitted_in) in
                std::mem::take(&mut *told.published.lock().expect("no holder panics"))
            {
                planner.published(&job_id, admitted_in);
            }
            let pause = match planner.look(|job_id| told.backlog(job_id)).await {
                Ok(report) => {
                    store_answers.answered();
                    told.send_workers(&planner);
                    let is_idle = report.schedule.jobs.is_empty();
                    schedules.send_replace(report.schedule.clone());
                    if sender.send(report).await.is_err() {
                        return;
                    }
                    if is_idle { IDLE_LOOKS_RARER * look_interval } else { look_interval }
                }
                Err(error) => {
                    tracing::warn!("cannot look for open jobs, trying again: {error:#}");
                    LOOK_AGAIN
                }
            };
            let _ = timeout(pause, news.notified()).await;
        }
    };
    (reports, last, AbortOnDropHandle::new(tokio::spawn(planning)))
}

/// Deletes the queues of ended jobs, including those of killed processes. A task of its own, so
/// that no schedule waits for an unavailable broker.
async fn delete_unused_queues(
    target: TargetStore,
    broker: Arc<dyn Broker>,
    mut schedules: watch::Receiver<Schedule>,
    after: Duration,
) {
    let mut swept_at = None::<Instant>;
    let mut queues = KnownQueues::default();
    while schedules.changed().await.is_ok() {
        let schedule = schedules.borrow_and_update().clone();
        if swept_at.is_none_or(|at| at.elapsed() >= SWEEP_EVERY) {
            match target.queues().await {
                Ok(names) => queues.add(names),
                Err(error) => tracing::debug!("cannot look for unused queues: {error:#}"),
            }
            swept_at = Some(Instant::now());
        }
        queues.add(schedule.jobs.iter().filter_map(ScheduledJob::queues));
        queues.delete_unused(&schedule, after, &target, &*broker).await;
    }
}

/// Queues that may exist, with the time since which no schedule has listed their jobs.
#[derive(Default)]
struct KnownQueues(BTreeMap<String, Option<Instant>>);

impl KnownQueues {
    fn add(&mut self, names: impl IntoIterator<Item = String>) {
        for name in names {
            self.0.entry(name).or_default();
        }
    }

    /// Deletes the queues that have been unused for this long.
    async fn delete_unused(
        &mut self,
        schedule: &Schedule,
        after: Duration,
        target: &TargetStore,
        broker: &dyn Broker,
    ) {
        let now = Instant::now();
        let used: HashSet<String> = schedule.jobs.iter().filter_map(ScheduledJob::queues).collect();
        for (name, unused_since) in &mut self.0 {
            // A name that is not of this form, or newer than the schedule, says nothing about a job that has ended.
            let is_known =
                job_of_queues(name).is_some_and(|(_, admitted_in)| admitted_in <= schedule.number);
            *unused_since = match is_known && !used.contains(name) {
                true => unused_since.or(Some(now)),
                false => None,
            };
        }
        let is_due = |since: &Option<Instant>| since.is_some_and(|since| now - since >= after);
        let due: Vec<String> = self
            .0
            .iter()
            .filter(|(_, since)| is_due(since))
            .map(|(name, _)| name.clone())
            .collect();
        for name in due {
            let deleted = async {
                broker.delete(&name).await?;
                target.remove_queues(&name).await?;
                // A slow reducer may have created them again, and noted so, before the note was removed.
                broker.delete(&name).await?;
                anyhow::Ok(())
            };
            match deleted.await {
                Ok(()) => drop(self.0.remove(&name)),
                Err(error) => tracing::warn!(
                    "cannot delete the queues of an ended job, trying again: {error:#}"
                ),
            }
        }
    }
}

/// A job, as this process knows it.
#[derive(Debug)]
struct Job {
    /// The schedule that has admitted it.
    admitted_in: u64,
    /// Stops the task that serves it; `None`: none does.
    serving: Option<CancellationToken>,
    /// Why the last attempt to serve it failed, in one line.
    trouble: Option<String>,
    again_at: Instant,
}

/// The report of a task.
#[derive(Debug)]
enum Report {
    Served { job_id: String, admitted_in: u64, outcome: anyhow::Result<ServiceEnd> },
    Published { job_id: String, admitted_in: u64, result: anyhow::Result<()> },
}

/// The end of the service of a job.
#[derive(Debug)]
enum ServiceEnd {
    Ended(JobState),
    /// The job had ended before, or never existed.
    Absent(&'static str),
    /// The process stops, or the job has other queues now.
    Left,
}

struct Running {
    fleet: Fleet,
    jobs: HashMap<String, Job>,
    /// When each job that could not be published is published again; `None`: it is being published.
    publishing: HashMap<String, Option<Instant>>,
    tasks: JoinSet<Report>,
    stop: CancellationToken,
    /// The last schedule.
    schedule: Schedule,
    /// Since when no job has been open.
    quiet_since: Instant,
    told: JobChannels,
}

impl Running {
    /// Handles reports until the process should stop. Makes no request itself: while a store or
    /// queue is unavailable, the process still stops on request, and serves its other jobs.
    async fn work(
        &mut self,
        mut reports: mpsc::Receiver<PlannerReport>,
        stop: &CancellationToken,
        alive: &Duty,
    ) -> anyhow::Result<()> {
        let mut tick = tokio::time::interval(self.fleet.options.look_interval);
        loop {
            alive.beat();
            metrics().jobs_open.set(self.schedule.jobs.len() as i64);
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                Some(report) = self.tasks.join_next(), if !self.tasks.is_empty() => {
                    match report.context("a task of the reducer was aborted")? {
                        Report::Served { job_id, admitted_in, outcome } => self.ended(job_id, admitted_in, outcome),
                        Report::Published { job_id, admitted_in, result } => self.published(job_id, admitted_in, result),
                    }
                }
                report = reports.recv() => self.looked(report.context("the planner has ended")?),
                _ = tick.tick() => {}
            }
            if !self.tasks.is_empty() || !self.schedule.jobs.is_empty() {
                self.quiet_since = Instant::now();
            }
            let idle = self.quiet_since.elapsed();
            if self.fleet.options.idle_exit.is_some_and(|longest| idle >= longest) {
                tracing::info!("no job has been open for {} s; the reducer exits", idle.as_secs());
                return Ok(());
            }
        }
    }

    /// Serves and publishes the jobs that the schedule has admitted.
    fn looked(&mut self, PlannerReport { schedule, to_publish }: PlannerReport) {
        let now = Instant::now();
        let admitted: HashMap<&str, u64> = schedule
            .jobs
            .iter()
            .filter_map(|job| Some((job.job_id.as_str(), job.admitted_in?)))
            .collect();
        self.jobs.retain(|job_id, job| match (&job.serving, admitted.get(&**job_id)) {
            (Some(serving), Some(admitted_in)) if *admitted_in != job.admitted_in => {
                serving.cancel();
                true
            }
            // A job that has ended ends its task by itself, which may write its output until then.
            (serving, admitted_in) => serving.is_some() || admitted_in.is_some(),
        });
        for job in &schedule.jobs {
            if let Some(admitted_in) = job.admitted_in {
                self.serve(job.job_id.clone(), admitted_in);
            }
        }
        self.publishing.retain(|_, again_at| again_at.is_none_or(|at| at > now));
        for (job_id, admitted_in) in to_publish {
            self.publish(job_id, admitted_in);
        }
        self.schedule = schedule;
    }

    /// Starts to serve a job, unless it is served already or has just failed.
    fn serve(&mut self, job_id: String, admitted_in: u64) {
        let now = Instant::now();
        let new = Job { admitted_in, serving: None, trouble: None, again_at: now };
        let job = self.jobs.entry(job_id.clone()).or_insert(new);
        if job.serving.is_some() || job.again_at > now {
            return;
        }
        let stop = self.stop.child_token();
        (job.admitted_in, job.serving) = (admitted_in, Some(stop.clone()));
        let backlog = watch::Sender::default();
        let (workers, seen) = watch::channel(Arc::<Workers>::default());
        let in_queue = QueueLossDetector { backlog: backlog.subscribe(), workers: seen.clone() };
        self.told
            .jobs
            .lock()
            .expect("no holder panics")
            .insert(job_id.clone(), (backlog.subscribe(), workers));
        let workers = Arc::new(move || seen.borrow().clone());
        let Fleet { target, broker, dead_letters, options, .. } = &self.fleet;
        let options = Options {
            dead_letters: Some(dead_letters.clone()),
            backlog,
            workers,
            ..options.reducer.clone()
        };
        let task = Task {
            job: target.job(&job_id),
            target: target.clone(),
            job_id: job_id.clone(),
            queues: queues_of(&job_id, admitted_in),
            broker: broker.clone(),
            options,
            in_queue,
            stop,
        };
        // A panic ends only this job's task.
        self.tasks.spawn(async move {
            let span =
                tracing::error_span!("reducer", job.id = job_id, node.id = task.options.writer);
            let outcome = AbortOnDropHandle::new(tokio::spawn(task.run().instrument(span))).await;
            Report::Served {
                job_id,
                admitted_in,
                outcome: outcome.context("the reducer panicked").flatten(),
            }
        });
    }

    /// Publishes a job, unless this process does so already or has just failed to.
    fn publish(&mut self, job_id: String, admitted_in: u64) {
        if self.publishing.contains_key(&job_id) {
            return;
        }
        self.publishing.insert(job_id.clone(), None);
        let Fleet { target, broker, publisher, .. } = &self.fleet;
        let (target, broker, publisher) = (target.clone(), broker.clone(), publisher.clone());
        let (job, stop) = (target.job(&job_id), self.stop.clone());
        self.tasks.spawn(async move {
            let publishing = async {
                let queues = create(&target, &*broker, &queues_of(&job_id, admitted_in)).await?;
                publisher.publish(job.clone(), queues).await?;
                job.put_published(admitted_in).await?;
                Ok(())
            };
            let result = tokio::select! {
                biased;
                result = publishing => result,
                () = stop.cancelled() => Ok(()),
            };
            Report::Published { job_id, admitted_in, result }
        });
    }

    fn published(&mut self, job_id: String, admitted_in: u64, result: anyhow::Result<()>) {
        match result {
            Ok(()) => {
                self.publishing.remove(&job_id);
                let mut published = self.told.published.lock().expect("no holder panics");
                published.push((job_id, admitted_in));
            }
            Err(error) => {
                tracing::error!(job.id = job_id, "cannot publish the job, trying again: {error:#}");
                self.publishing
                    .insert(job_id, Some(Instant::now() + self.fleet.options.trouble_interval));
            }
        }
    }

    fn ended(&mut self, job_id: String, admitted_in: u64, outcome: anyhow::Result<ServiceEnd>) {
        self.told.jobs.lock().expect("no holder panics").remove(&job_id);
        match outcome {
            Ok(ServiceEnd::Ended(state)) => {
                tracing::info!(job.id = job_id, "the job has ended: {state:?}");
                count_ended(state);
                self.left(job_id, admitted_in);
                self.fleet.options.ended.notify_one();
            }
            Ok(ServiceEnd::Absent(why)) => {
                tracing::debug!(job.id = job_id, "nothing to do for the job: {why}");
                self.left(job_id, admitted_in);
            }
            Ok(ServiceEnd::Left) => drop(self.jobs.remove(&job_id)),
            Err(error) => self.trouble(&job_id, admitted_in, one_line(&format!("{error:#}"))),
        }
    }

    /// Leaves an ended job alone until the next schedule does not list it.
    fn left(&mut self, job_id: String, admitted_in: u64) {
        let again_at = Instant::now() + self.fleet.options.trouble_interval;
        self.jobs.insert(job_id, Job { admitted_in, serving: None, trouble: None, again_at });
        // The next schedule frees the processes of the job.
        self.fleet.options.news.notify_one();
    }

    /// Reports once why a job cannot be served: in the log, and in the progress of the job.
    fn trouble(&mut self, job_id: &str, admitted_in: u64, trouble: String) {
        let again_at = Instant::now() + self.fleet.options.trouble_interval;
        let now = Job { admitted_in, serving: None, trouble: Some(trouble.clone()), again_at };
        let before = self.jobs.insert(job_id.to_owned(), now).and_then(|job| job.trouble);
        if before.as_ref() == Some(&trouble) {
            return;
        }
        tracing::error!(
            job.id = job_id,
            "the job cannot be served, trying again from time to time: {trouble}"
        );
        show_trouble(self.fleet.target.job(job_id), job_id.to_owned(), trouble);
    }

    /// Lets every job's reducer commit its messages, until the time is up. If store or queue do not
    /// answer, other processes do the work: the queue redelivers the messages.
    async fn leave(&mut self) {
        self.stop.cancel();
        let left = async {
            while let Some(ended) = self.tasks.join_next().await {
                if let Ok(Report::Served { job_id, outcome: Err(error), .. }) = ended {
                    tracing::warn!(job.id = job_id, "{error:#}");
                }
            }
        };
        if timeout(LEAVE_TIME, left).await.is_err() {
            tracing::warn!(
                "store or queue do not answer; the queue will redeliver uncommitted messages"
            );
        }
    }
}

/// Counts a job that has ended.
fn count_ended(state: JobState) {
    let state = match state {
        JobState::Completed => "completed",
        JobState::Failed => "failed",
        JobState::Canceled => "canceled",
        JobState::Running => "running",
    };
    metrics().jobs_ended.get_or_create(&[(STATE, state)]).inc();
}

/// Writes into the progress of a job why it cannot be served.
fn show_trouble(job: JobStore, job_id: String, trouble: String) {
    tokio::spawn(async move {
        let mut progress = job.progress().await.ok().flatten().unwrap_or_else(Reducer::no_progress);
        let before = progress.trouble.take().filter(|before| before.reason == trouble);
        progress.at = milliseconds_since_epoch();
        progress.trouble = Some(ReducerTrouble::continuing(before.as_ref(), trouble));
        if let Err(error) = job.put_progress(&progress).await {
            tracing::debug!(job.id = job_id, "cannot write what delays the job: {error:#}");
        }
    });
}

/// Whether a queue does not exist any more.
fn is_absent(error: &anyhow::Error) -> bool {
    let mut causes = error.chain().filter_map(|cause| cause.downcast_ref::<queue::Error>());
    causes.any(|cause| matches!(cause, queue::Error::Absent { .. }))
}

/// Detects that somebody has deleted or emptied the task queue of a job.
#[derive(Clone)]
struct QueueLossDetector {
    backlog: watch::Receiver<Backlog>,
    workers: watch::Receiver<Arc<Workers>>,
}

impl QueueLossDetector {
    /// Waits until the queue is deleted, or lacks the messages of mini-batches that have not ended. A reducer receives nothing
    /// from it, so no other call would fail.
    ///
    /// The queue alone does not show lost messages: some brokers do not report the messages that
    /// other connections hold. So workers must hold none either, and no mini-batch may end, from
    /// one check to the next. A worker that has long been cut off from the store may still hold
    /// some. These then run twice, and count once.
    async fn lost(&mut self, queue: &dyn Queue) -> Lost {
        let mut was_empty = false;
        loop {
            let is_idle = self.is_idle_for(LOOK_FOR_TASKS_EVERY).await;
            let is_empty = match queue.depth().await {
                Ok(depth) => depth.total() == 0,
                Err(error @ queue::Error::Absent { .. }) => return Lost::Queue(error),
                Err(_) => false,
            };
            if was_empty && is_idle && is_empty {
                return Lost::Messages { ended: self.backlog.borrow().ended };
            }
            was_empty = is_empty;
        }
    }

    /// Returns, after this time, whether mini-batches were unfinished, none ended, and no worker held one all the time.
    async fn is_idle_for(&mut self, time: Duration) -> bool {
        let until = Instant::now() + time;
        let before = self.backlog.borrow().clone();
        let mut is_idle = before.planned.is_some_and(|planned| before.ended.1 < planned);
        loop {
            is_idle &= self.workers.borrow_and_update().held == 0;
            tokio::select! {
                biased;
                () = sleep_until(until) => return is_idle && self.backlog.borrow().ended == before.ended,
                Ok(()) = self.workers.changed() => {}
            }
        }
    }
}

/// A loss that no reducer has caused.
#[derive(Debug)]
enum Lost {
    Queue(queue::Error),
    /// `ended`: that of the backlog.
    Messages {
        ended: (u64, u64),
    },
}

/// Creates queues of this name that do not exist.
async fn create(
    target: &TargetStore,
    broker: &dyn Broker,
    name: &str,
) -> anyhow::Result<JobQueues> {
    target.put_queues(name).await.context("note that the job has queues")?;
    let queues = broker.create(name).await.context("create the queues of the job")?;
    // If the job has just ended, another reducer may have removed the note before the queues were created.
    target.put_queues(name).await.context("note that the job has queues")?;
    Ok(queues)
}

/// Serves one job.
struct Task {
    target: TargetStore,
    job: JobStore,
    job_id: String,
    /// Name of its queues.
    queues: String,
    broker: Arc<dyn Broker>,
    options: Options,
    in_queue: QueueLossDetector,
    stop: CancellationToken,
}

impl Task {
    async fn run(self) -> anyhow::Result<ServiceEnd> {
        if self.job.result().await?.is_some() {
            // The reducer that wrote the result may have died before it removed the marker.
            self.mark_ended().await?;
            return Ok(ServiceEnd::Absent("it has ended"));
        }
        if self.job.find_spec().await?.is_none() {
            self.target.mark_ended(&self.job_id).await?;
            return Ok(ServiceEnd::Absent("there is no such job in the store"));
        }
        let queues = create(&self.target, &*self.broker, &self.queues).await?;
        let options = Options { tasks: Some(queues.tasks.clone()), ..self.options.clone() };
        let served = async {
            let reducer = Reducer::open(self.job.clone(), queues.results, options).await?;
            tracing::info!(job.id = self.job_id, "the job is served");
            tokio::select! {
                biased;
                served = reducer.serve(self.stop.clone()) => served,
                error = self.keep_messages(&*queues.tasks) => Err(error.into()),
            }
        };
        match served.await {
            Ok(Some(result)) => {
                self.mark_ended().await?;
                Ok(ServiceEnd::Ended(result.state))
            }
            Ok(None) => Ok(ServiceEnd::Left),
            Err(error) => match self.job.result().await? {
                // Another reducer has ended the job, and its queues are deleted.
                Some(result) => Ok(ServiceEnd::Ended(result.state)),
                None if is_absent(&error) => {
                    self.publish_again("somebody has deleted the queues of the job").await?;
                    Ok(ServiceEnd::Left)
                }
                None => Err(error),
            },
        }
    }

    /// Lets reducers publish the lost mini-batches of an emptied queue. Returns the error once the
    /// queue is deleted.
    async fn keep_messages(&self, queue: &dyn Queue) -> queue::Error {
        let mut in_queue = self.in_queue.clone();
        let mut published = None;
        loop {
            let ended = match in_queue.lost(queue).await {
                Lost::Queue(error) => return error,
                Lost::Messages { ended } => ended,
            };
            // If that fails, the job ends by its own limits on time without progress.
            if published.replace(ended) == Some(ended) {
                continue;
            }
            let lost = "the queue of the job has lost its messages, somebody may have emptied it";
            if let Err(error) = self.publish_again(lost).await {
                tracing::warn!(
                    job.id = self.job_id,
                    "{lost}; they cannot be published again: {error:#}"
                );
            }
        }
    }

    /// Lets reducers create missing queues of the job, and publish its unfinished mini-batches.
    async fn publish_again(&self, lost: &str) -> storage::Result<()> {
        let admitted_in = job_of_queues(&self.queues).map(|(_, number)| number);
        let has_ended = self.job.result().await?.is_some();
        if has_ended || self.stop.is_cancelled() || self.job.published_in().await? != admitted_in {
            // The job has ended, or another reducer has published it into other queues.
            return Ok(());
        }
        tracing::warn!(job.id = self.job_id, "{lost}; what has not ended is published again");
        self.job.forget_published().await?;
        self.target.mark_open(&self.job_id).await
    }

    /// Removes the marker of an ended job, unless the job has just been reopened. A job without a result and without a marker
    /// would be lost to every reducer.
    async fn mark_ended(&self) -> storage::Result<()> {
        if self.job.result().await?.is_none() {
            return Ok(());
        }
        self.target.mark_ended(&self.job_id).await?;
        if self.job.result().await?.is_none() {
            self.target.mark_open(&self.job_id).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
