//! Reads a job file from its text to the specification of a job.

use std::path::{Path, PathBuf};

use partitioner::{Inputs, MissingColumn, Survey};
use protocol::{JobSpec, MODEL, OutputAction};

use crate::arguments::{Placeholders, read_arguments};
use crate::identity::Identity;
use crate::inputs::{InputLocations, read_inputs, require_inputs};
use crate::keys::{JOB, Read};
use crate::paths::clean;
use crate::problem::shown;
use crate::result_schema::read_result_schema;
use crate::values::{key_name, word};
use crate::{
    Asset, AzureNames, Context, DocumentOverrides, Entry, Fault, Location, Paths, Problem,
    Problems, Section, Steps, argv, destination, environment, limits, mini_batches, options,
    output, overrides, requires, script, snapshot, yaml,
};

/// A job file without mistakes.
#[derive(Clone, Debug)]
pub struct Parsed {
    /// The job. `job_id` is empty; `output.folder` is empty if the file names none (`summary_only`).
    pub spec: JobSpec,
    /// Its identity, to compare it with other jobs.
    pub identity: Identity,
    /// Settings that work, but probably not as intended.
    pub warnings: Vec<Problem>,
    /// Name of the compute target, if the file names one.
    pub compute_target: Option<String>,
    /// Whether the job runs on nodes that may be other machines.
    pub elsewhere: bool,
    /// Outputs to register once the job has completed.
    pub assets: Vec<Asset>,
    /// Folders of outputs that only runs of this step write, because the document names none.
    pub own_folders: Vec<PathBuf>,
    /// The file, as the user named it.
    pub(crate) file: String,
    /// One for each input.
    pub(crate) inputs: Vec<InputLocations>,
    /// Listings of the inputs that a check has begun and that the plan continues.
    pub listings: Inputs,
}

impl Parsed {
    /// Sets the formats of inputs from their files. Returns warnings, or every reason why the job cannot process them.
    pub fn settle_inputs(
        &mut self,
        surveys: &[partitioner::Result<Option<Survey>>],
    ) -> Result<Vec<Problem>, Vec<Problem>> {
        let problems = Problems::new(self.file.clone());
        for ((input, locations), survey) in
            self.spec.inputs.iter_mut().zip(&self.inputs).zip(surveys)
        {
            match survey {
                Err(error) => locations.refuse(error.problem(), &problems),
                Ok(None) => {}
                Ok(Some(survey)) => {
                    if input.table.by_name {
                        input.table.settle(survey.format);
                        locations.warn_without_effect(survey.format, &problems);
                    }
                    let notes =
                        survey.notes.iter().map(|note| format!("input {}: {note}", input.name));
                    self.spec.notes.extend(notes);
                }
            }
        }
        problems.finish()
    }

    /// Returns a problem with the value of a key that this crate cannot find by itself.
    pub fn problem(&self, key: &str, message: String) -> Problem {
        Problem { field: key.to_owned(), ..Problem::of_file(Path::new(&self.file), message) }
    }

    /// Returns the problems of listed columns that the files do not have.
    pub fn refuse_columns(&self, missing: &[MissingColumn]) -> Vec<Problem> {
        let problems = Problems::new(self.file.clone());
        missing
            .iter()
            .for_each(|missing| self.inputs[missing.input].refuse_column(missing, &problems));
        problems.finish().err().unwrap_or_default()
    }
}

/// Reads the job file `path` with the content `text`, or a document of Azure ML with one step.
pub fn load(
    path: &Path,
    text: &str,
    overrides: &DocumentOverrides,
    context: &Context,
) -> Result<Parsed, Vec<Problem>> {
    if let Some(steps) = Steps::read(path, text, overrides, context)? {
        return match steps.steps() {
            [_] => {
                let parsed = steps.load(0, false, context)?;
                Ok(Parsed {
                    warnings: steps.warnings.into_iter().chain(parsed.warnings).collect(),
                    ..parsed
                })
            }
            several => {
                let names: Vec<&str> = several.iter().map(|step| step.name.as_str()).collect();
                let message = format!(
                    "it has {} steps; choose one: --step {}",
                    names.len(),
                    names.join(", --step ")
                );
                Err(vec![Problem::of_file(path, message)])
            }
        };
    }
    let problems = Problems::new(shown(path));
    if !overrides.inputs.is_empty() || overrides.step.is_some() {
        let fault =
            Fault::only("this is a job file: --set inputs.NAME.path=PATH replaces its data");
        problems.add(
            Location::File,
            if overrides.step.is_some() { "--step" } else { "--input" },
            fault,
        );
    }
    let parsed = read(path, text, &overrides.overrides, context, &problems);
    let warnings = problems.finish()?;
    let mut parsed = parsed.expect("a job file without mistakes gives a job");
    parsed.spec.changes = overrides.words(context);
    Ok(Parsed { warnings, ..parsed })
}

/// Returns whether the code of a job has changed since the job was created.
pub fn script_has_changed(spec: &JobSpec) -> bool {
    let now = snapshot::beside(spec, Path::new(&spec.job_file), std::iter::empty());
    !now.is_ok_and(|now| snapshot::digest_of(&now.code) == spec.snapshot_digest)
}

/// Makes the current code beside the script the code of the job.
pub fn renew_script(spec: &mut JobSpec) {
    if let Ok(now) = snapshot::beside(spec, Path::new(&spec.job_file), std::iter::empty()) {
        spec.snapshot_digest = snapshot::digest_of(&now.code);
    }
}

fn read(
    path: &Path,
    text: &str,
    overrides: &[(String, String)],
    context: &Context,
    problems: &Problems,
) -> Option<Parsed> {
    let surroundings = DocumentContext::of(path, context, problems)?;
    let mut entries = yaml::read(text, problems)?;
    overrides::apply(&mut entries, overrides, problems);
    read_step(&surroundings, &entries, &[], context, problems)
}

/// The place of a document.
pub struct DocumentContext {
    shown: String,
    job_file: PathBuf,
    pub paths: Paths,
}

impl DocumentContext {
    /// Returns the place of a document. `None`: its folder cannot be used, which is recorded.
    pub fn of(path: &Path, context: &Context, problems: &Problems) -> Option<Self> {
        let job_file = clean(&context.working_directory.join(path));
        let folder = job_file.parent().unwrap_or(Path::new("/")).to_owned();
        if folder.to_str().is_none() {
            let fault =
                Fault::of(format!("{}", folder.display()), "a folder name that is valid UTF-8");
            problems.add(
                Location::File,
                "",
                fault.saying("paths of the job cannot be passed to a script as text"),
            );
            return None;
        }
        Some(Self {
            shown: shown(path),
            job_file,
            paths: Paths::new(folder, context.home_directory.clone()),
        })
    }
}

/// Reads the entries of a job file. `made_earlier`: paths that need not exist.
pub fn read_step(
    surroundings: &DocumentContext,
    entries: &[Entry],
    made_earlier: &[PathBuf],
    context: &Context,
    problems: &Problems,
) -> Option<Parsed> {
    let DocumentContext { shown, job_file, paths: Paths { folder, home, .. } } = surroundings;
    let paths =
        &Paths { made_earlier: made_earlier.to_vec(), ..Paths::new(folder.clone(), home.clone()) };
    let top = Section::top(JOB, entries, problems);
    let compute_target = top.value("compute_target", word);
    let target = context.compute_target.as_deref().or(compute_target.as_deref());
    let elsewhere = target.is_some_and(|target| target != "local");
    let mut job = JobSpec::default();
    let (arguments, inputs) = read_keys(&top, &mut job, paths);
    job.environment = environment::read_environment(&top, paths, context, elsewhere);
    if !job.entry_script.is_empty() {
        job.output.to_csv_arguments =
            output::read_to_csv_arguments(job.source_directory.as_path(), problems);
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
    // Scripts on this machine read `gristmill.toml`. A change of the names does not make another job.
    if let Some(names) = context.azure.for_scripts().filter(|_| elsewhere) {
        job.environment_variables.entry(AzureNames::VARIABLE.to_owned()).or_insert(names);
    }
    job.job_file = job_file.display().to_string();
    Some(Parsed {
        spec: job,
        identity,
        warnings: Vec::new(),
        compute_target,
        elsewhere,
        assets: Vec::new(),
        own_folders: Vec::new(),
        file: shown.clone(),
        inputs,
        listings: Inputs::default(),
    })
}

/// Reads every key but `environment`. Returns the user's arguments and the locations of the inputs.
fn read_keys(
    top: &Section<'_>,
    job: &mut JobSpec,
    paths: &Paths,
) -> (Vec<String>, Vec<InputLocations>) {
    top.fill(job, |read| if let Read::Job(set) = read { Some(set) } else { None });
    script::read_script(top, paths, job);
    let inputs = read_inputs(top, paths, job);
    let allowed = "a mapping of names to paths: {labels: labels.txt}";
    job.side_inputs = top.named("side_inputs", allowed, |entry| {
        key_name(entry)?;
        paths.exists(&entry.node, paths.path_or_url(&entry.node)?)
    });
    let model = top.read("model", |node| paths.exists(node, paths.path_or_url(node)?));
    if let Some((location, model)) = model {
        job.model =
            model.display().trim_end_matches('/').rsplit('/').next().unwrap_or_default().to_owned();
        if job.side_inputs.insert(MODEL.to_owned(), model).is_some() {
            let fault = Fault::of("a side input of this name too", "one of them");
            top.refuse("model", location, fault);
        }
    }
    if let (Some(gpus @ 2..), Some(2..)) = (job.gpus_per_process, job.process_count_per_gpu) {
        let fault = Fault::of(format!("gpus_per_process {gpus} too"), "one of them above 1");
        let fault = fault.saying("a process cannot have several GPUs and share each of them");
        top.refuse("process_count_per_gpu", top.location_of("process_count_per_gpu"), fault);
    }
    job.limits = limits::read_limits(top);
    job.requires = requires::read_requires(top);
    output::read_output(top, paths, job);
    if top.get("speculation").is_none() {
        // Requests to a service cost money, and a script that writes its own results may not run twice at once.
        job.speculation = job.output.action == OutputAction::AppendRow && job.limits.is_empty();
    }
    read_result_schema(top, paths, job);
    let placeholders = Placeholders::new(top, job);
    let arguments = read_arguments(top, &placeholders);
    job.environment_variables = environment::read_variables(top, &placeholders);
    options::read_options(&arguments, top, job);
    require_inputs(top, job);
    mini_batches::read_mini_batches(top, job);
    (arguments.into_iter().map(|argument| argument.text).collect(), inputs)
}
