"""A worker that cannot go on with a job, and can later: it gets the mini-batches again that it held."""

from __future__ import annotations

import random

import pytest

from harness import file_names, wait_until
from http_server import Request
from proxy import AwsProxy, Fault

COUNT = 20
DENIED = (
    403,
    {"Content-Type": "application/xml"},
    b"<Error><Code>AccessDenied</Code><Message>Not now.</Message></Error>",
)

SCRIPT = """
    import os
    def run(files):
        # Too much for a message: rows go to the store.
        return [os.path.basename(files[0]) + " " + "x" * 100_000]
"""


class RejectsParts:
    """Lets a worker do everything except to store rows, as long as the test says so."""

    def __init__(self) -> None:
        self.is_shut = True

    def __call__(self, _: random.Random, request: Request) -> Fault | None:
        if self.is_shut and request.method == "PUT" and "/parts/" in request.path:
            return Fault("parts that were rejected", arrivals=0, answer=DENIED)
        return None


@pytest.mark.parametrize("target", ["sqs", "rabbitmq"], indirect=True)
def test_worker_gets_the_mini_batches_again_that_it_held(workplace, target):
    workplace.data(COUNT)
    job_id = target.enqueue(workplace.job(SCRIPT, speculation=False))
    target.reducer()
    policy = RejectsParts()
    with AwsProxy(target.components.aws_endpoint, policy, 0) as proxy:
        target.write(endpoint=proxy.url)
        worker = target.worker("--process-count", 2)
        target.write()
        told = next((line for line in map(bytes.decode, worker.process.stderr) if "the agent failed" in line), "")
        assert "the queue redelivers its work: write the rows of mini-batch" in told
        assert proxy.faults["parts that were rejected"]
        policy.is_shut = False
        rows = [line.split()[0] for line in target.lines(job_id)]
        assert rows == file_names(COUNT)
        assert worker.process.poll() is None, "the same worker"
        wait_until(lambda: target.waiting("tasks") == 0, "an empty queue")
