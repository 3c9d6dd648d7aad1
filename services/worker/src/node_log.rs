//! The node's own log files: `sys/node/<node>/_main.txt`, one `processNNN.txt` for each process, and `user/error/…` for
//! errors that a killed process could not write itself.
//!
//! Lines have the form `time|LEVEL|pid|thread|message`, time in UTC. A failure to write a log never stops the work.

use std::borrow::Cow;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use chrono::{SecondsFormat, Utc};
use protocol::{Attempt, ErrorReport};
use rustix::fs::OFlags;

use crate::job_users;

/// The paths and the main log of one node.
pub struct NodeLog {
    logs: PathBuf,
    node: String,
    main: LogFile,
}

impl NodeLog {
    /// Opens the node's main log below the job's `logs` folder.
    pub fn open(logs: &Path, node: &str) -> Self {
        let main = LogFile::open(logs.join("sys/node").join(node).join("_main.txt"));
        Self { logs: logs.to_owned(), node: node.to_owned(), main }
    }

    /// Writes to the main log, and flushes it.
    pub fn main(&mut self, level: &str, message: &str) {
        self.main.line(level, std::process::id(), &on_one_line(message));
        self.main.flush();
    }

    pub fn folder(&self) -> &Path {
        &self.logs
    }

    pub fn process(&self, process: &str) -> LogFile {
        LogFile::open(self.system_file(process, "txt"))
    }

    /// Returns `sys/node/<node>/<process>.<extension>`.
    pub fn system_file(&self, process: &str, extension: &str) -> PathBuf {
        self.logs.join("sys/node").join(&self.node).join(format!("{process}.{extension}"))
    }

    /// Returns `user/<stream>/<node>/<process>.<stream>.txt`, the output of the process's Python code.
    pub fn user_stream(&self, process: &str, stream: &str) -> PathBuf {
        self.logs.join("user").join(stream).join(&self.node).join(format!("{process}.{stream}.txt"))
    }

    /// Adds an error, of a mini-batch or outside of any, to the error file of a process that can no longer write to it.
    pub fn user_error(
        &self,
        process: &str,
        pid: u32,
        mini_batch: Option<u64>,
        error: &ErrorReport,
    ) {
        let mut text =
            mini_batch.map_or(String::new(), |mini_batch| format!("mini-batch {mini_batch}: "));
        text.push_str(&error.message);
        if !error.traceback.is_empty() {
            text.push('\n');
            text.push_str(error.traceback.trim_end());
        }
        if !error.printed.is_empty() {
            text.push_str("\nPrinted last:");
            error.printed.lines().for_each(|line| text.extend(["\n  ", line]));
        }
        let mut file = LogFile::open(self.logs.join(user_error_name(&self.node, process)));
        file.line("ERROR", pid, &text);
        file.flush();
    }

    /// Returns the number for the first process of this node, which follows those in the logs of earlier runs of the job.
    pub fn first_process_number(&self) -> u32 {
        let Ok(entries) = std::fs::read_dir(self.logs.join("sys/node").join(&self.node)) else {
            return 0;
        };
        let numbers = entries.flatten().filter_map(|entry| {
            let name = entry.file_name();
            name.to_str()?.strip_prefix("process")?.split('.').next()?.parse::<u32>().ok()
        });
        numbers.max().map_or(0, |highest| highest + 1)
    }
}

/// Returns the file below `logs/` that holds the complete errors of a process.
pub fn user_error_name(node: &str, process: &str) -> String {
    format!("user/error/{node}/{process}.txt")
}

/// One log file; buffered.
pub struct LogFile {
    file: Option<BufWriter<File>>,
}

impl LogFile {
    fn open(path: PathBuf) -> Self {
        let file = append_to(&path)
            .map_err(|error| tracing::warn!("cannot write {}: {error}", path.display()))
            .ok();
        Self { file: file.map(BufWriter::new) }
    }

    pub fn line(&mut self, level: &str, pid: u32, message: &str) {
        if let Some(file) = &mut self.file {
            let now = Utc::now().to_rfc3339_opts(SecondsFormat::Micros, true);
            // Ignored: a full disk fails the announcement of outcomes.
            let _ = writeln!(file, "{now}|{level}|{pid}|MainThread|{message}");
        }
    }

    pub fn attempt(&mut self, pid: u32, attempt: &Attempt) {
        let level = if attempt.error.is_some() { "ERROR" } else { "INFO" };
        let mut message = format!(
            "mini-batch {} try {}: {}; total {}, succeeded {}, failed {}; elapsed {:.6} s, process time {:.6} s, \
             run() {:.6} s; {}",
            attempt.mini_batch,
            attempt.try_number,
            attempt.status.report_word(),
            attempt.total,
            attempt.succeeded,
            attempt.failed(),
            attempt.elapsed_seconds,
            attempt.process_seconds,
            attempt.run_seconds,
            attempt.detail,
        );
        if let Some(error) = &attempt.error {
            message.push_str("; ");
            message.push_str(&error.message);
        }
        self.line(level, pid, &on_one_line(&message));
    }

    /// Writes buffered lines to the file.
    pub fn flush(&mut self) {
        if let Some(file) = &mut self.file {
            let _ = file.flush();
        }
    }
}

/// Opens a file to append to it, and creates it and its folder if they are missing.
pub fn append_to(path: &Path) -> std::io::Result<File> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    job_users::open(path, OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE)
}

/// Joins lines, so that text of scripts and queues cannot imitate a line of the engine.
fn on_one_line(message: &str) -> Cow<'_, str> {
    if message.bytes().any(|byte| matches!(byte, b'\n' | b'\r')) {
        return message.replace(['\n', '\r'], " ").into();
    }
    message.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_is_one_line() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let mut log = NodeLog::open(folder.path(), "0");
        log.main("ERROR", "bad\n2026-11-21T00:00:00Z|INFO|1|MainThread|all is well\r\n");
        let text = std::fs::read_to_string(log.system_file("_main", "txt")).expect("written");
        assert_eq!(text.lines().count(), 1, "{text}");
    }

    #[test]
    fn resumed_job_continues_the_numbers_of_its_processes() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let log = NodeLog::open(folder.path(), "0");
        assert_eq!(log.first_process_number(), 0);
        log.process("process000").flush();
        std::fs::write(log.system_file("process011", "stdout.txt"), "").expect("writable");
        assert_eq!(log.first_process_number(), 12);
    }
}
