"""`gristmill.run` and related functions: functions, inputs, results, failures, interruptions."""

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from agent import PACKAGE
from calls import committed, drive, frame, run

import gristmill
from gristmill.api import command

FACTOR = 10
pytestmark = pytest.mark.usefixtures("home")


# ---- functions -----------------------------------------------------------------------------------------------------


def scaled(df):
    df["y"] = df["x"] * FACTOR
    return df


def with_pandas(table: pd.DataFrame):
    assert isinstance(table, pd.DataFrame), type(table)
    return table.assign(y=table["x"] * 10)


def with_arrow(table: pa.Table):
    assert isinstance(table, pa.Table), type(table)
    return table.append_column("y", pa.array([value.as_py() * 10 for value in table["x"]]))


def with_polars(table: "pl.DataFrame"):
    assert isinstance(table, pl.DataFrame), type(table)
    return table.with_columns(y=pl.col("x") * 10)


async def with_asyncio(table):
    await asyncio.sleep(0)
    return table.assign(y=table["x"] * 10)


@pytest.mark.parametrize("function", [scaled, with_pandas, with_arrow, with_polars, with_asyncio])
def test_function_runs_over_a_table(function):
    job = run(function, frame(), mini_batch_size=3)
    assert (job.state, job.result["mini_batches"]["total"], job.result["items"]["succeeded"]) == ("Completed", 3, 7)
    pd.testing.assert_frame_equal(job.to_pandas(), frame().assign(y=[10 * x for x in range(7)]))
    assert [batch.num_rows for batch in job] and job.to_polars()["y"].sum() == 210
    text = pa.large_string() if function in (with_arrow, with_polars) else pa.string()
    assert job.to_arrow().schema.types == [pa.int64(), text, pa.int64()], "as each library has them"


def test_function_brings_closure_init_state_and_context():
    weights = np.array([1.0, 2.0])

    def load():
        return {"bias": 0.5}

    def score(items, context, state):
        return [f"{context.minibatch_index}: {item * weights.sum() + state['bias']}" for item in items]

    job = run(score, [1, 2], init=load, mini_batch_size=1)
    assert job.to_pandas()["value"].tolist() == ["0: 3.5", "1: 6.5"]


def test_function_brings_the_modules_of_its_author(tmp_path, monkeypatch):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "their_rules.py").write_text("LIMIT = 3\nclass Rule:\n    def of(self, x): return x > LIMIT\n")
    monkeypatch.syspath_prepend(str(tmp_path / "own"))
    import their_rules

    def check(items):
        return [their_rules.Rule().of(item) for item in items]

    (tmp_path / "own" / "their_rules.py").unlink()
    assert run(check, [2, 4]).to_pandas()["value"].tolist() == [False, True]


@pytest.mark.parametrize(
    ("function", "init", "said"),
    [
        (lambda: [], None, "takes no argument: its first one is the mini-batch"),
        (lambda a, b: [], None, "needs b too: it gets only the mini-batch"),
        (len, lambda x: x, "init gets no argument, and <lambda> needs x"),
        (len, 3, "init needs a function, not 3"),
        (7, None, "run needs a function, or the path of an entry script or job file, not 7"),
    ],
)
def test_function_that_cannot_be_called_is_rejected(function, init, said):
    with pytest.raises(TypeError, match=said.replace("(", r"\(")):
        run(function, [1], init=init)


@pytest.mark.parametrize("inputs", ["", ["a.txt", ""]])
def test_empty_path_is_not_the_working_folder(inputs):
    with pytest.raises(TypeError, match="inputs: a path is empty"):
        run(len, inputs)


def test_map_needs_a_function():
    with pytest.raises(TypeError, match=r"^map needs a function, not 7$"):
        gristmill.map(7, [1])
    with pytest.raises(TypeError, match=r"score\.py: an entry script has its own run\(\)"):
        gristmill.map("score.py", [1])


def test_frame_whose_columns_were_used_is_the_same():
    """pandas notes in a dtype what it has computed from it."""
    values = pd.array([1, None, 3], dtype="Int64")
    frame = pd.DataFrame({"n": values, "x": pd.array([0.5, None, 1.5], dtype="Float64")}, index=pd.Index(values))

    def count(frame):
        return [len(frame)]

    first = run(count, frame, name="used-frame")
    pd.testing.assert_frame_equal(frame, frame.copy())
    assert frame["n"].astype(float).sum() == 4
    again = run(count, frame, name="used-frame")
    assert (again.reused, again.id) == (True, first.id)


def test_object_that_cannot_travel_is_named():
    lock = threading.Lock()

    def locked(items):
        with lock:
            return items

    with pytest.raises(TypeError, match=r"locked cannot travel .* because of lock \(lock\): "):
        run(locked, [1])

    class Reader:
        def __init__(self):
            self.connection = sqlite3.connect(":memory:")

        def of(self, items):
            return items

    with pytest.raises(TypeError, match=r"of cannot travel .* because of self.connection \(Connection\): "):
        run(Reader().of, [1])


def test_variable_of_a_module_that_cannot_travel_is_named(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    source = "import sqlite3\nconnection = sqlite3.connect(':memory:')\ndef same(x):\n    return x\n"
    (tmp_path / "connected.py").write_text(source)
    import connected

    with pytest.raises(TypeError, match=r"<lambda> cannot travel .* because of connected.connection \(Connection\): "):
        run(lambda items: connected.same(items), [1])


def test_caches_and_locks_of_own_code_travel(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "locking.py").write_text(
        "import functools, threading\nlock = threading.Lock()\n"
        "class Model:\n    @functools.cached_property\n    def weight(self):\n        return 3\n"
        "    def of(self, items):\n        with lock:\n            return [self.weight * item for item in items]\n"
    )
    import locking

    assert run(locking.Model().of, [1, 2]).to_pandas()["value"].tolist() == [3, 6]
    assert run(lambda items: locking.Model().of(items), [5]).to_pandas()["value"].tolist() == [15]
    driver = """
        import functools

        @functools.lru_cache(maxsize=2)
        def fibonacci(number):
            return number if number < 2 else fibonacci(number - 1) + fibonacci(number - 2)

        def row(number):
            return {"value": fibonacci(number), "size": fibonacci.cache_info().maxsize}

        job = gristmill.map(row, range(20, 22), progress=False)
        print(job.to_pandas().to_dict("list"))
    """
    assert drive(driver) == "{'value': [6765, 10946], 'size': [2, 2]}\n"


# ---- inputs --------------------------------------------------------------------------------------------------------


def test_paths_become_files_or_tables(tmp_path):
    (tmp_path / "data").mkdir()
    for number in range(3):
        (tmp_path / "data" / f"{number}.csv").write_text(f"x\n{number}\n")
    assert run(lambda df: df["x"] + 1, "data/*.csv").to_pandas()["x"].tolist() == [1, 2, 3]

    def names(files: list[str]):
        return [os.path.basename(file) for file in files]

    assert run(names, tmp_path / "data").to_pandas()["value"].tolist() == ["0.csv", "1.csv", "2.csv"]
    both = run(names, {"first": "data/0.csv", "others": ["data/1.csv", "data/2.csv"]}, mini_batch_size=1)
    assert (both.to_pandas()["value"].tolist(), both.result["mini_batches"]["total"]) == (
        ["0.csv", "1.csv", "2.csv"],
        3,
    )


def test_objects_are_inputs():
    class Point:
        def __init__(self, x):
            self.x = x

    assert run(lambda points: [point.x for point in points], [Point(1), Point(2)]).to_pandas()["value"].tolist() == [
        1,
        2,
    ]
    texts = gristmill.items(["a text", "another"])
    assert run(lambda items: [len(item) for item in items], texts).to_pandas()["value"].tolist() == [6, 7]


@pytest.mark.parametrize(
    ("inputs", "error", "said"),
    [
        (None, TypeError, "inputs is missing"),
        (3, TypeError, "inputs is a int: pass a path"),
        (b"abc", TypeError, "inputs is a bytes: pass a path"),
        (np.array(3), TypeError, "iteration over a 0-d array"),
        ([threading.Lock()], TypeError, r"item 0 \(lock\) cannot be pickled"),
        (object(), TypeError, "inputs is a object"),
        (pd.DataFrame({"x": [threading.Lock()]}), TypeError, "column 'x' has a lock, which cannot be pickled"),
        (pd.DataFrame([[1, 2]], columns=["x", "x"]), ValueError, "two columns have the name 'x'"),
        ("nowhere/*.csv", gristmill.InvalidJob, "nowhere"),
    ],
)
def test_inputs_that_cannot_be_read_are_named(inputs, error, said):
    with pytest.raises(error, match=said):
        run(scaled, inputs)
    assert gristmill.jobs() == []


def test_ranges_and_numbers_of_numpy_are_taken():
    job = run(lambda items: items, range(4), mini_batch_size=np.int64(2), run_max_try=np.int64(2))
    assert (job.to_pandas()["value"].tolist(), job.result["mini_batches"]["total"]) == ([0, 1, 2, 3], 2)


def test_setting_that_cannot_be_part_of_a_job_file_is_named():
    with pytest.raises(TypeError, match=r"tags: .*object.* cannot be part of a job file"):
        run(scaled, frame(), tags=object())
    with pytest.raises(TypeError, match=r"inputs is missing: pass .* as inputs, not as data"):
        run(scaled, None, data=frame())


def test_paths_are_not_rows():
    def names(files: list[str]):
        return files

    with pytest.raises(TypeError, match="names takes a list, and inputs is a table: let it take a DataFrame"):
        run(names, frame())
    with pytest.raises(TypeError, match=r"with_pandas takes a table, and inputs is a list of objects: pass pandas"):
        run(with_pandas, [{"x": 1}])
    with pytest.raises(TypeError, match=r"score\.py takes paths or rows, and inputs is a list of objects: pass a func"):
        run("score.py", [1, 2])


@pytest.mark.parametrize(("size", "count"), [(3, 3), ("3 rows", 3), ("1GB", 1), ("1b", 7), (None, None)])
def test_size_of_mini_batches_of_a_table(size, count):
    total = run(scaled, frame(), mini_batch_size=size).result["mini_batches"]["total"]
    assert total == count if count else 1 < total <= 7


@pytest.mark.parametrize("size", ["many", 0, "-1", 2.5])
def test_invalid_size_is_rejected(size):
    with pytest.raises(ValueError, match="mini_batch_size"):
        run(scaled, frame(), mini_batch_size=size)


# ---- results -------------------------------------------------------------------------------------------------------


def test_output_is_written_to_the_given_path(tmp_path):
    path = tmp_path / "made" / "out.csv"
    job = run(scaled, frame(), output=path)
    assert job.output == str(path)
    assert job.to_pandas()["y"].tolist() == [10 * x for x in range(7)]


def test_output_without_columns_is_not_a_table():
    job = run(scaled, frame(), output_format="text", append_row_file_name="rows.txt")
    assert len(Path(job.output).read_text().splitlines()) == 7
    with pytest.raises(gristmill.GristmillError, match="text without columns"):
        job.to_arrow()


def test_functions_that_differ_in_any_part_are_other_functions():
    from gristmill.api.same import digest

    def made(text):
        names = {}
        exec(text, names)
        return names["f"]

    texts = [
        "def f(a, b=1): return a",
        "def f(a, *, b=1): return a",
        "def f(a, b=2): return a",
        "def f(a, b=1): return b",
        "def f(a, b=1):\n try: return a\n except ValueError: return 1",
        "def f(a, b=1):\n try: return a\n except TypeError: return 1",
    ]
    assert len({digest(made(text)).bytes for text in texts}) == len(texts)
    assert digest(made(texts[0])).bytes == digest(made("\n" + texts[0])).bytes


def test_same_call_is_reused_and_another_is_not():
    first = run(scaled, frame())
    again = run(scaled, frame())
    assert (again.id, again.result["reused"]) == (first.id, True)
    assert run(scaled, frame(8)).id != first.id
    assert run(lambda df: df, frame()).id != first.id
    assert run(scaled, frame(), fresh=True).id != first.id
    assert sorted(job.id for job in gristmill.jobs(name="scaled", state="completed"))[0] == first.id


def test_clean_keeps_files_of_jobs_and_of_recent_calls(home):
    run(scaled, frame())
    files = [*home.glob("functions/inputs/*"), *home.glob("functions/scaled/*")]
    assert len(files) == 2

    def grow_old():
        for path in files:
            os.utime(path, ns=(0, modified[path]))

    modified = {path: 0 if path.is_dir() else path.stat().st_mtime_ns - 2 * 3600 * 10**9 for path in files}
    grow_old()
    assert run(scaled, frame()).state == "Completed"
    grow_old()
    assert run(scaled, frame()).result["reused"]
    command.call("clean", "--all")
    assert all(path.exists() for path in files), "a call has just used them"
    grow_old()
    command.call("clean", "--all")
    assert not any(path.exists() for path in files)
    assert run(scaled, frame()).to_pandas()["y"].tolist() == [10 * x for x in range(7)]


def test_cell_that_is_typed_again_is_the_same_function():
    functions = []
    for cell in ("/tmp/ipykernel_1/5.py", "/tmp/ipykernel_2/5.py"):
        names = {}
        exec(compile("def cell(df):\n    return df", cell, "exec"), names)
        functions.append(names["cell"])
    first, again = (run(function, frame()) for function in functions)
    assert first.id == again.id and again.result["reused"]


def test_job_describes_itself():
    job = run(scaled, frame())
    assert repr(job).startswith(f"<Job {job.id}: Completed, ") and repr(job).endswith("0 failed>")
    card = job._repr_html_()
    assert "<th style='text-align:left'>items</th>" in card and "7 of 7 succeeded, 0 failed" in card
    assert "sys/job_report/processed_mini-batches.csv" in job.logs() and job.logs("job_result.txt")
    with pytest.raises(FileNotFoundError, match="has no log nothing"):
        job.logs("nothing")
    found = gristmill.attach(job.id[:-3])
    assert (found.id, found.state, found.to_pandas().shape) == (job.id, "Completed", (7, 3))
    with pytest.raises(gristmill.GristmillError, match="nothing-like-it"):
        gristmill.attach("nothing-like-it")


# ---- failures ------------------------------------------------------------------------------------------------------


def total(items):
    print("looking at", items)
    return [1 / item for item in items]


def test_failure_shows_the_error_of_the_function():
    with pytest.raises(gristmill.JobFailed) as raised:
        run(total, [1, 0, 2], mini_batch_size=1)
    error = raised.value
    assert "exceeds error threshold 0" in error.cause and error.job.state == "Failed"
    assert "ZeroDivisionError: division by zero" in str(error)
    assert "return [1 / item for item in items]" in error.traceback and "function_job.py" not in error.traceback
    (failure,) = error.job.failures
    assert (failure["mini_batch"], failure["items"], failure["error"]) == (1, 1, "ZeroDivisionError")
    assert "return [1 / item for item in items]" in failure["traceback"]
    # The other mini-batches may not have run.
    assert "looking at [0]" in error.job.logs("user/stdout")
    with pytest.raises(gristmill.GristmillError, match="has no output: it is Failed"):
        error.job.to_pandas()


def test_failures_may_be_allowed():
    job = run(total, [1, 0, 2], mini_batch_size=1, error_threshold=-1, run_max_try=2)
    assert job.to_pandas()["value"].tolist() == [1.0, 0.5]
    assert [(failure["mini_batch"], failure["try"]) for failure in job.failures] == [(1, 1), (1, 2)]
    (reject,) = job.rejects
    assert (reject["mini_batch"], reject["items"], reject["tries"]) == (1, 1, 2)
    assert "Traceback" in reject["traceback"] and reject["exception"] == job.failures[-1]["error"]
    assert run(total, [1, 2]).rejects == []


def test_invalid_setting_is_one_error_with_its_problem():
    with pytest.raises(gristmill.InvalidJob, match="run_max_tries") as raised:
        run(scaled, frame(), run_max_tries=2)
    (problem,) = raised.value.problems
    assert (problem["field"], "run_max_try" in problem["allowed"] + problem["message"]) == ("run_max_tries", True)


def test_job_within_a_job_is_an_error():
    def nested(items):
        return gristmill.run(len, items)

    with pytest.raises(gristmill.JobFailed, match="a function cannot call gristmill"):
        run(nested, [1])


# ---- other ways in -------------------------------------------------------------------------------------------------


def test_entry_scripts_and_job_files_run_too(tmp_path):
    (tmp_path / "score.py").write_text("def run(files): return [open(file).read() for file in files]")
    (tmp_path / "a.txt").write_text("one")
    document = {
        "name": "from-file", "entry_script": "score.py", "output_action": "append_row", "output": "out",
        "inputs": [{"name": "data", "type": "file", "path": "a.txt"}],
    }  # fmt: skip
    (tmp_path / "job.yaml").write_text(json.dumps(document))
    assert run(tmp_path / "score.py", "a.txt").to_pandas()["value"].tolist() == ["one"]
    job = gristmill.run("job.yaml", progress=False, run_max_try=2, append_row_file_name="rows.txt")
    assert job.id.startswith("from-file-") and Path(job.output).read_text() == "one\n"
    with pytest.raises(TypeError, match="pass only settings that replace its own"):
        gristmill.run("job.yaml", inputs="a.txt")


# ---- interruptions -------------------------------------------------------------------------------------------------

WAITS = """
    import os, sys, time
    sys.path.insert(0, {package!r})
    import gristmill

    def wait(items):
        try:
            os.mkdir({gate!r} + ".first")
        except FileExistsError:
            while not os.path.exists({gate!r}):
                time.sleep(0.02)
        return items

    if __name__ == "__main__":
        {call}
"""


def started(call):
    script = Path("notebook.py")
    script.write_text(textwrap.dedent(WAITS).format(package=str(PACKAGE), call=call, gate=os.path.abspath("gate")))
    return subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


CALL = "gristmill.{}(wait, [0, 1], mini_batch_size=1, process_count_per_node=2, run_invocation_timeout=300)"


def test_interrupt_cancels_and_keeps_committed_results():
    # The first call ends, two wait, and one has not begun.
    notebook = started(CALL.format("run").replace("[0, 1]", "[0, 1, 2, 3]"))
    job = committed()
    notebook.send_signal(signal.SIGINT)
    threading.Timer(1, Path("gate").absolute().touch).start()
    _, said = notebook.communicate(timeout=60)
    assert notebook.returncode == -signal.SIGINT, "a loop of a shell ends, too"
    assert f"KeyboardInterrupt: job {job.id} was canceled; its committed results stay" in said
    assert job.retry(progress=False).to_pandas()["value"].tolist() == [0, 1, 2, 3]


def test_job_outlives_its_notebook():
    notebook = started(CALL.format("submit") + "; time.sleep(600)")
    job = committed()
    notebook.kill()
    notebook.communicate()
    assert job.state == "Running"
    waiting = started(f"print('waiting', flush=True); gristmill.attach({job.id!r}).wait()")
    waiting.stdout.readline()
    time.sleep(1)
    waiting.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in waiting.communicate(timeout=60)[1] and job.state == "Running"
    with pytest.raises(TimeoutError, match="it continues"):
        job.wait(timeout=0.2, progress=False)
    Path("gate").touch()
    assert gristmill.attach(job.id).wait(timeout=60, progress=False).to_pandas()["value"].tolist() == [0, 1]


def test_canceled_job_says_so():
    notebook = started(CALL.format("submit") + "; time.sleep(600)")
    job = committed()
    threading.Timer(5, Path("gate").absolute().touch).start()
    job.cancel()
    notebook.kill()
    notebook.communicate()
    with pytest.raises(gristmill.JobCanceled, match=f"job {job.id} canceled"):
        job.wait(progress=False)
