//! A pipeline as steps: which step reads what another one writes, and the order in which they run.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;

use super::bindings::{Bound, DEFAULT_STORE, Data, Given, Inputs, Target};
use super::known;
use super::layers::Layers;
use super::reader::Reader;
use super::scope::{Around, has_value, unknown};
use super::steps::Step;
use crate::{Entry, Fault, Location, Node, find, nearest};

/// Types of steps that Gristmill does not run.
const OTHERS: &[&str] = &["sweep", "automl", "spark", "pipeline", "import", "data_transfer", "finetuning"];

struct Raw {
    name: String,
    location: Location,
    layers: Layers,
    is_command: bool,
}

impl Reader<'_> {
    /// Returns the steps of a pipeline in the order in which they run, or that of `--step`.
    pub fn pipeline(&self, entries: &[Entry], stem: &str) -> Vec<Step> {
        self.check_keys(entries, "", &[known::PIPELINE]);
        let settings = find(entries, "settings").map_or(&[][..], Node::entries);
        self.check_keys(settings, "settings.", &[known::SETTINGS]);
        let store = find(settings, "default_datastore").map_or(DEFAULT_STORE, Node::written);
        let store = store.strip_prefix("azureml:").unwrap_or(store).rsplit('/').next().unwrap_or(store).to_owned();
        let only = self.wishes.step.as_deref();
        let inputs = self.pipeline_inputs(entries, only.is_some());
        let targets = self.pipeline_outputs(entries, stem, &store);
        let raws = self.raw_steps(entries);
        if let Some(only) = only
            && raws.iter().all(|raw| raw.name != only)
        {
            let names: Vec<&str> = raws.iter().map(|raw| raw.name.as_str()).collect();
            let fault = Fault::of(format!("{only:?}"), names.join(", "));
            self.refuse(Location::File, "--step", fault.saying("the pipeline has no such step"));
            return Vec::new();
        }
        let Some(order) = self.order(&raws) else { return Vec::new() };
        // The outputs of the steps that have been read.
        let made: RefCell<BTreeMap<String, BTreeMap<String, Target>>> = RefCell::default();
        let jobs = find(entries, "jobs").map_or(&[][..], Node::entries);
        let outer = |name: &str| outer(name, &inputs, jobs, &made.borrow());
        let target = |name: &str| targets.get(name).cloned();
        let mut steps: Vec<Step> = Vec::new();
        for raw in order.into_iter().map(|index| &raws[index]) {
            let prefix = format!("jobs.{}.", raw.name);
            let around = Around {
                step: &raw.name,
                prefix: &prefix,
                outer: &outer,
                outputs: self.root.join(&raw.name),
                default_store: &store,
                target: &target,
                takes_wishes: only == Some(raw.name.as_str()),
            };
            let (job, scope) = match raw.is_command {
                true => self.command(&raw.layers, &around),
                false => self.parallel(&raw.layers, &around),
            };
            let made_by_others = scope.made_by_others();
            let needs = steps.iter().filter(|step| made_by_others.iter().any(|(name, _)| *name == step.name));
            let needs = needs.map(|step| step.name.clone()).collect();
            let made_earlier = made_by_others.into_iter().map(|(_, path)| path).collect();
            made.borrow_mut().insert(raw.name.clone(), scope.outputs.clone());
            let name = raw.name.clone();
            steps.push(Step { name, entries: job.0, needs, made_earlier, is_command: raw.is_command });
        }
        if let Some(only) = only {
            steps.retain(|step| step.name == only);
            steps.iter_mut().for_each(|step| {
                step.made_earlier.clear();
                step.needs.clear();
            });
        }
        steps
    }

    /// `has_other_wishes`: `--input` belongs to a step.
    fn pipeline_inputs(&self, entries: &[Entry], has_other_wishes: bool) -> Inputs {
        let mut inputs = Inputs::new();
        let given = find(entries, "inputs").map_or(&[][..], Node::entries);
        let names: Vec<&str> = given.iter().map(|entry| entry.key.as_str()).collect();
        let without: Vec<&str> =
            given.iter().filter(|entry| !has_value(&entry.node)).map(|entry| entry.key.as_str()).collect();
        let alone = match (without.as_slice(), names.as_slice()) {
            ([name], _) | ([], [name]) => Some(*name),
            _ => None,
        };
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
            let given = Given { name, field: format!("inputs.{name}"), declared: None, given: entry, wished };
            let is_skipped = has_other_wishes && lacks_value;
            let bound = if is_skipped { Some(Bound::Absent) } else { self.bind(&given, &no_outer) };
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

    fn raw_steps(&self, entries: &[Entry]) -> Vec<Raw> {
        let Some(jobs) = find(entries, "jobs").filter(|jobs| !jobs.entries().is_empty()) else {
            self.refuse(Location::File, "jobs", Fault::of("no step", "at least one step of type parallel or command"));
            return Vec::new();
        };
        let mut raws = Vec::new();
        for entry in jobs.entries() {
            let field = format!("jobs.{}", entry.key);
            if entry.node.entries().is_empty() {
                self.refuse(entry.location, &field, Fault::new(&entry.node, "a mapping with type and its keys"));
                continue;
            }
            let layers = self.layers(entry.node.entries().to_vec(), &self.folder, &format!("{field}."));
            let word = |key: &str| layers.find(&[key]).map(|found| found.node.written().trim().to_lowercase());
            let kind = word("type").unwrap_or_else(|| match layers.find(&["command"]).is_some() {
                true => "command".to_owned(),
                false => "parallel".to_owned(),
            });
            let component = layers.0.get(1).and_then(|layer| find(&layer.entries, "type")).map(Node::written);
            let kind =
                component.map_or(kind.as_str(), |component| if component.is_empty() { &kind } else { component });
            let location = layers.location_of(&["type"]);
            match kind {
                // A component that could not be read is a mistake already.
                "command" | "parallel" if layers.0.len() == 1 && find(&layers.0[0].entries, "component").is_some() => {}
                "command" | "parallel" => {
                    let is_command = kind == "command";
                    raws.push(Raw { name: entry.key.clone(), location: entry.location, layers, is_command });
                }
                kind => {
                    let message = match OTHERS.contains(&kind) {
                        true => format!("Gristmill does not run steps of type {kind}"),
                        false => match nearest(kind, ["parallel", "command"]) {
                            Some(near) => format!("unknown type of a step; did you mean {near:?}?"),
                            None => "unknown type of a step".to_owned(),
                        },
                    };
                    let fault = Fault::of(format!("{kind:?}"), "parallel, command").saying(message);
                    self.refuse(location, &format!("{field}.type"), fault);
                }
            }
        }
        raws
    }

    /// Returns the indices of the steps, each behind those whose outputs it names. `None`: there is no such order.
    fn order(&self, raws: &[Raw]) -> Option<Vec<usize>> {
        let needs: Vec<Vec<usize>> = raws
            .iter()
            .map(|raw| {
                let mut named = Vec::new();
                raw.layers
                    .0
                    .iter()
                    .for_each(|layer| layer.entries.iter().for_each(|entry| mentioned(&entry.node, &mut named)));
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
                    self.refuse(raws[left[0]].location, &format!("jobs.{}", names[0]), fault);
                    return None;
                }
            }
        }
        Some(order)
    }
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
        crate::Value::Scalar(_) => {}
        crate::Value::List(items) => items.iter().for_each(|item| mentioned(item, found)),
        crate::Value::Mapping(entries) => entries.iter().for_each(|entry| mentioned(&entry.node, found)),
    }
}

/// Resolves `parent.inputs.NAME` and `parent.jobs.STEP.outputs.NAME`.
fn outer(
    name: &str,
    inputs: &Inputs,
    jobs: &[Entry],
    made: &BTreeMap<String, BTreeMap<String, Target>>,
) -> Result<Bound, Fault> {
    if let Some(input) = name.strip_prefix("parent.inputs.") {
        return inputs.get(input).cloned().ok_or_else(|| unknown(name, "parent.inputs", inputs.keys()));
    }
    let allowed = "inputs.NAME, outputs.NAME, parent.inputs.NAME, parent.outputs.NAME, parent.jobs.STEP.outputs.NAME";
    let Some((step, rest)) = name.strip_prefix("parent.jobs.").and_then(|rest| rest.split_once('.')) else {
        return Err(Fault::of(format!("${{{{{name}}}}}"), allowed).saying("unknown name"));
    };
    let Some(outputs) = made.get(step) else {
        // A mistake in this step is recorded already.
        if let Some(entry) = jobs.iter().find(|entry| entry.key == step) {
            let (text, made_by) = (String::from("/"), Some(step.to_owned()));
            let (kind, mode) = Default::default();
            return Ok(Bound::Data(Data { text, location: entry.location, kind, mode, made_by }));
        }
        let names = jobs.iter().map(|entry| entry.key.as_str());
        let hint = nearest(step, names.clone());
        let hint = hint.map_or(String::new(), |hint| format!("; did you mean {hint:?}?"));
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
        made_by: Some(step.to_owned()),
    }))
}
