"""The ``gristmill`` command as a child process."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any, NoReturn

from gristmill.api.errors import GristmillError, InvalidJob, JobBusy

INVALID, FAILED, BUSY, CANCELED = 2, 42, 75, 130
PLACE = re.compile(r"^(gristmill: |standard input:(\d+:)? )", re.MULTILINE)
"""The beginning of a message on a terminal, which means nothing to a caller in Python."""


def executable() -> str:
    """Returns the path of the command: that of this package's build or wheel, else the first on ``PATH``."""
    packages = Path(__file__).resolve().parents[2]
    for path in (packages.parent / "gristmill", Path(sysconfig.get_path("scripts"), "gristmill")):
        if os.access(path, os.X_OK) and path.is_file():
            return str(path)
    found = shutil.which("gristmill")
    if found is None:
        raise GristmillError("the command `gristmill` was not found: install the wheel, or put the command on PATH")
    return found


def environment() -> dict[str, str]:
    """Returns the environment of a command. The interpreter of this process runs jobs that name no other."""
    return {"GRISTMILL_PYTHON": sys.executable, **os.environ}


def call(*arguments: str, text: str | None = None) -> str:
    """Runs a command to its end, and returns what it printed. An exit status other than 0 raises."""
    ended = subprocess.run(
        [executable(), *arguments],
        env=environment(),
        input=text,
        stdin=subprocess.DEVNULL if text is None else None,
        capture_output=True,
        text=True,
        errors="replace",
    )
    if ended.returncode != 0:
        try:
            answer = json.loads(ended.stdout)
        except ValueError:
            answer = None
        fail(ended.returncode, answer if isinstance(answer, dict) else {}, ended.stderr)
    return ended.stdout


def fail(status: int, answer: dict[str, Any], stderr: str) -> NoReturn:
    """Raises the error of a command that ended with this exit status, after it printed this object."""
    stderr = PLACE.sub("", stderr.strip())
    message = stderr or answer.get("error") or f"the command ended with exit status {status}"
    if status == INVALID:
        raise InvalidJob(message, answer.get("problems"))
    if status == BUSY:
        raise JobBusy(answer.get("error") or message, answer.get("job_id"))
    raise GristmillError(answer.get("error") or message)
