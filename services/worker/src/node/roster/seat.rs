//! Seats, where a job says how many nodes may work on it at a time. A node has one seat of a job at most.
//!
//! `storage` has the objects and their rule. This file decides which seat a node takes, when it renews the seat, and when
//! it no longer counts on it.

use std::collections::HashMap;
use std::time::Duration;

use storage::Commit;
use tokio::time::Instant;

use super::Unanswered;

/// What this node has seen of the seats of a job: it measures by its own clock how long a seat has not been renewed.
#[derive(Clone, Debug, Default)]
pub(super) struct Observed(HashMap<u32, Observation>);

#[derive(Clone, Copy, Debug)]
struct Observation {
    epoch: u64,
    since: Instant,
}

impl Observed {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the last epoch that this node has seen.
    pub(super) fn known(&self, number: u32) -> u64 {
        self.0.get(&number).map_or(0, |known| known.epoch)
    }

    /// Returns the epoch that takes the seat, if the seat is free: never taken, left, this node's own from before, or
    /// not renewed for `lapse`.
    pub(super) fn free_epoch(
        &mut self,
        number: u32,
        seat: Option<&storage::Seat>,
        node: &str,
        lapse: Duration,
        now: Instant,
    ) -> Option<u64> {
        let Some(seat) = seat else { return Some(1) };
        let known = self.0.get(&number).copied().filter(|known| known.epoch == seat.epoch);
        let known = known.unwrap_or(Observation { epoch: seat.epoch, since: now });
        self.0.insert(number, known);
        let is_free = seat.node.is_empty() || seat.node == node || now - known.since >= lapse;
        is_free.then_some(seat.epoch + 1)
    }
}

/// The search for a free seat.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taking {
    seats: u32,
    number: u32,
    epoch: u64,
}

impl Taking {
    pub(super) fn new(seats: u32) -> Self {
        Self { seats, number: 0, epoch: 0 }
    }

    /// Returns the seat to look at; `None`: none is left.
    pub(super) fn number(&self) -> Option<u32> {
        (self.number < self.seats).then_some(self.number)
    }

    pub(super) fn next(&self) -> Self {
        Self { number: self.number + 1, ..*self }
    }

    pub(super) fn claim(&mut self, epoch: u64) {
        self.epoch = epoch;
    }

    /// Returns the seat, which was claimed at `asked_at` and is to be renewed at `next_at`.
    pub(super) fn taken(&self, asked_at: Instant, next_at: Instant) -> Seat {
        Seat { number: self.number, epoch: self.epoch, renewed_at: asked_at, next_at: Some(next_at), is_lost: false }
    }
}

/// A seat that this node has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seat {
    pub(super) number: u32,
    pub(super) epoch: u64,
    /// When the last claim that succeeded was sent. Other nodes saw it later, so they wait longer.
    renewed_at: Instant,
    /// When it is to be renewed; `None`: a claim is under way.
    next_at: Option<Instant>,
    is_lost: bool,
}

impl Seat {
    /// Returns the epoch to create, if the seat is to be renewed now.
    pub(super) fn renew(&mut self, now: Instant) -> Option<u64> {
        self.next_at.filter(|at| *at <= now)?;
        self.next_at = None;
        Some(self.epoch + 1)
    }

    /// Takes note of the answer to a claim.
    pub(super) fn claimed(
        &mut self,
        asked_at: Instant,
        commit: Result<Commit, Unanswered>,
        period: Duration,
        now: Instant,
    ) {
        self.next_at = Some(now + period);
        match commit {
            Ok(Commit::Committed) => {
                self.epoch += 1;
                self.renewed_at = asked_at;
            }
            Ok(Commit::Lost) => self.is_lost = true,
            Err(Unanswered) => {}
        }
    }

    /// Whether another node has the seat, or is about to take it.
    pub(super) fn is_lost(&self, now: Instant, lapse: Duration) -> bool {
        self.is_lost || now >= self.renewed_at + lapse * 3 / 4
    }
}
