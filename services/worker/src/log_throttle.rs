//! Limits log lines that may come by the million: writes the first lines of each kind, and then one
//! a minute, with the number of those that it left out. Pure: the caller passes the time.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The first lines of a kind, which are all written.
const FIRST: u64 = 10;
/// Time between two lines after those.
const EVERY: Duration = Duration::from_secs(60);
/// Kinds that are counted separately. A sender of invalid messages may invent any number of kinds.
const KINDS_MAX: usize = 100;

/// The number of lines of each kind.
#[derive(Debug, Default)]
pub struct LogThrottle(HashMap<String, KindCount>);

#[derive(Debug)]
struct KindCount {
    written: u64,
    left_out: u64,
    last: Instant,
}

impl LogThrottle {
    /// Returns the line to write; `None`: it is left out.
    pub fn next(&mut self, kind: &str, line: &str, now: Instant) -> Option<String> {
        let name = if self.0.len() < KINDS_MAX || self.0.contains_key(kind) { kind } else { "" };
        let kind = self.0.entry(name.to_owned()).or_insert(KindCount {
            written: 0,
            left_out: 0,
            last: now,
        });
        if kind.written >= FIRST && now - kind.last < EVERY {
            kind.left_out += 1;
            return None;
        }
        kind.written += 1;
        kind.last = now;
        Some(match std::mem::take(&mut kind.left_out) {
            0 => line.to_owned(),
            left_out => format!("{line} (and {left_out} more like this since the last such line)"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_million_lines_are_few() {
        let (mut lines, begin) = (LogThrottle::default(), Instant::now());
        let mut written = Vec::new();
        for number in 0..1_000_000_u32 {
            let now = begin + Duration::from_millis(1) * number / 10;
            written.extend(lines.next("poison", &format!("message {number}"), now));
        }
        assert_eq!(
            written[..10],
            (0..10).map(|number| format!("message {number}")).collect::<Vec<_>>()
        );
        assert_eq!(
            written[10], "message 600009 (and 599999 more like this since the last such line)",
            "{written:?}"
        );
        assert_eq!(written.len(), 11);
        assert!(lines.next("other", "line", begin).is_some(), "another kind has lines of its own");
    }

    #[test]
    fn kinds_without_number_share_their_lines() {
        let (mut lines, now) = (LogThrottle::default(), Instant::now());
        let written = (0..10_000)
            .filter(|number| lines.next(&format!("job {number}"), "line", now).is_some())
            .count();
        assert_eq!(written, KINDS_MAX + FIRST as usize);
    }
}
