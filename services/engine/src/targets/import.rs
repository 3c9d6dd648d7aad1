//! Imports a target from the outputs of Terraform as `[targets.NAME]` into a `gristmill.toml` that people edit too.
//!
//! Texts in, texts out: the caller reads and writes the files. No error repeats a text that may hold a password.

use std::cell::RefCell;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::{Map, Value};
use toml_edit::{DocumentMut, Item, Table, TableLike};

use super::file::{KEYS, parse};
use super::variables::replace_variables;
use super::{LOCAL, QueueAddress};
use crate::roles::is_legal;
use job_file::nearest;

const OUTPUT: &str = "target";
/// The target's own name, which is not a key of the file.
const NAME: &str = "name";
/// Keys that Terraform decides, so the import removes one that Terraform leaves out. The others belong to the user unless
/// Terraform sets them.
const DECIDED: &[&str] = &["queue", "store", "region", "endpoint"];
const HOW: &str = "pass the output of `terraform output -json`";

/// A target from Terraform.
#[derive(Debug)]
pub struct TerraformTarget {
    /// Its name, if Terraform sets one.
    pub name: Option<String>,
    /// Keys and values, as they appear in the file.
    keys: Vec<(&'static str, toml_edit::Value)>,
    /// Variables that its texts name.
    pub variables: Vec<String>,
}

/// The effect of an import.
#[derive(Debug, PartialEq, Eq)]
pub enum Imported {
    /// The file has this target already.
    Unchanged,
    /// The new text of the file.
    Changed(String),
    /// The file has a target of this name, and these keys of it differ.
    Differs(Vec<&'static str>),
}

impl TerraformTarget {
    /// Reads the output of `terraform output -json` or `terraform output -json target`.
    pub fn read(text: &str) -> Result<Self> {
        ensure!(
            !text.trim().is_empty(),
            "the input is empty; if `terraform output` failed, its message says why; otherwise {HOW}"
        );
        let outputs: Value = serde_json::from_str(text)
            .map_err(|error| anyhow!("not valid JSON ({error}); {HOW}"))?;
        let Value::Object(outputs) = outputs else {
            bail!("found {} instead of a JSON object; {HOW}", kind(&outputs))
        };
        let is_target = outputs.contains_key("queue") || outputs.contains_key("store");
        let (output, value) =
            match (outputs.get(OUTPUT), outputs.get(OUTPUT).and_then(|output| output.get("value")))
            {
                (Some(output), Some(value)) => (output, value),
                _ if is_target => return Self::from_target(&outputs),
                (Some(output), None) => {
                    bail!("output {OUTPUT:?} is {} without a value; {HOW}", kind(output))
                }
                (None, _) if outputs.is_empty() => {
                    bail!("there are no outputs; run `terraform apply` in that folder first")
                }
                (None, _) => {
                    let names: Vec<&str> = outputs.keys().map(String::as_str).collect();
                    bail!(
                        "there is no output {OUTPUT:?} (there are: {}); {HOW} of an environment",
                        names.join(", ")
                    )
                }
            };
        ensure!(
            output.get("sensitive") != Some(&Value::Bool(true)),
            "output {OUTPUT:?} is marked as sensitive, but a target must not hold a secret; let `queue` name a variable, as in \
             amqps://USER:${{BROKER_PASSWORD}}@HOST, and remove the mark"
        );
        match value {
            Value::Object(target) => Self::from_target(target),
            other => bail!(
                "output {OUTPUT:?} is {} instead of an object with queue and store",
                kind(other)
            ),
        }
    }

    fn from_target(target: &Map<String, Value>) -> Result<Self> {
        let mut given = Self { name: None, keys: Vec::new(), variables: Vec::new() };
        for (key, value) in target {
            let text = match value {
                Value::Null => continue,
                Value::String(text) if text.is_empty() => {
                    bail!("{OUTPUT}.{key} is empty; write null to leave it out")
                }
                Value::String(text) => text,
                Value::Number(number) if key == "lease_seconds" => {
                    let seconds = number
                        .as_i64()
                        .with_context(|| format!("{OUTPUT}.{key} is not a number of seconds"))?;
                    given.keys.push(("lease_seconds", seconds.into()));
                    continue;
                }
                other => bail!("{OUTPUT}.{key} is {} instead of a text", kind(other)),
            };
            let variables = RefCell::new(Vec::new());
            let replaced = replace_variables(text, &|name: &str| {
                variables.borrow_mut().push(name.to_owned());
                Some("x".to_owned())
            });
            let replaced = replaced.map_err(|error| anyhow!("{OUTPUT}.{key}: {error}"))?;
            if key == NAME {
                given.name = Some(text.clone());
                continue;
            }
            let Some(key) = KEYS.iter().find(|known| *known == key) else {
                let hint = nearest(key, KEYS.iter().copied());
                let hint =
                    hint.map_or(String::new(), |nearest| format!(", did you mean {nearest:?}?"));
                bail!("{OUTPUT}.{key}: unknown key{hint} (allowed: {NAME}, {})", KEYS.join(", "));
            };
            if *key == "queue" {
                QueueAddress::parse(&replaced, Path::new("/"))
                    .with_context(|| format!("{OUTPUT}.queue"))?;
                ensure!(
                    !has_password(text),
                    "{OUTPUT}.queue holds a password; let it name a variable, as in amqps://USER:${{BROKER_PASSWORD}}@HOST"
                );
            }
            given.variables.extend(variables.into_inner());
            given.keys.push((key, text.as_str().into()));
        }
        for key in ["queue", "store"] {
            ensure!(
                given.get(key).is_some(),
                "{OUTPUT}.{key} is missing; a target consists of a queue and a store"
            );
        }
        given.keys.sort_by_key(|(key, _)| KEYS.iter().position(|known| known == key));
        Ok(given)
    }

    fn get(&self, key: &str) -> Option<&toml_edit::Value> {
        self.keys.iter().find(|(known, _)| *known == key).map(|(_, value)| value)
    }

    /// Inserts the target into the text of a file, and keeps the rest of the text. Replaces differing keys of a target of
    /// that name only if `replace` is set.
    pub fn import(&self, name: &str, path: &Path, text: &str, replace: bool) -> Result<Imported> {
        ensure!(
            name != LOCAL && is_legal(name),
            "{name:?} is not a valid name of a target: 1 to 64 letters, digits, `-`, `_` and `.`; {LOCAL:?} means this machine"
        );
        let placeholder = |_: &str| Some("x".to_owned());
        parse(path, text, placeholder).context("nothing was written")?;
        let mut document: DocumentMut =
            text.parse().with_context(|| format!("read {}", path.display()))?;
        let is_there = document.get("targets").and_then(|targets| targets.get(name)).is_some();
        if !is_there {
            self.append(name, &mut document);
        } else {
            let target = document["targets"][name].as_table_like_mut().expect("checked above");
            let (differing, is_changed) = self.compare(target);
            if !differing.is_empty() && !replace {
                return Ok(Imported::Differs(differing));
            }
            if !is_changed {
                return Ok(Imported::Unchanged);
            }
            self.update(target);
        }
        let text = document.to_string();
        parse(path, &text, placeholder).context("nothing was written")?;
        Ok(Imported::Changed(text))
    }

    /// Returns the keys that have another value, and whether anything changes at all.
    fn compare(&self, target: &dyn TableLike) -> (Vec<&'static str>, bool) {
        let mut differing = Vec::new();
        let mut is_changed = false;
        for key in KEYS {
            let (known, given) = (target.get(key).and_then(Item::as_value), self.get(key));
            match (known, given) {
                (Some(known), Some(given)) if !is_same(known, given) => differing.push(*key),
                (Some(_), None) if DECIDED.contains(key) => differing.push(key),
                (None, Some(_)) => is_changed = true,
                _ => {}
            }
        }
        is_changed |= !differing.is_empty();
        (differing, is_changed)
    }

    fn update(&self, target: &mut dyn TableLike) {
        for key in DECIDED.iter().filter(|key| self.get(key).is_none()) {
            target.remove(key);
        }
        for (key, value) in &self.keys {
            match target.get_mut(key).and_then(Item::as_value_mut) {
                Some(known) if is_same(known, value) => {}
                // A comment behind the value stays.
                Some(known) => {
                    *known = value.clone().decorated(
                        known.decor().prefix().cloned().unwrap_or_default(),
                        known.decor().suffix().cloned().unwrap_or_default(),
                    )
                }
                None => drop(target.insert(key, Item::Value(value.clone()))),
            }
        }
    }

    fn append(&self, name: &str, document: &mut DocumentMut) {
        let mut table = Table::new();
        for (key, value) in &self.keys {
            table.insert(key, Item::Value(value.clone()));
        }
        let trailing = document.trailing().as_str().unwrap_or_default().to_owned();
        document.set_trailing("");
        let blank = if document.is_empty() && trailing.is_empty() { "" } else { "\n" };
        table.decor_mut().set_prefix(format!("{trailing}{blank}"));
        let targets = document.entry("targets").or_insert_with(|| {
            let mut targets = Table::new();
            targets.set_implicit(true);
            Item::Table(targets)
        });
        targets.as_table_like_mut().expect("checked before").insert(name, Item::Table(table));
    }
}

fn is_same(known: &toml_edit::Value, given: &toml_edit::Value) -> bool {
    match (known.as_str(), given.as_str()) {
        (Some(known), Some(given)) => known == given,
        _ => known.as_integer().is_some() && known.as_integer() == given.as_integer(),
    }
}

/// Whether an address holds a password rather than the name of a variable.
fn has_password(address: &str) -> bool {
    let user_info = address.split_once("://").and_then(|(_, rest)| rest.rsplit_once('@'));
    let password = user_info
        .and_then(|(user_info, _)| user_info.split_once(':'))
        .map_or("", |(_, password)| password);
    let is_variable = password.starts_with("${") && password.find('}') == Some(password.len() - 1);
    !password.is_empty() && !is_variable
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests;
