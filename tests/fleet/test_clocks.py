"""Machines of a target whose clocks are an hour apart: nothing compares the clocks of two of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import HOLDS, go, wait_until

HOUR = 3600
SOURCE = Path(__file__).parent.parent / "support/other_clock.c"


@pytest.fixture(scope="session")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], dict[str, str]]:
    """Returns the environment of a process whose clock is some seconds ahead."""
    library = tmp_path_factory.mktemp("clock") / "other_clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"], check=True)
    return lambda ahead: {"LD_PRELOAD": str(library), "CLOCK_AHEAD": str(ahead)}


def test_clock_of_a_process_can_be_set(clock):
    command = [sys.executable, "-c", "import time; print(time.time())"]
    now = float(subprocess.run(command, check=True, capture_output=True).stdout)
    ahead = float(subprocess.run(command, check=True, capture_output=True, env=os.environ | clock(HOUR)).stdout)
    assert HOUR <= ahead - now < HOUR + 60


def test_status_does_not_depend_on_the_clock_of_its_machine(workplace, sqlite, clock):
    workplace.data(1)
    reducer = sqlite.reducer()
    worker = sqlite.worker("--process-count", 1)
    job_id = sqlite.enqueue(workplace.job(HOLDS))
    worker.wait_for_record("held")

    def seen(ahead: int) -> dict:
        return json.loads(sqlite.command("status", job_id, "--json", expect=0, **clock(ahead)).stdout)

    wait_until(lambda: seen(0)["state"] == "Running", "the progress of the job")
    for ahead in [-HOUR, HOUR]:
        assert (seen(ahead)["state"], seen(ahead)["hint"]) == ("Running", None), ahead
    reducer.process.kill()
    for ahead in [-HOUR, HOUR]:
        told = wait_until(lambda ahead=ahead: seen(ahead)["hint"], f"the silence of the reducer, {ahead} s ahead")
        assert told.startswith("no reducer has been heard from since "), told
        assert "min ago)" not in told and "h ago)" not in told, told
    sqlite.reducer(**clock(HOUR))
    wait_until(lambda: seen(0)["state"] == "Running" and not seen(0)["hint"], "the progress of another reducer")
    go(workplace)
    sqlite.wait_for_end(job_id)
