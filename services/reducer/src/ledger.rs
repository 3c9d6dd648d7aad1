//! The log of everything that was committed, and where in it the rows of each mini-batch are.
//!
//! A segment is a concatenation of received records, created if absent: that creation is the commit. Any number of
//! reducers may append: whoever finds the next name taken reads what the other has committed, leaves out what it now
//! knows, and tries the name after that. So all of them read the same ledger, and nothing has to fence one off.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use protocol::{Attempt, Record, RecordError, ResultEvent, Rows, decode_records, encode_record};
use storage::{Commit, JobStore};
use telemetry::metrics;
use telemetry::metrics::OUTCOME;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

/// What one segment holds, but for a single message that is larger.
pub(crate) const SEGMENT_BYTES_MAX: usize = 8 * 1024 * 1024;

/// What an ordinary success takes in a message, about: its path, its counts and times, and few rows.
const ORDINARY_BYTES: usize = 160;

/// Pauses before a commit is tried again, each twice as long as the one before.
const COMMIT_PAUSE_MIN: Duration = Duration::from_millis(250);
const COMMIT_PAUSE_MAX: Duration = Duration::from_secs(8);

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

    /// Forgets where the rows of a mini-batch are.
    pub fn remove(&mut self, mini_batch: u64) {
        if let Some(entry) = usize::try_from(mini_batch).ok().and_then(|index| self.entries.get_mut(index)) {
            *entry = Entry::default();
        }
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
    messages: Vec<Bytes>,
    records: Vec<Held>,
    /// Of all records.
    bytes: usize,
}

/// A record of a batch: bytes of one of its messages from `start` to the end of its rows.
#[derive(Debug)]
struct Held {
    message: usize,
    start: usize,
    record: Record,
}

impl Held {
    fn bytes(&self) -> usize {
        self.record.rows.end - self.start
    }
}

/// What is put aside of a message: its end that is no sequence of records, or a record that is not believed.
#[derive(Debug)]
pub(crate) struct Unreadable {
    pub bytes: Bytes,
    pub reason: String,
}

impl Batch {
    /// Adds a message. What cannot be read of it stays out, and is returned.
    pub fn add(&mut self, body: &Bytes) -> Option<Unreadable> {
        let message = self.messages.len();
        self.messages.push(body.clone());
        self.records.reserve(body.len() / ORDINARY_BYTES);
        let mut start = 0;
        for record in decode_records(body) {
            match record {
                // The whole ledger belongs to the job.
                Ok(Record { event: ResultEvent::Job { .. }, rows }) => start = rows.end,
                Ok(record) => {
                    let held = Held { message, start, record };
                    start = held.record.rows.end;
                    self.bytes += held.bytes();
                    self.records.push(held);
                }
                Err(error) => return Some(Unreadable { bytes: body.slice(start..), reason: error.to_string() }),
            }
        }
        None
    }

    /// The events, in order.
    pub fn events(&self) -> impl Iterator<Item = &ResultEvent> {
        self.records.iter().map(|held| &held.record.event)
    }

    /// Takes out every record for which there is a reason to.
    pub fn take_refused(&mut self, refused: impl Fn(&ResultEvent) -> Option<String>) -> Vec<Unreadable> {
        let mut taken = Vec::new();
        self.records.retain(|held| match refused(&held.record.event) {
            Some(reason) => {
                let bytes = self.messages[held.message].slice(held.start..held.record.rows.end);
                self.bytes -= bytes.len();
                taken.push(Unreadable { bytes, reason });
                false
            }
            None => true,
        });
        taken
    }

    /// Adds the records of another batch behind its own.
    pub fn append(&mut self, other: Self) {
        let messages = self.messages.len();
        self.bytes += other.bytes;
        self.messages.extend(other.messages);
        self.records.extend(other.records.into_iter().map(|held| Held { message: messages + held.message, ..held }));
    }

    /// Adds an event of the reducer's own.
    pub fn add_event(&mut self, event: &ResultEvent) {
        let mut body = Vec::new();
        encode_record(event, b"", &mut body);
        self.add(&body.into());
    }

    /// Leaves out every event that is not news. Returns how many of them were attempts.
    pub fn retain(&mut self, mut is_news: impl FnMut(&ResultEvent) -> bool) -> u64 {
        let mut attempts = 0;
        self.records.retain(|held| {
            let keep = is_news(&held.record.event);
            if !keep {
                self.bytes -= held.bytes();
                attempts += u64::from(matches!(held.record.event, ResultEvent::Attempt(_)));
            }
            keep
        });
        attempts
    }

    /// Whether it is time to commit.
    pub fn is_full(&self) -> bool {
        self.bytes >= SEGMENT_BYTES_MAX
    }

    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// How many records there are.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// The bytes of all records, in as few pieces as they stand in their messages.
    fn segment(&self) -> Vec<Bytes> {
        let is_next = |one: &Held, next: &Held| one.message == next.message && one.record.rows.end == next.start;
        let piece = |run: &[Held]| match run {
            [first, ..] => self.messages[first.message].slice(first.start..run[run.len() - 1].record.rows.end),
            [] => Bytes::new(),
        };
        self.records.chunk_by(is_next).map(piece).collect()
    }

    /// The records, each with the place of its rows in the segment.
    fn into_records(self) -> Vec<Record> {
        let mut at = 0;
        let placed = |Held { start, mut record, .. }: Held| {
            let (rows, bytes) = (record.rows.len(), record.rows.end - start);
            at += bytes;
            record.rows = at - rows..at;
            record
        };
        self.records.into_iter().map(placed).collect()
    }
}

/// What became of a batch.
#[derive(Debug)]
pub(crate) enum Committed {
    /// It is the next segment; these are its records.
    Ours(Vec<Record>),
    /// Another reducer was quicker. Read what it has committed before trying again.
    Lost(Batch),
}

/// The ledger of one job, open at its end.
#[derive(Debug)]
pub(crate) struct Ledger {
    store: JobStore,
    job_id: String,
    /// For how long a store that does not answer is tried.
    patience: Duration,
    /// Segments that are being read, from the next one on: a long ledger is read sooner so.
    reading: VecDeque<AbortOnDropHandle<storage::Result<Option<Bytes>>>>,
    /// A segment that is cut short is replaced by what can be read of it: nobody else serves the job.
    mends: bool,
    /// Segments that were.
    pub mended: u32,
    pub index: Index,
}

impl Ledger {
    /// Opens the ledger before its first segment; [`read_next`](Self::read_next) goes through it.
    pub fn new(store: JobStore, job_id: &str, patience: Duration) -> Self {
        let (reading, index) = (VecDeque::new(), Index::default());
        Self { store, job_id: job_id.to_owned(), patience, reading, mends: false, mended: 0, index }
    }

    /// The same one for a job that nobody else serves. A machine that stops may leave its last segments empty or cut
    /// short. What only they held has to be done again, and the rest stands.
    pub fn mending(self) -> Self {
        Self { mends: true, ..self }
    }

    /// The number of committed segments that are known: the number of the next.
    pub fn segments(&self) -> u32 {
        u32::try_from(self.index.segment_bytes.len()).expect("fewer than 4 thousand million segments")
    }

    /// Reads the next committed segment, or finds that there is none. `ahead`: how many are read at a time.
    pub async fn read_next(&mut self, ahead: usize) -> anyhow::Result<Option<Vec<Record>>> {
        let segment = self.segments();
        for next in segment + self.reading.len() as u32..segment + ahead.max(1) as u32 {
            let store = self.store.clone();
            let read = tokio::spawn(async move { store.segment(u64::from(next)).await });
            self.reading.push_back(AbortOnDropHandle::new(read));
        }
        let read = self.reading.pop_front().expect("one at least").await.context("read the ledger")?;
        let bytes = read.inspect_err(|_| self.reading.clear()).context("read the ledger")?;
        let Some(bytes) = bytes else {
            self.reading.clear();
            return Ok(None);
        };
        let (bytes, records) = match decode_segment(&bytes) {
            Err(Unusable { readable, cut_short: true, .. }) if self.mends => {
                self.mend(segment, &bytes[..readable]).await?
            }
            Err(Unusable { error, .. }) => (bytes, Err(error)),
            Ok(records) => (bytes, Ok(records)),
        };
        let records = records.with_context(|| {
            let object = match self.store.segment_file(u64::from(segment)) {
                Some(file) => file.display().to_string(),
                None => format!("object ledger/{segment:010} of job {}", self.job_id),
            };
            let job = &self.job_id;
            format!(
                "{object} is damaged: restore it, or move it away and run `gristmill retry {job}`, which runs what \
                 only this object held again"
            )
        })?;
        self.index.segment_bytes.push(bytes.len() as u64);
        Ok(Some(records))
    }

    async fn mend(&mut self, segment: u32, readable: &[u8]) -> anyhow::Result<(Bytes, anyhow::Result<Vec<Record>>)> {
        let mut bytes = readable.to_vec();
        encode_record(&ResultEvent::CutShort, b"", &mut bytes);
        let bytes = Bytes::from(bytes);
        self.store.replace_segment(u64::from(segment), bytes.clone()).await.context("mend the ledger")?;
        self.mended += 1;
        let records = decode_segment(&bytes).map_err(|unusable| unusable.error);
        Ok((bytes, records))
    }

    /// Commits a batch as the next segment, unless another reducer has made that.
    pub async fn commit(&mut self, batch: Batch) -> anyhow::Result<Committed> {
        let sequence = self.segments();
        let (segment, bytes) = (batch.segment(), batch.bytes as u64);
        let began = Instant::now();
        let commit =
            self.commit_patiently(u64::from(sequence), segment).await.context("commit results to the ledger")?;
        let outcome = if commit == Commit::Committed { "committed" } else { "lost" };
        let seconds = began.elapsed().as_secs_f64();
        metrics().commit_seconds.get_or_create(&[(OUTCOME, outcome)]).observe(seconds);
        match commit {
            Commit::Committed => {
                metrics().ledger_bytes.inc_by(bytes);
                self.index.segment_bytes.push(bytes);
                Ok(Committed::Ours(batch.into_records()))
            }
            Commit::Lost => Ok(Committed::Lost(batch)),
        }
    }

    async fn commit_patiently(&self, sequence: u64, segment: Vec<Bytes>) -> storage::Result<Commit> {
        let began = Instant::now();
        let mut pause = COMMIT_PAUSE_MIN;
        loop {
            match self.store.commit_segment(sequence, segment.clone()).await {
                Err(error @ storage::Error::Unavailable { .. }) if began.elapsed() + pause <= self.patience => {
                    tracing::warn!(%error, pause.seconds = pause.as_secs_f64(), "results could not be committed, trying again");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(COMMIT_PAUSE_MAX);
                }
                other => return other,
            }
        }
    }
}

/// A segment that cannot be read to its end.
struct Unusable {
    error: anyhow::Error,
    /// Bytes of the records before that.
    readable: usize,
    /// It ends too early, as files do that were not on the disk yet when the machine stopped.
    cut_short: bool,
}

fn decode_segment(bytes: &Bytes) -> Result<Vec<Record>, Unusable> {
    if bytes.is_empty() {
        return Err(Unusable { error: anyhow::anyhow!("it is empty"), readable: 0, cut_short: true });
    }
    let mut records: Vec<Record> = Vec::new();
    for record in decode_records(bytes) {
        match record {
            Ok(record) => records.push(record),
            Err(error) => {
                let readable = records.last().map_or(0, |last| last.rows.end);
                let cut_short = matches!(error, RecordError::Truncated { .. }) || is_blank(&bytes[readable..]);
                return Err(Unusable { error: error.into(), readable, cut_short });
            }
        }
    }
    Ok(records)
}

/// Whether a record, and all that follows it, was never written from somewhere within its header on: some file systems
/// show zeros there.
fn is_blank(record: &[u8]) -> bool {
    let written = record.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    let header_bytes = record.first_chunk().map_or(0, |&bytes| u32::from_le_bytes(bytes) as usize);
    written < 8 + header_bytes
}

#[cfg(test)]
mod tests {
    use std::fs;

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
            assert!(batch.add(&Bytes::copy_from_slice(message)).is_none());
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

    fn ledger(store: &JobStore) -> Ledger {
        Ledger::new(store.clone(), "digits", Duration::ZERO)
    }

    async fn commit(ledger: &mut Ledger, messages: &[Vec<u8>]) -> Vec<Record> {
        match ledger.commit(batch(messages)).await.expect("writable") {
            Committed::Ours(records) => records,
            Committed::Lost(batch) => panic!("lost {batch:?}"),
        }
    }

    #[tokio::test]
    async fn what_was_committed_is_read_again_with_the_same_places() {
        let (_folder, store) = store();
        let mut first = ledger(&store);
        let mut named = protocol::begin_message("digits");
        named.extend(message(1, b"one\n"));
        let committed = commit(&mut first, &[message(0, b"zero\n"), named]).await;
        let segment = store.segment(0).await.expect("readable").expect("committed");
        assert_eq!(&segment[committed[1].rows.clone()], b"one\n");

        let mut again = ledger(&store);
        let read = again.read_next(1).await.expect("readable").expect("one segment");
        assert_eq!(read, committed);
        assert_eq!(again.read_next(1).await.expect("readable"), None);
        assert_eq!(again.segments(), 1);
    }

    #[tokio::test]
    async fn who_comes_second_reads_what_the_first_committed_and_goes_on_after_it() {
        let (_folder, store) = store();
        let (mut first, mut second) = (ledger(&store), ledger(&store));
        commit(&mut second, &[message(0, b"second\n")]).await;
        let lost = first.commit(batch(&[message(1, b"first\n")])).await.expect("answers");
        let Committed::Lost(batch) = lost else { panic!("segment 0 was taken: {lost:?}") };
        assert_eq!(first.read_next(4).await.expect("readable").expect("of the second").len(), 1);
        let committed = first.commit(batch).await.expect("writable");
        let Committed::Ours(records) = committed else { panic!("segment 1 is free: {committed:?}") };
        let segment = store.segment(1).await.expect("readable").expect("committed");
        assert_eq!(&segment[records[0].rows.clone()], b"first\n");
    }

    #[tokio::test]
    async fn a_long_ledger_is_read_in_order_and_to_its_end() {
        let (_folder, store) = store();
        let mut first = ledger(&store);
        for mini_batch in 0..10 {
            commit(&mut first, &[message(mini_batch, b"row\n")]).await;
        }
        for ahead in [1, 3, 100] {
            let mut again = ledger(&store);
            for expected in 0..10 {
                let records = again.read_next(ahead).await.expect("readable").expect("there are ten");
                let ResultEvent::Attempt(attempt) = &records[0].event else { panic!("{records:?}") };
                assert_eq!(attempt.mini_batch, expected);
            }
            assert_eq!(again.read_next(ahead).await.expect("readable"), None);
            commit(&mut first, &[message(99, b"row\n")]).await;
            assert!(again.read_next(ahead).await.expect("readable").is_some(), "the end is looked for anew");
            fs::remove_file(store.segment_file(10).expect("local")).expect("there");
            first = again;
            first.index.segment_bytes.pop();
        }
    }

    #[tokio::test]
    async fn a_damaged_segment_is_named_with_what_to_do() {
        let (_folder, store) = store();
        store.commit_segment(0, vec![Bytes::from_static(b"no records")]).await.expect("writable");
        let error = format!("{:#}", ledger(&store).read_next(1).await.expect_err("damaged"));
        let file = store.segment_file(0).expect("local");
        assert!(error.starts_with(&format!("{} is damaged", file.display())), "{error}");
        assert!(error.contains("gristmill retry digits"), "{error}");
    }

    #[tokio::test]
    async fn an_empty_segment_is_none() {
        let (_folder, store) = store();
        store.commit_segment(0, vec![]).await.expect("writable");
        let error = format!("{:#}", ledger(&store).read_next(1).await.expect_err("damaged"));
        assert!(error.ends_with("it is empty"), "{error}");
    }

    /// Wherever a segment ends: its whole records stand, a later reader finds the same, and others go on after it.
    #[tokio::test]
    async fn a_segment_that_is_cut_short_is_mended_by_who_serves_the_job_alone() {
        let mut whole = message(0, b"zero\n");
        let first = whole.len();
        whole.extend(message(1, b"one\n"));
        let blank_from = |end: usize| {
            let mut bytes = whole.clone();
            bytes[end..].fill(0);
            bytes
        };
        let header_ends = whole.len() - b"one\n".len();
        let cut = (0..whole.len()).filter(|&end| end != first).map(|end| whole[..end].to_vec());
        let blank = (0..first - b"zero\n".len()).chain(first..header_ends).map(blank_from);
        for (bytes, intact) in cut.chain(blank).map(|bytes| (bytes.clone(), bytes.starts_with(&whole[..first]))) {
            let (_folder, store) = store();
            store.commit_segment(0, vec![bytes.into()]).await.expect("writable");
            ledger(&store).read_next(1).await.expect_err("others may serve the job");
            let mut mending = ledger(&store).mending();
            let records = mending.read_next(1).await.expect("mended").expect("one segment");
            assert_eq!(records.len(), 1 + usize::from(intact));
            assert_eq!(records.last().expect("counted").event, ResultEvent::CutShort);
            assert_eq!(mending.mended, 1);
            let mut again = ledger(&store).mending();
            assert_eq!(again.read_next(1).await.expect("readable"), Some(records));
            assert_eq!((again.mended, again.segments()), (0, 1));
            commit(&mut again, &[message(1, b"one\n")]).await;
        }
    }

    #[test]
    fn what_cannot_be_read_stays_out_and_the_rest_stays_in() {
        let mut body = message(0, b"good\n");
        let good = body.len();
        body.extend_from_slice(b"\x02\0\0\0\0\0\0\0{}");
        let mut batch = Batch::default();
        let unreadable = batch.add(&Bytes::from(body.clone())).expect("the second record");
        assert_eq!(&unreadable.bytes[..], &body[good..]);
        assert_eq!(batch.records.len(), 1);
        assert!(batch.add(&Bytes::from_static(b"nonsense")).is_some());
        assert!(batch.add(&Bytes::from(message(1, b"more\n"))).is_none());
        let segment = batch.segment().concat();
        assert_eq!(&segment[batch.into_records()[1].rows.clone()], b"more\n");
    }

    #[test]
    fn what_is_known_is_left_out() {
        let mut batch = batch(&[message(0, b"zero\n"), message(1, b"one\n"), message(2, b"two\n")]);
        let is_one = |event: &ResultEvent| matches!(event, ResultEvent::Attempt(attempt) if attempt.mini_batch == 1);
        assert_eq!(batch.retain(|event| !is_one(event)), 1);
        let segment = batch.segment().concat();
        assert_eq!(segment.len(), batch.bytes);
        let rows: Vec<_> = batch.into_records().into_iter().map(|record| segment[record.rows].to_vec()).collect();
        assert_eq!(rows, [b"zero\n".to_vec(), b"two\n".to_vec()]);
    }

    #[test]
    fn what_stands_together_is_one_piece() {
        let mut body = protocol::begin_message("digits");
        let job_bytes = body.len();
        (0..4).for_each(|mini_batch| body.extend(message(mini_batch, b"row\n")));
        let mut batch = batch(&[body.clone(), body.clone()]);
        assert_eq!(batch.segment(), [&body[job_bytes..], &body[job_bytes..]]);
        let mut position = 0;
        batch.retain(|_| {
            position += 1;
            position != 2
        });
        assert_eq!(batch.segment().len(), 3);
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
