//! The flags that name a compute target.

use std::path::PathBuf;

use anyhow::Result;
use engine::Jobs;
use engine::targets::{Target, TargetChoice};

use crate::{Settings, complete, usage};

/// The heading of these flags in the help. Flags that a command declares after them would also appear under it.
pub const TARGET: &str = "Compute target";

/// Flags that name a target. A flag takes precedence over its environment variable, and the variable over
/// gristmill.toml.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = TARGET)]
pub struct TargetFlags {
    /// Compute target: a table [targets.NAME] of gristmill.toml [default: this machine].
    #[arg(long, value_name = "NAME", add = complete::targets())]
    target: Option<String>,
    /// Queues to use instead of the target's: sqs://PREFIX, amqp://…?prefix=PREFIX, sqlite:FOLDER.
    #[arg(long, value_name = "ADDRESS")]
    queue: Option<String>,
    /// Store to use instead of the target's: s3://BUCKET/PREFIX, file:///FOLDER, …
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// The gristmill.toml to read [default: the nearest one, from the working folder or that of the document upwards].
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl TargetFlags {
    fn choice(&self, settings: &Settings) -> TargetChoice {
        let variables = &settings.targets;
        TargetChoice {
            name: self.target.clone().or_else(|| variables.name.clone()),
            queue: self.queue.clone().or_else(|| variables.queue.clone()),
            store: self.store.clone().or_else(|| variables.store.clone()),
            config: self.config.clone().or_else(|| variables.config.clone()),
            document_folder: variables.document_folder.clone(),
        }
    }

    /// Returns the tables of names of Azure ML.
    pub fn azure_names(&self, settings: &Settings) -> Result<engine::AzureNames> {
        self.choice(settings)
            .azure_names(settings.engine.settings(), Settings::variable)
            .map_err(usage)
    }

    pub fn name(&self, settings: &Settings) -> Option<String> {
        self.choice(settings).name()
    }

    /// Returns the target that flags, variables or the job file name. `None`: this machine. Its errors are usage
    /// errors.
    pub fn find(&self, of_job: Option<&str>, settings: &Settings) -> Result<Option<Target>> {
        self.choice(settings)
            .find(of_job, settings.engine.settings(), Settings::variable)
            .map_err(usage)
    }

    /// Returns the jobs of the target, or of this machine. Opens no queue.
    pub async fn jobs(&self, settings: &Settings) -> Result<Jobs> {
        Ok(settings.engine.jobs_of(self.find(None, settings)?.as_ref()).await?)
    }

    /// Works like [`find`](Self::find), for commands that need a target.
    pub fn require(&self, of_job: Option<&str>, settings: &Settings) -> Result<Target> {
        self.choice(settings)
            .require(of_job, settings.engine.settings(), Settings::variable)
            .map_err(usage)
    }

    /// Returns the names of all targets, or no names if they cannot be read.
    pub fn known(&self, settings: &Settings) -> Vec<String> {
        self.choice(settings).known(settings.engine.settings(), Settings::variable)
    }
}
