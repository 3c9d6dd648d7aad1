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
NAMES = {"gristmill": "gristmill", "daft": "Daft", "pool": "Pool", "ray": "Ray", "dask": "Dask", "celery": "Celery"}
NAMES |= {"cat": "`cat`", "imports": "the imports alone"}
SIDE_BY_SIDE = ("noop", "rabbitmq", "csv", "parquet", "files", "plan", "publish", "reduce-rows", "reduce-parts")
ONE_ITEM = ("one", "one-row")
SCALING = {"noop": "mini-batches that do nothing", "csv": "CSV through pandas", "plan": "files planned"}

INTRODUCTION = """# How fast

Written by `scripts/bench`: release builds, the same data for all sides, which take turns. All figures are from command
to exit, except where a broker is in use: Celery's worker is up before its clock starts. *Ratio* is the time of a peer
by that of gristmill: above 1, gristmill is faster. After each round the rows of all sides are compared, floats as
parsed; those of Pool byte for byte. Every side has as many processes as there are cores, the same Python, and the same
pandas.

- **Pool** is `multiprocessing.Pool` and, for tables, pandas on pieces of 4 MB: what one would write in an afternoon. It
  keeps nothing, retries nothing, writes no log. For planning: `os.walk` and one JSON line a mini-batch.
- **Daft** runs natively, with `run` as a batch function; it reads only the columns that the function takes, and writes
  several files. **Ray** is a task for each mini-batch, or Ray Data; it writes several files. **Dask** is a future for
  each mini-batch, or its data frames, on a local cluster; it writes one file.
- **gristmill** keeps every outcome in a queue and a ledger, and writes one file in the order of the input, with logs
  and reports. CSV is cut in mini-batches of 10 MB, Parquet at its row groups.
- **`cat`** writes once more what the reducer has written, its ledger, its reports and the one file, and syncs it as the
  reducer does. Before either begins, memory for all of it has been filled once: a virtual machine may have to get
  memory that was free from its host first, which takes longer than writing to it.

![Time by that of gristmill](results.svg)
"""

SUMMARY_HEADS = ("workload", "gristmill", "beside it (ratio)")
ONE_ITEM_HEADS = ("job", "gristmill", "the imports alone", "gristmill over these", "Pool", "Daft", "Ray")
MEMORY_NOTE = """\
*Process* is the command itself: of gristmill the engine with its agent, its reducer, and the memory files of tables,
which it has mapped; of the others the script that drives them. *Tree* is everything that the command started, shared
pages once, memory files included, sampled four times a second. Daft is one process."""
MEMORY_HEADS = ("input", "", "process", "tree")
SCALING_NOTE = """\
*Growth* is the exponent from one size to the next: at 1 time grows as the data does, below 1 slower.

![Time as the size grows](scaling.svg)"""
SCALING_HEADS = ("workload", "size", "time", "rate", "growth", "peak memory of the engine")
DETAIL_NOTE = """\
*CPU* is that of all processes of a side, user and system. *In run* is how much of it the user's function took, measured
inside it in the same way everywhere. A peer that takes over a minute runs once. Memory is that of the first process,
without its children."""
DETAIL_HEADS = ("workload", "", "median", "spread", "rounds", "CPU", "in run", "peak memory")
WHEN_HEADS = ("figures", "date", "commit", "scale")


def circumstances(scale: float) -> dict:
    """When, of what and on what figures are taken."""
    return {"date": str(datetime.date.today()), "commit": commit(), "scale": scale, "machine": machine()}


def commit() -> str:
    """What was measured: a commit, or one and changes of the engine that are in none."""
    git = ["git", "-C", str(HERE.parent.parent)]
    name = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True).stdout
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "services"]).returncode != 0
    return name.strip() + ("-dirty" if changed else "")


def machine() -> dict[str, str]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    processor = models[0].split(":")[1].strip() if models else platform.machine()
    rustc = subprocess.run(["rustc", "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    versions = [f"{package} {importlib.metadata.version(package)}" for package in PACKAGES]
    return {
        "processor": f"{processor}, {os.cpu_count()} cores",
        "memory": f"{memory:.0f} GiB",
        "kernel": f"Linux {platform.release()}",
        "versions": ", ".join([f"rustc {rustc}", f"Python {platform.python_version()}", *versions]),
    }


def machine_table(scale: float) -> str:
    """What the figures were taken on."""
    facts = {"date": datetime.date.today(), "commit": commit(), "scale": f"{scale:g}", **machine()}
    return table(("", ""), facts.items())


def table(heads: tuple[str, ...], rows: Iterable) -> str:
    """In Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


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
    """What is printed when a workload has ended."""
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
    """Every side: median, spread, work of the processors, memory."""
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
    """The sizes of one workload, smallest first."""
    found = [entry for key, entry in figures.items() if key.startswith(f"scaling-{name}-")]
    return sorted(found, key=lambda entry: entry["amount"])


def scaling_rows(figures: dict[str, dict]) -> Iterator[list[str]]:
    """Growth is the slope between two sizes in a plot with two logarithmic axes."""
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
    """Which figures were taken at once."""
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
        section("How it grows", SCALING_NOTE, SCALING_HEADS, scaling_rows(figures)),
        section(
            "Every side", DETAIL_NOTE, DETAIL_HEADS, (row for entry in [*pairs, *ones] for row in detail_rows(entry))
        ),
        section("When and where", "", WHEN_HEADS, when_rows(figures)),
        *(table(("", ""), facts) for facts in {tuple(entry["machine"].items()): None for entry in figures.values()}),
    ]
    (HERE / "RESULTS.md").write_text("\n".join(filter(None, sections)))
    write_charts([*pairs, *ones], figures)


def section(title: str, note: str, heads: tuple[str, ...], rows: Iterable) -> str:
    """Nothing where nothing has been measured."""
    rows = list(rows)
    parts = [title and f"## {title}\n", note and f"{note}\n", table(heads, rows)]
    return "\n".join(filter(None, parts)) if rows else ""


def write_charts(entries: list[dict], figures: dict[str, dict]) -> None:
    groups = [chart.Group(entry["title"].replace("`", ""), bars_of(entry)) for entry in entries if peers_of(entry)]
    if groups:
        title = "Time by that of gristmill (logarithmic, shorter is better)"
        (HERE / "results.svg").write_text(chart.bars(title, groups))
    curves = []
    for name, title in SCALING.items():
        points = [(entry["amount"], median(entry, "gristmill"), entry["title"]) for entry in steps(figures, name)]
        if points:
            curves.append(chart.Curve(title, points))
    if curves:
        (HERE / "scaling.svg").write_text(chart.curves("Time as the size grows", curves))


def bars_of(entry: dict) -> list[chart.Bar]:
    ours = median(entry, "gristmill")
    sides = ["gristmill", *(side for side in peers_of(entry) if side != "imports")]
    found = []
    for side in sides:
        if (seconds := median(entry, side)) is not None:
            times = "" if side == "gristmill" else f" · {ratio_text(seconds / ours)}×"
            found.append(chart.Bar(NAMES[side].strip("`"), seconds / ours, seconds_text(seconds) + times))
    return found
