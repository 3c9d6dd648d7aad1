//! Surveys of inputs, and names that a listing leaves out.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use parquet::arrow::ArrowWriter;
use partitioner::Survey;
use protocol::{HeaderMode, InputKind, JobSpec, MiniBatchSize, TableFormat, TableOptions};
use storage::StoreOptions;

use crate::fixtures::{
    file_batches, file_job, folder, input, job, refusal, table_job, totals, write,
};
use crate::tables::write_parquet;

/// Returns a job without format.
fn unnamed(paths: &[&Path]) -> JobSpec {
    let mut job = table_job(TableFormat::Csv, MiniBatchSize::Bytes(1000), paths);
    let table = &mut job.inputs[0].table;
    (table.by_name, table.delimiter) = (true, TableOptions::DELIMITER_OF_FORMAT);
    job
}

fn surveyed(job: &JobSpec) -> Result<Survey, String> {
    let survey = partitioner::survey(job, &StoreOptions::default()).remove(0);
    survey.map(|survey| survey.expect("a table input")).map_err(|error| format!("{error:#}"))
}

#[test]
fn format_comes_from_the_files() {
    let root = folder();
    for (name, text) in [
        ("csv/a.CSV", "id,n\n1,2\n"),
        ("csv/b.txt", "id,n\n"),
        ("tsv/a.tsv", "id\tn\n"),
        ("json/a.json", "{}\n"),
    ] {
        write(root.path(), name, text);
    }
    for name in ["pq/part-0.pq", "pq/part-1.snappy.parquet", "none/part-0"] {
        write(root.path(), name, "");
        write_parquet(&root.path().join(name), &[2]);
    }
    write(root.path(), "gz/a.csv.gz", b"\x1f\x8b\x08\x00");
    write(root.path(), "gz/b.csv", "id,n\n");
    for (name, format) in [
        ("csv", TableFormat::Csv),
        ("tsv", TableFormat::Tsv),
        ("json", TableFormat::Jsonl),
        ("pq", TableFormat::Parquet),
        ("none", TableFormat::Parquet),
        ("gz", TableFormat::Csv),
    ] {
        for path in [root.path().join(name), root.path().join(name).join("*")] {
            let survey = surveyed(&unnamed(&[&path])).expect(name);
            assert_eq!((survey.format, survey.is_whole), (format, true), "{name}");
            assert_eq!(survey.notes, Vec::<String>::new(), "{name}");
        }
    }
    let survey = surveyed(&unnamed(&[&root.path().join("gz")])).expect("readable");
    assert_eq!((survey.files, survey.compressed_files), (2, [("gzip", 1)].into()));
}

#[test]
fn tables_with_a_log_of_their_own_are_rejected() {
    let root = folder();
    for (table, log) in [("delta", "_delta_log/0.json"), ("ice", "metadata/version-hint.text")] {
        write(root.path(), format!("{table}/{log}"), "");
        write(root.path(), format!("{table}/k=1/part.parquet"), "");
        write_parquet(&root.path().join(table).join("k=1/part.parquet"), &[2]);
        for (within, is_whole) in [("", true), ("*/*.parquet", true), ("k=1", false)] {
            let path = root.path().join(table).join(within);
            let refused = surveyed(&unnamed(&[&path])).err().unwrap_or_default();
            assert_eq!(
                refused.contains("table, whose log says which of its files count"),
                is_whole,
                "{refused}"
            );
        }
    }
}

#[test]
fn columns_in_names_of_folders_are_noted() {
    let root = folder();
    write(root.path(), "run=7/day=1/other/hour=2/a.csv", "id\n1\n");
    for path in ["run=7", "run=7/**/*.csv"] {
        let mut job = unnamed(&[&root.path().join(path)]);
        let notes = surveyed(&job).expect("a table").notes.join("\n");
        let format = "day={day}/*/hour={hour}/*";
        assert!(notes.contains("lies in the folder day=1/other/hour=2, and no column"), "{notes}");
        assert!(notes.contains(&format!("set `partition_format: \"{format}\"`")), "{notes}");
        job.inputs[0].partition_format = Some(format.to_owned());
        assert_eq!(surveyed(&job).expect("a table").notes, Vec::<String>::new());
    }
}

#[test]
fn parquet_files_with_other_columns_are_noted() {
    let root = folder();
    let write = |name: &str, columns: &[(&str, ArrayRef)]| {
        let batch = RecordBatch::try_from_iter(columns.iter().cloned()).expect("a table");
        let file = std::fs::File::create(root.path().join(name)).expect("writable");
        let mut writer = ArrowWriter::try_new(file, batch.schema(), None).expect("writable");
        writer.write(&batch).expect("writable");
        writer.close().expect("writable");
    };
    let (number, text): (ArrayRef, ArrayRef) =
        (Arc::new(Int64Array::from(vec![1])), Arc::new(StringArray::from(vec!["a"])));
    write("a.parquet", &[("id", number.clone()), ("name", text.clone())]);
    let mut job = unnamed(&[root.path()]);
    for (columns, expected) in [
        (vec![("id", number.clone()), ("name", text.clone())], ""),
        (vec![("name", text.clone()), ("id", number.clone())], "its columns have another order"),
        (vec![("id", number.clone())], "it has no column name"),
        (
            vec![("id", number.clone()), ("name", text.clone()), ("x", number.clone())],
            "its column x is new",
        ),
        (vec![("id", text.clone()), ("name", text.clone())], "its column id is Utf8, not Int64"),
    ] {
        write("b.parquet", &columns);
        job.inputs[0].table.columns.clear();
        let notes = surveyed(&job).expect("a table").notes.join("\n");
        assert!(
            notes.is_empty() == expected.is_empty() && notes.contains(expected),
            "{expected}: {notes}"
        );
        job.inputs[0].table.columns = vec!["name".to_owned()];
        let notes = surveyed(&job).expect("a table").notes;
        assert_eq!(
            notes.is_empty(),
            !expected.contains("no column name"),
            "only listed columns matter: {notes:?}"
        );
    }
}

#[test]
fn other_or_mixed_formats_are_rejected_by_name() {
    let root = folder();
    let wide: Vec<u8> = "id,name\n1,a\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let lfs = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n";
    for (name, content, expected) in [
        ("mixed/a.csv", &b"id\n"[..], "several formats: csv ("),
        ("mixed/b.jsonl", b"{}\n", "several formats: csv ("),
        ("unknown/a.dat", b"id\n", "a.dat has a name that does not show its format; set `format`"),
        ("beside/a.csv", b"id\n", "beside/README has a name that does not show its format"),
        (
            "beside/README",
            b"Read me\n",
            "README has a name that does not show its format, among files that are csv; name the files",
        ),
        ("excel/a.xlsx", b"PK\x03\x04", "a.xlsx is an Excel workbook, and not read"),
        ("orc/part-0", b"ORC\x08\x03", "part-0 is an ORC file, and not read"),
        ("bzip/a.csv.bz2", b"BZh91AY&SY", "a.csv.bz2 is compressed with bzip2"),
        ("lies/a.csv", b"PAR1PAR1", "a.csv is a Parquet file"),
        ("zip/a.csv", b"PK\x03\x04", "a.csv is a zip archive, or an Excel workbook"),
        ("gzip/a.csv", b"\x1f\x8b\x08", "a.csv is compressed with gzip; let its name end in .gz"),
        ("cut/a.parquet", b"PAR1\x00\x00", "a.parquet is cut short"),
        ("lfs/a.parquet", lfs, "git lfs pull"),
        ("page/a.csv", b"<!DOCTYPE html>\n<html>", "a.csv is an HTML page"),
        ("array/a.json", b"[{\"a\": 1}]\n", "a.json holds a JSON array"),
        ("pretty/a.json", b"{\n  \"a\": 1\n}\n", "a.json holds objects of several lines"),
        ("empty/a.csv", b"", "all of its files are empty"),
        ("binary/a.csv", b"TAB\n\x03\x00\x00\x12\x01\xff\xfe\x00\x00", "a.csv is not text"),
        ("wide/a.csv", &wide, "set `encoding: utf-16le`"),
    ] {
        write(root.path(), name, content);
        let place = root.path().join(Path::new(name).parent().expect("in a folder"));
        if name == "mixed/a.csv" || name == "beside/a.csv" {
            continue;
        }
        let refused = surveyed(&unnamed(&[&place])).expect_err(name);
        assert!(refused.contains(expected) && refused.lines().count() == 1, "{name}: {refused}");
    }
}

#[test]
fn given_format_applies_unless_the_content_contradicts_it() {
    let root = folder();
    write(root.path(), "a.dat", "id,n\n1,2\n");
    write(root.path(), "b.json", "id,n\n1,2\n");
    let job = table_job(TableFormat::Csv, MiniBatchSize::Bytes(100), &[root.path()]);
    let survey = surveyed(&job).expect("text");
    assert_eq!(survey.notes.len(), 1, "{:?}", survey.notes);
    assert!(
        survey.notes[0].ends_with("b.json is jsonl by its name and read as csv, as `format` says")
    );
    write(root.path(), "c.csv", "PAR1PAR1");
    assert!(surveyed(&job).expect_err("Parquet").contains("c.csv is a Parquet file"));
}

#[test]
fn different_headers_are_reported_with_both_files() {
    let root = folder();
    write(root.path(), "a.csv", "id,n\n1,2\n");
    write(root.path(), "b.csv", "id,n\n3,4\n");
    let mut job = unnamed(&[root.path()]);
    assert_eq!(surveyed(&job).expect("readable").notes, Vec::<String>::new());
    for name in ["c.csv", "d.csv"] {
        write(root.path(), name, "n,id\n3,4\n");
    }
    let notes = surveyed(&job).expect("readable").notes;
    assert!(
        notes.len() == 1
            && notes[0].contains("c.csv (and one more file) begins with another line than"),
        "{notes:?}"
    );
    assert!(notes[0].contains("a.csv, whose column names are used"), "{notes:?}");
    job.inputs[0].table.header = HeaderMode::NoHeader;
    let notes = surveyed(&job).expect("readable").notes;
    assert!(notes.len() == 1 && notes[0].contains("(and 3 more files)"), "{notes:?}");
}

#[test]
fn plan_rejects_names_that_the_survey_has_not_seen() {
    let root = folder();
    write(root.path(), "a.csv", "id\n1\n");
    write(root.path(), "b.tsv", "id\n1\n");
    let refused = refusal(&unnamed(&[root.path()]));
    assert!(refused.contains("b.tsv is tsv by its name, among files that are csv"), "{refused}");
}

#[test]
fn hidden_names_are_left_out_unless_a_pattern_names_them() {
    let root = folder();
    for name in [
        "part-0.csv",
        "_SUCCESS",
        ".part-0.csv.crc",
        "_temporary/0/part-1.csv",
        ".ipynb_checkpoints/a.csv",
        "_year=2020/part-2.csv",
        "_old.csv",
    ] {
        write(root.path(), name, "id\n1\n");
    }
    let files = |pattern: &str| {
        let mut job = unnamed(&[&root.path().join(pattern)]);
        job.inputs[0].table.by_name = false;
        let totals = totals(&job);
        (totals.files, totals.left_out.count, totals.left_out.line().unwrap_or_default())
    };
    let (found, left_out, line) = files("");
    assert_eq!((found, left_out), (2, 5), "{line}");
    assert!(
        line.contains("_SUCCESS (begins with `_`)")
            && line.contains(".ipynb_checkpoints (begins with `.`)"),
        "{line}"
    );
    assert_eq!(files("*.csv").0, 1);
    assert_eq!(
        (files("*.csv").1, files("part*").1),
        (1, 0),
        "names that do not match anyway are reported"
    );
    assert_eq!(files("_*.csv").0, 1);
    assert_eq!(files("**").0, 2);
    assert_eq!(files("_temporary/**").0, 1);
    // Cameras begin names with an underscore.
    let batches = file_batches(root.path(), &file_job(10, &[root.path()]));
    assert_eq!(batches.concat().len(), 5);

    let hidden = folder();
    write(hidden.path(), "_SUCCESS", "");
    let refused = surveyed(&unnamed(&[hidden.path()])).expect_err("no files");
    let expected = "holds no files; left out of the inputs: ";
    assert!(
        refused.contains(expected) && refused.contains("_SUCCESS (begins with `_`); a pattern"),
        "{refused}"
    );
}

#[test]
fn files_may_have_any_content() {
    let root = folder();
    write(root.path(), "a.csv", "PAR1");
    write(root.path(), "b.xlsx", "");
    let mut job = job(MiniBatchSize::Files(1));
    job.inputs.push(input("images", InputKind::File, &[root.path()]));
    assert!(
        partitioner::survey(&job, &StoreOptions::default()).remove(0).expect("listed").is_none()
    );
    job.inputs[0].paths = vec![root.path().join("*.png").into()];
    let refused = format!(
        "{:#}",
        partitioner::survey(&job, &StoreOptions::default()).remove(0).expect_err("nothing")
    );
    assert!(refused.contains("matches no file"), "{refused}");
}
