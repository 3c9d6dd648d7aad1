"""Quotas of a target: jobs above a limit are not admitted until there is room, or are rejected."""

from __future__ import annotations

import json
import os
import pwd
import re

from harness import HOLDS_UNTIL_RELEASE as HOLDS
from harness import RECORDS_ITS_RUNS as RUNS
from harness import file_names, wait_until

FULL = "the target may run 0 jobs at a time, and runs 0"


def quota(target, *flags: object) -> str:
    return target.command("target", "quota", *flags, expect=0).stdout


def hint(target, job_id: str) -> str:
    """Returns why the job waits, once a reducer has looked at it."""

    def found():
        hint = target.status(job_id)["hint"]
        return hint if hint and "reducer" not in hint else None

    return wait_until(found, f"a reducer that has looked at {job_id}")


def jobs(target) -> dict[str, dict]:
    rows = json.loads(target.command("jobs", "--json", expect=0).stdout)
    return {row["job_id"].rpartition("-")[0].rsplit("-", 2)[0]: row for row in rows}


def test_job_above_the_limit_of_its_owner_waits_for_its_turn(workplace, target):
    """Two reducers admit the job, and publish it once."""
    quota(target, "--each-owner", "--max-jobs", 1)
    target.reducer()
    target.reducer()
    worker = target.worker("--process-count", 2)
    first = target.enqueue(workplace.job_of_its_own("first", 4, HOLDS), "--owner", "ana", "--priority", "high")
    worker.wait_for_record("first began", 2)
    waiting = workplace.job_of_its_own("second", 4, RUNS)
    enqueued = target.command("enqueue", waiting.file, "--owner", "ana", expect=0)
    reason = "owner ana may run 1 job at a time, and runs 1 (quota of the target)"
    sentence = f"{reason}; `gristmill jobs --target {target.name}` shows all jobs"
    assert f"waiting: {sentence}" in enqueued.stderr, enqueued.stderr
    second = enqueued.stdout.strip()
    assert hint(target, second) == sentence
    status = target.status(second)
    assert (status["state"], status["owner"]) == ("Queued", "ana")
    # The reducer of a remote store writes the number of processes now and then.
    wait_until(lambda: jobs(target)["first"]["processes"] == 2, "the processes of the first job")
    table = target.command("jobs", expect=0).stdout
    assert re.search(rf"^{first} +Running +ana +high +2 \(100%\) ", table, re.MULTILINE), table

    target.wait_for_end(target.enqueue(workplace.job_of_its_own("other", 4, RUNS, owner="bo")))
    assert workplace.recorded("second began") == [], "it waits"
    # Names of queues may contain only the beginning of an id.
    assert len(target.queues(first[:30])) == 2
    assert target.queues(second[:30]) == [], "it has no queues before it is admitted"
    listed = jobs(target)
    assert (listed["second"]["waits_for"], listed["second"]["processes"]) == (reason, 0)
    assert listed["first"]["waits_for"] is None
    assert "waits_for" not in listed["other"], "it has ended"
    assert target.objects(f"jobs/{second}/plan/complete.json"), "it is planned"

    workplace.release("first")
    assert target.lines(second) == file_names(4)
    target.wait_for_end(first)
    assert len(workplace.recorded("second began")) == 4, "each mini-batch was published once"


def test_full_target_rejects_a_job_that_is_not_to_wait(workplace, target):
    quota(target, "--max-jobs", 0)
    given = workplace.job_of_its_own("given", 1, RUNS)
    refused = target.command("enqueue", given.file, "--refuse-when-full", "--json", expect=75)
    problem = f"target {target.name} has no room for the job: {FULL}; enqueue it again later"
    assert json.loads(refused.stdout)["error"].startswith(problem), str(refused)
    shown = quota(target, "--when-full", "refuse").splitlines()
    assert shown[-1].startswith("a job above a limit is"), shown
    assert problem in target.command("enqueue", given.file, expect=75).stderr
    assert target.objects("jobs/") == {}, "nothing of it is stored"
    shown = quota(target, "--owner", "ana", "--max-jobs", 5).splitlines()
    assert [line.split()[:2] for line in shown[2:4]] == [["(each)", "any"], ["ana", "5"]], shown
    quota(target, "--max-jobs", 1)
    stored = json.loads(target.objects()["quotas.json"])
    assert (stored["max_jobs"], stored["owners"]["ana"]["max_jobs"]) == (1, 5)
    assert json.loads(quota(target, "--json")) == stored
    target.command("enqueue", given.file, expect=0)


def test_waiting_job_can_be_canceled_and_continued(workplace, target):
    quota(target, "--max-jobs", 0)
    target.reducer()
    job_id = target.enqueue(workplace.job_of_its_own("waits", 2, RUNS))
    target.command("cancel", job_id, expect=0)
    target.wait_for_end(job_id, "Canceled")
    retried = target.command("retry", job_id, expect=0)
    assert f"waiting: {FULL} (quota of the target)" in retried.stderr, str(retried)
    assert target.status(job_id)["state"] == "Queued"
    quota(target, "--max-jobs", 1)
    target.worker("--process-count", 1)
    result = target.wait_for_end(job_id)
    assert result["mini_batches"] == {"total": 2, "succeeded": 2, "failed": 0}
    assert len(workplace.recorded("waits began")) == 2


def test_owner_is_the_user(workplace, sqlite):
    sqlite.command("enqueue", workplace.job_of_its_own("mine", 1, RUNS).file, expect=0, USER="ana")
    assert jobs(sqlite)["mine"]["owner"] == "ana"
    # As in a container or a unit of systemd.
    sqlite.command("enqueue", workplace.job_of_its_own("unnamed", 1, RUNS).file, expect=0, USER="", LOGNAME="")
    assert jobs(sqlite)["unnamed"]["owner"] == pwd.getpwuid(os.getuid()).pw_name
    invalid = sqlite.command(
        "enqueue", workplace.job_of_its_own("other", 1, RUNS).file, "--owner", "ana and bo", expect=2
    )
    assert "--owner" in invalid.stderr or "owner" in invalid.stderr


def test_job_whose_owner_has_its_mini_batches_in_flight_says_so(workplace, sqlite):
    quota(sqlite, "--each-owner", "--max-in-flight", 1)
    sqlite.reducer()
    worker = sqlite.worker("--process-count", 2, "--node", "here")
    first = sqlite.enqueue(workplace.job_of_its_own("first", 2, HOLDS, owner="ana"))
    worker.wait_for_record("first began")
    second = sqlite.enqueue(workplace.job_of_its_own("second", 2, RUNS, owner="ana"))
    reason = "owner ana has 1 of 1 mini-batches in flight (quota of the target)"

    def waits():
        status = sqlite.status(second)
        return status if status["hint"] and "owner ana" in status["hint"] else None

    status = wait_until(waits, "the reason why the second job waits")
    assert status["state"] == "Queued", status
    assert status["hint"] == f"{reason}; `gristmill jobs --target {sqlite.name}` shows all jobs", status
    assert jobs(sqlite)["second"]["waits_for"] == reason
    assert reason in sqlite.command("jobs", expect=0).stdout
    sqlite.wait_for_end(sqlite.enqueue(workplace.job_of_its_own("other", 2, RUNS, owner="bo")))
    assert workplace.recorded("second began") == []
    workplace.release("first")
    for job_id in [first, second]:
        result = sqlite.wait_for_end(job_id)
        assert result["mini_batches"] == {"total": 2, "succeeded": 2, "failed": 0}
    assert len(workplace.recorded("second began")) == 2, "each mini-batch ran once"


def test_limit_of_mini_batches_in_flight_holds_over_all_workers(workplace, sqlite):
    """Two jobs of one owner reach the limit together, and never exceed it."""
    quota(sqlite, "--each-owner", "--max-in-flight", 4)
    script = """
        import time
        from recorder import record
        def run(files):
            record("began")
            time.sleep(0.3)
            record("ended")
            return ["row"]
    """
    sqlite.reducer()
    for name in ("a", "b", "c"):
        sqlite.worker("--process-count", 4, "--node", name)
    ids = [sqlite.enqueue(workplace.job_of_its_own(name, 24, script, owner="ana")) for name in ("one", "other")]
    for job_id in ids:
        sqlite.wait_for_end(job_id)
    running, most = 0, 0
    for line in workplace.record_file.read_text().splitlines():
        running += {"began": 1, "ended": -1}[json.loads(line)["event"]]
        most = max(most, running)
    assert most == 4
    assert len(workplace.recorded("began")) == 48, "none ran twice"
