"""Datasets by the table ``[azureml.data]``, or of files that a script or a driver names. Tables are read as
``gristmill.mltable`` reads them."""

import copy
import os
import shutil
import tempfile
import warnings

from gristmill.azureml_core import names
from gristmill.azureml_core.datastore import DataPath
from gristmill.azureml_core.unsupported import unsupported
from gristmill.mltable import definition
from gristmill.mltable.files import DEFINITION, absolute, files_of
from gristmill.mltable.table import PATH_COLUMN, MLTable, load

_FORMATS = {"csv": "read_delimited", "tsv": "read_delimited", "jsonl": "read_json_lines", "parquet": "read_parquet"}
_EXTENSIONS = {".csv": "csv", ".txt": "csv", ".tsv": "tsv", ".tab": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl"}
_EXTENSIONS.update({".json": "jsonl", ".parquet": "parquet", ".pq": "parquet"})
_JOB_TYPES = {"int": "int64", "float": "float64", "string": "string", "boolean": "bool", "datetime": "timestamp"}
DOCUMENTS = (".txt", ".json")
"""Names that more often mean documents than tables. As the input of a step they are files."""
_registered = {}


class PromoteHeadersBehavior:
    """The headers of delimited files."""

    NO_HEADERS = "no_header"
    ONLY_FIRST_FILE_HAS_HEADERS = "from_first_file"
    COMBINE_ALL_FILES_HEADERS = "all_files_different_headers"
    ALL_FILES_HAVE_SAME_HEADERS = "all_files_same_headers"


class DataType(definition.DataType):
    """The type of a column."""

    to_long = staticmethod(definition.DataType.to_int)


class AbstractDataset:
    """Files of this machine, or URLs."""

    def __init__(self, paths, steps=(), name=None, version=None):
        self._paths = paths
        self._steps = list(steps)
        self.name = name
        self.version = version
        self.description = None
        self.tags = {}
        self.id = f"{name}:{version}" if name else None

    def register(self, workspace, name, description=None, tags=None, create_new_version=False):
        """Returns it under a name that this process knows: there is no register of datasets here."""
        made = copy.copy(self)
        made.name, made.description, made.tags = name, description, dict(tags or {})
        made.version = 1
        made.id = f"{name}:1"
        _registered[name] = made
        if name not in names.table("data"):
            warnings.warn(
                f"dataset {name} has this name in this process alone: add a line to [azureml.data] of gristmill.toml",
                stacklevel=2,
            )
        return made

    def as_named_input(self, name):
        """Returns it as an input of this name."""
        from gristmill.azureml_pipeline import DatasetConsumptionConfig

        return DatasetConsumptionConfig(name, self, "direct")

    def as_mount(self, path_on_compute=None):
        """Returns it as an input."""
        return self.as_named_input(self.name or "input").as_mount(path_on_compute)

    def as_download(self, path_on_compute=None):
        """Returns it as an input."""
        return self.as_named_input(self.name or "input").as_download(path_on_compute)

    def _files(self):
        return files_of(self._paths, os.getcwd())

    def _places(self):
        return [absolute(str(next(iter(entry.values()))), os.getcwd()) for entry in self._paths]

    def __getattr__(self, name):
        raise unsupported(f"{type(self).__name__}.{name}")

    def __repr__(self):
        return f"{type(self).__name__}(name={self.name!r}, paths={self._paths!r})"


class FileDataset(AbstractDataset):
    """A dataset of files."""

    _partition_format = None

    def to_path(self):
        """Returns the paths of the files from their common folder."""
        root = self._root()
        return ["/" + os.path.relpath(path, root) for _, path in self._files()]

    def download(self, target_path=None, overwrite=False, ignore_not_found=False):
        """Copies the files into a folder, and returns their paths there."""
        target_path = target_path or tempfile.mkdtemp(prefix="dataset-")
        copied = []
        for relative, (_, path) in zip(self.to_path(), self._files(), strict=True):
            target = os.path.join(target_path, relative.lstrip("/"))
            if os.path.exists(target) and not overwrite:
                raise FileExistsError(f"{target} exists: pass overwrite=True to replace it")
            os.makedirs(os.path.dirname(target), exist_ok=True)
            copied.append(shutil.copy2(path, target))
        return copied

    def mount(self, mount_point=None, **_):
        """Returns a context with the folder of the files, which are where they are."""
        return MountContext(self._root())

    def job_input(self):
        """Returns the keys of one input of a job file, without its name."""
        keys = {"type": "file", "paths": self._places()}
        return {**keys, "partition_format": self._partition_format} if self._partition_format else keys

    def _root(self):
        if len(self._paths) == 1 and "folder" in self._paths[0]:
            return self._places()[0]
        return os.path.commonpath([os.path.dirname(path) for _, path in self._files()])


class TabularDataset(AbstractDataset):
    """A dataset of tables."""

    def to_pandas_dataframe(self, on_error="null", out_of_range_datetime="null"):
        """Reads the dataset."""
        return self._table().to_pandas_dataframe()

    def take(self, count):
        """Returns the first rows."""
        return self._with("take", count)

    def skip(self, count):
        """Returns the rows after the first ones."""
        return self._with("skip", count)

    def keep_columns(self, columns, validate=False):
        """Returns these columns."""
        return self._with("keep_columns", columns)

    def drop_columns(self, columns):
        """Returns the other columns."""
        return self._with("drop_columns", columns)

    def job_input(self):
        """Returns the keys of one input of a job file, without its name."""
        keys = {"type": "tabular", "paths": self._places()}
        columns = {}
        for name, settings in self._table()._steps:
            if name in definition.READERS:
                keys.update(_reader_of_job(name, settings))
            elif name == "extract_columns_from_partition_format":
                keys["partition_format"] = settings.text
            elif name == "convert_column_types":
                columns.update((column, _JOB_TYPES[kind]) for names_, kind, _ in settings for column in names_)
            else:
                raise ValueError(f"a dataset with {name} cannot be the input of a step: write the rows to a file first")
        return {**keys, "columns": columns} if columns else keys

    def _with(self, name, settings):
        made = copy.copy(self)
        made._steps = [*self._steps, definition.step(name, settings)]
        return made

    def _table(self):
        return MLTable(self._paths, self._steps, os.getcwd())


class RegisteredDataset(TabularDataset, FileDataset):
    """A dataset by its name, of which only the place is known: tables by the names of the files, or files."""

    def _table(self):
        (place,) = self._places()
        if os.path.isfile(os.path.join(place, DEFINITION)):
            table = load(place)
            return MLTable(table._paths, [*table._steps, *self._steps], table._folder)
        kind = self._format()
        if kind is None:
            raise definition.InvalidTable(f"dataset {self.name} is no table: its first file is {self._first()}")
        settings = {"delimiter": "\t"} if kind == "tsv" else None
        return MLTable(self._paths, [definition.step(_FORMATS[kind], settings), *self._steps], os.getcwd())

    def job_input(self):
        """Returns the keys of one input of a job file, without its name."""
        (place,) = self._places()
        if os.path.isfile(os.path.join(place, DEFINITION)):
            return {"type": "tabular", "format": "mltable", "paths": [place]}
        if "://" not in place and self._format() is not None and not self._first().endswith(DOCUMENTS):
            return TabularDataset.job_input(self)
        return FileDataset.job_input(self)

    def _format(self):
        return _EXTENSIONS.get(os.path.splitext(self._first())[1])

    def _first(self):
        return self._files()[0][1].lower()


class MountContext:
    """The folder of a dataset."""

    def __init__(self, mount_point):
        self.mount_point = mount_point

    def start(self):
        """Does nothing: the files are there."""

    def stop(self):
        """Does nothing."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


class FileDatasetFactory:
    """Makes datasets of files."""

    @staticmethod
    def from_files(path, validate=True, partition_format=None, is_file=False):
        """Returns the files of paths, patterns, URLs, or places in datastores."""
        made = FileDataset(entries(path))
        made._partition_format = partition_format
        return made


class TabularDatasetFactory:
    """Makes datasets of tables."""

    @staticmethod
    def from_delimited_files(
        path,
        validate=True,
        include_path=False,
        infer_column_types=True,
        set_column_types=None,
        separator=",",
        header=True,
        partition_format=None,
        support_multi_line=False,
        empty_as_string=False,
        encoding="utf8",
    ):
        """Returns the rows of delimited files."""
        if isinstance(header, bool):
            header = "all_files_same_headers" if header else "no_header"
        settings = {
            "delimiter": separator,
            "header": getattr(header, "value", header),
            "encoding": encoding,
            "include_path_column": include_path,
            "infer_column_types": bool(infer_column_types),
            "support_multi_line": support_multi_line,
            "empty_as_string": empty_as_string,
        }
        return _tabular(path, "read_delimited", settings, set_column_types, partition_format)

    @staticmethod
    def from_parquet_files(path, validate=True, include_path=False, set_column_types=None, partition_format=None):
        """Returns the rows of Parquet files."""
        settings = {"include_path_column": include_path}
        return _tabular(path, "read_parquet", settings, set_column_types, partition_format)

    @staticmethod
    def from_json_lines_files(
        path,
        validate=True,
        include_path=False,
        set_column_types=None,
        partition_format=None,
        invalid_lines="error",
        encoding="utf8",
    ):
        """Returns the objects in the lines of files."""
        settings = {"include_path_column": include_path, "invalid_lines": invalid_lines, "encoding": encoding}
        return _tabular(path, "read_json_lines", settings, set_column_types, partition_format)

    @staticmethod
    def register_pandas_dataframe(dataframe, target, name, description=None, tags=None, show_progress=True):
        """Writes a DataFrame to a place in a datastore, and returns it as a dataset."""
        store, path = target if isinstance(target, tuple) else (target, name)
        folder = store._folder("register_pandas_dataframe", path)
        os.makedirs(folder, exist_ok=True)
        dataframe.to_parquet(os.path.join(folder, f"{name}.parquet"), index=False)
        made = TabularDatasetFactory.from_parquet_files(os.path.join(folder, f"{name}.parquet"))
        return made.register(None, name, description, tags)


class Dataset:
    """Datasets by their names."""

    File = FileDatasetFactory
    Tabular = TabularDatasetFactory

    @staticmethod
    def get_by_name(workspace, name, version="latest"):
        """Returns the dataset of a name, by default its newest version."""
        wanted = None if version in (None, "latest") else str(version)
        try:
            place = names.data(name, wanted)
        except names.UnknownName:
            if name in _registered and wanted in (None, "1"):
                return _registered[name]
            raise
        number = wanted or names.version_of(name) or "1"
        return RegisteredDataset(entries(place), (), name, int(number) if number.isdigit() else number)

    @staticmethod
    def get_by_id(workspace, id, **_):
        """Returns the dataset of a name, or ``NAME:VERSION``: ids have no place here."""
        name, _, version = id.partition(":")
        return Dataset.get_by_name(workspace, name, version or "latest")

    @staticmethod
    def get_all(workspace):
        """Returns the newest version of every dataset."""
        known = dict.fromkeys([key.partition(":")[0] for key in names.table("data")] + [*_registered])
        return {name: Dataset.get_by_name(workspace, name) for name in known}


def _tabular(path, reader, settings, column_types, partition_format):
    steps = [definition.step(reader, settings)]
    if partition_format:
        steps.append(definition.step("extract_columns_from_partition_format", partition_format))
    if column_types:
        types = [{"columns": name, "column_type": kind} for name, kind in column_types.items()]
        steps.append(definition.step("convert_column_types", types))
    return TabularDataset(entries(path), steps)


def entries(path):
    """Returns one path or several, as the paths of a table."""
    is_place = isinstance(path, tuple) and len(path) == 2 and hasattr(path[0], "path_of")
    several = path if isinstance(path, (list, tuple)) and not is_place else [path]
    return [_entry(one) for one in several]


def _entry(path):
    if isinstance(path, tuple):
        path = path[0].path_of(path[1])
    text = path.located() if isinstance(path, DataPath) else str(os.fspath(path))
    place = absolute(text, os.getcwd())
    if "://" in place:
        return {"file": place}
    if any(sign in text for sign in "*?["):
        # In the SDK `folder/**` are the files below a folder.
        return {"folder": place[:-3]} if place.endswith("/**") else {"pattern": place}
    return {"folder" if os.path.isdir(place) or text.endswith("/") else "file": place}


def _reader_of_job(name, settings):
    keys = {"format": {reader: kind for kind, reader in reversed(_FORMATS.items())}[name]}
    if settings["include_path_column"]:
        keys["path_column"] = PATH_COLUMN
    if name != "read_delimited":
        return keys
    defaults = definition.READERS[name]
    encoding = definition.ENCODINGS[settings["encoding"]]
    changed = {
        key: settings[key]
        for key in ("delimiter", "infer_column_types", "support_multi_line", "empty_as_string", "header")
        if settings[key] != defaults[key]
    }
    if encoding not in ("utf-8-sig", "ascii"):
        changed["encoding"] = encoding
    return {**keys, **changed}
