//! The formats on which two processes of Gristmill must agree: jobs, messages, frames. No I/O.
//!
//! Everything here is plain data with a stable JSON form, except that an ordinary success, of which there are millions,
//! has a compact form. Writer and reader may be different builds on different machines, so changes only add fields,
//! with a default.

mod attempt;
mod conda;
mod crash;
mod dead_letter;
mod descriptor;
mod event;
pub mod fields;
mod frame;
mod gpu_set;
pub mod instant;
mod item_path;
pub mod json;
mod kept;
mod limits;
mod members;
mod names;
pub mod number;
mod phases;
mod plan;
mod priority;
mod quotas;
mod record;
mod rejected;
mod report;
mod requirements;
mod result_schema;
mod result_table;
mod schedule;
mod spec;
mod table;
mod trace;
mod waited;
mod wear;
pub mod words;

pub use attempt::{Attempt, AttemptCore, AttemptRef, AttemptStatus, ProcessName, Rows, SuccessRef};
pub use conda::{CONDA_TOOLS, CondaError, CondaFile};
pub use dead_letter::{DeadBody, DeadLetter};
pub use descriptor::{Block, BlockRange, Descriptor, FileVersion, Rerun, Work};
pub use event::{
    ErrorReport, Planned, RECORD_FAILED, ResultEvent, Round, SLOT_PHASES, SlotPhase, Start,
    WARNING_KINDS_MAX, Waiting, Warning, WarningKind, one_line,
};
pub use frame::{
    Configure, Ending, FRAME_LENGTH_MAX, FailedItems, FrameError, FrameReader, MiniBatchFrame,
    Payload, ProcessEvent, RestartChance, STATUS_PAGE_BYTES, TableForm, TemplateSettings,
    ToProcess, encode_frame, status_offset,
};
pub use gpu_set::GpuSet;
pub use item_path::ItemPath;
pub use kept::{Kept, NotKept};
pub use limits::{LimitNeed, LimitShare, RateLimits, WHOLE_LIMIT, divide_limits};
pub use members::Members;
pub use names::{NameError, check_job_id, is_file_name, is_job_id, is_part_of};
pub use phases::Phases;
pub use plan::{PLAN_CHUNK_MINI_BATCHES, PlanPosition};
pub use priority::Priority;
pub use quotas::{OwnerQuota, Quotas, ReachedQuota, WaitingJob, WhenFull};
pub use record::{
    EventRef, MessageError, Record, RecordError, begin_message, decode_records, encode_record,
    job_of_message, read_records, rows_length,
};
pub use rejected::{
    FailedRun, NO_RESULT, REJECTED_MAX, Rejected, RejectedList, RejectedPart, UNREAD_MAX,
    UnreadRecord,
};
pub use report::{
    Copies, Counts, DividedMiniBatches, FailedMiniBatch, FailureCause, JobResult, JobState,
    OutputColumn, Progress, ReducerTrouble, RejectTables, RoundResult, milliseconds_since_epoch,
};
pub use requirements::{LABEL_ALLOWED, LABEL_LENGTH_MAX, Offer, Requirements, Unfit, is_label};
pub use result_schema::{ColumnKind, ResultColumn, ResultSchema};
pub use result_table::{
    ABSENT, EXTENSION_NAME, JSON_EXTENSION, PANDAS_METADATA, ROW_SHAPE, RowShape, UUID_EXTENSION,
};
pub use schedule::{
    Activity, Allocation, Demand, GpuDemand, NodeState, ProcessUsage, Revoked, Running,
    RunningMiniBatch, Schedule, ScheduledJob, WaitsFor, job_of_queues, queues_of,
};
pub use spec::{
    BUILT_IN_SCRIPTS, DEFAULT_CONCURRENCY, Durability, Environment, ErrorThresholds, FORMAT, Input,
    InputKind, Isolate, JobSpec, MODEL, MiniBatchSize, Output, OutputAction, OutputFormat,
    Replaceable, Snapshot, Snapshots,
};
pub use table::{
    ColumnType, HeaderMode, MismatchPolicy, TableColumn, TableFormat, TableOptions, TableSchema,
    TypeRules,
};
pub use trace::TraceParent;
pub use waited::WaitTimes;
pub use wear::{WEARS, Wear, memory};

/// Whether a field may be absent from JSON.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
