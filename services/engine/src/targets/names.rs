//! Reads the tables `[azureml.…]` of `gristmill.toml`: the meaning of names in documents of Azure
//! ML.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use anyhow::Result;
use job_file::AzureNames;
use protocol::ItemPath;
use toml::Spanned;
use toml::de::DeValue;

use super::line::{Line, unknown};
use super::variables::{VariableError, replace_variables};

const TABLES: &[&str] = &["datastores", "data", "models", "environments", "components"];

/// Reads the table `azureml`. Paths are relative to the folder of the file.
pub fn read<'a>(
    value: &Spanned<DeValue<'_>>,
    path: &Path,
    at: &impl Fn(Range<usize>) -> Line<'a>,
    variable: &impl Fn(&str) -> Option<String>,
) -> Result<AzureNames> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    let mut names = AzureNames { file: Some(path.to_owned()), ..AzureNames::default() };
    let DeValue::Table(tables) = value.get_ref() else {
        let message = format!("azureml: must be a table with {}", TABLES.join(", "));
        return Err(at(value.span()).error(message));
    };
    for (key, table) in tables {
        let field = format!("azureml.{}", key.get_ref());
        let DeValue::Table(entries) = table.get_ref() else {
            return Err(
                at(table.span()).error(format!("{field}: must be a table of names and paths"))
            );
        };
        let mut read = BTreeMap::new();
        for (name, value) in entries {
            let line = at(value.span());
            let text = match value.get_ref() {
                DeValue::String(text) => text,
                DeValue::Table(_) => {
                    let message =
                        format!("{field}.{}: a name with a dot must be in quotes", name.get_ref());
                    return Err(line.error(message));
                }
                _ => {
                    return Err(line.error(format!(
                        "{field}.{}: must be a path or URL in quotes",
                        name.get_ref()
                    )));
                }
            };
            let text = match replace_variables(text, variable) {
                Ok(text) => text,
                Err(error) => {
                    let is_unset = matches!(error, VariableError::NotSet(_));
                    let error = line.error(format!("{field}.{}: {error}", name.get_ref()));
                    if !is_unset {
                        return Err(error);
                    }
                    let entry = format!("{}.{}", key.get_ref(), name.get_ref());
                    names.unset.insert(entry, error.to_string());
                    continue;
                }
            };
            // A name without a slash may be an interpreter on PATH.
            let is_name = key.get_ref() == "environments"
                && !text.contains('/')
                && !folder.join(&text).exists();
            let place = match ItemPath::from(text.as_str()).is_url() || is_name {
                true => text,
                false => folder.join(text).display().to_string(),
            };
            read.insert(name.get_ref().to_string(), place);
        }
        match key.get_ref().as_ref() {
            "datastores" => names.datastores = read,
            "data" => names.data = read,
            "models" => names.models = read,
            "environments" => names.environments = read,
            "components" => names.components = read,
            other => return Err(unknown(&at(key.span()), other, TABLES)),
        }
    }
    Ok(names)
}
