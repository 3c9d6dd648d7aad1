//! Provisions a job on this node, runs its agent, and cleans up after it.

use std::collections::HashMap;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use protocol::JobSpec;
use queue::Queue;
use storage::TargetStore;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

use super::access::{JobAccess, STORE_WAIT_MAX, UnfinishedMiniBatches};
use super::agent_link::AgentLink;
use super::allocations::{ProvisioningFailure, ProvisioningObstacle};
use super::driver::NodeBackend;
use super::logs::LogUpload;
use super::protection::{Hold, Protection};
use super::provision::{Provisioned, Provisioner};
use super::{Node, leftovers};
use crate::agent::{Agent, report_provisioning};
use crate::cache::{Cache, PinnedEntry, files, is_full};
use crate::job_users::{self, JobUser, JobUsers};
use crate::memory_groups::{MemoryGroup, MemoryGroups};
use crate::node_lock::NodeLock;
use crate::stop::Stop;

/// Time between two checks of the size of the caches and the free disk space.
const TIDY_EVERY: Duration = Duration::from_secs(10);

/// Time between two checks whether a job whose scripts have left files has ended.
const ASK_EVERY: Duration = Duration::from_secs(600);

/// The state that all jobs of a node share.
pub(super) struct Shared {
    pub(super) node: Node,
    pub(super) cache: Cache,
    pub(super) protection: Protection,
    pub(super) memory_groups: Option<MemoryGroups>,
    /// `None`: scripts run as the user of this process.
    pub(super) users: Option<Arc<JobUsers>>,
    pub(super) node_lock: NodeLock,
}

/// A job that can start.
type Ready = (Provisioned, Hold);

/// Logs and folders of a job whose agent has ended.
pub(super) struct Remains {
    logs: Option<LogUpload>,
    folder: PathBuf,
    /// The lock of the folder, which prevents its removal; `None`: it cannot be locked.
    claim: Option<File>,
    _used: Vec<PinnedEntry>,
    user: Option<Arc<JobUser>>,
    _protection: Hold,
}

impl NodeBackend for Arc<Shared> {
    type Ready = Ready;
    type Remains = Remains;

    async fn provision(
        self,
        job: JobAccess,
        spec: JobSpec,
    ) -> Result<Self::Ready, ProvisioningFailure> {
        let (node, protection) = (&self.node, self.protection.hold());
        let provisioner = Provisioner { node, cache: &self.cache, users: self.users.as_ref() };
        let provisioning = provisioner.provisioned(spec);
        let reported = report_provisioning(&*job.results, &job.job_id, &node.name, provisioning);
        match reported.await {
            Ok(provisioned) => Ok((provisioned, protection)),
            Err(error) => {
                let obstacle = obstacle(&error);
                Err(ProvisioningFailure { reason: format!("{error:#}"), obstacle })
            }
        }
    }

    async fn work(
        self,
        JobAccess { job_id, results, .. }: JobAccess,
        tasks: Arc<dyn Queue>,
        (Provisioned { spec, python, used, user }, protection): Self::Ready,
        stop: watch::Receiver<Stop>,
        mut agent_link: AgentLink,
    ) -> (anyhow::Result<UnfinishedMiniBatches>, Remains) {
        protection.settled().await;
        let Node { name, options, .. } = &self.node;
        let processes = agent_link.allocation().processes;
        let agent = self.agent(spec, python, user.clone(), [tasks, results], agent_link);
        let folder = agent.work_folder.clone();
        let claim = files::claim(&folder).inspect_err(|error| {
            tracing::warn!(job.id = job_id, "cannot lock {}: {error}", folder.display());
        });
        if let Some(user) = &user
            && let Err(error) = user.move_in(&folder, name)
        {
            let error = anyhow::Error::new(error)
                .context(format!("create folders of the job in {}", folder.display()));
            tracing::error!(job.id = job_id, "{error:#}");
            return (
                Err(error),
                Remains {
                    logs: None,
                    folder,
                    claim: claim.ok(),
                    _used: used,
                    user: None,
                    _protection: protection,
                },
            );
        }
        let upload = || LogUpload::new(agent.logs(), agent.store.clone(), options.log_period);
        let mut logs = agent.store.folder().is_none().then(upload);
        tracing::info!(
            job.id = job_id,
            "working on it with {processes} of {} processes",
            agent.process_count
        );
        let span = tracing::error_span!("agent", job.id = job_id, node.id = name);
        let working = AbortOnDropHandle::new(tokio::spawn(agent.work(stop).instrument(span)));
        let uploading = async {
            match &mut logs {
                Some(logs) => logs.keep().await,
                None => std::future::pending().await,
            }
        };
        let worked = tokio::select! {
            worked = working => worked,
            () = uploading => unreachable!("logs are uploaded until the agent ends"),
        };
        let held = worked.context("the agent panicked").flatten().inspect_err(|error| {
            tracing::warn!(
                job.id = job_id,
                "the agent failed, the queue redelivers its work: {error:#}"
            );
        });
        (
            held,
            Remains { logs, folder, claim: claim.ok(), _used: used, user, _protection: protection },
        )
    }

    /// Uploads the last logs, and removes the folders of the job.
    async fn clean_up(Remains { logs, folder, claim, _used, user, _protection }: Remains) {
        if let Some(user) = &user {
            user.kill_all();
        }
        let mut removed = leftovers::SCRAPS.to_vec();
        if let Some(mut logs) = logs {
            let _ = timeout(2 * STORE_WAIT_MAX, logs.round(true)).await;
            removed.push("logs");
        }
        let removing = spawn_blocking(move || {
            for name in removed {
                let _ = std::fs::remove_dir_all(folder.join(name));
            }
            // Working directories in which user code left something stay for a while.
            let _ = std::fs::remove_dir(folder.join("scratch"));
            drop(claim);
            files::leave(&folder);
            if user.is_some() {
                // People may read the remaining files; the next job with this user must not.
                let _ = job_users::close(&folder);
            }
        });
        let _ = removing.await;
    }
}

impl Shared {
    /// Returns the agent of a job, about to start.
    fn agent(
        &self,
        spec: JobSpec,
        python: PathBuf,
        user: Option<Arc<JobUser>>,
        [tasks, results]: [Arc<dyn Queue>; 2],
        agent_link: AgentLink,
    ) -> Agent {
        let node = &self.node;
        let store = node.target.job(&spec.job_id);
        Agent {
            // Scripts of another user cannot write to the store.
            store: if user.is_some() { store.without_folder() } else { store },
            user,
            tasks,
            results,
            dead_letters: Some(node.dead_letters.clone()),
            node: node.name.clone(),
            process_count: node.process_count(&spec),
            limiter: agent_link.limiter(),
            activity: agent_link.activity(),
            agent_link: Some(agent_link),
            gpus: node.gpus.clone(),
            python,
            package: node.package.clone(),
            variables: node.variables.clone(),
            work_folder: self.folder().join(&spec.job_id),
            node_lock: self.node_lock.clone(),
            memory_group: self.memory_group(&spec).map(Arc::new),
            prefetch_bytes_max: node.prefetch_bytes_max,
            is_alone: false,
            notes_held: false,
            timing: node.options.timing,
            health: node.options.health.clone(),
            crash: node.crash,
            spec: Arc::new(spec),
        }
    }

    /// Creates the control group of a job, if this node limits the memory of jobs.
    fn memory_group(&self, spec: &JobSpec) -> Option<MemoryGroup> {
        let made = match &self.memory_groups {
            Some(groups) => {
                groups.of_job(&spec.job_id, spec.max_memory).map_err(|error| error.to_string())
            }
            None if spec.max_memory > 0 => {
                Err("this machine does not let the worker make control groups".to_owned())
            }
            None => return None,
        };
        let unlimited = |why: &String| {
            tracing::warn!(job.id = spec.job_id, "the memory of the job is not limited: {why}")
        };
        made.inspect_err(unlimited).ok()
    }

    /// Keeps the caches within their limits, until the handle is dropped.
    pub(super) fn tidy(&self) -> AbortOnDropHandle<()> {
        let (cache, nodes) = (self.cache.clone(), self.node.work_folder.join("nodes"));
        let target = self.node.target.clone();
        AbortOnDropHandle::new(tokio::spawn(async move {
            let mut asked_at = HashMap::new();
            loop {
                let (cache, of_nodes, of_target) = (cache.clone(), nodes.clone(), target.clone());
                let tidied = async {
                    let left = of_nodes.clone();
                    let unknown = spawn_blocking(move || {
                        leftovers::clear(&left);
                        files::unknown(&left)
                    });
                    ask(&of_target, unknown.await?, &mut asked_at).await;
                    spawn_blocking(move || cache.tidy()).await?
                };
                if let Err(error) = tidied.await {
                    tracing::warn!("cannot examine the caches of this node: {error:#}");
                }
                tokio::time::sleep(TIDY_EVERY).await;
            }
        }))
    }

    /// The folder of working directories on this node.
    pub(super) fn folder(&self) -> PathBuf {
        self.node.work_folder.join("nodes").join(&self.node.name)
    }

    /// Removes the folder of this node if it is empty. What user code wrote there stays.
    pub(super) fn clear_work_folder(&self) {
        files::leave(&self.folder());
    }
}

/// Returns the obstacle that an error stands for.
fn obstacle(error: &anyhow::Error) -> ProvisioningObstacle {
    match error.downcast_ref::<storage::Error>() {
        // The store reports a full disk of this node as unavailable, too.
        _ if is_full(error) => ProvisioningObstacle::FullDisk,
        Some(error) if error.may_pass() => ProvisioningObstacle::SilentStore,
        _ => ProvisioningObstacle::Lasting,
    }
}

/// Asks the store which of these jobs, whose scripts have left files, have ended.
async fn ask(
    target: &TargetStore,
    folders: Vec<PathBuf>,
    asked_at: &mut HashMap<PathBuf, Instant>,
) {
    asked_at.retain(|folder, _| folders.contains(folder));
    for folder in folders {
        if asked_at.get(&folder).is_some_and(|at| at.elapsed() < ASK_EVERY) {
            continue;
        }
        let Some(job_id) = folder.file_name().and_then(|name| name.to_str()) else { continue };
        if let Ok(Some(_)) = target.job(job_id).result().await {
            let ended = folder.clone();
            let noted = spawn_blocking(move || files::has_ended(&ended)).await;
            if let Err(error) = noted.unwrap_or_else(|panic| Err(panic.into())) {
                tracing::warn!(job.id = job_id, "cannot write to {}: {error}", folder.display());
            }
        }
        asked_at.insert(folder, Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn full_disk_and_missing_rights_differ_from_a_silent_store() {
        let unavailable = |source: io::Error| {
            let (object, source) = ("/cache/archive".to_owned(), source.into());
            anyhow::Error::from(storage::Error::Unavailable { object, source })
                .context("fetch source_directory")
        };
        let of_system = |number| unavailable(io::Error::from_raw_os_error(number));
        assert_eq!(obstacle(&of_system(libc::ENOSPC)), ProvisioningObstacle::FullDisk);
        assert_eq!(obstacle(&of_system(libc::ECONNREFUSED)), ProvisioningObstacle::SilentStore);
        assert_eq!(obstacle(&of_system(libc::EACCES)), ProvisioningObstacle::Lasting);
        assert_eq!(obstacle(&anyhow::anyhow!("no interpreter")), ProvisioningObstacle::Lasting);
    }
}
