//! Frames between an agent and one of its Python processes, over an inherited Unix socket.
//!
//! A frame is `u32 header length · u32 payload length · header (JSON) · payload`, lengths little-endian, the layout of
//! a result record. Tables do not travel in the frame: each table is a memory file (Arrow IPC stream), which only grows, and the
//! frame passes its file descriptor (`SCM_RIGHTS`) in the order of the mini-batches.
//!
//! A frame to the process may name many mini-batches, so that the process never waits for the next one. The process
//! answers each with one event, in order. It writes its current phase to the *status page*, a shared memory file that
//! the agent can read even while user code holds the interpreter.
//!
//! User code may write to the socket or close it. Its descriptor has a high number, which scripts
//! rarely guess. A frame that is invalid, or that does not end while user code runs, fails the
//! oldest unanswered mini-batch and replaces the process. No deadline depends on a report of the
//! process.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::spec::{default_concurrency, is_default_concurrency};
use crate::{
    AttemptStatus, ErrorReport, ItemPath, OutputFormat, RateLimits, ResultSchema, Warning,
    is_default,
};

/// Largest header or payload of one frame: a larger length is an error, not a hang.
pub const FRAME_LENGTH_MAX: usize = 2 * 1024 * 1024 * 1024;
/// Memory that is reserved at once for an announced frame, because the length may be invalid.
const RESERVE_MAX: usize = 64 * 1024 * 1024;

/// Size of the status page.
pub const STATUS_PAGE_BYTES: usize = 4096;

/// Byte offsets of the `u64` fields of the status page.
pub mod status_offset {
    /// `(mini-batch sequence number << 8) | phase`; see [`crate::SlotPhase`]. Written after `SINCE`.
    pub const STATE: usize = 0;
    /// `CLOCK_MONOTONIC` nanoseconds at which the phase began.
    pub const SINCE: usize = 8;
    /// First hand-over that the agent recalls. The agent writes this field and the next; the process writes all others.
    pub const RECALL_FIRST: usize = 16;
    /// End of the hand-overs that the agent recalls; 0: none. A process that starts a hand-over writes `STATE` and then
    /// reads this field; the agent writes this field and then reads `STATE`. So if `STATE` names an earlier hand-over,
    /// none of the recalled ones starts.
    pub const RECALL_END: usize = 24;
    /// For stdout and stderr of the script: the number, plus one, of the hand-over that printed last, and the offset of
    /// its output in the file. 0: nothing was printed.
    pub const PRINTED: [[usize; 2]; 2] = [[32, 40], [48, 56]];
    /// `CLOCK_MONOTONIC` nanoseconds at which the last `run()` began. Written before `STATE`.
    pub const RUN_SINCE: usize = 64;
}

/// A frame's header, agent to process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "frame", rename_all = "snake_case")]
pub enum ToProcess {
    /// First frame: import the script, call `init()`.
    Configure(Box<Configure>),
    /// First frame to a template, a process that forks itself into others: import libraries.
    Template(TemplateSettings),
    /// Fork a process. The frame brings its descriptors 3, 4, 1 and 2, in this order.
    Fork {
        /// Its working directory.
        scratch: ItemPath,
        /// Variables that differ from those of the template.
        environment: Vec<(String, String)>,
    },
    /// Call `run()` for each, in order.
    MiniBatches {
        /// At least one.
        mini_batches: Vec<MiniBatchFrame>,
    },
    /// The limits of the job allow these acquisitions.
    Granted {
        /// Their ids, as the process has chosen them.
        ids: Vec<u64>,
    },
    /// Call `shutdown()` and exit with status 0.
    Finish,
}

/// Settings that a process needs before its first mini-batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Configure {
    /// Module name of the entry script: `a/b.py` is `a.b`.
    pub module: String,
    /// Absolute path of the snapshot root, an entry of `sys.path`.
    pub snapshot: ItemPath,
    /// Absolute path of the entry script.
    pub script: ItemPath,
    /// `sys.argv[1:]`.
    pub argv: Vec<String>,
    /// `processNNN`.
    pub process: String,
    /// Node.
    pub node: String,
    /// Absolute path of the job's `logs` folder.
    pub logs: ItemPath,
    /// Absolute output folder; if `None`, `EntryScript().output_dir` is the working directory.
    pub output: Option<ItemPath>,
    /// Absolute path of the scratch folder, which becomes the working directory. It exists and holds links to the
    /// snapshot.
    pub scratch: ItemPath,
    /// Absolute path of the folder for results that scripts hand back before `run()` has ended. It need not exist.
    pub checkpoints: ItemPath,
    /// `DEBUG`, `INFO`, …
    pub logging_level: String,
    /// `""`, `cProfile` or `profile`.
    pub profiling_module: String,
    /// Whether the job collects rows (`append_row`) or only counts them.
    pub rows_wanted: bool,
    /// The format of rows.
    pub output_format: OutputFormat,
    /// `to_csv` keyword arguments that replace the default ones.
    pub to_csv_arguments: serde_json::Map<String, serde_json::Value>,
    /// Fail a mini-batch whose result is shorter than its input.
    pub strict_results: bool,
    /// Items of one mini-batch that an asynchronous `run_item()` works on at a time. The default does not travel, so
    /// that the process can say that another number has no effect.
    #[serde(default = "default_concurrency", skip_serializing_if = "is_default_concurrency")]
    pub concurrency: u32,
    /// The limits of the job. If there are any, the process asks the agent before each request.
    #[serde(default, skip_serializing_if = "RateLimits::is_empty")]
    pub limits: RateLimits,
    /// Largest size of one log file of user code; the process drops further output and notes that in the file.
    pub log_bytes_max: u64,
    /// Threads that the numeric libraries of one process should use: its share of the cores. Sets `OMP_NUM_THREADS`
    /// unless the user has.
    pub threads: u32,
    /// Mini-batches may be DataFrames.
    pub tabular: bool,
    /// Items of every mini-batch except the last; `None` if they differ or are unknown before reading.
    pub items_per_mini_batch: Option<u64>,
    /// The schema of each row; `None`: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub row_schema: Option<ResultSchema>,
}

/// Settings of a template.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TemplateSettings {
    /// Names of modules.
    pub libraries: Vec<String>,
    /// See [`Configure::snapshot`].
    pub snapshot: ItemPath,
    /// See [`Configure::script`].
    pub script: ItemPath,
    /// See [`Configure::threads`].
    pub threads: u32,
}

/// One mini-batch for a process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MiniBatchFrame {
    /// Number of the hand-over to this process, from 1; the status page and the answer name it.
    pub sequence: u64,
    /// Mini-batch, from 0.
    pub mini_batch: u64,
    /// Number of this try, from 1.
    pub try_number: u32,
    /// The first item of a range to run alone, and the end of the range; `None`: all items.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub items: Option<(u64, u64)>,
    /// Whether `run()` is not called, and only results count that earlier attempts have handed back. Items without one
    /// failed with the attempt before.
    #[serde(default, skip_serializing_if = "is_default")]
    pub only_kept: bool,
    /// Whether an earlier attempt may have handed back results of some items.
    #[serde(default, skip_serializing_if = "is_default")]
    pub resumes: bool,
    /// Whether the answer may name items that have failed, because no other try follows and the job isolates them.
    #[serde(default, skip_serializing_if = "is_default")]
    pub names_failed_items: bool,
    /// Whether no item of the last mini-batches has succeeded, so that a few failures are enough to give this one up.
    #[serde(default, skip_serializing_if = "is_default")]
    pub doubted: bool,
    /// The number that the script sees, if it is a mini-batch of another job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shown_as: Option<u64>,
    /// Partition key values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub key: Vec<(String, String)>,
    /// Rows of the input before those of the table; `None` if the plan did not count them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows_before: Option<u64>,
    /// Source of the argument of `run()`. Shared with the mini-batch, which may be handed over again.
    #[serde(with = "shared")]
    pub payload: Arc<Payload>,
}

mod shared {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Payload;

    pub fn serialize<S: Serializer>(
        payload: &Arc<Payload>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        payload.as_ref().serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Arc<Payload>, D::Error> {
        Payload::deserialize(deserializer).map(Arc::new)
    }
}

/// Source of the argument of `run()`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Payload {
    /// A list of paths.
    Files {
        /// Absolute local paths.
        paths: Vec<ItemPath>,
        /// The [stamp](crate::FileVersion::stamp) of each path, by which the process detects a change; empty if
        /// unknown.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        stamps: Vec<u32>,
    },
    /// A DataFrame from the next memory file of the frame, an Arrow IPC stream of one record batch.
    Table {
        /// Rows in the frame.
        rows: u64,
        /// Items of the mini-batch: `rows` and the records that failed before `run()`.
        total: u64,
        /// Length of the memory file.
        bytes: u64,
        /// Whether its metadata says what its Parquet file declares about the columns.
        #[serde(default, skip_serializing_if = "is_default")]
        is_declared: bool,
    },
    /// An empty list that counts as one item.
    Rank,
}

/// The form in which a script gets the rows of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TableForm {
    /// As a DataFrame of pandas.
    #[default]
    Frame,
    /// As a DataFrame of pandas, with the types that its Parquet file declares, if it comes from one.
    Declared,
    /// As a table of Arrow.
    Arrow,
    /// As dictionaries.
    Items,
}

/// A frame's header, process to agent. The frame of a success carries its rows as payload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "frame", rename_all = "snake_case")]
pub enum ProcessEvent {
    /// The script is imported and `init()` has returned.
    Ready {
        /// Duration of import and `init()`.
        init_seconds: f64,
        /// Duration of the import alone.
        #[serde(default)]
        import_seconds: f64,
        /// `major.minor.micro` of the interpreter.
        python_version: String,
        /// The form in which the script gets the rows of a table.
        #[serde(default)]
        takes: TableForm,
    },
    /// A template can fork processes.
    TemplateReady {
        /// The libraries that it has imported: those that are installed.
        libraries: Vec<String>,
    },
    /// A template has forked a process, which is now a child of the agent.
    Forked {
        /// Its id.
        pid: u32,
    },
    /// The script could not be imported, has no `run`, or `init()` raised; or a template cannot fork. The process exits with
    /// status 72.
    InitFailed {
        /// Error.
        error: ErrorReport,
        /// Whether another process may start.
        chance: RestartChance,
    },
    /// An attempt has ended.
    Answered(Ending),
    /// A service that limits its rate asked `run()` to wait. That time does not count towards the limit of the run.
    RateLimited {
        /// Hand-over that waits.
        sequence: u64,
        /// How much longer.
        seconds: f64,
    },
    /// `run()` waits until the limits of the job allow it to make requests.
    Acquire {
        /// Names the acquisition; unique in the process.
        id: u64,
        /// Requests that it will make.
        requests: u32,
        /// Tokens that they will take.
        tokens: u64,
        /// Whether it takes one of the places at the service, until it is released.
        place: bool,
    },
    /// The requests of an acquisition have ended, or `run()` waits for it no longer.
    Release {
        /// Names the acquisition.
        id: u64,
    },
    /// The agent recalled the hand-over before it started, and may have taken it back already.
    Recalled {
        /// Answered hand-over.
        sequence: u64,
    },
    /// `shutdown()` raised. Results remain valid.
    ShutdownFailed {
        /// Error.
        error: ErrorReport,
    },
}

/// The end of an attempt, as the process reports it. The worker reports the end of an attempt that no process can.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ending {
    /// Answered hand-over; 0 without an answer.
    pub sequence: u64,
    /// How the attempt ended.
    #[serde(default)]
    pub status: AttemptStatus,
    /// Length of the result; 0 without a result.
    #[serde(default)]
    pub returned: u64,
    /// Column names of a DataFrame, as JSON strings; `None` for lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub columns: Option<Vec<String>>,
    /// Error that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorReport>,
    /// Duration of loading, until `run()` began.
    #[serde(default)]
    pub load_seconds: f64,
    /// Duration of `run()`.
    pub run_seconds: f64,
    /// Processor time of the process since the start of the mini-batch.
    pub process_seconds: f64,
    /// Warnings for the user.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<Warning>,
    /// Items of a success that have no result, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed_items: Vec<FailedItems>,
    /// Where the rows of the other items are: the first item of each piece between failed items, and its size in bytes.
    /// Empty if all items have a result, or the rows cannot be divided.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pieces: Vec<(u64, u64)>,
    /// Whether each item of a failure was tried on its own, or enough of them to know that the cause is no item.
    #[serde(default, skip_serializing_if = "is_default")]
    pub items_tried: bool,
    /// Whether no item succeeded, and so many failed on their own that the cause is probably no item.
    #[serde(default, skip_serializing_if = "is_default")]
    pub gave_up: bool,
    /// Position, in the argument of `run()`, of the item that a failed one seems to have worked on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspect: Option<u64>,
    /// Items of the result that earlier attempts had handed back.
    #[serde(default, skip_serializing_if = "is_default")]
    pub items_kept: u64,
    /// Whether there are checkpoints of the mini-batch, which a success makes superfluous. Of a failure: whether there
    /// are results of its own items.
    #[serde(default, skip_serializing_if = "is_default")]
    pub has_checkpoints: bool,
}

/// An item, or a range of items, without a result in a success: `run_item()` raised, or their rows do not fit the schema
/// of the job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedItems {
    /// Position of the first item in the argument of `run()`, from 0.
    pub item: u64,
    /// Number of items.
    pub items: u64,
    /// [`AttemptStatus::RunRaised`], or [`AttemptStatus::IllegalResult`] for rows that do not fit, and for items that
    /// were never handed back.
    pub status: AttemptStatus,
    /// Error of the first item.
    pub error: ErrorReport,
}

impl Ending {
    /// Returns a success without a result.
    pub fn empty() -> Self {
        Self::default()
    }

    /// Returns a failure.
    pub fn failed(status: AttemptStatus, error: ErrorReport) -> Self {
        Self { status, error: Some(error), ..Self::empty() }
    }
}

/// The chance that a script starts in another process after a failed start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RestartChance {
    /// None: its code or its arguments are wrong.
    Never,
    /// Unknown: one more start shows.
    Perhaps,
    /// High: a network, a server or a full machine prevented the start.
    Likely,
}

/// A peer sent bytes that are not a frame.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// A length is out of range.
    #[error("a frame of {length} bytes is longer than the limit of {FRAME_LENGTH_MAX}")]
    TooLong {
        /// Announced length.
        length: usize,
    },
    /// The header is not one that this build knows.
    #[error("a frame header cannot be read")]
    Header(#[from] serde_json::Error),
}

/// The two lengths before each header.
pub(crate) const PREFIX_BYTES: usize = 8;

/// Appends one frame.
pub fn encode_frame<H: Serialize>(header: &H, payload: &[u8], into: &mut Vec<u8>) {
    encode_with(payload, into, |into| {
        serde_json::to_writer(into, header).expect("frames always serialise")
    });
}

/// Appends the header that `write_header` appends, with its prefix and payload.
pub(crate) fn encode_with(
    payload: &[u8],
    into: &mut Vec<u8>,
    write_header: impl FnOnce(&mut Vec<u8>),
) {
    let start = into.len();
    into.extend_from_slice(&[0; PREFIX_BYTES]);
    write_header(into);
    let header_length =
        u32::try_from(into.len() - start - PREFIX_BYTES).expect("headers are small");
    let payload_length = u32::try_from(payload.len()).expect("payloads are smaller than 4 GiB");
    into[start..start + 4].copy_from_slice(&header_length.to_le_bytes());
    into[start + 4..start + PREFIX_BYTES].copy_from_slice(&payload_length.to_le_bytes());
    into.extend_from_slice(payload);
}

/// Splits a byte stream into frames.
#[derive(Debug, Default)]
pub struct FrameReader {
    buffer: bytes::BytesMut,
}

impl FrameReader {
    /// Returns the buffer to which the caller appends bytes from the peer.
    pub fn buffer(&mut self) -> &mut bytes::BytesMut {
        &mut self.buffer
    }

    /// Whether the buffer holds an incomplete frame.
    pub fn is_in_a_frame(&self) -> bool {
        !self.buffer.is_empty()
    }

    /// Returns the next complete frame, if the buffer holds one.
    pub fn next_frame<H: for<'de> Deserialize<'de>>(
        &mut self,
    ) -> Result<Option<(H, bytes::Bytes)>, FrameError> {
        let Some(prefix) = self.buffer.get(..PREFIX_BYTES) else { return Ok(None) };
        let header_length =
            u32::from_le_bytes(prefix[..4].try_into().expect("four bytes")) as usize;
        let payload_length =
            u32::from_le_bytes(prefix[4..].try_into().expect("four bytes")) as usize;
        let length = header_length.max(payload_length);
        if length > FRAME_LENGTH_MAX {
            return Err(FrameError::TooLong { length });
        }
        let frame_length = PREFIX_BYTES + header_length + payload_length;
        if self.buffer.len() < frame_length {
            self.buffer.reserve((frame_length - self.buffer.len()).min(RESERVE_MAX));
            return Ok(None);
        }
        let mut frame = self.buffer.split_to(frame_length).freeze();
        let header = serde_json::from_slice(&frame[PREFIX_BYTES..PREFIX_BYTES + header_length])?;
        Ok(Some((header, frame.split_off(PREFIX_BYTES + header_length))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_across_any_cut_of_the_stream() {
        let mut stream = Vec::new();
        encode_frame(&ToProcess::Finish, b"", &mut stream);
        encode_frame(&ToProcess::MiniBatches { mini_batches: vec![] }, b"payload", &mut stream);
        for cut in 0..=stream.len() {
            let mut reader = FrameReader::default();
            let mut frames = Vec::new();
            for piece in [&stream[..cut], &stream[cut..]] {
                reader.buffer().extend_from_slice(piece);
                while let Some(frame) = reader.next_frame::<ToProcess>().expect("valid") {
                    frames.push(frame);
                }
            }
            assert_eq!(frames.len(), 2, "cut at {cut}");
            assert_eq!(frames[0].0, ToProcess::Finish);
            assert_eq!(&frames[1].1[..], b"payload");
        }
    }
}
