//! The surroundings of a job file: everything besides its text on which its meaning depends.

use std::path::PathBuf;

use crate::AzureNames;

/// The surroundings of a job file. The caller provides them, because this crate never reads the environment.
#[derive(Clone, Debug)]
pub struct Context {
    /// Absolute folder that a relative path of the job file itself starts from.
    pub working_directory: PathBuf,
    /// The folder that `~` stands for.
    pub home_directory: Option<PathBuf>,
    /// Python for jobs without `environment`, and for making virtual environments.
    pub interpreter: PathBuf,
    /// Folders in which `environment: python3.12` is looked up.
    pub search_path: Vec<PathBuf>,
    /// Compute target that takes precedence over that of the file. `local`: this machine.
    pub compute_target: Option<String>,
    /// The folders of models.
    pub models: ModelFolders,
    /// The meaning of names of Azure ML.
    pub azure: AzureNames,
    /// Folder for files that documents contain inline: conda files.
    pub files: PathBuf,
}

/// Folders of this machine in which scripts find models.
#[derive(Clone, Debug, Default)]
pub struct ModelFolders {
    /// `$GRISTMILL_HOME/models`.
    pub registry: PathBuf,
    /// `$AZUREML_MODEL_DIR`.
    pub directory: Option<PathBuf>,
}
