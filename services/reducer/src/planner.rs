//! Keeps the schedule of a compute target: reads jobs and nodes, computes the next schedule, and
//! commits it.
//!
//! Every reducer runs a planner, and none owns the schedule: of two that commit the same number,
//! one finds the schedule of the other, and continues from there. A schedule equal to the last one
//! is not committed.
//!
//! A planner reads jobs and nodes every second, without open jobs every four, and at once when a message arrives in the
//! control queue. Without a reducer no job starts, and running jobs continue. If the reducer that publishes a job is
//! silent for 20 seconds, another one publishes the unfinished mini-batches.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use bytes::Bytes;
use protocol::{
    Demand, LimitShare, NodeState, PLAN_CHUNK_MINI_BATCHES, Quotas, Schedule, ScheduledJob,
};
use storage::{Commit, JobStore, OpenJob, ScheduleFollower, TargetStore, WorkerWatch};
use telemetry::metrics;
use tokio::time::Instant;

use crate::schedule::{may_run_on, schedule, wanted};
use crate::stalls::NODES_TRIED;
use crate::worker_liveness::WorkerLiveness;
use crate::{Backlog, Timestamp, Workers};

/// Time between two reads of the quotas while no job waits for them.
const QUOTAS_EVERY: Duration = Duration::from_secs(30);
/// The same while jobs wait for them.
const QUOTAS_EVERY_IN_NEED: Duration = Duration::from_secs(4);
/// Time between two reads of the heartbeat of a process that publishes a job.
const SIGNS_EVERY: Duration = Duration::from_secs(4);
/// How long an excluded node gets no processes of the job. It may be the only one that is left.
const EXCLUDED_FOR: Duration = Duration::from_secs(60);
/// A process without a heartbeat for this long counts as dead, and publishes nothing.
const SILENCE: Duration = Duration::from_secs(20);

/// Keeps the schedule of a target.
#[derive(Debug)]
pub struct Planner {
    target: TargetStore,
    follower: ScheduleFollower,
    workers: WorkerWatch,
    worker_liveness: WorkerLiveness,
    /// The workers as of the last read.
    nodes: Vec<NodeState>,
    /// The silent ones among them.
    silent: BTreeSet<String>,
    jobs: BTreeMap<String, KnownJob>,
    quotas: Quotas,
    quotas_read_at: Option<Instant>,
    /// Number of the last schedule when this planner last read the quotas.
    quotas_read_after: u64,
    /// The most jobs that may have queues at a time.
    jobs_max: u32,
    /// Numbers of the schedules that this process has committed, and that have admitted a job of the last one.
    committed: HashSet<u64>,
}

/// A job, as the planner has read it.
#[derive(Debug)]
struct KnownJob {
    /// The version of its marker when it was read.
    mark: String,
    /// Number of the last schedule when it was read.
    read_after: u64,
    demand: Demand,
    /// Mini-batches of the plan; `None`: it was not complete when it was last looked at.
    planned: Option<u64>,
    /// Since when each node has been excluded.
    excluded: BTreeMap<String, Instant>,
    publication: Publication,
}

/// Whether the mini-batches of a job have messages.
#[derive(Debug)]
enum Publication {
    /// The planner has not read the job, or not for a while.
    Unknown,
    /// They have, in the queues of the schedule with this number.
    Complete(u64),
    /// They do not. The last heartbeat of a process that may publish them, and since when it has
    /// been the last.
    Missing { heartbeat: Option<Bytes>, since: Instant, looked_at: Instant },
}

/// The report of a planner.
#[derive(Clone, Debug, Default)]
pub struct PlannerReport {
    /// The last schedule.
    pub schedule: Schedule,
    /// Jobs that this process should publish, and the schedules that have admitted them.
    pub to_publish: Vec<(String, u64)>,
}

impl Planner {
    /// Creates a planner that has read nothing yet. `jobs_max`: the most jobs that may have queues
    /// at a time.
    pub fn new(target: TargetStore, jobs_max: u32) -> Self {
        Self {
            follower: ScheduleFollower::new(target.clone()),
            workers: WorkerWatch::new(target.clone()),
            worker_liveness: WorkerLiveness::default(),
            nodes: Vec::new(),
            silent: BTreeSet::new(),
            target,
            jobs: BTreeMap::new(),
            quotas: Quotas::default(),
            quotas_read_at: None,
            quotas_read_after: 0,
            jobs_max,
            committed: HashSet::new(),
        }
    }

    /// Sets the build of this process, which its schedules name.
    pub fn of_build(self, build: String) -> Self {
        Self { follower: self.follower.of_build(build), ..self }
    }

    /// Commits the next schedule, if it differs. Returns the last one, and the jobs to publish.
    ///
    /// `backlog`: that of a job; `None`: this process does not serve it yet.
    pub async fn look(
        &mut self,
        backlog: impl Fn(&str) -> Option<Backlog>,
    ) -> storage::Result<PlannerReport> {
        if self.follower.look().await?
            && let Some(damage) = self.follower.damage()
        {
            tracing::error!(
                "the next schedule gives every job its processes anew, because the last one is lost: {damage:#}"
            );
        }
        self.read_jobs().await?;
        self.read_quotas().await?;
        self.read_nodes().await?;
        let last: HashMap<&str, &ScheduledJob> =
            self.follower.known().jobs.iter().map(|job| (job.job_id.as_str(), job)).collect();
        let mut ended = HashMap::new();
        let demand = |job: &mut KnownJob| {
            let job_id = job.demand.job_id.as_str();
            let mut backlog = backlog(job_id).unwrap_or_default();
            // The author of the last schedule may have known more.
            backlog.ended = backlog.ended.max(last.get(job_id).map_or((0, 0), |job| job.ended));
            ended.insert(job.demand.job_id.clone(), backlog.ended);
            job.demand_now(backlog)
        };
        let demands: Vec<Demand> = self.jobs.values_mut().map(demand).collect();
        let mut next =
            schedule(&demands, &self.nodes, &self.quotas, self.follower.known(), self.now());
        for job in &mut next.jobs {
            job.ended = ended.get(&job.job_id).copied().unwrap_or_default();
        }
        next.silent = self.silent.iter().cloned().collect();
        next.quotas = self.quotas.clone();
        let builds: BTreeSet<&String> = self.nodes.iter().map(|node| &node.build).collect();
        next.node_builds = builds.into_iter().cloned().collect();
        metrics().want(&wanted(&demands, &next, &self.quotas));
        metrics()
            .mini_batches_unfinished
            .set(demands.iter().map(|job| job.unfinished as i64).sum());
        let reasons: Vec<_> = next.jobs.iter().filter_map(|job| job.waits_for.as_ref()).collect();
        metrics().wait(&reasons);
        if !is_equivalent(&next, self.follower.known()) {
            let number = next.number;
            if self.follower.commit(next).await? == Commit::Committed {
                self.committed.insert(number);
            }
            let admitted: HashSet<u64> =
                self.follower.known().jobs.iter().filter_map(|job| job.admitted_in).collect();
            self.committed.retain(|number| admitted.contains(number));
        }
        let to_publish = self.unpublished().await?;
        Ok(PlannerReport { schedule: self.follower.known().clone(), to_publish })
    }

    /// Reads the entries of workers while there are jobs, and finds the silent workers, which get
    /// nothing.
    async fn read_nodes(&mut self) -> storage::Result<()> {
        if self.jobs.is_empty() && self.follower.known().jobs.is_empty() {
            (self.nodes, self.silent) = Default::default();
            return Ok(());
        }
        let seen = self.workers.look().await?;
        self.silent =
            self.worker_liveness.looked(&seen, self.follower.known(), self.now(), Timestamp::now());
        self.nodes = seen.into_iter().map(|worker| worker.state).collect();
        self.nodes
            .iter_mut()
            .filter(|node| self.silent.contains(&node.name))
            .for_each(|node| node.accepts_work = false);
        Ok(())
    }

    /// Returns the workers, by job.
    pub fn workers(&self) -> HashMap<String, Workers> {
        let mut all: HashMap<String, Workers> = HashMap::new();
        for node in &self.nodes {
            let is_silent = self.silent.contains(&node.name);
            for (job_id, running) in &node.jobs {
                let of_job = all.entry(job_id.clone()).or_default();
                of_job.held += running.activity.held;
                if !is_silent {
                    of_job.nodes.insert(node.name.clone(), running.clone());
                }
            }
        }
        for (job_id, heartbeat) in self.worker_liveness.heartbeats() {
            all.entry(job_id.to_owned()).or_default().heartbeat = Some(heartbeat);
        }
        all
    }

    /// Returns some nodes that may run a job, silent ones included: they may only be busy. `None`: this planner has not read
    /// the job.
    pub fn able(&self, job_id: &str) -> Option<BTreeSet<String>> {
        let demand = &self.jobs.get(job_id)?.demand;
        let is_there = |node: &&NodeState| node.accepts_work || self.silent.contains(&node.name);
        let able = self.nodes.iter().filter(is_there).filter(|node| may_run_on(demand, node));
        Some(able.map(|node| node.name.clone()).take(NODES_TRIED).collect())
    }

    /// Returns the time by the clock of the store, in milliseconds since the epoch.
    fn now(&self) -> u64 {
        u64::try_from(self.target.now().timestamp_millis()).unwrap_or_default()
    }

    /// Records that the mini-batches of a job have messages.
    pub fn published(&mut self, job_id: &str, admitted_in: u64) {
        if let Some(job) = self.jobs.get_mut(job_id) {
            job.publication = Publication::Complete(admitted_in);
        }
    }

    /// Reads the open jobs that are new, or whose markers are, and the plans that were not complete. Also the jobs that the
    /// author of the last schedule knows otherwise: two reducers that disagree would undo each other's schedules.
    async fn read_jobs(&mut self) -> storage::Result<()> {
        let open = self.target.open_jobs().await?;
        let marks: HashMap<&str, &str> =
            open.iter().map(|job| (job.job_id.as_str(), job.mark.as_str())).collect();
        let last = self.follower.known();
        let by_author: HashMap<&str, &ScheduledJob> =
            last.jobs.iter().map(|job| (job.job_id.as_str(), job)).collect();
        self.jobs.retain(|job_id, job| {
            let is_known_otherwise = job.read_after < last.number
                && by_author.get(job_id.as_str()).is_some_and(|theirs| job.differs(theirs));
            !is_known_otherwise && marks.get(job_id.as_str()) == Some(&job.mark.as_str())
        });
        for job in open {
            if !self.jobs.contains_key(&job.job_id)
                && let Some(known) = self.read_job(&job).await?
            {
                self.jobs.insert(job.job_id, known);
            }
        }
        for (job_id, job) in self.jobs.iter_mut().filter(|(_, job)| job.planned.is_none()) {
            let store = self.target.job(job_id);
            job.planned = planned(&store).await?;
            if job.planned.is_none()
                && job.demand.unfinished <= 1
                && store.plan_chunk(0).await.is_ok()
            {
                // A chunk is complete before the plan is, if there are more.
                job.demand.unfinished = PLAN_CHUNK_MINI_BATCHES;
            }
        }
        Ok(())
    }

    /// Returns the demand of a job; `None`: it is being described, or removed.
    async fn read_job(&self, job: &OpenJob) -> storage::Result<Option<KnownJob>> {
        let store = self.target.job(&job.job_id);
        let described = match store.find_spec().await {
            Ok(Some(spec)) => store.described_at().await?.map(|at| (spec, at)),
            Ok(None) => None,
            Err(storage::Error::Damaged { .. } | storage::Error::Foreign { .. }) => None,
            Err(error) => return Err(error),
        };
        let Some((spec, at)) = described else { return Ok(None) };
        let priority = store.changed_priority().await?.unwrap_or(spec.priority);
        let enqueued_at = u64::try_from(at.timestamp_millis()).unwrap_or_default();
        let is_canceled = store.cancel_requested().await?.is_some();
        let demand = Demand { is_canceled, ..Demand::of(&spec, priority, enqueued_at, 1) };
        Ok(Some(KnownJob {
            mark: job.mark.clone(),
            read_after: self.follower.known().number,
            demand,
            planned: None,
            excluded: BTreeMap::new(),
            publication: Publication::Unknown,
        }))
    }

    /// Returns the admitted jobs that this process should publish: those that its own schedules have admitted, and those
    /// whose publishers are silent.
    async fn unpublished(&mut self) -> storage::Result<Vec<(String, u64)>> {
        let mut due = Vec::new();
        for scheduled in &self.follower.known().jobs {
            let Some(job) = self.jobs.get_mut(&scheduled.job_id) else { continue };
            let Some(admitted_in) = scheduled.admitted_in.filter(|_| !job.demand.is_canceled)
            else {
                continue;
            };
            if job
                .is_missing(admitted_in, &self.target, self.committed.contains(&admitted_in))
                .await?
            {
                due.push((scheduled.job_id.clone(), admitted_in));
            }
        }
        Ok(due)
    }

    /// Reads the quotas now and then, more often while jobs wait, whenever there is a new job, and if the author of the last
    /// schedule knows others.
    async fn read_quotas(&mut self) -> storage::Result<()> {
        let last = self.follower.known();
        let known: HashMap<&str, Option<u64>> =
            last.jobs.iter().map(|job| (job.job_id.as_str(), job.admitted_in)).collect();
        let is_new_job = |job_id: &String| !known.contains_key(job_id.as_str());
        let author_knows_others =
            self.quotas_read_after < last.number && last.quotas != self.quotas;
        let every = match known.values().any(Option::is_none) {
            _ if author_knows_others || self.jobs.keys().any(is_new_job) => Duration::ZERO,
            true => QUOTAS_EVERY_IN_NEED,
            false => QUOTAS_EVERY,
        };
        if self.quotas_read_at.is_none_or(|at| at.elapsed() >= every) {
            self.quotas_read_after = last.number;
            let quotas = self.target.quotas().await?.unwrap_or_default();
            let max_jobs = quotas.max_jobs.map_or(self.jobs_max, |max| max.min(self.jobs_max));
            self.quotas = Quotas { max_jobs: Some(max_jobs), ..quotas };
            self.quotas_read_at = Some(Instant::now());
        }
        Ok(())
    }
}

impl KnownJob {
    /// Returns whether another reducer has read the job with another priority, or canceled.
    fn differs(&self, theirs: &ScheduledJob) -> bool {
        (theirs.priority, theirs.is_canceled) != (self.demand.priority, self.demand.is_canceled)
    }

    /// Returns the current demand of the job.
    fn demand_now(&mut self, backlog: Backlog) -> Demand {
        let (_, ended) = backlog.ended;
        let unfinished = match self.planned.or(backlog.planned) {
            _ if self.demand.is_canceled => 0,
            Some(planned) => planned.saturating_sub(ended),
            // If some have ended, about as many more probably follow.
            None => self.demand.unfinished.max(ended + 1),
        };
        let now = Instant::now();
        self.excluded.retain(|node, _| backlog.excluded.contains(node));
        for node in backlog.excluded {
            self.excluded.entry(node).or_insert(now);
        }
        // Only a success ends an exclusion, so the node must have another chance.
        let is_recent = |(node, since): (&String, &Instant)| {
            (now - *since < EXCLUDED_FOR).then(|| node.clone())
        };
        let excluded = self.excluded.iter().filter_map(is_recent).collect();
        Demand { unfinished, excluded, ..self.demand.clone() }
    }

    /// Returns whether the job has to be published by this process. `is_own`: it has committed the schedule that admits it.
    async fn is_missing(
        &mut self,
        admitted_in: u64,
        target: &TargetStore,
        is_own: bool,
    ) -> storage::Result<bool> {
        let now = Instant::now();
        match &self.publication {
            Publication::Complete(number) if *number == admitted_in => return Ok(false),
            // The publisher may have finished since then, which the next read shows.
            Publication::Missing { looked_at, .. } if now - *looked_at < SIGNS_EVERY => {
                return Ok(false);
            }
            _ => {}
        }
        let store = target.job(&self.demand.job_id);
        if let Some(number) = store.published_in().await?
            && number == admitted_in
        {
            self.publication = Publication::Complete(number);
            return Ok(false);
        }
        let last = store.publishing().await?;
        let since = match &self.publication {
            Publication::Missing { heartbeat, since, .. } if *heartbeat == last => *since,
            _ => now,
        };
        self.publication = Publication::Missing { heartbeat: last, since, looked_at: now };
        Ok(is_own || now - since >= SILENCE)
    }
}

/// Returns the number of mini-batches of a plan, if it is complete.
async fn planned(store: &JobStore) -> storage::Result<Option<u64>> {
    match store.plan_complete().await {
        Ok(complete) => Ok(complete.map(|complete| complete.mini_batches)),
        Err(storage::Error::Damaged { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns whether two schedules differ only in their numbers, times and authors, and in counts of ended mini-batches.
fn is_equivalent(one: &Schedule, other: &Schedule) -> bool {
    // Revocations follow from the confirmations of nodes.
    let is_same_share = |(one, other): (&LimitShare, &LimitShare)| {
        *one == LimitShare { lent: one.lent, ..other.clone() }
    };
    let is_same = |(one, other): (&ScheduledJob, &ScheduledJob)| {
        *one == ScheduledJob { ended: one.ended, ..other.clone() }
    };
    (&one.allocations, &one.revoked, &one.silent)
        == (&other.allocations, &other.revoked, &other.silent)
        && one.node_builds == other.node_builds
        && one.jobs.len() == other.jobs.len()
        && one.jobs.iter().zip(&other.jobs).all(is_same)
        && one.limit_shares.len() == other.limit_shares.len()
        && one.limit_shares.iter().zip(&other.limit_shares).all(is_same_share)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use object_store::ObjectStoreExt;
    use object_store::memory::InMemory;
    use object_store::path::Path;
    use protocol::{JobSpec, Offer, OwnerQuota, Priority, WaitsFor};

    use super::*;

    fn target() -> TargetStore {
        TargetStore::new(Arc::new(InMemory::new()), Path::default())
    }

    async fn enqueue(target: &TargetStore, job_id: &str) {
        let example = JobSpec { process_count_per_node: None, ..JobSpec::example() };
        let spec = JobSpec { job_id: job_id.to_owned(), owner: "ana".to_owned(), ..example };
        target.job(job_id).put_spec(&spec).await.expect("memory is always there");
        target.mark_open(job_id).await.expect("memory is always there");
    }

    /// A node with this many processors, which follows a schedule.
    async fn node(target: &TargetStore, name: &str, processors: u32, schedule: u64) {
        let offer = Offer { processors, ..Offer::default() };
        let state = NodeState {
            name: name.to_owned(),
            offer,
            schedule,
            accepts_work: true,
            ..NodeState::default()
        };
        target.put_worker(&state).await.expect("memory is always there");
    }

    #[tokio::test]
    async fn able_nodes_are_those_that_may_run_the_job() {
        let target = target();
        enqueue(&target, "a").await;
        let unable = [("a".to_owned(), "its disk is full".to_owned())].into();
        let there = NodeState { accepts_work: true, ..NodeState::default() };
        for state in [
            NodeState { name: "able".to_owned(), ..there.clone() },
            NodeState { name: "ending".to_owned(), accepts_work: false, ..there.clone() },
            NodeState { name: "full".to_owned(), unable, ..there },
        ] {
            target.put_worker(&state).await.expect("memory is always there");
        }
        let mut planner = Planner::new(target, 10);
        assert_eq!(planner.able("a"), None, "not read yet");
        planner.look(|_| None).await.expect("memory is always there");
        let able = |planner: &Planner| planner.able("a").map(|able| able.into_iter().collect());
        assert_eq!(able(&planner), Some(vec!["able".to_owned()]));
        planner.nodes.iter_mut().for_each(|node| node.accepts_work = false);
        planner.silent.insert("able".to_owned());
        assert_eq!(able(&planner), Some(vec!["able".to_owned()]), "it may only be busy");
    }

    /// A target with two jobs of one owner, of which one may run at a time.
    async fn one_job_at_a_time() -> TargetStore {
        let target = target();
        let each_owner = OwnerQuota { max_jobs: Some(1), ..OwnerQuota::default() };
        target
            .put_quotas(&Quotas { each_owner, ..Quotas::default() })
            .await
            .expect("memory is always there");
        enqueue(&target, "one").await;
        enqueue(&target, "two").await;
        node(&target, "a", 2, 0).await;
        target
    }

    fn left(mini_batches: u64) -> Option<Backlog> {
        Some(Backlog { planned: Some(mini_batches), ..Backlog::default() })
    }

    fn processes(schedule: &Schedule) -> Vec<(&str, &str, u32)> {
        schedule.allocations.iter().map(|one| (&*one.node, &*one.job_id, one.processes)).collect()
    }

    #[tokio::test]
    async fn processes_of_the_nodes_are_divided_and_given_to_others_when_a_job_or_a_node_ends() {
        let target = target();
        let mut planner = Planner::new(target.clone(), 100);
        let known = |_: &str| left(100);
        assert_eq!(
            planner.look(known).await.expect("readable").schedule.number,
            0,
            "there is nothing to say"
        );
        enqueue(&target, "one").await;
        enqueue(&target, "two").await;
        let first = planner.look(known).await.expect("readable").schedule;
        assert_eq!((first.number, processes(&first)), (1, vec![]));
        assert!(
            first
                .jobs
                .iter()
                .all(|job| job.waits_for == Some(WaitsFor::Worker(Default::default()))),
            "{first:?}"
        );
        node(&target, "a", 2, 1).await;
        node(&target, "b", 2, 1).await;
        let second = planner.look(known).await.expect("readable").schedule;
        let mut of_jobs: Vec<_> =
            processes(&second).into_iter().map(|(_, job, processes)| (job, processes)).collect();
        of_jobs.sort_unstable();
        assert_eq!(of_jobs, [("one", 2), ("two", 2)], "each has a node");
        node(&target, "a", 2, 2).await;
        node(&target, "b", 2, 2).await;
        let third = planner.look(known).await.expect("readable").schedule.number;
        assert!(third >= 2);
        assert_eq!(
            planner.look(known).await.expect("readable").schedule.number,
            third,
            "it has nothing more to say"
        );

        target.mark_ended("one").await.expect("memory is always there");
        let after = planner.look(known).await.expect("readable").schedule;
        let of_two: u32 = after
            .allocations
            .iter()
            .filter(|one| one.job_id == "two")
            .map(|one| one.processes)
            .sum();
        assert_eq!((of_two, after.jobs.len()), (4, 1), "{after:?}");
        target.remove_worker("a").await.expect("memory is always there");
        let after = planner.look(known).await.expect("readable").schedule;
        assert_eq!(processes(&after), [("b", "two", 2)]);
    }

    #[tokio::test]
    async fn planners_agree_on_one_schedule_of_each_number() {
        let target = target();
        let mut planners = [Planner::new(target.clone(), 100), Planner::new(target.clone(), 100)];
        let mut committed = Vec::new();
        for round in 0..10 {
            enqueue(&target, &format!("job-{round}")).await;
            node(&target, "a", 4, round).await;
            let [one, other] = &mut planners;
            let (one, other) = tokio::join!(one.look(|_| left(5)), other.look(|_| left(5)));
            committed.push(
                one.expect("readable")
                    .schedule
                    .number
                    .max(other.expect("readable").schedule.number),
            );
        }
        for planner in &mut planners {
            let last = planner.look(|_| left(5)).await.expect("readable").schedule.number;
            committed.push(last);
        }
        assert!(committed.is_sorted(), "{committed:?}");
        let [one, other] = &mut planners;
        one.look(|_| left(5)).await.expect("readable");
        other.look(|_| left(5)).await.expect("readable");
        assert_eq!(one.follower.known(), other.follower.known());
        assert_eq!(one.follower.known().jobs.len(), 10);
    }

    #[tokio::test]
    async fn schedule_names_the_builds_of_nodes_and_reducers_of_several_builds_do_not_replace_it() {
        let target = target();
        let mut planners = ["0.1.0 (a)", "0.1.0 (b)"]
            .map(|build| Planner::new(target.clone(), 100).of_build(build.into()));
        enqueue(&target, "one").await;
        for (name, build) in [("a", "0.1.0 (a)"), ("b", "0.1.0 (b)"), ("c", "0.1.0 (a)")] {
            let offer = Offer { processors: 4, ..Offer::default() };
            let (name, build) = (name.to_owned(), build.to_owned());
            let state =
                NodeState { name, build, offer, accepts_work: true, ..NodeState::default() };
            target.put_worker(&state).await.expect("memory is always there");
        }
        let first = planners[0].look(|_| left(100)).await.expect("readable").schedule;
        assert_eq!(
            (&*first.build, &first.node_builds[..]),
            ("0.1.0 (a)", &["0.1.0 (a)".into(), "0.1.0 (b)".into()][..])
        );
        for turn in 0..4 {
            assert_eq!(
                planners[turn % 2].look(|_| left(100)).await.expect("readable").schedule.number,
                first.number
            );
        }
        target.remove_worker("b").await.expect("memory is always there");
        let next = planners[1].look(|_| left(100)).await.expect("readable").schedule;
        assert_eq!((&*next.build, &next.node_builds[..]), ("0.1.0 (b)", &["0.1.0 (a)".into()][..]));
    }

    #[tokio::test]
    async fn priority_that_was_changed_counts_once_the_marker_is_new() {
        let target = target();
        let mut planner = Planner::new(target.clone(), 100);
        enqueue(&target, "one").await;
        enqueue(&target, "two").await;
        node(&target, "a", 8, 0).await;
        planner.look(|_| left(100)).await.expect("readable");
        target.job("two").put_priority(Priority::High).await.expect("memory is always there");
        tokio::time::sleep(Duration::from_millis(2)).await;
        target.mark_open("two").await.expect("memory is always there");
        let schedule = planner.look(|_| left(100)).await.expect("readable").schedule;
        let of = |job: &str| {
            processes(&schedule).iter().find(|(_, name, _)| *name == job).map_or(0, |one| one.2)
        };
        assert!(of("two") >= 6 && of("one") >= 1, "{schedule:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn excluded_node_has_another_chance_after_a_minute() {
        let target = target();
        let mut planner = Planner::new(target.clone(), 100);
        enqueue(&target, "one").await;
        node(&target, "bad", 2, 0).await;
        let backlog = |_: &str| {
            let excluded = ["bad".to_owned()].into();
            Some(Backlog { planned: Some(100), excluded, ..Backlog::default() })
        };
        let given = async |planner: &mut Planner| {
            // It lives.
            node(&target, "bad", 2, 0).await;
            let schedule = planner.look(backlog).await.expect("readable").schedule;
            schedule.allocations.len()
        };
        for _ in 0..59 {
            assert_eq!(given(&mut planner).await, 0);
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(given(&mut planner).await, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn quotas_are_read_again_while_jobs_wait_for_them() {
        let target = one_job_at_a_time().await;
        let mut planner = Planner::new(target.clone(), 100);
        let schedule = planner.look(|_| left(100)).await.expect("readable").schedule;
        let admitted = |schedule: &Schedule| {
            schedule.jobs.iter().filter(|job| job.admitted_in.is_some()).count()
        };
        assert_eq!(admitted(&schedule), 1);
        target.put_quotas(&Quotas::default()).await.expect("memory is always there");
        tokio::time::sleep(QUOTAS_EVERY_IN_NEED).await;
        assert_eq!(admitted(&planner.look(|_| left(100)).await.expect("readable").schedule), 2);
    }

    #[tokio::test]
    async fn canceled_job_that_waits_is_admitted_only_to_end() {
        let target = one_job_at_a_time().await;
        let mut planner = Planner::new(target.clone(), 100);
        planner.look(|_| left(100)).await.expect("readable");
        target.job("two").request_cancel("by the user").await.expect("memory is always there");
        target.mark_open("two").await.expect("memory is always there");
        let report = planner.look(|_| left(100)).await.expect("readable");
        assert!(
            report.schedule.jobs.iter().all(|job| job.admitted_in.is_some()),
            "{:?}",
            report.schedule
        );
        assert_eq!(processes(&report.schedule), [("a", "one", 2)]);
        assert!(
            report.to_publish.iter().all(|(job_id, _)| job_id == "one"),
            "{:?}",
            report.to_publish
        );
        let demand = planner.jobs.get_mut("two").expect("open").demand_now(Backlog::default());
        assert_eq!(demand.unfinished, 0, "a fleet does not grow for it");
    }

    /// The command died before it wrote the marker again, or has not done so yet.
    #[tokio::test]
    async fn reducers_agree_on_a_job_that_one_of_them_has_read_later() {
        let target = target();
        enqueue(&target, "one").await;
        enqueue(&target, "two").await;
        node(&target, "a", 5, 0).await;
        let mut early = Planner::new(target.clone(), 100);
        let before = early.look(|_| left(100)).await.expect("readable").schedule;
        target.job("two").put_priority(Priority::High).await.expect("memory is always there");
        let mut late = Planner::new(target.clone(), 100);
        let changed = late.look(|_| left(100)).await.expect("readable").schedule;
        assert_eq!((before.number, changed.number), (1, 2));
        assert_eq!(processes(&changed), [("a", "one", 1), ("a", "two", 4)]);
        assert_eq!(early.look(|_| left(100)).await.expect("readable").schedule, changed);
        assert_eq!(late.look(|_| left(100)).await.expect("readable").schedule, changed);
    }

    #[tokio::test]
    async fn reducers_agree_on_quotas_that_one_of_them_has_read_later() {
        let target = target();
        enqueue(&target, "one").await;
        node(&target, "a", 4, 0).await;
        let mut early = Planner::new(target.clone(), 100);
        early.look(|_| left(100)).await.expect("readable");
        let each_owner = OwnerQuota { max_in_flight: Some(1), ..OwnerQuota::default() };
        target
            .put_quotas(&Quotas { each_owner, ..Quotas::default() })
            .await
            .expect("memory is always there");
        let changed =
            Planner::new(target.clone(), 100).look(|_| left(100)).await.expect("readable").schedule;
        assert_eq!(processes(&changed), [("a", "one", 1)]);
        assert_eq!(early.look(|_| left(100)).await.expect("readable").schedule, changed);
    }

    #[tokio::test]
    async fn damaged_schedule_is_followed_by_a_whole_one() {
        let objects = Arc::new(InMemory::new());
        let target = TargetStore::new(objects.clone(), Path::default());
        enqueue(&target, "one").await;
        node(&target, "a", 2, 0).await;
        let mut planner = Planner::new(target.clone(), 100);
        let before = planner.look(|_| left(100)).await.expect("readable").schedule;
        let path = Path::from(format!("schedule/{}", before.number + 1));
        objects.put(&path, "{".into()).await.expect("memory is always there");
        let after =
            Planner::new(target.clone(), 100).look(|_| left(100)).await.expect("readable").schedule;
        assert_eq!((after.number, processes(&after)), (before.number + 2, processes(&before)));
    }
}
