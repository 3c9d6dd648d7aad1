//! Result events as bytes. The body of a result message and a segment of the ledger have the same form, a sequence of
//! records, so the reducer commits messages by concatenating them.
//!
//! A record has the layout of a frame: `u32 header length · u32 rows length · header · rows`, lengths little-endian.
//! The header is the event: compact for an ordinary success, JSON for everything else.

use std::ops::Range;

use bytes::Bytes;

use crate::attempt::{MARKER, decode_success, encode_success};
use crate::frame::{PREFIX_BYTES, encode_with};
use crate::{NameError, ResultEvent, SuccessRef, check_job_id};

/// One event, and the range of its rows if it carries them inline.
#[derive(Clone, Debug, PartialEq)]
pub struct Record<Event = ResultEvent> {
    /// The event.
    pub event: Event,
    /// Range of the rows of a successful attempt in the decoded bytes; empty for other events. The record ends with it.
    pub rows: Range<usize>,
}

/// An event that borrows from its bytes, if it is an ordinary success.
#[derive(Clone, Debug, PartialEq)]
pub enum EventRef<'a> {
    /// An ordinary success.
    Success(SuccessRef<'a>),
    /// Any other event, and every event that was written as JSON.
    Other(ResultEvent),
}

impl From<EventRef<'_>> for ResultEvent {
    fn from(event: EventRef<'_>) -> Self {
        match event {
            EventRef::Success(success) => Self::Attempt(Box::new(success.into())),
            EventRef::Other(event) => event,
        }
    }
}

/// The bytes are not a sequence of records.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// They end inside a record.
    #[error("a record at byte {offset} is cut short: the object or message is damaged")]
    Truncated {
        /// Start of the record.
        offset: usize,
    },
    /// A JSON header is not an event that this build knows.
    #[error("a record at byte {offset} cannot be read")]
    Header {
        /// Start of the record.
        offset: usize,
        /// Error of the decoder.
        source: serde_json::Error,
    },
    /// A compact header is not an ordinary success.
    #[error("a record at byte {offset} cannot be read")]
    Success {
        /// Start of the record.
        offset: usize,
        /// Error of the decoder.
        source: postcard::Error,
    },
}

/// The bytes are not a message that belongs to a job.
#[derive(Debug, thiserror::Error)]
pub enum MessageError {
    /// The message has no bytes.
    #[error("it is empty")]
    Empty,
    /// The first record of a result message does not name a job.
    #[error("it does not begin with the job it belongs to")]
    NoJob,
    /// The first record of a result message cannot be read.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// A task message is not a descriptor that this build knows.
    #[error(transparent)]
    Descriptor(#[from] serde_json::Error),
    /// The job id is invalid.
    #[error(transparent)]
    JobId(#[from] NameError),
}

/// Appends one record.
///
/// # Panics
/// If header or rows are 4 GiB or larger; the worker writes rows of that size as a part.
pub fn encode_record(event: &ResultEvent, rows: &[u8], into: &mut Vec<u8>) {
    encode_with(rows, into, |into| {
        let is_compact =
            matches!(event, ResultEvent::Attempt(attempt) if encode_success(attempt, into));
        if !is_compact {
            serde_json::to_writer(into, event).expect("events always serialise");
        }
    });
}

/// Returns the beginning of a result message: the record that names the job of all events after it.
pub fn begin_message(job_id: &str) -> Vec<u8> {
    let mut message = Vec::new();
    encode_record(&ResultEvent::Job { job_id: job_id.to_owned() }, b"", &mut message);
    message
}

/// Returns the job of a result message.
pub fn job_of_message(body: &Bytes) -> Result<String, MessageError> {
    match decode_records(body).next().ok_or(MessageError::Empty)??.event {
        ResultEvent::Job { job_id } => {
            check_job_id(&job_id)?;
            Ok(job_id)
        }
        _ => Err(MessageError::NoJob),
    }
}

/// Reads every record of `bytes`.
pub fn decode_records(bytes: &Bytes) -> impl Iterator<Item = Result<Record, RecordError>> + '_ {
    read_records(bytes)
        .map(|record| record.map(|Record { event, rows }| Record { event: event.into(), rows }))
}

/// Reads every record of `bytes` without copying the texts of ordinary successes.
pub fn read_records(
    bytes: &[u8],
) -> impl Iterator<Item = Result<Record<EventRef<'_>>, RecordError>> {
    let mut offset = 0;
    std::iter::from_fn(move || {
        if offset == bytes.len() {
            return None;
        }
        let read = read_record(bytes, offset);
        offset = match &read {
            Ok(record) => record.rows.end,
            Err(_) => bytes.len(),
        };
        Some(read)
    })
}

/// Returns the length of the rows at the end of a record.
///
/// # Panics
/// If these bytes are shorter than the prefix of a record.
pub fn rows_length(record: &[u8]) -> usize {
    u32::from_le_bytes(record[4..PREFIX_BYTES].try_into().expect("four bytes")) as usize
}

fn read_record(bytes: &[u8], offset: usize) -> Result<Record<EventRef<'_>>, RecordError> {
    let truncated = || RecordError::Truncated { offset };
    let length_at = |at: usize| -> Result<usize, RecordError> {
        let field = bytes.get(at..at + 4).ok_or_else(truncated)?;
        Ok(u32::from_le_bytes(field.try_into().expect("four bytes")) as usize)
    };
    let header_length = length_at(offset)?;
    let rows_length = length_at(offset + 4)?;
    let header_offset = offset + PREFIX_BYTES;
    let rows_offset = header_offset + header_length;
    let header = bytes.get(header_offset..rows_offset).ok_or_else(truncated)?;
    if bytes.len() < rows_offset + rows_length {
        return Err(truncated());
    }
    let event = match header.split_first() {
        Some((&MARKER, fields)) => EventRef::Success(
            decode_success(fields).map_err(|source| RecordError::Success { offset, source })?,
        ),
        _ => EventRef::Other(
            serde_json::from_slice(header)
                .map_err(|source| RecordError::Header { offset, source })?,
        ),
    };
    Ok(Record { event, rows: rows_offset..rows_offset + rows_length })
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;

    use super::*;
    use crate::{
        Attempt, AttemptStatus, ErrorReport, Phases, Rejected, Rows, TraceParent, WaitTimes,
        Warning, WarningKind,
    };

    fn stopped(node: &str) -> ResultEvent {
        ResultEvent::NodeStopped { node: node.to_owned(), cause: None }
    }

    #[test]
    fn records_keep_their_rows_and_ranges() {
        let mut bytes = Vec::new();
        encode_record(&stopped("0"), b"one\n", &mut bytes);
        encode_record(&stopped("1"), b"", &mut bytes);
        let bytes = Bytes::from(bytes);
        let records: Vec<Record> = decode_records(&bytes).collect::<Result<_, _>>().expect("valid");
        assert_eq!(records.len(), 2);
        assert_eq!(&bytes[records[0].rows.clone()], b"one\n");
        assert_eq!(records[1].event, stopped("1"));
    }

    #[test]
    fn message_names_its_job() {
        let mut message = begin_message("a-20261121-100203-ab12");
        encode_record(&stopped("0"), b"", &mut message);
        assert_eq!(job_of_message(&message.into()).expect("valid"), "a-20261121-100203-ab12");
        let mut foreign = Vec::new();
        encode_record(&stopped("0"), b"", &mut foreign);
        for body in [Bytes::from(foreign), Bytes::from_static(b"hello, world"), Bytes::new()] {
            job_of_message(&body).expect_err("not a result message");
        }
    }

    #[test]
    fn every_cut_is_detected() {
        let mut bytes = Vec::new();
        encode_record(&stopped("0"), b"rows", &mut bytes);
        for length in 1..bytes.len() {
            let cut = Bytes::copy_from_slice(&bytes[..length]);
            assert!(decode_records(&cut).any(|record| record.is_err()), "cut at {length}");
        }
    }

    fn attempt() -> impl Strategy<Value = Attempt> {
        let ids = (any::<u64>(), any::<u32>(), any::<u32>(), ".{0,9}", ".{0,9}", any::<bool>());
        let status =
            prop_oneof![3 => Just(AttemptStatus::Succeeded), 1 => Just(AttemptStatus::RunRaised)];
        let rows = prop_oneof![
            Just(Rows::None),
            Just(Rows::Inline),
            (".{0,9}", any::<u64>()).prop_map(|(name, bytes)| Rows::Part { name, bytes }),
        ];
        let columns = option::of(vec(".{0,9}", 0..4));
        // JSON keeps these values exactly.
        let seconds = || any::<u16>().prop_map(|count| f64::from(count) / 1024.0);
        let counts = (any::<u64>(), any::<u64>(), any::<u64>());
        let error = option::weighted(0.2, ".{0,9}");
        let warnings = prop_oneof![3 => Just(vec![]), 1 => vec(".{0,9}", 1..3)];
        let traceparent = option::weighted(0.2, (any::<[u8; 16]>(), any::<[u8; 8]>(), any::<u8>()));
        let traceparent = traceparent.prop_map(|parts| {
            let (mut trace_id, mut span_id, flags) = parts?;
            (trace_id[0], span_id[0]) = (1, 1);
            Some(TraceParent { trace_id, span_id, flags })
        });
        let kind = ".{0,9}".prop_map(|problem| WarningKind {
            column: None,
            problem,
            count: 1,
            first: String::new(),
            remedy: String::new(),
            column_type: None,
        });
        let kinds = prop_oneof![3 => Just(vec![]), 1 => vec(kind, 1..3)];
        let rejected =
            (any::<u64>(), any::<u64>(), ".{0,9}").prop_map(|(item, items, detail)| Rejected {
                item,
                items,
                values: detail.clone(),
                detail,
                status: AttemptStatus::RunTimedOut,
                error: ErrorReport::default(),
                run: (item % 2 == 0)
                    .then(|| crate::FailedRun { process: "process001".into(), started_at: items }),
            });
        let rejected = prop_oneof![3 => Just(vec![]), 1 => vec(rejected, 1..3)];
        let isolation = (
            rejected,
            prop_oneof![3 => Just(0), 1 => any::<u32>()],
            prop_oneof![3 => Just(false), 1 => Just(true)],
        );
        let total = prop_oneof![3 => Just(0), 1 => any::<u64>()];
        let texts = (error, warnings, total, ".{0,30}", traceparent, kinds, isolation);
        let micros = || any::<u32>().prop_map(|count| f64::from(count) / 1e6);
        let phases = option::of((micros(), micros(), micros()));
        let phases = phases.prop_map(|phases| {
            phases.map_or_else(Phases::default, |(a, b, c)| Phases::new(a, b, c))
        });
        let times = (seconds(), seconds(), seconds(), phases);
        (ids, (status, rows, columns), counts, times, texts).prop_map(
            |(ids, (status, rows, columns), counts, times, texts)| Attempt {
                mini_batch: ids.0,
                try_number: ids.1,
                round: u32::from(texts.6.2) * 2,
                deliveries_lost: ids.2,
                node: ids.3.into(),
                process: ids.4.into(),
                status,
                is_final: ids.5,
                total: counts.0,
                succeeded: counts.1,
                rows,
                columns,
                started_at: counts.2,
                elapsed_seconds: times.0,
                process_seconds: times.1,
                run_seconds: times.2,
                phases: times.3,
                error: texts
                    .0
                    .map(|message| Box::new(ErrorReport { message, ..ErrorReport::default() })),
                warnings: texts.1.into_iter().map(|message| Warning { message }).collect(),
                warnings_total: texts.2,
                warning_kinds: texts.5,
                rejected: texts.6.0,
                rejected_part: None,
                unread: vec![],
                pieces: vec![],
                extra_runs: texts.6.1,
                items_kept: u64::from(texts.6.1),
                waited: WaitTimes {
                    limits_milliseconds: texts.6.1.into(),
                    services_milliseconds: 0,
                },
                copy: texts.6.2,
                asked_limits: texts.6.2,
                values: if status == AttemptStatus::Succeeded {
                    String::new()
                } else {
                    texts.3.clone()
                },
                detail: texts.3,
                traceparent: texts.4,
            },
        )
    }

    fn record_of(attempt: &Attempt) -> Bytes {
        let mut bytes = Vec::new();
        encode_record(&ResultEvent::Attempt(Box::new(attempt.clone())), b"rows", &mut bytes);
        bytes.into()
    }

    fn is_compact(record: &Bytes) -> bool {
        record[PREFIX_BYTES] == MARKER
    }

    proptest! {
        #[test]
        fn every_attempt_survives_encoding(attempt in attempt()) {
            let bytes = record_of(&attempt);
            let is_ordinary = attempt.status == AttemptStatus::Succeeded && attempt.is_final && attempt.error.is_none()
                && attempt.warnings.is_empty() && attempt.warning_kinds.is_empty() && attempt.warnings_total == 0
                && attempt.traceparent.is_none() && attempt.rejected.is_empty() && attempt.extra_runs == 0
                && !attempt.copy && attempt.round == 0;
            prop_assert_eq!(is_compact(&bytes), is_ordinary);
            let record = decode_records(&bytes).next().expect("one").expect("valid");
            prop_assert_eq!(&bytes[record.rows.clone()], b"rows");
            prop_assert_eq!(record.event, ResultEvent::Attempt(Box::new(attempt)));
        }

        #[test]
        fn any_bytes_are_read_or_rejected(header in vec(any::<u8>(), 0..200), marker in option::of(Just(MARKER))) {
            let mut bytes = Vec::new();
            bytes.extend_from_slice(&(header.len() as u32 + u32::from(marker.is_some())).to_le_bytes());
            bytes.extend_from_slice(&0u32.to_le_bytes());
            bytes.extend(marker);
            bytes.extend_from_slice(&header);
            let _ = decode_records(&bytes.into()).next().expect("a record or an error");
        }
    }

    #[test]
    fn phases_take_a_few_bytes() {
        let json = r#"{"mini_batch":7,"try_number":1,"deliveries_lost":0,"node":"0","process":"process000",
            "status":"succeeded","is_final":true,"total":1,"succeeded":1,"rows":{"kind":"inline"},"started_at":1,
            "elapsed_seconds":0.5,"process_seconds":0.25,"run_seconds":0.5,"detail":"a.png"}"#;
        let without: Attempt = serde_json::from_str(json).expect("valid");
        for (phases, bytes) in
            [((0.012, 0.0, 0.000_008), 1), ((1.5, 0.25, 0.01), 5), ((86_400.0, 60.0, 3.0), 11)]
        {
            let phases = Phases::new(phases.0, phases.1, phases.2);
            let with = Attempt { phases, ..without.clone() };
            let record = record_of(&with);
            assert_eq!(record.len(), record_of(&without).len() + bytes, "{phases:?}");
            assert_eq!(rows_length(&record), b"rows".len());
            let read = decode_records(&record).next().expect("one").expect("valid");
            assert_eq!(read.event, ResultEvent::Attempt(Box::new(with.clone())));
            let failed = Attempt { status: AttemptStatus::RunRaised, ..with };
            let text = serde_json::to_string(&failed).expect("serialises");
            assert_eq!(serde_json::from_str::<Attempt>(&text).expect("valid"), failed, "{text}");
        }
    }

    #[test]
    fn compact_header_with_excess_bytes_is_rejected() {
        let json = r#"{"mini_batch":7,"try_number":1,"deliveries_lost":0,"node":"0","process":"process000",
            "status":"succeeded","is_final":true,"total":1,"succeeded":1,"rows":{"kind":"inline"},"started_at":1,
            "elapsed_seconds":0.5,"process_seconds":0.25,"run_seconds":0.5,"detail":"a.png"}"#;
        let whole = record_of(&serde_json::from_str(json).expect("valid"));
        let header = u32::from_le_bytes(whole[..4].try_into().expect("four"));
        let mut longer = whole.to_vec();
        longer[..4].copy_from_slice(&(header + 1).to_le_bytes());
        longer[4..8].copy_from_slice(&3u32.to_le_bytes());
        let read = decode_records(&longer.into()).next().expect("one");
        assert!(matches!(read, Err(RecordError::Success { offset: 0, .. })), "{read:?}");
    }
}
