//! The arguments of commands that read a job file, and the messages about invalid ones.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::Context;
use engine::{Document, Error, Events};
use job_file::{AzureNames, DocumentOverrides, Parsed, Problem, STDIN};
use partitioner::Survey;
use serde_json::json;
use storage::StoreOptions;

use crate::priority::PRIORITIES;
use crate::{Exit, Settings, Show, TargetFlags, complete, remedies};

/// Maximum size of a job file, which fits in the memory of every machine.
const JOB_FILE_BYTES_MAX: u64 = 16 << 20;

#[derive(Clone, Debug, clap::Args)]
pub struct JobFileArguments {
    /// The job file, or a document of Azure ML; `-` for the standard input.
    pub job_file: PathBuf,
    /// Replace a value of the job file: `mini_batch_size=20`, `inputs.images.path=data/*.png`.
    #[arg(long = "set", value_name = "KEY=VALUE", add = complete::set_keys())]
    set: Vec<String>,
    /// `low`, `normal` or `high`: the weight of the job beside other jobs of the target.
    #[arg(long, value_name = "PRIORITY", value_parser = PRIORITIES)]
    priority: Option<String>,
    /// The person or team that the job counts for on a compute target [default: the name of the user].
    #[arg(long, value_name = "NAME")]
    owner: Option<String>,
    /// Data or a value for an input of an Azure ML document; NAME is optional if there is only one input.
    #[arg(long = "input", value_name = "[NAME=]VALUE")]
    input: Vec<String>,
    /// Run only this step of a pipeline.
    #[arg(long, value_name = "NAME")]
    step: Option<String>,
    /// The text of the job file, kept because the standard input can be read only once.
    #[arg(skip)]
    text: OnceLock<String>,
}

impl JobFileArguments {
    pub fn new(job_file: PathBuf) -> Self {
        Self {
            job_file,
            set: Vec::new(),
            priority: None,
            owner: None,
            input: Vec::new(),
            step: None,
            text: OnceLock::new(),
        }
    }

    /// Reads the job file. A compute target of `target` takes precedence over that of the file.
    pub fn read(
        &self,
        target: Option<&TargetFlags>,
        settings: &Settings,
        events: &Events,
    ) -> engine::Result<Parsed> {
        settings.engine.read(&self.document(target, settings)?, events)
    }

    /// Returns the document with the options of the command line.
    pub fn document(
        &self,
        target: Option<&TargetFlags>,
        settings: &Settings,
    ) -> engine::Result<Document> {
        let overrides = self.set.iter().map(|pair| {
            let (key, value) = pair
                .split_once('=')
                .with_context(|| format!("--set {pair}: write it as KEY=VALUE"))?;
            Ok((key.trim().to_owned(), value.trim().to_owned()))
        });
        let flags = [("priority", &self.priority), ("owner", &self.owner)];
        let flags =
            flags.into_iter().filter_map(|(key, value)| Some(Ok((key.to_owned(), value.clone()?))));
        let overrides = overrides
            .chain(flags)
            .collect::<anyhow::Result<_>>()
            .map_err(|error| self.invalid(format!("{error:#}")))?;
        let text = match self.text.get() {
            Some(text) => text,
            None => {
                let text = read(&self.job_file)
                    .map_err(|error| self.invalid(format!("cannot be read: {error}")))?;
                self.text.get_or_init(|| text)
            }
        };
        let compute_target = target.and_then(|target| target.name(settings));
        let overrides =
            DocumentOverrides { overrides, inputs: self.input.clone(), step: self.step.clone() };
        // Scripts on other machines also look names up.
        let may_be_elsewhere = compute_target.is_some() || text.contains("compute_target");
        // The file of a component may have names, too.
        let words = ["azureml:", "component:", "/subscriptions/"];
        let names = |text: &String| words.iter().any(|word| text.contains(word));
        let azure = match may_be_elsewhere || names(text) || self.input.iter().any(names) {
            true => target.unwrap_or(&TargetFlags::default()).azure_names(settings)?,
            false => AzureNames::default(),
        };
        Ok(Document {
            path: self.job_file.clone(),
            text: text.clone(),
            overrides,
            azure,
            compute_target,
        })
    }

    /// Reads and checks the job file, and shows the events. Returns the job, and the survey of each input.
    pub async fn check(
        &self,
        settings: &Settings,
    ) -> engine::Result<(Parsed, Vec<Option<Survey>>)> {
        let check = async |events: &Events| {
            let mut parsed = self.read(None, settings, events)?;
            let surveys = settings
                .engine
                .check(&mut parsed, &StoreOptions::default(), false, events)?
                .finish()?;
            Ok((parsed, surveys))
        };
        Show::during(check).await
    }

    pub fn invalid(&self, message: String) -> Error {
        Error::Invalid(vec![Problem::of_file(&self.job_file, message)])
    }
}

fn read(job_file: &Path) -> std::io::Result<String> {
    let (mut stdin, mut file);
    let source: &mut dyn Read = match job_file == Path::new(STDIN) {
        true => {
            stdin = std::io::stdin().lock();
            &mut stdin
        }
        false => {
            file = File::open(job_file)?;
            if file.metadata()?.is_dir() {
                return Err(std::io::Error::other("it is a folder; pass the job file in it"));
            }
            if job_file.extension().is_some_and(|end| end == "py") {
                return Err(std::io::Error::other(
                    "it is a Python script; write a job file with `entry_script`, and pass that",
                ));
            }
            &mut file
        }
    };
    let mut bytes = Vec::new();
    source.take(JOB_FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > JOB_FILE_BYTES_MAX {
        return Err(std::io::Error::other("it is larger than 16 MB, so it is not a job file"));
    }
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        return Err(std::io::Error::other("it is UTF-16; save it as UTF-8"));
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let line = 1 + error.as_bytes()[..valid].iter().filter(|byte| **byte == b'\n').count();
        std::io::Error::other(format!("line {line} is not valid UTF-8; save the file as UTF-8"))
    })
}

/// Prints the reason why a job was not started, on standard error and, with `json`, as one object on standard output.
pub fn refuse(error: Error, json: bool) -> anyhow::Result<Exit> {
    match error {
        Error::Invalid(problems) => {
            problems.iter().for_each(|problem| say!(err, "{problem}"));
            if json {
                say!(out, "{}", json!({ "valid": false, "problems": problems }));
            }
            Ok(Exit::Invalid)
        }
        Error::Busy(busy) => Ok(Exit::Busy.because_of(&remedies::busy(&busy), busy.job_id(), json)),
        Error::Other(error) => Err(error),
        error => Err(error.into()),
    }
}
