//! Checks the URLs that a job uses beside its inputs: the output and the folders that the script
//! writes to, by starting and aborting an upload, and side inputs, by requesting an object.

use std::time::Duration;

use futures::future::join_all;
use job_file::{Parsed, Problem};
use protocol::MODEL;
use storage::{StoreOptions, Stores};

use crate::{Events, Notice, UrlUse};

/// How long a check waits for a store.
const PATIENCE: Duration = Duration::from_secs(10);

/// A URL of a job file.
struct UsedUrl {
    key: String,
    url: String,
    how: UrlUse,
}

/// Returns the problems with the URLs of a job. If it runs on a target, whose roles may have other rights and networks than
/// this machine, only a missing bucket or object is a problem, and the rest is noticed.
pub(super) fn problems(parsed: &Parsed, options: &StoreOptions, events: &Events) -> Vec<Problem> {
    let used = used(parsed);
    if used.is_empty() {
        return Vec::new();
    }
    let stores = Stores::new(options.clone());
    let probes =
        join_all(used.iter().map(|used| tokio::time::timeout(PATIENCE, probe(used, &stores))));
    let probed = tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(probes));
    let mut problems = Vec::new();
    for (UsedUrl { key, url, how }, probed) in used.into_iter().zip(probed) {
        match probed {
            Ok(Ok(())) => {}
            Ok(Err(storage::Error::NotFound { .. })) => {
                let missing = if how == UrlUse::Read {
                    "it does not exist"
                } else {
                    "its bucket does not exist"
                };
                problems.push(parsed.problem(&key, how.rejected(&url, missing)));
            }
            // Only roles of the target write there, so this machine needs no permission.
            Ok(Err(storage::Error::Denied { .. })) if parsed.elsewhere && how != UrlUse::Read => {}
            Ok(Err(error)) => {
                let said = format!("{error:#}");
                let cause = said.strip_prefix(&format!("{url}: ")).unwrap_or(&said);
                match parsed.elsewhere {
                    true => events
                        .notice(Notice::UnusableHere { problem: how.rejected(&url, cause), how }),
                    false => problems.push(parsed.problem(&key, how.rejected(&url, cause))),
                }
            }
            Err(_) if parsed.elsewhere => {
                let cause = format!("no answer within {} seconds", PATIENCE.as_secs());
                events.notice(Notice::UnusableHere { problem: how.rejected(&url, &cause), how });
            }
            Err(_) => events.notice(Notice::StoreSilent { url, seconds: PATIENCE.as_secs() }),
        }
    }
    problems
}

async fn probe(used: &UsedUrl, stores: &Stores) -> storage::Result<()> {
    match used.how {
        UrlUse::Output | UrlUse::Written => stores.can_write(&used.url).await,
        UrlUse::Read => stores.must_exist(&used.url).await,
    }
}

fn used(parsed: &Parsed) -> Vec<UsedUrl> {
    let spec = &parsed.spec;
    let output = [("output".to_owned(), &spec.output.folder, UrlUse::Output)];
    let written = spec
        .outputs
        .iter()
        .map(|(name, folder)| (format!("outputs.{name}"), folder, UrlUse::Written));
    let read = spec.side_inputs.iter().map(|(name, path)| {
        let key = if name == MODEL { "model".to_owned() } else { format!("side_inputs.{name}") };
        (key, path, UrlUse::Read)
    });
    let all = output.into_iter().chain(written).chain(read);
    all.filter(|(_, path, _)| path.is_url())
        .map(|(key, path, how)| UsedUrl { key, url: path.display(), how })
        .collect()
}
