//! The header of an ordinary success, compact: of a job of millions of quick mini-batches nearly all that travels and is
//! kept. Binary fields in a fixed order, a fraction of the JSON in size and in time.
//!
//! What is not ordinary (a failure, warnings, a trace) stays JSON, and so may gain fields. A change of these fields needs a
//! marker of its own.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::{Attempt, AttemptStatus, Rows};

/// The first byte of such a header. No JSON begins so.
pub(crate) const MARKER: u8 = 1;
/// The last byte. What a machine that stopped has not written reads as zeros on some file systems, and zeros are numbers
/// and text like any others: a header is whole only if its end is there.
const END: u8 = 1;

#[derive(Serialize, Deserialize)]
struct Success<'a> {
    mini_batch: u64,
    try_number: u32,
    deliveries_lost: u32,
    node: &'a str,
    process: &'a str,
    total: u64,
    succeeded: u64,
    #[serde(borrow)]
    rows: Place<'a>,
    columns: Option<Cow<'a, [String]>>,
    started_at: u64,
    elapsed_seconds: f64,
    process_seconds: f64,
    run_seconds: f64,
    detail: &'a str,
}

/// [`Rows`], whose JSON form cannot be read without names.
#[derive(Serialize, Deserialize)]
enum Place<'a> {
    None,
    Inline,
    Part { name: &'a str, bytes: u64 },
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
        Rows::None => Place::None,
        Rows::Inline => Place::Inline,
        Rows::Part { name, bytes } => Place::Part { name, bytes: *bytes },
    };
    let columns = columns.as_deref().map(Cow::Borrowed);
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
pub(crate) fn decode(fields: &[u8]) -> postcard::Result<Attempt> {
    let (success, rest) = postcard::take_from_bytes::<Success>(fields)?;
    if rest != [END] {
        return Err(postcard::Error::DeserializeBadEncoding);
    }
    Ok(Attempt {
        mini_batch: success.mini_batch,
        try_number: success.try_number,
        deliveries_lost: success.deliveries_lost,
        node: success.node.into(),
        process: success.process.into(),
        status: AttemptStatus::Succeeded,
        is_final: true,
        total: success.total,
        succeeded: success.succeeded,
        rows: match success.rows {
            Place::None => Rows::None,
            Place::Inline => Rows::Inline,
            Place::Part { name, bytes } => Rows::Part { name: name.to_owned(), bytes },
        },
        columns: success.columns.map(Cow::into_owned),
        started_at: success.started_at,
        elapsed_seconds: success.elapsed_seconds,
        process_seconds: success.process_seconds,
        run_seconds: success.run_seconds,
        error: None,
        warnings: Vec::new(),
        warnings_total: 0,
        detail: success.detail.to_owned(),
        traceparent: None,
    })
}
