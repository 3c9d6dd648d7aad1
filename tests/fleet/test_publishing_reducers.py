"""A reducer that dies while it publishes a job."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from harness import RECORDS_ITS_FILES, file_names, wait_until
from http_server import Request
from proxy import AwsProxy, Fault, Proxy
from targets import Target

COUNT = 200
# Some of the messages fit into these.
BATCHES = 5
BYTES = 40_000


class StopsSending:
    """Forwards some batches of messages to task queues of the target, and then answers nothing.

    Forwards no results: SQS may answer the last request of a killed reducer, and then hides them for a minute.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix, self.left = prefix, BATCHES
        self.is_full, self.is_over = threading.Event(), threading.Event()

    def __call__(self, _: random.Random, request: Request) -> Fault | None:
        action = request.headers.get("X-Amz-Target", "").removeprefix("AmazonSQS.")
        if action not in ("SendMessageBatch", "ReceiveMessage"):
            return None
        queue = json.loads(request.body)["QueueUrl"].rpartition("/")[2]
        match action, queue.startswith(self.prefix) and queue.rpartition("-")[2]:
            case "ReceiveMessage", "results":
                self.is_over.wait(1)
                return Fault("receives of results", arrivals=0, answer=(200, {}, b"{}"))
            case "SendMessageBatch", "tasks":
                self.left -= 1
                if self.left >= 0:
                    return None
                self.is_full.set()
                self.is_over.wait()
                return Fault("batches that did not arrive", arrivals=0, answer=(503, {}, b""))
        return None


@pytest.fixture
def narrow_way(target: Target) -> Iterator[tuple[list[str], Callable[[], bool]]]:
    """Flags of a role that can send only some messages, and whether it has."""
    if target.kind == "sqs":
        policy = StopsSending(f"{target.prefix}-")
        proxy = AwsProxy(target.components.aws_endpoint, policy, 0)
        settings, is_full = {"endpoint": proxy.url}, policy.is_full
    else:
        port = target.components.amqp_port
        proxy = Proxy(port)
        proxy.upload_max = BYTES
        settings, is_full = {"queue": target.settings["queue"].replace(f":{port}/", f":{proxy.port}/")}, proxy.is_full
    target.write(**settings)
    config = (target.workplace.folder / "gristmill.toml").rename(target.workplace.folder / "narrow.toml")
    target.write()
    yield ["--config", str(config)], is_full.is_set
    if target.kind == "sqs":
        policy.is_over.set()
    proxy.close()


@pytest.mark.parametrize("target", ["sqs", "rabbitmq"], indirect=True)
def test_reducer_killed_while_it_publishes_a_job_is_replaced(workplace, target, narrow_way):
    """Another reducer takes over after some seconds, and does not publish again what has ended by then."""
    flags, is_full = narrow_way
    killed = target.reducer(*flags)
    target.worker("--process-count", 2)
    job_id = target.enqueue(workplace.job_of_its_own("job", COUNT, RECORDS_ITS_FILES))
    wait_until(is_full, "a reducer that publishes the job")
    wait_until(lambda: workplace.recorded("run"), "the first mini-batches")
    killed.kill()
    wait_until(lambda: target.waiting("tasks") == 0, "an empty queue")
    assert len(workplace.recorded("run")) < COUNT, "a part was published"
    target.reducer()
    assert target.lines(job_id) == file_names(COUNT)
    runs = Counter(fact["file"] for fact in workplace.recorded("run"))
    assert runs == dict.fromkeys(file_names(COUNT), 1), "each mini-batch ran once"
