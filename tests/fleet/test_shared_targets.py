"""Several people on one target: jobs with one output, keys that others wrote, messages that no process can read."""

import json
import os
import signal

import pytest

from harness import HOLDS, go, wait_until
from portal_client import Portal

ROWS = "def run(files): return files"


@pytest.mark.parametrize("target", ["sqlite", "sqs"], indirect=True)
def test_open_job_keeps_its_output_for_itself(workplace, target):
    workplace.data(2)

    def job(name, rows="rows.txt"):
        return workplace.job(ROWS, file=f"{name}.yaml", name=name, output="results", append_row_file_name=rows)

    first, same, other = job("first"), job("same"), job("other", "others.txt")
    job_id = target.enqueue(first)
    for _ in range(2):
        refused = target.command("enqueue", same.file)
        assert refused.exit_status not in (0, 101), str(refused)
        said = f"job {job_id} has not ended and writes the same output, {workplace.folder}/results/rows.txt; wait for"
        assert said in refused.stderr and f"gristmill cancel {job_id} --target {target.name}" in refused.stderr
    target.command("enqueue", other.file, expect=0)
    target.reducer()
    target.worker()
    target.wait_for_end(job_id)
    assert len(target.lines(target.enqueue(same))) == 2, "the first one has ended"


def test_failed_job_is_not_continued_while_another_writes_its_output(workplace, sqlite):
    workplace.data(2)
    output = {"output": "results", "append_row_file_name": "rows.txt"}
    fails = workplace.job("def run(files): raise ValueError", name="fails", error_threshold=0, run_max_try=1, **output)
    roles = [sqlite.reducer(), sqlite.worker()]
    failed = sqlite.enqueue(fails)
    sqlite.wait_for_end(failed, "Failed")
    for role in roles:
        role.stop()
    job_id = sqlite.enqueue(workplace.job(ROWS, name="other", **output))
    refused = sqlite.command("retry", failed)
    assert refused.exit_status not in (0, 101), str(refused)
    assert f"job {job_id} has not ended and writes the same output" in refused.stderr, str(refused)
    assert sqlite.status(failed)["state"] == "Failed"


def test_result_in_a_folder_is_reused_though_the_store_is_a_bucket(workplace, sqs):
    """Their clocks differ, and count in other units."""
    workplace.data(2)
    sqs.reducer()
    sqs.worker()
    job = workplace.job(ROWS, allow_reuse=True)
    first = sqs.enqueue(job)
    output = sqs.wait_for_end(first)["output"]
    assert json.loads(sqs.command("enqueue", job.file, "--json", expect=0).stdout)["reused"]
    with open(output, "a") as file:
        file.write("more\n")
    again = sqs.command("enqueue", job.file, expect=0)
    assert again.stdout.strip() != first and "is missing, or was changed since" in again.stderr, str(again)


@pytest.mark.parametrize("target", ["sqlite", "sqs"], indirect=True)
def test_names_that_no_path_can_have_are_left_out(workplace, target):
    workplace.data(2)
    reducer = target.reducer()
    target.worker()
    keys = ["jobs/jobs//logs/x", "jobs/open//x", "jobs/open/a\x01b", "jobs/workers//x", "jobs/jobs/../x"]
    s3 = target.components.client("s3")
    if target.kind == "sqs":
        for key in keys:
            s3.put_object(Bucket=target.prefix, Key=key, Body=b"x")
    else:
        store = target.folder / "store"
        for folder in ("open", "jobs", "workers"):
            (store / folder).mkdir(parents=True, exist_ok=True)
            (store / folder / "a\x01b").write_bytes(b"x")
        (store / "jobs/c\x7f").mkdir()
        (store / "open" / os.fsdecode(b"d\xff")).touch()
    job_id = target.enqueue(workplace.job(ROWS))
    assert len(target.lines(job_id)) == 2
    assert job_id in target.command("jobs", expect=0).stdout
    doctor = target.command("doctor")
    said = doctor.stdout + doctor.stderr
    assert "it has a key that Gristmill did not write" in said and "it is ignored" in said, str(doctor)
    target.command("clean", "--all", expect=0)
    assert job_id not in target.command("jobs", expect=0).stdout
    assert reducer.process.poll() is None
    # A request to remove several objects cannot name these.
    for key in keys if target.kind == "sqs" else []:
        s3.delete_object(Bucket=target.prefix, Key=key)


@pytest.mark.parametrize("target", ["sqs", "rabbitmq"], indirect=True)
def test_dead_letters_are_sent_again_or_deleted(workplace, target):
    """By the portal and by commands. Each goes to the queue of its job from which it came, while the job has queues."""
    workplace.data(3)
    job_id = target.enqueue(workplace.job(HOLDS, run_invocation_timeout=600))
    target.reducer()
    wait_until(lambda: target.waiting("tasks") == 3, "the messages of the job")
    target.send("tasks", "not of Gristmill")
    newer = json.dumps({"job_id": job_id, "mini_batch": 0, "work": {"kind": "video"}})
    target.send("tasks", newer)
    worker = target.worker("--process-count", 3, "--grace", 1)
    worker.wait_for_record("held", 3)

    def letters():
        return json.loads(target.command("dead-letters", "--json", expect=0).stdout)

    wait_until(lambda: {letter["body"] for letter in letters()} == {"not of Gristmill", newer}, "both letters")
    worker.process.terminate()
    worker.wait()
    wait_until(lambda: target.waiting("tasks") == 3, "the messages of the job")
    nothing = target.command("dead-letters", "--redrive", "--job", "no-such-job", expect=0)
    assert "0 messages sent to their queues again" in nothing.stderr and len(letters()) == 2, str(nothing)
    portal = Portal(workplace, "--target", target.name)
    assert len(portal.get("/target")["dead_letters"]) == 2
    sent = portal.post("/target/dead-letters/redrive")
    assert sent == (200, {"done": 2, "left": 0, "message": "2 messages sent again"}), sent
    assert letters() == portal.get("/target")["dead_letters"] == []
    wait_until(lambda: target.waiting("tasks") == 5, "the messages in the queue of the job")
    go(workplace)
    target.worker()
    assert len(target.lines(job_id)) == 3
    wait_until(lambda: len(letters()) == 2, "both letters")
    wait_until(lambda: not target.queues(), "the end of the queues of the job")
    kept = target.command("dead-letters", "--redrive", "--job", job_id, expect=0)
    assert "0 messages sent to their queues again" in kept.stderr and len(letters()) == 2, str(kept)
    status, kept = portal.post("/target/dead-letters/redrive")
    assert (status, kept["done"], kept["left"]) == (200, 0, 2) and "of jobs without queues" in kept["message"], kept
    deleted = target.command("dead-letters", "--delete", expect=0)
    assert "2 messages deleted" in deleted.stderr and letters() == [], str(deleted)


def test_role_says_that_it_has_created_the_queues(workplace, rabbitmq):
    """A mistyped prefix names another target, whose worker never gets a job."""
    said = "created the queues of this target, which did not exist; if other workers use the target, check its prefix"
    existing = rabbitmq.prefix
    rabbitmq.prefix = f"{existing}-mistyped"
    rabbitmq.write(queue=rabbitmq.settings["queue"].replace(existing, rabbitmq.prefix))
    printed = []
    for role in (rabbitmq.reducer, rabbitmq.worker):
        running = role()
        running.send(signal.SIGTERM)
        printed.append(said in running.wait().stdout)
    assert rabbitmq.queues() == [], "only those of the target"
    rabbitmq.components.remove(rabbitmq.prefix)
    rabbitmq.prefix = existing
    assert printed == [True, False]
