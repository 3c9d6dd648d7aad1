"""Drivers of the first SDK, in the forms that public notebooks and scripts have: each runs as it is, after ``import
gristmill``."""

import json
import sys
import textwrap
from pathlib import Path

import pytest
from calls import check_errors, drive

from gristmill import yaml_files

ENVIRONMENT = "batch_environment"
ECHO = """
    import os, sys
    from azureml.core import Run
    def run(files):
        return [os.path.basename(file) + ": " + os.environ.get("WORD", "-") for file in files]
"""


@pytest.fixture
def folder(home):
    """A folder with a script, data, and a table of the names of the workspace."""
    write(
        {
            "Code/echo.py": ECHO,
            "blobs/images/a.png": "a",
            "blobs/images/b.png": "b",
            "gristmill.toml": f"""
                [azureml.datastores]
                images_store = "blobs"
                [azureml.environments]
                {ENVIRONMENT} = "{sys.executable}"
            """,
        }
    )
    return home.parent


def write(files):
    for name, text in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(textwrap.dedent(text))


SETUP = """
    import json, os, tempfile
    import azureml.core
    from azureml.core import Dataset, Datastore, Environment, Experiment, Model, Run, RunConfiguration, Workspace
    from azureml.core.compute import AmlCompute, ComputeTarget
    from azureml.core.conda_dependencies import CondaDependencies
    from azureml.core.runconfig import DEFAULT_CPU_IMAGE
    from azureml.data import OutputFileDatasetConfig
    from azureml.data.data_reference import DataReference
    from azureml.data.datapath import DataPath, DataPathComputeBinding
    from azureml.data.dataset_factory import DataType
    from azureml.data.dataset_consumption_config import DatasetConsumptionConfig
    from azureml.exceptions import ComputeTargetException
    from azureml.pipeline.core import Pipeline, PipelineData, PipelineParameter, PublishedPipeline, StepSequence
    from azureml.pipeline.steps import ParallelRunConfig, ParallelRunStep, PythonScriptStep
    ws = Workspace.from_config()
    compute_target = ws.compute_targets["cpu-cluster"]
    env = Environment("batch_environment")
    def config(**settings):
        given = dict(source_directory="Code", entry_script="echo.py", mini_batch_size="1", error_threshold=0,
                     output_action="append_row", environment=env, compute_target=compute_target, node_count=1,
                     process_count_per_node=1)
        return ParallelRunConfig(**{**given, **settings})
"""


def driver(text, fails=False):
    """Runs a driver after the imports and names of `SETUP`."""
    return drive(SETUP + text, fails)


def test_images_of_a_container_with_a_parameter_and_a_download(folder):
    said = driver("""
    print('Workspace name: ' + ws.name, 'Azure region: ' + ws.location, 'Subscription id: ' + ws.subscription_id,
          'Resource group: ' + ws.resource_group, sep='; ')
    name = "cpu-cluster"
    if name in ws.compute_targets:
        compute_target = ws.compute_targets[name]
        assert type(compute_target) is AmlCompute
    print(compute_target.get_status().serialize()["provisioningState"])
    store = Datastore.register_azure_blob_container(
        ws, datastore_name="images_store", container_name="sampledata", account_name="public", overwrite=True)
    images = Dataset.File.from_files(path=store.path("images"), validate=False)
    parameter = PipelineParameter(name="images", default_value=images)
    consumption = DatasetConsumptionConfig("images_config", parameter).as_mount()
    output_dir = PipelineData(name="inferences", datastore=ws.get_default_datastore())
    env = Environment(name="batch_environment", environment_variables={"WORD": "w"})
    env.python.conda_dependencies = CondaDependencies.create(
        python_version="3.8", conda_packages=["pip==20.2.4"], pip_packages=["tensorflow==2.13.0", "azureml-core"])
    env.docker.base_image = DEFAULT_CPU_IMAGE
    env.spark.precache_packages = False
    prs = config(mini_batch_size=PipelineParameter(name="size", default_value="5"), append_row_file_name="out.txt")
    step = ParallelRunStep(name="predict", parallel_run_config=prs, inputs=[consumption], output=output_dir,
                           allow_reuse=False)
    experiment = Experiment(ws, "digits")
    pipeline = Pipeline(workspace=ws, steps=[step])
    def rows(run):
        run.wait_for_completion(show_output=False)
        output = run.find_step_run(step.name)[0].get_output_data(output_dir.name)
        target = tempfile.mkdtemp()
        output.download(local_path=target)
        assert output.path_on_datastore == f"azureml/{run.find_step_run(step.name)[0].id}/inferences"
        return open(os.path.join(target, output.path_on_datastore, prs.append_row_file_name)).read().split("\\n")
    print(rows(experiment.submit(pipeline)))
    one = Dataset.File.from_files(path=store.path("images/a.png"), validate=False)
    print(rows(experiment.submit(pipeline, pipeline_parameters={"images": one, "size": "1"})))
    """)
    assert said.splitlines() == [
        "Workspace name: local; Azure region: local; Subscription id: local; Resource group: local",
        "Succeeded",
        "['a.png: w', 'b.png: w', '']",
        "['a.png: w', '']",
    ]


LOADED = """
    parallel_run_config:
      mini_batch_size: 1
      error_threshold: 0
      output_action: append_row
      logging_level: INFO
      compute_target_name: cpu-cluster
      node_count: 1
      process_count_per_node: 1
      entry_script: echo.py
      source_directory: Code
      run_invocation_timeout: 60
      run_max_try: 3
      description: null
      append_row_file_name: rows.txt
      environment:
        name: batch_environment
        environmentVariables: {WORD: w}
        python: {condaDependencies: {dependencies: [python=3.8, {pip: [azureml-core]}]}}
"""


def test_configuration_of_a_file_and_a_dataset_that_is_registered(folder):
    write({"parallel.yml": LOADED})
    said = driver("""
    Dataset.File.from_files("blobs/images").register(ws, "batch", create_new_version=True)
    batch = PipelineParameter(name="batch_dataset", default_value=Dataset.get_by_name(ws, "batch"))
    destination = (ws.get_default_datastore(), "results/{run-id}/")
    results = OutputFileDatasetConfig(name="results", destination=destination).register_on_complete(name="scores")
    step = ParallelRunStep(
        name="batch-inference-step", parallel_run_config=ParallelRunConfig.load_yaml(workspace=ws, path="parallel.yml"),
        arguments=["--model_name", "m"], side_inputs=[], output=results, allow_reuse=False,
        inputs=[DatasetConsumptionConfig("batch_dataset", batch).as_mount()])
    pipeline = Pipeline(workspace=ws, steps=[step])
    pipeline.validate()
    for old in PublishedPipeline.list(ws):
        old.disable()
    try:
        pipeline.publish("name")
    except NotImplementedError as error:
        print(error)
    run = Experiment(ws, "batch").submit(pipeline)
    run.wait_for_completion(show_output=False)
    (step_run,) = run.get_steps()
    print(step_run.get_output_data("results").path_on_datastore == f"results/{step_run.id}")
    found = Dataset.get_by_name(ws, "scores")
    print(found.version, [open(file).read().split("\\n") for file in found.download(tempfile.mkdtemp())])
    """)
    assert said.splitlines() == [
        "Pipeline.publish: no service keeps pipelines here: call submit, and start this driver regularly with cron, a "
        "systemd timer or a scheduler of your cloud",
        "True",
        "1 [['a.png: w', 'b.png: w', '']]",
    ]
    entry = json.loads(Path("home/assets/data/scores/1.json").read_text())
    # The only datastore of the table is the default one.
    assert entry["path"].startswith(f"{folder}/blobs/results/batch-inference-step-")
    assert entry["type"] == "uri_folder"
    assert json.loads(Path("home/assets/data/batch/1.json").read_text())["path"] == f"{folder}/blobs/images"


def test_a_script_prepares_and_another_one_collects(folder):
    write(
        {
            "prepare/prepare.py": """
                import argparse, os
                from azureml.core import Run
                parser = argparse.ArgumentParser()
                for name in ("--output", "--step", "--names"):
                    parser.add_argument(name)
                args = parser.parse_args()
                os.makedirs(args.output, exist_ok=True)
                for name in args.names.split():
                    open(os.path.join(args.output, name), "w").write(args.step + os.environ["AML_PARAMETER_P"])
                print("made", Run.get_context().id != "OfflineRun", os.environ["DATABASE"])
            """,
            "prepare/collect.py": """
                import sys
                arguments = dict(zip(sys.argv[1::2], sys.argv[2::2]))
                rows = open(arguments["--in"] + "/parallel_run_step.txt").read()
                open(arguments["--to"] + "/copy.txt", "w").write(rows)
            """,
        }
    )
    said = driver("""
    store = Datastore(ws, "workspaceblobstore")
    prepared = PipelineData("output_data", datastore=store, output_name="output_data", is_directory=True).as_dataset()
    run_config = RunConfiguration()
    run_config.environment = Environment("batch_environment", environment_variables={"DATABASE": "d"})
    prepare = PythonScriptStep(
        name="Prepare data", script_name="prepare.py", source_directory="prepare", inputs=[], outputs=[prepared],
        arguments=["--output", prepared, "--step", PipelineParameter("step", 1), "--names", "it's $HOME"],
        params={"P": "p"}, compute_target=compute_target, runconfig=run_config)
    detected = PipelineData("detection_data", datastore=store)
    detect = ParallelRunStep(name="detection", inputs=[prepared], output=detected, parallel_run_config=config())
    reference = DataReference(Datastore(ws, "images_store"), path_on_datastore="copies", mode="mount")
    collect = PythonScriptStep(
        script_name="collect.py", source_directory="prepare", inputs=[detected.as_mount(), reference],
        arguments=["--in", detected, "--to", reference], compute_target=compute_target)
    pipeline = Pipeline(workspace=ws, steps=[collect, detect, prepare])
    run = Experiment(ws, "steps").submit(pipeline, pipeline_parameters={"step": 2})
    print(run.wait_for_completion(show_output=False), [step.name for step in run.get_steps()])
    print(run.find_step_run("Prepare data")[0].get_stdout_log().strip())
    copied = open("blobs/copies/copy.txt").read().split("\\n")
    print(open(prepared.path + "/$HOME").read(), sorted(copied))
    """)
    assert said.splitlines() == [
        # The output while the script runs, and later that of its log.
        "made True d",
        "Finished ['Prepare data', 'detection', 'collect.py']",
        "made True d",
        "2p ['', '$HOME: -', \"it's: -\"]",
    ]


def test_places_bindings_datasets_patterns_and_lists_are_inputs_of_scripts(folder):
    write(
        {
            "r/a.csv": "x;y\n1;a\n",
            "r/b.csv": "x;y\n2;b\n",
            "t/1/a.csv": "1",
            "t/2/a.csv": "2",
            "t/2/b.txt": "3",
            "steps/show.py": "import os, sys\nprint(sys.argv[1], sorted(os.listdir(sys.argv[2])), *sys.argv[3:])\n",
            "steps/read.py": """
                from azureml.core import Run
                inputs = Run.get_context().input_datasets
                print("read", inputs["sales"].to_pandas_dataframe().to_dict("list"), [*inputs["images"].to_path()])
            """,
            "steps/list.py": """
                import os, sys
                from azureml.core import Run
                for name, given in zip(("pattern", "list", "named"), sys.argv[1:]):
                    found = [os.path.relpath(os.path.join(root, file), given) for root, _, files in os.walk(given)
                             for file in files]
                    print(name, sorted(found), Run.get_context().input_datasets[name].to_path())
            """,
        }
    )
    said = driver("""
    place = DataPath(datastore=Datastore(workspace=ws, name="images_store"), path_on_datastore="images/")
    bound = (PipelineParameter(name="input_path", default_value=place), DataPathComputeBinding(mode="mount"))
    named = Dataset.File.from_files((Datastore.get(ws, "images_store"), "images")).as_named_input("images").as_mount()
    run_config = RunConfiguration(conda_dependencies=None, framework="Python")
    common = dict(script_name="show.py", source_directory="steps", runconfig=run_config)
    one = PythonScriptStep(name="one", arguments=["--in", bound, 0.5, True], inputs=[bound], **common)
    two = PythonScriptStep(name="two", arguments=["--in", named], **common)
    three = PythonScriptStep(name="three", arguments=["--in", os.path.abspath("steps")], **common)
    two.run_after(three)
    run = Experiment(ws, "places").submit(config=Pipeline(ws, [StepSequence([three, one]), two]), tags={})
    run.wait_for_completion(show_output=False)
    print("steps", [step.name for step in run.get_steps()])
    for name in ("one", "two"):
        print("log of", name, run.find_step_run(name)[0].get_stdout_log().strip())

    sales = Dataset.Tabular.from_delimited_files("r/*.csv", separator=";").keep_columns(["y"])
    images = Dataset.File.from_files((Datastore(ws, "images_store"), "images"))
    step = PythonScriptStep(
        name="read", script_name="read.py", source_directory="steps",
        inputs=[sales.as_named_input("sales"), images.as_named_input("images").as_download()])
    Experiment(ws, "e").submit(step).wait_for_completion()

    Dataset.File.from_files("t/**/*.csv").register(ws, "csvs")
    inputs = [
        Dataset.File.from_files("t/**/*.csv").as_named_input("pattern").as_mount(),
        Dataset.File.from_files(["t/1/a.csv", "t/2/b.txt"]).as_named_input("list").as_download(),
        Dataset.get_by_name(ws, "csvs").as_named_input("named").as_mount(),
    ]
    step = PythonScriptStep("list.py", name="list", source_directory="steps", inputs=inputs, arguments=inputs)
    Experiment(ws, "e").submit(step).wait_for_completion(show_output=False)
    print(Dataset.get_by_name(ws, "csvs").to_path())
    """).splitlines()
    assert [line for line in said if line.startswith(("steps", "log of"))] == [
        "steps ['three', 'one', 'two']",
        "log of one --in ['a.png', 'b.png'] 0.5 True",
        "log of two --in ['a.png', 'b.png']",
    ]
    assert said.count("read {'y': ['a', 'b']} ['/a.png', '/b.png']") == 1, said
    csvs = "['/1/a.csv', '/2/a.csv']"
    for line in (
        f"pattern ['1/a.csv', '2/a.csv'] {csvs}",
        "list ['1/a.csv', '2/b.txt'] ['/1/a.csv', '/2/b.txt']",
        f"named ['1/a.csv', '2/a.csv'] {csvs}",
        csvs,
    ):
        assert line in said


def test_table_is_divided_by_its_values(folder):
    write(
        {
            "sales.csv": "Store,Brand,Quantity\n2,tropicana,1\n2,tropicana,2\n5,tropicana,3\n2,minute maid,4\n",
            "Code/income.py": """
                def run(frame, context):
                    values = context.partition_key_value
                    return [f"{values['Store']} {values['Brand']} {frame['Quantity'].sum()} {list(frame.columns)}"]
            """,
        }
    )
    said = driver("""
    store = Run.get_context().experiment.workspace.get_default_datastore()
    store.upload_files(["sales.csv"], ".", "sales", overwrite=True, show_progress=False)
    table = Dataset.Tabular.from_delimited_files(path=(store, "sales/*.csv"))
    for _ in range(2):
        parts = table.partition_by(partition_keys=["Store", "Brand"], target=(store, "by_key"), name="parts")
    print(parts.partition_keys, Dataset.get_by_name(ws, "parts").partition_keys, parts.version)
    prs = config(entry_script="income.py", mini_batch_size=None, partition_keys=["Store", "Brand"], error_threshold=-1)
    step = ParallelRunStep(
        name="r-forecast", inputs=[parts.as_named_input("partitioned_input")], parallel_run_config=prs, arguments=[],
        output=OutputFileDatasetConfig(name="out", destination=(store, "out")), allow_reuse=False)
    run = Experiment(ws, "parts").submit(Pipeline(workspace=ws, steps=[step]))
    run.wait_for_completion(show_output=False, timeout_seconds=100)
    print(run.get_status())
    print(*sorted(open(store.path_of("out/parallel_run_step.txt")).read().splitlines()), sep="\\n")
    """)
    columns = "['Quantity', 'Store', 'Brand']"
    assert said.splitlines() == [
        "['Store', 'Brand'] ['Store', 'Brand'] 1",
        "Finished",
        f"2 minute maid 4 {columns}",
        f"2 tropicana 3 {columns}",
        f"5 tropicana 3 {columns}",
    ]


def test_missing_and_unusual_values_of_keys_round_trip(folder):
    write(
        {
            "sales.csv": "_shop,city,number,n\na/b,x,1,1\n..,,2,2\n50%,_y,,3\n",
            "Code/show.py": """
                def run(frame):
                    return [frame.iloc[[row]].to_json(orient="records") for row in range(len(frame))]
            """,
        }
    )
    said = driver("""
    import pyarrow.dataset
    table = Dataset.Tabular.from_delimited_files("sales.csv")
    parts = table.partition_by(["_shop", "city", "number"], (ws.get_default_datastore(), "parts"), name="parts")
    frame = parts.to_pandas_dataframe().sort_values("n")
    print(*frame.to_dict("records"), sep="\\n")
    root = parts.job_input()["path"]
    folder = next(iter(json.load(open(root + "/MLTable"))["paths"][0].values()))
    found = pyarrow.dataset.dataset(folder, partitioning="hive").to_table().sort_by("n").to_pydict()
    print(found["city"], found["number"])
    prs = config(entry_script="show.py", mini_batch_size=None, partition_keys=parts.partition_keys)
    step = ParallelRunStep(name="show", inputs=[parts.as_named_input("p")], parallel_run_config=prs, output="out")
    Experiment(ws, "e").submit(step).wait_for_completion(show_output=False)
    rows = sorted(json.loads(line)[0]["n"] for line in open("out/parallel_run_step.txt"))
    print(rows, [row for line in open("out/parallel_run_step.txt") for row in json.loads(line) if row["n"] == 2])
    """)
    assert said.splitlines() == [
        "{'n': 1, '_shop': 'a/b', 'city': 'x', 'number': '1'}",
        "{'n': 2, '_shop': '..', 'city': None, 'number': '2'}",
        "{'n': 3, '_shop': '50%', 'city': '_y', 'number': None}",
        "['x', None, '_y'] [1, 2, None]",
        "[1, 2, 3] [{'n': 2, '_shop': '..', 'city': None, 'number': '2'}]",
    ]


def test_configuration_is_saved_as_it_is_loaded_and_its_size_tells_files_from_tables(folder):
    write({"csv/a.csv": "x\n1\n", "csv/b.csv": "x\n2\n"})
    Path("gristmill.toml").write_text(Path("gristmill.toml").read_text() + '[azureml.data]\nsales = "csv"\n')
    said = driver("""
    sales = Dataset.get_by_name(ws, name="sales").as_named_input("sales")
    for size in ("1", 20, "1KB", None, PipelineParameter("size", "1")):
        made = config(mini_batch_size=size)
        step = ParallelRunStep(name="train", parallel_run_config=made, inputs=[sales], output="o")
        print(step.job_document({})["inputs"][0]["type"])
    table = Dataset.Tabular.from_delimited_files("csv/a.csv")
    step = ParallelRunStep(name="train", parallel_run_config=config(), inputs=[table.as_named_input("t")], output="o")
    print(step.job_document({})["inputs"][0]["type"])

    env.environment_variables["WORD"] = "w"
    config(mini_batch_size=PipelineParameter("size", "1KB"), run_max_try=2).save_to_yaml("saved.yml")
    loaded = ParallelRunConfig.load_yaml(ws, "saved.yml")
    assert (loaded.mini_batch_size, loaded.run_max_try, loaded.compute_target) == ("1KB", 2, "cpu-cluster")
    assert loaded.environment.environment_variables == {"WORD": "w"}
    """)
    assert said.split() == ["file", "file", "tabular", "tabular", "file", "tabular"]
    assert yaml_files.read("saved.yml")["parallel_run_config"]["entry_script"] == "echo.py"


def test_registered_datasets_keep_their_kind_their_steps_and_their_versions(folder):
    write({"t/a.csv": "x;y\n1;a\n", "t/b.csv": "x;y\n2;b\n"})
    write({"u/a.csv": "x\n1\n", "v/b.csv": "x\n2\n", "k.csv": "k,n\nx,1\ny,2\n"})
    said = driver("""
    files = Dataset.File.from_files("t/")
    print(files.register(ws, "files").version, files.register(ws, "files", create_new_version=True).version)
    print(Dataset.get_by_name(ws, "files").job_input()["type"])
    table = Dataset.Tabular.from_delimited_files("t/*.csv", separator=";").keep_columns(["y"])
    for made in (table, table, table.take(1)):
        print(made.register(workspace=ws, name="table", tags={"a": "b"}, create_new_version=True).version)
    print(Dataset.get_by_name(ws, "table", version=1).to_pandas_dataframe().to_dict("list"))
    print(Dataset.get_by_name(ws, "table").to_pandas_dataframe().to_dict("list"), sorted(ws.datasets))
    Dataset.File.upload_directory("t", (ws.get_default_datastore(), "up"), pattern="a*", overwrite=True)
    print(os.listdir(ws.get_default_datastore().path_of("up")))
    try:
        Dataset.get_by_name(ws, "none")
    except LookupError as error:
        print(error)

    # The name of another dataset needs a new version.
    from azureml.exceptions import UserErrorException
    table = Dataset.Tabular.from_delimited_files("u/*.csv")
    pairs = ((Dataset.File.from_files("u/"), Dataset.File.from_files("v/")), (table, table.take(1)),
             (Dataset.File.from_files("u/*.csv"), table))
    for number, (made, other) in enumerate(pairs):
        name = f"d{number}"
        print(made.register(ws, name).version, made.register(ws, name).version)
        try:
            other.register(ws, name)
        except UserErrorException as error:
            print(error)
        print(Dataset.get_by_name(ws, name).version, other.register(ws, name, create_new_version=True).version)

    # Other rows are another version of the parts.
    table, to = Dataset.Tabular.from_delimited_files("k.csv"), (ws.get_default_datastore(), "parts")
    for made in (table, table, table.take(1)):
        print(made.partition_by(["k"], to, name="parts").version, made.partition_by(["k"], to)._places())
    for version in (1, 2):
        print(Dataset.get_by_name(ws, "parts", version).to_pandas_dataframe()["n"].tolist())
    """).splitlines()
    assert said[:9] == [
        "1 1",
        "file",
        "1",
        "1",
        "2",
        "{'y': ['a', 'b']}",
        "{'y': ['a']} ['files', 'table']",
        "['a.csv']",
        'data none has no place here (known: files, table): add the line `none = "PATH OR URL"` below '
        "[azureml.data] in gristmill.toml",
    ]
    for number in range(3):
        assert said[9 + 3 * number : 12 + 3 * number] == [
            "1 1",
            f"There is already a dataset registered under name d{number}, whose newest version 1 differs from this "
            "one: pass create_new_version=True to register this one as a new version",
            "1 2",
        ]
    first, again, other, *rows = said[18:]
    assert (first[:2], other[:2], rows) == ("1 ", "2 ", ["[1, 2]", "[1]"])
    assert first == again != other


def test_environments_of_drivers(folder):
    write(
        {
            "conda.yml": "channels: [c]\ndependencies: [python=3.11, numpy, {pip: [a, -r more.txt]}]\n",
            "saved/azureml_environment.json": '{"name": "saved", "environmentVariables": {"A": "b"}, "python": {}}',
            "saved/conda_dependencies.yml": "dependencies: [six]\n",
            "own-1.0-py3-none-any.whl": "",
        }
    )
    said = driver("""
    packages = CondaDependencies(conda_dependencies_file_path="conda.yml")
    packages.add_pip_package("b==1")
    packages.remove_pip_package("a")
    packages.set_python_version("3.12")
    print(packages.as_dict())
    saved = Environment.load_from_directory("saved")
    print(saved.name, saved.environment_variables, saved.conda_file)
    print(Environment.get(ws, "batch_environment").python_of_job() == sys.executable, list(Environment.list(ws)))
    known = ws.environments
    print(known["batch_environment"].name, "other" in known, known["AzureML-Minimal"].name)
    image = Environment.from_docker_image("i", "image:1", conda_specification="conda.yml").build(ws)
    wheel = Environment.add_private_pip_wheel(ws, "own-1.0-py3-none-any.whl")
    print(os.path.basename(image.python_of_job()), os.path.isfile(wheel))
    """)
    pip = f"['-r {folder}/more.txt', 'b==1']"
    assert said.splitlines() == [
        f"{{'channels': ['c'], 'dependencies': ['python=3.12', 'numpy', {{'pip': {pip}}}]}}",
        "saved {'A': 'b'} {'dependencies': ['six', {'pip': []}]}",
        "True ['batch_environment']",
        "batch_environment False AzureML-Minimal",
        "conda.yml True",
    ]


def test_package_that_is_a_module_is_named_with_the_line_that_replaces_the_environment(folder):
    said = driver(
        """
    env = Environment("many_models_environment")
    env.python.conda_dependencies = CondaDependencies.create(pip_packages=["sklearn", "pandas"])
    compute_target = "local"
    ParallelRunStep(name="train", parallel_run_config=config(), inputs=["blobs/images"], output="o").submit()
    """,
        fails=True,
    )
    assert "sklearn is the name of a module: write scikit-learn, the name of its package" in said
    assert 'The line "many_models_environment" = "PATH" below [azureml.environments] in gristmill.toml replaces' in said


def test_model_of_the_notebook_and_files_of_the_script(folder):
    """The notebook trains and registers its model itself, and the script writes to an output among its arguments."""
    write(
        {
            "Code/write.py": """
                import argparse, os
                from azureml.core import Model
                parser = argparse.ArgumentParser()
                parser.add_argument("--to")
                args, _ = parser.parse_known_args()
                def init():
                    global model
                    model = open(Model.get_model_path("diabetes_model")).read()
                def run(files):
                    for file in files:
                        open(os.path.join(args.to, os.path.basename(file) + ".txt"), "w").write(model)
                    return files
            """,
        }
    )
    said = driver("""
    import warnings
    from azureml.core.environment import RCranPackage, RSection
    from azureml.widgets import RunDetails
    experiment = Experiment(workspace=ws, name="train")
    run = experiment.start_logging()
    run.log("AUC", 0.5)
    open("model.pkl", "w").write("m")
    run.upload_file(name="outputs/model.pkl", path_or_stream="./model.pkl")
    run.complete()
    run.register_model(model_path="outputs/model.pkl", model_name="diabetes_model", tags={"Training context": "Inline"},
                       properties={"AUC": run.get_metrics()["AUC"]})
    ws.set_default_datastore("workspaceblobstore")
    store = ws.get_default_datastore()
    print(store.name, [name == store.name for name in ws.datastores], compute_target.scale_settings.maximum_node_count)
    env.r = RSection()
    env.r.cran_packages = [RCranPackage()]
    to = OutputFileDatasetConfig(destination=(store, "r-script-outputs/"))
    images = Dataset.File.from_files(path=[(Datastore(ws, "images_store"), "images/**/*.png")], validate=True)
    step = ParallelRunStep(
        name="parallel-r-script", inputs=[DatasetConsumptionConfig("images", PipelineParameter("data", images))],
        arguments=["--to", to], parallel_run_config=config(entry_script="write.py", output_action="summary_only"))
    run = Experiment(ws, "r").submit(Pipeline(workspace=ws, steps=[step]))
    RunDetails(run).show()
    run.wait_for_completion(show_output=False)
    step_run = next(run.get_children())
    print(step_run.get_output_data(to.name).path_on_datastore, sorted(os.listdir(store.path_of("r-script-outputs"))))
    """).splitlines()
    assert said[0] == "workspaceblobstore [True, False] 1"
    assert said[-1] == "r-script-outputs ['a.png.txt', 'b.png.txt']"


REFUSED = {
    "PublishedPipeline.get(ws, id='1')": "PublishedPipeline.get: no service keeps pipelines here: call submit",
    "import azureml.pipeline.core.schedule as s; s.Schedule.create(ws)": "Schedule.create: start this driver",
    "Datastore.register_azure_blob_container(ws, 'p', 'c', ws.get_default_datastore().account_name)": (
        'datastore p has no place here (known: images_store): add the line `p = "PATH OR URL"`'
    ),
    "Datastore.register_azure_sql_database(ws, 's')": "datastore s is a database, which no job reads: write its rows",
    "Pipeline(ws, ['train'])": "a pipeline holds steps of the kinds ParallelRunStep and",
    "PythonScriptStep(script_name='none.py')": "script_name: there is no file ",
    "PythonScriptStep(script_name='Code/echo.py', outputs=['o'])": "outputs: 'o' is neither a PipelineData nor",
    "PythonScriptStep(script_name='Code/echo.py', argument=[])": "has no keyword argument: did you mean",
    "Experiment(ws, 'e').submit('script')": "submit takes a Pipeline, a ParallelRunStep or a PythonScriptStep here",
    "Dataset.Tabular.from_delimited_files('a.csv').partition_by(['x'], (Datastore(ws, 'images_store'), ''))": (
        "there is no column x (columns: y)"
    ),
    "Dataset.Tabular.from_delimited_files('a.csv').partition_by(['y'], (Datastore(ws, 'images_store'), ''))": (
        "every column is a key, so that the files would have none: leave a key out"
    ),
    "Dataset.Tabular.from_delimited_files('b.csv').partition_by(['y'], (Datastore(ws, 'images_store'), ''))": (
        "the table has no rows, so that no file can be written: check its paths"
    ),
    "ParallelRunConfig.load_yaml(ws, 'gristmill.yml')": "has no key parallel_run_config, which holds all others",
}


def test_calls_that_need_a_workspace_are_refused_by_name(folder):
    write({"a.csv": "y\n1\n", "b.csv": "y,z\n", "gristmill.yml": "a: 1\n"})
    check_errors(driver, "", REFUSED)


def test_newest_version_is_that_of_the_command_line(monkeypatch, tmp_path):
    from gristmill.azureml_core import assets

    monkeypatch.setenv("GRISTMILL_HOME", str(tmp_path))
    folder = tmp_path / "assets" / "data" / "rows"
    folder.mkdir(parents=True)
    for version in ("2", "10", "final"):
        (folder / f"{version}.json").write_text(json.dumps({"path": f"/{version}", "type": "uri_folder"}))
    assert assets.versions("rows") == ["final", "2", "10"]
    assert assets.find("rows")[1]["path"] == "/10"
    (folder / "10.json").write_text("{")
    with pytest.raises(ValueError, match=r"rows/10\.json cannot be read"):
        assets.find("rows")


SHOW = """
    def run(frame):
        return [frame.iloc[[row]].to_json(orient="records") for row in range(len(frame))]
"""


def test_tables_of_drivers_are_read_alike_by_steps_and_by_pandas(folder):
    write(
        {
            "Code/show.py": SHOW,
            "t/2024/a.csv": "1;x\n2;y\n",
            "t/2025/b.csv": "3;z\n",
            "z.csv": "zip,n\n007,1\n",
            "d.csv": "d,n\n01/02/2020,1\n",
            "j/a.jsonl": '{"n": 1, "s": "x"}\n{"n": 2, "s": "y"}\n',
        }
    )
    said = driver("""
    import pandas
    pandas.DataFrame({"n": [1, 2], "s": ["x", "y"]}).to_parquet("rows.parquet")
    read = Dataset.Tabular.from_delimited_files
    tables = {
        "plain": read("t/**", separator=";", header=False),
        "typed": read("t/**", separator=";", header=False, set_column_types={"Column1": DataType.to_string()}),
        "given": read("z.csv", infer_column_types={"column_type_overrides": {"zip": DataType.to_string()}}),
        "texts": read("z.csv", set_column_types={"zip": DataType.to_string(), "n": DataType.to_float()}),
        "days": read("d.csv", set_column_types={"d": DataType.to_datetime("%d/%m/%Y")}),
        "guessed": read("d.csv", set_column_types={"d": DataType.to_datetime()}),
        "untyped": read("t/**", separator=";", header=False, infer_column_types=False, encoding="windows1252"),
        "by-year": read("t/**", separator=";", header=False, partition_format="/{year}/{file}.csv"),
        "chosen": read("t/**", separator=";", header=False).keep_columns(["Column2"]),
        "left": read("t/**", separator=";", header=False, partition_format="/{year}/{f}.csv").drop_columns("f"),
        "first": read("t/**", separator=";", header=False).skip(1).take(1),
        "paths": read("t/**", separator=";", header=False, include_path=True),
        "lines": Dataset.Tabular.from_json_lines_files("j/a.jsonl"),
        "parquet": Dataset.Tabular.from_parquet_files(["rows.parquet"]).keep_columns("s"),
    }
    for number, (name, table) in enumerate(tables.items()):
        table.register(ws, name)
        expected = [table.iloc[[row]].to_json(orient="records") for table in [table.to_pandas_dataframe()]
                    for row in range(len(table))]
        source = table if number % 2 else Dataset.get_by_name(ws, name)
        prs = config(entry_script="show.py", mini_batch_size="1KB")
        step = ParallelRunStep(name=name, parallel_run_config=prs, output=f"out/{name}",
                               inputs=[source.as_named_input("t")], allow_reuse=False)
        Experiment(ws, "e").submit(step).wait_for_completion(show_output=False)
        rows = open(f"out/{name}/parallel_run_step.txt").read().splitlines()
        assert sorted(rows) == sorted(expected), (name, rows, expected)
        print(name, *expected)
    """)
    assert len(said.splitlines()) == 14
    assert '"zip":"007"' in said and f'[{{"d":{1580515200000},' in said, said
    assert '[{"Column1":"1","Column2":"x"}]' in said


def test_outputs_are_read_as_tables_with_what_was_said_of_them(folder):
    write(
        {
            "Code/show.py": SHOW,
            "steps/make.py": """
                import os, sys
                os.makedirs(sys.argv[1] + "/2024")
                open(sys.argv[1] + "/2024/a.csv", "w").write('007;x;"two' + sys.argv[2] + 'lines"\\n')
                open(sys.argv[1] + "/notes.txt", "w").write("no table")
            """,
            "steps/read.py": """
                from azureml.core import Run
                print("read", Run.get_context().input_datasets["chosen"].to_pandas_dataframe().to_dict("list"))
            """,
        }
    )
    said = driver("""
    store = ws.get_default_datastore()
    made = PipelineData("made", datastore=store)
    table = made.as_dataset().parse_delimited_files(
        separator=";", header=False, file_extension=".csv", quoted_line_breaks=True,
        partition_format="/{year}/{name}.csv", set_column_types={"Column1": DataType.to_string()})
    kept = OutputFileDatasetConfig("kept", destination=(store, "kept/{run-id}"))
    csv = kept.read_delimited_files(separator=";", header=False, path_glob="**/*.csv").register_on_complete("kept-rows")
    common = dict(source_directory="steps", compute_target=compute_target)
    # The steps that read are built first.
    show = ParallelRunStep(
        name="show", parallel_run_config=config(entry_script="show.py", mini_batch_size="1KB"), output="shown",
        inputs=[table.as_named_input("made")], allow_reuse=False)
    read = PythonScriptStep(
        script_name="read.py", name="read", inputs=[csv.keep_columns(["Column1"]).as_input("chosen")], **common)
    first = PythonScriptStep(script_name="make.py", name="first", arguments=[made, "\\n"], outputs=[made], **common)
    second = PythonScriptStep(script_name="make.py", name="second", arguments=[csv, " "], **common)
    run = Experiment(ws, "e").submit(Pipeline(ws, [show, read, first, second]), regenerate_outputs=True)
    run.wait_for_completion(show_output=False)
    print([step.name for step in run.get_steps()], open("shown/parallel_run_step.txt").read())
    print(run.get_pipeline_output("made").download("copied"))
    for wrong in (lambda: run.get_metrics(), lambda: run.get_pipeline_output("mode")):
        try:
            wrong()
        except (NotImplementedError, ValueError) as error:
            print(error)
    print(Dataset.get_by_name(ws, "kept-rows").to_pandas_dataframe().to_dict("list"))
    try:
        kept.read_delimited_files(seperator=";")
    except TypeError as error:
        print(error)
    """)
    lines = said.splitlines()
    assert "read {'Column1': [7]}" in lines
    row = r'[{"Column1":"007","Column2":"x","Column3":"two\nlines","year":"2024","name":"a"}]'
    assert f"['first', 'show', 'second', 'read'] {row}" in lines
    assert "2" in lines
    assert any(line.startswith("PipelineRun.get_metrics is not supported here; the run has cancel, ") for line in lines)
    assert "no step has an output mode: did you mean made?" in lines
    assert "{'Column1': [7], 'Column2': ['x'], 'Column3': ['two lines']}" in lines
    assert "separator" in lines[-1]


def test_each_run_has_its_own_outputs(folder):
    write(
        {
            "steps/make.py": """
                import os, sys
                os.makedirs(sys.argv[1], exist_ok=True)
                for number in range(int(sys.argv[2])):
                    open(f"{sys.argv[1]}/{number}.csv", "w").write(f"run\\n{sys.argv[2]}\\n")
            """,
            "steps/read.py": """
                from azureml.core import Dataset, Run
                import sys
                named = Run.get_context().input_datasets["rows"].to_pandas_dataframe()
                assert named.equals(Dataset.get_by_id(None, sys.argv[1]).to_pandas_dataframe())
                print("read", named["run"].tolist())
            """,
        }
    )
    said = driver("""
    number = PipelineParameter("number", 3)
    for output in (PipelineData("made"), OutputFileDatasetConfig("made")):
        make = PythonScriptStep("make.py", name="make", arguments=[output, number], source_directory="steps")
        read = getattr(output, "parse_delimited_files", None) or output.read_delimited_files
        rows = read().as_named_input("rows")
        show = PythonScriptStep("read.py", name="show", arguments=[rows], inputs=[rows], source_directory="steps")
        pipeline = Pipeline(ws, [make, show])
        for value in (3, 2, 3, 3):
            run = Experiment(ws, "e").submit(pipeline, pipeline_parameters={"number": value})
            run.wait_for_completion(show_output=False)
            print(value, run.find_step_run("show")[0].get_stdout_log().strip(), [one.id for one in run.get_steps()])
    """)
    shown = [line.split(" ", 1) for line in said.splitlines() if line[:1].isdigit()]
    assert [(value, line.partition("]")[0]) for value, line in shown] == [
        ("3", "read [3, 3, 3"), ("2", "read [2, 2"), ("3", "read [3, 3, 3"), ("3", "read [3, 3, 3"),
    ] * 2  # fmt: skip
    assert shown[2] == shown[3] == shown[0], "steps whose inputs are the same are reused"
