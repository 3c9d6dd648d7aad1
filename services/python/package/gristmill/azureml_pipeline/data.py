"""Inputs and outputs of steps: named inputs, and outputs that later steps read."""

import os
import uuid

from gristmill.api.keywords import checked
from gristmill.azureml_core.consumption import DatasetConsumptionConfig
from gristmill.azureml_core.dataset import FileDatasetFactory, PromoteHeadersBehavior, TabularDatasetFactory


class _Folder:
    """The folder that a step writes. Its output and the tables that later steps read from it share one."""

    def __init__(self, name, destination):
        self.name = name
        self.producer = None
        self.run = None
        self.registrations = {}
        """The outputs to register once the step has completed, by name."""
        self._destination = destination

    def place(self):
        """Returns the folder or URL."""
        if isinstance(self._destination, (str, os.PathLike)):
            return os.fspath(self._destination)
        if self._destination is not None:
            store, *inside = self._destination
            relative = (inside or [""])[0].replace("{output-name}", self.name)
            return store.path_of(relative) if hasattr(store, "path_of") else os.path.join("outputs", relative)
        if self.producer is None:
            raise ValueError(f"{self.name} is the output of no step: pass it as `output` of one")
        return os.path.join("outputs", "{run-id}", self.name)

    def path(self):
        """Returns the folder or URL; with ``{run-id}`` in it, that of the last run."""
        return self.place() if self.run is None else self.place().replace("{run-id}", self.run)

    def relative_path(self, run_id):
        """Returns the path in its datastore, for this run of its step."""
        if isinstance(self._destination, (tuple, list)):
            store = self._destination[0]
            root = store.path_of("") if hasattr(store, "path_of") else "outputs"
            return self.path().removeprefix(root).strip("/")
        return f"azureml/{run_id}/{self.name}"


class Output:
    """A folder that a step writes, and that later steps read."""

    def __init__(self, folder):
        self.name = folder.name
        self.folder = folder

    @property
    def producer(self):
        """The name of the step that writes it."""
        return self.folder.producer

    def register_on_complete(self, name, description=None, tags=None):
        """Returns it; the register of this machine gets the name once the step has completed."""
        self.folder.registrations[name] = self
        return self

    def register(self, name, description=None, tags=None, create_new_version=True):
        """Returns it; the register of this machine gets the name once the step has completed."""
        return self.register_on_complete(name)

    def folder_for(self, step):
        """Returns the folder or URL, as the output of this step: ``outputs/{run-id}/NAME`` unless it has a destination.

        ``{run-id}`` in it stands for the id of the job, which the job replaces.
        """
        self.folder.producer = self.folder.producer or step
        return self.folder.place()

    def written_by(self, job_id):
        """Records the id of the job that writes it."""
        self.folder.run = job_id

    def step_completed(self):
        """Registers the output under the names that ``register_on_complete`` has given it."""
        for name, output in self.folder.registrations.items():
            output.content()._register(name)

    @property
    def path(self):
        """The folder or URL; with ``{run-id}`` in it, that of the last run."""
        return self.folder.path()

    def relative_path(self, run_id):
        """Returns the path in its datastore, for this run of its step."""
        return self.folder.relative_path(run_id)

    def content(self):
        """Returns the dataset that later steps read."""
        return FileDatasetFactory.from_files(self.path + "/")

    def job_input(self):
        """Returns the keys of one input of a job file, without its name."""
        return self.content().job_input()

    def script_path(self):
        """Returns the path for a script that reads it as a whole."""
        return self.content().script_path()

    def as_input(self, name=None):
        """Returns it as an input of this name."""
        return DatasetConsumptionConfig(name or self.name, self, "mount")


class OutputTabularDatasetConfig(Output):
    """An output that later steps read as a table."""

    def __init__(self, folder, reads):
        super().__init__(folder)
        self._reads = reads

    def content(self):
        """Returns the dataset that later steps read."""
        return self._reads(self.path)

    def as_named_input(self, name):
        """Returns it as an input of this name."""
        return self.as_input(name)

    def keep_columns(self, columns):
        """Returns these columns."""
        return OutputTabularDatasetConfig(self.folder, lambda path: self._reads(path).keep_columns(columns))

    def drop_columns(self, columns):
        """Returns the other columns."""
        return OutputTabularDatasetConfig(self.folder, lambda path: self._reads(path).drop_columns(columns))


def _table(output, read, files, **settings):
    """Returns an output as a table.

    :param files: a pattern below its folder; all files without one.
    """
    return OutputTabularDatasetConfig(output.folder, lambda path: read(f"{path}/{files or ''}", **settings))


class PipelineData(Output):
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
        super().__init__(_Folder(name, None))
        self.datastore = datastore
        self.data_type = data_type
        self.output_name = output_name or name
        self.pipeline_output_name = pipeline_output_name

    def as_dataset(self):
        """Returns it as a dataset of files."""
        return self

    def as_mount(self, input_name=None):
        """Returns it as an input."""
        return self.as_input(input_name)

    def as_download(self, input_name=None, path_on_compute=None, overwrite=None):
        """Returns it as an input."""
        return self.as_input(input_name)

    as_direct = as_mount

    def as_named_input(self, name):
        """Returns it as an input of this name."""
        return self.as_input(name)

    @checked
    def parse_delimited_files(
        self,
        include_path=False,
        separator=",",
        header=PromoteHeadersBehavior.ALL_FILES_HAVE_SAME_HEADERS,
        partition_format=None,
        file_extension="",
        set_column_types=None,
        quoted_line_breaks=False,
    ):
        """Returns it as a table."""
        return _table(
            self,
            TabularDatasetFactory.from_delimited_files,
            file_extension and f"**/*{file_extension}",
            include_path=include_path,
            separator=separator,
            header=header,
            partition_format=partition_format,
            set_column_types=set_column_types,
            support_multi_line=quoted_line_breaks,
        )

    @checked
    def parse_parquet_files(
        self, include_path=False, partition_format=None, file_extension=None, set_column_types=None
    ):
        """Returns it as a table."""
        return _table(
            self,
            TabularDatasetFactory.from_parquet_files,
            file_extension and f"**/*{file_extension}",
            include_path=include_path,
            partition_format=partition_format,
            set_column_types=set_column_types,
        )


class OutputFileDatasetConfig(Output):
    """An output of a step with a destination, ``(datastore, "folder")`` or a path, and an input of later ones."""

    @checked
    def __init__(self, name=None, destination=None, source=None, partition_format=None):
        super().__init__(_Folder(name or f"output_{uuid.uuid4().hex[:8]}", destination))
        self.destination = destination
        self.source = source
        self.partition_format = partition_format

    def as_mount(self, disable_metadata_cache=False):
        """Returns it in this mode, which has no effect."""
        return self

    def as_upload(self, overwrite=False, source_globs=None):
        """Returns it in this mode, which has no effect."""
        return self

    @checked
    def read_delimited_files(
        self,
        include_path=False,
        separator=",",
        header=PromoteHeadersBehavior.ALL_FILES_HAVE_SAME_HEADERS,
        partition_format=None,
        path_glob=None,
        set_column_types=None,
    ):
        """Returns it as a table."""
        return _table(
            self,
            TabularDatasetFactory.from_delimited_files,
            path_glob,
            include_path=include_path,
            separator=separator,
            header=header,
            partition_format=partition_format,
            set_column_types=set_column_types,
        )

    @checked
    def read_parquet_files(self, include_path=False, partition_format=None, path_glob=None, set_column_types=None):
        """Returns it as a table."""
        return _table(
            self,
            TabularDatasetFactory.from_parquet_files,
            path_glob,
            include_path=include_path,
            partition_format=partition_format,
            set_column_types=set_column_types,
        )
