//! Metrics for scaling and alarms on CloudWatch: lines of the log in the embedded metric format, which CloudWatch turns
//! into metrics.

use std::collections::BTreeMap;
use std::time::Duration;

use protocol::milliseconds_since_epoch;
use serde_json::{Value, json};
use telemetry::metrics;
use tokio::time::{Instant, sleep};

/// Period of the lines. CloudWatch charges extra for metrics of a finer resolution.
const EVERY: Duration = Duration::from_mins(1);
/// A change between zero and more is printed within this time, so that a fleet starts and stops quickly.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Prints lines until it is dropped.
pub async fn report(namespace: String, target: String) {
    let mut reported: BTreeMap<String, u64> = BTreeMap::new();
    let mut reported_at: Option<Instant> = None;
    let mut ended_before = 0;
    loop {
        let wanted = metrics().wanted();
        // The counts are unknown until the reducer has read the jobs.
        let is_due = !wanted.is_empty() && reported_at.is_none_or(|at| at.elapsed() >= EVERY);
        let at = milliseconds_since_epoch();
        for (requires, count) in &wanted {
            let before = reported.get(requires).copied().unwrap_or_default();
            if is_due || (before == 0) != (*count == 0) {
                let dimensions = [("Target", target.as_str()), ("Requires", requires)];
                say!(out, "{}", line(&namespace, &dimensions, &[("ProcessesWanted", *count)], at));
            }
        }
        if is_due {
            reported_at = Some(Instant::now());
            let ended = metrics().mini_batches_ended();
            let mut totals = vec![
                ("JobsBlocked", metrics().blocked()),
                ("MiniBatchesUnfinished", metrics().mini_batches_unfinished.get().max(0) as u64),
                ("MiniBatchesEnded", ended - ended_before),
            ];
            // Without this count, the alarm keeps its state.
            totals.extend(metrics().dead_letters().map(|letters| ("DeadLetters", letters)));
            say!(out, "{}", line(&namespace, &[("Target", &target)], &totals, at));
            ended_before = ended;
        }
        reported = wanted;
        sleep(LOOK_EVERY).await;
    }
}

/// Returns a line with metrics of one set of dimensions, at a time in milliseconds since the epoch.
fn line(namespace: &str, dimensions: &[(&str, &str)], counts: &[(&str, u64)], at: u64) -> Value {
    let names: Vec<&str> = dimensions.iter().map(|(name, _)| *name).collect();
    let units: Vec<Value> =
        counts.iter().map(|(name, _)| json!({ "Name": name, "Unit": "Count" })).collect();
    let mut line = json!({
        "_aws": {
            "Timestamp": at,
            "CloudWatchMetrics": [{ "Namespace": namespace, "Dimensions": [names], "Metrics": units }],
        },
    });
    dimensions.iter().for_each(|(name, value)| line[*name] = json!(value));
    counts.iter().for_each(|(name, value)| line[*name] = json!(value));
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_is_a_metric_with_its_dimensions() {
        let line = line(
            "Gristmill",
            &[("Target", "prod"), ("Requires", "1 GPU")],
            &[("ProcessesWanted", 12)],
            1000,
        );
        let directive = &line["_aws"]["CloudWatchMetrics"][0];
        for name in directive["Dimensions"][0]
            .as_array()
            .expect("a list")
            .iter()
            .chain([&directive["Metrics"][0]["Name"]])
        {
            assert!(!line[name.as_str().expect("text")].is_null(), "{name} has no value in {line}");
        }
        assert_eq!(
            (&line["ProcessesWanted"], &line["_aws"]["Timestamp"]),
            (&json!(12), &json!(1000))
        );
    }

    #[test]
    fn line_of_a_target_has_every_total() {
        let line = line("Gristmill", &[("Target", "prod")], &[("A", 1), ("B", 0), ("C", 7)], 1000);
        assert_eq!(
            (&line["A"], &line["B"], &line["C"], &line["Target"]),
            (&json!(1), &json!(0), &json!(7), &json!("prod"))
        );
        assert_eq!(line["_aws"]["CloudWatchMetrics"][0]["Metrics"][2]["Name"], "C");
    }
}
