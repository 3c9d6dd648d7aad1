"""Calls of `gristmill` in tests of the public package."""

import subprocess
import sys
import textwrap
import time

import pandas as pd
from agent import PACKAGE

import gristmill


def frame(rows=7):
    return pd.DataFrame({"x": range(rows), "name": [f"row {row}" for row in range(rows)]})


def run(function, inputs, **settings):
    return gristmill.run(function, inputs, progress=False, process_count_per_node=1, **settings)


def drive(text, fails=False):
    """Runs a driver in a separate interpreter, which has no SDK; returns its output, or its error."""
    code = f"import sys\nsys.path.insert(0, {str(PACKAGE)!r})\nimport gristmill\n" + textwrap.dedent(text)
    command = [sys.executable, "-W", "ignore", "-c", code]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert (ended.returncode != 0) == fails, ended.stdout + ended.stderr
    return ended.stderr if fails else ended.stdout


def check_errors(run, setup, said):
    """Checks what the error of each call says, in a script or driver after this setup."""
    text = f"""
    import traceback
    for call in {list(said)!r}:
        try:
            exec(call)
            print("no error")
        except Exception as error:
            print(*"".join(traceback.format_exception_only(error)).split())
    """
    errors = run(setup + text).splitlines()
    for (call, expected), error in zip(said.items(), errors, strict=True):
        assert expected in error, call


def committed():
    """Waits until one mini-batch is committed, and returns its job."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        for job in gristmill.jobs():
            if ((job.status.get("progress") or {}).get("mini_batches") or {}).get("succeeded"):
                return job
        time.sleep(0.05)
    raise AssertionError("no mini-batch within 60 s")
