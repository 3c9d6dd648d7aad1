//! `gristmill doctor`: checks whether this machine, or a compute target, can run jobs. Each check prints one line: ok
//! or one thing to fix.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, anyhow};
use engine::doctor::{Check, CheckState, Report};
use engine::words::counted;
use protocol::Environment;
use serde_json::{Value, json};

use crate::{Exit, JobFileArguments, Settings, Show, TargetFlags, refuse, remedies, usage};

#[derive(Debug, clap::Args)]
pub struct DoctorArguments {
    /// Create missing queues of the target, and at an emulator also its bucket.
    #[arg(long)]
    create: bool,
    /// Check for this job: its Python, or, on a target, its time limits.
    #[arg(long, value_name = "JOB_FILE")]
    job: Option<PathBuf>,
    /// The longest time that a job may take. The queues must keep messages for as long.
    #[arg(long, value_name = "HOURS", default_value_t = 24)]
    hours: u32,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: TargetFlags,
}

/// Checks this machine, or a compute target. The exit status is 0 unless something must be fixed.
pub async fn doctor(arguments: DoctorArguments, settings: &Settings) -> Result<Exit> {
    let job = arguments.job.clone().map(JobFileArguments::new);
    let read = Show::during(async |events| {
        job.map(|job| job.read(Some(&arguments.target), settings, events)).transpose()
    });
    let parsed = match read.await {
        Ok(parsed) => parsed,
        Err(error) => return refuse(error, arguments.json),
    };
    let of_job = parsed.as_ref().and_then(|parsed| parsed.compute_target.as_deref());
    let target = arguments.target.find(of_job, settings)?;
    let mut report = Report::new(if arguments.json { |_| () } else { print });
    match &target {
        Some(target) => {
            let length = Duration::from_secs(u64::from(arguments.hours) * 3600);
            let spec = parsed.as_ref().map(|parsed| &parsed.spec);
            target.check(spec, length, arguments.create, crate::BUILD, &mut report).await;
        }
        None if arguments.create => {
            let message = "--create creates the queues of a compute target; name one with --target";
            return Err(usage(anyhow!(message)));
        }
        None => {
            let python = parsed.and_then(|parsed| match parsed.spec.environment {
                Environment::Interpreter { path }
                | Environment::Requirements { base: path, .. } => Some(path.as_path().to_owned()),
                Environment::Node => None,
            });
            settings.engine.check_machine(python, &mut report);
        }
    }
    let failed = report.count(CheckState::Failed);
    if arguments.json {
        let checks: Vec<Value> = report.checks.iter().map(document).collect();
        let target = target.map(|target| target.name);
        say!(out, "{}", json!({ "target": target, "ok": failed == 0, "checks": checks }));
    } else {
        let checked = target
            .map_or_else(|| "this machine".to_owned(), |target| format!("target {}", target.name));
        let warnings = counted(report.count(CheckState::Warning) as u64, "warning");
        let (unknown, ok) = (report.count(CheckState::NotChecked), report.count(CheckState::Ok));
        say!(out, "{checked}: {failed} to fix, {warnings}, {unknown} not checked, {ok} ok");
    }
    Ok(if failed == 0 { Exit::Done } else { Exit::Error })
}

fn message(check: &Check) -> String {
    remedies::after(&check.message, check.remedy.as_ref())
}

fn print(check: &Check) {
    let word = match check.state {
        CheckState::Ok => "ok",
        CheckState::Warning => "warning",
        CheckState::Failed => "FAILED",
        CheckState::NotChecked => "not checked",
    };
    say!(out, "{word:<12} {}: {}", check.check, message(check));
}

fn document(check: &Check) -> Value {
    json!({ "check": check.check, "state": check.state, "message": message(check) })
}
