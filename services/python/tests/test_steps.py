"""`ParallelRunStep` and `parallel_run_function`: the constructors of the SDKs, and the jobs that they amount to."""

import inspect
import json
import os
import sys
import textwrap
from pathlib import Path

import pandas as pd
import pytest
from calls import drive

import gristmill
from gristmill import yaml_files
from gristmill.api import command

# Of azureml-pipeline-steps 1.62.0, azureml-pipeline-core 1.62.0, azureml-core 1.61.0 and azure-ai-ml 1.35.2, whose
# `**kwargs` swallows misspelt ones: names, order and defaults.
SIGNATURES = {
    "ParallelRunConfig": "environment, entry_script, error_threshold, output_action, compute_target, node_count, "
    "process_count_per_node=None, mini_batch_size=None, source_directory=None, description=None, logging_level='INFO', "
    "run_invocation_timeout=60, run_max_try=3, append_row_file_name=None, allowed_failed_count=None, "
    "allowed_failed_percent=None, partition_keys=None, environment_variables=None",
    "ParallelRunStep": "name, parallel_run_config, inputs, output=None, side_inputs=None, arguments=None, "
    "allow_reuse=True",
    "PipelineParameter": "name, default_value",
    "PipelineData": "name, datastore=None, output_name=None, output_mode='mount', output_path_on_compute=None, "
    "output_overwrite=None, data_type=None, is_directory=None, pipeline_output_name=None, training_output=None",
    "OutputFileDatasetConfig": "name=None, destination=None, source=None, partition_format=None",
    "DatasetConsumptionConfig": "name, dataset, mode='direct', path_on_compute=None",
    "parallel_run_function": "*, name=None, description=None, tags=None, properties=None, display_name=None, "
    "experiment_name=None, compute=None, retry_settings=None, environment_variables=None, logging_level=None, "
    "max_concurrency_per_instance=None, error_threshold=None, mini_batch_error_threshold=None, task=None, "
    "mini_batch_size=None, partition_keys=None, input_data=None, inputs=None, outputs=None, instance_count=None, "
    "instance_type=None, docker_args=None, shm_size=None, identity=None, is_deterministic=True",
    "RunFunction": "*, code=None, entry_script=None, program_arguments=None, model=None, append_row_to=None, "
    "environment=None",
}


@pytest.fixture(autouse=True)
def folder(home):
    Path("score.py").write_text(
        textwrap.dedent("""
        import argparse, os
        parser = argparse.ArgumentParser()
        parser.add_argument("--prefix", default="")
        parser.add_argument("--model")
        parser.add_argument("--into")
        arguments, _ = parser.parse_known_args()

        def run(files):
            model = open(arguments.model).read() if arguments.model else ""
            if arguments.into:
                for file in files:
                    open(os.path.join(arguments.into, os.path.basename(file)), "w").write("seen")
            return [arguments.prefix + os.environ.get("WORD", "") + model + open(file).read() for file in files]
        """)
    )
    Path("data").mkdir()
    for name in ("a", "b", "c"):
        Path("data", f"{name}.txt").write_text(name)
    Path("model.txt").write_text("m")


def config(**settings):
    given = {"environment": None, "entry_script": "score.py", "error_threshold": 0, "output_action": "append_row"}
    return gristmill.ParallelRunConfig(
        **{**given, "compute_target": "local", "node_count": 1, "process_count_per_node": 1, **settings}
    )


def lines(job):
    return Path(job.wait(timeout=60, progress=False).output).read_text().split()


# ---- constructors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SIGNATURES)
def test_constructor_is_that_of_the_sdk(name):
    from gristmill import azureml_pipeline

    given = inspect.signature(getattr(gristmill, name, None) or getattr(azureml_pipeline, name)).parameters.values()
    plain = inspect.Signature([one.replace(annotation=inspect.Parameter.empty) for one in given])
    found = str(plain)[1:-1]
    if name == "parallel_run_function":
        # All are passed by keyword.
        assert sorted(found.split(", ")) == sorted(SIGNATURES[name].split(", "))
    else:
        assert found == SIGNATURES[name]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: config(mini_batch_sise=3), "ParallelRunConfig has no keyword mini_batch_sise: did you mean mini_"),
        (lambda: gristmill.ParallelRunStep("score", config(), ["data"], outputs="o"), "did you mean output?"),
        (lambda: gristmill.PipelineParameter(name="n", default=1), "did you mean default_value?"),
        (lambda: gristmill.parallel_run_function(mini_batch_error_treshold=1), "mean mini_batch_error_threshold?"),
        (lambda: gristmill.parallel_run_function(item_error_treshold=1), "did you mean error_threshold?"),
        (lambda: gristmill.RunFunction(entry_scrip="score.py"), "RunFunction has no keyword entry_scrip: did you mean"),
        (lambda: node(retry_settings={"max_retry": 2}).submit(), "retry_settings has no max_retry: did you mean max"),
        (lambda: node()(dat="x"), "count_letters has no input dat: did you mean data?"),
    ],
)  # fmt: skip
def test_misspelt_keyword_is_an_error_with_the_nearest_name(call, said):
    with pytest.raises(TypeError) as raised:
        call()
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"error_threshold": -2}, "error_threshold must be a whole number from -1, not -2"),
        ({"error_threshold": "5"}, "error_threshold must be a whole number from -1, not '5'"),
        ({"allowed_failed_percent": 101}, "from 0 to 100, not 101"),
        ({"node_count": 0}, "node_count must be a whole number from 1, not 0"),
        ({"run_max_try": 0}, "run_max_try must be"),
        ({"output_action": "append"}, "output_action must be summary_only or append_row, not 'append'"),
        ({"mini_batch_size": "1.5MB"}, "'1.5MB' is not a size"),
        ({"mini_batch_size": 1, "partition_keys": ["k"]}, "exclude each other"),
        ({"partition_keys": "k"}, "partition_keys must be a JSON list"),
        ({"append_row_file_name": "a/b"}, "'a/b' is not a file name"),
    ],
)
def test_values_that_no_job_could_have_are_rejected(settings, said):
    with pytest.raises(ValueError, match=said.replace("(", r"\(")):
        config(**settings)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"inputs": []}, "inputs is empty"),
        ({"inputs": "data"}, "inputs must be a list"),
        ({"output": None}, "output is missing"),
        ({"arguments": ["x"]}, "arguments must begin with an option, not with 'x'"),
        ({"arguments": ["--run_max_try", 1]}, "--run_max_try is reserved"),
        ({"parallel_run_config": {}}, "must be a ParallelRunConfig, not a dict"),
    ],
)
def test_steps_that_no_job_could_be_are_rejected(settings, said):
    with pytest.raises((TypeError, ValueError), match=said):
        gristmill.ParallelRunStep(
            **{"name": "score", "parallel_run_config": config(), "inputs": ["data"], "output": "out", **settings}
        )


def test_missing_script_is_named():
    with pytest.raises(ValueError, match=r"entry_script: there is no file other\.py"):
        gristmill.ParallelRunStep("score", config(entry_script="other.py"), ["data"], output="out")
    with pytest.raises(ValueError, match="source_directory: there is no folder nowhere"):
        gristmill.ParallelRunStep("score", config(source_directory="nowhere"), ["data"], output="out")


# ---- steps ---------------------------------------------------------------------------------------------------------


def test_step_runs_with_side_inputs_arguments_and_parameters():
    size = gristmill.PipelineParameter(name="size", default_value=2)
    prefix = gristmill.PipelineParameter(name="prefix", default_value="x")
    step = gristmill.ParallelRunStep(
        name="score",
        parallel_run_config=config(mini_batch_size=size, environment_variables={"WORD": "w"}, source_directory="."),
        inputs=["data"],
        output="out",
        side_inputs={"model": "model.txt"},
        arguments=["--prefix", prefix, "--model", "${{side_inputs.model}}"],
    )
    job = step.submit()
    assert lines(job) == ["xwma", "xwmb", "xwmc"] and job.output == os.path.abspath("out/parallel_run_step.txt")
    assert job.result["mini_batches"]["total"] == 2
    again = step.submit(pipeline_parameters={"size": 3, "prefix": "y"})
    assert lines(again) == ["ywma", "ywmb", "ywmc"] and again.result["mini_batches"]["total"] == 1
    assert gristmill.run(step, progress=False, mini_batch_size=1).result["mini_batches"]["total"] == 3
    with pytest.raises(ValueError, match="no pipeline parameter sice: did you mean size"):
        step.submit(pipeline_parameters={"sice": 3})
    with pytest.raises(TypeError, match="pass only settings"):
        gristmill.submit(step, inputs="data")


def test_step_takes_tables_and_ends_without_an_output():
    Path("count.py").write_text("def run(df): return [str(x) for x in df['x']]")
    frame = pd.DataFrame({"x": [1, 2, 3]})
    step = gristmill.ParallelRunStep(
        "count", config(entry_script="count.py", output_action="summary_only", mini_batch_size="1kb"), [frame]
    )
    assert step.submit().wait(progress=False).result["items"]["succeeded"] == 3


def test_unknown_compute_target_runs_here_with_a_warning():
    step = gristmill.ParallelRunStep("score", config(compute_target="cpu-cluster"), ["data"], output="out")
    with pytest.warns(UserWarning, match="no compute target cpu-cluster, so the job runs on this machine"):
        job = step.submit()
    assert lines(job) == ["a", "b", "c"] and job.target is None


def test_driver_builds_and_submits_its_pipeline():
    said = drive("""
        import azureml.contrib.pipeline.steps
        from azureml.core import Experiment, Workspace
        from azureml.data import OutputFileDatasetConfig
        from azureml.data.dataset_consumption_config import DatasetConsumptionConfig
        from azureml.pipeline.core import Pipeline, PipelineData, PipelineParameter
        from azureml.pipeline.steps import ParallelRunConfig, ParallelRunStep

        ws = Workspace.from_config()
        config = ParallelRunConfig(
            source_directory=".", entry_script="score.py", mini_batch_size=PipelineParameter("size", "2"),
            error_threshold=0, output_action="append_row", append_row_file_name="rows.txt", environment=None,
            compute_target="local", node_count=1, process_count_per_node=1)
        images = PipelineParameter(name="images", default_value="data")
        named = DatasetConsumptionConfig("images", images).as_mount()
        first = PipelineData(name="inferences", datastore=None)
        again = OutputFileDatasetConfig(name="again", destination=(None, "{run-id}/{output-name}"))
        model = DatasetConsumptionConfig("model", "model.txt").as_download()
        one = ParallelRunStep(name="one", inputs=[named], output=first, parallel_run_config=config, side_inputs=[model],
                              arguments=["--model", model])
        two = ParallelRunStep(name="two", inputs=[first.as_input("rows")], output=again, parallel_run_config=config)
        run = Experiment(ws, "test").submit(Pipeline(workspace=ws, steps=[two, one]), pipeline_parameters={"size": "1"})
        print(run.wait_for_completion(show_output=False), [step.name for step in run.get_steps()])
        (of_one,) = run.find_step_run("one")
        print(of_one.job.result["mini_batches"]["total"], of_one.get_status())
        output = of_one.get_output_data("inferences")
        print(output.download("copies"), output.path_on_datastore == f"azureml/{of_one.id}/inferences")
        print(open(f"copies/{output.path_on_datastore}/rows.txt").read().split())
        (of_two,) = run.find_step_run("two")
        first_run = again.path
        print(first_run == f"outputs/{of_two.job.id}/again", open(f"{first_run}/rows.txt").read().split())
        two.submit(pipeline_parameters={"size": "1"}).wait(progress=False)
        print(again.path == first_run)
        two.submit(fresh=True, pipeline_parameters={"size": "1"}).wait(progress=False)
        print(again.path == first_run, open(f"{first_run}/rows.txt").read() == open(f"{again.path}/rows.txt").read())
        job = gristmill.run(two, fresh=True, pipeline_parameters={"size": "1"}, progress=False)
        print(again.path == f"outputs/{job.id}/again")
    """)
    assert said.splitlines() == [
        "Finished ['one', 'two']",
        "3 Finished",
        "1 True",
        "['ma', 'mb', 'mc']",
        "True ['ma', 'mb', 'mc']",
        "True",
        "False True",
        "True",
    ]


# ---- the second SDK ------------------------------------------------------------------------------------------------


def node(**settings):
    given = {
        "name": "count_letters",
        "inputs": {"data": "data", "model": {"type": "uri_file", "path": "model.txt"}, "word": "w"},
        "outputs": {"rows": None, "seen": {"type": "uri_folder"}},
        "input_data": "${{inputs.data}}",
        "mini_batch_size": "2",
        "max_concurrency_per_instance": 1,
        "task": gristmill.RunFunction(
            code=".",
            entry_script="score.py",
            program_arguments="--model ${{inputs.model}} --prefix '${{inputs.word}}' --into ${{ outputs.seen }}",
            append_row_to="${{outputs.rows}}",
        ),
    }
    return gristmill.parallel_run_function(**{**given, **settings})


def job_file_of(made):
    """Returns the job file that the engine makes of a node."""
    settings = [word for key, value in made.job_settings().items() for word in ("--set", f"{key}={json.dumps(value)}")]
    text = command.call("convert", "-", *settings, text=json.dumps(made.job_document({})))
    Path("converted.yaml").write_text(text)
    return yaml_files.read("converted.yaml")


def test_parallel_job_runs_with_inputs_outputs_and_literals():
    job = node().submit()
    assert lines(job) == ["wma", "wmb", "wmc"]
    assert job.output == os.path.abspath("outputs/count-letters/rows/parallel_run_step.txt")
    assert sorted(os.listdir("outputs/count-letters/seen")) == ["a.txt", "b.txt", "c.txt"]
    assert job.result["mini_batches"]["total"] == 2


def test_keys_without_effect_are_one_warning():
    Path("data/ä😀.txt").write_text("smile")
    made = node(instance_type="large", shm_size="2g", identity={"type": "managed"})(data="data/ä😀.txt")
    with pytest.warns(UserWarning, match=r"without effect here: identity .*resources.instance_type .*shm_size"):
        assert lines(made.submit()) == ["wmsmile"]


def test_parallel_job_can_be_changed_before_it_is_submitted():
    made = node(instance_count=1, retry_settings={"max_retries": 2, "timeout": 60})(data="data/b.txt", word="v v")
    made.resources.instance_count = 3
    made.outputs.rows.path = "results/${{name}}/letters.txt"
    made.max_concurrency_per_instance = 2
    made.mini_batch_error_threshold = 10
    made.task.program_arguments += " --error_threshold 5 --allowed_failed_percent=30"
    assert made.job_document({})["resources"] == {"instance_count": 3}
    document = job_file_of(made)
    assert (document["process_count_per_node"], document["run_max_try"]) == (2, 3)
    assert (document["allowed_failed_count"], document["error_threshold"], document["allowed_failed_percent"]) == (
        10,
        5,
        30,
    )
    assert document["arguments"][:4] == ["--model", "${{side_inputs.model}}", "--prefix", "v v"]
    assert "--error_threshold" not in document["arguments"]
    assert made.submit().wait(progress=False).output == os.path.abspath("results/count-letters/letters.txt")
    assert node().resources.instance_count is None, "a copy is changed, not its origin"
    for change, said in (
        (lambda: setattr(made, "mini_batch_sise", 1), "mini_batch_size"),
        (lambda: setattr(made.resources, "instance_cout", 1), "instance_count"),
        (lambda: setattr(made.outputs.rows, "pth", "x"), "path"),
        (lambda: made.outputs.row, "rows"),
    ):
        with pytest.raises(AttributeError, match=f"did you mean {said}?"):
            change()


def test_expressions_are_checked_and_optional_ones_are_dropped():
    optional = node(inputs={"data": "data", "word": {"type": "string"}})
    optional.task.program_arguments = "$[[--prefix ${{inputs.word}}]] --other 1"
    assert job_file_of(optional)["arguments"] == ["--other", "1"]
    assert job_file_of(optional(word="v"))["arguments"] == ["--prefix", "v", "--other", "1"]
    for change, said in (
        ({"input_data": "${{inputs.dat}}"}, 'input_data: unknown name; did you mean "inputs.data"?'),
        ({"input_data": "data"}, 'input_data: found "data"; allowed: one reference: ${{inputs.NAME}}'),
        ({"inputs": {"data": {"type": "uri_folder"}}}, "input data has no path: pass one"),
        ({"task": None}, "task is missing"),
    ):
        with pytest.raises(ValueError) as raised:
            node(**change).submit()
        assert said in str(raised.value)


def test_objects_of_the_sdk_are_inputs_and_environments():
    class Anything:
        def __init__(self, **values):
            self.__dict__.update(values)

    made = node(
        inputs={"data": Anything(type="uri_folder", path="data", mode="ro_mount"), "word": "w", "model": "model.txt"},
        outputs={
            "rows": Anything(type="uri_file", path="azureml://datastores/store/paths/${name}/r.txt"),
            "seen": "seen",
        },
    )
    made.task.environment = Anything(name="env", image="image", conda_file=None)
    with pytest.warns(UserWarning) as warned:
        document = job_file_of(made)
    assert [str(one.message).partition(":")[0] for one in warned] == [
        f"environment env is not created here, and {sys.executable} runs the script",
        "output rows",
    ]
    assert (document["output"], document["append_row_file_name"]) == ("outputs/count-letters", "r.txt")
    made.task.environment = {"image": "image", "conda_file": {"dependencies": ["pip"]}}
    with pytest.warns(UserWarning, match="output rows"):
        assert json.loads(Path(job_file_of(made)["environment"]).read_text()) == {"dependencies": ["pip"]}


def test_names_of_a_workspace_are_those_of_gristmill_toml():
    Path("gristmill.toml").write_text("""
        [azureml.data]
        "letters:2" = "data"
        [azureml.datastores]
        store = "kept"
        [azureml.models]
        marks = "model.txt"
    """)
    made = node(inputs={"data": "azureml:letters@latest", "model": "model.txt", "word": "w"})
    made.outputs.rows.path = "azureml://datastores/store/paths/${name}/r.txt"
    made.task.model = "azureml:marks:1"
    assert Path(job_file_of(made)["model"]) == Path("model.txt")
    assert lines(made.submit()) == ["wma", "wmb", "wmc"]
    assert Path("kept/count-letters/r.txt").exists()
    made.task.environment = "azureml:python:4"
    with pytest.warns(UserWarning, match="environment azureml:python:4 is not created here"):
        assert "environment" not in job_file_of(made)
    with Path("gristmill.toml").open("a") as file:
        file.write(f'[azureml.environments]\npython = "{sys.executable}"\n')
    assert job_file_of(made)["environment"] == sys.executable
    with pytest.raises(gristmill.InvalidJob, match=r'add `"other:1" = '):
        node(inputs={"data": "azureml:other:1", "model": "model.txt", "word": "w"}).submit()


def test_parallel_job_takes_tables_and_several_paths():
    Path("count.py").write_text("def run(df): return [type(df).__name__ + str(len(df))] * len(df)")
    Path("rows.csv").write_text("x,y\n1,2\n3,4\n")
    task = gristmill.RunFunction(entry_script="count.py", append_row_to="${{outputs.rows}}")
    for data in ("rows.csv", pd.DataFrame({"x": [1, 2, 3]}), ["rows.csv"]):
        table = gristmill.parallel_run_function(
            name="count", inputs={"data": data}, outputs={"rows": None}, input_data="${{inputs.data}}", task=task
        )
        assert lines(table.submit())[0].startswith("DataFrame")
    files = node(inputs={"data": ["data/a.txt", "data/c.txt"], "model": "model.txt", "word": "w"})
    assert lines(files.submit(mini_batch_size=1)) == ["wma", "wmc"]
