//! A pipeline as steps: which step reads what another one writes, and the order in which they run.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::bindings::{Bound, DEFAULT_STORE, Data, Inputs, Target, UnboundInput};
use super::expression;
use super::known;
use super::layers::{Layer, LayerValue, Layers};
use super::reader::Reader;
use super::scope::{Around, Scope, alone, has_value, unknown};
use super::steps::Step;
use crate::problem::did_you_mean;
use crate::{Entry, Fault, Location, Node, Value, find};

/// Types of steps that Gristmill does not run.
const OTHERS: &[&str] = &["sweep", "automl", "spark", "import", "data_transfer", "finetuning"];
/// Maximum nesting of pipelines; finds a component that refers to itself.
const DEPTH_MAX: usize = 8;

/// One entry of `jobs`.
struct Raw {
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
}

/// A pipeline, or a step that is one.
struct Frame<'f> {
    /// Prefix of the names of its steps: empty, or `STEP.`
    names: String,
    /// Prefix of its fields in messages: empty, or `jobs.STEP.`
    prefix: String,
    layers: &'f Layers,
    inputs: Inputs,
    targets: BTreeMap<String, Target>,
    /// The folder of outputs without a path.
    root: PathBuf,
    store: String,
    depth: usize,
}

impl Reader<'_> {
    /// Returns the steps of a pipeline in the order in which they run, or that of `--step`.
    pub fn pipeline(&self, entries: Vec<Entry>, stem: &str) -> Vec<Step> {
        let mut top = Layer { entries, folder: self.folder.clone() };
        top.flatten_groups();
        let layers = Layers(vec![top]);
        let entries = &layers.0[0].entries;
        let store = self.default_store(&layers, "", DEFAULT_STORE);
        let only = self.wishes.step.as_deref();
        let frame = Frame {
            names: String::new(),
            prefix: String::new(),
            layers: &layers,
            inputs: self.pipeline_inputs(entries, only.is_some()),
            targets: self.pipeline_outputs(entries, stem, &store),
            root: self.root.clone(),
            store,
            depth: 0,
        };
        let mut steps = Vec::new();
        self.frame(&frame, &mut steps);
        let Some(only) = only else { return steps };
        let is_wanted = |name: &str| name == only || is_part_of(name, only);
        if !steps.iter().any(|step| is_wanted(&step.name)) && self.problems.is_empty() {
            self.refuse_step(only, steps.iter().map(|step| step.name.as_str()));
        }
        steps.retain(|step| is_wanted(&step.name));
        let is_alone = steps.len() == 1;
        for step in &mut steps {
            step.needs.retain(|name| is_wanted(name));
            if is_alone {
                step.made_earlier.clear();
            }
        }
        steps
    }

    fn refuse_step<'n>(&self, only: &str, names: impl Iterator<Item = &'n str>) {
        let fault = Fault::of(format!("{only:?}"), names.collect::<Vec<_>>().join(", "));
        self.problems.add(Location::File, "--step", fault.saying("the pipeline has no such step"));
    }

    fn default_store(&self, layers: &Layers, prefix: &str, default: &str) -> String {
        for layer in &layers.0 {
            let tables = [known::COMMON, known::JOB, known::PIPELINE];
            match prefix {
                "" => self.check_keys(&layer.entries, prefix, &tables),
                prefix => self.check_keys(&layer.entries, prefix, &[&tables[..], &[known::STEP]].concat()),
            }
        }
        self.check_nested(layers, "settings", prefix, known::SETTINGS);
        let store = layers.find(&["settings", "default_datastore"]).map_or(default, |found| found.node.written());
        store.strip_prefix("azureml:").unwrap_or(store).rsplit('/').next().unwrap_or(store).to_owned()
    }

    /// Adds the steps of a pipeline. Returns the place of each of its outputs that a step writes.
    fn frame(&self, frame: &Frame<'_>, steps: &mut Vec<Step>) -> BTreeMap<String, Target> {
        let mut written = BTreeMap::new();
        let only = self.wishes.step.as_deref();
        let raws = self.raw_steps(frame);
        if let (Some(only), 0) = (only, frame.depth)
            && raws.iter().all(|raw| raw.name != only && !is_part_of(only, &raw.name))
        {
            self.refuse_step(only, raws.iter().map(|raw| raw.name.as_str()));
            return written;
        }
        // The outputs of the steps that have been read.
        let made: RefCell<BTreeMap<String, BTreeMap<String, Target>>> = RefCell::default();
        let jobs = frame.layers.find(&["jobs"]).map_or(&[][..], |found| found.node.entries());
        let outer = |name: &str| outer(name, frame, jobs, &made.borrow());
        let target = |name: &str| frame.targets.get(name).cloned();
        for raw in self.order(&raws, &frame.prefix).into_iter().map(|index| &raws[index]) {
            let name = format!("{}{}", frame.names, raw.name);
            let prefix = format!("{}jobs.{}.", frame.prefix, raw.name);
            let around = Around {
                step: &name,
                prefix: &prefix,
                outer: &outer,
                outputs: frame.root.join(&raw.name),
                default_store: &frame.store,
                target: &target,
                takes_wishes: only == Some(name.as_str()),
            };
            let (job, scope) = match raw.kind {
                StepKind::Command => self.command(&raw.layers, &around),
                StepKind::Parallel => self.parallel(&raw.layers, &around),
                StepKind::Pipeline => {
                    let inner = self.inner(raw, &around, frame, steps);
                    written.extend(outputs_of_pipeline(&raw.layers, &inner));
                    made.borrow_mut().insert(raw.name.clone(), inner);
                    continue;
                }
            };
            let made_by_others = scope.made_by_others();
            let is_needed = |step: &&Step| {
                made_by_others.iter().any(|(name, _)| *name == step.name || is_part_of(&step.name, name))
            };
            let needs = steps.iter().filter(is_needed).map(|step| step.name.clone()).collect();
            let made_earlier = made_by_others.into_iter().map(|(_, path)| path).collect();
            written.extend(outputs_of_pipeline(&raw.layers, &scope.outputs));
            made.borrow_mut().insert(raw.name.clone(), scope.outputs.clone());
            let is_command = raw.kind == StepKind::Command;
            steps.push(Step { name, entries: job.0, needs, made_earlier, is_command });
        }
        for (name, target) in frame.targets.iter().filter(|(name, _)| !written.contains_key(*name)) {
            let field = format!("{}outputs.{name}", frame.prefix);
            self.problems.warn(target.location, &field, "no step writes this output of the pipeline");
        }
        written
    }

    /// Adds the steps of a step that is a pipeline.
    fn inner(
        &self,
        raw: &Raw,
        around: &Around<'_>,
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
            targets: scope.outputs,
            root: around.outputs.clone(),
            store,
            depth: frame.depth + 1,
        };
        self.frame(&inner, steps)
    }

    /// `has_other_wishes`: `--input` belongs to a step.
    fn pipeline_inputs(&self, entries: &[Entry], has_other_wishes: bool) -> Inputs {
        let mut inputs = Inputs::new();
        let given = find(entries, "inputs").map_or(&[][..], Node::entries);
        let names: Vec<&str> = given.iter().map(|entry| entry.key.as_str()).collect();
        let without: Vec<&str> =
            given.iter().filter(|entry| !has_value(&entry.node)).map(|entry| entry.key.as_str()).collect();
        let alone = alone(&names, &without);
        if !has_other_wishes {
            self.check_wishes(&names, alone.is_some());
        }
        let no_outer =
            |name: &str| Err(Fault::of(format!("${{{{{name}}}}}"), "a value: inputs of a pipeline name no others"));
        for entry in given {
            let name = entry.key.as_str();
            let wished = if has_other_wishes { None } else { self.wished(name, alone == Some(name), &names) };
            let lacks_value = !has_value(&entry.node);
            let entry = Some((entry, self.folder.as_path()));
            let input = UnboundInput { name, field: format!("inputs.{name}"), declared: None, given: entry, wished };
            let is_skipped = has_other_wishes && lacks_value;
            let bound = if is_skipped { Some(Bound::Absent) } else { self.bind(&input, &no_outer) };
            inputs.insert(name.to_owned(), bound.unwrap_or(Bound::Absent));
        }
        inputs
    }

    fn pipeline_outputs(&self, entries: &[Entry], stem: &str, store: &str) -> BTreeMap<String, Target> {
        let known = |wanted: &str| match wanted {
            "name" => Some(stem.to_owned()),
            "default_datastore" => Some(store.to_owned()),
            _ => None,
        };
        let outputs = find(entries, "outputs").map_or(&[][..], Node::entries).iter().filter_map(|entry| {
            let (name, folder): (_, &Path) = (&entry.key, &self.folder);
            let default = self.root.join("outputs").join(name);
            let is_reference = entry.node.written().contains("${{");
            let nodes: &[(&Node, &Path)] = if is_reference { &[] } else { &[(&entry.node, folder)] };
            Some((name.clone(), self.target(name, &format!("outputs.{name}"), nodes, default, &known)?))
        });
        outputs.collect()
    }

    fn raw_steps(&self, frame: &Frame<'_>) -> Vec<Raw> {
        let found = frame.layers.find(&["jobs"]);
        let Some(LayerValue { node: jobs, folder }) = found.filter(|found| !found.node.entries().is_empty()) else {
            let field = format!("{}jobs", frame.prefix);
            let location = if frame.depth == 0 { Location::File } else { frame.layers.location_of(&["type"]) };
            self.problems.add(location, &field, Fault::of("no step", "at least one step of type parallel or command"));
            return Vec::new();
        };
        let mut raws = Vec::new();
        for entry in jobs.entries() {
            let field = format!("{}jobs.{}", frame.prefix, entry.key);
            if entry.node.entries().is_empty() {
                self.problems.add(entry.location, &field, Fault::new(&entry.node, "a mapping with type and its keys"));
                continue;
            }
            let layers = self.layers(entry.node.entries().to_vec(), folder, &format!("{field}."));
            let word = |key: &str| layers.find(&[key]).map(|found| found.node.written().trim().to_lowercase());
            let has = |key: &str| layers.find(&[key]).is_some();
            let kind = word("type").unwrap_or_else(|| match (has("command"), has("jobs")) {
                (true, _) => "command".to_owned(),
                (_, true) => "pipeline".to_owned(),
                _ => "parallel".to_owned(),
            });
            let component = layers.0.get(1).and_then(|layer| find(&layer.entries, "type")).map(Node::written);
            let kind =
                component.map_or(kind.as_str(), |component| if component.is_empty() { &kind } else { component });
            let location = layers.location_of(&["type"]);
            let known = match kind {
                "command" => Some(StepKind::Command),
                "parallel" => Some(StepKind::Parallel),
                "pipeline" => Some(StepKind::Pipeline),
                _ => None,
            };
            match (known, kind) {
                // A component that could not be read is a mistake already.
                (Some(_), _) if layers.0.len() == 1 && find(&layers.0[0].entries, "component").is_some() => {}
                (Some(kind), _) => {
                    raws.push(Raw { name: entry.key.clone(), location: entry.location, layers, kind });
                }
                (None, kind) => {
                    let message = match OTHERS.contains(&kind) {
                        true => format!("Gristmill does not run steps of type {kind}"),
                        false => {
                            let hint = did_you_mean(kind, ["parallel", "command", "pipeline"]);
                            format!("unknown type of a step{hint}")
                        }
                    };
                    let fault = Fault::of(format!("{kind:?}"), "parallel, command, pipeline").saying(message);
                    self.problems.add(location, &format!("{field}.type"), fault);
                }
            }
        }
        raws
    }

    /// Returns the indices of the steps, each after the steps whose outputs it names. A cycle is a mistake; its steps are
    /// last.
    fn order(&self, raws: &[Raw], prefix: &str) -> Vec<usize> {
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
            let is_next =
                |index: &usize| !order.contains(index) && needs[*index].iter().all(|need| order.contains(need));
            match (0..raws.len()).find(is_next) {
                Some(index) => order.push(index),
                None => {
                    let left: Vec<usize> = (0..raws.len()).filter(|index| !order.contains(index)).collect();
                    let names: Vec<&str> = left.iter().map(|index| raws[*index].name.as_str()).collect();
                    let message = "these steps wait for each other's outputs".to_owned();
                    let fault = Fault::of(names.join(", "), "steps without a cycle").saying(message);
                    self.problems.add(raws[left[0]].location, &format!("{prefix}jobs.{}", names[0]), fault);
                    order.extend(left);
                }
            }
        }
        order
    }
}

/// Whether a step belongs to the step `pipeline`.
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
        let name = expression::only_name(path.written())?.strip_prefix("parent.outputs.")?.to_owned();
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
    name: &str,
    frame: &Frame<'_>,
    jobs: &[Entry],
    made: &BTreeMap<String, BTreeMap<String, Target>>,
) -> Result<Bound, Fault> {
    if let Some(input) = name.strip_prefix("parent.inputs.") {
        let inputs = &frame.inputs;
        return inputs.get(input).cloned().ok_or_else(|| unknown(name, "parent.inputs", inputs.keys()));
    }
    let allowed = "inputs.NAME, outputs.NAME, parent.inputs.NAME, parent.outputs.NAME, parent.jobs.STEP.outputs.NAME";
    let Some((step, rest)) = name.strip_prefix("parent.jobs.").and_then(|rest| rest.split_once('.')) else {
        return Err(Fault::of(format!("${{{{{name}}}}}"), allowed).saying("unknown name"));
    };
    let Some(outputs) = made.get(step) else {
        // A mistake in this step is recorded already.
        if let Some(entry) = jobs.iter().find(|entry| entry.key == step) {
            let (text, made_by) = (String::from("/"), Some(format!("{}{step}", frame.names)));
            let (kind, mode) = Default::default();
            return Ok(Bound::Data(Data { text, location: entry.location, kind, mode, made_by }));
        }
        let names = jobs.iter().map(|entry| entry.key.as_str());
        let hint = did_you_mean(step, names.clone());
        let fault = Fault::of(format!("${{{{{name}}}}}"), names.collect::<Vec<_>>().join(", "));
        return Err(fault.saying(format!("there is no step {step:?} whose output could be read{hint}")));
    };
    let output = rest.strip_prefix("outputs.").unwrap_or(rest);
    let Some(target) = outputs.get(output) else {
        let group = format!("parent.jobs.{step}.outputs");
        return Err(unknown(name, &group, outputs.keys()).within("no step writes this output"));
    };
    Ok(Bound::Data(Data {
        text: target.path(),
        location: target.location,
        kind: target.kind.clone(),
        mode: String::new(),
        made_by: Some(format!("{}{step}", frame.names)),
    }))
}
