"""Jobs that Python submits to compute targets."""

import json
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from harness import Workplace

TARGETS = ["sqlite", "sqs"]


def python(workplace, text):
    """Runs Python with the package beside the executable, and returns what it prints, as JSON."""
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)],
        cwd=workplace.folder,
        env={**workplace.environment, "PYTHONPATH": str(workplace.executable.parent / "python")},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_functions_changed_functions_and_steps_run_on_a_target(target, workplace):
    target.reducer()
    target.worker()
    (workplace.folder / "score.py").write_text("def run(files): return [open(file).read() for file in files]")
    (workplace.folder / "a.txt").write_text("one")
    text = """
        import gristmill, json
        def invert(items):
            return [1 / item for item in items]
        job = gristmill.submit(invert, inputs=list(range(-2, 8)), mini_batch_size=2, target=NAME,
                               output="out/out.parquet", error_threshold=-1, isolate="off")
        job.wait(timeout=120, progress=False)
        found = gristmill.attach(job.id, target=NAME)
        same = [one.id for one in gristmill.jobs(NAME, name="invert")]
        waiting = gristmill.submit(invert, inputs=[0], target=NAME, output="out/other.parquet")
        try:
            waiting.wait(timeout=120, progress=False)
        except gristmill.JobFailed as error:
            cause = error.cause, error.traceback
        first = [job.to_pandas()["value"].tolist(), [one["error"] for one in found.failures], same == [job.id],
                 found.state, job.logs("job_result.txt") != "", cause, repr(found)]

        settings = {"mini_batch_size": 1, "error_threshold": -1, "progress": False}
        job = gristmill.run(invert, inputs=[2, 0, 4], target=NAME, **settings)
        rejects = len(job.rejects)
        def invert(items):
            return [1 / item if item else 0 for item in items]
        retried = gristmill.attach(job.id, target=NAME).retry(function=invert, progress=False)
        changed = [rejects, retried.rejects, retried.to_pandas()["value"].tolist()]

        config = gristmill.ParallelRunConfig(None, "score.py", 0, "append_row", NAME, 1)
        job = gristmill.ParallelRunStep("score", config, inputs=["a.txt"], output="out/step").submit()
        step = [job.target, open(job.wait(timeout=120, progress=False).output).read()]
        print(json.dumps([first, changed, step]))
    """
    first, changed, step = python(workplace, text.replace("NAME", repr(target.name)))
    values, errors, same, state, has_log, cause, text = first
    assert values == [-0.5, -1.0, *(1 / number for number in range(2, 8))]
    assert errors == ["ZeroDivisionError"] and same and state == "Completed" and has_log
    assert "exceeds error threshold 0" in cause[0] and "in invert" in cause[1]
    assert f"target='{target.name}': Completed, 4 of 5 mini-batches succeeded, 1 failed" in text
    assert changed == [1, [], [0.5, 0.0, 0.25]]
    assert step == [target.name, "one\n"], "the target that its configuration names"


@pytest.fixture
def elsewhere(workplace):
    """A machine with another home, for workers and reducers."""
    elsewhere = Workplace(workplace.folder / "elsewhere", workplace.executable, Path(sys.executable))
    elsewhere.folder.mkdir()
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION")
    elsewhere.environment["GRISTMILL_CONFIG"] = str(workplace.folder / "gristmill.toml")
    yield lambda name, *arguments: elsewhere.start(
        name, *arguments, **{name: workplace.environment[name] for name in names}
    )
    elsewhere.kill_what_still_runs()


def test_inputs_in_memory_reach_workers_of_other_machines(target, workplace, elsewhere):
    text = """
        import gristmill, json, os, pandas
        def double(table: pandas.DataFrame):
            if not os.path.exists(GO):
                raise RuntimeError("not yet")
            return table.assign(y=2 * table["x"])
        job = gristmill.submit(double, inputs=pandas.DataFrame({"x": range(10)}), mini_batch_size=2, target=NAME,
                               output="out/out.parquet")
        print(json.dumps(job.id))
    """
    go = workplace.folder / "go"
    job = python(workplace, text.replace("NAME", repr(target.name)).replace("GO", repr(str(go))))
    (name,) = target.objects(f"jobs/{job}/inputs/")
    (path,) = json.loads(target.objects(f"jobs/{job}/spec.json")[f"jobs/{job}/spec.json"])["inputs"][0]["paths"]
    assert path.endswith(name) and not path.startswith(str(workplace.home))
    shutil.rmtree(workplace.home / "functions")
    for role in ("worker", "reducer"):
        elsewhere(role, "--target", target.name)
    target.wait_for_end(job, "Failed")
    go.touch()
    text = f"""
        import gristmill, json
        job = gristmill.attach({job!r}, {target.name!r}).retry(progress=False)
        print(json.dumps(job.to_pandas()["y"].tolist()))
    """
    assert python(workplace, text) == [2 * number for number in range(10)]
    target.command("clean", job, expect=0)
    assert target.objects(f"jobs/{job}") == {}


def test_default_output_is_in_the_store_of_other_machines(rabbitmq, workplace, elsewhere):
    """The address leads to this machine without naming it."""
    rabbitmq.write(queue=rabbitmq.settings["queue"].replace("127.0.0.1", "0.0.0.0"))
    for role in ("worker", "reducer"):
        elsewhere(role, "--target", rabbitmq.name)
    text = """
        import gristmill, json, warnings
        warnings.simplefilter("error")
        job = gristmill.submit(lambda items: [2 * item for item in items], inputs=[1, 2, 3], target="rabbitmq")
        job.wait(timeout=120, progress=False)
        print(json.dumps([job.id, job.output, job.to_pandas()["value"].tolist()]))
    """
    workplace.environment["AWS_ENDPOINT_URL"] = rabbitmq.settings["endpoint"]
    job, output, values = python(workplace, text)
    assert output.startswith(f"{rabbitmq.settings['store']}/jobs/{job}/output/") and values == [2, 4, 6]


def test_job_of_a_target_is_canceled_and_continued(sqlite, workplace):
    sqlite.reducer()
    text = """
        import gristmill, json
        settings = {"name": "later", "target": "sqlite", "output": "out/out.parquet"}
        job = gristmill.submit(lambda items: items, inputs=[1, 2], **settings)
        try:
            job.wait(timeout=1, progress=False)
        except TimeoutError as error:
            said = str(error)
        job.cancel()
        try:
            job.wait(timeout=60, progress=False)
        except gristmill.JobCanceled as error:
            print(json.dumps([said, str(error), job.id]))
    """
    said, canceled, job = python(workplace, text)
    assert "has not ended after 1 s; it continues" in said and f"job {job} canceled" in canceled
    sqlite.worker()
    text = f"""
        import gristmill, json
        print(json.dumps(gristmill.attach({job!r}, "sqlite").retry(progress=False).to_pandas()["value"].tolist()))
    """
    assert python(workplace, text) == [1, 2]
