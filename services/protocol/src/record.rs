//! Result events as bytes: the body of a result message and a segment of the ledger are the same thing, a sequence
//! of records. So the reducer commits what it received by concatenation.
//!
//! A record is `u32 header length · u32 rows length · header (JSON of the event) · rows`, lengths little-endian.

use bytes::Bytes;

use crate::{ResultEvent, is_job_id};

/// One event, and its rows where it carries them inline.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// The event.
    pub event: ResultEvent,
    /// Rows of a successful attempt; empty otherwise.
    pub rows: Bytes,
    /// Where `rows` begin in the bytes that were decoded.
    pub rows_offset: usize,
}

/// The bytes are not a sequence of records.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// They end inside a record.
    #[error("a record at byte {offset} is cut short: the object or message is damaged")]
    Truncated {
        /// Where the record begins.
        offset: usize,
    },
    /// A header is not an event this build knows.
    #[error("a record at byte {offset} cannot be read: {source}")]
    Header {
        /// Where the record begins.
        offset: usize,
        /// What the decoder said.
        source: serde_json::Error,
    },
}

const PREFIX_BYTES: usize = 8;

/// Appends one record.
///
/// # Panics
/// If header or rows are 4 GiB or larger; rows that large are written as a part.
pub fn encode_record(event: &ResultEvent, rows: &[u8], into: &mut Vec<u8>) {
    let start = into.len();
    into.extend_from_slice(&[0; PREFIX_BYTES]);
    serde_json::to_writer(&mut *into, event).expect("events always serialise");
    let header_length = u32::try_from(into.len() - start - PREFIX_BYTES).expect("headers are small");
    let rows_length = u32::try_from(rows.len()).expect("rows of 4 GiB are written as a part");
    into[start..start + 4].copy_from_slice(&header_length.to_le_bytes());
    into[start + 4..start + PREFIX_BYTES].copy_from_slice(&rows_length.to_le_bytes());
    into.extend_from_slice(rows);
}

/// The beginning of a result message: the record that says whose events follow.
pub fn begin_message(job_id: &str) -> Vec<u8> {
    let mut message = Vec::new();
    encode_record(&ResultEvent::Job { job_id: job_id.to_owned() }, b"", &mut message);
    message
}

/// Whose events a result message holds; in the error, why it is none.
pub fn job_of_message(body: &Bytes) -> Result<String, String> {
    match decode_records(body).next() {
        Some(Ok(Record { event: ResultEvent::Job { job_id }, .. })) if is_job_id(&job_id) => Ok(job_id),
        Some(Ok(Record { event: ResultEvent::Job { job_id }, .. })) => Err(format!("{job_id:?} is no id of a job")),
        Some(Ok(_)) => Err("it does not begin with the job it belongs to".to_owned()),
        Some(Err(error)) => Err(error.to_string()),
        None => Err("it is empty".to_owned()),
    }
}

/// Reads every record of `bytes`.
pub fn decode_records(bytes: &Bytes) -> impl Iterator<Item = Result<Record, RecordError>> + '_ {
    let mut offset = 0;
    std::iter::from_fn(move || {
        if offset == bytes.len() {
            return None;
        }
        let decoded = decode_record(bytes, offset);
        offset = match &decoded {
            Ok(record) => record.rows_offset + record.rows.len(),
            Err(_) => bytes.len(),
        };
        Some(decoded)
    })
}

fn decode_record(bytes: &Bytes, offset: usize) -> Result<Record, RecordError> {
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
    let event = decode_event(header).map_err(|source| RecordError::Header { offset, source })?;
    Ok(Record { event, rows: bytes.slice(rows_offset..rows_offset + rows_length), rows_offset })
}

/// Nearly every event is an attempt. Read as what it is, it is not taken apart twice, as a tagged enum would be.
fn decode_event(header: &[u8]) -> serde_json::Result<ResultEvent> {
    if header.starts_with(br#"{"event":"attempt","#) {
        return serde_json::from_slice(header).map(ResultEvent::Attempt);
    }
    serde_json::from_slice(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stopped(node: &str) -> ResultEvent {
        ResultEvent::NodeStopped { node: node.to_owned(), cause: None }
    }

    #[test]
    fn records_come_back_with_their_rows_and_places() {
        let mut bytes = Vec::new();
        encode_record(&stopped("0"), b"one\n", &mut bytes);
        encode_record(&stopped("1"), b"", &mut bytes);
        let bytes = Bytes::from(bytes);
        let records: Vec<Record> = decode_records(&bytes).collect::<Result<_, _>>().expect("valid");
        assert_eq!(records.len(), 2);
        assert_eq!(&records[0].rows[..], b"one\n");
        assert_eq!(&bytes[records[0].rows_offset..][..4], b"one\n");
        assert_eq!(records[1].event, stopped("1"));
    }

    #[test]
    fn a_message_says_whose_it_is() {
        let mut message = begin_message("a-20261121-100203-ab12");
        encode_record(&stopped("0"), b"", &mut message);
        assert_eq!(job_of_message(&message.into()).as_deref(), Ok("a-20261121-100203-ab12"));
        let mut foreign = Vec::new();
        encode_record(&stopped("0"), b"", &mut foreign);
        for body in [Bytes::from(foreign), Bytes::from_static(b"hello, world"), Bytes::new()] {
            job_of_message(&body).expect_err("not a result message");
        }
    }

    #[test]
    fn a_cut_is_noticed_wherever_it_falls() {
        let mut bytes = Vec::new();
        encode_record(&stopped("0"), b"rows", &mut bytes);
        for length in 1..bytes.len() {
            let cut = Bytes::copy_from_slice(&bytes[..length]);
            assert!(decode_records(&cut).any(|record| record.is_err()), "cut at {length}");
        }
    }

    #[test]
    fn an_attempt_is_read_as_the_enum_would_read_it() {
        let header = br#"{"event":"attempt","mini_batch":7,"try_number":1,"deliveries_lost":0,"node":"0",
            "process":"process000","status":"succeeded","is_final":true,"total":1,"succeeded":1,
            "rows":{"kind":"part","name":"7-1","bytes":3},"started_at":1,"elapsed_seconds":0.5,"process_seconds":0.25,
            "run_seconds":0.5,"detail":"a.png","added_by_a_later_build":[1,{}]}"#;
        let tagged: ResultEvent = serde_json::from_slice(header).expect("valid");
        assert_eq!(decode_event(header).expect("valid"), tagged);
        let ResultEvent::Attempt(attempt) = &tagged else { panic!("not an attempt: {tagged:?}") };
        let mut bytes = Vec::new();
        encode_record(&tagged, b"", &mut bytes);
        assert!(bytes[PREFIX_BYTES..].starts_with(br#"{"event":"attempt","#), "the quick way is never taken");
        let record = decode_records(&Bytes::from(bytes)).next().expect("one").expect("valid");
        assert_eq!(record.event, ResultEvent::Attempt(attempt.clone()));
    }
}
