"""A role that fails at a job and recovers receives again the messages that it held."""

from __future__ import annotations

import random

import pytest

from harness import file_names
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


class Rejects:
    """Rejects objects in one folder of a job until the test allows them."""

    def __init__(self, folder: str) -> None:
        self.folder, self.is_shut = folder, True

    def __call__(self, _: random.Random, request: Request) -> Fault | None:
        if self.is_shut and request.method == "PUT" and f"/{self.folder}/" in request.path:
            return Fault("objects that were rejected", arrivals=0, answer=DENIED)
        return None


def said(running, text: str) -> str:
    """Returns the next line of the log with this text."""
    return next((line for line in map(bytes.decode, running.process.stderr) if text in line), "")


@pytest.mark.parametrize("target", ["sqs", "rabbitmq"], indirect=True)
def test_worker_gets_the_mini_batches_again_that_it_held(workplace, target):
    workplace.data(COUNT)
    job_id = target.enqueue(workplace.job(SCRIPT, speculation=False))
    target.reducer()
    policy = Rejects("parts")
    with AwsProxy(target.components.aws_endpoint, policy, 0) as proxy:
        target.write(endpoint=proxy.url)
        worker = target.worker("--process-count", 2)
        target.write()
        told = said(worker, "the agent failed")
        assert "the queue redelivers its work: write the rows of mini-batch" in told
        policy.is_shut = False
        rows = [line.split()[0] for line in target.lines(job_id)]
        assert rows == file_names(COUNT)
        assert worker.process.poll() is None, "the worker has not restarted"


@pytest.mark.parametrize("target", ["sqs", "rabbitmq"], indirect=True)
def test_reducer_gets_the_outcomes_again_that_it_held(workplace, target):
    workplace.data(COUNT)
    job_id = target.enqueue(workplace.job("def run(files): return ['row']", speculation=False))
    target.worker("--process-count", 2)
    policy = Rejects("ledger")
    with AwsProxy(target.components.aws_endpoint, policy, 0) as proxy:
        target.write(endpoint=proxy.url)
        reducer = target.reducer()
        target.write()
        assert said(reducer, "the job cannot be served")
        assert proxy.faults["objects that were rejected"]
        policy.is_shut = False
        assert target.lines(job_id) == ["row"] * COUNT
        assert reducer.process.poll() is None, "the reducer has not restarted"
