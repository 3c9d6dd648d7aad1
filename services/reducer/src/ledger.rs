//! The log of all committed events, and the index of the rows of each mini-batch.
//!
//! A segment is a concatenation of received records, with a digest. Creating it if absent is the commit. Any number of reducers may
//! append: if the next segment exists, a reducer reads it, drops the events that it now knows, and tries the next
//! number. All reducers therefore read the same ledger, and none needs to be fenced off.
//!
//! After a power cut the last segments may be missing, empty or truncated. On one machine the
//! ledger replaces damaged segments, whose mini-batches run again, and `RowsLost` reverts successes
//! whose parts are lost. In a store that other machines use, nothing is repaired: the error names
//! the damaged object.

mod apply;

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use backon::Retryable;
use bytes::Bytes;
use protocol::{ResultEvent, Rows, encode_record};
use queue::pauses::UNTIL_IT_ANSWERS;
use storage::{Commit, JobStore};
use telemetry::metrics;
use telemetry::metrics::OUTCOME;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::batch::{Batch, NoRecord};
use crate::tally::reserve;

/// Largest segment, unless a single message is larger.
pub(crate) const SEGMENT_BYTES_MAX: usize = 8 * 1024 * 1024;

/// The place of the rows of a mini-batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum RowLocation {
    /// No rows.
    #[default]
    None,
    /// A range of a ledger segment.
    Inline { segment: u32, offset: u32, length: u32 },
    /// A part, by its position among the parts.
    Part(u32),
}

/// The rows of one mini-batch, in 20 bytes, because there may be ten million mini-batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct MiniBatchRows {
    rows: RowLocation,
    /// Position of its column list plus one; 0 without columns.
    columns: u32,
}

/// The places of all rows of the final file. Plain data.
#[derive(Clone, Debug, Default)]
pub(crate) struct Index {
    entries: Vec<MiniBatchRows>,
    parts: Vec<PartFile>,
    columns: Vec<Vec<String>>,
    columns_known: HashMap<Vec<String>, u32>,
    segment_bytes: Vec<u64>,
    /// Mini-batches whose rows come from several runs.
    joined: HashSet<u64>,
    /// Objects with the rejected items and the pieces of mini-batches that have too many for their records.
    rejected: HashMap<u64, PartFile>,
}

/// A part with the size that its worker announced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PartFile {
    pub name: Box<str>,
    pub bytes: u64,
}

impl Index {
    /// Reserves memory for this many mini-batches.
    pub fn expect(&mut self, mini_batches: u64) {
        reserve(&mut self.entries, mini_batches);
    }

    /// Records the rows of the attempt that counts. `at`: range of inline rows in the segment.
    pub fn insert(
        &mut self,
        mini_batch: u64,
        rows: Rows<&str>,
        columns: Option<&[String]>,
        segment: u32,
        at: Range<usize>,
    ) {
        let rows = match rows {
            Rows::None => RowLocation::None,
            Rows::Inline => RowLocation::Inline {
                segment,
                offset: u32::try_from(at.start).expect("segments are shorter than 4 GiB"),
                length: u32::try_from(at.len()).expect("the length of a record is 32 bits wide"),
            },
            Rows::Part { name, bytes } => {
                self.parts.push(PartFile { name: name.into(), bytes });
                RowLocation::Part(
                    u32::try_from(self.parts.len() - 1)
                        .expect("fewer than 4 thousand million parts"),
                )
            }
        };
        let columns = columns.map_or(0, |columns| self.columns_position(columns) + 1);
        if rows == RowLocation::None && columns == 0 {
            return;
        }
        let index = usize::try_from(mini_batch).expect("64-bit machine");
        if self.entries.len() <= index {
            self.entries.resize(index + 1, MiniBatchRows::default());
        }
        self.entries[index] = MiniBatchRows { rows, columns };
    }

    /// Notes that the rows of a mini-batch are those of several runs, one after the other.
    pub fn join(&mut self, mini_batch: u64) {
        self.joined.insert(mini_batch);
    }

    /// Whether the rows of a mini-batch may be those of several runs.
    pub fn is_joined(&self, mini_batch: u64) -> bool {
        self.joined.contains(&mini_batch)
    }

    /// Removes the rows of a mini-batch.
    pub fn remove(&mut self, mini_batch: u64) {
        self.joined.remove(&mini_batch);
        self.rejected.remove(&mini_batch);
        if let Some(entry) =
            usize::try_from(mini_batch).ok().and_then(|index| self.entries.get_mut(index))
        {
            *entry = MiniBatchRows::default();
        }
    }

    fn columns_position(&mut self, columns: &[String]) -> u32 {
        if let Some(position) = self.columns_known.get(columns) {
            return *position;
        }
        let position =
            u32::try_from(self.columns.len()).expect("fewer column lists than mini-batches");
        self.columns.push(columns.to_owned());
        self.columns_known.insert(columns.to_owned(), position);
        position
    }

    /// Returns the mini-batches that have rows, in order.
    pub fn rows(&self) -> impl Iterator<Item = (u64, RowLocation)> + '_ {
        let entries = (0..).zip(&self.entries).map(|(mini_batch, entry)| (mini_batch, entry.rows));
        entries.filter(|(_, rows)| *rows != RowLocation::None)
    }

    /// Returns the place of the rows of a mini-batch.
    pub fn rows_of(&self, mini_batch: u64) -> RowLocation {
        let entry = usize::try_from(mini_batch).ok().and_then(|index| self.entries.get(index));
        entry.map_or(RowLocation::None, |entry| entry.rows)
    }

    /// Returns the column lists of the mini-batches that returned a DataFrame, in order.
    pub fn column_lists(&self) -> impl Iterator<Item = (u64, &[String])> + '_ {
        (0..).zip(&self.entries).filter(|(_, entry)| entry.columns > 0).map(
            |(mini_batch, entry)| (mini_batch, self.columns[entry.columns as usize - 1].as_slice()),
        )
    }

    /// Returns the number of distinct column lists.
    pub fn column_lists_distinct(&self) -> usize {
        self.columns.len()
    }

    /// Returns the size of all rows.
    pub fn rows_bytes(&self) -> u64 {
        self.rows().map(|(_, place)| self.size(place)).sum()
    }

    /// Returns the size of the rows at a place.
    pub fn size(&self, place: RowLocation) -> u64 {
        match place {
            RowLocation::None => 0,
            RowLocation::Inline { length, .. } => u64::from(length),
            RowLocation::Part(position) => self.part(position).bytes,
        }
    }

    pub fn part(&self, position: u32) -> &PartFile {
        &self.parts[position as usize]
    }

    /// Returns the size of the ledger.
    pub fn bytes(&self) -> u64 {
        self.segment_bytes.iter().sum()
    }

    /// Returns the size of a segment.
    pub fn segment_bytes(&self, segment: u32) -> u64 {
        self.segment_bytes[segment as usize]
    }
}

/// The result of committing a batch.
#[derive(Debug)]
pub(crate) enum Committed {
    /// It is the next segment.
    Ours(Batch),
    /// Another reducer has created the segment. Read it before trying again.
    Lost(Batch),
}

/// The ledger of one job.
#[derive(Debug)]
pub(crate) struct Ledger {
    store: JobStore,
    job_id: String,
    /// How long to retry commits while the store is unavailable.
    patience: Duration,
    /// Concurrent reads of the next segments, which makes reading a long ledger faster.
    reading: VecDeque<AbortOnDropHandle<storage::Result<Option<Bytes>>>>,
    /// Whether to replace a damaged segment, which only a lone reducer may do.
    repairs: bool,
    /// Number of repaired segments.
    pub repaired: u32,
    /// Shared with the writer of the final file, which may outlast the reducer's patience with it.
    pub index: Arc<Index>,
}

impl Ledger {
    /// Opens the ledger before its first segment.
    pub fn new(store: JobStore, job_id: &str, patience: Duration) -> Self {
        let (reading, index) = (VecDeque::new(), Arc::default());
        Self {
            store,
            job_id: job_id.to_owned(),
            patience,
            reading,
            repairs: false,
            repaired: 0,
            index,
        }
    }

    /// Returns the ledger of a job that no other reducer serves. A machine that stops may leave the last segments empty,
    /// truncated or with blank pages; this ledger replaces them, and their results must be computed again.
    pub fn repairing(self) -> Self {
        Self { repairs: true, ..self }
    }

    /// Returns the index, to change it.
    pub fn index_mut(&mut self) -> &mut Index {
        Arc::make_mut(&mut self.index)
    }

    /// Returns the number of known segments, which is the number of the next segment.
    pub fn segments(&self) -> u32 {
        u32::try_from(self.index.segment_bytes.len())
            .expect("fewer than 4 thousand million segments")
    }

    /// Reads the next committed segment. Returns `None` at the end of the ledger. `ahead`: number of concurrent reads.
    pub async fn read_next(&mut self, ahead: usize) -> anyhow::Result<Option<Batch>> {
        let segment = self.segments();
        for next in segment + self.reading.len() as u32..segment + ahead.max(1) as u32 {
            let store = self.store.clone();
            let read = tokio::spawn(async move { store.segment(u64::from(next)).await });
            self.reading.push_back(AbortOnDropHandle::new(read));
        }
        let read =
            self.reading.pop_front().expect("one at least").await.context("read the ledger")?;
        let bytes = match read {
            Ok(Some(bytes)) => Ok(bytes),
            Ok(None) => {
                self.reading.clear();
                return Ok(None);
            }
            Err(storage::Error::Damaged { .. }) if self.repairs => Ok(self.repair(segment).await?),
            Err(error @ storage::Error::Damaged { .. }) => Err(anyhow::Error::from(error)),
            Err(error) => {
                self.reading.clear();
                return Err(error).context("read the ledger");
            }
        };
        let length = bytes.as_ref().map_or(0, |bytes| bytes.len() as u64);
        let records = bytes.and_then(|bytes| decode_segment(&bytes));
        let records = records.with_context(|| {
            let object = match self.store.segment_file(u64::from(segment)) {
                Some(file) => file.display().to_string(),
                None => format!("object ledger/{segment:010} of job {}", self.job_id),
            };
            let job = &self.job_id;
            format!(
                "{object} is damaged: restore it, or move it away and retry job {job}, which repeats the work that only \
                 this object recorded"
            )
        })?;
        self.index_mut().segment_bytes.push(length);
        Ok(Some(records))
    }

    /// Replaces a damaged segment with one that records the loss.
    async fn repair(&mut self, segment: u32) -> anyhow::Result<Bytes> {
        let mut bytes = Vec::new();
        encode_record(&ResultEvent::CutShort, b"", &mut bytes);
        let bytes = Bytes::from(bytes);
        self.store
            .replace_segment(u64::from(segment), bytes.clone())
            .await
            .context("repair the ledger")?;
        self.repaired += 1;
        Ok(bytes)
    }

    /// Commits a batch as the next segment, unless another reducer has created that segment.
    pub async fn commit(&mut self, batch: Batch) -> anyhow::Result<Committed> {
        let sequence = self.segments();
        let (segment, bytes) = (batch.segment(), batch.bytes() as u64);
        let began = Instant::now();
        let commit = self
            .commit_patiently(u64::from(sequence), segment)
            .await
            .context("commit results to the ledger")?;
        let outcome = if commit == Commit::Committed { "committed" } else { "lost" };
        let seconds = began.elapsed().as_secs_f64();
        metrics().commit_seconds.get_or_create(&[(OUTCOME, outcome)]).observe(seconds);
        match commit {
            Commit::Committed => {
                metrics().ledger_bytes.inc_by(bytes);
                self.index_mut().segment_bytes.push(bytes);
                Ok(Committed::Ours(batch))
            }
            Commit::Lost => Ok(Committed::Lost(batch)),
        }
    }

    async fn commit_patiently(
        &self,
        sequence: u64,
        segment: Vec<Bytes>,
    ) -> storage::Result<Commit> {
        let commit = || self.store.commit_segment(sequence, segment.clone());
        commit
            .retry(UNTIL_IT_ANSWERS.with_total_delay(Some(self.patience)))
            .when(|error| matches!(error, storage::Error::Unavailable { .. }))
            .notify(|error, pause| {
                tracing::warn!(error = %format!("{error:#}"), pause.seconds = pause.as_secs_f64(), "cannot commit results, trying again");
            })
            .await
    }
}

fn decode_segment(bytes: &Bytes) -> anyhow::Result<Batch> {
    anyhow::ensure!(!bytes.is_empty(), "it is empty");
    let mut batch = Batch::default();
    batch.read(bytes).map_err(|NoRecord { error, .. }| error)?;
    Ok(batch)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use protocol::Record;

    use super::*;
    use crate::batch::Event;
    use crate::fixtures::{batch, message, records};

    fn store() -> (tempfile::TempDir, JobStore) {
        let folder = tempfile::tempdir().expect("temporary folder");
        let store = JobStore::local(folder.path()).expect("folder exists");
        (folder, store)
    }

    #[test]
    fn entry_takes_20_bytes_at_most() {
        assert!(size_of::<MiniBatchRows>() <= 20);
    }

    fn ledger(store: &JobStore) -> Ledger {
        Ledger::new(store.clone(), "digits", Duration::ZERO)
    }

    async fn commit(ledger: &mut Ledger, messages: &[Vec<u8>]) -> Vec<Record> {
        match ledger.commit(batch(messages)).await.expect("writable") {
            Committed::Ours(segment) => records(&segment),
            Committed::Lost(batch) => panic!("lost {batch:?}"),
        }
    }

    #[tokio::test]
    async fn committed_records_are_read_with_the_same_rows() {
        let (_folder, store) = store();
        let mut first = ledger(&store);
        let mut named = protocol::begin_message("digits");
        named.extend(message(1, b"one\n"));
        let committed = commit(&mut first, &[message(0, b"zero\n"), named]).await;
        let segment = store.segment(0).await.expect("readable").expect("committed");
        assert_eq!(&segment[committed[1].rows.clone()], b"one\n");

        let mut again = ledger(&store);
        let read = again.read_next(1).await.expect("readable").expect("one segment");
        assert_eq!(records(&read), committed);
        assert!(again.read_next(1).await.expect("readable").is_none());
        assert_eq!(again.segments(), 1);
    }

    #[tokio::test]
    async fn second_writer_reads_the_segment_of_the_first_and_continues_after_it() {
        let (_folder, store) = store();
        let (mut first, mut second) = (ledger(&store), ledger(&store));
        commit(&mut second, &[message(0, b"second\n")]).await;
        let lost = first.commit(batch(&[message(1, b"first\n")])).await.expect("answers");
        let Committed::Lost(batch) = lost else { panic!("segment 0 was taken: {lost:?}") };
        assert_eq!(first.read_next(4).await.expect("readable").expect("of the second").len(), 1);
        let committed = first.commit(batch).await.expect("writable");
        let Committed::Ours(committed) = committed else {
            panic!("segment 1 is free: {committed:?}")
        };
        let records = records(&committed);
        let segment = store.segment(1).await.expect("readable").expect("committed");
        assert_eq!(&segment[records[0].rows.clone()], b"first\n");
    }

    #[tokio::test]
    async fn long_ledger_is_read_in_order_and_to_its_end() {
        let (_folder, store) = store();
        let mut first = ledger(&store);
        for mini_batch in 0..10 {
            commit(&mut first, &[message(mini_batch, b"row\n")]).await;
        }
        for ahead in [1, 3, 100] {
            let mut again = ledger(&store);
            for expected in 0..10 {
                let segment =
                    again.read_next(ahead).await.expect("readable").expect("there are ten");
                let attempted: Vec<_> = segment.events().map(Event::attempted).collect();
                assert_eq!(attempted, [Some(expected)]);
            }
            assert!(again.read_next(ahead).await.expect("readable").is_none());
            commit(&mut first, &[message(99, b"row\n")]).await;
            assert!(
                again.read_next(ahead).await.expect("readable").is_some(),
                "the end is looked for anew"
            );
            fs::remove_file(store.segment_file(10).expect("local")).expect("there");
            first = again;
            first.index_mut().segment_bytes.pop();
        }
    }

    #[tokio::test]
    async fn damaged_segment_is_named_with_the_remedy() {
        let (_folder, store) = store();
        store.commit_segment(0, vec![Bytes::from_static(b"no records")]).await.expect("writable");
        let error = format!("{:#}", ledger(&store).read_next(1).await.expect_err("damaged"));
        let file = store.segment_file(0).expect("local");
        assert!(error.starts_with(&format!("{} is damaged", file.display())), "{error}");
        assert!(error.contains("retry job digits"), "{error}");
    }

    #[tokio::test]
    async fn empty_segment_is_damaged() {
        let (_folder, store) = store();
        store.commit_segment(0, vec![]).await.expect("writable");
        let error = format!("{:#}", ledger(&store).read_next(1).await.expect_err("damaged"));
        assert!(error.ends_with("it is empty"), "{error}");
    }

    /// Wherever a segment is cut or changed: its results are computed again, later readers read the same, and commits
    /// continue after it.
    #[tokio::test]
    async fn lone_reducer_replaces_damaged_segment() {
        let (_folder, whole) = store();
        commit(&mut ledger(&whole), &[message(0, b"zero\n"), message(1, b"one\n")]).await;
        let bytes = fs::read(whole.segment_file(0).expect("local")).expect("readable");
        let cut = (0..bytes.len()).map(|end| bytes[..end].to_vec());
        let blank =
            (0..bytes.len()).map(|from| [&bytes[..from], &vec![0; bytes.len() - from]].concat());
        let changed = (0..bytes.len()).map(|at| {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1;
            bytes
        });
        for damaged in cut.chain(blank).chain(changed) {
            let (_folder, store) = store();
            fs::create_dir_all(store.folder().expect("local").join("ledger")).expect("writable");
            fs::write(store.segment_file(0).expect("local"), damaged).expect("writable");
            ledger(&store).read_next(1).await.expect_err("others may serve the job");
            let mut repairing = ledger(&store).repairing();
            let repaired =
                records(&repairing.read_next(1).await.expect("repaired").expect("one segment"));
            assert_eq!(
                repaired.iter().map(|record| &record.event).collect::<Vec<_>>(),
                [&ResultEvent::CutShort]
            );
            assert_eq!(repairing.repaired, 1);
            let mut again = ledger(&store).repairing();
            assert_eq!(
                records(&again.read_next(1).await.expect("readable").expect("one segment")),
                repaired
            );
            assert_eq!((again.repaired, again.segments()), (0, 1));
            commit(&mut again, &[message(1, b"one\n")]).await;
        }
    }

    #[test]
    fn equal_column_lists_are_stored_once() {
        let mut index = Index::default();
        for mini_batch in 0..100 {
            let columns = ["a".into(), if mini_batch == 50 { "c" } else { "b" }.into()];
            index.insert(mini_batch, Rows::None, Some(&columns), 0, 0..0);
        }
        assert_eq!(index.column_lists_distinct(), 2);
        assert_eq!(index.column_lists().nth(50), Some((50, &["a".to_owned(), "c".to_owned()][..])));
        assert_eq!(index.rows().count(), 0);
    }
}
