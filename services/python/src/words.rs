//! Durations and rates in the words that commands, reports and pages share.

use protocol::words;
use pyo3::prelude::*;

#[pyfunction]
pub fn duration(seconds: f64) -> String {
    words::duration(seconds)
}

#[pyfunction]
pub fn took(elapsed_seconds: f64, worked_seconds: f64) -> String {
    words::took(elapsed_seconds, worked_seconds)
}

#[pyfunction]
pub fn rate(per_second: f64) -> String {
    words::rate(per_second)
}
