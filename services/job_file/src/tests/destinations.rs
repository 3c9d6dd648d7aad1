//! Allowed and refused destinations of results.

use std::os::unix::fs::{PermissionsExt, symlink};

use super::Workplace;

/// Changes to a valid job, and a part of the expected problem; empty if the change is allowed. `READ` stands for an
/// input of files at this path.
const DESTINATIONS: &[(&str, &str)] = &[
    // Inputs that are folders.
    ("output: data", "output: the output lies in input data"),
    ("output: data/results", "output: the output lies in input data"),
    (
        "output: data/new/results\noutput_action: summary_only",
        "output: the output lies in input data",
    ),
    ("output: link-to-data/results", "output: the output lies in input data"),
    ("output: ./code/../data/", "output: the output lies in input data"),
    ("READ in/deep\noutput: in", ""),
    (
        "READ in/deep\noutput: in\noutput_action: summary_only",
        "output: the output folder contains input input_0",
    ),
    (
        "READ in/deep\noutput: in\nappend_row_file_name: deep",
        "the output would replace input input_0",
    ),
    (
        "inputs: {a: {type: file, path: tables}, b: {type: file, path: in}}\noutput: in/x",
        "output: the output lies in input b",
    ),
    ("output: database", ""),
    // A placeholder would become a folder of its name.
    (
        "output: '${nope}/x'",
        "output: it holds a placeholder, which would become a folder of this name",
    ),
    ("output: '${{output}}/x'", "output: it holds a placeholder"),
    ("outputs: {images: '${HOME}/x'}", "outputs.images: it holds a placeholder"),
    ("output: costs/$5", ""),
    // Outputs that meet.
    (
        "outputs: {more: output/parallel_run_step.txt}",
        "outputs.more: it would take the place of the output file",
    ),
    (
        "outputs: {more: output/parallel_run_step.txt/x}",
        "outputs.more: it would take the place of the output file",
    ),
    ("outputs: {more: output/more}", ""),
    // Inputs that are files.
    ("READ tables/t.csv\noutput: tables", ""),
    (
        "READ tables/t.csv\noutput: tables\nappend_row_file_name: t.csv",
        "job.yaml:7: append_row_file_name: the output would replace input input_0 (found \"",
    ),
    (
        "READ link.csv\noutput: tables\nappend_row_file_name: t.csv",
        "append_row_file_name: the output would replace input input_0",
    ),
    ("READ tables/t.csv\noutput: tables\noutput_action: summary_only", ""),
    // Globs.
    ("READ data/*\noutput: data", "output: input input_0 matches files that the job writes there"),
    ("READ data/*.csv\noutput: data", ""),
    (
        "READ data/*.csv\noutput: data\nappend_row_file_name: a.csv",
        "output: input input_0 matches files that the job writes there",
    ),
    ("READ data/*.csv\noutput: data/x\nappend_row_file_name: a.csv", ""),
    (
        "READ data/**/*.csv\noutput: data/x\nappend_row_file_name: a.csv",
        "output: input input_0 matches files that the job writes there",
    ),
    (
        "READ link-to-data/**\noutput: data/x",
        "output: input input_0 matches files that the job writes there",
    ),
    (
        "READ data/**\noutput: data/x\noutput_action: summary_only",
        "output: input input_0 matches files that the job writes there",
    ),
    // URLs.
    ("READ s3://b/in\noutput: s3://b/in", "output: the output lies in input input_0"),
    ("READ s3://b/in/\noutput: s3://b/in/out/", "output: the output lies in input input_0"),
    ("READ s3://b/in\noutput: s3://b/input", ""),
    (
        "READ s3://b/in/a.csv\noutput: s3://b/in\nappend_row_file_name: a.csv",
        "append_row_file_name: the output would replace input input_0",
    ),
    ("READ s3://b/in/a.csv\noutput: s3://b/in", ""),
    ("READ s3://b/a%20b\noutput: s3://b/a b/out", "output: the output lies in input input_0"),
    (
        "READ s3://b/in/*.csv\noutput: s3://b/in\nappend_row_file_name: a.csv",
        "output: input input_0 matches files that the job writes there",
    ),
    ("READ s3://b/in/*.csv\noutput: s3://b/in", ""),
    ("READ s3://b/in/*.csv\noutput: s3://b/in/x\nappend_row_file_name: a.csv", ""),
    (
        "READ s3://b/in/**\noutput: s3://b/in/x",
        "output: input input_0 matches files that the job writes there",
    ),
    ("READ s3://b/*/a.csv\noutput: s3://other/in\nappend_row_file_name: a.csv", ""),
    // A text that begins like a URL is one, or a mistake.
    ("READ S3://b/in\noutput: s3://b/in", "output: the output lies in input input_0"),
    (
        "output: s3:/b/x",
        "output: this is not a URL; did you mean \"s3://b/x\"? (found \"s3:/b/x\"; allowed: ",
    ),
    ("outputs: {more: http//h/x}", "outputs.more: this is not a URL; did you mean \"http://h/x\"?"),
    ("READ gs:/b/in", "inputs[0].path: this is not a URL; did you mean \"gs://b/in\"?"),
    (
        "side_inputs: {l: 's3:b/l.txt'}",
        "side_inputs.l: this is not a URL; did you mean \"s3://b/l.txt\"?",
    ),
    (
        "source_directory: file:/code",
        "source_directory: this is not a URL; did you mean \"file:///code\"?",
    ),
    ("output: https:/user:s3cr3t@h/x", "output: found a URL with a user or password"),
    ("output: ./s3:/b/x", ""),
    // URLs of files of this machine are paths.
    ("READ data\noutput: file://HERE/data/x", "output: the output lies in input input_0"),
    ("READ file://HERE/data\noutput: data", "output: the output lies in input input_0"),
    (
        "READ file://HERE/tables/t.csv\noutput: tables\nappend_row_file_name: t.csv",
        "append_row_file_name: the output would replace input input_0",
    ),
    (
        "READ file://HERE/data/*.csv\noutput: file://HERE/data\nappend_row_file_name: a.csv",
        "output: input input_0 matches files that the job writes there",
    ),
    (
        "output: file://HERE/code\nappend_row_file_name: entry.py",
        "append_row_file_name: the output would replace the entry script",
    ),
    ("outputs: {more: file://HERE/data}", "outputs.more: the output lies in input data"),
    (
        "output: file://HERE/occupied\nappend_row_file_name: rows.txt",
        "rows.txt is a folder, where the output file goes",
    ),
    // Side inputs.
    ("side_inputs: {l: in}\noutput: in/x", "output: the output lies in side input l"),
    ("side_inputs: {l: in/deep}\noutput: in", ""),
    (
        "side_inputs: {l: in/deep}\noutputs: {more: in}",
        "outputs.more: the output folder contains side input l",
    ),
    (
        "side_inputs: {l: labels.txt}\nappend_row_file_name: labels.txt\noutput: ./",
        "append_row_file_name: the output would replace side input l",
    ),
    // The script and what belongs to it.
    ("output: code", "output: the output folder is the folder of the script"),
    ("output: ./", ""),
    ("output: .\noutput_action: summary_only", "output: the output folder contains "),
    (
        "output: .\ninputs: []\narguments: [--rank_mini_batch_count, 1]\noutput_action: summary_only",
        "contains the folder of the script",
    ),
    ("output: ..\noutput_action: summary_only", "output: the output folder contains"),
    ("output: code/results", ""),
    ("output: code/models\nappend_row_file_name: score.py", "would replace a module of the script"),
    (
        "source_directory: null\nentry_script: code/entry.py\noutput: code\nappend_row_file_name: entry.py",
        "append_row_file_name: the output would replace the entry script",
    ),
    (
        "output: .\nappend_row_file_name: job.yaml",
        "append_row_file_name: the output would replace the job file",
    ),
    (
        "environment: requirements.txt\noutput: .\nappend_row_file_name: requirements.txt",
        "append_row_file_name: the output would replace the requirements file",
    ),
    // Destinations that cannot be written.
    ("output: labels.txt/x", "output: "),
    ("output: dangling/x", "output: "),
    (
        "output: occupied\nappend_row_file_name: rows.txt",
        "rows.txt is a folder, where the output file goes",
    ),
    ("output: kept\nappend_row_file_name: rows.txt", "rows.txt exists and is read-only"),
];

#[test]
fn name_that_is_too_long_is_rejected_with_its_length() {
    let workplace = Workplace::new();
    let named = |length: usize| {
        workplace.problems(&format!("append_row_file_name: {}", "a".repeat(length)))
    };
    assert_eq!(named(255), "");
    assert!(
        named(256).contains("the name has 256 bytes, and file systems take 255"),
        "{}",
        named(256)
    );
}

#[test]
fn output_over_inputs_or_without_write_access_is_rejected() {
    let workplace = Workplace::new();
    for file in ["in/deep/a.txt", "occupied/rows.txt/a", "kept/rows.txt"] {
        workplace.write(file, "x");
    }
    symlink("data", workplace.path("link-to-data")).expect("a link");
    symlink("tables/t.csv", workplace.path("link.csv")).expect("a link");
    symlink("nowhere", workplace.path("dangling")).expect("a link");
    let read_only = std::fs::Permissions::from_mode(0o444);
    std::fs::set_permissions(workplace.path("kept/rows.txt"), read_only)
        .expect("permissions can be set");
    let is_wrong = |expected: &str, said: &str| {
        if expected.is_empty() { !said.is_empty() } else { !said.contains(expected) }
    };
    let here = workplace.path("").display().to_string();
    let written = |changes: &str| {
        let changes = changes.replace("HERE", here.trim_end_matches('/'));
        match changes.strip_prefix("READ ").map(|read| read.split_once('\n').unwrap_or((read, "")))
        {
            Some((path, rest)) => format!("inputs: [{{type: file, path: '{path}'}}]\n{rest}"),
            None => changes,
        }
    };
    let said = DESTINATIONS
        .iter()
        .map(|(changes, expected)| (changes, expected, workplace.problems(&written(changes))));
    let wrong: Vec<_> = said.filter(|(_, expected, said)| is_wrong(expected, said)).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}
