//! One segment of the ledger, decoded. Decoding does not depend on earlier segments, so several are decoded at the same
//! time, while one thread applies them in order.

use std::collections::HashMap;

use protocol::{
    AttemptCore, EventRef, ProcessName, Record, RecordError, ResultEvent, read_records,
};

/// The events of one segment.
#[derive(Debug)]
pub struct Segment {
    /// The processes of its successes, each once.
    pub processes: Vec<ProcessName<String>>,
    pub entries: Vec<RecordedEvent>,
}

/// An event, and the place of its record in the segment.
#[derive(Debug)]
pub struct RecordedEvent {
    pub start: u64,
    pub length: u32,
    pub event: Event,
}

#[derive(Debug)]
pub enum Event {
    /// An ordinary success without its texts. Its process is a position among those of the segment.
    Success(AttemptCore<u32, (), ()>),
    Other(Box<ResultEvent>),
}

impl Segment {
    /// Reads every record.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        if bytes.is_empty() {
            return Err(RecordError::Truncated { offset: 0 });
        }
        let mut positions: HashMap<(&str, &str), u32> = HashMap::new();
        let mut processes = Vec::new();
        let mut entries = Vec::new();
        let mut start = 0;
        for record in read_records(bytes) {
            let Record { event, rows } = record?;
            let event = match event {
                EventRef::Success(success) => {
                    let ProcessName { node, process } = success.process;
                    let next = u32::try_from(processes.len()).unwrap_or(u32::MAX);
                    let position = *positions.entry((node, process)).or_insert(next);
                    if position == next {
                        processes.push(ProcessName {
                            node: node.to_owned(),
                            process: process.to_owned(),
                        });
                    }
                    Event::Success(success.map(|_| position, |_| (), |_| ()))
                }
                EventRef::Other(event) => Event::Other(Box::new(event)),
            };
            let length = u32::try_from(rows.end - start).unwrap_or(u32::MAX);
            entries.push(RecordedEvent { start: start as u64, length, event });
            start = rows.end;
        }
        Ok(Self { processes, entries })
    }
}
