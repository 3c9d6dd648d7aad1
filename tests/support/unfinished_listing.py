"""A job on a target whose inputs are still being listed."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from harness import RECORDS_ITS_FILES, Running, Workplace
from http_server import Request
from proxy import AwsProxy, Fault
from targets import Target

COUNT = 1100
"""Inputs: more than the 1000 objects of one page of a listing."""
CHUNK = 512
"""Mini-batches of one chunk of a plan."""
NAMES = [f"{number:04}.txt" for number in range(COUNT)]


class HoldsListing:
    """A policy that delays every page after the first one until the test allows it."""

    def __init__(self) -> None:
        self.is_asked, self.may_go_on = threading.Event(), threading.Event()

    def __call__(self, _: random.Random, request: Request) -> Fault | None:
        if request.method != "GET" or "continuation-token=" not in request.path or "inputs" not in request.path:
            return None
        self.is_asked.set()
        self.may_go_on.wait()
        return Fault("pages that came late")


@contextlib.contextmanager
def unfinished_listing(workplace: Workplace, target: Target) -> Iterator[tuple[str, Running]]:
    """Yields the id of a job and the command that enqueues it, which lists the inputs until the end of the block."""
    s3 = target.components.client("s3")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda name: s3.put_object(Bucket=target.prefix, Key=f"inputs/{name}", Body=b"x"), NAMES))
    inputs = [{"name": "data", "type": "file", "path": f"s3://{target.prefix}/inputs/"}]
    job = workplace.job(RECORDS_ITS_FILES, inputs=inputs, speculation=False)
    target.reducer()
    target.worker("--process-count", 2)
    listing = HoldsListing()
    with AwsProxy(target.components.aws_endpoint, listing, 0) as proxy:
        target.write(endpoint=proxy.url)
        enqueuing = target.start("enqueue", job.file)
        try:
            assert listing.is_asked.wait(60), "the second page"
            target.write()
            (job_id,) = (name.removeprefix("open/") for name in target.objects("open"))
            yield job_id, enqueuing
        finally:
            listing.may_go_on.set()
        ended = enqueuing.wait()
        assert ended.exit_status == 0, str(ended)
