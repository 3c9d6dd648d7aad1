//! The common part of all column builders.

use arrow::array::ArrayRef;

use crate::problem::Problem;
use crate::problems::{Misfit, Replacement};

/// A builder of one column.
pub(crate) trait Builder {
    /// Appends the cell `text[start..end]` if that is fast. `start <= end` is not guaranteed.
    fn take_quickly(&mut self, text: &[u8], start: usize, end: usize) -> bool;
    /// Appends any cell, without its quotes.
    fn take(&mut self, cell: &[u8]) -> std::result::Result<(), Misfit>;
    /// Appends a missing value.
    fn take_missing(&mut self);
    /// Returns the problem of a cell that has no value of this type; `None` if every text has one.
    fn problem(&self) -> Option<Problem>;
    /// Reserves room for more values.
    fn reserve(&mut self, values: usize, bytes: usize);
}

/// Returns the misfit of a trimmed cell that becomes a missing value. An empty cell is not a misfit.
pub(crate) fn missing(cell: &[u8], problem: Problem) -> std::result::Result<(), Misfit> {
    if cell.is_empty() { Ok(()) } else { Err(Misfit { problem, became: Replacement::Missing }) }
}

/// A finished column.
pub(crate) struct FinishedColumn {
    pub array: ArrayRef,
    /// Whether its texts are JSON, which the frame contains as Python values.
    pub is_json: bool,
}

impl From<ArrayRef> for FinishedColumn {
    fn from(array: ArrayRef) -> Self {
        Self { array, is_json: false }
    }
}
