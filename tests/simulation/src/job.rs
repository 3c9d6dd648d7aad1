//! The jobs that are played, and how user code ends on each try.

use std::collections::BTreeMap;
use std::path::Path;

use bytes::Bytes;
use protocol::{AttemptStatus, JobSpec, Output};

use crate::weather::{Bug, Dice};

/// There are so many different jobs; the undisturbed run of each is played once.
pub(crate) const JOBS: u64 = 32;
const TRIES_MAX: u32 = 3;

/// A job, and what its script does.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub number: u64,
    pub mini_batches: u64,
    /// Tries that fail before one succeeds; `u32::MAX`: all.
    failures: BTreeMap<u64, (u32, AttemptStatus)>,
    /// A node that begins it dies.
    pub poison: Option<u64>,
    /// Ends one way or the other, at random.
    pub flaky: Option<u64>,
    /// Its rows are too large for a message of 32 KiB.
    large: Option<u64>,
    pub lost_delivery_max: u32,
}

impl Job {
    pub fn new(number: u64) -> Self {
        let dice = Dice::new(number, "job");
        let mini_batches = 2 + dice.below(11);
        let mut failures = BTreeMap::new();
        for mini_batch in 0..mini_batches {
            if dice.happens(0.3) {
                let count = [1, 2, u32::MAX][dice.below(3) as usize];
                let statuses = [AttemptStatus::RunRaised, AttemptStatus::RunTimedOut, AttemptStatus::ProcessDied];
                failures.insert(mini_batch, (count, statuses[dice.below(3) as usize]));
            }
        }
        let one = |probability| dice.happens(probability).then(|| dice.below(mini_batches));
        let poison = one(0.2);
        let large = one(0.3);
        let flaky = one(0.3).filter(|flaky| poison != Some(*flaky));
        if let Some(poison) = poison {
            failures.remove(&poison);
        }
        Self {
            number,
            mini_batches,
            failures,
            poison,
            flaky,
            large,
            lost_delivery_max: if poison.is_some() { 3 } else { 1000 },
        }
    }

    pub fn spec(&self, folder: &Path, bug: Option<Bug>) -> JobSpec {
        let example = JobSpec::example();
        JobSpec {
            job_id: format!("simulated-{}", self.number),
            name: "simulated".into(),
            rank_mini_batch_count: self.mini_batches,
            output: Output { folder: folder.into(), ..example.output },
            process_count_per_node: Some(2),
            // Longer than any weather: whoever stands still for so long would do so for ever.
            progress_update_timeout_seconds: if bug == Some(Bug::WaitsForEver) { u64::from(u32::MAX) } else { 1800 },
            first_task_creation_timeout_seconds: 1800,
            run_max_try: TRIES_MAX,
            lost_delivery_max: self.lost_delivery_max,
            ..example
        }
    }

    /// How a try ends.
    pub fn ends(&self, mini_batch: u64, try_number: u32) -> AttemptStatus {
        match self.failures.get(&mini_batch) {
            Some((count, status)) if try_number <= *count => *status,
            _ => AttemptStatus::Succeeded,
        }
    }

    /// What `run` returns.
    pub fn rows(&self, mini_batch: u64) -> Bytes {
        let row = format!("row of mini-batch {mini_batch}\n");
        if self.large == Some(mini_batch) { row.repeat(400).into() } else { row.into() }
    }

    /// Whether the weather has no say in what becomes of the job.
    pub fn is_certain(&self) -> bool {
        self.poison.is_none() && self.flaky.is_none()
    }

    /// Whether its rows are in the final file when nothing goes wrong.
    pub fn succeeds(&self, mini_batch: u64) -> bool {
        self.poison != Some(mini_batch)
            && (1..=TRIES_MAX).any(|number| self.ends(mini_batch, number) == AttemptStatus::Succeeded)
    }

    /// The final file, if these have succeeded.
    pub fn output(&self, succeeded: impl Fn(u64) -> bool) -> Vec<u8> {
        let rows: Vec<Bytes> =
            (0..self.mini_batches).filter(|&mini_batch| succeeded(mini_batch)).map(|id| self.rows(id)).collect();
        rows.concat()
    }
}
