"""Measures `gristmill` beside multiprocessing.Pool: same data, same run, alternating sides, medians of a few rounds."""

import argparse
import datetime
import os
import platform
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

from measure import Measured, measure
from workloads import WORKLOADS, Workload

HERE = Path(__file__).resolve().parent
HEADER = "| workload | gristmill | Pool | ratio | gristmill, peak memory |\n|---|---|---|---|---|"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=f"{', '.join(WORKLOADS)} (default: all)")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="size of the data; 1 is the size of the published figures"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--data", type=Path, required=True, help="folder for data, kept for the next run")
    parser.add_argument("--keep-results", action="store_true", help="print only, leave RESULTS.md as it is")
    options = parser.parse_args()
    if unknown := set(options.workloads) - set(WORKLOADS):
        parser.error(f"there is no workload {', '.join(unknown)}; there are {', '.join(WORKLOADS)}")

    options.data.mkdir(parents=True, exist_ok=True)
    lines = []
    for name in options.workloads or WORKLOADS:
        workload = WORKLOADS[name](options.data, options.scale)
        lines.append(compare(workload, options.data / "work" / name, options.rounds))
        print(lines[-1], flush=True)
    shutil.rmtree(options.data / "work", ignore_errors=True)

    table = "\n".join([HEADER, *lines])
    print(f"\n{table}")
    if not options.keep_results:
        (HERE / "RESULTS.md").write_text(report(table, options))


def compare(workload: Workload, folder: Path, rounds: int) -> str:
    """Runs both sides alternately; returns the workload's line of the table."""
    shutil.rmtree(folder, ignore_errors=True)
    ours: list[Measured] = []
    theirs: list[Measured] = []
    for number in range(rounds):
        place = folder / str(number)
        place.mkdir(parents=True)
        job = workload.write_job(place)
        sides = {
            "gristmill": lambda job=job, place=place: ours.append(
                measure(
                    [os.environ["GRISTMILL"], *workload.command, str(job)],
                    {"GRISTMILL_HOME": str(place / "home")},
                    place / "gristmill.txt",
                )
            ),
            "pool": lambda place=place: theirs.append(
                measure(
                    [
                        sys.executable,
                        str(HERE / "pool_side.py"),
                        workload.name,
                        str(workload.data),
                        str(place / "pool.rows"),
                    ],
                    {},
                    place / "pool.txt",
                )
            ),
        }
        for name in sorted(sides, reverse=bool(number % 2)):
            sides[name]()
            measured = (ours if name == "gristmill" else theirs)[-1]
            print(f"{workload.name}, round {number + 1}, {name}: {measured.seconds:.2f} s", file=sys.stderr, flush=True)
        workload.check(place / "gristmill.txt", place / "output" / "rows.txt", place / "pool.rows")
        shutil.rmtree(place)

    our_seconds = statistics.median(measured.seconds for measured in ours)
    their_seconds = statistics.median(measured.seconds for measured in theirs)
    peak = max(measured.peak_mib for measured in ours)
    return (
        f"| {workload.title} | {figures(workload, our_seconds)} | {figures(workload, their_seconds)} "
        f"| {their_seconds / our_seconds:.2f} | {peak:.0f} MiB |"
    )


def figures(workload: Workload, seconds: float) -> str:
    if workload.units == 1:
        return f"{seconds:.2f} s"
    return f"{seconds:.1f} s ({workload.units / seconds:,.0f} {workload.unit}/s)"


def report(table: str, options: argparse.Namespace) -> str:
    return f"""# How fast

Written by `scripts/bench`. Each workload runs {options.rounds} times on each side, alternating; the figures are medians
from command to exit, of release builds. *Ratio* is the time of `multiprocessing.Pool` by the time of gristmill: above
1, gristmill is faster. Both sides use as many processes as there are cores, and produce the same rows. Memory is that
of the gristmill process alone, without its Python processes.

{table}

{machine(options.scale)}"""


def machine(scale: float) -> str:
    """What the figures were taken on, as a table."""
    import pandas

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    processor = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    rustc = subprocess.run(["rustc", "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    commit = subprocess.run(
        ["git", "-C", str(HERE), "describe", "--always", "--dirty"], capture_output=True, text=True, check=True
    ).stdout.strip()
    return f"""| | |
|---|---|
| date | {datetime.date.today()} |
| commit | {commit} |
| scale | {scale:g} |
| processor | {processor}, {os.cpu_count()} cores |
| memory | {memory:.0f} GiB |
| kernel | Linux {platform.release()} |
| versions | rustc {rustc}, Python {platform.python_version()}, pandas {pandas.__version__} |
"""


if __name__ == "__main__":
    main()
