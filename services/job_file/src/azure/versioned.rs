//! Names with versions, and the tables in which they are looked up.

use crate::paths::is_url;

/// The beginning of the id of everything in a workspace: `/subscriptions/ID/resourceGroups/…`.
pub const SUBSCRIPTIONS: &str = "/subscriptions/";

/// The kind of a name to look up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameTable {
    Data,
    Models,
    Environments,
    Components,
}

impl NameTable {
    /// Returns its name in `gristmill.toml` and in addresses.
    pub fn word(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Models => "models",
            Self::Environments => "environments",
            Self::Components => "components",
        }
    }

    /// Returns the table for data of a type: `mlflow_model`, `uri_folder`, ….
    pub fn of_type(kind: &str) -> Self {
        if kind.ends_with("model") { Self::Models } else { Self::Data }
    }
}

/// A name with its version; `None`: the newest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versioned<'a> {
    pub name: &'a str,
    pub version: Option<&'a str>,
}

impl<'a> Versioned<'a> {
    /// Reads `azureml:NAME:VERSION`, `azureml:NAME@latest`, `azureml://…/data/NAME/versions/VERSION` and the id of an
    /// asset in a subscription. `None`: another address.
    pub fn of_address(text: &'a str, table: NameTable) -> Option<Self> {
        let named = text.strip_prefix("azureml:").unwrap_or(text);
        if let Some(address) =
            named.strip_prefix("//").or_else(|| named.strip_prefix(SUBSCRIPTIONS))
        {
            return Self::of_long_address(address, table);
        }
        let is_name = named.len() < text.len() && !is_url(named) && !named.starts_with(['.', '/']);
        is_name.then(|| Self::of_name(named))
    }

    /// Reads `NAME:VERSION`, `NAME@latest`, `NAME`.
    pub fn of_name(name: &'a str) -> Self {
        let (name, version) = match (name.split_once('@'), name.rsplit_once(':')) {
            (Some((name, label)), _) => (name, Some(label)),
            (None, Some((name, version))) => (name, Some(version)),
            (None, None) => (name, None),
        };
        Self { name, version: version.filter(|version| *version != "latest") }
    }

    /// Reads what follows `azureml://` or `/subscriptions/`: `…/data/NAME/versions/VERSION`,
    /// `…/data/NAME/labels/latest`. `None`: a path of a data store, or the address of something else.
    pub fn of_long_address(address: &'a str, table: NameTable) -> Option<Self> {
        if address.split('/').any(|part| part == "datastores") {
            return None;
        }
        let mut parts = address.split('/').skip_while(|part| *part != table.word()).skip(1);
        let name = parts.next().filter(|name| !name.is_empty())?;
        let version = match (parts.next(), parts.next()) {
            (Some("versions"), Some(version)) => Some(version),
            (Some("labels"), Some(label)) => Some(label).filter(|label| *label != "latest"),
            _ => None,
        };
        Some(Self { name, version })
    }

    /// Returns the key of a table.
    pub fn key(&self) -> String {
        self.version
            .map_or_else(|| self.name.to_owned(), |version| format!("{}:{version}", self.name))
    }
}

/// Orders versions: numbers by their size, after all texts.
pub fn version_order(version: &str) -> (Option<u64>, &str) {
    (version.parse().ok(), version)
}
