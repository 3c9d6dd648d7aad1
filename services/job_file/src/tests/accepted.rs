//! The meaning of values, and the defaults.

use std::os::unix::fs::PermissionsExt;

use protocol::{
    ColumnType, Environment, HeaderMode, InputKind, ItemPath, MiniBatchSize, MismatchPolicy,
    OutputAction, OutputFormat, Priority, TableFormat,
};

use super::{BASE, Workplace};

#[test]
fn defaults_match_azure_ml() {
    let spec = Workplace::new().spec("");
    assert_eq!(spec.mini_batch_size, MiniBatchSize::Files(10));
    let thresholds = spec.thresholds;
    assert_eq!((thresholds.error_threshold, thresholds.allowed_failed_count), (-1, -1));
    assert_eq!(thresholds.allowed_failed_percent, 100.0);
    assert_eq!((spec.node_count, spec.process_count_per_node), (None, None));
    assert_eq!((spec.run_invocation_timeout_seconds, spec.task_overhead_timeout_seconds), (60, 30));
    assert_eq!(
        (spec.progress_update_timeout_seconds, spec.first_task_creation_timeout_seconds),
        (270, 600)
    );
    assert_eq!((spec.run_max_try, spec.lost_delivery_max), (3, 10));
    assert_eq!((spec.resource_monitor_interval_seconds, spec.nice), (600, 5));
    assert_eq!((spec.logging_level.as_str(), spec.profiling_module.as_str()), ("INFO", ""));
    assert_eq!(
        (spec.output.file_name.as_str(), spec.output.format),
        ("parallel_run_step.txt", OutputFormat::Text)
    );
    assert_eq!(
        (spec.allow_reuse, spec.strict_results, spec.hide_unassigned_gpus),
        (true, false, false)
    );
    assert!(spec.job_id.is_empty() && spec.partition_keys.is_empty() && !spec.output.header);
    assert_eq!(
        spec.environment,
        Environment::Interpreter { path: ItemPath::from("/usr/bin/default-python") }
    );
}

#[test]
fn gpus_of_a_process_are_as_given() {
    let workplace = Workplace::new();
    for (changes, expected) in [
        ("", (None, None)),
        ("gpus_per_process: 4", (Some(4), None)),
        ("process_count_per_gpu: 3", (None, Some(3))),
        ("gpus_per_process: 1\nprocess_count_per_gpu: 3", (Some(1), Some(3))),
        ("gpus_per_process: 2\nprocess_count_per_gpu: 1", (Some(2), Some(1))),
    ] {
        let spec = workplace.spec(changes);
        assert_eq!((spec.gpus_per_process, spec.process_count_per_gpu), expected, "{changes}");
        assert_eq!(spec.asks_for_gpus(), !changes.is_empty());
    }
}

#[test]
fn slow_mini_batches_are_started_twice_unless_that_may_do_harm() {
    let workplace = Workplace::new();
    for (changes, expected) in [
        ("", true),
        ("speculation: false", false),
        ("limits: {concurrent: 9}", false),
        ("limits: {concurrent: 9}\nspeculation: true", true),
        ("output_action: summary_only", false),
        ("output_action: summary_only\nspeculation: true", true),
    ] {
        assert_eq!(workplace.spec(changes).speculation, expected, "{changes}");
    }
}

#[test]
fn mini_batch_size_takes_files_bytes_and_rows() {
    use MiniBatchSize::{Bytes, Files, Rows};
    let workplace = Workplace::new();
    for (changes, expected) in [
        ("mini_batch_size: 7", Files(7)),
        ("mini_batch_size: '7'", Files(7)),
        ("mini_batch_size:", Files(10)),
        ("inputs: [{TABLE}]", Bytes(1_048_576)),
        ("inputs: [{TABLE}]\nmini_batch_size: 100", Bytes(100)),
        ("inputs: [{TABLE}]\nmini_batch_size: 10kb", Bytes(10_240)),
        ("inputs: [{TABLE}]\nmini_batch_size: 1KB", Bytes(1024)),
        ("inputs: [{TABLE}]\nmini_batch_size: '3Mb'", Bytes(3 * 1_048_576)),
        ("inputs: [{TABLE}]\nmini_batch_size: 2gB", Bytes(2_147_483_648)),
        ("inputs: [{TABLE}]\nmini_batch_size: 500 rows", Rows(500)),
        ("inputs: [{TABLE}]\nmini_batch_size: 1 row", Rows(1)),
        ("inputs: [{TABLE}]\nmini_batch_size: 20Rows", Rows(20)),
    ] {
        assert_eq!(workplace.spec(changes).mini_batch_size, expected, "{changes}");
    }
}

#[test]
fn frequent_mistakes_give_warnings() {
    let workplace = Workplace::new();
    for (changes, expected) in [
        (
            "inputs: [{TABLE}]\nmini_batch_size: 100",
            "job.yaml:7: mini_batch_size: 100 means 100 bytes of a table",
        ),
        ("inputs: [{TABLE, format: parquet}]\nmini_batch_size: 1MB", "has no effect on Parquet"),
        (
            "inputs: [{FILE, format: csv}]",
            "job.yaml:6: inputs[0].format: has no effect on an input of type file",
        ),
        (
            "inputs: [{TABLE, format: jsonl, header: no_header}]",
            "inputs[0].header: has no effect on this format",
        ),
        (
            "inputs: [{TABLE, format: parquet, encoding: utf-8}]",
            "inputs[0].encoding: has no effect on this format",
        ),
        ("append_row_file_name: rows.parquet", "output_format: native writes this format"),
        (
            "inputs: [{type: file, paths: [data, tables, data]}]",
            "data is listed twice, so each of its items",
        ),
        (
            "inputs: {a: {type: file, path: tables/t.csv}, b: {type: file, path: tables}}",
            "have files in common, whose items",
        ),
        ("arguments: [--rank_mini_batch_count, 3]", "inputs: not read"),
        (
            "arguments: [--amlbi_pystep_max, 3]",
            "\"--amlbi_pystep_max\" is an engine option without effect",
        ),
        (
            "arguments: [--append_row_safe_output=True]",
            "\"--append_row_safe_output\" is an engine option",
        ),
        (
            "arguments: [--amlbi_dataframe_mixed_types, True]",
            "without effect here: the key `columns` of an input",
        ),
        ("arguments: [--resume_from, run_1]", "without effect here: an interrupted job continues"),
    ] {
        let warnings = workplace.warnings(changes);
        assert!(
            warnings.iter().any(|warning| warning.contains(expected)),
            "{changes}: {warnings:?}"
        );
    }
    for quiet in [
        "",
        "append_row_file_name: predictions.csv",
        "inputs: [{TABLE}]\nmini_batch_size: 1MB",
        "arguments: [--amlbi_async_mode, True]",
    ] {
        assert_eq!(workplace.warnings(quiet), Vec::<String>::new(), "{quiet}");
    }
}

#[test]
fn inputs_may_be_list_or_mapping() {
    let workplace = Workplace::new();
    let spec = workplace.spec(
        "inputs:\n  - {FILE}\n  - {type: file, paths: [data/a.txt, 'data/*.txt', s3://b/c*.png]}",
    );
    let names: Vec<&str> = spec.inputs.iter().map(|input| input.name.as_str()).collect();
    assert_eq!(names, ["input_0", "input_1"]);
    let [file, glob] =
        ["data/a.txt", "data/*.txt"].map(|path| ItemPath::from(workplace.path(path)));
    assert_eq!(spec.inputs[1].paths, [file, glob, ItemPath::from("s3://b/c*.png")]);

    let spec = workplace.spec("inputs:\n  second: {FILE}\n  first: {FILE}");
    let names: Vec<&str> = spec.inputs.iter().map(|input| input.name.as_str()).collect();
    assert_eq!(names, ["second", "first"], "in the order of the file");
    assert!(spec.inputs.iter().all(|input| input.kind == InputKind::File));
}

#[test]
fn existing_name_with_wildcards_is_not_a_glob() {
    let workplace = Workplace::new();
    workplace.write("data/[1] odd/x.txt", "x");
    assert_eq!(workplace.problems("inputs: [{type: file, path: 'data/[1] odd'}]"), "");
    assert_eq!(
        workplace.problems("inputs: [{type: file, path: 'data/[2]*'}]"),
        "",
        "the folder data exists"
    );
}

#[test]
fn options_of_tables_are_read() {
    let workplace = Workplace::new();
    let spec = workplace.spec(
        "inputs:
  - type: tabular
    path: tables
    format: CSV
    delimiter: ';'
    header: no_header
    encoding: iso88591
    infer_column_types: false
    support_multi_line: true
    empty_as_string: true
    on_type_mismatch: missing
    partition_format: '{Store}/{date:yyyy/MM/dd}/{name}.csv'",
    );
    let input = &spec.inputs[0];
    let table = &input.table;
    assert_eq!(
        (table.format, table.delimiter, table.header),
        (TableFormat::Csv, b';', HeaderMode::NoHeader)
    );
    assert_eq!((table.encoding.as_str(), table.infer_column_types), ("iso88591", false));
    assert_eq!((table.support_multi_line, table.empty_as_string), (true, true));
    assert_eq!(table.on_type_mismatch, MismatchPolicy::Missing);
    assert_eq!(input.partition_format.as_deref(), Some("{Store}/{date:yyyy/MM/dd}/{name}.csv"));
}

#[test]
fn types_of_pandas_read_files_of_this_machine_as_pandas_does() {
    use HeaderMode::{AllFilesDifferentHeaders, AllFilesSameHeaders, NoHeader};
    let workplace = Workplace::new();
    for (keys, expected) in [
        ("", (AllFilesSameHeaders, false)),
        ("names: [a, b]", (NoHeader, false)),
        ("types: pandas", (AllFilesDifferentHeaders, true)),
        ("types: pandas, names: [a, b]", (NoHeader, true)),
        ("types: pandas, header: no_header", (NoHeader, true)),
        (
            "types: pandas, header: all_files_same_headers, support_multi_line: false",
            (AllFilesSameHeaders, false),
        ),
    ] {
        let table = &workplace
            .spec(&format!("inputs: [{{type: tabular, path: tables, {keys}}}]"))
            .inputs[0]
            .table;
        assert_eq!((table.header, table.support_multi_line), expected, "{keys}");
        assert_eq!(table.names.is_empty(), !keys.contains("names"));
    }
    let far = workplace.spec("inputs: [{type: tabular, path: 's3://bucket/a.csv', types: pandas}]");
    assert_eq!(
        (far.inputs[0].table.header, far.inputs[0].table.support_multi_line),
        (AllFilesSameHeaders, false)
    );
}

#[test]
fn column_names_are_kept_as_written() {
    let workplace = Workplace::new();
    let columns = |changes: &str| workplace.spec(changes).inputs[0].table.columns.clone();
    assert_eq!(columns("inputs: [{TABLE}]"), Vec::<String>::new());
    assert_eq!(columns("inputs: [{TABLE, columns: }]"), Vec::<String>::new());
    let listed = columns("inputs: [{TABLE, columns: [' b', 2020, 'a,b', true, Ä]}]");
    assert_eq!(listed, [" b", "2020", "a,b", "true", "Ä"]);
    let parquet = columns("inputs: [{TABLE, format: parquet, columns: [z, a]}]");
    assert_eq!(parquet, ["z", "a"]);
    assert!(workplace.parsed("inputs: [{TABLE, columns: [id]}]").warnings.is_empty());
}

#[test]
fn columns_set_types_with_and_without_selection() {
    let workplace = Workplace::new();
    let table = |given: &str| {
        let input = workplace.spec(&format!("inputs: [{{TABLE, {given}}}]")).inputs.remove(0);
        (input.table.columns, Vec::from_iter(input.table.column_types))
    };
    let typed = |name: &str, column_type| (name.to_owned(), column_type);
    let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
    let all =
        "columns: {i: int64, f: float64, b: bool, t: timestamp, d: timestamp_day_first, s: String}";
    use ColumnType::{Boolean, DateTimeDayFirst, DateTimeMonthFirst, Float, Integer, Text};
    let expected = [
        ("b", Boolean),
        ("d", DateTimeDayFirst),
        ("f", Float),
        ("i", Integer),
        ("s", Text),
        ("t", DateTimeMonthFirst),
    ];
    let expected = expected.map(|(name, column_type)| typed(name, column_type)).to_vec();
    assert_eq!(table(all), (vec![], expected), "types alone leave no column out");
    assert_eq!(table("columns: [z, {code: string, a: float64}]").0, ["z", "code", "a"]);
    let some = table("columns: [z, {code: string}, a]");
    assert_eq!(some, (names(&["z", "code", "a"]), vec![typed("code", ColumnType::Text)]));
    let json = table("format: jsonl, columns: {late: json}");
    assert_eq!(json, (vec![], vec![typed("late", ColumnType::Json)]));
    let parquet = table("format: parquet, columns: {2020: float64}");
    assert_eq!(parquet, (vec![], vec![typed("2020", ColumnType::Float)]));
}

#[test]
fn files_decide_format_and_delimiter() {
    let workplace = Workplace::new();
    for (names, text) in [
        ("a.tsv", "id\tn\n"),
        ("a.csv", "id,n\n"),
        ("sub/c.tsv", "id\n"),
        ("a.jsonl a.ndjson", "{}\n"),
        ("a.parquet b.parquet part-0", "PAR1PAR1"),
    ] {
        names.split(' ').for_each(|name| workplace.write(&format!("tables/{name}"), text));
    }
    let settled = |given: &str| {
        let mut parsed = workplace.parsed(&format!("inputs: [{{type: tabular, {given}}}]"));
        let surveys = partitioner::survey(&parsed.spec, &storage::StoreOptions::default());
        let warnings = parsed.settle_inputs(&surveys);
        warnings.map(|warnings| (parsed.spec.inputs[0].table.clone(), warnings, parsed.spec.notes))
    };
    for (given, format, delimiter) in [
        ("path: tables/sub", TableFormat::Tsv, b'\t'),
        ("path: tables/a.jsonl", TableFormat::Jsonl, b','),
        ("path: 'tables/*.ndjson'", TableFormat::Jsonl, b','),
        ("path: 'tables/*.parquet'", TableFormat::Parquet, b','),
        ("path: tables/part-0", TableFormat::Parquet, b','),
        ("paths: [tables/a.parquet, tables/b.parquet]", TableFormat::Parquet, b','),
        ("path: tables/a.tsv, format: csv, delimiter: '\\t'", TableFormat::Csv, b'\t'),
        ("path: tables/a.csv, format: tsv", TableFormat::Tsv, b'\t'),
        ("path: tables/a.csv, delimiter: '|'", TableFormat::Csv, b'|'),
        ("path: tables/a.tsv, delimiter: ','", TableFormat::Tsv, b','),
    ] {
        let (table, ..) = settled(given).unwrap_or_else(|problems| panic!("{given}: {problems:?}"));
        assert_eq!((table.format, table.delimiter), (format, delimiter), "{given}");
    }
    let (_, warnings, _) = settled("path: tables/a.jsonl, header: no_header").expect("readable");
    assert_eq!(
        super::lines(&warnings),
        "job.yaml:6: inputs[0].header: has no effect on files that are jsonl\n"
    );
    let (_, _, notes) = settled("path: tables/a.tsv, format: csv").expect("readable");
    assert!(notes.len() == 1 && notes[0].contains("set `delimiter: \"\\t\"`"), "{notes:?}");
    for (given, expected) in [
        ("path: tables", "its files are of several formats: csv ("),
        ("paths: [tables/a.parquet, tables/a.csv]", "parquet ("),
        ("path: tables/a.csv, format: parquet", "a.csv is not a Parquet file"),
        ("path: tables/part-0, format: csv", "part-0 is a Parquet file; set `format: parquet`"),
        ("path: 'tables/*.orc'", "matches no file"),
    ] {
        let problems = settled(given).expect_err(given);
        let problem = problems[0].to_string();
        assert!(
            problem.starts_with("job.yaml:6: inputs[0].path") && problem.contains(expected),
            "{given}: {problem}"
        );
    }
}

#[test]
fn encoding_takes_common_names() {
    let workplace = Workplace::new();
    for (given, expected) in [
        ("utf8", "utf8"),
        ("UTF-8", "utf-8"),
        ("utf-8-sig", "utf-8-sig"),
        ("latin1", "latin1"),
        ("iso_8859_1", "iso_8859_1"),
        ("windows1252", "windows1252"),
        ("UTF_16", "utf_16"),
        ("latin-1", "latin-1"),
        ("utf-8-sig", "utf-8-sig"),
        ("shift_jis", "shift_jis"),
    ] {
        let changes = format!("inputs: [{{TABLE, encoding: {given}}}]");
        assert_eq!(workplace.spec(&changes).inputs[0].table.encoding, expected);
    }
}

#[test]
fn paths_are_relative_to_the_job_file() {
    let workplace = Workplace::new();
    workplace.write("home/data/x.txt", "x");
    let absolute = workplace.path("data");
    for (written, expected) in [
        ("data", "data"),
        ("./data/", "data"),
        ("code/../data", "data"),
        ("~/data", "home/data"),
        (absolute.to_str().expect("a temporary folder is text"), "data"),
    ] {
        let spec = workplace.spec(&format!("inputs: [{{type: file, path: '{written}'}}]"));
        assert_eq!(spec.inputs[0].paths, [ItemPath::from(workplace.path(expected))], "{written}");
    }
}

#[test]
fn job_file_may_be_outside_the_working_folder() {
    let workplace = Workplace::new();
    let mut context = workplace.context();
    context.working_directory = workplace.path("data");
    let parsed = super::load(
        std::path::Path::new("../job.yaml"),
        BASE,
        &crate::DocumentOverrides::default(),
        &context,
    )
    .expect("valid");
    assert!(parsed.spec.source_directory.as_path().ends_with("code"));
    assert!(parsed.spec.inputs[0].paths[0].as_path().ends_with("data"));
}

#[test]
fn dot_dot_resolves_links() {
    let workplace = Workplace::new();
    workplace.write("elsewhere/data/x.txt", "x");
    workplace.write("elsewhere/inner/x.txt", "x");
    std::os::unix::fs::symlink(workplace.path("elsewhere/inner"), workplace.path("link"))
        .expect("a link");
    let spec = workplace.spec("inputs: [{type: file, path: link/../data}]");
    let real = workplace.path("elsewhere").canonicalize().expect("it exists").join("data");
    assert_eq!(spec.inputs[0].paths, [ItemPath::from(real)]);
}

#[test]
fn script_is_found_by_path_or_module() {
    let workplace = Workplace::new();
    let absolute = workplace.path("code/entry.py");
    workplace.write("code/package/__init__.py", "");
    for (changes, folder, script) in [
        (String::new(), "code", "entry.py"),
        ("entry_script: ' models/score.py '".to_owned(), "code", "models/score.py"),
        (format!("entry_script: {}", absolute.display()), "code", "entry.py"),
        (
            "source_directory: null\nentry_script: code/models/score.py".to_owned(),
            "code/models",
            "score.py",
        ),
        ("source_directory: .\nentry_script: code/entry.py".to_owned(), "", "code/entry.py"),
        ("entry_script: models.score".to_owned(), "code", "models/score.py"),
        ("entry_script: package".to_owned(), "code", "package/__init__.py"),
        ("entry_script: entry".to_owned(), "code", "entry.py"),
        (
            "source_directory: null\nentry_script: code.models.score".to_owned(),
            "",
            "code/models/score.py",
        ),
    ] {
        let spec = workplace.spec(&changes);
        assert_eq!(spec.entry_script, script, "{changes}");
        assert_eq!(
            spec.source_directory.as_path(),
            workplace.path(folder).components().as_path(),
            "{changes}"
        );
    }
}

#[test]
fn output_format_follows_the_extension() {
    let workplace = Workplace::new();
    let output = workplace.spec("output_action: SUMMARY_ONLY\noutput: null").output;
    assert_eq!((output.action, output.folder), (OutputAction::SummaryOnly, ItemPath::from("")));
    let output = workplace.spec("output: s3://bucket/scores").output;
    assert_eq!(output.folder, ItemPath::from("s3://bucket/scores"));
    // The job appends nothing, so the name does not matter, as in Azure ML.
    assert_eq!(workplace.problems("output_action: summary_only\nappend_row_file_name: a/b"), "");
    for (name, format) in [
        ("Rows.csv", OutputFormat::Csv),
        ("r.jsonl", OutputFormat::Jsonl),
        ("r.parquet", OutputFormat::Parquet),
    ] {
        let output =
            workplace.spec(&format!("output_format: native\nappend_row_file_name: {name}")).output;
        assert_eq!((output.file_name.as_str(), output.format), (name, format), "the case is kept");
    }
}

#[test]
fn environment_takes_interpreters_and_files() {
    let workplace = Workplace::new();
    let executable = |name: &str| {
        workplace.write(name, "#!/bin/sh\n");
        let permissions = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(workplace.path(name), permissions)
            .expect("permissions can be set");
    };
    executable("bin/python3.99");
    executable(".venv/bin/python");
    workplace.write(".venv/pyvenv.cfg", "");
    workplace.write("pyproject.toml", "");
    workplace.write("pip.yml", "dependencies: [python=3.11, {pip: [numpy]}]");
    std::os::unix::fs::symlink(workplace.path("bin/python3.99"), workplace.path("my-python"))
        .expect("a link");
    let path = |name: &str| ItemPath::from(workplace.path(name));
    let interpreter = |name: &str| Environment::Interpreter { path: path(name) };
    let made = |file: &str, base: &ItemPath| Environment::Requirements {
        file: path(file),
        base: base.clone(),
    };
    let default = ItemPath::from("/usr/bin/default-python");
    for (given, expected) in [
        ("./bin/python3.99", interpreter("bin/python3.99")),
        ("python3.99", interpreter("bin/python3.99")),
        // The path keeps its link, from which Python finds its environment.
        ("my-python", interpreter("my-python")),
        (".venv", interpreter(".venv/bin/python")),
        ("{python: .venv}", interpreter(".venv/bin/python")),
        ("requirements.txt", made("requirements.txt", &default)),
        ("pip.yml", made("pip.yml", &default)),
        ("pyproject.toml", made("pyproject.toml", &default)),
        ("{requirements: requirements.txt}", made("requirements.txt", &default)),
        (
            "{python: python3.99, requirements: requirements.txt}",
            made("requirements.txt", &path("bin/python3.99")),
        ),
    ] {
        assert_eq!(
            workplace.spec(&format!("environment: {given}")).environment,
            expected,
            "{given}"
        );
    }
}

#[test]
fn command_line_replaces_values_of_the_file() {
    let workplace = Workplace::new();
    let text = format!("{BASE}mini_batch_size: wrong\nrun_max_try: 2\n");
    let overrides = [
        ("mini_batch_size", "20"),
        ("node_count", "2"),
        ("process_count_per_node", "3"),
        ("owner", "team-a"),
        ("priority", "high"),
        ("max_share", "25"),
        ("max_memory", "1.5GB"),
        ("run_invocation_timeout", "100"),
        ("run_max_try", "4"),
        ("run_max_try", "5"),
        ("logging_level", "debug"),
    ];
    let spec = workplace.load(&text, &overrides).expect("valid").spec;
    assert_eq!(spec.mini_batch_size, MiniBatchSize::Files(20));
    assert_eq!((spec.node_count, spec.process_count_per_node), (Some(2), Some(3)));
    assert_eq!(
        (spec.owner.as_str(), spec.priority, spec.max_share),
        ("team-a", Priority::High, Some(25))
    );
    assert_eq!(spec.max_memory, 3 << 29);
    assert_eq!(
        (spec.run_invocation_timeout_seconds, spec.progress_update_timeout_seconds),
        (100, 390)
    );
    assert_eq!((spec.run_max_try, spec.logging_level.as_str()), (5, "DEBUG"));

    let text = BASE.replace("path: data", "path: data, partition_format: '{user}/{name}.txt'");
    let spec = workplace.load(&text, &[("partition_keys", "[\"user\"]")]).expect("valid").spec;
    assert_eq!(spec.partition_keys, ["user"]);
    let both =
        workplace.load(&format!("{text}partition_keys: [user]\n"), &[("mini_batch_size", "3")]);
    assert!(
        super::lines(&both.expect_err("not both"))
            .contains("--set mini_batch_size: Parameters mini_batch_size and")
    );
}

#[test]
fn command_line_reaches_nested_keys() {
    let workplace = Workplace::new();
    let spec = |overrides: &[(&str, &str)]| super::sound(workplace.load(BASE, overrides)).spec;
    assert_eq!(spec(&[("name", "other")]).name, "other");
    assert_eq!(
        spec(&[("output", "elsewhere: #1")]).output.folder,
        ItemPath::from(workplace.path("elsewhere: #1"))
    );
    assert_eq!(spec(&[("description", "'quoted text'")]).description, "quoted text");
    assert_eq!(
        spec(&[("mini_batch_size", "3"), ("mini_batch_size", "null")]).mini_batch_size,
        MiniBatchSize::Files(10)
    );
    let argv = spec(&[("arguments", r#"[--a, 1.50, "b c"]"#)]).argv;
    assert!(argv.windows(3).any(|three| three == ["--a", "1.50", "b c"]), "{argv:?}");
    for key in ["inputs.data.path", "inputs.0.path", "inputs[0].path"] {
        assert_eq!(
            spec(&[(key, "tables/*.csv")]).inputs[0].paths,
            [ItemPath::from(workplace.path("tables/*.csv"))]
        );
    }
    let given = spec(&[
        ("environment_variables.A.B", "x"),
        ("environment_variables.N", "1.0"),
        ("side_inputs.l", "labels.txt"),
    ]);
    assert_eq!(given.environment_variables["A.B"], "x");
    assert_eq!(given.environment_variables["N"], "1.0");
    assert_eq!(given.side_inputs["l"], ItemPath::from(workplace.path("labels.txt")));
    let nested = spec(&[
        ("limits.requests_per_minute", "600"),
        ("limits.concurrent", "16"),
        ("requires.processors", "4"),
        ("environment.requirements", "requirements.txt"),
    ]);
    assert_eq!(
        (nested.limits.requests_per_minute, nested.limits.concurrent),
        (Some(600), Some(16))
    );
    assert_eq!(nested.requires.processors, 4);
    assert_eq!(
        nested.environment,
        workplace.spec("environment: {requirements: requirements.txt}").environment
    );
    let whole =
        spec(&[("inputs", "{t: {type: tabular, path: tables}}"), ("inputs.t.delimiter", ";")]);
    assert_eq!((whole.inputs[0].name.as_str(), whole.inputs[0].table.delimiter), ("t", b';'));
}

#[test]
fn merge_keys_add_defaults() {
    let workplace = Workplace::new();
    let inputs = "\
x-table: &table {type: tabular, path: tables, delimiter: ;}
x-latin: &latin {encoding: latin1, delimiter: '|'}
inputs:
  one: {<<: *table, encoding: utf-8}
  two: {encoding: shift_jis, <<: [*table, *latin]}
  three: {<<: *table, '<<': x}";
    let said = workplace.problems(inputs);
    assert_eq!(said.lines().count(), 1, "a quoted key is a key as any other: {said}");
    let inputs = inputs.replace(", '<<': x", "");
    let spec = workplace.spec(&inputs);
    let tables: Vec<_> = spec
        .inputs
        .iter()
        .map(|input| (input.table.encoding.as_str(), input.table.delimiter))
        .collect();
    assert_eq!(tables, [("utf-8", b';'), ("shift_jis", b';'), ("utf-8", b';')]);
}

#[test]
fn standard_input_is_relative_to_the_working_folder() {
    let workplace = Workplace::new();
    let load = |text: &str| {
        super::load(
            std::path::Path::new("-"),
            text,
            &crate::DocumentOverrides::default(),
            &workplace.context(),
        )
    };
    assert_eq!(
        load(BASE).expect("valid").spec.source_directory,
        ItemPath::from(workplace.path("code"))
    );
    let said = super::lines(&load("name: Bad").expect_err("invalid"));
    assert!(said.contains("standard input:1: name: "), "{said}");
}

#[test]
fn other_values_are_read() {
    let workplace = Workplace::new();
    let parsed = workplace
        .parsed("compute_target: prod\ndescription: |\n  two\n  lines\nlogging_level: Warn");
    assert_eq!(parsed.compute_target.as_deref(), Some("prod"));
    assert_eq!(parsed.spec.description, "two\nlines\n");
    assert_eq!(parsed.spec.logging_level, "WARNING");
    assert_eq!(workplace.parsed("").compute_target, None);
    let marked = format!("\u{feff}{BASE}").replace('\n', "\r\n");
    assert!(workplace.load(&marked, &[]).is_ok(), "byte order mark and CRLF");
    assert_eq!(
        workplace.problems(
            "inputs: &i [{type: file, path: data}]\nside_inputs: {a: &p labels.txt, b: *p}"
        ),
        ""
    );
    let spec = workplace.spec(
        "run_max_try: 1\nallowed_failed_percent: 12.5\nlost_delivery_max: 0\nallow_reuse: false",
    );
    assert_eq!((spec.thresholds.allowed_failed_percent, spec.lost_delivery_max), (12.5, 0));
    assert!(!spec.allow_reuse);
    let spec = workplace.spec("inputs: []\narguments: [--rank_mini_batch_count, 4]");
    assert_eq!((spec.rank_mini_batch_count, spec.inputs.len()), (4, 0));
    assert_eq!(spec.mini_batch_size, MiniBatchSize::Files(10));
}
