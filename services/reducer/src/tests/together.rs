//! Several reducers on one job, in any order of their steps, write the same file with every row once.

use std::sync::atomic::{AtomicUsize, Ordering};

use object_store::memory::InMemory;
use proptest::prelude::*;
use protocol::begin_message;
use queue::Receive;

use super::*;
use crate::batch::{Batch, Event};
use crate::ledger::Ledger;
use crate::receive::Received;

const REDUCERS: usize = 3;
const MINI_BATCHES: u64 = 12;

/// A step of one reducer or of the queue.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A reducer receives and holds some messages.
    Receive(usize, usize),
    /// A reducer commits and acknowledges its messages.
    Commit(usize),
    /// A reducer commits its messages and is killed before it acknowledges them. Another replaces it.
    CommitAndDie(usize),
    /// A reducer is killed with its messages.
    Die(usize),
    /// A reducer reads the commits of others.
    CatchUp(usize),
    /// The queue delivers some messages twice.
    Duplicate(usize),
    /// All leases expire.
    Expire,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let one = prop_oneof![
        4 => (0..REDUCERS, 1..5usize).prop_map(|(reducer, most)| Step::Receive(reducer, most)),
        4 => (0..REDUCERS).prop_map(Step::Commit),
        1 => (0..REDUCERS).prop_map(Step::CommitAndDie),
        1 => (0..REDUCERS).prop_map(Step::Die),
        1 => (0..REDUCERS).prop_map(Step::CatchUp),
        1 => (1..4usize).prop_map(Step::Duplicate),
        1 => Just(Step::Expire),
    ];
    prop::collection::vec(one, 0..40)
}

struct Job {
    store: JobStore,
    results: Arc<MemoryQueue>,
    options: Options,
    folder: tempfile::TempDir,
    opened: AtomicUsize,
}

impl Job {
    async fn new() -> Self {
        let folder = tempfile::tempdir().expect("temporary folder");
        let store = JobStore::new(Arc::new(InMemory::new()), "jobs/one".into());
        store.put_spec(&spec(&folder.path().join("out"))).await.expect("writable");
        put_plan(&store, MINI_BATCHES, Some(MINI_BATCHES)).await;
        let job = Self {
            store,
            results: Arc::new(MemoryQueue::new(MemoryOptions::default())),
            options: Options {
                progress_interval: Duration::from_millis(5),
                commit_interval: Duration::ZERO,
                ..Options::shared()
            },
            folder,
            opened: AtomicUsize::new(0),
        };
        job.announce().await;
        job
    }

    /// Announces some rows inline and some as parts, some retries and final failures; each mini-batch twice, because
    /// its lease expired once.
    async fn announce(&self) {
        for mini_batch in (0..MINI_BATCHES).chain(0..MINI_BATCHES) {
            let mut body = begin_message("one");
            let row = format!("row {mini_batch}\n");
            let mut attempt = succeeded(mini_batch, 1, 1, 1);
            if mini_batch % 5 == 4 {
                let retry = failed(mini_batch, 1, false, 1);
                encode_record(&event(retry), b"", &mut body);
                attempt = failed(mini_batch, 2, true, 1);
            } else if mini_batch % 3 == 0 {
                let name = format!("{mini_batch}-1");
                attempt.rows = Rows::Part { name: name.clone(), bytes: row.len() as u64 };
                self.store.put_part(&name, row.clone().into()).await.expect("writable");
            } else {
                attempt.rows = Rows::Inline;
            }
            let rows = if attempt.rows == Rows::Inline { row.as_bytes() } else { b"" };
            encode_record(&event(attempt), rows, &mut body);
            self.send(body).await;
        }
        let mut body = begin_message("one");
        let planned = Planned { mini_batches: MINI_BATCHES, items: Some(MINI_BATCHES) };
        encode_record(&ResultEvent::Planned(planned), b"", &mut body);
        self.send(body).await;
    }

    async fn send(&self, body: Vec<u8>) {
        self.results.send(vec![Message::new(body)]).await.expect("sent");
    }

    async fn open(&self) -> Reducer {
        let opened = self.opened.fetch_add(1, Ordering::Relaxed);
        let options = Options { writer: opened.to_string(), ..self.options.clone() };
        Reducer::open(self.store.clone(), self.results.clone(), options).await.expect("readable")
    }

    fn output(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("out/parallel_run_step.txt"))
            .expect("the final file")
    }
}

fn expected() -> String {
    (0..MINI_BATCHES).filter(|id| id % 5 != 4).map(|id| format!("row {id}\n")).collect()
}

async fn run(steps: &[Step]) {
    let job = Job::new().await;
    let mut reducers = Vec::new();
    for _ in 0..REDUCERS {
        reducers.push((job.open().await, Vec::<Received>::new()));
    }
    for step in steps {
        match *step {
            Step::Receive(which, messages_max) => {
                let (reducer, held) = &mut reducers[which];
                let request = Receive { messages_max, ..reducer.request(Duration::ZERO) };
                let deliveries = reducer.results.receive(request).await.expect("received");
                held.extend(deliveries.into_iter().map(Received::read));
            }
            Step::Commit(which) => {
                let (reducer, held) = &mut reducers[which];
                reducer.commit(std::mem::take(held)).await.expect("committed");
            }
            Step::CommitAndDie(which) => {
                let (reducer, held) = &mut reducers[which];
                let mut batch = Batch::default();
                held.iter().for_each(|held| assert!(batch.add(&held.delivery.body).is_none()));
                reducer.append(batch).await.expect("committed");
                reducers[which] = (job.open().await, Vec::new());
            }
            Step::Die(which) => reducers[which] = (job.open().await, Vec::new()),
            Step::CatchUp(which) => drop(reducers[which].0.catch_up().await.expect("readable")),
            Step::Duplicate(deliveries) => job.results.duplicate_next(deliveries),
            // The reducers do not know.
            Step::Expire => tokio::time::advance(job.options.visibility).await,
        }
    }
    // The messages of killed reducers become visible again.
    tokio::time::advance(job.options.visibility).await;
    tokio::time::resume();
    let running: Vec<_> = reducers
        .into_iter()
        .map(|(reducer, _)| tokio::spawn(reducer.run(CancellationToken::new())))
        .collect();
    let mut results = Vec::new();
    for reducer in running {
        results.push(reducer.await.expect("no panic").expect("the job ends"));
    }
    assert!(results.iter().all(|result| *result == results[0]), "{results:?}");
    let result = &results[0];
    let failed_ids = (0..MINI_BATCHES).filter(|id| id % 5 == 4).count() as u64;
    assert_eq!((result.state, &result.cause), (JobState::Completed, &None));
    assert_eq!(
        (result.mini_batches.succeeded, result.mini_batches.failed),
        (MINI_BATCHES - failed_ids, failed_ids)
    );
    assert_eq!(job.output(), expected());

    // The ledger holds every attempt once.
    let mut attempts = 0;
    let mut ledger = Ledger::new(job.store.clone(), "one", Duration::ZERO);
    while let Some(segment) = ledger.read_next(1).await.expect("readable") {
        attempts += segment.events().filter_map(Event::attempted).count() as u64;
    }
    assert_eq!(attempts, MINI_BATCHES + failed_ids, "each retry and each outcome once");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn any_order_of_steps_writes_the_same_file(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        runtime.expect("a runtime").block_on(run(&steps));
    }
}
