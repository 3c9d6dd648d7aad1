"""Compares gristmill with its peers: the same data, one run, sides that take turns, medians of a few rounds.

It writes the figures to results.json, each workload with its own date and commit, and from them RESULTS.md and charts.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from measure import TIMEOUT_SECONDS, Measured, Side, TimedOutError, measure
from report import circumstances, lines_of, write_report
from workloads import WORKLOADS, Workload

HERE = Path(__file__).resolve().parent
FIGURES = HERE / "results.json"
# A peer that takes longer runs once.
SLOW_SECONDS = 60


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=f"{', '.join(WORKLOADS)} (default: all)")
    parser.add_argument("--scale", type=float, default=1.0, help="size of the data; the results have 1")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", help="only these, for example daft,pool; implies --keep-results")
    parser.add_argument("--beside", type=Path, metavar="EXECUTABLE", help="another gristmill, instead of all peers")
    parser.add_argument("--data", type=Path, required=True, help="folder for data, kept for the next run")
    parser.add_argument("--keep-results", action="store_true", help="print only, leave the results as they are")
    options = parser.parse_args()
    if unknown := set(options.workloads) - {*WORKLOADS, "report"}:
        parser.error(f"there is no workload {', '.join(unknown)}; there are {', '.join(WORKLOADS)}")
    if options.workloads == ["report"]:
        return write_report(json.loads(FIGURES.read_text()))
    peers = None if options.peers is None else set(filter(None, options.peers.split(",")))
    # The page compares all peers.
    options.keep_results |= peers is not None or options.beside is not None

    # With it, every start of an interpreter compiles each module again, unlike on the machines of users.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    options.data.mkdir(parents=True, exist_ok=True)
    work = options.data / "work"
    for name in options.workloads or WORKLOADS:
        if name == "rabbitmq" and "GRISTMILL_TEST_AMQP_URL" not in os.environ:
            run_beside_components(name, options)
            continue
        for workload in WORKLOADS[name](options.data, options.scale):
            if options.beside is not None:
                workload.sides = beside(options.beside, workload)
                workload.same = same_output
            if peers is not None:
                workload.sides = {
                    side: make for side, make in workload.sides.items() if side in {"gristmill", "imports", *peers}
                }
            if not workload.sides:
                continue
            entry = circumstances(options.scale) | compare(workload, work, options.rounds)
            print("\n".join(lines_of(entry)), flush=True)
            if not options.keep_results:
                figures = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
                figures[workload.name] = entry
                FIGURES.write_text(json.dumps(figures, indent=1) + "\n")
                write_report(figures)
    shutil.rmtree(work, ignore_errors=True)


def beside(executable: Path, workload: Workload) -> dict[str, Callable[[Path], Side]]:
    """Returns the sides of a comparison between two builds: ours, and the same work by another executable."""
    if (ours := workload.sides.get("gristmill")) is None:
        return {}

    def other(folder: Path) -> Side:
        built = os.environ["GRISTMILL"]
        os.environ["GRISTMILL"] = str(executable.resolve())
        try:
            return ours(folder)
        finally:
            os.environ["GRISTMILL"] = built

    return {"gristmill": ours, "beside": other}


def same_output(_: str, ours: Path, theirs: Path) -> bool:
    """Compares what two builds wrote, byte for byte; a command that writes no rows prints them."""
    pair = (ours, theirs) if ours.exists() else (ours.with_name("printed"), theirs.with_name("printed"))
    return filecmp.cmp(*pair, shallow=False)


def run_beside_components(name: str, options: argparse.Namespace) -> None:
    """Runs one workload in a separate process, so that its components do not run beside the others."""
    command = [str(HERE.parent.parent / "scripts" / "with-components"), sys.executable, __file__, name]
    command += ["--data", str(options.data), "--scale", str(options.scale), "--rounds", str(options.rounds)]
    if options.beside is not None:
        command += ["--beside", str(options.beside)]
    ended = subprocess.run([*command, *(["--keep-results"] if options.keep_results else [])])
    if ended.returncode != 0:
        sys.exit(f"{name} ended with status {ended.returncode}.")


def compare(workload: Workload, work: Path, rounds: int) -> dict:
    """Runs all sides, round by round, and returns the figures of each."""
    figures: dict[str, list[Measured]] = {side: [] for side in workload.sides}
    for number in range(min(rounds, workload.rounds_max or rounds)):
        shutil.rmtree(work, ignore_errors=True)
        turn = [side for side in workload.sides if number == 0 or not is_slow(side, figures[side])]
        ran = []
        for side in reversed(turn) if workload.alternates and number % 2 else turn:
            folder = work / side
            folder.mkdir(parents=True)
            try:
                prepared = workload.sides[side](folder)
                measured = measure(prepared, folder / "printed", workload.with_tree, workload.fills_bytes)
            except TimedOutError:
                print(f"{workload.name}, round {number + 1}, {side}: given up", file=sys.stderr, flush=True)
                continue
            figures[side].append(measured)
            ran.append(side)
            print(f"{workload.name}, round {number + 1}, {side}: {measured.seconds:.2f} s", file=sys.stderr, flush=True)
        for side in ran:
            ours, theirs = work / "gristmill" / "rows", work / side / "rows"
            if side != "gristmill" and "gristmill" in ran and not workload.same(side, ours, theirs):
                sys.exit(f"{workload.name}: {theirs} does not hold the rows of gristmill.")
        shutil.rmtree(work)
    sides = {side: [asdict(measured) for measured in measurements] for side, measurements in figures.items()}
    about = {"title": workload.title, "amount": workload.amount, "unit": workload.unit}
    return about | {"sides": sides, "limit_seconds": TIMEOUT_SECONDS}


def is_slow(side: str, measurements: list[Measured]) -> bool:
    return side != "gristmill" and (not measurements or measurements[-1].seconds > SLOW_SECONDS)


if __name__ == "__main__":
    main()
