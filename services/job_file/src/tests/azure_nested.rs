//! Documents of Azure ML: pipelines in pipelines, groups of inputs, and values that a document holds itself.

use std::path::Path;

use protocol::{Environment, InputKind, JobSpec, MiniBatchSize, TableFormat};

use super::azure::{COMPONENT, SCORE, inputs};
use super::{Workplace, lines, sound};
use crate::{AzureNames, Context, DocumentOverrides, Steps};

const OUTER: &str = "\
type: pipeline
inputs:
  raw: {type: uri_folder, path: ./data}
outputs:
  result: {type: uri_folder}
jobs:
  all:
    type: pipeline
    component: ./parts/inner.yml
    inputs: {raw: '${{parent.inputs.raw}}', limit: 4}
    outputs: {extra: '${{parent.outputs.result}}'}
  last:
    command: cat ${{inputs.rows}}
    inputs: {rows: '${{parent.jobs.all.outputs.rows}}'}
";

const INNER: &str = "\
type: pipeline
inputs:
  raw: {type: uri_folder}
  limit: {type: integer, default: 1}
outputs:
  rows: {type: uri_file}
  extra: {type: uri_folder}
jobs:
  last:
    type: parallel
    component: ./score.yml
    inputs:
      data: ${{parent.jobs.cut.outputs.cut}}
      model: {type: uri_folder, path: ../model}
      limit: ${{parent.inputs.limit}}
    outputs: {rows: '${{parent.outputs.rows}}', extra: '${{parent.outputs.extra}}'}
  cut:
    command: cut ${{inputs.raw}} ${{outputs.cut}}
    inputs: {raw: '${{parent.inputs.raw}}'}
    outputs: {cut: {type: uri_folder}}
";

fn workplace() -> (Workplace, Context) {
    let workplace = Workplace::azure();
    let context = workplace.pipeline();
    workplace.write("parts/inner.yml", INNER);
    (workplace, context)
}

fn specs(steps: &Steps, context: &Context) -> Vec<JobSpec> {
    (0..steps.steps().len()).map(|index| sound(steps.load(index, true, context)).spec).collect()
}

fn read(
    workplace: &Workplace,
    context: &Context,
    text: &str,
    overrides: &DocumentOverrides,
) -> Steps {
    sound(workplace.steps_with(text, overrides, context))
}

#[test]
fn steps_of_a_pipeline_in_a_pipeline_are_steps_of_it() {
    let (workplace, context) = workplace();
    let steps = read(&workplace, &context, OUTER, &DocumentOverrides::default());
    let names: Vec<(&str, Vec<String>)> =
        steps.steps().iter().map(|step| (step.name.as_str(), step.needs.clone())).collect();
    let of = |needs: &[&str]| needs.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let expected = [
        ("all.cut", of(&[])),
        ("all.last", of(&["all.cut"])),
        ("last", of(&["all.cut", "all.last"])),
    ];
    assert_eq!(names, expected);
    assert_eq!(steps.warnings.len(), 0, "{}", lines(&steps.warnings));
    let [cut, score, last] = &specs(&steps, &context)[..] else { panic!("three steps") };
    let command = |spec: &JobSpec| {
        spec.argv[spec.argv.iter().position(|word| word == "--command").unwrap() + 1].clone()
    };
    let (data, made) = (workplace.path("data"), workplace.path("doc-output/all/cut/cut"));
    assert_eq!(command(cut), format!("cut \"{}\" \"{}\"", data.display(), made.display()));
    assert_eq!(score.inputs[0].paths[0].as_path(), made);
    assert!(score.argv.windows(2).any(|pair| pair == ["--limit", "4"]));
    assert_eq!(score.side_inputs["model"].as_path(), workplace.path("model"));
    assert_eq!(score.outputs["extra"].as_path(), workplace.path("doc-output/outputs/result"));
    let rows = Path::new(score.output.folder.as_path()).join(&score.output.file_name);
    assert_eq!(rows, workplace.path("doc-output/all/rows/parallel_run_step.txt"));
    assert_eq!(
        command(last),
        format!("cat \"{}\"", rows.display()),
        "what the inner step really writes"
    );
}

#[test]
fn step_of_an_inner_pipeline_or_all_of_them_run_alone() {
    let (workplace, context) = workplace();
    let overrides = |step: &str, given: &[&str]| DocumentOverrides {
        step: Some(step.to_owned()),
        ..inputs(given)
    };
    let one = read(&workplace, &context, OUTER, &overrides("all.last", &["data=data", "limit=9"]));
    let [score] = &specs(&one, &context)[..] else { panic!("one step") };
    assert_eq!(score.inputs[0].paths[0].as_path(), workplace.path("data"));
    assert!(score.argv.windows(2).any(|pair| pair == ["--limit", "9"]));
    let all = read(&workplace, &context, OUTER, &overrides("all", &["limit=7"]));
    let [_, score] = &specs(&all, &context)[..] else { panic!("two steps") };
    assert!(score.argv.windows(2).any(|pair| pair == ["--limit", "7"]));
    for step in ["all.none", "none"] {
        let found = workplace.steps_with(OUTER, &overrides(step, &[]), &context).expect_err(step);
        let found = lines(&found);
        assert!(
            found.contains("--step: the pipeline has no such step") && found.lines().count() == 1,
            "{found}"
        );
    }
}

#[test]
fn mistakes_in_an_inner_pipeline_name_its_file() {
    let (workplace, context) = workplace();
    for (from, to, expected) in [
        (
            "command: cut",
            "comand: cut",
            "/parts/inner.yml:18: jobs.all.jobs.cut.comand: unknown key",
        ),
        (
            "  cut:\n",
            "  cut:\n    type: spark\n",
            "jobs.all.jobs.cut.type: Gristmill does not run steps of type spark",
        ),
        ("component: ./score.yml", "component: ./inner.yml", "its pipelines are nested too deeply"),
        ("outputs.cut}}\n", "outputs.ct}}\n", "did you mean \"parent.jobs.cut.outputs.cut\"?"),
    ] {
        assert!(INNER.contains(from), "{from}");
        workplace.write("parts/inner.yml", &INNER.replacen(from, to, 1));
        let found =
            workplace.steps_with(OUTER, &DocumentOverrides::default(), &context).expect_err(to);
        assert!(lines(&found).contains(expected), "{to}: {}", lines(&found));
    }
    let unwritten = INNER.replace("rows: '${{parent.outputs.rows}}', ", "");
    workplace.write("parts/inner.yml", &unwritten);
    let found = workplace
        .steps_with(OUTER, &DocumentOverrides::default(), &context)
        .expect_err("no step writes it");
    assert!(
        lines(&found).contains("doc.yml:14: jobs.last.inputs.rows: no step writes this output"),
        "{}",
        lines(&found)
    );
}

#[test]
fn cycle_hides_no_other_mistake() {
    let (workplace, context) = workplace();
    let text = OUTER
        .replace("raw: '${{parent.inputs.raw}}'", "raw: '${{parent.jobs.last.outputs.none}}'")
        .replace("cat ${{inputs.rows}}", "cat ${{inputs.rows");
    let found = workplace
        .steps_with(&text, &DocumentOverrides::default(), &context)
        .expect_err("two mistakes");
    let found = lines(&found);
    assert!(found.contains("jobs.all: these steps wait for each other's outputs"), "{found}");
    assert!(found.contains("jobs.last.command: an expression has no end"), "{found}");
}

#[test]
fn groups_of_inputs_are_their_members() {
    let (workplace, context) = workplace();
    let component = SCORE
        .replace("limit: {type: integer}", "size: {type: group, values: {limit: {type: integer}}}")
        .replace("inputs.limit", "inputs.size.limit");
    workplace.write("parts/score.yml", &component);
    for given in ["size: {limit: 6}", "size.limit: 6", "size: ${{parent.inputs.all.size}}"] {
        let text = format!(
            "type: pipeline\ninputs:\n  all: {{size: {{limit: 6}}, data: {{type: uri_folder, path: data}}}}\njobs:\n  \
             score:\n    component: ./parts/score.yml\n    inputs:\n      data: ${{{{parent.inputs.all.data}}}}\n      \
             model: {{type: uri_folder, path: model}}\n      {given}\n"
        );
        let steps = read(&workplace, &context, &text, &DocumentOverrides::default());
        let [score] = &specs(&steps, &context)[..] else { panic!("one step") };
        assert!(
            score.argv.windows(2).any(|pair| pair == ["--limit", "6"]),
            "{given}: {:?}",
            score.argv
        );
        assert_eq!(score.inputs[0].paths[0].as_path(), workplace.path("data"));
    }
}

#[test]
fn conda_file_may_be_a_mapping() {
    let workplace = Workplace::azure();
    let inline = "conda_file: {name: x, dependencies: [python=3.12, {pip: [numpy]}]}";
    let text =
        COMPONENT.replace("image: mcr.microsoft.com/azureml/openmpi4.1.0-ubuntu20.04", inline);
    let overrides = inputs(&["data=data", "model=model"]);
    let environment = |text: &str| sound(workplace.read(text, &overrides)).spec.environment;
    let Environment::Requirements { file, .. } = environment(&text) else { panic!("a conda file") };
    let written = std::fs::read_to_string(file.as_path()).expect("it is there");
    assert!(written.contains("python=3.12") && written.contains("numpy"), "{written}");
    assert_eq!(environment(&text), environment(&text), "the same packages are the same file");
    let found = workplace.read(&text.replace("numpy", "[]"), &overrides).expect_err("no text");
    assert!(lines(&found).contains("`pip` is not a list of texts"), "{}", lines(&found));
}

#[test]
fn rows_of_files_are_the_items_of_newer_scripts() {
    let workplace = Workplace::azure();
    workplace.write("requests.jsonl", "{}\n");
    let text = COMPONENT
        .replace("--resource_monitor_interva 20", "--amlbi_file_format jsonl ROWS")
        .replacen("type: uri_folder", "type: uri_file", 1);
    let read =
        |rows: &str| {
            sound(workplace.read(
                &text.replace("ROWS", rows),
                &inputs(&["data=requests.jsonl", "model=model"]),
            ))
        };
    let spec = read("--amlbi_mini_batch_rows 3").spec;
    assert_eq!(
        (spec.inputs[0].kind, spec.inputs[0].table.format),
        (InputKind::Tabular, TableFormat::Jsonl)
    );
    assert_eq!(spec.inputs[0].table.on_type_mismatch, protocol::MismatchPolicy::Missing);
    assert_eq!(spec.mini_batch_size, MiniBatchSize::Rows(3));
    let parsed = read("");
    assert_eq!(parsed.spec.mini_batch_size, MiniBatchSize::Bytes(1 << 20));
    let warnings = lines(&parsed.warnings);
    assert!(
        warnings.contains("mini_batch_size: counts files, and `--amlbi_file_format` makes"),
        "{warnings}"
    );
}

#[test]
fn names_reach_scripts_on_other_machines() {
    let workplace = Workplace::new();
    let mut azure = AzureNames::default();
    azure.data.insert("digits:2".to_owned(), "s3://bucket/digits".to_owned());
    azure.data.insert("secret".to_owned(), "https://host/a?sig=x".to_owned());
    let read = |target: Option<&str>, changes: &str| {
        let context = Context {
            azure: azure.clone(),
            compute_target: target.map(str::to_owned),
            ..workplace.context()
        };
        sound(crate::load(
            Path::new("job.yaml"),
            &super::base_with(changes),
            &DocumentOverrides::default(),
            &context,
        ))
        .spec
    };
    let (here, there) = (read(None, ""), read(Some("prod"), "output: s3://bucket/out\n"));
    assert!(here.environment_variables.is_empty());
    let expected = r#"{"data":{"digits:2":"s3://bucket/digits"},"datastores":{},"models":{}}"#;
    assert_eq!(there.environment_variables[AzureNames::VARIABLE], expected);
    let own = format!(
        "environment_variables: {{{}: mine}}\noutput: s3://bucket/out\n",
        AzureNames::VARIABLE
    );
    assert_eq!(read(Some("prod"), &own).environment_variables[AzureNames::VARIABLE], "mine");
}
