//! Checks RabbitMQ: type of the queues, limits, dead letters, and how long a consumer may hold a message.

use std::time::Duration;

use queue::DEAD_LETTERS;
use serde_json::Value;
use url::Url;

use super::Report;
use super::management::{Management, QueueFacts, ServerTimeout, consumer_timeout_by_ctl};
use super::needs::Needs;
use crate::words::duration;
use crate::{QueueAddress, Target};

const CONSUMER_TIMEOUT_DEFAULT: Duration = Duration::from_secs(30 * 60);
/// The first release in which a queue can have a consumer timeout of its own.
const OWN_TIMEOUT_SINCE: (u32, u32) = (3, 12);
/// The first release in which a quorum queue has a delivery limit by default.
const LIMITED_SINCE: u32 = 4;
const DELIVERY_LIMIT_DEFAULT: u64 = 20;

/// A broker's management API, and the version of the broker.
pub type Known = (Management, String);

/// Connects to the management API; `None`: it does not answer, which the report says.
pub async fn connect(target: &Target, broker: &Url, report: &mut Report) -> Option<Known> {
    let connecting = async {
        let management = Management::new(broker, target.management.as_deref())?;
        let version = management.version().await?;
        anyhow::Ok((management, version))
    };
    match connecting.await {
        Ok((management, version)) => {
            report.ok("broker", format!("RabbitMQ {version}"));
            Some((management, version))
        }
        Err(error) => {
            let message = format!(
                "{error}; without the management API, type and limits of the queues are unknown (the key `management` of \
                 the target names another address)"
            );
            report.not_checked("broker", message);
            None
        }
    }
}

/// Checks the settings of the task queue of a job.
pub async fn check(
    target: &Target,
    tasks: &str,
    address: &QueueAddress,
    known: Option<Known>,
    needs: &Needs,
    report: &mut Report,
) {
    let mut facts = QueueFacts::default();
    if let Some((management, version)) = &known {
        match management.listed(tasks).await {
            Ok(Some(listed)) => {
                judge(address, &listed, version, needs, report);
                facts = listed;
            }
            Ok(None) => report
                .not_checked("tasks of a job", "the management API does not list the queue yet"),
            Err(error) => report.not_checked("tasks of a job", error.to_string()),
        }
    }
    let version = known.map_or_else(String::new, |(_, version)| version);
    judge_timeout(&facts, &version, consumer_timeout_by_ctl().await, target.lease, needs, report);
}

/// Judges the settings of a queue.
fn judge(
    address: &QueueAddress,
    facts: &QueueFacts,
    version: &str,
    needs: &Needs,
    report: &mut Report,
) {
    let check = |what: &str| format!("tasks of a job, {what}");
    match &*facts.kind {
        "quorum" => report.ok(check("type"), "quorum"),
        kind => report.failed(
            check("type"),
            format!("it is a {kind} queue, which counts no deliveries and loses messages with its server"),
        ),
    }
    let default = (release(version).0 >= LIMITED_SINCE).then_some(DELIVERY_LIMIT_DEFAULT);
    // A negative limit means no limit.
    let limit = facts.setting("delivery-limit").map_or(default, Value::as_u64);
    let needed = u64::from(needs.deliveries);
    match limit {
        Some(limit) if limit < needed => report.failed(
            check("delivery limit"),
            format!(
                "the broker removes a message after {limit} deliveries, and a job allows {needed}, so its mini-batch would \
                 never end; raise `delivery-limit` above {needed}"
            ),
        ),
        Some(limit) => report.ok(check("delivery limit"), format!("{limit} deliveries; jobs need {needed}")),
        None => report.ok(check("delivery limit"), "none"),
    }
    let dead_letters = address.name(DEAD_LETTERS);
    match facts.setting("dead-letter-routing-key").and_then(Value::as_str) {
        Some(to) if to == dead_letters => report.ok(check("dead letters"), format!("go to {to}")),
        Some(to) => report.warning(check("dead letters"), format!("go to {to}, but only {dead_letters} is read")),
        None => report.warning(
            check("dead letters"),
            format!(
                "the broker drops the messages that it removes; set dead-letter-exchange to \"\" and \
                 dead-letter-routing-key to {dead_letters}"
            ),
        ),
    }
    match facts.time("message-ttl") {
        Some(kept) => {
            let fix = "raise `message-ttl`, or remove it";
            needs.judge_retention(kept, "the broker", fix, report);
        }
        None => report.ok(check("retention"), "unlimited"),
    }
    if let Some(length) = facts.setting("max-length").or_else(|| facts.setting("max-length-bytes"))
    {
        let message = format!(
            "its length is limited ({length}), and the broker drops what exceeds it; remove the limit"
        );
        report.failed(check("length"), message);
    }
}

/// Judges how long a consumer may hold a message before the broker closes its connection.
fn judge_timeout(
    facts: &QueueFacts,
    version: &str,
    server: Option<ServerTimeout>,
    lease: Option<Duration>,
    needs: &Needs,
    report: &mut Report,
) {
    let check = "consumer timeout";
    let own = facts.time("consumer-timeout").filter(|_| release(version) >= OWN_TIMEOUT_SINCE);
    let (timeout, source) = match (own, server, lease) {
        (Some(own), _, _) => (own, "of the task queue"),
        (None, Some(ServerTimeout::Off), _) => return report.ok(check, "none, by rabbitmqctl"),
        (None, Some(ServerTimeout::After(timeout)), _) => {
            (timeout, "of the server, by rabbitmqctl")
        }
        (None, None, Some(lease)) => {
            (lease, "by lease_seconds of the target; the server's own value is unknown")
        }
        (None, None, None) => {
            (CONSUMER_TIMEOUT_DEFAULT, "if the server has its default; its own value is unknown")
        }
    };
    let limit = format!("{} {source}", duration(timeout.as_secs_f64()));
    if let Some(lease) = lease.filter(|lease| *lease > timeout) {
        let message = format!(
            "{limit}, and lease_seconds of the target is {}; lower the latter, or raise the timeout",
            lease.as_secs()
        );
        return report.failed(check, message);
    }
    let Some(held) = needs.judge_hold(timeout, &limit, check, report) else { return };
    let (longest, milliseconds) = (duration(held.as_secs_f64()), held.as_millis());
    let fix = match release(version) >= OWN_TIMEOUT_SINCE {
        true => format!("set a policy `consumer-timeout` of {milliseconds} on the task queue"),
        false => format!("set `consumer_timeout = {milliseconds}` in the server's rabbitmq.conf"),
    };
    let message = format!(
        "{limit}, and the job may hold a message for {longest}, so the broker would close the connection and redeliver \
         everything; {fix}"
    );
    if own.is_none() && server.is_none() {
        report.warning(check, message)
    } else {
        report.failed(check, message)
    }
}

/// Returns major and minor number; 0.0 if they are unknown.
fn release(version: &str) -> (u32, u32) {
    let mut numbers = version.split('.').map_while(|number| number.parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::{Check, CheckState};
    use super::*;

    fn facts(json: &str) -> QueueFacts {
        serde_json::from_str(json).expect("valid")
    }

    fn needs(held_seconds: Option<u64>) -> Needs {
        Needs {
            held: held_seconds.map(Duration::from_secs),
            deliveries: 11,
            retention: Duration::from_secs(24 * 3600),
        }
    }

    fn judged(json: &str, version: &str) -> Vec<Check> {
        let address = QueueAddress::parse("amqp://host/?prefix=p", Path::new("/")).expect("valid");
        let mut report = Report::silent();
        judge(&address, &facts(json), version, &needs(None), &mut report);
        report.checks
    }

    fn timeout(
        json: &str,
        version: &str,
        server: Option<ServerTimeout>,
        held_seconds: u64,
    ) -> CheckState {
        let mut report = Report::silent();
        judge_timeout(&facts(json), version, server, None, &needs(Some(held_seconds)), &mut report);
        report.checks[0].state
    }

    fn state(checks: &[Check], what: &str) -> CheckState {
        checks
            .iter()
            .find(|check| check.check.ends_with(what))
            .unwrap_or_else(|| panic!("no {what}: {checks:?}"))
            .state
    }

    #[test]
    fn limits_and_policies_are_judged() {
        let plain = judged(r#"{"type":"quorum"}"#, "3.10.8");
        assert_eq!(state(&plain, "delivery limit"), CheckState::Ok, "no limit");
        assert_eq!(state(&plain, "dead letters"), CheckState::Warning);
        let good = r#"{"type":"quorum","arguments":{"x-delivery-limit":50,"x-dead-letter-routing-key":"p-dead-letters"}}"#;
        assert!(judged(good, "4.1.0").iter().all(|check| check.state == CheckState::Ok));
        let limited = r#"{"type":"quorum","arguments":{"x-delivery-limit":5,"x-message-ttl":1000,"x-max-length":9}}"#;
        let limited = judged(limited, "3.10.8");
        for what in ["delivery limit", "retention", "length"] {
            assert_eq!(state(&limited, what), CheckState::Failed, "{what}");
        }
        // 20 by default, which is enough for the 11 of most jobs; a negative limit means no limit.
        assert_eq!(
            state(&judged(r#"{"type":"quorum"}"#, "4.0.2"), "delivery limit"),
            CheckState::Ok
        );
        let off = r#"{"type":"quorum","arguments":{"x-delivery-limit":-1}}"#;
        assert_eq!(state(&judged(off, "4.0.2"), "delivery limit"), CheckState::Ok);
    }

    #[test]
    fn consumer_timeout_is_compared_with_the_job() {
        let hour = Some(ServerTimeout::After(Duration::from_secs(3600)));
        assert_eq!(timeout("{}", "3.10.8", None, 600), CheckState::Ok);
        assert_eq!(
            timeout("{}", "3.10.8", None, 3600),
            CheckState::Warning,
            "the server may have another timeout"
        );
        assert_eq!(timeout("{}", "3.10.8", hour, 4000), CheckState::Failed);
        assert_eq!(timeout("{}", "3.10.8", hour, 3000), CheckState::Ok);
        assert_eq!(timeout("{}", "3.10.8", Some(ServerTimeout::Off), 400_000), CheckState::Ok);
        for (lease_hours, state) in [(1, CheckState::Ok), (2, CheckState::Failed)] {
            let (mut report, lease) =
                (Report::silent(), Some(Duration::from_secs(lease_hours * 3600)));
            judge_timeout(&facts("{}"), "3.10.8", hour, lease, &needs(None), &mut report);
            assert_eq!(report.checks[0].state, state, "a lease of {lease_hours} hours");
        }
        let own = r#"{"type":"quorum","arguments":{"x-consumer-timeout":7200000}}"#;
        assert_eq!(
            timeout(own, "3.13.1", hour, 7000),
            CheckState::Ok,
            "the queue's own timeout takes precedence"
        );
        assert_eq!(
            timeout(own, "3.10.8", hour, 7000),
            CheckState::Failed,
            "an old broker has no such timeout"
        );
    }
}
