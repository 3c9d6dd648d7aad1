"""Jobs that have work at the same time divide the processes of a worker."""

import json

import pytest

from harness import HOLDS, file_names, go

FEW, MANY, TOGETHER = 6, 60, 20

WAITS_FOR_THE_OTHER = f"""
    import os
    from recorder import record, recorded, wait_for
    def run(files):
        record("few began")
        wait_for(lambda: len(recorded("many began")) >= {TOGETHER})
        return [os.path.basename(files[0])]
"""

FOLLOWS_THE_OTHER = f"""
    import os, time
    from recorder import record, recorded, wait_for
    def run(files):
        name = os.path.basename(files[0])
        few_ended = os.environ["FEW_ENDED"]
        record("many began")
        time.sleep(0.05)
        if int(name[:3]) >= {MANY // 2}:
            wait_for(lambda: os.path.exists(few_ended))
        if os.path.exists(few_ended):
            record("many alone")
            wait_for(lambda: len({{fact["pid"] for fact in recorded("many alone")}}) == 4)
        return [name]
"""


def pids(facts):
    return {fact["pid"] for fact in facts}


def test_jobs_with_work_divide_a_worker(workplace, sqlite):
    """The second job halves the first one, and has all processes once the first has ended."""
    few_ended = workplace.folder / "few_ended"
    few = sqlite.enqueue(workplace.job_of_its_own("few", FEW, WAITS_FOR_THE_OTHER))
    many = sqlite.enqueue(workplace.job_of_its_own("many", MANY, FOLLOWS_THE_OTHER))
    sqlite.reducer()
    sqlite.worker("--process-count", 4, FEW_ENDED=str(few_ended))
    result = sqlite.wait_for_end(few)
    assert sqlite.output(result).decode().splitlines() == file_names(FEW)
    assert sqlite.status(many)["result"] is None, "the second job goes on"

    # Runs of the first job end only after the second has begun: from then on each begins runs in two processes.
    facts = [json.loads(line) for line in workplace.record_file.read_text().splitlines()]
    events = [fact["event"] for fact in facts]
    first, last = events.index("many began"), len(events) - events[::-1].index("few began")
    together = facts[first:last]
    assert len(pids(fact for fact in together if fact["event"] == "many began")) <= 2
    assert len(pids(fact for fact in together if fact["event"] == "few began")) <= 2

    few_ended.touch()
    assert sqlite.lines(many) == file_names(MANY)
    assert len(workplace.recorded("few began")) == FEW, "no mini-batch ran twice"
    assert len(workplace.recorded("many began")) == MANY


def test_job_behind_long_runs_begins(workplace, target):
    """A worker whose processes are busy for long, with more work than it needs, still learns of another job.

    LocalStack has no fair queues, so the worker sees each message of the large job first.
    """
    count = 6 if target.kind == "sqs" else 40
    workplace.data(count)
    large = target.enqueue(workplace.job(HOLDS, name="large", speculation=False))
    target.reducer()
    worker = target.worker("--process-count", 2)
    worker.wait_for_record("held")
    assert target.waiting("tasks") > 0, "the worker leaves messages of the large job in the queue"
    small = workplace.job_of_its_own("small", 10, "def run(files): return ['row']")
    target.wait_for_end(target.enqueue(small))
    assert len(workplace.recorded("held")) == 2, "the runs of the large job went on"
    go(workplace)
    target.wait_for_end(large)
    assert len(workplace.recorded("held")) == count, "no mini-batch ran twice"


def test_job_has_no_more_than_its_max_share(workplace, sqlite):
    workplace.data(12)
    script = """
        import time
        from recorder import record
        def run(files):
            record("run")
            time.sleep(0.05)
            return ["row"]
    """
    job_id = sqlite.enqueue(workplace.job(script, max_share=50), "--priority", "high")
    (spec,) = map(json.loads, sqlite.objects(f"jobs/{job_id}/spec.json").values())
    assert (spec["priority"], spec["max_share"]) == ("high", 50)
    sqlite.reducer()
    sqlite.worker("--process-count", 4)
    sqlite.wait_for_end(job_id)
    assert len(pids(workplace.recorded("run"))) == 2


QUICK_IN = """
    import time
    from recorder import record, recorded, wait_for
    def run(files):
        record("quick began")
        wait_for(lambda: len({fact["pid"] for fact in recorded("quick began")}) >= PROCESSES)
        time.sleep(0.05)
        return ["row"]
"""


@pytest.mark.parametrize(
    ("settings", "processes"),
    [({"priority": "high"}, 4), ({"priority": "low"}, 1), ({"priority": "high", "max_share": 40}, 2)],
    ids=["high", "low", "max_share"],
)
def test_job_has_its_part_beside_another(workplace, target, settings, processes):
    """The other job, of normal priority, has long runs for all five processes of the worker.

    The worker holds all of its mini-batches: the emulator of SQS prefers no job.
    """
    held = target.enqueue(workplace.job_of_its_own("held", 10, HOLDS))
    target.reducer()
    worker = target.worker("--process-count", 5)
    worker.wait_for_record("held", 5)
    script = QUICK_IN.replace("PROCESSES", str(processes))
    target.wait_for_end(target.enqueue(workplace.job_of_its_own("quick", 20, script, **settings)))
    assert len(pids(workplace.recorded("quick began"))) == processes
    assert len(workplace.recorded("held")) == 5, "no run was interrupted"
    go(workplace)
    target.wait_for_end(held)
    assert len(workplace.recorded("held")) == 10, "none ran twice"
    assert len(workplace.recorded("quick began")) == 20


def test_priority_of_a_running_job_can_be_changed(workplace, target):
    """The worker gives the job another process, and takes none from a run of the other one."""
    raised = """
        import os
        from recorder import record, recorded, wait_for
        def run(files):
            record("raised began")
            if int(os.path.basename(files[0])[:3]) >= 4:
                wait_for(lambda: len({fact["pid"] for fact in recorded("raised began")}) > 2)
            return ["row"]
    """

    waiting = target.enqueue(workplace.job_of_its_own("waits", 8, HOLDS))
    target.reducer()
    worker = target.worker("--process-count", 4)
    worker.wait_for_record("held")
    job_id = target.enqueue(workplace.job_of_its_own("raised", 12, raised))
    assert target.status(job_id)["priority"] == "normal"
    changed = target.command("priority", "raised", "high", expect=0).stdout
    assert changed.startswith(f"job {job_id} now has priority high instead of normal;"), changed
    assert target.status(job_id)["priority"] == "high"
    target.wait_for_end(job_id)
    assert len(workplace.recorded("raised began")) == 12, "no mini-batch ran twice"
    refused = target.command("priority", job_id, "low", expect=1)
    assert f"job {job_id} has ended (completed), so its priority cannot be changed" in refused.stderr
    go(workplace)
    target.wait_for_end(waiting)
    assert len(workplace.recorded("held")) == 8, "no run was interrupted"


def test_priority_of_a_waiting_job_can_be_changed(workplace, sqlite):
    workplace.data(2)
    job_id = sqlite.enqueue(workplace.job("def run(files): return ['row']"), "--priority", "high")
    sqlite.command("priority", job_id, "low", expect=0)
    assert "already has priority low" in sqlite.command("priority", job_id, "low", expect=0).stdout
    assert "; priority: low\n" in sqlite.command("status", job_id, expect=0).stdout
    (row,) = json.loads(sqlite.command("jobs", "--json", expect=0).stdout)
    assert row["priority"] == "low"


def test_job_of_this_machine_has_no_priority(workplace):
    workplace.data(1)
    script = """
        import time
        from recorder import record
        def run(files):
            record("began")
            time.sleep(60)
    """
    running = workplace.job(script, name="alone").start()
    running.wait_for_record("began")
    refused = workplace.command("priority", "alone", "high")
    assert refused.exit_status == 1, str(refused)
    assert "runs on this machine, where a job has its own workers" in refused.stderr
    assert refused.stderr.count("\n") == 1, refused.stderr
