//! Rejects from attempts and descriptors, in order, and as tables.

use arrow::array::AsArray;
use arrow::datatypes::TimestampMillisecondType;
use bytes::Bytes;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use protocol::{InputKind, ItemPath, ResultEvent, Rows, encode_record};
use storage::JobStore;

use super::tables::Tables;
use super::*;
use crate::fixtures::{event, failed, rejected, succeeded};

fn inputs() -> Vec<Input> {
    let input = |name: &str| Input { name: name.into(), ..example_input() };
    vec![input("first"), input("second")]
}

fn example_input() -> Input {
    Input {
        name: String::new(),
        kind: InputKind::File,
        paths: vec![],
        partition_format: None,
        table: Default::default(),
    }
}

fn planned(mini_batch: u64, work: Work) -> Descriptor {
    Descriptor::new("job", mini_batch, work)
}

fn path(name: &str) -> ItemPath {
    std::path::Path::new(name).into()
}

fn files(names: &[&str]) -> Work {
    let paths = names.iter().map(|name| path(name)).collect();
    Work::Files { input: 1, paths, versions: vec![], stamps: vec![], key: vec![] }
}

fn block(name: &str, range: BlockRange) -> Block {
    Block { path: path(name), version: None, range, path_columns: vec![] }
}

fn group(rows: u64) -> BlockRange {
    BlockRange::RowGroup { row_group: 0, offset: 0, rows }
}

fn rows_of(blocks: Vec<Block>) -> Work {
    Work::Rows { input: 0, blocks, rows_before: None, key: vec![] }
}

fn rejected_from(attempt: Attempt, work: Work) -> RejectedMiniBatch {
    let descriptor = Some(planned(attempt.mini_batch, work));
    RejectedMiniBatch { attempt, descriptor, list_lost: None }
}

fn rejected_without_plan(attempt: Attempt) -> RejectedMiniBatch {
    RejectedMiniBatch { attempt, descriptor: None, list_lost: None }
}

#[test]
fn each_file_of_a_failed_mini_batch_is_a_reject() {
    let mini_batch = rejected_from(failed(4, 3, true, 3), files(&["/in/a", "/in/b\n", "/in/c"]));
    let inputs = inputs();
    let rejects: Vec<_> = mini_batch.rejects(&inputs).collect();
    let places: Vec<_> = rejects
        .iter()
        .map(|reject| (reject.mini_batch, reject.item, reject.items, &*reject.path))
        .collect();
    assert_eq!(
        places,
        [(4, Some(0), 1, "/in/a"), (4, Some(1), 1, "/in/b\\n"), (4, Some(2), 1, "/in/c")]
    );
    let first = &rejects[0];
    assert_eq!(
        (first.input, first.tries, first.node, first.process),
        ("second", 3, "0", "process000")
    );
    assert_eq!((first.status, &*first.error.category), (AttemptStatus::RunRaised, "ValueError"));
    assert_eq!((first.row, first.bytes, &*first.key), (None, None, ""));
}

#[test]
fn rows_that_failed_together_are_one_reject_with_their_place() {
    let rows = |blocks: Vec<Block>, rows_before| Work::Rows {
        input: 0,
        blocks,
        rows_before,
        key: vec![("Store".into(), "5\"".into()), ("Brand".into(), "x".into())],
    };
    let inputs = inputs();
    let one = |attempt, work| {
        let mini_batch = rejected_from(attempt, work);
        let mut rejects = mini_batch.rejects(&inputs);
        let reject = rejects.next().expect("one");
        assert_eq!(rejects.next(), None);
        (reject.items, reject.path, reject.row, reject.bytes, reject.key)
    };
    let key = r#"{"Store": "5\"", "Brand": "x"}"#.to_owned();
    let lines = BlockRange::Lines { first: 10, last: 20 };
    let text = one(failed(0, 1, true, 7), rows(vec![block("a.csv", lines)], None));
    assert_eq!(text, (7, "a.csv".into(), None, Some((10, 20)), key.clone()));
    let groups = vec![block("a.parquet", group(5)), block("b.parquet", group(6))];
    let group = one(failed(0, 1, true, 0), rows(groups, Some(100)));
    assert_eq!(
        group,
        (11, "a.parquet".into(), Some(100), None, key.clone()),
        "the plan counted the rows"
    );
    let several = vec![block("a.csv", lines), block("b.csv", lines)];
    let several = one(failed(0, 1, true, 9), rows(several, None));
    assert_eq!(several, (9, "a.csv".into(), None, None, key));
    let uncounted = one(failed(0, 1, true, 0), Work::Rank);
    assert_eq!(
        uncounted,
        (1, String::new(), None, None, String::new()),
        "a mini-batch that fails has an item"
    );
}

#[test]
fn items_isolated_from_a_success_are_rejects() {
    let inputs = inputs();
    let isolated = |ranges: &[(u64, u64)], work| {
        let rejected = |&(item, items): &(u64, u64)| Rejected {
            items,
            detail: format!("row {item}"),
            values: format!("{{\"id\":{item}}}"),
            status: AttemptStatus::RunTimedOut,
            error: ErrorReport { category: format!("Error{item}"), ..ErrorReport::default() },
            ..rejected(item)
        };
        let failed: u64 = ranges.iter().map(|(_, items)| items).sum();
        let ranges = ranges.iter().map(rejected).collect();
        let mini_batch =
            rejected_from(Attempt { rejected: ranges, ..succeeded(0, 3, 9, 9 - failed) }, work);
        let shown = |reject: Reject<'_>| {
            let item = reject.item.expect("run() got it");
            (
                item,
                reject.items,
                reject.path,
                reject.row,
                reject.error.category.clone(),
                reject.status,
            )
        };
        mini_batch.rejects(&inputs).map(shown).collect::<Vec<_>>()
    };
    let timed_out = AttemptStatus::RunTimedOut;
    let names: Vec<_> = (0..9).map(|number| format!("/in/{number}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let expected = [
        (1, 1, "/in/1".into(), None, "Error1".into(), timed_out),
        (7, 1, "/in/7".into(), None, "Error7".into(), timed_out),
        (8, 1, "/in/8".into(), None, "Error7".into(), timed_out),
    ];
    assert_eq!(isolated(&[(1, 1), (7, 2)], files(&names)), expected, "each file has a row");
    let beyond = [(8, 2, String::new(), None, "Error8".into(), timed_out)];
    assert_eq!(isolated(&[(8, 2), (3, 0)], files(&names)), beyond, "a worker may say anything");
    let blocks = vec![block("a", group(4)), block("b", group(5))];
    let rows = Work::Rows { input: 0, blocks, rows_before: Some(100), key: vec![] };
    let expected = [
        (3, 1, "a".into(), Some(103), "Error3".into(), timed_out),
        (4, 5, "b".into(), Some(104), "Error4".into(), timed_out),
    ];
    assert_eq!(isolated(&[(3, 1), (4, 5)], rows), expected);
}

#[test]
fn records_that_could_not_be_read_are_rejects() {
    let record = |place: &str, records| UnreadRecord {
        path: "/in/a.csv".into(),
        place: place.into(),
        records,
        message: "column \"n\": \"x\" is no integer".into(),
    };
    let unread = vec![record("/in/a.csv, line 3", 1), record("", 7)];
    let succeeded = Attempt { unread: unread.clone(), ..succeeded(2, 1, 20, 12) };
    let lines = rows_of(vec![block("/in/a.csv", BlockRange::Lines { first: 0, last: 90 })]);
    let inputs = inputs();
    let mini_batch = rejected_from(succeeded, lines.clone());
    let rejects: Vec<_> = mini_batch.rejects(&inputs).collect();
    let places: Vec<_> =
        rejects.iter().map(|one| (one.item, one.items, &*one.path, &*one.detail)).collect();
    assert_eq!(
        places,
        [
            (None, 1, "/in/a.csv", "/in/a.csv, line 3"),
            (None, 7, "/in/a.csv", "after /in/a.csv, line 3")
        ]
    );
    let first = &rejects[0];
    assert_eq!(
        (first.input, first.process, first.status),
        ("first", "", AttemptStatus::LoadFailed)
    );
    assert_eq!(
        (&*first.error.category, &*first.error.message),
        ("UnreadableRecord", &*unread[0].message)
    );
    assert!(!mini_batch.can_run_again(), "its place may change with the file");
    let failed = rejected_from(Attempt { unread, ..failed(2, 1, true, 20) }, lines);
    assert_eq!(
        failed.rejects(&inputs).map(|one| one.items).collect::<Vec<_>>(),
        [20],
        "no record counts twice"
    );
}

#[test]
fn isolated_item_names_its_own_run() {
    let rejected = |run| Rejected { run, ..rejected(0) };
    let own = FailedRun { process: "process007".into(), started_at: 5 };
    // Builds without this field wrote the other one.
    for (run, expected) in [(Some(own), ("process007", 5)), (None, ("process000", 9))] {
        let attempt =
            Attempt { rejected: vec![rejected(run)], started_at: 9, ..succeeded(0, 3, 2, 1) };
        let mini_batch = rejected_from(attempt, files(&["/in/a", "/in/b"]));
        let inputs = inputs();
        let reject = mini_batch.rejects(&inputs).next().expect("one");
        assert_eq!((reject.process, reject.started_at), expected);
    }
}

#[tokio::test]
async fn isolated_items_stay_rejected_until_their_mini_batch_runs_again() {
    let mut job = Committed::new();
    job.plan(3).await;
    let isolated =
        |number| event(Attempt { rejected: vec![rejected(0)], ..succeeded(number, 3, 2, 1) });
    job.commit([isolated(0), event(succeeded(1, 1, 1, 1)), isolated(1), isolated(2)]).await;
    assert_eq!(job.paths().await, ["/in/0", "/in/2"], "the first success counts");
    job.commit([ResultEvent::Round(protocol::Round { failed: true, ..Default::default() })]).await;
    assert_eq!(job.paths().await, ["/in/0", "/in/2"], "a success does not run again");
    job.commit([
        ResultEvent::RowsLost { mini_batches: vec![0, 2] },
        event(succeeded(0, 4, 2, 2)),
        isolated(2),
    ])
    .await;
    assert_eq!(job.paths().await, ["/in/2"]);
}

#[test]
fn row_is_found_in_its_block() {
    let blocks = [block("a", group(2)), block("b", group(3)), block("c", BlockRange::WholeText)];
    let found: Vec<_> =
        (0..6).map(|row| block_of(&blocks, row).map(|block| block.path.display())).collect();
    let name = |name: &str| Some(name.to_owned());
    assert_eq!(found, [name("a"), name("a"), name("b"), name("b"), name("b"), None]);
    assert_eq!(block_of(&blocks[2..], 99).map(|block| block.path.display()), name("c"));
}

#[test]
fn mini_batch_without_a_plan_is_named_by_its_attempt() {
    let mini_batch = rejected_without_plan(failed(3, 2, true, 5));
    let rejects: Vec<_> = mini_batch.rejects(&[]).collect();
    let [reject] = &rejects[..] else { panic!("{rejects:?}") };
    assert_eq!(
        (reject.items, &*reject.detail, &*reject.path, reject.input),
        (5, "/data/3.png", "", "")
    );
}

#[test]
fn items_that_nothing_names_are_one_reject() {
    let inputs = inputs();
    let rejects = |attempt| {
        let mini_batch = rejected_from(attempt, files(&["/in/a", "/in/b", "/in/c"]));
        let shown = |reject: Reject<'_>| {
            (reject.item, reject.items, reject.detail.clone(), reject.error.message.clone())
        };
        (mini_batch.rejects(&inputs).map(shown).collect::<Vec<_>>(), mini_batch.can_run_again())
    };
    assert_eq!(rejects(succeeded(0, 1, 3, 3)), (vec![], false));
    let silent = "run() returned no result for them, and did not say which".to_owned();
    let nothing = "run() returned nothing for its mini-batch".to_owned();
    let each = (0..3).map(|item| {
        (Some(item), 1, format!("/in/{}", ["a", "b", "c"][item as usize]), nothing.clone())
    });
    assert_eq!(
        rejects(succeeded(0, 1, 3, 0)),
        (each.collect(), true),
        "all its items, so their places are known"
    );
    assert_eq!(
        rejects(succeeded(0, 1, 3, 1)),
        (vec![(None, 2, "2 of 3 items".into(), silent)], false)
    );
    let unread = UnreadRecord {
        path: "/in/a".into(),
        place: "/in/a, line 2".into(),
        records: 2,
        message: "bad".into(),
    };
    let some = (0..7).map(rejected).collect();
    let (named, can_run_again) =
        rejects(Attempt { rejected: some, unread: vec![unread], ..succeeded(0, 3, 600, 547) });
    assert_eq!((named.len(), can_run_again), (9, true));
    assert_eq!(named[7].1, 2);
    let record = |place: &str| UnreadRecord {
        path: String::new(),
        place: place.into(),
        records: 1,
        message: "bad".into(),
    };
    let unread = vec![record("/in/a, line 2"), record("")];
    let (unread, _) = rejects(Attempt { unread, ..succeeded(0, 1, 2, 0) });
    let details: Vec<_> = unread.iter().map(|(_, _, detail, _)| &**detail).collect();
    assert_eq!(details, ["/in/a, line 2", "after /in/a, line 2"]);
    let which = "run() returned no result for them, and did not say which";
    assert_eq!(named[8], (None, 44, "44 of 600 items".into(), which.into()));
}

/// A job whose events are committed one by one.
struct Committed {
    _folder: tempfile::TempDir,
    store: JobStore,
    segments: u64,
}

impl Committed {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("temporary folder");
        let store = JobStore::local(folder.path()).expect("it exists");
        Self { _folder: folder, store, segments: 0 }
    }

    async fn commit(&mut self, events: impl IntoIterator<Item = ResultEvent>) {
        let mut body = Vec::new();
        events.into_iter().for_each(|event| encode_record(&event, b"", &mut body));
        self.store.commit_segment(self.segments, vec![body.into()]).await.expect("writable");
        self.segments += 1;
    }

    async fn plan(&self, count: u64) {
        for chunk in 0..count.div_ceil(512) {
            let mut lines = Vec::new();
            for mini_batch in chunk * 512..count.min((chunk + 1) * 512) {
                let line = planned(mini_batch, files(&[&format!("/in/{mini_batch}")]));
                serde_json::to_writer(&mut lines, &line).expect("plain data");
                lines.push(b'\n');
            }
            self.store.create_plan_chunk(chunk, Bytes::from(lines)).await.expect("writable");
        }
    }

    async fn paths(&self) -> Vec<String> {
        let mut rejects = Rejects::find(&self.store, "job").await.expect("readable");
        let expected = rejects.mini_batches();
        let mut paths = Vec::new();
        loop {
            let mini_batches = rejects.next().await.expect("readable");
            if mini_batches.is_empty() {
                assert_eq!(paths.len(), expected);
                return paths;
            }
            let inputs = inputs();
            paths.extend(
                mini_batches.iter().flat_map(|one| one.rejects(&inputs)).map(|reject| reject.path),
            );
        }
    }
}

#[tokio::test]
async fn rejects_have_the_order_of_the_input() {
    let mut job = Committed::new();
    job.plan(1500).await;
    // 7 and 1500 have no common divisor, so each mini-batch ends once.
    for segment in 0..15 {
        let numbers = (segment * 100..(segment + 1) * 100).map(|number| number * 7 % 1500);
        job.commit(numbers.map(|number| match number % 3 {
            0 => event(failed(number, 3, true, 1)),
            _ => event(Attempt { rows: Rows::None, ..succeeded(number, 1, 1, 1) }),
        }))
        .await;
    }
    let expected: Vec<_> = (0..1500).step_by(3).map(|number| format!("/in/{number}")).collect();
    assert_eq!(job.paths().await, expected);
}

#[tokio::test]
async fn only_items_that_failed_for_good_are_rejected() {
    let mut job = Committed::new();
    job.plan(6).await;
    job.commit([
        event(failed(0, 1, false, 1)),
        event(failed(1, 3, true, 1)),
        event(failed(2, 3, true, 1)),
    ])
    .await;
    assert_eq!(job.paths().await, ["/in/1", "/in/2"], "another try follows the first");
    job.commit([event(succeeded(2, 1, 1, 1)), event(failed(0, 2, true, 1))]).await;
    assert_eq!(job.paths().await, ["/in/0", "/in/1"], "a late success replaces a failure");
    job.commit([ResultEvent::Round(protocol::Round { failed: true, ..Default::default() })]).await;
    assert_eq!(job.paths().await, [""; 0], "a reopened job tries again");
    job.commit([
        event(failed(1, 3, true, 1)),
        event(failed(1, 4, true, 1)),
        event(succeeded(0, 1, 1, 1)),
    ])
    .await;
    assert_eq!(job.paths().await, ["/in/1"]);
    let last = job.segments - 1;
    let file = job.store.segment_file(last).expect("local");
    let whole = std::fs::read(&file).expect("readable");
    std::fs::write(&file, &whole[..whole.len() / 2]).expect("writable");
    assert_eq!(job.paths().await, [""; 0], "a truncated segment counts as absent");
}

#[tokio::test]
async fn success_with_a_short_result_is_found_and_needs_no_rows() {
    let mut job = Committed::new();
    job.plan(3).await;
    let short = Attempt { rows: Rows::None, ..succeeded(1, 1, 3, 2) };
    job.commit([event(succeeded(0, 1, 2, 2)), event(short), event(succeeded(2, 1, 2, 2))]).await;
    let mut rejects = Rejects::find(&job.store, "job").await.expect("readable");
    let found = rejects.next().await.expect("readable");
    let [mini_batch] = &found[..] else { panic!("{found:?}") };
    assert_eq!((mini_batch.attempt.mini_batch, mini_batch.attempt.unnamed()), (1, 1));
    assert!(mini_batch.descriptor.is_some());
    job.commit([ResultEvent::RowsLost { mini_batches: vec![1] }]).await;
    assert_eq!(
        Rejects::find(&job.store, "job").await.expect("readable").mini_batches(),
        0,
        "it runs again"
    );
}

fn tables(mini_batches: &[RejectedMiniBatch]) -> (String, Vec<u8>, u64) {
    let folder = tempfile::tempdir().expect("temporary folder");
    let (csv, parquet) = (folder.path().join("a"), folder.path().join("b"));
    let mut tables = Tables::create(&csv, &parquet).expect("writable");
    let inputs = inputs();
    for reject in mini_batches.iter().flat_map(|one| one.rejects(&inputs)) {
        tables.add(&reject).expect("writable");
    }
    let items = tables.items;
    tables.finish().expect("writable");
    (std::fs::read_to_string(csv).expect("text"), std::fs::read(parquet).expect("readable"), items)
}

#[test]
fn hostile_texts_stay_in_their_cells() {
    let mut attempt = failed(0, 3, true, 2);
    let error = attempt.error.as_mut().expect("failed");
    error.message = "=HYPERLINK(\"http://evil\")\n1,2,3".into();
    error.traceback = "-a\r\nb".into();
    error.printed = "=1+1".into();
    error.category = String::new();
    let (csv, parquet, items) = tables(&[rejected_from(attempt, files(&["/in/a,b", "/in/\"c\""]))]);
    let expected = "mini_batch,item,items,input,path,row,byte_start,byte_end,key,detail,values,cause,exception,message,\
        traceback,tries,node,process,started_at,log,printed\n\
        0,0,1,second,\"/in/a,b\",,,,,\"/in/a,b\",,run_raised,,\"'=HYPERLINK(\"\"http://evil\"\")\n1,2,3\",\"'-a\r\nb\",\
        3,0,process000,2023-11-14T22:13:20.123Z,user/error/0/process000.txt,'=1+1\n\
        0,1,1,second,\"/in/\"\"c\"\"\",,,,,\"/in/\"\"c\"\"\",,run_raised,,\"'=HYPERLINK(\"\"http://evil\"\")\n1,2,3\",,\
        3,0,process000,2023-11-14T22:13:20.123Z,user/error/0/process000.txt,\n";
    assert_eq!(csv, expected);
    assert_eq!(items, 2);
    let reader = ParquetRecordBatchReaderBuilder::try_new(Bytes::from(parquet)).expect("Parquet");
    let batches: Vec<_> =
        reader.build().expect("Parquet").collect::<Result<_, _>>().expect("readable");
    let [batch] = &batches[..] else { panic!("{batches:?}") };
    let text = |column: &str, row: usize| {
        let column = batch.column_by_name(column).expect("a column");
        arrow::util::display::array_value_to_string(column, row).expect("printable")
    };
    assert_eq!(batch.num_rows(), 2);
    for row in 0..2 {
        assert_eq!(
            text("message", row),
            "=HYPERLINK(\"http://evil\")\n1,2,3",
            "no spreadsheet opens it"
        );
        assert_eq!(text("traceback", row), "-a\r\nb");
        assert_eq!((text("exception", row), text("row", row)), (String::new(), String::new()));
        let started = batch
            .column_by_name("started_at")
            .expect("a column")
            .as_primitive::<TimestampMillisecondType>();
        assert_eq!(started.value(row), 1_700_000_000_123);
    }
    assert_eq!(text("path", 1), "/in/\"c\"");
}

#[test]
fn tables_have_the_same_bytes_each_time() {
    let many: Vec<_> = (0..3000)
        .map(|number| rejected_from(failed(number, 1, true, 1), files(&["/in/a"])))
        .collect();
    let (csv, parquet, items) = tables(&many);
    assert_eq!(items, 3000);
    // Texts of one kind are stored once.
    assert!(parquet.len() < 60_000 && csv.lines().count() == 3001, "{}", parquet.len());
    assert!(tables(&many) == (csv, parquet, items));
}

#[test]
fn rejects_are_grouped_by_cause() {
    let mut groups = RejectGroups::default();
    let inputs = inputs();
    for number in 0..1000 {
        let mut attempt = failed(number, 1, true, 2);
        let error = attempt.error.as_mut().expect("failed");
        error.message = if number == 5 {
            "other".into()
        } else {
            format!("no total in 'invoice {number}'\nsecond")
        };
        let mini_batch = rejected_from(attempt, files(&[&format!("/in/{number}"), "/in/x"]));
        mini_batch.rejects(&inputs).for_each(|reject| groups.add(&reject));
    }
    assert_eq!((groups.items(), groups.mini_batches()), (2000, 1000));
    let groups = groups.into_groups();
    let shown: Vec<_> =
        groups.iter().map(|group| (group.items, group.mini_batches, group.error())).collect();
    let expected = [
        (1998, 999, "ValueError: no total in 'invoice 0'".to_owned()),
        (2, 1, "ValueError: other".to_owned()),
    ];
    assert_eq!(shown, expected);
    assert_eq!((groups[0].first.mini_batch, &*groups[0].first.detail), (0, "/in/0"));
}

#[test]
fn number_of_groups_is_bounded() {
    let mut groups = RejectGroups::default();
    for number in 0..1000_u64 {
        let mut attempt = failed(number, 1, true, 1);
        let word: String =
            number.to_string().bytes().map(|digit| char::from(digit - b'0' + b'a')).collect();
        attempt.error.as_mut().expect("failed").message = format!("cannot {word}");
        let mini_batch = rejected_without_plan(attempt);
        mini_batch.rejects(&[]).for_each(|reject| groups.add(&reject));
    }
    let groups = groups.into_groups();
    assert!(groups.len() <= 201, "{}", groups.len());
    assert_eq!(groups[0].error(), "ValueError", "the largest collects different messages");
    assert_eq!(groups.iter().map(|group| group.items).sum::<u64>(), 1000);
}
