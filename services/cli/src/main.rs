//! The `gristmill` command: arguments, environment, printing and exit statuses. The engine does the work.
//!
//! Only this crate reads variables of Gristmill; all others receive values. `storage` and the AWS SDK read those of
//! cloud vendors.

/// Prints a line on standard output (`out`) or standard error (`err`; `note`: unless `--quiet` is given).
macro_rules! say {
    (out, $($text:tt)*) => {{ $crate::printed::out(&format!($($text)*)); }};
    (note, $($text:tt)*) => { $crate::printed::note(&format!($($text)*)) };
    (err, $($text:tt)*) => { $crate::printed::err(&format!($($text)*)) };
}

mod cancel;
mod clean;
mod complete;
mod completions;
mod convert;
mod cost;
mod dead_letters;
mod decisions;
mod doctor;
mod enqueue;
mod event_lines;
mod exit;
mod filter;
mod follow;
mod health;
mod job_file_arguments;
mod jobs;
mod logs;
mod man_pages;
mod notices;
mod observe;
mod outcome;
mod plan;
mod portal;
mod printed;
mod priority;
mod progress;
mod reducer;
mod rejects;
mod remedies;
mod report;
mod retry;
mod run;
mod settings;
mod show;
mod signals;
mod status;
mod steps;
mod summary;
mod target;
mod target_flags;
mod validate;
mod worker;

use std::path::Path;
use std::process::ExitCode;

use clap::{ArgAction, CommandFactory, Parser, Subcommand};
use job_file::STDIN;

// Names that many modules share.
use exit::{Exit, usage};
use job_file_arguments::{JobFileArguments, refuse};
use observe::{ListenFlag, LogFormat, ObservedRole, life};
use settings::Settings;
use show::Show;
use signals::{stop_on_signals, watch_for_stop, watch_signals};
use target_flags::TargetFlags;

const GLOBAL: &str = "Options of every command";
const RUN_EXAMPLES: &str = "Examples:
  gristmill run job.yaml
  gristmill run job.yaml --set mini_batch_size=20 --set run_max_try=5
  gristmill run job.yaml --json --quiet > result.json
  gristmill run job.yaml --fresh                  start a new job";
const ENQUEUE_EXAMPLES: &str = "Examples:
  gristmill enqueue job.yaml --target prod
  gristmill enqueue job.yaml --target prod --wait --json";
const JOBS_EXAMPLES: &str = "Examples:
  gristmill jobs --state failed,interrupted
  gristmill jobs --name 'score-*' --limit 10
  gristmill jobs --json --target prod";
const LOGS_EXAMPLES: &str = "Examples:
  gristmill logs score                            list the log tree of the job
  gristmill logs score --follow                   print the script's output until the job has ended
  gristmill logs score --error                    print the first error, with its traceback
  gristmill logs score user/stdout                print one file, or list the files below this path";

const RETRY_EXAMPLES: &str = "Examples:
  gristmill retry score                           continue the job, or, after the script is corrected, run its failed
                                                  mini-batches and rejected items again
  gristmill retry score --only rejects            leave failed mini-batches alone
  gristmill retry score --source-directory new    with the script of another folder
  gristmill retry score --separate                write the rows of the rejected items to a file of their own
  gristmill retry score --mini-batch 73           run one mini-batch alone, in a job of its own
  gristmill retry score --mini-batch 73 --rows rows.parquet
                                                  write its rows of a table to a file, and run nothing";

/// Version and commit of this executable.
const BUILD: &str = env!("BUILD");

const PORTAL_EXAMPLES: &str = "Examples:
  gristmill portal                                all jobs of this machine; prints the address and opens a browser
  gristmill portal --target prod --read-only      all jobs of a compute target, from its store alone
  gristmill run job.yaml --portal                 the page of one job, while it runs";

/// Runs ParallelRunStep entry scripts on every mini-batch of a data set, anywhere.
#[derive(Debug, Parser)]
#[command(name = "gristmill", version = BUILD, max_term_width = 100)]
struct Arguments {
    /// Format of the log on standard error [default: text].
    #[arg(long, global = true, value_name = "FORMAT", help_heading = GLOBAL)]
    log_format: Option<LogFormat>,
    /// Print only results, warnings and errors: no progress, no notes.
    #[arg(long, short, global = true, conflicts_with = "verbose", help_heading = GLOBAL)]
    quiet: bool,
    /// Log the work of the engine on standard error; -vv: in detail.
    #[arg(long, short, global = true, action = ArgAction::Count, help_heading = GLOBAL)]
    verbose: u8,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a job, or continue an interrupted one; with --target, through the queues of that target.
    #[command(after_help = RUN_EXAMPLES)]
    Run(run::RunArguments),
    /// Plan a job for a compute target, where reducers publish it and workers run it.
    #[command(after_help = ENQUEUE_EXAMPLES, mut_arg("target", without_default))]
    Enqueue(enqueue::EnqueueArguments),
    /// Run one worker of a compute target. Start any number of them, on any machine, at any time.
    #[command(mut_arg("target", without_default))]
    Worker(worker::WorkerArguments),
    /// Run a reducer of a compute target: it decides which worker runs which job, publishes jobs, commits their results
    /// and writes their outputs. Without one, nothing begins.
    #[command(mut_arg("target", without_default))]
    Reducer(reducer::ReducerArguments),
    /// Check that the local worker or reducer is making progress; exit status 0 if it is.
    Health {
        /// The --listen of the worker or reducer, for example 127.0.0.1:9464 [default: GRISTMILL_LISTEN].
        #[arg(long, value_name = "ADDRESS:PORT")]
        listen: Option<String>,
    },
    /// Show how Gristmill reads the inputs of a job and divides them into mini-batches, without running it.
    Plan(plan::PlanArguments),
    /// Check a job file and its entry script, and show all problems at once.
    Validate(validate::ValidateArguments),
    /// Convert a document of Azure ML to job files, one for each step, and print them.
    Convert(convert::ConvertArguments),
    /// List jobs, newest first.
    #[command(after_help = JOBS_EXAMPLES)]
    Jobs(jobs::JobsArguments),
    /// Show what a job is doing, what it waits for, or how it ended.
    Status(status::StatusArguments),
    /// List the logs of a job, print or follow them, or show its first error.
    #[command(after_help = LOGS_EXAMPLES)]
    Logs(logs::LogsArguments),
    /// Show the rejected items of a job, grouped by cause.
    Rejects(rejects::RejectsArguments),
    /// Serve a page that shows jobs in a browser, while they run and after they have ended.
    #[command(after_help = PORTAL_EXAMPLES)]
    Portal(portal::PortalArguments),
    /// Write what the portal shows of a job to one HTML file, to keep or to send to others.
    Report(report::ReportArguments),
    /// Stop a job and keep its committed results. `retry` continues it.
    Cancel {
        /// Id of a job, the beginning of an id, or a name: the running job of that name.
        #[arg(add = complete::jobs())]
        job: String,
        #[command(flatten)]
        target: TargetFlags,
    },
    /// Change the priority of a job that waits or runs on a compute target.
    #[command(mut_arg("target", without_default))]
    Priority(priority::PriorityArguments),
    /// Remove old jobs of this machine or of a compute target, but never a running job.
    Clean(clean::CleanArguments),
    /// Run what the output of a job lacks, with the script as it is now: unfinished and failed mini-batches and
    /// rejected items, each in its place. Or run one mini-batch alone.
    #[command(visible_alias = "replay", after_help = RETRY_EXAMPLES)]
    Retry(retry::RetryArguments),
    /// Check whether this machine, or a compute target, can run jobs. Each line says ok or names one thing to fix.
    Doctor(doctor::DoctorArguments),
    /// List the compute targets of gristmill.toml, import one from Terraform, or set its quotas.
    #[command(subcommand)]
    Target(target::TargetCommand),
    /// List the messages that no worker or reducer of a compute target could read, with the reasons; send them again,
    /// or delete them.
    #[command(mut_arg("target", without_default))]
    DeadLetters(dead_letters::DeadLetterArguments),
    /// Print a script that completes this command in a shell: `. <(gristmill completions bash)`.
    Completions(completions::CompletionsArguments),
    /// Write the manual pages of this command and its subcommands to a folder.
    #[command(hide = true)]
    ManPages(man_pages::ManPagesArguments),
    /// List the steps at which GRISTMILL_CRASH_AT can kill the process.
    #[command(hide = true)]
    CrashPoints,
}

/// Sets the help of `--target` for commands that need a compute target.
fn without_default(target: clap::Arg) -> clap::Arg {
    target.help("Compute target: a table [targets.NAME] of gristmill.toml")
}

impl Command {
    /// Returns whether the command prints one JSON object, even if it fails.
    fn prints_one_object(&self) -> bool {
        match self {
            Self::Run(arguments) => arguments.json,
            Self::Retry(arguments) => arguments.json,
            Self::Enqueue(arguments) => arguments.json,
            Self::Validate(arguments) => arguments.json,
            _ => false,
        }
    }

    /// Returns the path of the command's job file or document.
    fn document(&self) -> Option<&Path> {
        let job = match self {
            Self::Run(arguments) => &arguments.job,
            Self::Plan(arguments) => &arguments.job,
            Self::Validate(arguments) => &arguments.job,
            Self::Convert(arguments) => &arguments.job,
            Self::Enqueue(arguments) => &arguments.job,
            _ => return None,
        };
        Some(&job.job_file)
    }

    /// Returns whether the command prints events as JSON.
    fn streams_events(&self) -> bool {
        match self {
            Self::Run(arguments) => arguments.events,
            Self::Retry(arguments) => arguments.events,
            Self::Enqueue(arguments) => arguments.events,
            _ => false,
        }
    }
}

fn main() -> ExitCode {
    ::worker::keep_freed_memory();
    // SAFETY: nothing has run that could have started a thread.
    unsafe { Settings::forget_empty_endpoints() };
    // Only has an effect if a shell asks for completions through an environment variable.
    clap_complete::CompleteEnv::with_factory(Arguments::command).var(complete::VARIABLE).complete();
    let arguments = Arguments::parse();
    let document = arguments.command.document().filter(|document| *document != Path::new(STDIN));
    let folder = document.and_then(Path::parent).map(Path::to_owned);
    let mut settings = match Settings::from_environment(folder) {
        Ok(settings) => settings,
        Err(error) => {
            say!(err, "gristmill: {error:#}");
            return Exit::Invalid.into();
        }
    };
    if arguments.quiet {
        printed::be_quiet();
        settings.log_filter = "error".to_owned();
    }
    match arguments.verbose {
        0 => {}
        1 => settings.log_filter = "info".to_owned(),
        _ => settings.log_filter = "debug".to_owned(),
    }
    engine::crash::plan(settings.crash_at.clone());
    if let Err(error) = observe::start_logging(arguments.log_format, &settings) {
        say!(err, "gristmill: {error:#}");
        return Exit::Error.into();
    }
    let json = arguments.command.prints_one_object();
    if arguments.command.streams_events() {
        printed::stream_events();
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let status = runtime.map_err(Into::into).and_then(|runtime| {
        let _traces = observe::start_traces(runtime.handle())?;
        let status = runtime.block_on(command(arguments.command, &settings)).and_then(|status| {
            match printed::failure() {
                Some(error) => anyhow::bail!("cannot write to standard output: {error}"),
                None => Ok(status),
            }
        });
        // The command ends even if a thread still blocks, for example on a dead disk, and running tasks must not report
        // their end.
        std::mem::forget(runtime);
        status
    });
    let status = status.unwrap_or_else(|error| {
        let exit = Exit::of_error(&error);
        observe::report_failure(&error);
        exit.print_object(&remedies::message(&error), None, json);
        exit.into()
    });
    signals::end_if_interrupted(status);
    status
}

async fn command(command: Command, settings: &Settings) -> anyhow::Result<ExitCode> {
    let exit = match command {
        Command::Run(arguments) => run::run(arguments, settings).await?,
        Command::Retry(arguments) => retry::retry(arguments, settings).await?,
        Command::Plan(arguments) => plan::plan(&arguments, settings).await?,
        Command::Validate(arguments) => validate::validate(&arguments, settings).await?,
        Command::Convert(arguments) => convert::convert(&arguments, settings)?,
        Command::Enqueue(arguments) => enqueue::enqueue(arguments, settings).await?,
        Command::Worker(arguments) => return worker::worker(arguments, settings).await,
        Command::Reducer(arguments) => reducer::reducer(arguments, settings).await?,
        Command::Health { listen } => {
            health::health(ListenFlag { listen }.address(settings)?).await
        }
        Command::Jobs(arguments) => {
            jobs::jobs(&arguments, &arguments.target.jobs(settings).await?).await?
        }
        Command::Status(arguments) => {
            status::status(&arguments.target.jobs(settings).await?, &arguments).await?
        }
        Command::Logs(arguments) => {
            logs::logs(&arguments, &arguments.target.jobs(settings).await?).await?
        }
        Command::Rejects(arguments) => {
            rejects::rejects(&arguments, &arguments.target.jobs(settings).await?).await?
        }
        Command::Cancel { job, target } => {
            cancel::cancel(&target.jobs(settings).await?, &job).await?
        }
        Command::Priority(arguments) => {
            priority::priority(&arguments, &arguments.target.jobs(settings).await?).await?
        }
        Command::Portal(arguments) => portal::portal(arguments, settings).await?,
        Command::Report(arguments) => report::report(&arguments, settings).await?,
        Command::Clean(arguments) => {
            clean::clean(&arguments, &arguments.target.jobs(settings).await?).await?
        }
        Command::Target(command) => target::target(command, settings).await?,
        Command::Doctor(arguments) => doctor::doctor(arguments, settings).await?,
        Command::DeadLetters(arguments) => {
            dead_letters::dead_letters(&arguments.target.require(None, settings)?, &arguments)
                .await?
        }
        Command::Completions(arguments) => completions::completions(&arguments)?,
        Command::ManPages(arguments) => man_pages::man_pages(&arguments)?,
        Command::CrashPoints => {
            engine::crash::points().iter().for_each(|point| say!(out, "{point}"));
            Exit::Done
        }
    };
    Ok(exit.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_a_default_only_where_a_command_can_run_on_it() {
        let mut need_a_target = Vec::new();
        for command in Arguments::command().get_subcommands() {
            let Some(target) =
                command.get_arguments().find(|argument| argument.get_id() == "target")
            else {
                continue;
            };
            let help = target.get_help().expect("every flag has a help").to_string();
            if !help.ends_with(" [default: this machine]") {
                need_a_target.push(command.get_name().to_owned());
            }
        }
        assert_eq!(need_a_target, ["enqueue", "worker", "reducer", "priority", "dead-letters"]);
    }

    #[test]
    fn heading_of_targets_has_only_flags_of_targets() {
        for command in Arguments::command().get_subcommands() {
            let of_target = command
                .get_arguments()
                .filter(|argument| argument.get_help_heading() == Some(target_flags::TARGET));
            for argument in of_target {
                let name = argument.get_id().as_str();
                let is_of_target = ["target", "queue", "store", "config"].contains(&name);
                assert!(
                    is_of_target,
                    "{}: --{name} comes after the flattened TargetFlags",
                    command.get_name()
                );
            }
        }
    }
}
