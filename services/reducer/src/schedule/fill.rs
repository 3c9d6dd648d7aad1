//! Gives slots to jobs one by one, each time to the job that is furthest below its weight (the method of Sainte-Laguë).
//!
//! A job that finds no free slot may move other jobs: it takes a slot of a job that can go to another node, which may
//! move a third job, and so on (an augmenting path). A job without such a path gets no further slot.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, VecDeque};

use protocol::{Demand, GpuDemand, NodeState, Offer, Quotas, Requirements};

use super::{Bounds, Processes, slots};

/// The resources of a node that a job has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct HeldResources {
    slots: u32,
    processes: u32,
}

struct Node {
    /// The number of free slots.
    free: u32,
    free_gpus: u32,
    /// The number of free slots that are reserved for jobs that had them before.
    reserved: u32,
    jobs: BTreeMap<usize, HeldResources>,
    /// The jobs that had slots before.
    before: Vec<usize>,
}

struct Job {
    weight: u32,
    group: usize,
    owner: usize,
    node_count: usize,
    requests_gpus: bool,
    /// The largest number of processes that it can use.
    wanted: u32,
    /// The number of slots that it is likely to get.
    expected: u32,
    /// The nodes on which it had slots before, and their number there. The node with the most slots comes first.
    before: Vec<(usize, u32)>,
    /// The nodes that may still have processes of it.
    occupied: BTreeSet<usize>,
    nodes: BTreeMap<usize, HeldResources>,
    slots: u32,
    processes: u32,
    /// The node of its last new slot.
    current: Option<usize>,
    /// Its place in the order of jobs.
    rank: usize,
    /// Whether it gets no further slot.
    is_done: bool,
    /// The epoch of its last search for an unreserved free slot, if it found none.
    searched: Option<u64>,
    /// Whether it has found no free slot, so that only moves can give it another one.
    needs_moves: bool,
}

/// An owner of jobs, with the limit of processes.
struct Owner {
    name: String,
    limit: Option<u32>,
    processes: u32,
}

pub(super) struct Fill<'a> {
    states: &'a [NodeState],
    jobs: Vec<Job>,
    nodes: Vec<Node>,
    owners: Vec<Owner>,
    /// The bounds of each group of jobs with equal needs on each kind of node.
    bounds: Vec<Vec<Option<Bounds>>>,
    /// The kind of each node.
    kinds: Vec<usize>,
    /// The pairs of a job and a node whose bounds differ from those of their group and kind.
    exceptions: HashMap<(usize, usize), Option<Bounds>>,
    /// The nodes that each group may use.
    eligible: Vec<Vec<usize>>,
    /// For each group and node, whether moves cannot give the group a slot of the node.
    closed: Vec<Vec<bool>>,
    /// For each group, the number of eligible nodes that are not closed.
    open: Vec<usize>,
    /// The number of jobs that are done, whose reservations have ended.
    epoch: u64,
}

/// A job that may get one more slot.
#[derive(PartialEq, Eq)]
struct Candidate {
    weight: u32,
    slots: u32,
    /// Whether it had more slots before.
    had_more: bool,
    job: usize,
}

impl Ord for Candidate {
    /// Compares weight / (2 · slots + 1) without fractions. Of two equal jobs, one that had the slot before is greater,
    /// and then the earlier one.
    fn cmp(&self, other: &Self) -> Ordering {
        let of =
            |one: &Self, other: &Self| u64::from(one.weight) * (2 * u64::from(other.slots) + 1);
        let tie = || self.had_more.cmp(&other.had_more).then(other.job.cmp(&self.job));
        of(self, other).cmp(&of(other, self)).then_with(tie)
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Returns the largest number of processes that a job can use.
fn useful(job: &Demand) -> u32 {
    let each = if job.speculates { 2 } else { 1 };
    u32::try_from(job.unfinished.saturating_mul(each)).unwrap_or(u32::MAX)
}

impl<'a> Fill<'a> {
    /// Creates a fill in which all nodes are free, and the slots of `held` are reserved. `occupied` has for each job
    /// the nodes that may still have processes of it.
    pub fn new(
        demands: &[&Demand],
        states: &'a [NodeState],
        quotas: &Quotas,
        held: &[Processes],
        occupied: &[BTreeSet<usize>],
    ) -> Self {
        let (kinds, offers) = kinds(states);
        let (groups, examples) = groups(demands);
        let of_kind = |job: &&Demand| offers.iter().map(|node| Bounds::of(job, node)).collect();
        let bounds: Vec<Vec<Option<Bounds>>> = examples.iter().map(of_kind).collect();
        let number: HashMap<&str, usize> =
            demands.iter().enumerate().map(|(number, job)| (job.job_id.as_str(), number)).collect();
        let mut exceptions = HashMap::new();
        for (at, node) in states.iter().enumerate() {
            let failing = node.jobs.iter().filter(|(_, running)| !running.failing_gpus.is_empty());
            for id in node.unable.keys().chain(failing.map(|(id, _)| id)) {
                if let Some(job) = number.get(id.as_str()) {
                    exceptions.insert((*job, at), Bounds::of(demands[*job], node));
                }
            }
        }
        let accepting = |node: &usize| states[*node].accepts_work;
        let eligible: Vec<Vec<usize>> = bounds
            .iter()
            .map(|of_kind| {
                let fits = |node: &usize| of_kind[kinds[*node]].is_some();
                (0..states.len()).filter(accepting).filter(fits).collect()
            })
            .collect();
        let mut owners: Vec<Owner> = Vec::new();
        let mut owner_at: HashMap<&str, usize> = HashMap::new();
        let all_slots: u64 =
            states.iter().filter(|node| node.accepts_work).map(|node| u64::from(slots(node))).sum();
        let all_weights: u64 = demands.iter().map(|job| u64::from(job.priority.weight())).sum();
        let jobs = demands.iter().zip(occupied).enumerate().map(|(number, (job, occupied))| {
            let owner = *owner_at.entry(&job.owner).or_insert_with(|| {
                let limit = quotas.of(&job.owner).max_in_flight;
                owners.push(Owner { name: job.owner.clone(), limit, processes: 0 });
                owners.len() - 1
            });
            let weight = job.priority.weight();
            let expected = all_slots * u64::from(weight) / all_weights.max(1);
            Job {
                weight,
                group: groups[number],
                owner,
                node_count: job.node_count.map_or(usize::MAX, |count| count as usize),
                requests_gpus: job.gpus != GpuDemand::WherePresent,
                wanted: useful(job),
                expected: u32::try_from(expected).unwrap_or(u32::MAX),
                before: Vec::new(),
                occupied: occupied.clone(),
                nodes: BTreeMap::new(),
                slots: 0,
                processes: 0,
                current: None,
                rank: number,
                is_done: false,
                searched: None,
                needs_moves: false,
            }
        });
        let jobs = jobs.collect();
        let nodes = states.iter().map(|node| Node {
            free: if node.accepts_work { slots(node) } else { 0 },
            free_gpus: node.offer.gpus,
            reserved: 0,
            jobs: BTreeMap::new(),
            before: Vec::new(),
        });
        let open = eligible.iter().map(Vec::len).collect();
        let closed = vec![vec![false; states.len()]; bounds.len()];
        let nodes = nodes.collect();
        let mut fill = Self {
            states,
            jobs,
            nodes,
            owners,
            bounds,
            kinds,
            exceptions,
            eligible,
            closed,
            open,
            epoch: 0,
        };
        fill.reserve(held);
        fill
    }

    fn reserve(&mut self, held: &[Processes]) {
        for (job, held) in held.iter().enumerate() {
            for (node, processes) in held {
                let Some(bounds) = self.bounds(job, *node) else { continue };
                let slots =
                    bounds.slots_of((*processes).min(bounds.processes_max)).min(bounds.slots_max);
                self.jobs[job].before.push((*node, slots));
                self.nodes[*node].before.push(job);
                self.nodes[*node].reserved += slots;
            }
            self.jobs[job].before.sort_by_key(|(node, slots)| (Reverse(*slots), *node));
        }
    }

    /// Gives each job a first slot in this order, and then all other slots by weight.
    pub fn run(&mut self, order: &[usize]) {
        for (rank, job) in order.iter().enumerate() {
            self.jobs[*job].rank = rank;
        }
        let mut heap: BinaryHeap<Candidate> = BinaryHeap::with_capacity(order.len());
        for job in order {
            self.grant_or_finish(*job, &mut heap);
        }
        while let Some(Candidate { job, .. }) = heap.pop() {
            self.grant_or_finish(job, &mut heap);
        }
    }

    fn grant_or_finish(&mut self, job: usize, heap: &mut BinaryHeap<Candidate>) {
        if self.grant(job) {
            let Job { weight, slots, ref before, .. } = self.jobs[job];
            let had_more = before.iter().map(|(_, before)| before).sum::<u32>() > slots;
            heap.push(Candidate { weight, slots, had_more, job });
            return;
        }
        self.jobs[job].is_done = true;
        for (node, before) in self.jobs[job].before.clone() {
            let slots = self.jobs[job].nodes.get(&node).map_or(0, |held| held.slots);
            self.nodes[node].reserved -= before.saturating_sub(slots);
        }
        self.epoch += 1;
    }

    /// Returns the processes of each job.
    pub fn shares(&self) -> Vec<Processes> {
        let of = |job: &Job| job.nodes.iter().map(|(node, held)| (*node, held.processes)).collect();
        self.jobs.iter().map(of).collect()
    }

    /// Returns whether each job has as many processes as it held, and may keep exactly those.
    pub fn agrees_with(&self, held: &[Processes]) -> bool {
        let mut slots_used: HashMap<usize, u32> = HashMap::new();
        let mut gpus_used: HashMap<usize, u32> = HashMap::new();
        for (number, (job, held)) in self.jobs.iter().zip(held).enumerate() {
            let nodes: BTreeSet<usize> = held.keys().copied().collect();
            if held.values().sum::<u32>() != job.processes
                || nodes.union(&job.occupied).count() > job.node_count
            {
                return false;
            }
            for (node, processes) in held {
                let Some(bounds) = self.bounds(number, *node) else { return false };
                if *processes > bounds.processes_max {
                    return false;
                }
                *slots_used.entry(*node).or_default() += bounds.slots_of(*processes);
                *gpus_used.entry(*node).or_default() += bounds.gpus(*processes);
            }
        }
        slots_used.into_iter().all(|(node, used)| used <= slots(&self.states[node]))
            && gpus_used.into_iter().all(|(node, used)| used <= self.states[node].offer.gpus)
    }

    /// Returns the owner of a job and the owner's limit, if the owner has reached it.
    pub fn owner_at_its_limit(&self, job: usize) -> Option<(String, u32)> {
        let Owner { name, limit, processes } = &self.owners[self.jobs[job].owner];
        limit.filter(|limit| processes >= limit).map(|limit| (name.clone(), limit))
    }

    /// Returns whether a job has no slot because its processes on nodes that may no longer work on it use up its
    /// `node_count`.
    pub fn waits_for_earlier_nodes(&self, job: usize) -> bool {
        let Job { occupied, node_count, .. } = &self.jobs[job];
        occupied.len() >= *node_count
            && occupied.iter().all(|node| self.bounds(job, *node).is_none())
    }

    fn bounds(&self, job: usize, node: usize) -> Option<Bounds> {
        if !self.states[node].accepts_work {
            return None;
        }
        let exception =
            if self.exceptions.is_empty() { None } else { self.exceptions.get(&(job, node)) };
        exception.copied().unwrap_or_else(|| self.bounds[self.jobs[job].group][self.kinds[node]])
    }

    /// Gives a job one more slot. Returns `false` if it may not or cannot get one.
    fn grant(&mut self, number: usize) -> bool {
        let job = &self.jobs[number];
        let owner = &self.owners[job.owner];
        if job.processes >= job.wanted || owner.limit.is_some_and(|limit| owner.processes >= limit)
        {
            return false;
        }
        if !job.needs_moves {
            let own = self.held_before(number).or_else(|| self.current(number));
            let found = own
                .or_else(|| self.without_reservation(number))
                .or_else(|| self.reserved_for_others(number));
            if let Some(node) = found {
                self.place(number, node);
                return true;
            }
            self.jobs[number].needs_moves = true;
        }
        self.augment(number)
    }

    /// Returns a node with a free slot that the job had before.
    fn held_before(&self, number: usize) -> Option<usize> {
        let job = &self.jobs[number];
        let has = |node: &usize| job.nodes.get(node).map_or(0, |held| held.slots);
        let unused =
            job.before.iter().filter(|(node, before)| has(node) < *before).map(|(node, _)| *node);
        unused.into_iter().find(|node| self.fits(number, *node))
    }

    fn current(&self, number: usize) -> Option<usize> {
        let fits = |node: &usize| self.unreserved(*node) > 0 && self.fits(number, *node);
        self.jobs[number].current.filter(fits)
    }

    /// Returns the node with the least room for all slots that the job is likely to get, or else the node with the most
    /// room. A job that requests no GPUs takes nodes without GPUs first.
    fn without_reservation(&mut self, number: usize) -> Option<usize> {
        let job = &self.jobs[number];
        if job.searched == Some(self.epoch) {
            return None;
        }
        let likely = job.expected.saturating_sub(job.slots).min(job.wanted - job.processes).max(1);
        let free =
            || self.eligible[job.group].iter().copied().filter(|node| self.unreserved(*node) > 0);
        let preference = |node: &usize| {
            let room = self.unreserved(*node);
            // A node on which the job works has already loaded its model.
            let is_other = !job.nodes.contains_key(node);
            let takes_gpus = !job.requests_gpus && self.states[*node].offer.gpus > 0;
            if room >= likely {
                (takes_gpus, false, is_other, room, *node)
            } else {
                (takes_gpus, true, is_other, u32::MAX - room, *node)
            }
        };
        // Usually the first choice fits, and comparing free slots is quicker than `fits`.
        let first = free().min_by_key(preference).filter(|node| self.fits(number, *node));
        let found =
            first.or_else(|| free().filter(|node| self.fits(number, *node)).min_by_key(preference));
        if found.is_none() {
            self.jobs[number].searched = Some(self.epoch);
        }
        found
    }

    /// Returns a node with a free slot that is reserved for another job. Prefers a node on which the job works, then
    /// the reservation of the last job in the order, and of that job the node with the fewest slots.
    fn reserved_for_others(&self, number: usize) -> Option<usize> {
        let job = &self.jobs[number];
        let fitting = self.eligible[job.group].iter().copied();
        let fitting = fitting.filter(|node| self.nodes[*node].free > 0 && self.fits(number, *node));
        fitting.max_by_key(|node| {
            let unused = |other: &usize| {
                let other = &self.jobs[*other];
                let before =
                    other.before.iter().find(|(at, _)| at == node).map_or(0, |(_, slots)| *slots);
                let has = other.nodes.get(node).map_or(0, |held| held.slots);
                (!other.is_done && before > has).then_some((other.rank, u32::MAX - before))
            };
            let last = self.nodes[*node].before.iter().filter_map(unused).max();
            (job.nodes.contains_key(node), last, *node)
        })
    }

    fn unreserved(&self, node: usize) -> u32 {
        let Node { free, reserved, .. } = &self.nodes[node];
        free.saturating_sub(*reserved)
    }

    /// Returns whether a job may have one more slot of a node, and the node has one.
    fn fits(&self, job: usize, node: usize) -> bool {
        let Some(bounds) = self.may_grow(job, node, None) else { return false };
        let Node { free, free_gpus, .. } = &self.nodes[node];
        *free > 0 && self.more_gpus(job, node, bounds) <= *free_gpus
    }

    /// Returns the bounds of a job on a node if they allow one more slot there after the job has lost one slot of the
    /// node `left`.
    fn may_grow(&self, number: usize, node: usize, left: Option<usize>) -> Option<Bounds> {
        let bounds = self.bounds(number, node)?;
        let job = &self.jobs[number];
        if job.nodes.get(&node).is_some_and(|held| held.slots >= bounds.slots_max) {
            return None;
        }
        if job.node_count != usize::MAX && !job.nodes.contains_key(&node) {
            let is_left = |at: &usize| Some(*at) == left && job.nodes[at].slots == 1;
            // The job may occupy more nodes than `node_count`, because a node may return that was not seen for a while.
            if job.nodes.keys().filter(|at| !is_left(at)).count() >= job.node_count {
                return None;
            }
            let others =
                job.nodes.keys().filter(|at| !job.occupied.contains(at) && !is_left(at)).count();
            if !job.occupied.contains(&node) && job.occupied.len() + others >= job.node_count {
                return None;
            }
        }
        Some(bounds)
    }

    fn more_gpus(&self, job: usize, node: usize, bounds: Bounds) -> u32 {
        let held = self.jobs[job].nodes.get(&node).copied().unwrap_or_default();
        bounds.gpus(bounds.processes(held.slots + 1)) - bounds.gpus(held.processes)
    }

    fn place(&mut self, number: usize, node: usize) {
        let bounds = self.bounds(number, node).expect("it fits");
        let job = &mut self.jobs[number];
        let owner = &mut self.owners[job.owner];
        let held = job.nodes.entry(node).or_default();
        let left = owner
            .limit
            .map_or(u32::MAX, |limit| limit - owner.processes)
            .min(job.wanted - job.processes);
        let more = (bounds.processes(held.slots + 1) - held.processes).min(left);
        let gpus = bounds.gpus(held.processes + more) - bounds.gpus(held.processes);
        held.slots += 1;
        held.processes += more;
        let had_before = job.before.iter().any(|(at, before)| *at == node && held.slots <= *before);
        job.slots += 1;
        job.processes += more;
        job.current = Some(node);
        owner.processes += more;
        let held = *held;
        let place = &mut self.nodes[node];
        place.free -= 1;
        place.free_gpus -= gpus;
        place.reserved -= u32::from(had_before && !job.is_done);
        place.jobs.insert(number, held);
    }

    /// Takes one slot of a node from a job, which has one process in each slot.
    fn remove(&mut self, number: usize, node: usize) {
        let bounds = self.bounds(number, node).expect("it was placed");
        let job = &mut self.jobs[number];
        let held = job.nodes.get_mut(&node).expect("it has a slot");
        let gpus = bounds.gpus(held.processes) - bounds.gpus(held.processes - 1);
        let had_before = job.before.iter().any(|(at, before)| *at == node && held.slots <= *before);
        held.slots -= 1;
        held.processes -= 1;
        let held = *held;
        job.slots -= 1;
        job.processes -= 1;
        self.owners[job.owner].processes -= 1;
        let place = &mut self.nodes[node];
        place.free += 1;
        place.free_gpus += gpus;
        place.reserved += u32::from(had_before && !job.is_done);
        if held.slots == 0 {
            job.nodes.remove(&node);
            place.jobs.remove(&number);
        } else {
            place.jobs.insert(number, held);
        }
    }

    /// Returns whether a job may be moved from a node: it has one process in each slot there.
    fn is_movable(&self, job: usize, node: usize) -> bool {
        let has_one_each = |bounds: Bounds| bounds.full == bounds.slots;
        let held = &self.nodes[node].jobs[&job];
        held.slots == held.processes && self.bounds(job, node).is_some_and(has_one_each)
    }

    /// Gives a job one more slot by moving others. Returns whether an augmenting path exists.
    fn augment(&mut self, number: usize) -> bool {
        // `reached` has for each node the job that would take a slot there; `leaves` has for each job the node that it
        // would leave.
        let mut reached: Vec<Option<usize>> = vec![None; self.nodes.len()];
        let mut leaves: HashMap<usize, usize> = HashMap::new();
        let mut is_searched = vec![false; self.eligible.len()];
        let mut queue = VecDeque::from([number]);
        while let Some(job) = queue.pop_front() {
            let group = self.jobs[job].group;
            if is_searched[group] || self.open[group] == 0 {
                continue;
            }
            let left = leaves.get(&job).copied();
            let mut has_all = true;
            for at in 0..self.eligible[group].len() {
                let node = self.eligible[group][at];
                if self.closed[group][node] || reached[node].is_some() {
                    continue;
                }
                let Some(bounds) = self.may_grow(job, node, left) else {
                    has_all = false;
                    continue;
                };
                // A moved job must keep one process in each slot.
                if job != number && bounds.full != bounds.slots {
                    continue;
                }
                let more = self.more_gpus(job, node, bounds);
                if self.nodes[node].free > 0 && more <= self.nodes[node].free_gpus {
                    self.follow(number, job, node, &reached, &leaves);
                    return true;
                }
                reached[node] = Some(job);
                for (other, held) in &self.nodes[node].jobs {
                    if *other == number
                        || leaves.contains_key(other)
                        || !self.is_movable(*other, node)
                    {
                        continue;
                    }
                    let theirs = self.bounds(*other, node).expect("it was placed");
                    let freed = theirs.gpus(held.processes) - theirs.gpus(held.processes - 1);
                    if more <= self.nodes[node].free_gpus + freed {
                        leaves.insert(*other, node);
                        queue.push_back(*other);
                    }
                }
            }
            is_searched[group] = has_all;
        }
        for (node, job) in reached.into_iter().enumerate() {
            let Some(group) = job.map(|job| self.jobs[job].group) else { continue };
            self.closed[group][node] = true;
            self.open[group] -= 1;
        }
        false
    }

    /// Moves each job on the path to the next node. The job `last` gets the free slot of `node`.
    fn follow(
        &mut self,
        number: usize,
        last: usize,
        node: usize,
        reached: &[Option<usize>],
        leaves: &HashMap<usize, usize>,
    ) {
        let (mut job, mut node) = (last, node);
        loop {
            if job == number {
                self.place(job, node);
                return;
            }
            let left = leaves[&job];
            self.remove(job, left);
            self.place(job, node);
            (job, node) = (reached[left].expect("the job left it for another"), left);
        }
    }
}

/// Returns the kind of each node, and for each kind an example node without jobs.
fn kinds(states: &[NodeState]) -> (Vec<usize>, Vec<NodeState>) {
    let mut known: HashMap<(&Offer, Option<u32>), usize> = HashMap::new();
    let mut examples = Vec::new();
    let kinds = states.iter().map(|node| {
        *known.entry((&node.offer, node.process_count)).or_insert_with(|| {
            let (offer, process_count) = (node.offer.clone(), node.process_count);
            examples.push(NodeState {
                offer,
                process_count,
                accepts_work: true,
                ..NodeState::default()
            });
            examples.len() - 1
        })
    });
    (kinds.collect(), examples)
}

/// Returns the group of each job, and for each group an example job. The jobs of a group have the same bounds on every
/// node.
fn groups<'a>(demands: &[&'a Demand]) -> (Vec<usize>, Vec<&'a Demand>) {
    type Needs<'a> = (&'a Requirements, GpuDemand, Option<u32>, Option<u32>);
    let mut known: HashMap<Needs<'a>, usize> = HashMap::new();
    let mut examples = Vec::new();
    let groups = demands.iter().map(|job| {
        let needs = (&job.requires, job.gpus, job.process_count_per_node, job.max_share);
        *known.entry(needs).or_insert_with(|| {
            examples.push(*job);
            examples.len() - 1
        })
    });
    (groups.collect(), examples)
}
