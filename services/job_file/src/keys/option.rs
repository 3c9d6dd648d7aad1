//! Options of the engine among `arguments`: `--task_overhead_timeout 60`.

use std::ops::RangeInclusive;

use super::{Key, Table, key, key_with_default};
use crate::{Fault, Node};

/// Longest timeout that Azure ML allows: three days.
pub const TIMEOUT_SECONDS_MAX: u64 = 259_200;
const TIMEOUT: &str = "1 to 259200 s";
const BOOLEAN: &str = "`True`, `False`";

pub static TABLES: &[Table] = &[Table { name: "options", rows: ROWS }];

const ROWS: &[Key] = &[
    key_with_default("task_overhead_timeout", TIMEOUT, "30")
        .meaning(
            "Time to load a mini-batch and report its result, besides `run_invocation_timeout`.",
        )
        .job(|job, node| seconds(node).map(|seconds| job.task_overhead_timeout_seconds = seconds))
        .setting("task_overhead_timeout_seconds"),
    key(
        "progress_update_timeout",
        TIMEOUT,
        "3 × (`run_invocation_timeout` + `--task_overhead_timeout`)",
    )
    .meaning(
        "The job fails after this time without a finished mini-batch. Time without any worker, or \
         in which the whole process was stopped, does not count.",
    )
    .job(|job, node| seconds(node).map(|seconds| job.progress_update_timeout_seconds = seconds))
    .setting("progress_update_timeout_seconds")
    .left_out(),
    key_with_default("first_task_creation_timeout", TIMEOUT, "600")
        .meaning("The job fails if it creates no mini-batch within this time.")
        .job(|job, node| {
            seconds(node).map(|seconds| job.first_task_creation_timeout_seconds = seconds)
        })
        .setting("first_task_creation_timeout_seconds")
        .left_out(),
    key_with_default("resource_monitor_interval", "from 0 s", "600")
        .meaning(
            "Longest time between samples of processor, memory, disk and network; the first come \
             after 2, 4, 8, … s. 0: none.",
        )
        .job(|job, node| {
            let seconds = number(
                node,
                0..=i32::MAX as u64,
                "an integer of seconds from 0 (off) to 2147483647",
            );
            seconds.map(|seconds| job.resource_monitor_interval_seconds = seconds)
        })
        .setting("resource_monitor_interval_seconds")
        .left_out(),
    key_with_default("append_row_dataframe_header", BOOLEAN, "False")
        .meaning("Writes the column names of DataFrames once, as the first line of the output.")
        .job(|job, node| boolean(node).map(|header| job.output.header = header))
        .setting("output.header"),
    key("profiling_module", "`cProfile`, `profile`", "none")
        .meaning("Profiles every process with this module.")
        .job(|job, node| match node.written() {
            module @ ("" | "cProfile" | "profile") => {
                job.profiling_module = module.to_owned();
                Ok(())
            }
            _ => Err(Fault::new(node, "\"\", cProfile or profile")),
        })
        .left_out(),
    key_with_default("rank_mini_batch_count", "integer", "0")
        .meaning(
            "Number of mini-batches without input; the inputs are not read. A negative number \
             counts as 0.",
        )
        .job(|job, node| {
            let count: Result<i32, _> = node.written().trim().parse();
            let count =
                count.map_err(|_| Fault::new(node, "an integer up to 2147483647; below 0 is 0"))?;
            job.rank_mini_batch_count = count.max(0) as u64;
            Ok(())
        }),
    key_with_default("nice", "0 to 20", "5")
        .meaning("Scheduling priority of the Python processes; 20 is the lowest.")
        .job(|job, node| {
            number(node, 0..=20, "an integer from 0 to 20").map(|nice| job.nice = nice as u32)
        })
        .left_out(),
    key(SCORE_RUN_TIMEOUT, TIMEOUT, "")
        .meaning("Old name of `run_invocation_timeout`, which takes precedence.")
        .job(|job, node| seconds(node).map(|seconds| job.run_invocation_timeout_seconds = seconds))
        .setting(""),
    key("copy_logs_to_parent", BOOLEAN, "")
        .meaning(IGNORED)
        .job(|_, node| boolean(node).map(drop))
        .ignored(),
    key("push_metrics_to_parent", BOOLEAN, "")
        .meaning(IGNORED)
        .job(|_, node| boolean(node).map(drop))
        .ignored(),
    key("metrics_name_prefix", "text", "").meaning(IGNORED).job(|_, _| Ok(())).ignored(),
];

/// The option that `run_invocation_timeout` replaces.
pub const SCORE_RUN_TIMEOUT: &str = "score_run_timeout";
const IGNORED: &str = "Accepted without effect; a warning says so.";

fn number(node: &Node, range: RangeInclusive<u64>, allowed: &str) -> Result<u64, Fault> {
    let number = node.written().trim().parse().ok();
    number.filter(|number| range.contains(number)).ok_or_else(|| Fault::new(node, allowed))
}

fn seconds(node: &Node) -> Result<u64, Fault> {
    number(node, 1..=TIMEOUT_SECONDS_MAX, "an integer of seconds from 1 to 259200")
}

fn boolean(node: &Node) -> Result<bool, Fault> {
    match node.written().trim().to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" => Ok(true),
        "false" | "0" | "no" => Ok(false),
        _ => Err(Fault::new(node, "True or False")),
    }
}
