//! Commands and a job file that run the script on just the items of one mini-batch, outside the
//! portal.

use protocol::{Block, Descriptor, Environment, ItemPath, JobSpec, Work};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::words::quoted;

/// Files that a job file names at most.
const FILES_MAX: usize = 1000;

#[derive(Debug, Serialize)]
pub struct TestCase {
    /// Runs the items with all settings of the job, in a job of its own.
    command: String,
    /// Writes its rows to a file, if they are those of tables that are files.
    rows: Option<String>,
    job_file: Option<JobFile>,
}

/// A job file that names the items, to keep and to change.
#[derive(Debug, Serialize)]
struct JobFile {
    name: String,
    text: String,
    command: String,
}

/// Returns the commands that run a mini-batch alone. `flags`: those that name the target.
pub fn test_case(spec: &JobSpec, descriptor: &Descriptor, flags: &str) -> Option<TestCase> {
    let command =
        format!("gristmill retry {} --mini-batch {}{flags}", spec.job_id, descriptor.mini_batch);
    let is_local = |blocks: &[Block]| blocks.iter().all(|block| !block.path.is_url());
    let rows = match &descriptor.work {
        Work::Rows { blocks, .. } if is_local(blocks) => {
            Some(format!("{command} --rows rows.parquet"))
        }
        _ => None,
    };
    engine::can_run_alone(descriptor).then(|| TestCase {
        command,
        rows,
        job_file: job_file(spec, descriptor),
    })
}

/// Returns a job file that runs the script on just these files. Parts of tables have none, nor has a job of which a
/// job file of a few lines would lack something: variables may be secret, and folders of outputs belong to the job.
fn job_file(spec: &JobSpec, descriptor: &Descriptor) -> Option<JobFile> {
    let Work::Files { input, paths, .. } = &descriptor.work else { return None };
    let is_short = spec.environment_variables.is_empty()
        && spec.side_inputs.is_empty()
        && spec.outputs.is_empty()
        && !matches!(spec.environment, Environment::Requirements { .. })
        && !spec.has_built_in_script();
    if !is_short || paths.len() > FILES_MAX {
        return None;
    }
    let number = descriptor.mini_batch;
    let input = spec.inputs.get(*input as usize)?;
    let mut job = Map::new();
    let mut add = |key: &str, value: Value| job.insert(key.to_owned(), value);
    add("name", json!(format!("{}-{number}", spec.name)));
    add("entry_script", json!(spec.entry_script));
    add("source_directory", json!(spec.source_directory.display()));
    let paths: Vec<String> = paths.iter().map(ItemPath::display).collect();
    add("inputs", json!([{ "name": input.name, "type": "file", "paths": paths }]));
    add("mini_batch_size", json!(paths.len()));
    let arguments = engine::arguments_of(spec);
    if !arguments.is_empty() {
        add("arguments", json!(arguments));
    }
    if let Environment::Interpreter { path } = &spec.environment {
        add("environment", json!(path.display()));
    }
    add("run_max_try", json!(1));
    add("error_threshold", json!(0));
    add("run_invocation_timeout", json!(spec.run_invocation_timeout_seconds));
    add("output_action", json!("summary_only"));
    add("allow_reuse", json!(false));
    let name = format!("{}-{number}.yaml", spec.name);
    Some(JobFile {
        text: serde_json::to_string_pretty(&Value::Object(job)).ok()? + "\n",
        command: format!("gristmill run {}", quoted(&name)),
        name,
    })
}

#[cfg(test)]
mod tests {
    use protocol::{BlockRange, Input, InputKind};

    use super::*;

    fn spec() -> JobSpec {
        let input = Input {
            name: "data".into(),
            kind: InputKind::File,
            paths: vec!["/in".into()],
            partition_format: None,
            table: Default::default(),
        };
        let argv = ["--scoring_module_name", "entry.py", "--model", "a b", "--input_fds_0", "data"];
        JobSpec {
            inputs: vec![input],
            argv: argv.map(str::to_owned).to_vec(),
            ..JobSpec::example()
        }
    }

    fn files() -> Descriptor {
        let paths = vec!["/in/a b.txt".into()];
        Descriptor::new(
            "job",
            3,
            Work::Files { input: 0, paths, versions: vec![], stamps: vec![], key: vec![] },
        )
    }

    #[test]
    fn job_file_names_just_these_files_and_the_arguments() {
        let case = test_case(&spec(), &files(), "").expect("files");
        let job: Value =
            serde_json::from_str(&case.job_file.expect("short").text).expect("JSON is YAML");
        assert_eq!(job["inputs"][0]["paths"], json!(["/in/a b.txt"]));
        assert_eq!(
            (&job["mini_batch_size"], &job["arguments"]),
            (&json!(1), &json!(["--model", "a b"]))
        );
    }

    #[test]
    fn job_file_that_would_lack_something_is_not_offered() {
        let variables = [("API_KEY".to_owned(), "secret".to_owned())].into();
        let outputs = [("extra".to_owned(), "/out".into())].into();
        for spec in
            [JobSpec { environment_variables: variables, ..spec() }, JobSpec { outputs, ..spec() }]
        {
            let case = test_case(&spec, &files(), "").expect("the command has everything");
            assert!(case.job_file.is_none());
        }
    }

    #[test]
    fn rows_of_tables_run_by_a_command() {
        let range = BlockRange::RowGroup { row_group: 3, offset: 90, rows: 10 };
        let block =
            Block { path: "/in/t.parquet".into(), version: None, range, path_columns: vec![] };
        let rows = Work::Rows { input: 0, blocks: vec![block], rows_before: None, key: vec![] };
        let spec = spec();
        let case =
            test_case(&spec, &Descriptor::new("job", 7, rows), " --target prod").expect("rows");
        assert_eq!(
            case.command,
            format!("gristmill retry {} --mini-batch 7 --target prod", spec.job_id)
        );
        assert_eq!(case.rows, Some(format!("{} --rows rows.parquet", case.command)));
        assert!(case.job_file.is_none());
        assert!(test_case(&spec, &Descriptor::new("job", 7, Work::Rank), "").is_none());
    }
}
