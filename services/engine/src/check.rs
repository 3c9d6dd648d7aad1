//! Reads a job file, and makes every check that is possible before the first mini-batch. Finds all
//! problems at once.

mod python;
mod urls;

use std::path::PathBuf;

use job_file::{AzureNames, DocumentOverrides, Parsed};
use partitioner::{Inputs, Survey};
use protocol::JobSpec;
use storage::StoreOptions;

use crate::{Engine, Error, Events, Notice, Result};
use python::PythonCheck;

/// A job file, as the caller passes it.
#[derive(Clone, Debug)]
pub struct Document {
    /// Its path, the base of relative paths in it; `-`: it has none.
    pub path: PathBuf,
    /// Its text.
    pub text: String,
    /// Values that replace those of the text, data for its inputs, and the one step to run.
    pub overrides: DocumentOverrides,
    /// The meaning of names of Azure ML.
    pub azure: AzureNames,
    /// The compute target, which takes precedence over that of the text.
    pub compute_target: Option<String>,
}

impl Document {
    /// Describes a job file with this text. Relative paths in it start from its folder.
    pub fn new(path: impl Into<PathBuf>, text: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            text: text.into(),
            overrides: DocumentOverrides::default(),
            azure: AzureNames::default(),
            compute_target: None,
        }
    }
}

impl Engine {
    pub(crate) fn context(&self, document: &Document) -> job_file::Context {
        let settings = self.settings();
        job_file::Context {
            working_directory: settings.working_directory.clone(),
            home_directory: settings.user_folder.clone(),
            interpreter: settings.python().to_owned(),
            search_path: settings.search_path.clone(),
            compute_target: document.compute_target.clone(),
            models: settings.models(),
            azure: AzureNames { register: self.home().register(), ..document.azure.clone() },
            files: self.home().cache("document-files"),
        }
    }

    /// Reads a job file, or a document of Azure ML with one step.
    pub fn read(&self, document: &Document, events: &Events) -> Result<Parsed> {
        let context = self.context(document);
        let parsed = job_file::load(&document.path, &document.text, &document.overrides, &context);
        let parsed = parsed.map_err(Error::Invalid)?;
        events.doubts(&parsed.warnings);
        Ok(parsed)
    }

    /// Checks the dependencies of a job: interpreter and script; files, formats and columns of the
    /// inputs; permissions for outputs behind URLs, and side inputs behind URLs. `options`: how to
    /// reach them. `remembers`: skips the check of a script that has passed before.
    ///
    /// The interpreter may still be checking the script when this returns. Blocks its thread, and needs a Tokio runtime with
    /// several threads.
    pub fn check(
        &self,
        parsed: &mut Parsed,
        options: &StoreOptions,
        remembers: bool,
        events: &Events,
    ) -> Result<Check> {
        // It runs while the inputs are read.
        let script = self.start_script_check(&parsed.spec, parsed.elsewhere, remembers, events);
        parsed.listings = Inputs::new(options);
        let surveys = parsed.listings.survey(&parsed.spec);
        let mut problems = match parsed.settle_inputs(&surveys) {
            Ok(warnings) => {
                events.doubts(&warnings);
                for note in &parsed.spec.notes {
                    events.notice(Notice::Decision(note.clone()));
                }
                parsed.refuse_columns(&parsed.listings.missing_columns(&parsed.spec))
            }
            Err(problems) => problems,
        };
        if !parsed.elsewhere {
            self.warn_of_unfit_machine(parsed, events);
            problems.extend(self.too_few_gpus(parsed));
        }
        problems.extend(urls::problems(parsed, options, events));
        let check = Check { surveys: surveys.into_iter().flatten().collect(), script };
        if problems.is_empty() {
            return Ok(check);
        }
        problems.extend(check.script.map_or_else(Vec::new, PythonCheck::finish));
        Err(Error::Invalid(problems))
    }

    /// Checks only interpreter and script, for a job that runs items of another job. `elsewhere`:
    /// on a target. Needs a Tokio runtime with several threads.
    pub(crate) fn check_script(
        &self,
        spec: &JobSpec,
        elsewhere: bool,
        events: &Events,
    ) -> Result<()> {
        let script = self.start_script_check(spec, elsewhere, true, events);
        let check = Check { surveys: Vec::new(), script };
        tokio::task::block_in_place(|| check.finish()).map(drop)
    }

    fn start_script_check(
        &self,
        spec: &JobSpec,
        elsewhere: bool,
        remembers: bool,
        events: &Events,
    ) -> Option<PythonCheck> {
        let remembered = remembers.then(|| self.home().cache("checks"));
        let search_path = (!elsewhere).then_some(&*self.settings().search_path);
        let default = self.settings().python();
        PythonCheck::start(spec, default, search_path, remembered.as_deref(), events)
    }
}

/// A check that has found no problem so far. The interpreter may still be checking the script: starting one takes a tenth
/// of a tiny job, so [`Engine::run`] waits for it only before it starts the processes.
#[derive(Debug)]
pub struct Check {
    surveys: Vec<Option<Survey>>,
    script: Option<PythonCheck>,
}

impl Check {
    /// Waits for the end of the check. Returns the survey of each input, in their order. Blocks its thread.
    pub fn finish(self) -> Result<Vec<Option<Survey>>> {
        let problems = self.script.map_or_else(Vec::new, PythonCheck::finish);
        if problems.is_empty() { Ok(self.surveys) } else { Err(Error::Invalid(problems)) }
    }
}
