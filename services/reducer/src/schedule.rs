//! Decides which node of a compute target works on which job, for the whole fleet at once. Pure: no I/O, no clock.
//!
//! The resource is a *slot*: the share of a node that one process of an ordinary job takes. A job that requests more
//! processes than the node has slots runs several in each.
//!
//! 1. [`admitted`]: jobs beyond a limit of jobs at a time wait.
//! 2. [`slices`]: the order in which jobs get a first slot each. While there are more jobs than slots, they take turns.
//! 3. [`fill`]: further slots go one by one to the job that is furthest below its weight. A job that finds no free slot
//!    moves other jobs to nodes that only they can use. So the result is weighted max-min fair within one slot.
//! 4. [`gpus`]: each job keeps its GPUs if possible.
//!
//! A start is expensive, because a process must load its model. So a job prefers the slots that it has, then nodes on
//! which it works, and then a node with room for all slots that it is likely to get. If no job would have more or fewer
//! processes than before, no process moves.
//!
//! Two limits hold even while nodes follow the schedule late: `node_count`, and the mini-batches in flight of an owner.
//! A run counts until its node reports the end. The runs of an ended job do not count, because its nodes are stopping
//! them.

mod fill;
mod gpus;
mod limits;
mod slices;
#[cfg(test)]
mod tests;
mod wanted;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use protocol::{
    Allocation, Demand, GpuDemand, NodeState, Quotas, ReachedQuota, Revoked, Schedule,
    ScheduledJob, WaitingJob, WaitsFor,
};

use fill::Fill;
pub(crate) use wanted::wanted;

/// Computes which node works on which job at `now` (milliseconds since the epoch), given the previous schedule.
pub fn schedule(
    jobs: &[Demand],
    nodes: &[NodeState],
    quotas: &Quotas,
    previous: &Schedule,
    now: u64,
) -> Schedule {
    let before: HashMap<&str, &ScheduledJob> =
        previous.jobs.iter().map(|job| (job.job_id.as_str(), job)).collect();
    let full = admitted(jobs, quotas, &before);
    let mut wanting: Vec<usize> =
        (0..jobs.len()).filter(|job| full[*job].is_none() && jobs[*job].unfinished > 0).collect();
    wanting.sort_unstable_by_key(|job| (jobs[*job].enqueued_at, &jobs[*job].job_id));
    let demands: Vec<&Demand> = wanting.iter().map(|job| &jobs[*job]).collect();
    let held = held(&demands, nodes, previous);
    let states: Vec<Option<&ScheduledJob>> =
        demands.iter().map(|job| before.get(job.job_id.as_str()).copied()).collect();
    let slots = nodes.iter().filter(|node| node.accepts_work).map(slots).sum();
    let order = slices::order(&demands, &states, &held, slots, now);
    let present = present(&demands, nodes, previous);
    let occupied: Vec<BTreeSet<usize>> =
        present.iter().map(|processes| processes.keys().copied().collect()).collect();
    let filled = |held: &[Processes]| {
        let mut fill = Fill::new(&demands, nodes, quotas, held, &occupied);
        fill.run(&order);
        fill
    };
    let mut fill = filled(&held);
    let mut shares = if fill.agrees_with(&held) {
        held
    } else {
        // The first fill shows how many processes each job loses. The second one reserves those that it keeps, so that
        // no other job takes them.
        let kept = kept(held, &fill.shares());
        fill = filled(&kept);
        fill.shares()
    };
    let ideal: Vec<bool> = shares.iter().map(|share| !share.is_empty()).collect();
    wait_for_reports(&demands, quotas, &present, &order, &mut shares);

    let mut allocations = gpus::assigned(&demands, nodes, &shares, previous);
    allocations.sort_unstable();
    let served: BTreeSet<&str> =
        allocations.iter().map(|allocation| allocation.job_id.as_str()).collect();
    let has = |job: &Demand| served.contains(job.job_id.as_str());
    let mut ahead = 0;
    let mut waits: HashMap<usize, WaitsFor> = HashMap::new();
    for job in order {
        if has(demands[job]) {
            continue;
        }
        let reason = if ideal[job] && shares[job].is_empty() {
            WaitsFor::EarlierNodes
        } else {
            reason(demands[job], nodes, &fill, job, ahead)
        };
        ahead += u64::from(matches!(reason, WaitsFor::OtherJobs { .. }));
        waits.insert(wanting[job], reason);
    }
    let number = previous.number + 1;
    let mut states: Vec<ScheduledJob> = (0..jobs.len())
        .map(|job| {
            let before = before.get(jobs[job].job_id.as_str()).copied();
            let waits_for = full[job].clone().map(WaitsFor::Quota).or_else(|| waits.remove(&job));
            let earlier = before.and_then(|before| before.admitted_in);
            let admitted_in = full[job].is_none().then(|| earlier.unwrap_or(number));
            slices::state(&jobs[job], nodes, before, admitted_in, has(&jobs[job]), waits_for, now)
        })
        .collect();
    states.sort_unstable_by(|one, other| one.job_id.cmp(&other.job_id));
    let revoked = revoked(nodes, previous, &allocations, number);
    let limit_shares = limits::shares(nodes, previous, now);
    Schedule {
        number,
        made_at: now,
        allocations,
        revoked,
        limit_shares,
        jobs: states,
        ..Schedule::default()
    }
}

/// Returns the processes that nodes must end, and whose end they have not confirmed yet.
fn revoked(
    nodes: &[NodeState],
    previous: &Schedule,
    allocations: &[Allocation],
    number: u64,
) -> Vec<Revoked> {
    let confirmed: HashMap<&str, u64> =
        nodes.iter().map(|node| (node.name.as_str(), node.schedule)).collect();
    let kept: HashMap<(&str, &str), u32> =
        allocations.iter().map(|kept| ((&*kept.node, &*kept.job_id), kept.processes)).collect();
    let lost = previous.allocations.iter().map(|before| Revoked {
        node: before.node.clone(),
        job_id: before.job_id.clone(),
        processes: before.processes,
        since: number,
    });
    // A node that is not listed runs no process any more.
    let is_open = |entry: &Revoked| {
        let key = (&*entry.node, &*entry.job_id);
        confirmed.get(&*entry.node).is_some_and(|confirmed| *confirmed < entry.since)
            && kept.get(&key).is_none_or(|kept| *kept < entry.processes)
    };
    let mut revoked: BTreeMap<(String, String), Revoked> = BTreeMap::new();
    for entry in previous.revoked.iter().cloned().chain(lost).filter(is_open) {
        let key = (entry.node.clone(), entry.job_id.clone());
        let known = revoked.entry(key).or_insert_with(|| entry.clone());
        known.processes = known.processes.max(entry.processes);
        known.since = known.since.max(entry.since);
    }
    revoked.into_values().collect()
}

/// Returns for each job the limit of jobs at a time that prevents its admission. An admitted job stays admitted. A
/// canceled job is admitted at once, so that a reducer ends it.
fn admitted(
    jobs: &[Demand],
    quotas: &Quotas,
    before: &HashMap<&str, &ScheduledJob>,
) -> Vec<Option<ReachedQuota>> {
    let was_admitted = |job: &Demand| {
        before.get(job.job_id.as_str()).is_some_and(|state| state.admitted_in.is_some())
    };
    let running: Vec<String> =
        jobs.iter().filter(|job| was_admitted(job)).map(|job| job.owner.clone()).collect();
    let waiting = jobs.iter().filter(|job| !was_admitted(job) && !job.is_canceled);
    let waiting = waiting.map(|job| WaitingJob {
        job_id: job.job_id.clone(),
        owner: job.owner.clone(),
        priority: job.priority,
        since: i64::try_from(job.enqueued_at).unwrap_or(i64::MAX),
    });
    let decisions = quotas.decide(&running, waiting.collect());
    let mut full: HashMap<String, ReachedQuota> =
        decisions.into_iter().filter_map(|(job, full)| Some((job.job_id, full?))).collect();
    jobs.iter().map(|job| full.remove(&job.job_id)).collect()
}

/// The processes of a job on each node, by the index of the node.
type Processes = BTreeMap<usize, u32>;

/// Returns the processes of each job in the previous schedule, on nodes that still accept work.
fn held(demands: &[&Demand], nodes: &[NodeState], previous: &Schedule) -> Vec<Processes> {
    let job_at: HashMap<&str, usize> =
        demands.iter().enumerate().map(|(at, job)| (job.job_id.as_str(), at)).collect();
    let node_at: HashMap<&str, usize> = nodes
        .iter()
        .enumerate()
        .filter(|(_, node)| node.accepts_work)
        .map(|(at, node)| (node.name.as_str(), at))
        .collect();
    let mut held = vec![Processes::new(); demands.len()];
    for Allocation { node, job_id, processes, .. } in &previous.allocations {
        if let (Some(job), Some(node)) = (job_at.get(job_id.as_str()), node_at.get(node.as_str())) {
            held[*job].insert(*node, *processes);
        }
    }
    held
}

/// Returns the processes that jobs keep if they have as many processes as in `shares`. A job first keeps those of the
/// nodes on which it held most.
fn kept(mut held: Vec<Processes>, shares: &[Processes]) -> Vec<Processes> {
    for (held, share) in held.iter_mut().zip(shares) {
        let mut left: u32 = share.values().sum();
        let mut nodes: Vec<(usize, u32)> =
            held.iter().map(|(node, processes)| (*node, *processes)).collect();
        nodes.sort_by_key(|(node, processes)| (Reverse(*processes), *node));
        for (node, processes) in nodes {
            held.insert(node, processes.min(left));
            left = left.saturating_sub(processes);
        }
        held.retain(|_, processes| *processes > 0);
    }
    held
}

/// Returns the processes of each job that nodes may still run, regardless of the new schedule.
fn present(demands: &[&Demand], nodes: &[NodeState], previous: &Schedule) -> Vec<Processes> {
    let job_at: HashMap<&str, usize> =
        demands.iter().enumerate().map(|(at, job)| (job.job_id.as_str(), at)).collect();
    let node_at: HashMap<&str, usize> =
        nodes.iter().enumerate().map(|(at, node)| (node.name.as_str(), at)).collect();
    let mut present = vec![Processes::new(); demands.len()];
    let mut add = |job_id: &str, node: &str, processes: u32| {
        if let (Some(job), Some(node)) = (job_at.get(job_id), node_at.get(node)) {
            let known = present[*job].entry(*node).or_default();
            *known = (*known).max(processes);
        }
    };
    previous
        .allocations
        .iter()
        .for_each(|before| add(&before.job_id, &before.node, before.processes));
    let unconfirmed = |entry: &&Revoked| {
        node_at.get(&*entry.node).is_some_and(|node| nodes[*node].schedule < entry.since)
    };
    previous
        .revoked
        .iter()
        .filter(unconfirmed)
        .for_each(|entry| add(&entry.job_id, &entry.node, entry.processes));
    for node in nodes {
        let running = node.jobs.iter().filter(|(_, running)| running.processes > 0);
        running.for_each(|(job_id, running)| add(job_id, &node.name, running.processes));
    }
    present
}

/// Returns the number of slots of a node.
fn slots(node: &NodeState) -> u32 {
    node.process_count.unwrap_or(node.offer.processors.max(node.offer.gpus)).max(1)
}

/// The upper bounds of a job on a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Bounds {
    /// The number of slots of the node.
    slots: u32,
    /// The number of processes that fill the node. It exceeds the number of slots if the job requests more processes.
    full: u32,
    /// The largest number of slots of the job.
    slots_max: u32,
    /// The largest number of processes of the job.
    processes_max: u32,
    /// The number of GPUs of each process.
    gpus_each: u32,
    /// The number of processes that share a GPU; 0 if processes do not share GPUs.
    share_gpu: u32,
}

/// Returns whether a node that takes work may run a job.
pub fn may_run_on(job: &Demand, node: &NodeState) -> bool {
    !node.unable.contains_key(&job.job_id)
        && !job.excluded.contains(&node.name)
        && node.offer.lacks(&job.requires).is_none()
}

impl Bounds {
    /// Returns the bounds of a job on a node; `None` if it may have no process there.
    fn of(job: &Demand, node: &NodeState) -> Option<Self> {
        if !node.accepts_work || !may_run_on(job, node) {
            return None;
        }
        let failing = node.jobs.get(&job.job_id).map_or(0, |running| running.failing_gpus.len());
        let gpus = node.offer.gpus.saturating_sub(u32::try_from(failing).unwrap_or(u32::MAX));
        let (gpus_each, share_gpu) = match job.gpus {
            GpuDemand::WherePresent if node.offer.gpus == 0 => (0, 0),
            GpuDemand::WherePresent => (1, 0),
            GpuDemand::Each(gpus) => (gpus.max(1), 0),
            GpuDemand::Shared(processes) => (0, processes.max(1)),
        };
        let slots = slots(node);
        let by_gpus = match (gpus_each, share_gpu) {
            (0, 0) => u32::MAX,
            (0, processes) => gpus.saturating_mul(processes),
            (each, _) => gpus / each,
        };
        let default = if by_gpus == u32::MAX { slots } else { by_gpus };
        let requested = node.process_count.or(job.process_count_per_node).unwrap_or(default);
        let alone = requested.min(by_gpus);
        if alone == 0 {
            return None;
        }
        let full = slots.max(alone);
        let share_max = job.max_share.map_or(u32::MAX, |percent| {
            u32::try_from(u64::from(full) * u64::from(percent) / 100).unwrap_or(u32::MAX).max(1)
        });
        let processes_max = alone.min(share_max);
        let slots_max = (u64::from(processes_max) * u64::from(slots)).div_ceil(u64::from(full));
        let slots_max = u32::try_from(slots_max).unwrap_or(u32::MAX);
        Some(Self { slots, full, slots_max, processes_max, gpus_each, share_gpu })
    }

    /// Returns the processes in this many slots.
    fn processes(&self, slots: u32) -> u32 {
        let processes = u64::from(slots) * u64::from(self.full) / u64::from(self.slots);
        u32::try_from(processes).unwrap_or(u32::MAX).min(self.processes_max)
    }

    /// Returns the slots that this many processes need.
    fn slots_of(&self, processes: u32) -> u32 {
        let slots = (u64::from(processes) * u64::from(self.slots)).div_ceil(u64::from(self.full));
        u32::try_from(slots).unwrap_or(u32::MAX)
    }

    /// Returns the GPUs that this many processes need.
    fn gpus(&self, processes: u32) -> u32 {
        match self.share_gpu {
            0 => processes.saturating_mul(self.gpus_each),
            share => processes.div_ceil(share),
        }
    }
}

/// Removes new processes from `shares` while their owner would have too many mini-batches in flight, because other
/// nodes have not confirmed the end of theirs. The last job in `order` loses processes first.
fn wait_for_reports(
    demands: &[&Demand],
    quotas: &Quotas,
    present: &[Processes],
    order: &[usize],
    shares: &mut [Processes],
) {
    if !quotas.limit_in_flight() {
        return;
    }
    let mut in_flight: HashMap<&str, u32> = HashMap::new();
    for ((share, present), job) in shares.iter().zip(present).zip(demands) {
        let nodes: BTreeSet<&usize> = share.keys().chain(present.keys()).collect();
        let of = |processes: &Processes, node: &usize| processes.get(node).copied().unwrap_or(0);
        let both = nodes.into_iter().map(|node| of(share, node).max(of(present, node)));
        *in_flight.entry(&job.owner).or_default() += both.sum::<u32>();
    }
    for job in order.iter().rev().copied() {
        let owner = demands[job].owner.as_str();
        let Some(limit) = quotas.of(owner).max_in_flight else { continue };
        for (node, processes) in &mut shares[job] {
            let surplus = in_flight[owner].saturating_sub(limit);
            let had = present[job].get(node).copied().unwrap_or(0);
            let removed = processes.saturating_sub(had).min(surplus);
            *processes -= removed;
            *in_flight.entry(owner).or_default() -= removed;
        }
        shares[job].retain(|_, processes| *processes > 0);
    }
}

/// Returns why a job without a process waits. `ahead` is the number of jobs before it that wait for other jobs.
fn reason(
    job: &Demand,
    nodes: &[NodeState],
    fill: &Fill<'_>,
    number: usize,
    ahead: u64,
) -> WaitsFor {
    let present: Vec<&NodeState> = nodes.iter().filter(|node| node.accepts_work).collect();
    if present.is_empty() {
        return WaitsFor::Worker(job.requires.clone());
    }
    if let Some(unfit) = job.requires.unmet(present.iter().map(|node| (&node.name, &node.offer))) {
        return WaitsFor::FittingWorker(unfit);
    }
    let fitting = || present.iter().filter(|node| node.offer.lacks(&job.requires).is_none());
    if fitting().all(|node| Bounds::of(job, node).is_none()) {
        let reason =
            fitting().find_map(|node| node.unable.get(&job.job_id)).cloned().unwrap_or_default();
        return WaitsFor::AbleWorker { workers: fitting().count() as u64, reason };
    }
    if let Some((owner, limit)) = fill.owner_at_its_limit(number) {
        return WaitsFor::InFlight { owner, limit };
    }
    if fill.waits_for_earlier_nodes(number) {
        return WaitsFor::EarlierNodes;
    }
    WaitsFor::OtherJobs { ahead }
}
