"""Runs one command and measures it: wall-clock time, and the peak memory of that process without its children."""

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Measured:
    """One run of one side."""

    seconds: float
    peak_mib: float


def measure(command: list[str], environment: dict[str, str], stdout: Path) -> Measured:
    """Runs the command to its end; its output goes to a file. A failure ends the benchmark."""
    with stdout.open("wb") as file:
        started = time.perf_counter()
        process = subprocess.Popen(command, env={**os.environ, **environment}, stdout=file, stderr=subprocess.STDOUT)
        peak = 0
        while True:
            # The kernel keeps the peak itself, so the last sample before the end is all that matters.
            peak = max(peak, peak_kib(process.pid))
            try:
                process.wait(timeout=0.02)
                break
            except subprocess.TimeoutExpired:
                continue
        seconds = time.perf_counter() - started
    if process.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with status {process.returncode}:\n{stdout.read_text()[-4000:]}")
    return Measured(seconds, peak / 1024)


def peak_kib(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1])
    return 0
