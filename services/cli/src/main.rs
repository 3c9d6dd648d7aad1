//! The `gristmill` command: reads arguments and environment, wires roles together, shows people how jobs stand.
//!
//! Only this crate reads the environment; every other one receives values.

/// Prints a line. Whoever reads it may have gone (`| head`), which is no reason to stop.
macro_rules! say {
    (out, $($text:tt)*) => {{ let _ = std::io::Write::write_fmt(&mut std::io::stdout(), format_args!("{}\n", format_args!($($text)*))); }};
    (err, $($text:tt)*) => {{ let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("{}\n", format_args!($($text)*))); }};
}

mod crash;
mod execute;
mod home;
mod job_file;
mod plan;
mod progress;
mod run;
mod settings;
mod show;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use home::Home;
use settings::Settings;

/// Runs ParallelRunStep entry scripts on every mini-batch of a data set, anywhere.
#[derive(Debug, Parser)]
#[command(name = "gristmill", version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a job on this machine. Continues it if it was interrupted.
    Run(run::RunArguments),
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
    Jobs,
    /// Show how a job stands, or how it ended.
    Status {
        /// Job id, its beginning, or a job name for the newest of that name.
        job: String,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// List the logs of a job, or print one.
    Logs {
        /// Job id, its beginning, or a job name for the newest of that name.
        job: String,
        /// File below the job's logs folder.
        path: Option<PathBuf>,
    },
    /// Stop a job. What it has committed is kept, and `retry` continues it.
    Cancel {
        /// Job id, its beginning, or a job name for the newest of that name.
        job: String,
    },
    /// Continue a job that was interrupted, canceled or failed. Nothing that succeeded runs again.
    Retry(run::RetryArguments),
    /// List the steps at which GRISTMILL_CRASH_AT can kill the process.
    #[command(hide = true)]
    CrashPoints,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let settings = Settings::from_environment();
    crash::plan(settings.crash_at.clone());
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(tracing_subscriber::EnvFilter::new(&settings.log_filter))
        .without_time()
        .with_target(false)
        .init();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let status = runtime.map_err(Into::into).and_then(|runtime| {
        let status = runtime.block_on(command(arguments.command, &settings));
        // What still blocks (a read from a dead disk, say) does not keep the command from ending.
        runtime.shutdown_background();
        status
    });
    match status {
        Ok(status) => status,
        Err(error) => {
            say!(err, "gristmill: {error:#}");
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
        Command::Jobs => show::jobs(&home).await,
        Command::Status { job, json } => show::status(&home, &job, json).await,
        Command::Logs { job, path } => show::logs(&home, &job, path.as_deref()).await,
        Command::Cancel { job } => show::cancel(&home, &job).await,
        Command::CrashPoints => {
            for point in crash::points() {
                say!(out, "{point}");
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}
