//! The names that a step can use, and their texts in the job file.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::bindings::{BoundInput, Data, Inputs, Outer, Target};
use super::expression;
use super::layers::Layers;
use super::reader::{JobFile, Reader};
use super::register::Asset;
use crate::problem::did_you_mean;
use crate::{Entry, Fault, Location, Node, Value, find};

/// The inputs and outputs of a step.
pub struct Scope<'a> {
    /// Name of the step.
    pub step: String,
    /// The prefix of `field` in messages.
    pub prefix: String,
    pub inputs: Inputs,
    pub outputs: BTreeMap<String, Target>,
    /// The input that is divided into mini-batches.
    pub main: Option<String>,
    /// The output that rows are appended to.
    pub appended: Option<String>,
    outer: &'a Outer<'a>,
    /// Data that the step names without declaring an input.
    undeclared: RefCell<BTreeMap<String, Data>>,
}

/// The context of a step.
pub struct StepContext<'a> {
    pub step: &'a str,
    /// Name of its job.
    pub job: &'a str,
    /// `jobs.STEP.`, or nothing.
    pub prefix: &'a str,
    pub outer: &'a Outer<'a>,
    /// The folder of outputs without a path.
    pub outputs: PathBuf,
    pub default_store: &'a str,
    /// The destination of an output of the pipeline.
    pub target: &'a dyn Fn(&str) -> Option<Target>,
    /// Whether `--input` gives inputs of this step.
    pub takes_overrides: bool,
}

impl<'a> Scope<'a> {
    pub fn read(reader: &Reader<'_>, layers: &Layers, around: &StepContext<'a>) -> Self {
        let unbound = reader.unbound_inputs(layers, around.prefix, around.takes_overrides);
        let inputs = unbound.iter().map(|input| {
            let bound = reader.bind(input, around.outer).unwrap_or_else(BoundInput::refused);
            (input.name.to_owned(), bound)
        });
        Self {
            step: around.step.to_owned(),
            prefix: around.prefix.to_owned(),
            inputs: inputs.collect(),
            outputs: Self::outputs(reader, layers, around),
            main: None,
            appended: None,
            outer: around.outer,
            undeclared: RefCell::default(),
        }
    }

    pub fn outputs(
        reader: &Reader<'_>,
        layers: &Layers,
        around: &StepContext<'_>,
    ) -> BTreeMap<String, Target> {
        let mut outputs: BTreeMap<String, Target> = BTreeMap::new();
        let all = || layers.0.iter().flat_map(|layer| layer.entries_of("outputs"));
        for (entry, _) in layers.merged("outputs") {
            let name = &entry.key;
            let field = format!("{}outputs.{name}", around.prefix);
            let of_name = all().filter(|(entry, _)| entry.key == *name);
            let layers: Vec<(&Node, &Path)> =
                of_name.map(|(entry, folder)| (&entry.node, folder)).collect();
            let kind = layers
                .iter()
                .find_map(|(node, _)| find(node.entries(), "type"))
                .map_or("", Node::written);
            let path = layers.iter().find_map(|(node, _)| match &node.value {
                Value::Scalar(scalar) if !scalar.is_null() => Some(*node),
                _ => find(node.entries(), "path"),
            });
            let default = || around.outputs.join(name);
            // Its mistake is recorded, so its uses are no further mistakes.
            let refused = || Target::at(default().display().to_string(), kind.to_owned());
            // An output of the pipeline.
            if let Some(node) = path
                && let Some(reference) = expression::only_name(node.written())
                && let Some(wanted) = reference.strip_prefix("parent.outputs.")
            {
                match (around.target)(wanted) {
                    Some(target) => {
                        let of_kind =
                            if kind.is_empty() { target.kind.clone() } else { kind.to_owned() };
                        let file = match of_kind == "uri_file" && target.file.is_none() {
                            true => Some(name.clone()),
                            false => target.file.clone(),
                        };
                        let registered = reader.registered(&field, &layers).or(target.registered);
                        let location = entry.location;
                        outputs.insert(
                            name.clone(),
                            Target { kind: of_kind, file, location, registered, ..target },
                        );
                    }
                    None => {
                        let fault = Fault::new(node, "an output of the pipeline");
                        reader.problems.add(
                            node.location,
                            &field,
                            fault.saying("the pipeline has no such output"),
                        );
                        outputs.insert(name.clone(), refused());
                    }
                }
                continue;
            }
            let known = |wanted: &str| match wanted {
                "name" => Some(around.step.to_owned()),
                "default_datastore" => Some(around.default_store.to_owned()),
                _ => None,
            };
            let target =
                reader.target(name, &field, &layers, default(), &known).unwrap_or_else(refused);
            outputs.insert(name.clone(), Target { location: entry.location, ..target });
        }
        outputs
    }

    /// Returns the type of the input that is divided into mini-batches.
    pub fn main_kind(&self) -> Option<&str> {
        match self.inputs.get(self.main.as_ref()?)? {
            BoundInput::Data(data) => Some(&data.kind),
            BoundInput::Literal(_) | BoundInput::Absent => None,
        }
    }

    /// Returns the text of a name in the job file. `None`: an optional input that is absent.
    pub fn text(&self, name: &str) -> Result<Option<String>, Fault> {
        if let Some(input) = name.strip_prefix("inputs.") {
            return match self.inputs.get(input) {
                Some(BoundInput::Literal(node)) => Ok(Some(node.written().to_owned())),
                Some(BoundInput::Data(_)) if self.main.as_deref() == Some(input) => {
                    Ok(Some(format!("${{{{inputs.{input}}}}}")))
                }
                Some(BoundInput::Data(_)) => Ok(Some(format!("${{{{side_inputs.{input}}}}}"))),
                Some(BoundInput::Absent) => Ok(None),
                None => Err(unknown(name, "inputs", self.inputs.keys())),
            };
        }
        if let Some(output) = name.strip_prefix("outputs.") {
            let Some(target) = self.outputs.get(output) else {
                return Err(unknown(name, "outputs", self.outputs.keys()));
            };
            let folder = match self.appended.as_deref() == Some(output) {
                true => "${{output}}".to_owned(),
                false => format!("${{{{outputs.{output}}}}}"),
            };
            return Ok(Some(
                target
                    .file
                    .as_ref()
                    .map_or_else(|| folder.clone(), |file| format!("{folder}/{file}")),
            ));
        }
        match name {
            "name" => return Ok(Some(self.step.clone())),
            "output_name" | "default_datastore" => {
                return Err(Fault::of(
                    format!("${{{{{name}}}}}"),
                    "this expression in the path of an output alone",
                ));
            }
            _ => {}
        }
        match (self.outer)(name)? {
            BoundInput::Literal(node) => Ok(Some(node.written().to_owned())),
            BoundInput::Absent => Ok(None),
            BoundInput::Data(data) => {
                let own = name.replace('.', "_");
                let text = format!("${{{{side_inputs.{own}}}}}");
                self.undeclared.borrow_mut().insert(own, data);
                Ok(Some(text))
            }
        }
    }

    /// Returns a value with its expressions replaced, parsed again as a number or text.
    pub fn plain(&self, reader: &Reader<'_>, node: &Node, field: &str) -> Option<Node> {
        if !node.written().contains("${{") {
            return Some(node.clone());
        }
        let text = expression::replace(node.written(), &mut |name| self.text(name));
        Some(Node::plain(node.location, &reader.problems.accept(node.location, field, text)?))
    }

    /// Adds `environment_variables`.
    pub fn put_variables(&self, reader: &Reader<'_>, layers: &Layers, job: &mut JobFile) {
        let merged = layers.merged("environment_variables");
        let variables = merged.into_iter().filter_map(|(entry, _)| {
            let field = format!("{}environment_variables.{}", self.prefix, entry.key);
            let node = self.plain(reader, &entry.node, &field)?;
            let node = match node.is_null() {
                true => Node::text(node.location, ""),
                false => node,
            };
            Some(Entry { key: entry.key.clone(), location: entry.location, node })
        });
        let variables: Vec<Entry> = variables.collect();
        job.put_mapping(
            "environment_variables",
            layers.location_of(&["environment_variables"]),
            variables,
        );
    }

    /// Adds `side_inputs`: all data but that of the mini-batches.
    pub fn put_side_inputs(&self, reader: &Reader<'_>, location: Location, job: &mut JobFile) {
        let own = self.inputs.iter().filter_map(|(name, bound)| match bound {
            BoundInput::Data(data) if self.main.as_ref() != Some(name) => {
                Some((name.clone(), data.clone()))
            }
            _ => None,
        });
        let all = own.chain(self.undeclared.borrow().clone());
        let entries =
            all.map(|(name, data)| Entry::text(&name, data.location, &reader.written(&data.text)));
        job.put_mapping("side_inputs", location, entries.collect());
    }

    /// Adds `outputs`: all but the one that rows are appended to.
    pub fn put_outputs(&self, reader: &Reader<'_>, location: Location, job: &mut JobFile) {
        let others = self.outputs.iter().filter(|(name, _)| self.appended.as_ref() != Some(name));
        let entries = others.map(|(name, target)| {
            Entry::text(name, target.location, &reader.written(&target.folder))
        });
        job.put_mapping("outputs", location, entries.collect());
    }

    /// Returns the assets to register once the step has completed.
    pub fn assets(&self) -> Vec<Asset> {
        self.outputs.values().filter_map(Target::asset).collect()
    }

    /// Returns the folders of outputs for which the document names none. The file of appended rows is not among them.
    pub fn default_folders(&self) -> Vec<PathBuf> {
        let others = self.outputs.iter().filter(|(name, _)| self.appended.as_ref() != Some(name));
        let folders =
            others.filter(|(_, target)| !target.is_given).map(|(_, target)| &target.folder);
        folders.map(PathBuf::from).collect()
    }

    /// Returns the steps whose outputs this one reads, and the paths that they make.
    pub fn made_by_others(&self) -> Vec<(String, PathBuf)> {
        let own = self.inputs.values().filter_map(|bound| {
            if let BoundInput::Data(data) = bound { Some(data.clone()) } else { None }
        });
        let undeclared = self.undeclared.borrow().clone();
        let all = own.chain(undeclared.into_values());
        all.filter_map(|data| Some((data.made_by?, PathBuf::from(data.text)))).collect()
    }
}

pub fn unknown<'n>(name: &str, group: &str, names: impl Iterator<Item = &'n String>) -> Fault {
    let names: Vec<String> = names.map(|name| format!("{group}.{name}")).collect();
    let hint = did_you_mean(name, names.iter().map(String::as_str));
    let allowed = if names.is_empty() {
        format!("nothing, because the document has no {group}")
    } else {
        names.join(", ")
    };
    Fault::of(format!("${{{{{name}}}}}"), allowed).saying(format!("unknown name{hint}"))
}
