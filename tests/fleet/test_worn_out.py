"""Processes that wear out, on every kind of target."""

import re

import pytest

from targets import KINDS, lend

SCRIPT = """
    import os
    from recorder import record
    def run(files):
        record("run", file=os.path.basename(files[0]))
        return [os.path.basename(files[0])]
"""


@pytest.fixture(params=KINDS)
def target(request, workplace, components):
    """Each kind of target in turn."""
    yield from lend(request.param, workplace, components)


def test_worn_out_processes_are_replaced(workplace, target):
    workplace.data(12)
    through = target.run(workplace.job(SCRIPT, process_max_runs=3))
    assert through.mini_batches == (12, 12, 0)
    facts = workplace.recorded("run")
    assert sorted(fact["file"] for fact in facts) == [f"{number:03}.txt" for number in range(12)]
    pids = [fact["pid"] for fact in facts]
    assert max(pids.count(pid) for pid in pids) == 3
    (note,) = through.result["notes"]
    assert re.fullmatch(r"(\d) processes were replaced: \1 after process_max_runs", note), note
