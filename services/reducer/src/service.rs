//! Every open job of a compute target, served by one process: one [`Reducer`] a job, each with its view of the shared
//! result queue.
//!
//! A service finds jobs by their open markers in the store and by their messages. Any number of services may run: each
//! reads what the others commit. A service reports once that it cannot serve a job, retries from time to time, and
//! meanwhile serves the others.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use protocol::{DeadLetter, JobState, job_of_message};
use queue::{Arrival, Delivery, Demultiplexer, DemultiplexerOptions, Message, Queue, Refusal, ReturnBy, Unreadable};
use storage::{JobStore, TargetStore, TurnState};
use telemetry::{Duty, Health, metrics};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

use crate::failures::one_line;
use crate::fleet::{count_ended, show_trouble};
use crate::{Options, Reducer};

/// The longest wait of one call to the result queue: the limit of SQS.
const POLL_WAIT: Duration = Duration::from_secs(20);
/// Messages to receive while no job is open, so that new ones are noticed.
const IDLE_WISH: usize = 10;

/// Jobs whose dropped messages the log does not name again; then it begins anew.
const REFUSED_MAX: usize = 10_000;

/// How long everything may take from the request to stop to the end; containers have 120 s.
const LEAVE_TIME: Duration = Duration::from_secs(90);

/// How long the service holds messages of a job that it cannot serve, where the queue has no delays.
const UNTIMED_PAUSE: Duration = Duration::from_secs(1);

/// How a [`Service`] works.
#[derive(Clone, Debug)]
pub struct ServiceOptions {
    /// Of each job's reducer.
    pub reducer: Options,
    /// Period of looking for jobs without messages, or that were reopened.
    pub look_interval: Duration,
    /// How long to wait before serving a job again that could not be served.
    pub trouble_interval: Duration,
    /// Return when no job has been open for this long; `None`: never.
    pub idle_exit: Option<Duration>,
    /// Where the service shows that it makes progress.
    pub health: Health,
    /// Notified when a job has ended.
    pub ended: Arc<Notify>,
}

impl Default for ServiceOptions {
    fn default() -> Self {
        Self {
            reducer: Options::shared(),
            look_interval: Duration::from_secs(5),
            trouble_interval: Duration::from_secs(20),
            idle_exit: None,
            health: Health::default(),
            ended: Arc::default(),
        }
    }
}

/// Serves every open job of a compute target.
#[derive(Debug)]
pub struct Service {
    /// The target's store.
    pub target: TargetStore,
    /// Its result queue.
    pub results: Arc<dyn Queue>,
    /// Queue for messages that no reducer can read.
    pub dead_letters: Arc<dyn Queue>,
    /// How to work.
    pub options: ServiceOptions,
}

impl Service {
    /// Serves until `stop` is cancelled, or no job has been open for `idle_exit`. Then it commits what it has received,
    /// returns the rest, and leaves its jobs to other services.
    ///
    /// An error means that the result queue cannot be used.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let health = self.options.health.clone();
        let (mut running, arrivals) = self.running(&stop);
        let alive = health.coming_round("the loop of the service");
        let (looks, _looking) = running.look_regularly(health.answering("the store"));
        let worked = running.work(arrivals, looks, &stop, &alive).await;
        running.leave().await;
        worked
    }

    /// Starts to receive.
    fn running(self, stop: &CancellationToken) -> (Running, mpsc::Receiver<Arrival>) {
        let options = DemultiplexerOptions {
            group_of: |body| {
                job_of_message(body).map_err(|error| Unreadable(format!("{:#}", anyhow::Error::from(error))))
            },
            // Without timed leases, a released message would be redelivered first, and at once.
            return_by: match self.results.limits().timed_lease {
                true => ReturnBy::Release,
                false => ReturnBy::Republish(|delivery: &Delivery| delivery.body.clone()),
            },
            lease: self.options.reducer.visibility,
            poll_wait: POLL_WAIT,
            idle_wish: IDLE_WISH,
            hold_max: None,
            look_every: None,
        };
        let (demultiplexer, arrivals) = Demultiplexer::start(self.results.clone(), options);
        let running = Running {
            demultiplexer: Arc::new(demultiplexer),
            jobs: HashMap::new(),
            refused: HashSet::new(),
            tasks: JoinSet::new(),
            stop: stop.child_token(),
            quiet_since: Instant::now(),
            service: self,
        };
        (running, arrivals)
    }
}

/// A job, as this service knows it.
#[derive(Debug)]
struct Job {
    /// A task looks the job up, or serves it.
    is_served: bool,
    /// Why the last attempt to serve it failed, in one line.
    trouble: Option<String>,
    again_at: Instant,
}

/// How the task of a job ends.
#[derive(Debug)]
enum Outcome {
    Ended(JobState),
    /// It had ended, or never existed: messages received before the look-up are useless.
    Absent {
        looked_at: Instant,
        why: &'static str,
    },
    /// The service stops.
    Left,
}

struct Running {
    service: Service,
    demultiplexer: Arc<Demultiplexer>,
    jobs: HashMap<String, Job>,
    /// Jobs of which the log says that their messages are dropped.
    refused: HashSet<String>,
    tasks: JoinSet<(String, anyhow::Result<Outcome>)>,
    stop: CancellationToken,
    /// Since when no job has been open.
    quiet_since: Instant,
}

impl Running {
    /// Handles what happens, until the service should stop. Asks no store and no queue itself: while one is away, the service
    /// still stops when it is asked to, and serves its other jobs.
    async fn work(
        &mut self,
        mut arrivals: mpsc::Receiver<Arrival>,
        mut looks: mpsc::Receiver<Option<Vec<String>>>,
        stop: &CancellationToken,
        alive: &Duty,
    ) -> anyhow::Result<()> {
        loop {
            alive.beat();
            metrics().jobs_open.set(self.tasks.len() as i64);
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                Some(ended) = self.tasks.join_next(), if !self.tasks.is_empty() => {
                    let (job_id, outcome) = ended.context("a task of the service was aborted")?;
                    self.ended(job_id, outcome);
                }
                arrival = arrivals.recv() => match arrival.context("the receiver of the result queue has ended")? {
                    Arrival::NewGroup(job_id) => self.arrived(job_id),
                    Arrival::Unreadable { delivery, reason } => self.bury(delivery, reason),
                    Arrival::Failed(error) => return Err(error).context("receive results"),
                },
                open = looks.recv() => {
                    self.looked(open.context("the look for open jobs has ended")?);
                    let idle = self.quiet_since.elapsed();
                    if self.tasks.is_empty() && self.service.options.idle_exit.is_some_and(|longest| idle >= longest) {
                        tracing::info!("no job has been open for {} s; the reducer exits", idle.as_secs());
                        return Ok(());
                    }
                }
            }
            if !self.tasks.is_empty() {
                self.quiet_since = Instant::now();
            }
        }
    }

    /// Looks for open jobs, until the handle is dropped. Sends them; `None`: the store has not answered.
    fn look_regularly(&self, store_answers: Duty) -> (mpsc::Receiver<Option<Vec<String>>>, AbortOnDropHandle<()>) {
        let (sender, looks) = mpsc::channel(1);
        let target = self.service.target.clone();
        let mut look = interval(self.service.options.look_interval);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let looking = tokio::spawn(async move {
            loop {
                look.tick().await;
                store_answers.asked(Duration::ZERO);
                let open = target.open_jobs().await;
                match &open {
                    Ok(_) => store_answers.answered(),
                    Err(error) => tracing::warn!("cannot look for open jobs, trying again: {error:#}"),
                }
                if sender.send(open.ok()).await.is_err() {
                    return;
                }
            }
        });
        (looks, AbortOnDropHandle::new(looking))
    }

    /// Serves the open jobs that a look has found.
    fn looked(&mut self, open: Option<Vec<String>>) {
        let Some(open) = open else { return };
        let now = Instant::now();
        self.jobs.retain(|job_id, job| job.is_served || job.again_at > now || open.contains(job_id));
        for job_id in open {
            self.start(job_id);
        }
    }

    /// Handles messages of a job that has no view.
    fn arrived(&mut self, job_id: String) {
        if self.jobs.get(&job_id).is_some_and(|job| !job.is_served && job.again_at > Instant::now()) {
            self.give_back(job_id);
        } else {
            self.start(job_id);
        }
    }

    /// Starts to serve a job, unless it is served already or has just failed.
    fn start(&mut self, job_id: String) {
        let now = Instant::now();
        let job = self.jobs.entry(job_id.clone()).or_insert(Job { is_served: false, trouble: None, again_at: now });
        if job.is_served || job.again_at > now {
            return;
        }
        job.is_served = true;
        let options = Options {
            dead_letters: Some(self.service.dead_letters.clone()),
            target: Some(self.service.target.clone()),
            ..self.service.options.reducer.clone()
        };
        let task = Task {
            job: self.service.target.job(&job_id),
            target: self.service.target.clone(),
            job_id: job_id.clone(),
            demultiplexer: self.demultiplexer.clone(),
            options,
            stop: self.stop.clone(),
        };
        // A panic ends only this job's task.
        self.tasks.spawn(async move {
            let span = tracing::error_span!("reducer", job.id = job_id, node.id = task.options.writer);
            let outcome = AbortOnDropHandle::new(tokio::spawn(task.run().instrument(span))).await;
            (job_id, outcome.context("the reducer panicked").flatten())
        });
    }

    fn ended(&mut self, job_id: String, outcome: anyhow::Result<Outcome>) {
        match outcome {
            Ok(Outcome::Ended(state)) => {
                tracing::info!(job.id = job_id, "the job has ended: {state:?}");
                count_ended(state);
                self.jobs.remove(&job_id);
                self.refused.remove(&job_id);
                self.demultiplexer.close(&job_id);
                self.service.options.ended.notify_one();
            }
            Ok(Outcome::Left) => drop(self.jobs.remove(&job_id)),
            Ok(Outcome::Absent { looked_at, why }) => {
                self.jobs.remove(&job_id);
                if self.refused.len() >= REFUSED_MAX {
                    self.refused.clear();
                }
                if self.refused.insert(job_id.clone()) {
                    tracing::info!(job.id = job_id, "{why}: messages of this job are dropped");
                }
                let demultiplexer = self.demultiplexer.clone();
                tokio::spawn(async move {
                    let dropping = Refusal::Drop { received_before: looked_at };
                    if let Err(error) = demultiplexer.refuse(&job_id, dropping).await {
                        tracing::warn!(
                            job.id = job_id,
                            "messages could not be dropped and will be delivered again: {error:#}"
                        );
                    }
                });
            }
            Err(error) => {
                self.demultiplexer.close(&job_id);
                self.trouble(&job_id, one_line(&format!("{error:#}")));
                self.give_back(job_id);
            }
        }
    }

    /// Reports once why a job cannot be served: in the log, and in the progress of the job.
    fn trouble(&mut self, job_id: &str, trouble: String) {
        let again_at = Instant::now() + self.service.options.trouble_interval;
        let now = Job { is_served: false, trouble: Some(trouble.clone()), again_at };
        let before = self.jobs.insert(job_id.to_owned(), now).and_then(|job| job.trouble);
        if before.as_ref() == Some(&trouble) {
            return;
        }
        tracing::error!(job.id = job_id, "the job cannot be served, trying again from time to time: {trouble}");
        show_trouble(self.service.target.job(job_id), job_id.to_owned(), trouble);
    }

    /// Returns messages of a job that cannot be served, for other services or a later attempt.
    fn give_back(&self, job_id: String) {
        let is_timed = self.service.results.limits().timed_lease;
        let demultiplexer = self.demultiplexer.clone();
        let delay = self.service.options.trouble_interval;
        tokio::spawn(async move {
            if !is_timed {
                sleep(UNTIMED_PAUSE).await;
            }
            if let Err(error) = demultiplexer.refuse(&job_id, Refusal::GiveBack { delay }).await {
                tracing::warn!(job.id = job_id, "messages of the job could not be returned: {error:#}");
            }
        });
    }

    /// Moves a message that cannot be read to the dead letters.
    fn bury(&self, delivery: Delivery, reason: String) {
        tracing::warn!(
            message.bytes = delivery.body.len(),
            "a result message cannot be read and goes to the dead letters: {reason}"
        );
        let (results, dead_letters) = (self.service.results.clone(), self.service.dead_letters.clone());
        let letter = dead_letter(&reason, &self.service.options.reducer.writer, &delivery.body, &*dead_letters);
        tokio::spawn(async move {
            let buried = match dead_letters.send(vec![letter]).await {
                Ok(()) => results.acknowledge(&[delivery.receipt]).await.map(drop),
                Err(error) => Err(error),
            };
            if let Err(error) = buried {
                tracing::warn!("the message will be redelivered: {error:#}");
            }
        });
    }

    /// Lets every job's reducer commit what it has, until the time is up. If store or queue do not answer, other services
    /// do the work: the queue redelivers the messages.
    async fn leave(&mut self) {
        self.stop.cancel();
        let left = async {
            while let Some(ended) = self.tasks.join_next().await {
                if let Ok((job_id, Err(error))) = ended {
                    tracing::warn!(job.id = job_id, "{error:#}");
                }
            }
            if let Err(error) = self.demultiplexer.drain().await {
                tracing::warn!("messages could not be returned and will be redelivered: {error:#}");
            }
        };
        if timeout(LEAVE_TIME, left).await.is_err() {
            tracing::warn!("store or queue do not answer; the queue will redeliver uncommitted messages");
        }
    }
}

/// Serves one job.
struct Task {
    target: TargetStore,
    job: JobStore,
    job_id: String,
    demultiplexer: Arc<Demultiplexer>,
    options: Options,
    stop: CancellationToken,
}

impl Task {
    async fn run(self) -> anyhow::Result<Outcome> {
        let looked_at = Instant::now();
        if self.job.result().await?.is_some() {
            // The reducer that wrote the result may have died before it removed the marker.
            self.mark_ended().await?;
            return Ok(Outcome::Absent { looked_at, why: "it has ended" });
        }
        if self.job.find_spec().await?.is_none() {
            self.target.mark_ended(&self.job_id).await?;
            return Ok(Outcome::Absent { looked_at, why: "there is no such job in the store" });
        }
        let view = self.demultiplexer.view(&self.job_id);
        let reducer = Reducer::open(self.job.clone(), view, self.options.clone()).await?;
        tracing::info!(job.id = self.job_id, "the job is served");
        match reducer.serve(self.stop.clone()).await? {
            Some(result) => {
                self.mark_ended().await?;
                Ok(Outcome::Ended(result.state))
            }
            None => Ok(Outcome::Left),
        }
    }

    /// Removes the marker of an ended job, unless the job has just been reopened. A job without a result and without a marker
    /// would be lost to every reducer.
    async fn mark_ended(&self) -> storage::Result<()> {
        if self.job.result().await?.is_none() {
            return Ok(());
        }
        self.target.mark_ended(&self.job_id).await?;
        if self.job.result().await?.is_none() {
            let state = match self.target.quotas().await {
                // If it does not wait, it is published a second time, which does no harm.
                Ok(Some(_)) => TurnState::Waits,
                _ => TurnState::Runs,
            };
            self.target.put_turn_state(&self.job_id, state).await?;
        }
        Ok(())
    }
}

/// Returns the dead letter of a result message that cannot be read.
pub(crate) fn dead_letter(reason: &str, reducer: &str, body: &[u8], dead_letters: &dyn Queue) -> Message {
    let bytes_max = dead_letters.limits().message_bytes_max;
    Message::new(DeadLetter::message(reason, reducer, "results", body, bytes_max), "dead-letters")
}

#[cfg(test)]
mod tests;
