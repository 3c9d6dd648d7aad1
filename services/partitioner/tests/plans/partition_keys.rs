//! Mini-batches for combinations of key values.

use protocol::{BlockRange, InputKind, ItemPath, JobSpec, MiniBatchSize, TableFormat, Work};

use crate::fixtures::{
    descriptors, file_job, files_of, folder, group, input, refusal, schema, table_job, totals,
    write,
};
use crate::tables::write_parquet;

fn keyed(mut job: JobSpec, format: &str, keys: &[&str]) -> JobSpec {
    job.partition_keys = keys.iter().map(|&key| key.to_owned()).collect();
    job.inputs[0].partition_format = Some(format.to_owned());
    job
}

fn values(job: &JobSpec) -> Vec<Vec<String>> {
    let values = |descriptor: &protocol::Descriptor| {
        descriptor.key().iter().map(|(_, value)| value.clone()).collect()
    };
    descriptors(job).iter().map(values).collect()
}

#[test]
fn files_of_a_combination_form_one_mini_batch() {
    let root = folder();
    for name in [
        "user1/winter/disco.wav",
        "user1/fall/orchestra.wav",
        "user2/summer/piano.wav",
        "user3/fall/spirituality.wav",
        "user4/spring/piano.wav",
        "user4/fall/piano.wav",
    ] {
        write(root.path(), name, "");
    }
    let job =
        keyed(file_job(1, &[root.path()]), "…/{user}/{season}/{genres}.wav", &["user", "genres"]);
    let planned = descriptors(&job);
    assert_eq!(
        values(&job),
        [
            ["user1", "disco"],
            ["user1", "orchestra"],
            ["user2", "piano"],
            ["user3", "spirituality"],
            ["user4", "piano"]
        ]
    );
    assert_eq!(planned[0].key()[1], ("genres".to_owned(), "disco".to_owned()));
    assert_eq!(
        files_of(root.path(), &planned[4]),
        ["user4/fall/piano.wav", "user4/spring/piano.wav"]
    );
    assert_eq!(
        planned.iter().map(|descriptor| files_of(root.path(), descriptor).len()).sum::<usize>(),
        6
    );

    let swapped =
        keyed(file_job(1, &[root.path()]), "{user}/{season}/{genres}.wav", &["genres", "user"]);
    assert_eq!(
        values(&swapped)[2],
        ["piano", "user2"],
        "in the order of partition_keys, and sorted by it"
    );
    assert_eq!((totals(&job).mini_batches, totals(&job).items), (5, Some(6)));
}

#[test]
fn inputs_have_separate_combinations() {
    let root = folder();
    write(root.path(), "a/k/1", "");
    write(root.path(), "b/k/2", "");
    let mut job = keyed(file_job(1, &[&root.path().join("a")]), "{key}/{name}", &["key"]);
    let mut second = input("more", InputKind::File, &[&root.path().join("b")]);
    second.partition_format = Some("{key}/*".to_owned());
    job.inputs.push(second);
    assert_eq!(values(&job), [["k"], ["k"]]);
}

#[test]
fn rows_of_a_combination_form_one_mini_batch_with_the_columns_of_the_path_last() {
    let root = folder();
    for store in 1000..1003 {
        for brand in ["dominicks", "minute.maid", "tropicana"] {
            write(
                root.path(),
                format!("{store}/{brand}/a.csv"),
                "Week,Quantity\n1990-06-14,10560\n",
            );
            write(root.path(), format!("{store}/{brand}/b.csv"), "Week,Quantity\n1990-06-21,500\n");
        }
    }
    write(root.path(), "1001/tropicana/c.csv", "");
    let job = table_job(TableFormat::Csv, MiniBatchSize::Bytes(10), &[root.path()]);
    let format = "{Store}/{Brand}/{file_name}.{extension}";
    let both = keyed(job.clone(), format, &["Brand", "Store"]);
    let planned = descriptors(&both);
    assert_eq!(planned.len(), 9);
    let Work::Rows { blocks, key, .. } = &planned[8].work else { panic!("rows") };
    let own = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    assert_eq!(key[..], [("Brand", "tropicana"), ("Store", "1002")].map(own));
    assert_eq!(blocks.len(), 2, "one block per file, regardless of size");
    assert_eq!(blocks[1].path, ItemPath::from(root.path().join("1002/tropicana/b.csv")));
    let bytes = "Week,Quantity\n1990-06-21,500\n".len() as u64;
    assert_eq!(blocks[1].range, BlockRange::Lines { first: 0, last: bytes });
    let of_path =
        [("Store", "1002"), ("Brand", "tropicana"), ("file_name", "b"), ("extension", "csv")];
    assert_eq!(blocks[1].path_columns, of_path.map(own), "keys or not, as in the format");
    let columns = schema(&both).columns;
    assert_eq!(
        columns.iter().map(|column| &column.name[..]).collect::<Vec<_>>(),
        ["Week", "Quantity", "Store", "Brand", "file_name", "extension"]
    );

    let brands = keyed(job, format, &["Brand"]);
    assert_eq!(values(&brands), [["dominicks"], ["minute.maid"], ["tropicana"]]);
    let Work::Rows { blocks, .. } = &descriptors(&brands)[2].work else { panic!("rows") };
    assert_eq!(blocks.len(), 6, "the empty file has no block");
    let stores: Vec<&str> = blocks.iter().map(|block| &block.path_columns[0].1[..]).collect();
    assert_eq!(stores, ["1000", "1000", "1001", "1001", "1002", "1002"]);
}

#[test]
fn row_groups_of_a_combination_form_one_mini_batch() {
    let root = folder();
    std::fs::create_dir(root.path().join("k")).expect("writable");
    write_parquet(&root.path().join("k/a.parquet"), &[5, 3]);
    write_parquet(&root.path().join("k/b.parquet"), &[2]);
    let job = table_job(TableFormat::Parquet, MiniBatchSize::Rows(1), &[root.path()]);
    let planned = descriptors(&keyed(job, "{key}/*.parquet", &["key"]));
    let [protocol::Descriptor { work: Work::Rows { blocks, .. }, .. }] = &planned[..] else {
        panic!("one")
    };
    let ranges: Vec<_> = blocks.iter().map(|block| block.range).collect();
    assert_eq!(ranges, [group(0, 0, 5), group(1, 0, 3), group(0, 0, 2)]);
}

#[test]
fn combination_of_empty_files_has_no_mini_batch() {
    let root = folder();
    write(root.path(), "a/1.csv", "id\n1\n");
    write(root.path(), "b/1.csv", "");
    let job = table_job(TableFormat::Csv, MiniBatchSize::Bytes(10), &[root.path()]);
    assert_eq!(values(&keyed(job, "{key}/1.csv", &["key"])), [["a"]]);
}

#[test]
fn dates_are_written_without_separators() {
    let root = folder();
    write(root.path(), "2020/02/29/a.csv", "");
    write(root.path(), "2019/12/01/a.csv", "");
    let job = keyed(file_job(1, &[root.path()]), "{day:yyyy/MM/dd}/{file}.csv", &["day"]);
    assert_eq!(values(&job), [["20191201000000"], ["20200229000000"]]);
}

#[test]
fn mismatched_keys_and_formats_are_rejected() {
    let root = folder();
    write(root.path(), "a/1.csv", "");
    write(root.path(), "stray", "");
    let shown = root.path().display();
    let refused =
        |format: &str, keys: &[&str]| refusal(&keyed(file_job(1, &[root.path()]), format, keys));
    assert_eq!(
        refused("{key}/{name}.csv", &["key"]),
        format!(
            "input 'images': {shown}/stray does not match partition_format; correct the format, or leave the file out"
        )
    );
    assert_eq!(
        refused("{key}/{name}.csv", &["other"]),
        "input 'images': partition key 'other' is not in partition_format, which has: key, name"
    );
    assert_eq!(
        refused("{key", &["key"]),
        "input 'images': partition_format: '{' without '}' in '{key'"
    );
    let mut job = file_job(1, &[root.path()]);
    job.partition_keys = vec!["key".to_owned()];
    assert!(
        refusal(&job).starts_with("input 'images': partition_keys need a partition_format"),
        "{}",
        refusal(&job)
    );
}
