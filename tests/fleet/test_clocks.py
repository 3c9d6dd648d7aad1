"""Machines of a target whose clocks are an hour apart: nothing compares the clocks of two of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import HOLDS, file_names, go, wait_until

HOUR = 3600
LEASE_SECONDS = 5
SOURCE = Path(__file__).parent.parent / "support/other_clock.c"


@pytest.fixture(scope="session")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], dict[str, str]]:
    """Returns the environment of a process whose clock is some seconds ahead."""
    library = tmp_path_factory.mktemp("clock") / "other_clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"], check=True)

    def environment(ahead: int) -> dict[str, str]:
        return {"LD_PRELOAD": str(library), "CLOCK_AHEAD": str(ahead)}

    command = [sys.executable, "-c", "import time; print(time.time())"]
    told = subprocess.run(command, check=True, capture_output=True, env=os.environ | environment(HOUR)).stdout
    assert HOUR - 60 < float(told) - time.time() < HOUR + 60, "the library has no effect"
    return environment


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


@pytest.mark.parametrize("target", ["sqs", "rabbitmq"], indirect=True)
def test_mini_batch_longer_than_its_lease_runs_once(workplace, target, clock):
    """Each role has a clock of its own, and that of the queue is another one. (SQLite is for one machine.)"""
    workplace.environment["GRISTMILL_LEASE_SECONDS"] = str(LEASE_SECONDS)
    target.reducer(**clock(-2 * HOUR))
    worker, _ = (target.worker("--process-count", 1, **clock(ahead)) for ahead in [HOUR, -HOUR])
    workplace.data(12)
    job_id = target.enqueue(workplace.job(HOLDS, speculation=False))
    worker.wait_for_record("held", 2)
    held = workplace.recorded("held")
    assert len({fact["node"] for fact in held}) == 2, held
    time.sleep(2.5 * LEASE_SECONDS)
    assert workplace.recorded("held") == held, "neither was lost"
    go(workplace)
    assert target.lines(job_id) == file_names(12)
    runs = sorted(fact["file"] for fact in workplace.recorded("run"))
    assert runs == file_names(12), "each ran once"
