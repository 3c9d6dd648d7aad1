"""Writes RESULTS.md from the figures."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import statistics
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
PACKAGES = ("pandas", "numpy", "pyarrow", "daft", "ray", "dask", "distributed", "celery")
NAMES = {"pool": "Pool", "daft": "Daft", "ray": "Ray", "dask": "Dask", "celery": "Celery", "cat": "`cat`"}
NAMES |= {"imports": "imports alone", "gristmill": "**gristmill**"}


def circumstances(scale: float) -> dict:
    """When, of what and on what figures are taken."""
    return {
        "date": str(datetime.date.today()),
        "commit": commit(),
        "scale": scale,
        "machine": machine(),
    }


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
    versions = [f"rustc {rustc}", f"Python {platform.python_version()}"]
    for package in PACKAGES:
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "processor": f"{processor}, {os.cpu_count()} cores",
        "memory": f"{memory:.0f} GiB",
        "kernel": f"Linux {platform.release()}",
        "versions": ", ".join(versions),
    }


def machine_table(scale: float) -> str:
    """What the figures were taken on, as a table."""
    rows = {"date": datetime.date.today(), "commit": commit(), "scale": f"{scale:g}", **machine()}
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items()), ""])


def median(entry: dict, side: str, key: str = "seconds") -> float | None:
    values = [round_[key] for round_ in entry["sides"].get(side, []) if round_[key] is not None]
    return statistics.median(values) if values else None


def lines_of(entry: dict) -> list[str]:
    return [f"{entry['title']}: {side} {median(entry, side)}" for side in entry["sides"]]


def write_report(figures: dict[str, dict]) -> None:
    pass
