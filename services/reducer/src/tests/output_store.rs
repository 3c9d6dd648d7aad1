//! Jobs whose output is in a store of its own, which fails for a while or for good.

use object_store::memory::InMemory;
use object_store::{Error, ObjectStoreExt};

use super::peers::LateStore;
use super::*;

fn overloaded() -> Error {
    Error::Generic { store: "GCS", source: "503 Service Unavailable".into() }
}

fn denied() -> Error {
    Error::PermissionDenied { path: "out".into(), source: "403 Forbidden".into() }
}

/// Returns a job that is complete except for its output, and the store of the output.
async fn complete_job(
    peers: Peers,
    failures: usize,
    error: fn() -> Error,
) -> (Job, Arc<LateStore>) {
    let mut job = Job::new();
    job.options.peers = peers;
    job.spec.output.folder = "gs://bucket/out".into();
    job.send_rows(0, "zero\n").await;
    job.planned(1).await;
    let store = Arc::new(LateStore::new(Arc::new(InMemory::new()), "", failures, error));
    job.store.stores().stand_in(&"gs://bucket".parse().expect("a URL"), store.clone());
    (job, store)
}

#[tokio::test(start_paused = true)]
async fn job_stays_open_until_the_store_of_its_output_answers() {
    for peers in [Peers::Alone, Peers::Many] {
        let (job, store) = complete_job(peers, 6, overloaded).await;
        let reducer = job.open().await;
        let mut progress = reducer.progress();
        let run = tokio::spawn(reducer.run(CancellationToken::new()));
        let seen = progress
            .wait_for(|progress| progress.trouble.is_some())
            .await
            .expect("it waits")
            .clone();
        let trouble = seen.trouble.expect("waited for");
        let reason = trouble.reason;
        assert!(
            reason.starts_with("the output cannot be written yet") && reason.contains("503"),
            "{reason}"
        );
        let result = run.await.expect("no panic").expect("the job ends");
        assert_eq!((result.state, result.cause), (JobState::Completed, None), "{peers:?}");
        let rows = store.get(&"out/parallel_run_step.txt".into()).await.expect("written");
        assert_eq!(rows.bytes().await.expect("readable"), "zero\n");
        assert_eq!(progress.borrow().trouble, None, "the trouble is over");
    }
}

#[tokio::test(start_paused = true)]
async fn missing_rights_to_the_output_end_the_job() {
    for peers in [Peers::Alone, Peers::Many] {
        let (job, _) = complete_job(peers, usize::MAX, denied).await;
        let result = job.run().await;
        assert_eq!(result.state, JobState::Failed);
        let cause = result.cause.expect("failed");
        assert!(cause.contains("gs://bucket/out/parallel_run_step.txt: access denied"), "{cause}");
        assert!(cause.ends_with("Correct this and retry the job: no result is lost."), "{cause}");
    }
}

#[tokio::test(start_paused = true)]
async fn job_that_waits_for_the_store_of_its_output_can_be_canceled_and_retried() {
    for by_token in [true, false] {
        let (job, store) = complete_job(Peers::Alone, usize::MAX, overloaded).await;
        let reducer = job.open().await;
        let (cancel, mut progress) = (CancellationToken::new(), reducer.progress());
        let run = tokio::spawn(reducer.run(cancel.clone()));
        progress.wait_for(|progress| progress.trouble.is_some()).await.expect("it waits");
        match by_token {
            true => cancel.cancel(),
            false => job.store.request_cancel("wrong bucket").await.expect("writable"),
        }
        let result = run.await.expect("no panic").expect("the job ends");
        assert_eq!(result.state, JobState::Canceled);
        let cause = result.cause.expect("canceled");
        let reason = if by_token { "canceled;" } else { "wrong bucket;" };
        assert!(
            cause.starts_with(reason)
                && cause.contains("503")
                && cause.ends_with("No result is lost."),
            "{cause}"
        );

        store.heal();
        let mut reducer = job.open().await;
        reopen(&mut reducer).await;
        assert_eq!(
            reducer.run(CancellationToken::new()).await.expect("ends").state,
            JobState::Completed
        );
    }
}

#[tokio::test(start_paused = true)]
async fn stopped_reducer_leaves_a_job_that_waits_for_the_store_of_its_output() {
    let (job, _) = complete_job(Peers::Many, usize::MAX, overloaded).await;
    let reducer = job.open().await;
    let (stop, mut progress) = (CancellationToken::new(), reducer.progress());
    let serve = tokio::spawn(reducer.serve(stop.clone()));
    progress.wait_for(|progress| progress.trouble.is_some()).await.expect("it waits");
    stop.cancel();
    assert_eq!(serve.await.expect("no panic").expect("stops"), None);
    assert_eq!(job.store.result().await.expect("readable"), None, "another reducer goes on");
}
