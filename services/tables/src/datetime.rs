//! Parses dates and times as nanoseconds since the epoch.
//!
//! The forms are ISO 8601 (`2020-01-31`, also with slashes) and four-digit years at the end (`1/31/2020`, `31/1/2020`),
//! both with an optional time, fraction, AM or PM, and offset. An offset is applied: the result is UTC. In columns of
//! times also eight digits (`20200131`).

use protocol::instant::days_since_epoch;

/// The position of the month in `1/2/2020`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DayOrder {
    MonthFirst,
    DayFirst,
}

const NANOSECONDS_PER_SECOND: i128 = 1_000_000_000;

/// A point in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Instant {
    /// Since the epoch, in UTC if the text has an offset.
    pub nanoseconds: i64,
    /// Seconds east of UTC, if the text has an offset.
    pub offset: Option<i32>,
}

/// Returns whether `cell` is a date or a time.
pub(crate) fn is_datetime(cell: &[u8], order: DayOrder) -> bool {
    parse_instant(cell, order).is_some()
}

/// Parses a date or time. Returns `None` for other text, and for times beyond 64 bits (years 1677 to 2262).
pub(crate) fn parse_instant(cell: &[u8], order: DayOrder) -> Option<Instant> {
    let mut cursor = Cursor { rest: cell };
    let date = cursor.date(order)?;
    let time = if cursor.rest.is_empty() { Time::default() } else { cursor.time()? };
    instant(date, &time)
}

/// Parses a date of eight digits, such as `20200131`. It could be a number, so types are never inferred from it.
pub(crate) fn parse_digits(cell: &[u8]) -> Option<Instant> {
    let mut cursor = Cursor { rest: cell };
    let date = (cursor.number(4, 4)?, cursor.number(2, 2)?, cursor.number(2, 2)?);
    cursor.rest.is_empty().then(|| instant(date, &Time::default())).flatten()
}

fn instant((year, month, day): (u32, u32, u32), time: &Time) -> Option<Instant> {
    let days = days_since_epoch(i64::from(year), month, day)?;
    let seconds = i128::from(days) * 86_400 + i128::from(time.seconds);
    let nanoseconds = seconds * NANOSECONDS_PER_SECOND + i128::from(time.nanoseconds);
    // The smallest number means "not a time" in pandas.
    let nanoseconds = i64::try_from(nanoseconds).ok().filter(|&value| value != i64::MIN)?;
    Some(Instant { nanoseconds, offset: time.offset })
}

#[derive(Default)]
struct Time {
    /// Seconds of the day in UTC.
    seconds: i32,
    nanoseconds: u32,
    offset: Option<i32>,
}

struct Cursor<'a> {
    rest: &'a [u8],
}

impl Cursor<'_> {
    fn number(&mut self, digits_min: usize, digits_max: usize) -> Option<u32> {
        let digits =
            self.rest.iter().take(digits_max).take_while(|byte| byte.is_ascii_digit()).count();
        if digits < digits_min {
            return None;
        }
        let value =
            self.rest[..digits].iter().fold(0, |value, byte| value * 10 + u32::from(byte - b'0'));
        self.rest = &self.rest[digits..];
        Some(value)
    }

    fn take(&mut self, wanted: u8) -> Option<()> {
        self.rest = self.rest.strip_prefix(&[wanted])?;
        Some(())
    }

    fn date(&mut self, order: DayOrder) -> Option<(u32, u32, u32)> {
        let digits = self.rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let separator = *self.rest.get(digits)?;
        match (digits, separator) {
            (4, b'-' | b'/') => {
                let digits_min = if separator == b'-' { 2 } else { 1 };
                let year = self.number(4, 4)?;
                self.take(separator)?;
                let month = self.number(digits_min, 2)?;
                self.take(separator)?;
                Some((year, month, self.number(digits_min, 2)?))
            }
            (1 | 2, b'/') => {
                let first = self.number(1, 2)?;
                self.take(b'/')?;
                let second = self.number(1, 2)?;
                self.take(b'/')?;
                let year = self.number(4, 4)?;
                match order {
                    DayOrder::MonthFirst => Some((year, first, second)),
                    DayOrder::DayFirst => Some((year, second, first)),
                }
            }
            _ => None,
        }
    }

    fn time(&mut self) -> Option<Time> {
        if self.take(b'T').is_none() {
            self.take(b' ')?;
        }
        let mut hour = self.number(1, 2)?;
        self.take(b':')?;
        let minute = self.number(2, 2)?;
        let second = if self.take(b':').is_some() { self.number(2, 2)? } else { 0 };
        let nanoseconds = if self.take(b'.').is_some() { self.fraction()? } else { 0 };
        if let Some(is_afternoon) = self.half_of_day() {
            if !(1..=12).contains(&hour) {
                return None;
            }
            hour = hour % 12 + if is_afternoon { 12 } else { 0 };
        }
        let offset = self.offset()?;
        if !self.rest.is_empty() || hour > 23 || minute > 59 || second > 59 {
            return None;
        }
        let seconds = i32::try_from(hour * 3600 + minute * 60 + second).expect("below one day");
        Some(Time { seconds: seconds - offset.unwrap_or(0), nanoseconds, offset })
    }

    fn fraction(&mut self) -> Option<u32> {
        let length = self.rest.len();
        let value = self.number(1, 9)?;
        let digits = length - self.rest.len();
        Some(value * 10u32.pow(9 - u32::try_from(digits).expect("at most nine")))
    }

    fn half_of_day(&mut self) -> Option<bool> {
        let text = self.rest.strip_prefix(b" ").unwrap_or(self.rest);
        let (half, behind) = text.split_first_chunk::<2>()?;
        let is_afternoon = half.eq_ignore_ascii_case(b"PM");
        if !is_afternoon && !half.eq_ignore_ascii_case(b"AM") {
            return None;
        }
        self.rest = behind;
        Some(is_afternoon)
    }

    /// Parses an offset as seconds east of UTC. Returns `Some(None)` at the end of the text.
    fn offset(&mut self) -> Option<Option<i32>> {
        let sign = match self.rest {
            [] => return Some(None),
            [b'Z'] => {
                self.rest = &[];
                return Some(Some(0));
            }
            [b'+', ..] => 1,
            [b'-', ..] => -1,
            _ => return None,
        };
        self.rest = &self.rest[1..];
        let hours = self.number(2, 2)?;
        let minutes =
            if self.take(b':').is_some() || !self.rest.is_empty() { self.number(2, 2)? } else { 0 };
        let seconds = i32::try_from(hours * 3600 + minutes * 60).expect("below five days");
        (hours < 24 && minutes < 60).then_some(Some(sign * seconds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(text: &str, order: DayOrder) -> Option<f64> {
        parse_instant(text.as_bytes(), order).map(|instant| instant.nanoseconds as f64 / 1e9)
    }

    #[test]
    fn dates_are_distinguished_from_other_text() {
        use DayOrder::{DayFirst, MonthFirst};
        for (text, order, expected) in [
            ("1970-01-01", MonthFirst, Some(0.0)),
            ("1969-12-31T23:59:59", MonthFirst, Some(-1.0)),
            ("2020-02-29 12:30", MonthFirst, Some(1_582_979_400.0)),
            ("2019-02-29", MonthFirst, None),
            ("1900-02-29", MonthFirst, None),
            ("1970-01-02T00:00:00.25Z", MonthFirst, Some(86_400.25)),
            ("1970-01-01T02:00:00+02:00", MonthFirst, Some(0.0)),
            ("1970-01-01 00:00:00-0130", MonthFirst, Some(5400.0)),
            ("1/2/1970", MonthFirst, Some(86_400.0)),
            ("2/1/1970", DayFirst, Some(86_400.0)),
            ("31/12/1969", DayFirst, Some(-86_400.0)),
            ("31/12/1969", MonthFirst, None),
            ("1/1/1970 12:05:01 AM", MonthFirst, Some(301.0)),
            ("1/1/1970 1:00 pm", MonthFirst, Some(46_800.0)),
            ("1/1/1970 13:00 pm", MonthFirst, None),
            ("1970/1/1", DayFirst, Some(0.0)),
            ("9999-12-31", MonthFirst, None),
            ("1677-09-21T00:12:43.145224192", MonthFirst, None),
            ("10:30:00", MonthFirst, None),
            ("2020-01", MonthFirst, None),
            ("2020-1-1", MonthFirst, None),
            ("1/2/20", MonthFirst, None),
            ("12-31-2020", MonthFirst, None),
            ("2020-01-01T24:00:00", MonthFirst, None),
            ("2020-01-01 ", MonthFirst, None),
            ("2020-01-01T", MonthFirst, None),
            ("Jan 1 2020", MonthFirst, None),
            ("", MonthFirst, None),
        ] {
            assert_eq!(seconds(text, order), expected, "{text}");
        }
    }

    #[test]
    fn eight_digits_are_a_date_only_on_request() {
        let days = |text: &str| {
            parse_digits(text.as_bytes()).map(|date| date.nanoseconds as f64 / 86_400e9)
        };
        for (text, expected) in [
            ("19700102", Some(1.0)),
            ("20200229", Some(18_321.0)),
            ("20190229", None),
            ("20201301", None),
            ("2020010", None),
            ("202001011", None),
            ("99991231", None),
        ] {
            assert_eq!(days(text), expected, "{text}");
            assert_eq!(seconds(text, DayOrder::MonthFirst), None, "{text}");
        }
    }
}
