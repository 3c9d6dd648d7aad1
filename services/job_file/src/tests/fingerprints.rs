//! Changes that make another job, and changes that do not.

use std::fs::File;
use std::time::{Duration, SystemTime};

use super::{BASE, Workplace};
use crate::{Parsed, RunPeriod};

const SIDE: &str = "side_inputs: {labels: labels.txt}\n";

#[test]
fn settings_of_the_output_change_the_fingerprint() {
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
        "run_without_rows: true",
        "isolate: halves",
        "result_schema: {columns: {a: any}}",
        "side_inputs: {other: labels.txt}",
    ] {
        let given = if changes.starts_with("side_inputs") {
            changes.to_owned()
        } else {
            format!("{SIDE}{changes}")
        };
        assert_ne!(workplace.spec(&given).fingerprint, first, "{changes}");
    }
}

#[test]
fn columns_and_their_order_change_the_fingerprint() {
    let workplace = Workplace::new();
    let fingerprint =
        |rest: &str| workplace.spec(&format!("inputs: [{{TABLE{rest}}}]")).fingerprint;
    let seen = ["", ", columns: [a]", ", columns: [a, b]", ", columns: [b, a]"].map(fingerprint);
    for (index, one) in seen.iter().enumerate() {
        assert!(!seen[..index].contains(one), "{index}");
    }
    assert_eq!(fingerprint(", columns: "), seen[0], "a key without a value counts as absent");
}

/// `table.rs` tests each key that is left out.
#[test]
fn settings_of_operation_keep_the_fingerprint() {
    let workplace = Workplace::new();
    let first = workplace.spec("").fingerprint;
    for changes in
        ["requires: {gpus: 1, labels: {zone: a}}", "compute_target: prod", "mini_batch_size: 10"]
    {
        assert_eq!(workplace.spec(changes).fingerprint, first, "{changes}");
    }
    let overridden =
        workplace.load(BASE, &[("node_count", "2"), ("logging_level", "ERROR")]).expect("valid");
    assert_eq!(overridden.spec.fingerprint, first);
}

#[test]
fn code_changes_the_fingerprint() {
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
    changed("another module");
    std::fs::rename(
        workplace.path("code/helpers/tools.py"),
        workplace.path("code/helpers/tool.py"),
    )
    .expect("renamed");
    changed("a module's name");
    workplace.write("code/native.so", "");
    changed("an extension module");
    workplace.write("elsewhere.py", "");
    std::os::unix::fs::symlink(workplace.path("elsewhere.py"), workplace.path("code/linked.py"))
        .expect("a link");
    changed("a link");
    workplace.write("elsewhere.py", "one\n");
    changed("what a link leads to");
    workplace.write(
        "code/parallel_run_step.settings.json",
        r#"{"append_row": {"pandas.DataFrame.to_csv": {"sep": ";"}}}"#,
    );
    changed("the settings file");
}

#[test]
fn other_files_beside_the_script_keep_the_fingerprint() {
    let workplace = Workplace::new();
    workplace.write("code/.amlignore", "*.log\nbig/\n");
    workplace.write("code/.gitignore", "ignored.py\n");
    let first = workplace.parsed("").identity;
    let names = "__pycache__/entry.cpython-311.pyc, models/__pycache__/score.cpython-311.pyc, .git/HEAD, \
                 .vscode/settings.py, .ipynb_checkpoints/entry-checkpoint.py, .DS_Store, .entry.py.swp, entry.py~, run.log, \
                 big/data.py, ignored.py, env/pyvenv.cfg, env/lib/a.py, yesterday.csv, another data set/1.png, ../beside.py";
    for name in names.split(", ") {
        workplace.write(&format!("code/{name}"), "x");
        assert_eq!(workplace.parsed("").identity, first, "{name}");
    }
    let link = |to: &str, name: &str| {
        std::os::unix::fs::symlink(to, workplace.path(name)).expect("a link")
    };
    link("nowhere", "code/dangling");
    link("..", "code/models/circle");
    link("itself.py", "code/itself.py");
    assert_eq!(workplace.parsed("").identity, first, "links that lead nowhere");
}

/// Returns the texts of the differences between two jobs, the earlier of which ran in this period.
fn differences_since(ran: RunPeriod, earlier: &Parsed, later: &Parsed) -> Vec<String> {
    later.identity.differences(&earlier.identity, ran).iter().map(ToString::to_string).collect()
}

/// Returns the same, if no file was written while the earlier job ran.
fn differences(earlier: &Parsed, later: &Parsed) -> Vec<String> {
    differences_since(RunPeriod { from: 1, to: 2, has_finished: false }, earlier, later)
}

#[test]
fn requested_data_is_compared_file_by_file() {
    let workplace = Workplace::new();
    workplace.write(
        "code/entry.py",
        "LABELS = open('labels.txt')\nWEIGHTS = glob('weights/*')\ndef run(files): pass\n",
    );
    for name in [
        "code/labels.txt",
        "code/weights/a.bin",
        "code/other.txt",
        "code/small.cfg",
        "code/kind.bin",
    ] {
        workplace.write(name, "before");
    }
    let changes = "arguments: [--settings, small.cfg]\nenvironment_variables: {KIND: kind.bin}";
    let first = workplace.parsed(changes);
    workplace.write("code/other.txt", "changed");
    workplace.write("code/new.txt", "x");
    assert_eq!(differences(&first, &workplace.parsed(changes)), Vec::<String>::new());
    workplace.write("code/labels.txt", "changed");
    workplace.write("code/weights/b.bin", "new");
    workplace.write("code/small.cfg", "changed");
    std::fs::remove_file(workplace.path("code/kind.bin")).expect("it is there");
    let later = workplace.parsed(changes);
    assert_eq!(
        differences(&first, &later),
        [
            "labels.txt has changed",
            "small.cfg has changed",
            "weights/b.bin is new",
            "kind.bin is missing"
        ]
    );
    assert_eq!(later.spec.fingerprint, first.spec.fingerprint);
    // The script itself may have written a file that changed while the job ran.
    let own = |has_finished| {
        differences_since(RunPeriod { from: 0, to: u64::MAX, has_finished }, &first, &later)
    };
    assert_eq!(own(false), ["kind.bin is missing"]);
    // Results from before or after the change are not reused.
    assert_eq!(
        own(true),
        ["labels.txt has changed", "small.cfg has changed", "kind.bin is missing"]
    );
}

#[test]
fn registered_models_are_compared() {
    let workplace = Workplace::new();
    workplace.write("home/models/churn/1/model.pkl", "one");
    let first = workplace.parsed("");
    workplace.write("home/models/unrelated/1/model.pkl", "one");
    assert_eq!(
        differences(&first, &workplace.parsed("")),
        Vec::<String>::new(),
        "a model that was not there"
    );
    workplace.write("home/models/churn/2/model.pkl", "two");
    assert_eq!(differences(&first, &workplace.parsed("")), ["model churn/2/model.pkl is new"]);
    workplace.write("home/models/churn/1/model.pkl", "other");
    let expected = ["model churn/1/model.pkl has changed", "model churn/2/model.pkl is new"];
    assert_eq!(differences(&first, &workplace.parsed("")), expected);
    workplace.write("folder/model.pkl", "one");
    let folder = format!(
        "environment_variables: {{AZUREML_MODEL_DIR: {}}}",
        workplace.path("folder").display()
    );
    let first = workplace.parsed(&folder);
    workplace.write("folder/model.pkl", "other");
    assert_eq!(
        differences(&first, &workplace.parsed(&folder)),
        ["model AZUREML_MODEL_DIR/model.pkl has changed"]
    );
}

#[test]
fn differences_use_names_of_keys() {
    let workplace = Workplace::new();
    let first = workplace.parsed(SIDE);
    for (changes, expected) in [
        ("run_max_try: 4", "run_max_try is 4 and was 3"),
        ("run_invocation_timeout: 5", "run_invocation_timeout is 5 and was 60"),
        ("error_threshold: 3", "error_threshold is 3 and was -1"),
        ("mini_batch_size: 20", "mini_batch_size is \"20 files\" and was \"10 files\""),
        (
            "append_row_file_name: b.txt",
            "append_row_file_name is \"b.txt\" and was \"parallel_run_step.txt\"",
        ),
        ("inputs: [{name: data, type: file, path: tables}]", "the value of inputs has changed"),
        ("arguments: [--a, b]", "arguments have changed"),
        ("environment: requirements.txt", "the value of environment has changed"),
        (
            "entry_script: models/score.py",
            "entry_script is \"models/score.py\" and was \"entry.py\"",
        ),
    ] {
        let found = differences(&first, &workplace.parsed(&format!("{SIDE}{changes}")));
        assert_eq!(found[0], expected);
    }
    workplace.write("code/entry.py", "def run(files): return []");
    workplace.write("code/helper.py", "");
    workplace.write("labels.txt", "more than before");
    let found = differences(&first, &workplace.parsed(SIDE));
    assert_eq!(
        found,
        ["entry.py has changed", "helper.py is new", "side input labels has changed"]
    );
}

/// A job whose script is in the folder of everything else: output and inputs must not change its identity.
#[test]
fn job_file_output_and_inputs_inside_the_snapshot_keep_the_fingerprint() {
    let workplace = Workplace::new();
    let flat = |inputs: &str| {
        format!(
            "source_directory: .\nentry_script: code/entry.py\ninputs: [{{type: file, {inputs}}}]"
        )
    };
    for inputs in [
        "path: data",
        "path: 'data/*.txt'",
        "path: data/",
        "paths: [data/a.txt, data/b.txt, 'data/[1].txt']",
    ] {
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
    // The script is in the input, which the snapshot then cannot leave out.
    let inside = flat("path: code");
    let first = workplace.spec(&inside).fingerprint;
    workplace.write("code/helper.py", "changed");
    assert_ne!(workplace.spec(&inside).fingerprint, first);
}

#[test]
fn ignored_script_changes_the_fingerprint() {
    let workplace = Workplace::new();
    workplace.write("code/.amlignore", "*.py\n");
    let first = workplace.spec("").fingerprint;
    workplace.write("code/entry.py", "# changed\n");
    assert_ne!(workplace.spec("").fingerprint, first);
}

#[test]
fn size_and_time_of_reference_data_change_the_fingerprint() {
    let workplace = Workplace::new();
    workplace.write("reference/deep/labels.txt", "one");
    let given = "side_inputs: {labels: reference}";
    let first = workplace.spec(given).fingerprint;
    assert_eq!(workplace.spec(given).fingerprint, first);
    let file = File::options()
        .write(true)
        .open(workplace.path("reference/deep/labels.txt"))
        .expect("it exists");
    file.set_modified(SystemTime::now() + Duration::from_secs(100)).expect("times can be set");
    assert_ne!(workplace.spec(given).fingerprint, first);
}

#[test]
fn content_of_requirements_changes_the_fingerprint() {
    let workplace = Workplace::new();
    let given = "environment: requirements.txt";
    let first = workplace.spec(given).fingerprint;
    workplace.write("requirements.txt", "numpy\n");
    assert_ne!(workplace.spec(given).fingerprint, first);
}

#[test]
fn many_files_beside_the_script_give_a_warning() {
    let workplace = Workplace::new();
    let first = workplace.parsed("").identity;
    // A sparse file takes no room.
    let big = File::create(workplace.path("code/yesterday.bin")).expect("it can be made");
    big.set_len(301 * 1024 * 1024).expect("it can be long");
    assert_eq!(workplace.parsed("").identity, first);
    std::fs::create_dir(workplace.path("code/many")).expect("new");
    for number in 0..storage::Limit::SCRIPTS.files {
        File::create(workplace.path(&format!("code/many/{number}"))).expect("it can be made");
    }
    let warnings = workplace.warnings("");
    assert!(warnings[0].contains("holds more than 20000 files"), "{warnings:?}");
}

#[test]
fn large_data_without_request_does_not_travel() {
    let workplace = Workplace::new();
    for (name, megabytes) in [("yesterday.bin", 250), ("weights.bin", 60)] {
        let file = File::create(workplace.path(&format!("code/{name}"))).expect("it can be made");
        file.set_len(megabytes << 20).expect("it can be long");
    }
    let spec = workplace.spec("arguments: [--weights, weights.bin]");
    let (_, incomplete) = crate::pack_script(&spec, &workplace.path("archive")).expect("it fits");
    let warning = incomplete.expect("a file stays behind").to_string();
    assert!(
        warning.contains("yesterday.bin (250 MB)") && !warning.contains("weights.bin"),
        "{warning}"
    );
}
