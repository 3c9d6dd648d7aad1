//! The settings of the engine. The caller provides them, because the engine reads no environment variable.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use job_file::ModelFolders;
use worker::VisibleGpus;

use crate::{Fixable, Remedy};

/// The settings of the engine on this machine.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The build of this process: version and commit.
    pub build: String,
    /// Folder of local jobs and caches; see [`Home`](crate::Home).
    pub home: PathBuf,
    /// Name of the user, the owner of jobs that name none.
    pub user: Option<String>,
    /// The home folder of the user, for `~`.
    pub user_folder: Option<PathBuf>,
    /// The base of relative paths.
    pub working_directory: PathBuf,
    /// Folders that hold programs, as in `PATH`.
    pub search_path: Vec<PathBuf>,
    /// Interpreter for jobs that name no environment; `None`: `python3`.
    pub python: Option<PathBuf>,
    /// Folder that holds the Python packages `gristmill` and `azureml_user`, and nothing else; `None`: the folder beside
    /// `executable`, or the `site-packages` of its installation.
    pub package: Option<PathBuf>,
    /// The executable that the Python packages are installed with.
    pub executable: Option<PathBuf>,
    /// Memory for decoded tables that wait for a process, in bytes.
    pub prefetch_bytes_max: u64,
    /// Time after which a compute target redelivers the mini-batches of a dead worker.
    pub lease_step: Option<Duration>,
    /// Number of GPUs of the machine; `None`: the driver's answer.
    pub gpu_count: Option<u32>,
    /// Those of them that jobs may use, as CUDA writes them; `None`: all.
    pub visible_gpus: Option<String>,
    /// Folder of models that are not registered.
    pub model_directory: Option<PathBuf>,
    /// Endpoint of SQS, if it is not that of AWS.
    pub sqs_endpoint: Option<String>,
    /// The environment variables of this process, which the scripts of its own jobs get; without those of brokers.
    pub environment: Vec<(OsString, OsString)>,
    /// Names of those that scripts of a compute target get, too; `NAME*`: all that begin so.
    pub pass_environment: Vec<String>,
}

/// The default of [`Settings::prefetch_bytes_max`].
pub const PREFETCH_BYTES: u64 = 64 * 1024 * 1024;

impl Settings {
    /// Returns the GPUs of this machine that jobs may use.
    pub(crate) fn gpus(&self) -> VisibleGpus {
        VisibleGpus::new(self.gpu_count, self.visible_gpus.as_deref())
    }

    /// Settings for jobs below `home`, with defaults for everything else.
    pub fn new(home: PathBuf) -> Self {
        Self {
            build: env!("CARGO_PKG_VERSION").to_owned(),
            home,
            working_directory: PathBuf::from("/"),
            prefetch_bytes_max: PREFETCH_BYTES,
            ..Self::default()
        }
    }

    /// Returns the folders in which scripts find models.
    pub fn models(&self) -> ModelFolders {
        ModelFolders { registry: self.home.join("models"), directory: self.model_directory.clone() }
    }

    /// Returns the interpreter for jobs that name none.
    pub fn python(&self) -> &Path {
        self.python.as_deref().unwrap_or(Path::new("python3"))
    }

    /// Returns a folder that holds the Python packages and nothing else, for `sys.path` of the processes.
    ///
    /// If they are installed beside other packages, the result is a folder of links below `private`, so that the script
    /// sees the packages of its own environment and not those of this one.
    pub fn package(&self, private: &Path) -> Result<PathBuf> {
        if let Some(package) = &self.package {
            return Ok(package.clone());
        }
        let folder = self
            .executable
            .as_deref()
            .and_then(Path::parent)
            .context("no folder of Python packages is set")?;
        let beside = folder.join("python");
        if beside.join("gristmill/bootstrap.py").exists() {
            return Ok(beside);
        }
        let library =
            folder.parent().map(|prefix| prefix.join("lib")).context("find the library folder")?;
        let versions = std::fs::read_dir(&library).into_iter().flatten().flatten();
        let mut installed = versions.map(|version| version.path().join("site-packages"));
        let Some(site_packages) =
            installed.find(|folder| folder.join("gristmill/bootstrap.py").exists())
        else {
            let (beside, library) = (beside.display(), library.display());
            let problem = format!("the Python package is neither in {beside} nor below {library}");
            return Err(Fixable::error(problem, Remedy::SetPackage));
        };
        let links = private.join("package");
        std::fs::create_dir_all(&links).with_context(|| format!("create {}", links.display()))?;
        for name in ["gristmill", "azureml_user"] {
            let link = links.join(name);
            let _ = std::fs::remove_file(&link);
            std::os::unix::fs::symlink(site_packages.join(name), &link)
                .with_context(|| format!("link {}", link.display()))?;
        }
        Ok(links)
    }
}
