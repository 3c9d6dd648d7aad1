//! `gristmill doctor`: whether a compute target can run jobs, before the first message.
//!
//! Each check is one line: ok, or the one thing to fix. Nothing that a job owns is touched: objects are written below
//! `doctor/`, and the messages that are sent name a job that does not exist, which every role drops. A message is only
//! received where none of a job can be received in its place.

mod management;
mod needs;
mod rabbit;
mod report;
mod sqs;
mod store;
mod traffic;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;

use crate::run::load;
use crate::settings::Settings;
use crate::targets::{QueueAddress, Role, Target, TargetFlags};
use needs::Needs;
use report::Report;

/// Arguments of `doctor`.
#[derive(Debug, clap::Args)]
pub struct DoctorArguments {
    /// Create what is missing: the three queues, and at an emulator also the bucket.
    #[arg(long)]
    create: bool,
    /// Check against the deadlines of this job, too.
    #[arg(long, value_name = "JOB_FILE")]
    job: Option<PathBuf>,
    /// How long a job may take, for the retention of messages.
    #[arg(long, value_name = "HOURS", default_value_t = 24)]
    hours: u32,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: TargetFlags,
}

/// Checks a compute target. The exit status is 0 unless something must be fixed.
pub async fn doctor(arguments: DoctorArguments, settings: &Settings) -> Result<ExitCode> {
    let parsed = match &arguments.job {
        Some(job_file) => match load(job_file, &[], arguments.target.name(settings), settings)? {
            Ok(parsed) => Some(parsed),
            Err(status) => return Ok(status),
        },
        None => None,
    };
    let of_job = parsed.as_ref().and_then(|parsed| parsed.compute_target.as_deref());
    let target = arguments.target.require(of_job, settings)?;
    let length = Duration::from_secs(u64::from(arguments.hours) * 3600);
    let needs = Needs::new(parsed.as_ref().map(|parsed| &parsed.spec), length);
    let mut report = Report::new(arguments.json);
    store::check(&target, arguments.create, &mut report).await;
    check_queues(&target, arguments.create, &needs, &mut report).await;
    Ok(report.end(&target.name))
}

async fn check_queues(target: &Target, create: bool, needs: &Needs, report: &mut Report) {
    let address = match target.queue() {
        Ok(address) => address,
        Err(error) => return report.failed("queues", format!("{error:#}")),
    };
    match address {
        QueueAddress::Sqs { prefix } => sqs::check(target, address, prefix, create, needs, report).await,
        QueueAddress::Rabbit { url, .. } => rabbit::check(target, address, url, create, needs, report).await,
        QueueAddress::Sqlite { .. } => {
            for role in [Role::Tasks, Role::Results, Role::DeadLetters] {
                let name = address.name(role);
                match target.open_queue(role).await {
                    Ok(queue) => traffic::check(role, &name, &*queue, report).await,
                    Err(error) => report.failed(format!("queue {name}"), format!("{error:#}")),
                }
            }
        }
    }
}
