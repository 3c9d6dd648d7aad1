"""Targets whose jobs have queues of their own, with one schedule that says which worker works on which job."""

from __future__ import annotations

import json
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


def last_schedule(target) -> dict:
    schedules = {int(name.rpartition("/")[2]): body for name, body in target.objects("schedule/").items()}
    return json.loads(schedules[max(schedules)]) if schedules else {"allocations": [], "jobs": []}


def test_killed_workers_and_reducers_change_nothing_and_leave_no_queue(workplace, target):
    reducers = [target.reducer(), target.reducer()]
    workers = [target.worker("--process-count", 1) for _ in range(3)]
    job_id = target.enqueue(workplace.job_of_its_own("large", 150, SLOW, run_max_try=3))
    for round_ in range(3):
        wait_until(lambda least=20 * (round_ + 1): target.committed(job_id) >= least, "progress")
        workers[round_].process.send_signal(signal.SIGKILL)
        workers.append(target.worker("--process-count", 1))
        if round_ < 2:
            reducers[round_].process.send_signal(signal.SIGKILL)
            reducers.append(target.reducer())
    assert target.lines(job_id) == file_names(150)
    assert target.status(job_id)["result"]["mini_batches"] == {"total": 150, "succeeded": 150, "failed": 0}
    wait_until(lambda: not target.queues() and not target.objects("queues/"), "the end of all queues")
    assert target.objects("open/") == {}


def test_job_that_a_stopped_reducer_never_saw_is_served_by_the_next_one(workplace, sqlite):
    sqlite.worker("--process-count", 1)
    reducer = sqlite.reducer()
    reducer.process.send_signal(signal.SIGSTOP)
    job_id = sqlite.enqueue(workplace.job_of_its_own("job", 3, RUNS))
    reducer.process.send_signal(signal.SIGKILL)
    sqlite.reducer()
    assert sqlite.lines(job_id) == file_names(3)


def test_small_and_urgent_jobs_begin_beside_large_ones(workplace, sqlite):
    sqlite.reducer()
    for number in range(2):
        sqlite.worker("--process-count", 2, "--node", f"node{number}")
    large = [sqlite.enqueue(workplace.job_of_its_own(f"large{number}", 400, SLOW)) for number in range(3)]
    wait_until(lambda: all(sqlite.committed(job_id) > 5 for job_id in large), "work on all large jobs")
    small = sqlite.enqueue(workplace.job_of_its_own("small", 2, RUNS))
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


def test_limits_of_a_job_hold_over_the_fleet(workplace, sqlite):
    sqlite.reducer()
    for number in range(3):
        sqlite.worker("--process-count", 2, "--node", f"node{number}")
    narrow = sqlite.enqueue(workplace.job_of_its_own("narrow", 8, HOLDS, node_count=1))
    wait_until(lambda: len(workplace.recorded("narrow began")) == 2, "its processes")
    wide = sqlite.enqueue(workplace.job_of_its_own("wide", 8, HOLDS))
    wait_until(lambda: len(workplace.recorded("wide began")) == 4, "the processes of the other job")
    time.sleep(3)
    nodes = [one["node"] for one in last_schedule(sqlite)["allocations"] if one["job_id"] == narrow]
    assert len(nodes) == 1 and len(workplace.recorded("narrow began")) == 2
    workplace.release("narrow", "wide")
    assert sqlite.lines(narrow) == sqlite.lines(wide) == file_names(8)
