"""Data of the workloads, generated once for each size and kept for the next run."""

from __future__ import annotations

import itertools
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

TABLE_FILES = 8
ROW_BYTES = 72
# A column of only 0 and 1 would have the type bool.
FIRST_ID = 1000
WORDS = ["amber", "basalt", "cedar", "delta", "ember", "fjord", "granite", "iris"]
ROW_GROUP_ROWS = 100_000


def need_space(folder: Path, needed_bytes: int, what: str) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        sys.exit(f"{what}: {needed_bytes / 1e9:.1f} GB are needed in {folder}, where {free / 1e9:.1f} GB are free.")


def once(folder: Path, needed_bytes: int, what: str, make: Callable[[Path], None]) -> Path:
    """Creates the folder unless it exists; a partial folder never has the final name."""
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    need_space(folder.parent, needed_bytes, what)
    print(f"writing {what}", file=sys.stderr, flush=True)
    unfinished = folder.with_name(folder.name + ".new")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    make(unfinished)
    unfinished.rename(folder)
    return folder


def small_files(cache: Path, count: int, size: int = 8) -> Path:
    """Returns a folder with this many files of this many bytes, a thousand in each subfolder."""

    def make(folder: Path) -> None:
        for number in range(count):
            subfolder = f"{folder}/files/{number // 1000:04}"
            if number % 1000 == 0:
                os.makedirs(subfolder)
            with open(f"{subfolder}/{number:07}.txt", "wb", buffering=0) as file:
                file.write(f"{number:07}\n".encode().ljust(size, b"."))

    name = f"files_{count}" if size == 8 else f"files_{count}_{size}"
    occupied = count * (4096 * -(-size // 4096) + 512)
    return once(cache / name, occupied, f"{count:,} files of {size} bytes", make) / "files"


def csv_tables(cache: Path, rows: int) -> Path:
    """Returns a folder of eight CSV files with this many rows in total, of about 72 bytes each."""
    options = pyarrow.csv.WriteOptions(quoting_header="none")

    def make(folder: Path) -> None:
        for name, table in tables(rows):
            pyarrow.csv.write_csv(table, folder / f"{name}.csv", options)

    return once(cache / f"csv_{rows}", rows * ROW_BYTES, f"{rows:,} rows of CSV", make)


def parquet_tables(cache: Path, rows: int) -> Path:
    """Returns a folder with the same rows as eight Parquet files."""

    def make(folder: Path) -> None:
        for name, table in tables(rows):
            pyarrow.parquet.write_table(table, folder / f"{name}.parquet", row_group_size=ROW_GROUP_ROWS)

    return once(cache / f"parquet_{rows}", rows * ROW_BYTES, f"{rows:,} rows of Parquet", make)


def repeated(tables: Path, copies: int) -> Path:
    """Returns a folder with several links to each file of another folder, which take no space."""

    def make(folder: Path) -> None:
        for copy in range(copies):
            for file in sorted(tables.iterdir()):
                os.link(file, folder / f"copy{copy:02}_{file.name}")

    return once(tables.with_name(f"{tables.name}_times_{copies}"), 0, f"{copies} links to {tables.name}", make)


def tables(rows: int):
    """Yields the rows file by file: an id, six floats, and a text that needs quotes."""
    notes = pa.array([f"{one}, {other} {number}" for one in WORDS for other in WORDS for number in range(100)])
    bounds = np.linspace(0, rows, min(TABLE_FILES, rows) + 1).astype(int)
    for number, (first, end) in enumerate(itertools.pairwise(bounds)):
        random = np.random.default_rng(number)
        columns = {"id": np.arange(first, end) + FIRST_ID}
        for place, (deviation, decimals) in enumerate([(1, 4), (2, 4), (2, 4), (1, 5), (2, 4), (0.5, 4)]):
            columns[f"f{place}"] = np.round(random.normal(0, deviation, end - first), decimals)
        columns["note"] = notes.take(pa.array(random.integers(0, len(notes), end - first)))
        yield f"part{number}", pa.table(columns)
