//! The last lines that a process printed, for failure reports.
//!
//! Python writes its output to files in the user's logs, and the status page holds the offset at which the output of an
//! attempt begins. Output of native code and child processes goes through pipes to the agent, which keeps the latest
//! part.

use std::collections::VecDeque;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

use crate::job_users;

/// Lines of a quotation.
const LINES_MAX: usize = 10;
/// Bytes of a quotation.
const BYTES_MAX: usize = 2 * 1024;
/// Checks of a pipe that still holds output.
const SETTLE_TRIES: u32 = 20;
const SETTLE_PAUSE: Duration = Duration::from_millis(1);
/// Bytes at the end of the file in which `faulthandler` leaves the stack of a crash.
const CRASH_BYTES_MAX: u64 = 16 * 1024;
/// Beginning of such a stack.
const CRASH_BEGINNING: &str = "Fatal Python error: ";

/// Output, and when the agent read it.
type Piece = (Instant, Vec<u8>);

/// The latest output of a process to one descriptor.
#[derive(Clone, Debug, Default)]
pub struct RecentOutput(Arc<Mutex<VecDeque<Piece>>>);

impl RecentOutput {
    /// Adds output that the reader has just read.
    pub fn add(&self, bytes: &[u8]) {
        let kept = &bytes[bytes.len().saturating_sub(BYTES_MAX)..];
        let mut pieces = self.0.lock().expect("no holder panics");
        pieces.push_back((Instant::now(), kept.to_vec()));
        let mut total: usize = pieces.iter().map(|(_, piece)| piece.len()).sum();
        while let Some((_, first)) = pieces.front()
            && total - first.len() >= BYTES_MAX
        {
            total -= first.len();
            pieces.pop_front();
        }
    }

    /// Returns the lines that were read after `began`.
    pub fn lines_since(&self, began: Instant) -> Vec<String> {
        let pieces = self.0.lock().expect("no holder panics");
        let bytes: Vec<u8> = pieces
            .iter()
            .filter(|(at, _)| *at >= began)
            .flat_map(|(_, piece)| piece)
            .copied()
            .collect();
        lines(&bytes)
    }
}

/// The pipes of a process, and the latest output from each.
#[derive(Debug, Default)]
pub struct Pipes {
    ends: Vec<(OwnedFd, RecentOutput)>,
}

impl Pipes {
    /// Adds a pipe. Its reader adds the output to the returned value.
    pub fn add(&mut self, end: BorrowedFd<'_>) -> RecentOutput {
        let latest = RecentOutput::default();
        // Without a copy of the descriptor, reports do not wait for output in the pipe.
        if let Ok(end) = end.try_clone_to_owned() {
            self.ends.push((end, latest.clone()));
        }
        latest
    }

    /// Waits briefly until all written output has been read.
    pub async fn settle(&self) {
        for _ in 0..SETTLE_TRIES {
            let waits = |(end, _): &(OwnedFd, RecentOutput)| {
                rustix::io::ioctl_fionread(end).is_ok_and(|bytes| bytes > 0)
            };
            if !self.ends.iter().any(waits) {
                return;
            }
            tokio::time::sleep(SETTLE_PAUSE).await;
        }
    }

    /// Returns the lines of each pipe that were read after `began`.
    pub fn lines_since(&self, began: Instant) -> Vec<Vec<String>> {
        self.ends.iter().map(|(_, latest)| latest.lines_since(began)).collect()
    }
}

/// Returns the last lines of a file behind an offset.
pub fn last_lines(path: &Path, beginning: u64) -> Vec<String> {
    let (text, is_cut) = end_of(path, beginning, BYTES_MAX as u64).unwrap_or_default();
    let mut lines = lines(&text);
    if is_cut && lines.len() > 1 {
        lines.remove(0);
    }
    lines
}

/// Returns the Python stacks that a crash has left in a file, without frames of the engine's `package` and the list of
/// extension modules.
pub fn crash_stack(path: &Path, package: &Path) -> Option<String> {
    let (text, _) = end_of(path, 0, CRASH_BYTES_MAX).ok()?;
    let text = String::from_utf8_lossy(&text);
    let stack = &text[text.rfind(CRASH_BEGINNING)?..];
    let package = package.to_string_lossy();
    let is_foreign =
        |line: &&str| !line.starts_with("Extension modules:") && !line.contains(&*package);
    let lines = stack.lines().filter(is_foreign);
    Some(lines.collect::<Vec<_>>().join("\n").trim_end().to_owned())
}

/// Removes a crash report from the end of the lines.
pub fn without_crash(mut lines: Vec<String>) -> Vec<String> {
    if let Some(beginning) = lines.iter().position(|line| line.starts_with(CRASH_BEGINNING)) {
        lines.truncate(beginning);
    }
    lines
}

/// Joins several streams to one quotation, in this order. The longest streams lose their first lines.
pub fn quote(mut streams: Vec<Vec<String>>) -> String {
    let bytes_of = |stream: &Vec<String>| stream.iter().map(|line| line.len() + 1).sum::<usize>();
    loop {
        let lines: usize = streams.iter().map(Vec::len).sum();
        let bytes: usize = streams.iter().map(bytes_of).sum();
        let longest = match (lines > LINES_MAX, bytes > BYTES_MAX) {
            (false, false) => break,
            (true, _) => streams.iter_mut().max_by_key(|stream| stream.len()),
            (false, true) => streams.iter_mut().max_by_key(|stream| bytes_of(stream)),
        };
        let Some(longest) = longest else { break };
        if longest.len() > 1 || lines > LINES_MAX {
            longest.remove(0);
        } else {
            // One line is longer than a quotation: keep its end, which usually says more.
            let line = &mut longest[0];
            let cut = line.len() / 2;
            let cut = (cut..line.len()).find(|&at| line.is_char_boundary(at)).unwrap_or(line.len());
            *line = format!("…{}", &line[cut..]);
        }
    }
    streams.concat().join("\n")
}

fn lines(bytes: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(bytes);
    text.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned).collect()
}

/// Returns the last bytes of a file behind an offset, and whether bytes before them are left out.
fn end_of(path: &Path, beginning: u64, bytes_max: u64) -> std::io::Result<(Vec<u8>, bool)> {
    let mut file = job_users::open(path, OFlags::RDONLY)?;
    let start = beginning.max(file.metadata()?.len().saturating_sub(bytes_max));
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(bytes_max).read_to_end(&mut bytes)?;
    Ok((bytes, start > beginning))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(name: &str, count: usize) -> Vec<String> {
        (0..count).map(|number| format!("{name} {number}")).collect()
    }

    #[test]
    fn quotation_is_bounded_and_keeps_the_end_of_each_stream() {
        assert_eq!(quote(vec![]), "");
        assert_eq!(quote(vec![numbered("out", 2), numbered("err", 1)]), "out 0\nout 1\nerr 0");
        let text = quote(vec![numbered("out", 50), numbered("err", 1)]);
        assert_eq!(text.lines().count(), LINES_MAX);
        assert!(text.ends_with("out 49\nerr 0"), "{text}");
        for line in ["x".repeat(100_000), "ü".repeat(50_000)] {
            let text = quote(vec![vec![line.clone()], vec!["short".into(), line]]);
            assert!(text.len() <= BYTES_MAX, "{}", text.len());
        }
        let text = quote(vec![vec!["a".repeat(1500), "b".repeat(1500)], vec!["end".into()]]);
        assert!(text.starts_with('b') && text.ends_with("\nend"), "{text}");
    }

    #[test]
    fn only_output_of_the_attempt_is_quoted() {
        let latest = RecentOutput::default();
        latest.add(b"before\n");
        std::thread::sleep(Duration::from_millis(2));
        let began = Instant::now();
        latest.add(b"half a li");
        latest.add(b"ne\n\nanother");
        assert_eq!(latest.lines_since(began), ["half a line", "another"]);
        latest.add(&vec![b'x'; 100_000]);
        assert_eq!(latest.lines_since(began)[0].len(), BYTES_MAX);
    }

    #[test]
    fn crash_stack_is_found_at_the_end_of_the_file() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("stderr.txt");
        let crash_stack = |path: &Path| crash_stack(path, Path::new("/opt/gristmill"));
        assert_eq!(crash_stack(&path), None, "there is no file");
        std::fs::write(&path, "printed\n").expect("writable");
        assert_eq!(crash_stack(&path), None);
        let report = "printed\nFatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n  \
                      File \"a.py\", line 3 in run\n  File \"/opt/gristmill/runner.py\", line 1 in main\n\nExtension modules: numpy (total: 1)\n";
        std::fs::write(&path, report).expect("writable");
        let stack = crash_stack(&path).expect("there is one");
        assert!(
            stack.starts_with("Fatal Python error: Segm") && stack.ends_with("line 3 in run"),
            "{stack}"
        );
        assert_eq!(without_crash(last_lines(&path, 0)), ["printed"]);
        assert_eq!(last_lines(&path, 8)[0], "Fatal Python error: Segmentation fault");
    }
}
