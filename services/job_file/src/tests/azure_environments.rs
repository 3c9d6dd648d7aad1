//! Environments of documents of Azure ML, and addresses that no job reads.

use std::path::PathBuf;

use protocol::Environment;

use super::azure::inputs;
use super::{Workplace, lines, sound};

const MODEL_ALONE: &str = "$schema: x/modelBatchDeployment.schema.json\ntype: model\nname: net\nmodel: {path: mlflow}\nsettings: {}\n";

#[test]
fn model_without_a_script_has_the_environment_that_lies_beside_it() {
    let workplace = Workplace::azure();
    let data = inputs(&["data"]);
    let read = || sound(workplace.read(MODEL_ALONE, &data));
    let file = || match read().spec.environment {
        Environment::Requirements { file, .. } => PathBuf::from(file.as_path()),
        other => panic!("{other:?}"),
    };
    let warned = lines(&read().warnings);
    assert!(
        warned
            .contains("none of requirements.txt, conda.yaml, python_env.yaml lies beside MLmodel"),
        "{warned}"
    );
    let python_env =
        "python: 3.12.1\nbuild_dependencies: [pip==24]\ndependencies: [-r more.txt, six]\n";
    workplace.write("mlflow/python_env.yaml", python_env);
    let written = std::fs::read_to_string(file()).expect("the conda file");
    assert!(
        written.contains("python=3.12.1") && written.contains("pip==24") && written.contains("six"),
        "{written}"
    );
    assert!(
        written.contains(&format!("-r {}", workplace.path("mlflow/more.txt").display())),
        "{written}"
    );
    workplace.write("mlflow/conda.yaml", "dependencies: [python=3.12, {pip: [six]}]\n");
    assert_eq!(file(), workplace.path("mlflow/conda.yaml"));
    workplace.write("mlflow/requirements.txt", "six\n");
    assert_eq!(file(), workplace.path("mlflow/requirements.txt"));
    assert_eq!(lines(&read().warnings), "");
    let named = MODEL_ALONE.replace("model: {", "environment: {image: i}\nmodel: {");
    assert!(matches!(
        sound(workplace.read(&named, &data)).spec.environment,
        Environment::Interpreter { .. }
    ));
    let mut replaced = inputs(&["data"]);
    replaced.overrides.push(("environment".to_owned(), "requirements.txt".to_owned()));
    let expected = Environment::Requirements {
        file: workplace.path("requirements.txt").into(),
        base: "/usr/bin/default-python".into(),
    };
    assert_eq!(sound(workplace.read(MODEL_ALONE, &replaced)).spec.environment, expected);

    let component = "type: parallel\ninputs: {data: {type: uri_folder}}\ninput_data: ${{inputs.data}}\n\
                     outputs: {rows: {type: uri_file}}\ntask: {type: model, model: mlflow, append_row_to: \
                     \"${{outputs.rows}}\"}\n";
    let job = sound(workplace.read(component, &inputs(&["data=data"]))).spec;
    assert_eq!(job.entry_script, "gristmill/mlflow_model.py");
    assert!(matches!(job.environment, Environment::Requirements { .. }), "{:?}", job.environment);
}

#[test]
fn first_generation_of_the_data_lake_is_refused_with_a_remedy() {
    let found =
        Workplace::azure().read(MODEL_ALONE, &inputs(&["adl://a.azuredatalakestore.net/x"]));
    let found = lines(&found.expect_err("nothing reads it"));
    assert!(
        found.contains(
            "adl:// is Azure Data Lake Storage Gen1, which ended in 2024: copy the data to Gen2"
        ),
        "{found}"
    );
}
