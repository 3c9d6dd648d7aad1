//! Documents of Azure ML and the job files that they become.

use std::path::Path;

use protocol::{InputKind, JobSpec, MiniBatchSize, OutputAction};

use super::{Workplace, lines, sound};
use crate::{AzureNames, Context, DocumentOverrides, Parsed, Problem, Steps, load};

pub const COMPONENT: &str = "\
$schema: https://azuremlschemas.azureedge.net/latest/parallelComponent.schema.json
type: parallel
name: Score_Images
display_name: Score images
version: 3
inputs:
  data:
    type: uri_folder
  model:
    type: uri_folder
    mode: download
  cut:
    type: number
    default: 0.5
  note:
    type: string
    optional: true
outputs:
  rows:
    type: uri_file
  images:
    type: uri_folder
input_data: ${{inputs.data}}
mini_batch_size: \"5\"
resources:
  instance_count: 2
  instance_type: Standard_D2
max_concurrency_per_instance: 2
error_threshold: 4
mini_batch_error_threshold: 5
retry_settings:
  max_retries: 1
  timeout: 90
logging_level: \"DEBUG\"
environment_variables:
  KIND: k-${{inputs.cut}}
task:
  type: run_function
  code: ./code
  entry_script: entry.py
  environment:
    image: mcr.microsoft.com/azureml/openmpi4.1.0-ubuntu20.04
  program_arguments: >-
    --model ${{inputs.model}}
    --cut ${{inputs.cut}} $[[--note ${{inputs.note}}]]
    --images '${{outputs.images}}/a b'
    --allowed_failed_percent 30
    --resource_monitor_interva 20
  append_row_to: ${{outputs.rows}}
";

pub const DEPLOYMENT: &str = "\
$schema: https://azuremlschemas.azureedge.net/latest/modelBatchDeployment.schema.json
name: mnist-dpl
endpoint_name: mnist
type: model
model:
  name: net
  path: model
code_configuration:
  code: code
  scoring_script: entry.py
environment:
  name: env
  image: mcr.microsoft.com/azureml/openmpi4.1.0-ubuntu20.04:latest
compute: azureml:batch-cluster
resources:
  instance_count: 1
settings:
  max_concurrency_per_instance: 3
  mini_batch_size: 7
  output_action: append_row
  output_file_name: rows.csv
  retry_settings:
    max_retries: 2
    timeout: 40
  error_threshold: 9
  logging_level: warning
  environment_variables:
    A: b
";

impl Workplace {
    pub fn azure() -> Self {
        let workplace = Self::new();
        workplace.write("model/weights.bin", "w");
        workplace.write("mlflow/MLmodel", "flavors: {}\n");
        workplace
    }

    pub fn read(&self, text: &str, overrides: &DocumentOverrides) -> Result<Parsed, Vec<Problem>> {
        load(Path::new("doc.yml"), text, overrides, &self.context())
    }

    pub fn steps_with(
        &self,
        text: &str,
        overrides: &DocumentOverrides,
        context: &Context,
    ) -> Result<Steps, Vec<Problem>> {
        Steps::read(Path::new("doc.yml"), text, overrides, context)
            .map(|steps| steps.expect("a document of Azure ML"))
    }

    fn job(&self, text: &str, overrides: &DocumentOverrides) -> JobSpec {
        sound(self.read(text, overrides)).spec
    }
}

pub fn inputs(inputs: &[&str]) -> DocumentOverrides {
    DocumentOverrides {
        inputs: inputs.iter().map(|input| (*input).to_owned()).collect(),
        ..DocumentOverrides::default()
    }
}

fn user_arguments(spec: &JobSpec) -> Vec<String> {
    let begin = spec
        .argv
        .iter()
        .position(|word| word == "--create_snapshot_at_runtime")
        .expect("always there");
    let end =
        spec.argv.iter().position(|word| word.starts_with("--input_")).unwrap_or(spec.argv.len());
    let known = [
        "--allowed_failed_count",
        "--allowed_failed_percent",
        "--append_row_file_name",
        "--process_count_per_node",
        "--output",
    ];
    let mut words = spec.argv[begin + 2..end].iter();
    let mut own = Vec::new();
    while let Some(word) = words.next() {
        match known.contains(&word.as_str()) {
            true => drop(words.next()),
            false => own.push(word.clone()),
        }
    }
    own
}

#[test]
fn component_is_a_job() {
    let workplace = Workplace::azure();
    let parsed =
        workplace.read(COMPONENT, &inputs(&["data=data", "model=./model"])).expect("valid");
    let spec = &parsed.spec;
    assert_eq!((spec.name.as_str(), spec.entry_script.as_str()), ("score-images", "entry.py"));
    assert_eq!(spec.source_directory.as_path(), workplace.path("code"));
    assert_eq!(spec.inputs[0].paths[0].as_path(), workplace.path("data"));
    assert_eq!((spec.inputs[0].name.as_str(), spec.inputs[0].kind), ("data", InputKind::File));
    assert_eq!(spec.side_inputs["model"].as_path(), workplace.path("model"));
    assert_eq!(spec.mini_batch_size, MiniBatchSize::Files(5));
    assert_eq!((spec.process_count_per_node, spec.node_count), (Some(2), None));
    assert_eq!((spec.thresholds.error_threshold, spec.thresholds.allowed_failed_count), (4, 5));
    assert_eq!(spec.thresholds.allowed_failed_percent, 30.0);
    assert_eq!((spec.run_max_try, spec.run_invocation_timeout_seconds), (2, 90));
    assert_eq!(
        (spec.output.action, spec.logging_level.as_str()),
        (OutputAction::AppendRow, "DEBUG")
    );
    assert_eq!(spec.output.folder.as_path(), workplace.path("doc-output/rows"));
    assert_eq!(spec.outputs["images"].as_path(), workplace.path("doc-output/images"));
    assert_eq!(spec.environment_variables["KIND"], "k-0.5");
    let model = workplace.path("model").display().to_string();
    let images = workplace.path("doc-output/images/a b").display().to_string();
    let expected = [
        "--model",
        &model,
        "--cut",
        "0.5",
        "--images",
        &images,
        "--resource_monitor_interva",
        "20",
    ];
    assert_eq!(user_arguments(spec), expected);
    let warnings = lines(&parsed.warnings);
    let keys = "without effect here: display_name, version (names and notes for people); resources.instance_type (a job \
                runs on this machine, or on a target of gristmill.toml); resources.instance_count (this machine";
    assert!(warnings.contains(keys), "{warnings}");
    assert!(
        warnings.contains(
            "doc.yml:42: task.environment.image: mcr.microsoft.com/azureml/openmpi4.1.0-ubuntu20.04 is not used"
        ),
        "{warnings}"
    );
}

#[test]
fn overrides_mean_the_same_in_any_folder() {
    let workplace = Workplace::azure();
    let overrides = vec![("run_max_try".to_owned(), "7".to_owned())];
    let step = Some("score".to_owned());
    let overrides =
        DocumentOverrides { overrides, step, ..inputs(&["data=data", "s3://bucket/x", "note="]) };
    let data = format!("data={}", workplace.path("data").display());
    let expected = [
        "--set",
        "run_max_try=7",
        "--input",
        &data,
        "--input",
        "s3://bucket/x",
        "--input",
        "note=",
        "--step",
        "score",
    ];
    assert_eq!(overrides.words(&workplace.context()), expected);
}

#[test]
fn values_of_the_command_line_take_precedence() {
    let workplace = Workplace::azure();
    let overrides = [
        ("mini_batch_size", "2"),
        ("Score_Images.run_max_try", "7"),
        ("environment", "requirements.txt"),
    ];
    let overrides = overrides.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
    let overrides = DocumentOverrides {
        overrides,
        ..inputs(&["data=data", "model=./model", "note=x y", "cut=1"])
    };
    let parsed = workplace.read(COMPONENT, &overrides).expect("valid");
    assert_eq!(
        (parsed.spec.mini_batch_size, parsed.spec.run_max_try),
        (MiniBatchSize::Files(2), 7)
    );
    let own = user_arguments(&parsed.spec);
    assert_eq!(own[2..6], ["--cut", "1", "--note", "x y"]);
    assert!(!lines(&parsed.warnings).contains("image"), "{}", lines(&parsed.warnings));
}

#[test]
fn both_forms_of_a_deployment_are_the_same_job() {
    let workplace = Workplace::azure();
    let job = workplace.job(DEPLOYMENT, &inputs(&["data"]));
    assert_eq!((job.name.as_str(), job.entry_script.as_str()), ("mnist-dpl", "entry.py"));
    assert_eq!(job.model, "model");
    assert_eq!(
        (job.process_count_per_node, job.run_max_try, job.run_invocation_timeout_seconds),
        (Some(3), 3, 40)
    );
    assert_eq!((job.mini_batch_size, job.thresholds.error_threshold), (MiniBatchSize::Files(7), 9));
    assert_eq!(job.output.folder.as_path(), workplace.path("doc-output"));
    assert_eq!(
        (job.output.file_name.as_str(), job.logging_level.as_str()),
        ("rows.csv", "WARNING")
    );
    assert_eq!(job.environment_variables["A"], "b");
    let (top, settings) = DEPLOYMENT.split_once("settings:\n").expect("it has settings");
    let top = top.replace("type: model\n", "").replace("modelBatch", "batch");
    let older: String = settings.lines().map(|line| format!("{}\n", &line[2..])).collect();
    let older = workplace.job(&format!("{top}{older}"), &inputs(&["data"]));
    assert_eq!(older.fingerprint, job.fingerprint);
}

#[test]
fn deployment_has_the_defaults_of_azure() {
    let workplace = Workplace::azure();
    let text = "endpoint_name: e\nname: d\nmodel: {path: ./mlflow}\n";
    let parsed = workplace.read(text, &inputs(&["--input=data"]).clone()).map(|_| ());
    assert!(parsed.is_err(), "there is no such folder");
    let job = workplace.job(text, &inputs(&["data"]));
    assert_eq!(job.entry_script, "gristmill/mlflow_model.py");
    assert_eq!(
        (job.mini_batch_size, job.process_count_per_node),
        (MiniBatchSize::Files(10), Some(1))
    );
    assert_eq!((job.run_max_try, job.run_invocation_timeout_seconds), (4, 30));
    assert_eq!(
        (job.thresholds.error_threshold, job.output.file_name.as_str()),
        (-1, "predictions.csv")
    );
}

pub const PIPELINE: &str = "\
$schema: https://azuremlschemas.azureedge.net/latest/pipelineJob.schema.json
type: pipeline
display_name: two steps
experiment_name: try
inputs:
  raw: {type: uri_folder, path: ./data}
  limit: 3
outputs:
  result: {type: uri_folder}
settings:
  default_compute: azureml:cpu-cluster
jobs:
  score:
    type: parallel
    component: file:./parts/score.yml
    inputs:
      data:
        type: uri_folder
        path: ${{parent.jobs.prepare.outputs.cut}}
      model: {type: uri_folder, path: ./model}
      limit: ${{parent.inputs.limit}}
    outputs:
      rows:
        type: uri_file
        path: azureml://datastores/${{default_datastore}}/paths/${{name}}/all.csv
      extra: ${{parent.outputs.result}}
    mini_batch_error_threshold: 10
    retry_settings: {max_retries: 3}
  prepare:
    type: command
    command: python entry.py --from ${{inputs.raw}} --to ${{outputs.cut}}
    code: ./code
    environment: azureml:base@latest
    inputs: {raw: '${{parent.inputs.raw}}'}
    outputs: {cut: {type: uri_folder}}
";

pub const SCORE: &str = "\
type: parallel
name: score_all
inputs:
  data: {type: uri_folder}
  model: {type: uri_folder}
  limit: {type: integer}
outputs:
  rows: {type: uri_file}
  extra: {type: uri_folder}
input_data: ${{inputs.data}}
mini_batch_error_threshold: 5
retry_settings: {max_retries: 2, timeout: 11}
task:
  type: run_function
  code: ../code
  entry_script: entry.py
  environment: azureml:base:2
  program_arguments: --model ${{inputs.model}} --limit ${{inputs.limit}} --extra ${{outputs.extra}}
  append_row_to: ${{outputs.rows}}
";

impl Workplace {
    pub fn pipeline(&self) -> Context {
        self.write("parts/score.yml", SCORE);
        let mut azure = AzureNames::default();
        azure
            .environments
            .insert("base:2".to_owned(), self.path("requirements.txt").display().to_string());
        Context { azure, ..self.context() }
    }
}

#[test]
fn pipeline_is_one_job_for_each_step_in_the_order_of_their_inputs() {
    let workplace = Workplace::azure();
    let context = workplace.pipeline();
    let steps = sound(workplace.steps_with(PIPELINE, &DocumentOverrides::default(), &context));
    let names: Vec<&str> = steps.steps().iter().map(|step| step.name.as_str()).collect();
    assert_eq!(names, ["prepare", "score"]);
    assert_eq!(steps.steps()[1].needs, ["prepare"]);

    let prepare = sound(steps.load(0, true, &context)).spec;
    assert_eq!(prepare.entry_script, "gristmill/command_step.py");
    let (data, cut) = (workplace.path("data"), workplace.path("doc-output/prepare/cut"));
    let command =
        format!("python entry.py --from \"{}\" --to \"{}\"", data.display(), cut.display());
    assert_eq!(user_arguments(&prepare)[..2], ["--command".to_owned(), command]);
    assert_eq!((prepare.rank_mini_batch_count, prepare.run_max_try), (1, 1));
    assert_eq!(
        (prepare.thresholds.allowed_failed_count, prepare.output.action),
        (0, OutputAction::SummaryOnly)
    );

    let score = sound(steps.load(1, true, &context)).spec;
    assert_eq!(score.inputs[0].paths[0].as_path(), cut);
    assert_eq!((score.thresholds.allowed_failed_count, score.run_max_try), (10, 4));
    assert_eq!(score.run_invocation_timeout_seconds, 11);
    assert_eq!(score.output.folder.as_path(), workplace.path("doc-output/score"));
    assert_eq!(score.output.file_name, "all.csv");
    assert_eq!(score.outputs["extra"].as_path(), workplace.path("doc-output/outputs/result"));
    assert_eq!(user_arguments(&score)[2..4], ["--limit", "3"]);
    // The data of the second step must exist once it runs.
    assert!(steps.load(1, false, &context).is_err());
}

#[test]
fn one_step_runs_alone() {
    let workplace = Workplace::azure();
    let context = workplace.pipeline();
    let overrides =
        DocumentOverrides { step: Some("score".to_owned()), ..inputs(&["data=data", "limit=8"]) };
    let spec = sound(load(Path::new("doc.yml"), PIPELINE, &overrides, &context)).spec;
    assert_eq!(spec.inputs[0].paths[0].as_path(), workplace.path("data"));
    assert_eq!(user_arguments(&spec)[2..4], ["--limit", "8"]);
    let problems = load(Path::new("doc.yml"), PIPELINE, &DocumentOverrides::default(), &context)
        .expect_err("two steps");
    assert_eq!(
        lines(&problems).trim_end(),
        "doc.yml: it has 2 steps; choose one: --step prepare, --step score"
    );
}

#[test]
fn converted_document_is_the_same_job() {
    let workplace = Workplace::azure();
    let context = workplace.pipeline();
    workplace.write("doc-output/prepare/cut/a.txt", "a");
    let component = inputs(&["data=data", "model=./model", "note='; x"]);
    for (text, overrides) in [
        (COMPONENT, component),
        (DEPLOYMENT, inputs(&["data"])),
        ("endpoint_name: e\nmodel: ./mlflow\n", inputs(&["data/*.txt"])),
        (PIPELINE, DocumentOverrides::default()),
    ] {
        let steps = sound(workplace.steps_with(text, &overrides, &context));
        for index in 0..steps.steps().len() {
            let mut loaded = sound(steps.load(index, false, &context)).spec;
            // The file has the values of the command line.
            assert_eq!(loaded.changes.is_empty(), overrides.inputs.is_empty());
            loaded.changes.clear();
            let written = steps.job_file(index).expect("no `--set`");
            let again = sound(load(
                Path::new("doc.yml"),
                &written,
                &DocumentOverrides::default(),
                &context,
            ))
            .spec;
            assert_eq!(again, loaded, "{written}");
        }
    }
}

#[test]
fn names_are_looked_up_in_the_tables() {
    let table = |entries: &[(&str, &str)]| {
        entries.iter().map(|(name, place)| ((*name).to_owned(), (*place).to_owned())).collect()
    };
    let names = AzureNames {
        datastores: table(&[("store", "s3://bucket/all/"), ("local", "/mnt/x")]),
        data: table(&[("a:1", "/a1"), ("a:2", "/a2"), ("a:10", "/a10"), ("b", "/b")]),
        models: table(&[("m", "https://host/m")]),
        environments: table(&[("e:1", "python3")]),
        components: table(&[("c", "/parts")]),
        ..AzureNames::default()
    };
    let locate = |text: &str, table| {
        let node = crate::Node::text(crate::Location::File, text);
        names.locate(&node, Path::new("/docs"), None, table)
    };
    use crate::azure::NameTable;
    for (text, table, expected) in [
        ("./x/y.csv", NameTable::Data, "/docs/x/y.csv"),
        ("file:./x", NameTable::Data, "/docs/x"),
        ("/abs", NameTable::Data, "/abs"),
        ("https://host/a.csv", NameTable::Data, "https://host/a.csv"),
        (
            "wasbs://box@account.blob.core.windows.net/a",
            NameTable::Data,
            "abfss://box@account.dfs.core.windows.net/a",
        ),
        (
            "abfss://box@account.dfs.core.windows.net/a",
            NameTable::Data,
            "abfss://box@account.dfs.core.windows.net/a",
        ),
        ("azureml://datastores/store/paths/a/b", NameTable::Data, "s3://bucket/all/a/b"),
        ("azureml:azureml://datastores/local/paths/a/", NameTable::Data, "/mnt/x/a"),
        (
            "azureml://subscriptions/s/resourcegroups/g/workspaces/w/datastores/local/paths/a",
            NameTable::Data,
            "/mnt/x/a",
        ),
        ("azureml:a:1", NameTable::Data, "/a1"),
        ("azureml:a@latest", NameTable::Data, "/a10"),
        ("azureml:b:77", NameTable::Data, "/b"),
        ("azureml:m:1", NameTable::Models, "https://host/m"),
        ("azureml://registries/r/models/m/versions/3", NameTable::Models, "https://host/m"),
        ("azureml://registries/r/environments/e/labels/latest", NameTable::Environments, "python3"),
        ("azureml://registries/r/components/c/versions/1.2", NameTable::Components, "/parts"),
        ("azureml:c@latest", NameTable::Components, "/parts"),
        (
            "azureml:/subscriptions/s/resourceGroups/g/providers/p/workspaces/w/data/a/versions/2",
            NameTable::Data,
            "/a2",
        ),
        (
            "/subscriptions/s/resourceGroups/g/workspaces/w/datastores/local/paths/a",
            NameTable::Data,
            "/mnt/x/a",
        ),
    ] {
        assert_eq!(locate(text, table).expect(text), expected, "{text}");
    }
    for (text, table, expected) in [
        (
            "azureml:a:3",
            NameTable::Data,
            "azureml:a:3 is not known here: add `\"a:3\" = \"…\"`, a path or URL, below [azureml.data] in gristmill.toml, a \
             file beside the document, in the working folder or above one of them",
        ),
        ("azureml:none@latest", NameTable::Models, "below [azureml.models] in gristmill.toml"),
        (
            "azureml://datastores/x/paths/y",
            NameTable::Data,
            "the data store x is not known here: add `x = \"…\"`, a folder or URL, below [azureml.datastores]",
        ),
        (
            "azureml:none",
            NameTable::Environments,
            "add `none = \"…\"`, an interpreter or a requirements file, below [azureml.environments]",
        ),
    ] {
        let fault = format!("{:?}", locate(text, table).expect_err(text)).replace("\\\"", "\"");
        assert!(fault.contains(expected), "{text}: {fault}");
    }
    let mut unset = names.clone();
    for entry in ["data.new", "data.old:2", "datastores.x"] {
        unset.unset.insert(entry.to_owned(), format!("{entry}: the variable A is not set"));
    }
    for (text, expected) in [
        ("azureml:new:3", "data.new: the variable A is not set"),
        ("azureml:old:2", "data.old:2: the variable A is not set"),
        ("azureml://datastores/x/paths/y", "datastores.x: the variable A is not set"),
    ] {
        let node = crate::Node::text(crate::Location::File, text);
        let fault = unset.locate(&node, Path::new("/docs"), None, NameTable::Data);
        assert!(format!("{:?}", fault.expect_err(text)).contains(expected), "{text}");
    }
}
