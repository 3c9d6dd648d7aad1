"""Measures ten jobs of very different sizes that share three workers: how long each waits, and when it ends.

Under equal shares, each job gets the same part of the fleet until it ends. The ideal end of a job is when it would
then end, by the rate at which the workers finished the mini-batches of all jobs.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from data import small_files
from report import table
from workloads import count_lines, files_at, write_job

if TYPE_CHECKING:
    from fleet import Target

SIZES = [1, 4, 13, 46, 170, 600, 2_200, 7_700, 28_000, 100_000]
PROCESSES = 2
WORKERS = 3
SECONDS_MAX = 900


@dataclass
class Job:
    mini_batches: int
    began: float
    """Seconds from the start of the workers to the first start of a run."""
    ended: float
    """Seconds from the start of the workers to the output."""


def crowd(target: Target, data: Path, scale: float) -> list[Job]:
    """Enqueues all jobs, the largest first, and then starts workers and a reducer."""
    sizes = [max(1, round(size * scale)) for size in SIZES]
    folders = [target.folder / str(number) for number in range(len(sizes))]
    files = []
    for folder, size in zip(folders, sizes, strict=True):
        folder.mkdir()
        variables = {"RECORD": str(folder / "record"), "RUN_SECONDS": "0"}
        settings = {"process_count_per_node": PROCESSES, "environment_variables": variables}
        inputs = files_at(small_files(data, size))
        files.append(write_job(folder, "record_start", inputs, name=f"crowd-{size}", mini_batch_size=1, **settings))
    publishing = [
        subprocess.Popen(target.command("enqueue", str(file)), env=target.environment, stdout=subprocess.DEVNULL)
        for file in reversed(files)
    ]
    if any([process.wait() != 0 for process in publishing]):
        sys.exit("a job could not be enqueued")
    outputs = [folder / "rows" for folder in folders]
    started = time.time()
    with target.roles(workers=WORKERS):
        while not all(output.exists() for output in outputs):
            if time.time() - started > SECONDS_MAX:
                sys.exit(f"the jobs have not ended within {SECONDS_MAX} s")
            time.sleep(0.5)
    found = []
    for folder, output, size in zip(folders, outputs, sizes, strict=True):
        if (rows := count_lines(output)) != size:
            sys.exit(f"{size} rows were due, and there are {rows}")
        with (folder / "record").open() as record:
            first = min(float(line.rpartition(" ")[2]) for line in record)
        found.append(Job(size, first - started, output.stat().st_mtime - started))
    return found


def ideal_ends(jobs: list[Job]) -> list[float]:
    """Returns when each job ends if all share the workers equally."""
    began = min(job.began for job in jobs)
    rate = sum(job.mini_batches for job in jobs) / (max(job.ended for job in jobs) - began)
    return [began + sum(min(other.mini_batches, job.mini_batches) for other in jobs) / rate for job in jobs]


def section(new_target: Callable[[str], Target], data: Path, scale: float) -> str:
    """Returns the part of the report, for each broker."""
    columns: list[list[str]] = []
    heads = ["mini-batches"]
    for kind in ("RabbitMQ", "SQS"):
        jobs = crowd(new_target(kind), data, scale)
        ideal = ideal_ends(jobs)
        heads += [f"{kind}: began", "ended", "ideal"]
        if not columns:
            columns.append([f"{job.mini_batches:,}" for job in jobs])
        columns += [
            [f"{job.began:.1f} s" for job in jobs],
            [f"{job.ended:.1f} s" for job in jobs],
            [f"{end:.1f} s" for end in ideal],
        ]
    rows = [list(row) for row in zip(*columns, strict=True)]
    return f"""Ten jobs are enqueued, the largest first, and then a reducer and {WORKERS} workers start, each with
{PROCESSES} processes. *Began* is the first run of a job, *ended* its output, *ideal* the end under equal shares of the
rate at which the workers finished all of them.

{table(heads, rows)}"""
