"""What calls raise, and how they warn. Every message is complete in its first line; details follow."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any


class GristmillError(Exception):
    """A command of the engine failed; the message says why, and what to do."""


class InvalidJob(GristmillError, ValueError):
    """The job is invalid, and nothing was started.

    ``problems`` lists each problem with ``file``, ``line``, ``field``, ``message``, ``found`` and ``allowed``.
    """

    def __init__(self, message: str, problems: list[dict[str, Any]] | None = None) -> None:
        super().__init__(message)
        self.problems = problems or []


class JobBusy(GristmillError):
    """Another process works on this job, or another job writes the same output.

    ``job_id`` is the job that is in the way, if it is known.
    """

    def __init__(self, message: str, job_id: str | None = None) -> None:
        super().__init__(message)
        self.job_id = job_id


def at_call(error: Exception) -> Exception:
    """Returns the error. If this package raised it on purpose, its message says all, and its traceback begins here."""
    import traceback

    (*_, last) = traceback.extract_tb(error.__traceback__)
    if os.path.dirname(last.filename) == os.path.dirname(__file__) and (last.line or "").startswith("raise "):
        return error.with_traceback(None)
    return error


class GristmillWarning(UserWarning):
    """Something in a job is doubtful; the job runs."""


def warn(text: str) -> None:
    """Warns at the line of the caller of this package: once for each text, unless the user's filters say otherwise."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "gristmill":
        frame, level = frame.f_back, level + 1
    warnings.warn(text, GristmillWarning, stacklevel=level)
