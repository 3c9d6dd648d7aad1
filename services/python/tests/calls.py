"""Calls of `gristmill` in tests of the public package."""

import time

import pandas as pd

import gristmill


def frame(rows=7):
    return pd.DataFrame({"x": range(rows), "name": [f"row {row}" for row in range(rows)]})


def run(function, inputs, **settings):
    return gristmill.run(function, inputs, progress=False, process_count_per_node=1, **settings)


def committed():
    """Waits until one mini-batch is committed, and returns its job."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        for job in gristmill.jobs():
            if ((job.status.get("progress") or {}).get("mini_batches") or {}).get("succeeded"):
                return job
        time.sleep(0.05)
    raise AssertionError("no mini-batch within 60 s")
