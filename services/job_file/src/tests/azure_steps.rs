//! Pipelines: components by name, one step alone, steps that are refused, assets, and `--set` with the keys of a
//! document.

use std::path::Path;

use protocol::JobSpec;

use super::azure::{DEPLOYMENT, PIPELINE, SCORE, inputs};
use super::{Workplace, lines, sound};
use crate::{AzureNames, Context, DocumentOverrides, Register, Steps};

fn workplace() -> (Workplace, Context) {
    let workplace = Workplace::azure();
    let context = workplace.pipeline();
    (workplace, context)
}

fn spec(steps: &Steps, index: usize, context: &Context) -> JobSpec {
    sound(steps.load(index, true, context)).spec
}

fn names(steps: &Steps) -> Vec<&str> {
    steps.steps().iter().map(|step| step.name.as_str()).collect()
}

fn set(pairs: &[(&str, &str)]) -> DocumentOverrides {
    let overrides =
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    DocumentOverrides { overrides, ..DocumentOverrides::default() }
}

fn step(name: &str) -> DocumentOverrides {
    DocumentOverrides { step: Some(name.to_owned()), ..DocumentOverrides::default() }
}

#[test]
fn components_are_found_by_name() {
    let (workplace, mut context) = workplace();
    workplace.write(
        "shared/one/spec.yaml",
        &SCORE.replace("name: score_all", "name: score\nversion: 2"),
    );
    let newer = SCORE
        .replace("name: score_all", "name: score\nversion: 10")
        .replace("timeout: 11", "timeout: 22");
    workplace.write("shared/two/spec.yml", &newer);
    workplace.write("shared/two/conda.yml", "name: score\ndependencies: [python]\n");
    workplace.write("shared/code/entry.py", "def run(files): return files\n");
    let place = |path: &str| workplace.path(path).display().to_string();
    for (key, value) in [("score", "shared"), ("one:1", "parts/score.yml"), ("lost", "shared")] {
        context.azure.components.insert(key.to_owned(), place(value));
    }
    let read = |component: &str| {
        let text = PIPELINE.replace("file:./parts/score.yml", component);
        workplace.steps_with(&text, &DocumentOverrides::default(), &context)
    };
    for (component, timeout) in [
        ("azureml:score:2", 11),
        ("azureml:score:10", 22),
        ("azureml:score@latest", 22),
        ("azureml:score", 22),
        ("azureml://registries/shared/components/score/versions/2", 11),
        ("azureml://registries/shared/components/score/labels/latest", 22),
        ("azureml:/subscriptions/s/resourceGroups/g/workspaces/w/components/score/versions/2", 11),
        ("azureml:one:1", 11),
        ("azureml:one@latest", 11),
    ] {
        let steps = sound(read(component));
        assert_eq!(
            spec(&steps, 1, &context).run_invocation_timeout_seconds,
            timeout,
            "{component}"
        );
    }
    for (component, expected) in [
        ("azureml:score:3", "has the component score in other versions: 2, 10"),
        ("azureml:lost:1", "is the component lost (`name: lost`)"),
        (
            "azureml:none:1",
            "azureml:none:1 is not known here: add `\"none:1\" = \"…\"`, its file, or a folder of component",
        ),
    ] {
        let found = lines(&read(component).expect_err(component));
        assert!(found.contains(expected) && found.lines().count() == 1, "{found}");
    }
}

/// A pipeline of which only `score` and the step before it can run.
fn mostly_refused() -> String {
    let inputs = "inputs:\n  unused: {type: uri_folder, path: 'azureml:nowhere:1'}\n";
    let steps = "jobs:\n  tune: {type: sweep, trial: {command: x}, outputs: {best: {type: uri_folder}}}\n  other: \
                 {component: ./parts/none.yml}\n  spent: {type: parallel, inputs: {x: '${{parent.inputs.unused}}'}}\n";
    PIPELINE.replacen("inputs:\n", inputs, 1).replacen("jobs:\n", steps, 1)
}

#[test]
fn selected_step_does_not_need_the_others() {
    let (workplace, context) = workplace();
    let text = mostly_refused();
    assert!(workplace.steps_with(&text, &DocumentOverrides::default(), &context).is_err());
    workplace.write("doc-output/prepare/cut/a.txt", "a");
    let steps = sound(workplace.steps_with(&text, &step("score"), &context));
    assert_eq!(names(&steps), ["score"]);
    assert_eq!(
        spec(&steps, 0, &context).inputs[0].paths[0].as_path(),
        workplace.path("doc-output/prepare/cut")
    );
    // Mistakes in the inputs of the step itself count, as does the place that a refused step would write.
    let found =
        lines(&workplace.steps_with(&text, &step("spent"), &context).expect_err("its input"));
    assert!(found.contains("inputs.unused: azureml:nowhere:1 is not known here"), "{found}");
    let reads = text.replace(
        "path: ${{parent.jobs.prepare.outputs.cut}}",
        "path: ${{parent.jobs.tune.outputs.best}}",
    );
    workplace.write("doc-output/tune/best/a.txt", "a");
    let steps = sound(workplace.steps_with(&reads, &step("score"), &context));
    assert_eq!(
        spec(&steps, 0, &context).inputs[0].paths[0].as_path(),
        workplace.path("doc-output/tune/best")
    );
    let found = lines(&workplace.steps_with(&text, &step("tune"), &context).expect_err("a sweep"));
    assert!(
        found.contains("jobs.tune.type: Gristmill does not run steps of type sweep")
            && found.lines().count() == 1,
        "{found}"
    );
    let found =
        lines(&workplace.steps_with(&text, &step("tun"), &context).expect_err("no such step"));
    assert!(
        found.contains("--step: the pipeline has no such step (found \"tun\"; allowed: "),
        "{found}"
    );
}

#[test]
fn refused_step_is_one_mistake() {
    let (workplace, context) = workplace();
    for (from, to, expected) in [
        (
            "type: command\n",
            "type: sweep\n",
            "jobs.prepare.type: Gristmill does not run steps of type sweep",
        ),
        (
            "    type: command\n",
            "    component: ./parts/none.yml\n",
            "jobs.prepare.component: /parts/none.yml cannot be read",
        ),
        (
            "    type: command\n",
            "    component: azureml:cut:1\n",
            "jobs.prepare.component: azureml:cut:1 is not known here",
        ),
    ] {
        let text = PIPELINE.replacen(from, to, 1)
            + "  last:\n    command: cat ${{inputs.rows}}\n    inputs: {rows: \
            '${{parent.jobs.prepare.outputs.more}}'}\n";
        let text =
            if to.contains("sweep") { text.replace("outputs.more", "outputs.cut") } else { text };
        let found =
            workplace.steps_with(&text, &DocumentOverrides::default(), &context).expect_err(to);
        let found = lines(&found).replace(&workplace.path("").display().to_string(), "/");
        assert!(found.contains(expected) && found.lines().count() == 1, "{to}: {found}");
    }
    let text = PIPELINE
        .replacen("type: command\n", "type: sweep\n", 1)
        .replace("cut: {type: uri_folder}", "cut: {type: uri_folder, name: cut-rows}")
        .replace("${{parent.jobs.prepare.outputs.cut}}", "azureml:cut-rows@latest");
    let (before, score) = text.split_once("  score:\n").expect("a step");
    let (score, prepare) = score.split_once("  prepare:\n").expect("a step");
    let in_order = format!("{before}  prepare:\n{prepare}  score:\n{score}");
    let found = lines(
        &workplace
            .steps_with(&in_order, &DocumentOverrides::default(), &context)
            .expect_err("a sweep"),
    );
    assert!(found.contains("steps of type sweep") && found.lines().count() == 1, "{found}");
    for (from, to) in [
        (
            "result: {type: uri_folder}",
            "result: {type: uri_folder, path: 'azureml://datastores/none/paths/x'}",
        ),
        ("${{parent.outputs.result}}", "${{parent.outputs.none}}"),
    ] {
        let text = PIPELINE.replace(from, to);
        let found = lines(
            &workplace.steps_with(&text, &DocumentOverrides::default(), &context).expect_err(to),
        );
        assert_eq!(found.lines().count(), 1, "{found}");
    }
    let text = PIPELINE.replace("path: ./data", "path: azureml:nowhere:1");
    let found = lines(
        &workplace
            .steps_with(&text, &DocumentOverrides::default(), &context)
            .expect_err("no such data"),
    );
    assert!(
        found.contains("inputs.raw: azureml:nowhere:1") && found.lines().count() == 1,
        "{found}"
    );
}

#[test]
fn step_takes_the_forms_of_public_documents() {
    let (workplace, mut context) = workplace();
    context.azure.models.insert("net".to_owned(), workplace.path("model").display().to_string());
    // A model without a type, code that is one file, and an unknown setting.
    let text = PIPELINE
        .replace(
            "model: {type: uri_folder, path: ./model}",
            "model: {path: 'azureml://registries/r/models/net/versions/3'}",
        )
        .replace("    code: ./code\n", "    code: ./code/entry.py\n")
        .replace("default_compute: azureml:cpu-cluster", "default_datestore: azureml:blobs");
    let steps = sound(workplace.steps_with(&text, &DocumentOverrides::default(), &context));
    assert_eq!(spec(&steps, 0, &context).source_directory.as_path(), workplace.path("code"));
    assert_eq!(spec(&steps, 1, &context).side_inputs["model"].as_path(), workplace.path("model"));
    let warnings = lines(&steps.warnings);
    let expected = "settings.default_datestore: unknown key, without effect; did you mean \"default_datastore\"?";
    assert!(warnings.contains(expected), "{warnings}");
    // A prompt flow in the place of a component.
    workplace.write(
        "parts/flow.dag.yaml",
        "inputs: {text: {type: string}}\noutputs: {}\nnodes:\n- name: ask\n",
    );
    let text = PIPELINE.replace("file:./parts/score.yml", "./parts/flow.dag.yaml");
    let found = lines(
        &workplace.steps_with(&text, &DocumentOverrides::default(), &context).expect_err("a flow"),
    );
    assert!(
        found.contains("jobs.score.component: this is a prompt flow") && found.lines().count() == 1,
        "{found}"
    );
}

#[test]
fn pipeline_job_runs_a_pipeline_component() {
    let (workplace, mut context) = workplace();
    let component = PIPELINE
        .replace("raw: {type: uri_folder, path: ./data}", "raw: {type: uri_folder}")
        .replace("file:./parts/", "./")
        .replace("path: ./model", "path: ../model")
        .replace("code: ./code", "code: ../code");
    workplace.write("parts/whole.yml", &component);
    context
        .azure
        .components
        .insert("whole".to_owned(), workplace.path("parts/whole.yml").display().to_string());
    for named in ["./parts/whole.yml", "azureml:whole:1"] {
        let text = format!(
            "type: pipeline\ncomponent: {named}\ninputs: {{raw: {{type: uri_folder, path: data}}, limit: 5}}\noutputs: \
             {{result: {{type: uri_folder, path: ./there}}}}\nsettings: {{default_compute: c}}\n"
        );
        let steps = sound(workplace.steps_with(&text, &DocumentOverrides::default(), &context));
        assert_eq!(names(&steps), ["prepare", "score"]);
        let score = spec(&steps, 1, &context);
        assert!(score.argv.windows(2).any(|pair| pair == ["--limit", "5"]), "{:?}", score.argv);
        assert_eq!(score.outputs["extra"].as_path(), workplace.path("there"));
        assert_eq!(score.source_directory.as_path(), workplace.path("code"));
        let steps = sound(workplace.steps_with(&text, &inputs(&["limit=6"]), &context));
        assert!(spec(&steps, 1, &context).argv.windows(2).any(|pair| pair == ["--limit", "6"]));
        let found = workplace.steps_with(
            &text.replace("limit:", "limt:"),
            &DocumentOverrides::default(),
            &context,
        );
        let found = lines(&found.expect_err("no such input"));
        assert!(
            found.contains("inputs.limt: the component has no such input; did you mean \"limit\"?"),
            "{found}"
        );
    }
    let found = workplace.steps_with(
        "type: pipeline\ncomponent: ./none.yml\n",
        &DocumentOverrides::default(),
        &context,
    );
    assert_eq!(lines(&found.expect_err("no file")).lines().count(), 1);
}

#[test]
fn outputs_with_a_name_are_assets() {
    let (workplace, mut context) = workplace();
    let text = PIPELINE
        .replace("cut: {type: uri_folder}", "cut: {type: uri_folder, name: cut-rows, version: 4}")
        .replace("result: {type: uri_folder}", "result: {type: uri_folder, name: result}")
        .replace("path: ${{parent.jobs.prepare.outputs.cut}}", "path: azureml:cut-rows:4");
    let register = Register::new(workplace.path("assets"));
    context.azure.register = register.clone();
    let (before, score) = text.split_once("  score:\n").expect("a step");
    let (score, prepare) = score.split_once("  prepare:\n").expect("a step");
    let in_order = format!("{before}  prepare:\n{prepare}  score:\n{score}");
    let steps = sound(workplace.steps_with(&in_order, &DocumentOverrides::default(), &context));
    assert_eq!(names(&steps), ["prepare", "score"]);
    assert_eq!(
        steps.steps()[1].needs,
        ["prepare"],
        "a later step reads what an earlier one will have registered"
    );
    let [cut] = &steps.steps()[0].assets[..] else { panic!("one asset") };
    assert_eq!(
        (cut.name.as_str(), cut.version.as_deref(), cut.kind.as_str()),
        ("cut-rows", Some("4"), "uri_folder")
    );
    assert_eq!(Path::new(&cut.path), workplace.path("doc-output/prepare/cut"));
    let [result] = &steps.steps()[1].assets[..] else { panic!("one asset") };
    assert_eq!((result.name.as_str(), &result.version), ("result", &None));
    assert_eq!(Path::new(&result.path), workplace.path("doc-output/outputs/result"));
    assert_eq!(sound(steps.load(1, true, &context)).assets, steps.steps()[1].assets);
    assert_eq!(
        spec(&steps, 1, &context).inputs[0].paths[0].as_path(),
        workplace.path("doc-output/prepare/cut")
    );

    // Another document reads what has been registered; `gristmill.toml` takes precedence.
    let deployment = |context: &Context, name: &str| {
        let steps = workplace.steps_with(DEPLOYMENT, &inputs(&[name]), context)?;
        Ok::<_, Vec<_>>(spec(&steps, 0, context).inputs[0].paths[0].as_path().to_owned())
    };
    let found = lines(&deployment(&context, "azureml:cut-rows:4").expect_err("not registered yet"));
    assert!(found.contains("azureml:cut-rows:4 is not known here"), "{found}");
    for folder in ["doc-output/prepare/cut", "elsewhere"] {
        std::fs::create_dir_all(workplace.path(folder)).expect("writable");
    }
    register.add(cut, "job-1").expect("writable");
    for name in ["azureml:cut-rows:4", "azureml:cut-rows@latest"] {
        assert_eq!(
            deployment(&context, name).expect(name),
            workplace.path("doc-output/prepare/cut")
        );
    }
    let found = lines(&deployment(&context, "azureml:cut-row").expect_err("another name"));
    assert!(
        found.contains("below [azureml.data] in ")
            && found.trim_end().ends_with("; did you mean \"cut-rows\"?"),
        "{found}"
    );
    // A folder beside the document, as the second SDK writes its path.
    let found = lines(&deployment(&context, "azureml:elsewhere").expect_err("no name"));
    assert!(
        found.trim_end().ends_with("; for data beside the document, write ./elsewhere"),
        "{found}"
    );
    let mut named: AzureNames = context.azure.clone();
    named.data.insert("cut-rows".to_owned(), workplace.path("elsewhere").display().to_string());
    let context = Context { azure: named, ..context };
    assert_eq!(
        deployment(&context, "azureml:cut-rows:4").expect("known"),
        workplace.path("elsewhere")
    );

    let found = workplace.steps_with(
        &text.replace("name: result", "name: ../x"),
        &DocumentOverrides::default(),
        &context,
    );
    let found = lines(&found.expect_err("no name"));
    assert!(
        found.contains("outputs.result.name: found \"../x\"; allowed: letters, digits"),
        "{found}"
    );
}

#[test]
fn set_takes_the_keys_of_a_document() {
    let (workplace, context) = workplace();
    workplace.write("other/a.txt", "a");
    let read =
        |pairs: &[(&str, &str)]| sound(workplace.steps_with(PIPELINE, &set(pairs), &context));
    let limit = |steps: &Steps, value: &str| {
        let argv = spec(steps, 1, &context).argv;
        assert!(argv.windows(2).any(|pair| pair == ["--limit", value]), "{argv:?}");
    };
    limit(&read(&[("inputs.limit", "7")]), "7");
    limit(&read(&[("jobs.score.inputs.limit", "8")]), "8");
    for key in ["inputs.raw.path", "inputs.raw"] {
        let prepare = spec(&read(&[(key, "./other")]), 0, &context);
        let other = workplace.path("other").display().to_string();
        assert!(prepare.argv.iter().any(|word| word.contains(&other)), "{key}: {:?}", prepare.argv);
    }
    let score = spec(
        &read(&[("jobs.score.retry_settings.timeout", "77"), ("score.run_max_try", "9")]),
        1,
        &context,
    );
    assert_eq!(
        (score.run_invocation_timeout_seconds, score.run_max_try),
        (77, 9),
        "beside keys of the job file"
    );
    let outputs = read(&[("outputs.result.path", "./there")]);
    assert_eq!(spec(&outputs, 1, &context).outputs["extra"].as_path(), workplace.path("there"));
    let warnings = lines(&read(&[("settings.default_compute", "azureml:x")]).warnings);
    assert!(warnings.contains("settings.default_compute"), "{warnings}");
    let store = set(&[("settings.default_datastore", "azureml:mine")]);
    let found =
        lines(&workplace.steps_with(PIPELINE, &store, &context).expect_err("an unknown store"));
    assert!(
        found.contains("the data store mine is not known here") && found.lines().count() == 1,
        "{found}"
    );
    for (key, value, expected) in [
        (
            "jobs.scor.inputs.limit",
            "1",
            "--set jobs.scor.inputs.limit: the pipeline has no such step; did you mean \"score\"?",
        ),
        (
            "jobs.score.inputs.limt",
            "1",
            "--set jobs.score.inputs.limt: the component has no such input",
        ),
        ("jobs.score.mini_batch_sise", "1", "--set jobs.score.mini_batch_sise: unknown key"),
        ("settings", "[1]", "--set settings: found a list"),
        ("inputs.limit", "", "--set inputs.limit: missing"),
    ] {
        let found =
            lines(&workplace.steps_with(PIPELINE, &set(&[(key, value)]), &context).expect_err(key));
        assert!(found.contains(expected), "{key}: {found}");
    }
    let overrides = DocumentOverrides {
        inputs: inputs(&["data"]).inputs,
        ..set(&[("settings.mini_batch_size", "3")])
    };
    let steps = sound(workplace.steps_with(DEPLOYMENT, &overrides, &context));
    assert_eq!(spec(&steps, 0, &context).mini_batch_size, protocol::MiniBatchSize::Files(3));
    // Public documents leave the model to the command line.
    let overrides =
        DocumentOverrides { inputs: inputs(&["data"]).inputs, ..set(&[("model", "./mlflow")]) };
    let steps = sound(workplace.steps_with("endpoint_name: e\nname: d\n", &overrides, &context));
    assert_eq!(spec(&steps, 0, &context).model, "mlflow");
}

#[test]
fn jobs_are_named_after_document_and_step() {
    let (workplace, context) = workplace();
    let job = |file: &str, text: &str| {
        let steps =
            sound(Steps::read(Path::new(file), text, &DocumentOverrides::default(), &context))
                .expect("a document");
        spec(&steps, 1, &context).name
    };
    let here = |text: &str| text.replace("./", &format!("{}/", workplace.folder.path().display()));
    for (file, text, expected) in [
        ("doc.yml", here(PIPELINE), "doc-score"),
        ("Oj_Sales/pipeline.yml", here(PIPELINE), "oj-sales-score"),
        ("doc.yml", format!("name: nightly\n{}", here(PIPELINE)), "nightly-score"),
        (
            "3b_sales_of_every_shop_there_is/pipeline.yml",
            here(PIPELINE),
            "job-3b-sales-of-every-score-1ee6",
        ),
        (
            "a-rather-long-name-of-a-document.yml",
            here(PIPELINE),
            "a-rather-long-name-of-score-2ca0",
        ),
    ] {
        assert_eq!(job(file, &text), expected);
    }
}
