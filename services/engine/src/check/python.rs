//! Runs a check in the interpreter of a job: its version, the packages that tables need, and the syntax and functions of
//! the entry script and the modules beside it. Runs none of the job's code.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, UNIX_EPOCH};

use job_file::Problem;
use protocol::{CONDA_TOOLS, CondaFile, Environment, InputKind, JobSpec};

use crate::{Events, Notice};

const CHECK: &str = include_str!("check.py");
/// How long the check waits for the interpreter. The job itself reports what its processes wait for.
const PATIENCE: Duration = Duration::from_secs(10);
/// The number of remembered checks; one is an empty file.
const REMEMBERED_MAX: usize = 1000;

/// A check that runs concurrently with other checks.
#[derive(Debug)]
pub struct PythonCheck {
    python: PathBuf,
    is_default: bool,
    answer: Receiver<std::io::Result<Output>>,
    /// Created when the check has passed, so that it need not run again.
    remember: Option<PathBuf>,
    /// Only problems of files in this folder count, because the job runs on other machines.
    only_below: Option<String>,
    events: Events,
}

impl PythonCheck {
    /// Starts the check. Returns `None` if the same check has passed before. `default`: the interpreter of this machine;
    /// `search_path`: the folders of its programs, if the job runs here; `remembered`: the folder of passed checks.
    pub fn start(
        spec: &JobSpec,
        default: &Path,
        search_path: Option<&[PathBuf]>,
        remembered: Option<&Path>,
        events: &Events,
    ) -> Option<Self> {
        let (python, is_whole) = match &spec.environment {
            Environment::Interpreter { path } => (path.as_path(), true),
            // The environment itself may not exist yet.
            Environment::Requirements { base, .. } if !base.as_bytes().is_empty() => {
                (base.as_path(), false)
            }
            Environment::Requirements { .. } | Environment::Node => (default, false),
        };
        let needs_tables =
            is_whole && spec.inputs.iter().any(|input| input.kind == InputKind::Tabular);
        let wanted = search_path.and_then(|folders| only_version(spec, folders));
        let remember = remembered
            .and_then(|folder| Some(folder.join(name(spec, python, needs_tables, &wanted)?)));
        if remember.as_ref().is_some_and(|path| path.exists()) {
            return None;
        }
        let mut command = Command::new(python);
        match needs_tables {
            // As the processes of the job find packages.
            true => command.envs(&spec.environment_variables),
            false => command.args(["-I", "-S"]),
        };
        let folder = spec.source_directory.as_path();
        command.args(["-W", "ignore", "-c", CHECK]).arg(script_of(spec)).arg(folder);
        command.arg(if needs_tables { "tables" } else { "files" });
        if let Some((file, version)) = wanted {
            command.args([file, version]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let (sender, answer) = channel();
        std::thread::spawn(move || {
            let _ = sender.send(command.output());
        });
        // The interpreters of the nodes are unknown here, so only problems of the script count.
        let only_below = search_path.is_none().then(|| spec.source_directory.display());
        let (python, is_default, events) = (python.to_owned(), python == default, events.clone());
        Some(Self { python, is_default, answer, remember, only_below, events })
    }

    /// Waits for the end of the check, and returns the problems that count.
    pub fn finish(self) -> Vec<Problem> {
        let mut problems = self.found();
        if let Some(folder) = &self.only_below {
            problems.retain(|problem| problem.file.starts_with(folder));
        }
        let is_of_python = problems.iter().any(|problem| Path::new(&problem.file) == self.python);
        if self.is_default && (is_of_python || self.only_below.is_some() && !problems.is_empty()) {
            self.events.notice(Notice::CheckedWithDefault(self.python));
        }
        problems
    }

    fn found(&self) -> Vec<Problem> {
        let problem = |message: String| vec![Problem::of_file(&self.python, message)];
        let output = match self.answer.recv_timeout(PATIENCE) {
            Ok(Ok(output)) => output,
            Ok(Err(error)) => {
                return problem(format!(
                    "this Python cannot be started: {error}; name one with `environment`"
                ));
            }
            Err(_) => {
                self.events.notice(Notice::InterpreterSilent {
                    python: self.python.clone(),
                    seconds: PATIENCE.as_secs(),
                });
                return Vec::new();
            }
        };
        let text = String::from_utf8_lossy(&output.stdout);
        let Some(text) = text.strip_suffix("ok\n") else {
            let said = String::from_utf8_lossy(&output.stderr);
            let last = said.trim().lines().last().unwrap_or("nothing");
            return problem(format!(
                "this Python does not work: it ended with {}: {last}",
                output.status
            ));
        };
        let problems: Vec<Problem> = text.lines().filter_map(read).collect();
        if let (Some(path), true) = (&self.remember, problems.is_empty()) {
            remember(path);
        }
        problems
    }
}

/// Returns the conda file of a job, and the version of Python for which it asks, if only the interpreter of the job can be
/// this version: no other one and no tool of conda is installed.
fn only_version(spec: &JobSpec, search_path: &[PathBuf]) -> Option<(String, String)> {
    let Environment::Requirements { file, .. } = &spec.environment else { return None };
    let file = file.as_path();
    let text = CondaFile::is_named(file).then(|| std::fs::read_to_string(file).ok()).flatten()?;
    let (major, minor) = CondaFile::parse(&text).ok()?.python?;
    let named = format!("python{major}.{minor}");
    let others = CONDA_TOOLS.iter().copied().chain([&*named]);
    let is_there =
        others.into_iter().any(|name| search_path.iter().any(|folder| folder.join(name).is_file()));
    (!is_there).then(|| (file.display().to_string(), format!("{major}.{minor}")))
}

/// Returns the script to check; nothing for a script of the Python package.
fn script_of(spec: &JobSpec) -> PathBuf {
    match spec.has_built_in_script() {
        true => PathBuf::new(),
        false => spec.source_directory.as_path().join(&spec.entry_script),
    }
}

/// `FILE<tab>LINE<tab>text`
fn read(line: &str) -> Option<Problem> {
    let mut parts = line.splitn(3, '\t');
    let (file, line, message) = (parts.next()?, parts.next()?, parts.next()?);
    Some(Problem {
        line: line.parse().ok(),
        ..Problem::of_file(Path::new(file), message.to_owned())
    })
}

/// Returns the name of a check: a digest of its subjects. `None`: they are unknown.
fn name(
    spec: &JobSpec,
    python: &Path,
    needs_tables: bool,
    wanted: &Option<(String, String)>,
) -> Option<String> {
    let metadata = python.metadata().ok()?;
    let modified = metadata.modified().ok()?.duration_since(UNIX_EPOCH).ok()?.as_nanos();
    let variables: BTreeMap<&String, &String> = spec.environment_variables.iter().collect();
    let asked = (
        python,
        metadata.len(),
        modified,
        needs_tables.then_some(variables),
        env!("CARGO_PKG_VERSION"),
    );
    let script = (&spec.source_directory, &spec.entry_script, &spec.snapshot_digest);
    Some(
        blake3::hash(format!("{asked:?} {script:?} {wanted:?} {CHECK}").as_bytes())
            .to_hex()
            .to_string(),
    )
}

/// Remembers a check. If this fails, the check runs again next time.
fn remember(path: &Path) {
    let Some(folder) = path.parent() else { return };
    let count = std::fs::read_dir(folder).map_or(0, Iterator::count);
    if count >= REMEMBERED_MAX {
        let _ = std::fs::remove_dir_all(folder);
    }
    let _ = std::fs::create_dir_all(folder);
    // The home may lie among the scripts of the job, and no job may have marked it yet.
    let _ = folder.parent().map(storage::snapshot::mark);
    let _ = std::fs::File::create(path);
}
