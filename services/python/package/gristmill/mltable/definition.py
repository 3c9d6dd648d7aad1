"""The definition of a table: its paths and steps, all checked before anything is read. Unknown steps are refused by
name."""

import difflib
import enum
import os
import warnings

from gristmill import yaml_files
from gristmill.mltable.files import DEFINITION, KINDS
from gristmill.mltable.partitions import PartitionFormat

READERS = {
    "read_delimited": {
        "delimiter": ",",
        "header": "all_files_same_headers",
        "encoding": "utf8",
        "empty_as_string": False,
        "include_path_column": False,
        "infer_column_types": True,
        "support_multi_line": False,
        "path_column": None,
    },
    "read_json_lines": {
        "encoding": "utf8",
        "invalid_lines": "error",
        "include_path_column": False,
        "path_column": None,
    },
    "read_parquet": {"include_path_column": False, "path_column": None},
}
"""The steps that read, with their settings and defaults."""
STEPS = (
    "extract_columns_from_partition_format",
    "drop_columns",
    "keep_columns",
    "convert_column_types",
    "take",
    "skip",
)
REFUSED = ("read_delta_lake", "filter", "take_random_sample", "select_columns", "partition_columns_from_paths")
HEADERS = ("no_header", "from_first_file", "all_files_different_headers", "all_files_same_headers")
ENCODINGS = {
    "utf8": "utf-8-sig",
    "utf8bom": "utf-8-sig",
    "iso88591": "iso-8859-1",
    "latin1": "iso-8859-1",
    "ascii": "ascii",
    "utf16": "utf-16",
    "utf32": "utf-32",
    "windows1252": "windows-1252",
}
TYPES = ("int", "float", "string", "boolean")


class InvalidTable(ValueError):
    """The definition of a table is not valid, or needs a feature that is not supported here."""


class MLTableHeaders(enum.Enum):
    """The headers of delimited files."""

    no_header = 1
    from_first_file = 2
    all_files_different_headers = 3
    all_files_same_headers = 4


class MLTableFileEncoding(enum.Enum):
    """The encodings of delimited files."""

    utf8 = 1
    iso88591 = 2
    latin1 = 3
    ascii = 4
    utf16 = 5
    utf32 = 6
    utf8bom = 7
    windows1252 = 8


class DataType:
    """The type that a column is converted to, as the definition of a table writes it."""

    def __init__(self, written):
        self.written = written

    @staticmethod
    def to_int():
        """Returns the type of integers."""
        return DataType("int")

    @staticmethod
    def to_float():
        """Returns the type of numbers."""
        return DataType("float")

    @staticmethod
    def to_string():
        """Returns the type of texts."""
        return DataType("string")

    @staticmethod
    def to_bool(true_values=None, false_values=None, mismatch_as=None):
        """Returns the type of truth values, from these texts."""
        if true_values is None and false_values is None and mismatch_as is None:
            return DataType("boolean")
        settings = {"true_values": true_values, "false_values": false_values, "mismatch_as": mismatch_as}
        return DataType({"boolean": {key: value for key, value in settings.items() if value is not None}})

    @staticmethod
    def to_datetime(formats, date_constant=None):
        """Returns the type of instants in one of these formats."""
        if date_constant is not None:
            raise InvalidTable("to_datetime: date_constant is not supported here; give formats with a date")
        return DataType({"datetime": {"formats": [formats] if isinstance(formats, str) else list(formats)}})


def unknown_column(step, names, columns):
    """Returns the problem with the first of these names that a table does not have; ``None`` if it has all."""
    known = [str(column) for column in columns]
    name = next((name for name in names if name not in known), None)
    if name is None or not known:
        return None
    near = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(known)}"
    return f"{step}: the table has no column {name}; {hint}"


def warn_of_unknown_column(step, names, columns):
    """Warns of a name that a table does not have. Azure ML ignores it, so this is not an error."""
    problem = unknown_column(step, names, columns)
    if problem is not None:
        warnings.warn(problem, stacklevel=3)


def read_definition(folder):
    """Returns the paths and steps of the table that a folder defines."""
    path = os.path.join(folder, DEFINITION)
    if not os.path.isfile(path):
        raise InvalidTable(f"{folder} holds no file MLTable, so it is not a table")
    content = yaml_files.read(path)
    if not isinstance(content, dict):
        raise InvalidTable(f"{path} is not a table: it needs the keys paths and transformations")
    try:
        return checked_paths(content.get("paths")), checked_steps(content.get("transformations") or [])
    except InvalidTable as error:
        raise InvalidTable(f"{path}: {error}") from None


def checked_paths(paths):
    """Returns the paths if they are valid."""
    if not isinstance(paths, (list, tuple)) or not paths:
        raise InvalidTable("paths must be a list with at least one file, folder or pattern")
    for entry in paths:
        if not isinstance(entry, dict) or len(entry) != 1 or next(iter(entry)) not in KINDS:
            raise InvalidTable(f"a path must be one of file, folder and pattern, not {entry!r}")
    return [dict(entry) for entry in paths]


def checked_steps(transformations):
    """Returns the steps as pairs of name and settings."""
    if not isinstance(transformations, list):
        raise InvalidTable("transformations must be a list")
    steps = []
    for entry in transformations:
        if isinstance(entry, str):
            entry = {entry: None}
        if not isinstance(entry, dict) or len(entry) != 1:
            raise InvalidTable(f"a transformation must have one name, and {entry!r} has none or several")
        ((name, settings),) = entry.items()
        steps.append(step(name, settings))
    readers = [name for name, _ in steps if name in READERS]
    if len(readers) > 1:
        raise InvalidTable(f"a table has one reader, and this one has {', '.join(readers)}")
    return steps


def step(name, settings):
    """Returns a step if it is valid."""
    if name in READERS:
        return name, _reader(name, {} if settings is None else settings)
    if name not in STEPS:
        known = [*READERS, *STEPS]
        if name in REFUSED:
            raise InvalidTable(f"the transformation {name} is not supported here; supported are {', '.join(known)}")
        near = difflib.get_close_matches(str(name), known, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise InvalidTable(f"{name} is not a transformation{hint}")
    if name in ("take", "skip"):
        if isinstance(settings, bool) or not isinstance(settings, int) or settings < 0:
            raise InvalidTable(f"{name} needs a number of rows, not {settings!r}")
        return name, settings
    if name in ("drop_columns", "keep_columns"):
        return name, _names(name, settings)
    if name == "convert_column_types":
        return name, _conversions(settings)
    written = settings.get("partition_format") if isinstance(settings, dict) else settings
    if not isinstance(written, str):
        raise InvalidTable(f"{name} needs a partition_format such as '{{Store}}/{{Brand}}/{{file}}.csv'")
    try:
        return name, PartitionFormat(written)
    except ValueError as error:
        raise InvalidTable(str(error)) from None


def _names(step, names):
    names = [names] if isinstance(names, str) else names
    if not isinstance(names, (list, tuple)) or not names or not all(isinstance(name, str) for name in names):
        raise InvalidTable(f"{step} needs names of columns, not {names!r}")
    return list(names)


def _reader(name, settings):
    known = READERS[name]
    if not isinstance(settings, dict):
        raise InvalidTable(f"{name} needs settings, not {settings!r}")
    for key in settings:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, 1)
            hint = f"; did you mean {near[0]}?" if near else f"; it has {', '.join(known)}"
            raise InvalidTable(f"{name} has no setting {key}{hint}")
    settings = {**known, **{key: _plain(value) for key, value in settings.items()}}
    infer = settings.get("infer_column_types")
    if isinstance(infer, dict):
        for key in infer:
            if key not in ("sample_size", "column_type_overrides"):
                raise InvalidTable(f"{name}: infer_column_types has no key {key}: sample_size, column_type_overrides")
        overrides = infer.get("column_type_overrides") or {}
        written = [{"columns": column, "column_type": kind} for column, kind in overrides.items()]
        settings["infer_column_types"] = _conversions(written) or True
    _one_of(name, settings, "header", HEADERS)
    _one_of(name, settings, "encoding", ENCODINGS)
    _one_of(name, settings, "invalid_lines", ("error", "drop"))
    return settings


def _plain(value):
    return value.name if isinstance(value, (MLTableHeaders, MLTableFileEncoding)) else value


def _one_of(name, settings, key, allowed):
    if key in settings and settings[key] not in allowed:
        raise InvalidTable(f"{name}: {key} must be one of {', '.join(allowed)}, not {settings[key]!r}")


def _conversions(settings):
    """Returns ``(columns, kind, details)`` of each conversion."""
    if not isinstance(settings, list):
        raise InvalidTable("convert_column_types needs a list of columns and column_type")
    found = []
    for entry in settings:
        if not isinstance(entry, dict) or not {"columns", "column_type"} <= entry.keys():
            raise InvalidTable(f"convert_column_types: {entry!r} needs columns and column_type")
        written = entry["column_type"]
        written = written.written if isinstance(written, DataType) else written
        kind, details = next(iter(written.items())) if isinstance(written, dict) and written else (written, {})
        details = details or {}
        if kind == "datetime" and "formats" not in details:
            raise InvalidTable(
                "convert_column_types: datetime needs formats, for example {datetime: {formats: ['%Y']}}"
            )
        if kind not in (*TYPES, "datetime"):
            raise InvalidTable(f"convert_column_types: {kind!r} is not supported; write {', '.join(TYPES)} or datetime")
        if kind == "datetime" and isinstance(details["formats"], str):
            details = {**details, "formats": [details["formats"]]}
        found.append((_names("convert_column_types", entry["columns"]), kind, details))
    return found
