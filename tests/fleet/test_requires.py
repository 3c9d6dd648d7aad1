"""Jobs that require something of their nodes, on targets whose workers differ."""

from __future__ import annotations

import json

import pytest

from harness import wait_until

SCRIPT = """
    import os
    from recorder import record
    def run(files):
        record("run", zone=os.environ["ZONE"], gpu=os.environ.get("CUDA_VISIBLE_DEVICES"))
        return [os.path.basename(files[0])]
"""


def worker(target, zone: str, gpus: int = 0):
    settings = {"ZONE": zone, "AZ_BATCHAI_GPU_COUNT_FOUND": str(gpus)}
    return target.worker("--process-count", 1, "--label", f"zone={zone}", "--node", f"node-{zone}", **settings)


def test_job_runs_only_on_nodes_that_it_fits(workplace, target):
    workplace.data(8)
    target.reducer()
    worker(target, "a")
    worker(target, "b")
    job = workplace.job(SCRIPT, requires={"labels": {"zone": "b"}, "processors": 1})
    enqueued = target.command("enqueue", job.file, expect=0)
    assert "requires" not in enqueued.stderr, enqueued.stderr
    result = target.wait_for_end(enqueued.stdout.strip())
    assert result["mini_batches"] == {"total": 8, "succeeded": 8, "failed": 0}
    assert {fact["zone"] for fact in workplace.recorded("run")} == {"b"}


def test_job_runs_only_where_there_are_enough_gpus(workplace, sqlite):
    workplace.data(8)
    sqlite.reducer()
    for zone, gpus in (("a", 0), ("b", 1), ("c", 2)):
        worker(sqlite, zone, gpus)
    sqlite.wait_for_end(sqlite.enqueue(workplace.job(SCRIPT, requires={"gpus": 2})))
    assert {(fact["zone"], fact["gpu"]) for fact in workplace.recorded("run")} == {("c", "0")}


def unfit(target, job_id):
    """Returns the status of a job once its hint says that no worker meets `requires`."""
    status = target.status(job_id)
    return status if "does not meet `requires`" in (status["hint"] or "") else None


def test_job_that_no_worker_takes_says_so_and_waits_for_one_that_does(workplace, sqlite):
    workplace.data(2)
    sqlite.reducer()
    worker(sqlite, "a")
    offers = workplace.folder / sqlite.prefix / "store/workers"
    wait_until((offers / "node-a").exists, "the entry of the worker")
    job = workplace.job(SCRIPT, requires={"labels": {"zone": "b"}})
    enqueued = sqlite.command("enqueue", job.file, expect=0)
    lacks = "does not meet `requires` (label zone=b): its label zone is a, the job requires b"
    assert f"warning: the only worker, node-a, {lacks}; the job waits for one that does" in enqueued.stderr
    job_id = enqueued.stdout.strip()

    waiting = wait_until(lambda: unfit(sqlite, job_id), "a schedule that knows the worker")
    assert waiting["state"] == "Queued", waiting
    assert waiting["hint"].startswith(f"the only worker, node-a, {lacks}; start one with: "), waiting
    assert "gristmill worker --target sqlite --label zone=b" in waiting["hint"], waiting

    worker(sqlite, "b")
    result = sqlite.wait_for_end(job_id)
    assert result["mini_batches"] == {"total": 2, "succeeded": 2, "failed": 0}
    assert {fact["zone"] for fact in workplace.recorded("run")} == {"b"}


@pytest.mark.parametrize("target", ["sqlite", "rabbitmq"], indirect=True)
def test_job_does_not_wait_behind_one_that_no_worker_takes(workplace, target):
    """The only worker never sees the messages of the other job."""
    target.reducer()
    worker(target, "a")
    zone_b = {"labels": {"zone": "b"}}
    other = target.enqueue(workplace.job_of_its_own("other", 400, SCRIPT, requires=zone_b))
    wait_until(lambda: unfit(target, other), "a schedule that knows the worker")
    fits = target.enqueue(workplace.job_of_its_own("fits", 5, SCRIPT))
    target.wait_for_end(fits)
    assert target.status(other)["result"] is None
    assert [fact["zone"] for fact in workplace.recorded("run")] == ["a"] * 5


def test_worker_is_listed_while_it_runs(workplace, sqlite):
    offers = workplace.folder / sqlite.prefix / "store/workers"
    variable = "zone=a, gpu_model=H200"
    running = sqlite.worker("--label", "zone=b", "--node", "one", GRISTMILL_LABELS=variable)
    state = json.loads(wait_until(lambda: (offers / "one").exists() and (offers / "one").read_text(), "the entry"))
    assert state["offer"]["labels"] == {"zone": "b", "gpu_model": "H200"}, "the flag takes precedence"
    assert state["offer"]["processors"] > 0 and state["offer"]["memory"] > 0, state
    running.process.terminate()
    ended = running.wait()
    assert ended.exit_status == 0, str(ended)
    assert "label gpu_model=H200, label zone=b" in ended.stdout, "it prints its offer"
    assert not (offers / "one").exists()


@pytest.mark.parametrize(
    ("arguments", "variable", "expected"),
    [
        (["--label", "zone"], "", "write it as NAME=VALUE"),
        (["--label", "zone="], "", "name and value must each have 1 to 63 letters"),
        ([], "zone=a b", 'GRISTMILL_LABELS, "zone=a b": name and value must each have 1 to 63 letters'),
    ],
)
def test_wrong_labels_are_refused(sqlite, arguments, variable, expected):
    ended = sqlite.command("worker", *arguments, GRISTMILL_LABELS=variable)
    assert ended.exit_status != 0 and expected in ended.stderr, str(ended)


def test_this_machine_warns_and_runs_the_job(workplace):
    """Labels do not count here."""
    workplace.data(2)
    job = workplace.job(SCRIPT, requires={"gpus": 99, "labels": {"zone": "b"}})
    warning = "requires: this machine does not meet it: it has "
    for command in ["validate", "plan"]:
        ended = workplace.command(command, job.file)
        assert ended.exit_status == 0 and warning in ended.stderr, str(ended)
    (said,) = json.loads(workplace.command("validate", job.file, "--json").stdout)["warnings"]
    assert warning in said, said
    ended = workplace.command("run", job.file, ZONE="here")
    assert ended.exit_status == 0 and warning in ended.stderr, str(ended)
    assert "zone" not in ended.stderr, ended.stderr
    fits = workplace.job(SCRIPT, requires={"labels": {"zone": "b"}})
    assert "requires" not in workplace.command("validate", fits.file).stderr
