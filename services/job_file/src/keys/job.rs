//! Keys at the top of the job file.

use protocol::{
    Durability, Isolate, LABEL_ALLOWED, MiniBatchSize, OutputAction, Priority, is_label,
};

use super::option::TIMEOUT_SECONDS_MAX;
use super::{Key, REQUIRED, Table, key, key_with_default};
use crate::values::{boolean, choice, integer, memory, text};
use crate::{Fault, Node, ScalarKind};

/// Larger numbers of nodes, processes and GPUs are typing mistakes.
const NODE_COUNT_MAX: i64 = 10_000;
const CONCURRENCY_MAX: i64 = 1000;
const PROCESS_COUNT_MAX: i64 = 1_000;
const GPU_COUNT_MAX: i64 = 1_000;
const BOOLEAN: &str = "`true`, `false`";

pub static TABLES: &[Table] = &[
    Table { name: "script", rows: SCRIPT },
    Table { name: "work", rows: WORK },
    Table { name: "results", rows: RESULTS },
    Table { name: "limits", rows: LIMITS },
    Table { name: "nodes", rows: NODES },
];

const SCRIPT: &[Key] = &[
    key("name", "text", REQUIRED)
        .meaning(
            "3 to 32 lower-case letters, digits and `-`; begins with a letter, does not end in \
             `-`.",
        )
        .job(|job, node| name(node).map(|name| job.name = name)),
    key("description", "text", "none")
        .meaning("Text for people, which the portal shows.")
        .job(|job, node| text(node).map(|text| job.description = text))
        .left_out(),
    key("entry_script", "path or module", REQUIRED).meaning(
        "The Python script, below `source_directory`; without that key, relative to the job file. \
         Or a module, `package.module`; relative imports then work. `gristmill.mlflow_model` \
         calls `predict` of an MLflow `model` for each file.",
    ),
    key("source_directory", "folder", "the folder of the script").meaning(
        "What the script can import: the *snapshot*. It leaves out what `.amlignore` or \
         `.gitignore` excludes, files of editors and systems (`.git`, `__pycache__`, …), \
         environments, and folders with Gristmill's data (`.gristmill-data`). At most 20 000 \
         files and 300 MB travel to a target; beyond that, files that nothing refers to stay \
         behind, with a warning.",
    ),
    key("arguments", "list", "none").meaning(
        "Elements of `sys.argv`, as written; `true` and `false` become `True` and `False`. See \
         [Arguments](#arguments).",
    ),
    key(
        "environment",
        "path or mapping",
        "the interpreter of the command; on a target, that of the node",
    )
    .meaning(
        "The Python that runs the script: an interpreter (path, or name on `PATH`), a virtual \
         environment, or a requirements file (`.txt`), `pyproject.toml` or conda file (`.yml`), \
         from which an environment is created once. micromamba, mamba or conda on `PATH` installs \
         packages of conda, else pip if it has all of them (`numpy=1.26` becomes \
         `numpy==1.26.*`).",
    )
    .with_parts(),
    key("environment_variables", "mapping of texts", "none")
        .meaning(
            "Variables of the script's processes. `OMP_NUM_THREADS`, unless set here or in the \
             environment, is the share of one process in the cores.",
        )
        .with_parts(),
    key("side_inputs", "mapping of paths", "none")
        .meaning(
            "Reference data by name: `${{side_inputs.NAME}}` is its path, on a target that of the \
             node's copy. Each machine downloads a URL (`s3://…`, `gs://…`, `az://…`, \
             `https://…`; an object, or a folder with everything below it) once, and again when \
             it has changed.",
        )
        .with_parts(),
    key("model", "path", "none").meaning(
        "A file or folder, which the script finds in the folder `AZUREML_MODEL_DIR` under its own \
         name; on a target, and for a URL, a copy.",
    ),
];

const WORK: &[Key] = &[
    key("inputs", "list, or mapping by name", REQUIRED)
        .meaning("Inputs, all of one `type`. May be empty with `--rank_mini_batch_count`.")
        .with_parts(),
    key("mini_batch_size", "number or text", "10 files; for tables, `1MB`")
        .meaning(
            "At least 1. Files: a number (`10`). Tables: bytes (`100`, `10kb`, `1MB`, `1GB`; \
             units of 1024) or rows (`500 rows`). In Parquet, a size in bytes has no effect: each \
             row group is a mini-batch. A mini-batch has files of one folder, unless a pattern or \
             a list names them.",
        )
        .argument(2, |job, _| match job.mini_batch_size {
            MiniBatchSize::Files(count)
            | MiniBatchSize::Bytes(count)
            | MiniBatchSize::Rows(count) => Some(count.to_string()),
        }),
    key("partition_keys", "list of texts", "none")
        .meaning(
            "Instead of `mini_batch_size`: a mini-batch for each combination of values of these \
             columns, which `partition_format` of every input must name.",
        )
        .argument(14, |job, _| {
            (!job.partition_keys.is_empty()).then(|| json_list(&job.partition_keys))
        }),
];

const RESULTS: &[Key] = &[
    key("output_action", "`append_row`, `summary_only`", REQUIRED)
        .meaning(
            "`append_row`: all results in one file. `summary_only`: results are counted; the \
             script writes its own files.",
        )
        .job(|job, node| {
            let actions = [
                ("summary_only", OutputAction::SummaryOnly),
                ("append_row", OutputAction::AppendRow),
            ];
            let message = "Parameter output_action must be summary_only or append_row.";
            choice(node, &actions)
                .map(|action| job.output.action = action)
                .map_err(|fault| fault.saying(message))
        })
        .setting("output.action")
        .argument(4, |job, _| {
            let action = match job.output.action {
                OutputAction::SummaryOnly => "summary_only",
                OutputAction::AppendRow => "append_row",
            };
            Some(action.to_owned())
        }),
    key("output", "folder or URL", "required for `append_row`")
        .meaning(
            "Folder of the output file; `EntryScript().output_dir`. It must not lie in an input \
             or side input; with `summary_only`, it must not contain one, or `source_directory`, \
             either. `{run-id}`, here and in `outputs`, is the id of the job.",
        )
        .setting("output.folder")
        .argument(12, |job, _| {
            let folder = job.output.folder.as_bytes();
            (!folder.is_empty()).then(|| String::from_utf8_lossy(folder).into_owned())
        }),
    key("outputs", "mapping of folders or URLs", "none")
        .meaning(
            "Further folders that the script writes to, by name: `${{outputs.NAME}}`. Local ones \
             are created.",
        )
        .with_parts(),
    key_with_default("append_row_file_name", "text", "parallel_run_step.txt")
        .meaning("Name of the output file, without any of `~ \" # % & * : < > ? / \\ { | }`.")
        .setting("output.file_name")
        .argument(11, |job, _| {
            (job.output.action == OutputAction::AppendRow).then(|| job.output.file_name.clone())
        }),
    key_with_default("output_format", "`text`, `native`", "text")
        .meaning(
            "`text`: as Azure ML writes it. `native`: CSV with a header, JSON lines or Parquet, \
             by the extension `.csv`, `.jsonl` or `.parquet`. See [Native \
             formats](#native-formats).",
        )
        .setting("output.format"),
    key_with_default("strict_results", BOOLEAN, "false")
        .meaning(
            "Fewer results than items. `true`: the mini-batch fails. `false`: the missing items \
             count as failed.",
        )
        .job(|job, node| boolean(node).map(|strict| job.strict_results = strict)),
    key_with_default("run_without_rows", BOOLEAN, "false")
        .meaning(
            "A tabular input without any row. `true`: `run` gets one empty table with the columns \
             of the files. `false`: the job fails.",
        )
        .job(|job, node| boolean(node).map(|runs| job.run_without_rows = runs)),
    key("result_schema", "mapping or path", "none")
        .meaning(
            "Schema of each row: `columns: {NAME: TYPE}`, a JSON Schema, or the path of a file \
             with one of them. See [Checked results](#checked-results).",
        )
        .setting("output.row_schema"),
    key_with_default("allow_reuse", BOOLEAN, "true")
        .meaning(
            "Returns the result of a completed job that is [the \
             same](#which-job-is-the-same-job), if nothing has written to its output since.",
        )
        .job(|job, node| boolean(node).map(|allow| job.allow_reuse = allow))
        .left_out(),
];

const LIMITS: &[Key] = &[
    key_with_default("error_threshold", "integer from -1", "-1")
        .meaning("Failed items that the job allows; -1: any number.")
        .job(|job, node| {
            count("error_threshold", node).map(|count| job.thresholds.error_threshold = count)
        })
        .setting("thresholds.error_threshold")
        .argument(3, |job, _| Some(job.thresholds.error_threshold.to_string())),
    key_with_default("allowed_failed_count", "integer from -1", "-1")
        .meaning("Failed mini-batches that the job allows; -1: any number.")
        .job(|job, node| {
            count("allowed_failed_count", node)
                .map(|count| job.thresholds.allowed_failed_count = count)
        })
        .setting("thresholds.allowed_failed_count")
        .argument(9, |job, given| given.map(|_| job.thresholds.allowed_failed_count.to_string())),
    key_with_default("allowed_failed_percent", "number from 0 to 100", "100")
        .meaning(
            "Percentage of failed mini-batches that the job allows, judged when all are \
             scheduled.",
        )
        .job(|job, node| {
            percent(node).map(|percent| job.thresholds.allowed_failed_percent = percent)
        })
        .setting("thresholds.allowed_failed_percent")
        .argument(10, |_, given| given.map(|scalar| scalar.text.clone())),
    key("fail_fast", "integer from 1", "off")
        .meaning(
            "Attempts that fail for the same reason, at which the job fails. Retries, timeouts \
             and deaths of processes count; failures of `init()` have [their own \
             rule](#when-the-script-does-not-start).",
        )
        .job(|job, node| {
            integer(node, 1, i64::MAX).map(|attempts| job.thresholds.fail_fast = attempts)
        })
        .setting("thresholds.fail_fast"),
    key_with_default("run_invocation_timeout", "seconds, 1 to 259200", "60")
        .meaning(
            "Limit of one call of `run`. Gristmill kills the process after this time and \
             `--task_overhead_timeout`: 90 seconds by default.",
        )
        .job(|job, node| {
            integer(node, 1, TIMEOUT_SECONDS_MAX as i64)
                .map(|seconds| job.run_invocation_timeout_seconds = seconds)
        })
        .setting("run_invocation_timeout_seconds")
        .argument(6, |job, _| Some(job.run_invocation_timeout_seconds.to_string())),
    key_with_default("run_max_try", "integer from 1", "3")
        .meaning("Tries of a mini-batch. A lost machine uses up none.")
        .job(|job, node| integer(node, 1, i32::MAX.into()).map(|tries| job.run_max_try = tries))
        .argument(7, |job, _| Some(job.run_max_try.to_string())),
    key("isolate", "`off`, `halves`, `items`", "`items` with `append_row`, else `off`")
        .meaning(
            "After the last failed try of a mini-batch. `items`: only items that fail alone count \
             as failed. `halves`: each half runs once more. `off`: all items fail; always so with \
             `partition_keys`. See [Bad items](#bad-items).",
        )
        .job(|job, node| {
            // Other readers of YAML write `off` as `false`.
            let is_false =
                node.scalar().is_some_and(|scalar| scalar.kind == ScalarKind::Boolean(false));
            let ways =
                [("off", Isolate::Off), ("halves", Isolate::Halves), ("items", Isolate::Items)];
            let isolate = if is_false { Ok(Isolate::Off) } else { choice(node, &ways) };
            isolate.map(|isolate| job.isolate = isolate)
        }),
    key_with_default("isolate_items_max", "integer from 2", "2000000")
        .meaning(
            "Items of the largest mini-batch that `isolate` divides. A larger one fails as a \
             whole, with a warning.",
        )
        .job(|job, node| {
            integer(node, 2, u32::MAX.into()).map(|items| job.isolate_items_max = items)
        }),
    key("speculation", BOOLEAN, "`true` with `append_row` and without `limits`, else `false`")
        .meaning("See [Slow mini-batches](#slow-mini-batches).")
        .job(|job, node| boolean(node).map(|speculation| job.speculation = speculation))
        .left_out(),
    key_with_default("lost_delivery_max", "integer from 0", "10")
        .meaning(
            "Times that a mini-batch may be lost with its node before it fails. After three it \
             runs alone on its node, and fails if the node dies twice, or a fifth of this number \
             of times if that is more.",
        )
        .job(|job, node| {
            integer(node, 0, i32::MAX.into()).map(|deliveries| job.lost_delivery_max = deliveries)
        }),
];

const NODES: &[Key] = &[
    key("compute_target", "text", "this machine")
        .meaning(
            "`local`, or a target of `gristmill.toml` (see [TARGETS.md](../cli/TARGETS.md)). \
             `--target` and `GRISTMILL_TARGET` take precedence.",
        )
        .left_out(),
    key("node_count", "1 to 10000", "1; on a target, every node")
        .meaning(
            "On a target: most nodes that work on the job at a time. On this machine: agents side \
             by side.",
        )
        .job(|job, node| node_count(node).map(|nodes| job.node_count = Some(nodes)))
        .left_out(),
    key("requires", "mapping", "any node")
        .meaning("See [Which nodes take a job](#which-nodes-take-a-job).")
        .with_parts()
        .left_out(),
    key("process_count_per_node", "1 to 1000", "one for each core, or 1 where there is a GPU")
        .meaning(
            "Python processes on each node. With `gpus_per_process` or `process_count_per_gpu`, \
             the default is as many as have GPUs.",
        )
        .job(|job, node| {
            process_count(node).map(|processes| job.process_count_per_node = Some(processes))
        })
        .argument(13, |job, _| job.process_count_per_node.map(|processes| processes.to_string()))
        .left_out(),
    key("owner", "text", "the user who enqueues it")
        .meaning(
            "On a target: the person or team in `gristmill jobs` and for \
             [quotas](../cli/TARGETS.md#quotas). 1 to 63 letters, digits and `-_./`.",
        )
        .job(|job, node| owner(node).map(|owner| job.owner = owner))
        .left_out(),
    key_with_default("priority", "`low`, `normal`, `high`", "normal")
        .meaning("On a target. See [Several jobs on one fleet](#several-jobs-on-one-fleet).")
        .job(|job, node| {
            let priorities = Priority::ALL.map(|priority| (priority.word(), priority));
            choice(node, &priorities).map(|priority| job.priority = priority)
        })
        .left_out(),
    key("max_share", "1 to 100", "100")
        .meaning(
            "On a target: percentage of a node's processes that the job may have, even while no \
             other job has work; at least one.",
        )
        .job(|job, node| integer(node, 1, 100).map(|percent| job.max_share = Some(percent)))
        .left_out(),
    key("max_memory", "size: `500MB`, `16GB`", "what the node has for jobs")
        .meaning(
            "On a target: memory of the job's processes on one node together; units of 1024. See \
             [Memory of jobs](#memory-of-jobs).",
        )
        .job(|job, node| memory(node).map(|bytes| job.max_memory = bytes))
        .left_out(),
    key("process_max_runs", "integer from 1", "any number")
        .meaning(
            "Runs after which a process is replaced. See [Processes that wear \
             out](#processes-that-wear-out).",
        )
        .job(|job, node| integer(node, 1, i64::MAX).map(|runs| job.process_max_runs = runs))
        .left_out(),
    key("process_max_memory", "size: `500MB`, `2GB`", "any amount")
        .meaning(
            "Resident memory above which a process is replaced; units of 1024. See [Processes \
             that wear out](#processes-that-wear-out).",
        )
        .job(|job, node| memory(node).map(|bytes| job.process_max_memory = bytes))
        .left_out(),
    key_with_default("concurrency", "1 to 1000", "8")
        .meaning(
            "Items that a process works on at a time with `async def run_item`; a warning without \
             it.",
        )
        .job(|job, node| integer(node, 1, CONCURRENCY_MAX).map(|items| job.concurrency = items))
        .left_out(),
    key("limits", "mapping", "none")
        .meaning("See [Limits of a service](#limits-of-a-service).")
        .with_parts()
        .left_out(),
    key_with_default("logging_level", "`debug`, `info`, `warning`, `error`, `critical`", "info")
        .meaning("Lowest level that is logged; upper or lower case.")
        .job(|job, node| {
            choice(node, LOGGING_LEVELS).map(|level| job.logging_level = level.to_owned())
        })
        .argument(5, |job, _| Some(job.logging_level.clone()))
        .left_out(),
    key("gpus_per_process", "1 to 1000", "1")
        .meaning(
            "GPUs of each process, which no other process uses. See [GPUs of \
             processes](#gpus-of-processes).",
        )
        .job(|job, node| {
            integer(node, 1, GPU_COUNT_MAX).map(|gpus| job.gpus_per_process = Some(gpus))
        })
        .left_out(),
    key("process_count_per_gpu", "1 to 1000", "1")
        .meaning("Processes that share each GPU. See [GPUs of processes](#gpus-of-processes).")
        .job(|job, node| {
            integer(node, 1, PROCESS_COUNT_MAX).map(|count| job.process_count_per_gpu = Some(count))
        })
        .left_out(),
    key_with_default("hide_unassigned_gpus", BOOLEAN, "false")
        .meaning(
            "Processes without a GPU of their own see no GPU, instead of all GPUs of their job.",
        )
        .job(|job, node| boolean(node).map(|hide| job.hide_unassigned_gpus = hide)),
    key_with_default("durability", "`process`, `full`", "process")
        .meaning("See [What a power cut can cost](#what-a-power-cut-can-cost).")
        .job(|job, node| {
            let durabilities = [("process", Durability::Process), ("full", Durability::Full)];
            choice(node, &durabilities).map(|durability| job.durability = durability)
        })
        .left_out(),
];

/// Parses the name of a job: `^[a-z]([-a-z0-9]*[a-z0-9])?$`, 3 to 32 characters.
fn name(node: &Node) -> Result<String, Fault> {
    let name = text(node)?;
    let legal = |character: char| {
        character.is_ascii_lowercase() || character.is_ascii_digit() || character == '-'
    };
    match (3..=32).contains(&name.len())
        && name.chars().all(legal)
        && name.starts_with(|first: char| first.is_ascii_lowercase())
        && !name.ends_with('-')
    {
        true => Ok(name),
        false => {
            let allowed = "3 to 32 lower-case letters, digits and `-`, beginning with a letter and not ending in `-`";
            Err(Fault::new(node, allowed))
        }
    }
}

fn owner(node: &Node) -> Result<String, Fault> {
    let owner = text(node)?;
    if is_label(&owner) { Ok(owner) } else { Err(Fault::new(node, LABEL_ALLOWED)) }
}

/// Names of Python's `logging`, its two short forms included.
const LOGGING_LEVELS: &[(&str, &str)] = &[
    ("debug", "DEBUG"),
    ("info", "INFO"),
    ("warning", "WARNING"),
    ("error", "ERROR"),
    ("critical", "CRITICAL"),
    ("warn", "WARNING"),
    ("fatal", "CRITICAL"),
];

fn node_count(node: &Node) -> Result<u32, Fault> {
    integer(node, 1, NODE_COUNT_MAX).map_err(|fault| {
        fault.saying(format!(
            "node_count '{}' is not between 1 and max_nodes {NODE_COUNT_MAX}.",
            node.written()
        ))
    })
}

fn process_count(node: &Node) -> Result<u32, Fault> {
    integer(node, 1, PROCESS_COUNT_MAX).map_err(|fault| {
        match node.scalar().map(|scalar| scalar.kind) {
            Some(ScalarKind::Integer(count)) if count > PROCESS_COUNT_MAX => fault,
            _ => {
                fault.saying("Parameter process_count_per_node must be an integer greater than 0.")
            }
        }
    })
}

fn count(key: &str, node: &Node) -> Result<i64, Fault> {
    integer(node, -1, i64::MAX).map_err(|_| {
        let message =
            format!("{key} '{}' is not an int value greater than or equal to -1.", node.written());
        Fault::new(node, "an integer from -1 (any number), without quotes").saying(message)
    })
}

fn percent(node: &Node) -> Result<f64, Fault> {
    let fault = |expected: &str| {
        let message = format!("allowed_failed_percent '{}' is not {expected}.", node.written());
        Fault::new(node, "a number from 0 to 100 (any share)").saying(message)
    };
    let value = match node.scalar().map(|scalar| scalar.kind) {
        Some(ScalarKind::Integer(value)) => value as f64,
        Some(ScalarKind::Float(value)) => value,
        _ => return Err(fault("an int or float")),
    };
    if (0.0..=100.0).contains(&value) { Ok(value) } else { Err(fault("between 0 and 100")) }
}

/// Returns a JSON list with the separators of Python's `json.dumps`.
fn json_list(texts: &[String]) -> String {
    let quoted: Vec<String> =
        texts.iter().map(|text| serde_json::Value::from(text.as_str()).to_string()).collect();
    format!("[{}]", quoted.join(", "))
}
