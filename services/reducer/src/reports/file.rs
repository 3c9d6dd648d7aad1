//! A report file. Reports are for people: if one cannot be written, the job continues without it.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};

const BUFFER_BYTES: usize = 64 * 1024;

/// Appends to one file through a buffer.
#[derive(Debug)]
pub(crate) struct ReportFile {
    path: PathBuf,
    /// `None` after an error, or at the limit.
    file: Option<File>,
    buffer: String,
    bytes_left: u64,
}

impl ReportFile {
    /// Starts an empty file.
    pub fn create(path: PathBuf) -> Self {
        let file = with_folder(&path, |path| File::create(path));
        Self { path, file, buffer: String::new(), bytes_left: u64::MAX }
    }

    /// Continues at the end of the file.
    pub fn append(path: PathBuf) -> Self {
        let file =
            with_folder(&path, |path| OpenOptions::new().create(true).append(true).open(path));
        Self { path, file, buffer: String::new(), bytes_left: u64::MAX }
    }

    /// Limits the size of the file, which then notes that further text is dropped.
    pub fn capped(self, bytes_max: u64) -> Self {
        Self { bytes_left: bytes_max, ..self }
    }

    /// Adds text that ends with a line break.
    pub fn write(&mut self, text: &str) {
        self.write_with(|buffer| buffer.push_str(text));
    }

    /// Adds the text that `append` appends, which ends with a line break.
    pub fn write_with(&mut self, append: impl FnOnce(&mut String)) {
        if self.file.is_none() {
            return;
        }
        append(&mut self.buffer);
        if self.buffer.len() as u64 >= self.bytes_left {
            self.buffer.push_str("This file has reached its limit; further lines are dropped.\n");
            self.flush();
            self.file = None;
            return;
        }
        if self.buffer.len() >= BUFFER_BYTES {
            self.flush();
        }
    }

    /// Adds a line with its time, as in the overview of the original. Line breaks in the message become spaces.
    pub fn line(&mut self, message: &str) {
        self.write(&format!("{} {}\n", timestamp(Utc::now()), message.replace(['\n', '\r'], " ")));
    }

    /// Passes the buffer to the operating system.
    pub fn flush(&mut self) {
        let Some(file) = &mut self.file else { return };
        self.bytes_left = self.bytes_left.saturating_sub(self.buffer.len() as u64);
        if let Err(error) = file.write_all(self.buffer.as_bytes()) {
            tracing::warn!(file.path = %self.path.display(), %error, "cannot write a report; the job continues without it");
            self.file = None;
        }
        self.buffer.clear();
    }
}

/// Writes a whole report.
pub(crate) fn replace(path: &Path, text: &str) {
    with_folder(path, |path| fs::write(path, text));
}

fn with_folder<T>(path: &Path, open: impl FnOnce(&Path) -> std::io::Result<T>) -> Option<T> {
    let folder = path.parent().map_or(Ok(()), fs::create_dir_all);
    match folder.and_then(|()| open(path)) {
        Ok(opened) => Some(opened),
        Err(error) => {
            tracing::warn!(file.path = %path.display(), %error, "cannot write a report; the job continues without it");
            None
        }
    }
}

/// Returns ISO 8601 in UTC with microseconds.
pub(crate) fn timestamp(time: DateTime<Utc>) -> String {
    time.format("%Y-%m-%dT%H:%M:%S%.6f").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capped_file_notes_its_limit() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("a/b.txt");
        let mut file = ReportFile::create(path.clone()).capped(20);
        (0..10).for_each(|_| file.write("some line\n"));
        file.flush();
        let text = fs::read_to_string(path).expect("written");
        assert_eq!(
            text,
            "some line\nsome line\nThis file has reached its limit; further lines are dropped.\n"
        );
    }

    #[test]
    fn message_stays_on_one_line() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let mut file = ReportFile::create(folder.path().join("overview.txt"));
        file.line("Node 0\n2026-11-21T00:00:00.000000 The job ended: Completed.");
        file.flush();
        assert_eq!(
            fs::read_to_string(folder.path().join("overview.txt"))
                .expect("written")
                .lines()
                .count(),
            1
        );
    }

    #[test]
    fn unwritable_report_is_ignored() {
        let mut file = ReportFile::create("/proc/no/such/file".into());
        file.write("line\n");
        file.flush();
    }
}
