//! Checks whether this machine, or a compute target, can run jobs.
//!
//! The checks touch nothing that belongs to a job: they write objects below `doctor/`, and send messages that name a job that
//! does not exist, which every role drops. They receive a message only if they cannot receive one of a job instead.

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

use crate::{QueueAddress, Remedy, Role, Target};
use needs::Needs;

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckState {
    /// As it should be.
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
    /// What was found, or what to fix.
    pub message: String,
    /// What to do, if the message does not say it.
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
        let check = Check { check: check.into(), state, message: message.into(), remedy: remedy.into() };
        (self.on_check)(&check);
        self.checks.push(check);
    }
}

impl Target {
    /// Checks the store and the queues. `spec`: the job that they must suit, if any; `job_length`: the longest time that a
    /// job may take. `create`: creates missing queues, and at an emulator also the bucket.
    pub async fn check(&self, spec: Option<&JobSpec>, job_length: Duration, create: bool, report: &mut Report) {
        let needs = Needs::new(spec, job_length);
        store::check(self, create, report).await;
        let address = match self.queue() {
            Ok(address) => address,
            Err(error) => return report.failed_with("queues", &error),
        };
        match address {
            QueueAddress::Sqs { prefix } => sqs::check(self, address, prefix, create, &needs, report).await,
            QueueAddress::Rabbit { url, .. } => rabbit::check(self, address, url, create, &needs, report).await,
            QueueAddress::Sqlite { .. } => {
                for role in Role::ALL {
                    let name = address.name(role);
                    match self.open_queue(role).await {
                        Ok(queue) => traffic::check(role, &name, &*queue, report).await,
                        Err(error) => report.failed_with(format!("queue {name}"), &error),
                    }
                }
            }
        }
    }
}

#[cfg(test)]
impl Report {
    fn silent() -> Self {
        Self::new(|_| ())
    }
}
