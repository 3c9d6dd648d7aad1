//! A document of Azure ML as steps, each of which is a job file.

use std::path::{Path, PathBuf};

use protocol::JobSpec;

use super::document_keys;
use super::document_overrides::DocumentOverrides;
use super::kind::{self, DocumentKind};
use super::reader::{JobFile, Reader, job_name};
use super::register::Asset;
use super::scope::{Scope, StepContext};
use crate::load::{DocumentContext, read_step};
use crate::problem::shown;
use crate::{
    Context, Entry, Fault, Location, Node, Parsed, Problem, Problems, find, overrides, written,
    yaml,
};

/// The placeholder for the id of a job, in the paths that the job writes.
pub const RUN_ID: &str = "{run-id}";

/// One step of a document.
#[derive(Clone, Debug)]
pub struct Step {
    /// Its name in the document.
    pub name: String,
    /// The job file, before `--set`.
    pub(super) entries: Vec<Entry>,
    /// The steps whose outputs it reads.
    pub needs: Vec<String>,
    /// The paths that it reads and that earlier steps make.
    pub(super) made_earlier: Vec<PathBuf>,
    /// The assets to register once it has completed.
    pub assets: Vec<Asset>,
    /// The folders of its outputs for which the document names none.
    pub(super) default_folders: Vec<PathBuf>,
    /// The paths with `{run-id}` that it writes, as job files write them.
    pub(super) run_paths: Vec<String>,
    /// Whether it runs a command on this machine.
    pub is_command: bool,
}

impl Step {
    /// Creates a step that needs no others.
    pub(super) fn alone(name: String, job: JobFile, scope: Option<&Scope<'_>>) -> Self {
        Self {
            name,
            entries: job.0,
            needs: Vec::new(),
            made_earlier: Vec::new(),
            assets: scope.map_or_else(Vec::new, Scope::assets),
            default_folders: scope.map_or_else(Vec::new, Scope::default_folders),
            run_paths: Vec::new(),
            is_command: false,
        }
    }
}

/// The steps of a document, in the order in which they run.
#[derive(Debug)]
pub struct Steps {
    path: PathBuf,
    /// The folder of outputs for which the document names no other.
    pub outputs: PathBuf,
    steps: Vec<Step>,
    /// Further files that the document refers to.
    others: Vec<String>,
    overrides: DocumentOverrides,
    /// The changes of the command line, as arguments of a command.
    changes: Vec<String>,
    /// Settings that work, but probably not as intended.
    pub warnings: Vec<Problem>,
}

impl Steps {
    /// Reads a document of Azure ML. `None`: the text is a job file, or no document at all.
    pub fn read(
        path: &Path,
        text: &str,
        overrides: &DocumentOverrides,
        context: &Context,
    ) -> Result<Option<Self>, Vec<Problem>> {
        let problems = Problems::new(shown(path));
        let Some(mut entries) = yaml::read(text, &Problems::default()) else { return Ok(None) };
        let Some(kind) = kind::of(&entries) else { return Ok(None) };
        // The first reading has dropped its problems, such as duplicate keys.
        yaml::read(text, &problems);
        let changes = overrides.words(context);
        let mut overrides = overrides.clone();
        if let Ok(kind) = kind {
            overrides.overrides =
                document_keys::apply(&mut entries, kind, &overrides.overrides, &problems);
        }
        let outputs = outputs_of(path, context);
        let steps = match kind {
            Ok(kind) => translate(kind, path, entries, &overrides, context, &problems),
            Err((location, field, fault)) => {
                problems.add(location, field, fault);
                Vec::new()
            }
        };
        let others = problems.others();
        let steps = Self {
            path: path.to_owned(),
            outputs,
            steps,
            others,
            overrides,
            changes,
            warnings: Vec::new(),
        };
        if !problems.is_empty() {
            // Adds the mistakes of the job files, except for keys that are absent only because of a mistake above.
            for step in &steps.steps {
                let inner = Problems::with_others(shown(path), problems.others());
                steps.load_into(step, context, &inner);
                inner.forget_absent();
                problems.take(inner);
            }
        }
        let warnings = problems.finish()?;
        Ok(Some(Self { warnings, ..steps }))
    }

    /// Returns the steps.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Returns the job of a step. `is_first`: earlier steps have not run yet, so their outputs need not exist.
    pub fn load(
        &self,
        index: usize,
        is_first: bool,
        context: &Context,
    ) -> Result<Parsed, Vec<Problem>> {
        let mut step = self.steps[index].clone();
        if !is_first {
            step.made_earlier.clear();
        }
        self.load_step(step, context)
    }

    /// Returns the job of the step that follows these jobs of earlier steps, in their order, and reads their outputs.
    pub fn load_after(&self, jobs: &[&str], context: &Context) -> Result<Parsed, Vec<Problem>> {
        let mut step = Step { made_earlier: Vec::new(), ..self.steps[jobs.len()].clone() };
        for (earlier, job_id) in self.steps.iter().zip(jobs) {
            for path in &earlier.run_paths {
                let own = path.replace(RUN_ID, job_id);
                step.entries.iter_mut().for_each(|entry| entry.node.replace(path, &own));
            }
        }
        self.load_step(step, context)
    }

    fn load_step(&self, step: Step, context: &Context) -> Result<Parsed, Vec<Problem>> {
        let problems = Problems::with_others(shown(&self.path), self.others.clone());
        let parsed = self.load_into(&step, context, &problems);
        let warnings = problems.finish()?;
        let mut parsed = parsed.expect("a job file without mistakes gives a job");
        parsed.spec.changes = self.changes.clone();
        let own_folders = self.own_folders(&step, &parsed.spec);
        Ok(Parsed { warnings, assets: step.assets, own_folders, ..parsed })
    }

    /// Returns the folders that only the jobs of this step write.
    fn own_folders(&self, step: &Step, spec: &JobSpec) -> Vec<PathBuf> {
        let is_written = |folder: &&PathBuf| {
            spec.outputs.values().any(|output| output.as_path() == folder.as_path())
        };
        let writers = |folder: &PathBuf| {
            self.steps.iter().filter(|step| step.default_folders.contains(folder)).count()
        };
        step.default_folders
            .iter()
            .filter(is_written)
            .filter(|folder| writers(folder) == 1)
            .cloned()
            .collect()
    }

    fn load_into(&self, step: &Step, context: &Context, problems: &Problems) -> Option<Parsed> {
        let mut entries = step.entries.clone();
        overrides::apply(&mut entries, &self.overrides_of(step), problems);
        let surroundings = DocumentContext::of(&self.path, context, problems)?;
        read_step(&surroundings, &entries, &step.made_earlier, context, problems)
    }

    /// Returns the job file of a step as text, which has the same meaning in the folder of the document.
    pub fn job_file(&self, index: usize) -> Result<String, Vec<Problem>> {
        let step = &self.steps[index];
        let mut entries = step.entries.clone();
        let problems = Problems::with_others(shown(&self.path), self.others.clone());
        overrides::apply(&mut entries, &self.overrides_of(step), &problems);
        problems.finish()?;
        Ok(written::yaml(&entries))
    }

    /// Returns the part of `--set` that concerns a step. If there are several steps, a key without a step concerns all
    /// parallel ones, and `environment` concerns all.
    fn overrides_of(&self, step: &Step) -> Vec<(String, String)> {
        let own = |key: &str| {
            let mut names = self.steps.iter().map(|step| step.name.as_str());
            match names.find_map(|name| Some((name, key.strip_prefix(name)?.strip_prefix('.')?))) {
                Some((name, rest)) => (name == step.name).then(|| rest.to_owned()),
                None => {
                    let of_all =
                        !step.is_command || self.steps.len() == 1 || key.starts_with("environment");
                    of_all.then(|| key.to_owned())
                }
            }
        };
        self.overrides
            .overrides
            .iter()
            .filter_map(|(key, value)| Some((own(key)?, value.clone())))
            .collect()
    }
}

/// Returns the file name of a document without its extension.
fn stem(path: &Path) -> &str {
    path.file_stem()
        .and_then(|stem| stem.to_str())
        .filter(|stem| *stem != "-")
        .unwrap_or("gristmill")
}

/// Returns the text that names of a pipeline's jobs begin with: its name, that of its file, or, if this is a common
/// name of files, that of its folder.
fn document_name(entries: &[Entry], stem: &str, folder: &Path) -> String {
    const COMMON: &[&str] = &["pipeline", "pipeline-job", "pipeline_job", "job"];
    let name = find(entries, "name").map_or(stem, Node::written);
    let folder =
        folder.file_name().and_then(|name| name.to_str()).filter(|_| COMMON.contains(&name));
    folder.unwrap_or(name).to_owned()
}

fn outputs_of(path: &Path, context: &Context) -> PathBuf {
    let path = crate::paths::clean(&context.working_directory.join(path));
    path.with_file_name(format!("{}-output", stem(&path)))
}

fn translate(
    kind: DocumentKind,
    path: &Path,
    entries: Vec<Entry>,
    overrides: &DocumentOverrides,
    context: &Context,
    problems: &Problems,
) -> Vec<Step> {
    let Some(DocumentContext { paths, .. }) = DocumentContext::of(path, context, problems) else {
        return Vec::new();
    };
    let (stem, root) = (stem(path), outputs_of(path, context));
    let reader = Reader {
        context,
        problems,
        overrides,
        document: document_name(&entries, stem, &paths.folder),
        folder: paths.folder,
        root,
        without: Default::default(),
        announced: Default::default(),
        is_quiet: false,
    };
    if let (Some(step), true) = (&overrides.step, kind != DocumentKind::Pipeline) {
        let fault = Fault::of(format!("{step:?}"), "--step with a pipeline")
            .saying("this document has no steps");
        problems.add(Location::File, "--step", fault);
    }
    let steps = match kind {
        DocumentKind::Pipeline => reader.pipeline(entries, stem),
        DocumentKind::Deployment => {
            let (name, job) = reader.deployment(entries, stem);
            vec![Step::alone(name, job, None)]
        }
        DocumentKind::Parallel => {
            let name = find(&entries, "name").map_or(stem, Node::written).to_owned();
            let layers = reader.layers(entries, &reader.folder, "");
            let outer = |name: &str| {
                Err(Fault::of(format!("${{{{{name}}}}}"), "inputs.NAME, outputs.NAME"))
            };
            let around = StepContext {
                step: &name,
                job: &job_name(&name),
                prefix: "",
                outer: &outer,
                outputs: reader.root.clone(),
                default_store: super::bindings::DEFAULT_STORE,
                target: &|_| None,
                takes_overrides: true,
            };
            let (job, scope) = reader.parallel(&layers, &around);
            vec![Step::alone(name.clone(), job, Some(&scope))]
        }
    };
    if let Some(sentence) = reader.without.borrow().sentence() {
        problems.warn(Location::File, "", sentence);
    }
    steps
}
