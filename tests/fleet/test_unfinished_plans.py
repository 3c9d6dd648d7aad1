"""Workers and reducers begin with a job while its inputs are still being listed."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from harness import RECORDS_ITS_FILES, wait_until
from proxy import AwsProxy, HoldsListing

# A page of a listing has 1000 objects, and a chunk of a plan 512 mini-batches.
COUNT = 1100
CHUNK = 512


@pytest.mark.parametrize("target", ["sqs", "rabbitmq"], indirect=True)
def test_mini_batches_run_and_are_committed_before_the_inputs_are_listed(workplace, target):
    names = [f"{number:04}.txt" for number in range(COUNT)]
    s3 = target.components.client("s3")
    with ThreadPoolExecutor(4) as pool:
        put = [pool.submit(s3.put_object, Bucket=target.prefix, Key=f"inputs/{name}", Body=b"x") for name in names]
    assert all(one.result() for one in put)
    inputs = [{"name": "data", "type": "file", "path": f"s3://{target.prefix}/inputs/"}]
    job = workplace.job(RECORDS_ITS_FILES, inputs=inputs, speculation=False)
    target.reducer()
    target.worker("--process-count", 2)
    listing = HoldsListing("inputs")
    with AwsProxy(target.components.aws_endpoint, listing, 0) as proxy:
        target.write(endpoint=proxy.url)
        enqueuing = target.start("enqueue", job.file)
        try:
            assert listing.is_asked.wait(60), "the second page"
            target.write()
            (job_id,) = (name.removeprefix("open/") for name in target.objects("open"))

            def progress():
                progress = target.status(job_id)["progress"]
                return progress if progress and progress["mini_batches"]["succeeded"] == CHUNK else None

            assert not wait_until(progress, "all mini-batches of the first chunk")["planned"]
            assert not target.objects(f"jobs/{job_id}/plan/complete.json")
            assert len(workplace.recorded("run")) == CHUNK
            assert enqueuing.process.poll() is None, "the command still lists the inputs"
            assert target.status(job_id)["result"] is None
        finally:
            listing.may_go_on.set()
        ended = enqueuing.wait()
        assert ended.exit_status == 0, str(ended)
    assert target.lines(job_id) == names
    assert Counter(fact["file"] for fact in workplace.recorded("run")) == dict.fromkeys(names, 1)
