"""The portal shows what a job waits for that does not move, and how near each of its limits is."""

from __future__ import annotations

import json
import math

from harness import Workplace, go, wait_until
from portal_client import HOLDS, Portal


def test_job_that_does_not_move_shows_its_stack_rate_and_limits(workplace: Workplace) -> None:
    workplace.data(4)
    limits = {"error_threshold": 7, "fail_fast": 5, "run_max_try": 4}
    job = workplace.job(HOLDS, arguments=["--progress_update_timeout", "300"], **limits)
    running = job.start(HOLD="002.txt")
    running.wait_for_record("held")
    [job_id] = workplace.job_ids()
    portal = Portal(workplace)
    events = portal.open(f"/api/v1/events?job={job_id}")

    # Nothing but the wait changes now, and the stream tells of it.
    def told() -> dict | None:
        line = events.readline()
        shown = json.loads(line.removeprefix(b"data: ")) if line.startswith(b"data: ") else {}
        return shown if shown.get("waits") and shown["waits"][0]["stack"] else None

    shown = wait_until(told, "an event with what the job waits for")
    [wait] = shown["waits"]
    assert (wait["mini_batch"], wait["process"], wait["phase"]) == (2, "process000", "run()"), wait
    assert wait["seconds"] >= 1 and wait["since"] > 0, wait
    assert "entry.py" in wait["stack"] and "in run" in wait["stack"], wait["stack"]
    assert portal.get(f"/jobs/{job_id}/mini-batches/2")["wait"]["stack"] == wait["stack"]
    assert portal.get(f"/jobs/{job_id}/mini-batches/1")["wait"] is None

    shown = portal.get(f"/jobs/{job_id}")
    gauges = {gauge["key"]: (gauge["value"], gauge["limit"]) for gauge in shown["gauges"]}
    assert gauges["error_threshold"] == (0, 7)
    assert gauges["allowed_failed_count"] == (0, None)
    assert gauges["fail_fast"] == (0, 5)
    assert gauges["run_max_try"] == (1, 4)
    silent, limit = gauges["progress_update_timeout"]
    assert limit == 300 and silent > 0, gauges
    # Two mini-batches ended in the time since the start, which is less than a minute.
    assert 2 / 60 <= shown["rate"] <= 2, shown["rate"]
    assert shown["eta_seconds"] == math.ceil(2 / shown["rate"])
    go(workplace)
    running.wait()
    wait_until(lambda: portal.get(f"/jobs/{job_id}")["state"] == "Completed", "the end in the portal")
    shown = portal.get(f"/jobs/{job_id}")
    assert shown["waits"] == [] and shown["mini_batches"]["succeeded"] == 4
