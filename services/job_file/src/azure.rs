//! Documents of Azure ML: pipelines, parallel components and batch deployments, and the names that its second version
//! gives to keys.
//!
//! A reader turns each step of a document into entries of a job file that keep their locations, for `load` to read. It
//! reports everything that a job file cannot express, as a mistake or in one warning.
//!
//! | module | purpose |
//! |---|---|
//! | `kind` | the kind of a document; documents that Gristmill does not run |
//! | `steps` | a document as steps, for callers |
//! | `document_overrides` | the changes of a command line to a document |
//! | `reader` | the common part of all readers: keys, references, the job file under construction |
//! | `layers` | a step and the component that it refers to, read as one mapping |
//! | `known` | the keys of each mapping, and why some have no effect |
//! | `expression` | `${{…}}`, `$[[…]]` and arguments in one text |
//! | `names` | `azureml:…` and other addresses, by the tables of `gristmill.toml` |
//! | `versioned` | names with versions |
//! | `register` | outputs that jobs have registered under names |
//! | `components` | components by name |
//! | `document_keys` | `--set` with the keys of a document |
//! | `scope` | the names that a step can use |
//! | `bindings` | the values of inputs, and the destinations of outputs |
//! | `pipeline`, `parallel`, `command`, `deployment` | one kind of document or step each |
//! | `environment` | the Python of a step |

mod bindings;
mod command;
mod components;
mod deployment;
mod document_keys;
mod document_overrides;
mod environment;
mod expression;
mod kind;
mod known;
mod layers;
mod names;
mod parallel;
mod pipeline;
mod reader;
mod register;
mod scope;
mod steps;
mod versioned;

pub use document_overrides::DocumentOverrides;
pub use names::AzureNames;
pub use register::{Asset, Register};
pub use steps::{RUN_ID, Step, Steps};
#[cfg(test)]
pub use versioned::NameTable;

/// Returns a hint for a key that Azure ML knows and the job file does not.
pub fn hint(key: &str) -> Option<&'static str> {
    let hint = match key {
        "mini_batch_error_threshold" => {
            "did you mean allowed_failed_count (v2: mini_batch_error_threshold)?"
        }
        "append_row_to" => "did you mean output and append_row_file_name (v2: append_row_to)?",
        "code" => "did you mean source_directory (v2: task.code)?",
        "compute" => "did you mean compute_target (v2: compute)?",
        "conda_file" | "image" => {
            "did you mean environment, an interpreter, a requirements file or a conda file?"
        }
        "environment_name" | "environment_dir_path" => {
            "did you mean environment, an interpreter or a requirements file?"
        }
        "compute_target_name" => "did you mean compute_target?",
        "input_data" => "did you mean inputs (v2: input_data)?",
        "instance_count" | "resources" => "did you mean node_count (v2: resources.instance_count)?",
        "keep_columns" => "did you mean columns (TabularDataset.keep_columns)?",
        "is_deterministic" => "did you mean allow_reuse (v2: is_deterministic)?",
        "max_concurrency_per_instance" => {
            "did you mean process_count_per_node (v2: max_concurrency_per_instance)?"
        }
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
        "append_row_safe_output" => {
            "leave it out, the output file always appears whole or not at all"
        }
        "$schema" | "tags" | "properties" | "identity" => "leave it out, it has no meaning here",
        _ => return None,
    };
    Some(hint)
}
