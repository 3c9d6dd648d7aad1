//! Provisions a job on this node before its script can start: folders, reference data, interpreter.
//!
//! All content comes from the job's snapshots and the URLs of its side inputs. The caches of this
//! machine (`cache`) keep it for other jobs. Of several jobs that need the same entry, the first
//! one creates it, and the others wait.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use protocol::{Environment, JobSpec, Snapshot};
use storage::Limit;

use super::Node;
use crate::cache::{Cache, EntryKind, PinnedEntry, is_full};
use crate::environment::interpreter_for;
use crate::job_users::{JobUser, JobUsers};
use crate::side_inputs;

/// A job that can start on this node.
pub(super) struct Provisioned {
    /// The job, with paths on this node.
    pub(super) spec: JobSpec,
    pub(super) python: PathBuf,
    /// The cache entries that it uses.
    pub(super) used: Vec<PinnedEntry>,
    /// The user that runs its scripts; `None`: that of the node.
    pub(super) user: Option<Arc<JobUser>>,
}

/// Provisions jobs on a node.
pub(super) struct Provisioner<'node> {
    pub(super) node: &'node Node,
    pub(super) cache: &'node Cache,
    pub(super) users: Option<&'node Arc<JobUsers>>,
}

impl Provisioner<'_> {
    /// Fetches and builds missing entries, which may take minutes. If the disk is full, empties the
    /// caches first.
    pub(super) async fn provisioned(&self, spec: JobSpec) -> Result<Provisioned> {
        match self.provision(spec.clone()).await {
            Err(error) if is_full(&error) => {
                tracing::warn!(job.id = spec.job_id, "emptying the caches of this node: {error:#}");
                let cache = self.cache.clone();
                tokio::task::spawn_blocking(move || cache.empty())
                    .await
                    .context("emptying the caches panicked")??;
                let again = self.provision(spec).await;
                again.map_err(|error| self.cache.explain(error))
            }
            provisioned => provisioned,
        }
    }

    async fn provision(&self, mut spec: JobSpec) -> Result<Provisioned> {
        let mut used = Vec::new();
        let user = match self.users.cloned() {
            Some(users) => {
                let job_id = spec.job_id.clone();
                let lent = tokio::task::spawn_blocking(move || users.lend(&job_id)).await;
                Some(Arc::new(lent.context("lending a user panicked")??))
            }
            None => None,
        };
        if let Some(source) = spec.snapshots.source.clone() {
            let folder =
                self.unpacked(&source, Limit::SCRIPTS).await.context("fetch source_directory")?;
            spec.source_directory = folder.path().into();
            used.push(folder);
        }
        self.place_side_inputs(&mut spec, &mut used).await?;
        let environment = self.environment(&spec, &mut used).await?;
        let creating = |file: &Path, folder: &Path| {
            let (file, folder) = (file.display(), folder.display());
            tracing::info!("creating a Python environment from {file} (once; kept in {folder})");
        };
        let (default, cache, variables) =
            (self.node.python.clone(), self.cache.clone(), self.node.variables.clone());
        let (python, of_python) =
            interpreter_for(user.clone(), environment, default, cache, variables, creating).await?;
        used.extend(of_python);
        let outputs = spec.outputs.values().chain([&spec.output.folder]);
        for output in outputs.filter(|output| !output.is_url() && !output.as_bytes().is_empty()) {
            let made = match &user {
                Some(user) if !output.as_path().exists() => user.own(output.as_path()),
                _ => std::fs::create_dir_all(output.as_path()),
            };
            if let Err(error) = made {
                // Only scripts that write their own files need it.
                tracing::warn!(
                    job.id = spec.job_id,
                    "cannot make the output folder {}: {error}",
                    output.display()
                );
            }
        }
        Ok(Provisioned { spec, python, used, user })
    }

    /// Replaces packed side inputs and URLs by paths on this node.
    async fn place_side_inputs(
        &self,
        spec: &mut JobSpec,
        used: &mut Vec<PinnedEntry>,
    ) -> Result<()> {
        let mut copies = Vec::new();
        for (name, snapshot) in &spec.snapshots.side_inputs {
            let copy = self
                .unpacked(snapshot, Limit::DATA)
                .await
                .with_context(|| format!("fetch side input {name}"))?;
            copies.push((name.clone(), placed(copy.path(), snapshot).into()));
            used.push(copy);
        }
        side_inputs::place(spec, copies)?;
        used.extend(
            side_inputs::fetch_side_inputs(spec, self.node.target.stores(), self.cache).await?,
        );
        Ok(())
    }

    async fn environment(
        &self,
        spec: &JobSpec,
        used: &mut Vec<PinnedEntry>,
    ) -> Result<Environment> {
        match (&spec.environment, &spec.snapshots.environment) {
            (Environment::Requirements { file, base }, snapshot) => {
                let file = match snapshot {
                    None => file.clone(),
                    Some(snapshot) => {
                        let folder = self
                            .unpacked(snapshot, Limit::SCRIPTS)
                            .await
                            .context("fetch the environment")?;
                        let name = file.as_path().file_name().unwrap_or("pyproject.toml".as_ref());
                        let file = match snapshot.file {
                            Some(_) => placed(folder.path(), snapshot),
                            None => folder.path().join(name),
                        };
                        used.push(folder);
                        file.into()
                    }
                };
                // The job names an interpreter of the machine that enqueued it.
                let base = if base.as_path().exists() {
                    base.clone()
                } else {
                    self.node.python.clone().into()
                };
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

    /// Returns the folder of an unpacked snapshot, after a download if it is not cached.
    async fn unpacked(&self, snapshot: &Snapshot, limit: Limit) -> Result<PinnedEntry> {
        // The digest becomes a file name.
        if snapshot.digest.is_empty()
            || !snapshot.digest.bytes().all(|byte| byte.is_ascii_hexdigit())
        {
            bail!("the name of a snapshot of the job is not a digest; submit the job again");
        }
        let into = self.cache.content(EntryKind::Snapshot, &snapshot.digest);
        let archive = into.with_file_name("archive");
        let fetch = async {
            self.node.target.snapshot(&snapshot.digest, &archive).await?;
            let packed = snapshot.clone();
            let unpacked = tokio::task::spawn_blocking(move || {
                storage::unpack(&archive, &packed, limit, &into)
            });
            Ok(unpacked.await.context("unpacking panicked")??)
        };
        self.cache.get(EntryKind::Snapshot, &snapshot.digest, snapshot.bytes, fetch).await
    }
}

/// Returns the path of the packed file or folder, given the folder that it was unpacked into.
fn placed(folder: &Path, snapshot: &Snapshot) -> PathBuf {
    match &snapshot.file {
        // Only the name: the author of the job does not choose the folder.
        Some(name) => folder.join(Path::new(name).file_name().unwrap_or_default()),
        None => folder.to_owned(),
    }
}
