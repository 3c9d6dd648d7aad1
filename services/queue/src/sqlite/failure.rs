//! What SQLite reports, said in words, with the path, and sorted by what to do next.

use std::path::Path;

use rusqlite::ErrorCode;

use crate::Error;

pub(super) fn misconfigured(path: &Path, reason: &str) -> Error {
    Error::Misconfigured { queue: path.display().to_string(), reason: reason.to_owned() }
}

pub(super) fn unavailable(path: &Path, reason: &str) -> Error {
    Error::Unavailable { queue: path.display().to_string(), reason: reason.to_owned() }
}

/// Translates an error of SQLite.
pub(super) fn explain(path: &Path, error: &rusqlite::Error) -> Error {
    let reason = match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            return unavailable(path, "another process keeps the file locked; see which one holds it (`fuser`)");
        }
        Some(ErrorCode::DiskFull) => "the disk is full; free some space and run again",
        Some(ErrorCode::SystemIoFailure) => {
            // Growing the shared index next to the file fails like this too when there is no space left.
            return misconfigured(
                path,
                &format!("reading or writing failed ({error}); check the disk, and the space left on it"),
            );
        }
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => "the file cannot be written; check its permissions",
        Some(ErrorCode::CannotOpen) => {
            "the file cannot be opened or created; check that its folder exists and is writable"
        }
        Some(ErrorCode::NotADatabase) => "it is not a queue file; choose another path",
        Some(ErrorCode::DatabaseCorrupt) => "the file is damaged; move it away and run again",
        _ => return misconfigured(path, &error.to_string()),
    };
    misconfigured(path, reason)
}
