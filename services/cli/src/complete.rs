//! Shell completion beyond commands and flags: ids of jobs, keys of `--set`, names of targets.
//!
//! The shell runs this command with the typed words (`clap_complete`), so these functions are fast, print nothing, and
//! never fail.

use std::ffi::OsStr;

use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use job_file::settable;

use crate::{Settings, TargetFlags};
use engine::newest_first;
use engine::targets::LOCAL;

/// The variable through which a shell requests completions.
pub const VARIABLE: &str = "GRISTMILL_COMPLETE";
const JOBS_MAX: usize = 50;

/// Completes ids of jobs of this machine, newest first.
pub fn jobs() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        let settings = Settings::from_environment(None).ok();
        let ids = settings.and_then(|settings| settings.engine.home().job_ids().ok());
        let ids = newest_first(ids.unwrap_or_default());
        let fitting = candidates(ids, typed).take(JOBS_MAX).enumerate();
        fitting.map(|(order, id)| id.display_order(Some(order))).collect()
    })
}

/// Completes keys of `--set`, each with its `=` and its allowed values.
pub fn set_keys() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        let typed = typed.to_string_lossy();
        let fitting = settable().map(|(key, values)| (format!("{key}="), values));
        let fitting = fitting.filter(|(key, _)| key.starts_with(&*typed));
        fitting
            .map(|(key, values)| CompletionCandidate::new(key).help(Some(values.into())))
            .collect()
    })
}

pub fn targets() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        let settings = Settings::from_environment(None).ok();
        let names = settings.map(|settings| TargetFlags::default().known(&settings));
        candidates(names.unwrap_or_default().into_iter().chain([LOCAL.to_owned()]), typed).collect()
    })
}

fn candidates(
    values: impl IntoIterator<Item = String>,
    typed: &OsStr,
) -> impl Iterator<Item = CompletionCandidate> {
    let typed = typed.to_string_lossy().into_owned();
    values.into_iter().filter(move |value| value.starts_with(&typed)).map(CompletionCandidate::new)
}
