//! Tests of the objects of one job, in a folder and in another store.

use object_store::memory::InMemory;

use super::*;

fn stores() -> (tempfile::TempDir, Vec<JobStore>) {
    let folder = tempfile::tempdir().expect("temporary folder");
    let local = JobStore::local(folder.path()).expect("folder exists");
    let remote = JobStore::new(Arc::new(InMemory::new()), ObjectPath::from("jobs/one"));
    (folder, vec![local, remote])
}

#[tokio::test]
async fn only_one_writer_commits_a_segment() {
    let (_folder, stores) = stores();
    for store in stores {
        let commit =
            |bytes: &'static [u8]| store.commit_segment(0, vec![Bytes::from_static(bytes)]);
        assert_eq!(store.segment(0).await.expect("readable"), None);
        assert_eq!(commit(b"first").await.expect("writable"), Commit::Committed);
        assert_eq!(commit(b"second").await.expect("writable"), Commit::Lost);
        assert_eq!(
            commit(b"first").await.expect("writable"),
            Commit::Committed,
            "a retry after a lost answer"
        );
        let pieces =
            |pieces: [&'static str; 2]| store.commit_segment(0, pieces.map(Bytes::from).to_vec());
        assert_eq!(
            pieces(["fir", "st"]).await.expect("writable"),
            Commit::Committed,
            "the same in pieces"
        );
        for others in [["fi", "st"], ["first", "s"], ["fir", ""]] {
            assert_eq!(pieces(others).await.expect("writable"), Commit::Lost);
        }
        assert_eq!(&store.segment(0).await.expect("readable").expect("committed")[..], b"first");
        assert_eq!(&store.segment_range(0, 1..3).await.expect("readable")[..], b"ir");
    }
}

#[tokio::test]
async fn reopening_fails_if_the_request_to_cancel_cannot_be_deleted() {
    let (folder, stores) = stores();
    let job = &stores[0];
    let result = JobResult::new("job".into(), protocol::JobState::Canceled, "logs".into());
    assert_eq!(job.create_result(&result).await.expect("writable"), Commit::Committed);
    // A folder cannot be deleted as an object.
    std::fs::create_dir_all(folder.path().join("control/cancel/x")).expect("writable");
    job.reopen().await.expect_err("the request stays");
    assert!(job.result().await.expect("readable").is_some());
}

#[tokio::test]
async fn all_parts_are_deleted() {
    let (_folder, stores) = stores();
    for store in stores {
        store.put_part("0-1", Bytes::from_static(b"rows")).await.expect("writable");
        assert_eq!(&store.part("0-1").await.expect("readable")[..], b"rows");
        store.delete_parts().await.expect("deletable");
        store.delete_parts().await.expect("deletable when there are none");
        assert!(matches!(store.part("0-1").await, Err(Error::NotFound { .. })));
    }
}

#[tokio::test]
async fn deletion_of_history_keeps_the_rest_of_the_job() {
    let (folder, stores) = stores();
    let [local, _] = &stores[..] else { panic!("two stores") };
    local.create_plan_chunk(0, Bytes::from_static(b"{}")).await.expect("writable");
    local.put_schemas(&[]).await.expect("writable");
    local.commit_segment(0, vec![Bytes::from_static(b"records")]).await.expect("writable");
    std::fs::write(folder.path().join("result.json"), "{}").expect("writable");
    local.delete_history().await.expect("removable");
    assert!(!local.has_plan_chunk(0).await.expect("readable"));
    assert_eq!(local.segment(0).await.expect("readable"), None);
    local.schemas().await.expect("kept");
    assert!(folder.path().join("result.json").exists());
    local.delete_history().await.expect("removed before");
}

#[tokio::test]
async fn missing_and_truncated_parts_are_lost() {
    let (_folder, stores) = stores();
    for store in stores {
        let lost = |parts: [(u64, &'static str, u64); 3]| store.lost_parts(parts.into_iter());
        store.put_part("0-1", Bytes::from_static(b"rows")).await.expect("writable");
        store.put_part("1-1", Bytes::new()).await.expect("writable");
        store.commit_parts().await.expect("writable");
        let parts = [(0, "0-1", 4), (1, "1-1", 4), (2, "2-1", 4)];
        assert_eq!(lost(parts).await.expect("readable"), [1, 2]);
        let odd = "3-a b%~*?\u{e9}";
        store.put_part(odd, Bytes::from_static(b"rows")).await.expect("writable");
        let parts = [(9, "9-1", 4), (3, odd, 4), (0, "0-1", 4)];
        assert_eq!(lost(parts).await.expect("readable"), [9], "any name can be stored");
        assert!(store.lost_parts([].into_iter()).await.expect("readable").is_empty());
    }
}

#[tokio::test]
async fn part_name_cannot_lead_to_other_files() {
    let (folder, stores) = stores();
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "s3cr3t").expect("writable");
    for store in stores {
        for name in [
            "../secret",
            "../../../../../../../../../../etc/passwd",
            secret.to_str().expect("text"),
        ] {
            assert!(matches!(store.part(name).await, Err(Error::NotFound { .. })), "{name}");
            assert!(store.part_file(name).is_none_or(|file| !file.exists()), "{name}");
            assert_eq!(
                store.lost_parts([(0, name, 6)].into_iter()).await.expect("readable"),
                [0],
                "{name}"
            );
        }
    }
}

#[tokio::test]
async fn spec_of_another_job_or_with_outside_names_is_damaged() {
    let memory: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let store = JobStore {
        job_id: Some("a-job".into()),
        ..JobStore::new(memory, ObjectPath::from("jobs/a-job"))
    };
    let spec = |job_id: &str, file_name: &str| {
        let mut spec = JobSpec { job_id: job_id.into(), ..JobSpec::example() };
        spec.output.file_name = file_name.into();
        spec
    };
    store.put_spec(&spec("a-job", "rows.txt")).await.expect("writable");
    store.spec().await.expect("its own");
    for (job_id, file_name) in
        [("b-job", "rows.txt"), ("a-job", "../rows.txt"), ("a-job", "/etc/cron.d/rows")]
    {
        store.put_spec(&spec(job_id, file_name)).await.expect("writable");
        assert!(matches!(store.spec().await, Err(Error::Damaged { .. })), "{job_id} {file_name}");
    }
}

#[tokio::test]
async fn spec_of_another_format_is_not_read() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let store = JobStore::local(folder.path()).expect("folder exists");
    let spec = JobSpec { job_id: "a-job".into(), ..JobSpec::example() };
    store.put_spec(&spec).await.expect("writable");
    assert_eq!(store.spec().await.expect("written by this build"), spec);
    let file = folder.path().join("spec.json");
    let text = std::fs::read_to_string(&file).expect("readable");
    std::fs::write(&file, text.replace("\"format\": 1", "\"format\": 2")).expect("writable");
    let error = store.spec().await.expect_err("another build has written it").to_string();
    assert!(error.contains("has format 2, and this build reads format 1"), "{error}");
    // The format is read first, even if other fields are unreadable.
    std::fs::write(&file, r#"{"format": 2, "job_id": 7}"#).expect("writable");
    assert!(matches!(store.spec().await, Err(Error::Foreign { format: 2, .. })));
}

#[tokio::test]
async fn damaged_object_is_not_read() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let store = JobStore::local(folder.path()).expect("folder exists");
    let store = store.with_durability(Durability::Full).expect("folder exists");
    assert!(!store.remove_damaged_result().await.expect("there is none"));
    for name in ["result.json", "progress.json", "spec.json"] {
        std::fs::write(folder.path().join(name), "").expect("writable");
    }
    assert_eq!(store.progress().await.expect("none"), None);
    assert!(matches!(store.spec().await, Err(Error::Damaged { .. })));
    assert!(matches!(store.result().await, Err(Error::Damaged { .. })));
    assert!(store.remove_damaged_result().await.expect("removable"));
    assert_eq!(store.result().await.expect("none"), None);
}

#[tokio::test]
async fn canceled_job_can_be_reopened() {
    let (_folder, stores) = stores();
    for store in stores {
        assert_eq!(store.cancel_requested().await.expect("readable"), None);
        store.request_cancel("by the user").await.expect("writable");
        assert_eq!(
            store.cancel_requested().await.expect("readable").as_deref(),
            Some("by the user")
        );
        store.reopen().await.expect("deletable");
        assert_eq!(store.cancel_requested().await.expect("readable"), None);
    }
}

#[tokio::test]
async fn priority_can_be_changed() {
    let (_folder, stores) = stores();
    for store in stores {
        assert_eq!(store.changed_priority().await.expect("readable"), None);
        for priority in Priority::ALL {
            store.put_priority(priority).await.expect("writable");
            assert_eq!(store.changed_priority().await.expect("readable"), Some(priority));
        }
        store.reopen().await.expect("deletable");
        assert_eq!(
            store.changed_priority().await.expect("readable"),
            Some(Priority::High),
            "a retry keeps it"
        );
        store.objects.put("control/priority", "urgent").await.expect("writable");
        assert_eq!(
            store.changed_priority().await.expect("readable"),
            None,
            "no word of this version"
        );
    }
}
