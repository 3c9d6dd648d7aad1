//! A mini-batch that this node holds, and its stage.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use protocol::{Descriptor, ErrorReport, MiniBatchFrame, TableForm, WaitTimes};

use super::isolation::Isolation;
use super::process::ProcessId;
use super::{EndedAttempt, Timestamp};
use crate::prepare::Prepared;

/// A mini-batch under a lease of this node.
pub(super) struct MiniBatch {
    pub(super) descriptor: Descriptor,
    pub(super) deliveries_lost: u32,
    /// When it was received, or the try before it ended on this node.
    pub(super) received: Instant,
    /// How long its preparation took.
    pub(super) preparation: Duration,
    pub(super) stage: Stage,
    /// Its ranges, once its tries are spent and it is isolated.
    pub(super) isolation: Option<Box<Isolation>>,
}

/// The stage of a mini-batch on its way through the node. It leaves the node when the agent announces its outcome or
/// returns it, or when its lease is lost.
pub(super) enum Stage {
    /// It waits for memory, of which it is expected to occupy this much.
    Waiting { bytes: u64 },
    /// It is a copy, and waits for a process without work; another node should try it first; or it waits until it
    /// may run alone.
    Postponed { bytes: u64 },
    /// The agent prepares it.
    Preparing { bytes: u64, since: Instant },
    /// It waits for a process.
    Ready(Box<Prepared>),
    /// It is in the pipe of a process, which runs the first one. Once its lease is lost, its outcome is not announced.
    PipedMiniBatch {
        process: ProcessId,
        sequence: u64,
        prepared: Box<Prepared>,
        is_lease_lost: bool,
    },
}

impl MiniBatch {
    /// Returns a mini-batch that has just been received. A copy is postponed.
    pub(super) fn received(
        descriptor: Descriptor,
        deliveries_lost: u32,
        received: Instant,
        bytes: u64,
    ) -> Self {
        let stage =
            if descriptor.copy { Stage::Postponed { bytes } } else { Stage::Waiting { bytes } };
        Self {
            descriptor,
            deliveries_lost,
            received,
            preparation: Duration::ZERO,
            stage,
            isolation: None,
        }
    }

    /// Returns a mini-batch that another node should try first, or that has to run alone.
    pub(super) fn postponed(
        descriptor: Descriptor,
        deliveries_lost: u32,
        now: Instant,
        bytes: u64,
    ) -> Self {
        Self {
            stage: Stage::Postponed { bytes },
            ..Self::received(descriptor, deliveries_lost, now, bytes)
        }
    }

    /// Returns the memory that it occupies or will occupy.
    pub(super) fn bytes(&self) -> u64 {
        match &self.stage {
            Stage::Waiting { .. } | Stage::Postponed { .. } => 0,
            Stage::Preparing { bytes, .. } => *bytes,
            Stage::Ready(prepared) | Stage::PipedMiniBatch { prepared, .. } => prepared.bytes,
        }
    }

    /// Whether an earlier attempt, or the one that it is a copy of, may have handed back results.
    pub(super) fn resumes(&self) -> bool {
        let Descriptor { tries_spent, was_interrupted, copy, .. } = self.descriptor;
        tries_spent > 0
            || was_interrupted
            || copy
            || self.deliveries_lost > 0
            || self.isolation.is_some()
    }

    /// Returns the descriptor to publish when the node returns the mini-batch.
    pub(super) fn unspent(self) -> Descriptor {
        let was_interrupted = self.descriptor.was_interrupted || self.isolation.is_some();
        Descriptor { deliveries_lost: self.deliveries_lost, was_interrupted, ..self.descriptor }
    }

    /// Returns how long its preparation has taken so far.
    pub(super) fn preparing_for(&self, now: Instant) -> Option<Duration> {
        match self.stage {
            Stage::Preparing { since, .. } => Some(now.duration_since(since)),
            _ => None,
        }
    }

    /// Returns its prepared argument.
    pub(super) fn prepared(&self) -> Option<&Prepared> {
        match &self.stage {
            Stage::Ready(prepared) | Stage::PipedMiniBatch { prepared, .. } => Some(prepared),
            _ => None,
        }
    }

    /// Returns its attempt, which ends now. Its preparation may have failed, or have taken too long.
    pub(super) fn attempted(
        self,
        began: Timestamp,
        waited: WaitTimes,
        now: Timestamp,
    ) -> EndedAttempt {
        let preparation = self.preparing_for(now.instant).unwrap_or(self.preparation);
        let Self { descriptor, deliveries_lost, received, stage, .. } = self;
        let prepared = match stage {
            Stage::Ready(prepared) | Stage::PipedMiniBatch { prepared, .. } => *prepared,
            _ => Prepared::unreadable(&descriptor),
        };
        EndedAttempt { descriptor, deliveries_lost, prepared, received, preparation, began, waited }
    }

    /// Moves it into a pipe, as the script takes it. Returns the frame for the process, and the memory file of its table. From the try
    /// `named_from` on, its answer may name failed items.
    pub(super) fn hand_over(
        &mut self,
        process: ProcessId,
        sequence: u64,
        named_from: Option<u32>,
        doubted: bool,
        takes: TableForm,
    ) -> (MiniBatchFrame, Option<Arc<OwnedFd>>) {
        let stage = std::mem::replace(&mut self.stage, Stage::Waiting { bytes: 0 });
        let Stage::Ready(prepared) = stage else { unreachable!("it is ready") };
        let prepared = Box::new(prepared.given(takes));
        let try_number = self.descriptor.tries_spent.saturating_add(1);
        let frame = MiniBatchFrame {
            sequence,
            mini_batch: self.descriptor.mini_batch,
            try_number,
            items: self
                .isolation
                .as_ref()
                .and_then(|isolation| isolation.next())
                .map(|items| (items.start, items.end)),
            only_kept: self.isolation.as_ref().is_some_and(|isolation| isolation.next_is_kept()),
            resumes: self.resumes(),
            names_failed_items: named_from.is_some_and(|first| try_number >= first),
            doubted,
            shown_as: self.descriptor.shown_as,
            key: self.descriptor.key().to_vec(),
            rows_before: self.descriptor.rows_before(),
            payload: prepared.payload.clone(),
        };
        let file = prepared.file.as_ref().map(|file| file.file.clone());
        self.stage = Stage::PipedMiniBatch { process, sequence, prepared, is_lease_lost: false };
        (frame, file)
    }
}

/// Returns the number of deliveries of a mini-batch that were lost with their node: those recorded
/// in its descriptor, and those before this one that the queue has counted. A copy loses none.
pub fn deliveries_lost(descriptor: &Descriptor, receive_count: u32) -> u32 {
    if descriptor.copy {
        return descriptor.deliveries_lost;
    }
    descriptor.deliveries_lost.saturating_add(receive_count.saturating_sub(1))
}

/// Returns the error of a mini-batch whose deliveries were lost too often.
pub fn lost_too_often(
    descriptor: &Descriptor,
    lost: u32,
    lost_max: u32,
    node: &str,
) -> ErrorReport {
    ErrorReport {
        category: "LostTooOften".into(),
        message: format!(
            "mini-batch {} was lost with its node {lost} times (limit {lost_max}): does it crash the machine, for lack of \
             memory?",
            descriptor.mini_batch
        ),
        log: format!("sys/node/{node}/_main.txt"),
        ..ErrorReport::default()
    }
}
