//! The settings of a job, for people. Values of environment variables are not shown, because they may be secrets.

use protocol::{Environment, InputKind, JobSpec, MiniBatchSize, OutputAction, Priority};
use serde::Serialize;

use super::words::{format_word, output_path, quoted};

#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Setting {
    key: &'static str,
    value: String,
    group: &'static str,
}

pub fn settings(spec: &JobSpec) -> Vec<Setting> {
    let mut settings = Vec::new();
    let mut add = |group, key, value: String| settings.push(Setting { key, value, group });
    let or = |value: Option<u32>, default: &str| value.map_or_else(|| default.to_owned(), |value| value.to_string());
    for input in &spec.inputs {
        let kind = match input.kind {
            InputKind::File => "files",
            InputKind::Tabular => "tables",
        };
        let paths: Vec<String> = input.paths.iter().map(protocol::ItemPath::display).collect();
        add("inputs", "input", format!("{}: {kind} of {}", input.name, paths.join(", ")));
    }
    for (name, path) in &spec.side_inputs {
        add("inputs", "side_input", format!("{name}: {}", path.display()));
    }
    let size = match spec.mini_batch_size {
        _ if spec.rank_mini_batch_count > 0 => format!("{} without input", spec.rank_mini_batch_count),
        _ if !spec.partition_keys.is_empty() => format!("by {}", spec.partition_keys.join(", ")),
        MiniBatchSize::Files(count) => engine::words::counted(count, "file"),
        MiniBatchSize::Bytes(bytes) => engine::size(bytes),
        MiniBatchSize::Rows(rows) => engine::words::counted(rows, "row"),
    };
    add("mini-batches", "mini_batch_size", size);
    let limit = |limit: i64| if limit < 0 { "no limit".to_owned() } else { limit.to_string() };
    let thresholds = &spec.thresholds;
    add("failures", "error_threshold", limit(thresholds.error_threshold));
    add("failures", "allowed_failed_count", limit(thresholds.allowed_failed_count));
    add("failures", "allowed_failed_percent", format!("{} %", thresholds.allowed_failed_percent));
    add("failures", "run_max_try", spec.run_max_try.to_string());
    if thresholds.fail_fast > 0 {
        add("failures", "fail_fast", thresholds.fail_fast.to_string());
    }
    let seconds = |seconds: u64| engine::duration(seconds as f64);
    add("time", "run_invocation_timeout", seconds(spec.run_invocation_timeout_seconds));
    add("time", "task_overhead_timeout", seconds(spec.task_overhead_timeout_seconds));
    add("time", "progress_update_timeout", seconds(spec.progress_update_timeout_seconds));
    add("time", "first_task_creation_timeout", seconds(spec.first_task_creation_timeout_seconds));
    add("processes", "node_count", or(spec.node_count, "every node"));
    add("processes", "process_count_per_node", or(spec.process_count_per_node, "one per core, or 1 with a GPU"));
    if !spec.owner.is_empty() {
        add("processes", "owner", spec.owner.clone());
    }
    if spec.priority != Priority::Normal {
        add("processes", "priority", spec.priority.word().to_owned());
    }
    if let Some(percent) = spec.max_share {
        add("processes", "max_share", format!("{percent} % of a node"));
    }
    if spec.max_memory > 0 {
        add("processes", "max_memory", engine::size(spec.max_memory));
    }
    if !spec.requires.is_empty() {
        add("processes", "requires", spec.requires.to_string());
    }
    if spec.process_max_runs > 0 {
        add("processes", "process_max_runs", spec.process_max_runs.to_string());
    }
    if spec.process_max_memory > 0 {
        add("processes", "process_max_memory", engine::size(spec.process_max_memory));
    }
    let python = match &spec.environment {
        Environment::Node => "the default interpreter".to_owned(),
        Environment::Interpreter { path } => path.display(),
        Environment::Requirements { file, .. } => file.display(),
    };
    add("processes", "environment", python);
    let action = match spec.output.action {
        OutputAction::SummaryOnly => "summary_only",
        OutputAction::AppendRow => "append_row",
    };
    add("output", "output_action", action.to_owned());
    add("output", "output", output_path(spec));
    if spec.output.action == OutputAction::AppendRow {
        add("output", "output_format", format_word(spec.output.format).to_owned());
    }
    add("other", "logging_level", spec.logging_level.clone());
    if !spec.argv.is_empty() {
        let words: Vec<String> = spec.argv.iter().map(|word| quoted(word)).collect();
        add("other", "arguments", words.join(" "));
    }
    if !spec.environment_variables.is_empty() {
        let names: Vec<&str> = spec.environment_variables.keys().map(String::as_str).collect();
        add("other", "environment_variables", names.join(", "));
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_environment_variables_are_not_shown() {
        let variables = [("API_KEY".to_owned(), "secret-value".to_owned())].into();
        let spec = JobSpec { environment_variables: variables, ..JobSpec::example() };
        let text = format!("{:?}", settings(&spec));
        assert!(text.contains("API_KEY") && !text.contains("secret-value"), "{text}");
    }
}
