//! Handles other processes that work on the job: reads the commits of other reducers, agrees with
//! them on the end of the job, and waits for the reducer that ends it.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use protocol::JobResult;
use storage::JobStore;
use tokio::time::sleep;

use crate::Options;
use crate::batch::{Batch, Unreadable};
use crate::commit::Appended;
use crate::job::Reducer;
use crate::job_liveness::Timestamp;
use crate::judge::End;
use crate::ledger::Ledger;
use crate::nodes::Nodes;

/// How often a reducer checks for the result of another that has ended the job, before it writes
/// the result itself.
const LOOKS_FOR_RESULT: usize = 3;
/// Limit on the start of the first Python process on one machine, which includes the creation of environments.
const FIRST_PROCESS_MAX: Duration = Duration::from_secs(3600);

/// Other processes that work on a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Peers {
    /// None: all roles run in this process and end with it.
    #[default]
    Alone,
    /// Nodes on other machines, which may outlive this reducer, and other reducers. The reducer therefore knows nodes
    /// only from the ledger, and compares every message with the plan.
    Many,
}

/// The agreement of the reducers of a job on its end.
pub(crate) enum Agreement {
    /// The job ends.
    Ends(End),
    /// Another reducer has written the result.
    EndedElsewhere(Box<JobResult>),
    /// The job has been reopened.
    Reopened,
}

impl Peers {
    /// Opens the ledger, which repairs truncated segments only if no other reducer reads them.
    pub(crate) fn ledger(self, store: &JobStore, job_id: &str, options: &Options) -> Ledger {
        let ledger = Ledger::new(store.clone(), job_id, options.store_patience);
        match self {
            Self::Alone => ledger.repairing(),
            Self::Many => ledger,
        }
    }

    /// Returns the folder for reports; `None` if the reducer writes them to a folder of its own and copies them.
    pub(crate) fn reports_folder(self, store: &JobStore) -> Option<PathBuf> {
        match self {
            Self::Alone => store.folder().map(|folder| folder.join("logs")),
            Self::Many => None,
        }
    }

    /// Returns the pause between receives. If each call has a price, a pause lets messages accumulate.
    pub(crate) fn receive_pause(self, options: &Options) -> Duration {
        match self {
            Self::Alone => Duration::ZERO,
            Self::Many => options.commit_interval,
        }
    }

    /// Returns the age of a job, for limits on it. On one machine the time in which the process was
    /// stopped does not count.
    pub(crate) fn age(self, elapsed: Duration, attended: Duration) -> Duration {
        match self {
            Self::Alone => attended,
            Self::Many => elapsed,
        }
    }

    /// Returns the number of nodes that must fail before the job fails. `node_count`: the nodes of the job; with peers
    /// the maximum at a time, or `None` for no maximum.
    pub(crate) fn nodes_needed(self, node_count: Option<u32>, nodes: &Nodes) -> u64 {
        let most = node_count.map(u64::from);
        let count = match self {
            Self::Alone => most.unwrap_or(1),
            Self::Many => most.unwrap_or(u64::MAX).min(nodes.nodes_present() as u64),
        };
        count.max(1)
    }

    /// Whether no process can make progress.
    pub(crate) fn is_deserted(self, nodes: &Nodes) -> bool {
        match self {
            Self::Alone => nodes.processes_per_node_seen() == 0,
            Self::Many => nodes.processes_up() == 0,
        }
    }

    /// Returns how long a job waits for its first process; `None` for no limit.
    pub(crate) fn first_process_max(self) -> Option<Duration> {
        match self {
            Self::Alone => Some(FIRST_PROCESS_MAX),
            Self::Many => None,
        }
    }

    /// Whether a completed job may delete its ledger, which another reducer might read.
    pub(crate) fn may_delete_history(self) -> bool {
        self == Self::Alone
    }
}

impl Reducer {
    /// Continues the job from the end of the ledger.
    pub(crate) async fn take_over(&mut self) {
        match self.peers {
            Peers::Alone => {
                // Nodes and progress of an earlier run ended with it.
                self.tally.begin_session();
                self.show_progress();
                self.write_progress().await;
            }
            Peers::Many => self.show_progress(),
        }
    }

    /// Returns the end of a job after an error, or the error itself if another reducer may succeed.
    pub(crate) fn end_by(&self, error: anyhow::Error) -> anyhow::Result<End> {
        match self.peers {
            Peers::Alone => Ok(End::Failed(format!("{error:#}"))),
            Peers::Many => Err(error),
        }
    }

    // ---- catching up -------------------------------------------------------------------------------------------

    /// Reads the commits of other reducers. Returns whether there were any.
    pub(crate) async fn catch_up(&mut self) -> anyhow::Result<bool> {
        match self.peers {
            Peers::Alone => Ok(false),
            Peers::Many => self.read_ledger(true).await,
        }
    }

    /// Removes the records of a message that contradict the plan.
    pub(crate) async fn take_refused(
        &mut self,
        records: &mut Batch,
    ) -> storage::Result<Vec<Unreadable>> {
        match self.peers {
            Peers::Alone => Ok(Vec::new()),
            Peers::Many => self.known_plan.take_refused(records, &self.store).await,
        }
    }

    /// Fails if plan and ledger contradict each other, because somebody has changed one of them.
    pub(crate) async fn compare_with_plan(&mut self, segment: &Batch) -> anyhow::Result<()> {
        if self.peers == Peers::Many
            && let Some(reason) = self.known_plan.contradicted(segment, &self.store).await?
        {
            bail!(
                "the ledger and the plan of job {} contradict each other: {reason}",
                self.spec.job_id
            );
        }
        Ok(())
    }

    /// Reads the commits of other reducers, so that progress never goes back behind theirs, and the
    /// result of a job whose end is among them: the end is committed before the result is written.
    pub(crate) async fn check_peers(&mut self) -> anyhow::Result<Option<JobResult>> {
        if self.peers == Peers::Alone || self.catch_up().await? || self.tally.ended_as().is_none() {
            return Ok(None);
        }
        Ok(self.store.result().await.unwrap_or_else(|error| {
            tracing::warn!(error = %format!("{error:#}"), "cannot check whether the job has ended, trying again");
            None
        }))
    }

    /// Begins rounds that are requested, and publishes what runs again.
    pub(crate) async fn check_rounds(&mut self) -> anyhow::Result<()> {
        if self.peers == Peers::Alone {
            self.take_round_request().await?;
        }
        self.publish_rounds().await
    }

    // ---- heartbeats --------------------------------------------------------------------------------------------

    /// Alone: records a heartbeat of the workers in this process. With peers: reads which nodes may run the job.
    pub(crate) fn hear_workers(&mut self) {
        match self.peers {
            Peers::Alone => self.judge.job_liveness.heard(Timestamp::now()),
            Peers::Many => self.judge.able.clone_from(&(self.options.workers)().able),
        }
    }

    /// Records the last heartbeat of a worker.
    pub(crate) async fn check_workers(&mut self) {
        if self.peers == Peers::Alone {
            return;
        }
        if let Some(heartbeat) = (self.options.workers)().heartbeat {
            self.judge.job_liveness.heard(heartbeat);
        }
        let is_silent = self.workers_silent_since().is_some();
        if is_silent == std::mem::replace(&mut self.is_silent, is_silent) {
            return;
        }
        let message = match is_silent {
            true => "No worker works on the job now.",
            false => "A worker works on the job again.",
        };
        tracing::info!("{message}");
        self.reports.decided(message).await;
    }

    /// Returns the wall clock of the last heartbeat of any worker, if all count as absent.
    pub(crate) fn workers_silent_since(&self) -> Option<u64> {
        match self.peers {
            Peers::Alone => None,
            Peers::Many => self.judge.job_liveness.silent_since(Timestamp::now()),
        }
    }

    /// Returns the number of nodes that have worked on the job. A node that builds an environment
    /// sends heartbeats before its first event.
    pub(crate) fn nodes_heard(&self) -> u64 {
        let heard = self.peers == Peers::Many && self.judge.job_liveness.has_heard();
        self.tally.nodes().nodes_seen().max(usize::from(heard)) as u64
    }

    // ---- arbitration -------------------------------------------------------------------------------------------

    /// Agrees with the other reducers on the end of the job: the first committed end decides.
    pub(crate) async fn agree(&mut self, end: End) -> anyhow::Result<Agreement> {
        if self.peers == Peers::Alone && matches!(end, End::Complete) {
            self.tally.apply(&end.event());
            return Ok(Agreement::Ends(end));
        }
        let is_ours = self.append_event(&end.event()).await? == Appended::Committed;
        if !is_ours && let Some(result) = self.wait_for_result().await? {
            return Ok(Agreement::EndedElsewhere(Box::new(result)));
        }
        Ok(match self.tally.ended_as() {
            Some(committed) => Agreement::Ends(End::from_ledger(committed)),
            None => Agreement::Reopened,
        })
    }

    /// Gives the reducer that has ended the job time to write the result.
    async fn wait_for_result(&mut self) -> anyhow::Result<Option<JobResult>> {
        for look in 0..LOOKS_FOR_RESULT {
            if look > 0 {
                sleep(self.options.progress_interval).await;
            }
            if let Some(result) = self.store.result().await? {
                return Ok(Some(result));
            }
        }
        self.catch_up().await.map(|_| None)
    }

    /// Returns the result of another reducer, after an error that its removal of parts may explain.
    pub(crate) async fn result_of_peer(&self) -> storage::Result<Option<JobResult>> {
        match self.peers {
            Peers::Alone => Ok(None),
            Peers::Many => self.store.result().await,
        }
    }

    /// Returns the result if another reducer has just ended the job.
    pub(crate) async fn ended_by_peer(&mut self) -> Option<JobResult> {
        if self.peers == Peers::Alone || self.catch_up().await.is_err() {
            return None;
        }
        self.tally.ended_as()?;
        self.store.result().await.ok().flatten()
    }

    /// Whether the job was reopened after this reducer had agreed on the end of a run of it, even if it has ended again.
    /// `run`: how often it had been reopened then.
    pub(crate) async fn is_reopened_since(&mut self, run: u64) -> anyhow::Result<bool> {
        self.catch_up().await?;
        let is_open = self.tally.ended_as().is_none();
        Ok(self.peers == Peers::Many && (is_open || self.tally.rounds() != run))
    }

    /// Completes the reports that this reducer copied before another reducer wrote the result.
    pub(crate) async fn ended_elsewhere(&mut self, result: JobResult) -> JobResult {
        if self.reports.may_have_replaced().await {
            match self.catch_up().await {
                Ok(_) => self.reports.ended_elsewhere(&result, &self.tally).await,
                Err(error) => {
                    tracing::warn!(
                        "reports of the job may lack the last commits of other reducers: {error:#}"
                    )
                }
            }
        }
        result
    }
}
