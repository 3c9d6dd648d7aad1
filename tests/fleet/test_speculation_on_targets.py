"""A slow worker does not keep a job of several workers waiting, on every kind of target."""

from harness import file_names

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


def test_slow_worker_keeps_no_job_waiting(workplace, target):
    workplace.data(FILES)
    job = workplace.job(SCRIPT, process_count_per_node=1)
    target.reducer()
    slow = target.worker(NODE="slow", SLEEP="1000")
    job_id = target.enqueue(job)
    slow.wait_for_record("run")
    target.worker(NODE="quick", SLEEP="0.05")
    result = target.wait_for_end(job_id)
    assert target.output(result).decode().splitlines() == file_names(FILES)
    assert (result["mini_batches"]["succeeded"], result["mini_batches"]["failed"]) == (FILES, 0)
    # What it runs, and perhaps what it has received as well.
    assert result["copies"]["started"] == result["copies"]["won"] in (1, 2)
    slow.process.terminate()
    slow.wait()
