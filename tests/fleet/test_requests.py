"""Requests of a job: 10 000 mini-batches through SQS and S3, with every request counted.

A proxy between Gristmill and LocalStack counts; on AWS every one of these has a price.
"""

from __future__ import annotations

import json
import time

import pytest

from counting_proxy import CountingProxy
from harness import wait_until

pytestmark = pytest.mark.timeout(400)

MINI_BATCHES = 10_000
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
"""Maximum number of requests of each kind, for all roles together."""


def test_ten_thousand_mini_batches_stay_within_the_request_limits(workplace, components, sqs):
    folder = workplace.folder / "data"
    folder.mkdir()
    for number in range(MINI_BATCHES):
        (folder / f"{number:05}.txt").write_bytes(b"")
    job = workplace.job("def run(files): return files", process_count_per_node=2)
    with CountingProxy(components.aws_endpoint) as proxy:
        sqs.write(endpoint=proxy.url)
        sqs.worker("--idle-exit", 3600)
        sqs.reducer()
        job_id = sqs.command("enqueue", job.file, expect=0).stdout.strip()
        name = f"jobs/{job_id}/result.json"
        # These requests of the test are not counted.
        result = json.loads(wait_until(lambda: time.sleep(0.5) or sqs.objects(name), name, SECONDS_MAX)[name])
        counts, sums = dict(proxy.counts), proxy.by_class()
    assert result["mini_batches"] == {"total": MINI_BATCHES, "succeeded": MINI_BATCHES, "failed": 0}
    print(f"\nrequests of {MINI_BATCHES} mini-batches: {json.dumps(sums)}; in detail: {json.dumps(counts)}")
    estimate = workplace.command("plan", job.file, "--cost", "--run-seconds", 0.001, "--row-bytes", 40, "--json")
    estimated = json.loads(estimate.stdout)["requests"]
    print(f"estimated by `gristmill plan --cost`: {json.dumps(estimated)}")
    queue = sum(estimated[f"queue_{kind}"] for kind in ("sends", "receives", "deletes", "extensions"))
    assert queue / 2 <= sums["queue"] <= queue * 2, (queue, sums)
    # Their number depends on the duration of the job, and so on the machine.
    assert sums["PUT"] <= 5 * estimated["puts"] and sums["GET"] <= 5 * estimated["gets"], (estimated, sums)
    over = {kind: (count, BOUNDS[kind]) for kind, count in sums.items() if count > BOUNDS[kind]}
    assert not over, f"more requests than they may be: {over}; in detail: {counts}"
