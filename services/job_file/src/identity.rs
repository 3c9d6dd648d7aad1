//! Decides whether two runs of a job file are the same job, and names the differences.
//!
//! The fingerprint covers everything that decides the content or the place of the output: code, arguments, inputs,
//! sizes, keys, formats, thresholds, tries and the timeouts of a try, environment, side inputs, output. It leaves out
//! keys that only decide speed, parallelism or logging; the table of keys says which. Any other field of the
//! specification counts, which at worst runs a job that could have been reused.
//!
//! Data beside the script, and registered models, are compared file by file instead, because the script may write them.
//! A file that appeared while the job ran never makes another job. A job continues after a file has changed in the
//! meantime, as it would have without the interruption, but its result is not reused.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use protocol::{DEFAULT_CONCURRENCY, Environment, JobSpec};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::output::SETTINGS_FILE;
use crate::snapshot::{self, Stamp, Stamps};
use crate::{ModelFolders, keys};

/// Everything that distinguishes one job from another.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Identity {
    /// The specification, without keys that have no influence on the output.
    settings: Map<String, Value>,
    /// The user's arguments, placeholders replaced. They replace `argv`, which also has options that only decide speed,
    /// parallelism or logging.
    arguments: Vec<String>,
    /// Digest of the requirements file; empty for an interpreter.
    requirements: String,
    /// Digests of the files that the script can import.
    code: BTreeMap<String, String>,
    /// Digests of the reference data.
    side_inputs: BTreeMap<String, String>,
    /// Data beside the script that code, arguments or variables name.
    data: Stamps,
    /// The model registry of this machine.
    models: Stamps,
}

/// A difference between two jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// The part has another content.
    Changed(JobPart),
    /// The earlier job did not have the part.
    New(JobPart),
    /// Only the earlier job has the part.
    Missing(JobPart),
    /// The setting of this key or option has another value.
    Setting {
        /// The key or option.
        key: String,
        /// The value now, and that of the earlier job, if both are scalars.
        values: Option<(Value, Value)>,
    },
}

/// A part of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobPart {
    /// A file beside the script, by its relative path.
    File(String),
    /// The user's arguments.
    Arguments,
    /// The requirements file.
    Requirements,
    /// A side input, by its name.
    SideInput(String),
    /// A file of a registered model, by its path.
    Model(String),
}

impl Difference {
    /// Returns whether a side input differs.
    pub fn is_of_side_input(&self) -> bool {
        matches!(self, Self::Changed(part) | Self::New(part) | Self::Missing(part) if matches!(part, JobPart::SideInput(_)))
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Changed(JobPart::Arguments) => f.write_str("arguments have changed"),
            Self::Changed(part) => write!(f, "{part} has changed"),
            Self::New(part) => write!(f, "{part} is new"),
            Self::Missing(part) => write!(f, "{part} is missing"),
            Self::Setting { key, values: Some((now, earlier)) } => {
                write!(f, "{key} is {now} and was {earlier}")
            }
            Self::Setting { key, values: None } => write!(f, "the value of {key} has changed"),
        }
    }
}

impl fmt::Display for JobPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(name) => f.write_str(name),
            Self::Arguments => f.write_str("arguments"),
            Self::Requirements => f.write_str("the requirements file"),
            Self::SideInput(name) => write!(f, "side input {name}"),
            Self::Model(name) => write!(f, "model {name}"),
        }
    }
}

/// The period in which a job ran, in nanoseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunPeriod {
    /// The first moment.
    pub from: u64,
    /// The last moment, inclusive.
    pub to: u64,
    /// Whether the job has a result, which may be reused.
    pub has_finished: bool,
}

impl Identity {
    /// Returns the identity of a job with these arguments, and whether it leaves out files beside the script because
    /// there are too many.
    pub fn of(
        spec: &JobSpec,
        arguments: &[String],
        job_file: &Path,
        models: &ModelFolders,
    ) -> Result<(Self, bool), storage::Error> {
        let requirements = match &spec.environment {
            Environment::Node | Environment::Interpreter { .. } => String::new(),
            Environment::Requirements { file, .. } => snapshot::digest_file(file.as_path())
                .map_err(|error| storage::Error::Unavailable {
                    object: file.display(),
                    source: error.into(),
                })?
                .to_hex()
                .to_string(),
        };
        let variables = spec.environment_variables.values();
        let beside = snapshot::beside(
            spec,
            job_file,
            arguments.iter().chain(variables).map(String::as_str),
        )?;
        let identity = Self {
            settings: settings_of_output(spec),
            arguments: arguments.to_vec(),
            requirements,
            code: beside.code,
            side_inputs: snapshot::digest_side_inputs(&spec.side_inputs),
            data: beside.data,
            models: models.stamps(spec),
        };
        Ok((identity, beside.is_partial))
    }

    /// Returns the fingerprint, in hexadecimal.
    pub fn fingerprint(&self) -> String {
        let parts =
            (&self.settings, &self.arguments, &self.requirements, &self.code, &self.side_inputs);
        blake3::hash(&serde_json::to_vec(&parts).expect("plain data serialises"))
            .to_hex()
            .to_string()
    }

    /// Returns the names of the files that the script can import, relative to its folder.
    pub fn code(&self) -> impl Iterator<Item = &str> {
        self.code.keys().map(String::as_str)
    }

    /// Returns the digest of the code alone.
    pub fn code_digest(&self) -> String {
        snapshot::digest_of(&self.code)
    }

    /// Returns the current identity of the job of `spec`, with unchanged settings.
    pub fn renewed(&self, spec: &JobSpec, models: &ModelFolders) -> Result<Self, storage::Error> {
        let (now, _) = Self::of(spec, &self.arguments, Path::new(&spec.job_file), models)?;
        Ok(Self { settings: self.settings.clone(), ..now })
    }

    /// Returns the differences from an earlier job that ran at `ran`; none if it is the same job.
    pub fn differences(&self, earlier: &Self, ran: RunPeriod) -> Vec<Difference> {
        let mut found = Vec::new();
        compare(&self.code, &earlier.code, |_, _| false, JobPart::File, &mut found);
        compare_settings(&flat(&self.settings), &flat(&earlier.settings), &mut found);
        if self.arguments != earlier.arguments {
            found.push(Difference::Changed(JobPart::Arguments));
        }
        if self.requirements != earlier.requirements {
            found.push(Difference::Changed(JobPart::Requirements));
        }
        compare(
            &self.side_inputs,
            &earlier.side_inputs,
            |_, _| false,
            JobPart::SideInput,
            &mut found,
        );
        let is_own = |name: &str, now: &Stamp| {
            (ran.from..=ran.to).contains(&now.modified)
                && !(ran.has_finished && earlier.data.contains_key(name))
        };
        compare(&self.data, &earlier.data, is_own, JobPart::File, &mut found);
        let known: BTreeSet<&str> = earlier.models.keys().map(|name| model_of(name)).collect();
        // The earlier job could not use a model that did not exist.
        let is_new = |name: &str, _: &Stamp| !known.contains(model_of(name));
        compare(&self.models, &earlier.models, is_new, JobPart::Model, &mut found);
        found
    }
}

impl ModelFolders {
    /// Returns the files of all models that the processes of this job find.
    fn stamps(&self, spec: &JobSpec) -> Stamps {
        let given = |name: &str| spec.environment_variables.get(name).map(PathBuf::from);
        let registry = given("GRISTMILL_HOME")
            .map_or_else(|| self.registry.clone(), |home| home.join("models"));
        let mut stamps = snapshot::stamps(&registry);
        if let Some(directory) = given("AZUREML_MODEL_DIR").or_else(|| self.directory.clone()) {
            let found = snapshot::stamps(&directory).into_iter();
            stamps.extend(found.map(|(name, stamp)| (format!("AZUREML_MODEL_DIR/{name}"), stamp)));
        }
        stamps
    }
}

fn model_of(file: &str) -> &str {
    file.split_once('/').map_or(file, |(model, _)| model)
}

/// Finds new, missing and changed entries. `is_fine(name, value now)` permits an addition or a change.
fn compare<T: PartialEq>(
    now: &BTreeMap<String, T>,
    earlier: &BTreeMap<String, T>,
    is_fine: impl Fn(&str, &T) -> bool,
    part: impl Fn(String) -> JobPart,
    found: &mut Vec<Difference>,
) {
    for (name, value) in now.iter().filter(|(name, value)| earlier.get(*name) != Some(value)) {
        match earlier.contains_key(name) {
            _ if is_fine(name, value) => {}
            true => found.push(Difference::Changed(part(name.clone()))),
            false => found.push(Difference::New(part(name.clone()))),
        }
    }
    let missing = earlier.keys().filter(|name| !now.contains_key(*name));
    found.extend(missing.map(|name| Difference::Missing(part(name.clone()))));
}

fn compare_settings(
    now: &BTreeMap<String, Value>,
    earlier: &BTreeMap<String, Value>,
    found: &mut Vec<Difference>,
) {
    let names: BTreeSet<&String> = now.keys().chain(earlier.keys()).collect();
    for name in names {
        let (now, earlier) =
            (now.get(name).unwrap_or(&Value::Null), earlier.get(name).unwrap_or(&Value::Null));
        let is_simple = |value: &Value| !value.is_array() && !value.is_object() && !value.is_null();
        if now != earlier {
            let values =
                (is_simple(now) && is_simple(earlier)).then(|| (now.clone(), earlier.clone()));
            found.push(Difference::Setting { key: shown(name), values });
        }
    }
}

/// Splits settings whose parts are separate keys.
fn flat(settings: &Map<String, Value>) -> BTreeMap<String, Value> {
    let mut flat = BTreeMap::new();
    for (name, value) in settings {
        match (name.as_str(), value) {
            ("thresholds" | "output", Value::Object(parts)) => {
                flat.extend(
                    parts.iter().map(|(part, value)| (format!("{name}.{part}"), value.clone())),
                );
            }
            ("mini_batch_size", Value::Object(size)) => {
                let text =
                    |part: &str| size.get(part).map(|value| value.to_string().replace('"', ""));
                let written = format!(
                    "{} {}",
                    text("count").unwrap_or_default(),
                    text("unit").unwrap_or_default()
                );
                flat.insert(name.clone(), written.into());
            }
            _ => {
                flat.insert(name.clone(), value.clone());
            }
        }
    }
    flat
}

fn shown(setting: &str) -> String {
    let file = (setting == "output.to_csv_arguments").then(|| SETTINGS_FILE.to_owned());
    file.or_else(|| keys::name_of_setting(setting)).unwrap_or_else(|| setting.to_owned())
}

/// Fields that the engine decides.
pub const OF_ENGINE: [&str; 6] =
    ["job_id", "fingerprint", "snapshot_digest", "job_file", "changes", "argv"];

/// Returns a job as JSON, in which everything without influence on the output has the value of an empty job.
fn settings_of_output(spec: &JobSpec) -> Map<String, Value> {
    let json = |spec: &JobSpec| match serde_json::to_value(spec).expect("plain data serialises") {
        Value::Object(settings) => settings,
        _ => unreachable!("a specification is an object"),
    };
    // Fingerprints have the job file's defaults of these two, which differ from those of an empty job.
    let empty = json(&JobSpec {
        allow_reuse: true,
        concurrency: DEFAULT_CONCURRENCY,
        ..JobSpec::default()
    });
    let mut settings = json(spec);
    let left_out = keys::of_job().filter(|key| key.is_left_out).map(|key| key.setting);
    for name in left_out.chain(OF_ENGINE) {
        match empty.get(name) {
            Some(value) => settings.insert(name.to_owned(), value.clone()),
            None => settings.remove(name),
        };
    }
    settings
}
