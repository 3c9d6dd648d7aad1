//! Many nodes that divide the limits of a job, in virtual time: the real limiters and books; a store that answers late, or
//! not for a while; nodes that join, end, pause and die.

use std::time::{Duration, Instant};

use storage::LimitBook;

use super::super::book::Sharing;
use super::*;

const TICK: Duration = Duration::from_millis(50);

/// Mistakes that the simulation must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    /// A node counts on a share that it could not renew.
    NeverExpires,
    /// A node that has a share uses the whole.
    TakesAll,
}

#[derive(Debug)]
pub(super) struct Chance(u64);

impl Chance {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }

    pub(super) fn milliseconds(&mut self, most: u64) -> Duration {
        Duration::from_millis(self.below(most))
    }
}

enum Round {
    /// Until the next read.
    Pause,
    Read {
        version: usize,
        began: Instant,
    },
    Write {
        version: usize,
        began: Instant,
        sent_at: Instant,
        next: LimitBook,
    },
    Answer {
        committed: bool,
        began: Instant,
        sent_at: Instant,
        next: LimitBook,
    },
}

struct Node {
    limiter: Limiter,
    sharing: Sharing,
    round: Round,
    due: Instant,
    /// The node does nothing until then.
    paused_until: Instant,
    /// The store does not answer it until then.
    cut_off_until: Instant,
    is_hungry: bool,
    tokens: u64,
    asked: u64,
    granted: u64,
    places: Vec<(Key, Instant)>,
}

struct World {
    limits: RateLimits,
    versions: Vec<LimitBook>,
    nodes: Vec<Node>,
    started: u64,
    chance: Chance,
    bug: Bug,
    now: Instant,
    requests: Vec<(Instant, u64)>,
    tokens: Vec<(Instant, u64)>,
    most_places: usize,
}

impl World {
    fn new(limits: RateLimits, seed: u64, bug: Bug) -> Self {
        Self {
            limits,
            versions: vec![LimitBook::default()],
            nodes: Vec::new(),
            started: 0,
            chance: Chance::new(seed),
            bug,
            now: Instant::now(),
            requests: Vec::new(),
            tokens: Vec::new(),
            most_places: 0,
        }
    }

    fn join(&mut self, tokens: u64) {
        self.started += 1;
        let now = self.now;
        self.nodes.push(Node {
            limiter: Limiter::new(self.limits, now),
            sharing: Sharing::new(self.started, format!("node {}", self.started), self.limits, now),
            round: Round::Pause,
            due: now,
            paused_until: now,
            cut_off_until: now,
            is_hungry: true,
            tokens,
            asked: 0,
            granted: 0,
            places: Vec::new(),
        });
    }

    fn run(&mut self, seconds: u64) {
        let end = self.now + Duration::from_secs(seconds);
        while self.now < end {
            self.now += TICK;
            for index in 0..self.nodes.len() {
                if self.nodes[index].paused_until <= self.now {
                    self.keep(index);
                    self.work(index);
                }
            }
            self.most_places = self.most_places.max(self.nodes.iter().map(|node| node.places.len()).sum());
        }
    }

    fn work(&mut self, index: usize) {
        let (now, limits, chance) = (self.now, self.limits, &mut self.chance);
        let node = &mut self.nodes[index];
        let ended: Vec<Key> = node.places.extract_if(.., |(_, until)| *until <= now).map(|(key, _)| key).collect();
        ended.into_iter().for_each(|key| node.limiter.release(key));
        while node.is_hungry && node.limiter.waiting.len() < 8 {
            node.asked += 1;
            let tokens = 1 + chance.below(node.tokens);
            node.limiter.ask(ask(tokens as usize, node.asked, tokens), now);
        }
        for key in node.limiter.grant(now) {
            node.granted += 1;
            self.requests.push((now, 1));
            self.tokens.push((now, key.0.slot as u64));
            if limits.concurrent.is_some() {
                node.places.push((key, now + Duration::from_millis(100) + chance.milliseconds(2000)));
            }
        }
    }

    /// Goes on with the round of a node, as `keeper` does.
    fn keep(&mut self, index: usize) {
        let (now, bug, chance) = (self.now, self.bug, &mut self.chance);
        let node = &mut self.nodes[index];
        if node.due > now || node.cut_off_until > now {
            return;
        }
        let set = |node: &mut Node, share: book::Share| {
            let until = if bug == Bug::NeverExpires { None } else { Some(share.until) };
            let parts = if bug == Bug::TakesAll && share.parts > 0 { WHOLE } else { share.parts };
            node.limiter.set_share(parts, share.others, until, now);
        };
        node.due = now + chance.milliseconds(300);
        node.round = match std::mem::replace(&mut node.round, Round::Pause) {
            Round::Pause => Round::Read { version: self.versions.len() - 1, began: now },
            Round::Read { version, began } => {
                let need = node.limiter.need(now);
                match node.sharing.next(&self.versions[version], need, now) {
                    Some(next) => {
                        let share = node.sharing.meanwhile(&next);
                        set(node, share);
                        Round::Write { version, began, sent_at: now, next }
                    }
                    None => {
                        set(node, book::Share { parts: 0, others: 1, until: now });
                        node.due = now + Duration::from_secs(1);
                        Round::Pause
                    }
                }
            }
            Round::Write { version, began, sent_at, next } => {
                let committed = self.versions.len() == version + 1;
                if committed {
                    self.versions.push(next.clone());
                    let sum: u64 = next.entries.iter().map(|entry| u64::from(entry.parts)).sum();
                    assert!(sum <= u64::from(WHOLE), "{next:?}");
                }
                Round::Answer { committed, began, sent_at, next }
            }
            Round::Answer { committed, began, sent_at, next } => {
                if committed && now - began < Duration::from_secs(10) {
                    let share = node.sharing.written(&next, sent_at);
                    set(node, share);
                    let pause = if node.sharing.is_short() { 1 } else { 4 };
                    node.due = now + Duration::from_secs(pause);
                }
                Round::Pause
            }
        };
    }

    /// Returns the largest minute as a part of its limit.
    fn most(&self) -> f64 {
        let part = |uses: &[(Instant, u64)], limit: Option<u64>| {
            limit.map_or(0.0, |limit| most_in_a_minute(uses) as f64 / limit as f64)
        };
        part(&self.requests, self.limits.requests_per_minute).max(part(&self.tokens, self.limits.tokens_per_minute))
    }

    /// Lets nodes join, end, pause, die, and lose the store, at random.
    fn disturb(&mut self, rounds: u64) {
        for _ in 0..rounds {
            let (what, count) = (self.chance.below(8), self.nodes.len() as u64);
            let index = self.chance.below(count.max(1)) as usize;
            let later = self.now + self.chance.milliseconds(60_000);
            match (what, self.nodes.get_mut(index)) {
                (0, _) if count < 6 => self.join(20),
                (1, Some(_)) if count > 1 => drop(self.nodes.remove(index)),
                (2, Some(node)) => node.paused_until = later,
                (3 | 4, Some(node)) => node.cut_off_until = later,
                (5, Some(node)) => {
                    node.is_hungry = !node.is_hungry;
                    if !node.is_hungry {
                        let waiting: Vec<Key> = node.limiter.waiting.iter().map(|ask| ask.key).collect();
                        waiting.into_iter().for_each(|key| node.limiter.release(key));
                    }
                }
                _ => {}
            }
            let seconds = 5 + self.chance.below(20);
            self.run(seconds);
        }
    }
}

fn disturbed(seed: u64, bug: Bug) -> World {
    let mut chance = Chance(seed | 1);
    let some = [limits(600, 0, 0), limits(0, 3000, 0), limits(60, 2000, 0), limits(1200, 10_000, 0)];
    let mut world = World::new(some[chance.below(4) as usize], seed, bug);
    (0..1 + seed % 4).for_each(|_| world.join(20));
    world.disturb(14);
    world
}

#[test]
fn no_minute_exceeds_the_limit_when_nodes_fail() {
    for seed in 1..40 {
        let world = disturbed(seed, Bug::None);
        assert!(world.most() <= 1.05, "seed {seed}: {:.3}", world.most());
        assert!(!world.requests.is_empty());
    }
}

#[test]
fn simulation_finds_planted_bugs() {
    for bug in [Bug::NeverExpires, Bug::TakesAll] {
        let found = (1..200).find(|seed| disturbed(*seed, bug).most() > 1.05);
        assert!(found.is_some(), "{bug:?} was not found");
    }
}

#[test]
fn nodes_share_the_whole_limit_equally() {
    let mut world = World::new(limits(1200, 0, 0), 7, Bug::None);
    (0..4).for_each(|_| world.join(1));
    world.run(60);
    let before: Vec<u64> = world.nodes.iter().map(|node| node.granted).collect();
    world.run(120);
    let counts: Vec<u64> = world.nodes.iter().zip(before).map(|(node, before)| node.granted - before).collect();
    assert!(counts.iter().all(|count| (570..=630).contains(count)), "{counts:?}");
}

#[test]
fn share_of_a_dead_node_and_of_one_without_demand_goes_to_the_others() {
    let mut world = World::new(limits(1200, 0, 0), 3, Bug::None);
    (0..3).for_each(|_| world.join(1));
    world.run(60);
    world.nodes.remove(0);
    world.nodes[0].is_hungry = false;
    world.run(60);
    let before = world.nodes[1].granted;
    world.run(60);
    let count = world.nodes[1].granted - before;
    assert!((1150..=1240).contains(&count), "{count}");
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
            world.run(20);
            let index = world.chance.below(4) as usize;
            world.nodes.remove(index);
            world.join(1);
        }
        assert!((3..=5).contains(&world.most_places), "seed {seed}: {}", world.most_places);
        assert!(world.nodes.iter().filter(|node| node.granted > 0).count() >= 2);
    }
}
