"""Workloads: the data of each, the command of every side, and the check that all sides produce the same rows."""

from __future__ import annotations

import filecmp
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
from data import csv_tables, need_space, parquet_tables, repeated, small_files
from measure import USER, Side

HERE = Path(__file__).resolve().parent
TABLE_ROWS = 6_400_000
# The best size of 1, 4 and 10 MB; pool_side.py has that of Pool.
TABLE_MINI_BATCH = "10MB"
PART_BYTES = 1_000_000
# Peers send no usage reports, their servers listen on this machine only, and they draw no progress bars.
PEER_ENVIRONMENT = {
    "DAFT_ANALYTICS_ENABLED": "0",
    "DAFT_PROGRESS_BAR": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
}

# Whether the output of a side equals that of gristmill: side, our output, its output.
Same = Callable[[str, Path, Path], bool]


@dataclass
class Workload:
    """One line of the results. Each side writes its rows to `rows` in a folder of its own."""

    name: str
    title: str
    amount: float
    unit: str
    # This call creates everything that a side needs, before the clock starts.
    sides: dict[str, Callable[[Path], Side]]
    same: Same
    # Sides take turns to start, unless one needs the files of another.
    alternates: bool = True
    with_tree: bool = False
    # Memory to fill before the clock starts, for the data that a side writes: if sides differ only in how they write,
    # the state of the memory would decide.
    fills_bytes: int = 0
    rounds_max: int | None = None


def write_job(folder: Path, script: str, inputs: dict | None, **settings: object) -> Path:
    job = {
        "name": "bench",
        "entry_script": f"{script}.py",
        "source_directory": str(USER),
        "inputs": [inputs] if inputs else [],
        "output": str(folder),
        "output_action": "append_row",
        "append_row_file_name": "rows",
        "error_threshold": 0,
        "process_count_per_node": os.cpu_count(),
        "allow_reuse": False,
        **settings,
    }
    file = folder / "job.yaml"
    file.write_text(json.dumps(job, indent=2))
    return file


def files_at(path: Path) -> dict:
    return {"name": "data", "type": "file", "path": str(path)}


def tables_at(path: Path, table_format: str) -> dict:
    return {"name": "data", "type": "tabular", "format": table_format, "path": str(path)}


def gristmill(script: str, inputs: dict, command: tuple[str, ...] = ("run",), **settings: object) -> Callable:
    def side(folder: Path) -> Side:
        job = write_job(folder, script, inputs, **settings)
        return Side([os.environ["GRISTMILL"], *command, str(job)], {"GRISTMILL_HOME": str(folder / "home")})

    return side


def peers(names: str, workload: str, data: Path) -> dict[str, Callable]:
    def side_of(name: str) -> Callable:
        command = [sys.executable, str(HERE / "peers" / f"{name}_side.py"), workload, str(data)]
        return lambda folder: Side([*command, str(folder / "rows")], PEER_ENVIRONMENT)

    return {name: side_of(name) for name in names.split()}


def same_bytes(_: str, ours: Path, theirs: Path) -> bool:
    return filecmp.cmp(ours, theirs, shallow=False)


def same_lines(side: str, ours: Path, theirs: Path) -> bool:
    """Compares lines in any order, in one file or many; Ray writes a header and quotes."""

    def lines(path: Path) -> list[bytes]:
        found = [line.strip(b'"') for file in files_of(path) for line in file.read_bytes().splitlines()]
        return sorted(line for line in found if line != b"row")

    return lines(ours) == lines(theirs)


def same_scores(side: str, ours: Path, theirs: Path) -> bool:
    """Compares scores. Pool and joblib write the same bytes; others write files with headers, in their own order."""
    if side in ("pool", "joblib"):
        return same_bytes(side, ours, theirs)
    names = ["id", "score", "flag"]
    read, parse = pa.csv.ReadOptions(column_names=names), pa.csv.ParseOptions(delimiter=" ")
    expected = pa.csv.read_csv(ours, read_options=read, parse_options=parse)
    found = pa.concat_tables(pa.csv.read_csv(file) for file in files_of(theirs)).select(names)
    return found.sort_by("id").equals(expected.sort_by("id"))


def as_many_lines(more_here: int) -> Same:
    """Compares the number of lines; our printed output has this many more."""
    return lambda _, ours, theirs: count_lines(ours.with_name("printed")) - more_here == count_lines(theirs)


def not_compared(_: str, ours: Path, theirs: Path) -> bool:
    return True


def files_of(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


def count_lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(piece.count(b"\n") for piece in iter(lambda: file.read(1 << 20), b""))


def megabytes(folder: Path) -> float:
    return sum(file.stat().st_size for file in folder.iterdir()) / 1e6


def scaled(number: int, scale: float) -> int:
    return max(1, round(number * scale))


def no_operation(cache: Path, scale: float) -> Iterator[Workload]:
    count = scaled(50_000, scale)
    files = small_files(cache, count)
    sides = {"gristmill": gristmill("return_input", files_at(files), mini_batch_size=1)}
    sides |= peers("pool joblib datasets ray dask", "noop", files)
    title = f"{count:,} mini-batches of one file, `run` returns its input"
    yield Workload("noop", title, count, "mini-batches", sides, same_bytes)


def rabbitmq(cache: Path, scale: float) -> Iterator[Workload]:
    """Uses a running broker, as `fleet.py` does; Celery's worker starts before its clock."""
    from fleet import Target

    endpoint, amqp = os.environ["GRISTMILL_TEST_AWS_ENDPOINT"], os.environ["GRISTMILL_TEST_AMQP_URL"]
    count = scaled(20_000, scale)
    files = small_files(cache, count)

    def run(folder: Path) -> Side:
        target = Target("RabbitMQ", folder, endpoint, amqp)
        return Side(target.command("run", str(target.write_job(files))), target.environment)

    def celery(folder: Path) -> Side:
        command = [sys.executable, str(HERE / "peers" / "celery_side.py"), amqp, str(files), str(folder / "rows")]
        return Side([*command, str(os.cpu_count())], prints_seconds=True)

    title = f"{count:,} mini-batches of one file through RabbitMQ"
    yield Workload("rabbitmq", title, count, "mini-batches", {"gristmill": run, "celery": celery}, same_bytes)


def csv(cache: Path, scale: float) -> Iterator[Workload]:
    rows = scaled(TABLE_ROWS, scale)
    tables = csv_tables(cache, rows)
    # The output of every side, and gristmill's own copy of the rows before they are one file.
    need_space(cache, 250 * rows, "the output of CSV workloads")
    title = f"{megabytes(tables):,.0f} MB of CSV ({rows:,} rows, 8 columns) scored into 3 columns with pandas"
    sides = csv_sides(tables, "polars duckdb daft pool joblib datasets ray dask")
    yield Workload("csv", title, megabytes(tables), "MB", sides, same_scores)


def csv_sides(tables: Path, names: str) -> dict[str, Callable]:
    ours = gristmill("score", tables_at(tables, "csv"), mini_batch_size=TABLE_MINI_BATCH)
    return {"gristmill": ours} | peers(names, "csv", tables)


def parquet(cache: Path, scale: float) -> Iterator[Workload]:
    rows = scaled(TABLE_ROWS, scale)
    tables = parquet_tables(cache, rows)
    sides = {"gristmill": gristmill("score", tables_at(tables, "parquet"))}
    sides |= peers("polars duckdb daft pool ray", "parquet", tables)
    title = f"the same {rows:,} rows from Parquet ({megabytes(tables):,.0f} MB)"
    yield Workload("parquet", title, rows / 1e6, "million rows", sides, same_scores)


def many_files(cache: Path, scale: float) -> Iterator[Workload]:
    count = scaled(100_000, scale)
    files = small_files(cache, count, 4096)
    sides = {"gristmill": gristmill("length", files_at(files), mini_batch_size=10)} | peers("pool ray", "files", files)
    title = f"{count:,} files of 4 KB opened and counted, ten at a time"
    yield Workload("files", title, count, "files", sides, same_lines)


def plan(cache: Path, scale: float) -> Iterator[Workload]:
    count = scaled(1_000_000, scale)
    files = small_files(cache, count)
    planned = gristmill("return_input", files_at(files), ("plan", "--json"), mini_batch_size=10)
    title = f"{count:,} files listed and planned in mini-batches of ten"
    # The last line on our side contains the totals.
    sides = {"gristmill": planned} | peers("pool", "plan", files)
    yield Workload("plan", title, count, "files", sides, as_many_lines(1))

    def published(folder: Path) -> Side:
        job = write_job(folder, "return_input", files_at(files), mini_batch_size=10)
        return Side([os.environ["GRISTMILL"], "enqueue", str(job)], own_target(folder))

    sides = {"gristmill": published} | peers("pool", "plan", files)
    title = f"{count:,} files planned, written and published"
    yield Workload("publish", title, count, "files", sides, as_many_published)


def as_many_published(_: str, ours: Path, theirs: Path) -> bool:
    (complete,) = ours.parent.glob("store/jobs/*/plan/complete.json")
    return json.loads(complete.read_text())["mini_batches"] == count_lines(theirs)


def own_target(folder: Path) -> dict[str, str]:
    """Returns the environment of a target in a folder."""
    return {
        "GRISTMILL_HOME": str(folder / "home"),
        "GRISTMILL_QUEUE": f"sqlite:{folder / 'queues'}",
        "GRISTMILL_STORE": f"file://{folder / 'store'}",
    }


def reduce(cache: Path, scale: float) -> Iterator[Workload]:
    rows, parts = scaled(1_000_000, scale), scaled(10_000, scale)
    title = f"{rows:,} outcomes of one row committed and written as one file"
    sides = reducer_and_cat("return_input", small_files(cache, rows))
    yield written_once("reduce-rows", title, rows, "outcomes", sides, 1_000 * rows)
    # The parts and the output, then the output and its copy.
    need_space(cache, 2 * parts * PART_BYTES + 1_000_000_000, f"{parts:,} parts of a megabyte")
    title = f"{parts:,} parts of 1 MB committed and written as one file"
    sides = reducer_and_cat("megabyte", small_files(cache, parts))
    yield written_once("reduce-parts", title, parts * PART_BYTES / 1e6, "MB", sides, parts * PART_BYTES)


def written_once(name: str, title: str, amount: float, unit: str, sides: dict, fills_bytes: int) -> Workload:
    return Workload(name, title, amount, unit, sides, not_compared, alternates=False, fills_bytes=fills_bytes)


def reducer_and_cat(script: str, files: Path) -> dict[str, Callable]:
    """Compares the reducer alone, after every mini-batch has run, with `cat` of everything that it writes."""

    def reducer(folder: Path) -> Side:
        job = write_job(folder, script, files_at(files), mini_batch_size=1)
        target = own_target(folder)
        for command in (["enqueue", str(job)], ["worker", "--idle-exit", "2", "--job-users", "none"]):
            subprocess.run(
                [os.environ["GRISTMILL"], *command], env=os.environ | target, check=True, capture_output=True
            )
        return Side([os.environ["GRISTMILL"], "reducer"], target, until=(folder, "store/jobs/*/result.json"))

    def cat(folder: Path) -> Side:
        ours, rows = folder.with_name("gristmill"), folder / "rows"
        written = f"{ours}/store/jobs/*/ledger/* {ours}/store/jobs/*/logs/sys/job_report/* {ours}/rows"
        return Side(["bash", "-c", f"cat {written} > {rows} && sync {rows}"])

    return {"gristmill": reducer, "cat": cat}


def memory(cache: Path, scale: float) -> Iterator[Workload]:
    rows = scaled(TABLE_ROWS, scale)
    tables = csv_tables(cache, rows)
    need_space(cache, 800 * rows, "what is made of ten times the CSV")
    for copies in (1, 10):
        several = tables if copies == 1 else repeated(tables, copies)
        sides = csv_sides(several, "daft pool ray" if copies == 1 else "")
        title = f"{megabytes(several):,.0f} MB of CSV"
        yield Workload(
            f"memory-{copies}", title, megabytes(several), "MB", sides, same_scores, with_tree=True, rounds_max=1
        )
    idle = peers("ray", "idle", tables)
    yield Workload("memory-idle", "Ray with nothing to do", 1, "", idle, not_compared, with_tree=True, rounds_max=1)


def one(cache: Path, scale: float) -> Iterator[Workload]:
    files = small_files(cache, 1)
    sides = {"gristmill": gristmill("return_input", files_at(files), mini_batch_size=1, process_count_per_node=1)}
    sides |= {"imports": imports("return_input")} | peers("pool daft ray", "one", files)
    yield Workload("one", "a job of one small file, command to exit", 1, "", sides, same_if_any)
    table = csv_tables(cache, 1)
    sides = {"gristmill": gristmill("score", tables_at(table, "csv"), process_count_per_node=1)}
    sides |= {"imports": imports("score")} | peers("pool daft ray", "csv", table)
    yield Workload("one-row", "a job of one CSV row with pandas, command to exit", 1, "", sides, same_score_if_any)


def imports(script: str) -> Callable:
    """Returns a side that only imports what the script imports."""
    return lambda folder: Side([sys.executable, "-c", f"import {script}"])


def same_if_any(side: str, ours: Path, theirs: Path) -> bool:
    return side == "imports" or same_bytes(side, ours, theirs)


def same_score_if_any(side: str, ours: Path, theirs: Path) -> bool:
    return side == "imports" or same_scores(side, ours, theirs)


def scaling(cache: Path, scale: float) -> Iterator[Workload]:
    """Repeats three workloads at a tenth, one and ten times the size; the largest table links to the same files."""
    for step in (0.1, 1, 10):
        count = scaled(50_000, scale * step)
        sides = {"gristmill": gristmill("return_input", files_at(small_files(cache, count)), mini_batch_size=1)}
        yield Workload(f"scaling-noop-{step:g}", f"{count:,}", count, "mini-batches", sides, not_compared)
    for step in (0.1, 1, 10):
        tables = csv_tables(cache, scaled(TABLE_ROWS, scale * min(step, 1)))
        tables = tables if step <= 1 else repeated(tables, round(step))
        size = megabytes(tables)
        yield Workload(f"scaling-csv-{step:g}", f"{size:,.0f} MB", size, "MB", csv_sides(tables, ""), not_compared)
    for step in (0.01, 0.1, 1):
        count = scaled(1_000_000, scale * step)
        sides = {
            "gristmill": gristmill(
                "return_input", files_at(small_files(cache, count)), ("plan", "--json"), mini_batch_size=10
            )
        }
        yield Workload(f"scaling-plan-{step:g}", f"{count:,} files", count, "files", sides, not_compared)


WORKLOADS: dict[str, Callable[[Path, float], Iterator[Workload]]] = {
    "noop": no_operation,
    "rabbitmq": rabbitmq,
    "csv": csv,
    "parquet": parquet,
    "files": many_files,
    "plan": plan,
    "reduce": reduce,
    "memory": memory,
    "one": one,
    "scaling": scaling,
}
