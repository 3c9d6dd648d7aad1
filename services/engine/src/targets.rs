//! Compute targets: queues and a store with a name, from `gristmill.toml` or from addresses that the caller gives.
//! `TARGETS.md` is the reference for users.
//!
//! Connections open when they are first needed, so requests that only need the store never connect to a queue.

mod address;
pub mod file;
pub mod import;
mod open;
mod variables;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use job_file::{did_you_mean, not_kept};
use protocol::ItemPath;
use storage::TargetStore;

pub use address::QueueAddress;
pub use open::{QueueDepth, Queues};

use crate::{Error, Fixable, Jobs, Remedy, Settings};
pub use file::TargetsFile;

/// The name that stands for this machine, where a job has its own queues and folder.
pub const LOCAL: &str = "local";
/// The name of a target that consists of addresses only.
const NO_NAME: &str = "(no name)";

/// How a caller chooses a target; by default, this machine.
#[derive(Clone, Debug, Default)]
pub struct TargetChoice {
    /// Its name in `gristmill.toml`, or [`LOCAL`] for this machine.
    pub name: Option<String>,
    /// Queues to use instead of the target's.
    pub queue: Option<String>,
    /// Store to use instead of the target's.
    pub store: Option<String>,
    /// The `gristmill.toml` to read; `None`: the nearest one, from the working folder upwards, else from
    /// `document_folder` upwards.
    pub config: Option<PathBuf>,
    /// The folder of the document that a request is about.
    pub document_folder: Option<PathBuf>,
}

/// A compute target. Its queue address may hold a password, which no text of this type shows.
#[derive(Clone, Default)]
pub struct Target {
    /// Its name, for messages.
    pub name: String,
    queue: Option<QueueAddress>,
    store: Option<String>,
    /// Endpoint of AWS services, if it is not that of AWS.
    pub endpoint: Option<String>,
    /// Region of AWS, if not that of the AWS settings.
    pub region: Option<String>,
    /// Management API of its broker, if not at its default place.
    pub management: Option<String>,
    /// Interpreter of its nodes, for jobs that name none.
    pub python: Option<PathBuf>,
    /// How long its broker lets a consumer hold a delivery, if not the default of brokers.
    pub lease: Option<Duration>,
    /// Environment variables of a worker that scripts get; `NAME*`: all that begin so.
    pub pass_environment: Vec<String>,
    /// Environment variables from which the address of the broker is made, which scripts never get.
    pub secret_variables: Vec<String>,
}

impl fmt::Debug for Target {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Target")
            .field("name", &self.name)
            .field("queue", &self.queue)
            .finish_non_exhaustive()
    }
}

/// This machine or a compute target, as a caller names it in a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TargetRef {
    /// This machine.
    #[default]
    ThisMachine,
    /// A target of `gristmill.toml`.
    Named(String),
    /// A target without a name. Its text shows no password.
    Addresses {
        /// Address of its queues.
        queue: Option<String>,
        /// URL of its store.
        store: Option<String>,
    },
}

impl TargetChoice {
    /// Returns the name of the chosen target, if the choice does not depend on the job file.
    pub fn name(&self) -> Option<String> {
        let has_address = self.queue.is_some() || self.store.is_some();
        self.name.clone().or_else(|| has_address.then(|| NO_NAME.to_owned()))
    }

    /// Returns the chosen target, or that of the job file. `None`: this machine. `variable` returns the value of a variable
    /// that `gristmill.toml` names.
    pub fn find(
        &self,
        of_job: Option<&str>,
        settings: &Settings,
        variable: impl Fn(&str) -> Option<String>,
    ) -> crate::Result<Option<Target>> {
        let Self { queue, store, .. } = self;
        let name = self.name.as_deref().or(of_job);
        if name == Some(LOCAL) || name.is_none() && queue.is_none() && store.is_none() {
            return Ok(None);
        }
        let folder = &settings.working_directory;
        let mut target = match name {
            Some(name) => from_file(name, &self.read_file(settings, &variable)?)?,
            None => Target { name: NO_NAME.to_owned(), ..Target::default() },
        };
        if let Some(queue) = queue {
            target.queue = Some(
                QueueAddress::parse(queue, folder).context("the queue address of the request")?,
            );
        }
        // All processes of a target must use the same lease. The address reaches all of them, the
        // file may not.
        target.lease = target.queue.as_ref().and_then(QueueAddress::lease).or(target.lease);
        if let Some(store) = store {
            target.store = Some(store_url(store, folder));
        }
        if let Some(what) = target.store.as_deref().and_then(not_kept) {
            return Err(Error::Refused(format!(
                "target {}: its store is {what}, which every message about the store would show; put credentials where \
                 the vendor's tools find them",
                target.name
            )));
        }
        Ok(Some(target))
    }

    /// Like [`find`](Self::find), for callers that need a target other than this machine.
    pub fn require(
        &self,
        of_job: Option<&str>,
        settings: &Settings,
        variable: impl Fn(&str) -> Option<String>,
    ) -> crate::Result<Target> {
        if let Some(target) = self.find(of_job, settings, &variable)? {
            return Ok(target);
        }
        let known = self.read_file(settings, variable)?;
        Err(without_target("a compute target other than this machine is needed", &known))
    }

    /// Returns the names of all targets; none if they cannot be read.
    pub fn known(
        &self,
        settings: &Settings,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Vec<String> {
        self.read_file(settings, variable)
            .map_or_else(|_| Vec::new(), |file| file.targets.into_keys().collect())
    }

    /// Returns the names of the environment variables from which the addresses of brokers are made; none if
    /// `gristmill.toml` cannot be read.
    pub fn secret_variables(&self, settings: &Settings) -> Vec<String> {
        // Their values do not matter.
        let file = self.read_file(settings, |_| Some(String::new())).unwrap_or_default();
        file.targets.into_values().flat_map(|target| target.secret_variables).collect()
    }

    /// Returns the meaning of names of Azure ML.
    pub fn azure_names(
        &self,
        settings: &Settings,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<job_file::AzureNames> {
        Ok(self.read_file(settings, variable)?.azure)
    }

    fn read_file(
        &self,
        settings: &Settings,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<TargetsFile> {
        let (folder, user_folder) = (&settings.working_directory, settings.user_folder.as_deref());
        let document_folder =
            self.document_folder.as_ref().map(|of_document| folder.join(of_document));
        match file::find(self.config.as_deref(), folder, document_folder.as_deref(), user_folder) {
            Some(path) => file::read(&path, variable),
            None => Ok(TargetsFile::default()),
        }
    }
}

fn from_file(name: &str, file: &TargetsFile) -> crate::Result<Target> {
    let Some(entry) = file.targets.get(name) else {
        let hint = did_you_mean(name, file.targets.keys().map(String::as_str));
        return Err(without_target(&format!("there is no compute target {name:?}{hint}"), file));
    };
    if let Some(unset) = &entry.unset {
        return Err(anyhow!("{unset}").into());
    }
    let path = file.path.as_deref().expect("targets come from a file");
    let folder = path.parent().unwrap_or(Path::new("/"));
    let at = |line: &usize, error: anyhow::Error| {
        anyhow!("{}:{line}: targets.{name}.queue: {error:#}", path.display())
    };
    let queue = entry.queue.as_ref();
    let queue = queue
        .map(|(text, line)| QueueAddress::parse(text, folder).map_err(|error| at(line, error)));
    Ok(Target {
        name: name.to_owned(),
        queue: queue.transpose()?,
        store: entry.store.as_ref().map(|text| store_url(text, folder)),
        endpoint: entry.endpoint.clone(),
        region: entry.region.clone(),
        management: entry.management.clone(),
        python: entry.python.as_ref().map(|python| folder.join(python)),
        lease: entry.lease_seconds.map(Duration::from_secs),
        pass_environment: entry.pass_environment.clone(),
        secret_variables: entry.secret_variables.clone(),
    })
}

/// Returns an error that names the targets of a file.
fn without_target(problem: &str, file: &TargetsFile) -> Error {
    let known = match &file.path {
        None => {
            format!(
                "there is no {} in this folder, in that of the document, or above one of them",
                file::FILE_NAME
            )
        }
        Some(path) if file.targets.is_empty() => format!("{} has none", path.display()),
        Some(path) => {
            let names: Vec<&str> = file.targets.keys().map(String::as_str).collect();
            format!("{} has: {}", path.display(), names.join(", "))
        }
    };
    let remedy = Remedy::NameTarget { without_file: file.path.is_none() };
    Fixable::error(format!("{problem} ({known})"), remedy).into()
}

/// Reads names of variables, separated by commas.
pub fn variable_names(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// Returns the URL of a store. Without a scheme it is a folder, relative to that of the file that names it.
fn store_url(text: &str, folder: &Path) -> String {
    let path = text.strip_prefix("file:").filter(|path| !path.starts_with("//")).unwrap_or(text);
    if ItemPath::from(path).is_url() {
        return path.trim_end_matches('/').to_owned();
    }
    let path = folder.join(path);
    url::Url::from_file_path(&path)
        .map_or_else(|()| path.display().to_string(), |url| url.to_string())
}

impl Target {
    /// Returns the reference to this target.
    pub fn reference(&self) -> TargetRef {
        if self.name != NO_NAME {
            return TargetRef::Named(self.name.clone());
        }
        TargetRef::Addresses {
            queue: self.queue.as_ref().map(ToString::to_string),
            store: self.store.clone(),
        }
    }

    /// Returns its jobs.
    pub fn jobs(&self, store: TargetStore) -> Jobs {
        Jobs::There { target: self.reference(), store }
    }

    /// Returns the address of its queues.
    pub fn queue(&self) -> Result<&QueueAddress> {
        self.queue.as_ref().ok_or_else(|| self.lacks("queue"))
    }

    /// Returns the URL of its store.
    pub fn store(&self) -> Result<&str> {
        self.store.as_deref().ok_or_else(|| self.lacks("store"))
    }

    fn lacks(&self, key: &'static str) -> anyhow::Error {
        let problem = format!(
            "target {} has no {key}: add `{key} = …` to it in {}",
            self.name,
            file::FILE_NAME
        );
        Fixable::error(problem, Remedy::GiveKey(key))
    }
}
