//! Seats, where a job says how many nodes may work on it at a time. A node has one seat of a job at most.
//!
//! `storage` has the objects and their rule. This file decides which seat a node takes, when it renews the seat, and when
//! it no longer counts on it.

use std::collections::HashMap;
use std::time::Duration;

use storage::Commit;
use tokio::time::Instant;

use super::Answer;

/// The last epoch of each seat of a job, and since when this node has seen it: it measures by its own clock how long a
/// seat has not been renewed.
#[derive(Clone, Debug, Default)]
pub(super) struct Observed(HashMap<u32, Known>);

#[derive(Clone, Copy, Debug)]
struct Known {
    epoch: u64,
    since: Instant,
    /// This node has seen the seat renewed, so its holder lived after the first look.
    is_renewed: bool,
}

impl Observed {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the last epoch that this node has seen.
    pub(super) fn known(&self, number: u32) -> u64 {
        self.0.get(&number).map_or(0, |known| known.epoch)
    }

    /// Returns until when this node waits for a seat to lapse whose holder may be dead. A node that ended before would
    /// start the wait anew after its restart, and the job would wait without end.
    pub(super) fn waits_until(&self, lapse: Duration) -> Option<Instant> {
        self.0.values().filter(|known| !known.is_renewed).map(|known| known.since + lapse).max()
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
        let known = self.0.entry(number).or_insert(Known { epoch: seat.epoch, since: now, is_renewed: false });
        if known.epoch != seat.epoch {
            *known = Known { epoch: seat.epoch, since: now, is_renewed: true };
        }
        let is_free = seat.node.is_empty() || seat.node == node || now - known.since >= lapse;
        is_free.then_some(seat.epoch + 1)
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
    pub(super) fn taken(number: u32, epoch: u64, asked_at: Instant, next_at: Instant) -> Self {
        Self { number, epoch, renewed_at: asked_at, next_at: Some(next_at), is_lost: false }
    }

    /// Returns the epoch to create, if the seat is to be renewed now.
    pub(super) fn renew(&mut self, now: Instant) -> Option<u64> {
        self.next_at.filter(|at| *at <= now)?;
        self.next_at = None;
        Some(self.epoch + 1)
    }

    /// Takes note of the answer to a claim.
    pub(super) fn claimed(&mut self, asked_at: Instant, commit: Answer<Commit>, next_at: Instant) {
        self.next_at = Some(next_at);
        match commit {
            Ok(Commit::Committed) => {
                self.epoch += 1;
                self.renewed_at = asked_at;
            }
            Ok(Commit::Lost) => self.is_lost = true,
            Err(_) => {}
        }
    }

    /// Takes note that the machine was suspended: others saw the seat unrenewed meanwhile. If the claim under way was sent
    /// before or after, nobody knows.
    pub(super) fn slept(&mut self, time: Duration) {
        if time.is_zero() {
            return;
        }
        match self.renewed_at.checked_sub(time).filter(|_| self.next_at.is_some()) {
            Some(renewed_at) => self.renewed_at = renewed_at,
            None => self.is_lost = true,
        }
    }

    /// Whether another node has the seat, or is about to take it.
    pub(super) fn is_lost(&self, now: Instant, lapse: Duration) -> bool {
        self.is_lost || now >= self.renewed_at + lapse * 3 / 4
    }
}
