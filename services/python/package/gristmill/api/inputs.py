"""Turns values of ``inputs`` into inputs of a job file: paths, tables in memory, or objects."""

from __future__ import annotations

import contextlib
import enum
import math
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gristmill.api.same import by_value, dumps_alike

LIKE_URL = re.compile(r"[a-z][a-z0-9+.-]*://|(s3a?|gs|az|adl|azure|abfss?|https?|file)(:|//)", re.IGNORECASE)
# Not `.txt` and `.json`, which are more often documents than tables: the type of the function's argument decides.
TABLE_NAMES = re.compile(r"\.(csv|tsv|jsonl|ndjson)(\.gz|\.zst)?$|\.(parquet|pq)$", re.IGNORECASE)
NAMES_OF_FORMAT = {
    "jsonl": re.compile(r"\.(jsonl|ndjson)(\.gz|\.zst)?$", re.IGNORECASE),
    "parquet": re.compile(r"\.(parquet|pq)$", re.IGNORECASE),
}
UNITS = {"b": 1, "kb": 2**10, "mb": 2**20, "gb": 2**30}
PICKLED = "item"
"""Name of the key, or of the column of an array, that holds objects of a list."""
PLAIN = (int, float, bool, str, bytes, type(None))
"""Objects that the module ``pickle`` pickles as well as ``cloudpickle``, and faster."""


class Items(list):  # type: ignore[type-arg]
    """Objects as ``inputs``, which ``gristmill.items`` returns."""


class Described:
    """Files as an input, which ``gristmill.read_csv`` and similar functions return. Only a job reads them."""

    def __init__(
        self, kind: str, paths: list[str], keys: dict[str, Any], dtypes: Mapping[str, str] | None = None
    ) -> None:
        self.kind = kind
        """``tabular`` or ``file``."""
        self.paths = paths
        """Absolute paths, or URLs."""
        self.keys = keys
        """Further keys of the input of a job file."""
        self.dtypes = dtypes or {}
        """Types of pandas that a DataFrame gets, by column."""

    def __repr__(self) -> str:
        keys = "".join(f", {name}={value!r}" for name, value in self.keys.items())
        return f"<{self.kind} input {self.paths}{keys}>"


def path_inputs(inputs: Any) -> list[dict[str, Any]] | None:
    """Returns the inputs of a job file if these are paths, else ``None``. Described inputs have a ``type``."""
    if isinstance(inputs, Mapping):
        named = [(str(name), _keys(value)) for name, value in inputs.items()]
        if not named or any(keys is None for _, keys in named):
            return None
        return [{"name": name, **(keys or {})} for name, keys in named]
    if isinstance(inputs, (list, tuple)) and any(isinstance(one, Described) for one in inputs):
        raise TypeError("inputs is a list of inputs: give each a name, {name: input}")
    if isinstance(inputs, (list, tuple)) and all(isinstance(one, enum.Enum) for one in inputs):
        # Members of an enumeration of texts are objects with a meaning of their own.
        return None
    keys = _keys(inputs)
    return None if keys is None else [{"name": "data", **keys}]


def _keys(value: Any) -> dict[str, Any] | None:
    if isinstance(value, Described):
        return {"type": value.kind, "paths": value.paths, **value.keys, "dtypes": value.dtypes}
    paths = _paths(value)
    return None if paths is None else {"paths": paths}


def _paths(value: Any) -> list[str] | None:
    if isinstance(value, Items):
        return None
    paths = [value] if isinstance(value, (str, os.PathLike)) else value
    if isinstance(paths, (list, tuple)) and paths and all(isinstance(one, (str, os.PathLike)) for one in paths):
        if "" in paths:
            raise TypeError("inputs: a path is empty, and would be the working folder: pass '.' if you mean that")
        return [absolute(one) for one in paths]
    return None


def paths_of(value: Any, owner: str) -> list[str]:
    """Returns absolute paths, or URLs. Fails if the value is neither a path nor a list of paths."""
    paths = _paths(value)
    if paths is None:
        raise TypeError(f"{owner} takes a path, pattern or URL, or a list of them, not {type(value).__name__}")
    return paths


def absolute(path: Any) -> str:
    """Returns an absolute path, or a URL unchanged. Keeps a misspelt URL, too, because the check of the job suggests
    the right one."""
    # `str` of a member of an enumeration of texts is its name.
    text: str = os.fspath(path)[:]
    return text if LIKE_URL.match(text) else os.path.abspath(os.path.expanduser(text))


def looks_tabular(inputs: list[dict[str, Any]]) -> bool:
    """Returns whether the inputs are tables by name: that of the paths, or of the first file in a folder."""
    return all(
        one["type"] == "tabular"
        if "type" in one
        else all(TABLE_NAMES.search(_first_name(path)) for path in one["paths"])
        for one in inputs
    )


def have_format(inputs: list[dict[str, Any]], form: str) -> bool:
    """Returns whether the inputs have this format, ``jsonl`` or ``parquet``: as described, or by their names."""
    return all(
        one["format"] == form
        if "format" in one
        else all(NAMES_OF_FORMAT[form].search(_first_name(path)) for path in one["paths"])
        for one in inputs
    )


def _first_name(path: str) -> str:
    if "://" in path or not os.path.isdir(path):
        return path
    for folder, folders, files in os.walk(path):
        folders.sort()
        named = sorted(name for name in files if not name.startswith((".", "_")))
        if named:
            return os.path.join(folder, named[0])
    return path


def is_table(value: Any) -> bool:
    """Returns whether the value is a DataFrame or an Arrow table, without importing their packages."""
    return type(value).__module__.split(".")[0] in ("pandas", "polars", "pyarrow") and hasattr(type(value), "columns")


def may_hold_objects(value: Any) -> bool:
    """Returns whether a table or a column may hold objects of own classes."""
    if library_of(value) not in ("pandas", "numpy"):
        return False
    dtypes = value.dtypes if hasattr(type(value), "columns") else [value.dtype]
    return any(getattr(dtype, "name", "") == "object" for dtype in dtypes)


def library_of(value: Any) -> str:
    """Returns the library of a table: ``pandas``, ``polars`` or ``pyarrow``."""
    return type(value).__module__.partition(".")[0]


COLUMNS = {
    ("pandas", "Series"): "series",
    ("polars", "Series"): "polars_series",
    ("pyarrow", "Array"): "arrow_array",
    ("pyarrow", "ChunkedArray"): "arrow_array",
    ("numpy", "ndarray"): "array",
}
"""Forms of an argument that is a column, by the classes of the inputs."""


def column_form(value: Any) -> dict[str, Any] | None:
    """Returns the form in which a function gets mini-batches of a column in memory, as in ``function.pack``; ``None``
    for anything else."""
    kinds = ((one.__module__.partition(".")[0], one.__name__) for one in type(value).__mro__)
    argument = next((COLUMNS[kind] for kind in kinds if kind in COLUMNS), None)
    if argument == "array":
        dtype = value.dtype
        # The file holds no mask.
        if hasattr(value, "mask") or value.ndim == 0 or dtype.hasobject or dtype.itemsize == 0 or 0 in value.shape[1:]:
            return None
        from numpy.lib.format import dtype_to_descr

        return {"argument": argument, "dtype": dtype_to_descr(dtype), "shape": list(value.shape[1:])}
    if argument in ("series", "polars_series"):
        return {"argument": argument, "is_named": value.name is not None}
    return None if argument is None else {"argument": argument}


def stored_table(value: Any, taker: str | None) -> Any:
    """Returns a table or a column as the Arrow table of a Parquet file.

    Fails with the column that cannot be written.

    :param taker: the receiver of the table: a function over ``pandas``, ``polars``, ``pyarrow``, or a form of a column;
        ``None``: a script. Only the file for a function records the original types of its columns.
    """
    from gristmill.stored_tables import stored, table_of_frame, with_plain_scales

    pyarrow = _pyarrow()
    if taker == "array":
        width = value.dtype.itemsize * math.prod(value.shape[1:])
        content = pyarrow.py_buffer(value.tobytes())
        return pyarrow.table({PICKLED: pyarrow.Array.from_buffers(pyarrow.binary(width), len(value), [None, content])})
    if taker == "series":
        return stored(table_of_frame(value.to_frame("value" if value.name is None else value.name)))
    if taker == "polars_series":
        return stored(_of_polars(value.to_frame()))
    if taker == "arrow_array":
        return stored(pyarrow.table({"value": value}))
    library = library_of(value)
    if library == "pyarrow":
        table = value if isinstance(value, pyarrow.Table) else pyarrow.Table.from_batches([value])
    elif library == "polars":
        table = _of_polars(value)
    elif taker == "pandas":
        table = table_of_frame(value)
    elif taker is None:
        return with_plain_scales(_columns_of_frame(value))
    else:
        table = _converted(value, keeps_index=taker == "pyarrow")
    return with_plain_scales(table) if taker is None else stored(table)


def _columns_of_frame(frame: Any) -> Any:
    """Returns the columns of a frame for a script, which gets a fresh index."""
    pyarrow = _pyarrow()
    columns, names = [], []
    for position, name in enumerate(frame.columns):
        if str(name) in names:
            raise ValueError(f"inputs: two columns have the name {name!r}; rename one of them")
        names.append(str(name))
        try:
            columns.append(pyarrow.Array.from_pandas(frame.iloc[:, position]))
        except (pyarrow.ArrowException, TypeError, ValueError) as error:
            raise TypeError(f"inputs: column {name!r} cannot be written to a table: {error}") from None
    return pyarrow.table(columns, names=names)


def _of_polars(frame: Any) -> Any:
    _pyarrow()
    try:
        return frame.to_arrow()
    except Exception as error:
        for column in frame.get_columns():
            try:
                column.to_arrow()
            except Exception:
                what = f"column {column.name!r} of the type {column.dtype} has no type of Arrow"
                raise TypeError(f"inputs: {what}; cast it to another one") from None
        raise TypeError(f"inputs cannot be converted to an Arrow table: {error}") from None


def _converted(frame: Any, keeps_index: bool) -> Any:
    """Returns a frame as its own library converts it, for a function over another one."""
    pyarrow = _pyarrow()
    try:
        return pyarrow.Table.from_pandas(frame, preserve_index=None if keeps_index else False)
    except (pyarrow.ArrowException, TypeError, ValueError) as error:
        raise TypeError(f"inputs cannot be converted to an Arrow table: {error}") from None


def lines_of(values: Iterable[Any]) -> tuple[list[bytes], str, bool]:
    """Returns a line of JSON for each object, which is pickled in it, a text that is equal for equal objects, and
    whether classes travel with them, as ``same.dumps_alike`` does."""
    import base64
    import hashlib
    import pickle

    lines, with_classes = [], False
    content = hashlib.blake2b(digest_size=16)
    # By value, as the function, which would else have other classes.
    with by_value():
        for position, value in enumerate(values):
            try:
                if type(value) in PLAIN:
                    same = pickled = pickle.dumps(value, 5)
                else:
                    pickled, same, has_classes = dumps_alike(value)
                    with_classes |= has_classes
            except Exception as error:
                cause = f"item {position} ({type(value).__name__}) cannot be pickled: {error}"
                raise TypeError(f"inputs: {cause}") from None
            content.update(b"%d " % len(same) + same)
            lines.append(b'{"%s": "%s"}\n' % (PICKLED.encode(), base64.b64encode(pickled)))
    return lines, content.hexdigest(), with_classes


def object_of(values: dict[str, Any]) -> Any:
    """Returns the object of a line."""
    import base64
    import pickle

    return pickle.loads(base64.b64decode(values[PICKLED]))


def collected(inputs: Any) -> Any:
    """Returns inputs in memory: tables and columns as they are, and any other elements as a list. Fails if there are no
    elements."""
    if is_table(inputs):
        return inputs.collect() if hasattr(inputs, "collect") else inputs
    if column_form(inputs) is not None or isinstance(inputs, list):
        return inputs
    if isinstance(inputs, Iterable) and not isinstance(inputs, (str, bytes, bytearray, Mapping)):
        return list(inputs)
    raise TypeError(
        f"inputs is a {type(inputs).__name__}: pass a path or pattern, a list of paths, a mapping of names to paths, "
        "the result of read_csv or a similar function, a table, a column, or the objects to work on"
    )


def rows_each(rows: int, size_in_bytes: int, mini_batch_size: int | str | None) -> int:
    """Returns the number of rows of each mini-batch, for inputs in memory with this number of rows and this size.

    :param mini_batch_size: rows or items (``500``, ``"500 rows"``) or bytes (``"1MB"``); by default a few mini-batches
        for each core.
    """
    if mini_batch_size is None:
        return max(1, -(-rows // (4 * (os.cpu_count() or 1))))
    match = re.fullmatch(r"\s*(-?\d+)\s*(rows|b|kb|mb|gb)?\s*", str(mini_batch_size), re.IGNORECASE)
    if match is None:
        raise ValueError(f"mini_batch_size: {mini_batch_size!r} is not a size; write 500, '500 rows' or '10MB'")
    size, unit = int(match[1]), (match[2] or "rows").lower()
    if size < 1:
        raise ValueError(f"mini_batch_size: {mini_batch_size} is below 1")
    if unit != "rows":
        size = size * UNITS[unit] * rows // max(1, size_in_bytes)
    return max(1, min(rows, size))


def write_table(table: Any, path: Path, rows: int) -> None:
    """Writes a table as the Parquet file of an input, one row group for each mini-batch, if it does not exist."""
    if in_use(path):
        return
    import pyarrow.parquet

    with _new(path) as beside:
        try:
            pyarrow.parquet.write_table(table, beside, row_group_size=rows, compression="zstd")
        except (_pyarrow().ArrowException, OSError) as error:
            from gristmill.stored_tables import unstorable

            # An unsupported type is an OSError, as is a failed write.
            if (what := unstorable(table)) is None and isinstance(error, OSError):
                raise
            raise TypeError(f"inputs: {what or 'they'} cannot be written to a table: {error}") from None


def write_lines(lines: list[bytes], path: Path) -> None:
    """Writes the lines of objects, if the file does not exist."""
    if not in_use(path):
        with _new(path) as beside:
            beside.write_bytes(b"".join(lines))


@contextlib.contextmanager
def _new(path: Path) -> Iterator[Path]:
    """Yields a temporary path, and then renames its file to ``path``, unless the block raises."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
    try:
        yield beside
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def in_use(path: Path) -> bool:
    """Returns whether a file or folder exists. If so, updates its time: ``gristmill clean`` removes unused ones."""
    try:
        now, found = time.time_ns(), path.stat()
        # Another modification time of an input would make another job. That of a folder does not matter.
        os.utime(path, ns=(now, now if path.is_dir() else found.st_mtime_ns))
    except FileNotFoundError:
        return False
    except OSError:
        pass  # It belongs to another user.
    return True


def fingerprint(table: Any) -> str:
    """Returns a text that is equal for equal tables."""
    import hashlib

    pyarrow = _pyarrow()
    digest = hashlib.blake2b(digest_size=16)

    class Sink:
        closed = False

        def write(self, data: Any) -> int:
            digest.update(data)
            return len(data)

        def flush(self) -> None:
            pass

    # Tables are equal even if their chunks differ.
    with pyarrow.ipc.new_stream(pyarrow.PythonFile(Sink(), "w"), table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return digest.hexdigest()


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError:
        raise ImportError("inputs in memory need pyarrow: pip install pyarrow, or pass the path of a file") from None
    return pyarrow
