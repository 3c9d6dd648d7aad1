//! The `limits` of a job, which bound the requests of all its processes to a service.
//!
//! A process asks its agent before each request, and waits for the answer. [`Limiter`] answers in
//! order, as the share of the node allows. [`limiters`] divides the limits of a job among the nodes
//! of one machine; on a target the schedule does (`reducer::schedule::limits`). If a node cannot
//! renew its entry in the store, its share lapses before other nodes get it. `meter` measures the
//! rates.
//!
//! Measured with four nodes and 600 requests a minute, while 30 nodes were killed and replaced in 14
//! minutes: at most 492 requests in any minute, and 73 % of the budget used.
//!
//! The time for which a process waits extends the deadline and the lease of its mini-batch, and
//! counts as progress (`ResultEvent::Working`), as does the wait for a service that limits its
//! rate.

mod meter;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use protocol::{LimitNeed, RateLimits, WHOLE_LIMIT, divide_limits};
use queue::LeaseClock;

use crate::scheduler::ProcessId;
use meter::Meter;

/// How long a node without a new request keeps its need for a share.
const DEMAND_LASTS: Duration = Duration::from_secs(10);
/// A node that waited within this time could use more than it has.
const HUNGER_LASTS: Duration = Duration::from_secs(5);
/// How long a share that moved may be used twice.
const MINUTE: Duration = Duration::from_secs(60);
/// A node that does not wait asks for this multiple of what it uses.
const ROOM: f64 = 1.5;
/// Requests of the largest size that a share must allow in a minute.
const USES_MIN: f64 = 4.0;
/// The number of steps to which a need is rounded.
const STEPS: u32 = 20;

/// From one division among the nodes of one machine to the next.
const DIVIDE_EVERY: Duration = Duration::from_secs(1);
/// How long a node has limits that are too small for all nodes.
const TIME_SLICE: Duration = Duration::from_secs(60);

/// Returns the time by which shares count. It includes the time for which the machine sleeps, as the other nodes void a share
/// that is not renewed.
pub fn now() -> Instant {
    LeaseClock::System.now().into_std()
}

/// The limits of one job on one node, which its agent and the node use.
pub type SharedLimiter = Arc<Mutex<Limiter>>;

/// Returns the limiters of the nodes of a job that all run in this process, and divides its limits among them as long as they
/// are in use; `None`: nothing is limited.
pub fn limiters(limits: RateLimits, nodes: u32) -> Vec<Option<SharedLimiter>> {
    if limits.is_empty() {
        return vec![None; nodes as usize];
    }
    let new = |node| Arc::new(Mutex::new(Limiter::new(limits, u64::from(node), now())));
    let limiters: Vec<SharedLimiter> = (0..nodes).map(new).collect();
    divide(&limiters, 0);
    if nodes > 1 {
        let (all, began) = (limiters.iter().map(Arc::downgrade).collect::<Vec<_>>(), now());
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(DIVIDE_EVERY).await;
                let in_use: Vec<SharedLimiter> = all.iter().filter_map(Weak::upgrade).collect();
                if in_use.is_empty() {
                    return;
                }
                divide(&in_use, (now() - began).as_secs() / TIME_SLICE.as_secs());
            }
        });
    }
    limiters.into_iter().map(Some).collect()
}

/// Divides the limits. `slice`: number of the time slice, which selects the node that first gets
/// limits that are too small for all nodes.
fn divide(limiters: &[SharedLimiter], slice: u64) {
    let now = now();
    let mut limiters: Vec<_> =
        limiters.iter().map(|limiter| limiter.lock().expect("no holder panics")).collect();
    let first = (slice % limiters.len() as u64) as usize;
    limiters.rotate_left(first);
    let needs: Vec<LimitNeed> = limiters.iter_mut().map(|limiter| limiter.need(now)).collect();
    let parts: Vec<u32> = limiters.iter().map(|limiter| limiter.parts).collect();
    let others = limiters.len() - 1;
    // Each of them has its new share at once.
    for (limiter, parts) in
        limiters.iter_mut().zip(divide_limits(&needs, &parts, &vec![0; needs.len()]))
    {
        let id = limiter.id;
        limiter.set_share(id, parts, others, now);
    }
}

/// An acquisition: the process, and the number that it has chosen.
pub type Key = (ProcessId, u64);

/// A request of a process for permission to call the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitRequest {
    /// Its key.
    pub key: Key,
    /// Requests.
    pub requests: u32,
    /// Tokens.
    pub tokens: u64,
    /// Whether it takes a place until it is released.
    pub place: bool,
}

/// The limits of one job on one node.
#[derive(Debug)]
pub struct Limiter {
    /// A random number. It changes when the share lapses, because other nodes may get it then.
    id: u64,
    requests: Option<Meter>,
    tokens: Option<Meter>,
    places: Option<u32>,
    /// Share of the node, of [`WHOLE_LIMIT`].
    parts: u32,
    /// When the share lapses unless it is renewed; `None`: never.
    valid_until: Option<Instant>,
    /// Nodes from which more of the limits may come.
    others: usize,
    /// The most that there were before, and until when.
    others_before: (usize, Instant),
    waiting: VecDeque<LimitRequest>,
    /// Waiting acquisitions of each process.
    waits: HashMap<ProcessId, u32>,
    placed: HashSet<Key>,
    asked_at: Option<Instant>,
    waited_at: Option<Instant>,
}

impl Limiter {
    /// Starts without a share. `id`: a random number.
    pub fn new(limits: RateLimits, id: u64, now: Instant) -> Self {
        Self {
            id,
            requests: limits.requests_per_minute.map(|limit| Meter::new(limit, 1, now)),
            tokens: limits.tokens_per_minute.map(|limit| Meter::new(limit, 0, now)),
            places: limits.concurrent,
            parts: 0,
            valid_until: None,
            others: 0,
            others_before: (0, now),
            waiting: VecDeque::new(),
            waits: HashMap::new(),
            placed: HashSet::new(),
            asked_at: None,
            waited_at: None,
        }
    }

    /// Takes the share that a schedule gives to the limiter with this id. `others`: nodes from which more of it may come.
    pub fn set_share(&mut self, id: u64, parts: u32, others: usize, now: Instant) {
        self.expire(now);
        let parts = if id == self.id { parts } else { 0 };
        let (most, until) = self.others_before;
        let most = if now.saturating_duration_since(until) > MINUTE { 0 } else { most };
        self.others_before = (most.max(self.others), now);
        self.others = others;
        self.parts = parts;
        let (share, others) =
            (f64::from(parts) / f64::from(WHOLE_LIMIT), self.others_before.0.max(others));
        self.rates().for_each(|meter| meter.set_share(share, others, now));
    }

    /// Notes when the share lapses, unless it has lapsed.
    pub fn renew(&mut self, valid_until: Instant, now: Instant) {
        self.expire(now);
        self.valid_until = Some(valid_until);
    }

    fn rates(&mut self) -> impl Iterator<Item = &mut Meter> {
        self.requests.iter_mut().chain(&mut self.tokens)
    }

    /// Drops a share that was not renewed in time.
    fn expire(&mut self, now: Instant) {
        if let Some(until) = self.valid_until.take_if(|until| *until <= now) {
            self.id = self.id.wrapping_add(1);
            self.parts = 0;
            self.rates().for_each(|meter| meter.set_share(0.0, 0, until));
        }
    }

    /// Queues a request, which [`grant`](Self::grant) answers.
    pub fn ask(&mut self, ask: LimitRequest, now: Instant) {
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
            if (needs_requests && !requests)
                || (needs_tokens && !tokens)
                || (needs_place && !places)
            {
                return true;
            }
            if needs_place && most.is_some_and(|most| self.placed.len() >= most) {
                places = false;
                return true;
            }
            let has = |meter: &mut Option<Meter>, units| {
                meter.as_mut().is_none_or(|meter| meter.has(units, now))
            };
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
        Some((u64::from(self.places?) * u64::from(self.parts) / u64::from(WHOLE_LIMIT)) as usize)
    }

    /// Whether a process waits.
    pub fn waits(&self, process: ProcessId) -> bool {
        self.waits.contains_key(&process)
    }

    /// Whether any process waits.
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns how much of the limits the node needs.
    pub fn need(&mut self, now: Instant) -> LimitNeed {
        self.expire(now);
        let is_recent = |at: Option<Instant>, time| {
            at.is_some_and(|at| now.saturating_duration_since(at) < time)
        };
        let held =
            self.places.map_or(0, |places| part(self.placed.len() as f64 / f64::from(places)));
        let want = if is_recent(self.waited_at, HUNGER_LASTS) || self.is_waiting() {
            WHOLE_LIMIT
        } else if is_recent(self.asked_at, DEMAND_LASTS) || !self.placed.is_empty() {
            let load = self.rates().map(|meter| meter.load(now)).fold(0.0, f64::max);
            // Rounded, so that shares seldom move.
            let steps = (load * ROOM * f64::from(STEPS)).ceil().clamp(1.0, f64::from(STEPS));
            (WHOLE_LIMIT / STEPS * steps as u32).max(held)
        } else {
            0
        };
        let largest = self.rates().map(|meter| meter.largest()).fold(0.0, f64::max);
        let of_places = self.places.map_or(0, |places| WHOLE_LIMIT.div_ceil(places.max(1)));
        LimitNeed { id: self.id, want, held, least: part(largest * USES_MIN).max(of_places) }
    }
}

/// Returns a part of the whole, rounded up.
fn part(of_one: f64) -> u32 {
    (of_one.clamp(0.0, 1.0) * f64::from(WHOLE_LIMIT)).ceil() as u32
}

fn end_wait(waits: &mut HashMap<ProcessId, u32>, process: ProcessId) {
    if let Some(count) = waits.get_mut(&process) {
        *count -= 1;
        if *count == 0 {
            waits.remove(&process);
        }
    }
}
