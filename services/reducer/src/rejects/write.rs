//! Puts the tables of rejects into the log tree when a job ends.
//!
//! They get their names when they are complete: a reader never sees half a table. A reducer that is killed in between
//! leaves at most one of them, and the next one writes both again. A table that cannot be written costs a warning and
//! nothing else: the ledger still names the rejects.

use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use protocol::{AttemptStatus, Input, RejectTables};
use tempfile::TempDir;
use tokio::runtime::Handle;

use super::Rejects;
use super::tables::Tables;
use crate::tasks::joined;
use crate::{CrashPoint, Reducer};

/// The tables, by their names below `logs/`.
const CSV: &str = "rejects.csv";
const PARQUET: &str = "rejects.parquet";

/// Where the tables are written before they get their names.
struct Folder {
    path: PathBuf,
    /// The folder is a temporary one, from which the tables are moved or copied to the store.
    temporary: Option<TempDir>,
}

impl Reducer {
    /// Writes the tables of rejects. If no item is rejected any more, earlier tables become empty: a reducer may not remove
    /// objects of the log tree.
    pub(crate) async fn write_rejects(&self) -> anyhow::Result<Option<RejectTables>> {
        if !self.options.reports {
            return Ok(None);
        }
        let records = self.rejects.records(&self.tally);
        if !self.rejects.had_any() {
            (self.options.crash)(CrashPoint::DuringRejects);
            return Ok(None);
        }
        self.progress.send_modify(|progress| {
            progress.step = Some("writing the table of rejects".to_owned())
        });
        let written = self.write_tables(Rejects::of(&self.store, records)).await;
        self.progress.send_modify(|progress| progress.step = None);
        let shown = |name: &str| self.store.shown(&format!("logs/{name}"));
        let (items, without_place, of_failed) =
            written.with_context(|| format!("cannot write {}", shown(CSV)))?;
        let tables = || RejectTables {
            items,
            without_place,
            of_failed,
            csv: shown(CSV),
            parquet: shown(PARQUET),
        };
        Ok((items > 0).then(tables))
    }

    async fn write_tables(&self, rejects: Rejects) -> anyhow::Result<(u64, u64, u64)> {
        let folder = match self.peers.reports_folder(&self.store) {
            Some(logs) => Folder { path: logs, temporary: None },
            None => {
                let temporary = tempfile::Builder::new()
                    .prefix("gristmill-rejects-")
                    .tempdir()
                    .context("create a temporary folder")?;
                Folder { path: temporary.path().to_owned(), temporary: Some(temporary) }
            }
        };
        fs::create_dir_all(&folder.path).context("create the folder of the logs")?;
        let incomplete = [CSV, PARQUET].map(|name| folder.path.join(format!(".{name}.tmp")));
        let (inputs, runtime, files) =
            (self.spec.inputs.clone(), Handle::current(), incomplete.clone());
        let writing =
            tokio::task::spawn_blocking(move || write(rejects, &inputs, &files, &runtime));
        let written = joined(writing.await).unwrap_or_else(|error| Err(error.into()));
        let placed = match written {
            Ok(items) => self.place(&folder, &incomplete).await.map(|()| items),
            Err(error) => Err(error),
        };
        if placed.is_err() {
            // The space of incomplete tables may be needed, and earlier tables name other items.
            let earlier = [CSV, PARQUET].map(|name| folder.path.join(name));
            incomplete.iter().chain(&earlier).for_each(|file| drop(fs::remove_file(file)));
        }
        placed
    }

    /// Gives the complete tables their names.
    async fn place(&self, folder: &Folder, complete: &[PathBuf; 2]) -> anyhow::Result<()> {
        for (name, file) in [CSV, PARQUET].into_iter().zip(complete) {
            if name == PARQUET {
                (self.options.crash)(CrashPoint::DuringRejects);
            }
            match folder.temporary {
                None => {
                    fs::rename(file, folder.path.join(name))
                        .with_context(|| format!("give {name} its name"))?;
                }
                Some(_) => self.store.move_log_file(name, file).await?,
            }
        }
        Ok(())
    }
}

/// Writes both tables. Returns the number of rejected items, of those whose places are unknown, and of those of failed
/// mini-batches. For a thread that may block.
fn write(
    mut rejects: Rejects,
    inputs: &[Input],
    [csv, parquet]: &[PathBuf; 2],
    runtime: &Handle,
) -> anyhow::Result<(u64, u64, u64)> {
    let mut tables = Tables::create(csv, parquet)?;
    let mut of_failed = 0;
    loop {
        let mini_batches = runtime.block_on(rejects.next())?;
        if mini_batches.is_empty() {
            break;
        }
        for mini_batch in &mini_batches {
            let before = tables.items;
            mini_batch.rejects(inputs).try_for_each(|reject| tables.add(&reject))?;
            if mini_batch.attempt.status != AttemptStatus::Succeeded {
                of_failed += tables.items - before;
            }
        }
    }
    let counts = (tables.items, tables.without_place, of_failed);
    tables.finish().context("complete the tables")?;
    Ok(counts)
}
