//! The final file, in folders and stores.

mod declared;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use arrow::array::{
    ArrayRef, AsArray, BooleanArray, DictionaryArray, Float64Array, Int8Array, Int64Array,
    NullArray, RecordBatch, StringArray, TimestampMicrosecondArray,
};
use arrow::compute::concat_batches;
use arrow::ipc::writer::StreamWriter;
use bytes::Bytes;
use object_store::memory::InMemory;
use protocol::{Rows, encode_record};

use super::*;
use crate::batch::{Batch, Event};
use crate::fixtures::{event, spec, succeeded};
use crate::ledger::{Committed, Ledger};
use crate::tally::{Effect, Tally};

/// How the rows of a mini-batch reach the ledger.
enum RowSource {
    Inline(Vec<u8>),
    Part(Vec<u8>),
}

struct Job {
    _folder: tempfile::TempDir,
    ledger: Ledger,
    tally: Tally,
    store: JobStore,
    output: Output,
}

impl Job {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("temporary folder");
        let job = folder.path().join("job");
        fs::create_dir(&job).expect("fresh");
        let store = JobStore::local(&job).expect("exists");
        let output = spec(&folder.path().join("out")).output;
        Self {
            ledger: Ledger::new(store.clone(), "job", Duration::ZERO),
            tally: Tally::default(),
            store,
            output,
            _folder: folder,
        }
    }

    fn remote() -> Self {
        let mut job = Self::new();
        job.store = JobStore::new(Arc::new(InMemory::new()), "jobs/one".into());
        job.ledger = Ledger::new(job.store.clone(), "job", Duration::ZERO);
        job
    }

    /// Commits some results as one segment.
    async fn commit(&mut self, results: Vec<(u64, RowSource, Option<Vec<&str>>)>) {
        let mut body = Vec::new();
        for (mini_batch, rows, columns) in results {
            let mut attempt = succeeded(mini_batch, 1, 1, 1);
            attempt.columns =
                columns.map(|columns| columns.into_iter().map(str::to_owned).collect());
            let inline = match rows {
                RowSource::Inline(rows) => {
                    attempt.rows = Rows::Inline;
                    rows
                }
                RowSource::Part(rows) => {
                    let name = format!("{mini_batch}-1");
                    attempt.rows = Rows::Part { name: name.clone(), bytes: rows.len() as u64 };
                    self.store.put_part(&name, rows.into()).await.expect("writable");
                    vec![]
                }
            };
            encode_record(&event(attempt), &inline, &mut body);
        }
        let mut batch = Batch::default();
        assert!(batch.add(&Bytes::from(body)).is_none());
        let committed = self.ledger.commit(batch).await.expect("committed");
        let Committed::Ours(mut committed) = committed else { unreachable!("there is one writer") };
        let segment = self.ledger.segments() - 1;
        committed.retain_in_segment(|record, at| {
            let Event::Success(success) = record.event else { unreachable!("only successes") };
            if self.tally.apply_record(record) == Effect::Won {
                let success = record.attempt(success);
                self.ledger.index_mut().insert(
                    success.mini_batch,
                    success.rows,
                    success.columns,
                    segment,
                    at.rows(),
                );
            }
            true
        });
    }

    async fn write(&self) -> anyhow::Result<Written> {
        self.write_as("1", |_| {}).await
    }

    async fn write_as(
        &self,
        writer: &str,
        crash: impl Fn(CrashPoint) + Send + 'static,
    ) -> anyhow::Result<Written> {
        let writer = writer.to_owned();
        let (store, index, output) =
            (self.store.clone(), self.ledger.index.clone(), self.output.clone());
        let runtime = Handle::current();
        let write = move || {
            let (job_id, writer, crash) = ("job", writer.as_str(), &crash);
            Assembly {
                store: &store,
                index: &index,
                output: &output,
                job_id,
                writer,
                replaceable: &Replaceable::Anything,
                runtime,
                crash,
                is_abandoned: &|| false,
            }
            .write()
        };
        let written = tokio::task::spawn_blocking(write).await.expect("no panic")?;
        Ok(written.expect("not abandoned"))
    }

    async fn text(&self) -> String {
        let written = self.write().await.expect("written");
        fs::read_to_string(written.path).expect("there")
    }

    fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.output.folder.as_path()).expect("there");
        entries
            .map(|entry| entry.expect("readable").file_name().into_string().expect("text"))
            .collect()
    }
}

fn inline(text: &str) -> RowSource {
    RowSource::Inline(text.as_bytes().to_vec())
}

fn part(text: &str) -> RowSource {
    RowSource::Part(text.as_bytes().to_vec())
}

#[tokio::test]
async fn rows_follow_the_order_of_the_plan() {
    for mut job in [Job::new(), Job::remote()] {
        job.commit(vec![(2, inline("two\n"), None), (0, part("zero\nzero\n"), None)]).await;
        job.commit(vec![
            (5, inline("five\n"), None),
            (1, inline("one\n"), None),
            (3, inline(""), None),
        ])
        .await;
        job.commit(vec![(1, inline("one again\n"), None), (4, part("four\n"), None)]).await;
        assert_eq!(job.text().await, "zero\nzero\none\ntwo\nfour\nfive\n");
        assert_eq!(job.files(), ["parallel_run_step.txt"]);
    }
}

#[tokio::test]
async fn rows_of_any_size_and_commit_order_are_written_whole() {
    let rows: Vec<String> = (0..40usize)
        .map(|id| format!("{id:02}-{}\n", "x".repeat(if id % 7 == 0 { 700_000 } else { id * 991 })))
        .collect();
    let expected = rows.concat();
    for mut job in [Job::new(), Job::remote()] {
        for start in (0..8).rev() {
            let ids = (start..40).step_by(8);
            let outcome = |id: usize| if id % 9 == 5 { part(&rows[id]) } else { inline(&rows[id]) };
            job.commit(ids.map(|id| (id as u64, outcome(id), None)).collect()).await;
        }
        assert!(job.text().await == expected, "the rows are not those of the mini-batches");
    }
}

#[tokio::test]
async fn header_is_written_once_and_other_columns_are_reported() {
    let mut job = Job::new();
    job.output.header = true;
    job.commit(vec![
        (1, inline("1 2\n"), Some(vec!["a", "b c"])),
        (0, inline("0\n"), None),
        (2, inline("3 4\n"), Some(vec!["a", "d"])),
    ])
    .await;
    let written = job.write().await.expect("written");
    assert_eq!(fs::read_to_string(&written.path).expect("there"), "a \"b c\"\n0\n1 2\n3 4\n");
    assert_eq!(written.warnings.len(), 1);
    assert!(
        written.warnings[0].contains("mini-batch 2 returned the columns [\"a\", \"d\"]"),
        "{:?}",
        written.warnings
    );
    job.output.header = false;
    let written = job.write().await.expect("written");
    assert!(
        written.warnings[0].contains("but the file begins with those of mini-batch 1"),
        "{:?}",
        written.warnings
    );
}

#[tokio::test]
async fn longest_file_name_is_written() {
    let mut job = Job::new();
    job.output.file_name = "ä".repeat(127);
    job.commit(vec![(0, inline("0\n"), None)]).await;
    assert_eq!(job.text().await, "0\n");
}

#[tokio::test]
async fn existing_file_and_files_of_a_killed_writer_are_replaced() {
    let mut job = Job::new();
    job.commit(vec![(0, inline("new\n"), None)]).await;
    let folder = job.output.folder.as_path().to_owned();
    fs::create_dir(&folder).expect("fresh");
    fs::write(folder.join("parallel_run_step.txt"), "old, and longer than the new one\n")
        .expect("writable");
    fs::write(folder.join(".parallel_run_step.txt.job.99.tmp"), "half").expect("writable");
    fs::write(folder.join(".parallel_run_step.txt.other-job.99.tmp"), "not ours")
        .expect("writable");
    assert_eq!(job.text().await, "new\n");
    let mut files = job.files();
    files.sort();
    assert_eq!(files, [".parallel_run_step.txt.other-job.99.tmp", "parallel_run_step.txt"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_writer_keeps_its_file_and_does_not_replace_the_final_file() {
    let mut job = Job::new();
    job.commit(vec![(0, inline("row\n"), None)]).await;
    let (reached, wait) = std::sync::mpsc::channel();
    let (go, may_go) = std::sync::mpsc::channel();
    let slow = job.write_as("slow", move |point| {
        if point == CrashPoint::BeforeRename {
            reached.send(()).expect("the quick writer waits");
            may_go.recv().expect("the quick writer is done");
        }
    });
    let quick = async {
        tokio::task::spawn_blocking(move || wait.recv().expect("reached")).await.expect("no panic");
        let held =
            LocalFile::create(job.output.folder.as_path(), &job.output.file_name, "job", "third");
        held.expect("room for a third").abort();
        assert!(
            job.files().contains(&".parallel_run_step.txt.job.slow.tmp".to_owned()),
            "the slow writer is alive"
        );
        let written = job.write_as("quick", |_| {}).await.expect("written");
        let finished = fs::metadata(&written.path).expect("there").modified().expect("known");
        go.send(()).expect("the slow writer waits");
        finished
    };
    let (slow, finished) = tokio::join!(slow, quick);
    let path = slow.expect("the file exists").path;
    assert_eq!(
        fs::metadata(&path).expect("there").modified().expect("known"),
        finished,
        "that of the quick writer"
    );
    assert_eq!(job.files(), ["parallel_run_step.txt"]);
}

#[tokio::test]
async fn uncreatable_output_folder_is_reported_in_one_line() {
    let mut job = Job::new();
    job.commit(vec![(0, inline("row\n"), None)]).await;
    job.output.folder = "/proc/no/such/folder".into();
    let error = format!("{:#}", job.write().await.expect_err("not writable"));
    assert!(error.starts_with("create output folder /proc/no/such/folder: "), "{error}");
    assert!(!error.contains('\n'));
}

#[tokio::test]
async fn failed_rename_leaves_no_temporary_file() {
    let mut job = Job::new();
    job.commit(vec![(0, RowSource::Inline(vec![b'x'; 3 << 20]), None)]).await;
    // A non-empty folder has the name of the final file.
    let folder = job.output.folder.as_path().to_owned();
    fs::create_dir_all(folder.join("parallel_run_step.txt/occupied")).expect("fresh");
    let error =
        format!("{:#}", job.write().await.expect_err("a folder cannot be replaced by a file"));
    assert!(error.contains("rename the finished file to"), "{error}");
    assert_eq!(job.files(), ["parallel_run_step.txt"], "the temporary file is gone");
}

#[tokio::test]
async fn damaged_part_is_named() {
    for mut job in [Job::new(), Job::remote()] {
        job.commit(vec![(0, part("whole\n"), None)]).await;
        job.store.put_part("0-1", Bytes::from_static(b"who")).await.expect("writable");
        let error = format!("{:#}", job.write().await.expect_err("three bytes are missing"));
        assert!(
            error
                .contains("rows of mini-batch 0: part 0-1 is damaged: it has 3 bytes instead of 6"),
            "{error}"
        );
    }
}

/// An error of the thread that gathers rows fails the writing.
#[tokio::test]
async fn unreadable_rows_are_named_and_leave_no_file() {
    let rows = "x".repeat(900_000);
    let mut job = Job::new();
    for mini_batch in 0..8 {
        job.commit(vec![(mini_batch, inline(&rows), None)]).await;
    }
    fs::write(job.store.segment_file(6).expect("local"), "short").expect("writable");
    let error = format!("{:#}", job.write().await.expect_err("a segment is damaged"));
    assert!(error.contains("rows of mini-batch 6: read "), "{error}");
    assert_eq!(job.files(), Vec::<String>::new());
}

fn stream(columns: Vec<(&str, ArrayRef)>) -> Vec<u8> {
    let batch = RecordBatch::try_from_iter_with_nullable(
        columns.into_iter().map(|(name, array)| (name, array, true)),
    )
    .expect("equal lengths");
    let mut bytes = Vec::new();
    let mut writer = StreamWriter::try_new(&mut bytes, &batch.schema()).expect("in memory");
    writer.write(&batch).expect("in memory");
    writer.finish().expect("in memory");
    bytes
}

fn integers(values: Vec<i64>) -> ArrayRef {
    Arc::new(Int64Array::from(values))
}

async fn parquet_job(results: Vec<(u64, RowSource)>) -> Job {
    let mut job = Job::new();
    job.output.format = OutputFormat::Parquet;
    job.output.file_name = "rows.parquet".into();
    job.commit(results.into_iter().map(|(mini_batch, rows)| (mini_batch, rows, None)).collect())
        .await;
    job
}

fn read_parquet(path: &Path) -> RecordBatch {
    let file = File::open(path).expect("there");
    let reader =
        ParquetRecordBatchReaderBuilder::try_new(file).expect("Parquet").build().expect("readable");
    let batches: Vec<_> = reader.collect::<Result<_, _>>().expect("readable");
    concat_batches(&batches[0].schema(), &batches).expect("one schema")
}

#[tokio::test]
async fn parquet_unifies_schemas_of_mini_batches() {
    let nulls: ArrayRef = Arc::new(NullArray::new(2));
    let floats: ArrayRef = Arc::new(Float64Array::from(vec![0.5]));
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["t", "u"]));
    let job = parquet_job(vec![
        (1, RowSource::Part(stream(vec![("a", floats), ("c", integers(vec![7]))]))),
        (0, RowSource::Inline(stream(vec![("a", integers(vec![1, 2])), ("b", nulls)]))),
        (2, RowSource::Inline(stream(vec![("b", texts), ("a", integers(vec![3, 4]))]))),
    ])
    .await;
    let rows = read_parquet(&job.write().await.expect("written").path);
    let names: Vec<_> = rows.schema().fields().iter().map(|field| field.name().clone()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    let floats: ArrayRef = Arc::new(Float64Array::from(vec![1.0, 2.0, 0.5, 3.0, 4.0]));
    let texts: ArrayRef = Arc::new(StringArray::from(vec![None, None, None, Some("t"), Some("u")]));
    let integers: ArrayRef = Arc::new(Int64Array::from(vec![None, None, Some(7), None, None]));
    assert_eq!(rows.columns(), [floats, texts, integers]);
}

#[tokio::test]
async fn parquet_rows_of_several_runs_are_those_of_one_mini_batch() {
    let floats: ArrayRef = Arc::new(Float64Array::from(vec![0.5]));
    let streams = [
        stream(vec![("a", integers(vec![1, 2]))]),
        stream(vec![("a", floats), ("b", integers(vec![7]))]),
    ];
    for outcome in [RowSource::Inline, RowSource::Part] {
        let results = vec![
            (0, outcome(streams.concat())),
            (1, outcome(stream(vec![("a", integers(vec![3]))]))),
        ];
        let mut job = parquet_job(results).await;
        job.ledger.index_mut().join(0);
        let rows = read_parquet(&job.write().await.expect("written").path);
        let floats: ArrayRef = Arc::new(Float64Array::from(vec![1.0, 2.0, 0.5, 3.0]));
        let integers: ArrayRef = Arc::new(Int64Array::from(vec![None, None, Some(7), None]));
        assert_eq!(rows.columns(), [floats, integers]);
    }
}

#[tokio::test]
async fn parquet_bytes_do_not_depend_on_the_order_of_commits() {
    let rows: BTreeMap<u64, Vec<u8>> = (0..20)
        .map(|id| (id, stream(vec![("a", integers((0..id as i64 * 10).collect()))])))
        .collect();
    let mut files = Vec::new();
    for order in [(0..20).collect::<Vec<u64>>(), (0..20).rev().collect()] {
        let results =
            order.into_iter().map(|id| (id, RowSource::Inline(rows[&id].clone()))).collect();
        let job = parquet_job(results).await;
        files.push(fs::read(job.write().await.expect("written").path).expect("there"));
    }
    assert!(files[0] == files[1], "the files differ");
}

/// Returns the bytes of a job in a format, and its warnings.
async fn written(job: &mut Job, format: OutputFormat) -> (String, Vec<String>) {
    job.output.format = format;
    job.output.file_name = "rows".into();
    let written = job.write().await.expect("written");
    (fs::read_to_string(written.path).expect("text"), written.warnings)
}

#[tokio::test]
async fn column_without_a_common_type_is_text_and_a_warning_says_so() {
    let list: ArrayRef = Arc::new(arrow::array::ListArray::from_iter_primitive::<
        arrow::datatypes::Int64Type,
        _,
        _,
    >([Some(vec![Some(1), None]), None]));
    let mut job = parquet_job(vec![
        (0, RowSource::Inline(stream(vec![("a", integers(vec![1]))]))),
        (1, RowSource::Inline(stream(vec![("a", list)]))),
    ])
    .await;
    let rows = read_parquet(&job.write().await.expect("written").path);
    let texts: ArrayRef = Arc::new(StringArray::from(vec![Some("1"), Some("[1, null]"), None]));
    assert_eq!(rows.columns(), [texts]);
    let (text, warnings) = written(&mut job, OutputFormat::Csv).await;
    assert_eq!(text, "a\n1\n\"[1, null]\"\n\"\"\n");
    assert!(
        warnings[0].contains(
            "column \"a\" is text, because no type holds all of its values without loss: integer (1 value, the first in \
             mini-batch 0, row 0) and list (1 value, the first in mini-batch 1, row 0)"
        ),
        "{warnings:?}"
    );
    let (text, warnings) = written(&mut job, OutputFormat::Jsonl).await;
    assert_eq!(text, "{\"a\": 1}\n{\"a\": [1, null]}\n{\"a\": null}\n");
    assert!(warnings[0].contains("each written as it is"), "{warnings:?}");
}

#[tokio::test]
async fn infinite_numbers_that_json_lacks_are_named() {
    let numbers: ArrayRef =
        Arc::new(Float64Array::from(vec![Some(f64::INFINITY), Some(f64::NAN), None, Some(1.5)]));
    let list =
        arrow::array::ListArray::from_iter_primitive::<arrow::datatypes::Float64Type, _, _>([
            Some(vec![Some(f64::NEG_INFINITY), Some(1.0)]),
            None,
            None,
            None,
        ]);
    let columns = vec![("n", numbers), ("list", Arc::new(list) as ArrayRef)];
    let mut job = parquet_job(vec![(0, RowSource::Inline(stream(columns)))]).await;
    let (text, warnings) = written(&mut job, OutputFormat::Jsonl).await;
    assert!(text.starts_with("{\"n\": null, \"list\": [null, 1.0]}\n"), "{text}");
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(
        warnings[1].starts_with("column \"n\" has 1 infinite number, which JSON lacks"),
        "{warnings:?}"
    );
    let (text, warnings) = written(&mut job, OutputFormat::Csv).await;
    let expected = "n,list\ninf,\"[-Infinity, 1.0]\"\nnan,\n,\n1.5,\n";
    assert_eq!((&*text, warnings.len()), (expected, 0), "{warnings:?}");
}

#[tokio::test]
async fn categories_that_are_truth_values_are_written_to_parquet() {
    let values: ArrayRef = Arc::new(BooleanArray::from(vec![false, true]));
    let keys = Int8Array::from(vec![Some(1), None, Some(0)]);
    let categories: ArrayRef = Arc::new(DictionaryArray::new(keys, values));
    let mut job = parquet_job(vec![(0, RowSource::Inline(stream(vec![("c", categories)])))]).await;
    let (text, _) = written(&mut job, OutputFormat::Csv).await;
    assert_eq!(text, "c\nTrue\n\"\"\nFalse\n");
    job.output.format = OutputFormat::Parquet;
    let rows = read_parquet(&job.write().await.expect("written").path);
    assert_eq!(
        *rows.column(0).as_boolean(),
        BooleanArray::from(vec![Some(true), None, Some(false)])
    );
}

#[tokio::test]
async fn times_of_a_column_of_csv_have_one_form() {
    let times =
        |times: &[i64]| Arc::new(TimestampMicrosecondArray::from(times.to_vec())) as ArrayRef;
    let columns = |first, second| vec![("t", times(first)), ("whole", times(second))];
    let mut job = parquet_job(vec![
        (0, RowSource::Inline(stream(columns(&[0], &[0])))),
        (1, RowSource::Inline(stream(columns(&[1_500_000], &[7_000_000])))),
    ])
    .await;
    let (text, _) = written(&mut job, OutputFormat::Csv).await;
    assert_eq!(
        text,
        "t,whole\n1970-01-01 00:00:00.000,1970-01-01 00:00:00\n1970-01-01 00:00:01.500,1970-01-01 00:00:07\n"
    );
    let (text, _) = written(&mut job, OutputFormat::Jsonl).await;
    assert!(text.starts_with("{\"t\": \"1970-01-01T00:00:00\", "), "{text}");
}

#[tokio::test]
async fn integers_beside_whole_floating_point_numbers_stay_exact() {
    let id = (1 << 60) + 1;
    let gaps: ArrayRef = Arc::new(Float64Array::from(vec![Some(5.0), None]));
    let mut job = parquet_job(vec![
        (0, RowSource::Inline(stream(vec![("id", integers(vec![id]))]))),
        (1, RowSource::Inline(stream(vec![("id", gaps)]))),
    ])
    .await;
    let rows = read_parquet(&job.write().await.expect("written").path);
    let ids: ArrayRef = Arc::new(Int64Array::from(vec![Some(id), Some(5), None]));
    assert_eq!(rows.columns(), [ids]);
    assert_eq!(written(&mut job, OutputFormat::Csv).await.0, "id\n1152921504606846977\n5\n\"\"\n");
    let half: ArrayRef = Arc::new(Float64Array::from(vec![0.5]));
    job.commit(vec![(2, RowSource::Inline(stream(vec![("id", half)])), None)]).await;
    let (text, warnings) = written(&mut job, OutputFormat::Csv).await;
    assert_eq!(text, "id\n1152921504606846977\n5.0\n\"\"\n0.5\n", "no float holds the first");
    assert!(warnings[0].contains("integer (1 value"), "{warnings:?}");
}

#[tokio::test]
async fn csv_has_the_columns_of_all_mini_batches_by_name() {
    let texts = |text: &str| -> ArrayRef { Arc::new(StringArray::from(vec![text])) };
    let mut job = parquet_job(vec![
        (0, RowSource::Inline(stream(vec![("file", texts("f0")), ("label", texts(""))]))),
        (1, RowSource::Inline(stream(vec![("label", texts("L,1")), ("file", texts("f1"))]))),
        (2, RowSource::Inline(stream(vec![("file", texts("f2")), ("error", texts("e"))]))),
    ])
    .await;
    let (text, warnings) = written(&mut job, OutputFormat::Csv).await;
    assert_eq!(text, "file,label,error\nf0,\"\",\nf1,\"L,1\",\nf2,,e\n");
    assert!(warnings.is_empty(), "{warnings:?}");
    assert!(job.files().contains(&".rows.schema.json".to_owned()), "{:?}", job.files());
}

#[tokio::test]
async fn parquet_without_rows_is_an_empty_table() {
    let job = parquet_job(vec![]).await;
    let written = job.write().await.expect("written");
    let file = File::open(written.path).expect("there");
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).expect("Parquet");
    assert_eq!(reader.metadata().file_metadata().num_rows(), 0);
}

#[path = "../../../storage/tests/s3_real/support.rs"]
mod support;

impl Job {
    /// Creates a job whose store and output are on S3 (`GRISTMILL_TEST_AWS_ENDPOINT`).
    async fn on_s3(bucket: &support::Bucket, endpoint: &str) -> Self {
        let options = storage::StoreOptions { endpoint: Some(endpoint.to_owned()), region: None };
        let target = storage::TargetStore::open(&bucket.url("store"), options)
            .await
            .expect("the bucket exists");
        let mut job = Self::new();
        job.store = target.job("one");
        job.ledger = Ledger::new(job.store.clone(), "job", Duration::ZERO);
        job.output.folder = bucket.url("out/").as_str().into();
        job
    }
}

/// Commits four mini-batches, one of them large. Returns their rows.
async fn commit_large(job: &mut Job) -> Vec<u8> {
    let large: Vec<u8> = (0..14_000_000u32).map(|at| b'a' + (at % 26) as u8).collect();
    job.commit(vec![(1, RowSource::Part(large.clone()), None), (2, inline("two\n"), None)]).await;
    job.commit(vec![(0, inline("zero\n"), None), (3, part("three\n"), None)]).await;
    [b"zero\n".to_vec(), large, b"two\nthree\n".to_vec()].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn real_store_assembles_final_object_for_two_concurrent_writers() {
    let (bucket, proxy) = (support::Bucket::new(), support::Proxy::counting());
    let mut job = Job::on_s3(&bucket, &proxy.endpoint).await;
    let expected = commit_large(&mut job).await;
    let before = proxy.requests().len();
    let written = job.write_as("1", |_| {}).await.expect("written");
    assert_eq!(written.path.to_str(), Some(bucket.url("out/parallel_run_step.txt").as_str()));
    assert!(
        bucket.get("out/parallel_run_step.txt").expect("there") == expected,
        "the rows differ from the commits"
    );
    let requests = proxy.requests().split_off(before);
    let travelled: usize =
        requests.iter().map(|request| request.body.len() + request.answer_bytes).sum();
    assert!(
        travelled < 12_000_000,
        "{travelled} bytes travelled: only the beginning of the large part should"
    );
    assert!(requests.iter().any(|request| request.header("x-amz-copy-source").is_some()));
    assert!(requests.len() <= 12, "{} requests", requests.len());

    bucket.delete("out/parallel_run_step.txt");
    let (one, other) = tokio::join!(job.write_as("1", |_| {}), job.write_as("2", |_| {}));
    one.expect("written");
    other.expect("written by either");
    assert!(bucket.get("out/parallel_run_step.txt").expect("there") == expected);
    assert_eq!(bucket.uploads(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn real_failed_upload_leaves_no_object() {
    let bucket = support::Bucket::new();
    let proxy = support::Proxy::start(|request, _| {
        match request.method == "POST" && request.path.contains("uploadId=") {
            true => support::Fate::Fail(
                403,
                "<Error><Code>AccessDenied</Code><Message>Not you</Message></Error>",
            ),
            false => support::Fate::Pass,
        }
    });
    let mut job = Job::on_s3(&bucket, &proxy.endpoint).await;
    commit_large(&mut job).await;
    let error = format!("{:#}", job.write().await.expect_err("the last request is rejected"));
    assert!(error.contains("finish the upload: Not you (AccessDenied)"), "{error}");
    assert_eq!(bucket.get("out/parallel_run_step.txt"), None);
    assert_eq!(bucket.uploads(), Vec::<String>::new(), "the incomplete upload is removed");
}

#[tokio::test(flavor = "multi_thread")]
async fn real_parquet_is_written_to_a_store_and_rows_of_a_store_to_a_folder() {
    let bucket = support::Bucket::new();
    let mut job = Job::on_s3(&bucket, &support::endpoint()).await;
    let expected = commit_large(&mut job).await;
    let local = tempfile::tempdir().expect("temporary folder");
    job.output.folder = local.path().into();
    let written = job.write().await.expect("written");
    assert!(fs::read(written.path).expect("there") == expected);

    let bucket = support::Bucket::new();
    let mut job = Job::on_s3(&bucket, &support::endpoint()).await;
    job.output.format = OutputFormat::Parquet;
    job.output.file_name = "rows.parquet".into();
    let results = (10..12)
        .map(|id| (id, RowSource::Part(stream(vec![("a", integers(vec![id as i64]))])), None));
    job.commit(results.collect()).await;
    job.write().await.expect("written");
    let copy = local.path().join("copy.parquet");
    fs::write(&copy, bucket.get("out/rows.parquet").expect("there")).expect("writable");
    assert_eq!(read_parquet(&copy).columns(), [integers(vec![10, 11])]);
}
