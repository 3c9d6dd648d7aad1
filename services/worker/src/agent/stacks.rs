//! Python stacks of a slow process.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

use crate::job_users;
use crate::orphans::Stat;
use crate::python_process::PythonProcess;

const DUMP_BYTES_MAX: u64 = 16 * 1024;

/// A pending request for the stacks of a process.
pub(super) struct StackDump {
    until: Instant,
    file: PathBuf,
    /// Size of the file before the request.
    offset: u64,
    /// Size of the file at the last check.
    seen: u64,
}

impl StackDump {
    pub(super) fn request(process: &PythonProcess, file: PathBuf, patience: Duration) -> Self {
        let offset = std::fs::metadata(&file).map_or(0, |metadata| metadata.len());
        process.dump_stacks();
        Self { until: Instant::now() + patience, file, offset, seen: offset }
    }

    /// Returns the stacks once they are written, or the part that is written when the time is over. A dump that has not
    /// grown between two checks is complete.
    pub(super) fn result(&mut self, package: &Path) -> Option<String> {
        let size = std::fs::metadata(&self.file).map_or(0, |metadata| metadata.len());
        let complete = size > self.offset && size == self.seen;
        self.seen = size;
        if !complete && Instant::now() < self.until {
            return None;
        }
        let read = || -> std::io::Result<Vec<u8>> {
            use std::os::unix::fs::FileExt;
            let mut bytes = vec![0; (size - self.offset).min(DUMP_BYTES_MAX) as usize];
            job_users::open(&self.file, OFlags::RDONLY)?.read_exact_at(&mut bytes, self.offset)?;
            Ok(bytes)
        };
        let stack = read().unwrap_or_default();
        let stack = String::from_utf8_lossy(&stack);
        Some(main_thread_first(&stack, &package.to_string_lossy()))
    }
}

/// Describes the state of a process without a Python stack, as the kernel reports it.
pub(super) fn state_of(pid: u32) -> &'static str {
    match Stat::of(pid as i32).map(|stat| stat.state) {
        Some('T') => "it is stopped (SIGSTOP)",
        Some('t') => "a debugger has stopped it",
        Some('D') => "it waits for a disk or a network file system",
        Some('R') => "it is computing",
        Some('Z' | 'X') | None => "it has ended",
        Some(_) => "it sleeps",
    }
}

/// Returns a dump of `faulthandler` without frames of the engine's `package`, beginning with the thread that handled
/// the signal, which is the main thread.
fn main_thread_first(dump: &str, package: &str) -> String {
    let mut threads: Vec<Vec<&str>> = Vec::new();
    for line in dump.lines().filter(|line| !line.trim().is_empty() && !line.contains(package)) {
        match threads.last_mut() {
            Some(thread) if line.starts_with(' ') => thread.push(line),
            _ => threads.push(vec![line]),
        }
    }
    threads.sort_by_key(|thread| !thread[0].starts_with("Current thread"));
    threads.into_iter().flatten().collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn main_thread_is_first() {
        let dump = "Thread 0x1 (most recent call first):\n  File \"threading.py\", line 3 in wait\n\nCurrent thread 0x2 \
                    (most recent call first):\n  File \"score.py\", line 7 in run\n  File \"/opt/g/runner.py\", line 9 \
                    in main\n";
        let expected = "Current thread 0x2 (most recent call first):\n  File \"score.py\", line 7 in run\nThread 0x1 \
                        (most recent call first):\n  File \"threading.py\", line 3 in wait";
        assert_eq!(main_thread_first(dump, "/opt/g"), expected);
        assert_eq!(main_thread_first("", "/opt/g"), "");
    }
}
