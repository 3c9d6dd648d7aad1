//! Times for people.

use std::time::Duration;

use chrono::{DateTime, Local, Utc};
use engine::Since;
pub use engine::duration;

/// Returns a moment of the past, by the clock on the wall: `14:03:12 (25 s ago)`.
pub fn ago(since: Since) -> String {
    let Since { at, age } = since;
    let time = i64::try_from(at).ok().and_then(DateTime::<Utc>::from_timestamp_millis).unwrap_or_default();
    let format = if age < Duration::from_secs(12 * 3600) { "%H:%M:%S" } else { "%Y-%m-%d %H:%M" };
    let passed = if age.as_secs() < 10 { "seconds".to_owned() } else { duration(age.as_secs() as f64) };
    format!("{} ({passed} ago)", time.with_timezone(&Local).format(format))
}

/// Returns seconds in their largest unit, and in their two largest: `3m`, `3m12s`.
pub fn compact(seconds: f64) -> (String, String) {
    let whole = seconds.max(0.0) as u64;
    let two = |large: u64, unit: &str, small: u64, small_unit: &str| {
        (format!("{large}{unit}"), format!("{large}{unit}{small}{small_unit}"))
    };
    match whole {
        0..10 => (format!("{whole}s"), format!("{:.1}s", seconds.max(0.0))),
        10..60 => (format!("{whole}s"), format!("{whole}s")),
        60..3600 => two(whole / 60, "m", whole % 60, "s"),
        3600..86400 => two(whole / 3600, "h", whole / 60 % 60, "m"),
        _ => two(whole / 86400, "d", whole / 3600 % 24, "h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moment_of_any_age_is_shown() {
        let shown = |at, age_ms| ago(Since { at, age: Duration::from_millis(age_ms) });
        let at = 1_767_225_600_000;
        assert!(shown(at, 0).ends_with(":00 (seconds ago)"));
        assert!(shown(at, 10_500).ends_with("(10 s ago)"));
        assert!(shown(at, 3_700_000).ends_with("(1 h 1 min ago)"));
        assert!(shown(0, u64::MAX).contains("1970-01-01") || shown(0, u64::MAX).contains("1969-12-31"));
        assert!(shown(u64::MAX, 0).contains("ago"));
    }

    #[test]
    fn compact_times_have_one_or_two_units() {
        for (seconds, age, duration) in [
            (-5.0, "0s", "0.0s"),
            (0.44, "0s", "0.4s"),
            (59.9, "59s", "59s"),
            (192.0, "3m", "3m12s"),
            (7500.0, "2h", "2h5m"),
            (356_400.0, "4d", "4d3h"),
        ] {
            assert_eq!(compact(seconds), (age.to_owned(), duration.to_owned()));
        }
    }
}
