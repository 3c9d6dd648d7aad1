//! `entry_script` and `source_directory`: the script, and the folder that is its snapshot.

use std::path::{Path, PathBuf};

use protocol::{BUILT_IN_SCRIPTS, ItemPath, JobSpec};

use crate::paths::{below, unusable};
use crate::values::word;
use crate::{Fault, Node, Paths, Section};

const SCRIPT: &str = "entry_script";
const FOLDER: &str = "source_directory";
const ALLOWED: &str =
    "the path of a Python script below source_directory, or its name as a module: package.module";

/// Reads both keys. Without `source_directory`, the folder is that of the script.
pub fn read_script(top: &Section<'_>, paths: &Paths, job: &mut JobSpec) {
    let text =
        top.get(SCRIPT).map(|node| format!("{}.py", node.written().trim().replace('.', "/")));
    if let Some(script) = text.filter(|text| BUILT_IN_SCRIPTS.contains(&text.as_str())) {
        let folder = match top.get(FOLDER) {
            None => Some(paths.folder.clone()),
            Some(_) => top.value(FOLDER, |node| source_directory(node, paths)),
        };
        (job.entry_script, job.source_directory) =
            (script, ItemPath::from(folder.unwrap_or_default()));
        return;
    }
    let script = match top.get(FOLDER) {
        None => top.read(SCRIPT, |node| beside_job_file(node, paths)),
        Some(_) => match top.value(FOLDER, |node| source_directory(node, paths)) {
            Some(folder) => top.read(SCRIPT, |node| in_folder(node, &folder, paths)),
            // Without a folder the script cannot be found, but its key is still required.
            None => return drop(top.read(SCRIPT, written)),
        },
    };
    let Some((location, (folder, name))) = script else { return };
    let Some(text) = name.to_str() else {
        let fault = Fault::of(name.display().to_string(), "a name that is valid UTF-8");
        return top.refuse(SCRIPT, location, fault);
    };
    job.entry_script = text.to_owned();
    job.source_directory = ItemPath::from(folder);
}

fn written(node: &Node) -> Result<String, Fault> {
    word(node).map_err(|_| Fault::new(node, ALLOWED))
}

/// Returns `source_directory` and the script relative to it.
fn in_folder(node: &Node, folder: &Path, paths: &Paths) -> Result<(PathBuf, PathBuf), Fault> {
    let text = written(node)?;
    let path = match module_file(node, folder, &text) {
        Some(file) => file?,
        None => Paths::new(folder.to_owned(), paths.home.clone()).resolve(&text),
    };
    check_script(node, &text, &path)?;
    let not_below =
        || Fault::new(node, ALLOWED).saying(format!("it is not below {}", folder.display()));
    below(folder, &path).map(|relative| (folder.to_owned(), relative)).ok_or_else(not_below)
}

/// Returns the folder of the script, or for a module that of the job file, and the script relative to it.
fn beside_job_file(node: &Node, paths: &Paths) -> Result<(PathBuf, PathBuf), Fault> {
    let text = written(node)?;
    if let Some(file) = module_file(node, &paths.folder, &text) {
        let relative = file?
            .strip_prefix(&paths.folder)
            .expect("the file was looked for in this folder")
            .to_owned();
        return Ok((paths.folder.clone(), relative));
    }
    let path = paths.resolve(&text);
    check_script(node, &text, &path)?;
    match (path.parent(), path.file_name()) {
        (Some(folder), Some(name)) => Ok((folder.to_owned(), PathBuf::from(name))),
        _ => Err(Fault::new(node, ALLOWED)),
    }
}

/// Returns the file of a dotted module name (`package.module`) below `folder`, or why it is missing. `None`: the text
/// is a path.
fn module_file(node: &Node, folder: &Path, text: &str) -> Option<Result<PathBuf, Fault>> {
    let is_identifier = |part: &str| {
        part.starts_with(|first: char| first.is_alphabetic() || first == '_')
            && part.chars().all(|character| character.is_alphanumeric() || character == '_')
    };
    if text.ends_with(".py") || !text.split('.').all(is_identifier) || folder.join(text).is_file() {
        return None;
    }
    let path = text.replace('.', "/");
    let candidates = [format!("{path}.py"), format!("{path}/__init__.py")];
    let found = candidates.iter().map(|name| folder.join(name)).find(|file| file.is_file());
    if found.is_none() && folder.join(text).exists() {
        return None;
    }
    Some(found.ok_or_else(|| {
        let [file, package] = &candidates;
        let message = format!(
            "there is no module {text} below {}: neither {file} nor {package}",
            folder.display()
        );
        Fault::new(node, ALLOWED).saying(message)
    }))
}

fn source_directory(node: &Node, paths: &Paths) -> Result<PathBuf, Fault> {
    let path = paths.local(node)?;
    let message = match path.metadata() {
        Ok(metadata) if metadata.is_dir() => return Ok(path),
        Ok(_) => format!("{} is not a directory", path.display()),
        Err(error) => unusable(&path, &error),
    };
    Err(Fault::new(node, "a folder that exists").saying(message))
}

fn check_script(node: &Node, text: &str, path: &Path) -> Result<(), Fault> {
    let message = match path.metadata() {
        Ok(metadata) if metadata.is_file() => return Ok(()),
        Ok(_) => format!("The value '{text}' specified in entry_script is not a file."),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            format!("The value '{text}' specified in entry_script doesn't exist.")
        }
        Err(error) => unusable(path, &error),
    };
    Err(Fault::new(node, ALLOWED).saying(message))
}
