"""Jobs that have work at the same time divide the processes of the workers, or take turns where these are too few."""

import json

import pytest

from harness import HOLDS, file_names, go, wait_until

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

    # Until the first runs of the first job end, it wants more than its half.
    assert len(pids(workplace.recorded("many began")[:TOGETHER])) <= 2
    assert len(pids(workplace.recorded("few began")[:2])) == 2
    assert len(pids(workplace.recorded("few began"))) <= 2, "it never has more than its half"

    few_ended.touch()
    assert sqlite.lines(many) == file_names(MANY)
    assert len(workplace.recorded("few began")) == FEW, "no mini-batch ran twice"
    assert len(workplace.recorded("many began")) == MANY


def test_job_behind_long_runs_begins(workplace, target):
    """A worker whose processes are all busy for long starts a process of a new job beside them."""
    count = 40
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
def test_job_has_its_share_beside_another(workplace, sqlite, settings, processes):
    """The other job, of normal priority, has long runs in all five processes of the worker."""
    held = sqlite.enqueue(workplace.job_of_its_own("held", 10, HOLDS))
    sqlite.reducer()
    worker = sqlite.worker("--process-count", 5)
    worker.wait_for_record("held", 5)
    script = QUICK_IN.replace("PROCESSES", str(processes))
    sqlite.wait_for_end(sqlite.enqueue(workplace.job_of_its_own("quick", 20, script, **settings)))
    assert len(pids(workplace.recorded("quick began"))) == processes
    assert len(workplace.recorded("held")) == 5, "no run was interrupted"
    go(workplace)
    sqlite.wait_for_end(held)
    assert len(workplace.recorded("held")) == 10, "none ran twice"
    assert len(workplace.recorded("quick began")) == 20


@pytest.mark.parametrize("target", ["sqlite", "rabbitmq"], indirect=True)
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


def test_killed_worker_with_two_jobs_loses_nothing(workplace, target):
    script = """
        import os, time
        from recorder import record
        def run(files):
            record(os.environ["JOB"])
            time.sleep(0.03)
            return [os.path.basename(files[0])]
    """
    counts = {"large": 120, "small": 40}
    jobs = {
        name: target.enqueue(workplace.job_of_its_own(name, count, script, run_max_try=3))
        for name, count in counts.items()
    }
    target.reducer()
    first = target.worker("--process-count", 2)
    wait_until(lambda: workplace.recorded("large") and workplace.recorded("small"), "runs of both jobs")
    first.process.kill()
    first.process.wait()
    target.worker("--process-count", 2)
    for name, job_id in jobs.items():
        result = target.wait_for_end(job_id)
        assert target.output(result).decode().splitlines() == file_names(counts[name])
        assert result["mini_batches"]["failed"] == 0, json.dumps(result)


JOBS = 12
COUNTS_ITS_SIBLINGS = """
    import os
    from pathlib import Path
    from recorder import record
    def siblings():
        count = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            count += int(parent) == os.getppid() and state != "Z"
        return count
    def run(files):
        record("began", job=os.environ["JOB"], processes=siblings())
        return [os.path.basename(files[0])]
"""


def test_many_jobs_complete_on_a_worker_of_two_processes_a_few_at_a_time(workplace, sqlite):
    sqlite.reducer()
    jobs = [sqlite.enqueue(workplace.job_of_its_own(f"job{number}", 1, COUNTS_ITS_SIBLINGS)) for number in range(JOBS)]
    sqlite.worker("--process-count", 2)
    for job_id in jobs:
        result = sqlite.wait_for_end(job_id)
        assert result["mini_batches"] == {"total": 1, "succeeded": 1, "failed": 0}
    began = workplace.recorded("began")
    assert len({fact["job"] for fact in began}) == len(began) == JOBS, "each ran once"
    # Processes of jobs that have just ended may be counted too.
    assert max(fact["processes"] for fact in began) <= 4, began


def test_jobs_that_take_turns_lose_no_delivery(workplace, rabbitmq):
    """RabbitMQ has sent messages ahead to a worker that leaves a job. No process has seen them."""
    target, count = rabbitmq, 40
    script = "import time\ndef run(files):\n    time.sleep(0.5)\n    return ['row'] * len(files)"
    jobs = [workplace.job_of_its_own(f"job{number}", count, script, lost_delivery_max=0) for number in range(10)]
    target.reducer()
    for node in "abc":
        target.worker("--process-count", 2, "--node", node)
    job_ids = [target.enqueue(job) for job in jobs]
    for job_id in job_ids:
        result = target.wait_for_end(job_id)
        assert result["mini_batches"] == {"total": count, "succeeded": count, "failed": 0}, result


def test_jobs_with_long_work_take_turns_on_one_process(workplace, sqlite):
    """Neither job ends before the other has begun, and jobs that wait say how many are ahead of them."""
    script = """
        import os, time
        from recorder import record
        def run(files):
            record("run", job=os.environ["JOB"])
            time.sleep(0.2)
            return [os.path.basename(files[0])]
    """
    sqlite.reducer()
    sqlite.worker("--process-count", 1)
    ids = {name: sqlite.enqueue(workplace.job_of_its_own(name, 75, script)) for name in ("one", "two", "three")}
    waits = "other jobs have all processes that it could use"

    def hints():
        found = [sqlite.status(job_id)["hint"] or "" for job_id in ids.values()]
        found = sorted(hint.partition("; `")[0] for hint in found if hint.startswith(waits))
        return found if len(found) == 2 else None

    assert wait_until(hints, "two jobs that wait") == [waits, f"{waits}; 1 job is ahead of it"]
    wait_until(lambda: {fact["job"] for fact in workplace.recorded("run")} == set(ids), "runs of each job")
    assert all(sqlite.status(job_id)["result"] is None for job_id in ids.values()), "they take turns"
    for job_id in ids.values():
        assert sqlite.lines(job_id) == file_names(75)
    assert len(workplace.recorded("run")) == 225, "no mini-batch ran twice"


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
