//! The decisions of a reducer, without store and queue: from segments, and from the entries of
//! nodes. Public for `tests/simulation` alone.

use std::collections::BTreeMap;

use anyhow::Context;
use bytes::Bytes;
use protocol::{JobSpec, ResultEvent};

use crate::batch::Batch;
use crate::commit::retain_new;
use crate::job_liveness::Timestamp;
use crate::judge::Judge;
use crate::ledger::{Index, RowLocation};
pub use crate::schedule::schedule;
use crate::tally::Effect;
use crate::{Options, Tally};

/// The state of one job that a reducer derives from the ledger.
#[derive(Debug, Default)]
pub struct LedgerView {
    segments: Vec<Bytes>,
    tally: Tally,
    index: Index,
}

impl LedgerView {
    /// Reads segments, oldest first.
    pub fn read(segments: Vec<Bytes>) -> anyhow::Result<Self> {
        let mut known = Self::default();
        for (number, segment) in (0..).zip(&segments) {
            let mut batch = records(std::slice::from_ref(segment))?;
            batch.retain_in_segment(|record, place| {
                let effect = known.tally.apply_record(record);
                if effect != Effect::Nothing {
                    known.index.apply(record, effect, number, place.rows());
                }
                effect != Effect::Nothing
            });
        }
        known.segments = segments;
        Ok(known)
    }

    /// Returns the tally of the segments.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Returns the next segment if these messages are committed; empty if they hold nothing new.
    pub fn next_segment(&self, messages: &[Bytes]) -> anyhow::Result<Bytes> {
        let mut batch = records(messages)?;
        retain_new(&mut batch, &self.tally);
        Ok(batch.segment().concat().into())
    }

    /// Returns the event that ends the job, if it ends.
    pub fn end(&self, spec: &JobSpec) -> Option<ResultEvent> {
        let now = Timestamp::now();
        let judge = Judge::new(spec, &Options::shared(), now);
        judge.end(&self.tally, false, now).map(|end| end.event())
    }

    /// Returns the inline rows of each mini-batch in the final file.
    pub fn rows(&self) -> BTreeMap<u64, Bytes> {
        let inline = self.index.rows().filter_map(|(mini_batch, rows)| match rows {
            RowLocation::Inline { segment, offset, length } => {
                let (start, end) = (offset as usize, offset as usize + length as usize);
                Some((mini_batch, self.segments[segment as usize].slice(start..end)))
            }
            RowLocation::None | RowLocation::Part(_) => None,
        });
        inline.collect()
    }
}

fn records(messages: &[Bytes]) -> anyhow::Result<Batch> {
    let mut batch = Batch::default();
    for message in messages {
        batch.read(message).map_err(|unreadable| unreadable.error).context("read records")?;
    }
    Ok(batch)
}
