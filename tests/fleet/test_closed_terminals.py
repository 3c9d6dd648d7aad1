"""A closed terminal sends SIGHUP to the roles that were started in it."""

import signal

import pytest

from harness import HOLDS, go, wait_until


@pytest.mark.parametrize("role", ["worker", "reducer"])
def test_closed_terminal_stops_a_role_in_order(workplace, sqlite, role):
    workplace.data(2)
    job_id = sqlite.enqueue(workplace.job(HOLDS, run_invocation_timeout=600))
    roles = {"reducer": sqlite.reducer(), "worker": sqlite.worker("--process-count", 1, "--grace", 100)}
    roles["worker"].wait_for_record("held")
    roles[role].send(signal.SIGHUP)
    if role == "worker":
        wait_until(lambda: sqlite.waiting("tasks") == 1, "the mini-batch that has not begun in the queue")
        go(workplace)
    ended = roles[role].wait()
    assert ended.exit_status == 0 and "SIGHUP" in ended.stderr, str(ended)
    getattr(sqlite, role)()
    go(workplace)
    assert sqlite.lines(job_id) == ["000.txt", "001.txt"]
    assert len(workplace.recorded("held")) == 2, "nothing ran twice"
