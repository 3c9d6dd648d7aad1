"""What `status` says in each situation has a section in the page "Why does my job wait?"."""

from __future__ import annotations

import json
import signal

from harness import HOLDS, Workplace, wait_until
from targets import Target
from waiting_page import explains, fixed


def wait_for_hint(target: Target, job_id: str, begins: str) -> None:
    """Waits until the job waits for this. The page explains that, and whatever it waits for until then."""

    def found() -> bool:
        hint = target.status(job_id)["hint"] or ""
        assert not hint or explains(hint), f"the page has no section for: {hint}"
        return hint.startswith(begins)

    wait_until(found, f"that {job_id} waits for {begins!r}")


def job(workplace: Workplace, name: str, **settings: object):
    settings = {"owner": "ana", "run_invocation_timeout": 600, **settings}
    return workplace.job_of_its_own(name, 2, HOLDS, **settings)


def test_page_explains_what_jobs_of_a_target_wait_for(workplace: Workplace, sqlite: Target) -> None:
    first = sqlite.enqueue(job(workplace, "first"))
    wait_for_hint(sqlite, first, "no reducer has looked at it yet")
    reducer = sqlite.reducer()
    wait_for_hint(sqlite, first, "no worker is running")
    worker = sqlite.worker("--process-count", 1, "--node", "a1", "--label", "zone=a")
    worker.wait_for_record("held")

    second = sqlite.enqueue(job(workplace, "second"))
    wait_for_hint(sqlite, second, "other jobs have all processes")
    picky = sqlite.enqueue(job(workplace, "picky", requires={"labels": {"zone": "b"}}))
    wait_for_hint(sqlite, picky, "the only worker, a1, does not meet `requires`")
    sqlite.command("target", "quota", "--each-owner", "--max-in-flight", 1, expect=0)
    wait_for_hint(sqlite, second, "owner ana has 1 of 1 mini-batches in flight")
    sqlite.command("target", "quota", "--each-owner", "--max-jobs", 1, "--max-in-flight", "any", expect=0)
    third = sqlite.enqueue(job(workplace, "third"))
    wait_for_hint(sqlite, third, "owner ana may run 1 job at a time, and runs")
    sqlite.command("target", "quota", "--max-jobs", 0, expect=0)
    other = sqlite.enqueue(job(workplace, "other", owner="bo"))
    wait_for_hint(sqlite, other, "the target may run 0 jobs at a time")

    worker.kill()
    wait_for_hint(sqlite, first, "no worker has been heard from since")
    reducer.kill()
    wait_for_hint(sqlite, first, "no reducer has been heard from since")


def test_page_explains_a_job_that_no_worker_can_prepare(workplace: Workplace, sqlite: Target) -> None:
    sqlite.reducer()
    sqlite.worker("--process-count", 1, "--node", "a1", AZ_BATCHAI_GPU_COUNT_FOUND="1")
    greedy = sqlite.enqueue(job(workplace, "greedy", gpus_per_process=2))
    wait_for_hint(sqlite, greedy, "the only worker that fits cannot prepare the job")
    sqlite.command("cancel", greedy, expect=0)


def test_page_explains_what_jobs_of_this_machine_wait_for(workplace: Workplace) -> None:
    running = workplace.job_of_its_own("local", 2, HOLDS, run_invocation_timeout=600).start()
    running.wait_for_record("held")
    (job_id,) = workplace.job_ids()

    def hint() -> str:
        return json.loads(workplace.command("status", job_id, "--json").stdout)["hint"] or ""

    running.send(signal.SIGSTOP)
    stopped = wait_until(hint, "a process that is silent")
    assert fixed(stopped).startswith("the process that runs it has not been heard from since") and explains(stopped)
    running.kill()
    ended = wait_until(lambda: (said := hint()) != stopped and "has ended" in said and said, "its end")
    assert ended.startswith("the process that ran it has ended") and explains(ended)


def test_unknown_sentence_is_not_explained() -> None:
    assert not explains("no broker is running; start one with: gristmill broker")
    assert not explains("none of the 3 workers likes the job")
