"""A run on this machine only: it records and logs metrics, and copies files below the output folder."""

import logging
import os
import shutil

from gristmill.azureml_core.exceptions import RunEnvironmentException
from gristmill.azureml_core.experiment import Experiment
from gristmill.azureml_core.model import Model
from gristmill.azureml_core.secrets import secret
from gristmill.azureml_core.unsupported import unsupported
from gristmill.azureml_core.workspace import Workspace

logger = logging.getLogger("azureml.core.run")


class RunStatus:
    """Statuses of a run."""

    RUNNING = "Running"
    COMPLETED = "Completed"
    FAILED = "Failed"
    CANCELED = "Canceled"


class Run:
    """The part of ``azureml.core.Run`` that entry scripts use, offline."""

    _context = None

    def __init__(self, experiment=None, run_id=None, parent=None, **_):
        self.experiment = experiment or Experiment(Workspace(), "local")
        self.id = run_id or os.environ.get("AZUREML_RUN_ID") or "OfflineRun"
        self.name = self.display_name = self.id
        self.parent = parent
        self.input_datasets = _Inputs()
        self.output_datasets = {}
        self.properties = {"azureml.pipelinerunid": os.environ.get("AZUREML_RUN_ID") or self.id}
        self.number = 1
        self.description = None
        self.type = None
        self._metrics = {}
        self._tags = {}
        self._children = []
        self._status = RunStatus.RUNNING
        self._error = None

    @classmethod
    def get_context(cls, allow_offline=True, **_):
        """Returns the run of this process: inside a job, that of the job."""
        if not allow_offline and not os.environ.get("AZUREML_RUN_ID"):
            raise RunEnvironmentException(
                "this process belongs to no job, and allow_offline=False was passed: use `gristmill run`"
            )
        if cls._context is None:
            # The parent of a step's run is that of its pipeline; a job is both.
            cls._context = cls(parent=cls())
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

    def remove_tags(self, tags):
        """Forgets tags by their names."""
        for key in [tags] if isinstance(tags, str) else tags:
            self._tags.pop(key, None)

    def get_tags(self):
        """Returns the recorded tags."""
        return dict(self._tags)

    @property
    def tags(self):
        """The recorded tags."""
        return dict(self._tags)

    def add_properties(self, properties):
        """Records properties."""
        self.properties.update(properties)

    def upload_file(self, name, path_or_stream, **_):
        """Copies a file below ``<output folder>/runs/<run id>``."""
        target = os.path.join(self._files(), name)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if hasattr(path_or_stream, "read"):
            with open(target, "wb") as file:
                shutil.copyfileobj(path_or_stream, file)
        else:
            shutil.copy2(path_or_stream, target)

    def upload_files(self, names, paths, **_):
        """Copies files below ``<output folder>/runs/<run id>``."""
        for name, path in zip(names, paths, strict=True):
            self.upload_file(name, path)

    def get_file_names(self):
        """Returns the names of the files that were uploaded."""
        root = self._files()
        found = (os.path.join(folder, name) for folder, _, names in os.walk(root) for name in names)
        return sorted(os.path.relpath(path, root) for path in found)

    def download_file(self, name, output_file_path=None, **_):
        """Copies a file that was uploaded."""
        target = output_file_path or os.path.basename(name)
        target = os.path.join(target, os.path.basename(name)) if os.path.isdir(target) else target
        os.makedirs(os.path.dirname(target) or ".", exist_ok=True)
        shutil.copy2(os.path.join(self._files(), name), target)

    def download_files(self, prefix=None, output_directory=None, **_):
        """Copies the files that were uploaded, with a prefix of their names."""
        for name in self.get_file_names():
            if name.startswith(prefix or ""):
                self.download_file(name, os.path.join(output_directory or ".", name))

    def _files(self):
        return os.path.join(_output_folder(), "runs", self.id)

    def upload_folder(self, name, path, **_):
        """Copies a folder below ``<output folder>/runs/<run id>``."""
        shutil.copytree(path, os.path.join(self._files(), name), dirs_exist_ok=True)

    def register_model(self, model_name, model_path=None, **about):
        """Registers a file or folder; relative paths may be in the working folder or among the uploaded files."""
        path = model_path or model_name
        uploaded = os.path.join(self._files(), path)
        found = uploaded if os.path.exists(uploaded) else path
        return Model.register(self.experiment.workspace, found, model_name, run_id=self.id, **about)

    def get_details(self):
        """Returns the known details."""
        details = {"runId": self.id, "status": self._status, "properties": dict(self.properties), "inputDatasets": []}
        return details if self._error is None else {**details, "error": {"message": self._error}}

    def get_properties(self):
        """Returns the properties."""
        return dict(self.properties)

    def get_status(self):
        """Returns "Running" until the script has completed, failed or canceled this run."""
        return self._status

    @property
    def status(self):
        """The status."""
        return self._status

    def start(self):
        """Begins the run."""
        self._status = RunStatus.RUNNING

    def complete(self, **_):
        """Ends the run as completed. The job continues, because other processes work on it."""
        self._status = RunStatus.COMPLETED

    def fail(self, error_details=None, error_code=None, **_):
        """Ends the run as failed, and logs the reason. The job continues, because other processes work on it."""
        self._status = RunStatus.FAILED
        self._error = None if error_details is None else str(error_details)
        logger.error("%s failed: %s", self.id, error_details)

    def cancel(self, **_):
        """Ends the run as canceled. The job continues; `gristmill cancel` ends it."""
        self._status = RunStatus.CANCELED

    def wait_for_completion(self, **_):
        """Returns the details immediately, because only the script ends a run of this process."""
        return self.get_details()

    def get_secret(self, name):
        """Returns a variable of the environment: of that name, or of the name in capitals with ``_`` for ``-``."""
        return secret(name)

    def get_secrets(self, secrets):
        """Returns several secrets by name."""
        return {name: self.get_secret(name) for name in secrets}

    def flush(self, **_):
        """Does nothing: metrics are logged immediately."""

    def __getattr__(self, name):
        raise unsupported(f"Run.{name}")

    def __repr__(self):
        # Outside a job, scripts expect the second name.
        kind = "Run" if os.environ.get("AZUREML_RUN_ID") else "_OfflineRun"
        return f"{kind}(Experiment: {self.experiment.name}, Id: {self.id}, Status: {self._status})"

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _):
        if kind is not None:
            self.fail(error)
        elif self._status == RunStatus.RUNNING:
            self.complete()
        return False


class _Inputs(dict):
    """The side inputs of the job by name: the local path of each, as for a mounted data set."""

    _PREFIX = "AZURE_ML_INPUT_"

    def __init__(self):
        names = (variable for variable in os.environ if variable.startswith(self._PREFIX))
        super().__init__({variable.removeprefix(self._PREFIX): SideInput(os.environ[variable]) for variable in names})

    def __missing__(self, name):
        known = ", ".join(self) or "none"
        raise KeyError(
            f"the job has no side input {name} (it has: {known}); add it below `side_inputs` in the job file"
        )


class SideInput(str):
    """The path of a side input, which also has the methods of a dataset."""

    __slots__ = ()

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        from gristmill.azureml_core.dataset import dataset_at

        return getattr(dataset_at(str(self), os.path.basename(self)), name)


_OfflineRun = Experiment._run = Run


def _output_folder():
    return os.environ.get("AZUREML_BI_OUTPUT_PATH") or os.path.join(os.getcwd(), "outputs")
