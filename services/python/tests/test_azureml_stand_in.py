"""Names that public entry scripts import from ``azureml``, without Azure and its packages."""

import json

from agent import PACKAGE
from calls import check_errors

REGISTERED = """
    from azureml.core import Model, Run, Workspace
    ws = Workspace.from_config()
    open("weights", "w").close()
    def register(name, **about):
        return Model.register(ws, "weights", name, **about)
    register("store-1", tags={"kind": "sales", "Store": 1})
    register("store-1", tags={"kind": "sales", "Store": 1}, properties={"mape": 0.1})
    register("store-2", tags={"kind": "sales", "Store": 2}, description="second")
    register("other", tags={"kind": "stock"})
    def ids(models): return [model.id for model in models]
"""


def test_models_are_found_by_tags_and_versions_and_their_tags_change(script):
    assert script(
        REGISTERED
        + """
    print(ids(Model.list(ws, tags=[["kind", "sales"]])))
    print(ids(Model.list(ws, tags=["Store"], latest=True)))
    print(ids(Model.list(ws, tags={"Store": 1}, properties=[["mape", "0.1"]])))
    print(ids(Model.list(ws, name="store-1")), ids(Model.list(ws, tags=["none"])))
    print(Model(ws, tags=[["kind", "sales"]]).id, Model(ws, "store-1", version=1).id, Model(ws, id="store-1:1").id)
    print(Model(ws, "store-2").tags, Model(ws, "store-2").description, Model(ws, "store-1").properties)
    model = Model(ws, "other")
    model.add_tags({"reviewed": True})
    model.remove_tags(["kind"])
    model.update(description="checked")
    again = Model(ws, "other")
    print(again.tags, again.description, ids(Model.list(ws, tags=["kind"], name="other")))
    again.delete()
    print(ids(Model.list(ws, name="other")))
    """
    ).splitlines() == [
        "['store-1:2', 'store-1:1', 'store-2:1']",
        "['store-1:2', 'store-2:1']",
        "['store-1:2']",
        "['store-1:2', 'store-1:1'] []",
        "store-2:1 store-1:1 store-1:1",
        "{'kind': 'sales', 'Store': '2'} second {'mape': '0.1'}",
        "{'reviewed': 'True'} checked []",
        "[]",
    ]


def test_newest_version_of_a_model_has_the_largest_number(script):
    files = {"home/models/digits/1/model.pkl": "one", "home/models/digits/10/model.pkl": "ten"}
    text = """
        from azureml.core import Model
        newest, first = Model.get_model_path("digits"), Model.get_model_path("digits", version=1)
        print(open(newest).read(), open(first).read(), [model.version for model in Model.list(None)])
    """
    assert script(text, files=files) == "ten one [10, 1]\n"
    said = script("from azureml.core import Model\nModel.get_model_path('none')\n", fails=True)
    assert "model none was not found" in said


def test_condition_that_no_model_meets_is_an_error(script):
    said = {
        'Model(ws, tags=["none"])': "ModelNotFoundException: no model in ",
        'Model(ws, "store-1", tags=[["Store", "2"]])': "has name store-1, tags Store=2",
        'Model(ws, "store-1", version=3)': "store-1 (versions: 1, 2). Put its file in ",
        'Model.list(ws, dataset_id="a")': "Model.list cannot filter by dataset_id",
        'Model.list(ws, tag=["kind"])': "unexpected keyword argument 'tag'",
        "Model.list(ws, tags=[3])": "tags must be names or pairs of name and value, not 3",
    }
    check_errors(script, REGISTERED, said)


def test_run_of_a_job(script):
    assert script(
        """
        from azureml.core import Model, Run
        run = Run.get_context(allow_offline=False)
        print(run.id, run.parent.id, run.experiment.name, run.get_status(), run.input_datasets["labels"])
        print(run.get_secret("api-key"), run.get_secrets(["api-key", "PLAIN"]))
        with run.child_run("part") as child:
            print(child.status, child.parent is run)
            open("weights", "w").close()
            child.register_model("made", "weights", tags={"a": 1})
        print(child.status, Model.list(None, run_id=child.id), run.status)
        try:
            with run.child_run("bad") as bad:
                raise ValueError("no")
        except ValueError:
            print(bad.get_details())
        """,
        AZUREML_RUN_ID="job-1",
        AZURE_ML_INPUT_labels="/data/labels",
        API_KEY="k",
        PLAIN="p",
    ).splitlines() == [
        "job-1 job-1 local Running /data/labels",
        "k {'api-key': 'k', 'PLAIN': 'p'}",
        "Running True",
        "Completed [Model(name=made, id=made:1, version=1, tags={'a': '1'})] Running",
        "{'runId': 'job-1_bad', 'status': 'Failed', 'properties': {'azureml.pipelinerunid': 'job-1'}, "
        "'inputDatasets': [], 'error': {'message': 'no'}}",
    ]


def test_missing_attributes_of_a_run_are_named(script):
    said = {
        "Run.get_context(allow_offline=False)": "this process belongs to no job",
        'Run.get_context().get_secret("api-key")': "set the variable api-key or API_KEY",
        'Run.get_context().input_datasets["a"]': "the job has no side input a",
    }
    check_errors(script, "\n    from azureml.core import Run", said)


def test_modules_that_are_not_used_can_be_imported(script):
    assert script(
        """
        import azureml.pipeline.core.graph
        from azureml._restclient.models import RunStatusDto
        from azureml._restclient.utils import create_session_with_retry
        from azureml.core import Dataset, Datastore, Environment
        from azureml.core.conda_dependencies import CondaDependencies
        from azureml.core.dataset import Dataset
        from azureml.data.data_reference import DataReference
        from azureml.pipeline.steps import ParallelRunStep
        for name in ("azureml.automl.core", "azureml.train", "azure.ai.ml"):
            try:
                __import__(name)
            except ImportError as error:
                print(error.name)
        """
    ).splitlines() == ["azureml.automl", "azureml.train", "azure"]


def test_use_of_an_absent_name_is_an_error_that_names_it(script):
    said = {}
    for module, use, package in (
        ("azureml.core", "Webservice.deploy", "azureml-core"),
        ("azureml._restclient.utils", "retry", "azureml-core"),
        ("azureml.pipeline.steps", "DatabricksStep", "azureml-pipeline"),
    ):
        call = f"from {module} import {use.split('.')[0]}; {use}('a')"
        said[call] = f"NotImplementedError: {module}.{use} needs the real {package}: add it to the environment"
    check_errors(script, "", said)


def test_libraries_may_ask_the_stand_in_for_tables_for_any_name(script):
    said = script(
        """
        import mltable
        print(hasattr(mltable, "agm"), getattr(mltable, "load_model", None))
        try:
            mltable.from_delta_lake
        except NotImplementedError as error:
            print(error)
        """
    )
    assert said.splitlines() == [
        "False None",
        "mltable.from_delta_lake needs the real mltable: add it to the environment of the script",
    ]


INSTALLED = {
    "__init__.py": "__path__ = __import__('pkgutil').extend_path(__path__, __name__)",
    "core/__init__.py": "from azureml.core.model import Model\nfrom azureml.core.run import Run",
    "core/model.py": """
        class ModelNotFoundException(Exception): pass
        class WebserviceException(Exception): pass
        class Model:
            def __init__(self, workspace, name=None, version=None): self.of = "the SDK"
            @staticmethod
            def get_model_path(model_name, version=None, _workspace=None):
                from azureml.core.run import Run
                try: raise AssertionError(Run.get_context(allow_offline=False))
                except RuntimeError: pass
                if model_name == "cached": return "azureml-models/cached"
                raise ModelNotFoundException(model_name)
            @staticmethod
            def list(workspace, name=None, **_): return ["the SDK"]
            @staticmethod
            def register(workspace, model_path, model_name, **_): return "the SDK"
    """,
    "core/run.py": """
        class Run:
            @classmethod
            def get_context(cls, allow_offline=True, used_for_context_manager=False, **kwargs):
                if not allow_offline: raise RuntimeError("Could not load a submitted run")
                return _OfflineRun()
        class _OfflineRun:
            id = "offline"
    """,
    "core/workspace.py": """
        class Workspace:
            @staticmethod
            def from_config(path=None): raise ValueError("no config.json")
    """,
}


def test_installed_sdk_stays_and_falls_back(script, tmp_path):
    files = {f"site/azureml/{name}": text for name, text in INSTALLED.items()}
    text = """
        from azureml.core import Model, Run
        from azureml.core.model import ModelNotFoundException
        open("weights", "w").close()
        job = Run.get_context(allow_offline=False)
        workspace = job.experiment.workspace
        made = Model.register(workspace, "weights", "digits")
        print(job.id, made.id, [model.id for model in Model.list(workspace)], Model(workspace, "digits").id)
        print(Model.get_model_path("digits", _workspace=workspace)[-18:], Model.get_model_path("cached"))
        print(Run.get_context().experiment.name, Model.list("theirs"), Model("theirs", "digits").of)
        print(Model.register("theirs", "a", "b"))
        try:
            Model.get_model_path("none")
        except ModelNotFoundException as error:
            print(str(error).partition(";")[0])
        from azureml.core.model import WebserviceException
        from azureml.core.workspace import Workspace
        try:
            Model(Workspace.from_config(), "none", tags=["a"])
        except WebserviceException as error:
            print(str(error).rpartition("has ")[2])
        from azureml.ai.monitoring import Collector
        import azureml.pipeline
    """
    path = f"{tmp_path / 'site'}:{PACKAGE}"
    said = script(text, True, files, AZUREML_RUN_ID="job-1", PYTHONPATH=path)
    assert said == "ModuleNotFoundError: No module named 'azureml.pipeline'", "what the SDK lacks stays missing"
    assert script(
        text.replace("import azureml.pipeline", ""), AZUREML_RUN_ID="job-1", PYTHONPATH=path
    ).splitlines() == [
        "job-1 digits:2 ['digits:2', 'digits:1'] digits:2",
        "s/digits/2/weights azureml-models/cached",
        "local ['the SDK'] the SDK",
        "the SDK",
        "model none was not found",
        "name none, tags a",
    ]
    said = script(
        """
        from azureml.core import Run
        from azureml.core.workspace import Workspace
        print(Run.get_context().id)
        Workspace.from_config()
        """,
        fails=True,
        PYTHONPATH=path,
        AZUREML_RUN_ID="",
    )
    assert said == "ValueError: no config.json", "outside a job the SDK answers"


def test_collected_rows_are_json_lines(script, tmp_path):
    context = script(
        """
        import pandas
        from azureml.ai.monitoring import Collector
        from azureml.ai.monitoring.context import BasicCorrelationContext
        inputs = Collector(name="model_inputs")
        outputs = Collector(name="model_outputs", on_error=lambda error: print("error:", error))
        context = inputs.collect(pandas.DataFrame({"a": [1, 2], "b": ["ä", None]}))
        outputs.collect(pandas.DataFrame({"y": [0.5]}), context)
        outputs.collect([1], BasicCorrelationContext("mine"))
        print(context.id)
        """,
        AZUREML_BI_OUTPUT_PATH=str(tmp_path / "out"),
    ).splitlines()
    assert context[0] == "error: collect takes a DataFrame, not list"
    (inputs,) = (tmp_path / "out/collected/model_inputs").glob("*.jsonl")
    (outputs,) = (tmp_path / "out/collected/model_outputs").glob("*.jsonl")
    rows = [json.loads(line) for line in inputs.read_text().splitlines()]
    assert rows == [
        {"correlationid": context[1], "data": {"a": 1, "b": "ä"}},
        {"correlationid": context[1], "data": {"a": 2, "b": None}},
    ]
    assert json.loads(outputs.read_text())["data"] == {"y": 0.5}
