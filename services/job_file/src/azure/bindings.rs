//! Binds the inputs and outputs of a document.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::expression;
use super::known;
use super::layers::Layers;
use super::reader::Reader;
use super::register::{Asset, is_plain};
use super::versioned::{NameTable, Versioned};
use crate::{Entry, Fault, Location, Node, ScalarKind, Value, find};

/// The value of an input.
#[derive(Clone, Debug)]
pub enum BoundInput {
    Literal(Node),
    Data(Data),
    /// An optional input that is not given.
    Absent,
}

impl BoundInput {
    /// Returns the value of an input whose mistake is recorded, so that its uses are no further mistakes.
    pub fn refused() -> Self {
        Self::Literal(Node::text(Location::File, "-"))
    }
}

/// Data behind an input.
#[derive(Clone, Debug)]
pub struct Data {
    /// An absolute path or a URL.
    pub text: String,
    pub location: Location,
    /// `uri_file`, `uri_folder`, `mltable`, …; empty: unknown.
    pub kind: String,
    pub mode: String,
    /// The step whose output it is.
    pub made_by: Option<String>,
}

pub type Inputs = BTreeMap<String, BoundInput>;

/// The destination of an output.
#[derive(Clone, Debug)]
pub struct Target {
    /// An absolute path or a URL.
    pub folder: String,
    /// Name of the file in the folder, for an output that is a file.
    pub file: Option<String>,
    pub kind: String,
    pub location: Location,
    /// Whether the document gives the path.
    pub is_given: bool,
    /// Name and version under which it is registered.
    pub registered: Option<(String, Option<String>)>,
}

impl Target {
    /// Returns an output that goes to a folder.
    pub fn at(folder: String, kind: String) -> Self {
        Self {
            folder,
            file: None,
            kind,
            location: Location::File,
            is_given: false,
            registered: None,
        }
    }

    /// Returns the asset to register once the step has completed.
    pub fn asset(&self) -> Option<Asset> {
        let (name, version) = self.registered.clone()?;
        let kind = if self.kind.is_empty() { "uri_folder".to_owned() } else { self.kind.clone() };
        Some(Asset { name, version, path: self.path(), kind })
    }

    /// Returns the path of the file, or of the folder.
    pub fn path(&self) -> String {
        match &self.file {
            Some(file) => format!("{}/{file}", self.folder.trim_end_matches('/')),
            None => self.folder.clone(),
        }
    }
}

/// Resolves `${{name}}` of the surroundings of a step.
pub type Outer<'a> = dyn Fn(&str) -> Result<BoundInput, Fault> + 'a;

pub const LITERALS: &[&str] = &["string", "number", "integer", "boolean"];
const DATA: &[&str] = &[
    "uri_file",
    "uri_folder",
    "mltable",
    "path",
    "custom_model",
    "mlflow_model",
    "triton_model",
    "data",
    "model",
];

/// One input: as a component declares it, and as a step gives it.
pub struct UnboundInput<'a> {
    pub name: &'a str,
    pub field: String,
    pub declared: Option<(&'a Entry, &'a Path)>,
    pub given: Option<(&'a Entry, &'a Path)>,
    /// A value of the command line, which takes precedence.
    pub overridden: Option<Node>,
}

impl UnboundInput<'_> {
    /// Returns whether it has a value, or needs none.
    pub fn has_value(&self) -> bool {
        self.given.iter().chain(&self.declared).any(|(entry, _)| match &entry.node.value {
            Value::Scalar(scalar) => !scalar.is_null(),
            Value::Mapping(entries) => {
                ["path", "value", "default"].iter().any(|key| find(entries, key).is_some())
                    || find(entries, "optional")
                        .is_some_and(|node| node.written().trim().eq_ignore_ascii_case("true"))
            }
            Value::List(_) => true,
        })
    }
}

impl Reader<'_> {
    /// Returns the inputs of a step or a pipeline. Those that its component does not have are mistakes.
    /// `takes_overrides`: whether `--input` gives their values.
    pub fn unbound_inputs<'l>(
        &self,
        layers: &'l Layers,
        prefix: &str,
        takes_overrides: bool,
    ) -> Vec<UnboundInput<'l>> {
        let of_layer = |index: usize, name: &str| -> Option<(&'l Entry, &'l Path)> {
            layers.0.get(index)?.entries_of("inputs").find(|(entry, _)| entry.key == name)
        };
        let unbound = layers.merged("inputs").into_iter().filter_map(|(entry, _)| {
            let (name, field) = (entry.key.as_str(), format!("{prefix}inputs.{}", entry.key));
            let (given, declared) = (of_layer(0, name), of_layer(1, name));
            if let (None, Some(component)) = (declared, layers.0.get(1)) {
                let known = component.entries_of("inputs").map(|(entry, _)| entry.key.as_str());
                let fault = Fault::unknown(name, known, "the component has no such input");
                self.problems.add(entry.location, &field, fault);
                return None;
            }
            Some(UnboundInput { name, field, declared, given, overridden: None })
        });
        let mut unbound: Vec<UnboundInput<'l>> = unbound.collect();
        if takes_overrides {
            let names: Vec<&str> = unbound.iter().map(|input| input.name).collect();
            let without = unbound.iter().filter(|input| !input.has_value());
            let without: Vec<&str> = without.map(|input| input.name).collect();
            // The input that `--input VALUE`, without a name, gives.
            let alone = match (&without[..], &names[..]) {
                ([name], _) | ([], [name]) => Some(*name),
                _ => None,
            };
            self.check_overrides(&names, alone.is_some());
            for input in &mut unbound {
                input.overridden = self.overridden(input.name, alone == Some(input.name), &names);
            }
        }
        unbound
    }

    /// Returns the value of an input. `None`: it has a mistake, which is recorded.
    pub fn bind(&self, input: &UnboundInput<'_>, outer: &Outer<'_>) -> Option<BoundInput> {
        for (entry, _) in input.given.iter().chain(&input.declared) {
            if let Value::Mapping(entries) = &entry.node.value {
                self.check_keys(entries, &format!("{}.", input.field), &[known::INPUT]);
            }
        }
        let location =
            input.given.or(input.declared).map_or(Location::File, |(entry, _)| entry.location);
        let refuse = |(at, fault): (Option<Location>, Fault)| {
            self.problems.add(at.unwrap_or(location), &input.field, fault)
        };
        self.bound(input, outer).map_err(refuse).ok()
    }

    fn bound(
        &self,
        input: &UnboundInput<'_>,
        outer: &Outer<'_>,
    ) -> Result<BoundInput, (Option<Location>, Fault)> {
        let declared = input.declared.map_or(&[][..], |(entry, _)| entry.node.entries());
        let own = input.given.map_or(&[][..], |(entry, _)| entry.node.entries());
        let word = |key: &str| {
            find(own, key).or_else(|| find(declared, key)).map_or("", Node::written).trim()
        };
        let (kind, mode) = (word("type").to_lowercase(), word("mode").to_lowercase());
        let known = LITERALS.iter().chain(DATA);
        if !kind.is_empty() && !known.clone().any(|known| *known == kind) {
            let allowed = known.copied().collect::<Vec<_>>().join(", ");
            return Err((
                None,
                Fault::of(format!("{kind:?}"), allowed).saying("unknown type of an input"),
            ));
        }
        let here = self.context.working_directory.as_path();
        let overridden = input.overridden.as_ref().map(|node| (node, here));
        let from_step =
            input.given.filter(|(entry, _)| !entry.node.is_null()).and_then(|(entry, folder)| {
                match &entry.node.value {
                    Value::Scalar(_) => Some((&entry.node, folder)),
                    Value::Mapping(entries) => ["path", "value", "default"]
                        .iter()
                        .find_map(|key| find(entries, key))
                        .map(|node| (node, folder)),
                    Value::List(_) => Some((&entry.node, folder)),
                }
            });
        let from_component = || {
            let (entry, folder) = input.declared?;
            let value = ["default", "path", "value"].iter().find_map(|key| find(declared, key));
            let value = value.or_else(|| {
                entry.node.scalar().filter(|scalar| !scalar.is_null()).map(|_| &entry.node)
            });
            value.map(|node| (node, folder))
        };
        let Some((node, folder)) = overridden.or(from_step).or_else(from_component) else {
            if word("optional").eq_ignore_ascii_case("true") {
                return Ok(BoundInput::Absent);
            }
            let name = input.name;
            let fault = Fault::missing(format!("a value: --input {name}=… gives it for one run"));
            return Err((None, fault.saying(format!("the input {name} has no value"))));
        };
        let at = |fault: Fault| (Some(node.location), fault);
        if node.scalar().is_none() {
            return Err(at(Fault::new(node, "a text, a number, or a mapping with type and path")));
        }
        // The whole value is a reference.
        if let Some(name) = expression::only_name(node.written()) {
            return match outer(&name).map_err(at)? {
                BoundInput::Data(data) => Ok(BoundInput::Data(Data {
                    kind: if kind.is_empty() { data.kind } else { kind },
                    mode: if mode.is_empty() { data.mode } else { mode },
                    ..data
                })),
                bound => Ok(bound),
            };
        }
        let is_overridden = input.overridden.is_some();
        let has_path = find(own, "path").is_some() || find(declared, "path").is_some();
        let is_literal = input.given.is_some_and(|(entry, _)| {
            let text =
                entry.node.scalar().filter(|scalar| !scalar.is_null()).map(|scalar| &scalar.text);
            text.is_some_and(|text| expression::only_name(text).is_none())
        });
        let names_data = || {
            let text = node.written().trim();
            text.contains("://") || text.starts_with("azureml:") || folder.join(text).exists()
        };
        let is_data = DATA.contains(&kind.as_str())
            || kind.is_empty() && (has_path || is_overridden && !is_literal && names_data());
        let mut value = |name: &str| match outer(name)? {
            BoundInput::Literal(node) => Ok(Some(node.written().to_owned())),
            BoundInput::Data(data) => Ok(Some(data.text)),
            BoundInput::Absent => Ok(None),
        };
        if !is_data {
            let text = expression::replace(node.written(), &mut value).map_err(at)?;
            check_literal(&kind, node, &text).map_err(at)?;
            let is_boolean =
                matches!(node.scalar().map(|scalar| scalar.kind), Some(ScalarKind::Boolean(_)));
            let text = if kind == "boolean" || kind.is_empty() && is_boolean {
                as_python(text)
            } else {
                text
            };
            return Ok(BoundInput::Literal(match text == node.written() {
                true => node.clone(),
                false => Node::text(node.location, &text),
            }));
        }
        let text = expression::replace(node.written(), &mut value).map_err(at)?;
        let table = NameTable::of_type(&kind);
        if let Some((step, asset)) = self.announced(text.trim(), table) {
            let kind = if kind.is_empty() { asset.kind } else { kind };
            return Ok(BoundInput::Data(Data {
                text: asset.path,
                location: node.location,
                kind,
                mode,
                made_by: Some(step),
            }));
        }
        let text = self.locate(&Node::text(node.location, &text), folder, table).map_err(at)?;
        Ok(BoundInput::Data(Data { text, location: node.location, kind, mode, made_by: None }))
    }

    /// Returns the asset that an address names, and the earlier step of this document that makes it, unless
    /// `gristmill.toml` has the name.
    fn announced(&self, address: &str, table: NameTable) -> Option<(String, Asset)> {
        let wanted = Versioned::of_address(address, table)?;
        let is_it = |(_, asset): &&(String, Asset)| {
            let version = asset.version.as_deref();
            asset.name == wanted.name
                && NameTable::of_type(&asset.kind) == table
                && wanted.version.is_none_or(|wanted| version == Some(wanted))
        };
        let found = self.announced.borrow().iter().rev().find(is_it).cloned()?;
        self.context.azure.in_tables(wanted, table).is_none().then_some(found)
    }

    /// Returns the name and the version under which an output is registered, and checks its keys.
    pub fn registered(
        &self,
        field: &str,
        entries: &[(&Node, &Path)],
    ) -> Option<(String, Option<String>)> {
        for (node, _) in entries {
            self.check_keys(node.entries(), &format!("{field}."), &[known::OUTPUT]);
        }
        let plain = |key: &str| {
            let node = entries
                .iter()
                .find_map(|(node, _)| find(node.entries(), key))
                .filter(|node| !node.is_null())?;
            let read = match is_plain(node.written().trim()) {
                true => Ok(node.written().trim().to_owned()),
                false => Err(Fault::new(node, "letters, digits, `-`, `_` and `.`")),
            };
            self.problems.accept(node.location, &format!("{field}.{key}"), read)
        };
        let version = plain("version");
        plain("name").map(|name| (name, version))
    }

    /// Returns the destination of an output. `default`: its folder if the document names none; `known`: the values of
    /// `${{name}}` and others in its path.
    pub fn target(
        &self,
        name: &str,
        field: &str,
        entries: &[(&Node, &Path)],
        default: PathBuf,
        known: &dyn Fn(&str) -> Option<String>,
    ) -> Option<Target> {
        let word = |key: &str| {
            entries.iter().find_map(|(node, folder)| Some((find(node.entries(), key)?, *folder)))
        };
        let registered = self.registered(field, entries);
        let kind =
            word("type").map_or(String::new(), |(node, _)| node.written().trim().to_lowercase());
        let location = entries.first().map_or(Location::File, |(node, _)| node.location);
        let is_file = kind == "uri_file";
        let scalar =
            entries.iter().find(|(node, _)| node.scalar().is_some_and(|scalar| !scalar.is_null()));
        let Some((node, folder)) = word("path").or(scalar.map(|(node, folder)| (*node, *folder)))
        else {
            let folder = default.display().to_string();
            let file = is_file.then(|| name.to_owned());
            return Some(Target { folder, file, kind, location, is_given: false, registered });
        };
        let mut value = |wanted: &str| match wanted {
            "output_name" => Ok(Some(name.to_owned())),
            wanted => known(wanted).map(Some).ok_or_else(|| {
                let allowed = "${{name}}, ${{output_name}}, ${{default_datastore}}";
                Fault::of(format!("${{{{{wanted}}}}}"), allowed)
            }),
        };
        let path = expression::replace(node.written(), &mut value).and_then(|text| {
            match self.in_default_store(&text) {
                Some(path) => Ok(path),
                None => self.locate(&Node::text(node.location, &text), folder, NameTable::Data),
            }
        });
        let path = self.problems.accept(node.location, &format!("{field}.path"), path)?;
        let path = path.trim_end_matches('/').to_owned();
        let (folder, file) = match path.rsplit_once('/').filter(|_| is_file) {
            Some((folder, file)) => (folder.to_owned(), Some(file.to_owned())),
            None => (path, None),
        };
        Some(Target { folder, file, kind, location: node.location, is_given: true, registered })
    }

    /// Returns the place of a path of the workspace's own store: below the folder of outputs, unless `gristmill.toml`
    /// has this store.
    fn in_default_store(&self, text: &str) -> Option<String> {
        let (_, rest) =
            text.strip_prefix("azureml:").and_then(|rest| rest.split_once("datastores/"))?;
        let (store, path) = rest.split_once('/')?;
        let is_default =
            store == DEFAULT_STORE && !self.context.azure.datastores.contains_key(store);
        let path = path.strip_prefix("paths/").unwrap_or(path);
        is_default.then(|| self.paths(&self.root).resolve(path).display().to_string())
    }
}

/// The name of the store that every workspace has.
pub const DEFAULT_STORE: &str = "workspaceblobstore";

/// Returns a truth value as `True` or `False`, as the original passes it to scripts, which compare the text.
fn as_python(text: String) -> String {
    match text.trim().to_lowercase().as_str() {
        "true" => "True".to_owned(),
        "false" => "False".to_owned(),
        _ => text,
    }
}

fn check_literal(kind: &str, node: &Node, text: &str) -> Result<(), Fault> {
    let is_valid = match kind {
        "integer" => text.trim().parse::<i64>().is_ok(),
        "number" => text.trim().parse::<f64>().is_ok(),
        "boolean" => ["true", "false"].contains(&text.trim().to_lowercase().as_str()),
        _ => true,
    };
    if is_valid { Ok(()) } else { Err(Fault::new(node, format!("a value of type {kind}"))) }
}
