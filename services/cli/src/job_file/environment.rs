//! `environment` and `environment_variables`: the Python that runs the script.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use protocol::{Environment, ItemPath};

use super::Context;
use super::inputs::unreachable_path;
use super::keys;
use super::paths::Paths;
use super::problem::{Fault, Problems};
use super::section::{Section, text, word};
use super::yaml::{Node, Value};

const ALLOWED: &str = "a Python interpreter, the folder of a virtual environment, a requirements file (.txt) or a \
                       pyproject.toml; or a mapping with python and requirements";

/// Reads `environment`; where it is not given, the caller's interpreter, or that of the nodes if the job runs
/// `elsewhere`.
pub fn read_environment(
    top: &Section<'_>,
    paths: &Paths,
    context: &Context,
    elsewhere: bool,
    problems: &mut Problems,
) -> Environment {
    let python = Python { paths, context, elsewhere };
    let default = || match elsewhere {
        true => Environment::Node,
        false => Environment::Interpreter { path: python.default_base() },
    };
    let Some(node) = top.get("environment") else { return default() };
    match &node.value {
        Value::Scalar(_) => top.value("environment", problems, |node| one_value(node, &python)).unwrap_or_else(default),
        Value::Mapping(entries) => {
            let section = Section::nested("environment", node.place, entries);
            section.reject_unknown(keys::ENVIRONMENT, problems);
            let named = section.value("python", problems, |node| interpreter(node, &python)).map(ItemPath::from);
            match (section.value("requirements", problems, |node| requirements(node, paths)), named) {
                (Some(file), named) => {
                    let base = named.unwrap_or_else(|| python.default_base());
                    Environment::Requirements { file: ItemPath::from(file), base }
                }
                (None, Some(path)) => Environment::Interpreter { path },
                (None, None) => default(),
            }
        }
        Value::List(_) => {
            problems.add(node.place, "environment", Fault::new(node, ALLOWED));
            default()
        }
    }
}

/// Puts the interpreter of this machine where the choice was left to the nodes.
pub fn choose_here(environment: &mut Environment, context: &Context) {
    let here = ItemPath::from(context.interpreter.as_path());
    match environment {
        Environment::Node => *environment = Environment::Interpreter { path: here },
        Environment::Requirements { base, .. } if base.as_bytes().is_empty() => *base = here,
        Environment::Requirements { .. } | Environment::Interpreter { .. } => {}
    }
}

/// What an interpreter is looked up by.
struct Python<'a> {
    paths: &'a Paths,
    context: &'a Context,
    elsewhere: bool,
}

impl Python<'_> {
    /// What makes virtual environments where the job does not say; empty: the interpreter of the node.
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
        return requirements(node, python.paths)
            .map(|file| Environment::Requirements { file: ItemPath::from(file), base });
    }
    if text.ends_with(".yml") || text.ends_with(".yaml") {
        let message = "conda files are not read; list the packages in a requirements file";
        return Err(Fault::new(node, ALLOWED).saying(message));
    }
    interpreter(node, python).map(|path| Environment::Interpreter { path: ItemPath::from(path) })
}

fn is_requirements(text: &str) -> bool {
    text.ends_with(".txt") || text.ends_with(".toml")
}

fn requirements(node: &Node, paths: &Paths) -> Result<PathBuf, Fault> {
    let allowed = "a requirements file (.txt) or a pyproject.toml";
    let path = paths.local(node)?;
    let message = match path.metadata() {
        Ok(_) if !is_requirements(&path.to_string_lossy()) => String::new(),
        Ok(metadata) if metadata.is_file() => return Ok(path),
        Ok(_) => format!("{} is not a file", path.display()),
        Err(error) => unreachable_path(&path, &error),
    };
    Err(Fault::new(node, allowed).saying(message))
}

/// An interpreter by path, by the folder of its virtual environment, or by name. Links are kept: a virtual environment
/// is told from its base by the path that it is started with. An absolute path elsewhere is no business of this machine.
fn interpreter(node: &Node, python: &Python<'_>) -> Result<PathBuf, Fault> {
    let text = word(node)?;
    let mut path = python.paths.local(node)?;
    if python.elsewhere && text.starts_with('/') && path.symlink_metadata().is_err() {
        return Ok(path);
    }
    if !text.contains('/') && path.symlink_metadata().is_err() {
        let found = python.context.search_path.iter().map(|folder| folder.join(&text)).find(|path| is_executable(path));
        let message = format!("there is no {text} beside the job file, nor an executable of this name on PATH");
        return found.ok_or_else(|| Fault::new(node, ALLOWED).saying(message));
    }
    if path.join("pyvenv.cfg").is_file() {
        path = path.join("bin/python");
    }
    let message = match path.metadata() {
        Ok(_) if is_executable(&path) => return Ok(path),
        Ok(_) => format!("{} is not an executable file", path.display()),
        Err(error) => unreachable_path(&path, &error),
    };
    Err(Fault::new(node, ALLOWED).saying(message))
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

/// Reads `environment_variables` with the place of each, values as written.
pub fn read_environment_variables(top: &Section<'_>, problems: &mut Problems) -> BTreeMap<String, Node> {
    const ALLOWED: &str = "a mapping of names to texts: {MODEL_KIND: small}";
    let mut variables = BTreeMap::new();
    let Some(node) = top.get("environment_variables") else { return variables };
    let Value::Mapping(entries) = &node.value else {
        problems.add(node.place, "environment_variables", Fault::new(node, ALLOWED));
        return variables;
    };
    for entry in entries {
        let field = format!("environment_variables.{}", entry.key);
        if entry.key.is_empty() || entry.key.contains('=') {
            let fault = Fault::of(format!("{:?}", entry.key), "a name that is not empty and has no `=`");
            problems.add(entry.place, &field, fault);
        } else if entry.node.is_null() {
            problems.add(entry.place, &field, Fault::new(&entry.node, "a text; \"\" for an empty one"));
        } else if let Err(fault) = text(&entry.node) {
            problems.add(entry.place, &field, fault);
        } else {
            variables.insert(entry.key.clone(), entry.node.clone());
        }
    }
    variables
}
