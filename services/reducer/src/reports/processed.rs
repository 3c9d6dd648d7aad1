//! `processed_mini-batches.csv`: one row an attempt.

use std::fmt::Write;
use std::path::PathBuf;

use chrono::DateTime;
use protocol::Attempt;

use super::file::ReportFile;
use crate::csv::Dialect;
use crate::failures::one_line;

const HEADER: &str = "Mini-batch Id,Picked Count,Process,Process Start Time (UTC),Total,Succeeded,Failed,\
    Elapsed Seconds,Process Seconds,Run Method Seconds,Status,Error Category,Error Message,Mini-batch Detail,\
    Node,Process Name\n";

#[derive(Debug)]
pub(super) struct Processed {
    file: ReportFile,
    dialect: Dialect,
    row: String,
    /// The second that was formatted last, and its text: neighbours share it.
    second: (i64, String),
}

impl Processed {
    pub fn create(path: PathBuf) -> Self {
        let mut file = ReportFile::create(path);
        file.write(HEADER);
        Self { file, dialect: Dialect::default(), row: String::new(), second: (i64::MIN, String::new()) }
    }

    pub fn add(&mut self, attempt: &Attempt, pid: Option<u32>) {
        let mut row = std::mem::take(&mut self.row);
        row.clear();
        self.write(attempt, pid, &mut row).expect("writing to a string cannot fail");
        self.file.write(&row);
        self.row = row;
    }

    fn write(&mut self, attempt: &Attempt, pid: Option<u32>, row: &mut String) -> std::fmt::Result {
        // As the queue of the original counted: every time that somebody took it.
        let picked = u64::from(attempt.try_number) + u64::from(attempt.deliveries_lost);
        write!(row, "{},{picked},", attempt.mini_batch)?;
        if let Some(pid) = pid {
            write!(row, "{pid}")?;
        }
        row.push(',');
        self.write_time(attempt.started_at, row)?;
        write!(row, ",{},{},{}", attempt.total, attempt.succeeded, attempt.failed())?;
        write!(row, ",{:.6},{:.6}", attempt.elapsed_seconds, attempt.process_seconds)?;
        write!(row, ",{:.6},{},", attempt.run_seconds, attempt.status.report_word())?;
        if let Some(error) = &attempt.error {
            self.text(&error.category, row);
            row.push(',');
            self.text(&one_line(&error.message), row);
            row.push(',');
        } else {
            row.push_str(",,");
        }
        for field in [&attempt.detail, &attempt.node, &attempt.process] {
            self.text(field, row);
            row.push(',');
        }
        row.pop();
        row.push('\n');
        Ok(())
    }

    /// What a script or a file name begins with is no formula, in whatever the table is opened.
    fn text(&self, field: &str, row: &mut String) {
        match field.starts_with(['=', '+', '-', '@', '\t', '\r']) {
            true => self.dialect.push_field(&format!("'{field}"), row),
            false => self.dialect.push_field(field, row),
        }
    }

    fn write_time(&mut self, milliseconds: u64, row: &mut String) -> std::fmt::Result {
        let second = i64::try_from(milliseconds / 1000).unwrap_or(i64::MAX);
        if second != self.second.0 {
            let time = DateTime::from_timestamp(second, 0).unwrap_or_default();
            self.second = (second, time.format("%Y-%m-%dT%H:%M:%S").to_string());
        }
        write!(row, "{}.{:03}000", self.second.1, milliseconds % 1000)
    }

    pub fn flush(&mut self) {
        self.file.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{failed, succeeded};

    #[test]
    fn a_row_an_attempt() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("processed.csv");
        let mut processed = Processed::create(path.clone());
        processed.add(&succeeded(7, 1, 10, 9), Some(4321));
        let mut retried = failed(8, 2, false, 10);
        retried.deliveries_lost = 3;
        retried.error.as_mut().expect("failed").message = "bad, \"very\" bad\nreally".into();
        processed.add(&retried, None);
        processed.flush();
        let text = std::fs::read_to_string(path).expect("written");
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], HEADER.trim_end());
        let good = "7,1,4321,2023-11-14T22:13:20.123000,10,9,1,0.250000,0.125000,0.200000,RUN_DONE,,,/data/7.png,0,\
                    process000";
        assert_eq!(lines[1], good);
        let bad = "8,5,,2023-11-14T22:13:20.123000,10,0,10,0.250000,0.125000,0.200000,RUN_EXCEPTION,ValueError,\
                   \"bad, \"\"very\"\" bad\",/data/8.png,0,process000";
        assert_eq!(lines[2], bad);
        assert_eq!(lines.len(), 3);
    }

    #[test]
    fn no_field_is_a_formula() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("processed.csv");
        let mut processed = Processed::create(path.clone());
        for formula in ["=HYPERLINK(\"http://evil\")", "+1", "-1", "@SUM(A1)"] {
            let mut attempt = failed(0, 1, true, 1);
            attempt.error.as_mut().expect("failed").message = formula.into();
            (attempt.detail, attempt.node, attempt.process) = (formula.into(), formula.into(), formula.into());
            processed.add(&attempt, None);
        }
        processed.flush();
        let text = std::fs::read_to_string(path).expect("written");
        for cell in text.lines().skip(1).flat_map(|line| line.split(',').skip(11)) {
            assert!(!cell.trim_start_matches('"').starts_with(['=', '+', '-', '@']), "{cell} in {text}");
        }
    }
}
