"""Workers and reducers begin with a job while its inputs are still being listed."""

from __future__ import annotations

from collections import Counter

import pytest

from harness import wait_until
from unfinished_listing import CHUNK, NAMES, unfinished_listing


@pytest.mark.parametrize("target", ["sqs", "rabbitmq"], indirect=True)
def test_mini_batches_run_and_are_committed_before_the_inputs_are_listed(workplace, target):
    with unfinished_listing(workplace, target) as (job_id, enqueuing):

        def progress():
            progress = target.status(job_id)["progress"]
            return progress if progress and progress["mini_batches"]["succeeded"] == CHUNK else None

        assert not wait_until(progress, "all mini-batches of the first chunk")["planned"]
        assert not target.objects(f"jobs/{job_id}/plan/complete.json")
        assert len(workplace.recorded("run")) == CHUNK
        assert enqueuing.process.poll() is None, "the command still lists the inputs"
        assert target.status(job_id)["result"] is None
    assert target.lines(job_id) == NAMES
    assert Counter(fact["file"] for fact in workplace.recorded("run")) == dict.fromkeys(NAMES, 1)
