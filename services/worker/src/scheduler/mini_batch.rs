//! A mini-batch that this node holds, and its stage.

use std::time::{Duration, Instant};

use protocol::{Descriptor, ErrorReport};

use super::isolation::Isolation;
use super::process::ProcessId;
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
    /// The agent prepares it.
    Preparing { bytes: u64, since: Instant },
    /// It waits for a process.
    Ready(Box<Prepared>),
    /// It is in the pipe of a process, which runs the first one. Once its lease is lost, its outcome is not announced.
    Handed { process: ProcessId, sequence: u64, prepared: Box<Prepared>, is_lease_lost: bool },
}

impl MiniBatch {
    /// Returns the memory that it occupies or will occupy.
    pub(super) fn bytes(&self) -> u64 {
        match &self.stage {
            Stage::Waiting { .. } => 0,
            Stage::Preparing { bytes, .. } => *bytes,
            Stage::Ready(prepared) | Stage::Handed { prepared, .. } => prepared.bytes,
        }
    }

    /// Whether an earlier attempt, or the one that it is a copy of, may have handed back results.
    pub(super) fn resumes(&self) -> bool {
        let Descriptor { tries_spent, was_interrupted, copy, .. } = self.descriptor;
        tries_spent > 0 || was_interrupted || copy || self.deliveries_lost > 0 || self.isolation.is_some()
    }

    /// Returns the descriptor to publish when the node returns the mini-batch.
    pub(super) fn unspent(self) -> Descriptor {
        let was_interrupted = self.descriptor.was_interrupted || self.isolation.is_some();
        Descriptor { deliveries_lost: self.deliveries_lost, was_interrupted, ..self.descriptor }
    }
}

/// Returns the number of deliveries of a mini-batch that were lost with their node: those recorded in its descriptor,
/// and those before this one that the queue has counted.
/// Those of a second start cost nothing.
pub fn deliveries_lost(descriptor: &Descriptor, receive_count: u32) -> u32 {
    if descriptor.copy {
        return descriptor.deliveries_lost;
    }
    descriptor.deliveries_lost.saturating_add(receive_count.saturating_sub(1))
}

/// Returns the error of a mini-batch whose deliveries were lost too often.
pub fn lost_too_often(descriptor: &Descriptor, lost: u32, lost_max: u32, node: &str) -> ErrorReport {
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
