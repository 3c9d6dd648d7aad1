//! `entry_script` and `source_directory`: the script, and the folder that is its snapshot.

use std::path::{Path, PathBuf};

use super::inputs::unreachable_path;
use super::paths::{Paths, below};
use super::problem::{Fault, Problems};
use super::section::{Section, word};
use super::yaml::Node;

/// The script and its folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// Absolute folder; what is in it can be imported.
    pub source_directory: PathBuf,
    /// The script, relative to it.
    pub entry_script: String,
}

/// Reads both keys. Without `source_directory` it is the script's own folder.
pub fn read_script(top: &Section<'_>, paths: &Paths, problems: &mut Problems) -> Option<Script> {
    let allowed = "the path of a Python script below source_directory";
    let folder = top.value("source_directory", problems, |node| source_directory(node, paths));
    let missing = Fault::of("nothing", allowed);
    let path = match (top.get("source_directory").is_some(), folder) {
        (true, Some(folder)) => top.required("entry_script", problems, missing, |node| {
            let text = word(node)?;
            let path = Paths { folder: folder.clone(), home: paths.home.clone() }.resolve(&text);
            check_script(node, &text, &path, allowed)?;
            match below(&folder, &path) {
                Some(relative) => Ok((folder.clone(), relative)),
                None => {
                    let message = format!("it is not below {}", folder.display());
                    Err(Fault::new(node, allowed).saying(message))
                }
            }
        }),
        (true, None) => {
            // Where the script should be is not known; that it must be given is.
            if top.get("entry_script").is_none() {
                problems.add(top.place_of("entry_script"), "entry_script", missing);
            }
            None
        }
        (false, _) => top.required("entry_script", problems, missing, |node| {
            let text = word(node)?;
            let path = paths.resolve(&text);
            check_script(node, &text, &path, allowed)?;
            match (path.parent(), path.file_name()) {
                (Some(folder), Some(name)) => Ok((folder.to_owned(), PathBuf::from(name))),
                _ => Err(Fault::new(node, allowed)),
            }
        }),
    };
    let given = path?;
    let (source_directory, relative) = given.value;
    match relative.to_str() {
        Some(entry_script) => Some(Script { source_directory, entry_script: entry_script.to_owned() }),
        None => {
            let fault = Fault::of(relative.display().to_string(), "a name that is valid UTF-8");
            problems.add(given.place, "entry_script", fault);
            None
        }
    }
}

fn source_directory(node: &Node, paths: &Paths) -> Result<PathBuf, Fault> {
    let path = paths.local(node)?;
    let message = match path.metadata() {
        Ok(metadata) if metadata.is_dir() => return Ok(path),
        Ok(_) => format!("{} is not a directory", path.display()),
        Err(error) => unreachable_path(&path, &error),
    };
    Err(Fault::new(node, "a folder that exists").saying(message))
}

fn check_script(node: &Node, text: &str, path: &Path, allowed: &str) -> Result<(), Fault> {
    let message = match path.metadata() {
        Ok(metadata) if metadata.is_file() => return Ok(()),
        Ok(_) => format!("The value '{text}' specified in entry_script is not a file."),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            format!("The value '{text}' specified in entry_script doesn't exist.")
        }
        Err(error) => unreachable_path(path, &error),
    };
    Err(Fault::new(node, allowed).saying(message))
}
