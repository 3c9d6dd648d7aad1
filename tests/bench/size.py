"""Measures jobs of growing size, up to ten million mini-batches and a hundred million items, with a script that does
nothing; and counts the requests of a fleet of a thousand nodes in virtual time.

Each job is killed when its last mini-batch has ended, before it writes its output, and `retry` completes it: so each
size shows a whole job, its ledger, `status`, and a restart of its reducer.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import chart
import simulated_fleet
from data import need_space, once
from measure import status_kib
from report import commit, hardware, table
from simulated_fleet import megabytes, seconds
from workloads import count_lines, tables_at, write_job

PAGE = Path(__file__).resolve().parent / "SIZE.md"
CHART = PAGE.with_name("size.svg")
SIZES = {1: (10_000, 100_000, 1_000_000, 10_000_000), 100: (10_000, 100_000, 1_000_000)}
"""Mini-batches of the jobs, by the number of their items."""
FLEET_CHART = PAGE.with_name("size-fleet.svg")
DISK_BYTES = 1200
"""Of a job, at most, for each mini-batch: plan, ledger, reports and output."""
LOOK_SECONDS = 0.02
KILLED = -9
ROW_BYTES = 2


@dataclass
class Ran:
    """One command."""

    seconds: float
    peak_mib: float


@dataclass
class Measured:
    """One job."""

    items_each: int
    mini_batches: int
    run: Ran
    plan_bytes: int
    ledger_bytes: int
    segments: int
    status_seconds: float
    """Of the killed job, whose ledger it reads."""
    restart_seconds: float
    """From the start of `retry` until the reducer has read the ledger and written its progress."""
    retry: Ran
    ended_seconds: float
    """Of `status` of the completed job."""


@dataclass
class Job:
    """A job in a home of its own."""

    folder: Path
    file: Path

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "GRISTMILL_HOME": str(self.folder / "home")}

    @property
    def objects(self) -> Path:
        (objects,) = self.folder.glob("home/jobs/*")
        return objects

    @property
    def printed(self) -> Path:
        return self.folder / "printed"

    def measure(self, *arguments: str, status: int | None = 0, **environment: str) -> Ran:
        """Runs a command to its end, and returns its time and the peak memory of its process. `status`: the exit status
        that it must have."""
        with self.printed.open("wb") as file:
            began = time.perf_counter()
            command = [os.environ["GRISTMILL"], *arguments]
            process = subprocess.Popen(
                command, env=self.environment | environment, cwd=self.folder, stdout=file, stderr=subprocess.STDOUT
            )
            peak = 0
            while process.poll() is None:
                # The kernel records the peak, so only the last look matters.
                peak = max(peak, status_kib(process.pid))
                time.sleep(LOOK_SECONDS)
            seconds = time.perf_counter() - began
        if status is not None and process.returncode != status:
            end = self.printed.read_text(errors="replace")[-4000:]
            sys.exit(f"{' '.join(command)} ended with status {process.returncode}:\n{end}")
        return Ran(seconds, peak / 1024)


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench size", description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder for data, kept for the next run")
    parser.add_argument("--mini-batches", type=int, default=10_000_000, help="the largest job (default: all sizes)")
    parser.add_argument("--simulation", help="the program that plays a fleet in virtual time")
    parser.add_argument("--simulation-only", action="store_true", help="write only the section of the simulated fleet")
    parser.add_argument("--keep-results", action="store_true", help=f"print only, leave {PAGE.name} as it is")
    options = parser.parse_args()
    options.data.mkdir(parents=True, exist_ok=True)
    measured: list[Measured] = []
    simulated: list[dict] = []

    def show() -> None:
        # After each size, because the next one may take an hour.
        if options.keep_results:
            return
        if options.simulation_only:
            page, _, _ = PAGE.read_text().partition(simulated_fleet.TITLE)
            PAGE.write_text(page.rstrip() + "\n\n" + simulated_fleet.section(simulated))
        else:
            PAGE.write_text(report(measured, simulated))
        if len(simulated) > 1:
            FLEET_CHART.write_text(simulated_fleet.curves(simulated))
        if drawn := curves(measured):
            CHART.write_text(drawn)

    if options.simulation:
        sizes = [size for size in simulated_fleet.SIMULATED if size <= options.mini_batches]
        for fleet in simulated_fleet.play(options.simulation, sizes):
            simulated.append(fleet)
            say(table(simulated_fleet.HEADS, simulated_fleet.rows([fleet])))
            show()
    if options.simulation_only:
        return
    for items_each, sizes in SIZES.items():
        for mini_batches in (size for size in sizes if size <= options.mini_batches):
            say(f"{mini_batches:,} mini-batches of {items_each}: {time.strftime('%H:%M:%S')}")
            measured.append(job_of(options.data, items_each, mini_batches))
            say(table(HEADS, rows(measured[-1:])))
            show()
    print(report(measured, simulated))


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def lines(data: Path, count: int) -> Path:
    """Returns a folder with a table of this many rows, as short as rows can be."""

    def make(folder: Path) -> None:
        with (folder / "rows.csv").open("wb") as file:
            file.write(b"v\n")
            for first in range(0, count, 1_000_000):
                file.write(b"1\n" * min(1_000_000, count - first))

    return once(data / f"lines_{count}", ROW_BYTES * count, f"{count:,} short rows", make)


def job_of(data: Path, items_each: int, mini_batches: int) -> Measured:
    """Runs a job of this size in two parts, and returns what it took."""
    items = items_each * mini_batches
    inputs = tables_at(lines(data, items), "csv")
    need_space(data, DISK_BYTES * mini_batches + 2 * ROW_BYTES * items, f"a job of {mini_batches:,} mini-batches")
    with tempfile.TemporaryDirectory(prefix="size-", dir=data) as name:
        folder = Path(name)
        size = f"{items_each} rows"
        job = Job(folder, write_job(folder, "nothing", inputs, mini_batch_size=size, run_invocation_timeout=3600))
        run = job.measure("run", str(job.file), status=KILLED, GRISTMILL_CRASH_AT="BeforeOutput")
        say(f"  all have ended after {run.seconds:.1f} s")
        plan_bytes, _ = occupied(job.objects / "plan")
        ledger_bytes, segments = occupied(job.objects / "ledger")
        status = job.measure("status", job.objects.name, "--json", status=None)
        say(f"  status: {status.seconds:.2f} s")
        done = json.loads(job.printed.read_text())["progress"]["mini_batches"]["succeeded"]
        if done != mini_batches:
            sys.exit(f"{done} of {mini_batches} mini-batches had succeeded when the job was killed")
        with Watch(job.objects / "progress.json") as watch:
            retry = job.measure("retry", job.objects.name)
        ended = job.measure("status", job.objects.name)
        written = count_lines(folder / "rows")
        if written != items:
            sys.exit(f"{written} rows of {items}")
    return Measured(
        items_each,
        mini_batches,
        run,
        plan_bytes,
        ledger_bytes,
        segments,
        status.seconds,
        watch.seconds,
        retry,
        ended.seconds,
    )


class Watch:
    """Measures the time until a file is written again."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.seconds = 0.0
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.look)

    def __enter__(self) -> Watch:
        self.began, self.before = time.perf_counter(), self.stamp()
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join()

    def stamp(self) -> tuple[int, int]:
        found = self.file.stat()
        return (found.st_ino, found.st_mtime_ns)

    def look(self) -> None:
        while self.stamp() == self.before and not self.ended.is_set():
            time.sleep(LOOK_SECONDS)
        self.seconds = time.perf_counter() - self.began


def occupied(folder: Path) -> tuple[int, int]:
    """Returns the bytes and the number of the objects in a folder."""
    sizes = [entry.stat().st_size for entry in os.scandir(folder)]
    return sum(sizes), len(sizes)


HEADS = (
    "mini-batches",
    "items",
    "time",
    "mini-batches / s",
    "growth",
    "memory",
    "plan",
    "ledger",
    "segments",
    "`status`, killed",
    "restart",
    "`retry`",
    "its memory",
    "`status`, ended",
)


def rows(measured: list[Measured]) -> Iterator[list[str]]:
    before: dict[int, Measured] = {}
    for one in measured:
        smaller, before[one.items_each] = before.get(one.items_each), one
        yield [
            f"{one.mini_batches:,}",
            f"{one.mini_batches * one.items_each:,}",
            seconds(one.run.seconds),
            f"{one.mini_batches / one.run.seconds:,.0f}",
            f"{growth(smaller, one):.2f}" if smaller else "",
            f"{one.run.peak_mib:,.0f} MiB",
            megabytes(one.plan_bytes),
            megabytes(one.ledger_bytes),
            f"{one.segments:,}",
            seconds(one.status_seconds),
            seconds(one.restart_seconds),
            seconds(one.retry.seconds),
            f"{one.retry.peak_mib:,.0f} MiB",
            seconds(one.ended_seconds),
        ]


def growth(smaller: Measured, larger: Measured) -> float:
    """Returns the exponent of time by size: at 1, time grows in proportion."""
    return math.log(larger.run.seconds / smaller.run.seconds) / math.log(larger.mini_batches / smaller.mini_batches)


def of_each(measured: list[Measured], items_each: int, value: Callable[[Measured], float]) -> list[tuple]:
    found = [one for one in measured if one.items_each == items_each]
    return [(one.mini_batches, value(one), f"{one.mini_batches:,}") for one in found]


def curves(measured: list[Measured]) -> str:
    """Returns the chart of times by size; nothing before there are two sizes."""
    found = [
        chart.Curve("1 item each: run", of_each(measured, 1, lambda one: one.run.seconds)),
        chart.Curve("100 items each: run", of_each(measured, 100, lambda one: one.run.seconds)),
        chart.Curve("1 item each: restart", of_each(measured, 1, lambda one: one.restart_seconds)),
    ]
    drawn = [curve for curve in found if len(curve.points) > 1]
    return chart.curves("Time by number of mini-batches", drawn) if drawn else ""


def report(measured: list[Measured], simulated: list[dict]) -> str:
    page = f"""# How large jobs may be

`scripts/bench size` writes this page. A script that does nothing runs on the rows of a table, one or a hundred rows in
a mini-batch. Each job is killed (SIGKILL) when its last mini-batch has ended, and `gristmill retry` completes it.

- *time* is that of `gristmill run` until every mini-batch has ended, *memory* the peak of its process without Python's
  processes: all roles run in it. *Growth* is the exponent of the time from one size to the next: at 1 time grows in
  proportion, below 1 more slowly. *plan* and *ledger* are files at that moment; *segments* is the number of
  files of the ledger.
- *`status`, killed* reads the whole ledger of the killed job; *`status`, ended* reads the result.
- *restart* is the time from the start of `retry` until its reducer has read the ledger. *`retry`* is the time until it
  has written the output and removed what is no longer needed.

![Time by number of mini-batches](size.svg)

{table(HEADS, rows(measured))}"""
    facts = {"commit": commit(), **hardware(), "date": time.strftime("%Y-%m-%d")}
    page += "\n" + table(("", ""), facts.items())
    return f"{page}\n{simulated_fleet.section(simulated)}" if simulated else page


if __name__ == "__main__":
    main()
