"""Tables as inputs of jobs, and the outputs of two jobs that must be the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from pyarrow import BufferReader, parquet

from harness import Workplace


def written_table(workplace: Workplace, kind: str, columns: Mapping[str, Sequence[Any]], group: int) -> list[Any]:
    """Writes a table as CSV or Parquet, and returns the inputs of a job over it. Parquet has groups of this size."""
    (workplace.folder / "table").mkdir(exist_ok=True)
    path, frame = workplace.folder / f"table/t.{kind}", pd.DataFrame(columns)
    frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path, index=False, row_group_size=group)
    return [{"name": "table", "type": "tabular", "format": kind, "path": "table"}]


def check_same_output(one: bytes, other: bytes) -> None:
    """Compares two outputs byte for byte; of Parquet, the schemas and rows."""
    if one[:4] == other[:4] == b"PAR1":
        assert parquet.read_table(BufferReader(one)).equals(parquet.read_table(BufferReader(other)))
    else:
        assert one == other
