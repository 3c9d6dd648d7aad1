"""Machines of a target whose clocks are an hour apart: nothing compares the clocks of two of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import wait_until

HOUR = 3600
SOURCE = Path(__file__).parent.parent / "support/other_clock.c"

HOLDS = """
    import os
    from recorder import record, wait_for
    def run(files):
        record("began")
        wait_for(lambda: os.path.exists(os.environ["RELEASE"]))
        return [os.path.basename(files[0])]
"""


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
    release = workplace.folder / "release"
    job_id = sqlite.enqueue(workplace.job(HOLDS, environment_variables={"RELEASE": str(release)}))
    worker.wait_for_record("began")

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
    release.touch()
    sqlite.wait_for_end(job_id)


def test_clean_removes_no_worker_that_runs(workplace, sqlite, clock):
    entry = workplace.folder / sqlite.prefix / "store/workers/here"
    sqlite.worker("--process-count", 1, "--node", "here")
    wait_until(entry.exists, "the entry of the worker")
    for ahead in [-HOUR, HOUR]:
        sqlite.command("clean", "--older-than", "1d", expect=0, **clock(ahead))
        assert entry.exists(), ahead


def test_owner_has_its_limit_on_workers_whose_clocks_differ(workplace, rabbitmq, clock):
    """One worker is an hour ahead, another an hour behind: each has a third of what the owner may have in flight."""
    workplace.data(24)
    rabbitmq.command("target", "quota", "--each-owner", "--max-in-flight", 3, expect=0)
    script = """
        from recorder import record, recorded, wait_for
        def run(files):
            record("began")
            wait_for(lambda: len({fact["pid"] for fact in recorded("began")}) >= 3)
            record("ended")
            return ["row"]
    """
    clocks = {"ahead": clock(HOUR), "behind": clock(-HOUR), "right": {}}
    workers = {name: rabbitmq.worker("--process-count", 4, "--node", name, **env) for name, env in clocks.items()}
    wait_until(lambda: len(rabbitmq.objects("workers/")) == 3, "the entries of the workers")
    # They leave their entries, which the next ones read before they begin.
    for worker in workers.values():
        worker.process.kill()
    for name, environment in clocks.items():
        rabbitmq.worker("--process-count", 4, "--node", name, **environment)
    rabbitmq.reducer()
    rabbitmq.wait_for_end(rabbitmq.enqueue(workplace.job(script, speculation=False)))
    facts = [json.loads(line) for line in workplace.record_file.read_text().splitlines()]
    in_flight, most = set(), 0
    for fact in facts:
        (in_flight.add if fact["event"] == "began" else in_flight.discard)(fact["pid"])
        most = max(most, len(in_flight))
    assert most == 3
    assert len({fact["pid"] for fact in facts}) == 3
