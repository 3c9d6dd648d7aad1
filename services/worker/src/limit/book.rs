//! How the nodes of a job divide its limits. Pure.
//!
//! The book is one object with a version. A node writes the next version if no other has: of two nodes that have read the
//! same version, one fails and reads again. In the book each node that needs the service has an entry with its share. A
//! node changes its own entry only, and takes no more than the entries of the others leave, so the shares never exceed
//! the whole. A node that sees that others get less than it lowers its share; they take the rest in their next round.
//!
//! Clocks are not compared. A node renews its entry every few seconds. If the others, by their own clocks, see it
//! unchanged for [`LAPSE`], its node has died, and they remove it. A node counts on its share for three quarters of that
//! time after it sent its last successful write, and so stops before others begin. A lost share is used by none
//! meanwhile.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use protocol::RateLimits;
use storage::{LimitBook, LimitEntry};

/// The whole of the limits. It can be divided by 1 to 16.
pub const WHOLE: u32 = 720_720;
/// After this time without renewal an entry is void.
pub const LAPSE: Duration = Duration::from_secs(20);
/// How long a node has its share while others wait for theirs.
const TURN: Duration = Duration::from_secs(60);
/// How long a share that moved may be used twice.
const MINUTE: Duration = Duration::from_secs(60);

/// What a node needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// The share that it could use; 0: it needs the service no longer.
    pub want: u32,
    /// The share of its unreleased places.
    pub held: u32,
    /// The smallest share that is of use.
    pub least: u32,
}

/// What a node may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    pub parts: u32,
    /// Nodes from which it may come.
    pub others: usize,
    pub until: Instant,
}

/// The view of one node.
#[derive(Clone, Debug)]
pub struct Sharing {
    /// Distinguishes this node from others with its name.
    id: u64,
    node: String,
    limits: RateLimits,
    /// The renewal of each other entry that was seen last, and when it was seen first.
    seen: HashMap<u64, (u64, Instant)>,
    renewals: u64,
    parts: u32,
    /// The share that it should have, by the last book that it read.
    target: u32,
    /// When the last successful write was sent.
    renewed_at: Option<Instant>,
    turn_began: Option<Instant>,
    /// The most other nodes that had shares at a time in the last minute.
    others: (usize, Instant),
}

impl Sharing {
    pub fn new(id: u64, node: String, limits: RateLimits, now: Instant) -> Self {
        let others = (1, now);
        Self {
            id,
            node,
            limits,
            seen: HashMap::new(),
            renewals: 0,
            parts: 0,
            target: 0,
            renewed_at: None,
            turn_began: None,
            others,
        }
    }

    /// Returns what the node may use while a write is under way: no more than before and after it.
    pub fn meanwhile(&self, next: &LimitBook) -> Share {
        self.share(self.parts.min(parts_of(next, self.id)))
    }

    /// Takes note that the next version was written by this node; `sent_at`: when it began to write.
    pub fn written(&mut self, next: &LimitBook, sent_at: Instant) -> Share {
        self.parts = parts_of(next, self.id);
        self.renewed_at = Some(sent_at);
        self.share(self.parts)
    }

    fn share(&self, parts: u32) -> Share {
        let until = self.renewed_at.map(|at| at + LAPSE * 3 / 4);
        let until = until.unwrap_or(self.others.1);
        // Places that are held remain in the book until they are released, and are not taken again.
        Share { parts: parts.min(self.target), others: self.others.0, until }
    }

    /// Whether other nodes are about to lower their shares for this one.
    pub fn is_short(&self) -> bool {
        self.parts < self.target
    }

    /// Whether the next version changes nothing for this node, and its entry was renewed after `since`.
    pub fn may_skip(&self, next: &LimitBook, since: Instant) -> bool {
        self.renewed_at.is_some_and(|at| at > since) && parts_of(next, self.id) == self.parts
    }

    /// Returns the next version of the book, or `None` if there is nothing to write.
    pub fn next(&mut self, book: &LimitBook, need: Need, now: Instant) -> Option<LimitBook> {
        let own_before = book.entries.iter().find(|entry| entry.id == self.id).cloned();
        // Another node has found it void.
        self.parts = self.parts.min(own_before.as_ref().map_or(0, |own| own.parts));
        let mut entries: Vec<LimitEntry> =
            book.entries.iter().filter(|entry| entry.id == self.id || self.is_alive(entry, now)).cloned().collect();
        self.seen.retain(|id, _| book.entries.iter().any(|entry| entry.id == *id));
        let others = entries.iter().filter(|entry| entry.id != self.id && entry.parts > 0).count().max(1);
        if others >= self.others.0 || now.saturating_duration_since(self.others.1) > MINUTE {
            self.others = (others, now);
        }
        if need.want == 0 && need.held == 0 {
            self.turn_began = None;
            self.renewed_at = None;
            (self.parts, self.target) = (0, 0);
            own_before?;
            entries.retain(|entry| entry.id != self.id);
            return Some(LimitBook { entries });
        }
        self.renewals += 1;
        let own = LimitEntry {
            id: self.id,
            node: self.node.clone(),
            renewals: self.renewals,
            parts: own_before.as_ref().map_or(0, |own| own.parts),
            want: need.want.max(need.held),
            least: need.least,
        };
        match entries.iter_mut().find(|entry| entry.id == self.id) {
            Some(entry) => *entry = own,
            None => entries.push(own),
        }
        self.end_turn(&mut entries, now);
        let targets = self.targets(&entries);
        let taken = entries.iter().filter(|entry| entry.id != self.id);
        let free = WHOLE.saturating_sub(taken.fold(0, |sum, entry| sum.saturating_add(entry.parts)));
        for (entry, target) in entries.iter_mut().zip(targets).filter(|(entry, _)| entry.id == self.id) {
            self.target = target;
            entry.parts = target.max(need.held.min(entry.parts)).min(free);
            if entry.parts == 0 {
                self.turn_began = None;
            } else {
                self.turn_began.get_or_insert(now);
            }
        }
        Some(LimitBook { entries })
    }

    /// Whether the node of another entry is alive, as far as this node can tell.
    fn is_alive(&mut self, entry: &LimitEntry, now: Instant) -> bool {
        let (renewals, since) = self.seen.entry(entry.id).or_insert((entry.renewals, now));
        if *renewals != entry.renewals {
            (*renewals, *since) = (entry.renewals, now);
        }
        now.saturating_duration_since(*since) < LAPSE
    }

    /// Moves the own entry behind those that wait for a share, if it has had one for long enough.
    fn end_turn(&mut self, entries: &mut Vec<LimitEntry>, now: Instant) {
        let holders = self.holders_max(entries);
        let waiting = entries.len().saturating_sub(holders);
        let is_over = self.turn_began.is_some_and(|began| now.saturating_duration_since(began) >= TURN);
        let position = entries.iter().position(|entry| entry.id == self.id).filter(|position| *position < waiting);
        if let Some(position) = position.filter(|position| is_over && *position < holders) {
            let own = entries.remove(position);
            entries.push(own);
        }
    }

    /// Returns the smallest share that is of use to every node. Fewer nodes share a small limit at a time, and the others
    /// take turns.
    fn parts_min(&self, entries: &[LimitEntry]) -> u32 {
        let for_rates = entries.iter().map(|entry| entry.least).max().unwrap_or_default();
        let for_places = self.limits.concurrent.map_or(0, |places| WHOLE.div_ceil(places.max(1)));
        for_rates.max(for_places).clamp(1, WHOLE)
    }

    fn holders_max(&self, entries: &[LimitEntry]) -> usize {
        (WHOLE / self.parts_min(entries)).max(1) as usize
    }

    /// Divides the whole among the first entries: no entry gets more than it wants, and none less than others that want
    /// more.
    fn targets(&self, entries: &[LimitEntry]) -> Vec<u32> {
        let (least, holders) = (self.parts_min(entries), self.holders_max(entries).min(entries.len()));
        let mut targets = vec![0; entries.len()];
        let mut by_want: Vec<usize> = (0..holders).collect();
        by_want.sort_by_key(|position| entries[*position].want);
        let mut rest = WHOLE;
        for (done, position) in by_want.into_iter().enumerate() {
            let equal = rest / (holders - done) as u32;
            targets[position] = entries[position].want.max(least).min(equal);
            rest -= targets[position];
        }
        targets
    }
}

fn parts_of(book: &LimitBook, id: u64) -> u32 {
    book.entries.iter().find(|entry| entry.id == id).map_or(0, |entry| entry.parts)
}
