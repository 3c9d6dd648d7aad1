//! Frames between an agent and one of its Python processes, over an inherited Unix socket.
//!
//! A frame is `u32 header length · u32 payload length · header (JSON) · payload`, lengths little-endian; the same
//! shape as a result record. Tables do not travel in the frame: each one is a sealed memory file (Arrow IPC stream)
//! whose descriptor is passed with the frame (`SCM_RIGHTS`), in the order of the mini-batches that use them.
//!
//! A frame to the process may name many mini-batches, so that the next one is always there when one ends. The process
//! answers each with one event, in order. What it is doing right now stands in the *status page*, a shared memory
//! file that the agent can read even while user code holds the interpreter.

use serde::{Deserialize, Serialize};

use crate::{ErrorReport, ItemPath, OutputFormat, Warning};

/// Largest header or payload of one frame: what does not fit is an error, not a hang.
pub const FRAME_LENGTH_MAX: usize = 2 * 1024 * 1024 * 1024;

/// Size of the status page.
pub const STATUS_PAGE_BYTES: usize = 4096;

/// Byte offsets of the `u64` fields of the status page.
pub mod status_offset {
    /// `(mini-batch sequence number << 8) | phase`; see [`crate::SlotPhase`]. Written after `SINCE`.
    pub const STATE: usize = 0;
    /// `CLOCK_MONOTONIC` nanoseconds at which the phase began.
    pub const SINCE: usize = 8;
    /// First hand-over that the agent takes back. Written by the agent, all other fields by the process.
    pub const RECALL_FIRST: usize = 16;
    /// End of the hand-overs that the agent takes back; 0: none. A process that begins a hand-over writes `STATE`
    /// first and looks here then; the agent writes here first and looks at `STATE` then. So if `STATE` names an
    /// earlier hand-over, none of the recalled ones begins.
    pub const RECALL_END: usize = 24;
}

/// A frame's header, agent to process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "frame", rename_all = "snake_case")]
pub enum ToProcess {
    /// First frame: import the script, call `init()`.
    Configure(Box<Configure>),
    /// Call `run()` for each, in order.
    MiniBatches {
        /// At least one.
        mini_batches: Vec<MiniBatchFrame>,
    },
    /// Call `shutdown()` and exit with status 0.
    Finish,
}

/// What a process must know before its first mini-batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Configure {
    /// Module name of the entry script: `a/b.py` is `a.b`.
    pub module: String,
    /// Absolute path of the snapshot root; goes onto `sys.path`.
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
    /// Absolute output folder; `None`: there is none, `EntryScript().output_dir` is the working directory.
    pub output: Option<ItemPath>,
    /// Absolute path of the scratch folder that becomes the working directory; exists, holds links to the snapshot.
    pub scratch: ItemPath,
    /// `DEBUG`, `INFO`, …
    pub logging_level: String,
    /// `""`, `cProfile` or `profile`.
    pub profiling_module: String,
    /// Whether rows are wanted (`append_row`) or only counted.
    pub rows_wanted: bool,
    /// How rows become bytes.
    pub output_format: OutputFormat,
    /// `to_csv` keyword arguments that replace the default ones.
    pub to_csv_arguments: serde_json::Map<String, serde_json::Value>,
    /// Fail a result shorter than its input.
    pub strict_results: bool,
    /// Largest size of one log file of user code; what follows is dropped, and the file says so.
    pub log_bytes_max: u64,
    /// Threads that the numeric libraries of one process should use: its share of the cores. `OMP_NUM_THREADS`, where
    /// nobody has set it.
    pub threads: u32,
}

/// One mini-batch for a process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MiniBatchFrame {
    /// Number of the hand-over to this process, from 1; stands in the status page and in the answer.
    pub sequence: u64,
    /// Mini-batch, from 0.
    pub mini_batch: u64,
    /// Number of this try, from 1.
    pub try_number: u32,
    /// Partition key values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub key: Vec<(String, String)>,
    /// What `run()` gets.
    pub payload: Payload,
}

/// What `run()` gets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Payload {
    /// A list of paths.
    Files {
        /// Absolute local paths.
        paths: Vec<ItemPath>,
    },
    /// A DataFrame: the next memory file passed with the frame, one Arrow IPC stream of one record batch.
    Table {
        /// Rows in the frame.
        rows: u64,
        /// Items of the mini-batch: `rows` plus records that failed before `run()`.
        total: u64,
        /// Length of the memory file.
        bytes: u64,
    },
    /// An empty list that counts as one item.
    Rank,
}

/// A frame's header, process to agent. `Done` carries its rows as the frame's payload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "frame", rename_all = "snake_case")]
pub enum ProcessEvent {
    /// The script is imported and `init()` has returned.
    Ready {
        /// Duration of import and `init()`.
        init_seconds: f64,
        /// `major.minor.micro` of the interpreter.
        python_version: String,
    },
    /// The script could not be imported, has no `run`, or `init()` raised. The process exits with status 72.
    InitFailed {
        /// What happened.
        error: ErrorReport,
    },
    /// A legal result.
    Done {
        /// The hand-over this answers.
        sequence: u64,
        /// Length of the result.
        returned: u64,
        /// Column names of a DataFrame, as JSON strings; `None` for lists.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        columns: Option<Vec<String>>,
        /// Duration of `run()`.
        run_seconds: f64,
        /// Processor time of the process since the mini-batch began.
        process_seconds: f64,
        /// What the user should know.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        warnings: Vec<Warning>,
    },
    /// `run()` raised, or its result is none.
    Failed {
        /// The hand-over this answers.
        sequence: u64,
        /// `true`: the result has an illegal type; `false`: an exception.
        illegal_result: bool,
        /// `true`: the mini-batch could not be turned into an argument; `run()` was not called.
        #[serde(default)]
        load_failed: bool,
        /// What happened.
        error: ErrorReport,
        /// Duration of `run()`.
        run_seconds: f64,
        /// Processor time.
        process_seconds: f64,
    },
    /// The hand-over was recalled before it began. The agent may have taken it back already.
    Recalled {
        /// The hand-over this answers.
        sequence: u64,
    },
    /// `shutdown()` raised. Results stand.
    ShutdownFailed {
        /// What happened.
        error: ErrorReport,
    },
}

/// A peer sent something that is no frame.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// A length is out of range.
    #[error("a frame of {length} bytes is longer than the limit of {FRAME_LENGTH_MAX}")]
    TooLong {
        /// Announced length.
        length: usize,
    },
    /// The header is not one this build knows.
    #[error("a frame header cannot be read: {0}")]
    Header(#[from] serde_json::Error),
}

const PREFIX_BYTES: usize = 8;

/// Appends one frame.
pub fn encode_frame<H: Serialize>(header: &H, payload: &[u8], into: &mut Vec<u8>) {
    let start = into.len();
    into.extend_from_slice(&[0; PREFIX_BYTES]);
    serde_json::to_writer(&mut *into, header).expect("frames always serialise");
    let header_length = u32::try_from(into.len() - start - PREFIX_BYTES).expect("headers are small");
    let payload_length = u32::try_from(payload.len()).expect("payloads are below FRAME_LENGTH_MAX");
    into[start..start + 4].copy_from_slice(&header_length.to_le_bytes());
    into[start + 4..start + PREFIX_BYTES].copy_from_slice(&payload_length.to_le_bytes());
    into.extend_from_slice(payload);
}

/// Cuts a byte stream into frames.
#[derive(Debug, Default)]
pub struct FrameReader {
    buffer: bytes::BytesMut,
}

impl FrameReader {
    /// Where to append what was read from the peer.
    pub fn buffer(&mut self) -> &mut bytes::BytesMut {
        &mut self.buffer
    }

    /// The next whole frame, if it is there.
    pub fn next_frame<H: for<'de> Deserialize<'de>>(&mut self) -> Result<Option<(H, bytes::Bytes)>, FrameError> {
        let Some(prefix) = self.buffer.get(..PREFIX_BYTES) else { return Ok(None) };
        let header_length = u32::from_le_bytes(prefix[..4].try_into().expect("four bytes")) as usize;
        let payload_length = u32::from_le_bytes(prefix[4..].try_into().expect("four bytes")) as usize;
        let length = header_length.max(payload_length);
        if length > FRAME_LENGTH_MAX {
            return Err(FrameError::TooLong { length });
        }
        let frame_length = PREFIX_BYTES + header_length + payload_length;
        if self.buffer.len() < frame_length {
            self.buffer.reserve(frame_length - self.buffer.len());
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
    fn frames_survive_any_cut_of_the_stream() {
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
