//! Columns of dates and times under construction.

use std::sync::Arc;

use arrow::array::{ArrayRef, TimestampNanosecondArray};
use arrow::buffer::{NullBuffer, ScalarBuffer};
use protocol::{TableColumn, TypeRules};

use crate::builder::{Builder, missing};
use crate::datetime::{DayOrder, parse_digits, parse_instant};
use crate::problem::Problem;
use crate::problems::{Misfit, Replacement};
use crate::scalar::trim;

/// The value of `NaT` in `datetime64[ns]`.
const NOT_A_TIME: i64 = i64::MIN;
/// The zone of times with an offset.
const UTC: &str = "UTC";

/// The handling of the offsets of times.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Offsets {
    /// Applied and dropped: UTC without a zone.
    Dropped,
    /// Each time has one: UTC with its zone.
    Required,
    /// No time has one.
    Refused,
}

/// `datetime64[ns]`, or `datetime64[ns, UTC]`.
pub(crate) struct DateTimes {
    values: Vec<i64>,
    order: DayOrder,
    has_missing: bool,
    offsets: Offsets,
}

impl DateTimes {
    pub fn new(order: DayOrder, column: &TableColumn, types: TypeRules) -> Self {
        let offsets = match types {
            TypeRules::Original => Offsets::Dropped,
            TypeRules::Pandas if column.has_offset => Offsets::Required,
            TypeRules::Pandas => Offsets::Refused,
        };
        Self { values: Vec::new(), order, has_missing: false, offsets }
    }

    pub fn finish(self) -> ArrayRef {
        let valid = self
            .has_missing
            .then(|| NullBuffer::from_iter(self.values.iter().map(|&value| value != NOT_A_TIME)));
        let zone = (self.offsets == Offsets::Required).then(|| UTC.into());
        let array = TimestampNanosecondArray::new(ScalarBuffer::from(self.values), valid);
        Arc::new(array.with_timezone_opt::<Arc<str>>(zone))
    }

    /// Appends a time, and returns its problem if it has one. Returns `None`, and appends nothing, if the cell is not a
    /// time; with `is_quick` also if the time has a problem.
    #[inline]
    fn take_time(
        &mut self,
        cell: &[u8],
        is_quick: bool,
    ) -> Option<std::result::Result<(), Problem>> {
        let instant = parse_instant(cell, self.order).or_else(|| parse_digits(cell))?;
        let checked = match (self.offsets, instant.offset) {
            (Offsets::Dropped, Some(seconds)) if seconds != 0 => Err(Problem::OffsetDropped),
            (Offsets::Required, None) => Err(Problem::NoOffset),
            (Offsets::Refused, Some(_)) => Err(Problem::UnexpectedOffset),
            _ => Ok(()),
        };
        if is_quick && checked.is_err() {
            return None;
        }
        match checked {
            Ok(()) | Err(Problem::OffsetDropped) => self.values.push(instant.nanoseconds),
            Err(_) => self.take_missing(),
        }
        Some(checked)
    }
}

impl Builder for DateTimes {
    #[inline]
    fn take_quickly(&mut self, text: &[u8], start: usize, end: usize) -> bool {
        text.get(start..end).and_then(|cell| self.take_time(cell, true)).is_some()
    }

    fn take(&mut self, cell: &[u8]) -> std::result::Result<(), Misfit> {
        let cell = trim(cell);
        match self.take_time(cell, false) {
            Some(Ok(())) => Ok(()),
            Some(Err(problem)) => {
                let became = match problem {
                    Problem::OffsetDropped => {
                        Replacement::Time(self.values.last().copied().unwrap_or_default())
                    }
                    _ => Replacement::Missing,
                };
                Err(Misfit { problem, became })
            }
            None => {
                self.take_missing();
                missing(cell, Problem::NoTime)
            }
        }
    }

    fn take_missing(&mut self) {
        self.values.push(NOT_A_TIME);
        self.has_missing = true;
    }

    fn problem(&self) -> Option<Problem> {
        Some(Problem::NoTime)
    }

    fn reserve(&mut self, values: usize, _bytes: usize) {
        self.values.reserve(values);
    }
}
