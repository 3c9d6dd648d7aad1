//! The `gristmill` command: reads arguments and environment, wires roles together, shows people how jobs stand.
//!
//! Only this crate reads the environment; every other one receives values.

/// Prints a line. Whoever reads it may have gone (`| head`), which is no reason to stop.
macro_rules! say {
    (out, $($text:tt)*) => { say!(std::io::stdout(), $($text)*) };
    (err, $($text:tt)*) => { say!(std::io::stderr(), $($text)*) };
    ($to:expr, $($text:tt)*) => {{
        let text = format!($($text)*);
        let _ = std::io::Write::write_fmt(&mut $to, format_args!("{}\n", $crate::printed::printable(&text)));
    }};
}

mod cost;
mod crash;
mod dead_letters;
mod doctor;
mod enqueue;
mod execute;
mod fleet;
mod follow;
mod home;
mod job_file;
mod jobs;
mod manual;
mod observe;
mod plan;
mod printed;
mod progress;
mod run;
mod settings;
mod show;
mod target;
mod targets;
mod unfinished;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use home::Home;
use jobs::Jobs;
use observe::{ListenFlag, LogFormat};
use settings::Settings;
use targets::TargetFlags;

/// Runs ParallelRunStep entry scripts on every mini-batch of a data set, anywhere.
#[derive(Debug, Parser)]
#[command(name = "gristmill", version, max_term_width = 100)]
struct Arguments {
    /// Form of what the engine says on stderr [default: text].
    #[arg(long, global = true, value_name = "FORMAT")]
    log_format: Option<LogFormat>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a job on this machine; continue it if it was interrupted. With --target: through that target's queues.
    Run(run::RunArguments),
    /// Plan a job and publish it to a compute target, whose workers and reducers do the rest.
    Enqueue(enqueue::EnqueueArguments),
    /// Work on the jobs of a compute target: one node. Start as many as you like, anywhere, at any time.
    Worker(fleet::WorkerArguments),
    /// Commit the results of all open jobs of a compute target, and write their outputs.
    Reducer(fleet::ReducerArguments),
    /// Ask the worker or the reducer of this machine whether it makes progress. Exit status 0: it does.
    Health {
        #[command(flatten)]
        listen: ListenFlag,
    },
    /// Show what the mini-batches of a job would be, without running it.
    Plan(plan::PlanArguments),
    /// Check a job file and its entry script. Shows every problem at once.
    Validate {
        /// The job file.
        job_file: PathBuf,
        /// Replace a setting, as `run --set` does.
        #[arg(long = "set", value_name = "KEY=VALUE")]
        set: Vec<String>,
    },
    /// List jobs, newest first.
    Jobs {
        #[command(flatten)]
        target: TargetFlags,
    },
    /// Show how a job stands, or how it ended.
    Status {
        /// Job id, its beginning, or a job name for the newest of that name.
        job: String,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
        /// Show it every second, until the job has ended.
        #[arg(long)]
        watch: bool,
        #[command(flatten)]
        target: TargetFlags,
    },
    /// List the logs of a job, or print one.
    Logs {
        /// Job id, its beginning, or a job name for the newest of that name.
        job: String,
        /// File below the job's logs folder.
        path: Option<PathBuf>,
        #[command(flatten)]
        target: TargetFlags,
    },
    /// Stop a job. What it has committed is kept, and `retry` continues it.
    Cancel {
        /// Job id, its beginning, or a job name for the newest of that name.
        job: String,
        #[command(flatten)]
        target: TargetFlags,
    },
    /// Continue a job that was interrupted, canceled or failed. Nothing that succeeded runs again.
    Retry(run::RetryArguments),
    /// Check that a compute target can run jobs, before the first message: each line is ok, or the one thing to fix.
    Doctor(doctor::DoctorArguments),
    /// Write a compute target that Terraform has made into gristmill.toml; list those that are there.
    #[command(subcommand)]
    Target(target::TargetCommand),
    /// List the messages of a compute target that nobody can read, and why.
    DeadLetters {
        /// Print one JSON list.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        target: TargetFlags,
    },
    /// Print what a shell reads to complete this command: gristmill completions bash > FILE.
    Completions(manual::CompletionsArguments),
    /// Write the manual pages of this command and its subcommands into a folder.
    #[command(hide = true)]
    ManPages(manual::ManPagesArguments),
    /// List the steps at which GRISTMILL_CRASH_AT can kill the process.
    #[command(hide = true)]
    CrashPoints,
}

fn main() -> ExitCode {
    worker::keep_freed_memory();
    // SAFETY: nothing has run that could have started a thread.
    unsafe { Settings::forget_empty_endpoints() };
    let arguments = Arguments::parse();
    let settings = Settings::from_environment();
    crash::plan(settings.crash_at.clone());
    if let Err(error) = observe::start_logging(arguments.log_format, &settings) {
        say!(err, "gristmill: {error:#}");
        return ExitCode::FAILURE;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let status = runtime.map_err(Into::into).and_then(|runtime| {
        #[cfg(feature = "otlp")]
        let _traces = observe::start_traces(runtime.handle())?;
        let status = runtime.block_on(command(arguments.command, &settings));
        // What still blocks (a read from a dead disk, say) does not keep the command from ending, and what still runs
        // has nothing to say about its end.
        std::mem::forget(runtime);
        status
    });
    match status {
        Ok(status) => status,
        Err(error) => {
            observe::tell_failure(&error);
            ExitCode::FAILURE
        }
    }
}

async fn command(command: Command, settings: &Settings) -> anyhow::Result<ExitCode> {
    let home = Home::new(settings.home.clone());
    match command {
        Command::Run(arguments) => run::run(arguments, &home, settings).await,
        Command::Retry(arguments) => run::retry(arguments, &home, settings).await,
        Command::Plan(arguments) => plan::plan(&arguments, settings),
        Command::Validate { job_file, set } => plan::validate(&job_file, &set, settings),
        Command::Enqueue(arguments) => enqueue::enqueue(arguments, settings).await,
        Command::Worker(arguments) => fleet::worker(arguments, &home, settings).await,
        Command::Reducer(arguments) => fleet::reducer(arguments, settings).await,
        Command::Health { listen } => Ok(observe::ask(listen.address(settings)?).await),
        Command::Jobs { target } => show::jobs(&jobs_of(&target, home, settings).await?).await,
        Command::Status { job, json, watch, target } => {
            show::status(&jobs_of(&target, home, settings).await?, &job, json, watch).await
        }
        Command::Logs { job, path, target } => {
            show::logs(&jobs_of(&target, home, settings).await?, &job, path.as_deref()).await
        }
        Command::Cancel { job, target } => show::cancel(&jobs_of(&target, home, settings).await?, &job).await,
        Command::Target(command) => target::target(command, settings),
        Command::Doctor(arguments) => doctor::doctor(arguments, settings).await,
        Command::DeadLetters { json, target } => {
            dead_letters::dead_letters(&target.require(None, settings)?, json).await
        }
        Command::Completions(arguments) => Ok(manual::completions(&arguments)),
        Command::ManPages(arguments) => manual::man_pages(&arguments),
        Command::CrashPoints => {
            for point in crash::points() {
                say!(out, "{point}");
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// The jobs of a target, or of this machine. Opens no queue.
async fn jobs_of(target: &TargetFlags, home: Home, settings: &Settings) -> anyhow::Result<Jobs> {
    Ok(match target.find(None, settings)? {
        Some(target) => target.jobs(target.open_store().await?),
        None => Jobs::Here(home),
    })
}
