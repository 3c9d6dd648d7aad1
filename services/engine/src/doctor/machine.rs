//! Checks this machine: compares its limits, disks and memory with the needs of a job on all of its cores.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use anyhow::{Result, anyhow, bail};
use rustix::fs::statvfs;
use rustix::process::{Resource, getrlimit};
use serde::Deserialize;

use super::{CheckState, Report};
use crate::words::size;
use crate::{Engine, Remedy, Settings};

const MB: u64 = 1024 * 1024;
/// Logs and results of a small job.
const DISK_BYTES_MIN: u64 = 100 * MB;
/// A few jobs of gigabytes.
const DISK_BYTES_USUAL: u64 = 2048 * MB;
/// An interpreter with pandas, and its table.
const PROCESS_MEMORY_BYTES: u64 = 200 * MB;
/// Descriptors of the engine itself, and of one process.
const FILES_OF_ENGINE: u64 = 128;
const FILES_OF_PROCESS: u64 = 16;
/// Threads of the engine itself, and of one process with its libraries.
const THREADS_OF_ENGINE: u64 = 64;
const THREADS_OF_PROCESS: u64 = 16;
/// The default of container runtimes.
const SHARED_MEMORY_BYTES_MIN: u64 = 64 * MB;

#[derive(Deserialize)]
struct Python {
    version: String,
    is_new_enough: bool,
    /// Version of each package; `None`: not installed, or broken.
    packages: Vec<(String, Option<String>)>,
    /// Why the worker package cannot be loaded.
    problem: Option<String>,
}

const ASK: &str = r#"
import json, sys
sys.path.insert(0, sys.argv[1])
is_new_enough = sys.version_info >= (3, 10)
packages, problem = [], None
for name in ("numpy", "pandas", "pyarrow"):
    try:
        packages.append((name, __import__(name).__version__))
    except Exception:
        packages.append((name, None))
if is_new_enough:
    try:
        from gristmill import __version__, _native
        if getattr(_native, "VERSION", "older") != __version__:
            problem = "its extension is of another version than its Python files"
    except Exception as error:
        problem = str(error)
print(json.dumps({"version": sys.version.split()[0], "is_new_enough": is_new_enough, "packages": packages,
                  "problem": problem}))
"#;

impl Engine {
    /// Checks this machine; `python`: the interpreter of a job, instead of the default one.
    pub fn check_machine(&self, python: Option<PathBuf>, report: &mut Report) {
        let settings = self.settings();
        let processes = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
        check_python(python.or_else(|| settings.python.clone()), settings, report);
        check_folder("home", &settings.home, Some(&Remedy::FreeHome), report);
        check_folder("temporary files", &std::env::temp_dir(), None, report);
        let (files, threads) = (
            FILES_OF_ENGINE + FILES_OF_PROCESS * processes,
            THREADS_OF_ENGINE + THREADS_OF_PROCESS * processes,
        );
        check_limit("open files", Resource::Nofile, files, "ulimit -n", report);
        check_limit("processes", Resource::Nproc, threads, "ulimit -u", report);
        check_shared_memory(report);
        check_memory(processes, report);
        check_memory_groups(report);
        check_clock(report);
        match settings.gpus().count() {
            0 => report.ok(
                "processors",
                format!("{processes} cores, no GPU: {processes} Python processes by default"),
            ),
            gpus => report.ok(
                "processors",
                format!("{processes} cores, {gpus} GPUs: 1 Python process by default"),
            ),
        }
    }
}

fn check_python(python: Option<PathBuf>, settings: &Settings, report: &mut Report) {
    let refuse = |message: String, report: &mut Report| {
        report.add("python", CheckState::Failed, message, Remedy::SetPython);
    };
    let Some(python) = python else {
        let message = "there is no python3 on PATH; install Python 3.10 or newer";
        return refuse(message.to_owned(), report);
    };
    let links = std::env::temp_dir().join(format!("gristmill-doctor-{}", std::process::id()));
    let package = match settings.package(&links) {
        Ok(package) => package,
        Err(error) => return report.failed_with("package", &error),
    };
    let asked = ask(&python, &package);
    let _ = std::fs::remove_dir_all(&links);
    let shown = python.display();
    let Python { version, is_new_enough, packages, problem } = match asked {
        Ok(found) => found,
        Err(error) => return refuse(format!("{shown}: {error}"), report),
    };
    if !is_new_enough {
        let message = format!("{shown} is Python {version}, and scripts need 3.10 or newer");
        return refuse(message, report);
    }
    report.ok("python", format!("{shown}, {version}"));
    match problem {
        None => report.ok("package", format!("this Python can load {}", package.display())),
        Some(problem) => {
            report.failed("package", format!("{}: {problem}; install it again", package.display()))
        }
    }
    for (name, version) in packages {
        match (version, name.as_str()) {
            (Some(version), _) => report.ok(name, version),
            (None, "pyarrow") => {
                report.ok(name, "not installed; only some types of Parquet columns need it")
            }
            (None, _) => {
                let message = format!(
                    "not installed, and inputs of `type: tabular` need it; {shown} -m pip install {name}"
                );
                report.warning(name, message);
            }
        }
    }
}

/// Lets an interpreter describe itself.
fn ask(python: &Path, package: &Path) -> Result<Python> {
    let mut command = Command::new(python);
    command.args(["-I", "-c", ASK].map(OsStr::new)).arg(package);
    let output = command.output().map_err(|error| anyhow!("it cannot be started: {error}"))?;
    if !output.status.success() {
        let written = String::from_utf8_lossy(&output.stderr);
        let last_line = written.trim().lines().last().unwrap_or_default();
        bail!("it ended with {}: {last_line}", output.status);
    }
    serde_json::from_slice(&output.stdout)
        .map_err(|error| anyhow!("its answer cannot be read: {error}"))
}

/// Checks whether a folder is writable, and the free space on its disk. Without a `remedy`, TMPDIR names another folder.
fn check_folder(check: &str, folder: &Path, remedy: Option<&Remedy>, report: &mut Report) {
    let shown = folder.display();
    let mut add = |state, message: String| match remedy {
        Some(remedy) => report.add(check, state, message, remedy.clone()),
        None => report.add(check, state, format!("{message}; TMPDIR names another folder"), None),
    };
    // It may not exist yet.
    let Some(there) = folder.ancestors().find(|folder| folder.exists()) else {
        return add(CheckState::Failed, format!("{shown} does not exist"));
    };
    let probe = there.join(format!(".gristmill-doctor-{}", std::process::id()));
    if let Err(error) = std::fs::write(&probe, "") {
        return add(CheckState::Failed, format!("cannot write to {shown}: {error}"));
    }
    let _ = std::fs::remove_file(&probe);
    let free = match statvfs(there) {
        Ok(disk) => disk.f_bavail.saturating_mul(disk.f_frsize),
        Err(error) => return report.not_checked(check, format!("{shown}: {error}")),
    };
    let message = format!("{shown}, {} free", size(free));
    match free {
        0..DISK_BYTES_MIN => add(CheckState::Failed, format!("{message}; free some space")),
        DISK_BYTES_MIN..DISK_BYTES_USUAL => {
            add(CheckState::Warning, format!("{message}; large jobs need more"))
        }
        _ => report.ok(check, message),
    }
}

fn check_limit(check: &str, resource: Resource, needed: u64, how: &str, report: &mut Report) {
    match getrlimit(resource).current {
        Some(limit) if limit < needed => {
            let message = format!(
                "the limit is {limit}, and a job on all cores needs about {needed}: {how} {needed}"
            );
            report.failed(check, message);
        }
        Some(limit) => report.ok(check, format!("the limit is {limit}")),
        None => report.ok(check, "no limit"),
    }
}

fn check_shared_memory(report: &mut Report) {
    let check = "shared memory";
    match statvfs("/dev/shm") {
        Ok(disk) => {
            let bytes = disk.f_blocks.saturating_mul(disk.f_frsize);
            let message = format!("/dev/shm has {}", size(bytes));
            if bytes <= SHARED_MEMORY_BYTES_MIN {
                let need = "scripts with PyTorch data loaders or multiprocessing may need more";
                let message = format!("{message}; {need}");
                report.add(check, CheckState::Warning, message, Remedy::EnlargeSharedMemory);
            } else {
                report.ok(check, message);
            }
        }
        Err(error) => report
            .warning(check, format!("/dev/shm: {error}; scripts that use multiprocessing need it")),
    }
}

fn check_memory(processes: u64, report: &mut Report) {
    let check = "memory";
    let Some(available) = worker::available_memory() else {
        return report.not_checked(check, "/proc/meminfo is missing or unreadable");
    };
    let needed = processes * PROCESS_MEMORY_BYTES;
    let message = format!("{} available", size(available));
    if available < needed {
        let remedy = "lower process_count_per_node in the job file";
        let message = format!(
            "{message}, and {processes} processes with pandas need about {}; {remedy}",
            size(needed)
        );
        report.warning(check, message);
    } else {
        report.ok(check, message);
    }
}

/// Checks whether a worker in the control group of this process could limit the memory of jobs.
fn check_memory_groups(report: &mut Report) {
    let message = match worker::plan_memory_groups() {
        Ok(plan) => format!("a worker started here limits it ({plan})"),
        Err(reason) => {
            let reason = anyhow::Error::from(reason);
            format!("a worker started here cannot limit it, and ignores max_memory: {reason:#}")
        }
    };
    report.ok("memory of jobs", message);
}

/// Checks the clock, because ids of jobs and signatures of requests to AWS hold the time.
fn check_clock(report: &mut Report) {
    let now = chrono::Utc::now().format("%Y-%m-%d %H:%M:%S UTC");
    let built = std::env::current_exe().and_then(|path| path.metadata()?.modified()).ok();
    match built.is_some_and(|built| built > SystemTime::now()) {
        true => report.failed(
            "clock",
            format!("{now} is before the installation of this program; set the clock (NTP)"),
        ),
        false => report.ok("clock", now.to_string()),
    }
}
