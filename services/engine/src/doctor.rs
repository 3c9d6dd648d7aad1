//! Checks whether this machine, or a compute target, can run jobs.
//!
//! The checks touch nothing that belongs to a job: they write objects below `doctor/`, and create queues as of a job, send
//! messages through them, and delete them again.

mod builds;
mod leaks;
mod machine;
mod management;
mod needs;
mod rabbit;
mod sqs;
mod store;
mod traffic;

use std::time::Duration;

use protocol::JobSpec;
use serde::Serialize;

use crate::{QueueAddress, Remedy, Target};
use needs::Needs;

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckState {
    /// The subject is in order.
    Ok,
    /// Jobs run, but less well than they could.
    Warning,
    /// Jobs would not run, or not safely.
    Failed,
    /// The check was not possible.
    NotChecked,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// The subject.
    pub check: String,
    /// The result.
    pub state: CheckState,
    /// The finding, or the fix.
    pub message: String,
    /// The remedy, if the message does not name it.
    pub remedy: Option<Remedy>,
}

/// The checks so far.
#[derive(Debug)]
pub struct Report {
    /// The checks, in their order.
    pub checks: Vec<Check>,
    on_check: fn(&Check),
}

impl Report {
    /// Starts a report. Calls `on_check` with each check as soon as it ends.
    pub fn new(on_check: fn(&Check)) -> Self {
        Self { checks: Vec::new(), on_check }
    }

    /// Returns the number of checks with this result.
    pub fn count(&self, state: CheckState) -> usize {
        self.checks.iter().filter(|check| check.state == state).count()
    }

    fn ok(&mut self, check: impl Into<String>, message: impl Into<String>) {
        self.add(check, CheckState::Ok, message, None);
    }

    fn warning(&mut self, check: impl Into<String>, message: impl Into<String>) {
        self.add(check, CheckState::Warning, message, None);
    }

    fn failed(&mut self, check: impl Into<String>, message: impl Into<String>) {
        self.add(check, CheckState::Failed, message, None);
    }

    /// Reports a failed check with the remedy of its error, if it has one.
    fn failed_with(&mut self, check: impl Into<String>, error: &anyhow::Error) {
        let remedy = Remedy::of(error);
        self.add(check, CheckState::Failed, format!("{error:#}"), remedy);
    }

    fn not_checked(&mut self, check: impl Into<String>, message: impl Into<String>) {
        self.add(check, CheckState::NotChecked, message, None);
    }

    fn add(
        &mut self,
        check: impl Into<String>,
        state: CheckState,
        message: impl Into<String>,
        remedy: impl Into<Option<Remedy>>,
    ) {
        let check =
            Check { check: check.into(), state, message: message.into(), remedy: remedy.into() };
        (self.on_check)(&check);
        self.checks.push(check);
    }
}

impl Target {
    /// Checks the store and the queues. `spec`: the job that they must suit, if any; `job_length`: the longest time that a
    /// job may take. `create`: creates missing queues, and at an emulator also the bucket. `build`: of this command.
    pub async fn check(
        &self,
        spec: Option<&JobSpec>,
        job_length: Duration,
        create: bool,
        build: &str,
        report: &mut Report,
    ) {
        let needs = Needs::new(spec, job_length);
        let has_store = store::check(self, create, report).await;
        let address = match self.queue() {
            Ok(address) => address,
            Err(error) => return report.failed_with("queues", &error),
        };
        if matches!(address, QueueAddress::Sqs { .. }) {
            sqs::judge_lease(&needs, report);
        }
        let management = match address {
            QueueAddress::Rabbit { url, .. } => rabbit::connect(self, url, report).await,
            _ => None,
        };
        let opened = async {
            self.open_queues(create).await?.close().await;
            // Opens them as a role does, which on RabbitMQ also compares the kind of each queue.
            self.open_queues_to_work().await
        };
        let queues = match opened.await {
            Ok(queues) => queues,
            Err(error) => return report.failed_with("queues", &error),
        };
        traffic::check_target(&queues, report).await;
        if has_store {
            leaks::check(self, report).await;
            builds::check(self, build, report).await;
        }
        let name = format!("doctor-{}.0", storage::random_name());
        let of_job = match queues.broker.create(&name).await {
            Ok(of_job) => of_job,
            Err(error) => {
                let message = format!(
                    "queues of jobs cannot be created, which reducers must be allowed to: {error:#}"
                );
                return report.failed(OF_JOBS, message);
            }
        };
        let tasks = queues.broker.name_of_tasks(&name);
        match address {
            QueueAddress::Sqs { .. } => sqs::check(self, &tasks, address, &needs, report).await,
            QueueAddress::Rabbit { .. } => {
                rabbit::check(self, &tasks, address, management, &needs, report).await
            }
            QueueAddress::Sqlite { .. } => {}
        }
        traffic::check("tasks of a job", &*of_job.tasks, report).await;
        traffic::check("results of a job", &*of_job.results, report).await;
        match queues.broker.delete(&name).await {
            Ok(()) => report.ok(OF_JOBS, "created and deleted"),
            Err(error) => {
                let message = format!(
                    "{tasks} cannot be deleted, which reducers must be allowed to: {error:#}"
                );
                report.failed(OF_JOBS, message);
            }
        }
        queues.close().await;
    }
}

/// The subject of the checks of the right to create and delete queues.
const OF_JOBS: &str = "queues of jobs";

#[cfg(test)]
impl Report {
    fn silent() -> Self {
        Self::new(|_| ())
    }
}
