//! One attempt: the whole as [`Attempt`], and the part that every attempt has, as [`AttemptCore`].
//!
//! In large jobs almost every attempt is an *ordinary success*: final, without error, warnings or trace. It travels and
//! is stored as its core, in a compact form: binary fields in a fixed order, a fraction of the JSON in size and in
//! time. Every other attempt stays JSON, and so may gain fields.

use compact_str::CompactString;
use serde::{Deserialize, Serialize};

use crate::trace::lenient;
use crate::{
    ErrorReport, Phases, Rejected, RejectedPart, TraceParent, UnreadRecord, WaitTimes, Warning,
    WarningKind, is_default,
};

/// The first byte of a compact header, in which the phases follow the core. JSON never begins with it.
pub(crate) const MARKER: u8 = 1;
/// The last byte. On some file systems, bytes that a stopped machine has not written read as zeros, and zeros are valid
/// numbers and texts: a header is whole only if it ends with this byte.
const END: u8 = 1;

/// One attempt of one mini-batch, as it ended.
///
/// It owns its texts and is flat, because it is the JSON form and outlives the bytes that it was read from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    /// Mini-batch.
    pub mini_batch: u64,
    /// Number of this try, from 1.
    pub try_number: u32,
    /// The round of the job in which it ran, if the mini-batch ran again.
    #[serde(default, skip_serializing_if = "is_default")]
    pub round: u32,
    /// Deliveries lost with their node before this attempt.
    pub deliveries_lost: u32,
    /// Node that worked on it. Node and process are part of every attempt: short names need no allocation.
    pub node: CompactString,
    /// `processNNN`; empty if no process received it.
    pub process: CompactString,
    /// How it ended.
    pub status: AttemptStatus,
    /// Whether no further try follows. Successes are always final.
    pub is_final: bool,
    /// Items of the mini-batch; 0 where they could not be counted.
    pub total: u64,
    /// Results of a success, at most the items that reached `run()`; 0 for any other attempt.
    pub succeeded: u64,
    /// The place of the rows.
    #[serde(with = "TaggedRows")]
    pub rows: Rows,
    /// Column names of a DataFrame result, for outputs that have a header; `None` for lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub columns: Option<Vec<String>>,
    /// Wall clock at the start, milliseconds since the epoch.
    pub started_at: u64,
    /// From hand-over to the process to its end.
    pub elapsed_seconds: f64,
    /// Processor time of the Python process.
    pub process_seconds: f64,
    /// Duration of `run()`.
    pub run_seconds: f64,
    /// Its phases before `run()`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub phases: Phases,
    /// Error that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Box<ErrorReport>>,
    /// Warnings for the user, at most 10; `warnings_total` counts all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<Warning>,
    /// Number of warnings, including those left out of `warnings`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub warnings_total: u64,
    /// The same warnings, counted by kind. At most [`WARNING_KINDS_MAX`](crate::WARNING_KINDS_MAX).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warning_kinds: Vec<WarningKind>,
    /// Items of a success that failed on their own, or whose rows do not fit the schema of the job, in order. A failure in a
    /// job of rejected items names all its items. At most [`REJECTED_MAX`](crate::REJECTED_MAX) travel; `rejected_part` has
    /// them all if there are more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rejected: Vec<Rejected>,
    /// The object with all rejected items and pieces, if one message cannot hold them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejected_part: Option<Box<RejectedPart>>,
    /// Records of a success that could not be read, so that `run()` did not get them. At most [`UNREAD_MAX`](crate::UNREAD_MAX).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<UnreadRecord>,
    /// The rows of a success between rejected items: the first item of each piece, and its size in bytes. A retry puts
    /// the rows of rejected items between them. Empty if none are rejected, or the rows cannot be divided. At most
    /// [`REJECTED_MAX`](crate::REJECTED_MAX) + 1 travel, in the order of the rows; `rejected_part` has them if there are more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pieces: Vec<(u64, u64)>,
    /// Runs of ranges of the mini-batch, after its last try had failed. If there were any, the rows of a success are
    /// those of several runs, one after the other.
    #[serde(default, skip_serializing_if = "is_default")]
    pub extra_runs: u32,
    /// Items of a success whose results earlier tries had handed back.
    #[serde(default, skip_serializing_if = "is_default")]
    pub items_kept: u64,
    /// How long it waited for the `limits` of the job and for services.
    #[serde(default, skip_serializing_if = "is_default")]
    pub waited: WaitTimes,
    /// Whether it was a speculative run of the mini-batch, a copy. The failure of a copy spends no
    /// try.
    #[serde(default, skip_serializing_if = "is_default")]
    pub copy: bool,
    /// Whether the process has asked for the `limits` of the job since its attempt before.
    #[serde(default, skip_serializing_if = "is_default")]
    pub asked_limits: bool,
    /// First item, for people.
    pub detail: String,
    /// The row of a mini-batch of one row that has failed, as a JSON object of columns and values; else empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub values: String,
    /// Its trace; `None` without tracing.
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<TraceParent>,
}

/// The fields that every attempt has, however it ended; [`Attempt`] documents them. Process, texts and columns are
/// references of whatever kind the holder uses, so that reading a text needs no copy.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "they are documented there")]
pub struct AttemptCore<Process, Text, Columns> {
    pub mini_batch: u64,
    pub try_number: u32,
    pub deliveries_lost: u32,
    pub process: Process,
    pub total: u64,
    pub succeeded: u64,
    pub rows: Rows<Text>,
    pub columns: Option<Columns>,
    pub started_at: u64,
    pub elapsed_seconds: f64,
    pub process_seconds: f64,
    pub run_seconds: f64,
    /// In the compact form they follow the other fields.
    #[serde(skip)]
    pub phases: Phases,
    pub detail: Text,
}

/// The core of an attempt in memory.
pub type AttemptRef<'a> = AttemptCore<ProcessName<&'a str>, &'a str, &'a [String]>;
/// An ordinary success in the bytes of its record.
pub type SuccessRef<'a> = AttemptCore<ProcessName<&'a str>, &'a str, Vec<&'a str>>;

/// A Python process of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessName<Text> {
    /// Node.
    pub node: Text,
    /// `processNNN`.
    pub process: Text,
}

/// The place of the rows of a successful attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Rows<Text = String> {
    /// There are none, or the job does not need them (`summary_only`).
    #[default]
    None,
    /// They follow the event in its record.
    Inline,
    /// They are a part in the store.
    Part {
        /// Name below `parts/`.
        name: Text,
        /// Size.
        bytes: u64,
    },
}

/// The JSON form of [`Rows`]. The compact form cannot name the variant.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Rows", tag = "kind", rename_all = "snake_case")]
enum TaggedRows {
    None,
    Inline,
    Part { name: String, bytes: u64 },
}

/// Every way an attempt can end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttemptStatus {
    /// `run()` returned a valid result.
    #[default]
    Succeeded,
    /// `run()` raised an exception.
    RunRaised,
    /// `run()` returned a value that is not a valid result.
    IllegalResult,
    /// `run()` exceeded `run_invocation_timeout` and the overhead.
    RunTimedOut,
    /// The mini-batch could not be read.
    LoadFailed,
    /// Reading the mini-batch took too long.
    LoadTimedOut,
    /// The Python process ended during the attempt.
    ProcessDied,
    /// Too many deliveries were lost with their node.
    LostTooOften,
}

impl AttemptStatus {
    /// Returns the word for messages and machines.
    pub fn word(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::RunRaised => "run_raised",
            Self::IllegalResult => "illegal_result",
            Self::RunTimedOut => "run_timed_out",
            Self::LoadFailed => "load_failed",
            Self::LoadTimedOut => "load_timed_out",
            Self::ProcessDied => "process_died",
            Self::LostTooOften => "lost_too_often",
        }
    }

    /// Returns the word in `processed_mini-batches.csv`, as Azure ML writes it.
    pub fn report_word(self) -> &'static str {
        match self {
            Self::Succeeded => "RUN_DONE",
            Self::RunRaised | Self::IllegalResult => "RUN_EXCEPTION",
            Self::RunTimedOut => "RUN_TIMEOUT",
            Self::LoadFailed => "LOAD_EXCEPTION",
            Self::LoadTimedOut => "LOAD_TIMEOUT",
            Self::ProcessDied => "PROCESS_DIED",
            Self::LostTooOften => "LOST_TOO_OFTEN",
        }
    }
}

impl Attempt {
    /// Returns the number of items that did not succeed.
    pub fn failed(&self) -> u64 {
        self.core().failed()
    }

    /// Returns the fields that every attempt has.
    pub fn core(&self) -> AttemptRef<'_> {
        AttemptCore {
            mini_batch: self.mini_batch,
            try_number: self.try_number,
            deliveries_lost: self.deliveries_lost,
            process: ProcessName { node: &self.node, process: &self.process },
            total: self.total,
            succeeded: self.succeeded,
            rows: match &self.rows {
                Rows::None => Rows::None,
                Rows::Inline => Rows::Inline,
                Rows::Part { name, bytes } => Rows::Part { name, bytes: *bytes },
            },
            columns: self.columns.as_deref(),
            started_at: self.started_at,
            elapsed_seconds: self.elapsed_seconds,
            process_seconds: self.process_seconds,
            run_seconds: self.run_seconds,
            phases: self.phases,
            detail: &self.detail,
        }
    }

    /// Whether the core describes it completely.
    fn is_ordinary_success(&self) -> bool {
        // Every other field by its name: an added field must be considered here.
        #[rustfmt::skip]
        let Self {
            mini_batch: _, try_number: _, deliveries_lost: _, node: _, process: _, total: _, succeeded: _, rows: _,
            columns: _, started_at: _, elapsed_seconds: _, process_seconds: _, run_seconds: _, phases: _,
            detail: _, status: AttemptStatus::Succeeded, is_final: true, error: None, warnings, warnings_total: 0, warning_kinds,
            rejected, rejected_part: None, unread, pieces, extra_runs: 0, items_kept: 0, waited, copy: false,
            asked_limits: false, values, traceparent: None, round: 0,
        } = self else { return false };
        values.is_empty()
            && warnings.is_empty()
            && warning_kinds.is_empty()
            && rejected.is_empty()
            && unread.is_empty()
            && pieces.is_empty()
            && is_default(waited)
    }
}

impl<Process, Text, Columns> AttemptCore<Process, Text, Columns> {
    /// Returns the number of items that did not succeed.
    pub fn failed(&self) -> u64 {
        self.total.saturating_sub(self.succeeded)
    }

    /// Replaces the references to process, texts and columns.
    pub fn map<P, T, C>(
        self,
        process: impl FnOnce(Process) -> P,
        mut text: impl FnMut(Text) -> T,
        columns: impl FnOnce(Columns) -> C,
    ) -> AttemptCore<P, T, C> {
        AttemptCore {
            mini_batch: self.mini_batch,
            try_number: self.try_number,
            deliveries_lost: self.deliveries_lost,
            process: process(self.process),
            total: self.total,
            succeeded: self.succeeded,
            rows: self.rows.map(&mut text),
            columns: self.columns.map(columns),
            started_at: self.started_at,
            elapsed_seconds: self.elapsed_seconds,
            process_seconds: self.process_seconds,
            run_seconds: self.run_seconds,
            phases: self.phases,
            detail: text(self.detail),
        }
    }
}

impl Rows {
    /// Returns the place of rows that one message can hold.
    pub fn within_message(rows: &[u8]) -> Self {
        if rows.is_empty() { Self::None } else { Self::Inline }
    }
}

impl<Text> Rows<Text> {
    /// Replaces the reference to the name of a part.
    pub fn map<T>(self, text: impl FnOnce(Text) -> T) -> Rows<T> {
        match self {
            Self::None => Rows::None,
            Self::Inline => Rows::Inline,
            Self::Part { name, bytes } => Rows::Part { name: text(name), bytes },
        }
    }
}

impl From<SuccessRef<'_>> for Attempt {
    fn from(success: SuccessRef<'_>) -> Self {
        Self {
            mini_batch: success.mini_batch,
            try_number: success.try_number,
            deliveries_lost: success.deliveries_lost,
            node: success.process.node.into(),
            process: success.process.process.into(),
            status: AttemptStatus::Succeeded,
            is_final: true,
            total: success.total,
            succeeded: success.succeeded,
            rows: success.rows.map(str::to_owned),
            columns: success
                .columns
                .map(|columns| columns.into_iter().map(str::to_owned).collect()),
            started_at: success.started_at,
            elapsed_seconds: success.elapsed_seconds,
            process_seconds: success.process_seconds,
            run_seconds: success.run_seconds,
            phases: success.phases,
            detail: success.detail.to_owned(),
            ..Self::default()
        }
    }
}

/// Appends the compact header of an ordinary success. Returns `false` for any other attempt.
pub(crate) fn encode_success(attempt: &Attempt, into: &mut Vec<u8>) -> bool {
    let is_ordinary = attempt.is_ordinary_success();
    if is_ordinary {
        into.push(MARKER);
        postcard::to_io(&(attempt.core(), attempt.phases.microseconds()), &mut *into)
            .expect("memory takes everything, and every length is known");
        into.push(END);
    }
    is_ordinary
}

/// Reads the bytes that follow the marker.
pub(crate) fn decode_success(fields: &[u8]) -> postcard::Result<SuccessRef<'_>> {
    let ((mut success, phases), rest): ((SuccessRef<'_>, _), _) =
        postcard::take_from_bytes(fields)?;
    success.phases = Phases::of_microseconds(phases);
    if rest == [END] { Ok(success) } else { Err(postcard::Error::DeserializeBadEncoding) }
}
