"""What goes in and out of steps: named inputs, and outputs that later steps read."""

import copy
import os
import uuid

from gristmill.api.keywords import checked
from gristmill.mltable.table import PATH_COLUMN


class DatasetConsumptionConfig:
    """A dataset under a name. The mode has no effect: files are read where they are."""

    @checked
    def __init__(self, name, dataset, mode="direct", path_on_compute=None):
        self.name = name
        self.dataset = dataset
        self.mode = mode
        self.path_on_compute = path_on_compute

    def job_input(self):
        """Returns the keys of one input of a job file, without its name."""
        from gristmill.api.step_values import input_of

        # Of a pipeline parameter, its default.
        return input_of(getattr(self.dataset, "default_value", self.dataset), f"input {self.name}")

    def as_mount(self, path_on_compute=None):
        """Returns it in this mode."""
        return self._in("mount", path_on_compute)

    def as_download(self, path_on_compute=None):
        """Returns it in this mode."""
        return self._in("download", path_on_compute)

    def as_direct(self):
        """Returns it in this mode."""
        return self._in("direct", None)

    def _in(self, mode, path_on_compute):
        made = copy.copy(self)
        made.mode, made.path_on_compute = mode, path_on_compute
        return made


class _Output:
    """A folder that a step writes, and that later steps can read."""

    def __init__(self, name, destination):
        self.name = name
        self.producer = None
        self.registers_as = None
        self._destination = destination
        self._run = None
        self._table = None

    def register_on_complete(self, name, description=None, tags=None):
        """Returns it; the register of this machine gets the name once the step has completed."""
        self.registers_as = name
        return self

    def register(self, name, description=None, tags=None, create_new_version=True):
        """Returns it; the register of this machine gets the name once the step has completed."""
        return self.register_on_complete(name)

    def folder_for(self, step):
        """Returns the folder or URL, as the output of this step: ``outputs/STEP/NAME`` unless it has a destination.

        ``{run-id}`` in it stands for the id of the job, which the job replaces.
        """
        self.producer = self.producer or step
        return self._place()

    def written_by(self, job_id):
        """Takes the id of the job that writes it."""
        self._run = job_id

    @property
    def path(self):
        """The folder or URL; of one with ``{run-id}``, that of the last run."""
        place = self._place()
        return place if self._run is None else place.replace("{run-id}", self._run)

    def _place(self):
        if isinstance(self._destination, (str, os.PathLike)):
            return os.fspath(self._destination)
        if self._destination is not None:
            store, *inside = self._destination
            relative = (inside or [""])[0].replace("{output-name}", self.name)
            return store.path_of(relative) if hasattr(store, "path_of") else os.path.join("outputs", relative)
        if self.producer is None:
            raise ValueError(f"{self.name} is the output of no step: pass it as `output` of one")
        return os.path.join("outputs", self.producer, self.name)

    def relative_path(self, run_id):
        """Returns the path in its datastore, as that of the run of its step."""
        if isinstance(self._destination, (tuple, list)):
            store = self._destination[0]
            root = store.path_of("") if hasattr(store, "path_of") else "outputs"
            return self.path.removeprefix(root).strip("/")
        return f"azureml/{run_id}/{self.name}"

    def job_input(self):
        """Returns the keys of one input of a job file, without its name."""
        path = self.path if "://" in self.path else os.path.abspath(self.path)
        return {"type": "file", "paths": [path], **(self._table or {})}

    def _table_of(self, include_path, **keys):
        """Returns it as a table, with a column of paths if asked for."""
        if include_path:
            keys["path_column"] = PATH_COLUMN
        made = copy.copy(self)
        made._table = {"type": "tabular", **{key: value for key, value in keys.items() if value is not None}}
        return made


class PipelineData(_Output):
    """An output of a step, and an input of later ones. Modes and types have no effect."""

    @checked
    def __init__(
        self,
        name,
        datastore=None,
        output_name=None,
        output_mode="mount",
        output_path_on_compute=None,
        output_overwrite=None,
        data_type=None,
        is_directory=None,
        pipeline_output_name=None,
        training_output=None,
    ):
        super().__init__(name, None)
        self.datastore = datastore
        self.data_type = data_type
        self.output_name = output_name or name
        self.pipeline_output_name = pipeline_output_name

    def as_dataset(self):
        """Returns it as a dataset of files."""
        return self

    def as_input(self, input_name):
        """Returns it as an input of this name."""
        return DatasetConsumptionConfig(input_name, self, "mount")

    def as_mount(self, input_name=None):
        """Returns it as an input."""
        return self.as_input(input_name or self.name)

    def as_download(self, input_name=None, path_on_compute=None, overwrite=None):
        """Returns it as an input."""
        return self.as_input(input_name or self.name)

    as_direct = as_mount

    def as_named_input(self, name):
        """Returns it as an input of this name."""
        return self.as_input(name)

    def parse_delimited_files(self, include_path=False, separator=",", header=True, partition_format=None, **_):
        """Returns it as a table."""
        return self._table_of(include_path, format="csv", delimiter=separator, partition_format=partition_format)

    def parse_parquet_files(self, include_path=False, partition_format=None, **_):
        """Returns it as a table."""
        return self._table_of(include_path, format="parquet", partition_format=partition_format)


class OutputFileDatasetConfig(_Output):
    """An output of a step with a destination, ``(datastore, "folder")`` or a path, and an input of later ones."""

    @checked
    def __init__(self, name=None, destination=None, source=None, partition_format=None):
        super().__init__(name or f"output_{uuid.uuid4().hex[:8]}", destination)
        self.destination = destination
        self.source = source
        self.partition_format = partition_format

    def as_mount(self, disable_metadata_cache=False):
        """Returns it in this mode, which has no effect."""
        return self

    def as_upload(self, overwrite=False, source_globs=None):
        """Returns it in this mode, which has no effect."""
        return self

    def as_input(self, name=None):
        """Returns it as an input of this name."""
        return DatasetConsumptionConfig(name or self.name, self, "mount")

    def read_delimited_files(self, include_path=False, separator=",", header=True, partition_format=None, **_):
        """Returns it as a table."""
        return self._table_of(include_path, format="csv", delimiter=separator, partition_format=partition_format)

    def read_parquet_files(self, include_path=False, partition_format=None, **_):
        """Returns it as a table."""
        return self._table_of(include_path, format="parquet", partition_format=partition_format)
