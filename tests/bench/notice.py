"""Measures how soon another worker has the mini-batches of a killed one on SQS, and how many requests that takes.

Runs sleep, so that the requests depend on time and not on the machine.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from data import small_files
from fleet import PROCESSES, STORE, CountingProxy, Target, takeover, wait_until
from report import commit, keeping_section, machine_table, table, with_section

PAGE = Path(__file__).resolve().parent / "NOTICE.md"
BESIDE = "Beside an earlier build"
"""The section of `--beside`, which the page keeps otherwise."""
EXTENSION = "ChangeMessageVisibilityBatch"
CASES = [(2, 0.1), (2, 10), (2, 60), (2, 600), (16, 60)]
"""Processes of the worker, and seconds of a run."""
MINI_BATCHES = 4000
SETTLED_SECONDS = 15
"""Longer than a lease of each build takes to its first extension."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench notice", description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder for data, kept for the next run")
    parser.add_argument("--beside", help="the executable of another build")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=120, help="how long requests are counted")
    parser.add_argument("--keep-results", action="store_true", help=f"print only, leave {PAGE.name} as it is")
    options = parser.parse_args()
    builds = [*filter(None, [options.beside]), os.environ["GRISTMILL"]]
    options.data.mkdir(parents=True, exist_ok=True)
    few, many = small_files(options.data, 200), small_files(options.data, MINI_BATCHES)
    work = options.data / "notice"
    shutil.rmtree(work, ignore_errors=True)
    endpoint = os.environ["GRISTMILL_TEST_AWS_ENDPOINT"]

    def target(build: str, endpoint: str = endpoint) -> Target:
        folder = work / uuid.uuid4().hex
        folder.mkdir(parents=True)
        return Target("SQS", folder, endpoint, "", build)

    def count(build: str, processes: int, run_seconds: float) -> Counter[str]:
        with CountingProxy(endpoint) as proxy:
            return per_minute(target(build, proxy.url), proxy, many, processes, run_seconds, options.seconds)

    def median(measure: object, data: Path) -> list[float]:
        return [statistics.median(measure(target(build), data) for _ in range(options.rounds)) for build in builds]

    reactions = [
        ["the others are busy with runs of 1 s", *map(seconds, median(takeover, few))],
        ["another is idle, and runs take 10 min", *map(seconds, median(takeover_by_an_idle_worker, few))],
    ]
    print(table(["", *builds], reactions), flush=True)
    counted = []
    for build in builds:
        with ThreadPoolExecutor(len(CASES)) as pool:
            counted.append(list(pool.map(lambda case, build=build: count(build, *case), CASES)))
    shutil.rmtree(work, ignore_errors=True)
    if options.beside:
        section = beside(reactions, counted, options)
        print(section)
        page = with_section(PAGE.read_text(), BESIDE, section)
    else:
        page = keeping_section(report(reactions, counted), BESIDE, PAGE)
        print(page)
    if not options.keep_results:
        PAGE.write_text(page)


def takeover_by_an_idle_worker(target: Target, data: Path) -> float:
    """Returns the seconds from SIGKILL of a worker until the mini-batches that it ran run on one that was idle."""
    job = target.write_job(small_files(data.parent, PROCESSES), "record_start", run_seconds=600)
    with target.roles(workers=1) as nodes:
        target.run("enqueue", str(job))
        wait_until(lambda: len(target.records()) == PROCESSES, "the worker works")
        time.sleep(SETTLED_SECONDS)
        with target.roles(workers=1):
            # It looks for work by now.
            time.sleep(SETTLED_SECONDS)
            at_kill = time.time()
            os.kill(nodes[0].pid, signal.SIGKILL)
            wait_until(lambda: len(target.records()) == 2 * PROCESSES, "the idle worker runs them")
    return max(at for *_, at in target.records()) - at_kill


def per_minute(
    target: Target, proxy: CountingProxy, data: Path, processes: int, run_seconds: float, seconds: int
) -> Counter[str]:
    """Returns the requests of a worker and a reducer in a minute, by kind."""
    job = target.write_job(data, "record_start", run_seconds=run_seconds, processes=processes)
    with target.roles(workers=1):
        target.run("enqueue", str(job))
        wait_until(lambda: len({process for _, process, _, _ in target.records()}) == processes, "all processes work")
        time.sleep(SETTLED_SECONDS)
        before = Counter(proxy.counts)
        time.sleep(seconds)
        counts = Counter(proxy.counts) - before
    if run_seconds < 1 and len(target.records()) >= MINI_BATCHES:
        sys.exit(f"{MINI_BATCHES} mini-batches were too few for {seconds} s")
    return Counter({kind: round(number * 60 / seconds) for kind, number in counts.items()})


def seconds(time: float) -> str:
    return f"{time:.1f} s"


SUMS = [
    ("leases", lambda kinds: kinds[EXTENSION]),
    ("SQS", lambda kinds: sum(number for kind, number in kinds.items() if kind not in STORE)),
    ("SQS and S3", lambda kinds: kinds.total()),
]
"""Requests that the tables add up."""
LEASES = f"""*Leases* are those that extend or return messages ({EXTENSION}). The store's are mostly signs of life and
looks for `gristmill cancel`."""


def report(reactions: list[list[str]], counted: list[list[Counter[str]]]) -> str:
    (of_build,) = counted
    rows = [
        [f"{run_seconds:g} s", processes, *(count(kinds) for _, count in SUMS)]
        for (processes, run_seconds), kinds in zip(CASES, of_build, strict=True)
    ]
    return f"""# How soon the work of a dead worker begins elsewhere

`scripts/bench notice` writes this page. SQS and S3 are LocalStack. A worker is killed with SIGKILL; the time ends when
another one has begun all mini-batches that it ran.

{table(["", "time"], reactions)}
Requests per minute of one worker and one reducer, while runs take so long.
{LEASES}

{table(["a run", "processes", *(kind for kind, _ in SUMS)], rows)}
{machine_table(1)}"""


def beside(reactions: list[list[str]], counted: list[list[Counter[str]]], options: argparse.Namespace) -> str:
    version = subprocess.run([options.beside, "--version"], check=True, capture_output=True, text=True).stdout.strip()
    heads = [f"{kind}, {name}" for kind, _ in SUMS for name in ("before", "now", "ratio")]
    rows = []
    for (processes, run_seconds), *of_builds in zip(CASES, *counted, strict=True):
        cells = []
        for _, count in SUMS:
            before, now = map(count, of_builds)
            cells += [before, now, f"{now / before:.2f}" if before else ""]
        rows.append([f"{run_seconds:g} s", processes, *cells])
    return f"""`scripts/bench notice --beside EXECUTABLE` writes this section, where the executable is the build
*before* ({version}). Times are medians (rounds: {options.rounds}).

{table(["", "before", "now"], reactions)}
Requests per minute of one worker and one reducer, counted for {options.seconds} s, while runs take so long.
{LEASES}

{table(["a run", "processes", *heads], rows)}
Commit {commit()}, {time.strftime("%Y-%m-%d")}."""


if __name__ == "__main__":
    main()
