//! The jobs of a seed, and how user code ends on each try.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use protocol::{AttemptStatus, Isolate, JobSpec, Output, Priority, Quotas, Requirements};

use crate::weather::{Bug, Dice, quotas_of};

/// Number of different jobs.
const JOBS: u64 = 32;
const TRIES_MAX: u32 = 3;
/// Items of a mini-batch that is isolated when its tries are spent.
pub(crate) const ITEMS: u64 = 6;
/// Processes of each job on a node.
pub(crate) const PROCESSES: u32 = 2;
/// What a node has: one more than a job wants, so that two jobs cannot both have what they want.
pub(crate) const SLOTS: u32 = 3;
/// The label of nodes, and its values. The first node has the first one.
pub(crate) const LABEL: &str = "zone";
pub(crate) const ZONES: [&str; 2] = ["a", "b"];
/// Why nodes cannot work on a broken job.
pub(crate) const BROKEN: &str = "there is no such interpreter";

/// A job, and what its script does.
#[derive(Clone, Debug, Default)]
pub(crate) struct Job {
    pub number: u64,
    /// When it is submitted.
    pub begins: Duration,
    /// How long after that its user cancels it.
    pub canceled_after: Option<Duration>,
    /// Nodes that may work on it at a time.
    pub node_count: Option<u32>,
    pub priority: Priority,
    /// Whom it counts for.
    pub owner: String,
    /// Percent of a node that it may have.
    pub max_share: Option<u32>,
    /// The label that it requires of nodes.
    pub zone: Option<&'static str>,
    pub mini_batches: u64,
    /// Tries that fail before one succeeds; `u32::MAX`: all.
    failures: BTreeMap<u64, (u32, AttemptStatus)>,
    /// A mini-batch that kills its node.
    pub poison: Option<u64>,
    /// The first nodes of the fleet, as many as this, fail runs at once, with this probability.
    pub broken_nodes: Option<(u64, f64)>,
    /// A mini-batch that fails at random.
    pub flaky: Option<u64>,
    /// A mini-batch whose rows are too large for a message of 32 KiB.
    large: Option<u64>,
    /// Mini-batches of several items, of which these fail every run that they are a part of.
    bad_items: BTreeMap<u64, BadItems>,
    /// Whether its script is called for each item, so that the process knows which item raises.
    pub by_item: bool,
    /// Whether slow mini-batches get speculative runs.
    pub speculation: bool,
    /// Mini-batches whose original run is slow.
    slow: BTreeSet<u64>,
    /// Most runs take a millisecond, so that a process gets many mini-batches at a time.
    pub quick: bool,
    /// Time of every run, in a fleet that is otherwise as fast as it can be; `None`: drawn for each.
    pub run_time: Option<Duration>,
    /// Mini-batches that have to be looked up in the plan.
    planned: BTreeSet<u64>,
    pub lost_delivery_max: u32,
    /// Runs after which a process is replaced; 0: any number.
    pub process_max_runs: u64,
    /// Memory above which a process is replaced; 0: any amount.
    pub process_max_memory: u64,
    /// Memory of a process after `init()`, and what each run adds at most.
    pub memory: u64,
    pub leak: u64,
    /// GPUs of each node, and the one on which every run fails.
    pub gpus: u32,
    pub broken_gpu: Option<u32>,
    /// No node can provision it.
    pub is_broken: bool,
    /// A user has corrected its script after the first round: no item is bad any more.
    pub is_mended: bool,
    /// How mini-batches ended in that round.
    failures_before: BTreeMap<u64, (u32, AttemptStatus)>,
}

/// Items of one mini-batch that fail, and how.
#[derive(Clone, Debug)]
struct BadItems {
    items: BTreeSet<u64>,
    status: AttemptStatus,
    /// Other items, whose rows do not fit the schema of the job.
    misfits: BTreeSet<u64>,
}

impl Job {
    /// Returns the jobs of a seed.
    pub fn of_seed(seed: u64) -> Vec<Self> {
        let dice = Dice::new(seed, "jobs");
        let quotas = quotas_of(seed);
        let (has_turns, turns) = (quotas != Quotas::default(), Dice::new(seed, "turns"));
        let together = turns.happens(0.5);
        let claims = Dice::new(seed, "claims");
        let count = [1, 1, 1, 2, 2, 3][dice.below(6) as usize] + u64::from(has_turns);
        let first = seed % JOBS;
        let step = 1 + dice.below(JOBS / 2 - 1);
        let priorities = Dice::new(seed, "priorities");
        let gpus = if Dice::new(seed, "gpus").happens(0.4) { PROCESSES } else { 0 };
        let jobs = (0..count).map(|index| {
            let job = Self::new((first + index * step) % JOBS);
            let later =
                if index == 0 { Duration::ZERO } else { dice.time(Duration::from_secs(180)) };
            let begins = if has_turns && together { Duration::ZERO } else { later };
            let owner = ["ana", "bo"][turns.below(2) as usize].to_owned();
            let max_share = claims.happens(0.3).then(|| [10, 40, 70][claims.below(3) as usize]);
            // A single process is not enough for runs that hang, which a queue may deliver again and again.
            let max_share = max_share.filter(|_| !job.hangs());
            let zone = claims.happens(0.4).then_some(ZONES[0]);
            let canceled_after = dice.happens(0.08).then(|| dice.time(Duration::from_secs(120)));
            let node_count = dice.happens(0.3).then(|| 1 + u32::from(dice.happens(0.3)));
            let priority =
                [Priority::Low, Priority::Normal, Priority::High][priorities.below(3) as usize];
            let (is_broken, broken_gpu) = (dice.happens(0.05), job.broken_gpu.filter(|_| gpus > 0));
            let claimed = Self { owner, max_share, zone, ..job };
            Self {
                begins,
                canceled_after,
                node_count,
                priority,
                is_broken,
                gpus,
                broken_gpu,
                ..claimed
            }
        });
        jobs.collect()
    }

    fn new(number: u64) -> Self {
        let dice = Dice::new(number, "job");
        let mini_batches = 2 + dice.below(11);
        let mut failures = BTreeMap::new();
        for mini_batch in 0..mini_batches {
            if dice.happens(0.3) {
                let count = [1, 2, u32::MAX][dice.below(3) as usize];
                let statuses = [
                    AttemptStatus::RunRaised,
                    AttemptStatus::RunTimedOut,
                    AttemptStatus::ProcessDied,
                ];
                failures.insert(mini_batch, (count, statuses[dice.below(3) as usize]));
            }
        }
        let quick = dice.happens(0.5);
        let mut planned: BTreeSet<u64> = (0..mini_batches).filter(|_| dice.happens(0.2)).collect();
        let slow = failures.iter().filter(|_| dice.happens(0.3)).map(|(mini_batch, _)| *mini_batch);
        // Some of them fail because their preparation takes too long.
        for mini_batch in slow.collect::<Vec<_>>() {
            planned.insert(mini_batch);
            failures
                .entry(mini_batch)
                .and_modify(|(_, status)| *status = AttemptStatus::LoadTimedOut);
        }
        let one = |probability| dice.happens(probability).then(|| dice.below(mini_batches));
        let poison = one(0.2);
        let large = one(0.3);
        let flaky = one(0.3).filter(|flaky| poison != Some(*flaky));
        if let Some(poison) = poison {
            failures.remove(&poison);
        }
        let wear = Dice::new(number, "wear");
        let limit = |probability, least, end| {
            if wear.happens(probability) { least + wear.below(end) } else { 0 }
        };
        let dice = Dice::new(number, "items");
        let mut bad_items = BTreeMap::new();
        for mini_batch in
            (0..mini_batches).filter(|one| ![poison, flaky, large].contains(&Some(*one)))
        {
            if !failures.contains_key(&mini_batch) && dice.happens(0.2) {
                let items = match dice.below(8) {
                    0 => (0..ITEMS).collect(),
                    1..=3 => [dice.below(ITEMS), dice.below(ITEMS)].into(),
                    _ => [dice.below(ITEMS)].into(),
                };
                let statuses = [
                    AttemptStatus::RunRaised,
                    AttemptStatus::ProcessDied,
                    AttemptStatus::RunTimedOut,
                ];
                let status = statuses[[0, 0, 0, 1, 1, 2][dice.below(6) as usize]];
                bad_items.insert(mini_batch, BadItems { items, status, misfits: BTreeSet::new() });
                // So that its preparation gives it items.
                planned.insert(mini_batch);
            }
        }
        let dice = Dice::new(number, "schema");
        for bad in bad_items.values_mut().filter(|bad| (bad.items.len() as u64) < ITEMS - 1) {
            let of_no_run = dice.happens(0.3);
            let misfits = (0..dice.below(3)).map(|_| dice.below(ITEMS)).collect::<BTreeSet<_>>();
            bad.misfits =
                misfits.difference(&bad.items).copied().take(1 + usize::from(of_no_run)).collect();
            if of_no_run {
                bad.items.clear();
            }
        }
        let broken_gpu = wear.happens(0.7).then(|| u32::from(wear.happens(0.5)));
        let dice = Dice::new(number, "speculation");
        let speculation = dice.happens(0.4);
        let slow = (0..mini_batches).filter(|_| speculation && dice.happens(0.3)).collect();
        Self {
            speculation,
            slow,
            process_max_runs: limit(0.3, 1, 4),
            // Of some jobs, a fresh process exceeds it.
            process_max_memory: limit(0.3, 80, 200),
            memory: 100,
            leak: 60,
            gpus: 0,
            broken_gpu,
            number,
            mini_batches,
            failures,
            poison,
            flaky,
            large,
            bad_items,
            by_item: Dice::new(number, "run_item").happens(0.5),
            quick,
            planned,
            lost_delivery_max: if poison.is_some() { 3 } else { 1000 },
            ..Self::default()
        }
    }

    /// Returns a job of this many mini-batches, of which each succeeds.
    pub fn sized(mini_batches: u64, run_time: Duration) -> Self {
        let run_time = Some(run_time);
        Self { mini_batches, run_time, speculation: true, lost_delivery_max: 10, ..Self::default() }
    }

    /// Returns the job in its next round. A user has corrected its script, which may still fail a first try, and may cancel
    /// the round.
    pub fn mended(&self) -> Self {
        if self.is_mended {
            // It goes on after its user has canceled that round.
            return Self { canceled_after: None, ..self.clone() };
        }
        let dice = Dice::new(self.number, "mended");
        let failed: Vec<u64> = (0..self.mini_batches).filter(|&one| !self.succeeds(one)).collect();
        let failing =
            failed.into_iter().filter(|one| !self.bad_items.contains_key(one) && dice.happens(0.3));
        Self {
            begins: Duration::ZERO,
            failures: failing
                .map(|mini_batch| (mini_batch, (1, AttemptStatus::RunRaised)))
                .collect(),
            slow: BTreeSet::new(),
            canceled_after: dice.happens(0.3).then(|| dice.time(Duration::from_secs(60))),
            failures_before: self.failures.clone(),
            is_mended: true,
            ..self.clone()
        }
    }

    /// Returns the mini-batches that run in its next round.
    pub fn lacking(&self) -> BTreeSet<u64> {
        let lacks = |one: &u64| !self.succeeds(*one) || self.bad(*one).next().is_some();
        (0..self.mini_batches).filter(lacks).collect()
    }

    /// Returns the processes that it may have on a node.
    pub fn processes_max(&self) -> u32 {
        (SLOTS * self.max_share.unwrap_or(100) / 100).clamp(1, PROCESSES)
    }

    /// Whether some of its runs do not end.
    fn hangs(&self) -> bool {
        let of_items = self.bad_items.values().map(|bad| bad.status);
        self.failures
            .values()
            .map(|(_, status)| *status)
            .chain(of_items)
            .any(|one| one == AttemptStatus::RunTimedOut)
    }

    /// Whether another round can complete its output.
    pub fn can_be_mended(&self) -> bool {
        !self.is_mended && !self.is_broken && self.is_certain() && !self.lacking().is_empty()
    }

    pub fn id(&self) -> String {
        format!("simulated-{}", self.number)
    }

    pub fn spec(&self, folder: &Path, bug: Option<Bug>) -> JobSpec {
        let example = JobSpec::example();
        JobSpec {
            job_id: self.id(),
            node_count: self.node_count,
            priority: self.priority,
            owner: self.owner.clone(),
            max_share: self.max_share,
            requires: Requirements {
                labels: self
                    .zone
                    .iter()
                    .map(|zone| (LABEL.to_owned(), (*zone).to_owned()))
                    .collect(),
                ..Requirements::default()
            },
            name: "simulated".into(),
            rank_mini_batch_count: self.mini_batches,
            output: Output { folder: folder.into(), ..example.output },
            process_count_per_node: Some(PROCESSES),
            // Longer than any weather: a job without progress for this long will never make any.
            progress_update_timeout_seconds: if bug == Some(Bug::WaitsForEver) {
                u64::from(u32::MAX)
            } else {
                1800
            },
            first_task_creation_timeout_seconds: 1800,
            run_max_try: TRIES_MAX,
            // `init()` may take three times this and 30 seconds, longer than any weather.
            run_invocation_timeout_seconds: 90,
            task_overhead_timeout_seconds: 10,
            lost_delivery_max: self.lost_delivery_max,
            process_max_runs: self.process_max_runs,
            process_max_memory: self.process_max_memory,
            speculation: self.speculation,
            isolate: if self.bad_items.is_empty() { Isolate::Off } else { Isolate::Items },
            ..example
        }
    }

    /// Whether the original run of a mini-batch takes far longer than others.
    pub fn is_slow(&self, mini_batch: u64) -> bool {
        self.slow.contains(&mini_batch)
    }

    /// Returns the number of items of a mini-batch.
    pub fn items(&self, mini_batch: u64) -> u64 {
        if self.bad_items.contains_key(&mini_batch) { ITEMS } else { 1 }
    }

    /// Returns the items of a mini-batch that are rejected, in order.
    pub fn bad(&self, mini_batch: u64) -> impl Iterator<Item = u64> + '_ {
        self.bad_items_of(mini_batch)
            .into_iter()
            .flat_map(|bad| bad.items.union(&bad.misfits).copied())
    }

    fn bad_items_of(&self, mini_batch: u64) -> Option<&BadItems> {
        self.bad_items.get(&mini_batch).filter(|_| !self.is_mended)
    }

    /// Returns those of some items of a mini-batch that have no row, though their run does not end the process: those that
    /// raise, and those whose rows do not fit the schema.
    pub fn failed_items(&self, mini_batch: u64, items: Range<u64>) -> BTreeMap<u64, AttemptStatus> {
        let Some(bad) = self.bad_items_of(mini_batch) else { return BTreeMap::new() };
        let raise =
            bad.items.range(items.clone()).filter(|_| bad.status == AttemptStatus::RunRaised);
        let misfits = bad.misfits.range(items).map(|item| (*item, AttemptStatus::IllegalResult));
        raise.map(|item| (*item, AttemptStatus::RunRaised)).chain(misfits).collect()
    }

    /// Returns how a run of some items of a mini-batch ends.
    pub fn ends_of(&self, mini_batch: u64, items: Range<u64>, try_number: u32) -> AttemptStatus {
        match self.bad_items_of(mini_batch) {
            Some(bad) if bad.items.range(items).next().is_some() => bad.status,
            _ => self.ends(mini_batch, try_number),
        }
    }

    /// Returns how a try ends, unless an item fails it.
    pub fn ends(&self, mini_batch: u64, try_number: u32) -> AttemptStatus {
        match self.failures.get(&mini_batch) {
            Some((count, status)) if try_number <= *count => *status,
            _ => AttemptStatus::Succeeded,
        }
    }

    /// Whether the mini-batch has to be looked up in the plan.
    pub fn is_planned(&self, mini_batch: u64) -> bool {
        self.planned.contains(&mini_batch)
    }

    /// Returns the rows of some items, as if none failed.
    pub fn rows(&self, mini_batch: u64, items: Range<u64>) -> Bytes {
        let row = |item| {
            format!("row of item {item} of mini-batch {mini_batch} of job {}\n", self.number)
        };
        let rows: String = items.map(row).collect();
        if self.large == Some(mini_batch) { rows.repeat(500).into() } else { rows.into() }
    }

    /// Returns the rows of a mini-batch that has succeeded.
    fn rows_of_success(&self, mini_batch: u64) -> Bytes {
        let bad: BTreeSet<u64> = self.bad(mini_batch).collect();
        let good = (0..self.items(mini_batch)).filter(|item| !bad.contains(item));
        good.map(|item| self.rows(mini_batch, item..item + 1)).collect::<Vec<_>>().concat().into()
    }

    /// Whether the job ends in the same way whatever the weather is.
    pub fn is_certain(&self) -> bool {
        // A mini-batch may fail on the broken GPUs of several nodes. Which mini-batches a node still isolates depends on
        // those that it has isolated in vain.
        let is_hopeless = |bad: &BadItems| bad.items.len() as u64 == ITEMS;
        self.broken_gpu.is_none()
            && self.poison.is_none()
            && self.flaky.is_none()
            && self.canceled_after.is_none()
            && !self.bad_items.values().any(is_hopeless)
    }

    /// Whether the final file of an undisturbed run holds rows of the mini-batch.
    pub fn succeeds(&self, mini_batch: u64) -> bool {
        self.poison != Some(mini_batch)
            && (self.bad(mini_batch).count() as u64) < self.items(mini_batch)
            && (1..=TRIES_MAX)
                .any(|number| self.ends(mini_batch, number) == AttemptStatus::Succeeded)
    }

    /// Returns the final file if these mini-batches have succeeded.
    pub fn output(&self, succeeded: impl Fn(u64) -> bool) -> Vec<u8> {
        let rows: Vec<Bytes> = (0..self.mini_batches)
            .filter(|&id| succeeded(id))
            .map(|id| self.rows_of_success(id))
            .collect();
        rows.concat()
    }

    /// Returns the final file of the first round, which the next one replaces.
    pub fn output_before(&self) -> Option<Vec<u8>> {
        let first =
            Self { is_mended: false, failures: self.failures_before.clone(), ..self.clone() };
        self.is_mended.then(|| first.output(|mini_batch| first.succeeds(mini_batch)))
    }
}
