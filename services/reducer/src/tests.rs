//! Whole jobs in which the tests play all roles except the reducer.

mod copies;
mod crashes;
mod life;
mod output_store;
pub(crate) mod peers;
mod together;

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use protocol::{
    Attempt, AttemptStatus, ErrorReport, JobResult, JobSpec, JobState, OutputAction, Planned,
    ResultEvent, Rows, Waiting, encode_record,
};
use queue::{MemoryOptions, MemoryQueue, Message, Queue};
use storage::JobStore;
use tokio_util::sync::CancellationToken;

use crate::fixtures::{
    attempt, event, failed, put_plan, ready, rejected, reopen, spec, started, succeeded, waiting,
};
use crate::{CrashPoint, MiniBatchState, Options, Peers, Reducer};

/// A job in which the tests play all other roles.
struct Job {
    folder: tempfile::TempDir,
    store: JobStore,
    results: Arc<MemoryQueue>,
    spec: JobSpec,
    options: Options,
}

impl Job {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("temporary folder");
        let job = folder.path().join("job");
        fs::create_dir(&job).expect("fresh");
        let options = Options {
            visibility: Duration::from_secs(60),
            report_interval: Duration::from_millis(20),
            progress_interval: Duration::from_millis(10),
            init_failure_age: Duration::ZERO,
            ..Options::default()
        };
        Self {
            store: JobStore::local(&job).expect("exists"),
            results: Arc::new(MemoryQueue::new(MemoryOptions::default())),
            spec: spec(&folder.path().join("out")),
            options,
            folder,
        }
    }

    async fn open(&self) -> Reducer {
        self.store.put_spec(&self.spec).await.expect("writable");
        if self.options.peers == Peers::Many {
            self.store.create_plan_chunk(0, Bytes::from_static(b"{}\n")).await.expect("writable");
        }
        Reducer::open(self.store.clone(), self.results.clone(), self.options.clone())
            .await
            .expect("readable")
    }

    async fn run(&self) -> JobResult {
        self.open().await.run(CancellationToken::new()).await.expect("the job ends")
    }

    async fn send(&self, events: &[(ResultEvent, &[u8])]) {
        let mut body = Vec::new();
        events.iter().for_each(|(event, rows)| encode_record(event, rows, &mut body));
        self.results.send(vec![Message::new(body)]).await.expect("sent");
    }

    async fn send_event(&self, event: ResultEvent) {
        self.send(&[(event, b"")]).await;
    }

    async fn send_rows(&self, mini_batch: u64, rows: &str) {
        let mut attempt = succeeded(mini_batch, 1, 1, 1);
        attempt.rows = Rows::Inline;
        self.send(&[(event(attempt), rows.as_bytes())]).await;
    }

    async fn planned(&self, mini_batches: u64) {
        put_plan(&self.store, mini_batches, Some(mini_batches)).await;
        self.send_event(ResultEvent::Planned(Planned { mini_batches, items: Some(mini_batches) }))
            .await;
    }

    fn output(&self) -> String {
        let path = self.folder.path().join("out/parallel_run_step.txt");
        fs::read_to_string(path).expect("the final file exists")
    }

    fn log(&self, name: &str) -> String {
        fs::read_to_string(self.folder.path().join("job/logs").join(name))
            .expect("the report exists")
    }

    fn overview(&self) -> String {
        let logs = fs::read_dir(self.folder.path().join("job/logs")).expect("there");
        let mut names: Vec<_> = logs
            .map(|entry| entry.expect("readable").file_name().into_string().expect("text"))
            .collect();
        names.retain(|name| name.starts_with("job_progress_overview."));
        names.sort();
        names.iter().map(|name| self.log(name)).collect()
    }
}
