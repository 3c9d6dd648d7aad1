"""Manners in a notebook, in a real kernel: progress, cards, interruptions, a kernel that dies, cells that run again."""

import pytest

from notebooks import run_cells

CELL = """
import os, time, gristmill

def wait(items):
    with open({folder!r} + "/calls", "a") as file:
        file.write(f"{{items[0]}}\\n")
    while items[0] and not os.path.exists({folder!r} + "/gate"):
        time.sleep(0.05)
    return items

job = gristmill.run(wait, inputs=[0, 1, 2], mini_batch_size=1, process_count_per_node=1)
"""
LOOK = "job.to_pandas()['value'].tolist()"
CARD = "job"


@pytest.fixture
def cells(executable, tmp_path):
    """Returns a function that runs cells; `{folder}` in a cell is that of the test."""

    def run(*steps):
        return run_cells(
            executable, tmp_path, [{**step, "run": step["run"].format(folder=str(tmp_path))} for step in steps]
        )

    return run


def calls(tmp_path):
    return (tmp_path / "calls").read_text().split()


def test_notebook_shows_progress_and_a_card(cells, tmp_path):
    (tmp_path / "gate").touch()
    quick, slow, looked, card, again = cells(
        {"run": CELL},
        {"run": CELL.replace("return items", "time.sleep(0.7)\n    return items")},
        {"run": LOOK},
        {"run": CARD},
        {"run": CELL},
    )
    assert quick["status"] == "ok", quick["traceback"]
    (bar,) = slow["data"]
    assert "application/vnd.jupyter.widget-view+json" in bar and "wait-" in bar["text/plain"]
    assert looked["data"][0]["text/plain"] == "[0, 1, 2]"
    html = card["data"][0]["text/html"]
    assert "3 of 3 succeeded, 0 failed" in html and "<table>" in html and "href='file://" in html
    assert "has this result already: same code, inputs and settings; fresh=True runs it again" in again["text"]
    assert len(calls(tmp_path)) == 6


def test_interrupted_cell_cancels_and_continues_when_it_runs_again(cells, tmp_path):
    # Item 0 has ended when item 1 is called.
    cell = CELL.replace("while items[0]", "os.path.exists({folder!r} + '/calls') and items[0] and "
                        "open({folder!r} + '/second', 'w')\n    while items[0]")  # fmt: skip
    interrupted, again, looked = cells(
        {"run": cell, "interrupt_when": "second", "then_touch": "gate"}, {"run": cell}, {"run": LOOK}
    )
    assert interrupted["error"].startswith("KeyboardInterrupt: job wait-"), interrupted
    assert "was canceled; its committed results stay" in interrupted["error"]
    assert again["status"] == "ok" and "continuing job wait-" in again["text"]
    assert looked["data"][0]["text/plain"] == "[0, 1, 2]"
    assert sorted(calls(tmp_path)) == ["0", "1", "2"], "what is committed does not run again"


def test_cell_follows_its_job_after_the_kernel_died(cells, tmp_path):
    dead, again, looked = cells(
        {"run": CELL, "kill_when": "calls"},
        {
            "run": "import threading; threading.Timer(2, lambda: open({folder!r} + '/gate', 'w').close()).start()\n"
            + CELL
        },
        {"run": LOOK},
    )
    assert dead["status"] == "dead"
    assert again["status"] == "ok", again["traceback"]
    assert "is already running: this call follows it" in again["text"]
    assert looked["data"][0]["text/plain"] == "[0, 1, 2]"
    assert sorted(calls(tmp_path)) == ["0", "1", "2"]


INVERT = """
import gristmill

def invert(items):
    return [1 / item for item in items]

gristmill.run(invert, inputs=[1, 0])
"""
GATHER = """
import asyncio

jobs = [gristmill.submit(invert, inputs=[number]) for number in (1, 2)]
await asyncio.gather(*jobs)
[job.to_pandas()["value"][0].item() for job in jobs]
"""


FAILING = """
import gristmill

def score(numbers):
    print("scoring", numbers)
    # The line below fails.
    return [1 / number for number in numbers]

gristmill.run(score, [0], progress=False)
"""


def test_errors_of_functions_are_those_of_their_cells_and_show_the_lines(cells):
    inverted, awaited, failed, corrected, edited = cells(
        {"run": INVERT},
        {"run": GATHER},
        {"run": FAILING},
        {"run": FAILING.replace("1 / number", "number").replace("progress=False", "")},
        {"run": FAILING.replace("1 / number", "-number").replace("progress=False", "")},
    )
    assert inverted["error"].startswith("JobFailed: job invert-")
    assert "return [1 / item for item in items]" in inverted["error"], "the line of the cell"
    assert "ZeroDivisionError: division by zero" in inverted["error"]
    assert awaited["data"][-1]["text/plain"] == "[1.0, 0.5]", awaited["traceback"]
    assert failed["status"] == "error" and "JobFailed" in failed["error"]
    assert "return [1 / number for number in numbers]" in failed["traceback"]
    assert "score() of mini-batch 0, try 1: ZeroDivisionError: division by zero" in failed["traceback"]
    assert "item 0 of inputs" in failed["traceback"] and "run()" not in failed["traceback"]
    assert "scoring [0]" in failed["text"]
    assert corrected["status"] == "ok", corrected["traceback"]
    assert "and this is a new job, because the function has changed\n" in edited["text"]
    assert "functions/outputs" not in edited["text"]
