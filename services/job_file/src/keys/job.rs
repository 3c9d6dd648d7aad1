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
            "3 to 32 lower-case letters, digits and `-`, beginning with a letter and not ending in `-`. Job ids begin \
             with it.",
        )
        .job(|job, node| name(node).map(|name| job.name = name)),
    key("description", "text", "none")
        .meaning("A text for people, which the portal shows.")
        .job(|job, node| text(node).map(|text| job.description = text))
        .left_out(),
    key("entry_script", "path or module", REQUIRED).meaning(
        "The Python script, relative to `source_directory` and below it; without `source_directory`, relative to the job \
         file. Or its name as a module, `package.module`, below the same folder; relative imports then work. `gristmill.mlflow_model` is Gristmill's \
         own script for an MLflow `model`: one call of `predict` for each file.",
    ),
    key("source_directory", "folder", "the folder of the script").meaning(
        "What the script can import. This folder is the *snapshot*, except for what its `.amlignore` or `.gitignore` \
         exclude, files of editors and systems (`.git`, `.vscode`, `__pycache__`, `.DS_Store`, …), environments, and \
         folders in which Gristmill keeps jobs, queues or a store (`.gristmill-data` marks them). At most 20 000 files \
         and 300 MB travel to a compute target; if the folder is larger, files that nothing refers to stay behind, and \
         a warning names them. A job on this machine copies nothing, so the size does not matter.",
    ),
    key("arguments", "list", "none").meaning(
        "Elements of `sys.argv` of the script, as written; `true` and `false` become `True` and `False`. See *Arguments*.",
    ),
    key("environment", "path or mapping", "the interpreter of the command; on a target, that of the node")
        .meaning(
            "The Python that runs the script: an interpreter (path, or name on `PATH`), the folder of a virtual \
             environment, or a requirements file (`.txt`), `pyproject.toml` or conda file (`.yml`), from which \
             Gristmill creates an environment once. Packages of conda are installed by micromamba, \
             mamba or conda if one is on `PATH`, and otherwise by pip if it has all of them (`numpy=1.26` becomes \
             `numpy==1.26.*`).",
        )
        .with_parts(),
    key("environment_variables", "mapping of texts", "none")
        .meaning(
            "Variables of the processes that run the script. If neither this key nor the environment sets \
             `OMP_NUM_THREADS`, its value is the share of one process in the cores of its node; OpenBLAS, MKL, PyTorch, \
             Arrow and others use that many threads.",
        )
        .with_parts(),
    key("side_inputs", "mapping of paths", "none")
        .meaning(
            "Reference data by name, the same for every mini-batch. The script gets the path through \
             `${{side_inputs.NAME}}`; on a compute target, the path of the node's own copy. Each machine downloads a URL \
             (`s3://…`, `gs://…`, `az://…`, `https://…`: an object, or a folder with everything below it) once, and \
             again when it has changed; the script gets the path of that copy.",
        )
        .with_parts(),
    key("model", "path", "none").meaning(
        "A model: a file or a folder. Scripts find it below the folder `AZUREML_MODEL_DIR`, under its own name; on a \
         compute target, and for a URL, a copy of it.",
    ),
];

const WORK: &[Key] = &[
    key("inputs", "list, or mapping by name", REQUIRED)
        .meaning("One or more inputs, all of one `type`. May be empty with `--rank_mini_batch_count`.")
        .with_parts(),
    key("mini_batch_size", "number or text", "10 files; for tables, `1MB`")
        .meaning(
            "Size of a mini-batch, at least 1. Files: a number (`10`). Tables: bytes (`100`, `10kb`, `1MB`, `1GB`; units \
             of 1024) or rows (`500 rows`). A size in bytes has no effect on Parquet, where a row group is a mini-batch.",
        )
        .argument(2, |job, _| match job.mini_batch_size {
            MiniBatchSize::Files(count) | MiniBatchSize::Bytes(count) | MiniBatchSize::Rows(count) => {
                Some(count.to_string())
            }
        }),
    key("partition_keys", "list of texts", "none")
        .meaning(
            "Instead of `mini_batch_size`: one mini-batch for each combination of values of these columns, which \
             `partition_format` of every input must name.",
        )
        .argument(14, |job, _| (!job.partition_keys.is_empty()).then(|| json_list(&job.partition_keys))),
];

const RESULTS: &[Key] = &[
    key("output_action", "`append_row`, `summary_only`", REQUIRED)
        .meaning(
            "`append_row`: all results go into one file. `summary_only`: results are counted; the script writes its own \
             files.",
        )
        .job(|job, node| {
            let actions = [("summary_only", OutputAction::SummaryOnly), ("append_row", OutputAction::AppendRow)];
            let message = "Parameter output_action must be summary_only or append_row.";
            choice(node, &actions).map(|action| job.output.action = action).map_err(|fault| fault.saying(message))
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
            "Folder of the output file; `EntryScript().output_dir`. It may lie beside the inputs, contain them, or lie \
             inside `source_directory`. It must not lie in an input or a side input, where the next run would read it. \
             With `summary_only`, it must not contain them or `source_directory` either, because a script may write \
             anything there. Gristmill checks before the first mini-batch that it can write there. `{run-id}` in it stands \
             for the id of the job, here and in `outputs`: each run then has a folder of its own.",
        )
        .setting("output.folder")
        .argument(12, |job, _| {
            let folder = job.output.folder.as_bytes();
            (!folder.is_empty()).then(|| String::from_utf8_lossy(folder).into_owned())
        }),
    key("outputs", "mapping of folders or URLs", "none")
        .meaning(
            "Further folders that the script writes to, by name. The script gets the path through `${{outputs.NAME}}`; \
             Gristmill creates local folders before the script starts.",
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
            "`text`: as the original wrote it. `native`: CSV with a header, JSON lines or Parquet, by the extension of the \
             file name: `.csv`, `.jsonl` or `.parquet`.",
        )
        .setting("output.format"),
    key_with_default("strict_results", BOOLEAN, "false")
        .meaning(
            "`true`: a result shorter than its mini-batch fails the mini-batch. `false`: the missing items count as failed.",
        )
        .job(|job, node| boolean(node).map(|strict| job.strict_results = strict)),
    key_with_default("run_without_rows", BOOLEAN, "false")
        .meaning(
            "What happens if no file of a tabular input has a row. `true`: `run` gets one table without rows, with the \
             columns of the files, so that the output has the columns that `run` makes of it. `false`: the job fails.",
        )
        .job(|job, node| boolean(node).map(|runs| job.run_without_rows = runs)),
    key("result_schema", "mapping or path", "none")
        .meaning(
            "Schema of each row: `columns: {NAME: TYPE}`, a JSON Schema, or the path of a file with one of them. Items \
             whose rows do not fit are rejected, and their rows are not in the output. See *Checked results*.",
        )
        .setting("output.row_schema"),
    key_with_default("allow_reuse", BOOLEAN, "true")
        .meaning(
            "Returns the result of a completed job with the same script, settings and inputs, instead of running again, if \
             nothing has written to its output since.",
        )
        .job(|job, node| boolean(node).map(|allow| job.allow_reuse = allow))
        .left_out(),
];

const LIMITS: &[Key] = &[
    key_with_default("error_threshold", "integer from -1", "-1")
        .meaning("Failed items; -1: any number. The original's first version required it.")
        .job(|job, node| count("error_threshold", node).map(|count| job.thresholds.error_threshold = count))
        .setting("thresholds.error_threshold")
        .argument(3, |job, _| Some(job.thresholds.error_threshold.to_string())),
    key_with_default("allowed_failed_count", "integer from -1", "-1")
        .meaning("Failed mini-batches; -1: any number.")
        .job(|job, node| count("allowed_failed_count", node).map(|count| job.thresholds.allowed_failed_count = count))
        .setting("thresholds.allowed_failed_count")
        .argument(9, |job, given| given.map(|_| job.thresholds.allowed_failed_count.to_string())),
    key_with_default("allowed_failed_percent", "number from 0 to 100", "100")
        .meaning("Percentage of failed mini-batches, judged when all are scheduled; 100: any.")
        .job(|job, node| percent(node).map(|percent| job.thresholds.allowed_failed_percent = percent))
        .setting("thresholds.allowed_failed_percent")
        .argument(10, |_, given| given.map(|scalar| scalar.text.clone())),
    key("fail_fast", "integer from 1", "off")
        .meaning(
            "Number of attempts that fail for the same reason, retries included, at which the job fails. Two errors are \
             the same if category and message are, apart from numbers, paths and quoted texts. Deaths of processes and \
             timeouts count; failures of `init()` have [their own rule](#when-the-script-does-not-start).",
        )
        .job(|job, node| integer(node, 1, i64::MAX).map(|attempts| job.thresholds.fail_fast = attempts))
        .setting("thresholds.fail_fast"),
    key_with_default("run_invocation_timeout", "seconds, 1 to 259200", "60")
        .meaning("Limit of one call of `run`.")
        .job(|job, node| {
            integer(node, 1, TIMEOUT_SECONDS_MAX as i64).map(|seconds| job.run_invocation_timeout_seconds = seconds)
        })
        .setting("run_invocation_timeout_seconds")
        .argument(6, |job, _| Some(job.run_invocation_timeout_seconds.to_string())),
    key_with_default("run_max_try", "integer from 1", "3")
        .meaning("Tries of a mini-batch that the script may fail.")
        .job(|job, node| integer(node, 1, i32::MAX.into()).map(|tries| job.run_max_try = tries))
        .argument(7, |job, _| Some(job.run_max_try.to_string())),
    key("isolate", "`off`, `halves`, `items`", "`items` with `append_row`, else `off`")
        .meaning(
            "What happens to a mini-batch of files or rows after its last try has failed. `off`: all its items fail. \
             `items`: its items run again in ever smaller ranges, and only items that fail alone count as failed. \
             `halves`: each half runs once more. Always `off` with `partition_keys`. See *Bad items*.",
        )
        .job(|job, node| {
            // Other readers of YAML write `off` as `false`.
            let is_false = node.scalar().is_some_and(|scalar| scalar.kind == ScalarKind::Boolean(false));
            let ways = [("off", Isolate::Off), ("halves", Isolate::Halves), ("items", Isolate::Items)];
            let isolate = if is_false { Ok(Isolate::Off) } else { choice(node, &ways) };
            isolate.map(|isolate| job.isolate = isolate)
        }),
    key_with_default("isolate_items_max", "integer from 2", "2000000")
        .meaning(
            "Items of the largest mini-batch that `isolate` divides. All items of a larger one fail together, and a \
             warning says so.",
        )
        .job(|job, node| integer(node, 2, u32::MAX.into()).map(|items| job.isolate_items_max = items)),
    key("speculation", BOOLEAN, "`true` with `append_row` and without `limits`, else `false`")
        .meaning(
            "Whether a mini-batch that runs far longer than its peers gets a speculative run elsewhere, once nothing else \
             waits; the first success counts. See *Slow mini-batches*.",
        )
        .job(|job, node| boolean(node).map(|speculation| job.speculation = speculation))
        .left_out(),
    key_with_default("lost_delivery_max", "integer from 0", "10")
        .meaning("Number of times that a mini-batch may be lost with its node before it counts as failed. After three it runs \
             alone on its node, and it fails earlier if the node dies twice then, or a fifth of this number of times if that is more.")
        .job(|job, node| integer(node, 0, i32::MAX.into()).map(|deliveries| job.lost_delivery_max = deliveries)),
];

const NODES: &[Key] = &[
    key("compute_target", "text", "this machine")
        .meaning(
            "Where `run` runs the job: `local`, or a target of `gristmill.toml` (see [TARGETS.md](../cli/TARGETS.md)). \
             `--target` and `GRISTMILL_TARGET` take precedence.",
        )
        .left_out(),
    key("node_count", "1 to 10000", "1; on a target, every node")
        .meaning(
            "On this machine: number of agents side by side. On a compute target: maximum number of nodes that work \
             on the job at a time.",
        )
        .job(|job, node| node_count(node).map(|nodes| job.node_count = Some(nodes)))
        .left_out(),
    key("requires", "mapping", "any node")
        .meaning(
            "What each node of a compute target must have to take the job: `gpus`, `memory`, `processors`, `labels`. See \
             [Which nodes take a job](#which-nodes-take-a-job).",
        )
        .with_parts()
        .left_out(),
    key("process_count_per_node", "1 to 1000", "one for each core, or 1 where there is a GPU")
        .meaning(
            "Python processes on each node. The default of a job with `gpus_per_process` or `process_count_per_gpu`: as many \
             as have GPUs.",
        )
        .job(|job, node| process_count(node).map(|processes| job.process_count_per_node = Some(processes)))
        .argument(13, |job, _| job.process_count_per_node.map(|processes| processes.to_string()))
        .left_out(),
    key("owner", "text", "the user who enqueues it")
        .meaning(
            "On a compute target: the person or team that the job counts for, in `gristmill jobs` and for \
             [quotas](../cli/TARGETS.md#quotas). 1 to 63 letters, digits and `-_./`.",
        )
        .job(|job, node| owner(node).map(|owner| job.owner = owner))
        .left_out(),
    key_with_default("priority", "`low`, `normal`, `high`", "normal")
        .meaning(
            "On a compute target: how many of the fleet's processes the job gets while other jobs have work: four times as \
             many as a job of the next lower priority. See [Several jobs on one fleet](#several-jobs-on-one-fleet).",
        )
        .job(|job, node| {
            let priorities = Priority::ALL.map(|priority| (priority.word(), priority));
            choice(node, &priorities).map(|priority| job.priority = priority)
        })
        .left_out(),
    key("max_share", "1 to 100", "100")
        .meaning(
            "On a compute target: the largest part of a node's processes that the job gets, in percent, even while no \
             other job has work, on each node. At least one process.",
        )
        .job(|job, node| integer(node, 1, 100).map(|percent| job.max_share = Some(percent)))
        .left_out(),
    key("max_memory", "size: `500MB`, `16GB`", "what the node has for jobs")
        .meaning(
            "On a compute target: memory of the job's processes on one node together, in multiples of 1024, child processes \
             included. The kernel kills a process that would exceed it. See [Memory of jobs](#memory-of-jobs).",
        )
        .job(|job, node| memory(node).map(|bytes| job.max_memory = bytes))
        .left_out(),
    key("process_max_runs", "integer from 1", "any number")
        .meaning(
            "Runs after which a process is replaced by a new one, between two mini-batches. See \
             [Processes that wear out](#processes-that-wear-out).",
        )
        .job(|job, node| integer(node, 1, i64::MAX).map(|runs| job.process_max_runs = runs))
        .left_out(),
    key("process_max_memory", "size: `500MB`, `2GB`", "any amount")
        .meaning(
            "Memory above which a process is replaced by a new one, between two mini-batches: its resident memory (RSS) \
             in multiples of 1024, without children. See [Processes that wear out](#processes-that-wear-out).",
        )
        .job(|job, node| memory(node).map(|bytes| job.process_max_memory = bytes))
        .left_out(),
    key_with_default("concurrency", "1 to 1000", "8")
        .meaning(
            "Items of its mini-batch that a process works on at a time, if the script has `async def run_item`; a \
             warning, if it has not.",
        )
        .job(|job, node| integer(node, 1, CONCURRENCY_MAX).map(|items| job.concurrency = items))
        .left_out(),
    key("limits", "mapping", "none")
        .meaning(
            "Limits on the requests of all processes of all nodes together to a service: `requests_per_minute`, \
             `tokens_per_minute`, `concurrent`. See [Limits of a service](#limits-of-a-service).",
        )
        .with_parts()
        .left_out(),
    key_with_default("logging_level", "`debug`, `info`, `warning`, `error`, `critical`", "info")
        .meaning("Lowest level that is logged; upper or lower case.")
        .job(|job, node| choice(node, LOGGING_LEVELS).map(|level| job.logging_level = level.to_owned()))
        .argument(5, |job, _| Some(job.logging_level.clone()))
        .left_out(),
    key("gpus_per_process", "1 to 1000", "1")
        .meaning(
            "GPUs of each process, which no other process uses: for models that need several. See [GPUs of processes](#gpus-of-processes).",
        )
        .job(|job, node| integer(node, 1, GPU_COUNT_MAX).map(|gpus| job.gpus_per_process = Some(gpus)))
        .left_out(),
    key("process_count_per_gpu", "1 to 1000", "1")
        .meaning(
            "Processes that share each GPU: for models that leave room on it. See [GPUs of \
             processes](#gpus-of-processes).",
        )
        .job(|job, node| integer(node, 1, PROCESS_COUNT_MAX).map(|count| job.process_count_per_gpu = Some(count)))
        .left_out(),
    key_with_default("hide_unassigned_gpus", BOOLEAN, "false")
        .meaning(
            "Hides all GPUs from processes without a GPU of their own. By default these see all GPUs of their job.",
        )
        .job(|job, node| boolean(node).map(|hide| job.hide_unassigned_gpus = hide)),
    key_with_default("durability", "`process`, `full`", "process")
        .meaning(
            "Which failures committed work survives. `process`: the death of every process; a power cut costs the \
             work of some seconds. `full`: a power cut costs only what runs at that moment. See *What a power cut can cost*.",
        )
        .job(|job, node| {
            let durabilities = [("process", Durability::Process), ("full", Durability::Full)];
            choice(node, &durabilities).map(|durability| job.durability = durability)
        })
        .left_out(),
];

/// `^[a-z]([-a-z0-9]*[a-z0-9])?$`, 3 to 32 characters.
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
    let fault = |what: &str| {
        let message = format!("allowed_failed_percent '{}' is not {what}.", node.written());
        Fault::new(node, "a number from 0 to 100 (any share)").saying(message)
    };
    let value = match node.scalar().map(|scalar| scalar.kind) {
        Some(ScalarKind::Integer(value)) => value as f64,
        Some(ScalarKind::Float(value)) => value,
        _ => return Err(fault("an int or float")),
    };
    if (0.0..=100.0).contains(&value) { Ok(value) } else { Err(fault("between 0 and 100")) }
}

/// As Python's `json.dumps` separates it.
fn json_list(texts: &[String]) -> String {
    let quoted: Vec<String> =
        texts.iter().map(|text| serde_json::Value::from(text.as_str()).to_string()).collect();
    format!("[{}]", quoted.join(", "))
}
