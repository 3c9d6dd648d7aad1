"""Requests of jobs through SQS and S3, each counted by a proxy between Gristmill and LocalStack.

On AWS every one of these has a price.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from counting_proxy import CountingProxy
from harness import wait_until

pytestmark = pytest.mark.timeout(400)

SECONDS_MAX = 300
BOUNDS = {
    # Descriptors are sent, received and acknowledged in batches of ten. Results are a few hundred messages.
    "queue": 4_500,
    # Chunks of the plan, ledger segments, progress and reports.
    "PUT": 400,
    # The reducer looks for cancel requests and commits of other reducers; the final pass reads each segment.
    "GET": 500,
    "LIST": 60,
    "DELETE": 20,
}
"""Maximum number of requests of each kind, for all roles together and 10 000 mini-batches."""


def job_of_files(workplace, count: int):
    folder = workplace.folder / "data"
    folder.mkdir()
    for number in range(count):
        (folder / f"{number:05}.txt").write_bytes(b"")
    return workplace.job("def run(files): return files", process_count_per_node=2)


def counts_of_requests(target, components, job, when_to_work: str) -> tuple[dict, dict, dict]:
    """Returns the result, the requests of each kind, and their sums."""
    with CountingProxy(components.aws_endpoint) as proxy:
        target.write(endpoint=proxy.url)

        def work() -> None:
            target.worker("--idle-exit", 3600)
            target.reducer()

        if when_to_work == "before":
            work()
        job_id = target.command("enqueue", job.file, expect=0).stdout.strip()
        if when_to_work == "after":
            work()
        name = f"jobs/{job_id}/result.json"
        # These requests of the test are not counted.
        result = json.loads(wait_until(lambda: time.sleep(0.5) or target.objects(name), name, SECONDS_MAX)[name])
        return result, dict(proxy.counts), proxy.by_class()


def test_ten_thousand_mini_batches_stay_within_the_request_limits(workplace, components, sqs):
    job = job_of_files(workplace, 10_000)
    # `plan --cost` expects each descriptor to travel alone. Here a reducer publishes while workers work, so that many
    # share messages as soon as the first run times are known.
    result, counts, sums = counts_of_requests(sqs, components, job, "after")
    assert result["mini_batches"] == {"total": 10_000, "succeeded": 10_000, "failed": 0}
    print(f"\nrequests of 10 000 mini-batches: {json.dumps(sums)}; in detail: {json.dumps(counts)}")
    estimate = workplace.command("plan", job.file, "--cost", "--run-seconds", 0.001, "--row-bytes", 40, "--json")
    estimated = json.loads(estimate.stdout)["requests"]
    print(f"estimated by `gristmill plan --cost`: {json.dumps(estimated)}")
    queue = sum(estimated[f"queue_{kind}"] for kind in ("sends", "receives", "deletes", "extensions"))
    assert queue / 10 <= sums["queue"] <= queue * 2, (queue, sums)
    # Their number depends on the duration of the job, and so on the machine.
    assert sums["PUT"] <= 5 * estimated["puts"] and sums["GET"] <= 5 * estimated["gets"], (estimated, sums)
    over = {kind: (count, BOUNDS[kind]) for kind, count in sums.items() if count > BOUNDS[kind]}
    assert not over, f"more requests than they may be: {over}; in detail: {counts}"


def test_quick_mini_batches_share_messages_while_workers_work(workplace, components, sqs):
    job = job_of_files(workplace, 20_000)
    result, counts, sums = counts_of_requests(sqs, components, job, "before")
    print(f"\nrequests of 20 000 mini-batches: {json.dumps(sums)}; in detail: {json.dumps(counts)}")
    assert result["mini_batches"] == {"total": 20_000, "succeeded": 20_000, "failed": 0}
    # 6 000 are needed if each message holds one descriptor.
    assert sums["queue"] < 4_000, counts
    rows = Path(result["output"]).read_text().splitlines()
    assert [row.rsplit("/", 1)[-1] for row in rows] == [f"{number:05}.txt" for number in range(20_000)]


def test_mini_batches_of_rabbitmq_are_delivered_once_and_their_checkpoints_not_looked_for(
    workplace, components, rabbitmq
):
    job = job_of_files(workplace, 2_500)
    result, counts, sums = counts_of_requests(rabbitmq, components, job, "before")
    assert result["mini_batches"] == {"total": 2_500, "succeeded": 2_500, "failed": 0}
    # A mini-batch that the broker delivers again, as if a node had died, may cost a look for its checkpoints.
    rabbitmq.write()
    overview = rabbitmq.command("logs", result["job_id"], "job_result.txt", expect=0).stdout
    assert "Deliveries lost with their node: 0." in overview
    assert sums["LIST"] <= BOUNDS["LIST"], counts
