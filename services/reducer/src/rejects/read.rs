//! Reads the mini-batches with rejects from the ledger and the plan, in the order of the input.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use protocol::{Attempt, Descriptor, PlanPosition, ResultEvent, decode_records};
use storage::JobStore;

use super::RejectedMiniBatch;
use super::index::{RecordAt, RejectIndex};
use super::list::complete;
use crate::Tally;
use crate::ledger::Ledger;

/// Segments that are read concurrently.
const SEGMENTS_AHEAD: usize = 4;
/// Mini-batches that are read at once. A record holds at most some 20 KiB of texts besides its warnings, and 128 KiB if
/// items were rejected from a success.
const READ_TOGETHER: usize = 256;
/// Bytes of lists of rejected items after which no more mini-batches are read at once.
const LISTS_BYTES: u64 = 16 * 1024 * 1024;

/// The rejects of a job, read piece by piece. Memory holds one place in the ledger for each mini-batch with rejects.
#[derive(Debug)]
pub struct Rejects {
    store: JobStore,
    records: Vec<RecordAt>,
    /// Records that have been returned.
    position: usize,
    chunk: Option<PlanChunk>,
}

/// A chunk of the plan.
#[derive(Debug)]
struct PlanChunk {
    number: u64,
    bytes: Bytes,
    lines: Vec<Range<usize>>,
}

impl Rejects {
    /// Finds the rejects of a job in the readable part of its ledger. Changes nothing in the store.
    pub async fn find(store: &JobStore, job_id: &str) -> anyhow::Result<Self> {
        let (mut tally, mut index) = (Tally::default(), RejectIndex::default());
        let mut ledger = Ledger::new(store.clone(), job_id, Duration::ZERO);
        loop {
            let mut segment = match ledger.read_next(SEGMENTS_AHEAD).await {
                Ok(Some(segment)) => segment,
                Ok(None) => break,
                // A machine that stopped may have left the last segment incomplete; `retry` replaces it.
                Err(error) => match error.downcast_ref() {
                    Some(storage::Error::Damaged { .. }) | None => break,
                    Some(_) => return Err(error),
                },
            };
            let number = ledger.segments() - 1;
            segment.retain_in_segment(|record, place| {
                let effect = tally.apply_record(record);
                index.apply(record.event, effect, &tally, number, place.record());
                true
            });
        }
        Ok(Self::of(store, index.records(&tally)))
    }

    /// Returns those at known places.
    pub(crate) fn of(store: &JobStore, records: Vec<RecordAt>) -> Self {
        Self { store: store.clone(), records, position: 0, chunk: None }
    }

    /// Returns the number of mini-batches with rejects.
    pub fn mini_batches(&self) -> usize {
        self.records.len()
    }

    /// Reads the next mini-batches. Returns none at the end.
    pub async fn next(&mut self) -> anyhow::Result<Vec<RejectedMiniBatch>> {
        let end = self.records.len().min(self.position + READ_TOGETHER);
        let records = self.records[self.position..end].to_vec();
        let mut attempts = self.attempts(&records).await?;
        let mut mini_batches = Vec::with_capacity(records.len());
        let mut lists_bytes = 0;
        for RecordAt { mini_batch, .. } in records {
            let mut attempt =
                attempts.remove(&mini_batch).with_context(|| format!("mini-batch {mini_batch}"))?;
            let completed = complete(&self.store, &mut attempt).await?;
            let descriptor = self.descriptor(mini_batch).await?;
            self.position += 1;
            lists_bytes += *completed.as_ref().unwrap_or(&0);
            let list_lost = completed.err().map(|error| format!("{error:#}"));
            mini_batches.push(RejectedMiniBatch { attempt, descriptor, list_lost });
            if lists_bytes > LISTS_BYTES {
                break;
            }
        }
        Ok(mini_batches)
    }

    async fn attempts(&self, records: &[RecordAt]) -> anyhow::Result<BTreeMap<u64, Attempt>> {
        let mut of_segments: BTreeMap<u32, Vec<RecordAt>> = BTreeMap::new();
        for record in records {
            of_segments.entry(record.segment).or_default().push(*record);
        }
        let mut attempts = BTreeMap::new();
        for (segment, records) in of_segments {
            let range = |record: &RecordAt| {
                let start = u64::from(record.offset);
                start..start + u64::from(record.length)
            };
            let ranges: Vec<_> = records.iter().map(range).collect();
            let bytes = self
                .store
                .segment_ranges(u64::from(segment), &ranges)
                .await
                .context("read the ledger")?;
            for (record, bytes) in records.iter().zip(bytes) {
                let Some(Ok(read)) = decode_records(&bytes).next() else {
                    bail!("segment {segment} of the ledger is damaged");
                };
                let ResultEvent::Attempt(attempt) = read.event else {
                    bail!("segment {segment} of the ledger has changed");
                };
                attempts.insert(record.mini_batch, *attempt);
            }
        }
        Ok(attempts)
    }

    /// Returns a mini-batch as it was planned; `None` if the plan does not hold it.
    async fn descriptor(&mut self, mini_batch: u64) -> anyhow::Result<Option<Descriptor>> {
        let PlanPosition { chunk: number, line } = PlanPosition::of(mini_batch);
        let chunk = match self.chunk.take() {
            Some(chunk) if chunk.number == number => chunk,
            _ => self.read_chunk(number).await?,
        };
        let line = usize::try_from(line).ok().and_then(|line| chunk.lines.get(line)).cloned();
        let descriptor = line.and_then(|line| serde_json::from_slice(&chunk.bytes[line]).ok());
        self.chunk = Some(chunk);
        Ok(descriptor)
    }

    async fn read_chunk(&self, number: u64) -> anyhow::Result<PlanChunk> {
        let bytes = match self.store.plan_chunk(number).await {
            Err(storage::Error::NotFound { .. }) => Bytes::new(),
            read => read.context("read the plan")?,
        };
        let mut start = 0;
        let lines = bytes.split(|byte| *byte == b'\n').map(|line| {
            let range = start..start + line.len();
            start = range.end + 1;
            range
        });
        let lines = lines.collect();
        Ok(PlanChunk { number, bytes, lines })
    }
}
