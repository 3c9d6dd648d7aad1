//! Every environment variable that the command reads, except for `GRISTMILL_COMPLETE`; `COMMANDS.md` explains them.
//!
//! Values in `gristmill.toml` may name any other variable as `${NAME}`. Stores and queues read the variables of their
//! vendors. An empty endpoint (`AWS_ENDPOINT_URL…`) counts as unset.

use std::collections::BTreeMap;
use std::env::{current_dir, current_exe, remove_var, split_paths, var, var_os, vars_os};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use engine::Engine;
use engine::targets::{TargetChoice, variable_names};

/// The settings of the environment.
#[derive(Clone, Debug)]
pub struct Settings {
    pub engine: Engine,
    /// The compute target of commands without `--target`.
    pub targets: TargetChoice,
    pub log_filter: String,
    pub log_format: Option<String>,
    /// Users of the jobs of a worker, `20000-29999` or `none`.
    pub job_users: Option<String>,
    /// Labels of a worker, `zone=a,gpu_model=H200`.
    labels: Option<String>,
    /// Address of the HTTP endpoints of a role.
    pub listen: Option<String>,
    /// The namespace in which a reducer logs metrics for CloudWatch; `None`: it logs none.
    pub cloudwatch_namespace: Option<String>,
    /// The token of the portal, if the user chose one.
    pub portal_token: Option<String>,
    /// Whether this session can show windows.
    pub has_display: bool,
    /// Time without progress after which a role is unhealthy.
    pub stall_max: Duration,
    /// The agent of ECS, if this process is part of a task.
    pub ecs_agent: Option<String>,
    /// The step of the write path at which this process kills itself.
    pub crash_at: Option<String>,
}

/// The shortest lease: workers extend it halfway through, and services count whole seconds.
const LEASE_SECONDS_MIN: u64 = 3;
/// Longer than the two minutes that a role waits for a queue.
const STALL_SECONDS: u64 = 180;
/// Variables of Gristmill that no script gets: an address may hold a password.
const SECRET: [&str; 2] = ["GRISTMILL_QUEUE", "GRISTMILL_PORTAL_TOKEN"];

impl Settings {
    /// Reads the variables. `document_folder`: the folder of the command's job file or document.
    pub fn from_environment(document_folder: Option<PathBuf>) -> anyhow::Result<Self> {
        let path = |name: &str| var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        // Without the variable, the folder of the user's account: cron and containers may not set it.
        let user_folder = path("HOME").or_else(std::env::home_dir);
        let default_home =
            || user_folder.clone().unwrap_or_else(|| PathBuf::from(".")).join(".gristmill");
        let home = path("GRISTMILL_HOME").unwrap_or_else(default_home);
        let mut engine = engine::Settings {
            build: crate::BUILD.to_owned(),
            user: text("USER").or_else(|| text("LOGNAME")).or_else(user_name),
            user_folder,
            working_directory: current_dir().unwrap_or_default(),
            search_path: var_os("PATH").map_or(Vec::new(), |path| split_paths(&path).collect()),
            python: path("GRISTMILL_PYTHON").or_else(beside_executable).or_else(on_path),
            package: path("GRISTMILL_PYTHON_PACKAGE"),
            executable: current_exe().ok(),
            prefetch_bytes_max: number("GRISTMILL_PREFETCH_BYTES")?
                .unwrap_or(engine::PREFETCH_BYTES),
            lease_step: number("GRISTMILL_LEASE_SECONDS")?
                .map(|seconds| Duration::from_secs(seconds.max(LEASE_SECONDS_MIN))),
            gpu_count: text("AZ_BATCHAI_GPU_COUNT_FOUND")
                .and_then(|count| count.trim().parse().ok()),
            // An empty value hides all GPUs.
            visible_gpus: var("CUDA_VISIBLE_DEVICES").ok(),
            model_directory: path("AZUREML_MODEL_DIR"),
            sqs_endpoint: text("AWS_ENDPOINT_URL_SQS").or_else(|| text("AWS_ENDPOINT_URL")),
            pass_environment: variable_names(
                &text("GRISTMILL_PASS_ENVIRONMENT").unwrap_or_default(),
            ),
            ..engine::Settings::new(std::path::absolute(&home).unwrap_or(home))
        };
        let targets = TargetChoice {
            name: text("GRISTMILL_TARGET"),
            queue: text("GRISTMILL_QUEUE"),
            store: text("GRISTMILL_STORE"),
            config: path("GRISTMILL_CONFIG"),
            document_folder,
        };
        // No script gets the password of a broker.
        let secret = targets.secret_variables(&engine);
        let is_secret = |name: &OsString| {
            SECRET.iter().any(|own| name == *own) || secret.iter().any(|one| *name == **one)
        };
        engine.environment = vars_os().filter(|(name, _)| !is_secret(name)).collect();
        Ok(Self {
            engine: Engine::new(engine),
            targets,
            log_filter: var("GRISTMILL_LOG").unwrap_or_else(|_| "warn".to_owned()),
            log_format: text("GRISTMILL_LOG_FORMAT"),
            job_users: text("GRISTMILL_JOB_USERS"),
            labels: text("GRISTMILL_LABELS"),
            listen: text("GRISTMILL_LISTEN"),
            cloudwatch_namespace: text("GRISTMILL_CLOUDWATCH_NAMESPACE"),
            portal_token: text("GRISTMILL_PORTAL_TOKEN"),
            has_display: text("DISPLAY").or_else(|| text("WAYLAND_DISPLAY")).is_some(),
            stall_max: Duration::from_secs(
                number("GRISTMILL_STALL_SECONDS")?.unwrap_or(STALL_SECONDS),
            ),
            ecs_agent: text("ECS_AGENT_URI"),
            crash_at: var("GRISTMILL_CRASH_AT").ok(),
        })
    }

    /// Returns the labels of a worker.
    pub fn labels(&self) -> anyhow::Result<BTreeMap<String, String>> {
        let labels = self.labels.as_deref().unwrap_or_default().split(',').map(str::trim);
        let labels = labels.filter(|label| !label.is_empty());
        labels
            .map(|text| {
                crate::worker::label(text).with_context(|| format!("GRISTMILL_LABELS, {text:?}"))
            })
            .collect()
    }

    /// Removes empty endpoints of AWS from the environment, because its SDK would take them for addresses and panic.
    ///
    /// # Safety
    ///
    /// No other thread may run yet.
    pub unsafe fn forget_empty_endpoints() {
        let is_endpoint =
            |name: &OsString| name.as_encoded_bytes().starts_with(b"AWS_ENDPOINT_URL");
        let empty = vars_os().filter(|(name, value)| is_endpoint(name) && value.is_empty());
        for (name, _) in empty.collect::<Vec<_>>() {
            // SAFETY: the caller guarantees that no other thread runs.
            unsafe { remove_var(name) };
        }
    }

    pub fn names_collector() -> bool {
        let is_off = text("OTEL_SDK_DISABLED").is_some_and(|off| off.eq_ignore_ascii_case("true"));
        let named = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
        !is_off && named.into_iter().any(|name| text(name).is_some())
    }

    pub fn names_service() -> bool {
        let attributes = text("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
        text("OTEL_SERVICE_NAME").is_some() || attributes.contains("service.name=")
    }

    /// Returns a variable that `gristmill.toml` names.
    pub fn variable(name: &str) -> Option<String> {
        var(name).ok()
    }
}

/// Returns a variable that is set and not empty.
fn text(name: &str) -> Option<String> {
    var(name).ok().filter(|value| !value.is_empty())
}

/// Returns a variable that must be a number if it is set.
fn number(name: &str) -> anyhow::Result<Option<u64>> {
    let Some(value) = text(name) else { return Ok(None) };
    let number = value.trim().parse();
    number
        .map(Some)
        .map_err(|_| anyhow::anyhow!("{name} is {value:?}, and must be a whole number, 0 or more"))
}

/// Returns the interpreter of the environment in which this command is installed, or of the active one.
fn beside_executable() -> Option<PathBuf> {
    let beside = current_exe().ok()?.parent()?.join("python3");
    let active =
        var_os("VIRTUAL_ENV").map(|environment| PathBuf::from(environment).join("bin/python3"));
    [Some(beside), active].into_iter().flatten().find(|python| python.exists())
}

fn on_path() -> Option<PathBuf> {
    let path = var_os("PATH")?;
    split_paths(&path).map(|folder| folder.join("python3")).find(|python| python.is_file())
}

/// Returns the name of the user if no variable has it, as in containers and services.
fn user_name() -> Option<String> {
    let uid = rustix::process::getuid().as_raw();
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    Some(name_of(uid, &users).map_or_else(|| format!("uid-{uid}"), str::to_owned))
}

/// Returns the name of a user in the lines of `/etc/passwd`.
fn name_of(uid: u32, users: &str) -> Option<&str> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, number) = (fields.next()?, fields.nth(1)?);
        (number.parse() == Ok(uid) && !name.is_empty()).then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_of_a_user_comes_from_the_list_of_users() {
        let users = "root:x:0:0:root:/root:/bin/bash\nana:x:1000:1000::/home/ana:/bin/sh\nbroken\n";
        assert_eq!(
            (name_of(0, users), name_of(1000, users), name_of(7, users)),
            (Some("root"), Some("ana"), None)
        );
    }
}
