//! What scaling needs, for CloudWatch: lines of the log in its embedded metric format, of which CloudWatch makes metrics.

use std::collections::BTreeMap;
use std::time::Duration;

use protocol::milliseconds_since_epoch;
use serde_json::{Value, json};
use telemetry::metrics;
use tokio::time::{Instant, sleep};

/// The resolution of metrics that cost nothing extra.
const EVERY: Duration = Duration::from_mins(1);
/// A change between zero and more is printed within this time, so that a fleet starts and stops quickly.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Prints lines until it is dropped.
pub async fn report(namespace: String, target: String) {
    let mut told: BTreeMap<String, u64> = BTreeMap::new();
    let mut told_at: Option<Instant> = None;
    loop {
        let wanted = metrics().wanted();
        let is_due = told_at.is_none_or(|at| at.elapsed() >= EVERY);
        for (requires, count) in &wanted {
            if is_due || (told.get(requires).copied().unwrap_or_default() == 0) != (*count == 0) {
                say!(out, "{}", line(&namespace, &target, requires, *count, milliseconds_since_epoch()));
            }
        }
        if is_due {
            told_at = Some(Instant::now());
        }
        told = wanted;
        sleep(LOOK_EVERY).await;
    }
}

fn line(namespace: &str, target: &str, requires: &str, wanted: u64, at: u64) -> Value {
    json!({
        "_aws": {
            "Timestamp": at,
            "CloudWatchMetrics": [{
                "Namespace": namespace,
                "Dimensions": [["Target", "Requires"]],
                "Metrics": [{ "Name": "ProcessesWanted", "Unit": "Count" }],
            }],
        },
        "Target": target,
        "Requires": requires,
        "ProcessesWanted": wanted,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_is_a_metric_with_its_dimensions() {
        let line = line("Gristmill", "prod", "1 GPU", 12, 1000);
        let directive = &line["_aws"]["CloudWatchMetrics"][0];
        for name in
            directive["Dimensions"][0].as_array().expect("a list").iter().chain([&directive["Metrics"][0]["Name"]])
        {
            assert!(!line[name.as_str().expect("text")].is_null(), "{name} has no value in {line}");
        }
        assert_eq!((&line["ProcessesWanted"], &line["_aws"]["Timestamp"]), (&json!(12), &json!(1000)));
    }
}
