"""Runs one command, and measures its time, the processor time of its process tree, and its memory."""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

USER = Path(__file__).resolve().parent / "user"
SAMPLE_MILLISECONDS = 20
TREE_SAMPLE_SECONDS = 0.25
# Free memory that remains unfilled.
SPARE_BYTES = 512 << 20
PR_SET_CHILD_SUBREAPER = 36

# The figures of one run by name, which ends with the unit: seconds, peak_mib, …
Figures = dict[str, float]


class GivenUpError(Exception):
    """A command has failed."""


class TimedOutError(GivenUpError):
    """A command took too long."""


def measure(
    command: list[str],
    folder: Path,
    environment: Mapping[str, str] | None = None,
    *,
    status: int | None = 0,
    prints_figures: bool = False,
    with_tree: bool = False,
    seconds_max: float = math.inf,
) -> Figures:
    """Runs a command to its end with its output in the files `printed` and `errors` of the folder. It is given up if it
    ends with another exit status than `status`, unless that is None.

    `prints_figures`: the last line that the command prints is a JSON object of figures, which replace those measured
    here. `with_tree`: measures the memory of the whole tree, too. A command that takes longer than `seconds_max` is
    given up.
    """
    # So that this process counts and ends orphaned descendants.
    adopt_orphans(True)
    # Flush the data of the previous side now, not at the expense of this one.
    os.sync()
    output, errors = folder / "printed", folder / "errors"
    # Ray and Dask leave files in TMPDIR.
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch,
        output.open("wb") as out,
        errors.open("wb") as err,
    ):
        variables = {**os.environ, "PYTHONPATH": str(USER), "TMPDIR": scratch, **(environment or {})}
        cpu_before, shared_before = cpu_seconds_of_children(), shared_kib()
        started = time.perf_counter()
        process = subprocess.Popen(command, cwd=folder, env=variables, stdout=out, stderr=err)
        peak, tree_peak, tree_due = 0, 0, started
        end, ended = select.poll(), os.pidfd_open(process.pid)
        end.register(ended, select.POLLIN)
        while True:
            # The kernel records the peak of a process, so only the last sample before its end matters.
            peak = max(peak, peak_kib(process.pid))
            if with_tree and time.perf_counter() >= tree_due:
                tree_peak = max(tree_peak, tree_kib(process.pid) + shared_kib() - shared_before)
                tree_due = time.perf_counter() + TREE_SAMPLE_SECONDS
            if end.poll(SAMPLE_MILLISECONDS):
                break
            if time.perf_counter() - started > seconds_max:
                process.terminate()
                break
        seconds = time.perf_counter() - started
        os.close(ended)
        end_tree(process)
        adopt_orphans(False)
    if seconds > seconds_max:
        raise TimedOutError(f"{' '.join(command)} took more than {seconds_max} s")
    if status is not None and process.returncode != status:
        printed = "\n".join(file.read_text(errors="replace")[-4000:] for file in (output, errors))
        raise GivenUpError(f"{' '.join(command)} ended with status {process.returncode}:\n{printed}")
    figures = {"seconds": seconds, "cpu_seconds": cpu_seconds_of_children() - cpu_before, "peak_mib": peak / 1024}
    if with_tree:
        figures["tree_mib"] = tree_peak / 1024
    if prints_figures:
        figures |= json.loads(output.read_text().splitlines()[-1])
    return figures


def fill_memory(size: int) -> None:
    """Fills this much of the free memory once. A virtual machine may lend unused memory to its host and get it back
    slowly, page by page, at the expense of the first side. Cached files stay in memory."""
    size = min(size, (kib_of("/proc/meminfo", "MemFree:") << 10) - SPARE_BYTES)
    if size > 0:
        fill = f"import mmap; mmap.mmap(-1, {size}, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)"
        subprocess.run([sys.executable, "-c", fill], check=True)


def adopt_orphans(adopt: bool) -> None:
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
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found += map(int, task.read_text().split())
    return found


def tree(pid: int) -> list[int]:
    """Returns a process and all its descendants."""
    return [pid, *(below for child in children(pid) for below in tree(child))]


def peak_kib(pid: int) -> int:
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
