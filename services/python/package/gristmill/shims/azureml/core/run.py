"""A run on this machine only: it records and logs metrics, and copies files below the output folder."""

import logging
import os
import shutil

from azureml.core.experiment import Experiment
from azureml.core.model import Model
from azureml.core.workspace import Workspace

logger = logging.getLogger("azureml.core.run")


class Run:
    """The part of ``azureml.core.Run`` that entry scripts use, offline."""

    _context = None

    def __init__(self, experiment=None, run_id=None, parent=None, **_):
        self.experiment = experiment or Experiment(Workspace(), "local")
        self.id = run_id or os.environ.get("AZUREML_RUN_ID") or "OfflineRun"
        self.parent = parent
        self.input_datasets = {}
        self.output_datasets = {}
        self._metrics = {}
        self._tags = {}
        self._children = []

    @classmethod
    def get_context(cls, allow_offline=True, **_):
        """Returns the run of this process."""
        if not allow_offline:
            raise RuntimeError("this run is offline, and allow_offline=False was passed")
        if cls._context is None:
            cls._context = cls()
        return cls._context

    def child_run(self, name=None, run_id=None, **_):
        """Creates a run below this one."""
        child = Run(self.experiment, run_id or f"{self.id}_{name or len(self._children)}", self)
        self._children.append(child)
        return child

    def get_children(self, **_):
        """Returns the runs below this one, newest first."""
        return iter(self._children[::-1])

    def log(self, name, value, description="", **_):
        """Records a metric; several values with one name become a list."""
        logger.info("%s: metric %s = %s", self.id, name, value)
        if name in self._metrics:
            known = self._metrics[name]
            self._metrics[name] = [*known, value] if isinstance(known, list) else [known, value]
        else:
            self._metrics[name] = value

    def log_list(self, name, value, description="", **_):
        """Records a list."""
        self.log(name, list(value))

    def log_row(self, name, description=None, **columns):
        """Records a row."""
        self.log(name, columns)

    def log_table(self, name, value, description="", **_):
        """Records a table."""
        self.log(name, value)

    def log_image(self, name, path=None, plot=None, description="", **_):
        """Copies an image file beside the output."""
        if path is not None:
            self.upload_file(name, path)

    def get_metrics(self, name=None, **_):
        """Returns the recorded metrics."""
        if name is None:
            return dict(self._metrics)
        return {name: self._metrics[name]} if name in self._metrics else {}

    def tag(self, key, value=None):
        """Records a tag."""
        self._tags[key] = value

    def set_tags(self, tags):
        """Records tags."""
        self._tags.update(tags)

    def get_tags(self):
        """Returns the recorded tags."""
        return dict(self._tags)

    def add_properties(self, properties):
        """Records properties in addition to the tags."""
        self._tags.update(properties)

    def upload_file(self, name, path_or_stream, **_):
        """Copies a file below ``<output folder>/runs/<run id>``."""
        target = os.path.join(_output_folder(), "runs", self.id, name)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if hasattr(path_or_stream, "read"):
            with open(target, "wb") as file:
                shutil.copyfileobj(path_or_stream, file)
        else:
            shutil.copy2(path_or_stream, target)

    def upload_folder(self, name, path, **_):
        """Copies a folder below ``<output folder>/runs/<run id>``."""
        shutil.copytree(path, os.path.join(_output_folder(), "runs", self.id, name), dirs_exist_ok=True)

    def register_model(self, model_name, model_path=None, **_):
        """Registers a file or folder; relative paths may be in the working folder or among the uploaded files."""
        path = model_path or model_name
        uploaded = os.path.join(_output_folder(), "runs", self.id, path)
        return Model.register(self.experiment.workspace, uploaded if os.path.exists(uploaded) else path, model_name)

    def get_details(self):
        """Returns the known details."""
        return {"runId": self.id, "status": "Running", "properties": {}, "inputDatasets": []}

    def get_status(self):
        """Returns "Running", because the job ends with the process."""
        return "Running"

    def start(self):
        """Does nothing offline."""

    def complete(self, **_):
        """Does nothing offline."""

    def fail(self, **_):
        """Does nothing offline."""

    def flush(self, **_):
        """Does nothing offline."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False


_OfflineRun = Run


def _output_folder():
    return os.environ.get("AZUREML_BI_OUTPUT_PATH") or os.path.join(os.getcwd(), "outputs")
