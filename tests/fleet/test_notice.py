"""A worker that dies, or does not run for a while: others have its mini-batches within seconds, at few requests."""

import signal
import time

from counting_proxy import CountingProxy
from harness import go, is_alive, wait_until

TARGETS = ["sqlite", "sqs"]

# Leases last 8 s. A busy machine takes longer, and leases of half a minute would take at least this long.
NOTICED_SECONDS = 20
EXTENSION = "ChangeMessageVisibilityBatch"
HELD = """
    import os, time
    from recorder import record, recorded
    def run(files, context):
        record("run", node=context.node_id, at=time.time())
        while not recorded("go"):
            time.sleep(0.1)
        return [os.path.basename(file) for file in files]
"""


def begin(workplace, target):
    """Returns the job, a worker that runs its only mini-batch, the process that does, and an idle worker."""
    workplace.data(1)
    target.reducer()
    busy = target.worker("--node", "a")
    job_id = target.enqueue(workplace.job(HELD))
    [fact] = wait_until(lambda: workplace.recorded("run"), "the first worker runs it")
    return job_id, busy, fact["pid"], target.worker("--node", "b")


def begun_on_the_other(workplace):
    """Waits until the second worker runs the mini-batch, and returns since when."""
    runs = lambda: [fact for fact in workplace.recorded("run") if fact["node"] == "b"]  # noqa: E731
    [fact] = wait_until(runs, "the other worker runs it")
    return fact["at"]


def end(workplace, target, job_id):
    """Checks that the job ends with its row, once."""
    go(workplace)
    result = target.wait_for_end(job_id)
    assert target.output(result) == b"000.txt\n"
    assert result["mini_batches"] == {"total": 1, "succeeded": 1, "failed": 0}


def test_mini_batch_of_a_killed_worker_begins_elsewhere_within_seconds(workplace, target):
    with CountingProxy(target.components.aws_endpoint) as proxy:
        if target.kind == "sqs":
            target.write(endpoint=proxy.url)
        job_id, busy, process, _ = begin(workplace, target)
        # Longer than a lease: the first worker extends it, by a request every four seconds.
        before = proxy.counts[EXTENSION]
        time.sleep(12)
        assert len(workplace.recorded("run")) == 1
        assert target.kind != "sqs" or 0 < proxy.counts[EXTENSION] - before <= 12 / 4 + 1
        killed = time.time()
        busy.send(signal.SIGKILL)
        assert begun_on_the_other(workplace) - killed < NOTICED_SECONDS
        assert not is_alive(process)
        end(workplace, target, job_id)


def test_stopped_worker_knows_on_waking_that_its_leases_have_ended(workplace, target):
    job_id, busy, process, _ = begin(workplace, target)
    busy.send(signal.SIGSTOP)
    begun_on_the_other(workplace)
    busy.send(signal.SIGCONT)
    wait_until(lambda: not is_alive(process), "the first worker stops its run")
    end(workplace, target, job_id)
    busy.send(signal.SIGTERM)
    ended = busy.wait()
    assert "this process was stopped for " in ended.stderr, str(ended)
    assert len(workplace.recorded("run")) == 2
