//! Turns of jobs on a target with quotas: which jobs run, and which wait.
//!
//! A new job begins at once if the quotas allow it. Otherwise `enqueue` stores its plan and publishes nothing, so that its
//! messages are not in the way of other jobs. When its turn has come, a reducer publishes it. Every process that lets a
//! job begin writes a turn (`storage/src/target/turns.rs`) first, so no limit is exceeded whatever runs at the same time.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use chrono::{DateTime, Utc};
use partitioner::Partitioner;
use protocol::{Contender, Full, JobSpec, Priority, Quotas, WhenFull};
use queue::Queue;
use reducer::Reducer;
use storage::{Commit, OpenJob, TargetStore, Turn, TurnState};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tokio_util::task::AbortOnDropHandle;

use crate::{Engine, Error, Queues, Unfinished};

/// From one look at the jobs that wait to the next.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// From one reading of the quotas to the next, while no job waits.
const QUOTAS_EVERY: Duration = Duration::from_secs(30);
/// From one sign of a reducer that publishes a job to the next.
const SIGN_EVERY: Duration = Duration::from_secs(10);
/// Another reducer publishes a job whose own one has given no sign for this long.
const SILENCE: Duration = Duration::from_secs(60);
/// Tries to enter, while other processes create turns.
const TRIES_MAX: usize = 10;

/// Whether a job may run now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It may.
    Runs,
    /// It waits for its turn.
    Waits(Full),
}

/// The open jobs of a target.
#[derive(Debug)]
struct Crowd {
    /// Owners of the jobs that run or begin.
    running: Vec<String>,
    waiting: Vec<Contender>,
    /// Jobs that begin.
    begins: Vec<OpenJob>,
    /// The last turn.
    turn: u64,
}

/// Owner and first priority of each job.
type Owners = HashMap<String, (String, Priority)>;

impl Crowd {
    /// Reads the open jobs. `new`: a job that counts as waiting, whatever its marker says and though it is not planned.
    async fn read(store: &TargetStore, new: Option<&Contender>, known: &mut Owners) -> Result<Self> {
        let (turn, Turn { jobs, .. }) = store.last_turn().await?;
        let mut crowd = Self { running: Vec::new(), waiting: Vec::new(), begins: Vec::new(), turn };
        let open = store.open_turns().await?;
        known.retain(|job_id, _| open.iter().any(|job| job.job_id == *job_id));
        let mut new = new.cloned();
        for job in open {
            if let Some(new) = new.as_mut().filter(|new| new.job_id == job.job_id) {
                new.since = job.changed_at.timestamp_millis();
                continue;
            }
            let store = store.job(&job.job_id);
            let (owner, priority) = match known.get(&job.job_id) {
                Some(known) => known.clone(),
                None => match store.spec().await {
                    Ok(JobSpec { owner, priority, .. }) => {
                        known.entry(job.job_id.clone()).or_insert((owner, priority)).clone()
                    }
                    // A reducer or a clean-up removes its marker.
                    Err(storage::Error::NotFound { .. } | storage::Error::Damaged { .. }) => continue,
                    Err(error) => return Err(error.into()),
                },
            };
            let begins = !job.runs && jobs.contains(&job.job_id);
            if job.runs || begins {
                crowd.running.push(owner);
            } else if store.plan_complete().await?.is_some() {
                let priority = store.changed_priority().await?.unwrap_or(priority);
                let since = job.changed_at.timestamp_millis();
                crowd.waiting.push(Contender { job_id: job.job_id.clone(), owner, priority, since });
            }
            if begins {
                crowd.begins.push(job);
            }
        }
        crowd.waiting.extend(new);
        Ok(crowd)
    }

    /// Lets jobs begin. Returns whether no other process did so at the same time.
    async fn begin(&self, store: &TargetStore, jobs: &[&str]) -> Result<bool> {
        let begun = self.begins.iter().map(|job| job.job_id.as_str());
        let jobs = begun.chain(jobs.iter().copied()).map(str::to_owned).collect();
        Ok(store.create_turn(self.turn, &Turn::new(jobs)).await? == Commit::Committed)
    }
}

/// Returns a job that comes last, as long as it is not marked as waiting.
fn contender(spec: &JobSpec) -> Contender {
    let (job_id, owner) = (spec.job_id.clone(), spec.owner.clone());
    Contender { job_id, owner, priority: spec.priority, since: i64::MAX }
}

/// Returns the quotas of a target. Policies of earlier versions do not allow to read them, and such a target has none.
async fn quotas(store: &TargetStore) -> Result<Option<Quotas>> {
    match store.quotas().await {
        Err(error @ storage::Error::Denied { .. }) => {
            tracing::debug!("no quotas apply: {error:#}");
            Ok(None)
        }
        quotas => Ok(quotas?),
    }
}

/// Returns the limit for which a job would have to wait that is not yet described. `refuses`: the caller rejects it then.
pub(crate) async fn refused(store: &TargetStore, spec: &JobSpec, refuses: bool) -> Result<Option<Full>> {
    let Some(quotas) = quotas(store).await? else { return Ok(None) };
    if !refuses && quotas.when_full == WhenFull::Wait {
        return Ok(None);
    }
    let new = Contender { job_id: String::new(), ..contender(spec) };
    let Crowd { running, waiting, .. } = Crowd::read(store, Some(&new), &mut Owners::new()).await?;
    let turns = quotas.turns(&running, waiting);
    Ok(turns.into_iter().find(|(job, _)| job.job_id.is_empty()).and_then(|(_, full)| full))
}

/// Marks a described job as open. Its caller publishes it if it may run, and only plans it otherwise.
pub async fn enter(store: &TargetStore, spec: &JobSpec) -> Result<Admission> {
    let Some(quotas) = quotas(store).await? else {
        store.mark_open(&spec.job_id).await?;
        return Ok(Admission::Runs);
    };
    let mut new = contender(spec);
    new.priority = store.job(&spec.job_id).changed_priority().await?.unwrap_or(new.priority);
    // A process that sees the turn of the job must also see the job.
    store.put_turn_state(&spec.job_id, TurnState::Waits).await?;
    let mut known = Owners::new();
    for _ in 0..TRIES_MAX {
        let crowd = Crowd::read(store, Some(&new), &mut known).await?;
        let turns = quotas.turns(&crowd.running, crowd.waiting.clone());
        let full = turns.into_iter().find(|(job, _)| job.job_id == new.job_id).and_then(|(_, full)| full);
        if let Some(full) = full {
            store.job(&spec.job_id).put_wait_reason(&full.to_string()).await?;
            return Ok(Admission::Waits(full));
        }
        if crowd.begin(store, &[&new.job_id]).await? {
            store.mark_open(&spec.job_id).await?;
            return Ok(Admission::Runs);
        }
    }
    let problem = "other processes enqueue jobs at the same time, and this one found no turn; enqueue it again";
    Err(Error::TryAgain(problem.to_owned()).into())
}

/// Works like [`enter`] for a job that is continued. One that runs keeps its turn.
pub async fn enter_again(store: &TargetStore, spec: &JobSpec) -> Result<Admission> {
    if quotas(store).await?.is_some() && store.turn_state(&spec.job_id).await? == Some(TurnState::Runs) {
        return Ok(Admission::Runs);
    }
    enter(store, spec).await
}

/// A job that another reducer publishes.
#[derive(Clone, Copy, Debug)]
struct Sign {
    changed_at: DateTime<Utc>,
    seen_at: Instant,
}

/// Lets waiting jobs of a target begin, and publishes them.
pub struct Turns {
    store: TargetStore,
    tasks: Arc<dyn Queue>,
    results: Arc<dyn Queue>,
    quotas: Option<Quotas>,
    quotas_read_at: Option<Instant>,
    some_wait: bool,
    known: Owners,
    /// Jobs that begin, with the last sign of the reducers that publish them.
    signs: BTreeMap<String, Sign>,
    /// What this process has written about jobs that wait.
    reasons: HashMap<String, String>,
    publishing: JoinSet<String>,
    /// The jobs that this process publishes.
    own: HashSet<String>,
}

impl Engine {
    /// Lets waiting jobs of a target begin and publishes them, until the result is dropped. Part of every reducer.
    pub fn turns(&self, store: TargetStore, queues: &Queues) -> AbortOnDropHandle<()> {
        let turns = Turns::new(store, queues.tasks.clone(), queues.results.clone());
        AbortOnDropHandle::new(tokio::spawn(turns.keep()))
    }
}

impl Turns {
    /// Creates what [`Engine::turns`] runs, for a target with these queues.
    pub fn new(store: TargetStore, tasks: Arc<dyn Queue>, results: Arc<dyn Queue>) -> Self {
        Self {
            store,
            tasks,
            results,
            quotas: None,
            quotas_read_at: None,
            some_wait: false,
            known: Owners::new(),
            signs: BTreeMap::new(),
            reasons: HashMap::new(),
            publishing: JoinSet::new(),
            own: HashSet::new(),
        }
    }

    /// Looks which jobs may begin again and again, and never returns.
    pub async fn keep(mut self) {
        let mut look = interval(LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                _ = look.tick() => {}
                Some(ended) = self.publishing.join_next(), if !self.publishing.is_empty() => {
                    match ended {
                        Ok(job_id) => drop(self.own.remove(&job_id)),
                        // A panic does not say of which job. What is published twice does no harm.
                        Err(_) => self.own.clear(),
                    }
                    continue;
                }
            }
            if let Err(error) = self.look().await {
                tracing::warn!("cannot determine which waiting jobs may run, trying again: {error:#}");
            }
        }
    }

    async fn look(&mut self) -> Result<()> {
        if self.some_wait || self.quotas_read_at.is_none_or(|at| at.elapsed() >= QUOTAS_EVERY) {
            self.quotas = quotas(&self.store).await?;
            self.quotas_read_at = Some(Instant::now());
        }
        let Some(quotas) = &self.quotas else { return Ok(()) };
        self.some_wait = self.store.open_turns().await?.iter().any(|job| !job.runs);
        if !self.some_wait {
            return Ok(());
        }
        let crowd = Crowd::read(&self.store, None, &mut self.known).await?;
        for job in &crowd.begins {
            let sign = Sign { changed_at: job.changed_at, seen_at: Instant::now() };
            let known = self.signs.entry(job.job_id.clone()).or_insert(sign);
            if known.changed_at != sign.changed_at {
                *known = sign;
            }
        }
        self.signs.retain(|job_id, _| crowd.begins.iter().any(|job| job.job_id == *job_id));
        let is_silent = |sign: &Sign| sign.seen_at.elapsed() >= SILENCE;
        let silent: Vec<String> =
            self.signs.iter().filter(|(_, sign)| is_silent(sign)).map(|(job_id, _)| job_id.clone()).collect();
        let turns = quotas.turns(&crowd.running, crowd.waiting.clone());
        let now: Vec<&str> =
            turns.iter().filter(|(_, full)| full.is_none()).map(|(job, _)| job.job_id.as_str()).collect();
        let has_begun = !now.is_empty() && crowd.begin(&self.store, &now).await?;
        if has_begun || !silent.is_empty() {
            let begun = now.iter().filter(|_| has_begun).map(|job_id| (*job_id).to_owned());
            begun.chain(silent).for_each(|job_id| self.publish(job_id));
        }
        let waiting: HashSet<&str> = turns.iter().map(|(job, _)| job.job_id.as_str()).collect();
        self.reasons.retain(|job_id, _| waiting.contains(job_id.as_str()));
        for (job, full) in turns.iter().filter_map(|(job, full)| Some((job, full.as_ref()?))) {
            let reason = full.to_string();
            if self.reasons.get(&job.job_id) != Some(&reason) {
                self.store.job(&job.job_id).put_wait_reason(&reason).await?;
                self.reasons.insert(job.job_id.clone(), reason);
            }
        }
        Ok(())
    }

    fn publish(&mut self, job_id: String) {
        if !self.own.insert(job_id.clone()) {
            return;
        }
        let (store, tasks, results) = (self.store.clone(), self.tasks.clone(), self.results.clone());
        self.publishing.spawn(async move {
            tracing::info!(job.id = job_id, "the turn of the job has come");
            if let Err(error) = publish(&store, tasks, results, &job_id).await {
                tracing::error!(job.id = job_id, "cannot publish the job, trying again in a minute: {error:#}");
            }
            job_id
        });
    }
}

/// Publishes the mini-batches of a planned job that have not ended.
async fn publish(store: &TargetStore, tasks: Arc<dyn Queue>, results: Arc<dyn Queue>, job_id: &str) -> Result<()> {
    let signing = async {
        loop {
            if let Err(error) = store.put_turn_state(job_id, TurnState::Begins).await {
                tracing::debug!("cannot record that job {job_id} is being published: {error:#}");
            }
            sleep(SIGN_EVERY).await;
        }
    };
    let publishing = async {
        let job = store.job(job_id);
        if job.plan_complete().await?.is_none() {
            anyhow::bail!("the command that enqueued it was interrupted before it had planned it");
        }
        let options = reducer::Options { reports: false, ..reducer::Options::shared() };
        let reducer = Reducer::open(job.clone(), results.clone(), options).await?;
        let unfinished = Unfinished::new(reducer.tally(), HashMap::default());
        let partitioner = Partitioner::new(reducer.spec().clone(), job, tasks, results);
        partitioner.resume(|mini_batch| unfinished.pending(mini_batch), |_| ()).await.context("publish the plan")
    };
    tokio::select! {
        biased;
        published = publishing => published?,
        () = signing => unreachable!("signs are given until the job is published"),
    };
    store.mark_open(job_id).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use protocol::OwnerQuota;
    use storage::{LeftOut, PlanComplete, StoreOptions};

    use super::*;

    struct Played {
        store: TargetStore,
        _folder: tempfile::TempDir,
    }

    impl Played {
        async fn new(max_jobs: Option<u32>, of_owner: Option<u32>) -> Self {
            let folder = tempfile::tempdir().expect("temporary folder");
            let url = url::Url::from_file_path(folder.path()).expect("absolute");
            let store = TargetStore::open(url.as_str(), StoreOptions::default()).await.expect("writable");
            let each_owner = OwnerQuota { max_jobs: of_owner, ..OwnerQuota::default() };
            let quotas = Quotas { max_jobs, each_owner, ..Quotas::default() };
            store.put_quotas(&quotas).await.expect("writable");
            Self { store, _folder: folder }
        }

        async fn described(&self, number: u32, owner: &str, priority: Priority) -> JobSpec {
            let job_id = format!("job-20261121-1002{number:02}-ab12");
            let spec = JobSpec { job_id, owner: owner.to_owned(), priority, ..JobSpec::example() };
            self.store.job(&spec.job_id).put_spec(&spec).await.expect("writable");
            spec
        }

        async fn enter(&self, number: u32, owner: &str, priority: Priority) -> Option<String> {
            let spec = self.described(number, owner, priority).await;
            let entry = enter(&self.store, &spec).await.expect("the store answers");
            let (items, inputs_digest, left_out) = (None, String::new(), LeftOut::default());
            let planned = PlanComplete { mini_batches: 1, items, files: 1, inputs_digest, left_out };
            self.store.job(&spec.job_id).put_plan_complete(&planned).await.expect("writable");
            match entry {
                Admission::Runs => None,
                Admission::Waits(full) => Some(full.to_string()),
            }
        }

        async fn next(&self) -> Vec<u32> {
            let crowd = Crowd::read(&self.store, None, &mut Owners::new()).await.expect("the store answers");
            let quotas = self.store.quotas().await.expect("readable").expect("written");
            let turns = quotas.turns(&crowd.running, crowd.waiting.clone()).into_iter();
            let next: Vec<String> = turns.filter(|(_, full)| full.is_none()).map(|(job, _)| job.job_id).collect();
            let ids: Vec<&str> = next.iter().map(String::as_str).collect();
            assert!(crowd.begin(&self.store, &ids).await.expect("the store answers"));
            assert!(!crowd.begin(&self.store, &ids).await.expect("the store answers"), "one process alone");
            ids.iter().map(|id| id[17..19].parse().expect("a number")).collect()
        }
    }

    #[tokio::test]
    async fn job_above_a_limit_waits_until_another_has_ended() {
        let played = Played::new(Some(2), Some(1)).await;
        let normal = Priority::Normal;
        assert_eq!(played.enter(1, "ana", normal).await, None);
        assert_eq!(played.enter(2, "ana", normal).await.as_deref(), Some("owner ana has 1 of 1 jobs running"));
        assert_eq!(played.enter(3, "bo", normal).await, None);
        assert_eq!(played.enter(4, "cy", normal).await.as_deref(), Some("the target has 2 of 2 jobs running"));
        assert_eq!(played.enter(5, "cy", Priority::High).await.as_deref(), Some("the target has 2 of 2 jobs running"));
        assert_eq!(played.next().await, [0; 0]);
        played.store.mark_ended("job-20261121-100203-ab12").await.expect("removable");
        assert_eq!(played.next().await, [5], "a higher priority first; the owner of job 2 is at its limit");
        assert_eq!(played.next().await, [0; 0], "a job that begins counts as running");
        played.store.mark_ended("job-20261121-100201-ab12").await.expect("removable");
        assert_eq!(played.next().await, [2]);
        let fourth = "job-20261121-100204-ab12";
        assert_eq!(played.store.turn_state(fourth).await.expect("readable"), Some(TurnState::Waits));
        let reason = played.store.job(fourth).wait_reason().await.expect("readable");
        assert_eq!(reason.as_deref(), Some("the target has 2 of 2 jobs running"));
    }

    #[tokio::test]
    async fn changed_priority_counts() {
        let played = Played::new(Some(1), None).await;
        for number in 1..4 {
            played.enter(number, "ana", Priority::Normal).await;
        }
        let last = played.store.job("job-20261121-100203-ab12");
        last.put_priority(Priority::High).await.expect("writable");
        played.store.mark_ended("job-20261121-100201-ab12").await.expect("removable");
        assert_eq!(played.next().await, [3]);
    }

    #[tokio::test]
    async fn job_that_is_not_planned_does_not_begin() {
        let played = Played::new(Some(1), None).await;
        assert_eq!(played.enter(1, "ana", Priority::Normal).await, None);
        let spec = played.described(2, "ana", Priority::Normal).await;
        assert!(matches!(enter(&played.store, &spec).await, Ok(Admission::Waits(_))));
        played.store.mark_ended("job-20261121-100201-ab12").await.expect("removable");
        assert_eq!(played.next().await, [0; 0]);
        assert_eq!(enter(&played.store, &spec).await.expect("the store answers"), Admission::Runs, "its retry");
    }

    #[tokio::test]
    async fn full_target_rejects_a_job_where_its_caller_or_the_quotas_say_so() {
        let played = Played::new(Some(1), None).await;
        let spec = JobSpec { owner: "ana".to_owned(), ..JobSpec::example() };
        assert_eq!(refused(&played.store, &spec, true).await.expect("readable"), None);
        played.enter(1, "bo", Priority::Normal).await;
        assert_eq!(refused(&played.store, &spec, false).await.expect("readable"), None, "it waits");
        let full = Some(Full { owner: None, running: 1, limit: 1 });
        assert_eq!(refused(&played.store, &spec, true).await.expect("readable"), full);
        let quotas = Quotas { max_jobs: Some(1), when_full: WhenFull::Refuse, ..Quotas::default() };
        played.store.put_quotas(&quotas).await.expect("writable");
        assert_eq!(refused(&played.store, &spec, false).await.expect("readable"), full);
    }

    #[tokio::test]
    async fn target_without_quotas_has_no_turns() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let url = url::Url::from_file_path(folder.path()).expect("absolute");
        let store = TargetStore::open(url.as_str(), StoreOptions::default()).await.expect("writable");
        let spec = JobSpec { job_id: "job-20261121-100201-ab12".to_owned(), ..JobSpec::example() };
        store.job(&spec.job_id).put_spec(&spec).await.expect("writable");
        assert_eq!(enter(&store, &spec).await.expect("the store answers"), Admission::Runs);
        assert_eq!(store.last_turn().await.expect("readable").0, 0);
        assert_eq!(store.turn_state(&spec.job_id).await.expect("readable"), Some(TurnState::Runs));
    }
}
