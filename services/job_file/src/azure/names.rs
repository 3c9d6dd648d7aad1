//! Addresses of Azure ML: data, models, environments and components by name, and folders of data stores. Tables of
//! `gristmill.toml` say what they stand for here; data and models may also be in the register of earlier jobs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::register::Register;
use super::versioned::{NameTable, SUBSCRIPTIONS, Versioned, version_order};
use crate::paths::is_url;
use crate::problem::did_you_mean;
use crate::{Fault, Node, Paths};

/// The tables `[azureml.…]` of `gristmill.toml`, values with absolute paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AzureNames {
    /// Folder or URL of each data store.
    pub datastores: BTreeMap<String, String>,
    /// Path or URL of data by `NAME:VERSION`, or `NAME` for every version.
    pub data: BTreeMap<String, String>,
    /// Folder, file or URL of models.
    pub models: BTreeMap<String, String>,
    /// Interpreter, virtual environment or requirements file of environments.
    pub environments: BTreeMap<String, String>,
    /// File of each component, or a folder of component files.
    pub components: BTreeMap<String, String>,
    /// Why an entry has no value, by `TABLE.NAME`: a variable that it names is not set.
    pub unset: BTreeMap<String, String>,
    /// The `gristmill.toml` with these tables, if there is one.
    pub file: Option<PathBuf>,
    /// The assets that jobs have registered.
    pub register: Register,
}

impl AzureNames {
    /// The variable in which scripts look names up on machines without `gristmill.toml`.
    pub const VARIABLE: &str = "GRISTMILL_AZUREML_NAMES";

    /// Returns the value of this variable, without URLs that have a query, which may be a secret. `None`: no name is
    /// known.
    pub fn for_scripts(&self) -> Option<String> {
        let of = |table: &BTreeMap<String, String>| -> serde_json::Map<String, serde_json::Value> {
            let is_public =
                |(_, place): &(&String, &String)| !(is_url(place) && place.contains('?'));
            table
                .iter()
                .filter(is_public)
                .map(|(name, place)| (name.clone(), place.clone().into()))
                .collect()
        };
        let (datastores, data, models) = (of(&self.datastores), of(&self.data), of(&self.models));
        let is_empty = datastores.is_empty() && data.is_empty() && models.is_empty();
        let tables =
            || serde_json::json!({ "datastores": datastores, "data": data, "models": models });
        (!is_empty).then(|| tables().to_string())
    }

    fn table(&self, table: NameTable) -> &BTreeMap<String, String> {
        match table {
            NameTable::Data => &self.data,
            NameTable::Models => &self.models,
            NameTable::Environments => &self.environments,
            NameTable::Components => &self.components,
        }
    }

    /// Returns the local path or URL of an address: a path relative to `folder`, a URL, or a name that a table has.
    pub fn locate(
        &self,
        node: &Node,
        folder: &Path,
        home: Option<&PathBuf>,
        table: NameTable,
    ) -> Result<String, Fault> {
        let text = node.written().trim();
        if text.is_empty() {
            return Err(Fault::new(node, "a path, a URL, or a name such as azureml:NAME:VERSION"));
        }
        let text =
            text.strip_prefix("file:").filter(|rest| !rest.starts_with("//")).unwrap_or(text);
        let is_id = text.starts_with(SUBSCRIPTIONS);
        if let Some(named) = text.strip_prefix("azureml:").or_else(|| is_id.then_some(text)) {
            return match named.strip_prefix("//").or_else(|| named.strip_prefix(SUBSCRIPTIONS)) {
                Some(address) => self.long_address(address, table),
                // `azureml:azureml://…` and `azureml:./path` occur.
                None if is_url(named) || named.starts_with(['.', '/']) => {
                    self.locate(&Node::text(node.location, named), folder, home, table)
                }
                None => self.named(Versioned::of_name(named), table).map_err(|fault| {
                    // The second SDK writes `azureml:data` for a path without `./`.
                    let is_there = table == NameTable::Data && folder.join(named).exists();
                    let hint = format!("; for data beside the document, write ./{named}");
                    fault.adding(if is_there { &hint } else { "" })
                }),
            };
        }
        if let Some(address) =
            text.strip_prefix("wasbs://").or_else(|| text.strip_prefix("wasb://"))
        {
            return Ok(format!("abfss://{}", address.replacen(".blob.core.", ".dfs.core.", 1)));
        }
        if text.starts_with("adl://") {
            let fault = Fault::new(node, "a path, https://, wasbs://, abfss://, s3://, gs://");
            return Err(fault.saying(
                "adl:// is Azure Data Lake Storage Gen1, which ended in 2024: copy the data to Gen2, and write \
                 abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH",
            ));
        }
        match is_url(text) {
            true => Ok(text.to_owned()),
            false => {
                let paths = Paths::new(folder.to_owned(), home.cloned());
                Ok(paths.resolve(text).display().to_string())
            }
        }
    }

    /// Returns the place of a name: that of the tables, else the registered one.
    pub fn named(&self, wanted: Versioned<'_>, table: NameTable) -> Result<String, Fault> {
        if let Some(unset) = self.unset.get(&format!("{}.{}", table.word(), wanted.key())) {
            return Err(Fault::only(unset.clone()));
        }
        let found = match self.in_tables(wanted, table) {
            None => self.register.find(table, wanted)?,
            found => found,
        };
        found.ok_or_else(|| {
            let what = match table {
                NameTable::Environments => "an interpreter or a requirements file",
                NameTable::Components => "its file, or a folder of component files",
                NameTable::Data | NameTable::Models => "a path or URL",
            };
            let name = match wanted.version {
                None => format!("{}@latest", wanted.name),
                Some(_) => wanted.key(),
            };
            let line = self.missing(table.word(), &wanted.key(), what);
            let (entries, registered) = (self.table(table), self.register.names(table));
            let known = entries.keys().map(|key| key.split(':').next().unwrap_or(key));
            let known = known.chain(registered.iter().map(String::as_str));
            let near = did_you_mean(wanted.name, known.filter(|name| *name != wanted.name));
            Fault::only(format!("azureml:{name} is not known here: {line}{near}"))
        })
    }

    /// Returns the place of a name that a table has.
    pub fn in_tables(&self, wanted: Versioned<'_>, table: NameTable) -> Option<String> {
        let entries = self.table(table);
        let newest = || {
            let versions = entries.iter().filter_map(|(key, value)| {
                let version = key.strip_prefix(wanted.name)?.strip_prefix(':')?;
                Some((version_order(version), value))
            });
            versions.max_by_key(|(order, _)| *order).map(|(_, value)| value)
        };
        let found = entries.get(&wanted.key()).or_else(|| entries.get(wanted.name));
        found.or_else(|| if wanted.version.is_none() { newest() } else { None }).cloned()
    }

    /// Returns the place of an address. `address`: the text after `azureml://`.
    fn long_address(&self, address: &str, table: NameTable) -> Result<String, Fault> {
        let parts: Vec<&str> = address.split('/').collect();
        if let Some(position) = parts.iter().position(|part| *part == "datastores")
            && let [store, rest @ ..] = &parts[position + 1..]
        {
            let path = rest.strip_prefix(&["paths"]).unwrap_or(rest).join("/");
            let Some(base) = self.datastores.get(*store) else {
                let line = self.missing("datastores", store, "a folder or URL");
                return Err(Fault::only(format!(
                    "the data store {store} is not known here: {line}"
                )));
            };
            return Ok(format!("{}/{path}", base.trim_end_matches('/'))
                .trim_end_matches('/')
                .to_owned());
        }
        if let Some(wanted) = Versioned::of_long_address(address, table) {
            return self.named(wanted, table);
        }
        // An input without a type may be a model.
        let model = Versioned::of_long_address(address, NameTable::Models)
            .filter(|_| table == NameTable::Data);
        if let Some(wanted) = model {
            return self.named(wanted, NameTable::Models);
        }
        let what = match table {
            NameTable::Data => "a path of a data store nor data",
            NameTable::Models => "a path of a data store nor a model",
            NameTable::Environments => "a path of a data store nor an environment",
            NameTable::Components => "a path of a data store nor a component",
        };
        Err(Fault::only(format!("azureml://{address} is neither {what}")))
    }

    /// Returns the remedy: a variable to set, or a line to add to `gristmill.toml`.
    fn missing(&self, table: &str, name: &str, what: &str) -> String {
        let without_version = name.split(':').next().unwrap_or(name);
        let unset = |name| self.unset.get(&format!("{table}.{name}"));
        if let Some(unset) = unset(name).or_else(|| unset(without_version)) {
            return unset.clone();
        }
        let is_bare = name
            .chars()
            .all(|character| character.is_ascii_alphanumeric() || "-_".contains(character));
        let key = if is_bare { name.to_owned() } else { format!("{name:?}") };
        let file = match &self.file {
            Some(file) => file.display().to_string(),
            None => "gristmill.toml, a file beside the document, in the working folder or above one of them".to_owned(),
        };
        format!("add `{key} = \"…\"`, {what}, below [azureml.{table}] in {file}")
    }
}
