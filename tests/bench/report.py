"""Writes the pages and their charts from results.json."""

from __future__ import annotations

import datetime
import itertools
import math
import os
import platform
import statistics
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

from workloads import HERE, Workload

NAMES = {
    "gristmill": "gristmill",
    "run_item": "gristmill, `async def run_item`",
    "command": "`gristmill run`",
    "pool": "Pool",
    "celery": "Celery",
    "boto": "boto3 loop",
    "ray": "Ray",
    "dask": "Dask",
    "daft": "Daft",
    "polars": "Polars",
    "duckdb": "DuckDB",
    "cat": "`cat`",
    "beside": "the other build",
}
COMPARED = ("noop", "csv", "parquet", "files", "plan", "reduce-rows", "reduce-parts", "one", "one-row")
COMPARED += ("rows", "function")


@dataclass
class Table:
    """A table of the workloads with these names. Without columns, it compares the seconds of their sides."""

    note: str
    workloads: tuple[str, ...]
    # Head and figure.
    columns: dict[str, str]


PAGES = {
    "RESULTS.md": (
        """# How fast

`scripts/bench all` writes this page. It measures release builds on the same data; the sides take turns, and each figure
is a median, from command to exit. *Ratio* is the time of a peer divided by that of gristmill: below 1, the peer is
faster. After each round, the benchmark compares the rows of all sides. Every side has one process per core, the same
Python and the same pandas. [results.json](results.json) has every run, with its processor time and its memory.

- **gristmill** records every outcome, and writes one file in input order, with logs and reports. The others record
  nothing and retry nothing.
- **Pool** is `multiprocessing.Pool` and, for tables, pandas on pieces of 4 MB; for plans, `os.walk` and one JSON line
  per mini-batch. **joblib** runs the code of Pool.
- **Daft** runs `run` as a batch function and reads only its columns. **Ray** is one task per mini-batch, or Ray Data.
  Both write several files. **Dask** is one future per mini-batch, or its data frames. **datasets** is `Dataset.map`.
- **Polars** and **DuckDB** compute the columns as expressions: no Python function runs.
- **`cat`** copies the output, and syncs it; every mini-batch has run before.

![Time relative to gristmill](results.svg)
""",
        [
            Table("", COMPARED, {}),
            Table(
                """## Bad rows

Rows of CSV are scored one by one in Python; 1 of 1,000 raises an exception. With `isolate: items`, gristmill keeps
every good row and names every bad one. Daft (`on_error="ignore"`) returns null for a bad row. Ray Data
(`max_errored_blocks=-1`) drops its whole block.
""",
                ("bad-none", "bad-together", "bad-spread"),
                {"time": "seconds", "rows written": "rows", "rejected rows named": "named", "extra runs": "extra_runs"},
            ),
            Table(
                "## Calls from Python\n\nThe first call of a session, with its imports, and the next one.\n",
                ("ten",),
                {"first": "seconds", "next": "next_seconds"},
            ),
            Table(
                """## Peak memory

*Process* is the command itself: for gristmill the engine with its memory files of tables. *Tree* is the command with
its descendants; shared pages count once.
""",
                ("memory-1", "memory-10", "memory-idle"),
                {"process": "peak_mib", "tree": "tree_mib"},
            ),
        ],
    ),
    "FLEET.md": (
        """# How fast a fleet is

`scripts/bench fleet` writes this page. Both brokers, the store and all roles share one small machine, so look at the
ratios. RabbitMQ has quorum queues; SQS and S3 are LocalStack. Each worker has 2 processes. Gristmill's time is that of
the whole command: it starts, plans, publishes, runs and writes the one ordered file. Celery acknowledges late and
returns results, and its worker starts before its clock. The boto3 loop only receives and deletes existing messages.
""",
        [
            Table("", ("rabbitmq", "sqs"), {}),
            Table("## Reactions\n", ("first-run", "takeover", "cancel", "small"), {}),
            Table(
                "## Requests to SQS and S3\n",
                ("requests", "idle"),
                {"SQS": "sqs", "PUT and LIST": "puts", "GET": "gets"},
            ),
            Table(
                """## One slow node

The slow node stands for a machine whose disk or network is about to fail. With `speculation`, another node runs its
mini-batches, too, and the first result counts.
""",
                ("slow-node",),
                {"time": "seconds", "speculative runs": "started", "first": "won"},
            ),
        ],
    ),
    "SIZE.md": (
        """# How large jobs may be

`scripts/bench size` writes this table, and needs 16 GB of disk. A script that does nothing runs on the rows of a table.
Each job is killed (SIGKILL) when its last mini-batch has ended, and `gristmill retry` completes it. *Memory* is the
peak of the engine, in which all roles run, without Python's processes. `status` reads the ledger of the killed job.

![Time by number of mini-batches](size.svg)
""",
        [
            Table(
                "",
                tuple(f"size-{size}" for size in ("1x10000", "1x100000", "1x1000000", "1x10000000"))
                + tuple(f"size-{size}" for size in ("100x10000", "100x100000", "100x1000000")),
                {
                    "time": "seconds",
                    "mini-batches / s": "rate",
                    "memory": "peak_mib",
                    "plan": "plan_bytes",
                    "ledger": "ledger_bytes",
                    "`status`": "status_seconds",
                    "`retry`": "retry_seconds",
                    "its memory": "retry_mib",
                },
            ),
            Table(
                """## A fleet of 1,000 nodes

`scripts/bench nodes` runs the code of partitioner, nodes and reducer in virtual time (`tests/simulation`): two
processes a node, runs of 1 s, requests of 1 to 20 ms. It counts requests to SQS as the backend sends them, ten messages
at a time; dollars follow from list prices (`services/engine/src/cost.rs`). Requests of logs and reports grow with time
and nodes, and are left out. The entry that each node writes every two seconds, and the schedule that it reads every
second, are included. S3 answers 5,500 GET a second for each job; a node needs 5 in the second in which it begins
a job. *Restart* is the memory of a reducer that reads the whole ledger.
""",
                tuple(f"nodes-{size}" for size in ("10000", "100000", "1000000", "10000000")),
                {
                    "virtual time": "seconds",
                    "SQS": "sqs",
                    "PUT and LIST": "puts",
                    "GET": "gets",
                    "requests each": "requests_each",
                    "dollars": "dollars",
                    "most GET / s": "gets_a_second_max",
                    "segments": "segments",
                    "restart": "restart_mib",
                },
            ),
            Table(
                """## The portal

`scripts/bench portal` asks for all that the pages of an ended job show. The first look reads the whole ledger.
""",
                ("portal",),
                {"first look": "seconds", "slowest later answer": "slowest_seconds", "memory": "peak_mib"},
            ),
        ],
    ),
}


def circumstances(workload: Workload) -> dict:
    """Returns what results.json says of a workload besides the figures."""
    git = ["git", "-C", str(HERE)]
    commit = subprocess.run([*git, "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True, check=True).stdout
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", ":/services"]).returncode != 0
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    processor = models[0].split(":")[1].strip() if models else platform.machine()
    return {
        "title": workload.title,
        "amount": workload.amount,
        "unit": workload.unit,
        "date": str(datetime.date.today()),
        "commit": commit.strip() + ("-dirty" if changed else ""),
        "machine": f"{processor}, {os.cpu_count()} cores, {memory:.0f} GiB, Python {platform.python_version()}",
    }


# Figures and their text.


def medians(entry: dict, side: str) -> dict[str, float]:
    """Returns the medians of one side, and what follows from them. Of memory, the peak of all rounds counts."""
    figures = {
        name: max(values) if name.endswith("mib") else statistics.median(values)
        for name, values in entry["sides"][side].items()
    }
    if entry["unit"] and "seconds" in figures:
        figures["rate"] = entry["amount"] / figures["seconds"]
    if entry["unit"] and "sqs" in figures:
        figures["requests_each"] = sum(figures[name] for name in ("sqs", "puts", "gets")) / entry["amount"]
    return figures


def text_of(name: str, value: float | None) -> str:
    """Returns a figure with its unit, which is the end of its name."""
    if value is None:
        return ""
    match name.rpartition("_")[2]:
        case "seconds":
            return f"{value:.3g} s" if value < 100 else f"{value:,.0f} s"
        case "mib":
            return f"{value:,.0f} MiB"
        case "bytes":
            return f"{value / 1e6:,.0f} MB" if value >= 1e7 else f"{value / 1e6:.1f} MB"
        case "dollars" | "each":
            return f"{value:.2f}"
        case _:
            return f"{value:,.0f}" if value >= 10 or value == round(value) else f"{value:.2g}"


def ratio_text(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"


def name_of(side: str) -> str:
    return NAMES.get(side, side)


def lines_of(entry: dict) -> list[str]:
    """Returns the lines to print at the end of a workload: every figure of each side."""
    lines = [entry["title"]]
    ours = medians(entry, "gristmill").get("seconds") if "gristmill" in entry["sides"] else None
    for side, runs in entry["sides"].items():
        if not runs:
            continue
        figures = medians(entry, side)
        texts = [f"{name} {text_of(name, value)}" for name, value in figures.items()]
        if ours and side != "gristmill" and "seconds" in figures:
            texts.insert(0, f"ratio {ratio_text(figures['seconds'] / ours)}")
        lines.append(f"  {name_of(side)}: {', '.join(texts)}")
    return lines


# Pages.


def write_pages(results: dict[str, dict], folder: Path = HERE) -> None:
    for name, (introduction, tables) in PAGES.items():
        parts = [introduction]
        for each in tables:
            entries = {name: results[name] for name in each.workloads if name in results}
            if entries:
                parts += [each.note, rendered(each, list(entries.values()))]
        used = {name: results[name] for each in tables for name in each.workloads if name in results}
        about = "[requirements.txt](requirements.txt) has the versions of all libraries.\n"
        parts += ["## When and where\n", about, markdown(("figures", "date", "commit", "machine"), when_rows(used))]
        (folder / name).write_text("\n".join(filter(None, parts)))
    compared = [results[name] for name in COMPARED if name in results]
    (folder / "results.svg").write_text(bars("Time relative to gristmill (logarithmic, shorter is better)", compared))
    curves = {
        "1 item each": [entry for name, entry in results.items() if name.startswith("size-1x")],
        "100 items each": [entry for name, entry in results.items() if name.startswith("size-100x")],
    }
    if all(curves.values()):
        (folder / "size.svg").write_text(drawn_curves("Time by number of mini-batches", curves))


def rendered(table: Table, entries: list[dict]) -> str:
    sides = list(dict.fromkeys(side for entry in entries for side in entry["sides"]))
    if table.columns:
        heads = ("", *(("",) if len(sides) > 1 else ()), *table.columns)
        return markdown(heads, figure_rows(table.columns, entries, names_sides=len(sides) > 1))
    if "gristmill" in sides:
        return markdown(("workload", "gristmill", "others (ratio)"), map(compared_row, entries))
    rows = (
        [entry["title"], *(text_of("seconds", medians(entry, side)["seconds"]) for side in sides)] for entry in entries
    )
    return markdown(("", *map(name_of, sides)), rows)


def markdown(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Returns a Markdown table."""
    lines = [list(heads), *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def compared_row(entry: dict) -> list[str]:
    figures = medians(entry, "gristmill")
    ours = figures["seconds"]
    rate = f" ({text_of('rate', figures['rate'])} {entry['unit']}/s)" if entry["unit"] else ""
    others = [
        f"{name_of(side)} {text_of('seconds', theirs)} (**{ratio_text(theirs / ours)}**)"
        for side, theirs in peers_of(entry).items()
    ]
    return [entry["title"], f"**{text_of('seconds', ours)}**{rate}", "<br>".join(others)]


def peers_of(entry: dict) -> dict[str, float]:
    """Returns the seconds of the peers, the fastest first; one that took too long has none."""
    sides = [side for side, runs in entry["sides"].items() if side != "gristmill" and runs]
    return dict(sorted(((side, medians(entry, side)["seconds"]) for side in sides), key=lambda peer: peer[1]))


def figure_rows(columns: dict[str, str], entries: list[dict], names_sides: bool) -> Iterator[list[str]]:
    for entry in entries:
        for number, side in enumerate(entry["sides"]):
            figures = medians(entry, side)
            name = [name_of(side)] if names_sides else []
            cells = [text_of(each, figures.get(each)) for each in columns.values()]
            yield [entry["title"] if number == 0 else "", *name, *cells]


def when_rows(results: dict[str, dict]) -> Iterator[list[str]]:
    """Returns a row for each group of workloads with the same date, commit and machine."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, entry in results.items():
        alike.setdefault((entry["date"], entry["commit"], entry["machine"]), []).append(name)
    for facts, names in alike.items():
        yield [", ".join(names), *facts]


# Charts: plain SVG, with a background that follows the reader's light or dark theme.

WIDTH, MARGIN = 820, 24
STYLE = """
  .card { fill: #ffffff; stroke: #d0d7de } .text { fill: #1f2328 } .faint { fill: #59636e }
  .grid { stroke: #d8dee4 } .even { stroke: #59636e } .ours { fill: #c2571a } .theirs { fill: #8c9bb0 }
  .curve0 { stroke: #c2571a; fill: #c2571a } .curve1 { stroke: #2f6fb5; fill: #2f6fb5 }
  @media (prefers-color-scheme: dark) {
    .card { fill: #0d1117; stroke: #30363d } .text { fill: #e6edf3 } .faint { fill: #9198a1 }
    .grid { stroke: #262c36 } .even { stroke: #9198a1 } .ours { fill: #f0883e } .theirs { fill: #5c6b82 }
    .curve0 { stroke: #f0883e; fill: #f0883e } .curve1 { stroke: #58a6ff; fill: #58a6ff }
  }
  text { font: 12px system-ui, sans-serif } .title { font-size: 15px; font-weight: 600 } .strong { font-weight: 600 }
"""


def svg(height: float, title: str, parts: list[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" role="img">'
    card = f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1:g}" rx="8"/>'
    heading = text(MARGIN, 32, title, "text title")
    described = f"<title>{escape(title)}</title>"
    return "\n".join([head, described, f"<style>{STYLE}</style>", card, heading, *parts, "</svg>", ""])


def text(x: float, y: float, content: str, style: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{style}" text-anchor="{anchor}">{escape(content)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, style: str, more: str = "") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{style}" {more}/>'


def bars(title: str, entries: list[dict]) -> str:
    """Returns a chart with a group of horizontal bars for each workload: times relative to gristmill, logarithmic."""
    height, gap, left, right, top = 13, 4, 120, WIDTH - 130, 62
    groups = [
        (entry["title"].replace("`", ""), medians(entry, "gristmill")["seconds"], peers_of(entry)) for entry in entries
    ]
    ratios = [seconds / ours for _, ours, peers in groups for seconds in peers.values()]
    low, high = math.log10(min(0.5, *ratios) * 0.8), math.log10(max(2, *ratios))

    def place(ratio: float) -> float:
        return left + (math.log10(ratio) - low) / (high - low) * (right - left)

    drawn, y = [], top
    for name, ours, peers in groups:
        y += 20
        drawn.append(text(MARGIN, y, name, "text strong"))
        y += 8
        for side, seconds in [("gristmill", ours), *peers.items()]:
            ratio, is_ours = seconds / ours, side == "gristmill"
            style, color = ("text", "ours") if is_ours else ("faint", "theirs")
            label = text_of("seconds", seconds) + ("" if is_ours else f" · {ratio_text(ratio)}×")
            drawn.append(text(left - 8, y + height - 2.5, name_of(side).strip("`"), style, "end"))
            width = place(ratio) - left
            drawn.append(f'<rect class="{color}" x="{left}" y="{y}" width="{width:.1f}" height="{height}" rx="2"/>')
            drawn.append(text(left + width + 6, y + height - 2.5, label, style))
            y += height + gap
        y += 8
    grid = []
    for ratio in (0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000):
        if low <= math.log10(ratio) <= high:
            x = place(ratio)
            grid.append(line(x, top - 2, x, y, "even" if ratio == 1 else "grid"))
            grid.append(text(x, top - 8, f"{ratio:g}×", "faint", "middle"))
    return svg(y + 8, title, grid + drawn)


def drawn_curves(title: str, curves: dict[str, list[dict]]) -> str:
    """Returns a chart of time by size on logarithmic axes; the dashed line is linear growth."""
    left, right, top, bottom = 70, WIDTH - 230, 62, 400
    points = {
        name: [(entry["amount"], medians(entry, "gristmill")["seconds"]) for entry in entries]
        for name, entries in curves.items()
    }
    sizes, times = zip(*itertools.chain(*points.values()), strict=True)
    x_low, x_high = math.floor(math.log10(min(sizes))), math.ceil(math.log10(max(sizes)))
    y_low, y_high = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)))

    def place(size: float, seconds: float) -> tuple[float, float]:
        x = left + (math.log10(size) - x_low) / (x_high - x_low) * (right - left)
        return x, bottom - (math.log10(seconds) - y_low) / (y_high - y_low) * (bottom - top)

    parts = []
    for power in range(y_low, y_high + 1):
        _, y = place(10**x_low, 10**power)
        parts += [line(left, y, right, y, "grid"), text(left - 8, y + 4, f"{10.0**power:g} s", "faint", "end")]
    for power in range(x_low, x_high + 1):
        x, _ = place(10**power, 1)
        parts += [line(x, top, x, bottom, "grid"), text(x, bottom + 20, f"{10**power:,}", "faint", "middle")]
    # Linear growth, from the smallest time at the smallest size.
    steps = min(x_high - x_low, y_high - math.log10(min(times)))
    ends = [place(10 ** (x_low + step), min(times) * 10**step) for step in (0, steps)]
    parts.append(line(*ends[0], *ends[1], "even", 'stroke-dasharray="4 4"'))
    for number, (name, measured) in enumerate(points.items()):
        places = [place(*point) for point in measured]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{path}" class="curve{number}" style="fill: none; stroke-width: 2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" class="curve{number}"/>' for x, y in places]
        (x, y), (size, seconds) = places[-1], measured[-1]
        parts.append(text(x + 10, y + 4, name, "text strong"))
        parts.append(text(x + 10, y + 19, f"{size:,.0f}: {text_of('seconds', seconds)}", "faint"))
    return svg(bottom + 40, title, parts)
