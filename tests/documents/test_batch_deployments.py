"""Batch deployments, whole: where scripts find their model, what they write, and MLflow models without a script."""

import json

import pandas
import pytest

from harness import COMPLETED, FAILED, INVALID, file_names

NEWER = """
    $schema: https://azuremlschemas.azureedge.net/latest/modelBatchDeployment.schema.json
    name: sizes
    endpoint_name: sizes
    type: model
    model: {MODEL}
    CODE
    environment: {image: example.com/image}
    compute: azureml:batch-cluster
    resources: {instance_count: 2}
    settings:
      max_concurrency_per_instance: 2
      mini_batch_size: 2
      output_action: append_row
      output_file_name: sizes.csv
      retry_settings: {max_retries: 1, timeout: 30}
      error_threshold: -1
      logging_level: info
      environment_variables: {KIND: big}
"""
SCRIPT = "code_configuration: {code: code, scoring_script: score.py}"


def deployment(model="path: net", code=SCRIPT, form="newer"):
    text = NEWER.replace("MODEL", model).replace("CODE", code)
    if form == "older":
        # The same keys, at the root.
        head, _, settings = text.partition("    settings:\n")
        text = head.replace("    type: model\n", "") + settings.replace("      ", "    ")
    return text


def run(workplace, expect=COMPLETED):
    ended = workplace.command("run", "deployment.yml", "--json", "--input", "data")
    assert ended.exit_status == expect, str(ended)
    return ended


@pytest.mark.parametrize("form", ["newer", "older"])
def test_script_gets_its_model_and_its_output_folder(workplace, form):
    """The model lies below a folder with its name, `mini_batch_size` counts files, and blanks separate the columns of
    DataFrames, no matter what the name of the output file says."""
    workplace.data(5)
    workplace.write(
        {
            "deployment.yml": deployment(form=form),
            "net/parts/weights.txt": "7",
            "code/score.py": """
                import glob, os
                import pandas as pd
                def init():
                    global weights
                    [path] = glob.glob(os.environ["AZUREML_MODEL_DIR"] + "/*/*/weights.txt")
                    assert path.endswith("/net/parts/weights.txt"), path
                    weights = int(open(path).read())
                def run(mini_batch):
                    seen = os.path.join(os.environ["AZUREML_BI_OUTPUT_PATH"], f"{mini_batch.task_id}.seen")
                    with open(seen, "w") as file:
                        file.write(str(len(mini_batch)))
                    rows = [[os.path.basename(path), int(open(path).read()) * weights, os.environ["KIND"] + " one"]
                            for path in mini_batch]
                    return pd.DataFrame(rows, columns=["file", "size", "kind"])
            """,
        }
    )
    run(workplace)
    output = workplace.folder / "deployment-output"
    frame = pandas.read_csv(output / "sizes.csv", sep=" ", header=None)
    names = file_names(5)
    assert frame.values.tolist() == [[name, 7 * int(name[:3]), "big one"] for name in names]
    assert [(output / f"{number}.seen").read_text() for number in range(3)] == ["2", "2", "1"]


def test_model_that_is_a_file_lies_in_the_folder_of_models(workplace):
    workplace.data(1)
    workplace.write(
        {
            "gristmill.toml": '[azureml.models]\nnet = "kept/model.pkl"\n',
            "kept/model.pkl": "m",
            "deployment.yml": deployment("name: net, version: 3").replace("append_row", "summary_only"),
            "code/score.py": """
                import os
                def run(files):
                    with open(os.path.join(os.environ["AZUREML_MODEL_DIR"], "model.pkl")) as file:
                        text = file.read()
                    open(os.path.join(os.environ["AZUREML_BI_OUTPUT_PATH"], "own.txt"), "w").write(text)
                    return files
            """,
        }
    )
    run(workplace)
    output = workplace.folder / "deployment-output"
    assert (output / "own.txt").read_text() == "m"
    assert not (output / "sizes.csv").exists(), "a script that writes its own files has no other output"


def test_deployments_with_mistakes_are_refused(workplace):
    workplace.data(1)
    workplace.write({"net/weights.txt": "7", "deployment.yml": deployment(code="")})
    assert "net has no file MLmodel, so it is not an MLflow model" in run(workplace, INVALID).stderr
    workplace.write({"deployment.yml": deployment()})
    assert "deployment.yml:7: source_directory: " in run(workplace, INVALID).stderr
    workplace.write({"code/score.py": "def run(files): return None", "deployment.yml": deployment()})
    result = json.loads(run(workplace, FAILED).stdout)
    assert result["mini_batches"]["failed"] == 1 and "NoneType" in result["cause"]
