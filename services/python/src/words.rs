//! Writes durations and rates in the words that commands, reports and pages share.

use protocol::words;
use pyo3::prelude::*;

/// Returns seconds in suitable units, such as `3 min 12 s`.
#[pyfunction]
pub fn duration(seconds: f64) -> String {
    words::duration(seconds)
}

/// Returns how long a job took, and how long it worked if it waited for workers.
#[pyfunction]
pub fn took(elapsed_seconds: f64, worked_seconds: f64) -> String {
    words::took(elapsed_seconds, worked_seconds)
}

/// Returns a rate in a suitable unit, such as `4.2/min`.
#[pyfunction]
pub fn rate(per_second: f64) -> String {
    words::rate(per_second)
}
