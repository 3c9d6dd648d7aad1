//! Tests of examples, and of properties of a fleet that follows its schedules through time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use protocol::{
    Allocation, Demand, GpuDemand, NodeState, Offer, OwnerQuota, Priority, Quotas, ReachedQuota,
    Requirements, Running, Schedule, ScheduledJob, Unfit, WaitsFor,
};

use super::slices::{FIRST_SLICE, SLICE};
use super::{Bounds, schedule, slots};

const MINUTE: u64 = 60_000;

fn node(number: usize, processors: u32, gpus: u32) -> NodeState {
    let offer = Offer { processors, gpus, ..Offer::default() };
    NodeState {
        name: format!("node-{number:04}"),
        offer,
        accepts_work: true,
        ..NodeState::default()
    }
}

fn nodes(count: usize, processors: u32) -> Vec<NodeState> {
    (0..count).map(|number| node(number, processors, 0)).collect()
}

fn job(number: usize) -> Demand {
    Demand {
        job_id: format!("job-{number:04}"),
        owner: "ana".to_owned(),
        priority: Priority::Normal,
        enqueued_at: number as u64,
        requires: Requirements::default(),
        node_count: None,
        max_share: None,
        process_count_per_node: None,
        gpus: GpuDemand::WherePresent,
        unfinished: 1_000_000,
        is_canceled: false,
        speculates: false,
        excluded: BTreeSet::new(),
    }
}

fn labels(value: &str) -> BTreeMap<String, String> {
    [("pool".to_owned(), value.to_owned())].into()
}

fn labelled(value: &str) -> Requirements {
    Requirements { labels: labels(value), ..Requirements::default() }
}

/// A fleet of nodes, with its jobs and last schedule.
struct Fleet {
    nodes: Vec<NodeState>,
    jobs: Vec<Demand>,
    quotas: Quotas,
    schedule: Schedule,
    now: u64,
}

impl Fleet {
    fn new(nodes: Vec<NodeState>, jobs: Vec<Demand>) -> Self {
        Self { nodes, jobs, quotas: Quotas::default(), schedule: Schedule::default(), now: MINUTE }
    }

    /// Computes the next schedule, which no node follows yet.
    fn decide(&mut self) -> &Schedule {
        self.schedule = schedule(&self.jobs, &self.nodes, &self.quotas, &self.schedule, self.now);
        &self.schedule
    }

    /// Lets one node follow the schedule.
    fn follow(&mut self, node: usize) {
        let node = &mut self.nodes[node];
        node.schedule = self.schedule.number;
        let own =
            self.schedule.allocations.iter().filter(|allocation| allocation.node == node.name);
        let running = own.map(|Allocation { job_id, processes, .. }| {
            let failing_gpus = node
                .jobs
                .get(job_id)
                .map(|running| running.failing_gpus.clone())
                .unwrap_or_default();
            let running = Running {
                processes: *processes,
                is_ready: true,
                has_ended_one: true,
                failing_gpus,
                ..Running::default()
            };
            (job_id.clone(), running)
        });
        node.jobs = running.collect();
    }

    /// Computes the next schedule, which all nodes follow at once.
    fn step(&mut self) {
        self.decide();
        (0..self.nodes.len()).for_each(|node| self.follow(node));
    }

    /// Lets time pass, with one schedule each second.
    fn wait(&mut self, milliseconds: u64) {
        let until = self.now + milliseconds;
        while self.now < until {
            self.now += 1000;
            self.step();
        }
    }

    fn of(&self, job: usize) -> Vec<&Allocation> {
        let id = &self.jobs[job].job_id;
        self.schedule.allocations.iter().filter(|allocation| allocation.job_id == *id).collect()
    }

    fn processes(&self, job: usize) -> u32 {
        self.of(job).iter().map(|allocation| allocation.processes).sum()
    }

    fn all_processes(&self) -> Vec<u32> {
        (0..self.jobs.len()).map(|job| self.processes(job)).collect()
    }

    fn state(&self, job: usize) -> &ScheduledJob {
        let id = &self.jobs[job].job_id;
        self.schedule.jobs.iter().find(|state| state.job_id == *id).expect("every job has a state")
    }

    fn waits_for(&self, job: usize) -> Option<WaitsFor> {
        self.state(job).waits_for.clone()
    }
}

fn processes(nodes: Vec<NodeState>, jobs: Vec<Demand>) -> Vec<u32> {
    let mut fleet = Fleet::new(nodes, jobs);
    fleet.step();
    fleet.all_processes()
}

#[test]
fn job_alone_has_every_process() {
    assert_eq!(processes(nodes(3, 8), vec![job(0)]), [24]);
    let few = Demand { unfinished: 5, ..job(0) };
    assert_eq!(processes(nodes(3, 8), vec![few]), [5], "no more than it has mini-batches");
}

#[test]
fn weights_hold_over_the_fleet() {
    let of = |priority| Demand { priority, ..job(0) };
    let jobs = [Priority::High, Priority::Normal, Priority::Normal].map(of);
    let jobs = jobs
        .into_iter()
        .enumerate()
        .map(|(number, demand)| Demand { job_id: job(number).job_id, ..demand });
    assert_eq!(processes(nodes(3, 2), jobs.collect()), [4, 1, 1]);
    let small = Demand { unfinished: 3, ..job(0) };
    assert_eq!(
        processes(nodes(2, 8), vec![small, job(1), job(2)]),
        [3, 7, 6],
        "others take what a job does not need"
    );
}

#[test]
fn jobs_work_on_few_nodes() {
    let mut fleet = Fleet::new(nodes(50, 8), (0..10).map(job).collect());
    fleet.step();
    assert_eq!(fleet.all_processes(), [40; 10]);
    assert!((0..10).all(|job| fleet.of(job).len() == 5), "{:?}", fleet.schedule.allocations);
}

#[test]
fn new_job_takes_few_nodes_from_others() {
    let mut fleet = Fleet::new(nodes(10, 4), vec![job(0)]);
    fleet.step();
    fleet.jobs.push(job(1));
    fleet.step();
    assert_eq!(fleet.all_processes(), [20, 20]);
    assert_eq!((fleet.of(0).len(), fleet.of(1).len()), (5, 5));
}

#[test]
fn requirements_are_exact() {
    let mut gpu = node(0, 4, 1);
    gpu.offer.labels = labels("gpu");
    let needs = Demand { requires: labelled("gpu"), ..job(1) };
    let mut fleet = Fleet::new(vec![gpu, node(1, 4, 0)], vec![job(0), needs]);
    fleet.step();
    assert!(fleet.of(1).iter().all(|allocation| allocation.node == "node-0000"));
    // The first node has only one GPU, and the first job may use the other node.
    assert_eq!(fleet.all_processes(), [4, 1]);
    let lost = Demand { requires: labelled("spot"), ..job(2) };
    fleet.jobs.push(lost);
    fleet.step();
    let reason = fleet.waits_for(2).expect("it waits");
    assert!(matches!(&reason, WaitsFor::FittingWorker(Unfit { nodes: 2, .. })), "{reason:?}");
    let text = reason.to_string();
    assert!(
        text.starts_with(
            "none of the 2 workers meets `requires` (label pool=spot); node-0000 comes nearest"
        ),
        "{text}"
    );
}

#[test]
fn job_without_gpu_demand_takes_nodes_without_gpus_first() {
    let mut fleet = Fleet::new(vec![node(0, 4, 4), node(1, 2, 0), node(2, 2, 0)], vec![job(0)]);
    fleet.jobs[0].unfinished = 4;
    fleet.step();
    let names = |fleet: &Fleet| fleet.of(0).iter().map(|one| one.node.clone()).collect::<Vec<_>>();
    assert_eq!(
        names(&fleet),
        ["node-0001", "node-0002"],
        "both, although one GPU node has room for all"
    );
    fleet.jobs[0].unfinished = 8;
    fleet.step();
    assert_eq!(fleet.processes(0), 8, "then also the others");
    let needs_gpus = Demand { gpus: GpuDemand::Each(1), ..job(0) };
    let mut fleet = Fleet::new(vec![node(0, 4, 0), node(1, 4, 4)], vec![needs_gpus]);
    fleet.step();
    assert_eq!(names(&fleet), ["node-0001"]);
}

#[test]
fn job_moves_to_a_node_that_another_cannot_use() {
    let mut a = node(0, 2, 0);
    a.offer.labels = labels("a");
    let b = node(1, 2, 0);
    let mut fleet = Fleet::new(vec![a, b], vec![Demand { unfinished: 2, ..job(0) }]);
    fleet.step();
    assert_eq!(fleet.of(0)[0].node, "node-0000");
    fleet.jobs.push(Demand { requires: labelled("a"), ..job(1) });
    fleet.step();
    assert_eq!(fleet.all_processes(), [2, 2]);
}

#[test]
fn shares_and_process_counts_are_exact() {
    let half = Demand { max_share: Some(50), ..job(0) };
    assert_eq!(processes(nodes(2, 8), vec![half]), [8]);
    let two = Demand { process_count_per_node: Some(2), ..job(0) };
    assert_eq!(processes(nodes(3, 8), vec![two.clone()]), [6]);
    // A job may request more processes than a node has processors.
    let many = Demand { process_count_per_node: Some(32), ..job(0) };
    assert_eq!(processes(nodes(1, 8), vec![many.clone()]), [32]);
    assert_eq!(processes(nodes(1, 8), vec![many.clone(), job(1)]), [16, 4]);
    let some = Demand { unfinished: 10, ..many.clone() };
    assert_eq!(processes(nodes(1, 8), vec![some, job(1)]), [10, 5]);
    let of_operator = NodeState { process_count: Some(4), ..node(0, 8, 0) };
    assert_eq!(
        processes(vec![of_operator], vec![many]),
        [4],
        "the number of the worker takes precedence"
    );
}

#[test]
fn job_on_a_returning_node_gets_no_more_nodes_than_node_count() {
    let mut fleet = Fleet::new(nodes(2, 2), vec![Demand { node_count: Some(1), ..job(0) }]);
    fleet.step();
    let [first] = fleet.of(0)[..] else { panic!("one node") };
    let first =
        fleet.nodes.iter().position(|node| node.name == first.node).expect("it is one of the two");
    let unseen = fleet.nodes.remove(first);
    fleet.step();
    // The returning node still runs its processes.
    fleet.nodes.push(NodeState { schedule: 0, ..unseen });
    fleet.decide();
    assert_eq!(fleet.of(0).len(), 1, "{:?}", fleet.schedule);
}

#[test]
fn node_count_is_exact_while_nodes_are_late() {
    let mut fleet = Fleet::new(nodes(3, 4), vec![Demand { node_count: Some(1), ..job(0) }]);
    fleet.step();
    assert_eq!(fleet.of(0).len(), 1);
    let first = fleet.of(0)[0].node.clone();
    let at = fleet.nodes.iter().position(|node| node.name == first).expect("a node");
    // The node drains. Another node takes over once the first one reports that it has no process any more.
    fleet.nodes[at].accepts_work = false;
    fleet.decide();
    assert_eq!(fleet.of(0).len(), 0);
    assert_eq!(fleet.waits_for(0), Some(WaitsFor::EarlierNodes));
    (0..3).filter(|node| *node != at).for_each(|node| fleet.follow(node));
    fleet.decide();
    assert_eq!(fleet.of(0).len(), 0, "the node has not confirmed");
    fleet.follow(at);
    fleet.decide();
    assert_eq!(fleet.of(0).len(), 1);
    assert_ne!(fleet.of(0)[0].node, first);
}

#[test]
fn in_flight_quota_is_exact_while_nodes_are_late() {
    let mut fleet = Fleet::new(nodes(2, 4), vec![job(0)]);
    fleet.quotas.each_owner = OwnerQuota { max_in_flight: Some(4), ..OwnerQuota::default() };
    fleet.step();
    assert_eq!(fleet.all_processes(), [4]);
    fleet.jobs.push(job(1));
    fleet.decide();
    assert_eq!(fleet.all_processes(), [2, 0], "the other two may still run");
    assert_eq!(fleet.waits_for(1), Some(WaitsFor::EarlierNodes));
    (0..2).for_each(|node| fleet.follow(node));
    fleet.decide();
    assert_eq!(fleet.all_processes(), [2, 2]);
    fleet.jobs.push(Demand { owner: "bo".to_owned(), ..job(2) });
    fleet.step();
    assert_eq!(fleet.all_processes(), [2, 2, 4], "quotas of one owner do not concern others");
}

#[test]
fn owner_at_its_limit_is_named() {
    let mut fleet = Fleet::new(nodes(1, 4), vec![job(0), job(1)]);
    fleet.quotas.each_owner = OwnerQuota { max_in_flight: Some(1), ..OwnerQuota::default() };
    fleet.step();
    assert_eq!(fleet.all_processes(), [1, 0]);
    let reason = fleet.waits_for(1).expect("it waits").to_string();
    assert_eq!(reason, "owner ana has 1 of 1 mini-batches in flight (quota of the target)");
}

#[test]
fn job_above_a_limit_of_jobs_waits_in_order() {
    let mut fleet = Fleet::new(nodes(1, 4), (0..3).map(job).collect());
    fleet.quotas.max_jobs = Some(1);
    fleet.step();
    assert_eq!(fleet.all_processes(), [4, 0, 0]);
    let full = ReachedQuota { owner: None, running: 1, limit: 1 };
    assert_eq!(fleet.waits_for(1), Some(WaitsFor::Quota(full)));
    // An admitted job stays admitted, even if a job of higher priority arrives.
    fleet.jobs.push(Demand { priority: Priority::High, ..job(3) });
    fleet.step();
    assert_eq!(fleet.all_processes(), [4, 0, 0, 0]);
    fleet.jobs.remove(0);
    fleet.step();
    assert_eq!(fleet.all_processes(), [0, 0, 4], "a higher priority comes first");
}

#[test]
fn gpus_belong_to_one_job() {
    let each = |number, gpus| Demand { gpus: GpuDemand::Each(gpus), ..job(number) };
    let mut fleet = Fleet::new(vec![node(0, 16, 4)], vec![each(0, 2)]);
    fleet.step();
    assert_eq!(fleet.of(0)[0].gpus, [0, 1, 2, 3]);
    assert_eq!(fleet.processes(0), 2);
    fleet.jobs.push(each(1, 1));
    fleet.step();
    assert_eq!(fleet.all_processes(), [1, 2]);
    let gpus: Vec<u32> =
        fleet.schedule.allocations.iter().flat_map(|allocation| allocation.gpus.clone()).collect();
    assert_eq!(gpus.iter().collect::<BTreeSet<_>>().len(), 4, "{gpus:?}");
    assert_eq!(fleet.of(0)[0].gpus, [0, 1], "a job keeps those that it has");
    let shared = Demand { gpus: GpuDemand::Shared(3), ..job(2) };
    assert_eq!(processes(vec![node(0, 16, 2)], vec![shared.clone()]), [6]);
    let mut few = Fleet::new(vec![node(0, 16, 2)], vec![Demand { unfinished: 4, ..shared }]);
    few.step();
    assert_eq!((few.processes(0), few.of(0)[0].gpus.len()), (4, 2));
    // A job that does not mention GPUs has one for each process, on nodes with GPUs.
    assert_eq!(processes(vec![node(0, 16, 2), node(1, 3, 0)], vec![job(0)]), [5]);
}

#[test]
fn failing_gpu_is_given_to_another_job() {
    let each = |number| Demand { gpus: GpuDemand::Each(1), ..job(number) };
    let mut fleet = Fleet::new(vec![node(0, 8, 2)], vec![each(0), each(1)]);
    fleet.step();
    let gpu = fleet.of(0)[0].gpus[0];
    fleet.nodes[0].jobs.get_mut("job-0000").expect("it runs").failing_gpus.insert(gpu);
    fleet.step();
    assert_eq!(fleet.all_processes(), [1, 1]);
    assert!(!fleet.of(0)[0].gpus.contains(&gpu));
    assert_eq!(fleet.of(1)[0].gpus, [gpu]);
    fleet.nodes[0].jobs.get_mut("job-0000").expect("it runs").failing_gpus.extend([0, 1]);
    fleet.step();
    assert_eq!(fleet.all_processes(), [0, 2]);
    assert_eq!(
        fleet.waits_for(0),
        Some(WaitsFor::AbleWorker { workers: 1, reason: String::new() })
    );
}

#[test]
fn canceled_job_is_admitted_beyond_limits_and_gets_no_process() {
    let mut fleet = Fleet::new(nodes(1, 2), vec![job(0), job(1), job(2)]);
    fleet.quotas.max_jobs = Some(1);
    fleet.step();
    assert_eq!(fleet.all_processes(), [2, 0, 0]);
    let cancel = |job: &mut Demand| (job.is_canceled, job.unfinished) = (true, 0);
    cancel(&mut fleet.jobs[1]);
    for _ in 0..2 {
        fleet.step();
        assert_eq!(fleet.all_processes(), [2, 0, 0]);
        let admitted: Vec<bool> =
            fleet.schedule.jobs.iter().map(|job| job.admitted_in.is_some()).collect();
        assert_eq!(admitted, [true, true, false]);
    }
    cancel(&mut fleet.jobs[0]);
    fleet.step();
    assert_eq!(fleet.all_processes(), [0, 0, 0], "a reducer ends it");
}

#[test]
fn job_gets_no_process_on_a_node_that_cannot_prepare_it() {
    let mut fleet = Fleet::new(nodes(2, 2), vec![job(0), job(1)]);
    fleet.nodes[0].unable.insert("job-0000".to_owned(), "its disk is full".to_owned());
    fleet.step();
    assert!(fleet.of(0).iter().all(|allocation| allocation.node == "node-0001"));
    assert_eq!(fleet.all_processes(), [2, 2]);
    fleet.nodes[1].unable.insert("job-0000".to_owned(), "its disk is full".to_owned());
    fleet.step();
    let reason = "its disk is full".to_owned();
    assert_eq!(fleet.waits_for(0), Some(WaitsFor::AbleWorker { workers: 2, reason }));
}

#[test]
fn job_in_a_fleet_without_workers_waits_for_a_worker() {
    let mut fleet = Fleet::new(Vec::new(), vec![job(0)]);
    fleet.step();
    assert_eq!(fleet.waits_for(0), Some(WaitsFor::Worker(Requirements::default())));
}

#[test]
fn ended_job_has_nothing_and_waits_for_nothing() {
    let mut fleet = Fleet::new(nodes(1, 2), vec![Demand { unfinished: 0, ..job(0) }]);
    fleet.step();
    assert_eq!((fleet.all_processes(), fleet.waits_for(0)), (vec![0], None));
}

#[test]
fn leaving_node_changes_few_other_allocations() {
    let mut fleet = Fleet::new(nodes(10, 4), (0..5).map(job).collect());
    fleet.step();
    let before = fleet.schedule.allocations.clone();
    let left = fleet.nodes.remove(3).name;
    fleet.step();
    let lost: BTreeSet<&String> = before
        .iter()
        .filter(|allocation| allocation.node == left)
        .map(|allocation| &allocation.job_id)
        .collect();
    let kept = |allocation: &&Allocation| fleet.schedule.allocations.contains(allocation);
    let changed =
        before.iter().filter(|allocation| allocation.node != left && !kept(allocation)).count();
    assert!(changed <= 4, "{lost:?} lose {left}, and {changed} other allocations change");
}

#[test]
fn new_job_begins_at_once_beside_any_number_of_large_ones() {
    for count in [2, 4, 40, 41] {
        let mut fleet = Fleet::new(nodes(2, 2), (0..count).map(job).collect());
        fleet.wait(20 * MINUTE);
        let enqueued_at = fleet.now;
        fleet.jobs.push(Demand { enqueued_at, ..job(count) });
        let begins = (0..5).any(|_| {
            fleet.wait(1000);
            fleet.processes(count) == 1
        });
        assert!(begins, "{count}: {:?}", fleet.waits_for(count));
        fleet.wait(5000);
        assert_eq!(fleet.processes(count), 1, "it keeps its first slice");
    }
}

#[test]
fn jobs_take_turns_in_slices() {
    let mut fleet = Fleet::new(nodes(1, 2), (0..6).map(job).collect());
    let mut served = [0; 6];
    for _ in 0..60 * 60 {
        fleet.wait(1000);
        assert_eq!(fleet.all_processes().iter().sum::<u32>(), 2, "no slot is idle");
        fleet.all_processes().iter().zip(&mut served).for_each(|(now, all)| *all += now);
    }
    assert!(served.iter().all(|all| (1000..1400).contains(all)), "{served:?}");
}

#[test]
fn jobs_wait_in_line_with_their_place() {
    let mut fleet = Fleet::new(nodes(1, 1), (0..3).map(job).collect());
    fleet.step();
    let running = (0..3).position(|job| fleet.processes(job) == 1).expect("one runs");
    let reasons: Vec<_> =
        (0..3).filter(|job| *job != running).filter_map(|job| fleet.waits_for(job)).collect();
    let ahead = [0, 1].map(|ahead| WaitsFor::OtherJobs { ahead });
    assert!(
        reasons.len() == 2 && ahead.iter().all(|reason| reasons.contains(reason)),
        "{reasons:?}"
    );
}

#[test]
fn slices_of_gpus_are_not_cut_short() {
    let each = |number| Demand { gpus: GpuDemand::Each(1), ..job(number) };
    let mut fleet = Fleet::new(vec![node(0, 8, 1)], vec![each(0)]);
    fleet.wait(MINUTE);
    fleet.jobs.push(Demand { enqueued_at: fleet.now, ..each(1) });
    fleet.wait(MINUTE / 2);
    assert_eq!(fleet.all_processes(), [1, 0]);
    fleet.wait(MINUTE);
    assert_eq!(fleet.all_processes(), [0, 1]);
}

#[test]
fn revoked_processes_are_listed_until_the_node_confirms() {
    let mut fleet = Fleet::new(nodes(1, 2), vec![job(0)]);
    fleet.step();
    fleet.jobs.push(job(1));
    fleet.decide();
    assert_eq!(fleet.schedule.revoked.len(), 1);
    fleet.decide();
    assert_eq!(fleet.schedule.revoked.len(), 1);
    fleet.follow(0);
    fleet.decide();
    assert_eq!(fleet.schedule.revoked.len(), 0);
}

fn any_node() -> impl Strategy<Value = NodeState> {
    let label = option::of(prop::sample::select(vec!["a", "b"]));
    (
        1..5_u32,
        prop_oneof![3 => Just(0_u32), 1 => 1..4_u32],
        label,
        option::weighted(0.2, 1..6_u32),
        prop::bool::weighted(0.9),
    )
        .prop_map(|(processors, gpus, label, process_count, accepts_work)| {
            let labels = label.map(labels).unwrap_or_default();
            let offer = Offer { processors, gpus, labels, ..Offer::default() };
            NodeState { offer, process_count, accepts_work, ..NodeState::default() }
        })
}

fn any_job() -> impl Strategy<Value = Demand> {
    let gpus = prop_oneof![
        4 => Just(GpuDemand::WherePresent),
        1 => (1..3_u32).prop_map(GpuDemand::Each),
        1 => (1..4_u32).prop_map(GpuDemand::Shared),
    ];
    let limits = (
        option::weighted(0.3, 1..3_u32),
        option::weighted(0.2, 10..100_u32),
        option::weighted(0.3, 1..9_u32),
    );
    let label = option::weighted(0.3, prop::sample::select(vec!["a", "b"]));
    let unfinished = prop_oneof![1 => 0..4_u64, 2 => Just(1_000_u64)];
    (prop::sample::select(vec!["ana", "bo"]), 0..3_usize, limits, gpus, label, unfinished).prop_map(
        |(
            owner,
            priority,
            (node_count, max_share, process_count_per_node),
            gpus,
            label,
            unfinished,
        )| Demand {
            owner: owner.to_owned(),
            priority: Priority::ALL[priority],
            requires: label.map(labelled).unwrap_or_default(),
            node_count,
            max_share,
            process_count_per_node,
            gpus,
            unfinished,
            ..job(0)
        },
    )
}

fn any_quotas() -> impl Strategy<Value = Quotas> {
    (option::weighted(0.2, 1..6_u32), option::weighted(0.4, 1..8_u32)).prop_map(
        |(max_jobs, max_in_flight)| Quotas {
            max_jobs,
            each_owner: OwnerQuota { max_in_flight, ..OwnerQuota::default() },
            ..Quotas::default()
        },
    )
}

/// A change of a fleet between two schedules.
#[derive(Clone, Debug)]
enum Change {
    Joins(NodeState),
    Leaves(usize),
    Drains(usize),
    Enqueue(Demand),
    Ends(usize),
    Follows(usize),
    Passes(u64),
    GpuFails(usize, usize, u32),
    Unable(usize, usize),
}

fn any_change() -> impl Strategy<Value = Change> {
    prop_oneof![
        1 => any_node().prop_map(Change::Joins),
        1 => any::<usize>().prop_map(Change::Leaves),
        1 => any::<usize>().prop_map(Change::Drains),
        1 => any_job().prop_map(Change::Enqueue),
        1 => any::<usize>().prop_map(Change::Ends),
        6 => any::<usize>().prop_map(Change::Follows),
        1 => (0..200_000_u64).prop_map(Change::Passes),
        1 => (any::<usize>(), any::<usize>(), 0..3_u32).prop_map(|(node, job, gpu)| Change::GpuFails(node, job, gpu)),
        1 => (any::<usize>(), any::<usize>()).prop_map(|(node, job)| Change::Unable(node, job)),
    ]
}

impl Fleet {
    fn any(nodes: Vec<NodeState>, jobs: Vec<Demand>, quotas: Quotas) -> Self {
        let mut fleet = Self { quotas, ..Self::new(Vec::new(), Vec::new()) };
        nodes.into_iter().for_each(|node| fleet.change(Change::Joins(node)));
        jobs.into_iter().for_each(|job| fleet.change(Change::Enqueue(job)));
        fleet
    }

    fn change(&mut self, change: Change) {
        let (nodes, jobs) = (self.nodes.len(), self.jobs.len());
        match change {
            Change::Joins(new) => {
                self.now += 1;
                self.nodes.push(NodeState { name: node(self.now as usize, 1, 0).name, ..new });
            }
            Change::Enqueue(new) => {
                self.now += 1;
                self.jobs.push(Demand {
                    job_id: job(self.now as usize).job_id,
                    enqueued_at: self.now,
                    ..new
                });
            }
            Change::Passes(time) => self.now += time,
            Change::Leaves(node) if nodes > 0 => drop(self.nodes.remove(node % nodes)),
            Change::Drains(node) if nodes > 0 => self.nodes[node % nodes].accepts_work = false,
            Change::Ends(job) if jobs > 0 => drop(self.jobs.remove(job % jobs)),
            Change::Follows(node) if nodes > 0 => self.follow(node % nodes),
            Change::GpuFails(node, job, gpu) if nodes > 0 && jobs > 0 => {
                let running = self.nodes[node % nodes].jobs.get_mut(&self.jobs[job % jobs].job_id);
                running.into_iter().for_each(|running| running.failing_gpus.extend([gpu]));
            }
            Change::Unable(node, job) if nodes > 0 && jobs > 0 => {
                self.nodes[node % nodes]
                    .unable
                    .insert(self.jobs[job % jobs].job_id.clone(), String::new());
            }
            _ => {}
        }
    }

    /// Checks every limit, including the processes of nodes that still follow an earlier schedule.
    fn check(&self) {
        let node_at: BTreeMap<&str, &NodeState> =
            self.nodes.iter().map(|node| (node.name.as_str(), node)).collect();
        let demand_at: BTreeMap<&str, &Demand> =
            self.jobs.iter().map(|job| (job.job_id.as_str(), job)).collect();
        let mut used: BTreeMap<&str, (u64, BTreeSet<u32>)> = BTreeMap::new();
        for Allocation { node, job_id, processes, gpus } in &self.schedule.allocations {
            let (state, demand) = (node_at[node.as_str()], demand_at[job_id.as_str()]);
            let bounds = Bounds::of(demand, state).expect("the node fits");
            assert!((1..=bounds.processes_max).contains(processes), "{processes}, {bounds:?}");
            assert_eq!(gpus.len(), bounds.gpus(*processes) as usize);
            let (slots_used, gpus_used) = used.entry(node).or_default();
            *slots_used += u64::from(bounds.slots_of(*processes));
            let failing = state
                .jobs
                .get(job_id)
                .map(|running| running.failing_gpus.clone())
                .unwrap_or_default();
            for gpu in gpus {
                assert!(
                    gpus_used.insert(*gpu) && *gpu < state.offer.gpus && !failing.contains(gpu),
                    "GPU {gpu}"
                );
            }
        }
        for (node, (slots_used, _)) in used {
            assert!(slots_used <= u64::from(slots(node_at[node])), "{node}");
        }
        let mut in_flight: BTreeMap<&str, u32> = BTreeMap::new();
        for (number, demand) in self.jobs.iter().enumerate() {
            let own = self.of(number);
            assert!(u64::from(self.processes(number)) <= demand.unfinished, "{demand:?}");
            let has = |node: &NodeState| {
                own.iter().find(|own| own.node == node.name).map_or(0, |own| own.processes)
            };
            let runs = |node: &NodeState| {
                node.jobs.get(&demand.job_id).map_or(0, |running| running.processes)
            };
            if let Some(count) = demand.node_count {
                let working =
                    self.nodes.iter().filter(|node| has(node) > 0 || runs(node) > 0).count();
                assert!(working <= count as usize, "{demand:?} on {working} nodes");
            }
            let all: u32 = self.nodes.iter().map(|node| has(node).max(runs(node))).sum();
            *in_flight.entry(&demand.owner).or_default() += all;
            let state = self.state(number);
            assert_eq!(state.waits_since.is_some(), own.is_empty());
            assert_eq!(
                state.waits_for.is_some(),
                own.is_empty() && demand.unfinished > 0 || state.admitted_in.is_none()
            );
        }
        for (owner, processes) in in_flight {
            assert!(
                self.quotas.of(owner).max_in_flight.is_none_or(|limit| processes <= limit),
                "{owner}: {processes}"
            );
        }
        let admitted = self.schedule.jobs.iter().filter(|job| job.admitted_in.is_some()).count();
        assert!(self.quotas.max_jobs.is_none_or(|max| admitted <= max as usize));
    }

    /// Checks that no job could have one more process, directly or by moving others, from a free slot or at the cost of
    /// a job that is further above its weight.
    fn check_fairness(&self) {
        let slots_of = |job: usize| u64::from(self.processes(job));
        let may_grow = |job: usize, node: &NodeState| {
            let has = self
                .of(job)
                .iter()
                .find(|own| own.node == node.name)
                .map_or(0, |own| own.processes);
            Bounds::of(&self.jobs[job], node).is_some_and(|bounds| has < bounds.processes_max)
        };
        let on = |node: &NodeState| {
            let of_node = |job: &usize| self.of(*job).iter().any(|own| own.node == node.name);
            (0..self.jobs.len()).filter(of_node).collect::<Vec<_>>()
        };
        for job in (0..self.jobs.len()).filter(|job| slots_of(*job) < self.jobs[*job].unfinished) {
            let (mut seen, mut queue) = (BTreeSet::from([job]), VecDeque::from([job]));
            while let Some(mover) = queue.pop_front() {
                for node in self.nodes.iter().filter(|node| may_grow(mover, node)) {
                    let others = on(node);
                    let of_node =
                        self.schedule.allocations.iter().filter(|own| own.node == node.name);
                    let used: u32 = of_node.map(|own| own.processes).sum();
                    assert!(
                        used >= slots(node),
                        "job {job} could use a free slot of {}",
                        node.name
                    );
                    for other in others.into_iter().filter(|other| seen.insert(*other)) {
                        let weight = |job: usize| u64::from(self.jobs[job].priority.weight());
                        let comes_first = weight(job) * (2 * (slots_of(other) - 1) + 1)
                            > weight(other) * (2 * slots_of(job) + 1);
                        let takes_first = slots_of(job) == 0;
                        let is_fair = slots_of(other) == 1 || !(comes_first || takes_first);
                        assert!(
                            is_fair,
                            "job {job} should have a process of job {other}: {:?}",
                            self.all_processes()
                        );
                        queue.push_back(other);
                    }
                }
            }
        }
    }
}

/// Returns the job without limits of nodes and processes, and without GPUs.
fn simplified(job: Demand) -> Demand {
    Demand { node_count: None, gpus: GpuDemand::WherePresent, process_count_per_node: None, ..job }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn every_limit_holds_after_any_changes(
        nodes in vec(any_node(), 0..5),
        jobs in vec(any_job(), 0..6),
        quotas in any_quotas(),
        changes in vec(any_change(), 0..40),
    ) {
        let mut fleet = Fleet::any(nodes, jobs, quotas);
        fleet.decide();
        fleet.check();
        for change in changes {
            fleet.change(change);
            fleet.decide();
            fleet.check();
        }
    }

    #[test]
    fn shares_are_fair_within_one_process(
        nodes in vec(any_node(), 1..6),
        jobs in vec(any_job(), 1..8),
        later in vec(any_job(), 0..4),
        ended in vec(any::<usize>(), 0..3),
    ) {
        let plain = |mut node: NodeState| { node.offer.gpus = 0; node };
        let nodes = nodes.into_iter().map(plain).collect();
        let mut fleet = Fleet::any(nodes, jobs.into_iter().map(simplified).collect(), Quotas::default());
        fleet.step();
        fleet.check_fairness();
        later.into_iter().map(simplified).for_each(|job| fleet.change(Change::Enqueue(job)));
        ended.into_iter().for_each(|job| fleet.change(Change::Ends(job)));
        fleet.step();
        fleet.check_fairness();
    }

    #[test]
    fn only_fairness_moves_processes(
        processors in vec(1..9_u32, 2..8),
        jobs in vec(any_job(), 1..8),
        leaves in option::of(any::<usize>()),
        joins in option::of(1..9_u32),
    ) {
        let plain = |job| Demand { requires: Requirements::default(), max_share: None, ..simplified(job) };
        let nodes = processors.into_iter().map(|processors| node(0, processors, 0)).collect();
        let mut fleet = Fleet::any(nodes, jobs.into_iter().map(plain).collect(), Quotas::default());
        fleet.step();
        leaves.into_iter().for_each(|node| fleet.change(Change::Leaves(node)));
        let is_left = |allocation: &&Allocation| fleet.nodes.iter().any(|node| node.name == allocation.node);
        let before: Vec<Allocation> = fleet.schedule.allocations.iter().filter(is_left).cloned().collect();
        joins.into_iter().for_each(|processors| fleet.change(Change::Joins(node(0, processors, 0))));
        fleet.step();
        let (mut lost, mut needed) = (0, 0);
        for job in 0..fleet.jobs.len() {
            let had = |own: &&Allocation| own.job_id == fleet.jobs[job].job_id;
            let all: u32 = before.iter().filter(had).map(|own| own.processes).sum();
            needed += all.saturating_sub(fleet.processes(job));
            for own in before.iter().filter(had) {
                let has = fleet.of(job).iter().find(|has| has.node == own.node).map_or(0, |has| has.processes);
                lost += own.processes.saturating_sub(has);
            }
        }
        prop_assert_eq!(lost, needed);
    }

    #[test]
    fn same_state_gives_the_same_schedule(
        nodes in vec(any_node(), 0..6),
        jobs in vec(any_job(), 0..8),
        quotas in any_quotas(),
        changes in vec(any_change(), 0..10),
    ) {
        let mut fleet = Fleet::any(nodes, jobs, quotas);
        for change in changes {
            fleet.change(change);
            fleet.step();
        }
        // Nodes confirm, and jobs that have waited for this begin.
        for _ in 0..3 {
            fleet.step();
        }
        let before = fleet.schedule.clone();
        fleet.step();
        prop_assert_eq!(&fleet.schedule.allocations, &before.allocations);
    }

}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn no_job_starves(
        slots in 1..5_usize,
        priorities in vec(0..3_usize, 1..12),
        newcomer in option::of(0..20_usize),
    ) {
        let large = |(number, priority): (usize, &usize)| Demand { priority: Priority::ALL[*priority], ..job(number) };
        let count = priorities.len();
        let mut fleet = Fleet::new(nodes(slots, 1), priorities.iter().enumerate().map(large).collect());
        let mut idle = vec![0; count];
        // New jobs take at most half of the time.
        let slices: u64 = fleet.jobs.iter().map(|job| SLICE * u64::from(job.priority.weight()) + FIRST_SLICE).sum();
        let later = slots.saturating_sub(slots / 4).saturating_sub(usize::from(slots < 4)).max(1) as u64;
        let bound = 2 * 2 * slices / later + MINUTE;
        for second in 0..3600 {
            // Small jobs arrive regularly, but not faster than they can be served.
            if newcomer == Some(second % 20) {
                fleet.jobs.push(Demand { enqueued_at: fleet.now, unfinished: 1, ..job(count + second) });
            }
            fleet.wait(1000);
            let is_done = |state: &&ScheduledJob| state.served_since.is_some_and(|since| fleet.now - since >= 5000);
            let done: BTreeSet<&str> =
                fleet.schedule.jobs.iter().filter(is_done).map(|state| state.job_id.as_str()).collect();
            let mut number = 0;
            fleet.jobs.retain(|job| {
                number += 1;
                number <= count || !done.contains(job.job_id.as_str())
            });
            for (job, idle) in idle.iter_mut().enumerate() {
                *idle = if fleet.processes(job) > 0 { 0 } else { *idle + 1000 };
                prop_assert!(*idle <= bound, "job {} of {} waits for {} s", job, count, *idle / 1000);
            }
        }
    }
}

/// Prints how long it takes to compute one schedule:
/// `cargo test --release --package reducer one_schedule_of -- --ignored --nocapture`.
#[test]
#[ignore = "prints times"]
fn one_schedule_of_a_thousand_nodes_and_jobs() {
    let mut with_labels = nodes(1000, 16);
    with_labels.iter_mut().enumerate().for_each(|(number, node)| {
        node.offer.labels = labels(["a", "b", "c", "d"][number % 4]);
        node.offer.gpus = if number % 4 == 3 { 4 } else { 0 };
    });
    let mixed = (0..1000).map(|number| Demand {
        requires: if number % 3 == 0 {
            labelled(["a", "b", "c", "d"][number % 4])
        } else {
            Requirements::default()
        },
        node_count: (number % 7 == 0).then_some(3),
        gpus: if number % 11 == 0 { GpuDemand::Each(1) } else { GpuDemand::WherePresent },
        priority: Priority::ALL[number % 3],
        ..job(number)
    });
    let plain = (0..1000).map(job).collect::<Vec<_>>();
    for (name, nodes, jobs) in
        [("plain", nodes(1000, 16), plain), ("mixed", with_labels, mixed.collect())]
    {
        let mut fleet = Fleet::new(nodes, jobs);
        for event in ["first", "no change", "a job ends", "a node leaves"] {
            match event {
                "a job ends" => drop(fleet.jobs.remove(500)),
                "a node leaves" => drop(fleet.nodes.remove(500)),
                _ => {}
            }
            let began = std::time::Instant::now();
            fleet.decide();
            println!("{name}, {event}: {:.1} ms", began.elapsed().as_secs_f64() * 1000.0);
            (0..fleet.nodes.len()).for_each(|node| fleet.follow(node));
        }
    }
}
