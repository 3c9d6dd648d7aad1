//! Mini-batches of tables by bytes, rows and row groups.

use std::fmt::Write as _;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use partitioner::{Inputs, MissingColumn};
use protocol::{
    BlockRange, ColumnType, Descriptor, JobSpec, MiniBatchSize, TableFormat, TypeRules, Work,
};

use crate::fixtures::{descriptors, folder, group, refusal, schema, table_job, totals, write};

/// Returns rows like those of the original's test files.
fn numbered_rows(rows: usize) -> String {
    let mut text = "id,name,val\n".to_owned();
    for row in 0..rows {
        writeln!(text, "{row},{},{:?}", "x".repeat(20), row as f64 * 1.5)
            .expect("strings take everything");
    }
    text
}

pub fn write_parquet(path: &Path, groups: &[usize]) {
    let batch = |rows: usize| {
        let column: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows as i64));
        RecordBatch::try_from_iter([("id", column)]).expect("one column")
    };
    let properties = WriterProperties::builder().build();
    let file = File::create(path).expect("writable");
    let mut writer =
        ArrowWriter::try_new(file, batch(0).schema(), Some(properties)).expect("writable");
    for &rows in groups {
        writer.write(&batch(rows)).expect("writable");
        writer.flush().expect("writable");
    }
    writer.close().expect("writable");
}

/// Returns position of the file in `names` and range of each mini-batch, which must have one block.
pub fn ranges(names: &[&str], job: &protocol::JobSpec) -> Vec<(usize, BlockRange)> {
    let block = |descriptor: protocol::Descriptor| match descriptor.work {
        Work::Rows { blocks, .. } => match <[_; 1]>::try_from(blocks) {
            Ok([block]) => block,
            Err(blocks) => panic!("{} blocks", blocks.len()),
        },
        work => panic!("{work:?}"),
    };
    let place =
        |path: &Path| names.iter().position(|name| path.ends_with(name)).expect("one of the files");
    let blocks = descriptors(job).into_iter().map(block);
    blocks.map(|block| (place(block.path.as_path()), block.range)).collect()
}

fn lines(first: u64, last: u64) -> BlockRange {
    BlockRange::Lines { first, last }
}

#[test]
fn text_is_split_at_byte_offsets_in_each_file() {
    let root = folder();
    write(root.path(), "a_small.csv", numbered_rows(5));
    write(root.path(), "b_mid.csv", numbered_rows(200));
    write(root.path(), "c_big.csv", numbered_rows(2000));
    let names = ["a_small.csv", "b_mid.csv", "c_big.csv"];
    let job =
        |bytes, paths: &[&Path]| table_job(TableFormat::Csv, MiniBatchSize::Bytes(bytes), paths);

    let mid = root.path().join("b_mid.csv");
    let expected: Vec<_> =
        [(0, 1024), (1025, 2048), (2049, 3072), (3073, 4096), (4097, 5120), (5121, 6144)].to_vec();
    let expected: Vec<_> =
        expected.into_iter().map(|(first, last)| (1, lines(first, last))).collect();
    assert_eq!(ranges(&names, &job(1024, &[&mid])), expected);

    let whole = ranges(&names, &job(1 << 20, &[root.path()]));
    assert_eq!(whole, [0, 1, 2].map(|file| (file, lines(0, 1 << 20))), "small files were combined");
    assert_eq!(ranges(&names, &job(4096, &[root.path()])).len(), 1 + 2 + 16);
}

#[test]
fn header_has_a_mini_batch_and_empty_file_has_none() {
    let root = folder();
    write(root.path(), "a.csv", "");
    write(root.path(), "b.csv", "id\n");
    let job = table_job(TableFormat::Csv, MiniBatchSize::Bytes(100), &[root.path()]);
    assert_eq!(ranges(&["a.csv", "b.csv"], &job), [(1, lines(0, 100))]);
    let by_rows = table_job(TableFormat::Csv, MiniBatchSize::Rows(1), &[root.path()]);
    assert_eq!(ranges(&["a.csv", "b.csv"], &by_rows), []);
}

#[test]
fn job_that_runs_without_rows_has_at_least_one_mini_batch() {
    let root = folder();
    write(root.path(), "a.csv", "");
    write(root.path(), "b.csv", "id\n");
    let job = |size| JobSpec {
        run_without_rows: true,
        ..table_job(TableFormat::Csv, size, &[root.path()])
    };
    assert_eq!(ranges(&["a.csv", "b.csv"], &job(MiniBatchSize::Bytes(100))), [(1, lines(0, 100))]);
    let mut by_rows = job(MiniBatchSize::Rows(1));
    by_rows.inputs[0].partition_format = Some("{name}.csv".into());
    by_rows.inputs[0].paths = vec![root.path().join("b.csv").as_path().into()];
    let [Descriptor { work: Work::Rows { blocks, rows_before: Some(0), .. }, .. }] =
        &descriptors(&by_rows)[..]
    else {
        panic!("one")
    };
    assert_eq!(
        (blocks[0].range, blocks[0].path_columns[0].1.as_str()),
        (BlockRange::WholeText, "b")
    );

    let path = root.path().join("none.parquet");
    write_parquet(&path, &[]);
    let mut parquet = table_job(TableFormat::Parquet, MiniBatchSize::Rows(1), &[&path]);
    assert_eq!(descriptors(&parquet), []);
    parquet.run_without_rows = true;
    assert_eq!(ranges(&["none.parquet"], &parquet), [(0, group(0, 0, 0))]);
}

/// A sample leaves out some of many files.
#[test]
fn input_is_empty_only_if_no_file_has_a_row() {
    let root = folder();
    (0..200).for_each(|number| write(root.path(), format!("{number:03}.csv"), "id\n"));
    for types in [TypeRules::Original, TypeRules::Pandas] {
        let mut job = table_job(TableFormat::Csv, MiniBatchSize::Rows(1), &[root.path()]);
        job.inputs[0].table.types = types;
        let is_empty = || schema(&job).is_empty;
        assert!(is_empty());
        write(root.path(), "199.csv", "id\n1\n");
        assert!(!is_empty());
        write(root.path(), "199.csv", "id\n");
    }
}

#[test]
fn json_lines_are_split_like_other_text() {
    let root = folder();
    let text: String = (0..50).map(|id| format!("{{\"id\":{id},\"s\":\"xx\"}}\n")).collect();
    assert_eq!(text.len(), 940);
    write(root.path(), "a.jsonl", text);
    let job = table_job(TableFormat::Jsonl, MiniBatchSize::Bytes(200), &[root.path()]);
    assert_eq!(ranges(&["a.jsonl"], &job).len(), 5);
}

#[test]
fn rows_are_split_at_beginnings_of_lines() {
    let root = folder();
    write(root.path(), "a.csv", "id,n\n1,a\n2,b\n3,c");
    write(root.path(), "b.csv", "id,n\n4,d\n");
    let job = table_job(TableFormat::Csv, MiniBatchSize::Rows(2), &[root.path()]);
    let [(0, first), (0, second), (1, third)] = ranges(&["a.csv", "b.csv"], &job)[..] else {
        panic!("three")
    };
    let holds = |range: BlockRange, starts: u64| {
        let BlockRange::Lines { first, last } = range else { panic!("{range:?}") };
        (first..=last).contains(&starts)
    };
    assert!(holds(first, 5) && holds(first, 9) && !holds(first, 13), "{first:?}");
    assert!(!holds(second, 9) && holds(second, 13), "{second:?}");
    assert!(holds(third, 5), "{third:?}");
}

#[test]
fn multi_line_file_is_split_at_ends_of_records() {
    let root = folder();
    write(root.path(), "a.csv", "id,n\n1,\"a\nb\"\n2,c\n");
    write(root.path(), "b.csv", "");
    for size in [MiniBatchSize::Bytes(4), MiniBatchSize::Rows(1)] {
        let mut job = table_job(TableFormat::Csv, size, &[root.path()]);
        job.inputs[0].table.support_multi_line = true;
        let records = |start, end| (0, BlockRange::Records { start, end });
        assert_eq!(ranges(&["a.csv"], &job), [records(0, 13), records(13, 17)]);
    }
}

#[test]
fn parquet_is_split_into_row_groups_and_rows() {
    let root = folder();
    write_parquet(&root.path().join("a.parquet"), &[5, 3]);
    write_parquet(&root.path().join("b.parquet"), &[2]);
    write_parquet(&root.path().join("c.parquet"), &[]);
    let names = ["a.parquet", "b.parquet", "c.parquet"];
    for size in [MiniBatchSize::Bytes(1), MiniBatchSize::Bytes(1 << 20)] {
        let job = table_job(TableFormat::Parquet, size, &[root.path()]);
        assert_eq!(
            ranges(&names, &job),
            [(0, group(0, 0, 5)), (0, group(1, 0, 3)), (1, group(0, 0, 2))]
        );
    }
    let job = table_job(TableFormat::Parquet, MiniBatchSize::Rows(2), &[root.path()]);
    let expected = [
        (0, group(0, 0, 2)),
        (0, group(0, 2, 2)),
        (0, group(0, 4, 1)),
        (0, group(1, 0, 2)),
        (0, group(1, 2, 1)),
        (1, group(0, 0, 2)),
    ];
    assert_eq!(ranges(&names, &job), expected);
    assert_eq!(totals(&job).items, Some(10), "the number of rows in Parquet is known");
    assert_eq!(Inputs::default().plan(&job).schemas().expect("readable"), [None]);
}

#[test]
fn types_come_from_the_first_rows_of_all_files() {
    let root = folder();
    write(root.path(), "a.csv", "id,n,t\n1,2,x\n");
    write(root.path(), "b.csv", "id,n,t\n1,2.5,\n");
    let job = table_job(TableFormat::Csv, MiniBatchSize::Bytes(100), &[root.path()]);
    let schema = schema(&job);
    let columns: Vec<_> =
        schema.columns.iter().map(|column| (column.name.as_str(), column.column_type)).collect();
    assert_eq!(
        columns,
        [("id", ColumnType::Boolean), ("n", ColumnType::Float), ("t", ColumnType::Text)]
    );
    assert_eq!(totals(&job).items, None, "the number of rows in text is unknown");
}

#[test]
fn columns_from_the_path_come_last() {
    let root = folder();
    write(root.path(), "2020/05/north.csv", "id\n7\n");
    let mut job = table_job(TableFormat::Csv, MiniBatchSize::Bytes(100), &[root.path()]);
    job.inputs[0].partition_format = Some("{month:yyyy/MM}/{region}.csv".to_owned());
    let schema = schema(&job);
    let columns: Vec<_> =
        schema.columns.iter().map(|column| (column.name.as_str(), column.column_type)).collect();
    let expected =
        [("id", ColumnType::Integer), ("month", ColumnType::Text), ("region", ColumnType::Text)];
    assert_eq!(columns, expected);
    let Work::Rows { blocks, .. } = &descriptors(&job)[0].work else { panic!("rows") };
    let own = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    assert_eq!(blocks[0].path_columns, [("month", "20200501000000"), ("region", "north")].map(own));

    job.inputs[0].partition_format = Some("{id}.csv".to_owned());
    let refused = format!("{:#}", Inputs::default().plan(&job).schemas().expect_err("twice"));
    let expected = "input 'sales': the column 'id' appears in the files and in partition_format; give it another name in \
                    partition_format";
    assert_eq!(refused, expected);
}

#[test]
fn missing_columns_are_reported() {
    let root = folder();
    write(root.path(), "north/a.csv", "");
    write(root.path(), "north/b.csv", "id,price\n1,2\n");
    write(root.path(), "north/c.csv", "other\n");
    write(root.path(), "d.jsonl", "{\"id\":1}\n{\"price\":2}\n");
    write_parquet(&root.path().join("e.parquet"), &[2]);
    let missing_of = |format, path: &str, listed: &[&str]| {
        let mut job = table_job(format, MiniBatchSize::Bytes(100), &[&root.path().join(path)]);
        job.inputs[0].table.columns = listed.iter().map(|&name| name.to_owned()).collect();
        job.inputs[0].partition_format =
            (path == "north").then(|| "{region}/{file_name}.csv".to_owned());
        let inputs = Inputs::default();
        (
            inputs.missing_columns(&job),
            inputs.plan(&job).schemas().map_err(|error| format!("{error:#}")),
        )
    };
    let there = ["id", "price"].map(str::to_owned).to_vec();
    let missing = |name: &str, is_from_path| MissingColumn {
        input: 0,
        name: name.to_owned(),
        there: there.clone(),
        is_from_path,
    };
    for (format, path) in [(TableFormat::Csv, "north"), (TableFormat::Jsonl, "d.jsonl")] {
        let (found, planned) = missing_of(format, path, &["price", "id"]);
        assert!(found.is_empty() && planned.is_ok(), "{path}: {found:?} {planned:?}");
        let (found, planned) = missing_of(format, path, &["prise", "id", "region"]);
        assert_eq!(found, [missing("prise", false), missing("region", path == "north")]);
        let expected = "input 'sales': the files have no column 'prise', which `columns` names; they have id, price";
        assert_eq!(planned.expect_err("refused"), expected);
    }
    let (found, planned) = missing_of(TableFormat::Parquet, "e.parquet", &["id", "m"]);
    assert_eq!(
        found,
        [MissingColumn {
            input: 0,
            name: "m".to_owned(),
            there: vec!["id".to_owned()],
            is_from_path: false
        }]
    );
    assert!(planned.expect_err("refused").contains("no column 'm'"));
    assert_eq!(missing_of(TableFormat::Parquet, "e.parquet", &["id"]), (vec![], Ok(vec![None])));

    // Planning reports the errors of these inputs.
    for (format, path) in [(TableFormat::Csv, "nowhere"), (TableFormat::Parquet, "d.jsonl")] {
        let (found, planned) = missing_of(format, path, &["n"]);
        assert!(found.is_empty() && planned.is_err(), "{path}: {found:?} {planned:?}");
    }
    let (found, planned) = missing_of(TableFormat::Csv, "north/a.csv", &["n"]);
    assert!(found.is_empty() && planned.is_ok(), "a table without rows needs no columns");
}

#[test]
fn unread_column_may_share_a_name_with_the_path() {
    let root = folder();
    write(root.path(), "7.csv", "id,n\n1,2\n");
    let mut job = table_job(TableFormat::Csv, MiniBatchSize::Bytes(100), &[root.path()]);
    job.inputs[0].partition_format = Some("{id}.csv".to_owned());
    job.inputs[0].table.columns = vec!["n".to_owned()];
    schema(&job);
    job.inputs[0].table.columns.push("id".to_owned());
    let refused = format!("{:#}", Inputs::default().plan(&job).schemas().expect_err("twice"));
    assert!(
        refused.contains("the column 'id' appears in the files and in partition_format"),
        "{refused}"
    );
}

#[test]
fn bad_table_is_reported_in_one_line() {
    let root = folder();
    write(root.path(), "a.parquet", "this is no table");
    let job = table_job(TableFormat::Parquet, MiniBatchSize::Bytes(1), &[root.path()]);
    let refused = refusal(&job);
    assert!(refused.starts_with("input 'sales': ") && refused.contains("a.parquet"), "{refused}");
    assert_eq!(refused.lines().count(), 1);

    let by_files = table_job(TableFormat::Csv, MiniBatchSize::Files(1), &[root.path()]);
    let expected =
        "input 'sales': mini_batch_size must be a size such as 1MB, or a number such as 500 rows";
    assert_eq!(refusal(&by_files), expected);
    assert_eq!(
        format!("{:#}", Inputs::default().plan(&by_files).schemas().expect_err("no size")),
        expected
    );

    std::os::unix::fs::symlink("nowhere", root.path().join("b.csv")).expect("linkable");
    let broken =
        table_job(TableFormat::Csv, MiniBatchSize::Bytes(1), &[&root.path().join("*.csv")]);
    let refused = refusal(&broken);
    assert!(
        refused.contains("b.csv cannot be read; repair the file, or leave it out: No such file"),
        "{refused}"
    );
}

/// Returns the number of rows of all mini-batches, and `rows_before` of each mini-batch.
fn planned_rows(job: &protocol::JobSpec) -> (u64, Vec<Option<u64>>) {
    let all = descriptors(job);
    let blocks = all.iter().map(|descriptor| match &descriptor.work {
        Work::Rows { blocks, .. } => blocks,
        work => panic!("{work:?}"),
    });
    let rows = |range: BlockRange| range.rows().unwrap_or(0);
    let sum = blocks.flatten().map(|block| rows(block.range)).sum();
    (sum, all.iter().map(protocol::Descriptor::rows_before).collect())
}

#[test]
fn rows_are_left_out_and_taken_over_all_files() {
    let root = folder();
    write_parquet(&root.path().join("a.parquet"), &[3, 4]);
    write_parquet(&root.path().join("b.parquet"), &[5]);
    let mut job = table_job(TableFormat::Parquet, MiniBatchSize::Rows(2), &[root.path()]);
    (job.inputs[0].table.skip, job.inputs[0].table.take) = (2, Some(6));
    let names = ["a.parquet", "b.parquet"];
    let expected =
        [(0, group(0, 2, 1)), (0, group(1, 0, 2)), (0, group(1, 2, 2)), (1, group(0, 0, 1))];
    assert_eq!(ranges(&names, &job), expected);
    assert_eq!(planned_rows(&job), (6, vec![Some(0), Some(1), Some(3), Some(5)]));
    (job.inputs[0].table.skip, job.inputs[0].table.take) = (20, None);
    assert_eq!(ranges(&names, &job), []);

    let text = folder();
    write(text.path(), "a.csv", "id\n1\n2\n3\n");
    write(text.path(), "b.csv", "id\n4\n5\n");
    let mut job = table_job(TableFormat::Csv, MiniBatchSize::Bytes(1 << 20), &[text.path()]);
    (job.inputs[0].table.skip, job.inputs[0].table.take) = (2, Some(2));
    assert_eq!(ranges(&["a.csv", "b.csv"], &job), [(0, lines(7, 9)), (1, lines(0, 4))]);
    let all = table_job(TableFormat::Csv, MiniBatchSize::Bytes(1 << 20), &[text.path()]);
    assert_eq!(
        totals(&job).inputs_digest,
        totals(&all).inputs_digest,
        "files that are not read are listed"
    );
}

#[test]
fn rows_of_combinations_are_counted_in_the_order_of_the_files() {
    let root = folder();
    write(root.path(), "1/b.csv", "id\n1\n2\n");
    write(root.path(), "2/a.csv", "id\n3\n4\n");
    write(root.path(), "3/b.csv", "id\n5\n6\n");
    let mut job = table_job(TableFormat::Csv, MiniBatchSize::Bytes(1), &[root.path()]);
    job.inputs[0].partition_format = Some("{*}/{key}.csv".replace("{*}", "*"));
    job.partition_keys = vec!["key".to_owned()];
    (job.inputs[0].table.skip, job.inputs[0].table.take) = (1, Some(4));
    let blocks: Vec<(String, Vec<BlockRange>)> = descriptors(&job)
        .into_iter()
        .map(|descriptor| {
            let key = descriptor.key()[0].1.clone();
            let Work::Rows { blocks, .. } = descriptor.work else { panic!("rows") };
            (key, blocks.into_iter().map(|block| block.range).collect())
        })
        .collect();
    assert_eq!(
        blocks,
        [("a".to_owned(), vec![lines(0, 7)]), ("b".to_owned(), vec![lines(5, 7), lines(0, 4)])]
    );
}

#[test]
fn header_of_the_first_file_is_no_row_and_other_files_have_none() {
    let root = folder();
    write(root.path(), "a.csv", "id,x\n1,2\n");
    write(root.path(), "b.csv", "3,4\n");
    let mut job = table_job(TableFormat::Csv, MiniBatchSize::Bytes(1 << 20), &[root.path()]);
    job.inputs[0].table.header = protocol::HeaderMode::FromFirstFile;
    assert_eq!(ranges(&["a.csv", "b.csv"], &job), [(0, lines(5, 9)), (1, lines(0, 1 << 20))]);
    let schema = schema(&job);
    let names: Vec<&str> = schema.columns.iter().map(|column| column.name.as_str()).collect();
    assert_eq!(names, ["id", "x"]);
}
