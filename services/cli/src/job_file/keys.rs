//! The keys a job file may have, which of them `--set` may change, and what the keys of the original's second version
//! are called here.

use super::driver_flags;
use super::problem::{Fault, Place, Problems, nearest};
use super::yaml::{Entry, Node, Value};

/// Keys at the top of the file.
pub const TOP: &[&str] = &[
    "name",
    "description",
    "entry_script",
    "source_directory",
    "inputs",
    "mini_batch_size",
    "partition_keys",
    "side_inputs",
    "arguments",
    "output",
    "output_action",
    "append_row_file_name",
    "output_format",
    "error_threshold",
    "allowed_failed_count",
    "allowed_failed_percent",
    "run_invocation_timeout",
    "run_max_try",
    "lost_delivery_max",
    "node_count",
    "process_count_per_node",
    "logging_level",
    "environment",
    "environment_variables",
    "compute_target",
    "allow_reuse",
    "strict_results",
    "hide_unassigned_gpus",
    "durability",
];

/// Keys of one input.
pub const INPUT: &[&str] = &[
    "name",
    "type",
    "path",
    "paths",
    "partition_format",
    "columns",
    "format",
    "delimiter",
    "header",
    "encoding",
    "infer_column_types",
    "support_multi_line",
    "empty_as_string",
    "on_type_mismatch",
];

/// Keys of `environment` where it is a mapping.
pub const ENVIRONMENT: &[&str] = &["python", "requirements"];

/// Keys that `--set` may change: those that could be a parameter of a pipeline.
pub const OVERRIDABLE: &[&str] = &[
    "mini_batch_size",
    "node_count",
    "process_count_per_node",
    "run_invocation_timeout",
    "run_max_try",
    "logging_level",
    "partition_keys",
];

/// What to write instead of a key that belongs elsewhere.
pub fn hint(key: &str) -> Option<String> {
    let hint = match key {
        "mini_batch_error_threshold" => "did you mean allowed_failed_count (v2: mini_batch_error_threshold)?",
        "append_row_to" => "did you mean output and append_row_file_name (v2: append_row_to)?",
        "code" => "did you mean source_directory (v2: task.code)?",
        "compute" => "did you mean compute_target (v2: compute)?",
        "conda_file" | "image" => "did you mean environment, an interpreter or a requirements file?",
        "environment_name" | "environment_dir_path" => {
            "did you mean environment, an interpreter or a requirements file?"
        }
        "compute_target_name" => "did you mean compute_target?",
        "input_data" => "did you mean inputs (v2: input_data)?",
        "outputs" => "did you mean output (v2: outputs)?",
        "instance_count" => "did you mean node_count (v2: resources.instance_count)?",
        "resources" => "did you mean node_count (v2: resources.instance_count)?",
        "keep_columns" => "did you mean columns (TabularDataset.keep_columns)?",
        "is_deterministic" => "did you mean allow_reuse (v2: is_deterministic)?",
        "max_concurrency_per_instance" => "did you mean process_count_per_node (v2: max_concurrency_per_instance)?",
        "max_retries" => "did you mean run_max_try (v2: retry_settings.max_retries + 1)?",
        "program_arguments" => "did you mean arguments, a list (v2: task.program_arguments)?",
        "retry_settings" => {
            "did you mean run_max_try (v2: retry_settings.max_retries + 1) and run_invocation_timeout \
             (v2: retry_settings.timeout)?"
        }
        "timeout" => "did you mean run_invocation_timeout (v2: retry_settings.timeout)?",
        "task" => {
            "its keys are entry_script, source_directory (v2: task.code), arguments (v2: task.program_arguments) and \
             environment, at the top of the file"
        }
        "parallel_run_config" => "write the keys below it at the top of the file",
        "$schema" | "tags" | "properties" | "identity" => "leave it out, it has no meaning here",
        key if driver_flags::FLAGS.contains(&key) => {
            return Some(format!("it belongs into arguments: [\"--{key}\", \"<value>\"]"));
        }
        _ => return None,
    };
    Some(hint.to_owned())
}

/// Puts the values of `--set key=value` in the place of those of the file.
pub fn apply_overrides(entries: &mut Vec<Entry>, overrides: &[(String, String)], problems: &mut Problems) {
    let place = Place::Override;
    for (key, text) in overrides {
        if !OVERRIDABLE.contains(&key.as_str()) {
            let hint = match nearest(key, OVERRIDABLE.iter().copied()) {
                Some(nearest) => format!("cannot be set when the job is run; did you mean {nearest:?}?"),
                None => "cannot be set when the job is run".to_owned(),
            };
            problems.add(place, key, Fault::of(format!("{key:?}"), OVERRIDABLE.join(", ")).saying(hint));
            continue;
        }
        let node = if key == "partition_keys" { json_list(text) } else { Ok(Node::plain(place, text.trim())) };
        match node {
            Ok(node) if node.is_null() => problems.add(place, key, Fault::new(&node, "a value behind the `=`")),
            Ok(node) => match entries.iter_mut().find(|entry| entry.key == *key) {
                Some(entry) => *entry = Entry { key: key.clone(), place, node },
                None => entries.push(Entry { key: key.clone(), place, node }),
            },
            Err(fault) => problems.add(place, key, fault),
        }
    }
}

/// `["user", "genres"]`, the form that a pipeline parameter of partition keys has.
fn json_list(text: &str) -> Result<Node, Fault> {
    let place = Place::Override;
    let allowed = r#"a JSON list of texts: ["store", "brand"]"#;
    let names: Vec<String> =
        serde_json::from_str(text).map_err(|error| Fault::of(format!("{text:?} ({error})"), allowed))?;
    let items = names.iter().map(|name| Node::text(place, name)).collect();
    Ok(Node { place, value: Value::List(items) })
}
