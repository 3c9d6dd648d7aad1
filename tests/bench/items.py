"""Measures what bad rows and a slow node cost, and what becomes of good rows, beside Daft and Ray Data.

A table of a million rows, of which a thousand are bad, is scored row by row. The bad rows are in one place (a broken
export) or spread evenly, the worst case for a division into ranges. `run` gets mini-batches of some 14 000 rows, and
returns a list or yields each row; with `async def run_item`, the engine knows which row has failed. slow_node.py
measures a job with one slow node of four.

Usage: items.py --data FOLDER [--scale 0.1] [--rounds 3] [--keep-results] [--slow-node-only]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import slow_node
from data import csv_tables
from report import machine_table, table
from workloads import PEER_ENVIRONMENT, count_lines, files_of, tables_at, write_job

HERE = Path(__file__).resolve().parent
PAGE = HERE / "ITEMS.md"
ROWS = 1_000_000
# About 14 000 rows.
MINI_BATCH = "1MB"
PLACES = {"none": "no bad row", "together": "bad rows in one place", "spread": "bad rows everywhere"}


@dataclass
class Run:
    seconds: float
    rows: int
    """Rows in the output."""
    rejected: int | None = None
    """Rows that the table of rejects names."""
    extra_runs: int | None = None


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench items", description=__doc__.partition("\n")[0])
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--peers", default="daft,ray", help="only these")
    parser.add_argument("--keep-results", action="store_true", help=f"print only, leave {PAGE.name} as it is")
    parser.add_argument("--slow-node-only", action="store_true", help="print only what a slow node costs")
    options = parser.parse_args()
    options.data.mkdir(parents=True, exist_ok=True)
    if options.slow_node_only:
        print(slow_node.section(slow_nodes(options.data, options.rounds)))
        return
    rows = max(1000, round(ROWS * options.scale))
    tables = csv_tables(options.data, rows)
    sides = {
        "`run`, `isolate: items`": lambda folder, bad: gristmill(folder, tables, rows, "score_rows", bad),
        "`run` that yields rows, `isolate: items`": lambda folder, bad: gristmill(
            folder, tables, rows, "score_yielded", bad
        ),
        "`async def run_item`, `isolate: items`": lambda folder, bad: gristmill(
            folder, tables, rows, "score_items", bad
        ),
    }
    names = {"daft": 'Daft, `on_error="ignore"`', "ray": "Ray Data, `max_errored_blocks=-1`"}
    for name in filter(None, options.peers.split(",")):
        sides[names[name]] = lambda folder, bad, name=name: peer(folder, tables, rows, name, bad)
    measured = compare(sides, options.rounds)
    page = report(options.scale, rows, measured) + slow_node.section(slow_nodes(options.data, options.rounds)) + "\n"
    print(page)
    if not options.keep_results:
        PAGE.write_text(page)


def compare(sides: dict, rounds: int) -> dict[tuple[str, str], list[Run]]:
    """Runs all sides with all places of bad rows, round by round, each in a folder of its own."""
    measured: dict[tuple[str, str], list[Run]] = {}
    for number in range(rounds):
        for side, run in sides.items() if number % 2 == 0 else reversed(sides.items()):
            for bad in PLACES:
                with tempfile.TemporaryDirectory(prefix="bench-items-") as folder:
                    found = run(Path(folder), bad)
                measured.setdefault((side, bad), []).append(found)
                print(f"round {number + 1}, {side}, {PLACES[bad]}: {found}", file=sys.stderr, flush=True)
    return measured


def slow_nodes(data: Path, rounds: int) -> dict[str, list[slow_node.Run]]:
    measured: dict[str, list[slow_node.Run]] = {}
    for number in range(rounds):
        for side, settings in slow_node.SIDES.items():
            with tempfile.TemporaryDirectory(prefix="bench-node-") as folder:
                found = slow_node.measure(Path(folder), data, *settings)
            measured.setdefault(side, []).append(found)
            print(f"round {number + 1}, {side}: {found}", file=sys.stderr, flush=True)
    return measured


def gristmill(folder: Path, tables: Path, rows: int, script: str, bad: str) -> Run:
    job = write_job(
        folder,
        script,
        tables_at(tables, "csv"),
        mini_batch_size=MINI_BATCH,
        isolate="items",
        run_max_try=1,
        error_threshold=-1,
        output=str(folder / "out"),
    )
    command = [os.environ["GRISTMILL"], "run", str(job), "--json"]
    seconds, printed = timed(
        command, {"GRISTMILL_HOME": str(folder / "home"), "BENCH_BAD": bad, "BENCH_ROWS": str(rows)}, folder
    )
    result = json.loads(printed)
    in_output = count_lines(folder / "out" / "rows")
    rejects = result.get("rejects", {"items": 0})
    if in_output + rejects["items"] != rows:
        sys.exit(f"{in_output} rows in the output and {rejects['items']} rejects are not {rows} rows: {printed}")
    named = rejects["items"] - rejects.get("without_place", 0)
    return Run(seconds, in_output, named, result.get("extra_runs", 0))


def peer(folder: Path, tables: Path, rows: int, name: str, bad: str) -> Run:
    command = [sys.executable, str(HERE / "peers" / "bad_rows_side.py"), name, str(tables), str(folder / "rows")]
    seconds, _ = timed(command, {**PEER_ENVIRONMENT, "BENCH_BAD": bad, "BENCH_ROWS": str(rows)}, folder)
    rows_of = [count_lines(file) - 1 for file in files_of(folder / "rows")] if (folder / "rows").exists() else []
    # Each file has a header. Where all blocks are lost there are no files.
    return Run(seconds, sum(rows_of))


def timed(command: list[str], environment: dict[str, str], folder: Path) -> tuple[float, str]:
    began = time.perf_counter()
    ended = subprocess.run(
        command, env={**os.environ, **environment}, cwd=folder, capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - began
    if ended.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with status {ended.returncode}:\n{ended.stdout}\n{ended.stderr[-4000:]}")
    return seconds, ended.stdout


def report(scale: float, rows: int, measured: dict[tuple[str, str], list[Run]]) -> str:
    lines = []
    for (side, bad), runs in measured.items():
        seconds = statistics.median(run.seconds for run in runs)
        clean = statistics.median(run.seconds for run in measured[side, "none"])
        last = runs[-1]
        known = "" if last.rejected is None else f"{last.rejected:,}"
        extra = "" if last.extra_runs is None else f"{last.extra_runs:,}"
        lines.append((side, PLACES[bad], f"{seconds:.2f}", f"{seconds / clean:.2f}", f"{last.rows:,}", known, extra))
    heads = ("", "", "seconds", "beside no bad row", "rows in the output", "rows named as rejected", "extra runs")
    return "\n".join(
        [
            "# Bad rows and slow nodes",
            "",
            f"Written by `scripts/bench items`, {date.today().isoformat()}. Medians of whole commands.",
            "",
            machine_table(scale),
            f"{rows:,} rows of CSV, scored one by one in Python. {bad_rows(rows):,} of them raise an exception.",
            "",
            table(heads, lines),
            "Daft returns null where the function raises. Ray Data drops the whole block. Neither says which rows were",
            "lost, nor why.",
            "",
        ]
    )


def bad_rows(rows: int) -> int:
    return rows // 1000


if __name__ == "__main__":
    main()
