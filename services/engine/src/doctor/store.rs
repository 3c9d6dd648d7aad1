//! Checks the store: whether it exists and grants access, and the operations that jobs depend on.

use anyhow::{Result, bail};
use storage::TargetStore;
use storage::snapshot::is_marked;

use super::Report;
use crate::Target;

/// AWS rejects requests from a clock that is off by 5 to 15 minutes.
const SKEW_SECONDS_MAX: f64 = 300.0;
/// With a larger difference, times in logs and reports of several machines cannot be compared.
const SKEW_SECONDS_NOTICED: f64 = 10.0;

/// Returns whether the store can be used.
pub async fn check(target: &Target, create: bool, report: &mut Report) -> bool {
    let store = match opened(target, create, report).await {
        Ok(store) => store,
        Err(error) => {
            report.failed_with("store", &error);
            return false;
        }
    };
    report.ok("store", format!("{} answers", store.url()));
    let probe = storage::probe(&store).await;
    let mut writable = true;
    for (request, result) in probe.requests {
        let check = format!("store, {request}");
        match result {
            Ok(()) => report.ok(check, "allowed"),
            Err(error) => {
                writable &= request != "put";
                report.failed(check, format!("{error:#}"));
            }
        }
    }
    if writable {
        check_conditional_put(&store, report).await;
    }
    if let Some(seconds) = probe.clock_ahead_seconds {
        check_clock(seconds, report);
    }
    check_keys(&store, report).await;
    true
}

async fn opened(target: &Target, create: bool, report: &mut Report) -> Result<TargetStore> {
    let url = target.store()?;
    if create {
        let creating = storage::create_bucket(url, target.store_options());
        if target.answer_of_store(creating).await? {
            report.ok("store", "created its bucket");
        }
    }
    let opening = TargetStore::open(url, target.store_options());
    let store = target.answer_of_store(opening).await?;
    if create {
        store.create()?;
    }
    if let Some(folder) = store.folder().filter(|folder| !is_marked(folder)) {
        bail!("{} is not the folder of a store; mount it, or create it", folder.display());
    }
    Ok(store)
}

/// Reports keys that no role can read, which only other software writes.
async fn check_keys(store: &TargetStore, report: &mut Report) {
    if store.job_ids().await.is_err() || store.open_ids().await.is_err() {
        return;
    }
    let keys = store.stores().unnameable_keys();
    if let Some(first) = keys.first() {
        let others = match keys.len() - 1 {
            0 => String::new(),
            others => format!(" and {others} more"),
        };
        let message = format!(
            "it has a key that Gristmill did not write, {first:?}{others}: it is ignored, and `clean` does not remove it; \
             find out who wrote it"
        );
        report.warning("store", message);
    }
}

async fn check_conditional_put(store: &TargetStore, report: &mut Report) {
    let check = "store, conditional put";
    match storage::check::conditional_create_works(store).await {
        Ok(Ok(())) => report.ok(check, "of 16 concurrent writers of one object, one succeeded"),
        Ok(Err(reason)) => report.failed(
            check,
            format!(
                "{reason}; reducers commit results with such puts, and without them two reducers would overwrite each \
                 other's results; use a store that supports them (AWS S3, MinIO, Google Cloud, Azure), without a proxy \
                 that drops the header"
            ),
        ),
        Err(error) => report.failed(check, format!("{error:#}")),
    }
}

fn check_clock(ahead: f64, report: &mut Report) {
    let check = "clock";
    let where_to = if ahead < 0.0 { "behind" } else { "ahead of" };
    let difference = ahead.abs();
    let message = format!("the store's clock is {difference:.0} s {where_to} this machine's");
    if difference > SKEW_SECONDS_MAX {
        report.failed(
            check,
            format!(
                "{message}, so the store may reject signed requests; set this machine's clock (NTP)"
            ),
        );
    } else if difference > SKEW_SECONDS_NOTICED {
        report.warning(
            check,
            format!(
                "{message}, so times of several machines cannot be compared; set the clock (NTP)"
            ),
        );
    } else {
        report.ok(check, "this machine and the store agree");
    }
}
