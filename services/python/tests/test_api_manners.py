"""Output of calls besides their results: notes, warnings, examples of the documentation. And the cost of an import."""

import doctest
import functools
import io
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pandas as pd
import pytest
import tqdm.auto
from agent import PACKAGE
from calls import committed

import gristmill
from gristmill.api import progress

pytestmark = pytest.mark.usefixtures("home")


def test_submit_of_an_interrupted_job_returns_at_once(tmp_path, capsys):
    gate = str(tmp_path / "gate")

    def wait(items):
        while items[0] and not os.path.exists(gate):
            time.sleep(0.02)
        return items

    settings = {"mini_batch_size": 1, "process_count_per_node": 2, "run_invocation_timeout": 300}
    first = gristmill.submit(wait, [0, 1], **settings)
    committed()
    first._child._process.kill()
    again = gristmill.submit(wait, [0, 1], **settings)
    assert (again.id, again.state) == (first.id, "Running")
    Path(gate).touch()
    assert again.wait().to_pandas()["value"].tolist() == [0, 1]
    assert f"continuing job {first.id}:\n" in capsys.readouterr().err


def test_call_says_why_it_does_not_reuse_a_result(tmp_path, capsys):
    def read(files: list[str]):
        return [open(file).read() for file in files]

    for text in ("one", "two, and longer"):
        (tmp_path / "a.txt").write_text(text)
        job = gristmill.run(read, "a.txt", process_count_per_node=1)
        assert job.to_pandas()["value"].tolist() == [text]
    said = capsys.readouterr().err
    assert said.count("has completed, and this is a new job, because the files of input data have changed") == 1, said


def test_warning_of_the_engine_is_one_at_the_line_of_the_call(tmp_path):
    script = "def run(files):\n    open(__file__, 'a').write('# changed\\n')\n    return files\n"
    (tmp_path / "score.py").write_text(script)
    (tmp_path / "a.txt").write_text("one")
    with pytest.warns(gristmill.GristmillWarning, match="was changed while the job ran") as caught:
        gristmill.run("score.py", "a.txt", process_count_per_node=1, progress=False)
    assert [warning.filename for warning in caught] == [__file__], [str(warning.message) for warning in caught]


def test_column_as_a_result_gives_no_warning(tmp_path):
    (tmp_path / "a.csv").write_text("x\n1\n2\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error", gristmill.GristmillWarning)
        job = gristmill.run(lambda df: df["x"] + 1, "a.csv", progress=False, process_count_per_node=1)
    assert job.to_arrow()["x"].to_pylist() == [2, 3]


def test_values_that_are_lost_are_a_warning(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n007,1\n8,2\n")
    with pytest.warns(gristmill.GristmillWarning, match='column "x": .*"007"') as caught:
        gristmill.run(lambda df: df, "a.csv", progress=False, process_count_per_node=1)
    assert [warning.filename for warning in caught] == [__file__], [str(warning.message) for warning in caught]


def test_bar_has_the_pace_of_the_job(monkeypatch):
    drawn = io.StringIO()
    monkeypatch.setattr(tqdm.auto, "tqdm", functools.partial(tqdm.tqdm, file=drawn, ncols=200))
    monkeypatch.setattr(progress, "in_notebook", lambda: True)
    counts = {"total": 20, "succeeded": 4, "failed": 1}
    status = {"progress": {"mini_batches": counts, "rate": 0.5, "remaining_seconds": 90}, "hint": None}
    with progress.Bar("job", shown=True) as bar:
        bar.show(status)
        assert drawn.getvalue().endswith("| 5/20, 0.5/s, eta 1 min 30 s, 1 failed"), drawn.getvalue()
        bar.show({**status, "hint": "no worker is running"})
        assert drawn.getvalue().rstrip().endswith("| 5/20, no worker is running"), drawn.getvalue()
        planning = {"mini_batches": {"total": 0, "succeeded": 7, "failed": 0}, "rate": None, "remaining_seconds": None}
        bar.show({"progress": planning, "hint": None})
        assert drawn.getvalue().rstrip().endswith("job: 7 mini-batch"), drawn.getvalue()
    assert "mini-batch/s" not in drawn.getvalue()


def test_job_keeps_the_source_of_its_function():
    def double(items):
        # People may read this comment later.
        return [2 * item for item in items]

    job = gristmill.run(double, [1, 2], progress=False, process_count_per_node=1)
    kept = Path(os.environ["GRISTMILL_HOME"], "jobs", job.id, "sources", "0")
    source = (kept / "function.txt").read_text()
    assert source.startswith("def double(items):\n    # People may read this comment later.\n")
    assert (kept / "entry.py").exists()


def test_import_is_light():
    code = f"import sys; sys.path.insert(0, {str(PACKAGE)!r}); import gristmill; gristmill.run; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    heavy = {"pandas", "numpy", "pyarrow", "polars", "tqdm", "cloudpickle", "asyncio", "inspect", "difflib"}
    assert not heavy & set(loaded)


def test_examples_of_the_documentation_run():
    from gristmill.api import described, gpus, job, parallel_job, parallel_run_step, start

    modules = (start, job, described, gpus, parallel_run_step, parallel_job)
    results = [doctest.testmod(module) for module in modules]
    assert [result.failed for result in results] == [0] * len(modules)
    assert all(result.attempted for result in results)


def test_processes_that_get_tables_share_the_import_of_pandas():
    """Processes of a function that gets objects do not import pandas."""
    frame = pd.DataFrame({"a": range(8)})
    settings = {"mini_batch_size": "2 rows", "process_count_per_node": 2, "progress": False}
    job = gristmill.run(lambda part: part * 2, frame, **settings)
    assert list(job.to_pandas()["a"]) == list(range(0, 16, 2))
    assert "imported pandas once for all processes" in job.logs("sys/node/0/_main.txt")
    job = gristmill.map(lambda item: item * 2, [1, 2, 3], progress=False, process_count_per_node=2)
    assert "imported" not in job.logs("sys/node/0/_main.txt")


def test_interrupt_of_a_call_that_follows_a_job_says_that_it_continues(monkeypatch):
    followed = gristmill.attach(gristmill.run(lambda numbers: numbers, [1], progress=False).id)

    def interrupted(bar):
        raise KeyboardInterrupt

    monkeypatch.setattr(followed, "_has_ended", interrupted)
    with pytest.raises(KeyboardInterrupt, match=rf"job {followed.id} continues; .*\.cancel\(\) stops it"):
        followed.wait(progress=False)


def test_interrupt_of_a_job_that_completes_says_so(monkeypatch):
    """Its output was being written."""
    job = gristmill.submit(lambda numbers: numbers, [1])

    def interrupted(bar):
        while not job._child.has_ended():
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr(job, "_has_ended", interrupted)
    with pytest.raises(KeyboardInterrupt, match=rf"job {job.id} has completed; gristmill\.attach"):
        job.wait(progress=False)


def test_warnings_beyond_those_that_are_named_are_counted():
    def mixed(numbers):
        return pd.DataFrame({f"c{column:02}": ["x" if numbers[0] else 1] for column in range(13)})

    with pytest.warns(gristmill.GristmillWarning) as warned:
        gristmill.run(mixed, [0, 1], mini_batch_size=1, progress=False)
    texts = [str(warning.message) for warning in warned]
    assert "more of its warnings are in" in texts[-1] and len(texts) == 6, texts
