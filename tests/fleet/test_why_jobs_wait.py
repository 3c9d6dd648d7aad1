"""`status` says what a job of a target waits for, in each situation."""

import signal
import time

from harness import HOLDS, wait_until


def test_hint_names_what_a_job_waits_for(workplace, sqlite):
    def enqueue(name: str, **settings: object) -> str:
        settings = {"owner": "ana", "run_invocation_timeout": 600, **settings}
        return sqlite.enqueue(workplace.job_of_its_own(name, 2, HOLDS, **settings))

    def wait_for_hint(job_id: str, begins: str) -> None:
        wait_until(lambda: (sqlite.status(job_id)["hint"] or "").startswith(begins), f"{job_id}: {begins!r}")

    first = enqueue("first")
    wait_for_hint(first, "no reducer has looked at it yet")
    following = sqlite.start("status", first, "--wait")
    # It says nothing of a job that waits for less than eight seconds.
    time.sleep(10)
    reducer = sqlite.reducer()
    wait_for_hint(first, "no worker is running")
    time.sleep(2)
    following.send(signal.SIGTERM)
    said = following.wait().stderr
    assert said.index("no reducer has looked at it yet") < said.index("no worker is running"), said
    options = ("--process-count", 1, "--node", "a1", "--label", "zone=a")
    worker = sqlite.worker(*options, AZ_BATCHAI_GPU_COUNT_FOUND="1")
    greedy = enqueue("greedy", gpus_per_process=2)
    wait_for_hint(greedy, "the only worker that fits cannot prepare the job")
    worker.wait_for_record("held")
    second = enqueue("second")
    wait_for_hint(second, "other jobs have all processes")
    assert "other jobs have all" in sqlite.command("jobs", expect=0).stdout
    picky = enqueue("picky", requires={"labels": {"zone": "b"}})
    wait_for_hint(picky, "the only worker, a1, does not meet `requires` (label zone=b)")
    for job_id in (greedy, picky):
        sqlite.command("cancel", job_id, expect=0)
    sqlite.command("target", "quota", "--each-owner", "--max-in-flight", 1, expect=0)
    wait_for_hint(second, "owner ana has 1 of 1 mini-batches in flight")
    sqlite.command("target", "quota", "--each-owner", "--max-jobs", 1, "--max-in-flight", "any", expect=0)
    wait_for_hint(enqueue("third"), "owner ana may run 1 job at a time, and runs")
    sqlite.command("target", "quota", "--max-jobs", 0, expect=0)
    wait_for_hint(enqueue("other", owner="bo"), "the target may run 0 jobs at a time")

    worker.kill()
    wait_for_hint(first, "no worker has been heard from since")
    reducer.kill()
    wait_for_hint(first, "no reducer has been heard from since")
