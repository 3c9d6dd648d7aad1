//! Planning and publishing with interruptions.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore, ObjectStoreExt};
use partitioner::{Error, Partitioner, Pending, PlanProgress, plan_is_damaged};
use protocol::{
    Descriptor, JobSpec, MiniBatchSize, PLAN_CHUNK_MINI_BATCHES, PlanPosition, Planned,
    ResultEvent, TableFormat, Work, decode_records,
};
use queue::{MemoryOptions, MemoryQueue, Queue, Receive};
use storage::{JobStore, PlanComplete};
use tempfile::TempDir;

use crate::fixtures::{descriptors, file_job, folder, table_job, write};
use crate::power::{Power, PoweredQueue, PoweredStore};

/// One job with a store and queues that can lose power.
struct Site {
    power: Arc<Power>,
    objects: Arc<PoweredStore>,
    store: JobStore,
    tasks: Arc<PoweredQueue>,
    results: Arc<PoweredQueue>,
    partitioner: Partitioner,
}

impl Site {
    fn new(job: &JobSpec, off_at: usize, off_after: bool) -> Self {
        let power = Power::new(off_at, off_after);
        let (tasks, results) = (PoweredQueue::new(&power), PoweredQueue::new(&power));
        let objects = PoweredStore::new(&power);
        let store = JobStore::new(
            Arc::clone(&objects) as Arc<dyn ObjectStore>,
            ObjectPath::from("jobs/one"),
        );
        let partitioner = Partitioner::new(
            job.clone(),
            store.clone(),
            Arc::clone(&tasks) as Arc<dyn queue::Queue>,
            Arc::clone(&results) as Arc<dyn queue::Queue>,
        );
        Self { power, objects, store, tasks, results, partitioner }
    }

    fn powered(job: &JobSpec) -> Self {
        Self::new(job, 0, false)
    }

    async fn publish(&self) -> anyhow::Result<PlanComplete> {
        self.partitioner.plan_and_publish(|_| {}).await
    }

    async fn resume(&self) -> anyhow::Result<PlanComplete> {
        self.partitioner.resume(|_| Some(Pending::default()), |_| {}).await
    }

    async fn published(&self) -> Vec<Descriptor> {
        let bodies = self.tasks.bodies().await;
        bodies.iter().map(|body| serde_json::from_slice(body).expect("a descriptor")).collect()
    }

    async fn announced(&self) -> Vec<Planned> {
        let mut announced = Vec::new();
        for body in self.results.bodies().await {
            for record in decode_records(&body) {
                match record.expect("a record").event {
                    ResultEvent::Job { .. } => {}
                    ResultEvent::Planned(planned) => announced.push(planned),
                    event => panic!("{event:?}"),
                }
            }
        }
        announced
    }

    /// Returns all objects of the plan.
    async fn plan(&self) -> BTreeMap<String, Bytes> {
        let mut plan = BTreeMap::new();
        let listed =
            self.objects.list_with_delimiter(Some(&ObjectPath::from("jobs/one/plan"))).await;
        for meta in listed.expect("in memory").objects {
            let bytes = self
                .objects
                .get(&meta.location)
                .await
                .expect("listed")
                .bytes()
                .await
                .expect("in memory");
            plan.insert(meta.location.to_string(), bytes);
        }
        plan
    }
}

/// Returns a job with more than one chunk.
fn large_job() -> (TempDir, JobSpec) {
    let root = folder();
    write(root.path(), "a.csv", "id\n".repeat(PLAN_CHUNK_MINI_BATCHES as usize));
    write(root.path(), "b.csv", "id\n1\n");
    let job = table_job(TableFormat::Csv, MiniBatchSize::Bytes(3), &[root.path()]);
    (root, job)
}

fn changed(error: &anyhow::Error) -> String {
    match error.downcast_ref::<Error>() {
        Some(error @ Error::InputsChanged { .. }) => format!("{error:#}"),
        _ => panic!("{error:#}"),
    }
}

#[tokio::test]
async fn whole_plan_is_published_and_announced() {
    let (_root, job) = large_job();
    let site = Site::powered(&job);
    let steps = std::sync::Mutex::new(Vec::new());
    let complete =
        site.partitioner.plan_and_publish(|step| steps.lock().expect("alive").push(step)).await;
    let complete = complete.expect("planned");
    let total = PLAN_CHUNK_MINI_BATCHES + 2;
    assert_eq!(complete.mini_batches, total);
    assert_eq!((complete.files, complete.items), (2, None));
    assert_eq!(site.store.plan_complete().await.expect("readable"), Some(complete.clone()));
    let published: Vec<Descriptor> = site.published().await;
    let planned = descriptors(&job);
    assert_eq!(published, planned);
    let lines: Vec<u8> = site
        .plan()
        .await
        .into_iter()
        .filter(|(name, _)| !name.ends_with("json"))
        .flat_map(|(_, b)| b)
        .collect();
    let stored: Vec<Descriptor> = lines
        .split_inclusive(|&byte| byte == b'\n')
        .map(|line| serde_json::from_slice(line).expect("JSON"))
        .collect();
    assert_eq!(stored, planned);
    assert_eq!(site.announced().await, [Planned { mini_batches: total, items: None }]);
    let steps = steps.into_inner().expect("alive");
    assert_eq!(steps[0].mini_batches, PLAN_CHUNK_MINI_BATCHES);
    assert_eq!(
        steps.last(),
        Some(&PlanProgress { files: 2, mini_batches: total, published: total })
    );
}

#[tokio::test]
async fn plan_does_not_wait_for_room_in_the_queue() {
    let (_root, job) = large_job();
    let folder = tempfile::tempdir().expect("temporary folder");
    let store = JobStore::local(folder.path()).expect("it is there");
    let [tasks, results] = [(); 2].map(|()| Arc::new(MemoryQueue::new(MemoryOptions::default())));
    let partitioner =
        Partitioner::new(job, store.clone(), Arc::new(tasks.bounded(1)), results.clone());
    let publishing = tokio::spawn(async move { partitioner.plan_and_publish(|_| {}).await });
    let request = Receive {
        messages_max: 1,
        visibility: Duration::from_secs(60),
        wait: Duration::from_secs(60),
    };
    assert_eq!(
        results.receive(request).await.expect("answers").len(),
        1,
        "the reducer knows the totals"
    );
    let total = store.plan_complete().await.expect("readable").expect("complete").mini_batches;
    assert!(tasks.depth().await.expect("answers").total() < total && !publishing.is_finished());
    for _ in 0..total {
        let received = tasks.receive(request).await.expect("answers").remove(0);
        tasks.acknowledge(&[received.receipt]).await.expect("answers");
    }
    assert_eq!(publishing.await.expect("no panic").expect("published").mini_batches, total);
    assert_eq!(tasks.depth().await.expect("answers").total(), 0);
}

#[tokio::test]
async fn plan_continues_after_a_crash_at_any_write() {
    let (_root, job) = large_job();
    let undisturbed = Site::powered(&job);
    let complete = undisturbed.publish().await.expect("planned");
    let plan = undisturbed.plan().await;
    let mut writes = 0;
    for off_after in [false, true] {
        for off_at in 1.. {
            let site = Site::new(&job, off_at, off_after);
            let stopped = site.publish().await;
            if !site.power.is_off() {
                stopped.expect("planned");
                break;
            }
            writes += 1;
            stopped.expect_err("the power is off");
            site.power.restore();
            assert_eq!(site.resume().await.expect("continued"), complete, "write {off_at}");
            assert_eq!(site.plan().await, plan, "write {off_at}");
            let published: BTreeSet<u64> =
                site.published().await.iter().map(|message| message.mini_batch).collect();
            assert_eq!(published.len() as u64, complete.mini_batches, "write {off_at}");
            let announced = site.announced().await;
            assert!(!announced.is_empty(), "write {off_at}");
            assert!(announced.iter().all(|planned| planned.mini_batches == complete.mini_batches));
        }
    }
    // Schemas, two chunks, two sends, the totals, the announcement.
    assert_eq!(writes, 2 * 7, "the number of writes changed: update the list");
}

#[tokio::test(start_paused = true)]
async fn plan_of_another_process_is_published_while_it_grows() {
    let (_root, job) = large_job();
    let undisturbed = Site::powered(&job);
    let complete = undisturbed.publish().await.expect("planned");
    let expected = undisturbed.published().await;
    let site = Site::powered(&job);
    let pending = |mini_batch| (mini_batch != 7).then(Pending::default);
    let following = site.partitioner.follow(pending);
    let planning = async {
        // The first looks find nothing.
        tokio::time::sleep(std::time::Duration::from_secs(3)).await;
        let stored = &undisturbed.store;
        site.store.put_schemas(&stored.schemas().await.expect("there")).await.expect("writable");
        for chunk in 0..complete.chunks() {
            let lines = stored.plan_chunk(chunk).await.expect("there");
            site.store.create_plan_chunk(chunk, lines).await.expect("writable");
            tokio::time::sleep(std::time::Duration::from_secs(10)).await;
            // One that is not full may be truncated, and waits for the end of the plan.
            let is_full = PLAN_CHUNK_MINI_BATCHES * (chunk + 1) <= complete.mini_batches;
            let expected = PLAN_CHUNK_MINI_BATCHES - u64::from(chunk == 0);
            let published = site.tasks.bodies().await.len() as u64;
            assert_eq!(published, if is_full { expected } else { 0 });
        }
        site.store.put_plan_complete(&complete).await.expect("writable");
    };
    let (followed, ()) = tokio::join!(following, planning);
    assert_eq!(followed.expect("published"), Some(complete.clone()));
    let of_last = site.tasks.bodies().await.len() as u64;
    assert_eq!(of_last, complete.mini_batches % PLAN_CHUNK_MINI_BATCHES);
    assert_eq!(
        site.announced().await,
        [Planned { mini_batches: complete.mini_batches, items: None }]
    );

    // A complete plan is published at once.
    let all = site.partitioner.follow(|_| Some(Pending::default())).await.expect("published");
    assert_eq!((all, site.published().await), (Some(complete), expected));
}

#[tokio::test]
async fn plan_alone_publishes_nothing() {
    let (_root, job) = large_job();
    let site = Site::powered(&job);
    let complete = site.partitioner.plan_only().await.expect("planned");
    assert_eq!(site.store.plan_complete().await.expect("readable"), Some(complete));
    assert!(site.published().await.is_empty() && site.announced().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn failed_plan_is_reported_to_the_reducer() {
    let (_root, job) = large_job();
    let site = Site::powered(&job);
    site.store.put_plan_failure("no column id").await.expect("writable");
    assert_eq!(site.partitioner.follow(|_| Some(Pending::default())).await.expect("told"), None);
    let bodies = site.results.bodies().await;
    let events: Vec<ResultEvent> = bodies
        .iter()
        .flat_map(decode_records)
        .map(|record| record.expect("a record").event)
        .collect();
    assert!(events.iter().any(
        |event| matches!(event, ResultEvent::PlanFailed { cause } if cause == "no column id")
    ));
    assert!(site.published().await.is_empty());
}

#[tokio::test]
async fn local_job_is_planned_and_continued() {
    let root = folder();
    for name in ["a", "b", "c"] {
        write(root.path(), name, "");
    }
    let home = folder();
    let job = file_job(1, &[root.path()]);
    let site = Site::powered(&job);
    let store = JobStore::local(home.path()).expect("the folder is there");
    let partitioner =
        Partitioner::new(job, store.clone(), site.tasks.clone(), site.results.clone());
    let complete = partitioner.plan_and_publish(|_| {}).await.expect("planned");
    assert_eq!((complete.mini_batches, complete.items), (3, Some(3)));
    fs::remove_file(home.path().join("plan/complete.json")).expect("it is there");
    let again = partitioner.resume(|_| Some(Pending::default()), |_| {}).await.expect("continued");
    assert_eq!(again, complete);
    assert_eq!(site.published().await.len(), 6, "each twice, which does no harm");
}

#[tokio::test]
async fn only_pending_mini_batches_are_published_with_their_spent_tries() {
    const SECOND_CHUNK: u64 = PLAN_CHUNK_MINI_BATCHES + 1;
    let (root, job) = large_job();
    let site = Site::powered(&job);
    let complete = site.publish().await.expect("planned");
    site.tasks.bodies().await;
    // A complete plan is never listed again.
    fs::remove_dir_all(root.path()).expect("ours");
    let pending = |mini_batch| match mini_batch {
        7 => Some(Pending { tries_spent: 2, deliveries_lost: 1, again: None }),
        SECOND_CHUNK => Some(Pending::default()),
        _ => None,
    };
    let last = std::sync::Mutex::new(None);
    let resumed =
        site.partitioner.resume(pending, |step| *last.lock().expect("alive") = Some(step)).await;
    assert_eq!(resumed.expect("continued"), complete);
    let published = site.published().await;
    let spent: Vec<_> = published
        .iter()
        .map(|message| (message.mini_batch, message.tries_spent, message.deliveries_lost))
        .collect();
    assert_eq!(spent, [(7, 2, 1), (SECOND_CHUNK, 0, 0)]);
    assert!(published.iter().all(|message| matches!(message.work, Work::Rows { .. })));
    assert_eq!(last.into_inner().expect("alive").expect("called").published, 2);
    assert_eq!(site.announced().await.len(), 2);
}

#[tokio::test]
async fn pending_mini_batches_of_many_chunks_are_published_in_order() {
    // More chunks than are read ahead; most of them are not read at all.
    let chunks = 60;
    let rank_mini_batch_count = chunks * PLAN_CHUNK_MINI_BATCHES - 5;
    let site = Site::powered(&JobSpec {
        rank_mini_batch_count,
        ..crate::fixtures::job(MiniBatchSize::Files(1))
    });
    site.publish().await.expect("planned");
    assert_eq!(site.published().await.len() as u64, rank_mini_batch_count);
    let is_pending =
        |mini_batch: &u64| mini_batch % 700 == 3 || *mini_batch > 55 * PLAN_CHUNK_MINI_BATCHES;
    let (pending, seen) =
        (|one: u64| is_pending(&one).then(Pending::default), std::cell::RefCell::new(Vec::new()));
    let note = |progress: PlanProgress| {
        seen.borrow_mut().push((progress.mini_batches, progress.published))
    };
    site.partitioner.resume(pending, note).await.expect("the plan is complete");
    let again: Vec<u64> = site.published().await.iter().map(|one| one.mini_batch).collect();
    assert_eq!(again, (0..rank_mini_batch_count).filter(is_pending).collect::<Vec<_>>());
    let seen = seen.into_inner();
    assert_eq!((seen.len() as u64, seen[0].0), (chunks, PLAN_CHUNK_MINI_BATCHES));
    assert_eq!(seen.last(), Some(&(rank_mini_batch_count, again.len() as u64)));
}

#[tokio::test]
async fn large_descriptor_stays_in_the_plan() {
    let root = folder();
    write(root.path(), "small/1", "");
    for number in 0..900 {
        write(root.path(), format!("{number:0>250}"), "");
    }
    let job = file_job(1000, &[root.path()]);
    let site = Site::powered(&job);
    site.publish().await.expect("planned");
    let published = site.published().await;
    assert_eq!(published[0].work, Work::Planned { chunk: 0, line: 0 });
    assert!(matches!(published[1].work, Work::Files { .. }));
    let chunk = site.store.plan_chunk(0).await.expect("readable");
    let line = chunk.split(|&byte| byte == b'\n').next().expect("a line");
    let Work::Files { paths, .. } = serde_json::from_slice::<Descriptor>(line).expect("JSON").work
    else {
        panic!("files")
    };
    assert_eq!(paths.len(), 900);

    let resumed = site
        .partitioner
        .resume(|_| Some(Pending { tries_spent: 1, ..Pending::default() }), |_| {})
        .await;
    resumed.expect("continued");
    let again = site.published().await;
    assert_eq!((again[0].tries_spent, &again[0].work), (1, &Work::Planned { chunk: 0, line: 0 }));
}

#[tokio::test]
async fn changed_inputs_are_reported() {
    let root = folder();
    for name in ["a", "b", "c"] {
        write(root.path(), name, "");
    }
    let job = file_job(1, &[root.path()]);
    // The third write sends the first chunk, so the plan has no totals.
    let site = Site::new(&job, 3, false);
    site.publish().await.expect_err("the power is off");
    site.power.restore();

    let modified = |name: &str| {
        fs::metadata(root.path().join(name)).and_then(|file| file.modified()).expect("there")
    };
    let times = ["b", "c"].map(modified);
    fs::rename(root.path().join("b"), root.path().join("b2")).expect("ours");
    let shown = root.path().display();
    let advice = "restore it, or run the whole job anew";
    assert_eq!(
        changed(&site.resume().await.expect_err("changed")),
        format!(
            "input 'images' has changed since the job was planned: mini-batch 1 was {shown}/b and would now be \
             {shown}/b2; {advice}"
        )
    );
    fs::remove_file(root.path().join("b2")).expect("ours");
    fs::remove_file(root.path().join("c")).expect("ours");
    let message = changed(&site.resume().await.expect_err("changed"));
    assert!(
        message.contains(&format!("mini-batch 1 was {shown}/b and would now be nothing")),
        "{message}"
    );
    write(root.path(), "b", "");
    write(root.path(), "c", "");
    let message = changed(&site.resume().await.expect_err("written again"));
    let expected =
        format!("mini-batch 1 reads {shown}/b, whose size or time of the last change is different");
    assert!(message.contains(&expected), "{message}");
    for (name, time) in ["b", "c"].iter().zip(times) {
        let file = fs::File::options().append(true).open(root.path().join(name)).expect("ours");
        file.set_modified(time).expect("ours");
    }
    assert_eq!(site.resume().await.expect("as it was").mini_batches, 3);
}

#[tokio::test]
async fn chunk_that_is_no_longer_planned_is_reported() {
    let (root, job) = large_job();
    let site = Site::powered(&job);
    site.publish().await.expect("planned");
    // As after a crash before the last write of the plan.
    let complete = ObjectPath::from("jobs/one/plan/complete.json");
    site.objects.delete(&complete).await.expect("written");
    fs::remove_file(root.path().join("b.csv")).expect("ours");
    let message = changed(&site.resume().await.expect_err("changed"));
    assert!(message.contains(&format!("mini-batch {PLAN_CHUNK_MINI_BATCHES} was")), "{message}");
    assert!(message.contains("and would now be nothing"), "{message}");
}

#[tokio::test]
async fn changed_types_are_reported() {
    let root = folder();
    write(root.path(), "a.csv", "id\n5\n6\n");
    let job = table_job(TableFormat::Csv, MiniBatchSize::Bytes(100), &[root.path()]);
    let site = Site::new(&job, 3, false);
    site.publish().await.expect_err("the power is off");
    site.power.restore();
    write(root.path(), "a.csv", "id\n5\nx\n");
    let message = changed(&site.resume().await.expect_err("changed"));
    assert!(message.contains("input 'sales' has changed"), "{message}");
    assert!(message.contains("its columns or their types are different"), "{message}");
}

#[tokio::test]
async fn silent_queue_is_retried() {
    let root = folder();
    write(root.path(), "a", "");
    let site = Site::powered(&file_job(1, &[root.path()]));
    site.tasks.inner().fail_next(1);
    site.publish().await.expect("planned");
    assert_eq!(site.published().await.len(), 1);
}

#[tokio::test]
async fn job_that_cannot_be_planned_writes_nothing() {
    let root = folder();
    write(root.path(), "a", "");
    let mut job = file_job(1, &[root.path()]);
    job.inputs.push(crate::fixtures::input(
        "more",
        protocol::InputKind::File,
        &[&root.path().join("missing")],
    ));
    let site = Site::powered(&job);
    let refused = site.publish().await.expect_err("an input is missing");
    assert!(
        matches!(refused.downcast_ref::<Error>(), Some(Error::BadInput { input, .. }) if input == "more")
    );
    assert_eq!(site.plan().await, BTreeMap::new());
    assert_eq!(site.published().await, []);
}

#[tokio::test]
async fn every_chunk_of_a_plan_is_checked() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let job = JobStore::local(folder.path()).expect("it is there");
    assert!(!plan_is_damaged(&job).await.expect("readable"), "it is not complete");
    let (chunks, of_last) = (40, 7);
    let mini_batches = PlanPosition::first_of(chunks - 1) + of_last;
    let plan = PlanComplete { mini_batches, ..PlanComplete::default() };
    let lines = |count: usize| Bytes::from("{}\n".repeat(count));
    let whole = |chunk| lines(PlanPosition::numbers_of(chunk, mini_batches).count());
    for chunk in 0..chunks {
        job.create_plan_chunk(chunk, whole(chunk)).await.expect("writable");
    }
    job.put_plan_complete(&plan).await.expect("writable");
    assert!(!plan_is_damaged(&job).await.expect("readable"));
    for chunk in [0, 1, 16, 38, 39] {
        job.replace_plan_chunk(chunk, lines(6)).await.expect("writable");
        assert!(plan_is_damaged(&job).await.expect("readable"), "chunk {chunk} is truncated");
        fs::remove_file(folder.path().join(format!("plan/{chunk:010}"))).expect("it is there");
        assert!(plan_is_damaged(&job).await.expect("readable"), "chunk {chunk} is missing");
        job.replace_plan_chunk(chunk, whole(chunk)).await.expect("writable");
    }
    assert!(!plan_is_damaged(&job).await.expect("readable"));
}
