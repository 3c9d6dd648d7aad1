//! Explains errors of SQLite: what happened, to which file, and what to do.

use std::path::Path;

use rusqlite::ErrorCode;

use crate::Error;
use crate::error::Cause;

pub(super) fn misconfigured(path: &Path, source: Cause) -> Error {
    Error::Misconfigured { queue: path.display().to_string(), source }
}

pub(super) fn unavailable(path: &Path, source: Cause) -> Error {
    Error::Unavailable { queue: path.display().to_string(), source }
}

pub(super) fn absent(path: &Path) -> Error {
    Error::Absent { queue: path.display().to_string() }
}

/// Translates an error of SQLite.
pub(super) fn explain(path: &Path, error: rusqlite::Error) -> Error {
    let words = match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            let words = "another process keeps the file locked; find it with `fuser`";
            return unavailable(path, Cause::new(words, error));
        }
        Some(ErrorCode::DiskFull) => "the disk is full; free some space and run again".to_owned(),
        // SQLite also reports this when a full disk prevents the shared-memory file from growing.
        Some(ErrorCode::SystemIoFailure) => {
            format!("reading or writing failed ({error}); check the disk, and the space left on it")
        }
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => {
            "the file cannot be written; check its permissions".to_owned()
        }
        Some(ErrorCode::CannotOpen) => {
            "the file cannot be opened or created; check that its folder exists and is writable"
                .to_owned()
        }
        Some(ErrorCode::NotADatabase) => "it is not a queue file; choose another path".to_owned(),
        Some(ErrorCode::DatabaseCorrupt) => {
            "the file is damaged; move it away and run again".to_owned()
        }
        _ => error.to_string(),
    };
    misconfigured(path, Cause::new(words, error))
}
