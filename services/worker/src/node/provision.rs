//! What a job needs on this node before its script can start: its folders, its reference data, its interpreter.
//!
//! Everything comes from the job's snapshots, and is kept by its digest: a second job, or another node of this machine,
//! finds it there. Jobs that need the same thing at the same time wait for the one that makes it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use protocol::{Environment, ItemPath, JobSpec, Snapshot};
use storage::{Limit, TargetStore};
use tokio::sync::{Mutex, oneshot};

use super::Node;
use crate::environment::interpreter;

/// Options of the script that the engine sets, and whose values no snapshot replaces.
const OUTPUT_OPTION: &str = "--output";

/// Makes jobs ready.
#[derive(Debug)]
pub(super) struct Provisioner {
    target: TargetStore,
    cache: PathBuf,
    node: String,
    python: PathBuf,
    /// One download a snapshot at a time.
    turns: Mutex<HashMap<String, Arc<Mutex<()>>>>,
}

/// A job that can start here.
#[derive(Debug)]
pub(super) struct Provisioned {
    /// The job, with paths of this node.
    pub(super) spec: JobSpec,
    /// Its interpreter.
    pub(super) python: PathBuf,
}

impl Provisioner {
    pub(super) fn new(node: &Node) -> Self {
        Self {
            target: node.target.clone(),
            cache: node.work_folder.clone(),
            node: node.name.clone(),
            python: node.python.clone(),
            turns: Mutex::default(),
        }
    }

    /// Fetches and makes what is missing, which may take minutes.
    pub(super) async fn provision(&self, mut spec: JobSpec) -> Result<Provisioned> {
        if let Some(source) = spec.snapshots.source.clone() {
            let folder = self.unpacked(&source, Limit::SCRIPTS).await.context("fetch source_directory")?;
            spec.source_directory = folder.into();
        }
        self.place_side_inputs(&mut spec).await?;
        let environment = self.environment(&spec).await?;
        let python = self.interpreter(environment).await?;
        let output = spec.output.folder.clone();
        if !output.is_url()
            && !output.as_bytes().is_empty()
            && let Err(error) = std::fs::create_dir_all(output.as_path())
        {
            // Only scripts that write files of their own need it.
            tracing::warn!(job.id = spec.job_id, "cannot make the output folder {}: {error}", output.display());
        }
        Ok(Provisioned { spec, python })
    }

    /// Every mention of a packed side input becomes the path of its copy here.
    async fn place_side_inputs(&self, spec: &mut JobSpec) -> Result<()> {
        let mut moved: Vec<(String, String)> = Vec::new();
        for (name, snapshot) in &spec.snapshots.side_inputs {
            let copy =
                self.unpacked(snapshot, Limit::DATA).await.with_context(|| format!("fetch side input {name}"))?;
            let copy = ItemPath::from(placed(copy, snapshot));
            if let Some(original) = spec.side_inputs.insert(name.clone(), copy.clone()) {
                moved.push((lossless(&original)?, lossless(&copy)?));
            }
        }
        // Longest first: one may lie in another.
        moved.sort_by_key(|(original, _)| std::cmp::Reverse(original.len()));
        let mut is_output = false;
        for argument in &mut spec.argv {
            if !std::mem::replace(&mut is_output, argument == OUTPUT_OPTION) {
                *argument = replace_paths(argument, &moved);
            }
        }
        for value in spec.environment_variables.values_mut() {
            *value = replace_paths(value, &moved);
        }
        Ok(())
    }

    async fn environment(&self, spec: &JobSpec) -> Result<Environment> {
        match (&spec.environment, &spec.snapshots.environment) {
            (Environment::Requirements { file, base }, snapshot) => {
                let file = match snapshot {
                    None => file.clone(),
                    Some(snapshot) => {
                        let folder = self.unpacked(snapshot, Limit::SCRIPTS).await.context("fetch the environment")?;
                        match snapshot.file {
                            Some(_) => placed(folder, snapshot).into(),
                            None => folder.join(file.as_path().file_name().unwrap_or("pyproject.toml".as_ref())).into(),
                        }
                    }
                };
                // The interpreter is one of the machine that enqueued the job.
                let base = if base.as_path().exists() { base.clone() } else { self.python.clone().into() };
                Ok(Environment::Requirements { file, base })
            }
            (Environment::Interpreter { path }, _) if !path.as_path().exists() => bail!(
                "there is no interpreter {} on node {}: name a requirements file as `environment` of the job, or install \
                 the interpreter there",
                path.display(),
                self.node
            ),
            (environment, _) => Ok(environment.clone()),
        }
    }

    async fn interpreter(&self, environment: Environment) -> Result<PathBuf> {
        let (default, cache) = (self.python.clone(), self.cache.join("environments"));
        let (sender, receiver) = oneshot::channel();
        // A thread of its own: a node that ends meanwhile does not wait for an installer.
        std::thread::spawn(move || {
            let _ = sender.send(interpreter(&environment, &default, &cache, |line| tracing::info!("{line}")));
        });
        receiver.await.map_err(|_| anyhow!("making the environment panicked"))?
    }

    /// The folder that a snapshot was packed from, or that holds the one file.
    async fn unpacked(&self, snapshot: &Snapshot, limit: Limit) -> Result<PathBuf> {
        // It becomes a file name.
        if snapshot.digest.is_empty() || !snapshot.digest.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            bail!("a snapshot of the job has a name that is no digest");
        }
        let snapshots = self.cache.join("snapshots");
        let folder = snapshots.join(&snapshot.digest);
        let turn = self.turns.lock().await.entry(snapshot.digest.clone()).or_default().clone();
        let _turn = turn.lock().await;
        if folder.is_dir() {
            return Ok(folder);
        }
        // Named by the node: others of this machine may download the same.
        let archive = snapshots.join(format!("{}.{}.archive", snapshot.digest, self.node));
        self.target.snapshot(&snapshot.digest, &archive).await?;
        let (packed, into, from) = (snapshot.clone(), folder.clone(), archive.clone());
        let unpacked = tokio::task::spawn_blocking(move || storage::unpack(&from, &packed, limit, &into)).await;
        let _ = std::fs::remove_file(&archive);
        unpacked.context("unpacking panicked")??;
        Ok(folder)
    }
}

/// The path of what is packed, given the folder it was unpacked into.
fn placed(folder: PathBuf, snapshot: &Snapshot) -> PathBuf {
    match &snapshot.file {
        // A plain name: whoever wrote the job does not choose where it leads.
        Some(name) => folder.join(Path::new(name).file_name().unwrap_or_default()),
        None => folder,
    }
}

fn lossless(path: &ItemPath) -> Result<String> {
    String::from_utf8(path.as_bytes().to_vec()).map_err(|_| anyhow!("{} is not valid UTF-8", path.display()))
}

/// Replaces whole paths, and paths of what lies in them.
fn replace_paths(text: &str, moved: &[(String, String)]) -> String {
    let mut replaced = String::new();
    let mut rest = text;
    'text: while !rest.is_empty() {
        let is_start = replaced.is_empty() || !text[..text.len() - rest.len()].ends_with(is_path_character);
        for (original, copy) in moved.iter().filter(|(original, _)| is_start && !original.is_empty()) {
            let Some(behind) = rest.strip_prefix(original.as_str()) else { continue };
            if behind.is_empty() || behind.starts_with('/') || !behind.starts_with(is_path_character) {
                replaced.push_str(copy);
                rest = behind;
                continue 'text;
            }
        }
        let length = rest.chars().next().map_or(0, char::len_utf8);
        replaced.push_str(&rest[..length]);
        rest = &rest[length..];
    }
    replaced
}

/// Whether a character beside a path makes it another path.
fn is_path_character(character: char) -> bool {
    character.is_alphanumeric() || matches!(character, '_' | '-' | '.' | '/' | '~')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_paths_are_replaced_and_nothing_that_only_looks_alike() {
        let moved = [("/data/ref/model", "/cache/b"), ("/data/ref", "/cache/a")];
        let moved: Vec<_> = moved.iter().map(|(from, to)| (from.to_string(), to.to_string())).collect();
        for (text, expected) in [
            ("/data/ref", "/cache/a"),
            ("/data/ref/model", "/cache/b"),
            ("/data/ref/models", "/cache/a/models"),
            ("--dir=/data/ref/x:/data/ref", "--dir=/cache/a/x:/cache/a"),
            ("/data/reference", "/data/reference"),
            ("/data/ref.bak", "/data/ref.bak"),
            ("/old/data/ref", "/old/data/ref"),
            ("größe=/data/ref ü", "größe=/cache/a ü"),
            ("", ""),
        ] {
            assert_eq!(replace_paths(text, &moved), expected, "{text}");
        }
    }
}
