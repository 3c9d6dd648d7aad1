//! Paths as a job file writes them: relative to its folder, `~` for the home folder, URLs left as they are.

use std::path::{Component, Path, PathBuf};

use protocol::ItemPath;

use super::problem::Fault;
use super::section::word;
use super::yaml::Node;

/// What paths of one job file are relative to.
pub struct Paths {
    /// Absolute folder of the job file.
    pub folder: PathBuf,
    /// What `~` stands for.
    pub home: Option<PathBuf>,
}

impl Paths {
    /// The absolute path. Symbolic links stay as they are, but for those a `..` has to look through.
    pub fn resolve(&self, text: &str) -> PathBuf {
        let path = match (&self.home, text.strip_prefix('~')) {
            (Some(home), Some("")) => home.clone(),
            (Some(home), Some(rest)) if rest.starts_with('/') => home.join(rest.trim_start_matches('/')),
            _ => self.folder.join(text),
        };
        clean(&path)
    }

    /// A value that is a local path or a URL.
    pub fn path_or_url(&self, node: &Node) -> Result<ItemPath, Fault> {
        let text = word(node)?;
        if is_url(&text) { Ok(ItemPath::from(text.as_str())) } else { Ok(ItemPath::from(self.resolve(&text))) }
    }

    /// A value that is a local path, without the question whether something is there.
    pub fn local(&self, node: &Node) -> Result<PathBuf, Fault> {
        let text = word(node)?;
        match is_url(&text) {
            true => Err(Fault::new(node, "a local path")),
            false => Ok(self.resolve(&text)),
        }
    }
}

/// Removes `.` and `..` from an absolute path.
pub fn clean(path: &Path) -> PathBuf {
    let mut cleaned = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                if let Ok(real) = cleaned.canonicalize() {
                    cleaned = real;
                }
                cleaned.pop();
            }
            component => cleaned.push(component),
        }
    }
    cleaned
}

/// `path` relative to `folder`, also where one of them is written through a symbolic link.
pub fn below(folder: &Path, path: &Path) -> Option<PathBuf> {
    let relative = match path.strip_prefix(folder) {
        Ok(relative) => relative.to_owned(),
        Err(_) => path.canonicalize().ok()?.strip_prefix(folder.canonicalize().ok()?).ok()?.to_owned(),
    };
    (!relative.as_os_str().is_empty()).then_some(relative)
}

/// Whether a text is a URL (`s3://…`) rather than a local path.
pub fn is_url(text: &str) -> bool {
    text.split_once("://").is_some_and(|(scheme, _)| {
        !scheme.is_empty()
            && scheme.chars().all(|character| character.is_ascii_alphanumeric() || "+-.".contains(character))
    })
}

/// The folder in front of the first wildcard, if there is a wildcard and nothing has this very name.
pub fn glob_folder(path: &Path) -> Option<PathBuf> {
    let is_wild = |component: &Component<'_>| component.as_os_str().to_string_lossy().contains(['*', '?', '[', '{']);
    match path.components().any(|component| is_wild(&component)) && path.symlink_metadata().is_err() {
        true => Some(path.components().take_while(|component| !is_wild(component)).collect()),
        false => None,
    }
}
