//! The template of a job: a Python process that imports large libraries once and forks itself into the processes that need
//! them.
//!
//! Without a template, each process would spend the time of these imports. Processes wait until the
//! template is ready. If it fails, or takes too long, each process imports the libraries itself.
//! Forked processes are children of the agent, so they outlive the template.

use std::collections::{HashMap, VecDeque};
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use protocol::{GpuSet, ProcessEvent, TemplateSettings, ToProcess};

use super::{Executor, Message};
use crate::gpu::threads_each;
use crate::orphans::{Kind, PROCESS_VARIABLE};
use crate::python_process::{ProcessChannels, PythonProcess, Report, StartOptions, ends};
use crate::scheduler::{Event, ProcessId};
use crate::variables::Environment;

/// Libraries that take long to import and work in forked processes.
const LIBRARIES: [&str; 3] = ["numpy", "pandas", "pyarrow"];
/// Names by which a script changes its environment, which a library may read when it is imported.
const CHANGES_OF_ENVIRONMENT: [&str; 3] = ["environ", "putenv", "load_dotenv"];
/// Longest wait for the imports of a template.
const IMPORT_TIME: Duration = Duration::from_secs(20);
/// A script is read as far as this.
const SCRIPT_BYTES_MAX: u64 = 1 << 20;
/// Name of the template, as long as that of any process: a forked process replaces it by its own in its environment.
const NAME: &str = "template---------";

/// A running template.
pub(super) struct Template {
    pub(super) process: PythonProcess,
    libraries: Vec<&'static str>,
    environment: Environment,
    started: Instant,
    is_ready: bool,
    /// Processes to start, the first ones already forking.
    starts: VecDeque<QueuedStart>,
}

/// A process that waits for the template.
struct QueuedStart {
    process: ProcessId,
    gpus: Option<GpuSet>,
    start: StartOptions,
    /// The agent's ends of the connection, once it has requested the fork.
    ends: Option<ProcessChannels>,
    /// Whether it is no longer needed.
    is_killed: bool,
}

impl Template {
    /// Requests a process from the template.
    fn ask(&self, waiting: &mut QueuedStart) -> Result<()> {
        let (ours, theirs) = ends()?;
        waiting.ends = Some(ours);
        let text =
            |text: &OsStr| text.to_str().map(str::to_owned).context("a variable is not text");
        let mut environment = vec![(PROCESS_VARIABLE.to_owned(), waiting.start.marker.clone())];
        // Of two values for a variable, the last one counts.
        let own: HashMap<_, _> = self.environment.iter().cloned().collect();
        for (name, value) in waiting.start.environment.iter().cloned().collect::<HashMap<_, _>>() {
            if own.get(&name) != Some(&value) {
                environment.push((text(&name)?, text(&value)?));
            }
        }
        let frame =
            ToProcess::Fork { scratch: waiting.start.scratch.as_path().into(), environment };
        self.process.send(&frame, theirs.into_iter().map(Arc::new).collect());
        Ok(())
    }
}

impl Executor {
    /// Starts a template if several processes import the same large libraries.
    pub(super) fn start_template(&mut self) {
        let libraries = match self.agent.process_count {
            0 | 1 => Vec::new(),
            _ => libraries(&self.script()),
        };
        if libraries.is_empty() {
            return;
        }
        let start =
            self.start_of(NAME, self.agent.work_folder.clone(), self.environment(None, None));
        let messages = self.messages.clone();
        let process = PythonProcess::start(&start, Kind::Template, move |report| {
            let _ = messages.send(Message::Template(report));
        });
        let process = match process {
            Ok(process) => process,
            // The first process tells why none can start.
            Err(error) => return tracing::debug!("no template: {error:#}"),
        };
        let spec = &self.agent.spec;
        let settings = TemplateSettings {
            libraries: libraries.iter().map(|&library| library.to_owned()).collect(),
            snapshot: spec.source_directory.clone(),
            script: spec.source_directory.as_path().join(&spec.entry_script).into(),
            threads: threads_each(self.agent.process_count),
        };
        process.send(&ToProcess::Template(settings), Vec::new());
        let (environment, started, starts) = (start.environment, Instant::now(), VecDeque::new());
        self.template =
            Some(Template { process, libraries, environment, started, is_ready: false, starts });
    }

    fn script(&self) -> String {
        let spec = &self.agent.spec;
        let mut script = Vec::new();
        if !spec.has_built_in_script()
            && let Ok(file) = File::open(spec.source_directory.as_path().join(&spec.entry_script))
        {
            let _ = file.take(SCRIPT_BYTES_MAX).read_to_end(&mut script);
        }
        String::from_utf8_lossy(&script).into_owned()
    }

    /// Starts a process from the template if there is one.
    pub(super) fn start_process(
        &mut self,
        process: ProcessId,
        gpus: Option<GpuSet>,
        start: StartOptions,
    ) -> Option<Event> {
        let mut waiting = QueuedStart { process, gpus, start, ends: None, is_killed: false };
        let Some(template) = &mut self.template else {
            return self.start_without_template(waiting);
        };
        if template.is_ready && template.ask(&mut waiting).is_err() {
            return self.start_without_template(waiting);
        }
        template.starts.push_back(waiting);
        None
    }

    fn start_without_template(&mut self, waiting: QueuedStart) -> Option<Event> {
        let QueuedStart { process, gpus, start, is_killed, .. } = waiting;
        let started = PythonProcess::start(&start, Kind::Worker, self.reporter(process));
        self.started(process, gpus, start.scratch, started, is_killed)
    }

    pub(super) async fn template_reported(&mut self, report: Report) {
        let events = match report {
            Report::Events(events) => events,
            Report::Broken(how) => return self.give_up_template(&how).await,
            Report::Exited(code) => {
                return self.give_up_template(&format!("the template ended with {code}")).await;
            }
        };
        for (event, _) in events {
            match event {
                ProcessEvent::TemplateReady { libraries } => {
                    self.template_is_ready(&libraries).await
                }
                ProcessEvent::Forked { pid } => self.forked(pid).await,
                ProcessEvent::InitFailed { error, .. } => {
                    self.give_up_template(&error.sentence()).await
                }
                other => self.give_up_template(&format!("the template sent {other:?}")).await,
            }
        }
    }

    async fn template_is_ready(&mut self, imported: &[String]) {
        let Some(template) = &mut self.template else { return };
        template.is_ready = true;
        let (libraries, seconds) = (imported.join(", "), template.started.elapsed().as_secs_f64());
        self.log.main(
            "INFO",
            &format!("imported {libraries} once for all processes, in {seconds:.2} s"),
        );
        let mut starts = std::mem::take(&mut template.starts);
        let asked: Result<()> = starts.iter_mut().try_for_each(|waiting| template.ask(waiting));
        template.starts = starts;
        if let Err(error) = asked {
            self.give_up_template(&format!("{error:#}")).await;
        }
    }

    async fn forked(&mut self, pid: u32) {
        let waiting = self.template.as_mut().and_then(|template| template.starts.pop_front());
        let Some(QueuedStart { process, gpus, start, ends: Some(ours), is_killed }) = waiting
        else {
            return self
                .give_up_template("the template forked a process that the agent had not requested")
                .await;
        };
        let started = PythonProcess::adopt(pid, ours, &start, self.reporter(process));
        if let Some(event) = self.started(process, gpus, start.scratch, started, is_killed) {
            self.handle(event).await;
        }
    }

    /// Ends the template. Waiting processes start without it.
    async fn give_up_template(&mut self, cause: &str) {
        let Some(template) = self.template.take() else { return };
        let libraries = template.libraries.join(", ");
        self.log.main("INFO", &format!("each process imports {libraries} itself: {cause}"));
        for waiting in template.starts {
            if let Some(event) = self.start_without_template(waiting) {
                self.handle(event).await;
            }
        }
    }

    /// Gives the template up if its imports take too long.
    pub(super) async fn check_template(&mut self) {
        if self
            .template
            .as_ref()
            .is_some_and(|one| !one.is_ready && one.started.elapsed() > IMPORT_TIME)
        {
            self.give_up_template("the imports of the template take too long").await;
        }
    }

    /// Kills a process that waits for the template: it starts without it, and ends.
    pub(super) fn kill_waiting(&mut self, process: ProcessId) -> Option<Event> {
        let starts = &mut self.template.as_mut()?.starts;
        let at = starts.iter().position(|waiting| waiting.process == process)?;
        starts[at].is_killed = true;
        // A process that is forking keeps its place.
        if starts[at].ends.is_some() {
            return None;
        }
        let waiting = starts.remove(at)?;
        self.start_without_template(waiting)
    }
}

/// Returns the large libraries that a script imports by name; none if it changes its environment.
fn libraries(script: &str) -> Vec<&'static str> {
    let mut words = script.split(|one: char| !one.is_alphanumeric() && one != '_');
    if words.any(|word| CHANGES_OF_ENVIRONMENT.contains(&word)) {
        return Vec::new();
    }
    let imported: Vec<&str> = script
        .lines()
        .filter_map(|line| {
            let line = line.trim_start();
            line.strip_prefix("import ").or_else(|| line.strip_prefix("from "))
        })
        .flat_map(|names| names.split(','))
        .filter_map(|name| name.trim_start().split([' ', '.', '#', ';', '\t']).next())
        .collect();
    LIBRARIES.into_iter().filter(|library| imported.contains(library)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_those_that_the_script_imports_by_name() {
        let script = "import json, numpy as np\nfrom pandas.api import types\n\ndef run(x):\n    import pyarrow.csv\n";
        assert_eq!(libraries(script), ["numpy", "pandas", "pyarrow"]);
        assert_eq!(
            libraries("import pandas_more\nfrom mine import pandas\n# import numpy\n"),
            [""; 0]
        );
        assert_eq!(libraries("import pandas\r\n"), ["pandas"]);
        assert_eq!(libraries("# For all environments.\nimport numpy"), ["numpy"]);
        let sets = "import os\nos.environ['OMP_NUM_THREADS'] = '1'\nimport numpy\n";
        assert_eq!(libraries(sets), [""; 0], "numpy reads it when it is imported");
    }

    #[test]
    fn name_of_the_template_has_room_for_that_of_any_process() {
        assert_eq!(NAME.len(), ProcessId { slot: 0, number: u32::MAX }.name().len());
    }
}
