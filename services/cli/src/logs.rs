//! `gristmill logs`: lists the log tree of a job, prints or follows its files, and shows its first error. Reads only
//! the store.

use std::path::{Component, Path, PathBuf};

use anyhow::{Result, bail};
use engine::{FirstError, FoundJob, Jobs, NewLines, OVERVIEW, Purpose, Remedy, Tail, TailEnd};

use crate::{Exit, TargetFlags, complete, printed, remedies};

const OVERVIEW_LINES: usize = 10;

#[derive(Debug, clap::Args)]
pub struct LogsArguments {
    /// Id of a job, the beginning of an id, or a name: the running or newest job of that name.
    #[arg(add = complete::jobs())]
    pub job: String,
    /// File below the job's logs folder, or the beginning of its path: prints the file, or lists those that match.
    path: Option<PathBuf>,
    /// Print new lines until the job has ended. Without PATH: the overview, and what the script prints and logs.
    #[arg(long, short)]
    follow: bool,
    /// Print the first error, with its traceback.
    #[arg(long, conflicts_with_all = ["path", "follow"])]
    error: bool,
    #[command(flatten)]
    pub target: TargetFlags,
}

pub async fn logs(arguments: &LogsArguments, jobs: &Jobs) -> Result<Exit> {
    let job = jobs.find(&arguments.job, Purpose::Look).await?;
    let beginning = arguments.path.as_deref().map(|path| beginning(path, &job)).transpose()?;
    match (arguments.error, arguments.follow, beginning) {
        (true, ..) => first_error(&job).await,
        (_, true, beginning) => follow(jobs, &job, beginning).await,
        (_, _, Some(beginning)) => print(jobs, &job, &beginning).await,
        (_, _, None) => list(&job).await,
    }
}

/// Returns the beginning of the names of the files below `logs/` that a path selects.
fn beginning(path: &Path, job: &FoundJob) -> Result<String> {
    if path
        .components()
        .any(|component| !matches!(component, Component::Normal(_) | Component::CurDir))
    {
        bail!("{}: name a file below {}", path.display(), job.store.shown("logs"));
    }
    let normal = path.components().filter(|component| matches!(component, Component::Normal(_)));
    let name = normal.collect::<PathBuf>().to_string_lossy().into_owned();
    let is_folder = path.as_os_str().as_encoded_bytes().ends_with(b"/");
    Ok(if is_folder { format!("{name}/") } else { name })
}

async fn list(job: &FoundJob) -> Result<Exit> {
    let files = job.store.logs().await?;
    say!(out, "{}", job.store.shown("logs"));
    for file in &files {
        say!(out, "  {:>10}  {}", file.bytes, file.path);
    }
    if let Some(overview) = files.iter().filter(|file| file.path.starts_with(OVERVIEW)).max() {
        let text = job.store.log(&overview.path).await?;
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        say!(out, "");
        for line in &lines[lines.len().saturating_sub(OVERVIEW_LINES)..] {
            say!(out, "{line}");
        }
    }
    Ok(Exit::Done)
}

/// Prints the file with this name, or the only one whose name begins with it. If there are several, lists them.
async fn print(jobs: &Jobs, job: &FoundJob, beginning: &str) -> Result<Exit> {
    let files = job.store.logs().await?;
    let exact = files.iter().find(|file| file.path == beginning);
    let matching: Vec<_> = files.iter().filter(|file| file.path.starts_with(beginning)).collect();
    match (exact, matching.as_slice()) {
        (None, []) => {
            let (id, logs, flags) =
                (&job.spec.job_id, job.store.shown("logs"), remedies::flags(jobs.target()));
            bail!("there is no {logs}/{beginning}; list the files with: gristmill logs {id}{flags}")
        }
        (Some(file), _) | (None, &[file]) => {
            printed::bytes(&job.store.log(&file.path).await?);
        }
        (None, several) => several.iter().for_each(|file| say!(out, "{}", file.path)),
    }
    Ok(Exit::Done)
}

/// Prints lines that are added to files, until the job has ended. Puts the file's name before each line if there may be
/// several files.
async fn follow(jobs: &Jobs, job: &FoundJob, beginning: Option<String>) -> Result<Exit> {
    let mut tail = Tail::new(beginning);
    loop {
        let NewLines { lines, is_one_file, end } = tail.read(jobs, job).await?;
        for (path, line) in lines {
            let has_reader = if is_one_file {
                printed::out(&line)
            } else {
                printed::out(&format!("{path}: {line}"))
            };
            if !has_reader {
                return Ok(Exit::Done);
            }
        }
        if end == Some(TailEnd::Interrupted) {
            let job_id = job.spec.job_id.clone();
            let message = format!("job {job_id} is interrupted: no process works on it");
            let remedy = Remedy::Retry { job_id, target: jobs.target().clone() };
            say!(err, "{}", remedies::after(&message, Some(&remedy)));
        }
        if end.is_some() {
            return Ok(Exit::Done);
        }
        tokio::time::sleep(Tail::period(jobs)).await;
    }
}

/// Prints the first error that any process has logged, else the cause of the job's failure.
async fn first_error(job: &FoundJob) -> Result<Exit> {
    let cause = job.result.as_ref().and_then(|result| result.cause.as_ref());
    match (job.first_error().await?, cause) {
        (Some(FirstError { path, text, .. }), _) => {
            say!(out, "{}:", job.store.shown(&format!("logs/{path}")));
            say!(out, "{text}");
        }
        (None, Some(cause)) => say!(out, "{cause}"),
        (None, None) => say!(err, "job {} has no errors", job.spec.job_id),
    }
    Ok(Exit::Done)
}
