//! Finds the output of one attempt: its part of the log files of its process.
//!
//! A process adds a line to `sys/printed/<node>/<process>.txt` for each attempt that has printed something: the time in
//! milliseconds, the mini-batch, the try, and where the attempt's part of each stream begins and ends. Lines are in the
//! order of time, so a few reads find those of an attempt. The try tells two quick attempts of a mini-batch apart.

use std::ops::Range;

use protocol::Attempt;
use storage::{JobStore, LogFile, Result, UPLOADED_LOG_BEGINNING_BYTES, UPLOADED_LOG_BYTES_MAX};

use crate::FoundJob;

/// A search ends when so little is left that one read is cheaper.
const READ_BYTES: u64 = 64 << 10;
/// Holds any line.
const LINE_BYTES: u64 = 256;
/// The lines of an attempt are expected within this many bytes. It has more than one if the engine ran its mini-batch in
/// ranges.
const LINES_BYTES_MAX: u64 = 2 << 20;
/// Times are rounded to milliseconds.
const ROUNDING_MS: u64 = 2;
/// A process begins the next of several mini-batches before its agent knows that the last one has ended: an attempt may
/// have printed this long before its start.
const LAG_MS: u64 = 2000;

/// The part of a log file that one attempt wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Printed {
    /// The file below `logs/`.
    pub path: String,
    /// Bytes of the file.
    pub range: Range<u64>,
}

impl FoundJob {
    /// Returns the output of an attempt from Python, standard output before standard error. `logs`:
    /// the log tree of the job. Empty if the attempt printed nothing, or its part is not in the
    /// store.
    pub async fn printed(&self, attempt: &Attempt, logs: &[LogFile]) -> Result<Vec<Printed>> {
        printed(&self.store, attempt, logs).await
    }
}

async fn printed(store: &JobStore, attempt: &Attempt, logs: &[LogFile]) -> Result<Vec<Printed>> {
    let (node, process) = (&attempt.node, &attempt.process);
    let size = |path: &str| logs.iter().find(|file| file.path == path).map(|file| file.bytes);
    let path = format!("sys/printed/{node}/{process}.txt");
    let Some(bytes) = size(&path).filter(|_| !process.is_empty()) else { return Ok(vec![]) };
    let began = attempt.started_at.saturating_sub(LAG_MS);
    let elapsed = (attempt.elapsed_seconds.max(0.0) * 1000.0) as u64;
    let ended = attempt.started_at.saturating_add(elapsed).saturating_add(ROUNDING_MS);
    let first = first_line(store, &path, bytes, began).await?;
    let text = store.log_range(&path, first..bytes.min(first + LINES_BYTES_MAX)).await?;
    let lines = text.split_inclusive(|byte| *byte == b'\n').filter_map(Line::parse);
    let own: Vec<Line> = lines
        .skip_while(|line| line.time < began)
        .take_while(|line| line.time <= ended)
        .filter(|line| {
            line.mini_batch == attempt.mini_batch
                && line.try_number == u64::from(attempt.try_number)
        })
        .collect();
    let streams = ["stdout", "stderr"].into_iter().enumerate();
    Ok(streams
        .flat_map(|(index, stream)| {
            let path = format!("user/{stream}/{node}/{process}.{stream}.txt");
            let end = size(&path).map_or(0, |bytes| {
                match bytes > UPLOADED_LOG_BYTES_MAX && store.folder().is_none() {
                    true => UPLOADED_LOG_BEGINNING_BYTES,
                    false => bytes,
                }
            });
            let ranges = own.iter().map(move |line| line.ranges[index].clone());
            let ranges = ranges.filter(move |range| range.start < range.end && range.end <= end);
            joined(ranges).into_iter().map(move |range| Printed { path: path.clone(), range })
        })
        .collect())
}

/// Returns a position at or before the first line of `began` or later; a line begins there.
async fn first_line(store: &JobStore, path: &str, bytes: u64, began: u64) -> Result<u64> {
    let (mut low, mut high) = (0, bytes);
    while high - low > READ_BYTES {
        let middle = low + (high - low) / 2;
        let text = store.log_range(path, middle..high.min(middle + LINE_BYTES)).await?;
        let line = text.iter().position(|byte| *byte == b'\n').and_then(|end| {
            let line = text[end + 1..].split_inclusive(|byte| *byte == b'\n').next()?;
            Some((middle + end as u64 + 1, Line::parse(line)?))
        });
        match line {
            Some((start, line)) if line.time < began => low = start,
            _ => high = middle,
        }
    }
    Ok(low)
}

/// Joins ranges that touch.
fn joined(ranges: impl Iterator<Item = Range<u64>>) -> Vec<Range<u64>> {
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => joined.push(range),
        }
    }
    joined
}

#[derive(Debug)]
struct Line {
    time: u64,
    mini_batch: u64,
    try_number: u64,
    ranges: [Range<u64>; 2],
}

impl Line {
    /// Reads a whole line.
    fn parse(line: &[u8]) -> Option<Self> {
        let line = std::str::from_utf8(line).ok()?.strip_suffix('\n')?;
        let mut numbers = line.split(' ').map(str::parse::<u64>);
        let mut next = || numbers.next()?.ok();
        let (time, mini_batch, try_number) = (next()?, next()?, next()?);
        Some(Self { time, mini_batch, try_number, ranges: [next()?..next()?, next()?..next()?] })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use object_store::memory::InMemory;
    use proptest::prelude::*;

    use super::*;

    fn attempt(mini_batch: u64, try_number: u32, started_at: u64, milliseconds: u64) -> Attempt {
        Attempt {
            mini_batch,
            try_number,
            node: "0".into(),
            process: "process000".into(),
            started_at,
            elapsed_seconds: milliseconds as f64 / 1000.0,
            ..Attempt::default()
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Every attempt of a process finds exactly its output, however many there are.
        #[test]
        fn attempt_finds_its_own_output(
            runs in prop::collection::vec((0..4_u64, 0..50_u64, 0..90_u64, 0..9_u64, 0..LAG_MS), 1..4000),
        ) {
            let (mut time, mut places, mut out, mut err) = (1_000_000, String::new(), 0, 0);
            let (mut attempts, mut tries) = (Vec::new(), [0; 4]);
            for (mini_batch, milliseconds, stdout, stderr, lag) in runs {
                tries[mini_batch as usize] += 1;
                let try_number = tries[mini_batch as usize];
                let attempt = attempt(mini_batch, try_number, time + lag, milliseconds);
                time += milliseconds;
                let expected = [("stdout", out..out + stdout), ("stderr", err..err + stderr)];
                (out, err) = (out + stdout, err + stderr);
                if stdout + stderr > 0 {
                    let [(_, stdout), (_, stderr)] = &expected;
                    let Range { start: a, end: b } = stdout;
                    let Range { start: c, end: d } = stderr;
                    places += &format!("{time} {mini_batch} {try_number} {a} {b} {c} {d}\n");
                }
                attempts.push((attempt, expected));
            }
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            runtime.block_on(async {
                let store = JobStore::new(Arc::new(InMemory::new()), "jobs/job".into());
                let files = [
                    ("sys/printed/0/process000.txt", places.into_bytes()),
                    ("user/stdout/0/process000.stdout.txt", vec![b'o'; out as usize]),
                    ("user/stderr/0/process000.stderr.txt", vec![b'e'; err as usize]),
                ];
                for (path, content) in files {
                    store.put_log(path, Bytes::from(content)).await.expect("in memory");
                }
                let logs = store.logs().await.expect("in memory");
                for (attempt, expected) in attempts.iter().step_by(attempts.len().div_ceil(50)) {
                    let found = printed(&store, attempt, &logs).await.expect("in memory");
                    let expected: Vec<Printed> = expected
                        .iter()
                        .filter(|(_, range)| !range.is_empty())
                        .map(|(stream, range)| Printed {
                            path: format!("user/{stream}/0/process000.{stream}.txt"),
                            range: range.clone(),
                        })
                        .collect();
                    assert_eq!(found, expected);
                }
            });
        }
    }

    #[tokio::test]
    async fn output_that_is_not_in_the_store_is_left_out() {
        let store = JobStore::new(Arc::new(InMemory::new()), "jobs/job".into());
        let places = Bytes::from_static(
            b"1000 7 1 10 20 0 0\n1001 7 1 20 30 0 0\n1002 7 1 90 99 0 5\n1003 7 1 9",
        );
        store.put_log("sys/printed/0/process000.txt", places).await.expect("in memory");
        store
            .put_log("user/stdout/0/process000.stdout.txt", vec![b'x'; 50].into())
            .await
            .expect("in memory");
        let logs = store.logs().await.expect("in memory");
        let found = printed(&store, &attempt(7, 1, 1000, 3), &logs).await.expect("in memory");
        let path = "user/stdout/0/process000.stdout.txt".to_owned();
        assert_eq!(found, [Printed { path, range: 10..30 }], "ranges of one attempt are one part");
        assert_eq!(printed(&store, &attempt(8, 1, 1000, 3), &logs).await.expect("in memory"), []);
    }
}
