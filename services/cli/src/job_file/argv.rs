//! `sys.argv[1:]` of the entry script, in the order of the original: engine options, the user's, the inputs.
//!
//! Two elements an option, never `--name=value`: scripts look for name and value side by side.

use protocol::{InputKind, JobSpec, MiniBatchSize, OutputAction};

/// What the arguments say beyond the specification: whether a value was given at all, and how it was written.
pub struct Given<'a> {
    /// `allowed_failed_count`, if the job file has it.
    pub allowed_failed_count: Option<i64>,
    /// `allowed_failed_percent` as written, if the job file has it.
    pub allowed_failed_percent: Option<&'a str>,
    /// The user's arguments.
    pub arguments: &'a [String],
}

/// All arguments, in order.
pub fn assemble(spec: &JobSpec, given: &Given<'_>) -> Vec<String> {
    let size = match spec.mini_batch_size {
        MiniBatchSize::Files(count) | MiniBatchSize::Bytes(count) | MiniBatchSize::Rows(count) => count,
    };
    let action = match spec.output.action {
        OutputAction::SummaryOnly => "summary_only",
        OutputAction::AppendRow => "append_row",
    };
    let mut argv = Vec::new();
    let mut push = |name: &str, value: String| argv.extend([format!("--{name}"), value]);
    push("client_sdk_version", env!("CARGO_PKG_VERSION").to_owned());
    push("scoring_module_name", spec.entry_script.clone());
    push("mini_batch_size", size.to_string());
    push("error_threshold", spec.thresholds.error_threshold.to_string());
    push("output_action", action.to_owned());
    push("logging_level", spec.logging_level.clone());
    push("run_invocation_timeout", spec.run_invocation_timeout_seconds.to_string());
    push("run_max_try", spec.run_max_try.to_string());
    push("create_snapshot_at_runtime", "True".to_owned());
    if let Some(count) = given.allowed_failed_count {
        push("allowed_failed_count", count.to_string());
    }
    if let Some(percent) = given.allowed_failed_percent {
        push("allowed_failed_percent", percent.to_owned());
    }
    if spec.output.action == OutputAction::AppendRow {
        push("append_row_file_name", spec.output.file_name.clone());
    }
    if !spec.output.folder.as_bytes().is_empty() {
        push("output", String::from_utf8_lossy(spec.output.folder.as_bytes()).into_owned());
    }
    if let Some(count) = spec.process_count_per_node {
        push("process_count_per_node", count.to_string());
    }
    if !spec.partition_keys.is_empty() {
        push("partition_keys", json_list(&spec.partition_keys));
    }
    argv.extend_from_slice(given.arguments);
    for (position, input) in spec.inputs.iter().enumerate() {
        let option = match input.kind {
            InputKind::Tabular => format!("--input_ds_{position}"),
            InputKind::File => format!("--input_fds_{position}"),
        };
        argv.extend([option, input.name.clone()]);
    }
    argv
}

/// As Python's `json.dumps` separates it.
fn json_list(texts: &[String]) -> String {
    let quoted: Vec<String> = texts.iter().map(|text| serde_json::Value::from(text.as_str()).to_string()).collect();
    format!("[{}]", quoted.join(", "))
}
