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
    """Rejects objects in folders of jobs until the test allows them."""

    def __init__(self, *folders: str) -> None:
        self.folders, self.is_shut = folders, True

    def __call__(self, _: random.Random, request: Request) -> Fault | None:
        is_in = any(f"/{folder}/" in request.path for folder in self.folders)
        if self.is_shut and request.method == "PUT" and is_in:
            return Fault("objects that were rejected", arrivals=0, answer=DENIED)
        return None


def said(running, text: str) -> str:
    """Returns the next line of the log with this text."""
    return next((line for line in map(bytes.decode, running.process.stderr) if text in line), "")


@pytest.mark.parametrize("target", ["sqs", "rabbitmq"], indirect=True)
def test_roles_that_fail_at_a_job_get_the_messages_again_that_they_held(workplace, target):
    """The worker cannot write the rows of one job, and the reducer not the ledger of the other: each tries for two
    minutes, and goes on without a restart."""
    large = target.enqueue(workplace.job_of_its_own("large", COUNT, SCRIPT))
    small = target.enqueue(workplace.job_of_its_own("small", COUNT, "def run(files): return ['row']"))
    policy = Rejects("parts", "ledger")
    with AwsProxy(target.components.aws_endpoint, policy, 0) as proxy:
        target.write(endpoint=proxy.url)
        worker, reducer = target.worker("--process-count", 2), target.reducer()
        target.write()
        assert "the queue redelivers its work: write the rows of mini-batch" in said(worker, "the agent failed")
        assert said(reducer, "the job cannot be served")
        assert proxy.faults["objects that were rejected"]
        policy.is_shut = False
        assert [line.split()[0] for line in target.lines(large)] == file_names(COUNT)
        assert target.lines(small) == ["row"] * COUNT
        assert worker.process.poll() is None and reducer.process.poll() is None
