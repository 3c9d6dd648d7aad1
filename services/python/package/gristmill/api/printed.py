"""What a function prints in worker processes of this machine, shown where the call waits."""

from __future__ import annotations

import sys
from pathlib import Path

LINES_MAX = 200
"""Lines that a call shows."""
BYTES_MAX = 64 * 1024
"""Bytes that a call shows."""


class Printed:
    """Follows the files of standard output of a job, each from its beginning."""

    def __init__(self, job_id: str, logs: Path) -> None:
        self._job_id = job_id
        self._folder = logs / "user" / "stdout"
        self._read: dict[Path, int] = {}
        self._lines = LINES_MAX
        self._bytes = BYTES_MAX

    def show(self, is_last: bool) -> None:
        """Prints the whole lines that are new; at the end of the job also the rest of each file."""
        if self._lines == 0 or not self._folder.is_dir():
            return
        for file in sorted(self._folder.glob("*/*.stdout.txt")):
            with file.open("rb") as opened:
                opened.seek(self._read.get(file, 0))
                new = opened.read(self._bytes + 1)
            whole = new if is_last else new[: new.rfind(b"\n") + 1]
            self._read[file] = self._read.get(file, 0) + len(whole)
            self._print(whole.decode("utf-8", "replace"))

    def _print(self, text: str) -> None:
        lines = text.splitlines()
        shown = lines[: self._lines]
        self._lines -= len(shown)
        self._bytes -= len(text)
        for line in shown:
            print(line)
        if shown:
            sys.stdout.flush()
        if len(shown) < len(lines) or self._bytes <= 0:
            self._lines = 0
            print(f'… more is in gristmill.attach("{self._job_id}").logs("user/stdout")', flush=True)
