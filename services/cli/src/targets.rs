//! Compute targets: three queues and a store by name, from `gristmill.toml`, flags and variables. `TARGETS.md` is the
//! reference for users.
//!
//! A flag goes before a variable, and a variable before the file. Nothing of a target is connected before it is asked
//! for, so that commands which work from storage alone never touch a queue.

mod address;
pub mod file;
pub mod import;
mod open;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use protocol::ItemPath;
use storage::TargetStore;

pub use address::{QueueAddress, Role};
pub use open::Queues;

use crate::job_file::{nearest, not_kept};
use crate::jobs::Jobs;
use crate::settings::Settings;
pub use file::TargetsFile;

/// The target that is this machine, without any queue or store but the job's own folder.
pub const LOCAL: &str = "local";
/// A target that was put together from flags or variables alone.
const NO_NAME: &str = "(no name)";

/// Flags that name a target, of every command that can use one.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Compute target")]
pub struct TargetFlags {
    /// Compute target: a table [targets.NAME] of gristmill.toml. Without one: this machine.
    #[arg(long, value_name = "NAME")]
    target: Option<String>,
    /// Queues, instead of those of the target: sqs://PREFIX, amqp://…?prefix=PREFIX, sqlite:FOLDER.
    #[arg(long, value_name = "ADDRESS")]
    queue: Option<String>,
    /// Store, instead of that of the target: s3://BUCKET/PREFIX, file:///FOLDER, …
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// The gristmill.toml to read, instead of the one found from here upwards.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// A compute target. Its queue address may hold a password, which no text made of this type shows.
#[derive(Clone)]
pub struct Target {
    /// Its name, for messages.
    pub name: String,
    queue: Option<QueueAddress>,
    store: Option<String>,
    /// Where requests to AWS go instead.
    pub endpoint: Option<String>,
    /// Region of AWS, if not that of the AWS settings.
    pub region: Option<String>,
    /// Management API of its broker, if not where brokers have it.
    pub management: Option<String>,
    /// Interpreter of its nodes, for jobs that name none.
    pub python: Option<PathBuf>,
    /// How long its broker lets a delivery be held, if not as long as brokers do by default.
    pub lease: Option<Duration>,
}

impl fmt::Debug for Target {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Target").field("name", &self.name).field("queue", &self.queue).finish_non_exhaustive()
    }
}

impl TargetFlags {
    /// What decides, before the job file is asked, where a job runs; [`LOCAL`]: on this machine.
    pub fn name(&self, settings: &Settings) -> Option<String> {
        let name = self.target.clone().or_else(|| settings.target.clone());
        let has_address =
            [&self.queue, &settings.queue, &self.store, &settings.store].iter().any(|text| text.is_some());
        name.or_else(|| has_address.then(|| NO_NAME.to_owned()))
    }

    /// The target that flags, variables or the job file name. `None`: this machine.
    pub fn find(&self, of_job: Option<&str>, settings: &Settings) -> Result<Option<Target>> {
        let given = [(&self.target, &settings.target), (&self.queue, &settings.queue), (&self.store, &settings.store)];
        let [name, queue, store] = given.map(|(flag, variable)| flag.as_deref().or(variable.as_deref()));
        let name = name.or(of_job);
        if name == Some(LOCAL) || name.is_none() && queue.is_none() && store.is_none() {
            return Ok(None);
        }
        let folder = std::env::current_dir().context("find the current folder")?;
        let mut target = match name {
            Some(name) => from_file(name, &self.read_file(&folder, settings)?)?,
            None => Target {
                name: NO_NAME.to_owned(),
                queue: None,
                store: None,
                endpoint: None,
                region: None,
                management: None,
                python: None,
                lease: None,
            },
        };
        if let Some(queue) = queue {
            target.queue = Some(QueueAddress::parse(queue, &folder).context("--queue or GRISTMILL_QUEUE")?);
        }
        if let Some(store) = store {
            target.store = Some(store_url(store, &folder));
        }
        if let Some(what) = target.store.as_deref().and_then(not_kept) {
            bail!(
                "target {}: its store is {what}, which would be shown wherever the store is; credentials are found in \
                 the environment, as every tool of the vendor finds them",
                target.name
            );
        }
        Ok(Some(target))
    }

    /// As [`find`](Self::find), for commands that need one.
    pub fn require(&self, of_job: Option<&str>, settings: &Settings) -> Result<Target> {
        if let Some(target) = self.find(of_job, settings)? {
            return Ok(target);
        }
        let folder = std::env::current_dir().context("find the current folder")?;
        let known = self.read_file(&folder, settings)?;
        bail!("this command needs a compute target other than this machine: --target NAME ({})", what_there_is(&known))
    }

    fn read_file(&self, folder: &Path, settings: &Settings) -> Result<TargetsFile> {
        let named = self.config.as_deref().or(settings.config.as_deref());
        match file::find(named, folder, settings.user_folder.as_deref()) {
            Some(path) => file::read(&path, Settings::variable),
            None => Ok(TargetsFile::default()),
        }
    }
}

fn from_file(name: &str, file: &TargetsFile) -> Result<Target> {
    let Some(entry) = file.targets.get(name) else {
        let hint = nearest(name, file.targets.keys().map(String::as_str));
        let hint = hint.map_or(String::new(), |nearest| format!("; did you mean {nearest:?}?"));
        bail!("there is no compute target {name:?}{hint} ({})", what_there_is(file));
    };
    let path = file.path.as_deref().expect("targets come from a file");
    let folder = path.parent().unwrap_or(Path::new("/"));
    let at = |line: &usize, error: anyhow::Error| anyhow!("{}:{line}: targets.{name}.queue: {error:#}", path.display());
    let queue = entry.queue.as_ref();
    let queue = queue.map(|(text, line)| QueueAddress::parse(text, folder).map_err(|error| at(line, error)));
    Ok(Target {
        name: name.to_owned(),
        queue: queue.transpose()?,
        store: entry.store.as_ref().map(|(text, _)| store_url(text, folder)),
        endpoint: entry.endpoint.clone(),
        region: entry.region.clone(),
        management: entry.management.clone(),
        python: entry.python.as_ref().map(|python| folder.join(python)),
        lease: entry.lease_seconds.map(Duration::from_secs),
    })
}

fn what_there_is(file: &TargetsFile) -> String {
    match &file.path {
        None => format!("no {} was found from here upwards; --config names one", file::FILE_NAME),
        Some(path) if file.targets.is_empty() => format!("{} holds none", path.display()),
        Some(path) => {
            let names: Vec<&str> = file.targets.keys().map(String::as_str).collect();
            format!("{} has: {}", path.display(), names.join(", "))
        }
    }
}

/// A store without a scheme is a folder, beside the file that names it.
fn store_url(text: &str, folder: &Path) -> String {
    let path = text.strip_prefix("file:").filter(|path| !path.starts_with("//")).unwrap_or(text);
    if ItemPath::from(path).is_url() {
        return path.trim_end_matches('/').to_owned();
    }
    let path = folder.join(path);
    url::Url::from_file_path(&path).map_or_else(|()| path.display().to_string(), |url| url.to_string())
}

impl Target {
    /// What a command that is told to people needs in order to mean this target: ` --target NAME`.
    pub fn flag(&self) -> String {
        if self.name != NO_NAME {
            return format!(" --target {}", self.name);
        }
        let queue = self.queue.as_ref().map_or(String::new(), |queue| format!(" --queue '{queue}'"));
        let store = self.store.as_ref().map_or(String::new(), |store| format!(" --store {store}"));
        queue + &store
    }

    /// Its jobs.
    pub fn jobs(&self, store: TargetStore) -> Jobs {
        Jobs::There { flag: self.flag(), store }
    }

    /// Where its queues are.
    pub fn queue(&self) -> Result<&QueueAddress> {
        self.queue.as_ref().with_context(|| self.lacks("queue"))
    }

    /// URL of its store.
    pub fn store(&self) -> Result<&str> {
        self.store.as_deref().with_context(|| self.lacks("store"))
    }

    fn lacks(&self, key: &str) -> String {
        format!("target {} has no {key}: add `{key} = …` to it in {}, or pass --{key}", self.name, file::FILE_NAME)
    }
}
