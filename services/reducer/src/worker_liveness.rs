//! Finds the live workers of a target, and the last heartbeat for each job. Pure: times in.
//!
//! A worker renews its entry in the store every two seconds while it has a job
//! (`storage::WORKER_PERIOD_AT_WORK`). One that has a job and is silent for longer than [`SILENCE`]
//! gets no processes any more, so that others do its work; what it may still run counts towards
//! limits until its entry is stale. Only reads that reached the store count towards silence: while
//! it is unavailable, no worker can renew its entry.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use protocol::Schedule;
use storage::SeenWorker;

use crate::job_liveness::Timestamp;

/// A worker that has a job and did not renew its entry for this long is silent: two and a half periods.
const SILENCE: Duration = Duration::from_secs(5 * storage::WORKER_PERIOD_AT_WORK.as_secs() / 2);
/// The most that a pause between two reads counts as silence: the store may have been unavailable.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// The workers of a target, as one process has seen them.
#[derive(Debug, Default)]
pub(crate) struct WorkerLiveness {
    workers: HashMap<String, Worker>,
    /// The last heartbeat of a worker for each job.
    heartbeats: HashMap<String, Timestamp>,
    looked_at: Option<Timestamp>,
}

#[derive(Debug)]
struct Worker {
    /// When it last renewed its entry, by the clock of the store.
    seen_at: u64,
    /// For how long it has been silent.
    silent: Duration,
}

impl WorkerLiveness {
    /// Records the current entries of workers. `by_store`: time by the clock of the store, in
    /// milliseconds since the epoch. Returns the silent ones. `last`: the last schedule, whose
    /// authors may have found more.
    pub fn looked(
        &mut self,
        seen: &[SeenWorker],
        last: &Schedule,
        by_store: u64,
        now: Timestamp,
    ) -> BTreeSet<String> {
        let pause =
            self.looked_at.map_or(Duration::ZERO, |at| now.instant - at.instant).min(PAUSE_MAX);
        self.looked_at = Some(now);
        let at_work: HashSet<&str> =
            last.allocations.iter().map(|allocation| &*allocation.node).collect();
        let mut before = std::mem::take(&mut self.workers);
        for SeenWorker { state, seen_at } in seen {
            let heartbeat = now.before(Duration::from_millis(by_store.saturating_sub(*seen_at)));
            let is_at_work = at_work.contains(&*state.name) || !state.jobs.is_empty();
            let silent = match before.remove(&state.name) {
                _ if !is_at_work => Duration::ZERO,
                Some(known) if known.seen_at == *seen_at => known.silent + pause,
                None if last.silent.contains(&state.name) => SILENCE,
                _ => Duration::ZERO,
            };
            for job_id in state.jobs.keys() {
                let known = self.heartbeats.entry(job_id.clone()).or_insert(heartbeat);
                if known.instant < heartbeat.instant {
                    *known = heartbeat;
                }
            }
            self.workers.insert(state.name.clone(), Worker { seen_at: *seen_at, silent });
        }
        let open: HashSet<&str> = last.jobs.iter().map(|job| &*job.job_id).collect();
        self.heartbeats.retain(|job_id, _| open.contains(&**job_id));
        let is_silent =
            |(name, worker): (&String, &Worker)| (worker.silent >= SILENCE).then(|| name.clone());
        self.workers.iter().filter_map(is_silent).collect()
    }

    /// Returns the last heartbeat of a worker for each job.
    pub fn heartbeats(&self) -> impl Iterator<Item = (&str, Timestamp)> {
        self.heartbeats.iter().map(|(job_id, heartbeat)| (&**job_id, *heartbeat))
    }
}

#[cfg(test)]
mod tests {
    use protocol::{Allocation, NodeState, Running, ScheduledJob};

    use super::*;

    /// A target with one worker and one job, with a read each second.
    struct Played {
        worker_liveness: WorkerLiveness,
        last: Schedule,
        now: Timestamp,
        by_store: u64,
        seen_at: u64,
        jobs: &'static [&'static str],
    }

    impl Played {
        fn new() -> Self {
            let job = ScheduledJob { job_id: "job".to_owned(), ..ScheduledJob::default() };
            let last = Schedule { jobs: vec![job], ..Schedule::default() };
            let now = Timestamp::now();
            Self {
                worker_liveness: WorkerLiveness::default(),
                last,
                now,
                by_store: 10_000,
                seen_at: 10_000,
                jobs: &["job"],
            }
        }

        fn allocate(&mut self) {
            let (node, job_id) = ("a".to_owned(), "job".to_owned());
            self.last.allocations =
                vec![Allocation { node, job_id, processes: 1, gpus: Vec::new() }];
        }

        /// Looks after this many milliseconds. Returns whether the worker is silent.
        fn look(&mut self, milliseconds: u64) -> bool {
            self.now = self.now.after(Duration::from_millis(milliseconds));
            self.by_store += milliseconds;
            let jobs =
                self.jobs.iter().map(|job| ((*job).to_owned(), Running::default())).collect();
            let state = NodeState { name: "a".to_owned(), jobs, ..NodeState::default() };
            let seen = [SeenWorker { state, seen_at: self.seen_at }];
            let silent = self.worker_liveness.looked(&seen, &self.last, self.by_store, self.now);
            assert!(silent.iter().all(|name| name == "a"));
            !silent.is_empty()
        }

        fn renew(&mut self) {
            self.seen_at = self.by_store;
        }

        fn age_of_the_heartbeat(&self) -> Option<u64> {
            let (_, heartbeat) = self.worker_liveness.heartbeats().next()?;
            Some((self.now.instant - heartbeat.instant).as_secs())
        }
    }

    #[test]
    fn worker_that_renews_its_entry_is_not_silent() {
        let mut played = Played::new();
        for _ in 0..100 {
            assert!(!played.look(2000));
            played.renew();
        }
        assert_eq!(played.age_of_the_heartbeat(), Some(2));
    }

    #[test]
    fn killed_worker_is_silent_after_five_seconds_until_its_next_heartbeat() {
        let mut played = Played::new();
        let silent: Vec<bool> = (0..8).map(|_| played.look(1000)).collect();
        assert_eq!(silent, [false, false, false, false, false, true, true, true]);
        assert_eq!(played.age_of_the_heartbeat(), Some(8));
        played.renew();
        assert!(!played.look(1000));
    }

    #[test]
    fn worker_without_jobs_sends_rare_heartbeats_and_must_react_to_a_schedule() {
        let mut played = Played::new();
        played.jobs = &[];
        assert!((0..40).all(|_| !played.look(1000)));
        assert_eq!(played.age_of_the_heartbeat(), None);
        played.allocate();
        let silent: Vec<bool> = (0..5).map(|_| played.look(1000)).collect();
        assert_eq!(silent, [false, false, false, false, true]);
    }

    #[test]
    fn time_without_the_store_is_no_silence() {
        let mut played = Played::new();
        played.look(1000);
        assert!(!played.look(60_000), "it had no time to renew its entry");
        played.renew();
        assert!(!played.look(1000));
    }

    #[test]
    fn process_that_has_just_started_believes_the_last_schedule() {
        let mut played = Played::new();
        played.last.silent = vec!["a".to_owned()];
        assert!(played.look(1000));
        played.renew();
        assert!(!played.look(1000));
        assert!(!played.look(1000), "what this process has seen itself counts more");
    }

    #[test]
    fn heartbeats_of_ended_jobs_are_forgotten() {
        let mut played = Played::new();
        played.look(1000);
        played.last.jobs.clear();
        played.look(1000);
        assert_eq!(played.age_of_the_heartbeat(), None);
    }
}
