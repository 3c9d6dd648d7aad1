//! `gristmill run` and `gristmill retry`: which job it is, what people see of it, and the exit status.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use protocol::{Counts, Environment, JobResult, JobSpec, JobState, OutputAction};
use storage::StoreOptions;
use tokio_util::sync::CancellationToken;

use crate::execute::{Execution, watch_for_cancel};
use crate::home::{Home, JobLock};
use crate::job_file::{self, Parsed};
use crate::jobs::{FoundJob, Jobs, new_job_id};
use crate::settings::Settings;
use crate::targets::TargetFlags;
use crate::{enqueue, fleet, progress};

/// Exit status of a job file that cannot be run as it is.
pub const INVALID: u8 = 2;
/// Exit status of a job that failed.
pub const FAILED: u8 = 42;
/// Exit status of a job that was canceled, and of a command that was told to stop looking.
pub const CANCELED: u8 = 130;

/// Arguments of `run`.
#[derive(Debug, clap::Args)]
pub struct RunArguments {
    /// The job file.
    job_file: PathBuf,
    /// Replace a setting of the job file, for example `mini_batch_size=20`.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Print one JSON object at the end, and nothing else, on stdout.
    #[arg(long)]
    json: bool,
    /// Start over, although an unfinished or finished job could be continued or reused.
    #[arg(long)]
    fresh: bool,
    #[command(flatten)]
    target: TargetFlags,
}

/// Arguments of `retry`.
#[derive(Debug, clap::Args)]
pub struct RetryArguments {
    /// Job id, its beginning, or a job name for the newest of that name.
    pub job: String,
    /// Print one JSON object and nothing else on stdout.
    #[arg(long)]
    pub json: bool,
    /// With a compute target: follow the job to its end. On this machine that is always so.
    #[arg(long)]
    pub wait: bool,
    /// Where the job is.
    #[command(flatten)]
    pub target: TargetFlags,
}

/// Reads a job file. Problems are printed, all of them, and the exit status is returned in `Err`. `compute_target` goes
/// before that of the file.
pub fn load(
    job_file: &Path,
    set: &[String],
    compute_target: Option<String>,
    settings: &Settings,
) -> Result<std::result::Result<Parsed, ExitCode>> {
    let overrides = set.iter().map(|pair| {
        let (key, value) = pair.split_once('=').with_context(|| format!("--set {pair}: write it as KEY=VALUE"))?;
        Ok((key.trim().to_owned(), value.trim().to_owned()))
    });
    let overrides = match overrides.collect::<Result<Vec<_>>>() {
        Ok(overrides) => overrides,
        Err(error) => return Ok(Err(invalid(&[format!("{error:#}")]))),
    };
    let text = match std::fs::read_to_string(job_file) {
        Ok(text) => text,
        Err(error) => return Ok(Err(invalid(&[format!("{}: cannot be read: {error}", job_file.display())]))),
    };
    let context = job_file::Context {
        working_directory: std::env::current_dir().context("find the current folder")?,
        home_directory: settings.user_folder.clone(),
        interpreter: settings.python.clone().unwrap_or_else(|| "python3".into()),
        search_path: std::env::var_os("PATH").map_or(Vec::new(), |path| std::env::split_paths(&path).collect()),
        compute_target,
    };
    match job_file::load(job_file, &text, &overrides, &context) {
        Ok(parsed) => {
            for warning in &parsed.warnings {
                say!(err, "warning: {warning}");
            }
            Ok(Ok(parsed))
        }
        Err(problems) => {
            let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
            Ok(Err(invalid(&lines)))
        }
    }
}

/// Whether the inputs have the columns that the job lists; `options` are those they are opened with. Looks at no input
/// that lists none. Problems are printed, all of them, and the exit status is returned in `Err`.
pub fn check_columns(parsed: &Parsed, options: &StoreOptions) -> std::result::Result<(), ExitCode> {
    let missing = partitioner::plan_with(&parsed.spec, options).missing_columns();
    if missing.is_empty() {
        return Ok(());
    }
    let lines: Vec<String> = parsed.refuse_columns(&missing).iter().map(ToString::to_string).collect();
    Err(invalid(&lines))
}

fn invalid(problems: &[String]) -> ExitCode {
    for problem in problems {
        say!(err, "{problem}");
    }
    ExitCode::from(INVALID)
}

/// Runs a job file.
pub async fn run(arguments: RunArguments, home: &Home, settings: &Settings) -> Result<ExitCode> {
    let target = arguments.target.name(settings);
    let parsed = match load(&arguments.job_file, &arguments.set, target, settings)? {
        Ok(parsed) => parsed,
        Err(status) => return Ok(status),
    };
    let target = arguments.target.find(parsed.compute_target.as_deref(), settings);
    let target = target.map_err(|error| match &parsed.compute_target {
        Some(named) => error.context(format!("{}: compute_target {named}", arguments.job_file.display())),
        None => error,
    });
    match target {
        Ok(Some(target)) => {
            return match check_columns(&parsed, &target.store_options()) {
                Ok(()) => fleet::run(parsed, &target, arguments.json, home, settings).await,
                Err(status) => Ok(status),
            };
        }
        Ok(None) => {}
        Err(error) => return Ok(invalid(&[format!("{error:#}")])),
    }
    if let Environment::Interpreter { path } = &parsed.spec.environment
        && !path.as_path().is_file()
    {
        return Ok(invalid(&[format!(
            "{}: environment: there is no Python at {}; name an interpreter, or set GRISTMILL_PYTHON",
            arguments.job_file.display(),
            path.display()
        )]));
    }
    if let Err(status) = check_columns(&parsed, &StoreOptions::default()) {
        return Ok(status);
    }
    let choice = {
        let _turn = home.lock()?;
        choose(parsed.spec, arguments.fresh, home).await?
    };
    match choice {
        Choice::Busy(message) => Ok(invalid(&[message])),
        Choice::Reuse(result) => {
            if !arguments.json {
                say!(
                    err,
                    "reused the result of job {}: same script, settings and inputs (allow_reuse: false runs it again)",
                    result.job_id
                );
            }
            Ok(report(&result, arguments.json, ""))
        }
        Choice::Start(store, spec, lock) => {
            let execution = Execution { store, spec: *spec, resumed: false, reopened: false, home, settings };
            execute(execution, lock, arguments.json).await
        }
        Choice::Continue(job, lock) => execute(Execution::resume(*job, home, settings), lock, arguments.json).await,
    }
}

/// Continues a job that has stopped.
pub async fn retry(arguments: RetryArguments, home: &Home, settings: &Settings) -> Result<ExitCode> {
    if let Some(target) = arguments.target.find(None, settings)? {
        return enqueue::retry(arguments, &target).await;
    }
    let jobs = Jobs::Here(home.clone());
    let job = jobs.find(&arguments.job).await?;
    let Some(lock) = home.try_lock_job(&job.spec.job_id)? else {
        bail!("job {} is running; `gristmill status {0}` shows how it stands", job.spec.job_id);
    };
    if let Some(result) = job.result.as_ref().filter(|result| result.state == JobState::Completed)
        && result.mini_batches.failed == 0
    {
        say!(err, "job {} is completed, and no mini-batch failed: nothing to do", result.job_id);
        return Ok(report(result, arguments.json, ""));
    }
    execute(Execution::resume(job, home, settings), lock, arguments.json).await
}

/// What `run` does with a job file.
enum Choice {
    Start(storage::JobStore, Box<JobSpec>, JobLock),
    Continue(Box<FoundJob>, JobLock),
    Reuse(Box<JobResult>),
    Busy(String),
}

async fn choose(mut spec: JobSpec, fresh: bool, home: &Home) -> Result<Choice> {
    let jobs = Jobs::Here(home.clone());
    let mut digest = None;
    for id in jobs.ids().await? {
        // A job that cannot be read is no reason not to start another, and others are left alone.
        let Ok(Some(other)) = jobs.job(&id).await else { continue };
        let is_same = other.spec.fingerprint == spec.fingerprint;
        if !is_same && !writes_same_file(&other.spec, &spec) {
            continue;
        }
        let Some(lock) = home.try_lock_job(&id)? else {
            // Running right now, by somebody else.
            return Ok(Choice::Busy(format!(
                "job {id} is running and writes the same output, {}; wait for it, or stop it with \
                 `gristmill cancel {id}`",
                output_of(&spec).display()
            )));
        };
        if fresh || !is_same {
            continue;
        }
        // It may have ended before it was taken.
        let Ok(Some(job)) = jobs.job(&id).await else { continue };
        if !job.has_finished() {
            if inputs_have_changed(&job).await {
                say!(
                    err,
                    "the inputs have changed since job {id} was planned, so this is a new job; `gristmill retry {id}` \
                     continues the old one, as it was planned"
                );
                continue;
            }
            return Ok(Choice::Continue(Box::new(job), lock));
        }
        let Some(result) = job.result.clone() else { continue };
        if !spec.allow_reuse || result.state != JobState::Completed || result.mini_batches.failed > 0 {
            continue;
        }
        let output_is_there = result.output.as_ref().is_some_and(|output| is_untouched(Path::new(output), &job, home));
        let Ok(Some(plan)) = job.store.plan_complete().await else { continue };
        if output_is_there {
            if digest.is_none() {
                digest = partitioner::inputs_digest(&spec).await.ok();
            }
            if digest.as_ref() == Some(&plan.inputs_digest) {
                return Ok(Choice::Reuse(Box::new(JobResult { reused: true, ..result })));
            }
        }
    }
    spec.job_id = new_job_id(&spec.name);
    let store = home.create_job(&spec.job_id, spec.durability)?;
    if spec.output.folder.as_bytes().is_empty() {
        // summary_only without an output folder: the script's own files have a place all the same.
        spec.output.folder = home.job_folder(&spec.job_id).join("output").into();
    }
    let lock = home.try_lock_job(&spec.job_id)?.context("a new job is already locked")?;
    store.put_spec(&spec).await.with_context(|| format!("write job {}", spec.job_id))?;
    Ok(Choice::Start(store, Box::new(spec), lock))
}

/// Whether an unfinished job was planned from other inputs than there are now.
async fn inputs_have_changed(job: &FoundJob) -> bool {
    // A plan that is not whole is made again, and compared on the way.
    let Ok(Some(plan)) = job.store.plan_complete().await else { return false };
    partitioner::inputs_digest(&job.spec).await.is_ok_and(|digest| digest != plan.inputs_digest)
}

/// Whether an output is still what the job has written: nothing has written to it after the job ended.
fn is_untouched(output: &Path, job: &FoundJob, home: &Home) -> bool {
    let modified = |path: &Path| std::fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    match (modified(output), modified(&home.job_folder(&job.spec.job_id).join("result.json"))) {
        (Some(output), Some(ended)) => output <= ended || job.spec.output.action == OutputAction::SummaryOnly,
        _ => false,
    }
}

fn writes_same_file(one: &JobSpec, other: &JobSpec) -> bool {
    let appends = |spec: &JobSpec| spec.output.action == OutputAction::AppendRow;
    appends(one) && appends(other) && output_of(one) == output_of(other)
}

fn output_of(spec: &JobSpec) -> PathBuf {
    match spec.output.action {
        OutputAction::AppendRow => spec.output.folder.as_path().join(&spec.output.file_name),
        OutputAction::SummaryOnly => spec.output.folder.as_path().to_owned(),
    }
}

async fn execute(execution: Execution<'_>, _lock: JobLock, json: bool) -> Result<ExitCode> {
    let (cancel, kill) = (CancellationToken::new(), CancellationToken::new());
    let signals = tokio::spawn(progress::watch_signals(cancel.clone(), kill.clone()));
    let requests = tokio::spawn(watch_for_cancel(execution.store.clone(), cancel.clone()));
    let started = Instant::now();
    let (job_id, resumed) = (execution.spec.job_id.clone(), execution.resumed);
    let store = execution.store.clone();
    if !resumed {
        say!(err, "job {job_id}");
    }
    let show = progress::show();
    let result = execution.run(&|line| say!(err, "{line}"), show, cancel, kill).await;
    signals.abort();
    requests.abort();
    let result = match result {
        Ok(result) => result,
        // The engine could not go on (a full disk, say). The job's folder does not call that an end: it is unfinished.
        Err(error) => {
            let progress = store.progress().await.ok().flatten();
            let logs = store.shown("logs");
            JobResult {
                job_id,
                state: JobState::Failed,
                cause: Some(format!("the engine stopped: {error:#}; what is committed is kept")),
                output: None,
                logs,
                mini_batches: progress.as_ref().map_or_else(Counts::default, |progress| progress.mini_batches),
                items: progress.as_ref().map_or_else(Counts::default, |progress| progress.items),
                elapsed_seconds: started.elapsed().as_secs_f64(),
                warnings: 0,
                duplicates_dropped: 0,
                failed_mini_batches: vec![],
                reused: false,
            }
        }
    };
    Ok(report(&result, json, ""))
}

/// Says how a job ended: one JSON object on stdout, or a summary. `flag` is what a later command needs to find it.
pub fn report(result: &JobResult, json: bool, flag: &str) -> ExitCode {
    if json {
        say!(out, "{}", serde_json::to_string(result).expect("results always serialise"));
    } else {
        say!(out, "{}", progress::summary(result, flag));
    }
    match result.state {
        JobState::Completed => ExitCode::SUCCESS,
        JobState::Canceled => ExitCode::from(CANCELED),
        JobState::Failed | JobState::Running => ExitCode::from(FAILED),
    }
}
