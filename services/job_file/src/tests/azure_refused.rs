//! Mistakes in documents of Azure ML, each with its line.

use super::azure::{COMPONENT, DEPLOYMENT, PIPELINE, inputs};
use super::{Workplace, lines};
use crate::DocumentOverrides;

/// Checks that a problem with this text is reported at a line that names its key, or holds the changed text.
fn check_line(text: &str, to: &str, found: &str, expected: &str) {
    let reported = found.lines().find(|line| line.contains(expected));
    let reported = reported.unwrap_or_else(|| panic!("{to}: expected {expected}\nfound {found}"));
    let mut parts = reported.splitn(4, ':');
    let (_, number, key) =
        (parts.next(), parts.next().expect("a line"), parts.next().expect("a key"));
    let number: usize = number.parse().unwrap_or_else(|_| panic!("no line: {reported}"));
    // A block of text or keys begins in the line below its own key.
    let lines: Vec<&str> = text.lines().skip(number.saturating_sub(2)).take(2).collect();
    let line = lines.join("\n");
    let key = key.trim().rsplit('.').next().unwrap_or_default();
    let changed = to.trim().lines().next().unwrap_or_default();
    // An absent key is reported at the mapping that lacks it.
    let is_absent = reported.contains("missing");
    assert!(
        is_absent || line.contains(key) || !changed.is_empty() && line.contains(changed),
        "{reported}\n{number}: {line}"
    );
}

fn problems(text: &str, overrides: &DocumentOverrides) -> String {
    let workplace = Workplace::azure();
    let context = workplace.pipeline();
    let read = workplace.steps_with(text, overrides, &context).and_then(|steps| {
        let all: Vec<_> =
            (0..steps.steps().len()).map(|index| steps.load(index, true, &context)).collect();
        all.into_iter().collect::<Result<Vec<_>, _>>()
    });
    match read {
        Ok(_) => "none".to_owned(),
        Err(problems) => lines(&problems).replace(&workplace.path("").display().to_string(), "/"),
    }
}

#[test]
fn other_documents_are_refused_in_one_line() {
    for (text, expected) in [
        (
            "type: command\ncommand: x\n",
            "type: this is a command job, which Gristmill does not run: put it below `jobs` of a document of",
        ),
        (
            "type: sweep\ntrial: {command: x}\n",
            "type: this is a sweep job, which Gristmill does not run: write its trial",
        ),
        ("type: spark\nentry: {file: x.py}\n", "type: this is a Spark job"),
        ("type: automl\ntask: forecasting\n", "type: this is an AutoML job"),
        (
            "inputs: {}\nnodes:\n- name: a\n",
            "nodes: this is a prompt flow, which Gristmill does not run: call it for each",
        ),
        (
            "name: e\nimage: x\nconda_file: c.yml\n",
            "conda_file: this is an environment, which Gristmill does not run: name it",
        ),
        (
            "name: e\nchannels: [x]\ndependencies: [python]\n",
            "dependencies: this is an environment",
        ),
        (
            "name: b\nendpoint_name: e\nmodel: azureml:m:1\ninstance_type: D2\n",
            "endpoint_name: this is an online deployment",
        ),
        (
            "$schema: https://azuremlschemas.azureedge.net/latest/managedOnlineDeployment.schema.json\nendpoint_name: e\n",
            "endpoint_name: this is an online deployment, which Gristmill does not run: run its model and script on data",
        ),
        (
            "$schema: https://azuremlschemas.azureedge.net/latest/managedOnlineEndpoint.schema.json\nname: e\n",
            "$schema: this is an online endpoint",
        ),
        (
            "name: b\ntype: kubernetes\nendpoint_name: e\nmodel: azureml:m:1\n",
            "type: this is an online deployment",
        ),
        (
            "python: 3.12\nbuild_dependencies: [pip]\ndependencies: [x]\n",
            "dependencies: this is an environment",
        ),
        (
            "name: r\nreplication_locations: [{location: eastus}]\n",
            "replication_locations: this is a workspace or a part",
        ),
        ("name: e\nauth_mode: key\n", "auth_mode: this is an online endpoint"),
        (
            "name: e\nauth_mode: aad_token\ndefaults: {deployment_name: d}\n",
            "auth_mode: this is a batch endpoint",
        ),
        (
            "name: d\ntype: uri_folder\npath: ./x\n",
            "type: this is a data asset, which Gristmill does not run: give its path",
        ),
        ("type: mltable\npaths: [{file: a.csv}]\n", "type: this is an MLTable"),
        ("paths: [{file: a.csv}]\ntransformations: [read_parquet]\n", "paths: this is an MLTable"),
        ("name: m\ntype: mlflow_model\npath: ./m\n", "type: this is a model asset"),
        ("name: s\ntype: azure_blob\naccount_name: a\n", "type: this is a datastore"),
        ("name: c\ntype: amlcompute\nsize: x\n", "type: this is a compute"),
        ("name: s\ntrigger: {type: cron}\ncreate_job: ./p.yml\n", "create_job: this is a schedule"),
        ("apiVersion: v1\nkind: Pod\n", "kind: this is a manifest of Kubernetes"),
        (
            "type: pipeline\nendpoint_name: x\n",
            "type: this is a deployment of a pipeline component",
        ),
        (
            "$schema: https://azuremlschemas.azureedge.net/latest/batchEndpoint.schema.json\nname: x\n",
            "$schema: this is a batch endpoint, which Gristmill does not run: run its deployment",
        ),
        (
            "$schema: https://azuremlschemas.azureedge.net/latest/commandJob.schema.json\n",
            "$schema: ",
        ),
    ] {
        let found = problems(text, &DocumentOverrides::default());
        assert!(found.contains(expected) && found.lines().count() == 1, "{text}{found}");
    }
}

#[test]
fn each_mistake_has_its_line() {
    let component = inputs(&["data=data", "model=model"]);
    for (from, to, expected) in [
        (
            "mini_batch_size:",
            "mini_batch_sise:",
            "mini_batch_sise: unknown key; did you mean \"mini_batch_size\"?",
        ),
        (
            "\n  max_retries: 1",
            "\n  retries: 1",
            "retry_settings.retries: unknown key; did you mean \"max_retries\"?",
        ),
        (
            "append_row_to:",
            "append_rows_to:",
            "task.append_rows_to: unknown key; did you mean \"append_row_to\"?",
        ),
        (
            "max_retries: 1",
            "max_retries: many",
            "retry_settings.max_retries: found \"many\"; allowed: an integer from 0",
        ),
        (
            "${{inputs.data}}",
            "${{inputs.dta}}",
            "input_data: unknown name; did you mean \"inputs.data\"?",
        ),
        ("${{inputs.data}}", "${{inputs.cut}}", "input_data: this input is a literal"),
        ("${{inputs.data}}", "${{inputs.data", "input_data: an expression has no end"),
        (
            "--cut ${{inputs.cut}}",
            "--cut ${{inputs.cutt}}",
            "task.program_arguments: unknown name; did you mean \"inputs.cut\"?",
        ),
        (
            "$[[--note ${{inputs.note}}]]",
            "--note ${{inputs.note}}",
            "task.program_arguments: the input is optional and absent",
        ),
        ("a b'", "a b", "task.program_arguments: these arguments have a quote without its pair"),
        ("type: number", "type: nmber", "inputs.cut: unknown type of an input"),
        (
            "default: 0.5",
            "default: half",
            "inputs.cut: found \"half\"; allowed: a value of type number",
        ),
        (
            "entry_script: entry.py",
            "entry_script: nowhere.py",
            "entry_script: The value 'nowhere.py' specified in entry_script doesn't exist.",
        ),
        ("code: ./code", "code: ./nowhere", "source_directory: /nowhere does not exist"),
        (
            "${{outputs.rows}}",
            "${{outputs.row}}",
            "task.append_row_to: unknown name; did you mean \"outputs.rows\"?",
        ),
        ("instance_count: 2", "instance_count: none", "resources.instance_count: found \"none\""),
        ("type: run_function", "type: run_functions", "task.type: found \"run_functions\""),
        (
            "  environment:\n    image: mcr.microsoft.com/azureml/openmpi4.1.0-ubuntu20.04",
            "  environment: azureml:old:3",
            "task.environment: azureml:old:3 is not known here: add `\"old:3\" = \"…\"`",
        ),
    ] {
        assert!(COMPONENT.contains(from), "{from}");
        let text = COMPONENT.replacen(from, to, 1);
        let found = problems(&text, &component);
        check_line(&text, to, &found, expected);
        assert_eq!(found.lines().count(), 1, "{to}: {found}");
    }
    let two = COMPONENT.replace("max_retries: 1", "max_retries: x").replace("entry.py", "no.py");
    assert_eq!(problems(&two, &component).lines().count(), 2, "{}", problems(&two, &component));
    let found = problems(COMPONENT, &inputs(&["dta=data", "model=model"]));
    assert!(
        found.contains("--input: did you mean \"data\"? (found \"dta=data\"; allowed: data=…, model=…, cut=…, note=…)"),
        "{found}"
    );
    assert!(found.contains("inputs.data: the input data has no value"), "{found}");
    for given in [["data=nowhere", "model=model"], ["data=data", "model=nowhere"]] {
        let found = problems(COMPONENT, &inputs(&given));
        let says = |part: &str| found.contains(part);
        assert!(
            says("doc.yml: --input: ") && says("nowhere does not exist") && !says("--set"),
            "{found}"
        );
    }
}

#[test]
fn mistakes_of_pipelines() {
    for (from, to, expected) in [
        (
            "outputs.cut}}\n      model",
            "outputs.cutt}}\n      model",
            "jobs.score.inputs.data: no step writes this output: unknown name; did you mean \"parent.jobs.prepare.outputs.cut\"?",
        ),
        (
            "parent.jobs.prepare",
            "parent.jobs.prepar",
            "jobs.score.inputs.data: there is no step \"prepar\"",
        ),
        (
            "'${{parent.inputs.raw}}'",
            "'${{parent.jobs.score.outputs.extra}}'",
            "jobs.score: these steps wait for each other's outputs (found score, prepare",
        ),
        (
            "type: command\n",
            "type: sweep\n",
            "jobs.prepare.type: Gristmill does not run steps of type sweep",
        ),
        (
            "./parts/score.yml",
            "./parts/none.yml",
            "jobs.score.component: /parts/none.yml cannot be read",
        ),
        (
            "limit: ${{parent.inputs.limit}}",
            "limt: 3",
            "jobs.score.inputs.limt: the component has no such input; did you mean \"limit\"?",
        ),
        (
            "parent.outputs.result",
            "parent.outputs.none",
            "jobs.score.outputs.extra: the pipeline has no such output",
        ),
        (
            "python entry.py --from ${{inputs.raw}}",
            "python ${{inputs.raw",
            "jobs.prepare.command: an expression has no end",
        ),
        (
            "component: file:./parts/score.yml",
            "component: azureml:score:1",
            "jobs.score.component: azureml:score:1 is not known here: add `\"score:1\" = \"…\"`, its file, or a folder",
        ),
    ] {
        assert!(PIPELINE.contains(from), "{from}");
        let text = PIPELINE.replacen(from, to, 1);
        check_line(&text, to, &problems(&text, &DocumentOverrides::default()), expected);
    }
    let overrides =
        DocumentOverrides { step: Some("scor".to_owned()), ..DocumentOverrides::default() };
    assert!(problems(PIPELINE, &overrides).contains(
        "--step: the pipeline has no such step (found \"scor\"; allowed: score, prepare)"
    ));
}

#[test]
fn mistake_in_a_component_names_its_file() {
    let workplace = Workplace::azure();
    let context = workplace.pipeline();
    workplace.write("parts/score.yml", &super::azure::SCORE.replace("timeout: 11", "timeot: 11"));
    let found = workplace
        .steps_with(PIPELINE, &DocumentOverrides::default(), &context)
        .expect_err("a misspelt key");
    let file = workplace.path("parts/score.yml");
    assert!(
        lines(&found).starts_with(&format!(
            "{}:12: jobs.score.retry_settings.timeot: unknown key",
            file.display()
        )),
        "{}",
        lines(&found)
    );
}

#[test]
fn mistakes_of_deployments() {
    let data = inputs(&["data"]);
    for (from, to, expected) in [
        (
            "mini_batch_size: 7",
            "mini_batch_sizes: 7",
            "settings.mini_batch_sizes: unknown key; did you mean \"mini_batch_size\"?",
        ),
        (
            "output_action: append_row",
            "output_action: append",
            "settings.output_action: found \"append\"; allowed: append_row, summary_only",
        ),
        ("  path: model", "  path: nowhere", "model: /nowhere does not exist"),
        ("  path: model", "  version: 4", "model: azureml:net:4 is not known here"),
        ("  scoring_script: entry.py\n", "", "code_configuration.scoring_script: missing"),
        (
            "code_configuration:\n  code: code\n  scoring_script: entry.py\n",
            "",
            "model: /model has no file MLmodel",
        ),
    ] {
        assert!(DEPLOYMENT.contains(from), "{from}");
        let text = DEPLOYMENT.replacen(from, to, 1);
        check_line(&text, to, &problems(&text, &data), expected);
    }
    let found = problems(DEPLOYMENT, &DocumentOverrides::default());
    assert_eq!(
        found.trim_end(),
        "doc.yml:2: --input: a deployment gets its data when it is run (missing; allowed: --input PATH: a file, a folder, a pattern or a URL)"
    );
    let workplace = Workplace::new();
    let found = workplace.read("name: x\n", &data).expect_err("a job file");
    assert!(lines(&found).contains("--input: this is a job file"), "{}", lines(&found));
}
