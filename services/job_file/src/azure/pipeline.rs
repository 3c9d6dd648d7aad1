//! A pipeline as steps: their dependencies on each other's outputs, and their order.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::bindings::{BoundInput, DEFAULT_STORE, Data, Inputs, Target};
use super::expression;
use super::kind;
use super::known;
use super::layers::{Layer, LayerValue, Layers};
use super::reader::{Reader, step_name};
use super::scope::{Scope, StepContext, unknown};
use super::steps::{RUN_ID, Step};
use crate::problem::did_you_mean;
use crate::{Entry, Fault, Location, Node, Problems, Value, find};

/// Types of steps that Gristmill does not run.
const OTHERS: &[&str] = &["sweep", "automl", "spark", "import", "data_transfer", "finetuning"];
/// Types of steps that Gristmill runs.
const KINDS: [&str; 3] = ["parallel", "command", "pipeline"];
/// Maximum nesting of pipelines; finds a component that refers to itself.
const DEPTH_MAX: usize = 8;

/// One entry of `jobs`.
struct RawStep {
    name: String,
    location: Location,
    layers: Layers,
    kind: StepKind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum StepKind {
    Parallel,
    Command,
    Pipeline,
    /// It has a mistake, or Gristmill does not run its kind. Others may read its outputs.
    Refused,
}

/// The outputs of a step that has been read.
#[derive(Default)]
struct StepOutputs {
    outputs: BTreeMap<String, Target>,
    /// Whether there may be more.
    is_partial: bool,
}

/// A pipeline, or a step that is one.
struct Frame<'f> {
    /// Prefix of the names of its steps: empty, or `STEP.`
    names: String,
    /// Prefix of its fields in messages: empty, or `jobs.STEP.`
    prefix: String,
    layers: &'f Layers,
    inputs: Inputs,
    /// The mistakes of each input, reported with the first step that uses it.
    deferred: RefCell<BTreeMap<String, Problems>>,
    targets: BTreeMap<String, Target>,
    /// The folder of outputs without a path.
    root: PathBuf,
    store: String,
    depth: usize,
}

impl Reader<'_> {
    /// Returns the steps of a pipeline in the order in which they run, or only those of `--step`.
    pub fn pipeline(&self, entries: Vec<Entry>, stem: &str) -> Vec<Step> {
        let layers = self.layers(entries, &self.folder, "");
        if layers.0.len() == 1 && find(&layers.0[0].entries, "component").is_some() {
            // Its component could not be read, which is already recorded as a mistake.
            return Vec::new();
        }
        let store = self.default_store(&layers, "", DEFAULT_STORE);
        let only = self.overrides.step.as_deref();
        let (inputs, deferred) = self.pipeline_inputs(&layers, only.is_some());
        let frame = Frame {
            names: String::new(),
            prefix: String::new(),
            layers: &layers,
            inputs,
            deferred: RefCell::new(deferred),
            targets: self.pipeline_outputs(&layers, stem, &store),
            root: self.root.clone(),
            store,
            depth: 0,
        };
        let mut steps = Vec::new();
        self.frame(&frame, &mut steps);
        let Some(only) = only else { return steps };
        let is_it = |step: &Step| step.name == only || is_part_of(&step.name, only);
        if !steps.iter().any(is_it) && self.problems.is_empty() {
            self.refuse_step(only, steps.iter().map(|step| step.name.clone()));
        }
        steps.retain(is_it);
        let names: Vec<String> = steps.iter().map(|step| step.name.clone()).collect();
        for step in &mut steps {
            step.needs.retain(|name| names.contains(name));
            if names.len() == 1 {
                step.made_earlier.clear();
            }
        }
        steps
    }

    /// Returns whether a step runs, or contains or belongs to one that does.
    fn is_wanted(&self, name: &str) -> bool {
        let only = self.overrides.step.as_deref();
        !self.is_quiet
            && only
                .is_none_or(|only| name == only || is_part_of(name, only) || is_part_of(only, name))
    }

    fn refuse_step(&self, only: &str, names: impl Iterator<Item = String>) {
        let fault = Fault::of(format!("{only:?}"), names.collect::<Vec<_>>().join(", "));
        self.problems.add(Location::File, "--step", fault.saying("the pipeline has no such step"));
    }

    fn default_store(&self, layers: &Layers, prefix: &str, default: &str) -> String {
        for layer in &layers.0 {
            let tables = [known::COMMON, known::JOB, known::PIPELINE];
            match prefix {
                "" => self.check_keys(&layer.entries, prefix, &tables),
                prefix => {
                    self.check_keys(&layer.entries, prefix, &[&tables[..], &[known::STEP]].concat())
                }
            }
        }
        for layer in &layers.0 {
            self.warn_of_unknown(&layer.entries, "settings", prefix, known::SETTINGS, &[]);
        }
        let store = layers
            .find(&["settings", "default_datastore"])
            .map_or(default, |found| found.node.written());
        store
            .strip_prefix("azureml:")
            .unwrap_or(store)
            .rsplit('/')
            .next()
            .unwrap_or(store)
            .to_owned()
    }

    /// Adds the steps of a pipeline. Returns the place of each of its outputs that a step writes.
    fn frame(&self, frame: &Frame<'_>, steps: &mut Vec<Step>) -> BTreeMap<String, Target> {
        let mut written = BTreeMap::new();
        let only = self.overrides.step.as_deref();
        let raws = self.raw_steps(frame);
        let full_name = |raw: &RawStep| format!("{}{}", frame.names, raw.name);
        if let Some(only) = only.filter(|_| !self.is_quiet)
            && !raws.iter().any(|raw| self.is_wanted(&full_name(raw)))
        {
            self.refuse_step(only, raws.iter().map(full_name));
            return written;
        }
        // The outputs of the steps that have been read.
        let made: RefCell<BTreeMap<String, StepOutputs>> = RefCell::default();
        let jobs = frame.layers.find(&["jobs"]).map_or(&[][..], |found| found.node.entries());
        let target = |name: &str| frame.targets.get(name).cloned();
        for raw in self.order(&raws, frame).into_iter().map(|index| &raws[index]) {
            let name = full_name(raw);
            let is_wanted = self.is_wanted(&name);
            let read = |reader: &Reader<'_>, steps: &mut Vec<Step>| {
                let outer = |name: &str| outer(reader, name, frame, jobs, &made.borrow());
                let around = StepContext {
                    step: &name,
                    job: &step_name(&reader.document, &name),
                    prefix: &format!("{}jobs.{}.", frame.prefix, raw.name),
                    outer: &outer,
                    outputs: frame.root.join(&raw.name),
                    default_store: &frame.store,
                    target: &target,
                    takes_overrides: is_wanted && only == Some(name.as_str()),
                };
                reader.step(raw, &around, frame, steps)
            };
            let read = match is_wanted && raw.kind != StepKind::Refused {
                true => read(self, steps),
                false => self.aside(true, |quiet| read(quiet, &mut Vec::new())).0,
            };
            if is_wanted {
                let assets = read.outputs.values().filter_map(Target::asset);
                self.announced.borrow_mut().extend(assets.map(|asset| (name.clone(), asset)));
            }
            written.extend(outputs_of_pipeline(&raw.layers, &read.outputs));
            made.borrow_mut().insert(raw.name.clone(), read);
        }
        if only.is_none() {
            for (name, target) in
                frame.targets.iter().filter(|(name, _)| !written.contains_key(*name))
            {
                let field = format!("{}outputs.{name}", frame.prefix);
                self.problems.warn(
                    target.location,
                    &field,
                    "no step writes this output of the pipeline",
                );
            }
        }
        written
    }

    /// Adds a step, or the steps of one that is a pipeline.
    fn step(
        &self,
        raw: &RawStep,
        around: &StepContext<'_>,
        frame: &Frame<'_>,
        steps: &mut Vec<Step>,
    ) -> StepOutputs {
        let (job, scope) = match raw.kind {
            StepKind::Command => self.command(&raw.layers, around),
            StepKind::Parallel => self.parallel(&raw.layers, around),
            StepKind::Pipeline => {
                let outputs = self.inner(raw, around, frame, steps);
                return StepOutputs { outputs, is_partial: false };
            }
            StepKind::Refused => {
                return StepOutputs {
                    outputs: Scope::outputs(self, &raw.layers, around),
                    is_partial: true,
                };
            }
        };
        let made_by_others = scope.made_by_others();
        let is_needed = |step: &&Step| {
            made_by_others
                .iter()
                .any(|(name, _)| *name == step.name || is_part_of(&step.name, name))
        };
        let needs = steps.iter().filter(is_needed).map(|step| step.name.clone()).collect();
        let made_earlier = made_by_others.into_iter().map(|(_, path)| path).collect();
        let run_paths =
            scope.outputs.values().map(Target::path).filter(|path| path.contains(RUN_ID));
        let run_paths = run_paths.map(|path| self.written(&path)).collect();
        let is_command = raw.kind == StepKind::Command;
        let alone = Step::alone(around.step.to_owned(), job, Some(&scope));
        steps.push(Step { needs, made_earlier, run_paths, is_command, ..alone });
        StepOutputs { outputs: scope.outputs, is_partial: false }
    }

    /// Adds the steps of a step that is a pipeline.
    fn inner(
        &self,
        raw: &RawStep,
        around: &StepContext<'_>,
        frame: &Frame<'_>,
        steps: &mut Vec<Step>,
    ) -> BTreeMap<String, Target> {
        let field = format!("{}component", around.prefix);
        if frame.depth == DEPTH_MAX {
            let message = "its pipelines are nested too deeply; does a component refer to itself?";
            self.problems.add(raw.location, &field, Fault::only(message));
            return BTreeMap::new();
        }
        let store = self.default_store(&raw.layers, around.prefix, &frame.store);
        let scope = Scope::read(self, &raw.layers, around);
        let inner = Frame {
            names: format!("{}.", around.step),
            prefix: around.prefix.to_owned(),
            layers: &raw.layers,
            inputs: scope.inputs,
            deferred: RefCell::default(),
            targets: scope.outputs,
            root: around.outputs.clone(),
            store,
            depth: frame.depth + 1,
        };
        self.frame(&inner, steps)
    }

    /// Returns the inputs of a pipeline, and the mistakes of those that only matter if a step uses them.
    /// `is_single_step`: one step runs, and `--input` belongs to it.
    fn pipeline_inputs(
        &self,
        layers: &Layers,
        is_single_step: bool,
    ) -> (Inputs, BTreeMap<String, Problems>) {
        let (mut inputs, mut deferred) = (Inputs::new(), BTreeMap::new());
        let no_outer = |name: &str| {
            Err(Fault::of(
                format!("${{{{{name}}}}}"),
                "a value: inputs of a pipeline name no others",
            ))
        };
        for input in self.unbound_inputs(layers, "", !is_single_step) {
            let name = input.name.to_owned();
            let bound = match is_single_step {
                true if !input.has_value() => Some(BoundInput::Absent),
                true => {
                    let (bound, found) = self.aside(false, |reader| reader.bind(&input, &no_outer));
                    deferred.insert(name.clone(), found);
                    bound
                }
                false => self.bind(&input, &no_outer),
            };
            inputs.insert(name, bound.unwrap_or_else(BoundInput::refused));
        }
        (inputs, deferred)
    }

    fn pipeline_outputs(
        &self,
        layers: &Layers,
        stem: &str,
        store: &str,
    ) -> BTreeMap<String, Target> {
        let known = |wanted: &str| match wanted {
            "name" => Some(stem.to_owned()),
            "default_datastore" => Some(store.to_owned()),
            _ => None,
        };
        let outputs = layers.merged("outputs").into_iter().map(|(entry, _)| {
            let name = &entry.key;
            let all = layers.0.iter().flat_map(|layer| layer.entries_of("outputs"));
            let nodes = all
                .filter(|(other, _)| other.key == *name && !other.node.written().contains("${{"));
            let nodes: Vec<(&Node, &Path)> =
                nodes.map(|(entry, folder)| (&entry.node, folder)).collect();
            let default = self.root.join("outputs").join(name);
            let refused = || Target::at(default.display().to_string(), String::new());
            let target =
                self.target(name, &format!("outputs.{name}"), &nodes, default.clone(), &known);
            (name.clone(), target.unwrap_or_else(refused))
        });
        outputs.collect()
    }

    fn raw_steps(&self, frame: &Frame<'_>) -> Vec<RawStep> {
        let found = frame.layers.find(&["jobs"]);
        let Some(LayerValue { node: jobs, folder }) =
            found.filter(|found| !found.node.entries().is_empty())
        else {
            let field = format!("{}jobs", frame.prefix);
            let location =
                if frame.depth == 0 { Location::File } else { frame.layers.location_of(&["type"]) };
            self.problems.add(
                location,
                &field,
                Fault::of("no step", "at least one step of type parallel or command"),
            );
            return Vec::new();
        };
        let raws = jobs.entries().iter().filter_map(|entry| {
            let field = format!("{}jobs.{}", frame.prefix, entry.key);
            match self.is_wanted(&format!("{}{}", frame.names, entry.key)) {
                true => self.raw_step(entry, folder, &field),
                false => self.aside(true, |quiet| quiet.raw_step(entry, folder, &field)).0,
            }
        });
        raws.collect()
    }

    fn raw_step(&self, entry: &Entry, folder: &Path, field: &str) -> Option<RawStep> {
        if entry.node.entries().is_empty() {
            self.problems.add(
                entry.location,
                field,
                Fault::new(&entry.node, "a mapping with type and its keys"),
            );
            return None;
        }
        let layers = self.layers(entry.node.entries().to_vec(), folder, &format!("{field}."));
        let word =
            |key: &str| layers.find(&[key]).map(|found| found.node.written().trim().to_lowercase());
        let has = |key: &str| layers.find(&[key]).is_some();
        let kind = word("type").unwrap_or_else(|| match (has("command"), has("jobs")) {
            (true, _) => "command".to_owned(),
            (_, true) => "pipeline".to_owned(),
            _ => "parallel".to_owned(),
        });
        let component =
            layers.0.get(1).and_then(|layer| find(&layer.entries, "type")).map(Node::written);
        let kind = component.filter(|component| !component.is_empty()).unwrap_or(&kind);
        // A component that could not be read is already recorded as a mistake.
        let is_unread = layers.0.len() == 1 && find(&layers.0[0].entries, "component").is_some();
        // Another kind of document in the place of a component.
        let is_other = |layer: &&Layer| {
            ["type", "command", "jobs", "task"]
                .iter()
                .all(|key| find(&layer.entries, key).is_none())
        };
        let other = layers.0.get(1).filter(is_other);
        if let Some(Err((_, _, fault))) = other.and_then(|layer| kind::of(&layer.entries)) {
            self.problems.add(
                layers.location_of(&["component"]),
                &format!("{field}.component"),
                fault,
            );
            return Some(RawStep {
                name: entry.key.clone(),
                location: entry.location,
                layers,
                kind: StepKind::Refused,
            });
        }
        let kind = match kind {
            _ if is_unread => StepKind::Refused,
            "command" => StepKind::Command,
            "parallel" => StepKind::Parallel,
            "pipeline" => StepKind::Pipeline,
            kind => {
                let message = match OTHERS.contains(&kind) {
                    true => format!(
                        "Gristmill does not run steps of type {kind}; write it as a command step"
                    ),
                    false => {
                        let hint = did_you_mean(kind, KINDS);
                        format!("unknown type of a step{hint}")
                    }
                };
                let fault =
                    Fault::of(format!("{kind:?}"), "parallel, command, pipeline").saying(message);
                self.problems.add(layers.location_of(&["type"]), &format!("{field}.type"), fault);
                StepKind::Refused
            }
        };
        Some(RawStep { name: entry.key.clone(), location: entry.location, layers, kind })
    }

    /// Returns the indices of the steps, each after the steps whose outputs it names. A cycle is a mistake; its steps
    /// are last.
    fn order(&self, raws: &[RawStep], frame: &Frame<'_>) -> Vec<usize> {
        let needs: Vec<Vec<usize>> = raws
            .iter()
            .map(|raw| {
                let mut named = Vec::new();
                // Names in the steps of an inner pipeline refer to steps of that pipeline.
                let own = raw.layers.0.iter().flat_map(|layer| &layer.entries);
                let own = own.filter(|entry| raw.kind != StepKind::Pipeline || entry.key != "jobs");
                own.for_each(|entry| mentioned(&entry.node, &mut named));
                (0..raws.len()).filter(|index| named.contains(&raws[*index].name)).collect()
            })
            .collect();
        let mut order: Vec<usize> = Vec::new();
        while order.len() < raws.len() {
            let is_next = |index: &usize| {
                !order.contains(index) && needs[*index].iter().all(|need| order.contains(need))
            };
            match (0..raws.len()).find(is_next) {
                Some(index) => order.push(index),
                None => {
                    let left: Vec<usize> =
                        (0..raws.len()).filter(|index| !order.contains(index)).collect();
                    let names: Vec<&str> =
                        left.iter().map(|index| raws[*index].name.as_str()).collect();
                    let message = "these steps wait for each other's outputs".to_owned();
                    let fault =
                        Fault::of(names.join(", "), "steps without a cycle").saying(message);
                    if left.iter().any(|index| {
                        self.is_wanted(&format!("{}{}", frame.names, raws[*index].name))
                    }) {
                        let field = format!("{}jobs.{}", frame.prefix, names[0]);
                        self.problems.add(raws[left[0]].location, &field, fault);
                    }
                    order.extend(left);
                }
            }
        }
        order
    }
}

/// Returns whether a step belongs to the step `pipeline`.
fn is_part_of(step: &str, pipeline: &str) -> bool {
    step.strip_prefix(pipeline).is_some_and(|rest| rest.starts_with('.'))
}

/// Returns the outputs of a step that are outputs of its pipeline, by their names there.
fn outputs_of_pipeline<'a>(
    layers: &'a Layers,
    outputs: &'a BTreeMap<String, Target>,
) -> impl Iterator<Item = (String, Target)> + 'a {
    layers.merged("outputs").into_iter().filter_map(|(entry, _)| {
        let path = find(entry.node.entries(), "path").unwrap_or(&entry.node);
        let name =
            expression::only_name(path.written())?.strip_prefix("parent.outputs.")?.to_owned();
        Some((name, outputs.get(&entry.key)?.clone()))
    })
}

/// Collects the steps that a value names in `${{parent.jobs.STEP.…}}`.
fn mentioned(node: &Node, found: &mut Vec<String>) {
    let mut rest = node.written();
    while let Some(start) = rest.find("parent.jobs.") {
        rest = &rest[start + "parent.jobs.".len()..];
        let end = rest.find(['.', '}', ' ']).unwrap_or(rest.len());
        found.push(rest[..end].to_owned());
    }
    match &node.value {
        Value::Scalar(_) => {}
        Value::List(items) => items.iter().for_each(|item| mentioned(item, found)),
        Value::Mapping(entries) => entries.iter().for_each(|entry| mentioned(&entry.node, found)),
    }
}

/// Resolves `parent.inputs.NAME` and `parent.jobs.STEP.outputs.NAME`.
fn outer(
    reader: &Reader<'_>,
    name: &str,
    frame: &Frame<'_>,
    jobs: &[Entry],
    made: &BTreeMap<String, StepOutputs>,
) -> Result<BoundInput, Fault> {
    if let Some(input) = name.strip_prefix("parent.inputs.") {
        if !reader.is_quiet
            && let Some(deferred) = frame.deferred.borrow_mut().remove(input)
        {
            reader.problems.take(deferred);
        }
        let inputs = &frame.inputs;
        return inputs
            .get(input)
            .cloned()
            .ok_or_else(|| unknown(name, "parent.inputs", inputs.keys()));
    }
    let allowed = "inputs.NAME, outputs.NAME, parent.inputs.NAME, parent.outputs.NAME, parent.jobs.STEP.outputs.NAME";
    let Some((step, rest)) =
        name.strip_prefix("parent.jobs.").and_then(|rest| rest.split_once('.'))
    else {
        return Err(Fault::of(format!("${{{{{name}}}}}"), allowed).saying("unknown name"));
    };
    let Some(entry) = jobs.iter().find(|entry| entry.key == step) else {
        let names = jobs.iter().map(|entry| entry.key.as_str());
        let message = format!("there is no step {step:?} whose output could be read");
        let fault = Fault::unknown(step, names, &message);
        return Err(fault.finding(format!("${{{{{name}}}}}")));
    };
    let output = rest.strip_prefix("outputs.").unwrap_or(rest);
    let made_by = Some(format!("{}{step}", frame.names));
    let made = made.get(step);
    match (made.and_then(|made| made.outputs.get(output)), made.filter(|made| !made.is_partial)) {
        (Some(target), _) => Ok(BoundInput::Data(Data {
            text: target.path(),
            location: target.location,
            kind: target.kind.clone(),
            mode: String::new(),
            made_by,
        })),
        (None, Some(made)) => {
            let group = format!("parent.jobs.{step}.outputs");
            Err(unknown(name, &group, made.outputs.keys()).within("no step writes this output"))
        }
        // A mistake in this step is already recorded. Uses of its outputs are no further mistakes.
        (None, None) => {
            let text = frame.root.join(step).join(output).display().to_string();
            let (kind, mode) = Default::default();
            Ok(BoundInput::Data(Data { text, location: entry.location, kind, mode, made_by }))
        }
    }
}
