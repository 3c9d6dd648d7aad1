"""A retry of a job that runs changes nothing of what is in flight."""

import sqlite3
import time

import pytest

from harness import ERROR, file_names, go, next_second, wait_until

HELD = """
    import os
    from recorder import record, recorded, wait_for
    def run(files):
        record("run", file=os.path.basename(files[0]))
        if int(os.path.basename(files[0])[:3]) >= 4:
            wait_for(lambda: recorded("go"))
        return [os.path.basename(files[0])]
"""
COUNT = 24


def runs(workplace):
    return sorted(fact["file"] for fact in workplace.recorded("run"))


def mini_batches(target, job_id):
    return (target.status(job_id)["progress"] or {}).get("mini_batches", {})


def test_retries_of_a_running_job_publish_nothing(workplace, sqlite):
    """They are called before a worker starts, while mini-batches run, and until the job has ended."""
    workplace.data(COUNT)
    job_id = sqlite.enqueue(workplace.job(HELD, speculation=False))
    untouched = sqlite.waiting("tasks")
    assert untouched == COUNT
    for arguments in ((), ("--json",)):
        retried = sqlite.command("retry", job_id, *arguments, expect=0)
        assert "there is nothing to do" in retried.stderr and "failed" not in retried.stderr, str(retried)
    assert sqlite.waiting("tasks") == untouched
    sqlite.reducer()
    worker = sqlite.worker("--process-count", 3)
    worker.wait_for_record("run", 7)
    wait_until(lambda: mini_batches(sqlite, job_id).get("succeeded") == 4, "four results")
    for _ in range(4):
        retried = sqlite.command("retry", job_id, expect=0)
        expected = f"job {job_id} has not ended, and there is nothing to do: 20 mini-batches are in the queue or at a"
        assert expected in retried.stderr, str(retried)
    waiting = sqlite.start("retry", job_id, "--wait", "--json")
    go(workplace)
    while sqlite.status(job_id)["result"] is None:
        sqlite.command("retry", job_id, expect=0)
    assert waiting.wait().result["state"] == "Completed"
    assert sqlite.lines(job_id) == file_names(COUNT)
    assert runs(workplace) == file_names(COUNT), "no mini-batch ran twice"
    assert "nothing to do" in sqlite.command("retry", job_id, expect=0).stderr


def test_retry_says_what_has_failed_so_far(workplace, sqlite):
    workplace.data(4)
    script = """
        import os
        from recorder import record, recorded, wait_for
        def run(files):
            name = os.path.basename(files[0])
            record("run", file=name)
            if name == "000.txt" and not recorded("go"):
                raise ValueError("no")
            wait_for(lambda: recorded("go"))
            return [name]
    """
    job_id = sqlite.enqueue(workplace.job(script, isolate="off", speculation=False))
    sqlite.reducer()
    sqlite.worker("--process-count", 3)
    wait_until(lambda: mini_batches(sqlite, job_id).get("failed"), "a failure")
    retried = sqlite.command("retry", job_id, expect=0)
    later = "3 mini-batches are in the queue or at a worker; 1 mini-batch has failed so far, which a retry runs again"
    assert later in retried.stderr, str(retried)
    go(workplace)
    sqlite.wait_for_end(job_id)
    sqlite.command("retry", job_id, "--wait", expect=0)
    assert sqlite.lines(job_id) == file_names(4)
    assert runs(workplace) == ["000.txt", *file_names(4)], "only what had failed ran again"


def test_lost_messages_alone_are_published_again(workplace, sqlite):
    """The queue has lost its waiting messages, but not those at the worker."""
    workplace.data(COUNT)
    # Quick runs would make the worker hold everything.
    job_id = sqlite.enqueue(workplace.job(HELD.replace(">= 4", ">= 0"), speculation=False))
    sqlite.reducer()
    worker = sqlite.worker("--process-count", 3)
    worker.wait_for_record("run", 3)
    lost = lose(sqlite)
    assert lost > 0
    for _ in range(2):
        sqlite.command("retry", job_id, expect=0)
    go(workplace)
    assert sqlite.lines(job_id) == file_names(COUNT)
    assert runs(workplace) == file_names(COUNT), "no mini-batch ran twice"


def lose(target, which="true"):
    """Removes messages that no worker holds. Returns their number."""
    with sqlite3.connect(target.folder / "queues/tasks.db", timeout=30) as database:
        lost = f"delete from message where visible_at <= ? and {which}"
        count = database.execute(lost, [time.time() * 1000]).rowcount
    database.close()
    return count


def test_repeated_retries_of_a_canceled_job_publish_it_once(workplace, sqlite):
    workplace.data(COUNT)
    job_id = sqlite.enqueue(workplace.job(HELD, speculation=False))
    sqlite.reducer()
    sqlite.command("cancel", job_id, expect=0)
    sqlite.wait_for_end(job_id, "Canceled")
    sqlite.purge("tasks")
    for _ in range(3):
        sqlite.command("retry", job_id, expect=0)
    assert sqlite.waiting("tasks") == COUNT
    go(workplace)
    sqlite.worker("--process-count", 2)
    assert sqlite.lines(job_id) == file_names(COUNT)
    assert runs(workplace) == file_names(COUNT)


def test_interrupted_enqueue_is_completed_by_a_retry(workplace, sqlite):
    """It died while it published the second of three chunks."""
    count = 1100
    workplace.data(count)
    job_id = sqlite.enqueue(workplace.job("def run(files): return files"))
    plan = sqlite.folder / "store/jobs" / job_id / "plan"
    for path in [plan / "complete.json", *plan.glob("*2")]:
        path.unlink()
    sqlite.purge("results")
    lose(sqlite, "json_extract(cast(body as text), '$.mini_batch') >= 700")
    assert sqlite.waiting("tasks") == 700
    sqlite.command("retry", job_id, expect=0)
    assert sqlite.waiting("tasks") == count, "each mini-batch has one message"


@pytest.mark.parametrize("target", ["sqs", "rabbitmq"], indirect=True)
def test_brokers_that_do_not_show_their_messages(workplace, target):
    """Nothing is published unasked; `--republish` publishes everything."""
    workplace.data(4)
    job_id = target.enqueue(workplace.job(HELD, speculation=False))
    retried = target.command("retry", job_id, expect=0)
    assert "`retry --republish` publishes them again" in retried.stderr, str(retried)
    assert target.waiting("tasks") == 4
    target.command("retry", job_id, "--republish", expect=0)
    wait_until(lambda: target.waiting("tasks") == 8, "the second messages")
    go(workplace)
    target.worker("--process-count", 1)
    target.reducer()
    assert target.lines(job_id) == file_names(4)


@pytest.mark.parametrize("target", ["sqs", "rabbitmq"], indirect=True)
def test_brokers_are_left_alone_while_a_worker_holds_mini_batches(workplace, target):
    workplace.data(COUNT)
    job_id = target.enqueue(workplace.job(HELD.replace(">= 4", ">= 0"), speculation=False))
    target.reducer()
    worker = target.worker("--process-count", 3)
    worker.wait_for_record("run", 3)
    for _ in range(2):
        retried = target.command("retry", job_id, expect=0)
        assert "`retry --republish` publishes them again" in retried.stderr, str(retried)
    go(workplace)
    assert target.lines(job_id) == file_names(COUNT)
    assert runs(workplace) == file_names(COUNT), "no mini-batch ran twice"


def test_job_name_means_the_running_job_first(workplace, sqlite):
    workplace.data(1)
    running = sqlite.enqueue(workplace.job(HELD))
    sqlite.reducer()

    def another(output):
        next_second()
        return sqlite.enqueue(workplace.job(HELD, output=output))

    ended = another("ended")
    sqlite.command("cancel", ended, expect=0)
    sqlite.wait_for_end(ended, "Canceled")
    assert running in sqlite.command("status", "test", expect=0).stdout, "though the other one is newer"
    newer = another("newer")
    assert newer in sqlite.command("status", "test", expect=0).stdout
    refused = sqlite.command("cancel", "test", expect=ERROR).stderr
    assert '2 jobs named "test" are running' in refused and running in refused and newer in refused, refused
    sqlite.command("cancel", newer, expect=0)
    sqlite.wait_for_end(newer, "Canceled")
    sqlite.command("cancel", "test", expect=0)
    sqlite.wait_for_end(running, "Canceled")
    assert newer in sqlite.command("status", "test", expect=0).stdout, "the newest"
