"""A retry of a job that runs: what has failed runs again, and what is in flight stays as it is."""

import pytest

from harness import ERROR, file_names, go, wait_until
from portal_client import Portal

HELD = """
    import os
    from recorder import record, recorded, wait_for
    def is_of_the_first_four():
        for number in range(4):
            try:
                os.close(os.open(f"{os.environ['RECORD']}.{number}", os.O_CREAT | os.O_EXCL))
                return True
            except FileExistsError:
                pass
        return False
    def run(files):
        record("run", file=os.path.basename(files[0]))
        if not is_of_the_first_four():
            wait_for(lambda: recorded("go"))
        return [os.path.basename(files[0])]
"""
"""Four mini-batches end, whichever the queue delivers first; the others are held until `go`."""
COUNT = 24


def runs(workplace):
    return sorted(fact["file"] for fact in workplace.recorded("run"))


def mini_batches(target, job_id):
    return (target.status(job_id)["progress"] or {}).get("mini_batches", {})


def published(target, count):
    wait_until(lambda: target.waiting("tasks") == count, f"{count} messages")


def test_retries_of_a_running_job_publish_nothing(workplace, target):
    """They are called before a reducer starts, before a worker does, while mini-batches run, and until the end."""
    workplace.data(COUNT)
    job_id = target.enqueue(workplace.job(HELD, speculation=False, run_invocation_timeout=600))

    def retry(*arguments):
        retried = target.command("retry", job_id, *arguments, expect=0)
        assert "there is nothing to do" in retried.stderr and "failed" not in retried.stderr, str(retried)

    retry()
    for change in (("--source-directory", "code"), ("--set", "output_format=csv")):
        refused = target.command("retry", job_id, *change, expect=ERROR)
        assert f"job {job_id} has not ended, and its script and format can change only then" in refused.stderr, str(
            refused
        )
    target.reducer()
    published(target, COUNT)
    for arguments in ((), ("--json",)):
        retry(*arguments)
    assert target.waiting("tasks") == COUNT
    worker = target.worker("--process-count", 3)
    worker.wait_for_record("run", 7)
    wait_until(lambda: mini_batches(target, job_id).get("succeeded") == 4, "four results")
    for _ in range(4):
        retried = target.command("retry", job_id, expect=0)
        expected = f"job {job_id} has not ended, and there is nothing to do: 20 mini-batches are in its queue or at a"
        assert expected in retried.stderr, str(retried)
        assert "`retry --republish` publishes them again if the queue has lost them" in retried.stderr, str(retried)
    waiting = target.start("retry", job_id, "--wait", "--json")
    go(workplace)
    while target.status(job_id)["result"] is None:
        target.command("retry", job_id, expect=0)
    assert waiting.wait().result["state"] == "Completed"
    assert target.lines(job_id) == file_names(COUNT)
    assert runs(workplace) == file_names(COUNT), "no mini-batch ran twice"
    assert "nothing to do" in target.command("retry", job_id, expect=0).stderr


def by_command(target, job_id):
    retried = target.command("retry", job_id, expect=0)
    assert f"job {job_id} runs what has failed so far again" in retried.stderr, str(retried)


def by_portal(target, job_id):
    portal = Portal(target.workplace, "--target", target.name)
    assert portal.post(f"/jobs/{job_id}/retry") == (202, {"message": "the job runs what has failed so far again"})


@pytest.mark.parametrize(
    ("target", "retry"), [("rabbitmq", by_command), ("sqlite", by_command), ("sqs", by_portal)], indirect=["target"]
)
def test_failed_mini_batches_run_again_while_others_run(workplace, target, retry):
    """Two reducers serve the job, and one of them publishes it."""
    workplace.data(8)
    script = """
        import os
        from recorder import record, recorded, wait_for
        def run(files):
            names = [os.path.basename(file) for file in files]
            record("run", file=" ".join(names))
            if ("000.txt" in names or "003.txt" in names) and not recorded("mended"):
                raise ValueError("no")
            if "007.txt" in names:
                wait_for(lambda: recorded("go"))
            return names
    """
    settings = {"isolate": "items", "mini_batch_size": 2, "run_max_try": 1}
    job_id = target.enqueue(workplace.job(script, **settings, speculation=False, run_invocation_timeout=600))
    for _ in range(2):
        target.reducer()
    target.worker("--process-count", 3)
    wait_until(lambda: mini_batches(target, job_id).get("succeeded") == 3, "all but one")
    go(workplace, "mended")
    before = len(runs(workplace))
    retry(target, job_id)
    wait_until(lambda: len(runs(workplace)) == before + 2, "both items")
    assert target.status(job_id)["result"] is None, "it goes on"
    go(workplace)
    result = target.wait_for_end(job_id)
    assert (result["items"]["failed"], target.lines(job_id)) == (0, file_names(8))
    assert [round["rejected"] for round in result["rounds"]] == [0, 2]
    assert len(runs(workplace)) == before + 2, "nothing ran twice"


def test_lost_messages_are_published_again_on_request(workplace, target):
    """The queue has lost what waited, but not what is at the worker. That may run twice; its rows count once."""
    workplace.data(COUNT)
    job_id = target.enqueue(
        workplace.job(HELD.replace("range(4)", "range(0)"), speculation=False, run_invocation_timeout=600)
    )
    target.reducer()
    worker = target.worker("--process-count", 3)
    worker.wait_for_record("run", 3)
    assert target.waiting("tasks") > 0
    target.purge("tasks")
    wait_until(lambda: target.waiting("tasks") == 0, "an empty queue")
    for _ in range(2):
        retried = target.command("retry", job_id, expect=0)
        assert "`retry --republish` publishes them again" in retried.stderr, str(retried)
    assert target.waiting("tasks") == 0, "nothing is published unasked"
    target.command("retry", job_id, "--republish", expect=0)
    wait_until(lambda: target.waiting("tasks") >= COUNT - 6, "the messages again")
    go(workplace)
    assert target.lines(job_id) == file_names(COUNT)
    assert set(runs(workplace)) == set(file_names(COUNT))
    assert len(runs(workplace)) <= COUNT + 6, "only what was at the worker may run twice"


def test_repeated_retries_of_a_canceled_job_publish_it_once(workplace, target):
    workplace.data(COUNT)
    job_id = target.enqueue(workplace.job(HELD, speculation=False, run_invocation_timeout=600))
    target.reducer()
    published(target, COUNT)
    target.command("cancel", job_id, expect=0)
    target.wait_for_end(job_id, "Canceled")
    wait_until(lambda: not target.queues(), "the end of its queues")
    for _ in range(3):
        target.command("retry", job_id, expect=0)
    published(target, COUNT)
    go(workplace)
    target.worker("--process-count", 2)
    assert target.lines(job_id) == file_names(COUNT)
    assert runs(workplace) == file_names(COUNT)


def test_interrupted_enqueue_is_completed_by_a_retry(workplace, sqlite):
    """It died while it planned the third chunk, with the first two published."""
    count = 1100
    workplace.data(count)
    job_id = sqlite.enqueue(workplace.job(HELD.replace("range(4)", "range(0)"), run_invocation_timeout=600))
    plan = sqlite.folder / "store/jobs" / job_id / "plan"
    for path in [plan / "complete.json", *plan.glob("*2")]:
        path.unlink()
    sqlite.reducer()
    published(sqlite, 1024)
    sqlite.command("retry", job_id, expect=0)
    wait_until(lambda: sqlite.waiting("tasks") >= count, "the rest of the messages")
    go(workplace)
    sqlite.worker("--process-count", 2)
    assert len(sqlite.lines(job_id)) == count
    assert len(runs(workplace)) == count, "each mini-batch had one message"
