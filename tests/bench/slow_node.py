"""A job on four nodes of which one is slow, with and without speculative runs of its mini-batches.

The target is in a folder of this machine: the queue does not matter here. `run` sleeps, a hundred times longer on the
slow node.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from data import small_files
from report import table
from workloads import count_lines, files_at, write_job

MINI_BATCHES = 200
NODES = 4
SECONDS = 0.2
SLOWER = 100
SIDES = {"no slow node": (1, False), "one slow node": (SLOWER, False), "one slow node, `speculation`": (SLOWER, True)}


@dataclass
class Run:
    seconds: float
    started: int
    """Speculative runs."""
    won: int


def measure(folder: Path, data: Path, slower: int, speculation: bool) -> Run:
    """Returns the time from `enqueue` to the end of the job."""
    (folder / "gristmill.toml").write_text('[targets.bench]\nqueue = "sqlite:queues"\nstore = "store"\n')
    paths = {"GRISTMILL_CONFIG": str(folder / "gristmill.toml"), "GRISTMILL_HOME": str(folder / "home")}
    environment = {**os.environ, **paths, "GRISTMILL_TARGET": "bench", "RECORD": str(folder / "record")}
    files = files_at(small_files(data, MINI_BATCHES))
    settings = {"mini_batch_size": 1, "process_count_per_node": 1, "speculation": speculation}
    job = write_job(folder, "record_start", files, **settings)
    command = [os.environ["GRISTMILL"], "enqueue", str(job), "--wait", "--json"]
    with roles(folder, environment, slower):
        began = time.perf_counter()
        ended = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - began
    rows = count_lines(folder / "rows") if ended.returncode == 0 else 0
    if rows != MINI_BATCHES:
        sys.exit(f"{rows} rows, status {ended.returncode}:\n{ended.stdout}\n{ended.stderr[-4000:]}")
    copies = json.loads(ended.stdout).get("copies", {})
    return Run(seconds, copies.get("started", 0), copies.get("won", 0))


@contextlib.contextmanager
def roles(folder: Path, environment: dict[str, str], slower: int) -> Iterator[None]:
    """Runs a reducer and workers, of which the first is slow, and kills them at the end."""
    times = [SECONDS * slower] + [SECONDS] * (NODES - 1)
    worker = ("worker", "--job-users", "none")
    commands = [(("reducer",), {})] + [(worker, {"RUN_SECONDS": str(seconds)}) for seconds in times]
    started = []
    with (folder / "roles.txt").open("wb") as log:
        try:
            for arguments, variables in commands:
                command = [os.environ["GRISTMILL"], *arguments]
                role = subprocess.Popen(
                    command, env={**environment, **variables}, cwd=folder, stdout=subprocess.PIPE, stderr=log
                )
                started.append(role)
                if b"ready" not in role.stdout.readline():
                    sys.exit(f"{arguments[0]} did not start:\n{(folder / 'roles.txt').read_text()[-2000:]}")
            yield
        finally:
            for role in started:
                role.kill()
                role.wait()


def section(measured: dict[str, list[Run]]) -> str:
    """Returns the part of the page; of each side, the run with the median time."""
    lines = []
    for side, runs in measured.items():
        run = sorted(runs, key=lambda run: run.seconds)[len(runs) // 2]
        lines.append((side, f"{run.seconds:.1f}", run.started or "", run.won if run.started else ""))
    return "\n".join(
        [
            "## One slow node of four",
            "",
            f"{MINI_BATCHES} mini-batches of {SECONDS} s on {NODES} nodes of one process. The slow node takes {SLOWER}",
            "times as long, as a machine does whose disk or network is about to fail. Times of whole jobs.",
            "",
            table(("", "seconds", "speculative runs", "won"), lines),
        ]
    )
