//! The logs of a job, from storage alone: new lines, and the first error.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use futures::StreamExt;
use storage::LogFile;

use crate::list::in_order;
use crate::{FoundJob, Jobs};

/// Time between two reads of growing files.
const LOOK_EVERY_HERE: Duration = Duration::from_millis(300);
const LOOK_EVERY_THERE: Duration = Duration::from_secs(2);
/// Bytes of a file in which the first error is searched.
const FIRST_ERROR_BYTES: u64 = 256 * 1024;
/// The beginning of the name of the overview; a time follows.
pub const OVERVIEW: &str = "job_progress_overview";

/// The first error that any process has logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstError {
    /// The file below `logs/`.
    pub path: String,
    /// Its time, as written in the file.
    pub time: String,
    /// The message with its traceback.
    pub text: String,
}

impl FoundJob {
    /// Returns the first error that any process has logged.
    pub async fn first_error(&self) -> Result<Option<FirstError>> {
        let mut files = self.store.logs().await?;
        files.retain(|file| file.path.starts_with("user/error/") && file.bytes > 0);
        let mut first: Option<FirstError> = None;
        let store = self.store.clone();
        let mut reads = in_order(files.into_iter().map(move |LogFile { path, bytes }| {
            let store = store.clone();
            async move {
                let text = store.log_range(&path, 0..bytes.min(FIRST_ERROR_BYTES)).await?;
                storage::Result::Ok((path, text))
            }
        }));
        while let Some(read) = reads.next().await {
            let (path, text) = read?;
            let Some((time, text)) = first_entry(&String::from_utf8_lossy(&text)) else { continue };
            if first.as_ref().is_none_or(|earliest| time < earliest.time) {
                first = Some(FirstError { path, time, text });
            }
        }
        Ok(first)
    }
}

/// Reads the lines that are added to files below `logs/`.
#[derive(Debug)]
pub struct Tail {
    /// The file of this name, or those whose names begin with it; `None`: the overview, and the
    /// output of the script.
    beginning: Option<String>,
    files: BTreeMap<String, FollowedFile>,
}

/// New lines.
#[derive(Debug)]
pub struct NewLines {
    /// The lines, each with its file.
    pub lines: Vec<(String, String)>,
    /// Whether only one file is followed.
    pub is_one_file: bool,
    /// Why no more lines follow; `None`: more may follow.
    pub end: Option<TailEnd>,
}

/// Why no more lines are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TailEnd {
    /// The job has ended.
    Ended,
    /// The process that ran the local job has ended.
    Interrupted,
}

impl Tail {
    /// Starts at the beginning of every file.
    pub fn new(beginning: Option<String>) -> Self {
        Self { beginning, files: BTreeMap::new() }
    }

    /// Returns how long to wait between two reads.
    pub fn period(jobs: &Jobs) -> Duration {
        if matches!(jobs, Jobs::Here(_)) { LOOK_EVERY_HERE } else { LOOK_EVERY_THERE }
    }

    /// Reads the lines that were added since the last call.
    pub async fn read(&mut self, jobs: &Jobs, job: &FoundJob) -> Result<NewLines> {
        // Before the files, so that everything written before the end is read.
        let end = if job.store.result().await?.is_some() {
            Some(TailEnd::Ended)
        } else {
            jobs.is_abandoned(&job.spec.job_id)?.then_some(TailEnd::Interrupted)
        };
        let mut files = job.store.logs().await?;
        let beginning = self.beginning.as_deref();
        let is_one_file = beginning.is_some_and(|name| files.iter().any(|file| file.path == name));
        files.retain(|file| match beginning {
            Some(name) if is_one_file => file.path == name,
            Some(name) => file.path.starts_with(name),
            None => is_followed(&file.path),
        });
        let mut lines = Vec::new();
        for LogFile { path, bytes } in files {
            let known = self.files.entry(path.clone()).or_default();
            if bytes < known.bytes {
                // The file was replaced.
                *known = FollowedFile::default();
            }
            if bytes > known.bytes {
                let more = job.store.log_range(&path, known.bytes..bytes).await?;
                known.bytes = bytes;
                lines.extend(known.lines(&more).map(|line| (path.clone(), line)));
            }
        }
        if end.is_some() {
            for (path, file) in &mut self.files {
                lines.extend(file.rest().map(|line| (path.clone(), line)));
            }
        }
        Ok(NewLines { lines, is_one_file, end })
    }
}

#[derive(Debug, Default)]
struct FollowedFile {
    bytes: u64,
    /// The beginning of an incomplete line.
    line: Vec<u8>,
}

impl FollowedFile {
    /// Returns the lines that are complete now.
    fn lines(&mut self, more: &[u8]) -> impl Iterator<Item = String> + use<> {
        self.line.extend_from_slice(more);
        let end = self.line.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let rest = self.line.split_off(end);
        let whole = std::mem::replace(&mut self.line, rest);
        let lines: Vec<String> = whole.split_inclusive(|byte| *byte == b'\n').map(line).collect();
        lines.into_iter()
    }

    /// Returns a last line without a line break.
    fn rest(&mut self) -> Option<String> {
        (!self.line.is_empty()).then(|| line(&std::mem::take(&mut self.line)))
    }
}

fn line(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let text = text.strip_suffix('\n').unwrap_or(&text);
    text.strip_suffix('\r').unwrap_or(text).to_owned()
}

/// Whether a file is followed by default: the overview, and the output of the script.
fn is_followed(path: &str) -> bool {
    let is_of_script = path.strip_prefix("user/").is_some_and(|rest| rest.contains('/'));
    path.starts_with(OVERVIEW) || is_of_script
}

/// Returns the first entry of a file of errors, and its time in a form that sorts.
fn first_entry(text: &str) -> Option<(String, String)> {
    let lines: Vec<&str> = text.lines().collect();
    let begins = lines.iter().position(|line| time_of(line).is_some())?;
    let length = lines[begins + 1..].iter().position(|line| time_of(line).is_some());
    let entry = &lines[begins..length.map_or(lines.len(), |length| begins + 1 + length)];
    Some((time_of(lines[begins])?, entry.join("\n").trim_end().to_owned()))
}

/// Returns the time at the beginning of an entry: `2026-11-21 10:02:03.123456`, or with `T`.
fn time_of(line: &str) -> Option<String> {
    const PATTERN: &[u8] = b"dddd-dd-dd dd:dd:dd.dddddd";
    let time = line.get(..PATTERN.len())?.replace('T', " ");
    let fits = |(pattern, byte): (&u8, u8)| {
        if *pattern == b'd' { byte.is_ascii_digit() } else { byte == *pattern }
    };
    PATTERN.iter().zip(time.bytes()).all(fits).then_some(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_entry_ends_where_the_next_begins() {
        let text = "cut off\n2026-11-21 10:02:03.123456 run(): ValueError: bad\nTraceback:\n  File \"a.py\"\n\n\
                    2026-11-21T10:02:04.123456Z|ERROR|7|MainThread|killed\nstack\n";
        let (time, entry) = first_entry(text).expect("two entries");
        assert_eq!(time, "2026-11-21 10:02:03.123456");
        assert_eq!(
            entry,
            "2026-11-21 10:02:03.123456 run(): ValueError: bad\nTraceback:\n  File \"a.py\""
        );
        let (_, entry) =
            first_entry(&text[text.find("2026-11-21T").expect("there")..]).expect("one entry");
        assert!(entry.ends_with("killed\nstack"), "{entry}");
        assert_eq!(first_entry("nothing\n"), None);
    }

    #[test]
    fn overview_and_files_of_the_script_are_followed() {
        for (path, expected) in [
            ("job_progress_overview.20261121100203.txt", true),
            ("user/stdout/0/process000.stdout.txt", true),
            ("user/error/0/process000.txt", true),
            ("user/error.txt", false),
            ("sys/job_report/node_summary.csv", false),
        ] {
            assert_eq!(is_followed(path), expected, "{path}");
        }
    }
}
