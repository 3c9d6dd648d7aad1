"""Errors and warnings of calls. The first line of a message is complete; details follow."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any


class GristmillError(Exception):
    """A command of the engine failed; the message has the reason and the remedy."""


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
    """Returns the error. If this package raised it on purpose, its message is complete, and it has no traceback."""
    import traceback

    (*_, last) = traceback.extract_tb(error.__traceback__)
    if os.path.dirname(last.filename) == os.path.dirname(__file__) and (last.line or "").startswith("raise "):
        return error.with_traceback(None)
    return error


class GristmillWarning(UserWarning):
    """Something in a job may not be as intended; the job runs."""


def warn(text: str) -> None:
    """Warns at the line of the caller of this package: once for each text, unless the user's filters differ."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "gristmill":
        frame, level = frame.f_back, level + 1
    warnings.warn(text, GristmillWarning, stacklevel=level)
