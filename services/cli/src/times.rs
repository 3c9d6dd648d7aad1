//! Times for people.

use std::time::Duration;

use chrono::{DateTime, Local, Utc};
use engine::Since;
use engine::words::duration;

/// Returns a moment of the past, by the clock on the wall: `14:03:12 (25 s ago)`.
pub fn ago(since: Since) -> String {
    let Since { at, age } = since;
    let time = i64::try_from(at).ok().and_then(DateTime::<Utc>::from_timestamp_millis).unwrap_or_default();
    let format = if age < Duration::from_secs(12 * 3600) { "%H:%M:%S" } else { "%Y-%m-%d %H:%M" };
    let passed = if age.as_secs() < 10 { "seconds".to_owned() } else { duration(age.as_secs() as f64) };
    format!("{} ({passed} ago)", time.with_timezone(&Local).format(format))
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
}
