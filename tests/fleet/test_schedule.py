"""Targets whose jobs have queues of their own, with one schedule that says which worker works on which job."""

from __future__ import annotations

import json
import os
import signal
import time

from harness import HOLDS_UNTIL_RELEASE as HOLDS
from harness import RECORDS_ITS_RUNS as RUNS
from harness import file_names, wait_until

SLOW = """
    import os, time
    def run(files):
        time.sleep(0.1)
        return [os.path.basename(files[0])]
"""


def job(workplace, name: str, count: int, script: str = RUNS, **settings):
    variables = {"JOB": name, "RELEASE": str(workplace.folder / "release")}
    return workplace.job_of_its_own(name, count, script, environment_variables=variables, **settings)


def last_schedule(target) -> dict:
    schedules = {int(name.rpartition("/")[2]): body for name, body in target.objects("schedule/").items()}
    return json.loads(schedules[max(schedules)]) if schedules else {"allocations": [], "jobs": []}


def hint(target, job_id: str, words: str) -> str:
    def found():
        hint = target.status(job_id)["hint"]
        return hint if hint and words in hint else None

    return wait_until(found, f"that {job_id} waits for {words!r}")


def test_jobs_complete_and_leave_no_queue(workplace, target):
    target.reducer()
    target.worker("--process-count", 2)
    ids = [target.enqueue(job(workplace, f"job{number}", 5)) for number in range(3)]
    for job_id in ids:
        assert target.lines(job_id) == file_names(5)
    wait_until(lambda: not target.queues() and not target.objects("queues/"), "the end of all queues")
    assert target.objects("open/") == {}


def test_killed_workers_and_reducers_change_nothing(workplace, target):
    reducers = [target.reducer(), target.reducer()]
    workers = [target.worker("--process-count", 1) for _ in range(3)]
    job_id = target.enqueue(job(workplace, "large", 150, SLOW, run_max_try=3))
    for round_ in range(3):
        wait_until(lambda least=20 * (round_ + 1): target.committed(job_id) >= least, "progress")
        workers[round_].process.send_signal(signal.SIGKILL)
        workers.append(target.worker("--process-count", 1))
        if round_ < 2:
            reducers[round_].process.send_signal(signal.SIGKILL)
            reducers.append(target.reducer())
    assert target.lines(job_id) == file_names(150)
    assert target.status(job_id)["result"]["mini_batches"] == {"total": 150, "succeeded": 150, "failed": 0}


def test_job_that_a_stopped_reducer_never_saw_is_served_by_the_next_one(workplace, sqlite):
    sqlite.worker("--process-count", 1)
    reducer = sqlite.reducer()
    reducer.process.send_signal(signal.SIGSTOP)
    job_id = sqlite.enqueue(job(workplace, "job", 3))
    reducer.process.send_signal(signal.SIGKILL)
    sqlite.reducer()
    assert sqlite.lines(job_id) == file_names(3)


def test_small_and_urgent_jobs_begin_beside_large_ones(workplace, sqlite):
    sqlite.reducer()
    for number in range(2):
        sqlite.worker("--process-count", 2, "--node", f"node{number}")
    large = [sqlite.enqueue(job(workplace, f"large{number}", 400, SLOW)) for number in range(3)]
    wait_until(lambda: all(sqlite.committed(job_id) > 5 for job_id in large), "work on all large jobs")
    small = sqlite.enqueue(job(workplace, "small", 2))
    assert sqlite.lines(small) == file_names(2)
    assert all(sqlite.status(job_id)["result"] is None for job_id in large), "the small job waited for no large one"
    sqlite.command("priority", large[2], "high", expect=0)

    def has_most():
        processes = dict.fromkeys(large, 0)
        for allocation in last_schedule(sqlite)["allocations"]:
            processes[allocation["job_id"]] = processes.get(allocation["job_id"], 0) + allocation["processes"]
        return processes[large[2]] == 2 and processes[large[0]] == processes[large[1]] == 1

    wait_until(has_most, "the share of the job whose priority is high")
    for job_id in large:
        sqlite.command("cancel", job_id, expect=0)
        sqlite.wait_for_end(job_id, "Canceled")


def test_status_says_what_a_job_waits_for(workplace, sqlite):
    first = sqlite.enqueue(job(workplace, "first", 1, HOLDS))
    hint(sqlite, first, "no reducer")
    sqlite.reducer()
    hint(sqlite, first, "no worker is running")
    worker = sqlite.worker("--process-count", 1, "--node", "here")
    worker.wait_for_record("first began", 1)
    picky = sqlite.enqueue(job(workplace, "picky", 1, requires={"labels": {"zone": "a"}}))
    assert "the only worker, here, does not meet `requires` (label zone=a)" in hint(sqlite, picky, "requires")
    second = sqlite.enqueue(job(workplace, "second", 1, HOLDS))
    hint(sqlite, second, "other jobs have all processes")
    assert "other jobs have all" in sqlite.command("jobs", expect=0).stdout
    sqlite.command("target", "quota", "--each-owner", "--max-jobs", 1, expect=0)
    third = sqlite.enqueue(job(workplace, "third", 1))
    hint(sqlite, third, "quota")
    (workplace.folder / "release").touch()
    for job_id in (first, second):
        sqlite.wait_for_end(job_id)
    # It counts as one of the jobs of its owner until it ends.
    sqlite.worker("--process-count", 1, "--label", "zone=a")
    for job_id in (picky, third):
        sqlite.wait_for_end(job_id)


def test_limits_of_a_job_hold_over_the_fleet(workplace, sqlite):
    sqlite.reducer()
    for number in range(3):
        sqlite.worker("--process-count", 2, "--node", f"node{number}")
    narrow = sqlite.enqueue(job(workplace, "narrow", 8, HOLDS, node_count=1))
    wait_until(lambda: len(workplace.recorded("narrow began")) == 2, "its processes")
    wide = sqlite.enqueue(job(workplace, "wide", 8, HOLDS))
    wait_until(lambda: len(workplace.recorded("wide began")) == 4, "the processes of the other job")
    time.sleep(3)
    nodes = [one["node"] for one in last_schedule(sqlite)["allocations"] if one["job_id"] == narrow]
    assert len(nodes) == 1 and len(workplace.recorded("narrow began")) == 2
    (workplace.folder / "release").touch()
    assert sqlite.lines(narrow) == sqlite.lines(wide) == file_names(8)


def test_gpu_has_one_job_at_a_time(workplace, sqlite):
    sqlite.reducer()
    sqlite.worker("--process-count", 2, AZ_BATCHAI_GPU_COUNT_FOUND="2")
    gpus = {"requires": {"gpus": 1}, "process_count_per_node": None}
    one = sqlite.enqueue(job(workplace, "one", 2, HOLDS, **gpus))
    wait_until(lambda: len(workplace.recorded("one began")) == 2, "both GPUs")
    two = sqlite.enqueue(job(workplace, "two", 2, HOLDS, **gpus))
    time.sleep(4)
    assert workplace.recorded("two began") == [], "both GPUs have a run"
    assert sorted(fact["gpus"] for fact in workplace.recorded("one began")) == ["0", "1"]
    (workplace.folder / "release").touch()
    assert sqlite.lines(one) == sqlite.lines(two) == file_names(2)


def test_ended_job_is_retried_in_other_queues(workplace, target):
    workplace.environment["FAILS"] = str(workplace.folder / "fails")
    (workplace.folder / "fails").touch()
    script = """
        import os
        def run(files):
            if os.path.basename(files[0]) == "001.txt" and os.path.exists(os.environ["FAILS"]):
                raise ValueError("not yet")
            return [os.path.basename(files[0])]
    """
    target.reducer()
    target.worker("--process-count", 1)
    job_id = target.enqueue(job(workplace, "job", 3, script, error_threshold=0))
    target.wait_for_end(job_id, "Failed")
    os.remove(workplace.folder / "fails")
    target.command("retry", job_id, expect=0)
    assert target.lines(job_id) == file_names(3)


def test_job_that_cannot_be_planned_fails_with_the_cause(workplace, sqlite):
    """Only planning compares columns of the files with those of the path."""
    workplace.write({"tables/7.csv": "id\n1\n"})
    table = {"name": "data", "type": "tabular", "path": "tables", "partition_format": "{id}.csv"}
    broken = workplace.job("def run(frame): return frame", inputs=[table])
    told = sqlite.command("enqueue", broken.file)
    assert told.exit_status != 0 and "the column 'id'" in told.stderr, str(told)
    sqlite.reducer()
    result = sqlite.wait_for_end(told.stdout.strip(), "Failed")
    assert "the column 'id'" in result["cause"]


def test_stopped_worker_returns_what_it_holds(workplace, target):
    target.reducer()
    worker = target.worker("--process-count", 1, "--grace", 1)
    job_id = target.enqueue(job(workplace, "job", 6, HOLDS))
    worker.wait_for_record("job began", 1)
    worker.process.send_signal(signal.SIGTERM)
    assert worker.wait().exit_status == 0
    (workplace.folder / "release").touch()
    target.worker("--process-count", 1)
    assert target.lines(job_id) == file_names(6)
