//! The store: whether it is there, lets us in, and can do what jobs depend on.

use storage::TargetStore;

use super::report::Report;
use crate::targets::Target;

/// AWS refuses requests whose clock is off by 5 to 15 minutes.
const SKEW_SECONDS_MAX: f64 = 300.0;
/// Times in logs and reports of several machines cannot be compared beyond this.
const SKEW_SECONDS_NOTICED: f64 = 10.0;

/// Checks the store of a target.
pub async fn check(target: &Target, create: bool, report: &mut Report) {
    let url = match target.store() {
        Ok(url) => url,
        Err(error) => return report.failed("store", format!("{error:#}")),
    };
    if create {
        match storage::create_bucket(url, target.store_options()).await {
            Ok(true) => report.ok("store", "its bucket was created"),
            Ok(false) => {}
            Err(error) => return report.failed("store", error.to_string()),
        }
    }
    let store = match storage::TargetStore::open(url, target.store_options()).await {
        Ok(store) => store,
        Err(error) => return report.failed("store", error.to_string()),
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
                report.failed(check, error.to_string());
            }
        }
    }
    if writable {
        check_conditional_put(&store, report).await;
    }
    if let Some(seconds) = probe.clock_ahead_seconds {
        check_clock(seconds, report);
    }
}

async fn check_conditional_put(store: &TargetStore, report: &mut Report) {
    let check = "store, conditional put";
    match storage::check::conditional_create_works(store).await {
        Ok(Ok(())) => report.ok(check, "16 writers raced for one object, and one won"),
        Ok(Err(reason)) => report.failed(
            check,
            format!(
                "{reason}; results are committed by such puts, and without them two reducers would overwrite each \
                 other's: use a store that honours them (AWS S3, MinIO, Google Cloud, Azure), and no proxy that drops \
                 the header"
            ),
        ),
        Err(error) => report.failed(check, error.to_string()),
    }
}

fn check_clock(ahead: f64, report: &mut Report) {
    let check = "clock";
    let where_to = if ahead < 0.0 { "behind" } else { "ahead of" };
    let difference = ahead.abs();
    let message = format!("the store's clock is {difference:.0} s {where_to} this machine's");
    if difference > SKEW_SECONDS_MAX {
        report.failed(check, format!("{message}, and signed requests are refused: set this machine's clock (NTP)"));
    } else if difference > SKEW_SECONDS_NOTICED {
        report.warning(check, format!("{message}: times of several machines cannot be compared; set the clock (NTP)"));
    } else {
        report.ok(check, "this machine and the store agree");
    }
}
