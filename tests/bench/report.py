"""Writes RESULTS.md and the charts from the figures."""

from __future__ import annotations

import datetime
import importlib.metadata
import math
import os
import platform
import statistics
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import chart

HERE = Path(__file__).resolve().parent
PACKAGES = ("pandas", "numpy", "pyarrow", "daft", "ray", "dask", "distributed", "celery")
PACKAGES += ("joblib", "datasets", "polars", "duckdb")
NAMES = {"gristmill": "gristmill", "daft": "Daft", "pool": "Pool", "ray": "Ray", "dask": "Dask", "celery": "Celery"}
NAMES |= {"joblib": "joblib", "datasets": "datasets", "polars": "Polars", "duckdb": "DuckDB"}
NAMES |= {"cat": "`cat`", "imports": "the imports alone", "beside": "the other build"}
SIDE_BY_SIDE = ("noop", "rabbitmq", "csv", "parquet", "files", "plan", "publish", "reduce-rows", "reduce-parts")
ONE_ITEM = ("one", "one-row")
SCALING = {"noop": "mini-batches that do nothing", "csv": "CSV through pandas", "plan": "files planned"}

INTRODUCTION = """# How fast

`scripts/bench` writes this page. It measures release builds on the same data, and the sides take turns. All figures are
from command to exit, except with a broker: Celery's worker starts before its clock. *Ratio* is the time of a peer
divided by that of gristmill: above 1, gristmill is faster. After each round the benchmark compares the rows of all
sides, floats as parsed numbers and those of Pool byte for byte. Every side has one process per core, the same Python
and the same pandas.

- **Pool** is `multiprocessing.Pool` and, for tables, pandas on pieces of 4 MB: a script that takes an afternoon to
  write. It records nothing, retries nothing and writes no log. For planning, it is `os.walk` and one JSON line per
  mini-batch.
- **Daft** runs natively, with `run` as a batch function; it reads only the columns that the function uses, and writes
  several files. **Ray** is one task per mini-batch, or Ray Data; it writes several files. **Dask** is one future per
  mini-batch, or its data frames, on a local cluster; it writes one file.
- **joblib** is `joblib.Parallel` with the code of Pool, **datasets** is `Dataset.map` with a process per core.
- **Polars** and **DuckDB** compute the same columns as expressions: no Python function runs, so they show what reading,
  computing and writing cost at least.
- **gristmill** records every outcome in a ledger, and writes one file in input order, with logs
  and reports. It splits CSV into mini-batches of 10 MB, and Parquet at its row groups.
- **`cat`** copies everything that the reducer has written (its ledger, its reports and the one file) and syncs it as
  the reducer does. Before each of them starts, the benchmark fills the memory for all of it once: a virtual machine may
  have to get free memory from its host first, which takes longer than writing to it.

![Time relative to gristmill](results.svg)
"""

SUMMARY_HEADS = ("workload", "gristmill", "others (ratio)")
ONE_ITEM_HEADS = ("job", "gristmill", "the imports alone", "gristmill beyond these", "Pool", "Daft", "Ray")
MEMORY_NOTE = """\
*Process* is the command itself: for gristmill the engine with its agent, its reducer and its mapped memory files of
tables; for the others the script that drives them. *Tree* is the command with all its descendants, counting shared
pages once and including memory files, sampled four times a second. Daft is one process."""
MEMORY_HEADS = ("input", "", "process", "tree")
SCALING_NOTE = """\
*Growth* is the exponent from one size to the next: at 1 time grows in proportion to the data, below 1 more slowly.

![Time by size](scaling.svg)"""
SCALING_HEADS = ("workload", "size", "time", "rate", "growth", "peak memory of the engine")
DETAIL_NOTE = """\
*CPU* is the user and system time of all processes of a side. *In run* is the share of the user's function, measured
inside it in the same way everywhere. A peer that takes over a minute runs once. Memory is that of the first process,
without its children."""
DETAIL_HEADS = ("workload", "", "median", "spread", "rounds", "CPU", "in run", "peak memory")
WHEN_HEADS = ("figures", "date", "commit", "scale")


def circumstances(scale: float) -> dict:
    """Returns date, commit, scale and machine of the figures."""
    return {"date": str(datetime.date.today()), "commit": commit(), "scale": scale, "machine": machine()}


def commit() -> str:
    """Returns the measured commit, marked as dirty if the engine has uncommitted changes."""
    git = ["git", "-C", str(HERE.parent.parent)]
    name = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True).stdout
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "services"]).returncode != 0
    return name.strip() + ("-dirty" if changed else "")


def hardware() -> dict[str, str]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    processor = models[0].split(":")[1].strip() if models else platform.machine()
    return {
        "processor": f"{processor}, {os.cpu_count()} cores",
        "memory": f"{memory:.0f} GiB",
        "kernel": f"Linux {platform.release()}",
    }


def machine() -> dict[str, str]:
    rustc = subprocess.run(["rustc", "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    versions = [f"{package} {importlib.metadata.version(package)}" for package in PACKAGES]
    return {
        **hardware(),
        "versions": ", ".join([f"rustc {rustc}", f"Python {platform.python_version()}", *versions]),
    }


def machine_table(scale: float) -> str:
    """Returns a table of the machine and the versions."""
    facts = {"date": datetime.date.today(), "commit": commit(), "scale": f"{scale:g}", **machine()}
    return table(("", ""), facts.items())


def table(heads: tuple[str, ...], rows: Iterable) -> str:
    """Returns a Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def with_section(page: str, title: str, section: str) -> str:
    """Returns a page whose last section has this title."""
    before, _, _ = page.partition(f"## {title}\n")
    return f"{before.rstrip()}\n\n## {title}\n\n{section.strip()}\n"


def keeping_section(page: str, title: str, former: Path) -> str:
    """Returns a page with the last section of its former version, if that has one of this title."""
    _, _, section = (former.read_text() if former.exists() else "").partition(f"## {title}\n")
    return with_section(page, title, section) if section else page


def values(entry: dict, side: str, key: str = "seconds") -> list[float]:
    return [measured[key] for measured in entry["sides"].get(side, []) if measured[key] is not None]


def median(entry: dict, side: str, key: str = "seconds") -> float | None:
    found = values(entry, side, key)
    return statistics.median(found) if found else None


def seconds_text(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds < 1 else f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"


def rate_text(entry: dict, seconds: float) -> str:
    rate = entry["amount"] / seconds
    return f"{rate:,.0f} {entry['unit']}/s" if rate >= 10 else f"{rate:.2g} {entry['unit']}/s"


def ratio_text(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"


def peers_of(entry: dict) -> list[str]:
    return [side for side in NAMES if side in entry["sides"] and side != "gristmill"]


def lines_of(entry: dict) -> list[str]:
    """Returns the lines to print at the end of a workload."""
    lines = [entry["title"]]
    for side in entry["sides"]:
        if (seconds := median(entry, side)) is not None:
            ours = median(entry, "gristmill")
            ratio = f", ratio {ratio_text(seconds / ours)}" if ours and side != "gristmill" else ""
            lines.append(f"  {NAMES[side]}: {seconds_text(seconds)}{ratio}")
    return lines


def summary_row(entry: dict) -> list[str]:
    ours = median(entry, "gristmill")
    cells = [entry["title"], f"**{seconds_text(ours)}** ({rate_text(entry, ours)})"]
    peers = []
    for side in peers_of(entry):
        theirs = median(entry, side)
        peers.append(
            f"{NAMES[side]} over {entry['limit_seconds'] / 60:.0f} minutes"
            if theirs is None
            else f"{NAMES[side]} {seconds_text(theirs)} (**{ratio_text(theirs / ours)}**)"
        )
    return [*cells, "<br>".join(peers)]


def one_item_row(entry: dict) -> list[str]:
    def text(side: str) -> str:
        seconds = median(entry, side)
        return "" if seconds is None else seconds_text(seconds)

    imports, ours = median(entry, "imports"), median(entry, "gristmill")
    over = "" if imports is None else seconds_text(ours - imports)
    return [entry["title"], text("gristmill"), text("imports"), over, *map(text, ("pool", "daft", "ray"))]


def detail_rows(entry: dict) -> Iterator[list[str]]:
    """Returns a row for each side: median, spread, processor time, memory."""
    for side in (side for side in NAMES if values(entry, side)):
        seconds, cpu = values(entry, side), median(entry, side, "cpu_seconds")
        users = median(entry, side, "user_seconds")
        yield [
            entry["title"] if side == next(iter(entry["sides"])) else "",
            NAMES[side],
            seconds_text(statistics.median(seconds)),
            f"{min(seconds):.3g}–{max(seconds):.3g} s",
            len(seconds),
            f"{cpu:.1f} s",
            "" if users is None else f"{users:.1f} s ({users / cpu:.0%})",
            f"{max(values(entry, side, 'peak_mib')):.0f} MiB",
        ]


def memory_rows(figures: dict[str, dict]) -> Iterator[list[str]]:
    for name in ("memory-1", "memory-10", "memory-idle"):
        entry = figures.get(name, {"sides": {}})
        for side in (side for side in NAMES if values(entry, side)):
            peaks = (max(values(entry, side, key)) for key in ("peak_mib", "tree_mib"))
            title = entry["title"] if side == next(iter(entry["sides"])) else ""
            yield [title, NAMES[side], *(f"{peak:.0f} MiB" for peak in peaks)]


def steps(figures: dict[str, dict], name: str) -> list[dict]:
    """Returns the entries of one workload by size, smallest first."""
    found = [entry for key, entry in figures.items() if key.startswith(f"scaling-{name}-")]
    return sorted(found, key=lambda entry: entry["amount"])


def scaling_rows(figures: dict[str, dict]) -> Iterator[list[str]]:
    """Returns a row for each size. Growth is the slope between two sizes on logarithmic axes."""
    for name, title in SCALING.items():
        before = None
        for entry in steps(figures, name):
            seconds, peak = median(entry, "gristmill"), max(values(entry, "gristmill", "peak_mib"))
            growth = ""
            if before is not None:
                growth = math.log(seconds / median(before, "gristmill")) / math.log(entry["amount"] / before["amount"])
                growth = f"{growth:.2f}"
            yield [
                title if before is None else "",
                entry["title"],
                seconds_text(seconds),
                rate_text(entry, seconds),
                growth,
                f"{peak:.0f} MiB",
            ]
            before = entry


def when_rows(figures: dict[str, dict]) -> Iterator[list[str]]:
    """Returns a row for each group of figures with the same date, commit and scale."""
    alike: dict[tuple, list[str]] = {}
    for name, entry in figures.items():
        alike.setdefault((entry["date"], entry["commit"], f"{entry['scale']:g}"), []).append(name)
    for (date, commit_name, scale), names in alike.items():
        yield [", ".join(names), date, commit_name, scale]


def write_report(figures: dict[str, dict]) -> None:
    pairs = [figures[name] for name in SIDE_BY_SIDE if name in figures]
    ones = [figures[name] for name in ONE_ITEM if name in figures]
    sections = [
        INTRODUCTION,
        section("", "", SUMMARY_HEADS, map(summary_row, pairs)),
        section("Start to finish of a job with one item", "", ONE_ITEM_HEADS, map(one_item_row, ones)),
        section("Peak memory", MEMORY_NOTE, MEMORY_HEADS, memory_rows(figures)),
        section("Scaling", SCALING_NOTE, SCALING_HEADS, scaling_rows(figures)),
        section(
            "Every side", DETAIL_NOTE, DETAIL_HEADS, (row for entry in [*pairs, *ones] for row in detail_rows(entry))
        ),
        section("When and where", "", WHEN_HEADS, when_rows(figures)),
        *(table(("", ""), facts) for facts in {tuple(entry["machine"].items()): None for entry in figures.values()}),
    ]
    (HERE / "RESULTS.md").write_text("\n".join(filter(None, sections)))
    write_charts([*pairs, *ones], figures)


def section(title: str, note: str, heads: tuple[str, ...], rows: Iterable) -> str:
    """Returns an empty text without measurements."""
    rows = list(rows)
    parts = [title and f"## {title}\n", note and f"{note}\n", table(heads, rows)]
    return "\n".join(filter(None, parts)) if rows else ""


def write_charts(entries: list[dict], figures: dict[str, dict]) -> None:
    groups = [chart.Group(entry["title"].replace("`", ""), bars_of(entry)) for entry in entries if peers_of(entry)]
    if groups:
        title = "Time relative to gristmill (logarithmic, shorter is better)"
        (HERE / "results.svg").write_text(chart.bars(title, groups))
    curves = []
    for name, title in SCALING.items():
        points = [(entry["amount"], median(entry, "gristmill"), entry["title"]) for entry in steps(figures, name)]
        if points:
            curves.append(chart.Curve(title, points))
    if curves:
        (HERE / "scaling.svg").write_text(chart.curves("Time by size", curves))


def bars_of(entry: dict) -> list[chart.Bar]:
    ours = median(entry, "gristmill")
    sides = ["gristmill", *(side for side in peers_of(entry) if side != "imports")]
    found = []
    for side in sides:
        if (seconds := median(entry, side)) is not None:
            times = "" if side == "gristmill" else f" · {ratio_text(seconds / ours)}×"
            found.append(chart.Bar(NAMES[side].strip("`"), seconds / ours, seconds_text(seconds) + times))
    return found
