//! Speculative runs of slow mini-batches.

use protocol::{Copies, Descriptor, Rejected, Work};
use queue::Receive;

use super::*;

const PROCESSES: [&str; 3] = ["process000", "process001", "process002"];

/// A job whose last mini-batches are slow.
struct Slow {
    job: Job,
    tasks: Arc<MemoryQueue>,
}

impl Slow {
    /// All but `slow` of the mini-batches have succeeded.
    async fn new(mini_batches: u64, slow: u64) -> Self {
        let new = Self::in_init(mini_batches, slow).await;
        new.ends_init().await;
        new
    }

    async fn ends_init(&self) {
        for process in PROCESSES {
            self.job.send_event(ready("0", process)).await;
        }
    }

    /// The same, and its processes are in `init()`.
    async fn in_init(mini_batches: u64, slow: u64) -> Self {
        let mut job = Job::new();
        let tasks = Arc::new(MemoryQueue::new(MemoryOptions::default()));
        job.spec.speculation = true;
        job.spec.thresholds.allowed_failed_count = 0;
        job.options.tasks = Some(tasks.clone());
        let line = |mini_batch| {
            let descriptor = Descriptor::new(&job.spec.job_id, mini_batch, Work::Rank);
            serde_json::to_string(&descriptor).expect("plain data") + "\n"
        };
        let plan: String = (0..mini_batches).map(line).collect();
        job.store.create_plan_chunk(0, plan.into()).await.expect("writable");
        job.planned(mini_batches).await;
        for process in PROCESSES {
            job.send_event(started("0", process)).await;
        }
        for mini_batch in 0..mini_batches - slow {
            job.send_rows(mini_batch, &format!("row {mini_batch}\n")).await;
        }
        for mini_batch in mini_batches - slow..mini_batches {
            let waiting = waiting(&format!("process{mini_batch:03}"), mini_batch, 30);
            job.send_event(ResultEvent::Waiting(waiting.into())).await;
        }
        Self { job, tasks }
    }

    async fn copies(&self, count: usize) -> Vec<Descriptor> {
        let wait = Duration::from_secs(20);
        let request = Receive { messages_max: count, visibility: Duration::from_secs(60), wait };
        let deliveries = self.tasks.receive(request).await.expect("memory is always there");
        deliveries
            .iter()
            .map(|delivery| serde_json::from_slice(&delivery.body).expect("a descriptor"))
            .collect()
    }

    async fn copy_succeeds(&self, mini_batch: u64) {
        let success = Attempt { copy: true, rows: Rows::Inline, ..succeeded(mini_batch, 1, 1, 1) };
        self.job.send(&[(event(success), format!("row {mini_batch}\n").as_bytes())]).await;
    }
}

#[tokio::test]
async fn slow_mini_batch_is_started_once_more() {
    let slow = Slow::new(6, 1).await;
    let running = tokio::spawn(slow.job.open().await.run(CancellationToken::new()));
    let copies = slow.copies(9).await;
    let facts: Vec<_> =
        copies.iter().map(|copy| (copy.mini_batch, copy.copy, &copy.work)).collect();
    assert_eq!(facts, [(5, true, &Work::Planned { chunk: 0, line: 5 })]);
    assert_eq!(slow.job.store.copies(0).await.expect("readable"), Some(vec![5]));
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(slow.tasks.depth().await.expect("there").visible, 0, "not a third time");
    slow.copy_succeeds(5).await;
    let result = running.await.expect("no panic").expect("the job ends");
    assert_eq!((result.state, result.copies), (JobState::Completed, Copies { started: 1, won: 1 }));
    assert_eq!(slow.job.output().lines().count(), 6);
    assert!(slow.job.log("job_result.txt").contains("1 speculative run, 1 won."));
}

#[tokio::test]
async fn mini_batch_that_waits_for_init_is_not_slow() {
    let slow = Slow::in_init(6, 1).await;
    let running = tokio::spawn(slow.job.open().await.run(CancellationToken::new()));
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(slow.tasks.depth().await.expect("there").visible, 0, "no process could run it");
    slow.ends_init().await;
    assert_eq!(slow.copies(9).await.len(), 1);
    running.abort();
}

#[tokio::test]
async fn another_reducer_starts_no_third() {
    let slow = Slow::new(6, 1).await;
    let running = tokio::spawn(slow.job.open().await.run(CancellationToken::new()));
    assert_eq!(slow.copies(9).await.len(), 1);
    running.abort();
    let _ = running.await;
    let cancel = CancellationToken::new();
    let running = tokio::spawn(slow.job.open().await.run(cancel.clone()));
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(slow.tasks.depth().await.expect("there").visible, 0);
    slow.job.send_rows(5, "row 5\n").await;
    let result = running.await.expect("no panic").expect("the job ends");
    assert_eq!(result.copies, Copies { started: 1, won: 0 });
}

#[tokio::test]
async fn failed_mini_batch_waits_for_its_copy() {
    let slow = Slow::new(6, 1).await;
    let running = tokio::spawn(slow.job.open().await.run(CancellationToken::new()));
    assert_eq!(slow.copies(9).await.len(), 1);
    slow.job.send_event(event(failed(5, 3, true, 1))).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!running.is_finished(), "a success is still possible");
    slow.copy_succeeds(5).await;
    let result = running.await.expect("no panic").expect("the job ends");
    assert_eq!((result.state, result.mini_batches.succeeded), (JobState::Completed, 6));
    assert_eq!((result.rejects, result.items.failed), (None, 0), "its items have results");
}

#[tokio::test]
async fn two_failures_are_one() {
    let slow = Slow::new(6, 1).await;
    let running = tokio::spawn(slow.job.open().await.run(CancellationToken::new()));
    assert_eq!(slow.copies(9).await.len(), 1);
    slow.job.send_event(event(Attempt { copy: true, ..failed(5, 1, false, 1) })).await;
    slow.job.send_event(event(failed(5, 3, true, 1))).await;
    let result = running.await.expect("no panic").expect("the job ends");
    assert_eq!((result.state, result.mini_batches.failed), (JobState::Failed, 1));
    assert_eq!(result.failures.iter().map(|cause| cause.attempts).sum::<u64>(), 1);
    assert_eq!(result.duplicates_dropped, 0, "it is none");
}

#[tokio::test]
async fn rejects_of_the_slower_start_do_not_count() {
    let slow = Slow::new(40, 2).await;
    let running = tokio::spawn(slow.job.open().await.run(CancellationToken::new()));
    assert_eq!(slow.copies(9).await.len(), 2);
    slow.copy_succeeds(38).await;
    let rejected = vec![Rejected { detail: "/38".into(), ..rejected(0) }];
    let isolated = Attempt { rejected, extra_runs: 2, rows: Rows::None, ..succeeded(38, 3, 1, 0) };
    slow.job.send_event(event(isolated)).await;
    slow.job.send_rows(39, "row 39\n").await;
    let result = running.await.expect("no panic").expect("the job ends");
    assert_eq!(
        (result.state, result.rejects, result.items_rejected),
        (JobState::Completed, None, 0)
    );
    assert_eq!((result.items.succeeded, result.extra_runs), (40, 0));
}

#[tokio::test]
async fn nodes_learn_which_copied_mini_batches_are_over() {
    let slow = Slow::new(40, 2).await;
    let running = tokio::spawn(slow.job.open().await.run(CancellationToken::new()));
    assert_eq!(slow.copies(9).await.len(), 2, "one in twenty");
    assert!(slow.job.store.decided().await.expect("readable").is_empty());
    slow.copy_succeeds(38).await;
    while slow.job.store.decided().await.expect("readable") != [38] {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    slow.job.send_rows(39, "row 39\n").await;
    let result = running.await.expect("no panic").expect("the job ends");
    assert_eq!(result.copies, Copies { started: 2, won: 1 });
    let mut reducer = slow.job.open().await;
    reopen(&mut reducer).await;
    let decided = slow.job.store.decided().await.expect("readable");
    assert!(decided.is_empty(), "they may have to run again: {decided:?}");
}

#[tokio::test]
async fn nothing_is_started_twice_unless_asked_for() {
    let mut slow = Slow::new(6, 1).await;
    slow.job.spec.speculation = false;
    let running = tokio::spawn(slow.job.open().await.run(CancellationToken::new()));
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(slow.tasks.depth().await.expect("there").visible, 0);
    slow.job.send_rows(5, "row 5\n").await;
    assert_eq!(running.await.expect("no panic").expect("the job ends").copies, Copies::default());
}
