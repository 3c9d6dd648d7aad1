//! The `limits` of a job: what all its processes together may ask of a service. Pure, except for `keeper`.
//!
//! | file | purpose |
//! |---|---|
//! | `meter` | how much of one rate a node may use, by its share of it |
//! | `book` | how the nodes of a job divide the limits among themselves |
//! | `keeper` | keeps the share of a node, in an object of the job |
//!
//! A process asks its agent before each request, and waits for the answer. [`Limiter`] answers in the order of the
//! questions, as the share of the node allows. A job that runs on one node has the whole of its limits.

pub mod book;
pub mod keeper;
mod meter;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use protocol::RateLimits;
use queue::LeaseClock;

use crate::scheduler::ProcessId;
use book::{Need, WHOLE};
use meter::Meter;

/// How long a node without a new question still needs its share.
const DEMAND_LASTS: Duration = Duration::from_secs(10);
/// A node that waited within this time could use more than it has.
const HUNGER_LASTS: Duration = Duration::from_secs(5);
/// A node that does not wait asks for this multiple of what it uses.
const ROOM: f64 = 1.5;
/// Uses of the largest size that a share must have room for in a minute.
const USES_MIN: f64 = 4.0;
/// In how many steps it asks.
const STEPS: u32 = 20;

/// Returns the time by which shares count. It includes the time for which the machine sleeps, as the other nodes void a share
/// that is not renewed.
pub fn now() -> Instant {
    LeaseClock::System.now().into_std()
}

/// An acquisition: the process, and the number that it has chosen.
pub type Key = (ProcessId, u64);

/// One question of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    pub key: Key,
    pub requests: u32,
    pub tokens: u64,
    /// Whether it takes a place until it is released.
    pub place: bool,
}

/// The limits of one job on one node.
#[derive(Debug)]
pub struct Limiter {
    requests: Option<Meter>,
    tokens: Option<Meter>,
    places: Option<u32>,
    /// Share of the node, of [`WHOLE`].
    parts: u32,
    /// When the share ends unless it is renewed; `None`: never.
    valid_until: Option<Instant>,
    waiting: VecDeque<Ask>,
    /// Waiting acquisitions of each process.
    waits: HashMap<ProcessId, u32>,
    placed: HashSet<Key>,
    asked_at: Option<Instant>,
    waited_at: Option<Instant>,
}

impl Limiter {
    /// Starts without a share.
    pub fn new(limits: RateLimits, now: Instant) -> Self {
        Self {
            requests: limits.requests_per_minute.map(|limit| Meter::new(limit, 1, now)),
            tokens: limits.tokens_per_minute.map(|limit| Meter::new(limit, 0, now)),
            places: limits.concurrent,
            parts: 0,
            valid_until: None,
            waiting: VecDeque::new(),
            waits: HashMap::new(),
            placed: HashSet::new(),
            asked_at: None,
            waited_at: None,
        }
    }

    /// Starts with all of the limits: no other node works on the job.
    pub fn alone(limits: RateLimits, now: Instant) -> Self {
        let mut limiter = Self::new(limits, now);
        limiter.set_share(WHOLE, 0, None, now);
        limiter
    }

    /// Changes the share, until a moment. `others`: nodes from which more of it may come.
    pub fn set_share(&mut self, parts: u32, others: usize, valid_until: Option<Instant>, now: Instant) {
        self.expire(now);
        self.parts = parts;
        self.valid_until = valid_until;
        let share = f64::from(parts) / f64::from(WHOLE);
        self.rates().for_each(|meter| meter.set_share(share, others, now));
    }

    fn rates(&mut self) -> impl Iterator<Item = &mut Meter> {
        self.requests.iter_mut().chain(&mut self.tokens)
    }

    /// Gives up a share that was not renewed in time.
    fn expire(&mut self, now: Instant) {
        if let Some(until) = self.valid_until.take_if(|until| *until <= now) {
            self.parts = 0;
            self.rates().for_each(|meter| meter.set_share(0.0, 0, until));
        }
    }

    pub fn ask(&mut self, ask: Ask, now: Instant) {
        self.asked_at = Some(now);
        if let Some(meter) = &mut self.tokens {
            meter.expect(ask.tokens);
        }
        if let Some(meter) = &mut self.requests {
            meter.expect(ask.requests.into());
        }
        *self.waits.entry(ask.key.0).or_default() += 1;
        self.waiting.push_back(ask);
    }

    /// Ends an acquisition, or the wait for it.
    pub fn release(&mut self, key: Key) {
        if !self.placed.remove(&key) {
            self.remove_waiting(|waiting| waiting == key);
        }
    }

    /// Forgets a process that has ended.
    pub fn forget(&mut self, process: ProcessId) {
        self.placed.retain(|(of, _)| *of != process);
        self.remove_waiting(|(of, _)| of == process);
    }

    fn remove_waiting(&mut self, is_gone: impl Fn(Key) -> bool) {
        let (waiting, waits) = (&mut self.waiting, &mut self.waits);
        waiting.retain(|ask| {
            let is_gone = is_gone(ask.key);
            if is_gone {
                end_wait(waits, ask.key.0);
            }
            !is_gone
        });
    }

    /// Returns the acquisitions that are allowed now. One that waits for a rate blocks later ones; one that waits for a
    /// place blocks only those that need a place, because its holders may wait for a rate.
    pub fn grant(&mut self, now: Instant) -> Vec<Key> {
        self.expire(now);
        let mut granted = Vec::new();
        let (mut requests, mut tokens, mut places) = (true, true, true);
        let most = self.places_of_share();
        self.waiting.retain(|ask| {
            let needs_place = ask.place && most.is_some();
            let needs_requests = ask.requests > 0 && self.requests.is_some();
            let needs_tokens = ask.tokens > 0 && self.tokens.is_some();
            if (needs_requests && !requests) || (needs_tokens && !tokens) || (needs_place && !places) {
                return true;
            }
            if needs_place && most.is_some_and(|most| self.placed.len() >= most) {
                places = false;
                return true;
            }
            let has = |meter: &mut Option<Meter>, units| meter.as_mut().is_none_or(|meter| meter.has(units, now));
            if !has(&mut self.requests, ask.requests.into()) || !has(&mut self.tokens, ask.tokens) {
                requests &= !needs_requests;
                tokens &= !needs_tokens;
                return true;
            }
            if let Some(meter) = &mut self.requests {
                meter.take(ask.requests.into());
            }
            if let Some(meter) = &mut self.tokens {
                meter.take(ask.tokens);
            }
            if needs_place {
                self.placed.insert(ask.key);
            }
            end_wait(&mut self.waits, ask.key.0);
            granted.push(ask.key);
            false
        });
        if !self.waiting.is_empty() {
            self.waited_at = Some(now);
        }
        granted
    }

    /// Returns the number of places that the share contains.
    fn places_of_share(&self) -> Option<usize> {
        Some((u64::from(self.places?) * u64::from(self.parts) / u64::from(WHOLE)) as usize)
    }

    /// Whether a process waits.
    pub fn waits(&self, process: ProcessId) -> bool {
        self.waits.contains_key(&process)
    }

    /// Whether something waits.
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns how much of the limits the node needs.
    pub fn need(&mut self, now: Instant) -> Need {
        let is_recent = |at: Option<Instant>, time| at.is_some_and(|at| now.saturating_duration_since(at) < time);
        let held = self.places.map_or(0, |places| part(self.placed.len() as f64 / f64::from(places)));
        let want = if is_recent(self.waited_at, HUNGER_LASTS) || self.is_waiting() {
            WHOLE
        } else if is_recent(self.asked_at, DEMAND_LASTS) || !self.placed.is_empty() {
            let load = self.rates().map(|meter| meter.load(now)).fold(0.0, f64::max);
            // In few steps, so that shares seldom move.
            let steps = (load * ROOM * f64::from(STEPS)).ceil().clamp(1.0, f64::from(STEPS));
            (WHOLE / STEPS * steps as u32).max(held)
        } else {
            0
        };
        let largest = self.rates().map(|meter| meter.largest()).fold(0.0, f64::max);
        Need { want, held, least: part(largest * USES_MIN) }
    }
}

/// Returns a part of the whole, rounded up.
fn part(of_one: f64) -> u32 {
    (of_one.clamp(0.0, 1.0) * f64::from(WHOLE)).ceil() as u32
}

fn end_wait(waits: &mut HashMap<ProcessId, u32>, process: ProcessId) {
    if let Some(count) = waits.get_mut(&process) {
        *count -= 1;
        if *count == 0 {
            waits.remove(&process);
        }
    }
}
