"""Compares gristmill with its peers, and measures fleets and large jobs: the same data, sides that take turns, and
medians of a few rounds.

It writes the figures to results.json, each workload with its own date and commit, and from them the pages.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import workloads
from fleet import fleet
from measure import Figures, GivenUpError, TimedOutError
from report import circumstances, lines_of, write_pages
from workloads import HERE, Side, Workload

RESULTS = HERE / "results.json"
# A peer that takes longer runs once.
SLOW_SECONDS = 60
SIGNIFICANT = 6

WORKLOADS: dict[str, Callable[[Path, float], Iterator[Workload]]] = {
    "noop": workloads.noop,
    "csv": workloads.csv,
    "parquet": workloads.parquet,
    "files": workloads.files,
    "plan": workloads.plan,
    "reduce": workloads.reduce,
    "one": workloads.one,
    "python": workloads.python,
    "memory": workloads.memory,
    "bad": workloads.bad,
    "fleet": fleet,
    "size": workloads.size,
    "nodes": workloads.nodes,
    "portal": workloads.portal,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    choices = ("all", "report", *WORKLOADS)
    parser.add_argument("workloads", nargs="+", metavar="WORKLOAD", choices=choices, help=", ".join(choices))
    parser.add_argument("--scale", type=float, default=1.0, help="size of the data; only 1 is recorded")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", help="only these, for example daft,pool; nothing is recorded")
    parser.add_argument("--beside", type=Path, metavar="EXECUTABLE", help="another gristmill, instead of all peers")
    parser.add_argument("--keep-results", action="store_true", help="print only, leave the results as they are")
    parser.add_argument("--data", type=Path, required=True, help="folder for data, kept for the next run")
    options = parser.parse_args()
    if options.workloads == ["report"]:
        return write_pages(json.loads(RESULTS.read_text()))
    # The pages compare all peers on data of one size.
    options.keep_results |= options.scale != 1 or options.peers is not None or options.beside is not None
    # With it, every start of an interpreter compiles each module again, unlike on the machines of users.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    options.data.mkdir(parents=True, exist_ok=True)
    for name in WORKLOADS if "all" in options.workloads else options.workloads:
        if name == "fleet" and "GRISTMILL_TEST_AMQP_URL" not in os.environ:
            run_beside_components(name, options)
            continue
        for workload in WORKLOADS[name](options.data, options.scale):
            workload.sides = chosen(workload, options)
            if workload.sides:
                entry = circumstances(workload) | {"sides": compare(workload, options.data, options.rounds)}
                print("\n".join(lines_of(entry)), flush=True)
                if not options.keep_results:
                    results = json.loads(RESULTS.read_text()) | {workload.name: entry}
                    RESULTS.write_text(document(results))
                    write_pages(results)


def chosen(workload: Workload, options: argparse.Namespace) -> dict[str, Side]:
    """Returns the sides to run: all, those of `--peers`, or two builds with `--beside`, which must write the same."""
    ours = workload.sides.get("gristmill")
    if options.beside is not None:
        workload.same = same_output
        return {} if ours is None else {"gristmill": ours, "beside": with_build(options.beside, ours)}
    wanted = None if options.peers is None else {"gristmill", *options.peers.split(",")}
    return {name: side for name, side in workload.sides.items() if wanted is None or name in wanted}


def with_build(executable: Path, side: Side) -> Side:
    def other(folder: Path) -> Figures:
        built = os.environ["GRISTMILL"]
        os.environ["GRISTMILL"] = str(executable.resolve())
        try:
            return side(folder)
        finally:
            os.environ["GRISTMILL"] = built

    return other


def same_output(_: str, ours: Path, theirs: Path) -> bool:
    """Compares what two builds wrote, byte for byte; a command that writes no rows prints them."""
    pair = (ours, theirs) if ours.exists() else (ours.with_name("printed"), theirs.with_name("printed"))
    return not pair[0].exists() or filecmp.cmp(*pair, shallow=False)


def run_beside_components(name: str, options: argparse.Namespace) -> None:
    """Runs one workload in a separate process, so that its components do not run beside the others."""
    command = [str(HERE.parent.parent / "scripts" / "with-components"), sys.executable, __file__, name]
    command += ["--data", str(options.data), "--scale", str(options.scale), "--rounds", str(options.rounds)]
    command += ["--beside", str(options.beside)] if options.beside else []
    command += ["--peers", options.peers] if options.peers is not None else []
    command += ["--keep-results"] if options.keep_results else []
    if (ended := subprocess.run(command)).returncode != 0:
        sys.exit(f"{name} ended with status {ended.returncode}.")


def compare(workload: Workload, data: Path, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Runs all sides, round by round, and returns the figures of each: for each name the values of all rounds."""
    found: dict[str, dict[str, list[float]]] = {side: {} for side in workload.sides}
    slow: set[str] = set()
    for number in range(min(rounds, workload.rounds_max or rounds)):
        turn = [side for side in workload.sides if side not in slow]
        with tempfile.TemporaryDirectory(prefix="work-", dir=data) as name:
            work, ran = Path(name), []
            for side in reversed(turn) if workload.alternates and number % 2 else turn:
                (folder := work / side).mkdir()
                about = f"{workload.name}, round {number + 1}, {side}"
                try:
                    figures = workload.sides[side](folder)
                except GivenUpError as error:
                    if side == "gristmill":
                        raise
                    # Now and then a peer crashes, for example Daft.
                    print(f"{about}: given up: {error}", file=sys.stderr, flush=True)
                    slow |= {side} if isinstance(error, TimedOutError) else set()
                    continue
                print(f"{about}: {figures}", file=sys.stderr, flush=True)
                ran.append(side)
                slow |= {side} if side != "gristmill" and figures.get("seconds", 0) > SLOW_SECONDS else set()
                for figure, value in figures.items():
                    found[side].setdefault(figure, []).append(rounded(value))
            for side in ran:
                ours, theirs = work / "gristmill" / "rows", work / side / "rows"
                if side != "gristmill" and "gristmill" in ran and not workload.same(side, ours, theirs):
                    sys.exit(f"{workload.name}: {theirs} does not hold the rows of gristmill.")
    return found


def rounded(value: float) -> float:
    return value if isinstance(value, int) else float(f"{value:.{SIGNIFICANT}g}")


def document(results: dict[str, dict]) -> str:
    """Returns the results as JSON with a line for each side."""
    entries = []
    for name, entry in results.items():
        about = json.dumps({key: value for key, value in entry.items() if key != "sides"}, ensure_ascii=False)
        sides = [f"   {json.dumps(side)}: {json.dumps(figures)}" for side, figures in entry["sides"].items()]
        entries.append(f'{json.dumps(name)}: {about[:-1]}, "sides": {{\n' + ",\n".join(sides) + "}}")
    return "{\n" + ",\n".join(entries) + "\n}\n"


if __name__ == "__main__":
    main()
