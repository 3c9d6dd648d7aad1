//! The quotas of a compute target: limits on its owners, and the order in which waiting jobs start.
//! An *owner* is the person or team whose quotas apply to a job.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Priority;
use crate::words::counted;

/// The limits of a compute target. `None`: no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Quotas {
    /// Jobs that run at a time.
    pub max_jobs: Option<u32>,
    /// The handling of a job that may not run yet.
    pub when_full: WhenFull,
    /// Limits of each owner without limits of its own.
    pub each_owner: OwnerQuota,
    /// Limits of single owners, instead of those of each.
    pub owners: BTreeMap<String, OwnerQuota>,
}

/// The limits of an owner. `None`: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OwnerQuota {
    /// Jobs that run at a time.
    pub max_jobs: Option<u32>,
    /// Mini-batches that run at a time, of all its jobs on all nodes.
    pub max_in_flight: Option<u32>,
}

/// The handling of a job that may not run yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhenFull {
    /// It waits.
    #[default]
    Wait,
    /// It is rejected.
    Refuse,
}

/// A job that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingJob {
    /// Its id.
    pub job_id: String,
    /// The owner that it counts for.
    pub owner: String,
    /// Its priority now.
    pub priority: Priority,
    /// When it began to wait; any unit.
    pub since: i64,
}

/// A limit that is reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReachedQuota {
    /// The owner that it holds for; `None`: the whole target.
    pub owner: Option<String>,
    /// Jobs that run.
    pub running: u32,
    /// The limit.
    pub limit: u32,
}

impl fmt::Display for ReachedQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { owner, running, limit } = self;
        match owner {
            Some(owner) => write!(f, "owner {owner}")?,
            None => f.write_str("the target")?,
        }
        write!(f, " may run {} at a time, and runs {running}", counted(u64::from(*limit), "job"))
    }
}

impl Quotas {
    /// Returns the limits of an owner.
    pub fn of(&self, owner: &str) -> OwnerQuota {
        self.owners.get(owner).copied().unwrap_or(self.each_owner)
    }

    /// Whether an owner has a limit of mini-batches in flight.
    pub fn limit_in_flight(&self) -> bool {
        self.owners.values().chain([&self.each_owner]).any(|quota| quota.max_in_flight.is_some())
    }

    /// Returns the limit that prevents another job of this owner, given the owners of the jobs that run.
    pub fn full<O: AsRef<str>>(&self, owner: &str, running: &[O]) -> Option<ReachedQuota> {
        let of_owner = running.iter().filter(|other| other.as_ref() == owner).count();
        let reached = |owner: Option<&str>, running: usize, limit: Option<u32>| {
            let running = u32::try_from(running).unwrap_or(u32::MAX);
            let limit = limit.filter(|limit| running >= *limit)?;
            Some(ReachedQuota { owner: owner.map(str::to_owned), running, limit })
        };
        reached(Some(owner), of_owner, self.of(owner).max_jobs)
            .or_else(|| reached(None, running.len(), self.max_jobs))
    }

    /// Returns a decision for each waiting job, given the owners of running jobs. `None`: the job
    /// may run; else the limit for which it waits. The order is that of priorities, then of time. A
    /// job whose owner has reached a limit does not delay jobs of others.
    pub fn decide(
        &self,
        running: &[String],
        mut waiting: Vec<WaitingJob>,
    ) -> Vec<(WaitingJob, Option<ReachedQuota>)> {
        waiting.sort_by(|one, other| {
            let order = |job: &WaitingJob| (Reverse(job.priority), job.since);
            order(one).cmp(&order(other)).then_with(|| one.job_id.cmp(&other.job_id))
        });
        let mut running = running.to_vec();
        let decision = |job: WaitingJob| {
            let full = self.full(&job.owner, &running);
            if full.is_none() {
                running.push(job.owner.clone());
            }
            (job, full)
        };
        waiting.into_iter().map(decision).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn job(number: i64, owner: &str, priority: Priority) -> WaitingJob {
        WaitingJob {
            job_id: format!("job-{number}"),
            owner: owner.to_owned(),
            priority,
            since: number,
        }
    }

    fn quotas(max_jobs: Option<u32>, each_owner: Option<u32>) -> Quotas {
        Quotas {
            max_jobs,
            each_owner: OwnerQuota { max_jobs: each_owner, ..OwnerQuota::default() },
            ..Quotas::default()
        }
    }

    fn begin(quotas: &Quotas, running: &[&str], waiting: Vec<WaitingJob>) -> Vec<String> {
        let running: Vec<String> = running.iter().map(|owner| (*owner).to_owned()).collect();
        let decisions = quotas.decide(&running, waiting).into_iter();
        decisions.filter(|(_, full)| full.is_none()).map(|(job, _)| job.job_id).collect()
    }

    #[test]
    fn jobs_begin_by_priority_and_then_by_time() {
        use Priority::{High, Low, Normal};
        let waiting =
            || vec![job(4, "a", Normal), job(1, "a", Low), job(3, "b", High), job(2, "b", Normal)];
        assert_eq!(begin(&quotas(Some(3), None), &[], waiting()), ["job-3", "job-2", "job-4"]);
        assert_eq!(begin(&quotas(Some(3), None), &["a", "a"], waiting()), ["job-3"]);
        assert_eq!(begin(&quotas(Some(3), None), &["a", "a", "b"], waiting()), [""; 0]);
        assert_eq!(
            begin(&quotas(None, None), &["a"], waiting()).len(),
            4,
            "without limits all begin"
        );
    }

    #[test]
    fn owner_at_its_limit_delays_no_other() {
        let waiting = vec![
            job(1, "a", Priority::High),
            job(2, "b", Priority::Low),
            job(3, "c", Priority::Low),
        ];
        assert_eq!(begin(&quotas(Some(3), Some(1)), &["a"], waiting.clone()), ["job-2", "job-3"]);
        let owners = [
            ("a".to_owned(), OwnerQuota { max_jobs: Some(2), ..OwnerQuota::default() }),
            ("b".to_owned(), OwnerQuota::default()),
        ];
        let exceptions = Quotas { owners: owners.into(), ..quotas(None, Some(1)) };
        assert_eq!(begin(&exceptions, &["a", "b", "b", "c"], waiting), ["job-1", "job-2"]);
    }

    #[test]
    fn limit_is_named() {
        let quotas = quotas(Some(2), Some(1));
        let of = |owner, running: &[&str]| quotas.full(owner, running).map(|full| full.to_string());
        assert_eq!(
            of("ana", &["ana"]).as_deref(),
            Some("owner ana may run 1 job at a time, and runs 1")
        );
        assert_eq!(of("bo", &["ana"]), None);
        assert_eq!(
            of("bo", &["ana", "cy"]).as_deref(),
            Some("the target may run 2 jobs at a time, and runs 2")
        );
    }

    proptest! {
        /// No limit is exceeded, and none is left unused.
        #[test]
        fn every_decision_keeps_the_limits(
            max_jobs in prop::option::of(0..5_u32),
            each_owner in prop::option::of(0..3_u32),
            owners in vec((0..3_usize, 0..3_usize), 0..10),
        ) {
            let quotas = quotas(max_jobs, each_owner);
            let names = ["a", "b", "c"];
            let waiting = owners.iter().zip(0..).map(|((owner, priority), number)| {
                job(number, names[*owner], Priority::ALL[*priority])
            });
            let decisions = quotas.decide(&[], waiting.collect());
            let begun: Vec<&str> =
                decisions.iter().filter(|(_, full)| full.is_none()).map(|(job, _)| job.owner.as_str()).collect();
            let of = |owner: &str| begun.iter().filter(|other| **other == owner).count();
            prop_assert!(begun.len() <= max_jobs.unwrap_or(u32::MAX) as usize);
            prop_assert!(names.iter().all(|owner| of(owner) <= each_owner.unwrap_or(u32::MAX) as usize));
            for (job, full) in decisions.iter().filter(|(_, full)| full.is_some()) {
                prop_assert!(quotas.full(&job.owner, &begun).is_some(), "{job:?} could begin: {full:?}");
            }
        }
    }
}
