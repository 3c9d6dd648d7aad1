//! `environment` and `environment_variables`: the Python that runs the script, and the variables of its processes.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use protocol::{CONDA_TOOLS, CondaFile, Environment, ItemPath};

use crate::arguments::Placeholders;
use crate::keys::ENVIRONMENT;
use crate::paths::unusable;
use crate::values::{text, word};
use crate::{Context, Fault, Node, Paths, Section, Value, requirements};

const ALLOWED: &str = "a Python interpreter, the folder of a virtual environment, a requirements file (.txt), a \
                       pyproject.toml or a conda file (.yml); or a mapping with python and requirements";

/// Reads `environment`. The default is the interpreter of the caller, or that of the nodes if the job runs `elsewhere`.
pub fn read_environment(
    top: &Section<'_>,
    paths: &Paths,
    context: &Context,
    elsewhere: bool,
) -> Environment {
    let python = Python { paths, context, elsewhere };
    let default = || match elsewhere {
        true => Environment::Node,
        false => Environment::Interpreter { path: python.default_base() },
    };
    let Some(node) = top.get("environment") else { return default() };
    match &node.value {
        Value::Scalar(_) => {
            top.value("environment", |node| one_value(node, &python)).unwrap_or_else(default)
        }
        Value::Mapping(_) => {
            let section = Section::nested(ENVIRONMENT, "environment", node, top.problems);
            let named =
                section.value("python", |node| interpreter(node, &python)).map(ItemPath::from);
            match (section.value("requirements", |node| requirements(node, &python)), named) {
                (Some(file), named) => {
                    let base = named.unwrap_or_else(|| python.default_base());
                    Environment::Requirements { file: ItemPath::from(file), base }
                }
                (None, Some(path)) => Environment::Interpreter { path },
                (None, None) => default(),
            }
        }
        Value::List(_) => {
            top.refuse("environment", node.location, Fault::new(node, ALLOWED));
            default()
        }
    }
}

/// Replaces the interpreter of the nodes by that of this machine.
pub fn choose_here(environment: &mut Environment, context: &Context) {
    let here = ItemPath::from(context.interpreter.as_path());
    match environment {
        Environment::Node => *environment = Environment::Interpreter { path: here },
        Environment::Requirements { base, .. } if base.as_bytes().is_empty() => *base = here,
        Environment::Requirements { .. } | Environment::Interpreter { .. } => {}
    }
}

/// The places where an interpreter is looked up.
struct Python<'a> {
    paths: &'a Paths,
    context: &'a Context,
    elsewhere: bool,
}

impl Python<'_> {
    /// Returns the interpreter that makes virtual environments if the job names none; empty: that of the node.
    fn default_base(&self) -> ItemPath {
        match self.elsewhere {
            true => ItemPath::from(""),
            false => ItemPath::from(self.context.interpreter.as_path()),
        }
    }
}

fn one_value(node: &Node, python: &Python<'_>) -> Result<Environment, Fault> {
    let text = word(node)?;
    if is_requirements(&text) {
        let base = python.default_base();
        return requirements(node, python)
            .map(|file| Environment::Requirements { file: ItemPath::from(file), base });
    }
    interpreter(node, python).map(|path| Environment::Interpreter { path: ItemPath::from(path) })
}

/// The remedy for conda files that are so old that their packages cannot be installed any more.
const ANOTHER: &str =
    "`--set environment=PATH`, an interpreter or a requirements file, replaces it";

fn is_requirements(text: &str) -> bool {
    [".txt", ".toml", ".yml", ".yaml"].iter().any(|extension| text.ends_with(extension))
}

fn requirements(node: &Node, python: &Python<'_>) -> Result<PathBuf, Fault> {
    let allowed = "a requirements file (.txt), a pyproject.toml or a conda file (.yml)";
    let path = python.paths.local(node)?;
    let message = match path.metadata() {
        Ok(_) if !is_requirements(&path.to_string_lossy()) => String::new(),
        Ok(metadata) if metadata.is_file() => match fault_of(&path, python) {
            None => return Ok(path),
            Some(message) => message,
        },
        Ok(_) => format!("{} is not a file", path.display()),
        Err(error) => unusable(&path, &error),
    };
    Err(Fault::new(node, allowed).saying(message))
}

/// Returns the reason why no environment can be created from a file, as far as a check without an installation finds
/// it.
fn fault_of(path: &Path, python: &Python<'_>) -> Option<String> {
    if CondaFile::is_named(path) {
        return conda_fault(path, python);
    }
    if path.extension().is_some_and(|extension| extension == "toml") {
        let read = std::fs::read_to_string(path);
        return read.err().map(|error| format!("{} cannot be read: {error}", path.display()));
    }
    requirements::fault_of_file(path).map(|fault| format!("{fault}; {ANOTHER}"))
}

/// Returns the fault of a conda file, or that no installed tool can create its environment.
fn conda_fault(path: &Path, python: &Python<'_>) -> Option<String> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => return Some(format!("{} cannot be read: {error}", path.display())),
    };
    let file = match CondaFile::parse(&text) {
        Ok(file) => file,
        Err(error) => return Some(format!("{}: {error}; {ANOTHER}", path.display())),
    };
    let folder = path.parent().unwrap_or(Path::new("/"));
    // Options of pip may name files that only pip finds.
    let mut packages = file.pip.iter().filter(|line| !line.starts_with('-'));
    if let Some(fault) = packages.find_map(|line| requirements::fault_of_line(line, folder)) {
        return Some(format!("{}: {fault}; {ANOTHER}", path.display()));
    }
    let folders = &python.context.search_path;
    let is_installed = |tool: &&str| folders.iter().any(|folder| is_executable(&folder.join(tool)));
    if python.elsewhere || CONDA_TOOLS.iter().any(is_installed) {
        return None;
    }
    let only_conda = file.for_pip().err()?;
    Some(format!(
        "{} names packages that only conda installs ({}), and none of {} is on PATH: install micromamba, or list packages \
         below `pip`; {ANOTHER}",
        path.display(),
        only_conda.join(", "),
        CONDA_TOOLS.join(", ")
    ))
}

/// Finds an interpreter by path, by the folder of its virtual environment, or by name. Keeps links, because Python
/// finds its virtual environment by the path that starts it. An absolute path `elsewhere` need not exist on this
/// machine.
fn interpreter(node: &Node, python: &Python<'_>) -> Result<PathBuf, Fault> {
    let text = word(node)?;
    let mut path = python.paths.local(node)?;
    if python.elsewhere && text.starts_with('/') && path.symlink_metadata().is_err() {
        return Ok(path);
    }
    if !text.contains('/') && path.symlink_metadata().is_err() {
        let found = python
            .context
            .search_path
            .iter()
            .map(|folder| folder.join(&text))
            .find(|path| is_executable(path));
        let message = format!(
            "there is no {text} beside the job file, nor an executable of this name on PATH"
        );
        return found.ok_or_else(|| Fault::new(node, ALLOWED).saying(message));
    }
    if path.join("pyvenv.cfg").is_file() {
        path = path.join("bin/python");
    }
    let message = match path.metadata() {
        Ok(_) if is_executable(&path) => return Ok(path),
        Ok(_) => format!("{} is not an executable file", path.display()),
        Err(error) => unusable(&path, &error),
    };
    Err(Fault::new(node, ALLOWED).saying(message))
}

fn is_executable(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

/// Reads `environment_variables`; placeholders become paths.
pub fn read_variables(top: &Section<'_>, placeholders: &Placeholders) -> BTreeMap<String, String> {
    let allowed = "a mapping of names to texts: {MODEL_KIND: small}";
    top.named("environment_variables", allowed, |entry| {
        if entry.key.is_empty() || entry.key.contains('=') {
            return Err(Fault::of(
                format!("{:?}", entry.key),
                "a name that is not empty and has no `=`",
            ));
        }
        if entry.node.is_null() {
            return Err(Fault::new(&entry.node, "a text; \"\" for an empty one"));
        }
        placeholders.replace(&text(&entry.node)?)
    })
}
