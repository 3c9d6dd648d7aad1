//! Provides what a job needs on this node before its script can start: folders, reference data, interpreter.
//!
//! Everything comes from the job's snapshots and the URLs of its side inputs, and is cached by its digest for other jobs
//! and other nodes of this machine. Jobs that need the same at the same time wait for the first one.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use protocol::{Environment, JobSpec, Snapshot};
use storage::Limit;
use tokio::sync::oneshot;

use super::work::Shared;
use crate::environment::interpreter;
use crate::side_inputs;

impl Shared {
    /// Fetches and builds what is missing, which may take minutes. Returns the job, with paths on this node, and its
    /// interpreter.
    pub(super) async fn provisioned(&self, mut spec: JobSpec) -> Result<(JobSpec, PathBuf)> {
        if let Some(source) = spec.snapshots.source.clone() {
            let folder = self.unpacked(&source, Limit::SCRIPTS).await.context("fetch source_directory")?;
            spec.source_directory = folder.into();
        }
        self.place_side_inputs(&mut spec).await?;
        let environment = self.environment(&spec).await?;
        let python = self.interpreter(environment).await?;
        let outputs = spec.outputs.values().chain([&spec.output.folder]);
        for output in outputs.filter(|output| !output.is_url() && !output.as_bytes().is_empty()) {
            if let Err(error) = std::fs::create_dir_all(output.as_path()) {
                // Only scripts that write their own files need it.
                tracing::warn!(job.id = spec.job_id, "cannot make the output folder {}: {error}", output.display());
            }
        }
        Ok((spec, python))
    }

    /// Replaces packed side inputs and URLs by paths on this node.
    async fn place_side_inputs(&self, spec: &mut JobSpec) -> Result<()> {
        let mut copies = Vec::new();
        for (name, snapshot) in &spec.snapshots.side_inputs {
            let copy =
                self.unpacked(snapshot, Limit::DATA).await.with_context(|| format!("fetch side input {name}"))?;
            copies.push((name.clone(), placed(copy, snapshot).into()));
        }
        side_inputs::place(spec, copies)?;
        let cache = self.node.work_folder.join("side-inputs");
        side_inputs::fetch(spec, self.node.target.stores(), &cache, &self.turns, &self.node.name).await
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
                // The job names an interpreter of the machine that enqueued it.
                let base = if base.as_path().exists() { base.clone() } else { self.node.python.clone().into() };
                Ok(Environment::Requirements { file, base })
            }
            (Environment::Interpreter { path }, _) if !path.as_path().exists() => bail!(
                "there is no interpreter {} on node {}; set `environment` of the job to a requirements file, or install \
                 the interpreter there",
                path.display(),
                self.node.name
            ),
            (environment, _) => Ok(environment.clone()),
        }
    }

    async fn interpreter(&self, environment: Environment) -> Result<PathBuf> {
        let (default, cache) = (self.node.python.clone(), self.node.work_folder.join("environments"));
        let (sender, receiver) = oneshot::channel();
        // In its own thread: a node that ends does not wait for an installer.
        std::thread::spawn(move || {
            let creating = |file: &Path, folder: &Path| {
                let (file, folder) = (file.display(), folder.display());
                tracing::info!("creating a Python environment from {file} (once; kept in {folder})");
            };
            let _ = sender.send(interpreter(&environment, &default, &cache, creating));
        });
        receiver.await.map_err(|_| anyhow!("making the environment panicked"))?
    }

    /// Returns the folder of an unpacked snapshot, after a download if it is not cached.
    async fn unpacked(&self, snapshot: &Snapshot, limit: Limit) -> Result<PathBuf> {
        // The digest becomes a file name.
        if snapshot.digest.is_empty() || !snapshot.digest.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            bail!("the name of a snapshot of the job is not a digest; submit the job again");
        }
        let snapshots = self.node.work_folder.join("snapshots");
        let folder = snapshots.join(&snapshot.digest);
        let turn = self.turns.of(&snapshot.digest).await;
        let _turn = turn.lock().await;
        if folder.is_dir() {
            return Ok(folder);
        }
        // Named by the node: other nodes of this machine may download the same snapshot.
        let archive = snapshots.join(format!("{}.{}.archive", snapshot.digest, self.node.name));
        self.node.target.snapshot(&snapshot.digest, &archive).await?;
        let (packed, into, from) = (snapshot.clone(), folder.clone(), archive.clone());
        let unpacked = tokio::task::spawn_blocking(move || storage::unpack(&from, &packed, limit, &into)).await;
        let _ = std::fs::remove_file(&archive);
        unpacked.context("unpacking panicked")??;
        Ok(folder)
    }
}

/// Returns the path of what was packed, given the folder that it was unpacked into.
fn placed(folder: PathBuf, snapshot: &Snapshot) -> PathBuf {
    match &snapshot.file {
        // Only the name: the author of the job does not choose the folder.
        Some(name) => folder.join(Path::new(name).file_name().unwrap_or_default()),
        None => folder,
    }
}
