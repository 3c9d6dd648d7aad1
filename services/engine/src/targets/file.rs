//! Reads `gristmill.toml`, the file of targets. Reports the first mistake, with its line.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use job_file::{AzureNames, nearest};
use protocol::ItemPath;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::address::LEASE_SECONDS_MIN;
use super::variables::{VariableError, names_in, replace_variables};

/// Name of the file.
pub const FILE_NAME: &str = "gristmill.toml";
/// Keys of a target.
pub const KEYS: &[&str] = &[
    "queue",
    "store",
    "region",
    "endpoint",
    "python",
    "lease_seconds",
    "management",
    "pass_environment",
];

/// The tables `[azureml.…]`: the meaning of names in documents of Azure ML.
const TABLES: &[&str] = &["datastores", "data", "models", "environments", "components"];

/// A table `[targets.NAME]` as written, with variables replaced and values not yet parsed; `queue` with its line.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct TargetTable {
    /// Address of the queues, and its line.
    pub queue: Option<(String, usize)>,
    /// URL or folder of the store.
    pub store: Option<String>,
    /// Region of AWS.
    pub region: Option<String>,
    /// Endpoint of AWS services.
    pub endpoint: Option<String>,
    /// Management API of the broker.
    pub management: Option<String>,
    /// Interpreter of the nodes.
    pub python: Option<String>,
    /// How long the broker lets a consumer hold a delivery.
    pub lease_seconds: Option<u64>,
    /// Environment variables of a worker that scripts get.
    pub pass_environment: Vec<String>,
    /// Environment variables from which the address of the broker is made, which scripts never get.
    pub secret_variables: Vec<String>,
    /// The error about the first of its variables that is not set. Other targets can be used.
    pub unset: Option<String>,
}

/// A file of targets.
#[derive(Default)]
pub struct TargetsFile {
    /// Its path; `None`: there is no file.
    pub path: Option<PathBuf>,
    /// The targets by name.
    pub targets: BTreeMap<String, TargetTable>,
    /// The tables `[azureml.…]`.
    pub azure: AzureNames,
}

/// Returns the file that takes effect: the named one, else the nearest in or above `folder`, else in or above the folder of
/// the document, else the user's own.
pub fn find(
    named: Option<&Path>,
    folder: &Path,
    document_folder: Option<&Path>,
    user_folder: Option<&Path>,
) -> Option<PathBuf> {
    if let Some(named) = named {
        return Some(folder.join(named));
    }
    let own = user_folder.map(|user| user.join(".config/gristmill").join(FILE_NAME));
    let folders = folder.ancestors().chain(document_folder.into_iter().flat_map(Path::ancestors));
    folders.map(|folder| folder.join(FILE_NAME)).chain(own).find(|path| path.is_file())
}

/// Reads the file. `variable` returns the value of an environment variable.
pub fn read(path: &Path, variable: impl Fn(&str) -> Option<String>) -> Result<TargetsFile> {
    let text = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    parse(path, &text, variable)
}

/// Like [`read`], for the text of the file.
pub fn parse(
    path: &Path,
    text: &str,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<TargetsFile> {
    let at = |span: Range<usize>| Line {
        path,
        number: text[..span.start.min(text.len())].matches('\n').count() + 1,
    };
    let top = DeTable::parse(text).map_err(|error| {
        let message = error.message().trim().replace('\n', "; ");
        at(error.span().unwrap_or_default()).error(format!("not valid TOML: {message}"))
    })?;
    let azure = AzureNames { file: Some(path.to_owned()), ..AzureNames::default() };
    let mut file = TargetsFile { path: Some(path.to_owned()), azure, ..TargetsFile::default() };
    for (key, value) in top.get_ref() {
        match key.get_ref().as_ref() {
            "targets" => {}
            "azureml" => {
                file.azure = read_names(value, path, &at, &variable)?;
                continue;
            }
            other => return Err(unknown(&at(key.span()), other, &["targets", "azureml"])),
        }
        for (name, target) in table(value, &at(value.span()), "targets")? {
            let field = format!("targets.{}", name.get_ref());
            if name.get_ref() == super::LOCAL {
                return Err(at(name.span())
                    .error(format!("{field}: this name stands for this machine; choose another")));
            }
            let entry =
                read_target(table(target, &at(target.span()), &field)?, &field, &at, &variable)?;
            file.targets.insert(name.get_ref().to_string(), entry);
        }
    }
    Ok(file)
}

fn read_target<'a>(
    keys: &DeTable<'_>,
    field: &str,
    at: &impl Fn(Range<usize>) -> Line<'a>,
    variable: &impl Fn(&str) -> Option<String>,
) -> Result<TargetTable> {
    let mut entry = TargetTable::default();
    for (key, value) in keys {
        let (name, line) = (key.get_ref().as_ref(), at(value.span()));
        if !KEYS.contains(&name) {
            return Err(unknown(&at(key.span()), name, KEYS));
        }
        if name == "lease_seconds" {
            let seconds =
                value.get_ref().as_integer().and_then(|digits| digits.as_str().parse().ok());
            let fault =
                || line.error(format!("{field}.{name}: must be a number of seconds, at least 60"));
            entry.lease_seconds =
                Some(seconds.filter(|seconds| *seconds >= LEASE_SECONDS_MIN).ok_or_else(fault)?);
            continue;
        }
        let DeValue::String(text) = value.get_ref() else {
            return Err(line.error(format!("{field}.{name}: must be a text in quotes")));
        };
        if matches!(name, "queue" | "management") {
            entry.secret_variables.extend(names_in(text));
        }
        let text = match replace_variables(text, variable) {
            Ok(text) => text,
            Err(error) => {
                let is_unset = matches!(error, VariableError::NotSet(_));
                let error = line.error(format!("{field}.{name}: {error}"));
                if !is_unset {
                    return Err(error);
                }
                entry.unset.get_or_insert(error.to_string());
                continue;
            }
        };
        match name {
            "queue" => entry.queue = Some((text, line.number)),
            "store" => entry.store = Some(text),
            "region" => entry.region = Some(text),
            "endpoint" => entry.endpoint = Some(text),
            "management" => entry.management = Some(text),
            "pass_environment" => entry.pass_environment = super::variable_names(&text),
            _ => entry.python = Some(text),
        }
    }
    Ok(entry)
}

fn table<'t, 'i>(
    value: &'t Spanned<DeValue<'i>>,
    line: &Line<'_>,
    field: &str,
) -> Result<&'t DeTable<'i>> {
    match value.get_ref() {
        DeValue::Table(table) => Ok(table),
        _ => Err(line
            .error(format!("{field}: must be a table, [targets.NAME] with {}", KEYS.join(", ")))),
    }
}

/// Reads the table `azureml`. Paths are relative to the folder of the file.
fn read_names<'a>(
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

/// A place in the file.
struct Line<'a> {
    path: &'a Path,
    number: usize,
}

impl Line<'_> {
    fn error(&self, message: String) -> anyhow::Error {
        anyhow!("{}:{}: {message}", self.path.display(), self.number)
    }
}

fn unknown(line: &Line<'_>, key: &str, allowed: &[&str]) -> anyhow::Error {
    let hint = nearest(key, allowed.iter().copied())
        .map_or(String::new(), |nearest| format!(", did you mean {nearest:?}?"));
    line.error(format!("unknown key {key:?}{hint} (allowed: {})", allowed.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Result<TargetsFile> {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join(FILE_NAME);
        std::fs::write(&path, text).expect("writable");
        let variables = |name: &str| (name == "PASSWORD").then(|| "p@ss/word".to_owned());
        let here = folder.path().to_string_lossy();
        let mut file = read(&path, variables)
            .map_err(|error| anyhow!("{}", error.to_string().replace(&*here, "")))?;
        for target in file.targets.values_mut() {
            target.unset = target.unset.take().map(|unset| unset.replace(&*here, ""));
        }
        Ok(file)
    }

    #[test]
    fn variables_in_targets_are_replaced() {
        let text = "[targets.a]\nqueue = 'sqs://a'\nstore = \"s3://${PASSWORD}\"\nendpoint = 'http://127.0.0.1:4566'\n\
                    [targets.b]\nqueue = 'amqp://me:${PASSWORD}@host/'\n";
        let file = read_text(text).expect("valid");
        assert_eq!(file.targets["a"].queue, Some(("sqs://a".to_owned(), 2)));
        assert_eq!(file.targets["a"].store.as_deref(), Some("s3://p@ss/word"));
        assert_eq!(file.targets["a"].endpoint.as_deref(), Some("http://127.0.0.1:4566"));
        assert_eq!(
            file.targets["b"].queue.as_ref().expect("given").0,
            "amqp://me:p%40ss%2Fword@host/"
        );
    }

    #[test]
    fn variable_that_is_not_set_blocks_only_its_target() {
        let text = "[targets.a]\nqueue = 'amqp://u:${NONE}@h/'\nstore = 's3://${NOTHING}'\n[targets.b]\nstore = 's3://b'\n";
        let file = read_text(text).expect("the other target can be used");
        assert_eq!(file.targets["b"].unset, None);
        assert_eq!(
            file.targets["a"].unset.as_deref(),
            Some("/gristmill.toml:2: targets.a.queue: the environment variable NONE is not set")
        );
    }

    #[test]
    fn variable_that_is_not_set_blocks_only_its_name_of_azure() {
        let text =
            "[azureml.data]\nx = 's3://${NONE}/x'\ny = 's3://b/y'\n[targets.b]\nstore = 's3://b'\n";
        let names = read_text(text).expect("the other names can be used").azure;
        assert_eq!(names.data.keys().collect::<Vec<_>>(), ["y"]);
        let unset = &names.unset["data.x"];
        let said = "gristmill.toml:2: azureml.data.x: the environment variable NONE is not set";
        assert!(unset.ends_with(said), "{unset}");
    }

    #[test]
    fn mistakes_in_names_of_azure_say_what_to_write() {
        let refused = |text: &str| read_text(text).map(drop).expect_err(text).to_string();
        let dotted = refused("[azureml.environments]\nAzureML-sklearn-1.0 = 'python3'\n");
        assert!(
            dotted.ends_with("environments.AzureML-sklearn-1: a name with a dot must be in quotes"),
            "{dotted}"
        );
        let number = refused("[azureml.data]\nx = 1\n");
        assert!(number.ends_with("azureml.data.x: must be a path or URL in quotes"), "{number}");
    }

    #[test]
    fn variables_of_the_broker_are_known_by_name() {
        let text = "[targets.a]\nqueue = 'amqp://${PASSWORD}:${PASSWORD}@host/'\nstore = 's3://${PASSWORD}'\n\
                    pass_environment = 'HF_TOKEN, AWS_*'\n";
        let target = &read_text(text).expect("valid").targets["a"];
        assert_eq!(target.secret_variables, ["PASSWORD", "PASSWORD"]);
        assert_eq!(target.pass_environment, ["HF_TOKEN", "AWS_*"]);
        assert!(
            read_text("[targets.a]\nstore = 's3://${PASSWORD}'\n").expect("valid").targets["a"]
                .secret_variables
                .is_empty()
        );
    }

    #[test]
    fn mistake_is_reported_with_line_and_remedy() {
        for (text, expected) in [
            (
                "[targets.a]\nqeue = 'sqs://a'\n",
                "/gristmill.toml:2: unknown key \"qeue\", did you mean \"queue\"?",
            ),
            (
                "\n[target.a]\nqueue = 'sqs://a'\n",
                "/gristmill.toml:2: unknown key \"target\", did you mean \"targets\"?",
            ),
            ("[targets.a]\nqueue = 3\n", "/gristmill.toml:2: targets.a.queue: must be a text"),
            ("[targets.a\n", "/gristmill.toml:1: not valid TOML"),
            ("[targets.local]\n", "this name stands for this machine"),
            (
                "[targets.a]\nlease_seconds = '1h'\n",
                ":2: targets.a.lease_seconds: must be a number of seconds",
            ),
            ("targets = 1\n", ":1: targets: must be a table"),
        ] {
            let message = read_text(text).err().expect(text).to_string();
            assert!(message.contains(expected), "{message}");
            assert!(!message.contains('\n'), "{message}");
        }
    }

    #[test]
    fn nearest_file_takes_precedence_over_the_users_own() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let user = folder.path().join("user");
        let (own, deep) = (user.join(".config/gristmill"), folder.path().join("project/jobs"));
        std::fs::create_dir_all(&own).expect("writable");
        std::fs::create_dir_all(&deep).expect("writable");
        std::fs::write(own.join(FILE_NAME), "").expect("writable");
        assert_eq!(find(None, &deep, None, Some(&user)), Some(own.join(FILE_NAME)));
        let nearer = folder.path().join("project").join(FILE_NAME);
        std::fs::write(&nearer, "").expect("writable");
        assert_eq!(find(None, &deep, None, Some(&user)), Some(nearer.clone()));
        assert_eq!(
            find(Some(Path::new("other.toml")), &deep, None, Some(&user)),
            Some(deep.join("other.toml"))
        );
        // That of the document, unless the working folder has one.
        let elsewhere = folder.path().join("elsewhere");
        assert_eq!(find(None, &elsewhere, Some(&deep), Some(&user)), Some(nearer.clone()));
        let here = folder.path().join("elsewhere").join(FILE_NAME);
        std::fs::create_dir_all(&elsewhere).expect("writable");
        std::fs::write(&here, "").expect("writable");
        assert_eq!(find(None, &elsewhere, Some(&deep), Some(&user)), Some(here));
    }
}
