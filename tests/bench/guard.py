"""Counts the instructions of five small jobs, and fails if a count differs by more than 5 % from guard.json.

The debug build, which the tests need anyway, runs in an emulated processor (count.c). There a busy machine adds some
instructions (`NOISE`), and nothing else. Only bench.py measures times. The processes of two jobs are counted too; those
of the others import pandas.

Usage: scripts/bench guard [WORKLOAD…] [--record WHY]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from workloads import csv_tables, files_at, parquet_tables, small_files, tables_at, write_job

HERE = Path(__file__).resolve().parent
RECORD = HERE / "guard.json"
CHANGE_MAX = 0.05
# What a busy machine adds, in millions: the longer a job takes, the more often the engine looks at it.
NOISE = 30.0
TRIES = 3
EMULATOR = "qemu-x86_64"
ENGINE, PROCESSES = "engine", "processes"

# Millions of instructions by what runs them.
Counts = Mapping[str, float]


@dataclass
class Workload:
    """A job of `settings` that calls `script` of the folder user/."""

    script: str
    inputs: dict
    settings: dict[str, object]
    parts: tuple[str, ...] = (ENGINE,)


def workloads(data: Path) -> dict[str, Workload]:
    small, both = files_at(small_files(data, 20_000)), (ENGINE, PROCESSES)
    few, csv, parquet = csv_tables(data, 8_000), csv_tables(data, 80_000), parquet_tables(data, 80_000)
    # An emulated engine cannot adopt the processes that a template forks. A job of one process has no template.
    alone = {"process_count_per_node": 1}
    rejects = {"mini_batch_size": "50KB", "error_threshold": -1, **alone}
    return {
        "mini-batches": Workload("return_input", files_at(small_files(data, 4_000)), {"mini_batch_size": 1}, both),
        "files": Workload("length", small, {"mini_batch_size": 10}, both),
        "csv": Workload("score", tables_at(csv, "csv"), {"mini_batch_size": "500KB", **alone}),
        "parquet": Workload("score", tables_at(parquet, "parquet"), alone),
        "rejects": Workload("score_yielded", tables_at(few, "csv"), rejects),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench guard", description=__doc__.partition("\n")[0])
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD")
    parser.add_argument("--record", metavar="WHY", help=f"write the counts to {RECORD.name}, and why they have changed")
    options = parser.parse_args()
    recorded = json.loads(RECORD.read_text()) if RECORD.exists() else {"python": "", "workloads": {}}
    counted = count_all(options.workloads, recorded["workloads"])
    if options.record:
        every = {**recorded["workloads"], **counted}
        record = {"why": options.record, "python": platform.python_version(), "workloads": every}
        RECORD.write_text(json.dumps(record, indent=2) + "\n")
        return
    if recorded["python"] != platform.python_version():
        # Each version of Python has its own instructions for one script.
        print(f"Processes are not compared: {RECORD.name} is of Python {recorded['python']}.")
        counted = {name: {ENGINE: counts[ENGINE]} for name, counts in counted.items()}
    changes = [
        change for name in counted for change in changed(name, recorded["workloads"].get(name, {}), counted[name])
    ]
    if changes:
        sys.exit(
            "\n".join(changes)
            + f"\nThe guard allows {CHANGE_MAX:.0%}. If the change is intended: scripts/bench guard --record 'WHY'"
        )


def changed(name: str, recorded: Counts, counted: Counts) -> list[str]:
    """Returns a sentence for each count of a workload that has changed too much.

    A gain is a change too: without a record of it, a later loss of the same size would pass.
    """
    sentences = []
    for part, count in counted.items():
        if part not in recorded:
            sentences.append(f"{name}, {part}: {count} million instructions, and none recorded")
        elif abs(count - recorded[part]) > CHANGE_MAX * recorded[part] + NOISE:
            change = count / recorded[part] - 1
            sentences.append(f"{name}, {part}: {count} million instructions instead of {recorded[part]}, {change:+.1%}")
    return sentences


def count_all(names: list[str], recorded: Mapping[str, Counts]) -> dict[str, dict[str, float]]:
    """Counts each job of these names, or all, and prints the counts."""
    counted = {}
    with tempfile.TemporaryDirectory(prefix="gristmill-guard-") as scratch:
        folder = Path(scratch)
        prepare(folder)
        for name, workload in workloads(folder).items():
            if not names or name in names:
                counted[name] = least(name, workload, folder, recorded.get(name, {}))
                millions = ", ".join(f"{part} {count}" for part, count in counted[name].items())
                print(f"{name}: {millions} million instructions", flush=True)
    return counted


def least(name: str, workload: Workload, folder: Path, recorded: Counts) -> dict[str, float]:
    """Counts a job again while it differs too much, and returns the least counts."""
    counts = count(workload, folder / f"{name}-1")
    for number in range(2, TRIES + 1):
        if changed(name, recorded, counts):
            again = count(workload, folder / f"{name}-{number}")
            counts = {part: min(found, again[part]) for part, found in counts.items()}
    return counts


def prepare(folder: Path) -> None:
    """Compiles the counter, and writes a Python that is counted."""
    compiler = os.environ.get("CC", "cc")
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", folder / "count.so", HERE / "count.c"], check=True)
    # The path by which Python is started names its environment.
    python = Path(os.environ["GRISTMILL_PYTHON"])
    command = " ".join([*emulated(folder, PROCESSES), "-0", str(python), str(python.resolve())])
    (folder / "python").write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    (folder / "python").chmod(0o755)


def emulated(folder: Path, part: str) -> list[str]:
    return [EMULATOR, "-plugin", f"{folder}/count.so,name={part}"]


def count(workload: Workload, folder: Path) -> dict[str, float]:
    folder.mkdir()
    job = write_job(folder, workload.script, workload.inputs, **workload.settings)
    environment = os.environ | {"GRISTMILL_HOME": str(folder / "home"), "GUARD_COUNTS": str(folder / "counts")}
    if PROCESSES in workload.parts:
        environment["GRISTMILL_PYTHON"] = str(folder.parent / "python")
    command = [*emulated(folder.parent, ENGINE), os.environ["GRISTMILL"], "run", str(job)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    if ended.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{ended.stdout}{ended.stderr}")
    found: Counter[str] = Counter()
    for line in (folder / "counts").read_text().splitlines():
        part, instructions = line.split()
        found[part] += int(instructions)
    return {part: round(found[part] / 1e6, 1) for part in workload.parts}


if __name__ == "__main__":
    main()
