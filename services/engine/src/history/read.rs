//! Brings a history up to date with the store, and reads the whole records of single attempts.

use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock};

use anyhow::{Context, Result};
use bytes::Bytes;
use futures::{StreamExt, stream};
use protocol::{Attempt, ResultEvent, decode_records};
use storage::JobStore;
use tokio_util::task::AbortOnDropHandle;

use super::segment::Segment;
use super::{History, Origin, RecordAt, report};
use crate::{FoundJob, READS_AT_ONCE};

/// Maximum number of segments that are read and decoded at the same time. Each stays in memory until it is applied.
const SEGMENTS_AHEAD_MAX: usize = 4;

/// The task that has read a smaller segment also decodes it, because passing it to another thread takes longer.
const SMALL_SEGMENT_BYTES: usize = 64 << 10;

/// A history that one task brings up to date while others read it.
pub type SharedHistory = Arc<RwLock<History>>;

/// The whole record of an attempt.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedAttempt {
    /// The attempt. From the report of attempts it has neither traceback nor warnings.
    pub attempt: Attempt,
    /// Its rows, if they are part of the record.
    pub rows: Bytes,
}

impl FoundJob {
    /// Reads all records since the last call. Returns whether there were any. Changes nothing in
    /// the store.
    pub async fn update_history(&self, history: &SharedHistory) -> Result<bool> {
        let (origin, mut next, is_sealed) = {
            let history = history.read().unwrap_or_else(PoisonError::into_inner);
            let is_sealed =
                self.result.is_some() && history.sealed.as_deref() == self.result.as_ref();
            (history.origin, history.segments, is_sealed)
        };
        let has_ended = self.result.is_some();
        // A completed job may drop its ledger a moment after its end.
        if is_sealed && (origin == Origin::Report || !self.has_dropped_ledger(next).await) {
            return Ok(false);
        }
        let mut has_changed = false;
        if origin != Origin::Report {
            let mut unreadable = None;
            let store = self.store.clone();
            let reads = stream::iter(next..).map(move |segment| {
                let store = store.clone();
                AbortOnDropHandle::new(tokio::spawn(async move { decoded(&store, segment).await }))
            });
            let mut reads = reads.buffered(segments_ahead());
            while let Some(read) = reads.next().await {
                let segment = match read.context("read a segment of the ledger")?? {
                    Decoded::Whole(segment) => segment,
                    Decoded::Missing => break,
                    // A machine that stopped may have left the last segment incomplete; `retry` replaces it.
                    Decoded::Damaged => {
                        unreadable = Some(next);
                        break;
                    }
                };
                let shared = Arc::clone(history);
                let added = tokio::task::spawn_blocking(move || {
                    shared.write().unwrap_or_else(PoisonError::into_inner).add_decoded(&segment);
                });
                added.await.context("read a segment of the ledger")?;
                next += 1;
                has_changed = true;
            }
            history.write().unwrap_or_else(PoisonError::into_inner).unreadable = unreadable;
        }
        if has_ended && self.has_dropped_ledger(next).await {
            let from_report = self.read_report().await?;
            if let Some(mut from_report) = from_report {
                let mut history = history.write().unwrap_or_else(PoisonError::into_inner);
                from_report.version = history.version + 1;
                let version = from_report.version;
                from_report.changed.fill(version);
                *history = from_report;
                has_changed = true;
            }
        }
        history.write().unwrap_or_else(PoisonError::into_inner).sealed =
            self.result.clone().map(Box::new);
        Ok(has_changed)
    }

    /// Whether a completed job has removed its ledger.
    async fn has_dropped_ledger(&self, known: u32) -> bool {
        match self.store.segment_file(0) {
            Some(file) => !file.exists(),
            None => known == 0,
        }
    }

    async fn read_report(&self) -> Result<Option<History>> {
        let files = self.store.logs().await.context("list the logs")?;
        let Some(file) = files.into_iter().find(|file| file.path == report::PATH) else {
            return Ok(None);
        };
        let result = self.result.clone();
        let mut reader = report::Reader::new(result.as_ref());
        let mut start = 0;
        while start < file.bytes {
            let end = file.bytes.min(start + report::PIECE_BYTES);
            let bytes = self
                .store
                .log_range(report::PATH, start..end)
                .await
                .context("read the report of attempts")?;
            start = end;
            reader = tokio::task::spawn_blocking(move || {
                reader.add(&bytes);
                reader
            })
            .await?;
        }
        Ok(Some(reader.finish()))
    }

    /// Reads the records at these places of a history of this origin. `None`: it has been removed, or cannot be read.
    pub async fn recorded_attempts(
        &self,
        origin: Origin,
        places: &[RecordAt],
    ) -> Vec<Option<RecordedAttempt>> {
        let store = self.store.clone();
        let reads = stream::iter(places.to_vec()).map(move |place| {
            let store = store.clone();
            async move { recorded_attempt(&store, origin, place).await }
        });
        reads.buffered(READS_AT_ONCE).collect().await
    }
}

/// Returns the number of segments that are read and decoded at the same time.
fn segments_ahead() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(SEGMENTS_AHEAD_MAX)
}

/// A segment that was never committed, or one that may be damaged.
enum Decoded {
    Missing,
    Damaged,
    Whole(Segment),
}

impl Decoded {
    fn of(bytes: &Bytes) -> Self {
        Segment::decode(bytes).map_or(Self::Damaged, Self::Whole)
    }
}

/// Reads and decodes a segment.
async fn decoded(store: &JobStore, segment: u32) -> Result<Decoded> {
    let bytes = match store.segment(u64::from(segment)).await {
        Err(storage::Error::Damaged { .. }) => return Ok(Decoded::Damaged),
        read => read.context("read the ledger")?,
    };
    let Some(bytes) = bytes else { return Ok(Decoded::Missing) };
    if bytes.len() < SMALL_SEGMENT_BYTES {
        return Ok(Decoded::of(&bytes));
    }
    let decoding = tokio::task::spawn_blocking(move || Decoded::of(&bytes));
    decoding.await.context("decode a segment of the ledger")
}

async fn recorded_attempt(
    store: &JobStore,
    origin: Origin,
    place: RecordAt,
) -> Option<RecordedAttempt> {
    let range: Range<u64> = place.start..place.start + u64::from(place.length);
    match origin {
        Origin::Nothing => None,
        Origin::Report => {
            let line = store.log_range(report::PATH, range).await.ok()?;
            Some(RecordedAttempt { attempt: report::attempt_of(&line)?, rows: Bytes::new() })
        }
        Origin::Ledger => {
            let bytes = store.segment_range(u64::from(place.segment), range).await.ok()?;
            let record = decode_records(&bytes).next()?.ok()?;
            let ResultEvent::Attempt(attempt) = record.event else { return None };
            Some(RecordedAttempt { attempt: *attempt, rows: bytes.slice(record.rows) })
        }
    }
}
