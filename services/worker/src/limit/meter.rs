//! The rate of one node: how many units of one kind (requests, tokens) it may use, by its share of the limit.
//!
//! Two rules hold at once. What the node uses is saved up before, at the rate of its share; little can be saved, so that
//! a share that moves to another node is not used twice. And within any minute the node uses no more than its share of
//! that minute, which makes the limit exact for requests of any size while the shares stay the same.
//!
//! No minute exceeds a limit by more than 5 %, no matter what happens to nodes
//! (`tests/simulation/tests/limits.rs`).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

const WINDOW: Duration = Duration::from_secs(60);
/// Uses within this time are counted as one.
const GRAIN: Duration = Duration::from_millis(100);
/// Seconds of its rate that a node may save. 2 of 60 s are 3.3 % of the limit, and the limit is kept to 5 %.
const SAVED_SECONDS: f64 = 2.0;
/// Above the error of sums of floating-point numbers.
const EPSILON: f64 = 1e-6;

#[derive(Clone, Debug)]
pub struct Meter {
    /// Units per second of the whole limit.
    limit: f64,
    /// Share of the limit, 0 to 1.
    share: f64,
    saved: f64,
    /// Units of the largest use that was asked for.
    largest: f64,
    /// Until when `saved` is counted.
    at: Instant,
    /// Each share of the last minute, with its begin.
    shares: VecDeque<(Instant, f64)>,
    /// Uses of the last minute, each with the begin of its grain.
    uses: VecDeque<(Instant, f64)>,
    used: f64,
}

impl Meter {
    /// Starts without a share. `largest`: units that every use takes at least.
    pub fn new(per_minute: u64, largest: u64, now: Instant) -> Self {
        Self {
            limit: per_minute as f64 / WINDOW.as_secs_f64(),
            share: 0.0,
            saved: 0.0,
            largest: largest as f64,
            at: now,
            shares: VecDeque::new(),
            uses: VecDeque::new(),
            used: 0.0,
        }
    }

    /// Counts until `now`.
    fn advance(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.at).as_secs_f64();
        self.at = self.at.max(now);
        let rate = self.limit * self.share;
        let most = (rate * SAVED_SECONDS).max(self.largest);
        self.saved = (self.saved + rate * elapsed).min(most);
        while self.uses.front().is_some_and(|(since, _)| *since + GRAIN + WINDOW <= self.at) {
            self.used -= self.uses.pop_front().map_or(0.0, |(_, units)| units);
        }
        if self.uses.is_empty() {
            self.used = 0.0;
        }
        while self.shares.get(1).is_some_and(|(since, _)| *since + WINDOW <= self.at) {
            self.shares.pop_front();
        }
    }

    /// Returns the units of the last minute that the shares of that minute allow.
    fn allowed(&self) -> f64 {
        let begin = self.at.checked_sub(WINDOW).unwrap_or(self.at);
        let ends = self.shares.iter().skip(1).map(|(since, _)| *since).chain([self.at]);
        let pieces = self.shares.iter().zip(ends).map(|((since, share), end)| {
            end.saturating_duration_since((*since).max(begin)).as_secs_f64() * share * self.limit
        });
        pieces.sum()
    }

    /// Changes the share. A larger share begins in debt for the `others` from whom it may come: each may have used
    /// what it had saved.
    pub fn set_share(&mut self, share: f64, others: usize, now: Instant) {
        self.advance(now);
        if share > self.share {
            let gain = (share - self.share) * self.limit * WINDOW.as_secs_f64();
            self.saved -= gain.min(self.largest * others as f64);
        }
        if share == 0.0 {
            self.saved = self.saved.min(0.0);
        }
        if share != self.share {
            self.share = share;
            self.shares.push_back((self.at, share));
        }
    }

    /// Notes the size of a use to come.
    pub fn expect(&mut self, units: u64) {
        self.largest = self.largest.max(units as f64);
    }

    /// Returns the largest use that was asked for, as a part of the limit of a minute.
    pub fn largest(&self) -> f64 {
        self.largest / (self.limit * WINDOW.as_secs_f64())
    }

    /// Returns whether these units may be used now.
    pub fn has(&mut self, units: u64, now: Instant) -> bool {
        self.advance(now);
        let units = units as f64;
        let slack = self.limit * self.share * SAVED_SECONDS;
        units == 0.0
            || (self.share > 0.0
                && self.saved + EPSILON >= units
                && self.used + units <= self.allowed() + slack + EPSILON)
    }

    /// Uses units, if [`has`](Self::has) allows it.
    pub fn take(&mut self, units: u64) {
        let units = units as f64;
        self.saved -= units;
        self.used += units;
        match self.uses.back_mut() {
            Some((since, uses)) if self.at < *since + GRAIN => *uses += units,
            _ => self.uses.push_back((self.at, units)),
        }
    }

    /// Returns the part of the whole limit that the last minute used.
    pub fn load(&mut self, now: Instant) -> f64 {
        self.advance(now);
        self.used / (self.limit * WINDOW.as_secs_f64())
    }
}
