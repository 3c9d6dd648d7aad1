//! The nodes of a job divide its `limits` by the schedule: the real limiters and the real schedule, in virtual time; a store that
//! answers late, or not for a while; reducers that race; nodes that join, pause and die.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use protocol::{LimitNeed, NodeState, Quotas, RateLimits, Running, Schedule, WHOLE_LIMIT};
use reducer::simulation_api::schedule;
use storage::WORKER_ENTRY_LASTS;
use worker::simulation_api::{LimitRequest, Limiter, ProcessId};

const TICK: Duration = Duration::from_millis(50);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// Mistakes that the simulation must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    /// A node uses its share though it cannot renew its entry.
    NeverLapses,
    /// A node that can renew its entry again goes on with the share that it had.
    ResumesLapsedShare,
    /// A reducer gives away what a node may still use.
    TrustsUnconfirmed,
    /// A node that has a share uses the whole.
    TakesAll,
}

/// A request to the store: when it reaches the store, and when its answer returns.
#[derive(Clone, Debug)]
struct Request<T> {
    began: Instant,
    arrives: Instant,
    /// What it has read or written, once it has arrived.
    done: Option<T>,
    returns: Instant,
}

struct Node {
    name: String,
    limiter: Limiter,
    schedule: Schedule,
    renewal: Request<NodeState>,
    look: Request<Schedule>,
    /// The node does nothing until then.
    paused_until: Instant,
    /// The store does not answer it until then.
    cut_off_until: Instant,
    is_hungry: bool,
    tokens: u64,
    asked: u64,
    waiting: Vec<u64>,
    granted: u64,
    places: Vec<(u64, Instant)>,
}

/// A reducer: reads the schedule, then the nodes, and commits the next schedule.
struct Planner {
    known: Schedule,
    next: Option<Schedule>,
    due: Instant,
}

struct World {
    limits: RateLimits,
    schedules: Vec<Schedule>,
    entries: BTreeMap<String, (NodeState, Instant)>,
    nodes: Vec<Node>,
    planners: Vec<Planner>,
    started: u64,
    chance: fastrand::Rng,
    bug: Bug,
    began: Instant,
    now: Instant,
    requests: Vec<(Instant, u64)>,
    tokens: Vec<(Instant, u64)>,
    most_places: usize,
}

fn limits(requests: u64, tokens: u64, places: u32) -> RateLimits {
    let some = |limit: u64| (limit > 0).then_some(limit);
    RateLimits {
        requests_per_minute: some(requests),
        tokens_per_minute: some(tokens),
        concurrent: (places > 0).then_some(places),
    }
}

/// Returns the most units of any minute.
fn most_in_a_minute(uses: &[(Instant, u64)]) -> u64 {
    let (mut first, mut sum, mut most) = (0, 0, 0);
    for (at, units) in uses {
        sum += units;
        while *at - uses[first].0 >= MINUTE {
            sum -= uses[first].1;
            first += 1;
        }
        most = most.max(sum);
    }
    most
}

/// Returns the shares that matter: a schedule that says nothing new of them is not committed.
fn shares(schedule: &Schedule) -> Vec<(&str, u64, u32)> {
    let mut shares: Vec<_> = schedule
        .limit_shares
        .iter()
        .map(|share| (share.node.as_str(), share.id, share.parts))
        .collect();
    shares.sort_unstable();
    shares
}

impl World {
    fn new(limits: RateLimits, seed: u64, bug: Bug) -> Self {
        let now = Instant::now();
        let planner = || Planner { known: Schedule::default(), next: None, due: now };
        Self {
            limits,
            schedules: vec![Schedule::default()],
            entries: BTreeMap::new(),
            nodes: Vec::new(),
            planners: vec![planner(), planner()],
            started: 0,
            chance: fastrand::Rng::with_seed(seed),
            bug,
            began: now,
            now,
            requests: Vec::new(),
            tokens: Vec::new(),
            most_places: 0,
        }
    }

    fn join(&mut self, tokens: u64) {
        self.started += 1;
        let now = self.now;
        self.nodes.push(Node {
            name: format!("node {}", self.started),
            limiter: Limiter::new(self.limits, self.started << 32, now),
            schedule: Schedule::default(),
            renewal: Request { began: now, arrives: now, done: None, returns: now },
            look: Request { began: now, arrives: now, done: None, returns: now },
            paused_until: now,
            cut_off_until: now,
            is_hungry: true,
            tokens,
            asked: 0,
            waiting: Vec::new(),
            granted: 0,
            places: Vec::new(),
        });
    }

    fn run(&mut self, seconds: u64) {
        let end = self.now + Duration::from_secs(seconds);
        while self.now < end {
            self.now += TICK;
            for planner in 0..self.planners.len() {
                self.plan(planner);
            }
            for node in 0..self.nodes.len() {
                if self.nodes[node].paused_until <= self.now {
                    self.ask_store(node);
                    self.work(node);
                }
            }
            self.most_places =
                self.most_places.max(self.nodes.iter().map(|node| node.places.len()).sum());
        }
    }

    fn delay(&mut self) -> Duration {
        Duration::from_millis(self.chance.u64(..300))
    }

    /// Reads the schedule, reads the nodes, commits: one step each time.
    fn plan(&mut self, planner: usize) {
        if self.planners[planner].due > self.now {
            return;
        }
        let delay = self.delay();
        let planner = &mut self.planners[planner];
        let last = self.schedules.last().expect("there is the first");
        if let Some(next) = planner.next.take() {
            if next.number == last.number + 1 && shares(&next) != shares(last) {
                let parts: u64 = next.limit_shares.iter().map(|share| u64::from(share.parts)).sum();
                assert!(parts <= u64::from(WHOLE_LIMIT), "{next:?}");
                self.schedules.push(next);
            }
            planner.due = self.now + SECOND + delay;
        } else if planner.known.number == last.number && planner.due + SECOND > self.now {
            let is_listed = |written: Instant| self.now - written < WORKER_ENTRY_LASTS;
            let listed = self.entries.values().filter(|(_, written)| is_listed(*written));
            let mut nodes: Vec<NodeState> = listed.map(|(state, _)| state.clone()).collect();
            if self.bug == Bug::TrustsUnconfirmed {
                nodes.iter_mut().for_each(|node| node.schedule = u64::MAX);
            }
            let now = u64::try_from((self.now - self.began).as_millis()).expect("short");
            planner.next = Some(schedule(&[], &nodes, &Quotas::default(), &planner.known, now));
            planner.due = self.now + delay;
        } else {
            planner.known = last.clone();
            planner.due = self.now + delay;
        }
    }

    /// Renews the entry of a node, and looks for the next schedule, as `node/driver.rs` and `node/registration.rs` do.
    fn ask_store(&mut self, node: usize) {
        let (now, bug, [there, back]) = (self.now, self.bug, [self.delay(), self.delay()]);
        let node = &mut self.nodes[node];
        let is_cut_off = node.cut_off_until > now;
        if node.renewal.arrives <= now && node.renewal.done.is_none() && !is_cut_off {
            // Composed when the request began.
            let need = node.limiter.need(now);
            let jobs =
                [("job".to_owned(), Running { limits: Some(need), ..Running::default() })].into();
            let state = NodeState {
                name: node.name.clone(),
                schedule: node.schedule.number,
                jobs,
                ..NodeState::default()
            };
            self.entries.insert(node.name.clone(), (state.clone(), now));
            node.renewal.began = now;
            (node.renewal.done, node.renewal.returns) = (Some(state), now + back);
        }
        if node.renewal.returns <= now && !is_cut_off && node.renewal.done.take().is_some() {
            let lasts =
                if bug == Bug::NeverLapses { 100 * MINUTE } else { WORKER_ENTRY_LASTS * 3 / 4 };
            let before = node.limiter.need(now);
            node.limiter.renew(node.renewal.began + lasts, now);
            if bug == Bug::ResumesLapsedShare {
                resume(&mut node.limiter, &node.schedule, &node.name, before, now);
            }
            node.renewal.arrives = now + 2 * SECOND + there;
        }
        if node.look.arrives <= now && node.look.done.is_none() && !is_cut_off {
            node.look.done = self.schedules.last().cloned();
            node.look.returns = now + back;
        }
        if node.look.returns <= now
            && !is_cut_off
            && let Some(read) = node.look.done.take()
        {
            if read.number != node.schedule.number {
                let (own, others) = read.limit_share("job", &node.name);
                let (id, parts) = own.map_or((0, 0), |share| (share.id, share.parts));
                let parts = if bug == Bug::TakesAll && parts > 0 { WHOLE_LIMIT } else { parts };
                node.limiter.set_share(id, parts, others, now);
                node.schedule = read;
            }
            node.look.arrives = now + SECOND + there;
        }
    }

    fn work(&mut self, node: usize) {
        let (now, limits, chance) = (self.now, self.limits, &mut self.chance);
        let node = &mut self.nodes[node];
        let process = ProcessId { slot: 0, number: 0 };
        for (id, _) in node.places.extract_if(.., |(_, until)| *until <= now) {
            node.limiter.release((process, id));
        }
        while node.is_hungry && node.waiting.len() < 8 {
            let tokens = chance.u64(1..=node.tokens);
            node.asked += 1;
            // The number tells the tokens, too.
            let id = node.asked * 1000 + tokens;
            node.limiter
                .ask(LimitRequest { key: (process, id), requests: 1, tokens, place: true }, now);
            node.waiting.push(id);
        }
        for (_, id) in node.limiter.grant(now) {
            node.granted += 1;
            node.waiting.retain(|waiting| *waiting != id);
            self.requests.push((now, 1));
            self.tokens.push((now, id % 1000));
            if limits.concurrent.is_some() {
                node.places.push((id, now + Duration::from_millis(100 + chance.u64(..2000))));
            }
        }
    }

    /// Returns the largest minute as a part of its limit.
    fn most(&self) -> f64 {
        let part = |uses: &[(Instant, u64)], limit: Option<u64>| {
            limit.map_or(0.0, |limit| most_in_a_minute(uses) as f64 / limit as f64)
        };
        part(&self.requests, self.limits.requests_per_minute)
            .max(part(&self.tokens, self.limits.tokens_per_minute))
    }

    /// Lets nodes join, pause, die, and lose the store, at random.
    fn disturb(&mut self, rounds: u64) {
        for _ in 0..rounds {
            let (what, count) = (self.chance.u64(..8), self.nodes.len());
            let index = self.chance.usize(..count.max(1));
            let later = self.now + Duration::from_millis(self.chance.u64(..90_000));
            match (what, self.nodes.get_mut(index)) {
                (0, _) if count < 6 => self.join(20),
                (1, Some(_)) if count > 1 => drop(self.nodes.remove(index)),
                (2, Some(node)) => node.paused_until = later,
                (3 | 4, Some(node)) => {
                    node.cut_off_until = later;
                    // A request that hangs is sent again later.
                    node.look.arrives = later + Duration::from_secs(self.chance.u64(..20));
                    node.look.done = None;
                }
                (5, Some(node)) => {
                    node.is_hungry = !node.is_hungry;
                    if !node.is_hungry {
                        let process = ProcessId { slot: 0, number: 0 };
                        node.waiting.drain(..).for_each(|id| node.limiter.release((process, id)));
                    }
                }
                (6, _) => {
                    let planner = self.chance.usize(..self.planners.len());
                    self.planners[planner].due = later;
                }
                _ => {}
            }
            let seconds = self.chance.u64(5..25);
            self.run(seconds);
        }
    }

    /// Returns how many requests each node makes in this many seconds.
    fn granted_in(&mut self, seconds: u64) -> Vec<u64> {
        let before: Vec<u64> = self.nodes.iter().map(|node| node.granted).collect();
        self.run(seconds);
        self.nodes.iter().zip(before).map(|(node, before)| node.granted - before).collect()
    }
}

/// Gives a limiter that has lapsed the share of the schedule that its node knows.
fn resume(limiter: &mut Limiter, schedule: &Schedule, node: &str, before: LimitNeed, now: Instant) {
    let own = schedule.limit_shares.iter().find(|share| share.node == node);
    if let Some(share) = own.filter(|share| share.id != before.id) {
        limiter.set_share(before.id, share.parts, 1, now);
    }
}

fn disturbed(seed: u64, bug: Bug) -> World {
    let some =
        [limits(600, 0, 0), limits(0, 3000, 0), limits(60, 2000, 0), limits(1200, 10_000, 0)];
    let mut world = World::new(some[(seed % 4) as usize], seed, bug);
    (0..1 + seed % 5).for_each(|_| world.join(20));
    world.disturb(14);
    world
}

#[test]
fn no_minute_exceeds_the_limit_when_nodes_fail() {
    let mut requests = 0;
    for seed in 1..60 {
        let world = disturbed(seed, Bug::None);
        assert!(world.most() <= 1.05, "seed {seed}: {:.3}", world.most());
        requests += world.requests.len();
    }
    assert!(requests > 10_000, "{requests}");
}

#[test]
fn simulation_finds_planted_bugs() {
    for bug in [Bug::NeverLapses, Bug::ResumesLapsedShare, Bug::TrustsUnconfirmed, Bug::TakesAll] {
        let found = (1..400).find(|seed| disturbed(*seed, bug).most() > 1.05);
        println!("{bug:?}: seed {found:?}");
        assert!(found.is_some(), "{bug:?} was not found");
    }
}

#[test]
fn nodes_share_the_whole_limit_equally() {
    let mut world = World::new(limits(1200, 0, 0), 7, Bug::None);
    (0..4).for_each(|_| world.join(1));
    world.run(60);
    let counts = world.granted_in(120);
    assert!(counts.iter().all(|count| (570..=630).contains(count)), "{counts:?}");
}

#[test]
fn lone_node_begins_within_seconds() {
    let mut world = World::new(limits(1200, 0, 0), 7, Bug::None);
    world.join(1);
    world.run(5);
    assert!(world.nodes[0].granted > 0);
}

#[test]
fn share_of_a_dead_node_and_of_one_without_demand_goes_to_the_others() {
    let mut world = World::new(limits(1200, 0, 0), 3, Bug::None);
    (0..3).for_each(|_| world.join(1));
    world.run(60);
    world.nodes.remove(0);
    world.nodes[0].is_hungry = false;
    world.run(90);
    let counts = world.granted_in(60);
    assert!((1150..=1240).contains(&counts[1]), "{counts:?}");
}

#[test]
fn nodes_take_turns_at_a_small_limit() {
    let mut world = World::new(limits(6, 0, 0), 11, Bug::None);
    (0..3).for_each(|_| world.join(1));
    world.run(1800);
    let counts: Vec<u64> = world.nodes.iter().map(|node| node.granted).collect();
    assert!(world.most() <= 1.05, "{:.3}", world.most());
    assert!(counts.iter().all(|count| *count >= 20), "{counts:?}");
    assert!(counts.iter().sum::<u64>() >= 110, "{counts:?}");
}

#[test]
fn places_of_all_nodes_together_are_limited() {
    for seed in 1..10 {
        let mut world = World::new(limits(0, 0, 5), seed, Bug::None);
        (0..4).for_each(|_| world.join(1));
        for _ in 0..6 {
            world.run(40);
            let index = world.chance.usize(..4);
            world.nodes.remove(index);
            world.join(1);
        }
        assert!((3..=5).contains(&world.most_places), "seed {seed}: {}", world.most_places);
        assert!(world.nodes.iter().filter(|node| node.granted > 0).count() >= 2);
    }
}
