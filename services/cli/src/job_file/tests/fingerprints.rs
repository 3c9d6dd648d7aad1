//! Which changes make another job, and which do not.

use std::fs::File;
use std::time::{Duration, SystemTime};

use super::{BASE, Workplace, lines};

const SIDE: &str = "side_inputs: {labels: labels.txt}\n";

#[test]
fn settings_that_change_the_output_change_the_fingerprint() {
    let workplace = Workplace::new();
    let first = workplace.spec(SIDE).fingerprint;
    assert_eq!(first.len(), 64);
    assert_eq!(workplace.spec(SIDE).fingerprint, first, "the same twice");
    for changes in [
        "name: other",
        "entry_script: models/score.py",
        "inputs: [{name: other, type: file, path: data}]",
        "inputs: [{name: data, type: file, path: tables}]",
        "inputs: [{name: data, type: tabular, path: data}]",
        "mini_batch_size: 11",
        "output: elsewhere",
        "output_action: summary_only",
        "append_row_file_name: other.txt",
        "error_threshold: 3",
        "allowed_failed_count: 3",
        "allowed_failed_percent: 3",
        "run_max_try: 4",
        "run_invocation_timeout: 61",
        "lost_delivery_max: 3",
        "arguments: [--a, b]",
        "environment: requirements.txt",
        "environment_variables: {A: b}",
        "strict_results: true",
        "side_inputs: {other: labels.txt}",
    ] {
        let given = if changes.starts_with("side_inputs") { changes.to_owned() } else { format!("{SIDE}{changes}") };
        assert_ne!(workplace.spec(&given).fingerprint, first, "{changes}");
    }
}

#[test]
fn the_columns_and_their_order_count() {
    let workplace = Workplace::new();
    let fingerprint =
        |rest: &str| workplace.spec(&format!("inputs: [{{type: tabular, path: tables{rest}}}]")).fingerprint;
    let seen = ["", ", columns: [a]", ", columns: [a, b]", ", columns: [b, a]"].map(fingerprint);
    for (index, one) in seen.iter().enumerate() {
        assert!(!seen[..index].contains(one), "{index}");
    }
    assert_eq!(fingerprint(", columns: "), seen[0], "a key without a value is none");
}

/// A job file of an earlier version names the same job.
#[test]
fn no_columns_are_no_part_of_the_job() {
    let table = serde_json::to_value(protocol::TableOptions::default()).expect("plain data");
    assert!(table.get("columns").is_none(), "{table}");
}

#[test]
fn settings_of_operation_do_not() {
    let workplace = Workplace::new();
    let first = workplace.spec("").fingerprint;
    for changes in [
        "description: other",
        "node_count: 3",
        "process_count_per_node: 3",
        "logging_level: DEBUG",
        "compute_target: prod",
        "allow_reuse: false",
        "durability: full",
        "mini_batch_size: 10",
    ] {
        assert_eq!(workplace.spec(changes).fingerprint, first, "{changes}");
    }
    let overridden = workplace.load(BASE, &[("node_count", "2"), ("logging_level", "ERROR")]).expect("valid");
    assert_eq!(overridden.spec.fingerprint, first);
}

#[test]
fn the_content_of_the_snapshot_counts() {
    let workplace = Workplace::new();
    let mut seen = vec![workplace.spec("").fingerprint];
    let mut changed = |what: &str| {
        let fingerprint = workplace.spec("").fingerprint;
        assert!(!seen.contains(&fingerprint), "{what} makes no difference");
        seen.push(fingerprint);
    };
    workplace.write("code/entry.py", "def run(files): return []\n");
    changed("the script");
    workplace.write("code/helpers/tools.py", "");
    changed("another file");
    std::fs::rename(workplace.path("code/helpers/tools.py"), workplace.path("code/helpers/tool.py")).expect("renamed");
    changed("a file's name");
    workplace.write("code/.hidden", "");
    changed("a hidden file");
    std::os::unix::fs::symlink(workplace.path("labels.txt"), workplace.path("code/linked.txt")).expect("a link");
    changed("a link");
    workplace.write("labels.txt", "one\n");
    changed("what a link leads to");
    workplace.write("code/parallel_run_step.settings.json", "{}");
    changed("the settings file");
}

#[test]
fn what_is_not_the_script_does_not_count() {
    let workplace = Workplace::new();
    workplace.write("code/.amlignore", "*.log\nbig/\n");
    workplace.write("code/.gitignore", "ignored.txt\n");
    let first = workplace.spec("").fingerprint;
    for name in [
        "code/__pycache__/entry.cpython-311.pyc",
        "code/models/__pycache__/score.cpython-311.pyc",
        "code/.git/HEAD",
        "code/run.log",
        "code/big/data.bin",
        "code/ignored.txt",
        "code/env/pyvenv.cfg",
        "beside.txt",
    ] {
        workplace.write(name, "x");
        assert_eq!(workplace.spec("").fingerprint, first, "{name}");
    }
    std::os::unix::fs::symlink("nowhere", workplace.path("code/dangling")).expect("a link");
    std::os::unix::fs::symlink("..", workplace.path("code/models/circle")).expect("a link");
    assert_eq!(workplace.spec("").fingerprint, first, "links that lead nowhere");
}

/// A job whose script lies beside everything else: output and input must not make it another job.
#[test]
fn job_file_output_and_inputs_inside_the_snapshot_do_not_count() {
    let workplace = Workplace::new();
    let flat =
        |inputs: &str| format!("source_directory: .\nentry_script: code/entry.py\ninputs: [{{type: file, {inputs}}}]");
    for inputs in ["path: data", "path: 'data/*.txt'", "path: data/", "paths: [data/a.txt, data/b.txt, 'data/[1].txt']"]
    {
        for name in ["data/a.txt", "data/b.txt", "data/[1].txt"] {
            workplace.write(name, "before");
        }
        let first = workplace.spec(&flat(inputs)).fingerprint;
        workplace.write("output/parallel_run_step.txt", inputs);
        workplace.write("job.yaml", inputs);
        for name in ["data/a.txt", "data/b.txt", "data/[1].txt"] {
            workplace.write(name, "after");
        }
        assert_eq!(workplace.spec(&flat(inputs)).fingerprint, first, "{inputs}");
        workplace.write("code/helper.py", inputs);
        assert_ne!(workplace.spec(&flat(inputs)).fingerprint, first, "{inputs}");
    }
    // The script lies in the input: that cannot be left out.
    let inside = flat("path: code");
    let first = workplace.spec(&inside).fingerprint;
    workplace.write("code/helper.py", "changed");
    assert_ne!(workplace.spec(&inside).fingerprint, first);
}

#[test]
fn an_ignored_script_still_counts() {
    let workplace = Workplace::new();
    workplace.write("code/.amlignore", "*.py\n");
    let first = workplace.spec("").fingerprint;
    workplace.write("code/entry.py", "# changed\n");
    assert_ne!(workplace.spec("").fingerprint, first);
}

#[test]
fn reference_data_counts_by_size_and_time() {
    let workplace = Workplace::new();
    workplace.write("reference/deep/labels.txt", "one");
    let given = "side_inputs: {labels: reference}";
    let first = workplace.spec(given).fingerprint;
    assert_eq!(workplace.spec(given).fingerprint, first);
    let file = File::options().write(true).open(workplace.path("reference/deep/labels.txt")).expect("it exists");
    file.set_modified(SystemTime::now() + Duration::from_secs(100)).expect("times can be set");
    assert_ne!(workplace.spec(given).fingerprint, first);
}

#[test]
fn requirements_count_by_content() {
    let workplace = Workplace::new();
    let given = "environment: requirements.txt";
    let first = workplace.spec(given).fingerprint;
    workplace.write("requirements.txt", "numpy\n");
    assert_ne!(workplace.spec(given).fingerprint, first);
}

#[test]
fn a_snapshot_that_holds_data_is_refused() {
    let workplace = Workplace::new();
    // A sparse file takes no room.
    let big = File::create(workplace.path("code/model.bin")).expect("it can be made");
    big.set_len(301 * 1024 * 1024).expect("it can be long");
    let said = lines(&workplace.load(BASE, &[]).expect_err("too large"));
    assert!(said.starts_with("job.yaml:3: source_directory: ") && said.contains(".amlignore"), "{said}");
    workplace.write("code/.amlignore", "model.bin\n");
    assert!(workplace.load(BASE, &[]).is_ok());
}
