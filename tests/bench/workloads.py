"""The four workloads: their data, the job of our side, and the check that both sides did the same."""

from __future__ import annotations

import filecmp
import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

RETURN_INPUT = "def run(files):\n    return files\n"
ADD_TOTAL = """def run(frame):
    frame["total"] = frame["price"] * frame["quantity"]
    return frame
"""


@dataclass
class Workload:
    """One workload with its data in place."""

    name: str
    title: str
    data: Path
    units: int
    unit: str
    job: dict
    script: str
    command: tuple[str, ...] = ("run",)

    def write_job(self, folder: Path) -> Path:
        """Writes job file and script; returns the job file."""
        (folder / "code").mkdir(parents=True, exist_ok=True)
        (folder / "code" / "entry.py").write_text(self.script)
        job = {
            "name": f"bench-{self.name}",
            "entry_script": "entry.py",
            "source_directory": "code",
            "output": "output",
            "output_action": "append_row",
            "append_row_file_name": "rows.txt",
            "error_threshold": 0,
            "process_count_per_node": os.cpu_count(),
            "allow_reuse": False,
            **self.job,
        }
        file = folder / "job.yaml"
        file.write_text(json.dumps(job, indent=2))
        return file

    def check(self, ours: Path, our_output: Path, their_output: Path) -> None:
        """Both sides must have produced the same rows, or, for planning, as many mini-batches."""
        if self.name == "plan":
            # The last line on our side holds the totals.
            counts = [count_lines(ours) - 1, count_lines(their_output)]
            if counts[0] != counts[1]:
                sys.exit(f"{self.name}: {counts[0]} mini-batches here, {counts[1]} there.")
        elif not filecmp.cmp(our_output, their_output, shallow=False):
            sys.exit(f"{self.name}: the rows in {our_output} are not those in {their_output}.")


def count_lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for _ in file)


def files_job(path: Path, mini_batch_size: int) -> dict:
    inputs = [{"name": "data", "type": "file", "path": str(path)}]
    return {"inputs": inputs, "mini_batch_size": mini_batch_size}


def no_operation(cache: Path, scale: float) -> Workload:
    count = max(1, round(50_000 * scale))
    folder = small_files(cache, count)
    title = f"{count:,} mini-batches of one file, `run` returns its input"
    return Workload("noop", title, folder, count, "mini-batches", files_job(folder, 1), RETURN_INPUT)


def one(cache: Path, scale: float) -> Workload:
    folder = small_files(cache, 1)
    job = {**files_job(folder, 1), "process_count_per_node": 1}
    return Workload("one", "one tiny mini-batch, command to exit", folder, 1, "mini-batches", job, RETURN_INPUT)


def csv(cache: Path, scale: float) -> Workload:
    size = max(2_000_000, round(1_000_000_000 * scale))
    path = table(cache, size)
    inputs = [{"name": "data", "type": "tabular", "format": "csv", "path": str(path)}]
    title = f"{size / 1e6:,.0f} MB of CSV through a DataFrame script, 1 MB pieces"
    job = {"inputs": inputs, "mini_batch_size": "1MB"}
    return Workload("csv", title, path, round(path.stat().st_size / 1e6), "MB", job, ADD_TOTAL)


def plan(cache: Path, scale: float) -> Workload:
    count = max(1, round(1_000_000 * scale))
    folder = small_files(cache, count)
    title = f"{count:,} small files, planned in mini-batches of ten"
    return Workload(
        "plan", title, folder, count, "files", files_job(folder, 10), RETURN_INPUT, command=("plan", "--json")
    )


WORKLOADS = {"noop": no_operation, "one": one, "csv": csv, "plan": plan}


def need_space(cache: Path, needed_bytes: int, what: str) -> None:
    free = shutil.disk_usage(cache).free
    if free < needed_bytes:
        sys.exit(f"{what} needs {needed_bytes / 1e9:.1f} GB in {cache}, where {free / 1e9:.1f} GB are free.")


def small_files(cache: Path, count: int) -> Path:
    """A folder of so many files of a few bytes, a thousand in each subfolder; kept for the next run."""
    folder = cache / f"files_{count}"
    if (folder / ".complete").exists():
        return folder / "files"
    need_space(cache, count * 4096 + 10_000_000, f"{count:,} small files")
    print(f"writing {count:,} small files", file=sys.stderr)
    for number in range(count):
        subfolder = folder / "files" / f"{number // 1000:04}"
        if number % 1000 == 0:
            subfolder.mkdir(parents=True, exist_ok=True)
        (subfolder / f"{number:07}.txt").write_text(f"{number}\n")
    (folder / ".complete").touch()
    return folder / "files"


def table(cache: Path, size: int) -> Path:
    """A CSV file of about that size: order lines with numbers and text; kept for the next run."""
    path = cache / f"orders_{size}.csv"
    if path.exists():
        return path
    # The outputs of both sides, and the engine's own copy of the rows, need as much again.
    need_space(cache, 5 * size, f"a table of {size / 1e6:,.0f} MB and what is made of it")
    print(f"writing a table of {size / 1e6:,.0f} MB", file=sys.stderr)
    random = np.random.default_rng(1)
    words = np.array(["amber", "basalt", "cedar", "delta", "ember", "fjord", "granite", "iris"])
    unfinished = path.with_suffix(".new")
    with unfinished.open("w") as file:
        rows, first = 100_000, 0
        while file.tell() < size:
            frame = pd.DataFrame(
                {
                    "order": np.arange(first, first + rows),
                    "customer": random.integers(1, 2_000_000, rows),
                    "price": random.integers(1, 1_000_000, rows) / 100,
                    "quantity": random.integers(1, 50, rows),
                    "weight": np.round(random.gamma(2.0, 3.0, rows), 5),
                    "latitude": np.round(random.uniform(-90, 90, rows), 6),
                    "longitude": np.round(random.uniform(-180, 180, rows), 6),
                    "product": np.char.add(random.choice(words, rows), "-1"),
                    "comment": np.char.add(
                        np.char.add(random.choice(words, rows), " and "), random.choice(words, rows)
                    ),
                }
            )
            frame.to_csv(file, header=first == 0, index=False)
            first += rows
    unfinished.rename(path)
    return path
