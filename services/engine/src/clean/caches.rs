//! Removes the files that this machine keeps for later jobs.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::{Candidate, CleanReport, KeptReason, remove_folder};
use crate::{Home, functions};

/// Removes the caches, unless a job runs. Those of the fleet stay if a worker of this machine uses them.
pub fn clean(home: &Home, dry_run: bool, report: &mut CleanReport) -> Result<()> {
    let _turn = home.lock()?;
    for id in home.open_jobs()? {
        if home.job_folder(&id).exists() && home.is_running(&id)? {
            report.keep("caches", None, KeptReason::UsedByJob(id));
            return Ok(());
        }
    }
    let fleet = home.cache("fleet");
    let taken = home.try_take_fleet()?;
    let mut caches =
        ["environments", "side-inputs", "checks"].map(|cache| home.cache(cache)).to_vec();
    match &taken {
        // `processes` and `nodes` hold files of killed workers.
        Some(_) => {
            let of_fleet = ["environments", "side-inputs", "snapshots", "processes", "nodes"];
            caches.extend(of_fleet.map(|cache| fleet.join(cache)));
        }
        None => report.keep(fleet.display().to_string(), None, KeptReason::UsedByWorker),
    }
    for cache in caches {
        for entry in std::fs::read_dir(&cache).into_iter().flatten().flatten() {
            let path = entry.path();
            match path.extension().is_some_and(|extension| extension == "lock") {
                true if dry_run => {}
                true => remove_folder(&path)?,
                false => remove(&path, home, dry_run, report)?,
            }
        }
    }
    Ok(())
}

/// Removes the files of calls from Python, and of documents, that no remaining job names.
pub fn clean_unnamed(home: &Home, dry_run: bool, report: &mut CleanReport) -> Result<()> {
    let _turn = home.lock()?;
    let gone = report.removed.iter().map(|job| job.name.clone()).collect();
    for path in functions::unnamed(home, &gone)? {
        remove(&path, home, dry_run, report)?;
        // That of a function, if this was its last one.
        let _ = path.parent().filter(|_| !dry_run).map(std::fs::remove_dir);
    }
    Ok(())
}

fn remove(path: &Path, home: &Home, dry_run: bool, report: &mut CleanReport) -> Result<()> {
    let bytes = bytes_below(path);
    if !dry_run {
        // The rename is atomic, because a job must not find half an environment.
        let removed = home.removed_folder()?.join(path.file_name().unwrap_or_default());
        std::fs::rename(path, &removed).with_context(|| format!("move {}", path.display()))?;
        remove_folder(&removed)?;
    }
    report.caches.push(Candidate {
        name: path.display().to_string(),
        state: None,
        bytes: Some(bytes),
    });
    Ok(())
}

/// Returns the total size of the files in a folder. Does not follow links.
pub(super) fn bytes_below(path: &Path) -> u64 {
    let (mut bytes, mut rest) = (0, vec![PathBuf::from(path)]);
    while let Some(path) = rest.pop() {
        let Ok(metadata) = path.symlink_metadata() else { continue };
        if metadata.is_dir() {
            rest.extend(
                std::fs::read_dir(&path).into_iter().flatten().flatten().map(|entry| entry.path()),
            );
        } else {
            bytes += metadata.len();
        }
    }
    bytes
}
