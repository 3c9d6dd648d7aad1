//! Every open job of a compute target, served by one process: one [`Reducer`] a job, each with its view of the shared
//! result queue.
//!
//! Jobs are found by their open markers in the store and by their messages. Any number of services may run: what one
//! of them commits the others read. A job that cannot be served is told once, tried again from time to time, and
//! stops no other.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use protocol::{DeadLetter, JobState, job_of_message};
use queue::{Arrival, Delivery, Demultiplexer, DemultiplexerOptions, Message, Queue, Refusal, ReturnBy};
use storage::{JobStore, TargetStore};
use telemetry::metrics::STATE;
use telemetry::{Duty, Health, metrics};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

use crate::failures::one_line;
use crate::{Options, Reducer};

/// The longest wait of one call to the result queue, which is what services allow.
const POLL_WAIT: Duration = Duration::from_secs(20);
/// Messages to receive while no job is open, so that new ones are noticed.
const IDLE_WISH: usize = 10;

/// How long everything may take, from being told to stop to the end. Below what containers are given: 120 s.
const LEAVE_TIME: Duration = Duration::from_secs(90);

/// How long messages of a job that cannot be served are held where the queue has no delays.
const UNTIMED_PAUSE: Duration = Duration::from_secs(1);

/// How a [`Service`] works.
#[derive(Clone, Debug)]
pub struct ServiceOptions {
    /// Of each job's reducer.
    pub reducer: Options,
    /// Period of looking for jobs that have no messages yet, or were opened again.
    pub look_interval: Duration,
    /// How long to wait before a job that could not be served is tried again.
    pub trouble_interval: Duration,
    /// Return when no job has been open for so long; `None`: never.
    pub idle_exit: Option<Duration>,
    /// Where it shows that it makes progress.
    pub health: Health,
}

impl Default for ServiceOptions {
    fn default() -> Self {
        Self {
            reducer: Options::shared(),
            look_interval: Duration::from_secs(5),
            trouble_interval: Duration::from_secs(20),
            idle_exit: None,
            health: Health::default(),
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
    /// Where messages go that nobody can read.
    pub dead_letters: Arc<dyn Queue>,
    /// How to work.
    pub options: ServiceOptions,
}

impl Service {
    /// Serves until `stop` is cancelled, or nothing has been open for as long as the options say. Then what was
    /// received is committed, the rest is given back, and jobs go on without this service.
    ///
    /// An error means that the result queue cannot be used.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let options = DemultiplexerOptions {
            group_of: job_of_message,
            // Where leases are not ended by time, nothing would keep a message from coming back at once, and first.
            return_by: match self.results.limits().timed_lease {
                true => ReturnBy::Release,
                false => ReturnBy::Republish(|delivery: &Delivery| delivery.body.clone()),
            },
            lease: self.options.reducer.visibility,
            poll_wait: POLL_WAIT,
            idle_wish: IDLE_WISH,
            hold_max: None,
        };
        let (demultiplexer, arrivals) = Demultiplexer::start(self.results.clone(), options);
        let health = self.options.health.clone();
        let mut serving = Serving {
            store_answers: health.answering("the store"),
            demultiplexer: Arc::new(demultiplexer),
            jobs: HashMap::new(),
            told: HashSet::new(),
            tasks: JoinSet::new(),
            stop: stop.child_token(),
            quiet_since: Instant::now(),
            service: self,
        };
        let alive = health.coming_round("the loop of the service");
        let worked = serving.work(arrivals, &stop, &alive).await;
        serving.leave().await;
        worked
    }
}

/// Where a job stands with this service.
#[derive(Debug)]
struct Job {
    /// A task is looking at it, or serving it.
    is_served: bool,
    /// Why it could not be served, when that was last tried, in one line.
    trouble: Option<String>,
    again_at: Instant,
}

/// What a task has to say of its job at the end.
#[derive(Debug)]
enum Outcome {
    Ended(JobState),
    /// It had ended, or never existed: messages that came before one looked are of no use.
    Absent {
        looked_at: Instant,
        why: &'static str,
    },
    /// It was told to stop.
    Left,
}

struct Serving {
    service: Service,
    demultiplexer: Arc<Demultiplexer>,
    jobs: HashMap<String, Job>,
    /// Jobs of which it has been said that their messages are dropped.
    told: HashSet<String>,
    tasks: JoinSet<(String, anyhow::Result<Outcome>)>,
    stop: CancellationToken,
    /// Since when no job has been open.
    quiet_since: Instant,
    store_answers: Duty,
}

impl Serving {
    async fn work(
        &mut self,
        mut arrivals: mpsc::Receiver<Arrival>,
        stop: &CancellationToken,
        alive: &Duty,
    ) -> anyhow::Result<()> {
        let mut look = interval(self.service.options.look_interval);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            alive.beat();
            metrics().jobs_open.set(self.tasks.len() as i64);
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                Some(ended) = self.tasks.join_next(), if !self.tasks.is_empty() => {
                    let (job_id, outcome) = ended.context("a task of the service was aborted")?;
                    self.ended(job_id, outcome).await;
                }
                arrival = arrivals.recv() => match arrival.context("the result queue is received no more")? {
                    Arrival::NewGroup(job_id) => self.arrived(job_id),
                    Arrival::Unreadable { delivery, reason } => self.bury(delivery, &reason).await,
                    Arrival::Failed(error) => return Err(error).context("receive results"),
                },
                _ = look.tick() => {
                    self.look().await;
                    let idle = self.quiet_since.elapsed();
                    if self.tasks.is_empty() && self.service.options.idle_exit.is_some_and(|longest| idle >= longest) {
                        tracing::info!("no job has been open for {} s, the reducer exits", idle.as_secs());
                        return Ok(());
                    }
                }
            }
            if !self.tasks.is_empty() {
                self.quiet_since = Instant::now();
            }
        }
    }

    /// Looks for open jobs.
    async fn look(&mut self) {
        self.store_answers.asked(Duration::ZERO);
        let open = match self.service.target.open_jobs().await {
            Ok(open) => open,
            Err(error) => return tracing::warn!("cannot look for open jobs, trying again: {error}"),
        };
        self.store_answers.answered();
        for job_id in open {
            self.start(job_id);
        }
    }

    /// Messages of a job wait that nobody has a view of.
    fn arrived(&mut self, job_id: String) {
        if self.jobs.get(&job_id).is_some_and(|job| !job.is_served && job.again_at > Instant::now()) {
            self.give_back(job_id);
        } else {
            self.start(job_id);
        }
    }

    /// Begins to serve a job, unless that has been done, or was tried in vain a moment ago.
    fn start(&mut self, job_id: String) {
        let now = Instant::now();
        let job = self.jobs.entry(job_id.clone()).or_insert(Job { is_served: false, trouble: None, again_at: now });
        if job.is_served || job.again_at > now {
            return;
        }
        job.is_served = true;
        let options =
            Options { dead_letters: Some(self.service.dead_letters.clone()), ..self.service.options.reducer.clone() };
        let task = Task {
            job: self.service.target.job(&job_id),
            target: self.service.target.clone(),
            job_id: job_id.clone(),
            demultiplexer: self.demultiplexer.clone(),
            options,
            stop: self.stop.clone(),
        };
        // A panic is the trouble of one job.
        self.tasks.spawn(async move {
            let span = tracing::error_span!("reducer", job.id = job_id, node.id = task.options.writer);
            let outcome = AbortOnDropHandle::new(tokio::spawn(task.run().instrument(span))).await;
            (job_id, outcome.context("the reducer panicked").flatten())
        });
    }

    async fn ended(&mut self, job_id: String, outcome: anyhow::Result<Outcome>) {
        match outcome {
            Ok(Outcome::Ended(state)) => {
                tracing::info!(job.id = job_id, "the job has ended: {state:?}");
                let state = match state {
                    JobState::Completed => "completed",
                    JobState::Failed => "failed",
                    JobState::Canceled => "canceled",
                    JobState::Running => "running",
                };
                metrics().jobs_ended.get_or_create(&[(STATE, state)]).inc();
                self.jobs.remove(&job_id);
                self.told.remove(&job_id);
                self.demultiplexer.close(&job_id);
            }
            Ok(Outcome::Left) => drop(self.jobs.remove(&job_id)),
            Ok(Outcome::Absent { looked_at, why }) => {
                self.jobs.remove(&job_id);
                if self.told.insert(job_id.clone()) {
                    tracing::info!(job.id = job_id, "{why}: messages of this job are dropped");
                }
                let dropped = self.demultiplexer.refuse(&job_id, Refusal::Drop { received_before: looked_at }).await;
                if let Err(error) = dropped {
                    tracing::warn!(job.id = job_id, "messages could not be dropped and will come again: {error}");
                }
            }
            Err(error) => {
                self.demultiplexer.close(&job_id);
                self.trouble(&job_id, one_line(&format!("{error:#}"))).await;
                self.give_back(job_id);
            }
        }
    }

    /// Tells once why a job cannot be served: here, and to whoever looks at the job.
    async fn trouble(&mut self, job_id: &str, trouble: String) {
        let again_at = Instant::now() + self.service.options.trouble_interval;
        let now = Job { is_served: false, trouble: Some(trouble.clone()), again_at };
        let before = self.jobs.insert(job_id.to_owned(), now).and_then(|job| job.trouble);
        if before.as_ref() == Some(&trouble) {
            return;
        }
        tracing::error!(job.id = job_id, "the job cannot be served, trying again from time to time: {trouble}");
        let job = self.service.target.job(job_id);
        let mut progress = job.progress().await.ok().flatten().unwrap_or_else(Reducer::no_progress);
        progress.trouble = Some(trouble);
        if let Err(error) = job.put_progress(&progress).await {
            tracing::debug!(job.id = job_id, "the trouble cannot be written: {error}");
        }
    }

    /// Gives messages of a job that cannot be served to others, and to later.
    fn give_back(&self, job_id: String) {
        let is_timed = self.service.results.limits().timed_lease;
        let demultiplexer = self.demultiplexer.clone();
        let delay = self.service.options.trouble_interval;
        tokio::spawn(async move {
            if !is_timed {
                sleep(UNTIMED_PAUSE).await;
            }
            if let Err(error) = demultiplexer.refuse(&job_id, Refusal::GiveBack { delay }).await {
                tracing::warn!(job.id = job_id, "messages of the job could not be given back: {error}");
            }
        });
    }

    /// A message that is none of ours.
    async fn bury(&self, delivery: Delivery, reason: &str) {
        tracing::warn!(
            message.bytes = delivery.body.len(),
            "a result message cannot be read and goes to the dead letters: {reason}"
        );
        let letter =
            dead_letter(reason, &self.service.options.reducer.writer, &delivery.body, &*self.service.dead_letters);
        let buried = match self.service.dead_letters.send(vec![letter]).await {
            Ok(()) => self.service.results.acknowledge(&[delivery.receipt]).await.map(drop),
            Err(error) => Err(error),
        };
        if let Err(error) = buried {
            tracing::warn!("it comes again: {error}");
        }
    }

    /// Lets every job's reducer commit what it has, as long as there is time. What a store or a queue that does not answer
    /// keeps from being done is done by others: the messages come again.
    async fn leave(&mut self) {
        self.stop.cancel();
        let left = async {
            while let Some(ended) = self.tasks.join_next().await {
                if let Ok((job_id, Err(error))) = ended {
                    tracing::warn!(job.id = job_id, "{error:#}");
                }
            }
            if let Err(error) = self.demultiplexer.drain().await {
                tracing::warn!("messages could not be given back and come again by themselves: {error}");
            }
        };
        if timeout(LEAVE_TIME, left).await.is_err() {
            tracing::warn!("store or queue do not answer: what is not committed comes again by itself");
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
            // Whoever wrote the result may not have come to this.
            self.mark_ended().await?;
            return Ok(Outcome::Absent { looked_at, why: "it has ended" });
        }
        if let Err(storage::Error::NotFound { .. }) = self.job.spec().await {
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

    /// Removes the marker of an ended job, unless it is opened again just now.
    async fn mark_ended(&self) -> storage::Result<()> {
        self.target.mark_ended(&self.job_id).await?;
        if self.job.result().await?.is_none() {
            self.target.mark_open(&self.job_id).await?;
        }
        Ok(())
    }
}

/// A result message that cannot be read, for people.
pub(crate) fn dead_letter(reason: &str, reducer: &str, body: &[u8], dead_letters: &dyn Queue) -> Message {
    let bytes_max = dead_letters.limits().message_bytes_max;
    Message::new(DeadLetter::message(reason, reducer, "results", body, bytes_max), "dead-letters")
}

#[cfg(test)]
mod tests;
