//! The final file: one ordered pass over the ledger and the parts, by mini-batch.
//!
//! It is written under a temporary name in the output folder and renamed when it is whole, so it appears whole or not
//! at all. Order and bytes depend on the plan and the results alone, never on who was quick.

mod header;
mod parquet;
mod source;

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use protocol::{Output, OutputFormat};
use storage::JobStore;
use tokio::runtime::Handle;

use crate::CrashPoint;
use crate::ledger::Index;
use source::Source;

/// Mini-batches named in a warning about differing columns.
const COLUMN_WARNINGS_MAX: usize = 10;

/// Everything the final file is made from. For a thread that may block.
pub(crate) struct Assembly<'a> {
    pub store: &'a JobStore,
    pub index: &'a Index,
    pub output: &'a Output,
    pub job_id: &'a str,
    pub writer: &'a str,
    pub runtime: Handle,
    pub crash: &'a dyn Fn(CrashPoint),
}

/// The final file stands.
#[derive(Debug)]
pub(crate) struct Written {
    pub path: PathBuf,
    /// What the user should know, one line each.
    pub warnings: Vec<String>,
}

impl Assembly<'_> {
    /// Writes the final file. The error is one line when shown with `{:#}`.
    pub fn write(&self) -> anyhow::Result<Written> {
        if self.output.folder.is_url() {
            bail!("output folder {} is not a local folder", self.output.folder.display());
        }
        let folder = self.output.folder.as_path();
        fs::create_dir_all(folder).with_context(|| format!("create output folder {}", folder.display()))?;
        self.remove_leftovers(folder).with_context(|| format!("tidy output folder {}", folder.display()))?;
        let path = folder.join(&self.output.file_name);
        let temporary = folder.join(format!("{}{}.tmp", self.temporary_prefix(), self.writer));
        let written = self.write_temporary(&temporary).and_then(|warnings| {
            (self.crash)(CrashPoint::BeforeRename);
            fs::rename(&temporary, &path)
                .with_context(|| format!("rename the finished file to {}", path.display()))?;
            Ok(warnings)
        });
        match written {
            Ok(warnings) => {
                (self.crash)(CrashPoint::AfterRename);
                Ok(Written { path, warnings })
            }
            Err(error) => {
                // It frees the space that may be what is missing.
                let _ = fs::remove_file(&temporary);
                Err(error.context(format!("write {}", path.display())))
            }
        }
    }

    fn temporary_prefix(&self) -> String {
        format!(".{}.{}.", self.output.file_name, self.job_id)
    }

    /// Removes what a predecessor that was killed has left.
    fn remove_leftovers(&self, folder: &Path) -> io::Result<()> {
        let prefix = self.temporary_prefix();
        for entry in fs::read_dir(folder)? {
            let name = entry?.file_name();
            if name.to_str().is_some_and(|name| name.starts_with(&prefix) && name.ends_with(".tmp")) {
                fs::remove_file(folder.join(name))?;
            }
        }
        Ok(())
    }

    fn write_temporary(&self, temporary: &Path) -> anyhow::Result<Vec<String>> {
        let file = File::create_new(temporary).with_context(|| format!("create {}", temporary.display()))?;
        let mut source = Source::new(self.store, self.index, self.runtime.clone());
        let (file, warnings) = match self.output.format {
            OutputFormat::Parquet => {
                (parquet::write(file, self.index, &mut source, &|| (self.crash)(CrashPoint::DuringOutput))?, vec![])
            }
            OutputFormat::Text | OutputFormat::Csv | OutputFormat::Jsonl => self.write_text(file, &mut source)?,
        };
        file.sync_data().context("flush to disk")?;
        Ok(warnings)
    }

    fn write_text(&self, file: File, source: &mut Source<'_>) -> anyhow::Result<(File, Vec<String>)> {
        let mut into = BufWriter::with_capacity(1 << 20, file);
        let mut warnings = Vec::new();
        let has_header = self.output.header || self.output.format == OutputFormat::Csv;
        if has_header && self.output.format != OutputFormat::Jsonl {
            if let Some((_, columns)) = self.index.column_lists().next() {
                into.write_all(header::line(self.output, columns).as_bytes()).context("write the header")?;
            }
            warnings = self.differing_columns();
        }
        for (position, (mini_batch, place)) in self.index.places().enumerate() {
            source.copy(place, &mut into).with_context(|| format!("rows of mini-batch {mini_batch}"))?;
            if position == 0 {
                (self.crash)(CrashPoint::DuringOutput);
            }
        }
        let file = into.into_inner().map_err(io::IntoInnerError::into_error).context("write the last rows")?;
        Ok((file, warnings))
    }

    /// The header is that of the first mini-batch: rows of another shape do not match it.
    fn differing_columns(&self) -> Vec<String> {
        if self.index.column_lists_distinct() < 2 {
            return vec![];
        }
        let mut lists = self.index.column_lists();
        let Some((first, columns)) = lists.next() else { return vec![] };
        let mut differing = lists.filter(|(_, other)| *other != columns);
        let mut warnings: Vec<_> = differing
            .by_ref()
            .take(COLUMN_WARNINGS_MAX)
            .map(|(mini_batch, other)| {
                format!(
                    "mini-batch {mini_batch} returned the columns {other:?}, but the header is that of mini-batch \
                     {first}: {columns:?}"
                )
            })
            .collect();
        let more = differing.count();
        if more > 0 {
            warnings.push(format!("{more} more mini-batches returned other columns than the header names"));
        }
        warnings
    }
}

#[cfg(test)]
mod tests;
