//! `gristmill crash-points`, for tests.

use crate::Exit;

/// Lists the places where `GRISTMILL_CRASH_AT` can kill this process.
pub fn crash_points() -> Exit {
    for point in engine::crash::points() {
        say!(out, "{point}");
    }
    Exit::Done
}
