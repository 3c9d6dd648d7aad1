"""The portal tells the phases of attempts apart, and marks speculative runs."""

from __future__ import annotations

import signal

import pytest

from harness import COMPLETED

PHASES = ["waited", "prepared", "loaded", "ran", "reported"]
SLOW_SECONDS = 0.7

SLOW = f"""
    import os, time
    import gristmill.tables

    class Slow:
        def __str__(self):
            time.sleep({SLOW_SECONDS})
            return "slow"

    def init():
        read = gristmill.tables.read_frame
        def slow_read(*arguments):
            time.sleep({SLOW_SECONDS})
            return read(*arguments)
        if os.environ["SLOW"] == "loaded":
            gristmill.tables.read_frame = slow_read

    def run(frame):
        if os.environ["SLOW"] == "ran":
            time.sleep({SLOW_SECONDS})
        return [Slow() if os.environ["SLOW"] == "reported" else "quick"] * len(frame)
"""


def table_job(workplace, slow, count=2, **settings):
    """Returns a job whose mini-batches run on one process and are slow in one phase."""
    workplace.environment["SLOW"] = slow
    workplace.write({"data/rows.csv": "id\n" + "".join(f"{number}\n" for number in range(count))})
    inputs = [{"name": "rows", "type": "tabular", "path": "data", "format": "csv"}]
    return workplace.job(SLOW, inputs=inputs, mini_batch_size="1 rows", **settings)


def attempts_of(portal, job_id, number):
    attempts = portal.get(f"/jobs/{job_id}/mini-batches/{number}")["attempts"]
    for attempt in attempts:
        names = [phase["name"] for phase in attempt["phases"]]
        assert names == [name for name in PHASES if name in names], names
    return [{phase["name"]: phase["seconds"] for phase in attempt["phases"]} for attempt in attempts]


@pytest.mark.parametrize("slow", ["loaded", "ran", "reported"])
def test_phase_that_is_slow_is_the_longest(workplace, portal, slow):
    ended = table_job(workplace, slow).run()
    rows = ended.attempts()
    # The first one loads pandas as well. What is slow for the second is slow for the first, for which it waits.
    number, row = max(enumerate(rows), key=lambda row: row[1]["Process Start Time (UTC)"])
    (attempt,) = attempts_of(portal, ended.job_id, number)
    percentiles = {row["of"]: row for row in portal.get(f"/jobs/{ended.job_id}/timeline")["percentiles"]}
    (summary,) = ended.table("sys/job_report/process_summary.csv")
    # While the first one runs, the second one waits.
    for longest in ("ran", "waited") if slow == "ran" else (slow,):
        own = {phase: seconds for phase, seconds in attempt.items() if longest == "waited" or phase != "waited"}
        assert set(own) >= {"prepared", "loaded", "ran", "reported"}, attempt
        assert max(own, key=own.__getitem__) == longest and own[longest] >= SLOW_SECONDS * 0.9, attempt
        name = "run" if longest == "ran" else longest
        assert percentiles[name]["max"] >= attempt[longest] * 0.999, percentiles
        column = "Run Method Seconds" if longest == "ran" else f"{longest.capitalize()} Seconds"
        assert float(row[column]) == pytest.approx(attempt[longest], abs=2e-6), row
        assert float(summary[column]) >= attempt[longest] - 1e-5, summary


SPECULATIVE_RUN = """
    import os, time
    from recorder import record, wait_for
    def run(files):
        name, mark = os.path.basename(files[0]), os.environ["MARK"]
        if name != "005.txt":
            time.sleep(0.05)
            return [name]
        first = not os.path.exists(mark)
        open(mark if first else mark + "2", "w").close()
        if first == (os.environ["WINS"] == "first"):
            wait_for(lambda: os.path.exists(mark + "2"))
            return [name]
        record("slower")
        time.sleep(1000)
"""


@pytest.mark.parametrize("wins", ["first", "second"])
def test_speculative_run_is_marked(workplace, portal, wins):
    workplace.data(12)
    workplace.environment |= {"MARK": str(workplace.folder / "mark"), "WINS": wins}
    ended = workplace.job(SPECULATIVE_RUN, speculation=True, process_count_per_node=3).run(expect=COMPLETED)
    has_won = wins == "second"
    job = portal.get(f"/jobs/{ended.job_id}")
    assert job["result"]["copies"] == {"started": 1, "won": int(has_won)}, job["result"]
    mini_batch = portal.get(f"/jobs/{ended.job_id}/mini-batches/5")
    assert [attempt["copy"] for attempt in mini_batch["attempts"]] == [has_won], mini_batch["attempts"]
    assert mini_batch["speculative_run"] == ("won" if has_won else "stopped"), mini_batch
    assert portal.get(f"/jobs/{ended.job_id}/mini-batches/4")["speculative_run"] is None
    timeline = portal.get(f"/jobs/{ended.job_id}/timeline")
    bars = dict(zip(timeline["bars"]["mini_batch"], timeline["bars"]["copy"], strict=True))
    assert bars == {number: has_won and number == 5 for number in range(12)}, bars
    assert [row["copy"] for row in timeline["slowest"] if row["mini_batch"] == 5] == [has_won], timeline["slowest"]
    in_report = {int(row["Mini-batch Id"]): row["Second Start"] == "True" for row in ended.attempts()}
    assert in_report == bars, in_report


def test_open_speculative_run_is_shown(workplace, portal):
    workplace.data(12)
    workplace.environment |= {"MARK": str(workplace.folder / "mark"), "WINS": "neither"}
    script = SPECULATIVE_RUN.replace('os.environ["WINS"] == "first"', "None")
    running = workplace.job(script, speculation=True, process_count_per_node=3).start()
    running.wait_for_record("slower", 2)
    mini_batch = portal.get(f"/jobs/{workplace.job_ids()[-1]}/mini-batches/5")
    assert (mini_batch["speculative_run"], mini_batch["attempts"]) == ("open", []), mini_batch
    running.send(signal.SIGKILL)
