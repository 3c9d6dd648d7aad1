//! A chunk of the plan: its stored lines, and the messages made from them.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use protocol::{Descriptor, PLAN_CHUNK_MINI_BATCHES, PlanPosition, Work};
use queue::Message;
use telemetry::trace::{self, Step, StepKind};

use crate::Pending;
use crate::error::Result;
use crate::plan::Plan;

/// Largest descriptor in a message, even if the queue allows more: thousands of messages wait in memory.
pub(crate) const DESCRIPTOR_BYTES_MAX: usize = 200 * 1024;

/// Up to [`PLAN_CHUNK_MINI_BATCHES`] descriptors.
#[derive(Clone, Debug)]
pub(crate) struct Chunk {
    /// Position in the plan, from 0.
    pub(crate) number: u64,
    /// One JSON line each.
    pub(crate) lines: Bytes,
    /// The end of each line, without its line break.
    ends: Vec<usize>,
}

impl Chunk {
    /// Returns the next chunk of a plan; `None` at its end.
    pub(crate) fn next(plan: &mut Plan, number: u64) -> Result<Option<Self>> {
        let mut lines = Vec::new();
        for descriptor in plan.take(PLAN_CHUNK_MINI_BATCHES as usize) {
            serde_json::to_writer(&mut lines, &descriptor?).expect("descriptors always serialise");
            lines.push(b'\n');
        }
        Ok((!lines.is_empty()).then(|| Self::stored(number, lines.into())))
    }

    /// Returns a stored chunk.
    pub(crate) fn stored(number: u64, lines: Bytes) -> Self {
        let ends = lines
            .iter()
            .enumerate()
            .filter(|&(_, &byte)| byte == b'\n')
            .map(|(position, _)| position);
        Self { number, ends: ends.collect(), lines }
    }

    /// Returns the number of mini-batches.
    pub(crate) fn len(&self) -> u64 {
        self.ends.len() as u64
    }

    pub(crate) fn line(&self, index: usize) -> Option<Bytes> {
        let end = *self.ends.get(index)?;
        let start = index.checked_sub(1).map_or(0, |previous| self.ends[previous] + 1);
        Some(self.lines.slice(start..end))
    }

    /// Returns the number of the first mini-batch.
    pub(crate) fn first(&self) -> u64 {
        PlanPosition::first_of(self.number)
    }

    /// Returns the messages for the pending mini-batches. A descriptor of more than `bytes_max` stays in the plan, and the
    /// message contains its position. Fails if a stored line is not a descriptor.
    pub(crate) fn messages(
        &self,
        job_id: &str,
        bytes_max: usize,
        pending: impl Fn(u64) -> Option<Pending>,
    ) -> serde_json::Result<Vec<Message>> {
        let mut messages = Vec::with_capacity(self.ends.len());
        for index in 0..self.ends.len() {
            let mini_batch = self.first() + index as u64;
            let Some(pending) = pending(mini_batch) else { continue };
            let line = self.line(index).expect("the index is below the number of lines");
            messages.push(Message::new(self.body(job_id, bytes_max, index, line, pending)?));
        }
        Ok(messages)
    }

    /// Returns the body of a message: the line of a descriptor with what is pending, or its place in the plan.
    fn body(
        &self,
        job_id: &str,
        bytes_max: usize,
        index: usize,
        line: Bytes,
        pending: Pending,
    ) -> serde_json::Result<Bytes> {
        let mini_batch = self.first() + index as u64;
        let traceparent = trace::begin(|| created(job_id, mini_batch));
        let fits = line.len() <= bytes_max;
        if pending == Pending::default() && fits && traceparent.is_none() {
            return Ok(line);
        }
        let Pending { tries_spent, deliveries_lost, again } = pending;
        let message = |planned: Descriptor| {
            let planned = planned.run_again(again.clone());
            let descriptor = Descriptor { tries_spent, deliveries_lost, traceparent, ..planned };
            serde_json::to_vec(&descriptor).map(Bytes::from)
        };
        if fits {
            let body = message(serde_json::from_slice(&line)?)?;
            if body.len() <= bytes_max {
                return Ok(body);
            }
        }
        let work = Work::Planned { chunk: self.number, line: index as u64 };
        message(Descriptor::new(job_id, mini_batch, work))
    }
}

/// Returns the first step of the trace of a mini-batch.
fn created(job_id: &str, mini_batch: u64) -> Step {
    Step {
        name: "create tasks",
        kind: StepKind::Producer,
        parent: None,
        began: SystemTime::now(),
        took: Duration::ZERO,
        fields: vec![("job.id", job_id.into()), ("mini_batch.id", mini_batch.into())],
        error: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_that_would_exceed_the_limit_of_the_queue_names_the_place_in_the_plan() {
        let descriptor = Descriptor::new("job", 1024, Work::Rank);
        let mut line = serde_json::to_vec(&descriptor).expect("plain data");
        let bytes = line.len();
        line.push(b'\n');
        let chunk = Chunk::stored(2, line.into());
        let again = Pending { tries_spent: 1000, ..Pending::default() };
        for (pending, bytes_max, is_planned) in [
            (Pending::default(), bytes, false),
            (Pending::default(), bytes - 1, true),
            (again.clone(), 2 * bytes, false),
            (again, bytes + 1, true),
        ] {
            let messages = chunk.messages("job", bytes_max, |_| Some(pending.clone()));
            let body = &messages.expect("descriptors")[0].body;
            let descriptor: Descriptor = serde_json::from_slice(body).expect("a descriptor");
            assert_eq!(descriptor.work == Work::Planned { chunk: 2, line: 0 }, is_planned);
            assert_eq!(
                (descriptor.mini_batch, descriptor.tries_spent),
                (1024, pending.tries_spent)
            );
        }
    }
}
