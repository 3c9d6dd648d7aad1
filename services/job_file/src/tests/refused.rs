//! Every rule, broken: the problem names the field, the value found and the values allowed.

use partitioner::MissingColumn;

use super::{Workplace, lines};

/// Changes to a valid file; then the field of the expected problem, and parts of its text with ` … ` between them.
const REFUSED: &[(&str, &str)] = &[
    // name
    ("name: null", "name: missing … 3 to 32"),
    ("name: ab", "name: found \"ab\""),
    ("name: a23456789012345678901234567890123", "name: 3 to 32"),
    ("name: 1job", "name: found \"1job\""),
    ("name: job-", "name: not ending in `-`"),
    ("name: my_job", "name: found \"my_job\""),
    // script
    ("entry_script: null", "entry_script: missing"),
    (
        "entry_script: nowhere.py",
        "entry_script: The value 'nowhere.py' specified in entry_script doesn't exist.",
    ),
    (
        "entry_script: ./models",
        "entry_script: The value './models' specified in entry_script is not a file.",
    ),
    (
        "entry_script: models",
        "entry_script: The value 'models' specified in entry_script is not a file.",
    ),
    ("entry_script: ../labels.txt", "entry_script: it is not below … /code"),
    (
        "entry_script: models.nowhere",
        "entry_script: there is no module models.nowhere below … models/nowhere.py",
    ),
    ("source_directory: nowhere", "source_directory: nowhere does not exist"),
    ("source_directory: labels.txt", "source_directory: is not a directory"),
    ("source_directory: s3://bucket/code", "source_directory: a local path"),
    ("source_directory: nowhere\nentry_script: null", "entry_script: missing"),
    // inputs
    (
        "inputs: null",
        "inputs: must be a list and have at least one element or rank_mini_batch_count",
    ),
    ("inputs: []", "inputs: must be a list and have at least one element or rank_mini_batch_count"),
    ("inputs: data", "inputs: found \"data\" … a list of inputs, or a mapping"),
    ("inputs: [data]", "inputs[0]: a mapping with type and path"),
    ("inputs: [{path: data}]", "inputs[0].type: missing … file, tabular"),
    ("inputs: [{type: table, path: data}]", "inputs[0].type: found \"table\" … file, tabular"),
    ("inputs: [{type: file}]", "inputs[0].path: missing … a glob"),
    ("inputs: [{FILE, paths: [data]}]", "inputs[0].paths: one of them"),
    ("inputs: [{type: file, paths: []}]", "inputs[0].paths: an empty list"),
    ("inputs: [{type: file, paths: [data, nowhere]}]", "inputs[0].paths: nowhere does not exist"),
    ("inputs: [{type: file, path: nowhere/*.png}]", "inputs[0].path: nowhere does not exist"),
    ("inputs: [{type: file, path: ''}]", "inputs[0].path: a text that is not empty"),
    ("inputs: [{type: file, pth: data}]", "inputs[0].pth: did you mean \"path\"?"),
    ("inputs: {my data: {FILE}}", "inputs.my data: letters, digits"),
    ("inputs: {a: {name: b, FILE}}", "inputs.a.name: a second name"),
    ("inputs: [{name: '$', FILE}]", "inputs[0].name: letters, digits"),
    ("inputs: [{name: a, FILE}, {name: a, FILE}]", "inputs[1]: \"a\" a second time"),
    (
        "inputs: [{FILE}, {TABLE}]",
        "inputs[1].type: All inputs of step must be same type … found tabular … allowed: file",
    ),
    ("inputs: [{FILE, partition_format: '{a'}]", "inputs[0].partition_format: {Store}/{Brand}"),
    ("inputs: [{FILE, partition_format: 'a'}]", "inputs[0].partition_format: names no column"),
    ("inputs: [{TABLE, format: xlsx}]", "inputs[0].format: csv, tsv, jsonl, parquet"),
    ("inputs: [{TABLE, delimiter: '::'}]", "inputs[0].delimiter: one ASCII character"),
    ("inputs: [{TABLE, delimiter: '\"'}]", "inputs[0].delimiter: one ASCII character"),
    ("inputs: [{TABLE, delimiter: é}]", "inputs[0].delimiter: one ASCII character"),
    (
        "inputs: [{TABLE, header: from_last_file}]",
        "inputs[0].header: all_files_same_headers, all_files_different_headers, from_first_file, no_header",
    ),
    ("inputs: [{TABLE, names: a}]", "inputs[0].names: a list of column names, each once"),
    ("inputs: [{TABLE, names: [a, a]}]", "inputs[0].names: a list of column names, each once"),
    (
        "inputs: [{TABLE, names: [a], header: from_first_file}]",
        "inputs[0].names: found names of columns, and a header that names them … allowed: names with header: no_header",
    ),
    ("inputs: [{TABLE, skip: -1}]", "inputs[0].skip: an integer from 0"),
    ("inputs: [{TABLE, take: 0}]", "inputs[0].take: an integer from 1"),
    ("inputs: [{TABLE, encoding: klingon}]", "inputs[0].encoding: utf-8, latin-1"),
    (
        "inputs: [{TABLE, infer_column_types: yes}]",
        "inputs[0].infer_column_types: found \"yes\" … true or false",
    ),
    ("inputs: [{TABLE, support_multi_line: 1}]", "inputs[0].support_multi_line: true or false"),
    ("inputs: [{TABLE, empty_as_string: ''}]", "inputs[0].empty_as_string: true or false"),
    ("inputs: [{TABLE, on_type_mismatch: skip}]", "inputs[0].on_type_mismatch: reject, missing"),
    ("inputs: [{FILE, columns: [id]}]", "inputs[0].columns: columns of an input of type tabular"),
    ("inputs: [{TABLE, columns: id}]", "inputs[0].columns: found \"id\" … a list of column"),
    ("inputs: [{TABLE, columns: []}]", "inputs[0].columns: found an empty list"),
    ("inputs: [{TABLE, columns: [id, ~]}]", "inputs[0].columns: missing"),
    ("inputs: [{TABLE, columns: [id, '']}]", "inputs[0].columns: found \"\""),
    ("inputs: [{TABLE, columns: [[id]]}]", "inputs[0].columns: found a list"),
    ("inputs: {t: {TABLE, columns: [a, b, a]}}", "inputs.t.columns: found \"a\" a second time"),
    (
        "inputs: [{TABLE, columns: {a: int46}}]",
        "inputs[0].columns.a: found \"int46\" … did you mean int64? … bool, int64, uint64, float64, timestamp, timestamp_day_first, string, json)",
    ),
    (
        "inputs: [{TABLE, format: csv, columns: [a, {b: json}]}]",
        "inputs[0].columns.b: found \"json\" … bool, int64",
    ),
    (
        "inputs: [{TABLE, format: parquet, columns: {a: timestamp_day_first}}]",
        "inputs[0].columns.a: allowed: bool, int64, uint64, float64, timestamp, string",
    ),
    ("inputs: [{TABLE, columns: {a: [int64]}}]", "inputs[0].columns.a: found a list"),
    ("inputs: [{TABLE, columns: {}}]", "inputs[0].columns: types by name"),
    ("inputs: [{TABLE, columns: [a, {a: int64}]}]", "inputs[0].columns: found \"a\" a second time"),
    (
        "inputs: [{TABLE, format: csv, columns: [{a: int64, b: json}]}]",
        "inputs[0].columns.b: found \"json\" … bool",
    ),
    // arguments
    ("arguments: --a 1", "arguments: a list of texts and numbers"),
    ("arguments: {a: 1}", "arguments: found a mapping"),
    (
        "arguments: [x]",
        "arguments[0]: Found invalid argument 'x', you can only use keyword argument.",
    ),
    (
        "arguments: [true]",
        "arguments[0]: Found invalid argument 'True', you can only use keyword argument.",
    ),
    ("arguments: [--a, null]", "arguments[1]: missing"),
    ("arguments: [--a, [b]]", "arguments[1]: found a list"),
    (
        "arguments: [--a, '${{inputs.x}}']",
        "arguments[1]: found \"${{inputs.x}}\"; allowed: ${{inputs.data}}, ${{output}}",
    ),
    ("arguments: [--a, '${{outputs.x}}']", "arguments[1]: allowed: ${{inputs.data}}, ${{output}}"),
    ("arguments: [--a, '${{output']", "arguments[1]: without `}}`"),
    (
        "inputs: [{name: d, type: file, paths: [data, code]}]\narguments: [-d, '${{inputs.d}}']",
        "arguments[1]: input \"d\" has 2 paths, not one",
    ),
    (
        "output: null\noutput_action: summary_only\narguments: [-o, '${{output}}']",
        "arguments[1]: allowed: ${{inputs.data}}",
    ),
    ("arguments: [--task_overhead_timeout, 0]", "arguments[0]: from 1 to 259200"),
    ("arguments: [--task_overhead_timeout, 1.5]", "arguments[0]: from 1 to 259200"),
    ("arguments: [--progress_update_timeout, 259201]", "arguments[0]: from 1 to 259200"),
    ("arguments: [--first_task_creation_timeout=x]", "arguments[0]: from 1 to 259200"),
    ("arguments: [--score_run_timeout, 0]", "arguments[0]: from 1 to 259200"),
    ("arguments: [--resource_monitor_interval, -1]", "arguments[0]: from 0 (off)"),
    ("arguments: [--rank_mini_batch_count, many]", "arguments[0]: below 0 is 0"),
    (
        "arguments: [--nice, 21]",
        "arguments[0]: found \"--nice 21\"; allowed: an integer from 0 to 20",
    ),
    ("arguments: [--nice, -1]", "arguments[0]: an integer from 0 to 20"),
    ("arguments: [--append_row_dataframe_header, maybe]", "arguments[0]: True or False"),
    ("arguments: [--profiling_module, yappi]", "arguments[0]: cProfile or profile"),
    ("arguments: [--copy_logs_to_parent, maybe]", "arguments[0]: True or False"),
    ("arguments: [--nice]", "arguments[0]: \"--nice\" without a value"),
    ("arguments: [--nice, --x]", "arguments[0]: \"--nice\" without a value"),
    ("arguments: [--a, '${{inputs.x}}', --nice, 30]", "arguments[2]: found \"--nice 30\""),
    // mini_batch_size
    ("mini_batch_size: 0", "mini_batch_size: found \"0\" … at least 1"),
    ("mini_batch_size: -1", "mini_batch_size: at least 1"),
    ("mini_batch_size: 10K", "mini_batch_size: found \"10K\""),
    ("mini_batch_size: 10kbkb", "mini_batch_size: found \"10kbkb\""),
    ("mini_batch_size: 1.5MB", "mini_batch_size: found \"1.5MB\""),
    ("mini_batch_size: 10 KB", "mini_batch_size: found \"10 KB\""),
    ("mini_batch_size: rows", "mini_batch_size: 500 rows"),
    (
        "mini_batch_size: 99999999999GB",
        "mini_batch_size: the size is too large (found \"99999999999GB\"",
    ),
    ("mini_batch_size: 99999999999999999999", "mini_batch_size: the size is too large"),
    ("mini_batch_size: '99999999999999999999 rows'", "mini_batch_size: the size is too large"),
    (
        "mini_batch_size: 1.5",
        "mini_batch_size: Parameter mini_batch_size must be of type int or str.",
    ),
    (
        "mini_batch_size: true",
        "mini_batch_size: Parameter mini_batch_size must be of type int or str.",
    ),
    (
        "mini_batch_size: 10kb",
        "mini_batch_size: 10240 bytes for inputs of type file … a number of files",
    ),
    (
        "mini_batch_size: 5 rows",
        "mini_batch_size: 5 rows for inputs of type file … a number of files",
    ),
    // partition_keys
    ("partition_keys: user", "partition_keys: Parameter partition_keys must be of type list."),
    ("partition_keys: []", "partition_keys: an empty list"),
    ("partition_keys: [[user]]", "partition_keys: in partition_keys is not a str."),
    ("partition_keys: [user, user]", "partition_keys: \"user\" a second time"),
    ("partition_keys: [user]", "partition_keys: partition_format of input \"data\" … it has none"),
    (
        "inputs: [{FILE, partition_format: '{user}/{name}.txt'}]\npartition_keys: [season]",
        "partition_keys: found \"season\" … user, name",
    ),
    (
        "partition_keys: [user]\nmini_batch_size: 10",
        "mini_batch_size: Parameters mini_batch_size and partition_keys are mutually exclusive",
    ),
    // side_inputs
    ("side_inputs: [labels.txt]", "side_inputs: a mapping of names to paths"),
    ("side_inputs: {labels: nowhere.txt}", "side_inputs.labels: nowhere.txt does not exist"),
    ("side_inputs: {labels: '*.txt'}", "side_inputs.labels: *.txt does not exist"),
    ("side_inputs: {'a b': labels.txt}", "side_inputs.a b: letters, digits"),
    // output
    (
        "output_action: null",
        "output_action: Parameter output_action must be summary_only or append_row.",
    ),
    (
        "output_action: file",
        "output_action: Parameter output_action must be summary_only or append_row.",
    ),
    ("output: null", "output: Please specify output parameter. … summary_only"),
    ("output: labels.txt", "output: it is a file"),
    ("outputs: [out]", "outputs: a mapping of names to folders"),
    ("outputs: {a b: out}", "outputs.a b: letters, digits"),
    ("outputs: {a: {type: uri_folder, path: out}}", "outputs.a: found a mapping"),
    ("outputs: {a: labels.txt}", "outputs.a: it is a file"),
    ("outputs: {a: data/x}", "outputs.a: the output lies in input data"),
    ("append_row_file_name: \"a\\nb\"", "append_row_file_name: must be a valid UNIX file name."),
    ("append_row_file_name: ..", "append_row_file_name: must be a valid UNIX file name."),
    ("append_row_file_name: '  '", "append_row_file_name: not empty"),
    ("output_format: binary", "output_format: text, native"),
    (
        "output_format: native",
        "append_row_file_name: parallel_run_step.txt … .csv, .jsonl or .parquet",
    ),
    ("output_format: native\nappend_row_file_name: a.xlsx", "append_row_file_name: a.xlsx"),
    // thresholds
    (
        "error_threshold: -2",
        "error_threshold: error_threshold '-2' is not an int value greater than or equal to -1.",
    ),
    ("error_threshold: 1.5", "error_threshold: error_threshold '1.5' is not an int value"),
    (
        "error_threshold: '5'",
        "error_threshold: error_threshold '5' is not an int value … without quotes",
    ),
    ("error_threshold: true", "error_threshold: error_threshold 'true' is not an int value"),
    (
        "allowed_failed_count: -2",
        "allowed_failed_count: allowed_failed_count '-2' is not an int value greater than or equal to -1.",
    ),
    (
        "allowed_failed_percent: many",
        "allowed_failed_percent: allowed_failed_percent 'many' is not an int or float.",
    ),
    (
        "allowed_failed_percent: 100.5",
        "allowed_failed_percent: allowed_failed_percent '100.5' is not between 0 and 100.",
    ),
    ("allowed_failed_percent: -1", "allowed_failed_percent: is not between 0 and 100."),
    ("allowed_failed_percent: .nan", "allowed_failed_percent: is not between 0 and 100."),
    // limits
    ("run_invocation_timeout: 0", "run_invocation_timeout: must be 1 to 259200 (found \"0\""),
    ("run_invocation_timeout: 259201", "run_invocation_timeout: from 1 to 259200"),
    ("run_max_try: 0", "run_max_try: from 1 to 2147483647"),
    ("lost_delivery_max: -1", "lost_delivery_max: from 0 to 2147483647"),
    ("node_count: 0", "node_count: node_count '0' is not between 1 and max_nodes 10000."),
    (
        "process_count_per_node: 0",
        "process_count_per_node: Parameter process_count_per_node must be an integer greater than 0.",
    ),
    (
        "process_count_per_node: 1000000",
        "process_count_per_node: must be 1 to 1000 (found \"1000000\"",
    ),
    ("owner: ana and bo", "owner: found \"ana and bo\" … 1 to 63 letters, digits"),
    ("priority: urgent", "priority: found \"urgent\" … low, normal, high"),
    ("max_share: 0", "max_share: must be 1 to 100 (found \"0\""),
    ("max_memory: 16", "max_memory: found \"16\" … a size with its unit"),
    ("requires: gpu", "requires: found \"gpu\" … a mapping: {gpus: 1, memory: 16GB"),
    ("requires: {gpu: 1}", "requires.gpu: unknown key; did you mean \"gpus\"?"),
    ("requires: {gpus: 0}", "requires.gpus: must be 1 to 1000"),
    ("requires: {memory: 16}", "requires.memory: found \"16\" … a size with its unit"),
    ("requires: {processors: 10001}", "requires.processors: must be 1 to 10000"),
    ("requires: {labels: [zone]}", "requires.labels: a mapping of names to values"),
    (
        "requires: {labels: {zone: }}",
        "requires.labels.zone: 1 to 63 letters, digits, `-`, `_`, `.` and `/`",
    ),
    ("requires: {labels: {zone: [a]}}", "requires.labels.zone: 1 to 63 letters"),
    ("requires: {labels: {zone: a b}}", "requires.labels.zone: found \"a b\" … 1 to 63 letters"),
    (
        "requires: {labels: {'my zone': a}}",
        "requires.labels.my zone: found \"my zone\" … 1 to 63 letters",
    ),
    ("process_count_per_node: many", "process_count_per_node: must be an integer greater than 0."),
    ("logging_level: LOUD", "logging_level: debug, info, warning, error, critical"),
    // environment
    ("environment: /nowhere/python", "environment: /nowhere/python does not exist"),
    ("environment: no-such-python", "environment: nor an executable of this name on PATH"),
    ("environment: labels.md", "environment: labels.md … a requirements file"),
    ("environment: nowhere.yml", "environment: nowhere.yml does not exist"),
    (
        "environment: conda.yml",
        "environment: names packages that only conda installs (libgdal=3.8), and none of micromamba,",
    ),
    (
        "environment: old.yml",
        "environment: old.yml: it asks for Python 3.8, and scripts need 3.10 or newer",
    ),
    (
        "environment: wrong.txt",
        "environment: wrong.txt:2: there is no file … /none.txt; `--set environment=PATH`",
    ),
    (
        "environment: modules.yml",
        "environment: modules.yml: sklearn is the name of a module: write scikit-learn",
    ),
    (
        "environment: {requirements: no-conda.yaml}",
        "environment.requirements: no list `dependencies`",
    ),
    ("environment: nowhere.txt", "environment: nowhere.txt does not exist"),
    ("environment: ./data", "environment: data is not an executable file"),
    ("environment: [python]", "environment: found a list"),
    ("environment: {pyton: x}", "environment.pyton: did you mean \"python\"?"),
    (
        "environment: {python: /nowhere/python}",
        "environment.python: /nowhere/python does not exist",
    ),
    ("environment: {requirements: data}", "environment.requirements: a requirements file (.txt)"),
    ("environment_variables: [A]", "environment_variables: a mapping of names to texts"),
    ("environment_variables: {'A=B': x}", "environment_variables.A=B: has no `=`"),
    (
        "environment_variables: {A: null}",
        "environment_variables.A: missing … \"\" for an empty one",
    ),
    ("environment_variables: {A: [x]}", "environment_variables.A: found a list"),
    ("environment_variables: {A: '${{inputs.nix}}'}", "environment_variables.A: ${{inputs.data}}"),
    // the rest
    ("compute_target: ''", "compute_target: not empty"),
    ("allow_reuse: yes", "allow_reuse: found \"yes\" … true or false"),
    ("strict_results: 1", "strict_results: true or false"),
    ("result_schema: [a]", "result_schema: found a list … columns: {total: number"),
    ("result_schema: true", "result_schema: found \"true\" … columns: {total: number"),
    ("result_schema: {}", "result_schema: found an empty mapping"),
    ("result_schema: nowhere.json", "result_schema: nowhere.json does not exist"),
    ("result_schema: data", "result_schema: data is not a file"),
    (
        "result_schema: {total: number}",
        "result_schema.total: not a JSON Schema … allowed: columns: {total: number",
    ),
    ("result_schema: {columns: {}}", "result_schema.columns: found an empty mapping"),
    (
        "result_schema: {columns: [total]}",
        "result_schema.columns: found a list … a mapping of names to types",
    ),
    (
        "result_schema: {columns: {a: nmber}}",
        "result_schema.columns.a: did you mean \"number\"? … string, integer",
    ),
    ("result_schema: {columns: {a: '?'}}", "result_schema.columns.a: not a type"),
    (
        "result_schema: {type: rows}",
        "result_schema.type: not a JSON Schema … \"rows\" is not one of [\"array\"",
    ),
    (
        "result_schema: {columns: {a: any}}\noutput_action: summary_only",
        "result_schema: it has no effect with output_action summary_only",
    ),
    ("isolate: rows", "isolate: off, halves, items"),
    ("isolate_items_max: 1", "isolate_items_max: must be 2 to"),
    ("speculation: on", "speculation: found \"on\" … true or false"),
    ("gpus_per_process: 0", "gpus_per_process: must be 1 to 1000"),
    ("gpus_per_process: 0.5", "gpus_per_process: found \"0.5\""),
    ("process_count_per_gpu: 0", "process_count_per_gpu: must be 1 to 1000"),
    (
        "gpus_per_process: 2\nprocess_count_per_gpu: 3",
        "process_count_per_gpu: a process cannot have several GPUs and share each of them … gpus_per_process 2 too … one of them",
    ),
    ("hide_unassigned_gpus: maybe", "hide_unassigned_gpus: true or false"),
    ("durability: disk", "durability: process, full"),
    ("process_max_runs: 0", "process_max_runs: an integer from 1"),
    ("process_max_memory: 512", "process_max_memory: found \"512\" … a size with its unit"),
    ("process_max_memory: 0MB", "process_max_memory: found \"0MB\""),
    ("process_max_memory: -1GB", "process_max_memory: found \"-1GB\""),
    ("process_max_memory: 1e30GB", "process_max_memory: found \"1e30GB\""),
];

#[test]
fn every_problem_names_field_found_and_allowed() {
    let workplace = Workplace::new();
    workplace.write("conda.yml", "dependencies: [python=3.11, numpy=1.26, libgdal=3.8]");
    workplace.write("old.yml", "dependencies: [python=3.8]");
    workplace.write("no-conda.yaml", "a: b");
    workplace.write("wrong.txt", "six\n-r none.txt\n");
    workplace.write("modules.yml", "dependencies: [{pip: [pandas, sklearn]}]");
    for (changes, expected) in REFUSED {
        let (field, parts) = expected.split_once(": ").expect("a field and parts");
        let said = workplace.problems(changes);
        let line = said.lines().find(|line| line.contains(&format!(": {field}: ")));
        let line = line.unwrap_or_else(|| panic!("{changes}: nothing about {field} in {said:?}"));
        assert!(line.starts_with("job.yaml:"), "{line}");
        assert!(["found ", "missing; "].iter().any(|found| line.contains(found)), "{line}");
        assert!(line.contains("; allowed: "), "{line}");
        for part in parts.split(" … ") {
            assert!(line.contains(part), "{changes}: {part:?} is not in {line}");
        }
    }
}

#[test]
fn invalid_partition_format_is_one_problem() {
    let changes = "inputs: [{FILE, partition_format: '{a'}]\npartition_keys: [a]";
    assert_eq!(Workplace::new().problems(changes).lines().count(), 1);
}

#[test]
fn forbidden_characters_in_file_names_are_rejected() {
    let workplace = Workplace::new();
    for character in "~\"#%&*:<>?/\\{|}".chars() {
        let said = workplace.problems(&format!("append_row_file_name: 'a{character}b'"));
        assert!(said.contains("must be a valid UNIX file name."), "{character}: {said}");
    }
}

/// Names of the second version of Azure ML, and keys that belong elsewhere.
#[test]
fn unknown_key_suggests_the_right_name() {
    let workplace = Workplace::new();
    for (key, hint) in [
        ("mini_batch_sise", "did you mean \"mini_batch_size\"?"),
        ("Name", "did you mean \"name\"?"),
        ("node-count", "did you mean \"node_count\"?"),
        ("max_retries", "did you mean run_max_try (v2: retry_settings.max_retries + 1)?"),
        ("retry_settings", "run_invocation_timeout (v2: retry_settings.timeout)"),
        ("timeout", "did you mean run_invocation_timeout"),
        ("mini_batch_error_threshold", "did you mean allowed_failed_count"),
        ("max_concurrency_per_instance", "did you mean process_count_per_node"),
        ("instance_count", "did you mean node_count"),
        ("resources", "did you mean node_count"),
        ("input_data", "did you mean inputs"),
        ("append_row_to", "did you mean output and append_row_file_name"),
        ("code", "did you mean source_directory"),
        ("compute", "did you mean compute_target"),
        ("program_arguments", "did you mean arguments"),
        ("task", "its keys are entry_script"),
        ("keep_columns", "did you mean columns"),
        ("is_deterministic", "did you mean allow_reuse"),
        ("conda_file", "did you mean environment"),
        ("environment_name", "did you mean environment"),
        ("compute_target_name", "did you mean compute_target?"),
        ("parallel_run_config", "at the top of the file"),
        ("$schema", "leave it out"),
        ("task_overhead_timeout", "arguments: [\"--task_overhead_timeout\", \"<value>\"]"),
    ] {
        let said = workplace.problems(&format!("{key}: 1"));
        assert!(said.contains("unknown key") && said.contains(hint), "{key}: {said}");
    }
    let said = workplace.problems("zzzzzzzz: 1");
    assert!(
        said.contains("unknown key (found \"zzzzzzzz\"; allowed: name, description,"),
        "{said}"
    );
}

#[test]
fn unknown_keys_are_listed_once() {
    let workplace = Workplace::new();
    let said =
        workplace.problems("zzzzzzzz: 1\nyyyyyyyy: 1\nbreakfast: 1\ninputs: [{FILE, qqqqqq: 1}]");
    assert_eq!(said.matches("allowed: name, description,").count(), 1, "{said}");
    assert_eq!(said.matches("allowed: the keys that are listed above").count(), 2, "{said}");
    assert!(
        said.contains(
            "inputs[0].qqqqqq: unknown key (found \"qqqqqq\"; allowed: name, type, path,"
        ),
        "{said}"
    );
}

#[test]
fn keys_that_begin_with_x_are_ignored() {
    let text = "x-anything: {a: [1]}\ninputs: [{FILE, x-note: from the camera}]";
    assert_eq!(Workplace::new().problems(text), "");
}

#[test]
fn values_of_the_command_line_are_checked() {
    let workplace = Workplace::new();
    for (key, value, expected) in [
        (
            "nam",
            "other",
            "job.yaml: --set nam: unknown key; did you mean \"name\"? (found \"nam\"; allowed: name)",
        ),
        (
            "mini_batch_size",
            "none",
            "job.yaml: --set mini_batch_size: found \"none\"; allowed: a number of files",
        ),
        (
            "mini_batch_size",
            "",
            "job.yaml: --set mini_batch_size: missing; allowed: a value behind the `=`",
        ),
        ("run_max_try", "many", "job.yaml: --set run_max_try: found \"many\""),
        ("run_max_try.x", "1", "run_max_try has no keys below it"),
        (
            "partition_keys",
            "user",
            "job.yaml: --set partition_keys: Parameter partition_keys must be of type list.",
        ),
        (
            "partition_keys",
            "[\"user\"]",
            "job.yaml: --set partition_keys: found \"user\"; allowed: keys that",
        ),
        ("arguments", "[--a, [b]]", "job.yaml: --set arguments[1]: found a list"),
        ("arguments", "[--a", "job.yaml: --set arguments: not valid YAML (found \"[--a\""),
        ("environment_variables", "{A: 1, A: 2}", "\"A\" a second time"),
        (
            "inputs.other.path",
            "data",
            "--set inputs.other.path: found \"inputs.other.path\"; allowed: a key of an input: inputs.data.path",
        ),
        ("inputs.data", "data", "allowed: a key of an input: inputs.data.path"),
        ("inputs.data.path", "nowhere", "job.yaml: --set inputs[0].path: "),
        ("inputs.data.pth", "data", "did you mean \"path\"?"),
        ("name", "null", "name: missing"),
    ] {
        let said = workplace.override_problems(&[(key, value)]);
        assert!(said.contains(expected), "{key}={value}: {said}");
    }
}

#[test]
fn all_problems_are_reported_in_the_order_of_lines() {
    let workplace = Workplace::new();
    let text = "\
name: Bad
entry_script: nowhere.py
mini_batch_sise: 10
error_threshold: -5

output_action: append
run_max_try: 0
inputs:
  - type: file
    path: nowhere
name: again
";
    let problems =
        workplace.load(text, &[("node_count", "0")]).expect_err("it is full of mistakes");
    let places: Vec<(Option<usize>, &str)> =
        problems.iter().map(|problem| (problem.line, problem.field.as_str())).collect();
    let expected = [
        (Some(1), "name"),
        (Some(2), "entry_script"),
        (Some(3), "mini_batch_sise"),
        (Some(4), "error_threshold"),
        (Some(6), "output_action"),
        (Some(7), "run_max_try"),
        (Some(10), "inputs[0].path"),
        (Some(11), "name"),
        (None, "--set node_count"),
    ];
    assert_eq!(places, expected, "{}", lines(&problems));
}

#[test]
fn invalid_yaml_is_one_problem_with_line_and_column() {
    let workplace = Workplace::new();
    let bomb = "a: &a [x, x, x, x, x, x, x, x, x, x]\n".to_owned()
        + &('b'..'h')
            .map(|name| {
                let before = char::from(name as u8 - 1);
                format!("{name}: &{name} [{}]\n", vec![format!("*{before}"); 10].join(", "))
            })
            .collect::<String>();
    for (text, expected) in [
        ("name: [unclosed", "not valid YAML, column"),
        ("name: a: b", "job.yaml:1: not valid YAML, column 8"),
        ("name: ok\n  bad: indent\n", "job.yaml:2: not valid YAML, column"),
        ("", "job.yaml: found an empty file"),
        ("# only a comment\n", "job.yaml: found an empty file"),
        ("just text", "job.yaml:1: found \"just text\"; allowed: a mapping"),
        ("- a\n- b\n", "job.yaml:1: found a list"),
        (
            "name: a\n---\nname: b\n",
            "job.yaml:2: not valid YAML, column 1 (found a second document",
        ),
        ("[a]: b", "a list or mapping as a key"),
        ("name: \"a\\0b\"", "a NUL character"),
        (&format!("name: {}", "[".repeat(5000)), "not valid YAML, column"),
        (&format!("name: {}{}", "[".repeat(100), "]".repeat(100)), "nested too deeply"),
        (&bomb, "too many values"),
        ("a: &a [*a]", "not valid YAML, column"),
        ("<<: text", "`<<` needs a mapping or a list of mappings"),
        ("<<: [a]", "`<<` needs a mapping or a list of mappings"),
    ] {
        let problems = workplace.load(text, &[]).expect_err("it is no job");
        assert_eq!(problems.len(), 1, "{text}: {}", lines(&problems));
        assert!(problems[0].to_string().contains(expected), "{text}: {}", problems[0]);
    }
}

#[test]
fn all_duplicate_keys_are_reported() {
    let workplace = Workplace::new();
    let said = workplace
        .problems("inputs: [{type: file, type: file, path: data}]\nnode_count: 1\nnode_count: 2");
    assert!(said.contains("job.yaml:6: type: duplicate key"), "{said}");
    assert!(said.contains("job.yaml:8: node_count: duplicate key"), "{said}");
}

#[test]
fn folder_name_without_utf8_is_rejected() {
    use std::os::unix::ffi::OsStrExt;
    let workplace = Workplace::new();
    let folder = workplace.path("x").with_file_name(std::ffi::OsStr::from_bytes(b"\xff"));
    let problems = super::load(
        &folder.join("job.yaml"),
        super::BASE,
        &crate::DocumentOverrides::default(),
        &workplace.context(),
    );
    assert!(lines(&problems.expect_err("arguments are text")).contains("valid UTF-8"));
}

/// Problems that only the files show have the same form as others.
#[test]
fn missing_columns_are_reported_with_their_lines() {
    let workplace = Workplace::new();
    let inputs = |columns: &str| {
        format!("inputs:\n  t:\n    type: tabular\n    path: tables\n    columns:\n{columns}")
    };
    let parsed =
        workplace.parsed(&inputs("      - id\n      - Unit Price\n      - Store\n      - zzz"));
    let there = ["id", "unit_price", "date"].map(str::to_owned).to_vec();
    let missing = |name: &str, is_from_path| MissingColumn {
        input: 0,
        name: name.to_owned(),
        there: there.clone(),
        is_from_path,
    };
    let all = [missing("Unit Price", false), missing("Store", true), missing("zzz", false)];
    let said = lines(&parsed.refuse_columns(&all));
    let expected = "\
job.yaml:12: inputs.t.columns: the files have no such column; did you mean \"unit_price\"? (found \"Unit Price\"; \
allowed: id, unit_price, date)
job.yaml:13: inputs.t.columns: it comes from the path, so every frame has it; list columns of the files (found \
\"Store\"; allowed: id, unit_price, date)
job.yaml:14: inputs.t.columns: the files have no such column (found \"zzz\"; allowed: id, unit_price, date)
";
    assert_eq!(said, expected);

    let parsed = workplace.parsed("inputs: [{TABLE, columns: [id]}]");
    let many: Vec<String> = (0..60).map(|number| format!("c{number}")).collect();
    let missing =
        MissingColumn { input: 0, name: "id".to_owned(), there: many, is_from_path: false };
    let said = lines(&parsed.refuse_columns(&[missing]));
    assert!(
        said.contains("inputs[0].columns: ") && said.ends_with("c48, c49, … and 10 more)\n"),
        "{said}"
    );
}
