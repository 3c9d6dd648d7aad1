"""Runs one command and measures wall-clock time, CPU time of the whole process tree, and peak memory."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

USER = Path(__file__).resolve().parent / "user"
sys.path.insert(0, str(USER))
from timed import total_seconds  # noqa: E402

TIMEOUT_SECONDS = 900
SAMPLE_MILLISECONDS = 20
TREE_SAMPLE_SECONDS = 0.25
# Free memory that remains unfilled.
SPARE_BYTES = 512 << 20
PR_SET_CHILD_SUBREAPER = 36


@dataclass
class Side:
    """The command of one side, with all preparations done."""

    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    # The command measures itself, and prints its seconds on a separate line.
    prints_seconds: bool = False
    # The command has done its work when a file of this name is there (a glob below a folder); it is stopped then.
    until: tuple[Path, str] | None = None

    def is_done(self) -> bool:
        return self.until is not None and any(self.until[0].glob(self.until[1]))


@dataclass
class Measured:
    """One run of one side. Memory is that of the process itself; `tree_mib` is that of its whole tree."""

    seconds: float
    cpu_seconds: float
    peak_mib: float
    tree_mib: float | None
    # CPU time of the user's function, if it measures itself.
    user_seconds: float | None


class TimedOutError(Exception):
    pass


def measure(side: Side, output: Path, with_tree: bool = False, fills_bytes: int = 0) -> Measured:
    """Runs the side to its end with its output in `output`. A failure ends the benchmark."""
    adopt_orphans(True)
    # Flush the data of the previous side now, not at the expense of this one.
    os.sync()
    fill_memory(fills_bytes)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch, output.open("wb") as file:
        user_seconds = Path(scratch) / "user_seconds"
        user_seconds.mkdir()
        environment = {
            **os.environ,
            "PYTHONPATH": str(USER),
            "BENCH_USER_SECONDS": str(user_seconds),
            # Ray and Dask leave files there.
            "TMPDIR": scratch,
            **side.environment,
        }
        cpu_before = cpu_seconds_of_children()
        shared_before = shared_kib()
        started = time.perf_counter()
        process = subprocess.Popen(side.command, env=environment, stdout=file, stderr=subprocess.STDOUT)
        peak, tree_peak, tree_due = 0, 0, started
        end, ended = select.poll(), os.pidfd_open(process.pid)
        end.register(ended, select.POLLIN)
        while True:
            # The kernel records the peak of a process, so only the last sample before its end matters.
            peak = max(peak, status_kib(process.pid))
            if with_tree and time.perf_counter() >= tree_due:
                tree_peak = max(tree_peak, tree_kib(process.pid) + shared_kib() - shared_before)
                tree_due = time.perf_counter() + TREE_SAMPLE_SECONDS
            if end.poll(SAMPLE_MILLISECONDS):
                break
            if side.is_done() or time.perf_counter() - started > TIMEOUT_SECONDS:
                process.terminate()
                break
        seconds = time.perf_counter() - started
        os.close(ended)
        end_tree(process)
        adopt_orphans(False)
        counted = total_seconds(user_seconds)
    if seconds > TIMEOUT_SECONDS:
        raise TimedOutError
    printed = output.read_text(errors="replace") if side.prints_seconds or process.returncode != 0 else ""
    if process.returncode != 0:
        sys.exit(f"{' '.join(side.command)} ended with status {process.returncode}:\n{printed[-4000:]}")
    return Measured(
        seconds=printed_seconds(printed) if side.prints_seconds else seconds,
        cpu_seconds=cpu_seconds_of_children() - cpu_before,
        peak_mib=peak / 1024,
        tree_mib=tree_peak / 1024 if with_tree else None,
        user_seconds=counted or None,
    )


def fill_memory(size: int) -> None:
    """Fills this much of the free memory once. A virtual machine may lend unused memory to its host and get it back
    slowly, page by page, at the expense of the first side. Cached files stay in memory."""
    size = min(size, (kib_of("/proc/meminfo", "MemFree:") << 10) - SPARE_BYTES)
    if size > 0:
        fill = f"import mmap; mmap.mmap(-1, {size}, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)"
        subprocess.run([sys.executable, "-c", fill], check=True)


def printed_seconds(printed: str) -> float:
    return next(float(line) for line in printed.splitlines() if re.fullmatch(r"[0-9]+\.[0-9]+", line))


def adopt_orphans(adopt: bool) -> None:
    """Sets whether this process adopts orphaned descendants, so that it can count and end them."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0)


def end_tree(process: subprocess.Popen) -> None:
    """Waits for a process and its descendants, and kills them after a minute: some disks take ten seconds to remove ten
    gigabytes."""
    patience = time.monotonic() + 60
    while children(os.getpid()):
        if time.monotonic() > patience:
            for pid in tree(os.getpid())[1:]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if process.poll() is not None:
            try:
                os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
        time.sleep(0.005)
    process.wait()


def cpu_seconds_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += map(int, task.read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def tree(pid: int) -> list[int]:
    """Returns a process and all its descendants."""
    return [pid, *(below for child in children(pid) for below in tree(child))]


def status_kib(pid: int) -> int:
    """Returns the peak resident memory of one process."""
    return kib_of(f"/proc/{pid}/status", "VmHWM:")


def tree_kib(pid: int) -> int:
    """Returns the memory of a tree without memory files, counting shared pages once."""
    return sum(kib_of(f"/proc/{member}/smaps_rollup", "Pss_Anon:", "Pss_File:") for member in tree(pid))


def shared_kib() -> int:
    """Returns the size of all memory files of the machine, mapped or not."""
    return kib_of("/proc/meminfo", "Shmem:")


def kib_of(file: str, *keys: str) -> int:
    try:
        lines = Path(file).read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith(keys))
