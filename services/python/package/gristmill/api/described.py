"""``read_csv``, ``read_json``, ``read_parquet``, ``files`` and ``items``: inputs with the keywords of pandas.

They describe an input and read nothing. The engine divides it into mini-batches, which worker processes read.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gristmill.api.inputs import Described, Items, paths_of
from gristmill.api.keywords import checked
from gristmill.missing import NULLABLE

Path = str | os.PathLike[str]
Paths = Path | Sequence[Path]

TYPES = {
    "string": ("str", "string", "object", "o", "utf8", "large_string", "large_utf8"),
    "int64": ("int", "int64"),
    "uint64": ("uint64",),
    "float64": ("float", "float64", "double"),
    "bool": ("bool", "boolean"),
    "json": ("json",),
    "timestamp": ("datetime64[ns]", "datetime64", "datetime", "timestamp[ns]"),
}
"""Types of columns of a job file, and their names in pandas, NumPy, Polars and Arrow, in lower case."""
OF_PANDAS = ("Int64", "UInt64", "Float64", "boolean", "string", "string[python]", "object")
"""Types of pandas that hold missing values. A DataFrame gets them, and those that end in ``[pyarrow]``, unchanged."""
WITHOUT = "; for what the engine lacks, read the column as str, and convert it in the function"


@functools.partial(checked, advice=WITHOUT)
def read_csv(
    path: Paths,
    *,
    sep: str | None = None,
    delimiter: str | None = None,
    header: int | str | None = "infer",
    names: Sequence[str] | None = None,
    usecols: Sequence[str] | None = None,
    dtype: Any = None,
    skiprows: int = 0,
    nrows: int | None = None,
    encoding: str | None = None,
    parse_dates: Sequence[str] | None = None,
    dayfirst: bool = False,
    partition_format: str | None = None,
    support_multi_line: bool | None = None,
    on_type_mismatch: str | None = None,
) -> Described:
    """Describes CSV files, with the names and defaults of ``pandas.read_csv``. The types are those that pandas finds.

    :param path: a path, folder, pattern or URL, or a list of them; also ``.gz`` and ``.zst``.
    :param sep: the separator: ``","``, and a tab for ``.tsv``.
    :param header: ``0`` or ``"infer"``: each file begins with the names of its columns. ``None``: no file does, and
        ``names`` has them. Also a value of the key ``header`` of a job file.
    :param names: the columns of files without a header.
    :param usecols: the names of the columns to read, in this order.
    :param dtype: the types of some columns by name (``{"zip": str}``), or ``str`` for all. A DataFrame has the nullable
        types of pandas (``"Int64"``, ``"boolean"``, ``"string"``) and ``object`` where they are named here. Without
        them, a missing whole number or truth value fails its mini-batch, as pandas raises.
    :param skiprows: the number of lines before the header.
    :param nrows: the number of rows to read, counted over all files.
    :param encoding: the encoding of the files, such as ``"latin-1"``; by default UTF-8.
    :param parse_dates: the names of columns with times.
    :param dayfirst: in these, ``1/2/2020`` is in February.
    :param partition_format: columns from the paths, such as ``"{store}/{date:yyyy-MM}.csv"``.
    :param support_multi_line: whether fields hold line breaks. By default true for files on this machine.
    :param on_type_mismatch: ``"reject"`` or ``"missing"``: the treatment of values that do not fit their column.

    >>> import gristmill, pathlib
    >>> _ = pathlib.Path("zips.csv").write_text("zip;city\\n00501;Holtsville\\n")
    >>> rows = gristmill.read_csv("zips.csv", sep=";", dtype={"zip": str})
    >>> gristmill.run(lambda frame: frame, rows, progress=False).to_pandas()["zip"].tolist()
    ['00501']
    """
    if sep is not None and delimiter is not None:
        raise TypeError("read_csv: sep and delimiter are the same; pass one of them")
    delimiter = sep if delimiter is None else delimiter
    if delimiter is not None and (len(delimiter) != 1 or not delimiter.isascii()):
        raise ValueError(f"read_csv: sep={delimiter!r} is not one ASCII character")
    if not hasattr(skiprows, "__index__") or skiprows < 0:
        raise TypeError(f"read_csv: skiprows is the number of lines to skip, not {skiprows!r}")
    keys: dict[str, Any] = {"delimiter": delimiter, "skip_rows": skiprows or None, "take": nrows, "encoding": encoding}
    keys |= _header_of(header, names)
    types, dtypes = _types(dtype, "read_csv")
    if types == "string":
        keys["infer_column_types"] = False
        types = {}
    if isinstance(parse_dates, (str, bool)):
        raise TypeError(f"read_csv: parse_dates is a list of names of columns, not {parse_dates!r}")
    for column in parse_dates or ():
        types[column] = "timestamp_day_first" if dayfirst else "timestamp"
    keys["columns"] = _columns(usecols, types)
    keys |= {"support_multi_line": support_multi_line, "on_type_mismatch": on_type_mismatch}
    paths = paths_of(path, "read_csv")
    if delimiter is None and all(".tsv" in os.path.basename(one).lower() for one in paths):
        keys["delimiter"] = "\t"
    return _table("csv", paths, keys, partition_format, dtypes)


@checked
def read_json(
    path: Paths,
    *,
    lines: bool = True,
    dtype: Any = None,
    nrows: int | None = None,
    encoding: str | None = None,
    partition_format: str | None = None,
    on_type_mismatch: str | None = None,
) -> Described:
    """Describes files of JSON lines: one object on each line.

    :param path: a path, folder, pattern or URL, or a list of them; also ``.gz`` and ``.zst``.
    :param lines: true; a file that is one JSON document cannot be divided.
    :param dtype: the types of some columns by name; missing values as in ``read_csv``.
    :param nrows: the number of rows to read of all files.
    :param partition_format: as in ``read_csv``.
    :param on_type_mismatch: as in ``read_csv``.
    """
    if not lines:
        raise ValueError(
            "read_json: lines=False, a file that is one JSON document, is not possible; write one object a line, or "
            "pass pandas.read_json(path)"
        )
    types, dtypes = _types(dtype, "read_json")
    if types == "string":
        raise TypeError("read_json: dtype has the types of some columns by name; JSON has types of its own")
    keys = {"take": nrows, "columns": _columns(None, types), "encoding": encoding, "on_type_mismatch": on_type_mismatch}
    return _table("jsonl", paths_of(path, "read_json"), keys, partition_format, dtypes)


@checked
def read_parquet(
    path: Paths,
    *,
    columns: Sequence[str] | None = None,
    n_rows: int | None = None,
    partition_format: str | None = None,
) -> Described:
    """Describes Parquet files. Each row group is a mini-batch.

    :param path: a path, folder, pattern or URL, or a list of them.
    :param columns: the names of the columns to read, in this order.
    :param n_rows: the number of rows to read of all files.
    :param partition_format: as in ``read_csv``.
    """
    keys = {"columns": _columns(columns, {}), "take": n_rows}
    return _table("parquet", paths_of(path, "read_parquet"), keys, partition_format)


def files(path: Paths, *, partition_format: str | None = None) -> Described:
    """Describes files of any content: a function gets their paths.

    :param path: a path, folder, pattern or URL, or a list of them.
    :param partition_format: columns from the paths, for ``partition_keys``.

    >>> import gristmill, pathlib
    >>> _ = pathlib.Path("letter.txt").write_text("Dear reader")
    >>> job = gristmill.map(lambda path: len(open(path).read()), gristmill.files("*.txt"), progress=False)
    >>> job.to_pandas()["value"].tolist()
    [11]
    """
    return Described("file", paths_of(path, "files"), _given(partition_format=partition_format))


def items(values: Iterable[Any]) -> Items:
    """Describes objects: a list, a generator or anything else with elements that pickle. Only a list of texts needs
    this function, because otherwise the texts would be paths.

    >>> import gristmill
    >>> gristmill.map(len, gristmill.items(["a text", "another"]), progress=False).to_pandas()["value"].tolist()
    [6, 7]
    """
    return Items(values)


def _table(
    file_format: str,
    paths: list[str],
    keys: dict[str, Any],
    partition_format: str | None,
    dtypes: Mapping[str, str] | None = None,
) -> Described:
    if keys.get("on_type_mismatch") == "missing":
        # Values that do not fit become missing, which is no error then.
        dtypes = {column: kind for column, kind in (dtypes or {}).items() if kind not in NULLABLE}
    keys = {"format": file_format, **keys, "partition_format": partition_format}
    return Described("tabular", paths, _given(**keys), dtypes)


def _given(**keys: Any) -> dict[str, Any]:
    return {name: value for name, value in keys.items() if value is not None}


def _header_of(header: int | str | None, names: Sequence[str] | None) -> dict[str, Any]:
    """Returns the keys ``header`` and ``names``."""
    if names is not None:
        if header not in ("infer", None):
            raise ValueError("read_csv: names are those of files without a header: leave out header, or pass None")
        return {"names": list(map(str, names))}
    if header is None:
        raise ValueError('read_csv: header=None needs the names of the columns: names=["a", "b"]')
    if header in ("infer", 0):
        return {}
    if isinstance(header, int) and header > 0:
        raise ValueError(f"read_csv: header={header} is not possible: pass skiprows={header}, the lines before it")
    if not isinstance(header, str):
        raise ValueError(f"read_csv: header={header!r} is not possible: the first line after skiprows is the header")
    return {"header": header}


def _types(dtype: Any, owner: str) -> Any:
    """Returns the types of columns as a job file names them (``"string"``: all), and those that pandas adds: types of
    its own, and types that hold no missing value."""
    if dtype is None:
        return {}, {}
    if isinstance(dtype, Mapping):
        types = {str(column): _type(given, f"{owner}: dtype of {column!r}") for column, given in dtype.items()}
        # `polars.Boolean` is `boolean` in pandas.
        words = {str(column): _word(given).replace("Boolean", "boolean") for column, given in dtype.items()}
        of_pandas = {column: word for column, word in words.items() if word in OF_PANDAS or word.endswith("[pyarrow]")}
        return types, {column: kind for column, kind in types.items() if kind in NULLABLE} | of_pandas
    if _word(dtype) == "str":
        return "string", {}
    raise TypeError(f"{owner}: dtype is one type for all columns only if this is str; pass a mapping of names to types")


def _word(given: Any) -> str:
    return given.__name__ if isinstance(given, type) else str(given)


def _type(given: Any, owner: str) -> str:
    text = _word(given).lower()
    # `string[pyarrow]`, `int64[pyarrow]`
    word = text if text.startswith(("datetime64", "timestamp")) else text.partition("[")[0]
    for kind, known in TYPES.items():
        if word in known or word == kind:
            return kind
    advice = "read it as str or as one of these, and convert it in the function"
    raise ValueError(f"{owner}: {given} is not one of {', '.join(TYPES)}; {advice}")


def _columns(names: Sequence[str] | None, types: dict[str, str]) -> Any:
    """Returns the key ``columns``."""
    if names is None:
        return types or None
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"the columns to read are a list of names, not {names!r}")
    return [{name: types[name]} if name in types else name for name in names]
