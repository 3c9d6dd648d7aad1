//! `gristmill validate`: checks a job file and everything that it names, without running the job.

use std::process::ExitCode;

use anyhow::Result;
use engine::Engine;
use serde_json::json;
use storage::StoreOptions;

use crate::job_file_arguments::{JobFileArguments, refuse};
use crate::settings::Settings;
use crate::show::Show;

/// Arguments of `validate`.
#[derive(Debug, clap::Args)]
pub struct ValidateArguments {
    #[command(flatten)]
    job: JobFileArguments,
    /// Print one JSON object: whether the job is valid, and its problems with file, line and field.
    #[arg(long)]
    pub json: bool,
}

/// Checks a job file.
pub async fn validate(arguments: &ValidateArguments, engine: &Engine, settings: &Settings) -> Result<ExitCode> {
    let options = StoreOptions::default();
    let checked = Show::during(async |events| arguments.job.check(&options, engine, settings, events)).await;
    let parsed = match checked {
        Ok((parsed, _)) => parsed,
        Err(error) => return refuse(error, arguments.json),
    };
    if arguments.json {
        let warnings: Vec<String> = parsed.warnings.iter().map(ToString::to_string).collect();
        let notes = parsed.spec.notes;
        say!(out, "{}", json!({ "valid": true, "problems": [], "warnings": warnings, "notes": notes }));
    } else {
        say!(out, "{} is valid", job_file::shown(&arguments.job.job_file));
    }
    Ok(ExitCode::SUCCESS)
}
