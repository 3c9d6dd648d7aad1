//! `processed_mini-batches.csv`: one row per attempt.

use std::path::PathBuf;

use chrono::DateTime;
use protocol::{Attempt, AttemptRef, AttemptStatus, ErrorReport, ProcessName, one_line};

use super::file::ReportFile;
use crate::csv::Dialect;

const HEADER: &str = "Mini-batch Id,Picked Count,Process,Process Start Time (UTC),Total,Succeeded,Failed,\
    Elapsed Seconds,Process Seconds,Run Method Seconds,Status,Error Category,Error Message,Mini-batch Detail,\
    Node,Process Name,Waited Seconds,Prepared Seconds,Loaded Seconds,Reported Seconds,\
    Second Start\n";

#[derive(Debug)]
pub(super) struct Processed {
    file: ReportFile,
    texts: Texts,
}

/// The fields that an ordinary success leaves out.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttemptKind<'a> {
    pub status: AttemptStatus,
    pub error: Option<&'a ErrorReport>,
    /// Whether it was a copy.
    pub is_copy: bool,
}

impl AttemptKind<'_> {
    pub const SUCCESS: Self =
        Self { status: AttemptStatus::Succeeded, error: None, is_copy: false };
}

impl<'a> From<&'a Attempt> for AttemptKind<'a> {
    fn from(attempt: &'a Attempt) -> Self {
        Self { status: attempt.status, error: attempt.error.as_deref(), is_copy: attempt.copy }
    }
}

/// Texts of the last row, which consecutive rows often share.
#[derive(Debug)]
struct Texts {
    dialect: Dialect,
    /// A second, and its text.
    second: (i64, String),
    /// A process, and its cells.
    process: Option<(ProcessName<String>, String)>,
}

impl Processed {
    pub fn create(path: PathBuf) -> Self {
        let mut file = ReportFile::create(path);
        file.write(HEADER);
        let texts =
            Texts { dialect: Dialect::default(), second: (i64::MIN, String::new()), process: None };
        Self { file, texts }
    }

    pub fn add(&mut self, attempt: &AttemptRef, kind: AttemptKind<'_>, pid: Option<u32>) {
        self.file.write_with(|row| self.texts.write(attempt, kind, pid, row));
    }

    pub fn flush(&mut self) {
        self.file.flush();
    }
}

impl Texts {
    fn write(
        &mut self,
        attempt: &AttemptRef,
        AttemptKind { status, error, is_copy }: AttemptKind<'_>,
        pid: Option<u32>,
        row: &mut String,
    ) {
        push_number(row, attempt.mini_batch);
        row.push(',');
        // Counts every delivery, like the queue of the original.
        push_number(row, u64::from(attempt.try_number) + u64::from(attempt.deliveries_lost));
        row.push(',');
        if let Some(pid) = pid {
            push_number(row, pid.into());
        }
        row.push(',');
        self.push_time(attempt.started_at, row);
        for count in [attempt.total, attempt.succeeded, attempt.failed()] {
            row.push(',');
            push_number(row, count);
        }
        for seconds in [attempt.elapsed_seconds, attempt.process_seconds, attempt.run_seconds] {
            row.push(',');
            push_seconds(row, seconds);
        }
        row.push(',');
        row.push_str(status.report_word());
        row.push(',');
        if let Some(error) = error {
            self.text(&error.category, row);
            row.push(',');
            self.text(&one_line(&error.message), row);
            row.push(',');
        } else {
            row.push_str(",,");
        }
        self.text(attempt.detail, row);
        let ProcessName { node, process } = attempt.process;
        match &self.process {
            Some((last, cells)) if last.process == process && last.node == node => {
                row.push_str(cells)
            }
            _ => {
                let mut cells = String::new();
                for name in [node, process] {
                    cells.push(',');
                    self.text(name, &mut cells);
                }
                row.push_str(&cells);
                self.process = Some((
                    ProcessName { node: node.to_owned(), process: process.to_owned() },
                    cells,
                ));
            }
        }
        push_phases(row, attempt);
        row.push_str(if is_copy { ",True\n" } else { ",\n" });
    }

    fn text(&self, field: &str, row: &mut String) {
        self.dialect.push_inert(field, row);
    }

    fn push_time(&mut self, milliseconds: u64, row: &mut String) {
        let second = i64::try_from(milliseconds / 1000).unwrap_or(i64::MAX);
        if second != self.second.0 {
            let time = DateTime::from_timestamp(second, 0).unwrap_or_default();
            self.second = (second, time.format("%Y-%m-%dT%H:%M:%S").to_string());
        }
        row.push_str(&self.second.1);
        row.push('.');
        push_fraction(row, milliseconds % 1000 * 1000);
    }
}

// There is a row for each attempt, and `write!` is several times slower than these functions.

fn push_number(row: &mut String, number: u64) {
    row.push_str(itoa::Buffer::new().format(number));
}

/// Writes the phases that no other cell contains: empty if they were not measured.
fn push_phases(row: &mut String, attempt: &AttemptRef) {
    let phases = attempt.phases;
    if !phases.are_known() {
        return row.push_str(",,,,");
    }
    let reported = phases.reported_seconds(attempt.elapsed_seconds, attempt.run_seconds);
    let before =
        [phases.waited_seconds, phases.prepared_seconds, phases.loaded_seconds].map(f64::from);
    for seconds in before.into_iter().chain([reported]) {
        row.push(',');
        push_seconds(row, seconds);
    }
}

/// Writes seconds with six decimals.
fn push_seconds(row: &mut String, seconds: f64) {
    let microseconds = (seconds * 1e6).round();
    if !(0.0..1e15).contains(&microseconds) {
        row.push_str(&format!("{seconds:.6}"));
        return;
    }
    let microseconds = microseconds as u64;
    push_number(row, microseconds / 1_000_000);
    row.push('.');
    push_fraction(row, microseconds % 1_000_000);
}

/// Writes six digits with leading zeros.
fn push_fraction(row: &mut String, millionths: u64) {
    row.push_str(&itoa::Buffer::new().format(1_000_000 + millionths)[1..]);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use protocol::Phases;

    use super::*;
    use crate::fixtures::{failed, succeeded};

    fn add(processed: &mut Processed, attempt: &Attempt, pid: Option<u32>) {
        processed.add(&attempt.core(), attempt.into(), pid);
    }

    #[test]
    fn each_attempt_has_one_row() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("processed.csv");
        let mut processed = Processed::create(path.clone());
        add(&mut processed, &succeeded(7, 1, 10, 9), Some(4321));
        let mut retried = failed(8, 2, false, 10);
        retried.deliveries_lost = 3;
        (retried.phases, retried.copy) = (Phases::default(), true);
        retried.error.as_mut().expect("failed").message = "bad, \"very\" bad\nreally".into();
        add(&mut processed, &retried, None);
        processed.flush();
        let text = std::fs::read_to_string(path).expect("written");
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], HEADER.trim_end());
        let good = "7,1,4321,2023-11-14T22:13:20.123000,10,9,1,0.250000,0.125000,0.200000,RUN_DONE,,,/data/7.png,0,\
                    process000,1.500000,0.500000,0.000000,0.050000,";
        assert_eq!(lines[1], good);
        let bad = "8,5,,2023-11-14T22:13:20.123000,10,0,10,0.250000,0.125000,0.200000,RUN_EXCEPTION,ValueError,\
                   \"bad, \"\"very\"\" bad\",/data/8.png,0,process000,,,,,True";
        assert_eq!(lines[2], bad);
        assert_eq!(lines.len(), 3);
    }

    #[test]
    fn no_field_starts_a_formula() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("processed.csv");
        let mut processed = Processed::create(path.clone());
        for formula in ["=HYPERLINK(\"http://evil\")", "+1", "-1", "@SUM(A1)"] {
            let mut attempt = failed(0, 1, true, 1);
            attempt.error.as_mut().expect("failed").message = formula.into();
            (attempt.detail, attempt.node, attempt.process) =
                (formula.into(), formula.into(), formula.into());
            add(&mut processed, &attempt, None);
        }
        processed.flush();
        let text = std::fs::read_to_string(path).expect("written");
        for cell in text.lines().skip(1).flat_map(|line| line.split(',').skip(11)) {
            assert!(
                !cell.trim_start_matches('"').starts_with(['=', '+', '-', '@']),
                "{cell} in {text}"
            );
        }
    }

    proptest! {
        #[test]
        fn seconds_have_six_digits_and_are_right(microseconds in 0..u64::MAX / 1_000_000, wild in any::<f64>()) {
            let mut row = String::new();
            push_seconds(&mut row, (microseconds >> 14) as f64 / 1e6);
            let (whole, fraction) = row.split_once('.').expect("a point");
            let read: u64 = format!("{whole}{fraction}").parse().expect("digits");
            prop_assert_eq!((read, fraction.len()), (microseconds >> 14, 6));

            row.clear();
            push_seconds(&mut row, wild);
            let read: f64 = row.parse().expect("a number");
            // Half of the last digit, and what two roundings of a value of this size may add.
            let tolerance = 0.500_001e-6 + 2.0 * f64::EPSILON * wild.abs();
            prop_assert!(wild.is_nan() || wild == read || (wild - read).abs() <= tolerance, "{} as {}", wild, row);
        }
    }
}
