//! The kinds of bad records: their words, whether the record fails, and the type that keeps the value.

use protocol::{ColumnType, RECORD_FAILED};

use crate::datetime::{DayOrder, is_datetime};
use crate::scalar::{parse_float, parse_integer, trim};

/// A defect of a record, or the part of it that is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Problem {
    NoInteger,
    NoUnsigned,
    Fraction,
    BeyondInteger,
    NoNumber,
    NoTruthValue,
    NoTime,
    NoOffset,
    UnexpectedOffset,
    OffsetDropped,
    CodesAsTruth,
    MonthFirst,
    LeadingZeros,
    Rounded,
    InvalidBytes,
    HalfPair,
    FewCells,
    ManyCells,
    BrokenQuote,
    BrokenHeader,
    OpenQuote,
    LoneCr,
    OtherHeader,
    NoObject,
    UnknownKey,
}

impl Problem {
    /// Returns the words for the problem, and for the outcome unless the record fails.
    pub fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::NoInteger => ("not a whole number", "read as missing"),
            Self::NoUnsigned => ("not a whole number from 0 to 2^64 - 1", "read as missing"),
            Self::Fraction => ("not a whole number", "fraction dropped"),
            Self::BeyondInteger => ("beyond int64", "read as float64"),
            Self::NoNumber => ("not a number", "read as missing"),
            Self::NoTruthValue => ("not a truth value", "read as missing"),
            Self::NoTime => ("not a date or time from 1678 to 2261", "read as missing"),
            Self::NoOffset => ("a time without an offset among times with one", "read as missing"),
            Self::UnexpectedOffset => {
                ("a time with an offset among times without one", "read as missing")
            }
            Self::OffsetDropped => {
                ("times with an offset", "converted to UTC and the offset dropped")
            }
            Self::CodesAsTruth => (
                "only 0 and 1, Y and N or T and F in the rows that decide its type",
                "read as truth values",
            ),
            Self::MonthFirst => {
                ("dates whose day and month could be swapped", "read with the month first")
            }
            Self::LeadingZeros => ("leading zeros", "dropped"),
            Self::Rounded => ("more digits than float64 holds", "rounded"),
            Self::InvalidBytes => {
                ("bytes that are not valid in the encoding", "replaced by U+FFFD")
            }
            Self::HalfPair => ("half of a surrogate pair", "replaced by U+FFFD"),
            Self::FewCells => {
                ("rows with fewer cells than there are columns", "the others are missing")
            }
            Self::ManyCells => {
                ("rows with more cells than there are columns", "the others were dropped")
            }
            Self::BrokenQuote => ("lines that end within quotes", "the row was cut there"),
            Self::BrokenHeader => ("a header that ends within quotes", "it was cut there"),
            Self::OpenQuote => {
                ("a quote that is not closed", "the rest of the file was taken into its cell")
            }
            Self::LoneCr => {
                ("a CR within a line, where pandas begins another row", "kept in its field")
            }
            Self::OtherHeader => (
                "a header that differs from that of the first file",
                "the names of the first file are used",
            ),
            Self::NoObject => ("lines that are not JSON objects", RECORD_FAILED),
            Self::UnknownKey => ("a key that none of the first rows has", "it was dropped"),
        }
    }

    /// Returns whether the record fails if the job rejects records that do not fit.
    pub fn can_fail(self) -> bool {
        match self {
            Self::NoInteger
            | Self::NoUnsigned
            | Self::Fraction
            | Self::BeyondInteger
            | Self::NoNumber
            | Self::NoTruthValue
            | Self::NoTime
            | Self::NoOffset
            | Self::UnexpectedOffset
            | Self::ManyCells
            | Self::BrokenQuote
            | Self::OpenQuote
            | Self::NoObject => true,
            Self::OffsetDropped
            | Self::CodesAsTruth
            | Self::MonthFirst
            | Self::LeadingZeros
            | Self::Rounded
            | Self::InvalidBytes
            | Self::HalfPair
            | Self::FewCells
            | Self::BrokenHeader
            | Self::LoneCr
            | Self::OtherHeader
            | Self::UnknownKey => false,
        }
    }

    /// Returns whether the value is in the column, changed.
    pub fn keeps_value(self) -> bool {
        matches!(self, Self::LeadingZeros | Self::Rounded | Self::OffsetDropped)
    }

    /// Returns the name of the type that the value does not have, with its article.
    pub fn expected(self) -> &'static str {
        match self {
            Self::NoNumber => "a number",
            Self::NoTruthValue => "a truth value",
            Self::NoTime => "a date or time from 1678 to 2261",
            Self::NoOffset => "a time with an offset",
            Self::UnexpectedOffset => "a time without an offset",
            Self::NoUnsigned => "an integer from 0 to 2^64 - 1",
            _ => "an integer",
        }
    }

    /// Returns the narrowest type that keeps this value, for problems with types.
    pub fn type_for(self, value: &[u8]) -> Option<ColumnType> {
        let value = trim(value);
        match self {
            Self::NoInteger | Self::NoTruthValue if parse_integer(value).is_some() => {
                Some(ColumnType::Integer)
            }
            Self::NoInteger | Self::Fraction | Self::NoTruthValue
                if parse_float(value).is_some() =>
            {
                Some(ColumnType::Float)
            }
            // Such a value proves that the others were read with day and month exchanged.
            Self::NoTime if is_datetime(value, DayOrder::DayFirst) => {
                Some(ColumnType::DateTimeDayFirst)
            }
            Self::MonthFirst => Some(ColumnType::DateTimeDayFirst),
            Self::CodesAsTruth if parse_integer(value).is_some() => Some(ColumnType::Integer),
            Self::NoInteger
            | Self::NoUnsigned
            | Self::Fraction
            | Self::BeyondInteger
            | Self::NoNumber
            | Self::NoTruthValue
            | Self::NoTime
            | Self::NoOffset
            | Self::UnexpectedOffset
            | Self::OffsetDropped
            | Self::CodesAsTruth
            | Self::LeadingZeros
            | Self::Rounded => Some(ColumnType::Text),
            _ => None,
        }
    }
}
