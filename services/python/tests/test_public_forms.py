"""Entry scripts in the forms that public ones have: each runs unchanged in a worker process."""

import pytest

TRAIN = """
    import argparse, os, joblib
    import pandas as pd
    from azureml.core import Run
    from sklearn.linear_model import LinearRegression

    parser = argparse.ArgumentParser("train")
    parser.add_argument("--target_column", required=True)
    parser.add_argument("--timeseries_id_columns", nargs="*", required=True)
    parser.add_argument("--model_type", required=True)
    args, _ = parser.parse_known_args()
    current_run = None

    def init():
        global current_run
        current_run = Run.get_context()

    def run(input_data):
        os.makedirs("./outputs", exist_ok=True)
        rows = []
        for path in input_data:
            data = pd.read_csv(path)
            name = args.model_type + "_" + os.path.basename(path)[:-4]
            model = LinearRegression().fit(data[["x"]], data[args.target_column])
            current_run.log(name + "_slope", model.coef_[0])
            joblib.dump(model, os.path.join("./outputs/", name))
            current_run.upload_file(name, os.path.join("./outputs/", name))
            ids = {column: str(data[column].iloc[0]) for column in args.timeseries_id_columns}
            current_run.register_model(model_path=name, model_name=name, model_framework=args.model_type,
                                       tags={**ids, "ModelType": args.model_type})
            rows.append({**ids, "model": name, "status": current_run.get_status()})
        return pd.DataFrame(rows)
"""

FORECAST = """
    import joblib, sys
    import pandas as pd
    from azureml.core.model import Model
    from azureml.core.run import Run
    from azureml._restclient.models import RunStatusDto

    def run(input_data):
        results = []
        for path in input_data:
            data = pd.read_csv(path)
            tags = [["Store", str(data["Store"].iloc[0])], ["ModelType", "lr"]]
            ws = Run.get_context().experiment.workspace
            models = Model.list(ws, tags=tags, latest=True)
            if len(models) > 1:
                raise ValueError("More than one models encountered for given timeseries id")
            model = joblib.load(models[0].download(exist_ok=True))
            results.append(data.assign(Prediction=model.predict(data[["x"]]).round(3)))
        return pd.concat(results)
"""


def test_models_of_a_training_step_are_found_by_the_next_one(start, tmp_path):
    for store, slope in (("2", 2), ("5", 5)):
        rows = "".join(f"{store},{x},{slope * x}\n" for x in range(4))
        (tmp_path / f"store{store}.csv").write_text(f"Store,x,y\n{rows}")
    files = [str(tmp_path / f"store{store}.csv") for store in "25"]
    environment = {
        "GRISTMILL_HOME": str(tmp_path / "home"),
        "AZUREML_RUN_ID": "job-1",
        "AZUREML_BI_OUTPUT_PATH": str(tmp_path / "out"),
    }
    argv = ["--target_column", "y", "--timeseries_id_columns", "Store", "--model_type", "lr"]
    train = start(TRAIN, argv=argv, environment=environment)
    assert train.run(files)["rows"].decode().splitlines() == ["2 lr_store2 Running", "5 lr_store5 Running"]
    assert (tmp_path / "out/runs/job-1/lr_store5").exists()
    train.finish()
    forecast = start(FORECAST, environment=environment)
    assert forecast.run(files)["rows"].decode().splitlines()[-1] == "5 3 15 15.0"
    forecast.finish()


FORMS = {
    # A helper that looks for a model of the workspace by its tags, and logs what it does not find.
    "model by tags": (
        """
        import sys
        from azureml.core import Run, Model, Workspace
        from azureml.exceptions import WebserviceException
        def get_model(name, tag_name, tag_value):
            run = Run.get_context(allow_offline=False)
            ws = run.experiment.workspace
            try:
                return Model(ws, name=name, tags=[[tag_name, tag_value]]).version
            except WebserviceException as error:
                return type(error).__name__
        def init():
            global found
            open("weights", "w").close()
            ws = Run.get_context().experiment.workspace
            Model.register(ws, "weights", "digits", tags={"build": "7"})
            filters = {sys.argv[i][2:]: sys.argv[i + 1] for i, a in enumerate(sys.argv) if a.startswith("--model_")}
            found = [get_model(filters["model_name"], "build", value) for value in ("7", "8")]
        def run(files):
            return [found for _ in files]
        """,
        "[1, 'ModelNotFoundException']",
    ),
    # The workspace is that of the run in a job, and that of a file elsewhere.
    "offline or not": (
        """
        from azureml.core import Run, Workspace, Datastore, Dataset, Experiment
        from azureml.core.run import _OfflineRun
        from azureml.core.authentication import MsiAuthentication, ServicePrincipalAuthentication
        def init():
            global ws
            run = Run.get_context()
            ws = Workspace.from_config() if "_OfflineRun" in str(run) else run.experiment.workspace
            auth = ServicePrincipalAuthentication("tenant", "id", service_principal_password="p")
            Workspace("subscription", "group", "name", auth=auth)
        def run(files):
            run = Run.get_context()
            kind = "offline" if run.id.startswith("OfflineRun") else "job"
            return [f"{kind} {'_OfflineRun' in str(run)} {run.parent.id} {run.tags} {ws.name}"]
        """,
        "job False job-1 {} local",
    ),
    "secrets": (
        """
        from azureml.core import Run
        def init():
            global key
            key = Run.get_context().experiment.workspace.get_default_keyvault().get_secret("storage-key")
        def run(files):
            return [key]
        """,
        "k",
    ),
    # Logs of its own, below a folder named after the run.
    "log helper": (
        """
        import logging, os, socket
        from multiprocessing import current_process
        from azureml.core import Run
        def init():
            run = Run.get_context(allow_offline=False)
            folder = os.path.join(os.environ.get("AZ_BATCHAI_INPUT_AZUREML", ""), run.id)
            os.makedirs(os.path.join(folder, "logs", "user"), exist_ok=True)
            handler = logging.FileHandler(os.path.join(folder, "logs", "user", f"{current_process().name}.txt"))
            logging.getLogger("user_log").addHandler(handler)
            logging.getLogger("user_log").setLevel("INFO")
        def run(files):
            logging.getLogger("user_log").info("seen")
            return [open("job-1/logs/user/MainProcess.txt").read().strip()]
        """,
        "seen",
    ),
    # Unused imports, and fallbacks for missing packages.
    "imports": (
        """
        from azureml.core import Dataset, Environment, Experiment, Keyvault, ScriptRunConfig, Webservice, Workspace
        from azureml.core.compute import AmlCompute, ComputeTarget
        from azureml.core.dataset import Dataset
        from azureml.core.model import InferenceConfig, Model
        from azureml.core.runconfig import RunConfiguration, DEFAULT_CPU_IMAGE
        from azureml.core.webservice import AciWebservice
        from azureml.data.azure_storage_datastore import AzureBlobDatastore
        from azureml.data.data_reference import DataReference
        from azureml.data.dataset_consumption_config import DatasetConsumptionConfig
        from azureml.data.datapath import DataPath, DataPathComputeBinding
        from azureml._base_sdk_common import _ClientSessionId
        from azureml.exceptions import ActivityFailedException, UserErrorException
        from azureml.pipeline.core import PipelineRun
        try:
            from azureml.telemetry import get_telemetry_log_handler
            telemetry = True
        except ImportError:
            telemetry = False
        def run(files):
            try:
                open("none")
            except (ActivityFailedException, UserErrorException):
                return []
            except FileNotFoundError:
                return [telemetry]
        """,
        "False",
    ),
    # Files of the run, and its children.
    "files of the run": (
        """
        import json
        from azureml.core import Run
        def run(files):
            parent = Run.get_context().parent
            with open("metrics.json", "w") as file:
                json.dump({"rmse": 1.5}, file)
            parent.upload_files(["m/metrics.json"], ["metrics.json"])
            parent.download_file("m/metrics.json", "copy.json")
            with parent.child_run("one") as child:
                child.log("rmse", 1.5)
                child.set_tags({"a": "b"})
            return [f"{json.load(open('copy.json'))} {parent.get_file_names()} {child.get_metrics()} {child.tags}"]
        """,
        "{'rmse': 1.5} ['m/metrics.json'] {'rmse': 1.5} {'a': 'b'}",
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_form_runs_unchanged(start, tmp_path, form):
    script, expected = FORMS[form]
    environment = {
        "GRISTMILL_HOME": str(tmp_path / "home"),
        "AZUREML_RUN_ID": "job-1",
        "AZUREML_BI_OUTPUT_PATH": str(tmp_path / "out"),
        "STORAGE_KEY": "k",
    }
    agent = start(script, argv=["--model_name", "digits"], environment=environment)
    assert agent.run(["a"])["rows"].decode().strip() == expected
    agent.finish()


def test_missing_attribute_of_a_class_is_one_clear_error(script):
    said = script("from azureml.core import Run\nRun.get_context().submit_child(1)\n", fails=True)
    assert said.endswith("Run.submit_child is not supported by the stand-in for azureml.core: add the real one to the "
                         "environment")  # fmt: skip
    assert script(
        """
        import json
        from azureml.core import Model, Run, Workspace
        from azureml.widgets import RunDetails
        run = Run.get_context()
        print([hasattr(thing, "none") for thing in (run, Workspace.from_config())], json.dumps(run.tags))
        RunDetails(run).show()
        """
    ).splitlines() == [
        "[False, False] {}",
        "_OfflineRun(Experiment: local, Id: OfflineRun, Status: Running)",
    ]
