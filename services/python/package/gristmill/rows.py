"""Results as bytes, in the format of the job's output.

The formats are ``text`` (compatible with the original), ``csv``, ``jsonl`` and ``parquet``. Each is a class with
``of_list`` and ``of_frame``, which return the bytes and the column names, ``None`` where there are none.

A missing value in a row of a list is what it is in a frame: NaN, ``pandas.NaT`` and ``pandas.NA`` are nothing in CSV,
and null in JSON lines and Parquet. Lines of ``text`` have them as the original writes them.

Text may contain file names of any bytes: bytes that ``os.fsdecode`` could not decode are written unchanged.
"""

import csv
import io
import json
import math
import re

from gristmill import _native
from gristmill.delimited import DelimitedFrames, column_names, encode
from gristmill.errors import one_line, valid_text
from gristmill.missing import is_missing, without_missing
from gristmill.results import IllegalResult


class RowsError(Exception):
    """The result is valid but cannot be written in the output format."""


def make_formatter(output_format, to_csv_arguments):
    """Returns the formatter of a job."""
    if output_format == "text":
        return Text(to_csv_arguments)
    if output_format == "csv":
        return Csv(to_csv_arguments)
    return {"jsonl": JsonLines, "parquet": Parquet}[output_format]()


class Text:
    """Writes ``format(element)`` lines, and frames like ``to_csv`` without header and index, separated by blanks."""

    separator = " "

    def __init__(self, to_csv_arguments):
        self._frames = DelimitedFrames(self.separator, to_csv_arguments)

    def of_list(self, result):
        if {*map(type, result)} == {str}:
            return encode("\n".join(result) + "\n"), None
        return encode("".join([f"{element}\n" for element in result])), None

    def of_frame(self, frame):
        return self._frames.format(frame)

    def of_table(self, table):
        return self.of_frame(table.to_pandas())


class Csv(Text):
    """Writes CSV. A list of dicts or sequences fills columns; a list of other values the column ``value``."""

    separator = ","

    def of_list(self, result):
        names, rows = ["value"], zip
        types = {*map(type, result)}
        if types and all(issubclass(kind, dict) for kind in types):
            keys = list(dict.fromkeys(name for element in result for name in element))
            names = [valid_text(str(name)) for name in keys]

            def rows(result):
                return ([element.get(name) for name in keys] for element in result)

        elif types and all(issubclass(kind, (list, tuple)) for kind in types):
            names, rows = None, iter
        text = _csv_text(rows(result))
        # Most results have no missing value, and a look at each value would cost more than this.
        if not types <= NEVER_MISSING and any(word in text for word in MISSING_WORDS) and MISSING_FIELDS.search(text):
            text = _csv_text(map(without_missing, rows(result)))
        return encode(text), names


NEVER_MISSING = {str, int, bool}
"""Types whose values are never missing values."""
MISSING_WORDS = ("nan", "NaN", "NaT", "<NA>")
"""Texts of missing values, as ``csv`` writes them."""
MISSING_FIELDS = re.compile(rf"(?:^|,)[-(]?s?(?:{'|'.join(MISSING_WORDS)})", re.MULTILINE)
"""Fields that begin with one."""


def _csv_text(rows):
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


class Unwritable(Exception):
    """JSON has no form for the value, and its text says nothing."""


ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def json_default(value):
    """Converts values that ``json`` does not support: NumPy's to Python's, instants to ISO form, missing ones to
    ``None``, others to their text. An object without a text of its own, such as a function, is refused."""
    convert = getattr(value, "tolist", None)
    if callable(convert):
        return convert()
    convert = getattr(value, "isoformat", None)
    if callable(convert):
        text = convert()
        return None if text == "NaT" else text
    if is_missing(value):
        return None
    text = str(value)
    if type(value).__str__ is object.__str__ and (text.startswith("<") or ADDRESS.search(text)):
        raise Unwritable(value)
    return text


def without_nan(value):
    """Returns the value with ``None`` for every number that JSON cannot represent."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(item) for item in value]
    if hasattr(value, "tolist"):
        return without_nan(value.tolist())
    return value


def json_line(value):
    try:
        try:
            line = json.dumps(value, default=json_default, ensure_ascii=False, allow_nan=False)
        except ValueError:
            line = json.dumps(without_nan(value), default=json_default, ensure_ascii=False)
    except Unwritable as error:
        raise _illegal(value, error.args[0]) from None
    try:
        return line.encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(without_nan(value), default=json_default).encode() + b"\n"


def _illegal(row, unwritable):
    """Returns the failure for a row that holds a value that JSON lines cannot hold."""
    field = _field_of(row, unwritable)
    where = f"in the field {field.removeprefix('.')} of a row" if field else "as a row"
    kind = type(unwritable)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return IllegalResult(
        one_line(
            f"run() returned a {name} {where}, which has no form in JSON: return text, numbers, lists and "
            "dictionaries of them, or an object with a text (__str__) of its own"
        )
    )


def _field_of(value, wanted):
    """Returns where in a row an object is, such as ``.scores[0].source``; ``None`` if it is in none of its lists and
    dictionaries, and no text if it is the row."""
    if value is wanted:
        return ""
    if isinstance(value, dict):
        parts = ((f".{key}", item) for key, item in value.items())
    elif isinstance(value, (list, tuple)):
        parts = ((f"[{position}]", item) for position, item in enumerate(value))
    else:
        return None
    for part, item in parts:
        below = _field_of(item, wanted)
        if below is not None:
            return part + below
    return None


class JsonLines:
    """Writes one JSON value per line; rows of a frame become objects."""

    def of_table(self, table):
        return self.of_frame(table.to_pandas())

    def of_list(self, result):
        return b"".join([json_line(element) for element in result]), None

    def of_frame(self, frame):
        from gristmill.frame_cells import native_columns

        names = column_names(frame)
        if len(set(names)) != len(names):
            raise RowsError("JSON lines need unique column names, and the DataFrame that run() returned has duplicates")
        columns = native_columns(frame)
        text = None
        if all(kind is not None for kind, _ in columns):
            text = _native.format_json_lines(names, columns, len(frame))
        if text is None:
            values = frame.astype(object).where(frame.notna(), None)
            rows = values.itertuples(index=False, name=None)
            text = b"".join([json_line(dict(zip(names, row, strict=True))) for row in rows])
        return text, names


def _arrow_array(pyarrow, name, values):
    try:
        # Missing values, also those in lists and dictionaries, become null, as in files of `DataFrame.to_parquet`.
        return pyarrow.array(values, from_pandas=True)
    except (pyarrow.ArrowException, OverflowError) as error:
        raise RowsError(f"column {name!r} of the result cannot be written to a Parquet file: {error}") from None


class Parquet:
    """Writes an Arrow IPC stream, which the reducer converts to Parquet. Lists are handled as for ``csv``."""

    def of_list(self, result):
        if result and all(isinstance(element, dict) for element in result):
            names = list(dict.fromkeys(name for element in result for name in element))
            cells = [[python_value(element.get(name)) for element in result] for name in names]
        else:
            names = ["value"]
            cells = [[python_value(element) for element in result]]
        names = [valid_text(str(name)) for name in names]
        written = _native.write_table(names, [("list", column) for column in cells], len(result))
        if isinstance(written, bytes):
            return written, names
        try:
            pyarrow = _pyarrow(names[written], cells[written])
        except RowsError:
            # Without missing values, it may be a column that needs no pyarrow.
            cells = [without_missing(column) for column in cells]
            again = _native.write_table(names, [("list", column) for column in cells], len(result))
            if isinstance(again, bytes):
                return again, names
            raise
        arrays = [_arrow_array(pyarrow, name, column) for name, column in zip(names, cells, strict=True)]
        return _arrow_stream(pyarrow, pyarrow.table(arrays, names=names)), names

    def of_frame(self, frame):
        from gristmill.frame_cells import native_columns

        names = column_names(frame)
        columns = native_columns(frame)
        unknown = next((position for position, (kind, _) in enumerate(columns) if kind is None), None)
        written = unknown if unknown is not None else _native.write_table(names, columns, len(frame))
        if isinstance(written, bytes):
            return written, names
        pyarrow = _pyarrow(names[written], frame.iloc[:, written])
        arrays = [_arrow_array(pyarrow, name, frame.iloc[:, position]) for position, name in enumerate(names)]
        return _arrow_stream(pyarrow, pyarrow.table(arrays, names=names)), names

    def of_table(self, table):
        import pyarrow

        names = [valid_text(name) for name in table.column_names]
        if len(set(names)) == len(names) and all(is_plain(pyarrow.types, one) for one in table.schema.types):
            return _arrow_stream(pyarrow, table.rename_columns(names)), names
        return self.of_frame(table.to_pandas())


def is_plain(types, kind):
    """Returns whether a column of this type can be written as it is."""
    return (
        *(types.is_boolean(kind), types.is_integer(kind), types.is_float32(kind), types.is_float64(kind)),
        *(types.is_string(kind), types.is_large_string(kind), types.is_timestamp(kind), types.is_date32(kind)),
    ).count(True) > 0


def python_value(value):
    is_scalar = hasattr(value, "item") and getattr(value, "shape", None) == ()
    return value.item() if is_scalar else value


def _pyarrow(name, cells):
    try:
        import pyarrow
    except ImportError:
        kinds = ", ".join(sorted({type(cell).__name__ for cell in cells}))
        raise RowsError(
            f"column '{name}' holds values ({kinds}) that only pyarrow can write to Parquet: "
            "add pyarrow to the environment of the script, or convert the column"
        ) from None
    return pyarrow


def _arrow_stream(pyarrow, table):
    fields = [
        field.with_type(pyarrow.string()) if field.type == pyarrow.large_string() else field for field in table.schema
    ]
    table = table.cast(pyarrow.schema(fields)).combine_chunks()
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()
