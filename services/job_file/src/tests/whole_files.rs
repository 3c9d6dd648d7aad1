//! Whole job files and the specifications that they become.

use protocol::{
    DEFAULT_CONCURRENCY, Durability, Environment, ErrorThresholds, HeaderMode, Input, InputKind,
    Isolate, ItemPath, JobSpec, MiniBatchSize, MismatchPolicy, Output, OutputAction, OutputFormat,
    TableFormat, TableOptions,
};

use super::Workplace;

const FILES: &str = r#"
name: digits-2024
description: Which digit is on each image?
entry_script: models/score.py
source_directory: code
inputs:
  - name: images
    type: file
    path: data
  - type: file
    paths: ["data/*.txt", https://example.org/a.png]
mini_batch_size: 100
side_inputs:
  labels: labels.txt
arguments: ["--labels", "${{side_inputs.labels}}", "--batch", 3, "--nice", 0, "--images", "${{outputs.images}}"]
output: out/scores
outputs: {images: out/images}
output_action: append_row
append_row_file_name: Scores.txt
error_threshold: 10
allowed_failed_count: 2
allowed_failed_percent: 5.0
run_invocation_timeout: 90
run_max_try: 2
process_count_per_node: 4
node_count: 2
logging_level: debug
environment_variables: {LABELS: "${{side_inputs.labels}}"}
compute_target: local
durability: full
"#;

#[test]
fn job_on_files_is_read_completely() {
    let workplace = Workplace::new();
    let parsed = workplace.load(FILES, &[]).expect("valid");
    let path = |name: &str| ItemPath::from(workplace.path(name));
    let text = |name: &str| workplace.path(name).display().to_string();
    let argv = format!(
        "--client_sdk_version {} --scoring_module_name models/score.py --mini_batch_size 100 --error_threshold 10 \
         --output_action append_row --logging_level DEBUG --run_invocation_timeout 90 --run_max_try 2 \
         --create_snapshot_at_runtime True --allowed_failed_count 2 --allowed_failed_percent 5.0 \
         --append_row_file_name Scores.txt --output {} --process_count_per_node 4 --labels {} --batch 3 --nice 0 \
         --images {} --input_fds_0 images --input_fds_1 input_1",
        env!("CARGO_PKG_VERSION"),
        text("out/scores"),
        text("labels.txt"),
        text("out/images")
    );
    let input = |name: &str, paths: Vec<ItemPath>| Input {
        name: name.to_owned(),
        kind: InputKind::File,
        paths,
        partition_format: None,
        table: TableOptions::default(),
    };
    let expected = JobSpec {
        name: "digits-2024".to_owned(),
        description: "Which digit is on each image?".to_owned(),
        entry_script: "models/score.py".to_owned(),
        source_directory: path("code"),
        inputs: vec![
            input("images", vec![path("data")]),
            input("input_1", vec![path("data/*.txt"), ItemPath::from("https://example.org/a.png")]),
        ],
        side_inputs: [("labels".to_owned(), path("labels.txt"))].into(),
        mini_batch_size: MiniBatchSize::Files(100),
        thresholds: ErrorThresholds {
            error_threshold: 10,
            allowed_failed_count: 2,
            allowed_failed_percent: 5.0,
            ..ErrorThresholds::default()
        },
        output: Output {
            action: OutputAction::AppendRow,
            folder: path("out/scores"),
            file_name: "Scores.txt".to_owned(),
            ..Output::default()
        },
        outputs: [("images".to_owned(), path("out/images"))].into(),
        node_count: Some(2),
        process_count_per_node: Some(4),
        run_invocation_timeout_seconds: 90,
        task_overhead_timeout_seconds: 30,
        progress_update_timeout_seconds: 360,
        first_task_creation_timeout_seconds: 600,
        run_max_try: 2,
        isolate: Isolate::Items,
        isolate_items_max: 2_000_000,
        lost_delivery_max: 10,
        logging_level: "DEBUG".to_owned(),
        argv: argv.split(' ').map(str::to_owned).collect(),
        environment: Environment::Interpreter { path: ItemPath::from("/usr/bin/default-python") },
        environment_variables: [("LABELS".to_owned(), text("labels.txt"))].into(),
        resource_monitor_interval_seconds: 600,
        fingerprint: parsed.spec.fingerprint.clone(),
        snapshot_digest: parsed.spec.snapshot_digest.clone(),
        job_file: parsed.spec.job_file.clone(),
        allow_reuse: true,
        durability: Durability::Full,
        concurrency: DEFAULT_CONCURRENCY,
        speculation: true,
        ..JobSpec::default()
    };
    assert_eq!(parsed.spec, expected);
    assert_eq!(parsed.compute_target.as_deref(), Some("local"));
    assert_eq!(parsed.warnings, []);
}

const TABLES: &str = r#"
name: sales
entry_script: code/entry.py
inputs:
  orange_juice:
    type: tabular
    path: tables
    format: csv
    partition_format: "{Store}/{Brand}/{file_name}.csv"
    on_type_mismatch: missing
partition_keys: [Store, "Bränd", Brand]
arguments: [--append_row_dataframe_header, true]
output: out
output_action: append_row
append_row_file_name: sales.csv
output_format: native
strict_results: true
"#;

#[test]
fn job_on_tables_with_partition_keys_is_read() {
    let workplace = Workplace::new();
    let text = TABLES.replace("{Store}", "{Store}/{Bränd}");
    let spec = workplace.load(&text, &[]).expect("valid").spec;
    assert_eq!(
        (spec.entry_script.as_str(), spec.source_directory.as_path()),
        ("entry.py", &*workplace.path("code"))
    );
    assert_eq!(spec.partition_keys, ["Store", "Bränd", "Brand"]);
    assert_eq!(spec.mini_batch_size, MiniBatchSize::Bytes(1_048_576));
    assert_eq!(
        (spec.output.format, spec.output.header, spec.strict_results),
        (OutputFormat::Csv, true, true)
    );
    let table = &spec.inputs[0].table;
    assert_eq!((table.format, table.header), (TableFormat::Csv, HeaderMode::AllFilesSameHeaders));
    assert_eq!(table.on_type_mismatch, MismatchPolicy::Missing);
    let from = spec
        .argv
        .iter()
        .position(|argument| argument == "--append_row_file_name")
        .expect("appended");
    let output = workplace.path("out").display().to_string();
    let keys = r#"["Store", "Bränd", "Brand"]"#;
    let expected =
        ["--append_row_file_name", "sales.csv", "--output", &output, "--partition_keys", keys];
    assert_eq!(spec.argv[from..from + 6], expected);
    let expected = ["--append_row_dataframe_header", "True", "--input_ds_0", "orange_juice"];
    assert_eq!(spec.argv[from + 6..], expected);
    assert!(
        spec.argv.windows(2).any(|pair| pair == ["--mini_batch_size", "1048576"]),
        "even with keys"
    );
}

#[test]
fn summary_only_passes_no_output() {
    let workplace = Workplace::new();
    let spec = workplace.spec("output_action: summary_only\noutput: null");
    assert!(
        !spec
            .argv
            .iter()
            .any(|argument| argument == "--append_row_file_name" || argument == "--output")
    );
    assert_eq!(spec.argv.last().map(String::as_str), Some("data"));
}
