"""Kills the engine at each step while a mini-batch with a bad item is isolated: it alone is rejected."""

import signal

from harness import is_alive, wait_until

BAD_FILE = """
    import os
    from recorder import record
    record("import")
    def run(files):
        names = [os.path.basename(file) for file in files]
        if "006.txt" in names:
            raise ValueError("bad")
        # One row becomes a part, in the mini-batch that is isolated.
        return [f"{name} {'x' * (300_000 if name == '004.txt' else 5)}" for name in names]
"""


def test_crash_at_any_step_of_an_isolation_loses_no_item(workplace, crash_point):
    workplace.data(12)
    job = workplace.job(BAD_FILE, mini_batch_size=4, process_count_per_node=2, run_max_try=2)
    crashed = job.start(GRISTMILL_CRASH_AT=crash_point).wait()
    assert crashed.exit_status == -signal.SIGKILL, f"{crash_point} was not passed: {crashed}"
    (job_id,) = workplace.job_ids()
    pids = {fact["pid"] for fact in workplace.recorded("import")}
    wait_until(lambda: not any(map(is_alive, pids)), "the Python processes end with their engine")

    ended = job.retry(job_id)
    assert [line.split()[0] for line in ended.lines] == [f"{number:03}.txt" for number in range(12) if number != 6]
    assert [len(line) for line in ended.lines if line.startswith("004")] == [8 + 300_000]
    assert (ended.items, ended.mini_batches) == ((12, 11, 1), (3, 3, 0))
    assert ended.result["rejects"]["items"] == 1
