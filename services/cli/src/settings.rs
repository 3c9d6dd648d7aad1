//! Every environment variable that the command reads, in one place.
//!
//! | variable | meaning |
//! |---|---|
//! | `GRISTMILL_HOME` | folder of local jobs and cached environments; `~/.gristmill` |
//! | `GRISTMILL_PYTHON` | interpreter for jobs that name no environment |
//! | `GRISTMILL_PYTHON_PACKAGE` | folder that holds the Python packages `gristmill` and `azureml_user` |
//! | `GRISTMILL_PREFETCH_BYTES` | memory for tables that are ready before they are asked for; 67108864 |
//! | `GRISTMILL_LEASE_SECONDS` | how long a mini-batch stays with a worker of a compute target that gives no sign of life; 30 |
//! | `GRISTMILL_TARGET` | compute target of commands that name none |
//! | `GRISTMILL_QUEUE`, `GRISTMILL_STORE` | queue and store, instead of those of the target |
//! | `GRISTMILL_CONFIG` | the `gristmill.toml` to read, instead of the one found from the working folder upwards |
//! | `GRISTMILL_LOG` | filter for what the engine says on stderr; `warn` |
//! | `GRISTMILL_LOG_FORMAT` | `text` (the default) or `json`: one object a line |
//! | `GRISTMILL_LISTEN` | address and port of the HTTP endpoints of worker and reducer; none |
//! | `GRISTMILL_STALL_SECONDS` | how long a role may stand still before it says that it is ill; 180 |
//! | `OTEL_EXPORTER_OTLP_…`, `OTEL_…` | where traces go, and which; in builds with the feature `otlp` |
//! | `ECS_AGENT_URI` | set by ECS: where a worker asks that its task is not stopped while it has work; empty: it does not ask |
//! | `GRISTMILL_CRASH_AT` | for crash tests |
//! | `AZ_BATCHAI_GPU_COUNT_FOUND` | number of GPUs, instead of asking the driver |
//! | `VIRTUAL_ENV`, `PATH`, `HOME` | as usual |
//!
//! Values in `gristmill.toml` may name any other as `${NAME}`. Stores and queues behind URLs read the variables of their
//! vendors, of which an endpoint (`AWS_ENDPOINT_URL…`) that is set to nothing is not set.

use std::env::{remove_var, var, var_os, vars_os};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

/// What the environment says.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Folder of local jobs.
    pub home: PathBuf,
    /// The user's folder, for `~`.
    pub user_folder: Option<PathBuf>,
    /// Interpreter for jobs that name no environment.
    pub python: Option<PathBuf>,
    /// Tables that may be ready at once, in bytes.
    pub prefetch_bytes_max: u64,
    /// How long a mini-batch stays with a worker that gives no sign of life.
    pub lease_step: Option<Duration>,
    /// Number of GPUs, if it is given.
    pub gpu_count: Option<u32>,
    /// Name of the compute target.
    pub target: Option<String>,
    /// Address of the queues of a compute target.
    pub queue: Option<String>,
    /// URL of the store of a compute target.
    pub store: Option<String>,
    /// File of compute targets.
    pub config: Option<PathBuf>,
    /// What the engine says on stderr.
    pub log_filter: String,
    /// In which form.
    pub log_format: Option<String>,
    /// Where a role answers HTTP requests.
    pub listen: Option<String>,
    /// How long a role may stand still before it counts as ill.
    pub stall_max: Duration,
    /// The agent of ECS, where this is one of its tasks.
    pub ecs_agent: Option<String>,
    /// A step of the write path.
    pub crash_at: Option<String>,
    package: Option<PathBuf>,
}

/// A lease is extended three times as often, and services count whole seconds.
const LEASE_SECONDS_MIN: u64 = 3;
const PREFETCH_BYTES: u64 = 64 * 1024 * 1024;
/// Longer than a queue that does not answer is waited for (two minutes).
const STALL_SECONDS: u64 = 180;

impl Settings {
    /// Reads the environment.
    pub fn from_environment() -> Self {
        let path = |name: &str| var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let user_folder = path("HOME");
        let default_home = || user_folder.clone().unwrap_or_else(|| PathBuf::from(".")).join(".gristmill");
        let home = path("GRISTMILL_HOME").unwrap_or_else(default_home);
        Self {
            home: std::path::absolute(&home).unwrap_or(home),
            user_folder,
            python: path("GRISTMILL_PYTHON").or_else(beside_executable).or_else(on_path),
            prefetch_bytes_max: number("GRISTMILL_PREFETCH_BYTES").unwrap_or(PREFETCH_BYTES),
            lease_step: number("GRISTMILL_LEASE_SECONDS")
                .map(|seconds| Duration::from_secs(seconds.max(LEASE_SECONDS_MIN))),
            gpu_count: number("AZ_BATCHAI_GPU_COUNT_FOUND").and_then(|count| u32::try_from(count).ok()),
            target: text("GRISTMILL_TARGET"),
            queue: text("GRISTMILL_QUEUE"),
            store: text("GRISTMILL_STORE"),
            config: path("GRISTMILL_CONFIG"),
            log_filter: var("GRISTMILL_LOG").unwrap_or_else(|_| "warn".to_owned()),
            log_format: text("GRISTMILL_LOG_FORMAT"),
            listen: text("GRISTMILL_LISTEN"),
            stall_max: Duration::from_secs(number("GRISTMILL_STALL_SECONDS").unwrap_or(STALL_SECONDS)),
            ecs_agent: text("ECS_AGENT_URI"),
            crash_at: var("GRISTMILL_CRASH_AT").ok(),
            package: path("GRISTMILL_PYTHON_PACKAGE"),
        }
    }

    /// Removes endpoints of AWS that are set to nothing: its SDK takes them for addresses, and panics.
    ///
    /// # Safety
    ///
    /// No other thread may run yet.
    pub unsafe fn forget_empty_endpoints() {
        let is_endpoint = |name: &OsString| name.as_encoded_bytes().starts_with(b"AWS_ENDPOINT_URL");
        let empty = vars_os().filter(|(name, value)| is_endpoint(name) && value.is_empty());
        for (name, _) in empty.collect::<Vec<_>>() {
            // SAFETY: the caller's.
            unsafe { remove_var(name) };
        }
    }

    /// Where requests to SQS go, if not to AWS.
    pub fn sqs_endpoint() -> Option<String> {
        text("AWS_ENDPOINT_URL_SQS").or_else(|| text("AWS_ENDPOINT_URL"))
    }

    /// Whether traces go anywhere.
    #[cfg(feature = "otlp")]
    pub fn names_collector() -> bool {
        let is_off = text("OTEL_SDK_DISABLED").is_some_and(|off| off.eq_ignore_ascii_case("true"));
        let named = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
        !is_off && named.into_iter().any(|name| text(name).is_some())
    }

    /// Whether traces are told whose they are.
    #[cfg(feature = "otlp")]
    pub fn names_service() -> bool {
        let attributes = text("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
        text("OTEL_SERVICE_NAME").is_some() || attributes.contains("service.name=")
    }

    /// A variable that `gristmill.toml` names.
    pub fn variable(name: &str) -> Option<String> {
        var(name).ok()
    }

    /// A folder that holds the Python packages and nothing else, for `sys.path` of the processes.
    ///
    /// Where they are installed beside other packages, a folder of links below `private` shows them alone, so that the
    /// script sees the packages of its own environment and not those of ours.
    pub fn package(&self, private: &Path) -> Result<PathBuf> {
        if let Some(package) = &self.package {
            return Ok(package.clone());
        }
        let executable = std::env::current_exe().context("find this executable")?;
        let folder = executable.parent().context("find the folder of this executable")?;
        let beside = folder.join("python");
        if beside.join("gristmill/bootstrap.py").exists() {
            return Ok(beside);
        }
        let library = folder.parent().map(|prefix| prefix.join("lib")).context("find the library folder")?;
        let versions = std::fs::read_dir(&library).into_iter().flatten().flatten();
        let installed = versions.map(|version| version.path().join("site-packages"));
        let site_packages = installed
            .into_iter()
            .find(|site_packages| site_packages.join("gristmill/bootstrap.py").exists())
            .with_context(|| {
                format!(
                    "the Python package is neither in {} nor below {}: set GRISTMILL_PYTHON_PACKAGE to the folder \
                     that holds it",
                    beside.display(),
                    library.display()
                )
            })?;
        let links = private.join("package");
        std::fs::create_dir_all(&links).with_context(|| format!("make {}", links.display()))?;
        for name in ["gristmill", "azureml_user"] {
            let link = links.join(name);
            let _ = std::fs::remove_file(&link);
            std::os::unix::fs::symlink(site_packages.join(name), &link)
                .with_context(|| format!("link {}", link.display()))?;
        }
        Ok(links)
    }
}

/// A variable that is set to nothing is not set.
fn text(name: &str) -> Option<String> {
    var(name).ok().filter(|value| !value.is_empty())
}

fn number(name: &str) -> Option<u64> {
    var(name).ok()?.trim().parse().ok()
}

/// The interpreter of the environment that this command is installed in, or of the one that is active.
fn beside_executable() -> Option<PathBuf> {
    let beside = std::env::current_exe().ok()?.parent()?.join("python3");
    let active = var_os("VIRTUAL_ENV").map(|environment| PathBuf::from(environment).join("bin/python3"));
    [Some(beside), active].into_iter().flatten().find(|python| python.exists())
}

fn on_path() -> Option<PathBuf> {
    let path = var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join("python3")).find(|python| python.is_file())
}
