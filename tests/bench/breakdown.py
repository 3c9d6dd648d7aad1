"""Shows where the processor time of the engine goes: runs workloads under `perf` and sorts the samples by activity.

Writes PROFILE.md. Needs `perf` (on Debian: apt-get install linux-perf).
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

from report import machine_table, table
from workloads import WORKLOADS, Workload

HERE = Path(__file__).resolve().parent
SAMPLES_PER_SECOND = 2000
PROFILED = {
    "noop": ("return_input", "µs per mini-batch", 1e6),
    "files": ("length", "µs per file", 1e6),
    "csv": ("score", "ms per MB", 1e3),
    "parquet": ("score", "ms per million rows", 1e3),
}
PYTHON = ("python", "python3")

SYSTEM_CALLS = (
    ("sockets and wake-ups", "recv|send|epoll|futex|poll|eventfd|sched"),
    ("file reads", "read"),
    ("writes to files and memory files", "write|fsync|fdatasync|truncate"),
    ("memory mapping", "mmap|munmap|madvise|brk|mprotect"),
)
"""Activities of the kernel; the first pattern that matches the name of a system call counts."""

DECODE = re.compile(r"tables::|parquet|snap::|arrow|fast_float|memchr|simdutf8|miniz|zlib")
TABLE_IN = re.compile(r"table_in|arrow|PyString|numpy")

INTRODUCTION = f"""# Where the time goes

`scripts/bench profile` writes this page: the processor time of all processes of one `gristmill run`, sampled
{SAMPLES_PER_SECOND:,} times a second by `perf`, by activity. *Interpreter* includes the start of the processes and the
imports of the script; the last line of each section has their share.
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench profile", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="size of the data; PROFILE.md has 1")
    parser.add_argument("--data", type=Path, required=True, help="folder for data, kept for the next run")
    parser.add_argument("--keep-results", action="store_true", help="print only, leave PROFILE.md as it is")
    options = parser.parse_args()
    if shutil.which("perf") is None:
        sys.exit("perf is missing. On Debian: apt-get install linux-perf")
    sections = []
    for name, (script, unit, factor) in PROFILED.items():
        workload = next(WORKLOADS[name](options.data, options.scale))
        sections.append(section(workload, script, unit, factor, options.data / "work"))
        print(sections[-1], flush=True)
    if not options.keep_results:
        (HERE / "PROFILE.md").write_text("\n".join([INTRODUCTION, *sections, machine_table(options.scale)]))


def section(workload: Workload, script: str, unit: str, factor: float, work: Path) -> str:
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    side = workload.sides["gristmill"](work)
    samples = work / "perf.data"
    record = ["perf", "record", "-q", "-e", "cpu-clock", "-F", str(SAMPLES_PER_SECOND), "--call-graph", "fp"]
    environment = {**os.environ, "PYTHONPATH": str(HERE / "user"), **side.environment}
    subprocess.run(
        [*record, "-o", str(samples), "--", *side.command],
        env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    seconds = {what: count / SAMPLES_PER_SECOND for what, count in count_samples(samples).most_common()}
    shutil.rmtree(work)
    whole = sum(seconds.values())
    rows = [
        [what, f"{spent:.2f} s", f"{spent / whole:.0%}", f"{spent / workload.amount * factor:.2f}"]
        for what, spent in [*seconds.items(), ("total", whole)]
        if spent / whole >= 0.005
    ]
    start = start_seconds(script) * (os.cpu_count() or 1)
    return (
        f"\n## {workload.title}\n\n{table(('activity', 'processor time', 'share', unit), rows)}\n\n"
        f"Starting the interpreters and the imports of `{script}.py` take {start:.2f} s of it.\n"
    )


def start_seconds(script: str) -> float:
    """Returns the processor time of one interpreter that imports the script and the modules of the engine."""
    imports = f"import json, logging, traceback, {script}"
    before = os.times()
    subprocess.run([sys.executable, "-c", imports], env={**os.environ, "PYTHONPATH": str(HERE / "user")}, check=True)
    after = os.times()
    return after.children_user - before.children_user + after.children_system - before.children_system


def count_samples(samples: Path) -> Counter[str]:
    """Returns the number of samples for each activity."""
    script = ["perf", "script", "-i", str(samples), "-F", "comm,ip,sym,dso"]
    printed = subprocess.run(script, capture_output=True, text=True, check=True).stdout
    counts: Counter[str] = Counter()
    for sample in printed.split("\n\n"):
        head, *stack = sample.strip("\n").split("\n")
        if stack:
            counts[activity_of(head.strip(), [frame.split(maxsplit=1)[-1] for frame in stack])] += 1
    return counts


def activity_of(thread: str, stack: list[str]) -> str:
    """Returns the activity of a sample from its thread's name and its frames, `symbol (file)`, innermost first."""
    leaf = stack[0]
    is_python = thread in PYTHON
    if "[kernel" in leaf or "([vdso])" in leaf:
        owner = "Python process" if is_python else "SQLite" if thread == "queue" else "engine"
        return f"kernel for {owner}: {kernel_activity(stack)}"
    if is_python:
        if "_native" in leaf:
            return "extension: tables to frames" if TABLE_IN.search(leaf) else "extension: rows to text"
        if "libpython" in leaf or "/bin/python" in leaf or "ld-linux" in leaf:
            return "interpreter"
        return "NumPy, pandas, C library: the script, and copies of columns"
    if thread == "queue":
        return "engine: SQLite"
    return "engine: splitting and decoding tables" if DECODE.search(leaf) else "engine: other"


def kernel_activity(stack: list[str]) -> str:
    for frame in stack:
        if "page_fault" in frame:
            return "page faults"
        if call := re.search(r"(?:__x64_sys_|ksys_|do_sys_)(\w+)", frame):
            return next((activity for activity, names in SYSTEM_CALLS if re.search(names, call[1])), "other")
    return "other"


if __name__ == "__main__":
    main()
