//! Checks SQS: retention and redrive policy of the queues, and the longest lease.

use std::time::Duration;

use queue::{DEAD_LETTERS, SqsAttributes, SqsQueue};

use super::Report;
use super::needs::Needs;
use crate::words::duration;
use crate::{QueueAddress, Target};

/// SQS ends a lease after this time, even if it is extended.
const LEASE_MAX: Duration = Duration::from_secs(12 * 3600);

/// Checks the attributes of the task queue of a job.
pub async fn check(
    target: &Target,
    tasks: &str,
    address: &QueueAddress,
    needs: &Needs,
    report: &mut Report,
) {
    let attributes =
        async { SqsQueue::open(target.sqs_options(tasks, false)).await?.attributes().await };
    match attributes.await {
        Ok(attributes) => judge(address, &attributes, needs, report),
        Err(error) => report.not_checked("tasks of a job, attributes", format!("{error:#}")),
    }
}

/// Compares the longest lease of SQS with the needs of a job.
pub fn judge_lease(needs: &Needs, report: &mut Report) {
    let (check, limit) = ("lease", duration(LEASE_MAX.as_secs_f64()));
    let Some(held) = needs.judge_hold(LEASE_MAX, &limit, check, report) else { return };
    let longest = duration(held.as_secs_f64());
    let message = format!(
        "the job may hold a message for {longest}, and SQS allows {limit}; lower run_invocation_timeout and make \
         mini-batches smaller, or use RabbitMQ"
    );
    report.failed(check, message);
}

fn judge(address: &QueueAddress, attributes: &SqsAttributes, needs: &Needs, report: &mut Report) {
    let check = |what: &str| format!("tasks of a job, {what}");
    let fix = "raise MessageRetentionPeriod (14 days at most)";
    needs.judge_retention(attributes.retention, "SQS", fix, report);
    let dead_letters = address.name(DEAD_LETTERS);
    match &attributes.redrive {
        None => report.warning(
            check("redrive policy"),
            format!(
                "there is none, so a message that every worker fails to process returns until it expires; set \
                 RedrivePolicy to {dead_letters} with a maxReceiveCount above {}",
                needs.deliveries
            ),
        ),
        Some(redrive) if redrive.receive_count_max < needs.deliveries => report.failed(
            check("redrive policy"),
            format!(
                "SQS removes a message after {} receives, and a job allows {}, so its mini-batch would never end; raise \
                 maxReceiveCount above {}",
                redrive.receive_count_max, needs.deliveries, needs.deliveries
            ),
        ),
        Some(redrive) if redrive.dead_letters_arn.rsplit(':').next() != Some(&dead_letters) => report.warning(
            check("redrive policy"),
            format!("dead letters go to {}, but only {dead_letters} is read", redrive.dead_letters_arn),
        ),
        Some(redrive) => report.ok(
            check("redrive policy"),
            format!("to {dead_letters} after {} receives; jobs need {}", redrive.receive_count_max, needs.deliveries),
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use queue::Redrive;

    use super::super::CheckState;
    use super::*;

    fn judged(attributes: SqsAttributes) -> Vec<CheckState> {
        let address = QueueAddress::parse("sqs://p", Path::new("/")).expect("valid");
        let mut report = Report::silent();
        let needs = Needs { held: None, deliveries: 11, retention: Duration::from_secs(24 * 3600) };
        judge(&address, &attributes, &needs, &mut report);
        report.checks.iter().map(|check| check.state).collect()
    }

    fn attributes(retention_hours: u64, redrive: Option<(&str, u32)>) -> SqsAttributes {
        SqsAttributes {
            arn: "arn:aws:sqs:us-east-1:0:p-tasks".into(),
            retention: Duration::from_secs(retention_hours * 3600),
            message_bytes_max: 256 * 1024,
            redrive: redrive.map(|(queue, receive_count_max)| Redrive {
                dead_letters_arn: format!("arn:aws:sqs:us-east-1:0:{queue}"),
                receive_count_max,
            }),
        }
    }

    #[test]
    fn retention_and_redrive_policy_are_judged() {
        assert_eq!(
            judged(attributes(96, Some(("p-dead-letters", 100)))),
            [CheckState::Ok, CheckState::Ok]
        );
        assert_eq!(judged(attributes(1, None)), [CheckState::Failed, CheckState::Warning]);
        assert_eq!(
            judged(attributes(96, Some(("p-dead-letters", 5)))),
            [CheckState::Ok, CheckState::Failed]
        );
        assert_eq!(
            judged(attributes(96, Some(("elsewhere", 100)))),
            [CheckState::Ok, CheckState::Warning]
        );
    }

    #[test]
    fn lease_is_limited_to_twelve_hours() {
        for (hours, state) in [(11, CheckState::Ok), (13, CheckState::Failed)] {
            let mut report = Report::silent();
            let held = Some(Duration::from_secs(hours * 3600));
            judge_lease(&Needs { held, deliveries: 11, retention: Duration::ZERO }, &mut report);
            assert_eq!(report.checks[0].state, state);
        }
    }
}
