//! Instants without a time zone, as pandas and `datetime.isoformat` write them.

use std::ops::RangeInclusive;

/// Stands for a missing instant (`NaT`).
pub const MISSING: i64 = i64::MIN;

/// Years that every release of pandas writes with four digits.
pub const PLAIN_YEARS: RangeInclusive<i64> = 1000..=9999;

/// The precision of an instant in text; finer is greater.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Precision {
    /// `2020-01-31`.
    Day,
    /// No fraction.
    Second,
    /// Three digits.
    Millisecond,
    /// Six digits.
    Microsecond,
    /// Nine digits.
    Nanosecond,
}

/// A point in time, split into its parts.
pub struct Instant {
    /// In the proleptic Gregorian calendar.
    pub year: i64,
    month: u32,
    day: u32,
    second_of_day: u32,
    nanosecond: u32,
}

impl Instant {
    /// Splits `value` units since 1970, of which a second has `per_second`.
    pub fn new(value: i64, per_second: i64) -> Self {
        let second = value.div_euclid(per_second);
        let (year, month, day) = date_of(second.div_euclid(86_400));
        Self {
            year,
            month,
            day,
            second_of_day: second.rem_euclid(86_400) as u32,
            nanosecond: (value.rem_euclid(per_second) * (1_000_000_000 / per_second)) as u32,
        }
    }

    /// Returns the lowest precision that loses nothing.
    pub fn precision(&self) -> Precision {
        match (self.nanosecond, self.second_of_day) {
            (0, 0) => Precision::Day,
            (0, _) => Precision::Second,
            (nanosecond, _) if nanosecond % 1_000_000 == 0 => Precision::Millisecond,
            (nanosecond, _) if nanosecond % 1_000 == 0 => Precision::Microsecond,
            _ => Precision::Nanosecond,
        }
    }

    /// Appends `2020-01-31`, with a year of at least four digits and no sign, and, at finer precisions, `between`, the time and
    /// the digits of the fraction.
    pub fn push(&self, text: &mut Vec<u8>, precision: Precision, between: u8) {
        match u32::try_from(self.year.unsigned_abs()) {
            Ok(year @ 0..=9999) => push_digits(text, year, 4),
            _ => text.extend_from_slice(self.year.unsigned_abs().to_string().as_bytes()),
        }
        text.push(b'-');
        push_digits(text, self.month, 2);
        text.push(b'-');
        push_digits(text, self.day, 2);
        if precision == Precision::Day {
            return;
        }
        text.push(between);
        push_digits(text, self.second_of_day / 3_600, 2);
        text.push(b':');
        push_digits(text, self.second_of_day / 60 % 60, 2);
        text.push(b':');
        push_digits(text, self.second_of_day % 60, 2);
        let (fraction, width) = match precision {
            Precision::Day | Precision::Second => return,
            Precision::Millisecond => (self.nanosecond / 1_000_000, 3),
            Precision::Microsecond => (self.nanosecond / 1_000, 6),
            Precision::Nanosecond => (self.nanosecond, 9),
        };
        text.push(b'.');
        push_digits(text, fraction, width);
    }
}

fn push_digits(text: &mut Vec<u8>, mut number: u32, width: usize) {
    let start = text.len();
    text.resize(start + width, b'0');
    for digit in text[start..].iter_mut().rev() {
        *digit += (number % 10) as u8;
        number /= 10;
    }
}

/// Returns the days between 1970-01-01 and a day of the proleptic Gregorian calendar; `None`: there is no such day.
pub fn days_since_epoch(year: i64, month: u32, day: u32) -> Option<i64> {
    const DAYS: [u32; 12] = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let is_leap =
        year.rem_euclid(4) == 0 && (year.rem_euclid(100) != 0 || year.rem_euclid(400) == 0);
    let days = *DAYS.get(month.checked_sub(1)? as usize)? + u32::from(is_leap && month == 2);
    if day == 0 || day > days {
        return None;
    }
    // Years start in March, so that the leap day is the last day.
    let year = year - i64::from(month <= 2);
    let month = i64::from((month + 9) % 12);
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * month + 2) / 5 + i64::from(day) - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    Some(era * 146_097 + day_of_era - 719_468)
}

/// Returns year, month and day of a number of days since 1970-01-01, in the proleptic Gregorian calendar.
///
/// Counts years from March, so that the leap day is the last day of its year; 400 years have a fixed number of days.
fn date_of(days: i64) -> (i64, u32, u32) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month as u32, day as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_of_any_year_are_written_and_counted() {
        for (days, expected) in [
            (0, "1970-01-01"),
            (-719_528, "0000-01-01"),
            (-719_529, "0001-12-31"),
            (2_932_896, "9999-12-31"),
            (2_932_897, "10000-01-01"),
            (3_789_812, "12346-02-26"),
            (i64::MAX / 86_400, "292277026596-12-04"),
        ] {
            let (instant, mut text) = (Instant::new(days * 86_400, 1), Vec::new());
            instant.push(&mut text, Precision::Day, b' ');
            assert_eq!(String::from_utf8_lossy(&text), expected);
            assert_eq!(days_since_epoch(instant.year, instant.month, instant.day), Some(days));
        }
        assert_eq!(days_since_epoch(1900, 2, 29), None);
    }
}
