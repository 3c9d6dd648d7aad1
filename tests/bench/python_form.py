"""Measures jobs from Python: the function form beside the command, beside other libraries, and many `submit` calls.

Each work in fresh processes, sides in turns, medians of some rounds:

- ten: a call over ten items, the first of a session with its imports, and the next one;
- rows: 200,000 rows of CSV, imports included, beside plain pandas;
- csv: the CSV tables of `bench.py`, by the command, the function form, joblib.Parallel, concurrent.futures and Daft;
- submit: calls of `gristmill.submit` to a target, one after another, and on this machine, each waited for.

Usage: python_form.py --data FOLDER [--scale 0.1] [--rounds 3] [--keep-results]
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import textwrap
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pyarrow.csv
import pyarrow.parquet
from data import csv_tables
from report import machine_table
from workloads import PEER_ENVIRONMENT, TABLE_MINI_BATCH, TABLE_ROWS, files_of, write_job

HERE = Path(__file__).resolve().parent
PAGE = HERE / "PYTHON.md"
SUBMITTED = 1000
RUN_HERE = 20

COMMON = """
import os, sys, time, json
sys.path[:0] = [{package!r}, {user!r}, {peers!r}]
"""
TEN = """
began = time.perf_counter()
{imports}
def double(number):
    return {{"twice": 2 * number}}
def call(numbers):
    return {call}
assert len(call(list(range(10)))) == 10
first = time.perf_counter() - began
began = time.perf_counter()
call(list(range(1, 11)))
print({printed})
"""
TEN_SIDES = {
    "gristmill": ("import gristmill", "gristmill.map(double, numbers, progress=False).to_arrow()"),
    "joblib": ("import joblib", "joblib.Parallel(n_jobs=2)(joblib.delayed(double)(number) for number in numbers)"),
    "datasets": (
        "import datasets\ndatasets.disable_progress_bars()",
        "datasets.Dataset.from_dict({'n': numbers}).map(lambda row: double(row['n']), num_proc=2)",
    ),
    "daft": (
        "import daft\ntwice = daft.func(lambda number: 2 * number, return_dtype=daft.DataType.int64())",
        "daft.from_pydict({'n': numbers}).with_column('twice', twice(daft.col('n'))).to_arrow()",
    ),
}
ROWS = """
began = time.perf_counter()
{imports}
def ratio(frame):
    return frame.assign(ratio=frame["a"] / (frame["b"] + 1), label=frame["name"].str.upper())
{work}
print(time.perf_counter() - began)
"""
ROWS_SIDES = {
    "pandas": ("import pandas", "ratio(pandas.read_csv({data!r})).to_parquet({output!r})"),
    "gristmill": (
        "import gristmill",
        "gristmill.run(ratio, gristmill.read_csv({data!r}), output={output!r}, progress=False, fresh=True)",
    ),
    "datasets": (
        "import datasets\ndatasets.disable_progress_bars()",
        "rows = datasets.load_dataset('csv', data_files={data!r}, split='train', cache_dir={cache!r})\n"
        "rows = rows.with_format('pandas').map(ratio, batched=True, batch_size=50_000, num_proc=2)\n"
        "rows.to_parquet({output!r})",
    ),
}
ROWS_COUNT = 200_000
COMMAND = """
import subprocess
command = [os.environ["GRISTMILL"], "run", {job!r}, "--quiet"]
for _ in range({warm}):
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
began = time.perf_counter()
subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
print(time.perf_counter() - began)
"""
FUNCTION_OF_CSV = """
import gristmill, cloudpickle, score
def scored(frame):
    return score.run(frame)
began = time.perf_counter()
gristmill.run(scored, inputs={data!r}, mini_batch_size={size!r}, output={output!r}, progress=False, fresh=True,
              process_count_per_node=os.cpu_count())
print(time.perf_counter() - began)
"""
# Byte ranges of the files, each parsed, scored and written as text by a process: what `pool_side.py` does.
JOBLIB_OF_CSV = """
import joblib, pool_side, score
began = time.perf_counter()
with open({output!r}, "w") as rows:
    pieces = pool_side.line_ranges({data!r})
    for text in joblib.Parallel(n_jobs=os.cpu_count(), return_as="generator")(
            joblib.delayed(pool_side.score_range)(piece) for piece in pieces):
        rows.write(text)
print(time.perf_counter() - began)
"""
FUTURES_OF_CSV = """
import concurrent.futures, pool_side, score
began = time.perf_counter()
with open({output!r}, "w") as rows, concurrent.futures.ProcessPoolExecutor(os.cpu_count()) as pool:
    for text in pool.map(pool_side.score_range, pool_side.line_ranges({data!r})):
        rows.write(text)
print(time.perf_counter() - began)
"""
DAFT_OF_CSV = """
import daft_side
began = time.perf_counter()
daft_side.main("csv", {data!r}, {output!r})
print(time.perf_counter() - began)
"""
SUBMIT = """
import gristmill, cloudpickle, pyarrow
def same(items):
    return items
jobs, target = [], {target!r}
began = time.perf_counter()
for number in range({count}):
    jobs.append(gristmill.submit(same, inputs=[number], target=target))
    if target is None:
        jobs[-1].wait(progress=False)
seconds = time.perf_counter() - began
assert len({{job.id for job in jobs}}) == {count}
print(seconds)
"""


NAMES = {
    "command": "`gristmill run job.yaml`",
    "function": "`gristmill.run(function, …)`",
    "gristmill": "Gristmill",
    "pandas": "pandas, one process",
    "datasets": "`datasets.map(num_proc=2)`",
    "joblib": "`joblib.Parallel`",
    "futures": "`concurrent.futures.ProcessPoolExecutor`",
    "daft": "Daft",
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench python", description=__doc__.partition("\n")[0])
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--peers", default="joblib,futures,daft,datasets", help="only these")
    parser.add_argument("--only", action="store_true", help="only a call over ten items and 200,000 rows; only prints")
    parser.add_argument("--keep-results", action="store_true", help=f"print only, leave {PAGE.name} as it is")
    options = parser.parse_args()
    options.data.mkdir(parents=True, exist_ok=True)
    work = options.data / "python-form"
    peers = options.peers.split(",")
    ten = compare(work, sides_of_ten(peers), max(5, options.rounds))
    few = compare(work, sides_of_rows(options.data, peers), max(5, options.rounds), check=same_rows)
    if options.only:
        return print("\n".join([*lines_of_ten(ten), *lines_of_rows(few)]))
    rows = max(1, round(TABLE_ROWS * options.scale))
    tables = csv_tables(options.data, rows)
    csv = compare(work, sides_of_csv(tables, peers), options.rounds, check=same_scores)
    count = max(1, round(SUBMITTED * options.scale))
    submit = compare(work, sides_of_submit(count), 1)
    shutil.rmtree(work, ignore_errors=True)
    page = report(
        options.scale,
        [*lines_of_ten(ten), *lines_of_rows(few)],
        csv,
        submit,
        rows,
        count,
        sum(file.stat().st_size for file in files_of(tables)) / 1e6,
    )
    print(page)
    if not options.keep_results:
        PAGE.write_text(page)


Make = Callable[[Path], str]


def sides_of_ten(peers: list[str]) -> dict[str, Make]:
    """Returns the first call of a session of each library, and the next one."""
    sides: dict[str, Make] = {}
    for name in ["gristmill", *(peer for peer in peers if peer in TEN_SIDES)]:
        imports, call = TEN_SIDES[name]
        for which, printed in (("first", "first"), ("next", "time.perf_counter() - began")):
            text = TEN.format(imports=imports, call=call, printed=printed)
            sides[f"{name} {which}"] = lambda folder, text=text: text
    return sides


def sides_of_rows(data: Path, peers: list[str]) -> dict[str, Make]:
    table = data / f"rows-{ROWS_COUNT}.csv"
    if not table.exists():
        lines = (f"{n},{n % 97},{n * 7 % 1000},name {n % 1013}\n" for n in range(ROWS_COUNT))
        table.write_text("id,a,b,name\n" + "".join(lines))

    def side(name: str) -> Make:
        imports, work = ROWS_SIDES[name]

        def make(folder: Path) -> str:
            paths = {"data": str(table), "output": str(folder / "rows.parquet"), "cache": str(folder / "cache")}
            return ROWS.format(imports=imports, work=work.format(**paths))

        return make

    return {name: side(name) for name in ["pandas", "gristmill", *(peer for peer in peers if peer == "datasets")]}


def same_rows(folders: dict[str, Path]) -> None:
    """Compares the rows of all sides with those of pandas."""
    expected = pyarrow.parquet.read_table(folders["pandas"] / "rows.parquet")
    for side, folder in folders.items():
        found = pyarrow.parquet.read_table(folder / "rows.parquet").select(expected.column_names)
        if found.to_pydict() != expected.to_pydict():
            sys.exit(f"rows: {side} does not hold the rows of pandas.")


def lines_of_ten(ten: dict[str, list[float]]) -> list[str]:
    middle = {side: statistics.median(values) for side, values in ten.items()}
    names = dict.fromkeys(side.partition(" ")[0] for side in ten)
    return [
        "## A call over ten items",
        "",
        "Each item by itself, in two processes. The first call of a session, with its imports, and the next one.",
        "",
        "| | first | next |",
        "|---|---:|---:|",
        *(f"| {NAMES[name]} | {middle[f'{name} first']:.3f} s | {middle[f'{name} next']:.3f} s |" for name in names),
        "",
    ]


def lines_of_rows(few: dict[str, list[float]]) -> list[str]:
    middle = {side: statistics.median(values) for side, values in few.items()}
    return [
        f"## {ROWS_COUNT:,} rows of CSV, imports included",
        "",
        "All write the same rows to a Parquet file.",
        "",
        "| | seconds | beside pandas |",
        "|---|---:|---:|",
        *(f"| {NAMES[side]} | {middle[side]:.2f} | {middle[side] / middle['pandas']:.2f} × |" for side in few),
        "",
    ]


def sides_of_csv(tables: Path, peers: list[str]) -> dict[str, Make]:
    def command(folder: Path) -> str:
        inputs = {"name": "data", "type": "tabular", "format": "csv", "path": str(tables)}
        native = {"output_format": "native", "append_row_file_name": "rows.csv", "output": str(folder / "out")}
        return COMMAND.format(
            job=str(write_job(folder, "score", inputs, mini_batch_size=TABLE_MINI_BATCH, **native)), warm=0
        )

    def function(folder: Path) -> str:
        output = str(folder / "out" / "rows.csv")
        return FUNCTION_OF_CSV.format(data=str(tables), size=TABLE_MINI_BATCH, output=output)

    def peer(text: str) -> Make:
        return lambda folder: text.format(data=str(tables), output=str(folder / "rows"))

    others = {"joblib": JOBLIB_OF_CSV, "futures": FUTURES_OF_CSV, "daft": DAFT_OF_CSV}
    return {"command": command, "function": function, **{name: peer(others[name]) for name in peers if name in others}}


def sides_of_submit(count: int) -> dict[str, Make]:
    def to_target(folder: Path) -> str:
        (folder / "gristmill.toml").write_text('[targets.bench]\nqueue = "sqlite:queues"\nstore = "store"\n')
        return SUBMIT.format(count=count, target="bench")

    return {"target": to_target, "here": lambda folder: SUBMIT.format(count=min(count, RUN_HERE), target=None)}


def compare(
    work: Path, sides: dict[str, Make], rounds: int, check: Callable[[dict[str, Path]], None] | None = None
) -> dict[str, list[float]]:
    """Runs all sides, round by round, each in a process and a folder of its own, and returns their seconds."""
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(rounds):
        shutil.rmtree(work, ignore_errors=True)
        for side in sides if number % 2 == 0 else reversed(sides):
            folder = work / side
            folder.mkdir(parents=True)
            seconds[side].append(measured(sides[side](folder), folder))
            print(f"round {number + 1}, {side}: {seconds[side][-1]:.3f} s", file=sys.stderr, flush=True)
        if check is not None:
            check({side: work / side for side in sides})
    return seconds


def measured(text: str, folder: Path) -> float:
    """Runs Python, which prints the seconds of its work."""
    package = Path(os.environ["GRISTMILL"]).parent / "python"
    common = COMMON.format(package=str(package), user=str(HERE / "user"), peers=str(HERE / "peers"))
    script = folder / "side.py"
    body = textwrap.indent(text, "    ")
    # Processes that are started anew import this file.
    script.write_text(f"{common}\nif __name__ == '__main__':\n{body}")
    ended = subprocess.run(
        [sys.executable, str(script)],
        cwd=folder,
        env={**os.environ, **PEER_ENVIRONMENT, "GRISTMILL_HOME": str(folder / "home")},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return float(ended.stdout.split()[-1])


def same_scores(folders: dict[str, Path]) -> None:
    """Compares the rows of all sides with those of the command."""
    names = ["id", "score", "flag"]
    expected = pyarrow.csv.read_csv(folders["command"] / "out" / "rows.csv").sort_by("id")
    for side, folder in folders.items():
        if side in ("joblib", "futures"):
            read, parse = pyarrow.csv.ReadOptions(column_names=names), pyarrow.csv.ParseOptions(delimiter=" ")
            found = pyarrow.csv.read_csv(folder / "rows", read_options=read, parse_options=parse)
        else:
            files = files_of(folder / ("rows" if side == "daft" else "out/rows.csv"))
            found = pyarrow.concat_tables(pyarrow.csv.read_csv(file) for file in files).select(names)
        if not found.sort_by("id").equals(expected):
            sys.exit(f"csv: {side} does not hold the rows of the command.")


def report(
    scale: float,
    small: list[str],
    csv: dict[str, list[float]],
    submit: dict[str, list[float]],
    rows: int,
    count: int,
    megabytes: float,
) -> str:
    of_csv = {side: statistics.median(values) for side, values in csv.items()}
    here = min(count, RUN_HERE)
    lines = [
        "# Jobs from Python",
        "",
        f"Written by `scripts/bench python`, {date.today().isoformat()}. Medians; seconds without imports.",
        "",
        *machine_table(scale).splitlines(),
        "",
        *small,
        f"## {rows:,} rows of CSV, {megabytes:.0f} MB",
        "",
        "All write the same rows. The others have no retries, no log, and keep nothing when they are interrupted.",
        "",
        "| | seconds | beside the command |",
        "|---|---:|---:|",
        *(f"| {NAMES[side]} | {of_csv[side]:.2f} | {of_csv[side] / of_csv['command'] - 1:+.1%} |" for side in csv),
        "",
        "## Many jobs",
        "",
        "| | seconds | each |",
        "|---|---:|---:|",
        f"| {count:,} calls of `submit` to a target (SQLite) | {submit['target'][0]:.1f} | "
        f"{submit['target'][0] / count * 1000:.0f} ms |",
        f"| {here} calls of `submit` and `wait` on this machine | {submit['here'][0]:.1f} | "
        f"{submit['here'][0] / here * 1000:.0f} ms |",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
