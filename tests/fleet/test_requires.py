"""Jobs that require something of their nodes, on targets whose workers differ."""

from __future__ import annotations

import json

import pytest

from harness import file_names, wait_until

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
    target.create_store()
    target.reducer()
    for zone, gpus in (("a", 0), ("b", 1), ("c", 2)):
        worker(target, zone, gpus)
    in_b = workplace.job_of_its_own("in-b", 8, SCRIPT, requires={"labels": {"zone": "b"}, "processors": 1})
    enqueued = target.command("enqueue", in_b.file, expect=0)
    assert "requires" not in enqueued.stderr, enqueued.stderr
    target.wait_for_end(enqueued.stdout.strip())
    assert {fact["zone"] for fact in workplace.recorded("run")} == {"b"}
    with_gpus = workplace.job_of_its_own("with-gpus", 8, SCRIPT, requires={"gpus": 2})
    assert target.lines(target.enqueue(with_gpus)) == file_names(8)
    assert {(fact["zone"], fact["gpu"]) for fact in workplace.recorded("run")[8:]} == {("c", "0")}


@pytest.mark.parametrize("target", ["sqlite", "rabbitmq"], indirect=True)
def test_job_that_no_worker_takes_says_so_and_lets_others_pass(workplace, target):
    """It waits for a worker that takes it, and until then no worker sees its messages."""
    target.create_store()
    target.reducer()
    worker(target, "a")
    wait_until(lambda: target.objects("workers/"), "the entry of the worker")
    picky = workplace.job_of_its_own("picky", 40, SCRIPT, requires={"labels": {"zone": "b"}})
    enqueued = target.command("enqueue", picky.file, expect=0)
    lacks = "does not meet `requires` (label zone=b): its label zone is a, the job requires b"
    assert f"warning: the only worker, node-a, {lacks}; the job waits for one that does" in enqueued.stderr
    job_id = enqueued.stdout.strip()

    def unfit():
        status = target.status(job_id)
        return status if "does not meet `requires`" in (status["hint"] or "") else None

    waiting = wait_until(unfit, "a schedule that knows the worker")
    assert waiting["state"] == "Queued", waiting
    assert waiting["hint"].startswith(f"the only worker, node-a, {lacks}; start one with: "), waiting
    assert f"gristmill worker --target {target.name} --label zone=b" in waiting["hint"], waiting

    assert len(target.lines(target.enqueue(workplace.job_of_its_own("fits", 5, SCRIPT)))) == 5
    assert target.status(job_id)["result"] is None
    assert [fact["zone"] for fact in workplace.recorded("run")] == ["a"] * 5

    worker(target, "b")
    assert target.lines(job_id) == file_names(40)
    assert {fact["zone"] for fact in workplace.recorded("run")[5:]} == {"b"}


def test_worker_is_listed_while_it_runs(workplace, sqlite):
    sqlite.create_store()
    offers = workplace.folder / sqlite.prefix / "store/workers"
    variable = "zone=a, gpu_model=H200"
    running = sqlite.worker("--label", "zone=b", "--node", "one", GRISTMILL_LABELS=variable)
    state = json.loads(wait_until(lambda: (offers / "one").exists() and (offers / "one").read_text(), "the entry"))
    assert state["offer"]["labels"] == {"zone": "b", "gpu_model": "H200"}, "the flag takes precedence"
    assert state["offer"]["processors"] > 0 and state["offer"]["memory"] > 0, state
    ended = running.stop()
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
