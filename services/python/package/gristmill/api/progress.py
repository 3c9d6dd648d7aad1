"""Progress of a job: a bar in notebooks and on terminals, lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any

FIRST = 0.5
"""Seconds after which a bar appears: quick jobs need none."""
EVERY = 0.5
"""Seconds between two checks of the job."""
LINE_EVERY = 10.0
"""Seconds between two lines where no bar can be drawn."""


# Without the rate of tqdm, which would differ from that of the job.
BAR = "{l_bar}{bar}| {n_fmt}/{total_fmt}{postfix}"
COUNT = "{desc}: {n_fmt} {unit}{postfix}"


class Bar:
    """A ``tqdm`` bar over the mini-batches of a job."""

    def __init__(self, job_id: str, shown: bool) -> None:
        self._job_id = job_id
        self._shown = shown
        self._next = time.monotonic() + FIRST
        self._line = 0.0
        self._bar: Any = None
        self._hint: str | None = None

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def is_due(self) -> bool:
        """Returns whether the job should be checked again."""
        return self._shown and time.monotonic() >= self._next

    def show(self, status: dict[str, Any]) -> None:
        """Shows the status of the job."""
        self._next = time.monotonic() + EVERY
        progress = status.get("progress")
        if not self._shown or progress is None:
            return
        counts = progress["mini_batches"]
        if self._bar is None:
            self._bar = _bar(self._job_id, counts["total"] or None)
        if self._bar is None:
            return self._print(counts, status.get("hint"))
        self._bar.total = counts["total"] or None
        self._bar.n = counts["succeeded"] + counts["failed"]
        self._bar.bar_format = _format(counts["total"])
        self._bar.set_postfix_str(_rest(progress, status.get("hint")))
        self._bar.refresh()

    def _print(self, counts: dict[str, int], hint: str | None) -> None:
        now = time.monotonic()
        if now - self._line < LINE_EVERY and hint == self._hint:
            return
        self._line, self._hint = now, hint
        done = counts["succeeded"] + counts["failed"]
        text = f"{self._job_id}: {done} of {counts['total']} mini-batches, {counts['failed']} failed"
        if not counts["total"]:
            text = f"{self._job_id}: {done} mini-batches, still planning" if done else f"{self._job_id} is starting"
        print(f"{text}; {hint}" if hint else text, file=sys.stderr, flush=True)


def in_notebook() -> bool:
    """Returns whether this process is the kernel of a notebook, which shows standard error in red."""
    return "ipykernel" in sys.modules


def note(text: str) -> None:
    """Shows a line that is not a warning."""
    print(text, file=sys.stdout if in_notebook() else sys.stderr, flush=True)


def _rest(progress: dict[str, Any], hint: str | None) -> str:
    """Returns the reason why a job waits, or else its rate, its remaining time and its failures."""
    from gristmill._native import duration, rate

    if hint:
        return hint
    parts = []
    if progress.get("rate") is not None:
        parts.append(rate(progress["rate"]))
    if progress.get("remaining_seconds") is not None:
        parts.append(f"eta {duration(progress['remaining_seconds'])}")
    if failed := progress["mini_batches"]["failed"]:
        parts.append(f"{failed} failed")
    return ", ".join(parts)


def _format(total: int | None) -> str:
    return BAR if total else COUNT


def _bar(job_id: str, total: int | None) -> Any:
    if not in_notebook() and not sys.stderr.isatty():
        return None
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return None
    return tqdm(desc=job_id, unit="mini-batch", total=total, bar_format=_format(total))
