//! The script of a job as it ran, and its differences from the script of another job.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::{Query, State};
use engine::{ScriptSource, SourceFile};
use serde::{Deserialize, Serialize};
use similar::TextDiff;

use crate::SharedState;
use crate::document::Document;
use crate::error::Answer;
use crate::watched::View;

/// Time for the shortest difference of one file; afterwards a longer one is good enough.
const DIFFERENCE_TIME: Duration = Duration::from_millis(500);
const CONTEXT_LINES: usize = 3;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct SourceQuery {
    version: Option<usize>,
    /// The job to compare with, or with `/N` after it, its script N.
    since: Option<String>,
}

#[derive(Debug, Serialize)]
pub struct Source {
    #[serde(flatten)]
    source: ScriptSource,
    entry_script: String,
    changes: Option<Changes>,
}

/// The changes since the script of another job.
#[derive(Debug, Serialize)]
struct Changes {
    files: Vec<Change>,
    /// Files that have not changed.
    same: usize,
    /// Why they cannot be compared.
    absent: Option<String>,
}

#[derive(Debug, PartialEq, Serialize)]
struct Change {
    path: String,
    change: &'static str,
    /// As lines of a unified difference; `None`: a file is not text, or too long.
    difference: Option<String>,
}

pub async fn source(
    State(shared): SharedState,
    view: View,
    Query(query): Query<SourceQuery>,
) -> Answer<Document<Source>> {
    let jobs = &shared.options.jobs;
    let job = view.found();
    let source = jobs.source(&job, query.version).await?;
    let changes = match &query.since {
        None => None,
        Some(since) => {
            let (job_id, version) = since.split_once('/').unwrap_or((since, ""));
            let other = shared.watched.get(jobs, job_id).await?;
            let other = jobs.source(&other.found(), version.parse().ok()).await?;
            let now = source.clone();
            Some(tokio::task::spawn_blocking(move || changes(&now, &other)).await?)
        }
    };
    Ok(Document(Source { source, entry_script: job.spec.entry_script, changes }))
}

fn changes(now: &ScriptSource, earlier: &ScriptSource) -> Changes {
    let by_path = |source: &ScriptSource| -> BTreeMap<String, SourceFile> {
        source.files.iter().map(|file| (file.path.clone(), file.clone())).collect()
    };
    let (new, mut old) = (by_path(now), by_path(earlier));
    let mut files = Vec::new();
    let mut same = 0;
    for (path, file) in new {
        match old.remove(&path) {
            Some(earlier) if earlier == file => same += 1,
            Some(earlier) => files.push(Change {
                path,
                change: "changed",
                difference: earlier
                    .text
                    .zip(file.text)
                    .map(|(earlier, now)| difference(&earlier, &now)),
            }),
            None => files.push(Change {
                path,
                change: "new",
                difference: file.text.map(|now| difference("", &now)),
            }),
        }
    }
    files.extend(old.into_iter().map(|(path, earlier)| Change {
        path,
        change: "missing",
        difference: earlier.text.map(|earlier| difference(&earlier, "")),
    }));
    files.sort_by(|one, other| one.path.cmp(&other.path));
    Changes { files, same, absent: earlier.absent.clone() }
}

fn difference(earlier: &str, now: &str) -> String {
    let lines = TextDiff::configure().timeout(DIFFERENCE_TIME).diff_lines(earlier, now);
    lines.unified_diff().context_radius(CONTEXT_LINES).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_compared_line_by_line() {
        let file = |path: &str, text: Option<&str>| SourceFile {
            path: path.to_owned(),
            bytes: text.map_or(7, |text| text.len() as u64),
            text: text.map(str::to_owned),
        };
        let source = |files| ScriptSource { versions: 1, files, ..ScriptSource::default() };
        let earlier = source(vec![
            file("entry.py", Some("a\nb\nc\n")),
            file("gone.py", Some("x\n")),
            file("same.py", Some("s\n")),
            file("long.py", None),
        ]);
        let now = source(vec![
            file("entry.py", Some("a\nB\nc\n")),
            file("long.py", Some("short\n")),
            file("new.py", Some("n\n")),
            file("same.py", Some("s\n")),
        ]);
        let Changes { files, same, absent } = changes(&now, &earlier);
        assert_eq!((same, absent), (1, None));
        let told: Vec<_> = files
            .iter()
            .map(|file| (&*file.path, file.change, file.difference.as_deref().unwrap_or("none")))
            .collect();
        let expected = [
            ("entry.py", "changed", "@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n"),
            ("gone.py", "missing", "@@ -1 +0,0 @@\n-x\n"),
            ("long.py", "changed", "none"),
            ("new.py", "new", "@@ -0,0 +1 @@\n+n\n"),
        ];
        assert_eq!(told, expected);
    }
}
