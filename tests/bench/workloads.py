"""What the benchmark measures on one machine: data, the sides of each workload, and the check that all produce the same
rows. fleet.py has the workloads of a fleet."""

from __future__ import annotations

import contextlib
import filecmp
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from measure import USER, Figures, fill_memory, measure, peak_kib

HERE = Path(__file__).resolve().parent
TABLE_ROWS = 6_400_000
TABLE_FILES = 8
ROW_BYTES = 72
ROW_GROUP_ROWS = 100_000
# A column of only 0 and 1 would have the type bool.
FIRST_ID = 1000
WORDS = ["amber", "basalt", "cedar", "delta", "ember", "fjord", "granite", "iris"]
# The best size of 1, 4 and 10 MB; pool_side.py has that of Pool.
TABLE_MINI_BATCH = "10MB"
PART_BYTES = 1_000_000
# Bad rows are in one place, as after a broken export, or spread evenly, the worst case for a division into ranges.
BAD_ROWS = {"none": "no bad row", "together": "bad rows in one place", "spread": "bad rows everywhere"}
# Mini-batches of the largest jobs, by the number of their items.
SIZES = {1: (10_000, 100_000, 1_000_000, 10_000_000), 100: (10_000, 100_000, 1_000_000)}
# Of a job, at most, for each mini-batch: plan, ledger, reports and output.
SIZE_BYTES = 1200
SIMULATED = (10_000, 100_000, 1_000_000, 10_000_000)
SIMULATED_NODES = 1000
KILLED = -9
# The portal answers from memory until it looks at the job again.
PORTAL_LOOKS_EVERY_SECONDS = 0.45
PORTAL_ROUNDS = 5
# A peer that takes longer is given up.
PEER_SECONDS_MAX = 900
# Peers send no usage reports, their servers listen on this machine only, and they draw no progress bars.
PEER_ENVIRONMENT = {
    "DAFT_ANALYTICS_ENABLED": "0",
    "DAFT_PROGRESS_BAR": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
}

# Does the work of one side in an empty folder, and returns its figures. Preparations are not measured.
Side = Callable[[Path], Figures]
# Whether the output of a side equals that of gristmill: side, our output, its output.
Same = Callable[[str, Path, Path], bool]


@dataclass
class Workload:
    """One job of the benchmark. A side whose output is compared writes it to `rows` in its folder."""

    name: str
    title: str
    sides: dict[str, Side]
    amount: float = 1
    unit: str = ""
    same: Same = lambda side, ours, theirs: True
    # Sides take turns to start, unless one needs the files of another.
    alternates: bool = True
    rounds_max: int | None = None


# Data, written once for each size and kept for the next run.


def need_space(folder: Path, needed_bytes: int, what: str) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        sys.exit(f"{what}: {needed_bytes / 1e9:.1f} GB are needed in {folder}, where {free / 1e9:.1f} GB are free.")


def once(folder: Path, needed_bytes: int, what: str, make: Callable[[Path], None]) -> Path:
    """Creates the folder unless it exists; a partial folder never has the final name."""
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    need_space(folder.parent, needed_bytes, what)
    print(f"writing {what}", file=sys.stderr, flush=True)
    unfinished = folder.with_name(folder.name + ".new")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    make(unfinished)
    unfinished.rename(folder)
    return folder


def small_files(cache: Path, count: int, size: int = 8) -> Path:
    """Returns a folder with this many files of this many bytes, a thousand in each subfolder."""

    def make(folder: Path) -> None:
        for number in range(count):
            subfolder = f"{folder}/files/{number // 1000:04}"
            if number % 1000 == 0:
                os.makedirs(subfolder)
            with open(f"{subfolder}/{number:07}.txt", "wb", buffering=0) as file:
                file.write(f"{number:07}\n".encode().ljust(size, b"."))

    occupied = count * (4096 * -(-size // 4096) + 512)
    return once(cache / f"files_{count}_{size}", occupied, f"{count:,} files of {size} bytes", make) / "files"


def csv_tables(cache: Path, rows: int) -> Path:
    """Returns a folder of eight CSV files with this many rows in total, of about 72 bytes each."""
    options = pyarrow.csv.WriteOptions(quoting_header="none")

    def make(folder: Path) -> None:
        for name, table in tables(rows):
            pyarrow.csv.write_csv(table, folder / f"{name}.csv", options)

    return once(cache / f"csv_{rows}", rows * ROW_BYTES, f"{rows:,} rows of CSV", make)


def parquet_tables(cache: Path, rows: int) -> Path:
    """Returns a folder with the same rows as eight Parquet files."""

    def make(folder: Path) -> None:
        for name, table in tables(rows):
            pyarrow.parquet.write_table(table, folder / f"{name}.parquet", row_group_size=ROW_GROUP_ROWS)

    return once(cache / f"parquet_{rows}", rows * ROW_BYTES, f"{rows:,} rows of Parquet", make)


def repeated(tables: Path, copies: int) -> Path:
    """Returns a folder with several links to each file of another folder, which take no space."""

    def make(folder: Path) -> None:
        for copy, file in itertools.product(range(copies), sorted(tables.iterdir())):
            os.link(file, folder / f"copy{copy:02}_{file.name}")

    return once(tables.with_name(f"{tables.name}_times_{copies}"), 0, f"{copies} links to {tables.name}", make)


def short_rows(cache: Path, count: int) -> Path:
    """Returns a folder with a table of this many rows, as short as rows can be."""

    def make(folder: Path) -> None:
        with (folder / "rows.csv").open("wb") as file:
            file.write(b"v\n")
            for first in range(0, count, 1_000_000):
                # A column of 0 and 1 would be one of truth values, with a warning in each mini-batch.
                file.write(b"7\n" * min(1_000_000, count - first))

    return once(cache / f"sevens_{count}", 2 * count, f"{count:,} short rows", make)


def tables(rows: int) -> Iterator[tuple[str, pa.Table]]:
    """Yields the rows file by file: an id, six floats, and a text that needs quotes."""
    notes = pa.array([f"{one}, {other} {number}" for one in WORDS for other in WORDS for number in range(100)])
    bounds = np.linspace(0, rows, min(TABLE_FILES, rows) + 1).astype(int)
    for number, (first, end) in enumerate(itertools.pairwise(bounds)):
        random = np.random.default_rng(number)
        columns = {"id": np.arange(first, end) + FIRST_ID}
        for place, (deviation, decimals) in enumerate([(1, 4), (2, 4), (2, 4), (1, 5), (2, 4), (0.5, 4)]):
            columns[f"f{place}"] = np.round(random.normal(0, deviation, end - first), decimals)
        columns["note"] = notes.take(pa.array(random.integers(0, len(notes), end - first)))
        yield f"part{number}", pa.table(columns)


# Sides.


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


def executable() -> str:
    return os.environ["GRISTMILL"]


def gristmill(
    script: str, inputs: dict, command: tuple[str, ...] = ("run",), with_tree: bool = False, **settings: object
) -> Side:
    def side(folder: Path) -> Figures:
        job = write_job(folder, script, inputs, **settings)
        return measure([executable(), *command, str(job)], folder, own_home(folder), with_tree=with_tree)

    return side


def own_home(folder: Path) -> dict[str, str]:
    return {"GRISTMILL_HOME": str(folder / "home")}


def peers(names: str, workload: str, data: Path, with_tree: bool = False) -> dict[str, Side]:
    def side_of(name: str) -> Side:
        command = [sys.executable, str(HERE / "peers" / f"{name}_side.py"), workload, str(data)]
        options = {"with_tree": with_tree, "seconds_max": PEER_SECONDS_MAX}
        return lambda folder: measure([*command, str(folder / "rows")], folder, PEER_ENVIRONMENT, **options)

    return {name: side_of(name) for name in names.split()}


def same_bytes(_: str, ours: Path, theirs: Path) -> bool:
    return filecmp.cmp(ours, theirs, shallow=False)


def same_lines(_: str, ours: Path, theirs: Path) -> bool:
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


def same_parquet(_: str, ours: Path, theirs: Path) -> bool:
    expected = pa.parquet.read_table(ours)
    return pa.parquet.read_table(theirs).select(expected.column_names).to_pydict() == expected.to_pydict()


def files_of(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


def count_lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(piece.count(b"\n") for piece in iter(lambda: file.read(1 << 20), b""))


def megabytes(folder: Path) -> float:
    return sum(file.stat().st_size for file in folder.iterdir()) / 1e6


def scaled(number: int, scale: float, least: int = 1) -> int:
    return max(least, round(number * scale))


# Workloads.


def noop(cache: Path, scale: float) -> Iterator[Workload]:
    count = scaled(50_000, scale)
    files = small_files(cache, count)
    sides = {"gristmill": gristmill("return_input", files_at(files), mini_batch_size=1)}
    sides |= peers("pool joblib datasets ray dask", "noop", files)
    title = f"{count:,} mini-batches of one file, `run` returns its input"
    yield Workload("noop", title, sides, count, "mini-batches", same_bytes)


def csv(cache: Path, scale: float) -> Iterator[Workload]:
    rows = scaled(TABLE_ROWS, scale)
    tables = csv_tables(cache, rows)
    # The output of every side, and gristmill's own copy of the rows before they are one file.
    need_space(cache, 250 * rows, "the output of CSV workloads")
    title = f"{megabytes(tables):,.0f} MB of CSV ({rows:,} rows, 8 columns) scored into 3 columns with pandas"
    sides = {"gristmill": score_csv(tables)} | peers("polars duckdb daft pool joblib datasets ray dask", "csv", tables)
    yield Workload("csv", title, sides, megabytes(tables), "MB", same_scores)


def score_csv(tables: Path, with_tree: bool = False) -> Side:
    return gristmill("score", tables_at(tables, "csv"), with_tree=with_tree, mini_batch_size=TABLE_MINI_BATCH)


def parquet(cache: Path, scale: float) -> Iterator[Workload]:
    rows = scaled(TABLE_ROWS, scale)
    tables = parquet_tables(cache, rows)
    sides = {"gristmill": gristmill("score", tables_at(tables, "parquet"))}
    sides |= peers("polars duckdb daft pool ray", "parquet", tables)
    title = f"the same {rows:,} rows from Parquet ({megabytes(tables):,.0f} MB)"
    yield Workload("parquet", title, sides, rows / 1e6, "million rows", same_scores)


def files(cache: Path, scale: float) -> Iterator[Workload]:
    count = scaled(100_000, scale)
    files = small_files(cache, count, 4096)
    sides = {"gristmill": gristmill("length", files_at(files), mini_batch_size=10)} | peers("pool ray", "files", files)
    title = f"{count:,} files of 4 KB opened and counted, ten at a time"
    yield Workload("files", title, sides, count, "files", same_lines)


def plan(cache: Path, scale: float) -> Iterator[Workload]:
    count = scaled(1_000_000, scale)
    files = small_files(cache, count)
    ours = gristmill("return_input", files_at(files), ("plan", "--json"), mini_batch_size=10)

    def as_many_lines(_: str, ours: Path, theirs: Path) -> bool:
        # The last line on our side contains the totals.
        return count_lines(ours.with_name("printed")) - 1 == count_lines(theirs)

    title = f"{count:,} files listed and planned in mini-batches of ten"
    yield Workload("plan", title, {"gristmill": ours} | peers("pool", "plan", files), count, "files", as_many_lines)


def reduce(cache: Path, scale: float) -> Iterator[Workload]:
    rows, parts = scaled(1_000_000, scale), scaled(10_000, scale)
    title = f"{rows:,} outcomes of one row read from the ledger and written as one file"
    sides = retry_and_cat("return_input", small_files(cache, rows), 100 * rows)
    yield Workload("reduce-rows", title, sides, rows, "outcomes", same_bytes, alternates=False)
    # The parts and the output, then the output and its copy.
    need_space(cache, 3 * parts * PART_BYTES, f"{parts:,} parts of a megabyte")
    title = f"{parts:,} parts of 1 MB written as one file"
    sides = retry_and_cat("megabyte", small_files(cache, parts), parts * PART_BYTES)
    yield Workload("reduce-parts", title, sides, parts * PART_BYTES / 1e6, "MB", same_bytes, alternates=False)


def retry_and_cat(script: str, files: Path, written_bytes: int) -> dict[str, Side]:
    """Compares the reducer alone, after every mini-batch has run, with `cat` of the output.

    Both sides differ only in how they write, so the state of the memory would decide."""

    def retry(folder: Path) -> Figures:
        job = run_until_output(folder, script, files_at(files), mini_batch_size=1)[0]
        fill_memory(written_bytes)
        return measure([executable(), "retry", job.name], folder, own_home(folder))

    def cat(folder: Path) -> Figures:
        rows = folder / "rows"
        fill_memory(written_bytes)
        return measure(["bash", "-c", f"cat {folder.with_name('gristmill')}/rows > {rows} && sync {rows}"], folder)

    return {"gristmill": retry, "cat": cat}


def run_until_output(folder: Path, script: str, inputs: dict, **settings: object) -> tuple[Path, Figures]:
    """Runs a job that is killed when its last mini-batch has ended, before it writes its output. Returns its folder."""
    job, crash = write_job(folder, script, inputs, **settings), {"GRISTMILL_CRASH_AT": "BeforeOutput"}
    figures = measure([executable(), "run", str(job)], folder, own_home(folder) | crash, status=KILLED)
    (objects,) = folder.glob("home/jobs/*")
    return objects, figures


def one(cache: Path, scale: float) -> Iterator[Workload]:
    files, table = small_files(cache, 1), csv_tables(cache, 1)
    sides = {"gristmill": gristmill("return_input", files_at(files), mini_batch_size=1, process_count_per_node=1)}
    sides |= peers("pool daft ray", "one", files)
    yield Workload("one", "a job of one small file, command to exit", sides, same=same_bytes)
    sides = {"gristmill": gristmill("score", tables_at(table, "csv"), process_count_per_node=1)}
    sides |= peers("pool daft ray", "csv", table)
    yield Workload("one-row", "a job of one CSV row with pandas, command to exit", sides, same=same_scores)


def python(cache: Path, scale: float) -> Iterator[Workload]:
    """Measures jobs that Python starts. The sides measure themselves, so that those without imports can be told."""

    def sides(work: str, names: str, data: Path | None = None) -> dict[str, Side]:
        def side_of(name: str) -> Side:
            def side(folder: Path) -> Figures:
                package = Path(executable()).parent / "python"
                paths = own_home(folder) | {"PYTHONPATH": f"{package}:{USER}"}
                command = [sys.executable, str(HERE / "peers" / "from_python.py"), work, name, str(data)]
                environment = PEER_ENVIRONMENT | paths
                return measure([*command, str(folder / "rows")], folder, environment, prints_figures=True)

            return side

        return {name: side_of(name) for name in names.split()}

    yield Workload("ten", "a call over ten items, each by itself", sides("ten", "gristmill joblib daft datasets"))
    count = scaled(200_000, scale)

    def make(folder: Path) -> None:
        lines = (f"{n},{n % 97},{n * 7 % 1000},name {n % 1013}\n" for n in range(count))
        (folder / "rows.csv").write_text("id,a,b,name\n" + "".join(lines))

    table = once(cache / f"named_{count}", 30 * count, f"{count:,} rows with a name", make) / "rows.csv"
    title = f"{count:,} rows of CSV to Parquet by `gristmill.run(function, …)`, imports included"
    written = sides("rows", "gristmill pandas datasets", table)
    yield Workload("rows", title, written, count, "rows", same_parquet)
    tables = csv_tables(cache, scaled(TABLE_ROWS, scale))
    title = f"{megabytes(tables):,.0f} MB of CSV scored by `gristmill.run(function, …)`, imports excluded"
    scored = sides("scores", "gristmill", tables) | {"command": score_csv(tables)}
    yield Workload("function", title, scored, megabytes(tables), "MB", same_function)


def same_function(_: str, ours: Path, theirs: Path) -> bool:
    """Compares the table of a function with the rows of the command."""
    return same_scores("gristmill", theirs, ours)


def memory(cache: Path, scale: float) -> Iterator[Workload]:
    rows = scaled(TABLE_ROWS, scale)
    tables = csv_tables(cache, rows)
    need_space(cache, 800 * rows, "what is made of ten times the CSV")
    for several, names in ((tables, "daft pool ray"), (repeated(tables, 10), "")):
        sides = {"gristmill": score_csv(several, with_tree=True)} | peers(names, "csv", several, with_tree=True)
        size = megabytes(several)
        name = "memory-1" if several is tables else "memory-10"
        yield Workload(name, f"{size:,.0f} MB of CSV", sides, size, "MB", same_scores, rounds_max=1)
    idle = peers("ray", "idle", tables, with_tree=True)
    yield Workload("memory-idle", "Ray with nothing to do", idle, rounds_max=1)


def bad(cache: Path, scale: float) -> Iterator[Workload]:
    """Measures what rows that raise an exception cost, and how many good rows are kept."""
    rows = scaled(1_000_000, scale, 1000)
    tables = csv_tables(cache, rows)

    def ours(script: str, place: str) -> Side:
        def side(folder: Path) -> Figures:
            # About 14 000 rows.
            settings = {"mini_batch_size": "1MB", "isolate": "items", "run_max_try": 1, "error_threshold": -1}
            job = write_job(folder, script, tables_at(tables, "csv"), **settings)
            variables = own_home(folder) | place_of_bad(place)
            figures = measure([executable(), "run", str(job), "--json"], folder, variables)
            result, written = json.loads((folder / "printed").read_text()), count_lines(folder / "rows")
            rejects = result.get("rejects", {"items": 0})
            if written + rejects["items"] != rows:
                sys.exit(f"{written} rows in the output and {rejects['items']} rejects are not {rows} rows")
            named = rejects["items"] - rejects.get("without_place", 0)
            return figures | {"rows": written, "named": named, "extra_runs": result.get("extra_runs", 0)}

        return side

    def theirs(name: str, place: str) -> Side:
        def side(folder: Path) -> Figures:
            command = [sys.executable, str(HERE / "peers" / f"{name}_side.py"), "bad", str(tables)]
            variables = PEER_ENVIRONMENT | place_of_bad(place)
            figures = measure([*command, str(folder / "rows")], folder, variables)
            # Each file has a header. Where all blocks are lost there are no files.
            written = [count_lines(file) - 1 for file in files_of(folder / "rows") if file.exists()]
            return figures | {"rows": sum(written)}

        return side

    def place_of_bad(place: str) -> dict[str, str]:
        return {"BENCH_BAD": place, "BENCH_ROWS": str(rows)}

    for place, title in BAD_ROWS.items():
        sides = {"gristmill": ours("score_rows", place), "run_item": ours("score_items", place)}
        sides |= {name: theirs(name, place) for name in ("daft", "ray")}
        yield Workload(f"bad-{place}", f"{rows:,} rows, {title}", sides, rows, "rows")


def size(cache: Path, scale: float) -> Iterator[Workload]:
    """Runs jobs that do nothing on the rows of a table. Each is killed when its last mini-batch has ended, before it
    writes its output, and `retry` completes it: so each shows a whole job, its ledger, `status`, and a restart."""
    for items_each, counts in SIZES.items():
        for count in counts:
            mini_batches = scaled(count, scale, 10)
            title = f"{mini_batches:,} of {items_each} item{'s' if items_each > 1 else ''}"
            side = size_of(cache, items_each, mini_batches)
            name = f"size-{items_each}x{count}"
            yield Workload(name, title, {"gristmill": side}, mini_batches, "mini-batches", rounds_max=1)


def size_of(cache: Path, items_each: int, mini_batches: int) -> Side:
    items = items_each * mini_batches

    def side(folder: Path) -> Figures:
        need_space(cache, SIZE_BYTES * mini_batches + 4 * items, f"a job of {mini_batches:,} mini-batches")
        settings = {"mini_batch_size": f"{items_each} rows", "run_invocation_timeout": 3600}
        inputs, home = tables_at(short_rows(cache, items), "csv"), own_home(folder)
        objects, figures = run_until_output(folder, "nothing", inputs, **settings)
        figures |= {f"{name}_bytes": bytes_of(objects / name) for name in ("plan", "ledger")}
        status = measure([executable(), "status", objects.name, "--json"], folder, home, status=None)
        done = json.loads((folder / "printed").read_text())["progress"]["mini_batches"]["succeeded"]
        retry = measure([executable(), "retry", objects.name], folder, home)
        if (done, count_lines(folder / "rows")) != (mini_batches, items):
            sys.exit(f"{done} of {mini_batches} mini-batches had succeeded; {items} rows were due")
        figures |= {"status_seconds": status["seconds"], "retry_seconds": retry["seconds"]}
        return figures | {"retry_mib": retry["peak_mib"]}

    return side


def bytes_of(folder: Path) -> int:
    return sum(entry.stat().st_size for entry in os.scandir(folder))


def nodes(cache: Path, scale: float) -> Iterator[Workload]:
    """Counts the requests of a thousand nodes in virtual time (`tests/simulation/examples/size.rs`)."""
    wanted = ("seconds", "sqs", "puts", "gets", "dollars", "segments", "gets_a_second_max")

    def played(mini_batches: int) -> Side:
        def side(folder: Path) -> Figures:
            command = [example("size"), str(scaled(SIMULATED_NODES, scale, 2)), str(mini_batches)]
            measure(command, folder)
            counted = json.loads((folder / "printed").read_text())
            return {name: counted[name] for name in wanted} | {"restart_mib": counted["restart"]["memory"] / 2**20}

        return side

    for count in SIMULATED:
        mini_batches = scaled(count, scale, 10)
        sides = {"gristmill": played(mini_batches)}
        yield Workload(f"nodes-{count}", f"{mini_batches:,}", sides, mini_batches, "mini-batches", rounds_max=1)


def example(name: str) -> str:
    """Returns the path of a program that is an example of a crate, built beside the executable."""
    return str(Path(os.environ.get("GRISTMILL_EXAMPLES", Path(executable()).parent / "examples")) / name)


def portal(cache: Path, scale: float) -> Iterator[Workload]:
    mini_batches = scaled(1_000_000, scale, 1000)
    title = f"{mini_batches:,} mini-batches, of which {mini_batches // 1000:,} failed"

    def look(folder: Path) -> Figures:
        command = [example("synthetic"), str(folder / "home"), str(mini_batches), str(mini_batches // 1000)]
        job = "/jobs/" + subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
        with Portal(folder) as portal:
            figures = {"seconds": portal.seconds_of(job), "slowest_seconds": 0.0}
            for _ in range(PORTAL_ROUNDS):
                time.sleep(PORTAL_LOOKS_EVERY_SECONDS)
                slowest = max(map(portal.seconds_of, ["/jobs", *(job + path for path in portal_paths(mini_batches))]))
                figures["slowest_seconds"] = max(figures["slowest_seconds"], slowest)
            return figures | {"peak_mib": peak_kib(portal.process.pid) / 1024}

    yield Workload("portal", title, {"gristmill": look}, mini_batches, "mini-batches", rounds_max=1)


def portal_paths(mini_batches: int) -> list[str]:
    """Returns what the pages of a job ask for."""
    table = ["", "?sort=state", "?sort=duration", f"?sort=duration&offset={mini_batches - 100}", "?state=failed"]
    table += ["?state=failed&error=decode", f"/{mini_batches // 2}"]
    logs = ["", "/text?path=user/stdout/node-0/process000.stdout.txt", "/search?q=no%20such%20line"]
    return [
        *("", "/series", "/timeline", "/nodes", "/output"),
        *(f"/map?by={by}" for by in ("state", "tries", "duration")),
        *(f"/mini-batches{rest}" for rest in table),
        *(f"/logs{rest}" for rest in logs),
    ]


class Portal(contextlib.AbstractContextManager):
    """A portal of the home in a folder."""

    def __init__(self, folder: Path) -> None:
        command = [executable(), "portal", "--no-open", "--listen", "127.0.0.1:0"]
        environment = os.environ | own_home(folder)
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        address = urllib.parse.urlsplit(self.process.stdout.readline().strip())
        self.api = f"http://{address.netloc}/api/v1"
        self.headers = {"authorization": f"Bearer {urllib.parse.parse_qs(address.query)['token'][0]}"}

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()

    def seconds_of(self, path: str) -> float:
        """Returns the time of one answer."""
        began = time.perf_counter()
        with urllib.request.urlopen(urllib.request.Request(self.api + path, headers=self.headers)) as answer:
            body = answer.read()
        seconds = time.perf_counter() - began
        json.loads(body)
        return seconds
