"""`status` says what a job of a target waits for. Other situations are in `tests/commands/test_portal_states.py`."""

import signal
import time

from harness import HOLDS, wait_until


def test_hint_names_what_a_job_waits_for(workplace, sqlite):
    job_id = sqlite.enqueue(workplace.job_of_its_own("greedy", 2, HOLDS, gpus_per_process=2))

    def wait_for_hint(begins: str) -> None:
        wait_until(lambda: (sqlite.status(job_id)["hint"] or "").startswith(begins), begins)

    wait_for_hint("no reducer has looked at it yet")
    following = sqlite.start("status", job_id, "--wait")
    # It says nothing of a job that waits for less than eight seconds.
    time.sleep(10)
    sqlite.reducer()
    wait_for_hint("no worker is running")
    time.sleep(2)
    following.send(signal.SIGTERM)
    said = following.wait().stderr
    assert said.index("no reducer has looked at it yet") < said.index("no worker is running"), said
    sqlite.worker("--process-count", 1, AZ_BATCHAI_GPU_COUNT_FOUND="1")
    wait_for_hint("the only worker that fits cannot prepare the job")
