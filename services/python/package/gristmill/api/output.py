"""Reads the output of a job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gristmill.api.errors import GristmillError

if TYPE_CHECKING:
    import pyarrow


def read_batches(path: str) -> Iterator[pyarrow.RecordBatch]:
    """Returns the rows of an output in batches, each read when it is asked for (JSON lines: all at once).

    :raises GristmillError: the output is text without columns.
    """
    if path.endswith(".parquet"):
        import pyarrow.parquet

        with _opened(path) as file:
            yield from pyarrow.parquet.ParquetFile(file).iter_batches()
    elif path.endswith(".csv"):
        import pyarrow.csv

        with _opened(path) as file:
            yield from pyarrow.csv.open_csv(file)
    elif path.endswith(".jsonl"):
        import pyarrow.json

        with _opened(path) as file:
            yield from pyarrow.json.read_json(file).to_batches()
    else:
        raise GristmillError(f"{path} is text without columns: read it with open(job.output), or set output_format")


def _opened(path: str) -> Any:
    """Opens the output, which may be in a store that Arrow knows."""
    if "://" not in path:
        return open(path, "rb")
    import pyarrow.fs

    system, inside = pyarrow.fs.FileSystem.from_uri(path)
    return system.open_input_file(inside)
