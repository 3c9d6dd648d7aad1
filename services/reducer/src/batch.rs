//! Records on their way from messages into the ledger, and from there into everything that follows from them.
//!
//! Of a job of millions of quick mini-batches nearly all of them are ordinary successes. Of those a batch holds a few
//! numbers, in one piece of memory for each message, and everything else stays in the bytes it came in.

use std::ops::Range;

use bytes::Bytes;
use protocol::{EventRef, RecordError, RecordRef, ResultEvent, Rows, encode_record, read_records};

/// What an ordinary success takes in a message, about: its path, its counts and times, and few rows.
const ORDINARY_BYTES: usize = 160;

/// The records of some messages, or of a segment of the ledger.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    messages: Vec<Message>,
    /// Of all records.
    bytes: usize,
}

/// A message, and its records that are in the batch.
#[derive(Debug)]
struct Message {
    body: Bytes,
    records: Vec<Held>,
    /// Who made the successes. Neighbours share it.
    processes: Vec<Process>,
    /// Columns of successes that returned a DataFrame. Neighbours share them too.
    column_lists: Vec<Vec<String>>,
}

/// A Python process.
#[derive(Debug)]
pub(crate) struct Process {
    pub node: String,
    /// `processNNN`.
    pub name: String,
}

/// A record: where it is in its message, to the end of its rows, and where these are.
#[derive(Debug)]
struct Held {
    span: Span,
    rows: Span,
    event: Event,
}

/// Where something is in a message.
#[derive(Clone, Copy, Debug)]
struct Span {
    start: u32,
    end: u32,
}

/// An event, as a batch holds it.
#[derive(Debug)]
pub(crate) enum Event {
    /// An ordinary success.
    Success(Success),
    /// Everything else.
    Other(Box<ResultEvent>),
}

/// An ordinary success. The fields are those of [`protocol::Success`]; what takes memory is elsewhere.
#[derive(Debug)]
pub(crate) struct Success {
    pub mini_batch: u64,
    pub try_number: u32,
    pub deliveries_lost: u32,
    pub total: u64,
    pub succeeded: u64,
    pub rows: Rows,
    pub started_at: u64,
    pub elapsed_seconds: f64,
    pub process_seconds: f64,
    pub run_seconds: f64,
    /// Where it is in the message.
    detail: Span,
    /// Position among the processes of the message.
    process: u32,
    /// Position among its column lists.
    columns: Option<u32>,
}

/// A record, with what it shares with others.
#[derive(Clone, Copy)]
pub(crate) struct Shown<'a> {
    pub event: &'a Event,
    body: &'a [u8],
    processes: &'a [Process],
    column_lists: &'a [Vec<String>],
}

/// What is put aside of a message: its end that is no sequence of records, or a record that is not believed.
#[derive(Debug)]
pub(crate) struct Unreadable {
    pub bytes: Bytes,
    pub reason: String,
}

/// Bytes that are no record.
pub(crate) struct NoRecord {
    pub start: usize,
    pub error: RecordError,
}

impl Event {
    /// Its mini-batch, if an attempt has ended.
    pub fn attempted(&self) -> Option<u64> {
        match self {
            Self::Success(success) => Some(success.mini_batch),
            Self::Other(event) => match &**event {
                ResultEvent::Attempt(attempt) => Some(attempt.mini_batch),
                _ => None,
            },
        }
    }

    /// Whether a mini-batch will not be attempted again.
    pub fn is_final(&self) -> bool {
        match self {
            Self::Success(_) => true,
            Self::Other(event) => matches!(&**event, ResultEvent::Attempt(attempt) if attempt.is_final),
        }
    }

    /// The event, unless it is an ordinary success.
    pub fn other(&self) -> Option<&ResultEvent> {
        match self {
            Self::Success(_) => None,
            Self::Other(event) => Some(event),
        }
    }
}

impl From<ResultEvent> for Event {
    fn from(event: ResultEvent) -> Self {
        Self::Other(Box::new(event))
    }
}

impl Span {
    fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }

    fn len(self) -> usize {
        self.range().len()
    }
}

impl From<Range<usize>> for Span {
    fn from(range: Range<usize>) -> Self {
        let position = |at| u32::try_from(at).expect("messages and segments are shorter than 4 GiB");
        Self { start: position(range.start), end: position(range.end) }
    }
}

impl<'a> Shown<'a> {
    /// Who made a success.
    pub fn process(&self, success: &Success) -> &'a Process {
        &self.processes[success.process as usize]
    }

    /// The columns of a success.
    pub fn columns(&self, success: &Success) -> Option<&'a Vec<String>> {
        success.columns.map(|position| &self.column_lists[position as usize])
    }

    /// The detail of a success.
    pub fn detail(&self, success: &Success) -> &'a str {
        str::from_utf8(&self.body[success.detail.range()]).expect("it was text when it was read first")
    }
}

impl Message {
    /// One of which no record is read.
    fn new(body: Bytes) -> Self {
        let records = Vec::with_capacity(body.len() / ORDINARY_BYTES);
        Self { body, records, processes: Vec::new(), column_lists: Vec::new() }
    }

    /// Reads its records, up to what is none.
    fn read(&mut self) -> Result<(), NoRecord> {
        let body = self.body.clone();
        let mut start = 0;
        for record in read_records(&body) {
            let RecordRef { event, rows } = record.map_err(|error| NoRecord { start, error })?;
            let span = std::mem::replace(&mut start, rows.end)..rows.end;
            let event = match event {
                EventRef::Success(success) => Event::Success(self.hold(success)),
                // The whole ledger belongs to the job.
                EventRef::Other(ResultEvent::Job { .. }) => continue,
                EventRef::Other(event) => event.into(),
            };
            self.records.push(Held { span: span.into(), rows: rows.into(), event });
        }
        Ok(())
    }

    fn hold(&mut self, success: protocol::Success<'_>) -> Success {
        let is_of = |process: &Process| process.name == success.process && process.node == success.node;
        if !self.processes.last().is_some_and(is_of) {
            self.processes.push(Process { node: success.node.into(), name: success.process.into() });
        }
        let columns = success.columns.map(|columns| {
            if self.column_lists.last().is_none_or(|last| *last != columns) {
                self.column_lists.push(columns.into_iter().map(str::to_owned).collect());
            }
            position(&self.column_lists)
        });
        let detail_start = success.detail.as_ptr().addr() - self.body.as_ptr().addr();
        Success {
            mini_batch: success.mini_batch,
            try_number: success.try_number,
            deliveries_lost: success.deliveries_lost,
            total: success.total,
            succeeded: success.succeeded,
            rows: success.rows.into(),
            started_at: success.started_at,
            elapsed_seconds: success.elapsed_seconds,
            process_seconds: success.process_seconds,
            run_seconds: success.run_seconds,
            detail: (detail_start..detail_start + success.detail.len()).into(),
            process: position(&self.processes),
            columns,
        }
    }

    fn shown(&self) -> impl Iterator<Item = Shown<'_>> {
        let Self { body, records, processes, column_lists } = self;
        records.iter().map(|held| Shown { event: &held.event, body, processes, column_lists })
    }

    /// Goes through its records and leaves out some of them. Returns the bytes that it has less.
    fn retain(&mut self, mut keeps: impl FnMut(Shown<'_>, &Held) -> bool) -> usize {
        let Self { body, records, processes, column_lists } = self;
        let mut left_out = 0;
        records.retain(|held| {
            let keep = keeps(Shown { event: &held.event, body, processes, column_lists }, held);
            left_out += if keep { 0 } else { held.span.len() };
            keep
        });
        left_out
    }

    /// The bytes of its records, in as few pieces as they stand there.
    fn pieces(&self) -> impl Iterator<Item = Bytes> {
        let runs = self.records.chunk_by(|one, next| one.span.end == next.span.start);
        runs.filter_map(|run| {
            let (first, last) = (run.first()?, run.last()?);
            Some(self.body.slice(Span { start: first.span.start, end: last.span.end }.range()))
        })
    }
}

impl Batch {
    /// Adds a message. What cannot be read of it stays out, and is returned.
    pub fn add(&mut self, body: &Bytes) -> Option<Unreadable> {
        let NoRecord { start, error } = self.read(body).err()?;
        Some(Unreadable { bytes: body.slice(start..), reason: error.to_string() })
    }

    /// Adds a message, or a segment, up to what is no record.
    pub fn read(&mut self, body: &Bytes) -> Result<(), NoRecord> {
        let mut message = Message::new(body.clone());
        let read = message.read();
        self.bytes += message.records.iter().map(|held| held.span.len()).sum::<usize>();
        self.messages.push(message);
        read
    }

    /// The events, in order.
    pub fn events(&self) -> impl Iterator<Item = &Event> {
        self.records().map(|record| record.event)
    }

    /// The records, in order.
    pub fn records(&self) -> impl Iterator<Item = Shown<'_>> {
        self.messages.iter().flat_map(Message::shown)
    }

    /// Takes out every record for which there is a reason to.
    pub fn take_refused(&mut self, refused: impl Fn(&Event) -> Option<String>) -> Vec<Unreadable> {
        let mut taken = Vec::new();
        for message in &mut self.messages {
            let body = message.body.clone();
            self.bytes -= message.retain(|record, held| {
                let Some(reason) = refused(record.event) else { return true };
                taken.push(Unreadable { bytes: body.slice(held.span.range()), reason });
                false
            });
        }
        taken
    }

    /// Adds the messages of another batch behind its own.
    pub fn append(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.messages.extend(other.messages);
    }

    /// Adds an event of the reducer's own.
    pub fn add_event(&mut self, event: &ResultEvent) {
        let mut body = Vec::new();
        encode_record(event, b"", &mut body);
        self.add(&body.into());
    }

    /// Leaves out every event that is not news. Returns how many of them were attempts.
    pub fn retain(&mut self, mut is_news: impl FnMut(&Event) -> bool) -> u64 {
        let mut attempts = 0;
        for message in &mut self.messages {
            self.bytes -= message.retain(|record, _| {
                let keep = is_news(record.event);
                attempts += u64::from(!keep && record.event.attempted().is_some());
                keep
            });
        }
        attempts
    }

    /// Goes through the records, each with the place of its rows in the segment, and leaves out those that change nothing.
    pub fn retain_in_segment(&mut self, mut changes: impl FnMut(Shown<'_>, Range<usize>) -> bool) {
        let mut end = 0;
        for message in &mut self.messages {
            self.bytes -= message.retain(|record, held| {
                end += held.span.len();
                changes(record, end - held.rows.len()..end)
            });
        }
    }

    /// Bytes of all records.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many records there are.
    pub fn len(&self) -> usize {
        self.messages.iter().map(|message| message.records.len()).sum()
    }

    /// The bytes of all records, in as few pieces as they stand in their messages.
    pub fn segment(&self) -> Vec<Bytes> {
        self.messages.iter().flat_map(Message::pieces).collect()
    }
}

/// Of the last one.
fn position<T>(list: &[T]) -> u32 {
    u32::try_from(list.len() - 1).expect("fewer than there are records")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{batch, message, records, succeeded};

    #[test]
    fn a_record_stays_small() {
        assert!(size_of::<Held>() <= 136, "{}", size_of::<Held>());
    }

    #[test]
    fn what_cannot_be_read_stays_out_and_the_rest_stays_in() {
        let mut body = message(0, b"good\n");
        let good = body.len();
        body.extend_from_slice(b"\x02\0\0\0\0\0\0\0{}");
        let mut batch = Batch::default();
        let unreadable = batch.add(&Bytes::from(body.clone())).expect("the second record");
        assert_eq!(&unreadable.bytes[..], &body[good..]);
        assert_eq!(batch.len(), 1);
        assert!(batch.add(&Bytes::from_static(b"nonsense")).is_some());
        assert!(batch.add(&Bytes::from(message(1, b"more\n"))).is_none());
        let segment = batch.segment().concat();
        assert_eq!(&segment[records(&batch)[1].rows.clone()], b"more\n");
    }

    #[test]
    fn what_is_known_is_left_out() {
        let mut batch = batch(&[message(0, b"zero\n"), message(1, b"one\n"), message(2, b"two\n")]);
        let is_one = |event: &Event| event.attempted() == Some(1);
        assert_eq!(batch.retain(|event| !is_one(event)), 1);
        let segment = batch.segment().concat();
        assert_eq!(segment.len(), batch.bytes());
        let rows: Vec<_> = records(&batch).into_iter().map(|record| segment[record.rows].to_vec()).collect();
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

    /// Whatever a batch keeps of a success itself, and whatever the bytes keep, belongs together, in every batch it comes to.
    #[test]
    fn what_is_shared_stays_with_its_success() {
        let made_by = |mini_batch: u64| {
            let mut attempt = succeeded(mini_batch, 1, 1, 1);
            (attempt.node, attempt.process) =
                (format!("n{}", mini_batch / 3).into(), format!("p{}", mini_batch / 2).into());
            attempt.columns = (!mini_batch.is_multiple_of(4)).then(|| vec![format!("c{}", mini_batch / 5)]);
            attempt.rows = Rows::Inline;
            attempt
        };
        let mut whole = Batch::default();
        for first in [0, 7, 14] {
            let mut body = protocol::begin_message("digits");
            for mini_batch in first..first + 7 {
                let event = ResultEvent::Attempt(Box::new(made_by(mini_batch)));
                encode_record(&event, format!("row {mini_batch}\n").as_bytes(), &mut body);
            }
            whole.append(batch(&[body]));
        }
        whole.retain(|event| event.attempted() != Some(9));
        let segment = whole.segment().concat();
        let mut seen = Vec::new();
        whole.retain_in_segment(|record, rows| {
            let Event::Success(success) = record.event else { panic!("{:?}", record.event) };
            let attempt = made_by(success.mini_batch);
            let process = record.process(success);
            assert_eq!((&*process.node, &*process.name), (&*attempt.node, &*attempt.process));
            assert_eq!(record.columns(success), attempt.columns.as_ref());
            assert_eq!(record.detail(success), attempt.detail);
            assert_eq!(segment[rows], *format!("row {}\n", success.mini_batch).as_bytes());
            seen.push(success.mini_batch);
            success.mini_batch != 4
        });
        assert_eq!(seen, (0..21).filter(|id| *id != 9).collect::<Vec<_>>());
        seen.retain(|id| *id != 4);
        assert_eq!(whole.events().filter_map(Event::attempted).collect::<Vec<_>>(), seen);
    }
}
