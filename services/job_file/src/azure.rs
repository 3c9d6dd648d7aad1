//! Documents of Azure ML, and the names that its second version gives to keys.
//!
//! A document is recognised and rejected in one line. A reader of such documents would turn its entries into entries of a
//! job file, with their locations, for `load` to read.

use crate::{Entry, Fault, Location, Node, find};

const TYPES: &[&str] = &["pipeline", "parallel", "command", "sweep", "spark", "automl", "import", "data_transfer"];
const SCHEMA: &str = "azuremlschemas";
const ALLOWED: &str = "a job file: name, entry_script, inputs, output_action, output, … (JOB_FILE.md has every key)";

/// Returns the key by which a document shows that it belongs to Azure ML, and the fault. `None`: it does not.
pub fn document(entries: &[Entry]) -> Option<(Location, &'static str, Fault)> {
    let text = |key: &str| find(entries, key).and_then(Node::scalar).map(|scalar| scalar.text.as_str());
    let kind = text("type").filter(|kind| TYPES.contains(kind));
    let jobs = find(entries, "jobs").map(Node::entries).filter(|jobs| !jobs.is_empty());
    let schema = text("$schema").filter(|schema| schema.to_lowercase().contains(SCHEMA));
    let (field, found) = match (kind, jobs, schema) {
        (Some(kind), ..) => ("type", format!("{kind:?}")),
        (None, Some(_), _) => ("jobs", "a mapping".to_owned()),
        (None, None, schema) => ("$schema", format!("{:?}", schema?)),
    };
    let what = match (kind, jobs) {
        (_, Some(jobs)) => {
            let names: Vec<&str> = jobs.iter().map(|job| job.key.as_str()).collect();
            format!("pipeline (jobs: {})", names.join(", "))
        }
        (Some(kind), None) => format!("{kind} document"),
        (None, None) => "document".to_owned(),
    };
    let message = format!("this is an Azure ML {what}; Gristmill cannot read it yet");
    let location = entries.iter().find(|entry| entry.key == field).map_or(Location::File, |entry| entry.location);
    Some((location, field, Fault::of(found, ALLOWED).saying(message)))
}

/// Returns what to write instead of a key that Azure ML knows and the job file does not.
pub fn hint(key: &str) -> Option<&'static str> {
    let hint = match key {
        "mini_batch_error_threshold" => "did you mean allowed_failed_count (v2: mini_batch_error_threshold)?",
        "append_row_to" => "did you mean output and append_row_file_name (v2: append_row_to)?",
        "code" => "did you mean source_directory (v2: task.code)?",
        "compute" => "did you mean compute_target (v2: compute)?",
        "conda_file" | "image" => "did you mean environment, an interpreter, a requirements file or a conda file?",
        "environment_name" | "environment_dir_path" => {
            "did you mean environment, an interpreter or a requirements file?"
        }
        "compute_target_name" => "did you mean compute_target?",
        "input_data" => "did you mean inputs (v2: input_data)?",
        "instance_count" | "resources" => "did you mean node_count (v2: resources.instance_count)?",
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
        "append_row_safe_output" => "leave it out, the output file always appears whole or not at all",
        "$schema" | "tags" | "properties" | "identity" => "leave it out, it has no meaning here",
        _ => return None,
    };
    Some(hint)
}
