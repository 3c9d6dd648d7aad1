//! Messages about a line of `gristmill.toml`.

use std::path::Path;

use anyhow::anyhow;
use job_file::nearest;

/// A place in the file.
pub(super) struct Line<'a> {
    pub(super) path: &'a Path,
    pub(super) number: usize,
}

impl Line<'_> {
    pub(super) fn error(&self, message: String) -> anyhow::Error {
        anyhow!("{}:{}: {message}", self.path.display(), self.number)
    }
}

pub(super) fn unknown(line: &Line<'_>, key: &str, allowed: &[&str]) -> anyhow::Error {
    let hint = nearest(key, allowed.iter().copied())
        .map_or(String::new(), |nearest| format!(", did you mean {nearest:?}?"));
    line.error(format!("unknown key {key:?}{hint} (allowed: {})", allowed.join(", ")))
}
