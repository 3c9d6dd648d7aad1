"""Reads the output of a job."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from gristmill import outputs

if TYPE_CHECKING:
    import pandas
    import pyarrow

# Modules of the worker process, and those that they share with this package, have no types.
_outputs: Any = outputs


def read(path: str | os.PathLike[str]) -> pyarrow.Table:
    """Returns the output of a job as an Arrow table with the types that its rows had, whatever the format of the file.

    ``read(path).to_pandas()`` is a DataFrame with its index, categories and nullable types. CSV and JSON lines need the
    hidden file with the schema that is beside them. Values of JSON lines that have no common type are their JSON, with
    the extension type ``arrow.json``.

    :param path: the path or URL of a CSV, JSON lines or Parquet file.
    :raises GristmillError: the output is text without columns, or its schema is missing.

    >>> import gristmill
    >>> def ids(numbers: list):
    ...     return [{"n": n, "id": f"{n:03}"} for n in numbers]
    >>> job = gristmill.run(ids, [7], output="ids.csv", progress=False)
    >>> gristmill.read(job.output).to_pylist()
    [{'n': 7, 'id': '007'}]
    """
    return cast("pyarrow.Table", _outputs.read_table(os.fspath(path)))


def read_batches(path: str) -> Iterator[pyarrow.RecordBatch]:
    """Returns the rows of an output in batches, each read on demand."""
    return cast("Iterator[pyarrow.RecordBatch]", _outputs.read_batches(path))


def to_pandas(table: pyarrow.Table, path: str) -> pandas.DataFrame:
    """Returns the table of an output as a DataFrame."""
    return cast("pandas.DataFrame", _outputs.to_pandas(table, path))
