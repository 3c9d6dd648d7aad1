//! Keeps the schedule of a compute target: reads what jobs and nodes say, computes the next schedule, and commits it.
//!
//! Every reducer runs a planner, and none owns the schedule: of two that commit the same number, one finds the schedule of
//! the other, and goes on from there. A schedule that says what the last one said is not committed.

use std::collections::HashMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use protocol::{Demand, NodeState, Quotas, Schedule};
use storage::{OpenJob, ScheduleFollower, TargetStore, WorkerWatch};
use tokio::time::Instant;

use crate::schedule::schedule;

/// From one reading of the quotas to the next, while no job waits because of them.
const QUOTAS_EVERY: Duration = Duration::from_secs(30);
/// And while some do.
const QUOTAS_EVERY_IN_NEED: Duration = Duration::from_secs(4);

/// Keeps the schedule of a target.
#[derive(Debug)]
pub struct Planner {
    target: TargetStore,
    follower: ScheduleFollower,
    workers: WorkerWatch,
    jobs: HashMap<String, KnownJob>,
    quotas: Quotas,
    quotas_read_at: Option<Instant>,
}

/// A job, as the planner has read it.
#[derive(Debug)]
struct KnownJob {
    /// When its marker was last written. A command that changes what the job wants writes the marker again.
    marked_at: DateTime<Utc>,
    demand: Demand,
}

impl Planner {
    /// Has read nothing yet.
    pub fn new(target: TargetStore) -> Self {
        Self {
            follower: ScheduleFollower::new(target.clone()),
            workers: WorkerWatch::new(target.clone()),
            target,
            jobs: HashMap::new(),
            quotas: Quotas::default(),
            quotas_read_at: None,
        }
    }

    /// Commits the next schedule, if it says something new. Returns the last one.
    ///
    /// `unfinished`: how many mini-batches of a job have not ended; `None`: this process does not know it yet.
    pub async fn look(&mut self, unfinished: impl Fn(&str) -> Option<u64>) -> storage::Result<&Schedule> {
        if self.follower.look().await?
            && let Some(damage) = self.follower.damage()
        {
            tracing::error!(
                "the next schedule gives every job its processes anew, because the last one is lost: {damage:#}"
            );
        }
        self.read_jobs().await?;
        self.read_quotas().await?;
        let nodes: Vec<NodeState> = self.workers.look().await?.into_iter().map(|worker| worker.state).collect();
        let demands: Vec<Demand> = self
            .jobs
            .values()
            // Without a known plan, the job may have work.
            .map(|job| Demand { unfinished: unfinished(&job.demand.job_id).unwrap_or(1), ..job.demand.clone() })
            .collect();
        let now = u64::try_from(self.target.now().timestamp_millis()).unwrap_or_default();
        let next = schedule(&demands, &nodes, &self.quotas, self.follower.known(), now);
        if !says_the_same(&next, self.follower.known()) {
            self.follower.commit(next).await?;
        }
        Ok(self.follower.known())
    }

    /// Reads the open jobs that are new, or whose markers are.
    async fn read_jobs(&mut self) -> storage::Result<()> {
        let open = self.target.open_turns().await?;
        let marks: HashMap<&str, DateTime<Utc>> =
            open.iter().map(|job| (job.job_id.as_str(), job.changed_at)).collect();
        self.jobs.retain(|job_id, job| marks.get(job_id.as_str()) == Some(&job.marked_at));
        for job in open {
            if !self.jobs.contains_key(&job.job_id)
                && let Some(demand) = self.demand(&job).await?
            {
                self.jobs.insert(job.job_id, KnownJob { marked_at: job.changed_at, demand });
            }
        }
        Ok(())
    }

    /// Returns what a job can use; `None`: it is being described, or removed.
    async fn demand(&self, job: &OpenJob) -> storage::Result<Option<Demand>> {
        let store = self.target.job(&job.job_id);
        let described = match store.find_spec().await {
            Ok(Some(spec)) => store.described_at().await?.map(|at| (spec, at)),
            Ok(None) => None,
            Err(storage::Error::Damaged { .. }) => None,
            Err(error) => return Err(error),
        };
        let Some((spec, at)) = described else { return Ok(None) };
        let priority = store.changed_priority().await?.unwrap_or(spec.priority);
        let enqueued_at = u64::try_from(at.timestamp_millis()).unwrap_or_default();
        Ok(Some(Demand::of(&spec, priority, enqueued_at, 1)))
    }

    async fn read_quotas(&mut self) -> storage::Result<()> {
        let is_in_need = self.follower.known().jobs.iter().any(|job| !job.is_admitted);
        let every = if is_in_need { QUOTAS_EVERY_IN_NEED } else { QUOTAS_EVERY };
        if self.quotas_read_at.is_none_or(|at| at.elapsed() >= every) {
            self.quotas = self.target.quotas().await?.unwrap_or_default();
            self.quotas_read_at = Some(Instant::now());
        }
        Ok(())
    }
}

/// Returns whether two schedules differ only in their numbers and times.
fn says_the_same(one: &Schedule, other: &Schedule) -> bool {
    (&one.allocations, &one.revoked, &one.jobs) == (&other.allocations, &other.revoked, &other.jobs)
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
        let state = NodeState { name: name.to_owned(), offer, schedule, accepts_work: true, ..NodeState::default() };
        target.put_worker(&state).await.expect("memory is always there");
    }

    fn processes(schedule: &Schedule) -> Vec<(&str, &str, u32)> {
        schedule.allocations.iter().map(|one| (&*one.node, &*one.job_id, one.processes)).collect()
    }

    #[tokio::test]
    async fn processes_of_the_nodes_are_divided_and_given_to_others_when_a_job_or_a_node_ends() {
        let target = target();
        let mut planner = Planner::new(target.clone());
        let known = |_: &str| Some(100);
        assert_eq!(planner.look(known).await.expect("readable").number, 0, "there is nothing to say");
        enqueue(&target, "one").await;
        enqueue(&target, "two").await;
        let first = planner.look(known).await.expect("readable");
        assert_eq!((first.number, processes(first)), (1, vec![]));
        assert!(first.jobs.iter().all(|job| job.waits_for == Some(WaitsFor::Worker)), "{first:?}");
        node(&target, "a", 2, 1).await;
        node(&target, "b", 2, 1).await;
        let second = planner.look(known).await.expect("readable").clone();
        let mut of_jobs: Vec<_> = processes(&second).into_iter().map(|(_, job, processes)| (job, processes)).collect();
        of_jobs.sort_unstable();
        assert_eq!(of_jobs, [("one", 2), ("two", 2)], "each has a node");
        node(&target, "a", 2, 2).await;
        node(&target, "b", 2, 2).await;
        let third = planner.look(known).await.expect("readable").number;
        assert!(third >= 2);
        assert_eq!(planner.look(known).await.expect("readable").number, third, "it has nothing more to say");

        target.mark_ended("one").await.expect("memory is always there");
        let after = planner.look(known).await.expect("readable").clone();
        let of_two: u32 = after.allocations.iter().filter(|one| one.job_id == "two").map(|one| one.processes).sum();
        assert_eq!((of_two, after.jobs.len()), (4, 1), "{after:?}");
        target.remove_worker("a").await.expect("memory is always there");
        let after = planner.look(known).await.expect("readable");
        assert_eq!(processes(after), [("b", "two", 2)]);
    }

    #[tokio::test]
    async fn planners_agree_on_one_schedule_of_each_number() {
        let target = target();
        let mut planners = [Planner::new(target.clone()), Planner::new(target.clone())];
        let mut committed = Vec::new();
        for round in 0..10 {
            enqueue(&target, &format!("job-{round}")).await;
            node(&target, "a", 4, round).await;
            let [one, other] = &mut planners;
            let (one, other) = tokio::join!(one.look(|_| Some(5)), other.look(|_| Some(5)));
            committed.push(one.expect("readable").number.max(other.expect("readable").number));
        }
        for planner in &mut planners {
            let last = planner.look(|_| Some(5)).await.expect("readable").number;
            committed.push(last);
        }
        assert!(committed.is_sorted(), "{committed:?}");
        let [one, other] = &mut planners;
        one.look(|_| Some(5)).await.expect("readable");
        other.look(|_| Some(5)).await.expect("readable");
        assert_eq!(one.follower.known(), other.follower.known());
        assert_eq!(one.follower.known().jobs.len(), 10);
    }

    #[tokio::test]
    async fn priority_that_was_changed_counts_once_the_marker_is_new() {
        let target = target();
        let mut planner = Planner::new(target.clone());
        enqueue(&target, "one").await;
        enqueue(&target, "two").await;
        node(&target, "a", 8, 0).await;
        planner.look(|_| Some(100)).await.expect("readable");
        target.job("two").put_priority(Priority::High).await.expect("memory is always there");
        tokio::time::sleep(Duration::from_millis(2)).await;
        target.mark_open("two").await.expect("memory is always there");
        let schedule = planner.look(|_| Some(100)).await.expect("readable");
        let of = |job: &str| processes(schedule).iter().find(|(_, name, _)| *name == job).map_or(0, |one| one.2);
        assert!(of("two") >= 6 && of("one") >= 1, "{schedule:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn quotas_are_read_again_while_jobs_wait_for_them() {
        let target = target();
        let each_owner = OwnerQuota { max_jobs: Some(1), ..OwnerQuota::default() };
        target.put_quotas(&Quotas { each_owner, ..Quotas::default() }).await.expect("memory is always there");
        let mut planner = Planner::new(target.clone());
        enqueue(&target, "one").await;
        enqueue(&target, "two").await;
        node(&target, "a", 2, 0).await;
        let schedule = planner.look(|_| Some(100)).await.expect("readable");
        let admitted = |schedule: &Schedule| schedule.jobs.iter().filter(|job| job.is_admitted).count();
        assert_eq!(admitted(schedule), 1);
        target.put_quotas(&Quotas::default()).await.expect("memory is always there");
        tokio::time::sleep(QUOTAS_EVERY_IN_NEED).await;
        assert_eq!(admitted(planner.look(|_| Some(100)).await.expect("readable")), 2);
    }

    #[tokio::test]
    async fn damaged_schedule_is_followed_by_a_whole_one() {
        let objects = Arc::new(InMemory::new());
        let target = TargetStore::new(objects.clone(), Path::default());
        enqueue(&target, "one").await;
        node(&target, "a", 2, 0).await;
        let mut planner = Planner::new(target.clone());
        let before = planner.look(|_| Some(100)).await.expect("readable").clone();
        let path = Path::from(format!("schedule/{}", before.number + 1));
        objects.put(&path, "{".into()).await.expect("memory is always there");
        let after = Planner::new(target.clone()).look(|_| Some(100)).await.expect("readable").clone();
        assert_eq!((after.number, processes(&after)), (before.number + 2, processes(&before)));
    }
}
