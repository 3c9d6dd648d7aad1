//! Starts Python processes.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;
use protocol::{
    Configure, GpuSet, InputKind, JobSpec, MODEL, MiniBatchSize, OutputAction, RestartChance,
    ResultEvent, ToProcess, milliseconds_since_epoch,
};

use super::stacks::StackDump;
use super::{Executor, Message};
use crate::cache::is_full;
use crate::gpu::threads_each;
use crate::node_log::LogFile;
use crate::python_process::{PythonProcess, Report, StartOptions};
use crate::scheduler::{Announcement, Event, ProcessId};
use crate::variables::Environment;
use crate::{oom, scratch};

/// Largest log file of one process's user code.
const LOG_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// A process, until the scheduler forgets it.
pub(super) struct Running {
    pub(super) id: ProcessId,
    pub(super) process: PythonProcess,
    pub(super) gpus: Option<GpuSet>,
    pub(super) log: LogFile,
    pub(super) stacks: Option<StackDump>,
    pub(super) scratch: PathBuf,
    pub(super) started: Instant,
    /// When its memory was last measured.
    pub(super) measured: Option<Instant>,
    /// Processes that the kernel had killed before its start because memory ran out.
    pub(super) oom_kills: Option<u64>,
}

impl Executor {
    pub(super) fn start(
        &mut self,
        process: ProcessId,
        gpus: Option<GpuSet>,
        sees: Option<Vec<u32>>,
    ) -> Option<Event> {
        let name = process.name();
        let scratch = self.agent.work_folder.join("scratch").join(&name);
        match self.prepare_start(&scratch) {
            Ok(()) => {
                let environment = self.environment(gpus.as_ref(), sees);
                let start = self.start_of(&name, scratch, environment);
                self.start_process(process, gpus, start)
            }
            Err(error) => Some(not_started(process, &error)),
        }
    }

    fn prepare_start(&self, scratch: &Path) -> anyhow::Result<()> {
        scratch::create(scratch, self.agent.spec.source_directory.as_path())?;
        if let Some(user) = &self.agent.user {
            user.own(scratch).with_context(|| format!("give {} to its user", scratch.display()))?;
        }
        self.link_model()
    }

    /// Returns the options for starting a Python process.
    pub(super) fn start_of(
        &self,
        name: &str,
        scratch: PathBuf,
        environment: Environment,
    ) -> StartOptions {
        StartOptions {
            marker: format!(
                "{}/{}/{name}/{}",
                self.agent.spec.job_id,
                self.agent.node,
                std::process::id()
            ),
            python: self.agent.python.clone(),
            package: self.agent.package.clone(),
            scratch,
            environment,
            nice: self.agent.spec.nice,
            user: self.agent.user.clone(),
            group: self.group(),
            logs: ["stdout.txt", "stderr.txt"].map(|stream| self.log.system_file(name, stream)),
            log_bytes_max: LOG_BYTES_MAX,
        }
    }

    /// Returns the closure that receives the reports of a process.
    pub(super) fn reporter(&self, process: ProcessId) -> impl Fn(Report) + Send + Sync + 'static {
        let messages = self.messages.clone();
        move |report| {
            let _ = messages.send(Message::Process { process, report });
        }
    }

    /// Configures a process that has started. `is_killed`: it is no longer needed.
    pub(super) fn started(
        &mut self,
        process: ProcessId,
        gpus: Option<GpuSet>,
        scratch: PathBuf,
        started: anyhow::Result<PythonProcess>,
        is_killed: bool,
    ) -> Option<Event> {
        let python = match started {
            Ok(python) => python,
            Err(error) => return Some(not_started(process, &error)),
        };
        let (name, pid) = (process.name(), python.id());
        let configure = ToProcess::Configure(Box::new(self.configure(&name, &scratch)));
        if is_killed {
            python.kill();
        }
        self.running[process.slot] = Some(Running {
            id: process,
            process: python,
            gpus: gpus.clone(),
            log: self.log.process(&name),
            stacks: None,
            scratch,
            started: Instant::now(),
            measured: None,
            oom_kills: self.oom_kills(),
        });
        self.send(process, &configure, Vec::new());
        let seen = gpus.as_ref().map_or(String::new(), |gpus| format!(", sees {gpus}"));
        self.log.main("INFO", &format!("{name} started, pid {pid}{seen}"));
        let (node, at) = (self.agent.node.clone(), milliseconds_since_epoch());
        let event = ResultEvent::ProcessStarted { node, process: name, pid, gpus, at };
        self.announce(Announcement::Event(event));
        None
    }

    /// Returns the entrance to the control group of the job.
    fn group(&self) -> Option<std::fs::File> {
        let entrance = self.agent.memory_group.as_ref()?.entrance();
        entrance
            .inspect_err(|error| {
                tracing::warn!("the memory of this process is not limited: {error}")
            })
            .ok()
    }

    /// Returns how many processes the kernel has killed because memory ran out: of the job, if it has a group, else of
    /// the container or machine.
    pub(super) fn oom_kills(&self) -> Option<u64> {
        let of_job = self.agent.memory_group.as_ref().and_then(|group| group.kills());
        of_job.or_else(oom::kills)
    }

    /// The folder that holds the model under its own name.
    fn model_folder(&self) -> PathBuf {
        self.agent.work_folder.join("scratch/models")
    }

    fn link_model(&self) -> anyhow::Result<()> {
        let spec = &self.agent.spec;
        match spec.side_inputs.get(MODEL).filter(|_| !spec.model.is_empty()) {
            Some(model) => scratch::link_model(&self.model_folder(), &spec.model, model.as_path()),
            None => Ok(()),
        }
    }

    /// Returns the environment of a process. Of two values for a variable, the last one counts.
    pub(super) fn environment(
        &self,
        assigned: Option<&GpuSet>,
        sees: Option<Vec<u32>>,
    ) -> Environment {
        let spec = &self.agent.spec;
        let mut variables = self.agent.variables.scripts.clone();
        if let Some(user) = &self.agent.user {
            variables.extend(user.variables(&self.agent.work_folder));
        }
        if spec.snapshots.source.is_some() {
            // The cache that holds the script is read-only, except for root.
            variables.push(("PYTHONDONTWRITEBYTECODE".into(), "1".into()));
        }
        variables.extend([
            ("AZUREML_BI_OUTPUT_PATH".into(), spec.output.folder.as_path().into()),
            ("AZUREML_NODE_COUNT".into(), spec.node_count.unwrap_or(1).to_string().into()),
            ("AZUREML_RUN_ID".into(), spec.job_id.clone().into()),
        ]);
        if !spec.model.is_empty() {
            variables.push((MODEL.into(), self.model_folder().into()));
        }
        let gpus = &self.agent.gpus;
        if gpus.count() > 0 {
            variables.push(("AZ_BATCHAI_GPU_COUNT_FOUND".into(), gpus.count().to_string().into()));
        }
        // Where `Run.get_context().input_datasets` finds them.
        let side_inputs = spec.side_inputs.iter();
        variables.extend(
            side_inputs.map(|(name, path)| {
                (format!("AZURE_ML_INPUT_{name}").into(), path.as_path().into())
            }),
        );
        variables.extend(
            spec.environment_variables.iter().map(|(name, value)| (name.into(), value.into())),
        );
        let visible = match (assigned, sees) {
            (Some(assigned), _) => Some(gpus.names(assigned.numbers())),
            (None, Some(numbers)) => Some(gpus.names(&numbers)),
            (None, None) => spec.hide_unassigned_gpus.then(String::new),
        };
        if let Some(visible) = visible.filter(|_| gpus.count() > 0) {
            variables.push(("CUDA_VISIBLE_DEVICES".into(), visible.into()));
        }
        variables
    }

    fn configure(&self, process: &str, scratch: &Path) -> Configure {
        let spec = &self.agent.spec;
        let snapshot = spec.source_directory.as_path();
        Configure {
            module: module_name(&spec.entry_script),
            snapshot: spec.source_directory.clone(),
            script: if spec.has_built_in_script() { &self.agent.package } else { snapshot }
                .join(&spec.entry_script)
                .into(),
            argv: spec.argv.clone(),
            process: process.to_owned(),
            node: self.agent.node.clone(),
            logs: self.log.folder().into(),
            output: Some(spec.output.folder.clone()).filter(|folder| !folder.is_url()),
            scratch: scratch.into(),
            checkpoints: self.checkpoints.folder().into(),
            logging_level: spec.logging_level.clone(),
            profiling_module: spec.profiling_module.clone(),
            rows_wanted: spec.output.action == OutputAction::AppendRow,
            output_format: spec.output.format,
            to_csv_arguments: spec.output.to_csv_arguments.clone(),
            strict_results: spec.strict_results,
            concurrency: spec.concurrency,
            limits: spec.limits,
            log_bytes_max: LOG_BYTES_MAX,
            threads: threads_each(self.agent.process_count),
            items_per_mini_batch: items_per_mini_batch(spec),
            row_schema: spec.output.row_schema.clone(),
            tabular: spec.inputs.iter().any(|input| input.kind == InputKind::Tabular),
        }
    }
}

/// Returns the event for a process that could not start.
fn not_started(process: ProcessId, error: &anyhow::Error) -> Event {
    if is_full(error) {
        return Event::NoRoom {
            process,
            message: format!("{} cannot start: {error:#}", process.name()),
        };
    }
    let may_heal = error.downcast_ref::<std::io::Error>().is_none_or(|error| {
        use std::io::ErrorKind::{NotFound, PermissionDenied};
        !matches!(error.kind(), NotFound | PermissionDenied)
    });
    let chance = if may_heal { RestartChance::Likely } else { RestartChance::Never };
    Event::NotStarted { process, message: format!("{error:#}"), chance }
}

fn items_per_mini_batch(spec: &JobSpec) -> Option<u64> {
    let [input] = spec.inputs.as_slice() else { return None };
    match spec.mini_batch_size {
        MiniBatchSize::Files(files)
            if input.kind == InputKind::File && spec.partition_keys.is_empty() =>
        {
            Some(files)
        }
        _ => None,
    }
}

/// Returns the name under which Python imports a script with this relative path.
fn module_name(entry_script: &str) -> String {
    let path = entry_script.strip_suffix(".py").unwrap_or(entry_script);
    path.strip_suffix("/__init__").unwrap_or(path).replace('/', ".")
}
