"""Datasets by the table ``[azureml.data]``, or of files that a script or a driver names. Tables are read as
``gristmill.mltable`` reads them."""

import copy
import fnmatch
import hashlib
import json
import numbers
import os
import re
import shutil
import tempfile
import uuid
import warnings

from gristmill import yaml_files
from gristmill.azureml_core import assets, names
from gristmill.azureml_core.datastore import DataPath
from gristmill.azureml_core.folders import home_folder
from gristmill.azureml_core.unsupported import unsupported
from gristmill.mltable import definition
from gristmill.mltable.files import DEFINITION, absolute, files_of
from gristmill.mltable.partitions import MISSING
from gristmill.mltable.table import MLTable

_FORMATS = {"csv": "read_delimited", "tsv": "read_delimited", "jsonl": "read_json_lines", "parquet": "read_parquet"}
_EXTENSIONS = {".csv": "csv", ".txt": "csv", ".tsv": "tsv", ".tab": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl"}
_EXTENSIONS.update({".json": "jsonl", ".parquet": "parquet", ".pq": "parquet"})
DOCUMENTS = (".txt", ".json")
"""Extensions that more often mean documents than tables. As the input of a step they are files."""
_PARTITIONS = "extract_columns_from_partition_format"
_DEFINED = {"type": "tabular", "format": "mltable"}


class PromoteHeadersBehavior:
    """The headers of delimited files."""

    NO_HEADERS = "no_header"
    ONLY_FIRST_FILE_HAS_HEADERS = "from_first_file"
    COMBINE_ALL_FILES_HEADERS = "all_files_different_headers"
    ALL_FILES_HAVE_SAME_HEADERS = "all_files_same_headers"


class DataType(definition.DataType):
    """The type of a column."""

    to_long = staticmethod(definition.DataType.to_int)

    @staticmethod
    def to_float(decimal_mark="."):
        """Returns the type of numbers."""
        if decimal_mark != ".":
            instead = "the decimal mark is a point; write the numbers with points, or convert the texts in the script"
            raise unsupported("DataType.to_float(decimal_mark=…)", instead=instead)
        return definition.DataType.to_float()

    @staticmethod
    def to_datetime(formats=None):
        """Returns the type of instants in one of these formats; without them, in a format that the texts show."""
        if formats is None:
            return definition.DataType({"datetime": {"formats": None}})
        return definition.DataType.to_datetime(formats)


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
        """Returns it under a name of this machine, which ``get_by_name`` and ``azureml:NAME`` find. As in the SDK, a
        name that has another dataset needs ``create_new_version``."""
        made = copy.copy(self)
        made.name, made.description, made.tags = name, description, dict(tags or {})
        version = self._register(name, create_new_version)
        made.version = int(version) if version.isdigit() else version
        made.id = f"{name}:{made.version}"
        if name in names.table("data"):
            warnings.warn(
                f"dataset {name} is registered as version {version}, but [azureml.data] of gristmill.toml has a line "
                "for this name, which takes precedence",
                stacklevel=2,
            )
        return made

    def as_named_input(self, name):
        """Returns it as an input of this name."""
        from gristmill.azureml_core.consumption import DatasetConsumptionConfig

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
        return [place for entry in self._entries() for place in entry.values()]

    def _entries(self):
        return [{kind: absolute(str(place), os.getcwd())} for entry in self._paths for kind, place in entry.items()]

    def __getattr__(self, name):
        raise unsupported(f"{type(self).__name__}.{name}")

    def __repr__(self):
        return f"{type(self).__name__}(name={self.name!r}, paths={self._paths!r})"


class FileDataset(AbstractDataset):
    """A dataset of files."""

    _partition_format = None

    @property
    def partition_keys(self):
        """The names in the partition format."""
        return _names_in(self._partition_format)

    def _register(self, name, create_new_version=True):
        kind = next(iter(self._paths[0]))
        if len(self._paths) == 1 and kind != "pattern" and self._partition_format is None:
            return assets.register(name, self._places()[0], f"uri_{kind}", create_new_version)
        steps = [{_PARTITIONS: self._partition_format}] if self._partition_format else []
        return assets.register_table(name, _table_text(self._entries(), steps), create_new_version)

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
        """Returns a context with a folder of the files alone: their own, or one with links."""
        if len(self._paths) == 1 and "folder" in self._paths[0]:
            return MountContext(self._root())
        # The home folder of a worker may not be writable.
        return MountContext(_linked(self._links(), tempfile.mkdtemp(prefix="dataset-")))

    def script_path(self):
        """Returns the path for a script: the file or folder; for several paths or a pattern, a folder with links."""
        if len(self._paths) == 1 and "pattern" not in self._paths[0]:
            return self._places()[0]
        links = self._links()
        return _linked(links, _folder_of("files", json.dumps(links)))

    def _links(self):
        return dict(zip(self.to_path(), [path for _, path in self._files()], strict=True))

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

    @property
    def partition_keys(self):
        """The names in the partition format."""
        formats = [one.get(_PARTITIONS) for one in self._steps if isinstance(one, dict)]
        return [name for one in formats for name in _names_in(_format_of(one))]

    def partition_by(self, partition_keys, target, name=None, show_progress=True, partition_as_file_dataset=False):
        """Writes the rows as a Parquet file for each combination of values, and returns the dataset of these files."""
        store, path = _store_and_path(target)
        root = os.path.join(store._folder("partition_by", path), name or "")
        # Lists of files leave out this name.
        written = os.path.join(root, f".{uuid.uuid4().hex}")
        frame = self.to_pandas_dataframe()
        missing = [key for key in partition_keys if key not in frame.columns]
        if missing:
            raise ValueError(f"partition_by: there is no column {missing[0]} (columns: {', '.join(frame.columns)})")
        if len(partition_keys) == len(frame.columns):
            raise ValueError("partition_by: every column is a key, so that the files would have none: leave a key out")
        if frame.empty:
            raise ValueError("partition_by: the table has no rows, so that no file can be written: check its paths")
        # The lists of files leave out folders that begin with a point or an underscore.
        names_ = [key.lstrip("._") for key in partition_keys]
        for values, rows in frame.groupby(list(partition_keys), sort=True, dropna=False):
            parts = [f"{key}={_folder_text(value, key)}" for key, value in zip(names_, values, strict=True)]
            place = os.path.join(written, *parts)
            os.makedirs(place)
            rows.drop(columns=list(partition_keys)).to_parquet(os.path.join(place, "rows.parquet"), index=False)
        # Files of earlier versions stay, because steps may still read them.
        folder = os.path.join(root, _digest_of(written))
        try:
            os.rename(written, folder)
        except OSError:
            # The same rows already exist.
            shutil.rmtree(written)
        form = "".join(f"/{name}={{{key}}}" for name, key in zip(names_, partition_keys, strict=True))
        form += "/rows.parquet"
        if partition_as_file_dataset:
            made = FileDatasetFactory.from_files(folder + "/", partition_format=form)
        else:
            made = TabularDatasetFactory.from_parquet_files(folder + "/", partition_format=form)
        return made.register(None, name, create_new_version=True) if name else made

    def script_path(self):
        """Returns the path for a script: a folder with a file ``MLTable``."""
        text = _table_text(*self._described())
        folder = _folder_of("tables", text)
        path = os.path.join(folder, DEFINITION)
        # The name of the folder is a digest of the text. Writing the file again would prevent the reuse of a step.
        if not os.path.exists(path):
            beside = f"{path}.{uuid.uuid4().hex[:8]}"
            with open(beside, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(beside, path)
        return folder

    def _register(self, name, create_new_version=True):
        return assets.register_table(name, _table_text(*self._described()), create_new_version)

    def _described(self):
        """Returns the paths and the steps, as a file ``MLTable`` has them."""
        return self._entries(), self._steps

    def to_pandas_dataframe(self, on_error="null", out_of_range_datetime="null"):
        """Reads the dataset."""
        if on_error != "null" or out_of_range_datetime != "null":
            warnings.warn(
                "to_pandas_dataframe: on_error and out_of_range_datetime have no effect here, and values that do not "
                "fit are missing: look for missing values in the result",
                stacklevel=2,
            )
        return self._table().to_pandas_dataframe()

    def take(self, count):
        """Returns the first rows."""
        return self._with("take", count)

    def skip(self, count):
        """Returns the rows after the first ones."""
        return self._with("skip", count)

    def keep_columns(self, columns, validate=False):
        """Returns these columns."""
        made = self._with("keep_columns", columns)
        if validate:
            made.take(1).to_pandas_dataframe()
        return made

    def drop_columns(self, columns):
        """Returns the other columns."""
        return self._with("drop_columns", columns)

    def job_input(self):
        """Returns the keys of one input of a job file, without its name."""
        return {**_DEFINED, "path": self.script_path()}

    def _with(self, name, settings):
        definition.step(name, settings)
        made = copy.copy(self)
        made._steps = [*self._steps, {name: settings}]
        return made

    def _table(self):
        paths, steps = self._described()
        return MLTable(paths, definition.checked_steps(steps), os.getcwd())


class RegisteredDataset(TabularDataset, FileDataset):
    """A dataset of which only the place is known: tables by the names of the files, or files."""

    partition_keys = ()
    are_files = False
    """Whether its items are files, according to the register."""

    def script_path(self):
        """Returns the path for a script: its place, or with steps a folder with a file ``MLTable``."""
        return TabularDataset.script_path(self) if self._steps else self._places()[0]

    def _register(self, name, create_new_version=True):
        return (TabularDataset if self._steps else FileDataset)._register(self, name, create_new_version)

    def _described(self):
        kind = self._format()
        if kind is None:
            raise definition.InvalidTable(f"dataset {self.name} is not a table: its first file is {self._first()}")
        reader = {_FORMATS[kind]: {"delimiter": "\t"} if kind == "tsv" else {}}
        return self._entries(), [reader, *self._steps]

    def job_input(self):
        """Returns the keys of one input of a job file, without its name."""
        may_be_table = not self.are_files and "://" not in self._places()[0] and self._format() is not None
        if self._steps or (may_be_table and not self._first().endswith(DOCUMENTS)):
            return {**_DEFINED, "path": TabularDataset.script_path(self)}
        return FileDataset.job_input(self)

    def file_input(self):
        """Returns the keys of an input whose items are files; ``None`` for a table with steps."""
        return None if self._steps else FileDataset.job_input(self)

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

    @staticmethod
    def upload_directory(src_dir, target, pattern=None, overwrite=False, show_progress=True):
        """Copies the files of a folder to a place in a datastore, and returns them as a dataset."""
        place = DataPath(*_store_and_path(target))
        found = [os.path.join(root, name) for root, _, names_ in os.walk(src_dir) for name in names_]
        chosen = [path for path in found if pattern is None or fnmatch.fnmatch(os.path.relpath(path, src_dir), pattern)]
        place.datastore.upload_files(chosen, src_dir, place.path_on_datastore, overwrite)
        return FileDatasetFactory.from_files(place.located().rstrip("/") + "/")


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
            "infer_column_types": infer_column_types,
            "support_multi_line": support_multi_line,
            "empty_as_string": empty_as_string,
        }
        if set_column_types and infer_column_types:
            # The others are inferred; these are parsed from the texts in the files.
            given = infer_column_types if isinstance(infer_column_types, dict) else {}
            overrides = {**given.get("column_type_overrides", {}), **set_column_types}
            settings["infer_column_types"] = {**given, "column_type_overrides": overrides}
            set_column_types = None
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
        store, path = _store_and_path(target, name)
        # A new folder, so that an earlier version keeps its rows.
        folder = os.path.join(store._folder("register_pandas_dataframe", path), uuid.uuid4().hex[:8])
        os.makedirs(folder, exist_ok=True)
        dataframe.to_parquet(os.path.join(folder, f"{name}.parquet"), index=False)
        made = TabularDatasetFactory.from_parquet_files(os.path.join(folder, f"{name}.parquet"))
        return made.register(None, name, description, tags, create_new_version=True)


class Dataset:
    """Datasets by their names."""

    File = FileDatasetFactory
    Tabular = TabularDatasetFactory

    @staticmethod
    def get_by_name(workspace, name, version="latest"):
        """Returns the dataset of a name, by default its newest version."""
        wanted = None if version in (None, "latest") else str(version)
        place = names.data(name, wanted)
        number = wanted or names.version_of(name) or "1"
        made = dataset_at(place, name, int(number) if number.isdigit() else number)
        _, registered = assets.find(name, wanted) or (None, {})
        is_file = registered.get("path") == place and registered.get("type") in ("uri_file", "uri_folder")
        if is_file and isinstance(made, RegisteredDataset):
            made.are_files = True
        return made

    @staticmethod
    def get_by_id(workspace, id, **_):
        """Returns the dataset of a name, of ``NAME:VERSION``, or of a path, which a step gets for a dataset."""
        if os.path.isabs(id):
            return dataset_at(id, os.path.basename(id))
        name, _, version = id.partition(":")
        return Dataset.get_by_name(workspace, name, version or "latest")

    @staticmethod
    def get_all(workspace):
        """Returns the newest version of every dataset."""
        known = dict.fromkeys([key.partition(":")[0] for key in names.table("data")] + assets.names())
        return {name: Dataset.get_by_name(workspace, name) for name in known}


def _tabular(path, reader, settings, column_types, partition_format):
    made = TabularDataset(entries(path))._with(reader, settings)
    if partition_format:
        made = made._with(_PARTITIONS, partition_format)
    if column_types:
        types = [{"columns": name, "column_type": kind} for name, kind in column_types.items()]
        made = made._with("convert_column_types", types)
    return made


def dataset_at(place, name, version=None):
    """Returns the dataset at a place: the table that its file ``MLTable`` describes, or files if that has no reader."""
    if not os.path.isfile(os.path.join(place, DEFINITION)):
        return RegisteredDataset(entries(place), (), name, version)
    paths, checked = definition.read_definition(place)
    paths = [{kind: absolute(str(one), place)} for entry in paths for kind, one in entry.items()]
    steps = yaml_files.read(os.path.join(place, DEFINITION)).get("transformations") or []
    if any(step in definition.READERS for step, _ in checked):
        return TabularDataset(paths, steps, name, version)
    made = FileDataset(paths, (), name, version)
    made._partition_format = next((_format_of(one[_PARTITIONS]) for one in steps if _PARTITIONS in one), None)
    return made


def _table_text(paths, steps):
    """Returns the text of a file ``MLTable``."""
    return json.dumps({"paths": paths, "transformations": steps}, indent=2, default=lambda one: one.written)


def _folder_of(kind, content):
    """Returns a folder below the home folder for this content."""
    name = hashlib.blake2b(content.encode(), digest_size=8).hexdigest()
    folder = os.path.join(home_folder(), "functions", kind, name)
    os.makedirs(folder, exist_ok=True)
    return folder


def _linked(links, folder):
    """Creates links to files at these relative paths in a folder, and returns the folder."""
    for relative, path in links.items():
        link = os.path.join(folder, relative.lstrip("/"))
        os.makedirs(os.path.dirname(link), exist_ok=True)
        if not os.path.islink(link):
            os.symlink(path, link)
    return folder


def _store_and_path(target, path=""):
    """Returns the datastore and the path of a target: both, a ``DataPath``, or a datastore alone."""
    if isinstance(target, DataPath):
        return target.datastore, target.path_on_datastore
    return target if isinstance(target, tuple) else (target, path)


def _format_of(partitions):
    return partitions.get("partition_format") if isinstance(partitions, dict) else partitions


def _digest_of(folder):
    """Returns a digest of the files of a folder."""
    digest = hashlib.blake2b(digest_size=8)
    for root, folders, files in os.walk(folder):
        folders.sort()
        for path in (os.path.join(root, name) for name in sorted(files)):
            with open(path, "rb") as file:
                content = file.read()
            digest.update(f"{os.path.relpath(path, folder)}\0{len(content)}\0".encode())
            digest.update(content)
    return digest.hexdigest()


def _folder_text(value, key):
    """Returns a value of a column as Hive writes it in the name of a folder."""
    import pandas

    if pandas.isna(value):
        return MISSING
    # In a column with missing values, an integer is a float.
    is_whole = isinstance(value, numbers.Real) and not isinstance(value, numbers.Integral) and value == value // 1
    text = str(int(value)) if is_whole else str(value)
    if not text:
        raise ValueError(f"partition_by: column {key} has an empty text, which cannot name a folder: replace it")
    return re.sub(r"[\x00-\x1f\x7f\"#%'*/:=?\\{\[\]^]", lambda sign: f"%{ord(sign[0]):02X}", text)


def _names_in(partition_format):
    return re.findall(r"\{([^{}:]+)(?::[^{}]*)?\}", partition_format or "")


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
