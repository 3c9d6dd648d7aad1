//! Compares the builds of the workers, of the reducer that keeps the schedule, and of this command.
//!
//! A build is a version and a commit. The executable, the metric `gristmill_build_info`, the entry
//! of a worker and each schedule name it.

use std::collections::BTreeMap;

use anyhow::Result;
use protocol::FORMAT;

use super::Report;
use crate::Target;
use crate::words::counted;

/// `build`: of this command.
pub async fn check(target: &Target, build: &str, report: &mut Report) {
    let check = "builds";
    match found(target, build).await {
        Ok(found) if found.len() == 1 => report.ok(check, described(&found)),
        Ok(found) => report.warning(
            check,
            format!(
                "{}; this command reads format {FORMAT}; builds of one format may meet while you replace one by another",
                described(&found)
            ),
        ),
        Err(error) => report.not_checked(check, format!("{error:#}")),
    }
}

/// Returns the processes that run each build.
async fn found(target: &Target, build: &str) -> Result<BTreeMap<String, Vec<String>>> {
    let store = target.open_store().await?;
    let mut found = BTreeMap::from([(build.to_owned(), vec!["this command".to_owned()])]);
    if let Some(schedule) = store.last_schedule().await? {
        found
            .entry(schedule.build)
            .or_default()
            .push("the reducer of the last schedule".to_owned());
    }
    let mut workers: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for worker in store.seen_workers().await? {
        workers.entry(worker.state.build).or_default().push(worker.state.name);
    }
    for (build, names) in workers {
        let first = names.first().map_or("", String::as_str);
        let more = if names.len() > 1 { ", …" } else { "" };
        let named = format!("{} ({first}{more})", counted(names.len() as u64, "worker"));
        found.entry(build).or_default().push(named);
    }
    Ok(found)
}

fn described(found: &BTreeMap<String, Vec<String>>) -> String {
    let of_build = |(build, who): (&String, &Vec<String>)| format!("{build}: {}", who.join(", "));
    found.iter().map(of_build).collect::<Vec<_>>().join("; ")
}
