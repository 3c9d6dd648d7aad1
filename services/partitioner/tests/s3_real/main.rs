//! Inputs in LocalStack's S3 at `GRISTMILL_TEST_AWS_ENDPOINT`.

#[path = "../plans/fixtures.rs"]
#[allow(dead_code)]
mod fixtures;
#[path = "../../../storage/tests/s3_real/support.rs"]
mod support;

use std::path::Path;

use partitioner::Inputs;
use protocol::{BlockRange, FileVersion, MiniBatchSize, TableFormat, Work};
use storage::StoreOptions;

use fixtures::{file_job, table_job};
use support::{Bucket, Proxy, http};

/// Number of objects: `GRISTMILL_TEST_LISTING_KEYS`, or as many as a test creates in a few seconds.
fn key_count() -> usize {
    let asked = std::env::var("GRISTMILL_TEST_LISTING_KEYS").ok();
    asked.map_or(2500, |asked| asked.parse().expect("GRISTMILL_TEST_LISTING_KEYS is a number"))
}

fn options(endpoint: &str) -> StoreOptions {
    StoreOptions { endpoint: Some(endpoint.to_owned()), region: None }
}

/// Returns the version of one object according to a listing.
fn version(bucket: &Bucket, key: &str) -> FileVersion {
    let path = format!("/{}?list-type=2&prefix={key}", bucket.name);
    let (_, listing) = http(&support::endpoint(), "GET", &path, &[], b"");
    let listing = String::from_utf8(listing).expect("XML");
    let element = |name: &str| {
        let (_, rest) = listing.split_once(&format!("<{name}>")).expect("listed");
        rest.split_once('<').expect("closed").0.replace("&quot;", "\"")
    };
    FileVersion {
        bytes: element("Size").parse().expect("a number"),
        etag: Some(element("ETag")),
        modified: None,
    }
}

#[test]
fn objects_are_listed_page_by_page_during_planning() {
    let (bucket, proxy, count) = (Bucket::new(), Proxy::counting(), key_count());
    std::thread::scope(|scope| {
        for first in 0..8 {
            let bucket = &bucket;
            scope.spawn(move || {
                (first..count)
                    .step_by(8)
                    .for_each(|key| bucket.put(&format!("d/{key:06}.txt"), b"x"))
            });
        }
    });
    let pages = || proxy.count(|request| request.is_list());
    let mut plan =
        Inputs::new(&options(&proxy.endpoint)).plan(&file_job(10, &[Path::new(&bucket.url("d/"))]));
    let first = plan.next().expect("some are there").expect("listable");
    // A listing requests one page ahead.
    assert!(pages() <= 3, "{} pages of {count} objects were requested early", pages());
    let Work::Files { paths, versions, .. } = first.work else { panic!("files") };
    assert_eq!(paths[1].display(), bucket.url("d/000001.txt"));
    assert_eq!(versions[1], version(&bucket, "d/000001.txt"));
    let planned =
        plan.by_ref().fold(1, |planned, next| next.map(|_| planned + 1).expect("listable"));
    assert_eq!(planned, count.div_ceil(10));
    assert_eq!(plan.totals().files, count as u64);
    assert!(pages() >= count.div_ceil(1000));
    assert_eq!(
        proxy.count(|request| !request.is_list()),
        0,
        "the plan needs more than the listing"
    );
}

#[test]
fn blocks_contain_the_version_of_their_file() {
    let bucket = Bucket::new();
    bucket.put("t/a.csv", "id,text\n1,one\n2,two\n3,three\n".as_bytes());
    let job =
        table_job(TableFormat::Csv, MiniBatchSize::Bytes(16), &[Path::new(&bucket.url("t/"))]);
    let planned = Inputs::new(&options(&support::endpoint())).plan(&job);
    let works: Vec<_> = planned.map(|planned| planned.expect("listable").work).collect();
    assert_eq!(works.len(), 2);
    for work in works {
        let Work::Rows { blocks, .. } = work else { panic!("rows") };
        assert!(matches!(blocks[0].range, BlockRange::Lines { .. }));
        assert_eq!(blocks[0].version.as_ref(), Some(&version(&bucket, "t/a.csv")));
    }
}

/// All looks at the start of a job share one listing.
#[test]
fn start_of_a_job_lists_each_page_once() {
    let (bucket, proxy) = (Bucket::new(), Proxy::counting());
    (0..20).for_each(|key| bucket.put(&format!("t/{key:02}.csv"), b"id\n1\n"));
    let mut job =
        table_job(TableFormat::Csv, MiniBatchSize::Bytes(16), &[Path::new(&bucket.url("t/"))]);
    job.inputs[0].table.columns = vec!["id".to_owned()];
    let inputs = Inputs::new(&options(&proxy.endpoint));
    inputs.survey(&job).remove(0).expect("readable");
    assert_eq!(inputs.missing_columns(&job), []);
    let mut plan = inputs.plan(&job);
    plan.schemas().expect("readable");
    assert_eq!(plan.by_ref().filter(Result::is_ok).count(), 20);
    assert_eq!(proxy.count(|request| request.is_list()), 1);
}

#[test]
fn changed_content_changes_the_digest() {
    let bucket = Bucket::new();
    let job = file_job(1, &[Path::new(&bucket.url("d/"))]);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let digest = || {
        runtime
            .block_on(Inputs::new(&options(&support::endpoint())).digest(&job))
            .expect("listable")
    };
    bucket.put("d/a", b"one");
    let before = digest();
    assert_eq!(digest(), before);
    bucket.put("d/a", b"two");
    assert_ne!(digest(), before);
}
