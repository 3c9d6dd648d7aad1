"""Item checkpoints on a target: what a node has handed back survives it, and another node computes the rest."""

import signal
import time
from collections import Counter

import pytest

from harness import file_names, is_alive, wait_until

FILES = 20
HELD = """
    import os, time
    from recorder import record
    def run(files, context):
        record("run", node=context.node_id, items=len(files))
        for file in files:
            name = os.path.basename(file)
            if name == "012.txt" and context.node_id == "a":
                record("held")
                time.sleep(1000)
            record("item", name=name)
            yield file, f"row of {name}"
"""


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_another_node_runs_only_the_remaining_items(workplace, target, end):
    workplace.data(FILES)
    job = workplace.job(HELD, mini_batch_size=FILES)
    target.reducer()
    options = ("--process-count", 1, "--grace", 1)
    first = target.worker(*options, "--node", "a", GRISTMILL_LEASE_SECONDS="5")
    job_id = target.enqueue(job)
    held = wait_until(lambda: workplace.recorded("held"), "the first node works")
    if target.kind != "sqlite":
        wait_until(lambda: stored(target) > 0 and is_quiet(target), "its results are in the store")
    first.send(end)
    wait_until(lambda: not is_alive(held[0]["pid"]), "the process ends with its node")
    target.worker(*options, "--node", "b", GRISTMILL_LEASE_SECONDS="5")
    result = target.wait_for_end(job_id)
    names = file_names(FILES)
    assert target.output(result).decode().splitlines() == [f"row of {name}" for name in names]
    assert result["items"] == {"total": FILES, "succeeded": FILES, "failed": 0}
    assert [(fact["node"], fact["items"]) for fact in workplace.recorded("run")] == [("a", FILES), ("b", FILES - 12)]
    assert Counter(fact["name"] for fact in workplace.recorded("item")) == Counter({name: 1 for name in names})
    wait_until(lambda: stored(target) == 0, "nothing stays behind")


def stored(target):
    return sum("/checkpoints/" in name for name in target.objects("jobs"))


def is_quiet(target):
    """Returns whether nothing is uploaded for longer than the time between two uploads."""
    before = stored(target)
    time.sleep(3)
    return stored(target) == before
