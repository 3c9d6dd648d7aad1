"""Which mini-batches of a target run now: the same in the status and on every page of the portal.

Of jobs of this machine, `test_one_account.py` compares them.
"""

from __future__ import annotations

from harness import HOLDS, Workplace, go, wait_until
from portal_client import Portal

RUNNING_BAR = 5


def test_what_runs_is_shown_by_status_and_by_every_page(workplace: Workplace, sqlite) -> None:
    workplace.data(9)
    job = workplace.job(HOLDS, run_invocation_timeout=600, process_count_per_node=2)
    sqlite.reducer()
    job_id = sqlite.enqueue(job)
    sqlite.worker("--process-count", 2, HOLD="004.txt").wait_for_record("held", 2)
    portal = Portal(workplace, "--target", sqlite.name)

    def running_now() -> list[dict] | None:
        progress = portal.get(f"/jobs/{job_id}")["progress"]
        found = progress and progress["running"]
        return found if found and {one["mini_batch"] for one in found} == held else None

    held = {int(fact["file"][:3]) for fact in workplace.recorded("held")}
    shown = wait_until(running_now, "both mini-batches that are held", 30)
    assert {one["phase"] for one in shown} == {"run"} and len({one["process"] for one in shown}) == 2, shown
    status = sqlite.status(job_id)
    assert status["progress"]["running"] == shown
    assert (status["progress"]["processes"], status["progress"]["nodes_at_work"]) == (2, 1)

    table = portal.get(f"/jobs/{job_id}/mini-batches?state=running")
    rows = {row["mini_batch"]: (row["process"], row["started_at"]) for row in table["rows"]}
    assert rows == {one["mini_batch"]: (one["process"], one["since"]) for one in shown}
    pending = {row["mini_batch"] for row in portal.get(f"/jobs/{job_id}/mini-batches?state=pending")["rows"]}
    assert pending and not pending & held
    one = portal.get(f"/jobs/{job_id}/mini-batches/{max(held)}")
    assert one["state"] == "running" and one["wait"]["phase"] == "run()", one["wait"]
    timeline = portal.get(f"/jobs/{job_id}/timeline")
    bars = timeline["bars"]
    open_bars = {
        number: timeline["processes"][process]["process"]
        for number, process, state in zip(bars["mini_batch"], bars["process"], bars["status"], strict=True)
        if state == RUNNING_BAR
    }
    assert open_bars == {number: process for number, (process, _) in rows.items()}
    [node] = portal.get(f"/jobs/{job_id}/nodes")["nodes"]
    assert {process["running"]["mini_batch"]: process["process"] for process in node["processes"]} == open_bars

    go(workplace)
    wait_until(lambda: portal.get(f"/jobs/{job_id}")["state"] == "Completed", "the end")
    assert portal.get(f"/jobs/{job_id}/mini-batches?state=running")["rows"] == []
