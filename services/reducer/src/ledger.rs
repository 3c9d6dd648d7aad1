//! The log of everything that was committed, and where in it the rows of each mini-batch are.
//!
//! A segment is the concatenation of received messages, created if absent: that creation is the commit. Whoever finds
//! the next name taken has been superseded, and stops.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::Context;
use bytes::{Bytes, BytesMut};
use protocol::{Attempt, Record, Rows, decode_records};
use storage::{Commit, JobStore};

/// What one segment holds, but for a single message that is larger.
pub(crate) const SEGMENT_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Pauses before a commit is tried again, each twice as long as the one before.
const COMMIT_PAUSE_MIN: Duration = Duration::from_millis(250);
const COMMIT_PAUSE_MAX: Duration = Duration::from_secs(2);

/// Another reducer works on the same job: this one has stopped, and written nothing since it noticed.
#[derive(Debug, thiserror::Error)]
#[error("another reducer has taken over this job: {evidence}")]
pub struct Superseded {
    pub(crate) evidence: String,
}

/// Where the rows of a mini-batch are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Place {
    /// It has none.
    #[default]
    None,
    /// In a ledger segment.
    Inline { segment: u32, offset: u32, length: u32 },
    /// In a part, by its position among the parts.
    Part(u32),
}

/// 20 bytes, because there may be ten million of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Entry {
    place: Place,
    /// Position of its column list plus one; 0: it has none.
    columns: u32,
}

/// Where everything is that the final file is made of. Plain data.
#[derive(Clone, Debug, Default)]
pub(crate) struct Index {
    entries: Vec<Entry>,
    parts: Vec<PartFile>,
    columns: Vec<Vec<String>>,
    columns_known: HashMap<Vec<String>, u32>,
    segment_bytes: Vec<u64>,
}

/// A part, as its worker announced it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PartFile {
    pub name: Box<str>,
    pub bytes: u64,
}

impl Index {
    /// Remembers the rows of the attempt that counts.
    pub fn place(&mut self, attempt: &Attempt, segment: u32, offset: usize, length: usize) {
        let place = match &attempt.rows {
            Rows::None => Place::None,
            Rows::Inline => Place::Inline {
                segment,
                offset: u32::try_from(offset).expect("segments are shorter than 4 GiB"),
                length: u32::try_from(length).expect("the length of a record is 32 bits wide"),
            },
            Rows::Part { name, bytes } => {
                self.parts.push(PartFile { name: name.as_str().into(), bytes: *bytes });
                Place::Part(u32::try_from(self.parts.len() - 1).expect("fewer than 4 thousand million parts"))
            }
        };
        let columns = attempt.columns.as_ref().map_or(0, |columns| self.columns_position(columns) + 1);
        if place == Place::None && columns == 0 {
            return;
        }
        let index = usize::try_from(attempt.mini_batch).expect("64-bit machine");
        if self.entries.len() <= index {
            self.entries.resize(index + 1, Entry::default());
        }
        self.entries[index] = Entry { place, columns };
    }

    fn columns_position(&mut self, columns: &Vec<String>) -> u32 {
        if let Some(position) = self.columns_known.get(columns) {
            return *position;
        }
        let position = u32::try_from(self.columns.len()).expect("fewer column lists than mini-batches");
        self.columns.push(columns.clone());
        self.columns_known.insert(columns.clone(), position);
        position
    }

    /// Every mini-batch that has rows, in order.
    pub fn places(&self) -> impl Iterator<Item = (u64, Place)> + '_ {
        let entries = (0..).zip(&self.entries).map(|(mini_batch, entry)| (mini_batch, entry.place));
        entries.filter(|(_, place)| *place != Place::None)
    }

    /// Column lists of the mini-batches that returned a DataFrame, in order.
    pub fn column_lists(&self) -> impl Iterator<Item = (u64, &[String])> + '_ {
        (0..)
            .zip(&self.entries)
            .filter(|(_, entry)| entry.columns > 0)
            .map(|(mini_batch, entry)| (mini_batch, self.columns[entry.columns as usize - 1].as_slice()))
    }

    /// Distinct column lists there are.
    pub fn column_lists_distinct(&self) -> usize {
        self.columns.len()
    }

    pub fn part(&self, position: u32) -> &PartFile {
        &self.parts[position as usize]
    }

    /// Size of a segment.
    pub fn segment_bytes(&self, segment: u32) -> u64 {
        self.segment_bytes[segment as usize]
    }
}

/// Records on their way into the ledger: those of some messages that can be read.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    bodies: Vec<Bytes>,
    /// Each with the offset of its rows in the segment to be.
    records: Vec<Record>,
    bytes: usize,
}

/// A message, or the end of one, that is no sequence of records.
#[derive(Debug)]
pub(crate) struct Unreadable {
    pub bytes: Bytes,
    pub reason: String,
}

impl Batch {
    /// Adds a message. What cannot be read of it stays out, and is returned.
    pub fn add(&mut self, body: Bytes) -> Option<Unreadable> {
        let mut readable = 0;
        let mut unreadable = None;
        for record in decode_records(&body) {
            match record {
                Ok(mut record) => {
                    readable = record.rows_offset + record.rows.len();
                    record.rows_offset += self.bytes;
                    self.records.push(record);
                }
                Err(error) => {
                    unreadable = Some(Unreadable { bytes: body.slice(readable..), reason: error.to_string() });
                }
            }
        }
        if readable > 0 {
            self.bytes += readable;
            self.bodies.push(body.slice(..readable));
        }
        unreadable
    }

    /// Whether it is time to commit.
    pub fn is_full(&self) -> bool {
        self.bytes >= SEGMENT_BYTES_MAX
    }

    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    fn concatenated(&self) -> Bytes {
        match &self.bodies[..] {
            [body] => body.clone(),
            bodies => {
                let mut segment = BytesMut::with_capacity(self.bytes);
                bodies.iter().for_each(|body| segment.extend_from_slice(body));
                segment.freeze()
            }
        }
    }
}

/// The ledger of one job, open at its end.
#[derive(Debug)]
pub(crate) struct Ledger {
    store: JobStore,
    pub index: Index,
}

impl Ledger {
    /// Opens the ledger before its first segment; [`read_next`](Self::read_next) goes through it.
    pub fn new(store: JobStore) -> Self {
        Self { store, index: Index::default() }
    }

    /// The number of committed segments that are known: the number of the next.
    pub fn segments(&self) -> u32 {
        u32::try_from(self.index.segment_bytes.len()).expect("fewer than 4 thousand million segments")
    }

    /// Reads the next committed segment, or finds that there is none.
    pub async fn read_next(&mut self) -> anyhow::Result<Option<Vec<Record>>> {
        let segment = self.segments();
        let Some(bytes) = self.store.segment(u64::from(segment)).await.context("read the ledger")? else {
            return Ok(None);
        };
        let records = decode_records(&bytes).collect::<Result<Vec<_>, _>>();
        let records = records.with_context(|| format!("ledger segment {segment} is damaged"))?;
        self.index.segment_bytes.push(bytes.len() as u64);
        Ok(Some(records))
    }

    /// Commits a batch as the next segment and gives back its records.
    pub async fn commit(&mut self, batch: Batch) -> anyhow::Result<Vec<Record>> {
        let sequence = self.segments();
        let segment = batch.concatenated();
        let bytes = segment.len() as u64;
        match self.commit_patiently(u64::from(sequence), segment).await.context("commit results to the ledger")? {
            Commit::Committed => {}
            Commit::Lost => {
                return Err(Superseded { evidence: format!("it committed ledger segment {sequence} first") }.into());
            }
        }
        self.index.segment_bytes.push(bytes);
        Ok(batch.records)
    }

    /// A store that does not answer gets a few seconds; a full disk stays full.
    async fn commit_patiently(&self, sequence: u64, segment: Bytes) -> storage::Result<Commit> {
        let mut pause = COMMIT_PAUSE_MIN;
        loop {
            match self.store.commit_segment(sequence, segment.clone()).await {
                Err(error @ storage::Error::Unavailable { .. }) if pause <= COMMIT_PAUSE_MAX => {
                    tracing::warn!(%error, ?pause, "results could not be committed, trying again");
                    tokio::time::sleep(pause).await;
                    pause *= 2;
                }
                other => return other,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::{ResultEvent, encode_record};

    use super::*;
    use crate::fixtures::succeeded;

    fn message(mini_batch: u64, rows: &[u8]) -> Vec<u8> {
        let mut attempt = succeeded(mini_batch, 1, 1, 1);
        attempt.rows = Rows::Inline;
        let mut body = Vec::new();
        encode_record(&ResultEvent::Attempt(Box::new(attempt)), rows, &mut body);
        body
    }

    fn batch(messages: &[Vec<u8>]) -> Batch {
        let mut batch = Batch::default();
        for message in messages {
            assert!(batch.add(Bytes::copy_from_slice(message)).is_none());
        }
        batch
    }

    fn store() -> (tempfile::TempDir, JobStore) {
        let folder = tempfile::tempdir().expect("temporary folder");
        let store = JobStore::local(folder.path()).expect("folder exists");
        (folder, store)
    }

    #[test]
    fn an_entry_stays_small() {
        assert!(size_of::<Entry>() <= 20);
    }

    #[tokio::test]
    async fn what_was_committed_is_read_again_with_the_same_places() {
        let (_folder, store) = store();
        let mut ledger = Ledger::new(store.clone());
        let committed = ledger.commit(batch(&[message(0, b"zero\n"), message(1, b"one\n")])).await.expect("first");
        let segment = store.segment(0).await.expect("readable").expect("committed");
        let at = committed[1].rows_offset;
        assert_eq!(&segment[at..at + 4], b"one\n");

        let mut again = Ledger::new(store);
        let read = again.read_next().await.expect("readable").expect("one segment");
        assert_eq!(read, committed);
        assert_eq!(again.read_next().await.expect("readable"), None);
        assert_eq!(again.segments(), 1);
    }

    #[tokio::test]
    async fn a_second_reducer_fences_off_the_first() {
        let (_folder, store) = store();
        let mut first = Ledger::new(store.clone());
        let mut second = Ledger::new(store.clone());
        second.commit(batch(&[message(0, b"second\n")])).await.expect("its turn");
        let error = first.commit(batch(&[message(0, b"first\n")])).await.expect_err("lost");
        assert!(error.is::<Superseded>(), "{error}");
        let segment = store.segment(0).await.expect("readable").expect("committed");
        assert!(segment.ends_with(b"second\n"));
    }

    #[test]
    fn what_cannot_be_read_stays_out_and_the_rest_stays_in() {
        let mut body = message(0, b"good\n");
        let good = body.len();
        body.extend_from_slice(b"\x02\0\0\0\0\0\0\0{}");
        let mut batch = Batch::default();
        let unreadable = batch.add(Bytes::from(body.clone())).expect("the second record");
        assert_eq!(&unreadable.bytes[..], &body[good..]);
        assert_eq!(batch.records.len(), 1);
        assert!(batch.add(Bytes::from_static(b"nonsense")).is_some());
        assert!(batch.add(Bytes::from(message(1, b"more\n"))).is_none());
        let segment = batch.concatenated();
        let at = batch.records[1].rows_offset;
        assert_eq!(&segment[at..at + 5], b"more\n");
    }

    #[test]
    fn column_lists_are_kept_once() {
        let mut index = Index::default();
        for mini_batch in 0..100 {
            let mut attempt = succeeded(mini_batch, 1, 1, 1);
            attempt.columns = Some(vec!["a".into(), if mini_batch == 50 { "c" } else { "b" }.into()]);
            index.place(&attempt, 0, 0, 0);
        }
        assert_eq!(index.column_lists_distinct(), 2);
        assert_eq!(index.column_lists().nth(50), Some((50, &["a".to_owned(), "c".to_owned()][..])));
        assert_eq!(index.places().count(), 0);
    }
}
