//! The order in which jobs get a first slot each. It matters while there are more jobs than slots: jobs then take
//! turns, in *slices* of time.
//!
//! A slice begins when a process of the job is ready. It lasts two minutes for a job of normal priority (in proportion
//! to its weight), and at least until one mini-batch has ended. A job whose slice is over keeps its slots until a
//! waiting job needs them.
//!
//! A new job does not wait for the end of a slice. One slot of four, but at least one, is for first slices of ten
//! seconds, in which most small jobs end. If no slot is free, the new job interrupts the job whose slice began first.
//! The interrupted job continues its slice before the next new job begins, so new jobs delay others but never stop
//! them. A new job that needs GPUs waits, because its start takes longer than ten seconds.

use std::cmp::Reverse;

use protocol::{Demand, GpuDemand, NodeState, ScheduledJob, WaitsFor};

use super::Processes;

/// The length of a slice for each unit of the weight, in milliseconds: two minutes for normal priority.
pub(super) const SLICE: u64 = 30_000;
/// The length of the first slice of a job, in milliseconds. It is also the shortest part of an interrupted slice, and
/// the shortest wait between two slices.
pub(super) const FIRST_SLICE: u64 = 10_000;
/// The time in milliseconds, for each unit of its weight, by which a job counts as having waited longer than it has.
const HEAD_START: u64 = 15_000;
/// The time in milliseconds after which a new job also waits in the line of all jobs.
const WAITS_LONG: u64 = 60_000;
/// The number of slots of which one is for first slices.
const SLOTS_PER_FIRST: u32 = 4;

/// Returns the order of jobs. `slots` is the number of slots of all nodes.
pub(super) fn order(
    demands: &[&Demand],
    states: &[Option<&ScheduledJob>],
    held: &[Processes],
    slots: u32,
    now: u64,
) -> Vec<usize> {
    let of = |job: usize| Job {
        demand: demands[job],
        state: states[job],
        has_slots: !held[job].is_empty(),
        now,
    };
    let mut order: Vec<usize> = (0..demands.len()).collect();
    let firsts = order.iter().filter(|job| of(**job).is_in_first_slice()).count();
    let firsts_max = (slots / SLOTS_PER_FIRST).max(1) as usize;
    let mut new: Vec<usize> =
        order.iter().filter(|job| of(**job).begins_at_once()).copied().collect();
    new.sort_by_key(|job| (Reverse(of(*job).urgency()), *job));
    // At least one other job is always in its slice, regardless of the number of new jobs.
    let in_later_slice = order.iter().any(|job| of(*job).is_in_later_slice());
    let waits_in_line = order.iter().any(|job| of(*job).waits_in_line());
    new.truncate(if waits_in_line && !in_later_slice {
        0
    } else {
        firsts_max.saturating_sub(firsts)
    });
    order.sort_by_cached_key(|job| {
        let at = of(*job);
        let tier = match at.has_slots {
            true if at.is_protected() => 0,
            false if at.is_interrupted() => 1,
            false if new.contains(job) => 2,
            true if !at.slice_is_over() => 3,
            // A job does not immediately take back a slot that it has just lost.
            false if !at.had_slice() || at.waited() >= FIRST_SLICE => 4,
            true => 5,
            false => 6,
        };
        let urgency = if at.has_slots { 0 } else { at.urgency() };
        (tier, Reverse(urgency), Reverse(at.served_since()), *job)
    });
    order
}

struct Job<'a> {
    demand: &'a Demand,
    state: Option<&'a ScheduledJob>,
    has_slots: bool,
    now: u64,
}

impl Job<'_> {
    fn had_slice(&self) -> bool {
        self.state.is_some_and(|state| state.had_slice)
    }

    /// Returns since when it has had a ready process; `u64::MAX` if none of its processes is ready.
    fn served_since(&self) -> u64 {
        self.state.and_then(|state| state.served_since).unwrap_or(u64::MAX)
    }

    /// Returns whether it has just begun its first slice or continued an interrupted one, so that it keeps its slots
    /// for now.
    fn is_protected(&self) -> bool {
        let Some(state) = self.state else { return true };
        let has_just_begun =
            !state.has_ended_one || self.now.saturating_sub(self.served_since()) < FIRST_SLICE;
        has_just_begun && (!state.had_slice || state.was_interrupted)
    }

    fn slice_is_over(&self) -> bool {
        self.state.is_some_and(|state| slice_is_over(self.demand, state, self.now))
    }

    fn is_in_first_slice(&self) -> bool {
        self.has_slots && !self.had_slice() && !self.slice_is_over() && !needs_gpus(self.demand)
    }

    fn is_interrupted(&self) -> bool {
        self.state.is_some_and(|state| state.was_interrupted)
    }

    fn is_in_later_slice(&self) -> bool {
        let is_in_slice = self.is_interrupted() || (self.has_slots && !self.slice_is_over());
        is_in_slice && self.had_slice() && !needs_gpus(self.demand)
    }

    fn waits_in_line(&self) -> bool {
        let waits = !self.has_slots && !self.is_interrupted() && !needs_gpus(self.demand);
        waits && (self.had_slice() || self.waited() >= WAITS_LONG)
    }

    /// Returns how long it has waited, in milliseconds.
    fn waited(&self) -> u64 {
        let since =
            self.state.and_then(|state| state.waits_since).unwrap_or(self.demand.enqueued_at);
        self.now.saturating_sub(since)
    }

    /// Returns its urgency in the line: the largest is first. The weight gives only a head start, because it already
    /// determines the length of slices. So no job waits forever.
    fn urgency(&self) -> u64 {
        self.waited() + HEAD_START * u64::from(self.demand.priority.weight())
    }

    /// Returns whether it is new, and may interrupt a slice.
    fn begins_at_once(&self) -> bool {
        !self.has_slots && !self.had_slice() && !needs_gpus(self.demand)
    }
}

fn needs_gpus(job: &Demand) -> bool {
    job.gpus != GpuDemand::WherePresent || job.requires.gpus > 0
}

fn slice_is_over(job: &Demand, state: &ScheduledJob, now: u64) -> bool {
    let length = if state.had_slice || needs_gpus(job) {
        SLICE * u64::from(job.priority.weight())
    } else {
        FIRST_SLICE
    };
    let served = state.served_since.map_or(0, |since| state.served + now.saturating_sub(since));
    state.has_ended_one && served >= length
}

/// Returns the state of a job in a new schedule. `has_processes` says whether that schedule gives it any.
pub(super) fn state(
    job: &Demand,
    nodes: &[NodeState],
    before: Option<&ScheduledJob>,
    admitted_in: Option<u64>,
    has_processes: bool,
    waits_for: Option<WaitsFor>,
    now: u64,
) -> ScheduledJob {
    let before = before.cloned().unwrap_or_default();
    let had_processes = before.admitted_in.is_some() && before.waits_since.is_none();
    let lost = had_processes && !has_processes;
    let is_over = slice_is_over(job, &before, now);
    let was_interrupted =
        if lost { before.had_slice && !is_over } else { before.was_interrupted && !is_over };
    let served = match before.served_since {
        Some(since) if lost && was_interrupted => before.served + now.saturating_sub(since),
        _ if lost => 0,
        _ => before.served,
    };
    let state = ScheduledJob {
        job_id: job.job_id.clone(),
        owner: job.owner.clone(),
        priority: job.priority,
        is_canceled: job.is_canceled,
        admitted_in,
        had_slice: before.had_slice || (lost && before.has_ended_one),
        was_interrupted,
        served,
        ..ScheduledJob::default()
    };
    if !has_processes {
        let began = if before.admitted_in.is_some() { now } else { job.enqueued_at.min(now) };
        let waits_since = before.waits_since.or(Some(began));
        return ScheduledJob { waits_since, waits_for, ..state };
    }
    let running =
        || nodes.iter().filter_map(|node| node.jobs.get(&job.job_id)).filter(|_| had_processes);
    let is_ready = || running().any(|running| running.is_ready);
    ScheduledJob {
        served_since: before.served_since.or_else(|| is_ready().then_some(now)),
        has_ended_one: before.has_ended_one || running().any(|running| running.has_ended_one),
        ..state
    }
}
