//! Provisions a job on this node, runs its agent, and cleans up after it.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use protocol::{Descriptor, JobSpec};
use queue::{Receipt, View};
use storage::JobStore;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

use super::Shared;
use super::beat::keep_beating;
use super::errands::STORE_WAIT_MAX;
use super::logs::LogUpload;
use super::protection::Hold;
use super::provision::Provisioned;
use crate::agent::{Agent, report_provisioning};
use crate::default_process_count;
use crate::stop::Stop;

/// What an agent leaves behind.
pub(super) struct Left {
    /// What it still held.
    pub(super) held: Result<Vec<(Receipt, Descriptor)>>,
    pub(super) remains: Remains,
}

/// Logs and folders of a job whose agent has ended.
pub(super) struct Remains {
    logs: Option<LogUpload>,
    folder: PathBuf,
}

/// Makes a job ready, with signs of life meanwhile.
pub(super) async fn provision(
    shared: Arc<Shared>,
    job_id: String,
    store: JobStore,
    spec: JobSpec,
) -> Result<Provisioned> {
    let node = &shared.node;
    let provisioning = shared.provisioner.provision(spec);
    tokio::select! {
        result = report_provisioning(&*node.results, &job_id, &node.name, provisioning) => result,
        () = keep_beating(&store, &node.name, node.options.watch_period) => {
            unreachable!("a node gives signs of life until it leaves the job")
        }
    }
}

/// Works on a job until its agent ends, with signs of life and uploads of its logs meanwhile.
pub(super) async fn work(
    shared: Arc<Shared>,
    agent: Agent,
    stop: watch::Receiver<Stop>,
    protection: Option<Arc<Hold>>,
) -> Left {
    if let Some(protection) = protection {
        protection.settled().await;
    }
    let node = &shared.node;
    let (store, folder) = (agent.store.clone(), agent.work_folder.clone());
    let period = node.options.log_period;
    let mut logs = store.folder().is_none().then(|| LogUpload::new(agent.logs(), store.clone(), period));
    tracing::info!(job.id = agent.spec.job_id, "working on it with {} processes", agent.process_count);
    let span = tracing::error_span!("agent", job.id = agent.spec.job_id, node.id = node.name);
    let working = AbortOnDropHandle::new(tokio::spawn(agent.work(stop).instrument(span)));
    let uploading = async {
        match &mut logs {
            Some(logs) => logs.keep().await,
            None => std::future::pending().await,
        }
    };
    let held = tokio::select! {
        worked = working => worked.context("the agent panicked").flatten(),
        () = uploading => unreachable!("logs are uploaded until the agent ends"),
        () = keep_beating(&store, &node.name, node.options.watch_period) => {
            unreachable!("a node gives signs of life until it leaves the job")
        }
    };
    Left { held, remains: Remains { logs, folder } }
}

impl Remains {
    /// Uploads the last logs, and removes the folders of the job.
    pub(super) async fn clean_up(self) {
        let Self { logs, folder } = self;
        if let Some(mut logs) = logs {
            let _ = timeout(2 * STORE_WAIT_MAX, logs.finish()).await;
            let _ = std::fs::remove_dir_all(folder.join("logs"));
        }
        let _ = std::fs::remove_dir_all(folder.join("inputs"));
        // Working directories in which user code left something stay.
        let _ = std::fs::remove_dir(folder.join("scratch"));
        let _ = std::fs::remove_dir(&folder);
    }
}

impl Shared {
    /// Returns the agent of a job, about to start.
    pub(super) fn agent(&self, store: JobStore, provisioned: Provisioned, view: Arc<View>) -> Agent {
        let Provisioned { spec, python } = provisioned;
        let node = &self.node;
        Agent {
            store,
            tasks: view,
            results: node.results.clone(),
            dead_letters: Some(node.dead_letters.clone()),
            node: node.name.clone(),
            process_count: node
                .options
                .process_count
                .or(spec.process_count_per_node)
                .unwrap_or_else(|| default_process_count(node.gpu_count)),
            gpu_count: node.gpu_count,
            python,
            package: node.package.clone(),
            work_folder: self.job_folder(&spec.job_id),
            prefetch_bytes_max: node.prefetch_bytes_max,
            timing: node.options.timing,
            health: node.options.health.clone(),
            crash: node.crash,
            spec: Arc::new(spec),
        }
    }

    /// The folder of a job's working directories on this node.
    fn job_folder(&self, job_id: &str) -> PathBuf {
        self.node.work_folder.join("nodes").join(&self.node.name).join(job_id)
    }

    /// Removes the folder of this node if it is empty. What user code wrote there stays.
    pub(super) fn clear_work_folder(&self) {
        let _ = std::fs::remove_dir(self.node.work_folder.join("nodes").join(&self.node.name));
    }
}
