//! The arguments of commands that read a job file, and the messages about invalid ones.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use engine::{Document, Engine, Error, Events};
use job_file::{Parsed, Problem, STDIN};
use partitioner::Survey;
use serde_json::json;
use storage::StoreOptions;

use crate::complete;
use crate::exit::Exit;
use crate::remedies;
use crate::settings::Settings;
use crate::target_flags::TargetFlags;

/// A job file, and values that replace its own.
#[derive(Clone, Debug, clap::Args)]
pub struct JobFileArguments {
    /// The job file; `-` for the standard input.
    pub job_file: PathBuf,
    /// Replace a value of the job file: `mini_batch_size=20`, `inputs.images.path=data/*.png`.
    #[arg(long = "set", value_name = "KEY=VALUE", add = complete::set_keys())]
    set: Vec<String>,
}

impl JobFileArguments {
    /// Describes a job file without replaced values.
    pub fn new(job_file: PathBuf) -> Self {
        Self { job_file, set: Vec::new() }
    }

    /// Reads the job file. A compute target of `target` takes precedence over that of the file.
    pub fn read(
        &self,
        target: Option<&TargetFlags>,
        engine: &Engine,
        settings: &Settings,
        events: &Events,
    ) -> engine::Result<Parsed> {
        let overrides = self.set.iter().map(|pair| {
            let (key, value) = pair.split_once('=').with_context(|| format!("--set {pair}: write it as KEY=VALUE"))?;
            Ok((key.trim().to_owned(), value.trim().to_owned()))
        });
        let overrides = overrides.collect::<anyhow::Result<_>>().map_err(|error| self.invalid(format!("{error:#}")))?;
        let text = read(&self.job_file).map_err(|error| self.invalid(format!("cannot be read: {error}")))?;
        let compute_target = target.and_then(|target| target.name(settings));
        engine.read(&Document { path: self.job_file.clone(), text, overrides, compute_target }, events)
    }

    /// Reads and checks the job file. Returns the job, and the survey of each input.
    pub fn check(
        &self,
        options: &StoreOptions,
        engine: &Engine,
        settings: &Settings,
        events: &Events,
    ) -> engine::Result<(Parsed, Vec<Option<Survey>>)> {
        let mut parsed = self.read(None, engine, settings, events)?;
        let surveys = engine.check(&mut parsed, options, false, events)?.finish()?;
        Ok((parsed, surveys))
    }

    /// Returns an error about the job file as a whole.
    pub fn invalid(&self, message: String) -> Error {
        Error::Invalid(vec![Problem::of_file(&self.job_file, message)])
    }
}

fn read(job_file: &Path) -> std::io::Result<String> {
    if job_file != Path::new(STDIN) {
        return std::fs::read_to_string(job_file);
    }
    let mut text = String::new();
    std::io::stdin().lock().read_to_string(&mut text)?;
    Ok(text)
}

/// Prints why a job was not started, on standard error and, with `json`, as one object on standard output.
pub fn refuse(error: Error, json: bool) -> anyhow::Result<ExitCode> {
    match error {
        Error::Invalid(problems) => {
            problems.iter().for_each(|problem| say!(err, "{problem}"));
            if json {
                say!(out, "{}", json!({ "valid": false, "problems": problems }));
            }
            Ok(Exit::Invalid.into())
        }
        Error::Busy(busy) => Ok(Exit::Busy.because(&remedies::busy(&busy), json)),
        Error::Other(error) => Err(error),
    }
}
