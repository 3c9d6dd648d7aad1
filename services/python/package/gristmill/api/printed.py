"""Shows the prints of a function in worker processes of this machine, while the call waits."""

from __future__ import annotations

import sys
from pathlib import Path

LINES_MAX = 200
"""Maximum number of lines that a call shows."""
BYTES_MAX = 64 * 1024
"""Maximum number of bytes that a call shows."""
STREAMS = ("stdout", "stderr")


class Printed:
    """Follows the files of standard output and standard error of a job, each from its beginning."""

    def __init__(self, job_id: str, logs: Path) -> None:
        self._job_id = job_id
        self._folder = logs / "user"
        self._read: dict[Path, int] = {}
        self._lines = LINES_MAX
        self._bytes = BYTES_MAX

    def show(self, is_last: bool) -> None:
        """Prints the whole lines that are new; at the end of the job also the rest of each file."""
        for stream in STREAMS:
            for file in sorted(self._folder.glob(f"{stream}/*/*.{stream}.txt")):
                if self._lines == 0:
                    return
                with file.open("rb") as opened:
                    opened.seek(self._read.get(file, 0))
                    new = opened.read(self._bytes + 1)
                whole = new if is_last else new[: new.rfind(b"\n") + 1]
                self._read[file] = self._read.get(file, 0) + len(whole)
                self._print(whole.decode("utf-8", "replace"), stream)

    def _print(self, text: str, stream: str) -> None:
        lines = text.removesuffix("\n").split("\n") if text else []
        shown = lines[: self._lines]
        self._lines -= len(shown)
        self._bytes -= len(text)
        target = sys.stdout if stream == "stdout" else sys.stderr
        for line in shown:
            print(last_state(line), file=target)
        if shown:
            target.flush()
        if len(shown) < len(lines) or self._bytes <= 0:
            self._lines = 0
            print(f'… more is in gristmill.attach("{self._job_id}").logs("user/{stream}")', flush=True)


def last_state(line: str) -> str:
    """Returns a line as a terminal finally shows it: a progress bar overwrites its line again and again."""
    return line.removesuffix("\r").rsplit("\r", 1)[-1]
