"""Documents of Azure ML, run as they are: components, batch deployments and pipelines."""

import ast
import json
import pickle
import shutil
import subprocess
import sys
import zipfile

import pytest
from sklearn.linear_model import LogisticRegression

from azure_documents import run
from harness import COMPLETED, FAILED, INVALID, ROOT, wait_until, write_wheel
from portal_client import Portal

COMPONENT = """
    $schema: https://azuremlschemas.azureedge.net/latest/parallelComponent.schema.json
    type: parallel
    name: upper
    inputs:
      data: {type: uri_folder}
      suffix: {type: string, optional: true}
    outputs:
      rows: {type: uri_file}
      extra: {type: uri_folder}
    input_data: ${{inputs.data}}
    mini_batch_size: "2"
    mini_batch_error_threshold: 0
    task:
      type: run_function
      code: code
      entry_script: upper.py
      environment: {image: example.com/image}
      program_arguments: --extra ${{outputs.extra}} $[[--suffix ${{inputs.suffix}}]]
      append_row_to: ${{outputs.rows}}
"""
UPPER = """
    import argparse, os
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--extra")
    parser.add_argument("--suffix", default="")
    arguments, _ = parser.parse_known_args()
    def run(files):
        for file in files:
            open(os.path.join(arguments.extra, os.path.basename(file)), "w").close()
        return [open(file).read() + arguments.suffix for file in files]
"""
PIPELINE = """
    type: pipeline
    inputs:
      count: 3
    outputs:
      copies: {type: uri_folder}
    jobs:
      rows:
        type: parallel
        component: ./component.yml
        inputs:
          data: {path: '${{parent.jobs.make.outputs.texts}}', type: uri_folder}
        outputs:
          extra: ${{parent.outputs.copies}}
      make:
        type: command
        code: ./make
        command: python make.py ${{inputs.count}} ${{outputs.texts}} $EXTRA
        inputs: {count: '${{parent.inputs.count}}'}
        outputs: {texts: {type: uri_folder}}
        environment_variables: {EXTRA: more}
      last:
        type: command
        command: >-
          cat ${{inputs.rows}} > ${{outputs.copy}} && echo done >&2
        inputs: {rows: '${{parent.jobs.rows.outputs.rows}}'}
        outputs: {copy: {type: uri_file}}
"""
MAKE = """
    import pathlib, sys
    _, count, folder, extra = sys.argv
    print("makes", count, flush=True)
    for number in range(int(count)):
        pathlib.Path(folder, f"{number}.txt").write_text(f"{extra}{number}")
"""


@pytest.fixture
def pipeline(workplace):
    workplace.write({"component.yml": COMPONENT, "code/upper.py": UPPER, "make/make.py": MAKE, "doc.yml": PIPELINE})
    return workplace


def test_component_runs_with_its_inputs_and_becomes_the_same_job(workplace):
    workplace.data(5)
    workplace.write({"component.yml": COMPONENT, "code/upper.py": UPPER})
    given = ["component.yml", "--input", "data=data", "--input", "suffix=a b"]
    run(workplace, "component.yml", "--input", "data", "--input", "suffix=a b")
    output = workplace.folder / "component-output"
    assert (output / "rows/parallel_run_step.txt").read_text().splitlines() == [
        f"{number:03}a b" for number in range(5)
    ]
    assert len(list((output / "extra").iterdir())) == 5
    assert "reused the result" in run(workplace, *given).stderr
    converted = workplace.command("convert", *given)
    assert converted.exit_status == COMPLETED, str(converted)
    workplace.write({"job.yaml": converted.stdout})
    assert "reused the result" in run(workplace, "job.yaml").stderr
    assert workplace.command("convert", "job.yaml").stderr.strip() == "job.yaml: it is already a job file"


def test_pipeline_runs_its_steps_in_order_and_reuses_them(pipeline):
    ended = run(pipeline, "doc.yml", "--json")
    object = json.loads(ended.stdout)
    assert object["state"] == "Completed"
    assert [step["step"] for step in object["steps"]] == ["make", "rows", "last"]
    assert [step["result"]["reused"] for step in object["steps"]] == [False] * 3
    output = pipeline.folder / "doc-output"
    assert (output / "last/copy/copy").read_text() == "more0\nmore1\nmore2\n"
    assert sorted(path.name for path in (output / "outputs/copies").iterdir()) == ["0.txt", "1.txt", "2.txt"]
    logs = pipeline.home / "jobs" / object["steps"][0]["result"]["job_id"] / "logs"
    assert any("makes 3" in file.read_text(errors="replace") for file in logs.rglob("*.txt"))

    again = json.loads(run(pipeline, "doc.yml", "--json").stdout)
    assert [step["result"]["reused"] for step in again["steps"]] == [True] * 3
    changed = json.loads(run(pipeline, "doc.yml", "--json", "--input", "count=4").stdout)
    assert [step["result"]["reused"] for step in changed["steps"]] == [False] * 3
    assert (output / "last/copy/copy").read_text().splitlines()[-1] == "more3"


def test_portal_of_a_pipeline_shows_the_jobs_of_its_steps(pipeline):
    run(pipeline, "doc.yml")
    held = """
        import pathlib, time
        def run(files):
            while not pathlib.Path(HELD).exists():
                time.sleep(0.05)
            return files
    """
    go = pipeline.folder / "go"
    pipeline.write({"code/upper.py": held.replace("HELD", repr(str(go)))})
    running = pipeline.start("run", "doc.yml", "--portal")
    portal = Portal.of(running)

    def jobs():
        shown = portal.get("/jobs")["jobs"]
        return {job["state"]: job["job_id"] for job in shown} if len(shown) == 2 else None

    shown = wait_until(jobs, "the step that is reused, and the one that runs")
    assert shown.keys() == {"Completed", "Running"}, "jobs of earlier runs are not those of this one"
    assert portal.get("/info")["job"] is None
    assert portal.get(f"/jobs/{shown['Running']}")["state"] == "Running"
    go.touch()
    assert running.wait().exit_status == COMPLETED


def test_failed_command_ends_the_pipeline(pipeline):
    pipeline.write({"make/make.py": "raise SystemExit(3)"})
    ended = run(pipeline, "doc.yml", expect=FAILED)
    assert "  cause: The command failed: CommandFailed: the command ended with exit status 3: python make.py 3 " in (
        ended.stdout
    )
    assert "mini-batch" not in ended.stdout, ended.stdout
    (said,) = pipeline.home.rglob("user/error/0/process000.txt")
    assert " the command: CommandFailed: the command ended with exit status 3" in said.read_text()
    assert "step make did not complete; 2 of 3 steps have not run" in ended.stderr
    pipeline.write({"make/make.py": MAKE})
    run(pipeline, "doc.yml")


def test_one_step_runs_alone(pipeline):
    pipeline.data(2)
    run(pipeline, "doc.yml", "--step", "rows", "--input", "data=data")
    assert (pipeline.folder / "doc-output/rows/rows/parallel_run_step.txt").read_text() == "000\n001\n"
    plan = pipeline.command("plan", "doc.yml", "--step", "rows", "--input", "data=data", "--set", "mini_batch_size=1")
    assert "2 mini-batches of 2 files" in plan.stdout, str(plan)


def test_pipeline_job_over_a_pipeline_component_runs(pipeline):
    job = """
        type: pipeline
        component: ./doc.yml
        inputs: {count: 2}
        outputs: {copies: {type: uri_folder, path: ./there}}
    """
    pipeline.write({"job.yml": job})
    run(pipeline, "job.yml")
    assert sorted(file.name for file in (pipeline.folder / "there").iterdir()) == ["0.txt", "1.txt"]
    rows = (pipeline.folder / "job-output/rows/rows/parallel_run_step.txt").read_text()
    assert rows.splitlines() == ["more0", "more1"]


def test_documents_are_validated_as_a_whole(pipeline):
    assert pipeline.command("validate", "doc.yml").stdout == "doc.yml is valid\n"
    pipeline.write({"doc.yml": PIPELINE.replace("outputs.texts}}'", "outputs.text}}'").replace("python make", "${{x")})
    ended = pipeline.command("validate", "doc.yml")
    assert ended.exit_status == INVALID
    assert ": jobs.rows.inputs.data: no step writes this output: unknown name; did you mean" in ended.stderr
    assert ": jobs.make.command: an expression has no end" in ended.stderr


def test_mltable_of_a_command_is_read_by_its_keys(workplace):
    """The table is made by the step before, so it is read when its turn comes."""
    workplace.write(
        {
            "make.py": """
                import pathlib, sys
                folder = pathlib.Path(sys.argv[1])
                for store in "ab":
                    (folder / store).mkdir(exist_ok=True)
                    (folder / store / "sales.csv").write_text("price,note\\n1,x\\n2,y\\n")
                (folder / "MLTable").write_text('''
                paths: [{pattern: ./*/*.csv}]
                transformations:
                  - read_delimited: {delimiter: ",", header: all_files_same_headers}
                  - extract_columns_from_partition_format: {partition_format: "{Store}/{file_name}.{extension}"}
                  - drop_columns: [Path, file_name, extension, note]
                ''')
            """,
            "sum.py": """
                def run(frame, context):
                    assert list(frame.columns) == ["price", "Store"], frame.columns
                    return [f"{context.partition_key_value['Store']} {frame.price.sum()}"]
            """,
            "doc.yml": """
                type: pipeline
                jobs:
                  make:
                    command: python make.py ${{outputs.table}}
                    code: .
                    outputs: {table: {type: mltable, mode: rw_mount}}
                  sum:
                    type: parallel
                    inputs:
                      table: {path: '${{parent.jobs.make.outputs.table}}', type: mltable, mode: direct}
                    outputs: {rows: {type: uri_file}}
                    partition_keys: [Store]
                    input_data: ${{inputs.table}}
                    task: {type: run_function, code: ., entry_script: sum.py, append_row_to: '${{outputs.rows}}'}
            """,
        }
    )
    run(workplace, "doc.yml")
    assert (workplace.folder / "doc-output/sum/rows/parallel_run_step.txt").read_text() == "a 3\nb 3\n"


def test_names_come_from_gristmill_toml(workplace):
    workplace.data(1)
    text = COMPONENT.replace("{image: example.com/image}", "azureml:env:3")
    workplace.write({"component.yml": text, "code/upper.py": UPPER})
    ended = run(workplace, "component.yml", "--input", "azureml:digits@latest", expect=INVALID)
    assert 'component.yml:18: task.environment: azureml:env:3 is not known here: add `"env:3" = ' in ended.stderr
    assert "azureml:digits@latest is not known here: add `digits = " in ended.stderr
    workplace.write(
        {"gristmill.toml": f'[azureml.data]\n"digits:2" = "data"\n[azureml.environments]\nenv = "{sys.executable}"\n'}
    )
    run(workplace, "component.yml", "--input", "azureml:digits@latest")


ML_MODEL = """
    flavors:
      python_function:
        loader_module: mlflow.sklearn
        model_path: model.pkl
      sklearn:
        pickled_model: model.pkl
        serialization_format: cloudpickle
    signature:
      inputs: '[{"type": "double", "name": "a"}, {"type": "long", "name": "b"}]'
"""
ML_DEPLOYMENT = """
    $schema: https://azuremlschemas.azureedge.net/latest/modelBatchDeployment.schema.json
    name: sizes
    endpoint_name: sizes
    type: model
    model: {path: model}
    settings: {mini_batch_size: 1, error_threshold: -1}
"""


def test_mlflow_model_needs_no_script(workplace):
    """Each row of the output is a Python literal, which readers of the original evaluate."""
    workplace.write(
        {
            "doc.yml": ML_DEPLOYMENT,
            "model/MLmodel": ML_MODEL,
            "tables/1.csv": "a,b\n0.1,0\n5.5,9\n",
            "tables/2.csv": "a,b\n6,8\n",
        }
    )
    model = LogisticRegression().fit([[0.0, 0], [0.1, 1], [5.0, 9], [6.0, 8]], ["small", "small", "large", "large"])
    (workplace.folder / "model/model.pkl").write_bytes(pickle.dumps(model))
    run(workplace, "doc.yml", "--input", "tables")
    lines = (workplace.folder / "doc-output/predictions.csv").read_text().splitlines()
    assert [ast.literal_eval(line) for line in lines] == [["1.csv", "small"], ["1.csv", "large"], ["2.csv", "large"]]
    workplace.write({"other/3.docx": "no table"})
    ended = run(workplace, "doc.yml", "--input", "other", expect=FAILED)
    assert "3.docx" in ended.stdout and "reads .csv, .png" in ended.stdout, str(ended)


def test_mlflow_model_has_the_environment_that_lies_beside_it(workplace):
    """The package of the model's `requirements.txt` is nowhere else. It lends the libraries of these tests."""
    wheel = write_wheel(workplace.folder, "beside_the_model", "VALUE = 'small'")
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("libraries.pth", "\n".join(path for path in sys.path if path.endswith("-packages")))
    workplace.write(
        {
            "doc.yml": ML_DEPLOYMENT,
            "model/MLmodel": "flavors: {python_function: {loader_module: loads, code: code}}",
            "model/code/loads.py": """
                import beside_the_model
                class Model:
                    def predict(self, frame):
                        return [beside_the_model.VALUE] * len(frame)
                def _load_pyfunc(path):
                    return Model()
            """,
            "model/requirements.txt": f"{wheel}\n",
            "tables/1.csv": "a,b\n0.1,0\n5.5,9\n",
        }
    )
    for _ in range(2):
        run(workplace, "doc.yml", "--input", "tables", "--fresh")
        lines = (workplace.folder / "doc-output/predictions.csv").read_text().splitlines()
        assert [ast.literal_eval(line) for line in lines] == [["1.csv", "small"], ["1.csv", "small"]]
    assert len(list((workplace.home / "environments").glob("*/env"))) == 1, "created once"

    workplace.write({"model/requirements.txt": "no-such-package-gristmill @ file:///nowhere/at/all\n"})
    ended = run(workplace, "doc.yml", "--input", "tables", "--fresh", expect=FAILED)
    said = ended.stdout + ended.stderr
    assert "a new job with --set environment=PATH, an interpreter or a requirements file, replaces it" in said, said
    # As the message says.
    workplace.write({"mine.txt": f"{wheel}\n"})
    run(workplace, "doc.yml", "--input", "tables", "--fresh", "--set", "environment=mine.txt")


WRITES_A_MODEL = """
    import argparse, os
    parser = argparse.ArgumentParser()
    parser.add_argument("--models")
    folder = parser.parse_known_args()[0].models
    def run(files):
        for file in files:
            # As MLflow does, it refuses a folder that is there.
            os.makedirs(os.path.join(folder, os.path.basename(file)))
        return files
"""
TRAINS = """
    type: pipeline
    inputs:
      data: {type: uri_folder, path: tables}
    jobs:
      train:
        type: parallel
        mini_batch_size: "1"
        inputs:
          data: "${{parent.inputs.data}}"
        input_data: "${{inputs.data}}"
        outputs:
          models: {type: uri_folder}
        task:
          type: run_function
          code: code
          entry_script: train.py
          program_arguments: --models ${{outputs.models}}
"""


def test_default_folder_of_an_output_is_empty_when_a_job_begins_anew(workplace):
    workplace.write(
        {"doc.yml": TRAINS, "code/train.py": WRITES_A_MODEL, "tables/1.csv": "a\n1\n", "tables/2.csv": "a\n2\n"}
    )
    run(workplace, "doc.yml")
    models = workplace.folder / "doc-output/train/models"
    (models / "of the first run").touch()
    reused = run(workplace, "doc.yml")
    assert (models / "of the first run").exists() and "models.before" not in reused.stdout + reused.stderr
    workplace.write({"code/train.py": "def run(files:"})
    refused = workplace.command("run", "doc.yml", "--fresh")
    assert refused.exit_status == 2 and "train.py" in refused.stderr, str(refused)
    assert (models / "of the first run").exists(), "a script that cannot run moves nothing"
    workplace.write({"code/train.py": WRITES_A_MODEL})
    ended = run(workplace, "doc.yml", "--fresh")
    assert f"the files of an earlier run in {models} are now in {models}.before" in ended.stdout + ended.stderr
    assert sorted(path.name for path in models.iterdir()) == ["1.csv", "2.csv"]
    kept = models.with_name("models.before")
    assert sorted(path.name for path in kept.iterdir()) == ["1.csv", "2.csv", "of the first run"]
    run(workplace, "doc.yml", "--fresh")
    assert sorted(path.name for path in kept.iterdir()) == ["1.csv", "2.csv"], "one run is kept"
    shutil.rmtree(kept)
    kept.write_text("a file of the author")
    ended = workplace.command("run", "doc.yml", "--fresh")
    assert f"cannot move the files of an earlier run from {models} to {kept}; move what is there away" in ended.stderr
    assert sorted(path.name for path in models.iterdir()) == ["1.csv", "2.csv"] and kept.is_file()
    # A folder that the document names belongs to its author, wherever it is.
    workplace.write({"doc.yml": TRAINS.replace("models: {type", "models: {path: doc-output/named, type")})
    named = workplace.folder / "doc-output/named"
    named.mkdir()
    (named / "of the author").touch()
    run(workplace, "doc.yml")
    assert sorted(path.name for path in named.iterdir()) == ["1.csv", "2.csv", "of the author"]


def test_examples_run(workplace):
    """Copies, so that their outputs are not left beside the originals."""
    shutil.copytree(ROOT / "examples", workplace.folder / "examples", ignore=shutil.ignore_patterns("output", "data"))
    run(workplace, "examples/reviews/pipeline.yml")
    ratings = workplace.folder / "examples/reviews/pipeline-output/rate/ratings.txt"
    assert [line.split()[-1] for line in ratings.read_text().splitlines()] == ["good", "bad", "good", "bad", "good"]
    subprocess.run([sys.executable, workplace.folder / "examples/iris/prepare.py"], check=True)
    deployment = workplace.folder / "examples/iris-deployment"
    run(workplace, deployment / "deployment.yml", "--input", deployment / "flowers")
    rows = (deployment / "deployment-output/predictions.csv").read_text().splitlines()
    assert rows[:2] == ["friday.csv 0 Virginica", "friday.csv 1 Setosa"]
    assert len(rows) == 5


def test_steps_run_on_a_target(pipeline, sqlite):
    """Commands run here, and parallel steps on the target."""
    worker, reducer = sqlite.worker(), sqlite.reducer()
    ended = sqlite.command("enqueue", "doc.yml", "--json", expect=COMPLETED)
    steps = json.loads(ended.stdout)["steps"]
    assert [step["result"]["state"] for step in steps] == ["Completed"] * 3
    local = [step["result"]["job_id"] in pipeline.job_ids() for step in steps]
    assert local == [True, False, True]
    assert worker.process.poll() is None and reducer.process.poll() is None


def test_python_of_a_command_finds_the_stand_ins(pipeline):
    pipeline.write(
        {
            "make/make.py": """
                import sys
                import sitecustomize
                import mltable
                from azureml.core import Run
                print("seen", Run.get_context().id, sitecustomize.OWN)
                print("warned", file=sys.stderr)
            """,
            "site/sitecustomize.py": "OWN = 'mine'",
        }
    )
    run(pipeline, "doc.yml", "--step", "make", PYTHONPATH=str(pipeline.folder / "site"))
    (job_id,) = pipeline.job_ids()
    logs = pipeline.home / "jobs" / job_id / "logs/user"
    assert (logs / "stdout/0/process000.stdout.txt").read_text() == f"seen {job_id} mine\n"
    assert "warned\n" in (logs / "stderr/0/process000.stderr.txt").read_text()


def test_error_of_a_command_comes_first(pipeline):
    for code, said in (
        ("raise ValueError('no good')", "ValueError: no good; the command ended with exit status 1"),
        ("import json\njson.loads('{')", "JSONDecodeError: Expecting property name"),
        ("import sys\nsys.exit('no such table')", "CommandFailed: no such table; the command ended with exit status 1"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)", "CommandFailed: "),
    ):
        pipeline.write({"make/make.py": code})
        ended = run(pipeline, "doc.yml", "--step", "make", expect=FAILED)
        assert f"  cause: The command failed: {said}" in ended.stdout, f"{code}\n{ended}"
