//! Addresses of Azure ML: data, models and environments by name, and folders of data stores. Tables of `gristmill.toml`
//! say what they stand for here.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::paths::is_url;
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
}

/// What a name is looked up for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameTable {
    Data,
    Models,
    Environments,
}

impl NameTable {
    fn word(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Models => "models",
            Self::Environments => "environments",
        }
    }
}

/// The id of anything in a workspace, `/subscriptions/ID/resourceGroups/…`, begins with it.
const SUBSCRIPTIONS: &str = "/subscriptions/";

impl AzureNames {
    /// The variable in which scripts look names up on machines without `gristmill.toml`.
    pub const VARIABLE: &str = "GRISTMILL_AZUREML_NAMES";

    /// Returns the value of this variable, without URLs that have a query, which may be a secret. `None`: no name is known.
    pub fn for_scripts(&self) -> Option<String> {
        let of = |table: &BTreeMap<String, String>| -> serde_json::Map<String, serde_json::Value> {
            let is_public = |(_, place): &(&String, &String)| !(is_url(place) && place.contains('?'));
            table.iter().filter(is_public).map(|(name, place)| (name.clone(), place.clone().into())).collect()
        };
        let (datastores, data, models) = (of(&self.datastores), of(&self.data), of(&self.models));
        let is_empty = datastores.is_empty() && data.is_empty() && models.is_empty();
        let tables = || serde_json::json!({ "datastores": datastores, "data": data, "models": models });
        (!is_empty).then(|| tables().to_string())
    }

    fn table(&self, table: NameTable) -> &BTreeMap<String, String> {
        match table {
            NameTable::Data => &self.data,
            NameTable::Models => &self.models,
            NameTable::Environments => &self.environments,
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
        let text = text.strip_prefix("file:").filter(|rest| !rest.starts_with("//")).unwrap_or(text);
        let is_id = text.starts_with(SUBSCRIPTIONS);
        if let Some(named) = text.strip_prefix("azureml:").or_else(|| is_id.then_some(text)) {
            return match named.strip_prefix("//").or_else(|| named.strip_prefix(SUBSCRIPTIONS)) {
                Some(address) => self.long_address(address, table),
                // `azureml:azureml://…` and `azureml:./path` occur.
                None if is_url(named) || named.starts_with(['.', '/']) => {
                    self.locate(&Node::text(node.location, named), folder, home, table)
                }
                None => self.named(named, table),
            };
        }
        if let Some(address) = text.strip_prefix("wasbs://").or_else(|| text.strip_prefix("wasb://")) {
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

    /// `NAME:VERSION`, `NAME@latest`, `NAME`.
    pub fn named(&self, name: &str, table: NameTable) -> Result<String, Fault> {
        let entries = self.table(table);
        let (plain, version) = match (name.split_once('@'), name.rsplit_once(':')) {
            (Some((plain, label)), _) => (plain, Some(label)),
            (None, Some((plain, version))) => (plain, Some(version)),
            (None, None) => (name, None),
        };
        let newest = || {
            let versions = entries.iter().filter_map(|(key, value)| {
                let version = key.strip_prefix(plain)?.strip_prefix(':')?;
                Some((version.parse::<u64>().ok(), version, value))
            });
            versions.max_by_key(|(number, version, _)| (*number, *version)).map(|(.., value)| value)
        };
        let wants_newest = version.is_none_or(|version| version == "latest");
        let found = entries.get(name).or_else(|| entries.get(plain));
        let found = found.or_else(|| if wants_newest { newest() } else { None });
        found.cloned().ok_or_else(|| {
            let what = match table {
                NameTable::Environments => "an interpreter or a requirements file",
                NameTable::Data | NameTable::Models => "a path or URL",
            };
            Fault::only(format!("azureml:{name} is not known here: {}", missing(table.word(), name, what)))
        })
    }

    /// What follows `azureml://`.
    fn long_address(&self, address: &str, table: NameTable) -> Result<String, Fault> {
        let parts: Vec<&str> = address.split('/').collect();
        let behind = |word: &str| {
            let position = parts.iter().position(|part| *part == word)?;
            parts.get(position + 1).map(|name| (*name, &parts[position + 2..]))
        };
        if let Some((store, rest)) = behind("datastores") {
            let path = rest.strip_prefix(&["paths"]).unwrap_or(rest).join("/");
            let Some(base) = self.datastores.get(store) else {
                let line = missing("datastores", store, "a folder or URL");
                return Err(Fault::only(format!("the data store {store} is not known here: {line}")));
            };
            return Ok(format!("{}/{path}", base.trim_end_matches('/')).trim_end_matches('/').to_owned());
        }
        for word in ["data", "models", "environments", "components"] {
            let Some((name, rest)) = behind(word) else { continue };
            if word == "components" {
                break;
            }
            let full = match rest {
                ["versions", version, ..] => format!("{name}:{version}"),
                ["labels", label, ..] => format!("{name}@{label}"),
                _ => name.to_owned(),
            };
            return self.named(&full, table);
        }
        let message =
            format!("azureml://{address} is neither a path of a data store nor data, a model or an environment");
        Err(Fault::only(message))
    }
}

/// Returns what to add to `gristmill.toml`.
fn missing(table: &str, name: &str, what: &str) -> String {
    let is_bare = name.chars().all(|character| character.is_ascii_alphanumeric() || "-_".contains(character));
    let key = if is_bare { name.to_owned() } else { format!("{name:?}") };
    format!("add `{key} = \"…\"`, {what}, below [azureml.{table}] in gristmill.toml")
}
