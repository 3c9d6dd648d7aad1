//! Records of messages, on their way to ledger, tally and reports.
//!
//! In large jobs almost every record is an ordinary success. A batch stores a few numbers of it, in one allocation for
//! each message, and refers to the message for everything else.

use std::num::NonZeroU32;
use std::ops::Range;

use bytes::Bytes;
use protocol::{
    AttemptCore, AttemptRef, EventRef, ProcessName, Record, RecordError, ResultEvent, Rows,
    SuccessRef, encode_record, read_records, rows_length,
};

/// Approximate size of an ordinary success in a message: its path, its counts and times, and few rows.
const ORDINARY_BYTES: usize = 160;

/// The records of some messages, or of a segment of the ledger.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    messages: Vec<Message>,
    /// Size of all records.
    bytes: usize,
}

/// A message, and its records that are in the batch.
#[derive(Debug)]
struct Message {
    body: Bytes,
    records: Vec<RecordRange>,
    /// Processes of the successes. Consecutive successes share one.
    processes: Vec<ProcessName<String>>,
    /// Columns of successes that returned a DataFrame. Consecutive successes share one.
    column_lists: Vec<Vec<String>>,
}

/// A record with its range in the message.
#[derive(Debug)]
struct RecordRange {
    span: Span,
    event: Event,
}

/// A range of a message in half the memory of [`Range<usize>`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    start: u32,
    end: u32,
}

/// An event in a batch.
#[derive(Debug)]
pub(crate) enum Event {
    /// An ordinary success.
    Success(Success),
    /// Everything else.
    Other(Box<ResultEvent>),
}

/// An ordinary success: its process and its columns are positions in the lists of its message, its texts are ranges of
/// it. Positions of columns count from 1, so that having none takes no memory.
pub(crate) type Success = AttemptCore<u32, Span, NonZeroU32>;

/// A record, with the data that it shares with others.
#[derive(Clone, Copy)]
pub(crate) struct RecordView<'a> {
    pub event: &'a Event,
    body: &'a [u8],
    processes: &'a [ProcessName<String>],
    column_lists: &'a [Vec<String>],
}

/// The place of a record in its segment, which ends with the rows of the record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlaceInSegment {
    start: usize,
    rows: usize,
    end: usize,
}

impl PlaceInSegment {
    /// Returns the range of the whole record.
    pub fn record(self) -> Range<usize> {
        self.start..self.end
    }

    /// Returns the range of the rows.
    pub fn rows(self) -> Range<usize> {
        self.rows..self.end
    }
}

/// Bytes of a message that cannot be committed: a rejected record, or everything from the first
/// byte that is not part of a record.
#[derive(Debug)]
pub(crate) struct Unreadable {
    pub bytes: Bytes,
    pub reason: String,
}

/// The bytes from `start` on are not a record.
pub(crate) struct NoRecord {
    pub start: usize,
    pub error: RecordError,
}

impl Event {
    /// Returns the mini-batch, if the event is an attempt.
    pub fn attempted(&self) -> Option<u64> {
        match self {
            Self::Success(success) => Some(success.mini_batch),
            Self::Other(event) => match &**event {
                ResultEvent::Attempt(attempt) => Some(attempt.mini_batch),
                _ => None,
            },
        }
    }

    /// Whether it ends a mini-batch.
    pub fn is_final(&self) -> bool {
        match self {
            Self::Success(_) => true,
            Self::Other(event) => {
                matches!(&**event, ResultEvent::Attempt(attempt) if attempt.is_final)
            }
        }
    }

    /// Whether only workers send such events, while they work on the job. A node that reports its
    /// own wait may have left the job to others.
    pub fn is_from_worker(&self) -> bool {
        let Self::Other(event) = self else { return true };
        matches!(
            &**event,
            ResultEvent::Attempt(_)
                | ResultEvent::ProcessStarted { .. }
                | ResultEvent::ProcessReady { .. }
                | ResultEvent::InitFailed { .. }
                | ResultEvent::ProcessEnded { .. }
                | ResultEvent::NodeStopped { .. }
                | ResultEvent::Working { .. }
        ) || matches!(&**event, ResultEvent::Waiting(waiting) if !waiting.process.is_empty())
    }

    /// Returns the event, unless it is an ordinary success.
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
        let position =
            |at| u32::try_from(at).expect("messages and segments are shorter than 4 GiB");
        Self { start: position(range.start), end: position(range.end) }
    }
}

impl<'a> RecordView<'a> {
    /// Returns a success with its texts and columns.
    pub fn attempt(&self, success: &Success) -> AttemptRef<'a> {
        let name = |position| {
            let ProcessName { node, process } = self.process(position);
            ProcessName { node: node.as_str(), process: process.as_str() }
        };
        success.map(name, |span| self.text(span), |position| self.columns(position))
    }

    /// Returns the process at a position.
    pub fn process(&self, position: u32) -> &'a ProcessName<String> {
        &self.processes[position as usize]
    }

    /// Returns the columns at a position.
    pub fn columns(&self, position: NonZeroU32) -> &'a [String] {
        &self.column_lists[position.get() as usize - 1]
    }

    /// Returns the rows of a success.
    pub fn rows(&self, success: &Success) -> Rows<&'a str> {
        success.rows.map(|span| self.text(span))
    }

    fn text(&self, span: Span) -> &'a str {
        str::from_utf8(&self.body[span.range()]).expect("it was text when it was read first")
    }
}

impl Message {
    fn new(body: Bytes) -> Self {
        let records = Vec::with_capacity(body.len() / ORDINARY_BYTES);
        Self { body, records, processes: Vec::new(), column_lists: Vec::new() }
    }

    /// Reads the records, up to the first bytes that are not a record.
    fn read(&mut self) -> Result<(), NoRecord> {
        let body = self.body.clone();
        let mut start = 0;
        for record in read_records(&body) {
            let Record { event, rows } = record.map_err(|error| NoRecord { start, error })?;
            let span = std::mem::replace(&mut start, rows.end)..rows.end;
            let event = match event {
                EventRef::Success(success) => Event::Success(self.hold(success)),
                // The whole ledger belongs to the job.
                EventRef::Other(ResultEvent::Job { .. }) => continue,
                EventRef::Other(event) => event.into(),
            };
            self.records.push(RecordRange { span: span.into(), event });
        }
        Ok(())
    }

    fn hold(&mut self, success: SuccessRef<'_>) -> Success {
        let Self { body, processes, column_lists, .. } = self;
        let position_of_process = |ProcessName { node, process }: ProcessName<&str>| {
            if processes.last().is_none_or(|last| last.process != process || last.node != node) {
                processes.push(ProcessName { node: node.to_owned(), process: process.to_owned() });
            }
            last_position(processes)
        };
        let position_of_columns = |columns: Vec<&str>| {
            if column_lists.last().is_none_or(|last| *last != columns) {
                column_lists.push(columns.into_iter().map(str::to_owned).collect());
            }
            NonZeroU32::MIN.saturating_add(last_position(column_lists))
        };
        let body_start = body.as_ptr().addr();
        let span_of = |text: &str| {
            let start = text.as_ptr().addr() - body_start;
            Span::from(start..start + text.len())
        };
        success.map(position_of_process, span_of, position_of_columns)
    }

    fn views(&self) -> impl Iterator<Item = RecordView<'_>> {
        let Self { body, records, processes, column_lists } = self;
        records.iter().map(|held| RecordView { event: &held.event, body, processes, column_lists })
    }

    /// Removes the records that `keeps` rejects. Returns their size.
    fn retain(&mut self, mut keeps: impl FnMut(RecordView<'_>, &RecordRange) -> bool) -> usize {
        let Self { body, records, processes, column_lists } = self;
        let mut removed = 0;
        records.retain(|held| {
            let keep =
                keeps(RecordView { event: &held.event, body, processes, column_lists }, held);
            removed += if keep { 0 } else { held.span.len() };
            keep
        });
        removed
    }

    /// Returns the bytes of the records; adjacent records are one piece.
    fn pieces(&self) -> impl Iterator<Item = Bytes> {
        let runs = self.records.chunk_by(|one, next| one.span.end == next.span.start);
        runs.filter_map(|run| {
            let (first, last) = (run.first()?, run.last()?);
            Some(self.body.slice(Span { start: first.span.start, end: last.span.end }.range()))
        })
    }
}

impl Batch {
    /// Adds a message. Returns the rest of it from the first byte that is not part of a record.
    pub fn add(&mut self, body: &Bytes) -> Option<Unreadable> {
        let NoRecord { start, error } = self.read(body).err()?;
        Some(Unreadable {
            bytes: body.slice(start..),
            reason: format!("{:#}", anyhow::Error::from(error)),
        })
    }

    /// Adds a message or a segment, up to the first bytes that are not a record.
    pub fn read(&mut self, body: &Bytes) -> Result<(), NoRecord> {
        let mut message = Message::new(body.clone());
        let read = message.read();
        self.bytes += message.records.iter().map(|held| held.span.len()).sum::<usize>();
        self.messages.push(message);
        read
    }

    /// Returns the events in order.
    pub fn events(&self) -> impl Iterator<Item = &Event> {
        self.records().map(|record| record.event)
    }

    /// Returns the records in order.
    pub fn records(&self) -> impl Iterator<Item = RecordView<'_>> {
        self.messages.iter().flat_map(Message::views)
    }

    /// Removes and returns the records for which `refused` has a reason.
    pub fn take_refused(
        &mut self,
        refused: impl Fn(RecordView<'_>) -> Option<String>,
    ) -> Vec<Unreadable> {
        let mut taken = Vec::new();
        for message in &mut self.messages {
            let body = message.body.clone();
            self.bytes -= message.retain(|record, held| {
                let Some(reason) = refused(record) else { return true };
                taken.push(Unreadable { bytes: body.slice(held.span.range()), reason });
                false
            });
        }
        taken
    }

    /// Appends the messages of another batch.
    pub fn append(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.messages.extend(other.messages);
    }

    /// Adds an event that the reducer itself makes.
    pub fn add_event(&mut self, event: &ResultEvent) {
        let mut body = Vec::new();
        encode_record(event, b"", &mut body);
        self.add(&body.into());
    }

    /// Removes every event that is not new. Returns how many of them were attempts.
    pub fn retain(&mut self, mut is_new: impl FnMut(&Event) -> bool) -> u64 {
        let mut attempts = 0;
        for message in &mut self.messages {
            self.bytes -= message.retain(|record, _| {
                let keep = is_new(record.event);
                attempts += u64::from(!keep && record.event.attempted().is_some());
                keep
            });
        }
        attempts
    }

    /// Passes each record, with its place in the segment, to `changes`, and removes those that change nothing.
    pub fn retain_in_segment(
        &mut self,
        mut changes: impl FnMut(RecordView<'_>, PlaceInSegment) -> bool,
    ) {
        let mut end = 0;
        for message in &mut self.messages {
            self.bytes -= message.retain(|record, held| {
                let start = end;
                end += held.span.len();
                let rows = end - rows_length(&record.body[held.span.range()]);
                changes(record, PlaceInSegment { start, rows, end })
            });
        }
    }

    /// Returns the size of all records.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of records.
    pub fn len(&self) -> usize {
        self.messages.iter().map(|message| message.records.len()).sum()
    }

    /// Returns the bytes of all records; adjacent records are one piece.
    pub fn segment(&self) -> Vec<Bytes> {
        self.messages.iter().flat_map(Message::pieces).collect()
    }
}

fn last_position<T>(list: &[T]) -> u32 {
    u32::try_from(list.len() - 1).expect("there are fewer entries than records")
}

#[cfg(test)]
mod tests {
    use protocol::Phases;

    use super::*;
    use crate::fixtures::{batch, event, message, records, succeeded};

    #[test]
    fn record_takes_128_bytes_at_most() {
        assert!(size_of::<RecordRange>() <= 128, "{}", size_of::<RecordRange>());
    }

    #[test]
    fn unreadable_rest_of_a_message_is_returned() {
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
    fn retain_removes_known_events() {
        let mut batch = batch(&[message(0, b"zero\n"), message(1, b"one\n"), message(2, b"two\n")]);
        let is_one = |event: &Event| event.attempted() == Some(1);
        assert_eq!(batch.retain(|event| !is_one(event)), 1);
        let segment = batch.segment().concat();
        assert_eq!(segment.len(), batch.bytes());
        let rows: Vec<_> =
            records(&batch).into_iter().map(|record| segment[record.rows].to_vec()).collect();
        assert_eq!(rows, [b"zero\n".to_vec(), b"two\n".to_vec()]);
    }

    #[test]
    fn adjacent_records_are_one_piece() {
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

    /// The numbers in a batch and the texts in its messages stay together when batches are joined and filtered.
    #[test]
    fn success_keeps_its_process_columns_and_texts() {
        let made_by = |mini_batch: u64| {
            let mut attempt = succeeded(mini_batch, 1, 1, 1);
            (attempt.node, attempt.process) =
                (format!("n{}", mini_batch / 3).into(), format!("p{}", mini_batch / 2).into());
            attempt.phases = Phases::new(mini_batch as f64, 0.5, 0.25);
            attempt.columns =
                (!mini_batch.is_multiple_of(4)).then(|| vec![format!("c{}", mini_batch / 5)]);
            attempt.rows = match mini_batch % 3 {
                0 => Rows::Part { name: format!("{mini_batch}-1"), bytes: mini_batch },
                _ => Rows::Inline,
            };
            attempt
        };
        let mut whole = Batch::default();
        for first in [0, 7, 14] {
            let mut body = protocol::begin_message("digits");
            for mini_batch in first..first + 7 {
                let event = event(made_by(mini_batch));
                encode_record(&event, format!("row {mini_batch}\n").as_bytes(), &mut body);
            }
            whole.append(batch(&[body]));
        }
        whole.retain(|event| event.attempted() != Some(9));
        let segment = whole.segment().concat();
        let mut seen = Vec::new();
        whole.retain_in_segment(|record, place| {
            let rows = place.rows();
            let Event::Success(success) = record.event else { panic!("{:?}", record.event) };
            assert_eq!(record.attempt(success), made_by(success.mini_batch).core());
            assert_eq!(segment[rows], *format!("row {}\n", success.mini_batch).as_bytes());
            seen.push(success.mini_batch);
            success.mini_batch != 4
        });
        assert_eq!(seen, (0..21).filter(|id| *id != 9).collect::<Vec<_>>());
        seen.retain(|id| *id != 4);
        assert_eq!(whole.events().filter_map(Event::attempted).collect::<Vec<_>>(), seen);
    }
}
