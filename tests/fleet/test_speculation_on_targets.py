"""A slow worker does not keep a job of several workers waiting, on every kind of target."""

import signal

FILES = 40
SCRIPT = """
    import os, time
    from recorder import record
    def run(files):
        name = os.path.basename(files[0])
        record("run", file=name, node=os.environ["NODE"])
        time.sleep(float(os.environ["SLEEP"]))
        return [name]
"""


def run_beside_a_slow_worker(workplace, target, disturb=lambda slow: None, sleep="1000"):
    workplace.data(FILES)
    job = workplace.job(SCRIPT, process_count_per_node=1)
    target.reducer()
    slow = target.worker(NODE="slow", SLEEP=sleep)
    job_id = target.enqueue(job)
    slow.wait_for_record("run")
    disturb(slow)
    target.worker(NODE="quick", SLEEP="0.05")
    result = target.wait_for_end(job_id)
    expected = "".join(f"{number:03}.txt\n" for number in range(FILES))
    assert target.output(result).decode() == expected
    assert (result["mini_batches"]["succeeded"], result["mini_batches"]["failed"]) == (FILES, 0)
    return slow, result


def test_slow_worker_keeps_no_job_waiting(workplace, target):
    slow, result = run_beside_a_slow_worker(workplace, target)
    # What it runs, and perhaps what it has received as well.
    assert result["copies"]["started"] == result["copies"]["won"] in (1, 2)
    slow.process.terminate()
    slow.wait()


def test_stopped_worker_keeps_no_job_waiting(workplace, sqlite):
    """Its leases end, or a speculative run succeeds."""
    slow, _ = run_beside_a_slow_worker(workplace, sqlite, lambda slow: slow.send(signal.SIGSTOP))
    slow.send(signal.SIGCONT)
    slow.process.terminate()
    slow.wait()
