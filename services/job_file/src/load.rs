//! Reads a job file from its text to the specification of a job.

use std::path::Path;

use partitioner::{Inputs, MissingColumn, Survey};
use protocol::JobSpec;

use crate::arguments::{Placeholders, read_arguments};
use crate::identity::Identity;
use crate::inputs::{InputLocations, read_inputs, require_inputs};
use crate::keys::{JOB, Read};
use crate::paths::{clean, exists};
use crate::problem::shown;
use crate::values::{key_name, word};
use crate::{
    Context, Entry, Fault, Location, Paths, Problem, Problems, Section, argv, azure, destination, environment,
    mini_batches, options, output, overrides, script, snapshot, yaml,
};

/// A job file without mistakes.
#[derive(Clone, Debug)]
pub struct Parsed {
    /// The job. `job_id` is empty; `output.folder` is empty if the file names none (`summary_only`).
    pub spec: JobSpec,
    /// What distinguishes it from other jobs.
    pub identity: Identity,
    /// What works, but hardly as intended.
    pub warnings: Vec<Problem>,
    /// Name of the compute target, if the file names one.
    pub compute_target: Option<String>,
    /// The job runs on nodes that may be other machines.
    pub elsewhere: bool,
    /// The file, as the user named it.
    file: String,
    /// One for each input.
    inputs: Vec<InputLocations>,
    /// Listings of the inputs that a check has begun, for the plan to continue.
    pub listings: Inputs,
}

impl Parsed {
    /// Completes the inputs with what their files are. Returns warnings, or every reason why the job cannot process them.
    pub fn settle_inputs(
        &mut self,
        surveys: &[partitioner::Result<Option<Survey>>],
    ) -> Result<Vec<Problem>, Vec<Problem>> {
        let problems = Problems::new(self.file.clone());
        for ((input, locations), survey) in self.spec.inputs.iter_mut().zip(&self.inputs).zip(surveys) {
            match survey {
                Err(error) => locations.refuse(error.problem(), &problems),
                Ok(None) => {}
                Ok(Some(survey)) => {
                    if input.table.by_name {
                        input.table.settle(survey.format);
                        locations.warn_without_effect(survey.format, &problems);
                    }
                    let notes = survey.notes.iter().map(|note| format!("input {}: {note}", input.name));
                    self.spec.notes.extend(notes);
                }
            }
        }
        problems.finish()
    }

    /// Returns a problem with the value of a key that the file alone does not show.
    pub fn problem(&self, key: &str, message: String) -> Problem {
        Problem { field: key.to_owned(), ..Problem::of_file(Path::new(&self.file), message) }
    }

    /// Returns the problems of listed columns that the files do not have.
    pub fn refuse_columns(&self, missing: &[MissingColumn]) -> Vec<Problem> {
        let problems = Problems::new(self.file.clone());
        missing.iter().for_each(|missing| self.inputs[missing.input].refuse_column(missing, &problems));
        problems.finish().err().unwrap_or_default()
    }
}

/// Reads the job file `path` with the content `text`. `overrides` are the `--set key=value` of the command line.
pub fn load(
    path: &Path,
    text: &str,
    overrides: &[(String, String)],
    context: &Context,
) -> Result<Parsed, Vec<Problem>> {
    let problems = Problems::new(shown(path));
    let parsed = read(path, text, overrides, context, &problems);
    let warnings = problems.finish()?;
    Ok(Parsed { warnings, ..parsed.expect("a job file without mistakes gives a job") })
}

/// Whether the code of a job has changed since the job was created.
pub fn script_has_changed(spec: &JobSpec) -> bool {
    let now = snapshot::beside(spec, Path::new(&spec.job_file), std::iter::empty());
    !now.is_ok_and(|now| snapshot::digest_of(&now.code) == spec.snapshot_digest)
}

fn read(
    path: &Path,
    text: &str,
    overrides: &[(String, String)],
    context: &Context,
    problems: &Problems,
) -> Option<Parsed> {
    let job_file = clean(&context.working_directory.join(path));
    let folder = job_file.parent().unwrap_or(Path::new("/")).to_owned();
    if folder.to_str().is_none() {
        let fault = Fault::of(format!("{}", folder.display()), "a folder name that is valid UTF-8");
        problems.add(Location::File, "", fault.saying("paths of the job cannot be passed to a script as text"));
        return None;
    }
    let mut entries = yaml::read(text, problems)?;
    if let Some((location, field, fault)) = azure::document(&entries) {
        problems.add(location, field, fault);
        return None;
    }
    overrides::apply(&mut entries, overrides, problems);
    let paths = Paths { folder, home: context.home_directory.clone() };
    let parsed = read_entries(&job_file, &entries, &paths, context, problems)?;
    Some(Parsed { file: shown(path), ..parsed })
}

fn read_entries(
    job_file: &Path,
    entries: &[Entry],
    paths: &Paths,
    context: &Context,
    problems: &Problems,
) -> Option<Parsed> {
    let top = Section::top(JOB, entries, problems);
    let compute_target = top.value("compute_target", word);
    let target = context.compute_target.as_deref().or(compute_target.as_deref());
    let elsewhere = target.is_some_and(|target| target != "local");
    let mut job = JobSpec::default();
    let (arguments, inputs) = read_keys(&top, &mut job, paths);
    job.environment = environment::read_environment(&top, paths, context, elsewhere);
    if !job.entry_script.is_empty() {
        job.output.to_csv_arguments = output::read_to_csv_arguments(job.source_directory.as_path(), problems);
        destination::check(&top, &job, job_file);
    }
    if !problems.is_empty() {
        return None;
    }
    job.argv = argv::assemble(&job, &top, &arguments);
    // The same job may run on this machine and elsewhere.
    let mut chosen = job.clone();
    environment::choose_here(&mut chosen.environment, context);
    let unreadable = |error: storage::Error| {
        let fault = Fault::of(error.to_string(), "files that can be read");
        top.refuse("source_directory", top.location_of("source_directory"), fault);
    };
    let identity = Identity::of(&chosen, &arguments, job_file, &context.models);
    let (identity, is_partial) = identity.map_err(unreadable).ok()?;
    if is_partial {
        let folder = job.source_directory.display();
        let message = snapshot::Incomplete::TooManyFiles { folder }.to_string();
        top.warn("source_directory", message);
    }
    (job.fingerprint, job.snapshot_digest) = (identity.fingerprint(), identity.code_digest());
    job.job_file = job_file.display().to_string();
    let (file, warnings, listings) = Default::default();
    Some(Parsed { spec: job, identity, warnings, compute_target, elsewhere, file, inputs, listings })
}

/// Reads every key but `environment`. Returns the user's arguments and the locations of the inputs.
fn read_keys(top: &Section<'_>, job: &mut JobSpec, paths: &Paths) -> (Vec<String>, Vec<InputLocations>) {
    top.fill(job, |read| if let Read::Job(set) = read { Some(set) } else { None });
    script::read_script(top, paths, job);
    let inputs = read_inputs(top, paths, job);
    let allowed = "a mapping of names to paths: {labels: labels.txt}";
    job.side_inputs = top.named("side_inputs", allowed, |entry| {
        key_name(entry)?;
        exists(&entry.node, paths.path_or_url(&entry.node)?)
    });
    output::read_output(top, paths, job);
    let placeholders = Placeholders::new(top, job);
    let arguments = read_arguments(top, &placeholders);
    job.environment_variables = environment::read_variables(top, &placeholders);
    options::read_options(&arguments, top, job);
    require_inputs(top, job);
    mini_batches::read_mini_batches(top, job);
    (arguments.into_iter().map(|argument| argument.text).collect(), inputs)
}
