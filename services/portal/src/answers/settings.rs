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

/// The settings so far.
#[derive(Default)]
struct Settings(Vec<Setting>);

impl Settings {
    /// Adds a setting, unless it has no value.
    fn add(&mut self, group: &'static str, key: &'static str, value: impl Into<Option<String>>) {
        self.0.extend(value.into().map(|value| Setting { key, value, group }));
    }
}

pub fn settings(spec: &JobSpec) -> Vec<Setting> {
    let mut all = Settings::default();
    for input in &spec.inputs {
        let kind = match input.kind {
            InputKind::File => "files",
            InputKind::Tabular => "tables",
        };
        let paths: Vec<String> = input.paths.iter().map(protocol::ItemPath::display).collect();
        all.add("inputs", "input", format!("{}: {kind} of {}", input.name, paths.join(", ")));
    }
    for (name, path) in &spec.side_inputs {
        all.add("inputs", "side_input", format!("{name}: {}", path.display()));
    }
    let size = match spec.mini_batch_size {
        _ if spec.rank_mini_batch_count > 0 => {
            format!("{} without input", spec.rank_mini_batch_count)
        }
        _ if !spec.partition_keys.is_empty() => format!("by {}", spec.partition_keys.join(", ")),
        MiniBatchSize::Files(count) => engine::words::counted(count, "file"),
        MiniBatchSize::Bytes(bytes) => engine::words::size(bytes),
        MiniBatchSize::Rows(rows) => engine::words::counted(rows, "row"),
    };
    all.add("mini-batches", "mini_batch_size", size);
    let limit = |limit: i64| if limit < 0 { "no limit".to_owned() } else { limit.to_string() };
    let thresholds = &spec.thresholds;
    all.add("failures", "error_threshold", limit(thresholds.error_threshold));
    all.add("failures", "allowed_failed_count", limit(thresholds.allowed_failed_count));
    all.add(
        "failures",
        "allowed_failed_percent",
        format!("{} %", thresholds.allowed_failed_percent),
    );
    all.add("failures", "run_max_try", spec.run_max_try.to_string());
    // 0 stands for none.
    let given = |number: u64, shown: fn(u64) -> String| (number > 0).then(|| shown(number));
    all.add("failures", "fail_fast", given(thresholds.fail_fast, |attempts| attempts.to_string()));
    let seconds = |seconds: u64| engine::words::duration(seconds as f64);
    all.add("time", "run_invocation_timeout", seconds(spec.run_invocation_timeout_seconds));
    all.add("time", "task_overhead_timeout", seconds(spec.task_overhead_timeout_seconds));
    all.add("time", "progress_update_timeout", seconds(spec.progress_update_timeout_seconds));
    all.add(
        "time",
        "first_task_creation_timeout",
        seconds(spec.first_task_creation_timeout_seconds),
    );
    let or = |value: Option<u32>, default: &str| {
        value.map_or_else(|| default.to_owned(), |value| value.to_string())
    };
    all.add("processes", "node_count", or(spec.node_count, "every node"));
    let default =
        if spec.asks_for_gpus() { "as many as have GPUs" } else { "one per core, or 1 with a GPU" };
    all.add("processes", "process_count_per_node", or(spec.process_count_per_node, default));
    all.add("processes", "gpus_per_process", spec.gpus_per_process.map(|gpus| gpus.to_string()));
    all.add(
        "processes",
        "process_count_per_gpu",
        spec.process_count_per_gpu.map(|processes| processes.to_string()),
    );
    all.add("processes", "owner", Some(spec.owner.clone()).filter(|owner| !owner.is_empty()));
    let priority = Some(spec.priority).filter(|priority| *priority != Priority::Normal);
    all.add("processes", "priority", priority.map(|priority| priority.word().to_owned()));
    all.add(
        "processes",
        "max_share",
        spec.max_share.map(|percent| format!("{percent} % of a node")),
    );
    all.add("processes", "max_memory", given(spec.max_memory, engine::words::size));
    all.add(
        "processes",
        "requires",
        (!spec.requires.is_empty()).then(|| spec.requires.to_string()),
    );
    all.add("processes", "process_max_runs", given(spec.process_max_runs, |runs| runs.to_string()));
    all.add("processes", "process_max_memory", given(spec.process_max_memory, engine::words::size));
    let python = match &spec.environment {
        Environment::Node => "the default interpreter".to_owned(),
        Environment::Interpreter { path } => path.display(),
        Environment::Requirements { file, .. } => file.display(),
    };
    all.add("processes", "environment", python);
    let action = match spec.output.action {
        OutputAction::SummaryOnly => "summary_only",
        OutputAction::AppendRow => "append_row",
    };
    all.add("output", "output_action", action.to_owned());
    all.add("output", "output", output_path(spec));
    let is_appended = spec.output.action == OutputAction::AppendRow;
    all.add(
        "output",
        "output_format",
        is_appended.then(|| format_word(spec.output.format).to_owned()),
    );
    all.add("other", "logging_level", spec.logging_level.clone());
    let words: Vec<String> = spec.argv.iter().map(|word| quoted(word)).collect();
    all.add("other", "arguments", (!words.is_empty()).then(|| words.join(" ")));
    let names: Vec<&str> = spec.environment_variables.keys().map(String::as_str).collect();
    all.add("other", "environment_variables", (!names.is_empty()).then(|| names.join(", ")));
    all.0
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
