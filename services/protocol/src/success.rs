//! The header of an ordinary success, compact: of a job of millions of quick mini-batches nearly all that travels and is
//! kept. Binary fields in a fixed order, a fraction of the JSON in size and in time.
//!
//! What is not ordinary (a failure, warnings, a trace) stays JSON, and so may gain fields. A change of these fields needs a
//! marker of its own.

use serde::{Deserialize, Serialize};

use crate::{Attempt, AttemptStatus, Rows};

/// The first byte of such a header. No JSON begins so.
pub(crate) const MARKER: u8 = 1;
/// The last byte. What a machine that stopped has not written reads as zeros on some file systems, and zeros are numbers
/// and text like any others: a header is whole only if its end is there.
const END: u8 = 1;

/// An ordinary success: the first try or a later one, final, without error, warnings or trace. Its texts stay where they
/// were read. Every field is that of [`Attempt`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "they are documented there")]
pub struct Success<'a> {
    pub mini_batch: u64,
    pub try_number: u32,
    pub deliveries_lost: u32,
    pub node: &'a str,
    pub process: &'a str,
    pub total: u64,
    pub succeeded: u64,
    #[serde(borrow)]
    pub rows: RowsRef<'a>,
    #[serde(borrow)]
    pub columns: Option<Vec<&'a str>>,
    pub started_at: u64,
    pub elapsed_seconds: f64,
    pub process_seconds: f64,
    pub run_seconds: f64,
    pub detail: &'a str,
}

/// [`Rows`], whose JSON form cannot be read without names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "they are documented there")]
pub enum RowsRef<'a> {
    None,
    Inline,
    Part { name: &'a str, bytes: u64 },
}

impl From<RowsRef<'_>> for Rows {
    fn from(rows: RowsRef<'_>) -> Self {
        match rows {
            RowsRef::None => Self::None,
            RowsRef::Inline => Self::Inline,
            RowsRef::Part { name, bytes } => Self::Part { name: name.to_owned(), bytes },
        }
    }
}

/// Appends the header of `attempt`, unless it is not an ordinary one.
pub(crate) fn encode(attempt: &Attempt, into: &mut Vec<u8>) -> bool {
    // Every field by its name: one that is added has to be thought of here.
    let Attempt {
        mini_batch,
        try_number,
        deliveries_lost,
        ref node,
        ref process,
        status: AttemptStatus::Succeeded,
        is_final: true,
        total,
        succeeded,
        ref rows,
        ref columns,
        started_at,
        elapsed_seconds,
        process_seconds,
        run_seconds,
        error: None,
        ref warnings,
        warnings_total: 0,
        ref detail,
        traceparent: None,
    } = *attempt
    else {
        return false;
    };
    if !warnings.is_empty() {
        return false;
    }
    let rows = match rows {
        Rows::None => RowsRef::None,
        Rows::Inline => RowsRef::Inline,
        Rows::Part { name, bytes } => RowsRef::Part { name, bytes: *bytes },
    };
    let columns = columns.as_ref().map(|columns| columns.iter().map(String::as_str).collect());
    let success = Success {
        mini_batch,
        try_number,
        deliveries_lost,
        node,
        process,
        total,
        succeeded,
        rows,
        columns,
        started_at,
        elapsed_seconds,
        process_seconds,
        run_seconds,
        detail,
    };
    into.push(MARKER);
    postcard::to_io(&success, &mut *into).expect("memory takes everything, and every length is known");
    into.push(END);
    true
}

/// Reads what follows the marker.
pub(crate) fn decode(fields: &[u8]) -> postcard::Result<Success<'_>> {
    let (success, rest) = postcard::take_from_bytes(fields)?;
    if rest == [END] { Ok(success) } else { Err(postcard::Error::DeserializeBadEncoding) }
}

impl From<Success<'_>> for Attempt {
    fn from(success: Success<'_>) -> Self {
        Self {
            mini_batch: success.mini_batch,
            try_number: success.try_number,
            deliveries_lost: success.deliveries_lost,
            node: success.node.into(),
            process: success.process.into(),
            status: AttemptStatus::Succeeded,
            is_final: true,
            total: success.total,
            succeeded: success.succeeded,
            rows: success.rows.into(),
            columns: success.columns.map(|columns| columns.into_iter().map(str::to_owned).collect()),
            started_at: success.started_at,
            elapsed_seconds: success.elapsed_seconds,
            process_seconds: success.process_seconds,
            run_seconds: success.run_seconds,
            error: None,
            warnings: Vec::new(),
            warnings_total: 0,
            detail: success.detail.to_owned(),
            traceparent: None,
        }
    }
}
