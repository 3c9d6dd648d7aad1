//! What two processes of Gristmill must agree on: the job, the messages, the frames. No I/O.
//!
//! Everything here is plain data with a stable JSON form; an ordinary success, of which there are millions, has a compact
//! one instead. A role that writes one of these types and a role that reads it may run different builds on different
//! machines, so fields are only ever added, with a default.

mod dead_letter;
mod descriptor;
mod frame;
mod item_path;
mod names;
mod outcome;
mod record;
mod report;
mod spec;
mod success;
mod trace;

pub use dead_letter::{DeadBody, DeadLetter};
pub use descriptor::{Block, BlockRange, Descriptor, FileVersion, Work};
pub use frame::{
    Configure, FRAME_LENGTH_MAX, FrameError, FrameReader, MiniBatchFrame, Payload, ProcessEvent, STATUS_PAGE_BYTES,
    ToProcess, encode_frame, status_offset,
};
pub use item_path::ItemPath;
pub use names::{is_file_name, is_job_id, is_part_of};
pub use outcome::{
    Attempt, AttemptStatus, ErrorReport, Planned, ResultEvent, Rows, SLOT_PHASES, SlotPhase, Waiting, Warning,
};
pub use record::{
    EventRef, Record, RecordError, RecordRef, begin_message, decode_records, encode_record, job_of_message,
    read_records,
};
pub use report::{Counts, FailedMiniBatch, JobResult, Progress};
pub use spec::{
    ColumnType, Durability, Environment, ErrorThresholds, HeaderMode, Input, InputKind, JobSpec, JobState,
    MiniBatchSize, MismatchPolicy, Output, OutputAction, OutputFormat, Snapshot, Snapshots, TableColumn, TableFormat,
    TableOptions, TableSchema, milliseconds_since_epoch,
};
pub use success::{RowsRef, Success};
pub use trace::TraceParent;
