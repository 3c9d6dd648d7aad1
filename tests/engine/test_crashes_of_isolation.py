"""Kills the engine at each step while a mini-batch with a bad item is isolated: it alone is rejected."""

from harness import file_names

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
    ended = job.retry(job.crash(crash_point))
    assert [line.split()[0] for line in ended.lines] == file_names(12, without=[6])
    assert [len(line) for line in ended.lines if line.startswith("004")] == [8 + 300_000]
    assert (ended.items, ended.mini_batches) == ((12, 11, 1), (3, 3, 0))
    assert ended.result["rejects"]["items"] == 1
